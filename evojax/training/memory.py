"""Memory of a run per device, computed from the shapes of its arrays.

Parameters, moments and caches are described by shapes and shardings; nothing is
loaded onto a device. The temporaries of programs are reported by the compiler
if the devices are on this machine, and bounded otherwise.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from evojax import config as config_lib
from evojax import records
from evojax.models import decoder
from evojax.models import lora
from evojax.models import policy as policy_lib
from evojax.rollout import slots as slots_lib
from evojax.runtime import sharding
from evojax.training import engines
from evojax.training import means
from evojax.training import settings
from evojax.training import update as update_lib

# Number of copies of all targets' hidden states that an update holds at once,
# as compiled by XLA for TPUs.
_HIDDEN = 5
# Stacked weights that XLA for TPUs copies into another layout for decoding.
_LAID_ANEW = ('qkv', 'gate_up')
# Stacked weights whose gradients XLA for GPUs copies if fsdp splits them.
_GRADIENTS_LAID_ANEW = ('out', 'down')
# Platforms of the devices that a run on another machine may have.
ACCELERATORS = ('gpu', 'tpu')


@dataclasses.dataclass(frozen=True)
class Run:
  """The shapes of a run's arrays, as its config implies them."""

  config: ml_collections.ConfigDict
  policy: policy_lib.Policy
  mesh: sharding.AnyMesh  # Abstract if its devices are not on this machine.
  # 'cpu', 'gpu' or 'tpu'. '' takes that of the mesh's devices; if the mesh is
  # abstract, they may be of any of ACCELERATORS.
  platform: str = ''

  def __post_init__(self):
    if not self.platform and isinstance(self.mesh, jax.sharding.Mesh):
      platform = self.mesh.devices.flat[0].platform
      object.__setattr__(self, 'platform', platform)

  def on(self, platform: str) -> 'Run':
    """Return the run on devices of a platform, unless its own is known."""
    if self.platform:
      return self
    return dataclasses.replace(self, platform=platform)

  def with_fields(self, fields: Mapping[str, Any]) -> 'Run':
    """Return the run with other values of fields, by dotted name."""
    config = config_lib.with_fields(self.config, fields)
    return dataclasses.replace(self, config=config)

  @property
  def cfg(self) -> decoder.DecoderConfig:
    return self.policy.cfg

  @functools.cached_property
  def algorithm(self) -> update_lib.Algorithm:
    return settings.algorithm(self.config)

  @functools.cached_property
  def params(self) -> decoder.Params:
    """Shapes of the stored parameters, with their shardings.

    Adapters of LoRA are float32, whatever the dtype of the other parameters.
    """
    shapes = decoder.shapes(self.cfg)
    stored = _cast(shapes, self.config.model.param_dtype)
    if self.cfg.lora_rank:
      stored = lora.join(lora.split(shapes)[0], lora.split(stored)[1])
    return sharding.placed(
        stored, sharding.shardings(self.mesh, decoder.logical_axes(self.cfg))
    )

  @functools.cached_property
  def state(self) -> update_lib.State:
    """Shapes of the learner's state, with their shardings."""
    shapes = jax.eval_shape(
        functools.partial(update_lib.init_state, self.cfg, self.algorithm),
        self.params,
    )
    return sharding.placed(
        shapes, update_lib.state_shardings(self.cfg, self.mesh)
    )

  @functools.cached_property
  def batch(self) -> update_lib.Batch:
    """Shapes of one optimizer update's batch at its largest."""
    c = self.config
    groups = c.grpo.prompts // c.grpo.minibatches
    rows = groups * c.grpo.group_size
    tokens = np.zeros(c.rollout.max_tokens, np.int32)
    episode = records.Episode(tokens, tokens.astype(float), 'length', 0, '')
    batch, _, _ = update_lib.make_batch(
        [np.zeros(c.data.max_prompt_tokens, np.int32)] * rows,
        [episode] * rows,
        np.zeros((groups, c.grpo.group_size, 1), np.float32),
        np.ones((groups, c.grpo.group_size), bool),
        max_prompt_tokens=c.data.max_prompt_tokens,
        max_tokens=c.rollout.max_tokens,
        micro_groups=c.grpo.micro_groups,
        layout=c.grpo.layout,
        shards=sharding.batch_shards(self.mesh),
    )
    return sharding.placed(batch, update_lib.batch_shardings(batch, self.mesh))

  @functools.cached_property
  def slots(self) -> slots_lib.Slots:
    """The sampler; no arrays are allocated for it."""
    return engines.make_engine(self.config, self.policy, self.mesh).slots

  @functools.cached_property
  def arrays(self) -> tuple[Any, Any, Any]:
    """Shapes of the decode slots' caches, prefill rows and prefix cache."""
    state, rows, pool = self.slots.arrays()
    return state.cache, rows, pool

  @property
  def samples_here(self) -> bool:
    """True if this process samples, False if servers do."""
    return self.config.rollout.kind == 'engine'

  @property
  def copies_weights(self) -> bool:
    """True if the engine holds its own copy of the weights.

    It does if the weights are used in another dtype or sharding than they are
    stored in, or if it samples while the update runs.
    """
    model = self.config.model
    return bool(
        model.compute_dtype != model.param_dtype
        or self.mesh.shape['fsdp'] > 1
        or self.config.rollout.queue_depth
    )

  @property
  def scores(self) -> bool:
    """True if log-probs are computed in a program before the update."""
    return self.algorithm.reference or not self.algorithm.on_policy

  @property
  def averages(self) -> bool:
    """True if training continues from the mean of several arms."""
    evolve = self.config.evolve
    return bool(evolve.rounds and evolve.policy == 'mean')

  @functools.cached_property
  def total(self) -> update_lib.State:
    """Shapes of a sum of states, which is float32, with their shardings."""
    return _float32(update_lib.trained(self.state))

  @functools.cached_property
  def gradients(self) -> Any:
    """Shapes of the gradients, which are float32, with their shardings."""
    return _float32(self.state['params'])

  @property
  def gradient_bytes(self) -> int:
    """The bytes per device of the gradients."""
    return bytes_of(self.gradients)

  @property
  def used_weights(self) -> Any:
    """Shapes of the weights that the sampler's programs read."""
    return self.sampler_weights if self.copies_weights else self.params

  @functools.cached_property
  def sampler_weights(self) -> Any:
    """Shapes of the engine's copy of the weights, not split along fsdp."""
    return sharding.placed(
        _cast(self.params, self.cfg.compute_dtype),
        sharding.shardings(
            self.mesh, decoder.logical_axes(self.cfg, gathered=True)
        ),
    )


def _cast(shapes: Any, dtype: str) -> Any:
  """Return shapes with another dtype; integers keep theirs."""
  of = lambda x: dtype if jnp.issubdtype(x.dtype, jnp.floating) else x.dtype
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, of(x)), shapes)


def _float32(placed: Any) -> Any:
  """Return placed shapes in float32, with the same shardings."""
  shardings = jax.tree.map(lambda x: x.sharding, placed)
  return sharding.placed(_cast(placed, 'float32'), shardings)


def bytes_of(placed: Any) -> int:
  """Return the bytes per device of a tree of placed shapes."""
  return sum(
      math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
      for x in jax.tree.leaves(placed)
  )


def resident(run: Run) -> dict[str, int]:
  """Return the bytes per device of the arrays that stay between programs."""
  memory = {
      'parameters': bytes_of((run.state['params'], run.state['frozen'])),
      'optimizer moments': bytes_of(run.state['moments']),
  }
  if run.algorithm.reference:
    memory['reference policy'] = bytes_of(run.params)
  if run.samples_here:
    cache, rows, pool = map(bytes_of, run.arrays)
    memory |= {'rollout cache': cache, 'prefill rows': rows}
    if pool:  # The prefix cache holds the earlier turns of episodes.
      memory['prefix cache'] = pool
    if run.copies_weights:
      memory['sampler weights'] = bytes_of(run.sampler_weights)
  return memory


def with_reference(run: Run) -> Run:
  """Return the largest arm that a harness may lead to.

  A KL penalty adds the reference policy and its scores; all other values that a
  harness may change keep within the shapes of the run.
  """
  return run.with_fields({'grpo.kl_coef': run.config.grpo.kl_coef or 0.01})


def peak(run: Run, *, trains: bool = True) -> int:
  """Bound the bytes per device while the largest program runs.

  Args:
    run: The run.
    trains: Whether it updates the parameters, or only samples with them.
  """
  kept, programs = resident(run), dict(bounds(run))
  if not trains:
    for name in ('optimizer moments', 'reference policy'):
      kept.pop(name, None)
    for name in ('update', 'score', 'mean'):
      programs.pop(name, None)
  return sum(kept.values()) + math.ceil(max(programs.values(), default=0))


def lower(run: Run) -> Iterator[tuple[str, jax.stages.Lowered]]:
  """Yield (name, lowered program) for each program of a run."""
  whole = sharding.replicated(run.mesh)
  scalar_of = functools.partial(jax.ShapeDtypeStruct, (), sharding=whole)
  scalar = scalar_of(jnp.float32)
  batch = dict(run.batch)
  if run.scores:
    score = functools.partial(update_lib.score_step, run.cfg, run.algorithm)
    yield 'score', jax.jit(score).lower(run.params, batch, scalar)
  like = batch['sampler_logprobs']
  if not run.algorithm.on_policy:
    batch['old_logprobs'] = like
  if run.algorithm.reference:
    batch['ref_logprobs'] = like
  update = update_lib.compiled(
      update_lib.update_step, run.cfg, run.algorithm, run.mesh
  )
  yield 'update', update.lower(
      run.state,
      batch,
      scalar_of(jnp.int32),
      {name: scalar for name in update_lib.HYPERPARAMETERS},
  )
  if run.averages:
    # An outer step needs less, since it is of the parameters only.
    state = update_lib.trained(run.state)
    yield 'mean', means.add.lower(run.total, state, scalar)
  if run.samples_here:
    yield from run.slots.lower(run.params, run.used_weights)


def compiled(run: Run) -> Iterator[tuple[str, int]]:
  """Compile each program; yield (name, temporary bytes per device)."""
  for name, lowered in lower(run):
    yield name, fresh_bytes(name, lowered.compile().memory_analysis())


def fresh_bytes(name: str, memory: Any) -> int:
  """Return the bytes that a program needs in addition to `resident`.

  Args:
    name: The program's name from `lower`.
    memory: The compiler's memory analysis of the program. That of libtpu has
      more temporary bytes than libtpu reserves, see tests/aot/programs.py.
  """
  fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
  if name == 'mean':  # It needs memory for the total, which is another state.
    fresh = memory.output_size_in_bytes
  # The output of 'weights' is the engine's copy, which `resident` counts; the
  # former copy has been freed before.
  return memory.temp_size_in_bytes + (0 if name == 'weights' else fresh)


def bounds(run: Run) -> Iterator[tuple[str, int | float]]:
  """Yield (name, upper bound on the temporary bytes per device) of programs.

  A bound counts the arrays that must be alive at once. It is on the safe side:
  a compiler that fuses well needs less. If the platform is not known, it is the
  largest of all platforms.
  """
  if not run.platform:
    each = [dict(bounds(run.on(platform))) for platform in ACCELERATORS]
    yield from ((name, max(one[name] for one in each)) for name in each[0])
    return
  yield 'update', _update_bytes(run)
  if run.scores:
    yield 'score', _score_bytes(run)
  if run.averages:
    yield 'mean', bytes_of(run.total)
  if run.samples_here:
    yield from _sampler_bounds(run)


def _token_bytes(run: Run) -> float:
  """Return the bytes of a layer's activations per token, without scores."""
  cfg, item = run.cfg, _item(run)
  d, h, n, k = (cfg.hidden_size, cfg.head_dim, cfg.num_heads, cfg.num_kv_heads)
  split = (2 * (n + 2 * k) * h + n * h + 3 * cfg.intermediate_size) * item
  whole = d * (2 if cfg.post_norms else 1) * (4 * item + 8)
  return whole + split / run.mesh.shape['tensor']


def _item(run: Run) -> int:
  return jnp.dtype(run.cfg.compute_dtype).itemsize


def _attention_bytes(run: Run, scores: int | float) -> float:
  """Return the bytes of the attention scores of all heads and their softmax.

  Args:
    run: The run.
    scores: Number of scores of one head.
  """
  heads = run.cfg.num_heads / run.mesh.shape['tensor']
  return scores * heads * (4 + _item(run))


def _logit_bytes(run: Run) -> float:
  """Return the bytes of one token's logits and hidden state."""
  cfg, mesh = run.cfg, run.mesh.shape
  vocab = cfg.vocab_rows * 4 / (mesh['fsdp'] * mesh['tensor'])
  return vocab + cfg.hidden_size * _item(run)


@dataclasses.dataclass(frozen=True)
class _Forward:
  """The sizes of a forward pass over a micro-batch, on one device."""

  tokens: float
  # Tokens whose log-probs are computed. They are not split along fsdp, which
  # splits the vocabulary instead.
  targets: float
  alive: float  # Targets whose logits are alive at once.
  layer: float  # Bytes of a layer's activations, without attention scores.
  scores: float  # Bytes of the attention scores that are alive at once.
  # How many of the two kinds of sequences, prompts and completions, compute
  # attention scores in blocks of queries, and again in the backward pass.
  blocks: int
  weights: float  # Bytes of the weights that are cast and gathered for use.


def _shards(run: Run) -> tuple[int, int]:
  """Return the numbers of devices and of replicas that share a batch."""
  return sharding.batch_shards(run.mesh), sharding.replicas(run.mesh)


def _forward(run: Run) -> _Forward:
  """Return the sizes of a forward pass of the update."""
  c, cfg, mesh = run.config, run.cfg, run.mesh.shape
  shards, replicas = _shards(run)
  length = c.data.max_prompt_tokens + c.rollout.max_tokens
  most, block = decoder.MOST_QUERIES, decoder.QUERY_BLOCK
  # A head's scores of a sequence that are alive at once.
  scored = lambda queries: (block if queries > most else queries) * length
  if 'completions' in run.batch:
    prompts, completions = (
        run.batch[name].shape[1:] for name in ('prompts', 'completions')
    )
    rows = prompts[0], completions[0] * completions[1]
    lengths = prompts[1], completions[2]
    targets = math.prod(completions) / replicas
  else:
    rows, lengths = zip(run.batch['tokens'].shape[1:], strict=True)
    targets = rows[0] * lengths[0] / replicas
    if lengths[0] <= most:
      blocks = decoder.causal_blocks(lengths[0])
      scored = lambda _: sum((stop - start) * stop for start, stop in blocks)
  pairs = list(zip(rows, lengths, strict=True))
  tokens = sum(row * each for row, each in pairs) / shards
  scores = sum(row * scored(each) for row, each in pairs) / shards
  # Two layers are cast and gathered along fsdp at a time: one in use and the
  # next one.
  used = 0.0
  if run.copies_weights:
    used += 2 * bytes_of(run.sampler_weights['layers']) / cfg.num_layers
  if cfg.compute_dtype != c.model.param_dtype:
    table = cfg.vocab_rows * cfg.hidden_size * _item(run)
    used += table / (mesh['fsdp'] * mesh['tensor'])
  return _Forward(
      tokens=tokens,
      targets=targets,
      alive=min(c.model.logprob_chunk / replicas or math.inf, targets),
      layer=tokens * _token_bytes(run),
      scores=_attention_bytes(run, scores),
      blocks=(max(lengths) > most) + (min(lengths) > most),
      weights=used,
  )


def _update_bytes(run: Run) -> float:
  """Bound the temporaries of the update."""
  cfg, item, f = run.cfg, _item(run), _forward(run)
  d, h, n, k = (cfg.hidden_size, cfg.head_dim, cfg.num_heads, cfg.num_kv_heads)
  tensor = run.mesh.shape['tensor']
  saved = {  # Bytes that each layer keeps for the backward pass.
      'none': f.layer + (0 if f.blocks else f.scores),
      'dots': f.tokens
      * (3 * d + ((n + 2 * k) * h + 2 * cfg.intermediate_size) / tensor)
      * item,
      'full': f.tokens * d * item,
  }[cfg.remat]
  # Without recomputation, the copies of all weights are kept for the backward
  # pass.
  copies = run.copies_weights and cfg.remat == 'none'
  waiting = bytes_of(run.sampler_weights['layers']) if copies else 0
  # The sum over micro-batches, and the gradients of one micro-batch. Gradients
  # that are sent to other slices are copied to separate buffers.
  gradients = (2 + (run.mesh.shape['slice'] > 1)) * run.gradient_bytes
  if run.platform == 'gpu' and run.mesh.shape['fsdp'] > 1 and cfg.scan_layers:
    layers = run.gradients['layers']
    anew = [layers[name] for name in _GRADIENTS_LAID_ANEW if name in layers]
    gradients += bytes_of(anew)
  one_layer = (
      # XLA for CPUs keeps activations beside their gradients; otherwise each
      # gradient takes the place of its activation.
      (1 + (run.platform == 'cpu')) * (f.layer + f.scores)
      + f.weights
      # The gradients of the layer's weights, before they are split along fsdp.
      + bytes_of(run.sampler_weights['layers']) / cfg.num_layers
      # The gradients that enter and leave the layer.
      + 2 * f.tokens * d * item
      # A second copy of a layer was observed where prompts are in blocks, too.
      + (f.blocks == 2) * f.layer
  )
  # Hidden states, and their gradients, are gathered along fsdp to compute
  # log-probs in chunks.
  logits = 3 * f.alive * _logit_bytes(run) + _HIDDEN * f.targets * d * item
  kept = gradients + cfg.num_layers * saved + waiting
  # A loop over the layers ends before logits are computed, and the next begins
  # after. Without loops, a compiler may compute parts of both in turn.
  together = max if cfg.scan_layers else operator.add
  return kept + together(one_layer, logits)


def _score_bytes(run: Run) -> float:
  """Bound the temporaries of computing log-probs without gradient."""
  f = _forward(run)
  hidden = 2 * f.targets * run.cfg.hidden_size * _item(run)
  # XLA for GPUs frees a layer's temporaries before those of the next layer.
  layer = (1 + (run.platform != 'gpu')) * (f.layer + f.scores + f.weights)
  return layer + 2 * f.alive * _logit_bytes(run) + hidden


def _sampler_bounds(run: Run) -> Iterator[tuple[str, int | float]]:
  """Bound the programs of the sampler."""
  cfg, shapes = run.cfg, run.slots.shapes
  shards, replicas = _shards(run)
  # Every slice prefills all rows.
  slices = run.mesh.shape['slice']
  of_rows = shards // slices
  state, rows_kept, pool = run.arrays
  kept, cache = bytes_of(rows_kept.cache), bytes_of(state)
  rows, slots = shapes.prefill_rows, shapes.decode_slots
  if run.copies_weights:
    yield 'weights', bytes_of(run.sampler_weights)
  # One layer of a donated cache is alive together with its new version. If
  # layers are stacked, they are written in place on GPUs. Elsewhere the whole
  # new stack is alive beside the old one; in decode steps only on CPUs.
  scan, tpu = cfg.scan_layers, run.platform == 'tpu'
  stacks = scan and run.platform != 'gpu'
  copied = (1 + stacks) / cfg.num_layers
  # Stacked weights that are copied: on TPUs some of all layers, for decoding;
  # else one layer.
  anew = one_layer = 0
  if scan:
    layers = run.used_weights['layers']
    if tpu:
      anew = bytes_of([layers[name] for name in _LAID_ANEW])
    else:
      anew = one_layer = bytes_of(layers) / cfg.num_layers
  tokens = rows / of_rows * shapes.chunk
  width = shapes.row_chunks * shapes.chunk
  layer = tokens * _token_bytes(run) + _attention_bytes(run, tokens * width)
  yield 'prefill', (
      (stacks + copied) * kept
      + one_layer
      + 2 * layer
      + slices * rows / replicas * _logit_bytes(run)
  )
  # A row may move to another device, so each device gathers all rows. If layers
  # are stacked, it gathers one layer at a time.
  at_once = cfg.num_layers if scan else 1
  gathered = 2 * of_rows * kept / at_once
  vocab = 6 * rows * cfg.vocab_rows * 4
  new = 0 if scan else cache / cfg.num_layers
  yield 'insert', new + gathered + vocab
  a_slot = _token_bytes(run) + _attention_bytes(run, shapes.context)
  yield 'decode', (
      ((stacks and not tpu) + copied) * cache
      + anew
      + slots / shards * 2 * a_slot
      + 5 * slots / replicas * _logit_bytes(run)
  )
  if pool:
    one = bytes_of(pool) / cfg.num_layers
    whole = scan and run.platform == 'cpu'
    yield 'load', gathered + 2 * kept / at_once + whole * kept
    yield 'store', gathered + one + whole * bytes_of(pool)
