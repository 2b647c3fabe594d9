"""One process of a multi-device run; started by sharded_test.py.

  worker.py DIRECTORY OUTPUT FSDP TENSOR [SLICES [PROCESS PORT]]

Loads the checkpoint in DIRECTORY onto FSDP x TENSOR shards, replicated over
SLICES and over the virtual CPU devices in XLA_FLAGS (with PROCESS, of two
processes) that are left, runs forward, prefill, decode, the engine and one
update of each kind (with PROCESS: engine and one update, a GRPO step), and has
process 0 write every result to OUTPUT (.npz) and the updated policies to
OUTPUT-shared and OUTPUT-packed.
"""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np

from evojax import records
from evojax.episodes import episode
from evojax.models import cache as cache_lib
from evojax.models import cache_kernel
from evojax.models import decoder
from evojax.models import hf
from evojax.models import hf_config
from evojax.models import policy
from evojax.rollout import engine
from evojax.rollout import slots
from evojax.runtime import sharding
from evojax.training import update as update_lib
from tests.aot import collectives
from tests.episodes import echo

P, G, LP, LC = 8, 2, 5, 6


def load(directory, mesh, cfg):
  """Parameters straight on their shards, and the bytes of each device."""
  layout = sharding.shardings(mesh, decoder.logical_axes(cfg))
  params = hf.load_params(directory, cfg, shardings=layout)
  return params, held_bytes(params)


def held_bytes(params):
  """Bytes [leaves, devices] that every local device holds."""
  held = [
      [
          sum(s.data.nbytes for s in leaf.addressable_shards if s.device == d)
          for d in jax.local_devices()
      ]
      for leaf in jax.tree.leaves(params)
  ]
  return np.array(held)


def run_forward(mesh, cfg, params, tokens):
  """Logits of the whole sequence, and by prefill and decode."""
  whole = sharding.replicated(mesh)
  put = lambda x: sharding.to_device(x, whole)

  @jax.jit
  def full(params, tokens):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden = decoder.forward(
        cfg, params, tokens, positions, jnp.ones_like(tokens)
    )
    return decoder.logits(cfg, params, hidden)[..., : cfg.vocab_size]

  @jax.jit
  def stepwise(params, tokens):
    rows, length = tokens.shape
    cache = cache_lib.empty(cfg, rows, length)
    start = jnp.zeros(rows, jnp.int32)
    hidden, cache = decoder.extend(cfg, params, tokens[:, :LP], start, cache)
    out = [hidden[:, -1]]
    for t in range(LP, length):
      positions = jnp.full(rows, t)
      hidden, cache = decoder.decode(
          cfg, params, tokens[:, t], positions, cache, jnp.int32(t + 1)
      )
      out.append(hidden)
    every = decoder.logits(cfg, params, jnp.stack(out, 1))
    return every[..., : cfg.vocab_size]

  with sharding.use(mesh):
    return {
        'forward': full(params, put(tokens)),
        'stepwise': stepwise(params, put(tokens)),
    }


def run_kernel(mesh):
  """Values that 8 rows of 2 heads read from the second layer of a cache."""
  rng = np.random.default_rng(2)
  draw = lambda *shape: rng.standard_normal(shape).astype(jnp.bfloat16)
  cache = draw(2, 8, 2, 100, 16), draw(2, 8, 2, 100, 16)
  lengths = rng.integers(1, 101, 8).astype(np.int32)
  mask = np.arange(100) < lengths[:, None, None, None]
  attend = functools.partial(cache_kernel.attend, scale=0.25, interpret=True)
  whole = sharding.replicated(mesh)
  arguments = draw(8, 2, 3, 16), mask, cache, (np.int32(1),), lengths
  with sharding.use(mesh):
    values = jax.jit(attend)(*sharding.to_device(arguments, whole))
  return values.astype(jnp.float32)


def run_engine(mesh, cfg, params):
  """Sampled tokens and log-probs of 12 requests on 8 slots."""
  sampler = engine.Engine(
      cfg,
      slots.Shapes(
          max_prompt_tokens=LP,
          max_tokens=LC,
          decode_slots=8,
          prefill_rows=4,
      ),
      eos_ids=(3,),
      decode_text=str,
      refill_every=2,
      mesh=mesh,
  )
  sampler.update_weights(params, 0)
  requests = [
      records.Request(
          prompt_tokens=tuple(range(5, 6 + i % 4)),
          seed=0,
          problem_key=i % 4,
          sample=i // 4,
          params=records.SamplingParams(max_tokens=LC),
      )
      for i in range(12)
  ]
  answers = sampler.generate(requests)
  return {
      'weights': held_bytes(sampler.slots.params),
      'sampled': np.concatenate([a.tokens for a in answers]),
      'sampler_logprobs': np.concatenate([a.logprobs for a in answers]),
  }


def run_episodes(mesh, cfg, params):
  """Episodes of several turns; what process 0 is told counts for all."""
  sampler = engine.Engine(
      cfg,
      slots.Shapes(
          max_prompt_tokens=echo.PROMPT + echo.TOKENS - 1,
          max_tokens=echo.TURN,
          decode_slots=8,
          prefill_rows=4,
          prefill_chunk=8,
          prefix_chunks=64,
          context_tokens=echo.PROMPT + echo.TOKENS,
      ),
      eos_ids=(echo.EOS,),
      decode_text=echo.Tokenizer().decode,
      refill_every=2,
      mesh=mesh,
  )
  sampler.update_weights(params, 0)
  domain = echo.Domain(delay=lambda: 0.01 * jax.process_index())
  player = episode.Player(sampler, echo.Tokenizer(), domain)
  episodes = player.play(echo.asked())
  return {
      'tokens': np.concatenate([e.tokens for e in episodes]),
      'mask': np.concatenate([e.loss_mask for e in episodes]),
      'logprobs': np.concatenate([e.logprobs for e in episodes]),
      'turns': np.array([len(e.turns) for e in episodes]),
      'ended': np.array([len(e.finish_reason) for e in episodes]),
  }


def run_update(mesh, cfg, params, layout):
  """State and metrics after one update, and what it gathers by itself.

  The latter is the bytes of the largest array that is gathered outside the loop
  over micro-batches, which needs weights.
  """
  rng = np.random.default_rng(1)
  draw = lambda n: rng.integers(4, cfg.vocab_size, n).astype(np.int32)
  prompts = [p for _ in range(P) for p in [draw(rng.integers(1, LP + 1))] * G]
  completions = [draw(rng.integers(1, LC + 1)) for _ in range(P * G)]
  advantages = rng.standard_normal((P, G))
  included = np.ones((P, G), bool)
  included[2] = False  # A dropped group,
  included[4, 1] = False  # and a dropped completion.
  # The sampler was nearly uniform: ratios lie on both sides of 1.
  uniform = -np.log(np.float32(cfg.vocab_size))
  sampler = [
      uniform + rng.normal(0, 0.3, len(c)).astype(np.float32)
      for c in completions
  ]
  batch, live, _ = update_lib.make_batch(
      prompts,
      [
          records.Episode(c, logprobs, 'stop', 0, '')
          for c, logprobs in zip(completions, sampler)
      ],
      advantages[..., None],
      included,
      max_prompt_tokens=LP,
      max_tokens=LC,
      micro_groups=2,  # With four shards, every group is on two devices.
      layout=layout,
      shards=sharding.batch_shards(mesh),
  )
  algorithm = update_lib.Algorithm(
      layout=layout,
      max_tokens=LC,
      aggregation='token',
      logprob_chunk=16,
      tis_mode='sequence_truncate',
      reject='token',
      veto=True,
      # Adam's first step is nearly the sign of the gradient, which turns the
      # rounding of a gradient near 0 into a whole step. Not with eps = 1.
      eps=1.0,
  )
  whole = sharding.replicated(mesh)
  values = dict.fromkeys(update_lib.HYPERPARAMETERS, 0.0) | dict(
      learning_rate=1.0,
      temperature=0.8,
      clip_low=0.2,
      clip_high=0.2,
      tis_cap=0.2,  # Most sequences are likelier under the sampler.
      reject_low=0.2,
      reject_high=5.0,
      veto=0.01,
  )
  with sharding.use(mesh):
    state = jax.jit(
        lambda p: update_lib.init_state(cfg, algorithm, p),
        out_shardings=update_lib.state_shardings(cfg, mesh),
    )(params)
    update = update_lib.compiled(update_lib.update_step, cfg, algorithm, mesh)
    arguments = (
        state,
        sharding.to_device(batch, update_lib.batch_shardings(batch, mesh)),
        sharding.to_device(np.int32(live), whole),
        sharding.to_device(
            {k: np.float32(v) for k, v in values.items()}, whole
        ),
    )
    program = update.lower(*arguments).compile()
    state, metrics, rows = program(*arguments)
  found = collectives.find(program.as_text())
  gathered = [
      c.nbytes for c in found if c.kind == 'all-gather' and not c.loops
  ]
  result = dict(state=state, metrics=metrics, rows=rows)
  return result, max(gathered, default=0)


def drop_padding(cfg, state):
  """Take padding, which an update leaves 0, off the tables of a state."""
  for tree in (state['params'], state['moments'].mu, state['moments'].nu):
    for name in ('embed', 'lm_head'):
      table = sharding.to_host(tree[name])
      np.testing.assert_array_equal(table[cfg.vocab_size :], 0)
      tree[name] = table[: cfg.vocab_size]


def main(directory, output, fsdp, tensor, slices=1, process=None, port=None):
  if process is not None:
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    jax.distributed.initialize(
        f'localhost:{port}', num_processes=2, process_id=int(process)
    )
  mesh = sharding.make_mesh(
      data=-1,
      fsdp=int(fsdp),
      tensor=int(tensor),
      slice=int(slices),
      devices=jax.devices(),
  )
  results = {}
  base = policy.padded(hf_config.load(directory), int(fsdp), int(tensor))
  tokens = np.random.default_rng(0).integers(4, base.vocab_size, (8, LP + 3))
  alone = jax.process_count() == 1
  for layout, scan in (('shared', False), ('packed', True))[: 1 + alone]:
    cfg = dataclasses.replace(
        base, scan_layers=scan, remat='full' if scan else 'none'
    )
    params, held = load(directory, mesh, cfg)
    if scan:
      results['forward'] = run_forward(mesh, cfg, params, tokens)
      results['kernel'] = run_kernel(mesh)
    else:
      results['held'] = held
      results['engine'] = run_engine(mesh, cfg, params)
      results['episodes'] = run_episodes(mesh, cfg, params)
      results['sampler_held'] = results['engine'].pop('weights')
    results[layout], gathered = run_update(mesh, cfg, params, layout)
    if scan:  # Otherwise weights are gathered before the loop that needs them.
      results['gathered'] = gathered
    updated = results[layout]['state']['params']
    # So small that every process writes several of the files.
    small = dict(dtype='float32', max_shard_bytes=10_000)
    hf.save(f'{output}-{layout}', cfg, updated, **small)
    drop_padding(cfg, results[layout]['state'])
  results = jax.tree.map(
      lambda x: sharding.to_host(x) if isinstance(x, jax.Array) else x, results
  )
  for layout in {'shared', 'packed'} & results.keys():
    # Parts of groups lie one after the other.
    rows = results[layout]['rows']
    results[layout]['rows'] = {k: x.reshape(P, G) for k, x in rows.items()}
  if jax.process_index() == 0:
    flat, _ = jax.tree_util.tree_flatten_with_path(results)
    np.savez(output, **{jax.tree_util.keystr(k): v for k, v in flat})


main(*sys.argv[1:])
