"""One GRPO update: state, loss, gradient, optimizer.

`update_step` is compiled once for each shape of its batch: the shared layout
has one shape, packed rows have a few (`packing.row_counts`). Scalars that a
researcher or a harness may change (learning rate, clip bounds, KL coefficient,
temperature, ...) are traced; a change of a setting in `Algorithm` compiles a
new program.

A batch is a dict of arrays with a leading axis of M micro-batches of p groups
each, made by `make_batch`. Dropped groups come last; micro-batches that hold no
other groups are not run. Axis letters are those of `evojax.records`. If a
micro-batch has fewer groups than devices, groups are split into parts, see
`config_checks.group_parts`; p and G then count parts and the sequences of a
part.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
import numpy as np
import optax

from evojax import records
from evojax.models import decoder
from evojax.models import layer
from evojax.models import lora
from evojax.rl import importance
from evojax.rl import logprobs as logprobs_lib
from evojax.rl import losses
from evojax.rl import masked
from evojax.rl import packing
from evojax.runtime import config_checks
from evojax.runtime import sharding

State = dict[str, Any]  # params, frozen, moments, step.
Batch = dict[str, Any]

_OBJECTIVE = ('clip_low', 'clip_high', 'dual_clip', 'kl_coef', 'entropy_coef')
# Traced scalars of `update_step`, all float32.
HYPERPARAMETERS = (
    'learning_rate',
    'weight_decay',
    'max_grad_norm',
    'temperature',
    *_OBJECTIVE,
    'tis_cap',
    'tis_floor',
    'reject_low',
    'reject_high',
    'veto',
)


class NonFiniteError(FloatingPointError):
  """The loss or a gradient is not finite; the state was not changed."""


@dataclasses.dataclass(frozen=True)
class Algorithm:
  """The settings that are compiled into the update."""

  ratio: str = 'token'  # token | sequence.
  aggregation: str = 'sequence'  # sequence | token | constant.
  layout: str = 'shared'  # shared | packed.
  # With one epoch and one minibatch, old log-probs are the current ones.
  on_policy: bool = True
  reference: bool = False  # Whether there is a KL term to a reference policy.
  entropy: bool = False  # Whether there is a term for the entropy.
  tis_mode: str = ''  # One of importance.MODES; empty: no importance weights.
  reject: str = 'none'  # One of importance.REJECTIONS.
  veto: bool = False  # Sequences with one very unlikely token are rejected.
  max_tokens: int = 64  # Lc.
  logprob_chunk: int = 0  # Tokens whose logits are computed at once; 0: all.
  b1: float = 0.9
  b2: float = 0.95
  eps: float = 1e-8

  @property
  def rejects(self) -> bool:
    """True if tokens with very different sampler log-probs are left out."""
    return self.veto or self.reject != 'none'

  @property
  def optimizer(self) -> optax.GradientTransformation:
    """Adam's direction; `update_step` applies learning rate and decay."""
    return optax.scale_by_adam(self.b1, self.b2, self.eps)


def init_state(
    cfg: decoder.DecoderConfig, algorithm: Algorithm, params: decoder.Params
) -> State:
  """Return the state of step 0; with LoRA, only the adapters are trained.

  Moments are float32, as gradients are, whatever the dtype of the parameters.
  """
  trainable, frozen = lora.split(params) if cfg.lora_rank else (params, {})
  wide = jax.tree.map(lambda p: p.astype(jnp.float32), trainable)
  return dict(
      params=trainable,
      frozen=frozen,
      moments=algorithm.optimizer.init(wide),
      step=jnp.zeros((), jnp.int32),
  )


def trained(state: State) -> State:
  """Return the part of a state that updates change."""
  return {name: tree for name, tree in state.items() if name != 'frozen'}


def state_shardings(
    cfg: decoder.DecoderConfig, mesh: sharding.AnyMesh
) -> State:
  """Return the sharding of each leaf; moments are sharded like parameters."""
  axes = decoder.logical_axes(cfg)
  trainable, frozen = lora.split(axes) if cfg.lora_rank else (axes, {})
  trainable = sharding.shardings(mesh, trainable)
  whole = sharding.replicated(mesh)
  return dict(
      params=trainable,
      frozen=sharding.shardings(mesh, frozen),
      moments=optax.ScaleByAdamState(count=whole, mu=trainable, nu=trainable),
      step=whole,
  )


def policy_params(cfg: decoder.DecoderConfig, state: State) -> decoder.Params:
  """Return the parameters that a sampler needs."""
  if not cfg.lora_rank:
    return state['params']
  return lora.join(state['params'], state['frozen'])


def make_batch(
    prompts: Sequence[np.ndarray],
    episodes: Sequence[records.Episode],
    advantages: Float[np.ndarray, 'P G A'],
    included: Bool[np.ndarray, 'P G'],
    *,
    max_prompt_tokens: int,
    max_tokens: int,
    micro_groups: int,
    layout: str = 'shared',
    shards: int = 1,
) -> tuple[Batch, int, np.ndarray]:
  """Arrange a step's groups in micro-batches, kept groups first.

  Args:
    prompts: P * G int32 arrays, group-major.
    episodes: P * G episodes.
    advantages: float32 [P, G, A], one per turn; every token gets that of its
      turn. A is at least the maximum number of turns of an episode.
    included: bool [P, G]; False takes an episode out of loss and denominator.
      A group without included episodes is dropped and comes last.
    max_prompt_tokens: Lp.
    max_tokens: Lc, tokens after the prompt.
    micro_groups: p; must divide P.
    layout: 'shared' (one prompt per group) or 'packed'. If the prompts within a
      group differ, 'packed' is used in any case.
    shards: Devices over which each micro-batch is split; see
      `config_checks.group_parts`.

  Returns:
    The batch; the number of micro-batches that hold a kept group; and the order
    [P] of the groups in the batch. The batch's 'mask' [M, p, G, Lc] is True at
    the sampled tokens of included episodes, but not at observations.

  Raises:
    ValueError: If micro_groups does not divide P, a sequence is too long, or
      the sequences of a micro-batch do not split evenly over the shards.
  """
  groups, size, turns = advantages.shape
  parts = config_checks.group_parts(micro_groups, size, shards)
  if not parts:
    raise ValueError(
        f'grpo.micro_groups={micro_groups} of {size} sequences do not split'
        f' over {shards} devices; make it a multiple'
    )
  if groups % micro_groups:
    raise ValueError(
        f'{groups} groups do not split into micro-batches of'
        f' grpo.micro_groups={micro_groups}; choose a divisor.'
    )
  alive = included.any(1)
  order = np.argsort(~alive, kind='stable')
  live = -(-int(alive.sum()) // micro_groups)
  rows = (order[:, None] * size + np.arange(size)).reshape(-1)
  episodes = [episodes[i] for i in rows]
  by_turn = advantages[order].reshape(-1, turns)
  sequences = packing.Sequences(
      [prompts[i] for i in rows],
      [e.tokens for e in episodes],
      [e.loss_mask for e in episodes],
      size // parts,
      max_tokens,
  )
  micro_parts = micro_groups * parts
  split = lambda x: x.reshape(-1, micro_parts, *x.shape[1:])
  shared = layout == 'shared' and packing.share(sequences, max_prompt_tokens)
  if shared:
    batch = {k: split(v) for k, v in dataclasses.asdict(shared).items()}
  else:
    length = max_prompt_tokens + max_tokens
    packed = packing.pack_micro_batches(
        sequences, micro_parts, length, shards
    )
    batch = dataclasses.asdict(packed)
  # One advantage per token, not one per turn. So the number of turns, which
  # varies from step to step, is not a shape of the compiled program.
  pairs = zip(by_turn, episodes, strict=True)
  by_token = [values[e.turn_of_token] for values, e in pairs]
  pad = lambda values: split(sequences.pad(values))
  batch['sampler_logprobs'] = pad([e.logprobs for e in episodes])
  batch['advantages'] = pad(by_token)
  kept = split(included[order].reshape(-1, size // parts))
  batch['mask'] = batch.pop('loss_mask') & kept[..., None]
  return batch, live, order


def batch_shardings(batch: Batch, mesh: sharding.AnyMesh) -> Batch:
  """Return shardings that split groups, or packed rows, over the batch axes."""
  return sharding.shardings(mesh, {name: (None, 'batch') for name in batch})


def _logprobs(
    cfg: decoder.DecoderConfig,
    algorithm: Algorithm,
    params: decoder.Params,
    micro: Batch,
    temperature: jax.Array,
    *,
    with_entropy: bool,
) -> tuple[jax.Array, jax.Array | None]:
  """Return log-probs (and entropies) [p, G, Lc] of one micro-batch."""
  table = decoder.unembedding(cfg, params)
  options = dict(
      chunk=algorithm.logprob_chunk,
      with_entropy=with_entropy,
      entropy_gradient=algorithm.entropy,
      vocab_size=cfg.vocab_size,
  )
  if 'completions' in micro:
    names = 'prompts', 'prompt_lengths', 'completions'
    prompts, lengths, completions = (micro[name] for name in names)
    hidden = decoder.forward_shared(cfg, params, prompts, lengths, completions)
    return logprobs_lib.token_logprobs(
        hidden, table, completions, temperature, **options
    )
  names = 'tokens', 'positions', 'segment_ids'
  tokens, positions, segments = (micro[name] for name in names)
  hidden = decoder.forward(cfg, params, tokens, positions, segments)
  aligned = logprobs_lib.sequence_logprobs(
      hidden, table, tokens, segments, temperature, **options
  )
  # Back to [p, G, Lc], so that later code does not depend on packing.
  return jax.tree.map(lambda x: x.reshape(-1)[micro['index']], aligned)


def score_step(
    cfg: decoder.DecoderConfig,
    algorithm: Algorithm,
    params: decoder.Params,
    batch: Batch,
    temperature: jax.Array,
) -> Float[Array, 'M p G Lc']:
  """Return log-probs of a batch's episodes under `params`, without gradient."""
  algorithm = _of_slice(algorithm, batch)
  score = lambda params, batch, temperature: jax.lax.map(
      lambda x: _logprobs(
          cfg, algorithm, params, x, temperature, with_entropy=False
      )[0],
      batch,
  )
  if mesh := _mesh_of_slices(batch):
    whole, split = sharding.P(), sharding.P(None, 'slice')
    score = sharding.per_slice(score, mesh, (whole, split, whole), split)
  return score(params, batch, temperature)


def _mesh_of_slices(batch: Batch) -> jax.sharding.AbstractMesh | None:
  """Return the mesh if it has several slices that can compute independently.

  They cannot with packed rows, which may hold sequences of several slices; then
  the compiler partitions the computation.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.shape['slice'] == 1 or 'completions' not in batch:
    return None
  return mesh


def _of_slice(algorithm: Algorithm, batch: Batch) -> Algorithm:
  """Return the algorithm for one slice, with its share of `logprob_chunk`."""
  mesh = _mesh_of_slices(batch)
  chunk = -(-algorithm.logprob_chunk // (mesh.shape['slice'] if mesh else 1))
  return dataclasses.replace(algorithm, logprob_chunk=chunk)


def update_step(
    cfg: decoder.DecoderConfig,
    algorithm: Algorithm,
    state: State,
    batch: Batch,
    live: jax.Array,
    hyper: dict[str, jax.Array],
) -> tuple[State, dict[str, jax.Array], dict[str, jax.Array]]:
  """Make one optimizer update on a batch.

  The loss of the whole batch is accumulated over micro-batches with one
  denominator (see `rl.losses`), so the number of micro-batches changes the
  result only by rounding.

  Args:
    cfg: Shape of the decoder.
    algorithm: The settings that are compiled in.
    state: State from `init_state`; donate it.
    batch: Batch from `make_batch`; with old_logprobs [M, p, G, Lc] unless on
      policy, and with ref_logprobs [M, p, G, Lc] if there is a reference.
    live: int32 scalar, number of micro-batches to run.
    hyper: Name in HYPERPARAMETERS -> float32 scalar.

  Returns:
    The new state (the old one if the loss or a gradient is not finite), scalar
    metrics (a mean or maximum over no tokens is NaN), and arrays [M, p, G] with
    one value per episode: 'gap', the mean of |old_logprobs - sampler_logprobs|
    over its sampled tokens, and 'rejected'.
  """
  (grads, loss, sums), largest, rows = _accumulate(
      cfg, algorithm, state, batch, live, hyper
  )
  norm = optax.tree.norm(grads)
  clip = hyper['max_grad_norm']
  scale = jnp.where(clip > 0, jnp.minimum(1.0, clip / (norm + 1e-6)), 1.0)
  clipped = jax.tree.map(lambda g: g * scale, grads)
  direction, moments = algorithm.optimizer.update(clipped, state['moments'])

  def apply(path, param, step):
    decay = 0.0 if path[-1].key in layer.VECTORS else hyper['weight_decay']
    new = param - hyper['learning_rate'] * (step + decay * param)
    return new.astype(param.dtype)

  new_state = dict(
      params=jax.tree_util.tree_map_with_path(
          apply, state['params'], direction
      ),
      frozen=state['frozen'],
      moments=moments,
      step=state['step'] + 1,
  )
  # An update that is not finite must not reach the weights. The host stops on
  # the metric 'finite', with the last finite state.
  finite = jnp.isfinite(loss) & jnp.isfinite(norm)
  new_state = jax.tree.map(
      lambda new, old: jnp.where(finite, new, old), new_state, state
  )
  tokens, sampler = sums.pop('tokens'), sums.pop('sampler')
  metrics = {name: _mean(value, tokens) for name, value in sums.items()}
  metrics |= _sampler_metrics(algorithm, sampler)
  metrics |= {
      name: jnp.where(sampler['tokens'] > 0, value, jnp.nan)
      for name, value in largest.items()
  }
  metrics.update(loss=loss, grad_norm=norm, finite=finite, tokens=tokens)
  # How much this update lowers the loss, to first order and without weight
  # decay. Where advantages have a standard deviation of 1 (group_norm), it is
  # about the change of a token's log-prob. The arrays are not flattened
  # (optax.tree.vdot): XLA would gather those with a sharded inner axis, so that
  # each device would hold the whole update in float32.
  products = jax.tree.map(lambda g, d: jnp.sum(g * d), grads, direction)
  metrics['descent'] = hyper['learning_rate'] * optax.tree.sum(products)
  return new_state, metrics, rows


def _mean(total, count):
  """Return total / count; NaN without any count, as 0 could be a mean."""
  return jnp.where(count > 0, total / jnp.maximum(count, 1.0), jnp.nan)


def _sampler_metrics(algorithm, sums):
  """Return metrics of the sampler-trainer mismatch and of its correction."""
  tokens, sequences = sums['tokens'], sums['sequences']
  metrics = {name: _mean(sums[name], tokens) for name in ('gap', 'sampler_kl')}
  if algorithm.tis_mode:
    done = {'truncate': 'truncated', 'mask': 'masked'}
    name = f'tis_{done[algorithm.tis_mode.split("_")[1]]}'
    squares = jnp.maximum(sums['weight_square'], 1e-30)
    metrics |= {
        'tis_weight': _mean(sums['weight'], tokens),
        name: _mean(sums['bounded'], tokens),
        f'{name}_sequences': _mean(sums['bounded_sequences'], sequences),
        # Kish's effective sample size, as a share of the tokens.
        'tis_sample_size': _mean(jnp.square(sums['weight']) / squares, tokens),
    }
  if algorithm.rejects:
    metrics['rejected_tokens'] = _mean(sums['rejected'], tokens)
  return metrics


def _accumulate(cfg, algorithm, state, batch, live, hyper):
  """Sum gradients, loss and metrics over the live micro-batches.

  Returns:
    A tuple of the gradients, the loss, and the metrics' sums over tokens; the
    metrics' maxima over tokens; and values per episode [M, p, G].
  """
  mask = batch['mask']
  # If tokens are rejected, their number is known only after the forward passes;
  # then the sums are divided at the end.
  denominator = 1.0
  if not algorithm.rejects:
    denominator = losses.denominator(
        mask, algorithm.aggregation, algorithm.max_tokens
    )
  arguments = state['params'], state['frozen'], batch, live, hyper, denominator
  sum_up = functools.partial(_sum_up, cfg, _of_slice(algorithm, batch))
  if mesh := _mesh_of_slices(batch):
    of_one = sum_up

    def summed(*arguments):
      totals, largest, rows = of_one(*arguments)
      # The only communication between slices, once per update.
      totals = jax.lax.psum(totals, 'slice')
      return totals, jax.lax.pmax(largest, 'slice'), rows

    whole, split = sharding.P(), sharding.P(None, 'slice')
    places = (whole, whole, split, whole, whole, whole)
    sum_up = sharding.per_slice(summed, mesh, places, (whole, whole, split))
  (grads, loss, sums), largest, rows = sum_up(*arguments)
  if algorithm.rejects:
    count = jnp.maximum(sums.pop('count'), 1.0)
    grads, loss = jax.tree.map(lambda x: x / count, (grads, loss))
  return (grads, loss, sums), largest, rows


def _sum_up(cfg, algorithm, trainable, frozen, batch, live, hyper, denominator):
  """Return the results of `_accumulate`, before the division by a count."""
  mask = batch['mask']
  loss_fn = functools.partial(_loss, cfg, algorithm, frozen, hyper, denominator)

  def micro_step(i, carry):
    totals, largest, rows = carry
    micro = jax.tree.map(lambda x: x[i], batch)
    (loss, (sums, found, found_rows)), grads = jax.value_and_grad(
        loss_fn, has_aux=True
    )(trainable, micro)
    totals = jax.tree.map(
        lambda a, b: a + b.astype(a.dtype), totals, (grads, loss, sums)
    )
    rows = jax.tree.map(lambda a, b: a.at[i].set(b), rows, found_rows)
    return totals, jax.tree.map(jnp.maximum, largest, found), rows

  first = jax.tree.map(lambda x: x[0], batch)
  loss, (sums, largest, rows) = jax.eval_shape(loss_fn, trainable, first)
  totals, largest = jax.tree.map(
      lambda x: jnp.zeros(x.shape, jnp.float32),
      ((trainable, loss, sums), largest),
  )
  rows = jax.tree.map(lambda x: jnp.zeros((len(mask), *x.shape), x.dtype), rows)
  return jax.lax.fori_loop(0, live, micro_step, (totals, largest, rows))


def _loss(cfg, algorithm, frozen, hyper, denominator, trainable, micro):
  """Return the loss of one micro-batch, and its values for `_accumulate`."""
  params = lora.join(trainable, frozen) if cfg.lora_rank else trainable
  logprobs, entropy = _logprobs(
      cfg, algorithm, params, micro, hyper['temperature'], with_entropy=True
  )
  fixed = jax.lax.stop_gradient(logprobs)
  old = fixed if algorithm.on_policy else micro['old_logprobs']
  mask, weights, sampler, largest, rows = _correct(algorithm, hyper, old, micro)
  loss, sums = losses.policy_loss(
      logprobs,
      old,
      micro['advantages'],
      mask,
      losses.Objective(
          ratio=algorithm.ratio,
          aggregation=algorithm.aggregation,
          **{name: hyper[name] for name in _OBJECTIVE},
      ),
      denominator=denominator,
      weights=weights,
      ref_logprobs=micro.get('ref_logprobs'),
      entropy=entropy if algorithm.entropy else None,
  )
  sums['entropy'] = masked.masked_sum(jax.lax.stop_gradient(entropy), mask)
  sums['sampler'] = sampler
  if algorithm.rejects:
    sums['count'] = losses.count(
        mask, algorithm.aggregation, algorithm.max_tokens
    )
  return loss, (sums, largest, rows)


def _correct(algorithm, hyper, old, micro):
  """Compare the trainer with the sampler, and correct for the difference.

  Returns:
    The mask [p, G, Lc] of the tokens in the update; their importance weights
    [p, G, Lc], or None; the metrics' sums over the sampled tokens of the
    micro-batch, and their maxima; and values per episode [p, G].
  """
  mask, sampler = micro['mask'], micro['sampler_logprobs']
  three = old, sampler, mask
  gap = jnp.abs(old - sampler)
  sums = {
      'tokens': mask.sum(),
      'sequences': mask.any(-1).sum(),
      'gap': masked.masked_sum(gap, mask),
      'sampler_kl': importance.sampler_kl(*three),
  }
  largest = {'gap_max': jnp.max(jnp.where(mask, gap, 0.0))}
  kept, weights = mask, None
  if algorithm.tis_mode:
    weights, weight_sums, ratio = importance.importance_weights(
        *three,
        mode=algorithm.tis_mode,
        cap=hyper['tis_cap'],
        floor=hyper['tis_floor'],
    )
    sums |= weight_sums
    largest['tis_ratio_max'] = ratio
  if algorithm.rejects:
    kept = importance.accepted(
        *three,
        level=algorithm.reject,
        low=hyper['reject_low'],
        high=hyper['reject_high'],
        veto=hyper['veto'],
    )
    sums['rejected'] = (mask & ~kept).sum()
  rows = {
      'gap': masked.masked_mean(gap, mask, -1),
      'rejected': mask.any(-1) & ~kept.any(-1),
  }
  return kept, weights, sums, largest, rows


@functools.cache  # Arms with equal arguments share the program.
def compiled(
    function: Callable[..., Any],
    cfg: decoder.DecoderConfig,
    algorithm: Algorithm,
    mesh: jax.sharding.Mesh,
    *,
    donate: bool = True,
) -> Any:
  """Return one of three functions of this module, compiled for a mesh.

  Args:
    function: `init_state`, `update_step` or `score_step`.
    cfg: First argument of the function.
    algorithm: Second argument of the function.
    mesh: Devices of the results.
    donate: Whether the third argument, a state or parameters, is donated.
  """
  whole, state = sharding.replicated(mesh), state_shardings(cfg, mesh)
  results = {
      init_state: state,
      update_step: (state, whole, whole),
      score_step: sharding.shardings(mesh, (None, 'batch')),
  }
  return jax.jit(
      functools.partial(function, cfg, algorithm),
      out_shardings=results[function],
      donate_argnums=0 if donate else (),
  )


def check_finite(metrics: dict[str, Any], step: int) -> None:
  """Stop a run whose loss or gradient is not finite.

  Raises:
    NonFiniteError: If so, with the values and a remedy.
  """
  if not metrics['finite']:
    raise NonFiniteError(
        f'step {step}: loss={float(metrics["loss"])},'
        f' grad_norm={float(metrics["grad_norm"])} is not finite. The update'
        ' was not applied and the last checkpoint is intact. Lower'
        ' --config.optim.learning_rate or --config.optim.max_grad_norm and'
        ' start the same command in a new workdir.'
    )
