"""Memory of a run per device, worked out from the shapes of its arrays.

Parameters, moments and caches are shapes with shardings; nothing is read to a
device. What programs need for themselves comes from the compiler where it can
be asked, and from bounds elsewhere.
"""

from collections.abc import Iterator
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from evojax import records
from evojax.models import decoder
from evojax.models import policy as policy_lib
from evojax.rollout import slots as slots_lib
from evojax.runtime import sharding
from evojax.training import engines
from evojax.training import settings
from evojax.training import update as update_lib

_WEIGHTS = (
    'raise --config.mesh.fsdp, or train adapters with --config.model.lora_rank'
)
# How to make an entry of the memory smaller, if it is the largest.
REMEDIES = {
    'parameters': _WEIGHTS,
    'optimizer moments': _WEIGHTS,
    'reference policy': 'raise --config.mesh.fsdp, or --config.grpo.kl_coef=0',
    'sampler weights': (
        'raise --config.mesh.tensor, or set'
        ' --config.model.compute_dtype=bfloat16'
    ),
    'rollout cache': 'lower --config.rollout.decode_slots',
    'update': (
        'lower --config.grpo.micro_groups, or set --config.model.remat=full and'
        ' --config.model.logprob_chunk=1024'
    ),
    'score': 'lower --config.grpo.micro_groups',
    **dict.fromkeys(
        ('prefill rows', 'prefill'), 'lower --config.rollout.prefill_rows'
    ),
    'insert': (
        'lower --config.rollout.decode_slots or --config.rollout.prefill_rows'
    ),
    'decode': 'lower --config.rollout.decode_slots',
}


@dataclasses.dataclass(frozen=True)
class Run:
  """The shapes of a run's arrays, as its config implies them."""

  config: ml_collections.ConfigDict
  policy: policy_lib.Policy
  mesh: sharding.AnyMesh  # Abstract where its devices are elsewhere.

  @property
  def cfg(self) -> decoder.DecoderConfig:
    return self.policy.cfg

  @functools.cached_property
  def algorithm(self) -> update_lib.Algorithm:
    return settings.algorithm(self.config)

  @functools.cached_property
  def params(self) -> decoder.Params:
    """Shapes of the stored parameters, with their shardings."""
    return sharding.placed(
        _cast(decoder.shapes(self.cfg), self.config.model.param_dtype),
        sharding.shardings(self.mesh, decoder.logical_axes(self.cfg)),
    )

  @functools.cached_property
  def state(self) -> update_lib.State:
    """Shapes of the learner's state, with their shardings."""
    shapes = jax.eval_shape(
        functools.partial(update_lib.init_state, self.cfg, self.algorithm),
        self.params,
    )
    return sharding.placed(
        shapes, update_lib.state_shardings(self.cfg, self.algorithm, self.mesh)
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
    )
    return sharding.placed(batch, update_lib.batch_shardings(batch, self.mesh))

  @functools.cached_property
  def slots(self) -> slots_lib.Slots:
    """The sampler, which holds shapes only."""
    return engines.make_engine(self.config, self.policy, self.mesh).slots

  @functools.cached_property
  def arrays(self) -> tuple[Any, Any]:
    """Shapes of the keys and values of decode slots, and of prefill rows."""
    state, rows, _ = self.slots.arrays()
    return state.cache, rows

  @property
  def samples_here(self) -> bool:
    """Tell whether this process samples, and not a server."""
    return self.config.rollout.kind == 'engine'

  @property
  def copies_weights(self) -> bool:
    """Tell whether the engine holds weights of its own.

    It does where they are used in another form than they are stored in, or
    where it samples beside the update.
    """
    model = self.config.model
    return bool(
        model.compute_dtype != model.param_dtype
        or self.mesh.shape['fsdp'] > 1
        or self.config.rollout.queue_depth
    )

  @property
  def scores(self) -> bool:
    """Tell whether log-probs are computed apart from the update."""
    return self.algorithm.reference or not self.algorithm.on_policy

  @functools.cached_property
  def gradient_bytes(self) -> int:
    """The bytes per device of the gradients, which are float32."""
    params = self.state['params']
    shardings = jax.tree.map(lambda x: x.sharding, params)
    return bytes_of(sharding.placed(_cast(params, 'float32'), shardings))

  @functools.cached_property
  def sampler_weights(self) -> Any:
    """Shapes of the weights as the engine holds them: whole along fsdp."""
    return sharding.placed(
        _cast(self.params, self.cfg.compute_dtype),
        sharding.shardings(
            self.mesh, decoder.logical_axes(self.cfg, gathered=True)
        ),
    )


def _cast(shapes: Any, dtype: str) -> Any:
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), shapes)


def bytes_of(placed: Any) -> int:
  """Return the bytes per device of a tree of placed shapes."""
  return sum(
      math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
      for x in jax.tree.leaves(placed)
  )


def resident(run: Run) -> dict[str, int]:
  """Return the bytes per device of what stays between programs."""
  memory = {
      'parameters': bytes_of((run.state['params'], run.state['frozen'])),
      'optimizer moments': bytes_of(run.state['moments']),
  }
  if run.algorithm.reference:
    memory['reference policy'] = bytes_of(run.params)
  if run.samples_here:
    memory['rollout cache'], memory['prefill rows'] = map(bytes_of, run.arrays)
    if run.copies_weights:
      memory['sampler weights'] = bytes_of(run.sampler_weights)
  return memory


def lower(run: Run) -> Iterator[tuple[str, jax.stages.Lowered]]:
  """Lower the programs of a run at their shapes: (name, ready to compile)."""
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
  if run.samples_here:
    yield from run.slots.lower(run.sampler_weights)


def compiled(run: Run) -> Iterator[tuple[str, int]]:
  """Compile the programs: (name, temporary bytes per device) of each."""
  for name, lowered in lower(run):
    memory = lowered.compile().memory_analysis()
    fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
    yield name, memory.temp_size_in_bytes + fresh


def bounds(run: Run) -> Iterator[tuple[str, int | float]]:
  """Bound the programs: (name, temporary bytes per device) of each.

  The bounds count what must be alive at once. They are on the safe side: a
  compiler that fuses well needs less.
  """
  c, cfg, mesh = run.config, run.cfg, dict(run.mesh.shape)
  fsdp, tensor, replicas = mesh['fsdp'], mesh['tensor'], mesh['data']
  shards = replicas * fsdp  # Of a batch.
  item = jnp.dtype(cfg.compute_dtype).itemsize
  d, h, n, k = (cfg.hidden_size, cfg.head_dim, cfg.num_heads, cfg.num_kv_heads)
  prompt, new = c.data.max_prompt_tokens, c.rollout.max_tokens

  def layer(slots: int) -> float:
    """Return the bytes per token of a layer, with its scores of the keys."""
    split = (2 * (n + 2 * k) * h + n * h + 3 * cfg.intermediate_size) * item
    whole = d * (2 if cfg.post_norms else 1) * (4 * item + 8)
    return whole + (split + n * slots * (4 + item)) / tensor

  saved = {  # Bytes per token that each layer keeps for the backward pass.
      'none': layer(prompt + new),
      'dots': (3 * d + ((n + 2 * k) * h + 2 * cfg.intermediate_size) / tensor)
      * item,
      'full': d * item,
  }[cfg.remat]
  # Bytes per token of its logits, beside its hidden state, which is whole.
  logits = cfg.vocab_size * 4 / (fsdp * tensor) + d * item
  weights = bytes_of(run.sampler_weights['layers'])
  table = cfg.vocab_size * d * item / (fsdp * tensor)
  # A layer is cast and gathered over fsdp for use, and the next one with it.
  copies = run.copies_weights
  used = (
      copies * 2 * weights / cfg.num_layers
      + (cfg.compute_dtype != c.model.param_dtype) * table
  )

  groups, size = c.grpo.micro_groups, c.grpo.group_size
  if c.grpo.layout == 'shared':
    tokens = groups * (prompt + size * new) / shards
    targets = groups * size * new / replicas
  else:
    tokens = math.prod(run.batch['tokens'].shape[1:]) / shards
    targets = tokens * fsdp
  alive = min(c.model.logprob_chunk / replicas or math.inf, targets)
  forward = tokens * layer(prompt + new) + used
  yield 'update', (
      # The sum over micro-batches, and the gradients of one micro-batch.
      2 * run.gradient_bytes
      + cfg.num_layers * tokens * saved
      # Without recomputation copies of all weights wait for the backward pass.
      + copies * (cfg.remat == 'none') * weights
      + 2 * forward
      + 3 * alive * logits
  )
  if run.scores:
    yield 'score', 2 * forward + 2 * alive * logits
  if not run.samples_here:
    return
  # A donated cache is replaced a layer at a time. A scan over the layers writes
  # all of them anew, beside the old ones and the layer in use.
  scan = cfg.scan_layers
  copied = scan + (1 + scan) / cfg.num_layers
  kept, cache = bytes_of(run.arrays[1].cache), bytes_of(run.arrays[0])
  rows, slots = c.rollout.prefill_rows, c.rollout.decode_slots
  yield 'prefill', (
      copied * kept
      + rows / shards * 2 * prompt * layer(prompt)
      + rows / replicas * logits
  )
  # As many sequences as there are rows take slots at once. A slot may lie on
  # another device than its row, so that each device gathers all rows.
  yield 'insert', (
      cache * (1 if scan else 1 / cfg.num_layers)
      + 2 * shards * kept
      + 5 * rows * cfg.vocab_size * 4
  )
  yield 'decode', (
      copied * cache
      + slots / shards * 2 * layer(prompt + new)
      + 5 * slots / replicas * logits
  )
