"""The state that training changes, and the updates that change it.

A learner needs rollouts with rewards: a trainer samples them, and a backtest
reads them from recorded evidence. The learner writes no files.
"""

from collections.abc import Sequence
import math
import pathlib
from typing import Any

import jax
import numpy as np

from evojax.models import decoder
from evojax.models import flops
from evojax.runtime import checkpoint as checkpoint_lib
from evojax.runtime import devices
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import sharding
from evojax.training import fingerprint as fingerprint_lib
from evojax.training import reward_pipeline
from evojax.training import settings
from evojax.training import setup as setup_lib
from evojax.training import update as update_lib


class Learner:
  """Parameters, optimizer moments and the number of finished steps.

  Attributes:
    state: See `update.init_state`; replaced by every update.
    step: Number of finished steps, which is the version of the parameters.
    reference: Parameters of the reference policy; None without a KL term.
  """

  def __init__(
      self,
      setup: setup_lib.Setup,
      mesh: jax.sharding.Mesh,
      phases: metrics_lib.Phases,
  ):
    """Load the base policy's parameters, and make moments of zeros."""
    c, cfg = setup.config, setup.policy.cfg
    self.config, self.mesh, self.step = c, mesh, 0
    self.algorithm = settings.algorithm(c)
    self._cfg, self._phases = cfg, phases
    self._replicated = sharding.replicated(mesh)
    program = cfg, self.algorithm, mesh
    self._update = update_lib.compiled(update_lib.update_step, *program)
    self._score = update_lib.compiled(
        update_lib.score_step, *program, donate=False
    )
    base = setup.base_params(mesh)
    self.reference = base if self.algorithm.reference else None
    # If there is no reference, the state takes over the buffers of `base`.
    donate = not self.algorithm.reference
    init = update_lib.compiled(update_lib.init_state, *program, donate=donate)
    self.state = init(base)

  def start_from(self, checkpoint: pathlib.Path) -> None:
    """Restore parameters and moments of a checkpoint; `step` is not changed."""
    saved = checkpoint_lib.restore(checkpoint, abstract_state(self.state))
    self.state.update(saved['learner'])

  @property
  def params(self) -> decoder.Params:
    """The parameters that a sampler needs."""
    return update_lib.policy_params(self._cfg, self.state)

  def fingerprint(self) -> str:
    """Return 64 hex digits of the trained state; see `fingerprint.of`."""
    return fingerprint_lib.of(update_lib.trained(self.state))

  def compilations(self) -> int:
    """Return the number of programs compiled so far."""
    return self._update._cache_size() + self._score._cache_size()

  def learn(
      self, batch: reward_pipeline.RewardedBatch
  ) -> tuple[dict[str, float], np.ndarray]:
    """Update the policy on at most config.grpo.prompts groups of a batch.

    Kept groups are used first.

    Returns:
      Metrics, as means (also of maxima) over the updates that have them; and
      float32 [P, G], the mean |old_logprobs - sampler_logprobs| of each
      episode, NaN if the episode was not in the update. If the algorithm
      rejects tokens, the metrics also have the number of rejected episodes, and
      of groups that lost all their episodes by this; if the peak FLOP rate of
      the devices is known, they have 'mfu'.

    Raises:
      update.NonFiniteError: If the loss or a gradient is not finite. The state
        is then the last finite one.
    """
    c = self.config.grpo
    # Refill rounds may bring more groups than the update has room for.
    groups = np.argsort(~batch.kept, kind='stable')[: c.prompts]
    gap = np.full(batch.graded.shape, np.nan, np.float32)
    rejected = np.zeros(batch.graded.shape, bool)
    hyper = sharding.to_device(
        settings.hyperparameters(self.config, self.step), self._replicated
    )
    minibatches = [
        self._minibatch(batch, groups[i :: c.minibatches])
        for i in range(c.minibatches)
    ]
    before = self._phases.seconds['update']
    with self._phases('update'), sharding.use(self.mesh):
      # Before the first update, since old log-probs are those of the policy at
      # the start of the step.
      for _, arrays, _ in minibatches:
        if not self.algorithm.on_policy:
          arrays['old_logprobs'] = self._score(
              self.params, arrays, hyper['temperature']
          )
        if self.algorithm.reference:
          arrays['ref_logprobs'] = self._score(
              self.reference, arrays, hyper['temperature']
          )
      logs = []
      for epoch in range(c.epochs):
        for order, arrays, live in minibatches:
          self.state, metrics, rows = self._update(
              self.state, arrays, live, hyper
          )
          metrics, rows = sharding.to_host((metrics, rows))
          update_lib.check_finite(metrics, self.step + 1)  # Counted from 1.
          del metrics['finite']
          logs.append(metrics)
          # Later epochs have the same old log-probs, hence the same results.
          if epoch == 0:
            gap[order] = rows['gap'].reshape(-1, c.group_size)
            rejected[order] = rows['rejected'].reshape(-1, c.group_size)
    gap[~batch.included] = np.nan
    self.step += 1
    metrics = jax.tree.map(lambda *values: _mean(values), *logs)
    if self.algorithm.rejects:
      empty = rejected.any(1) & ~(batch.included & ~rejected).any(1)
      metrics.update(
          rejected=int(rejected.sum()), rejected_groups=int(empty.sum())
      )
    seconds = self._phases.seconds['update'] - before
    return metrics | self._utilisation(batch, groups, seconds), gap

  def _utilisation(
      self,
      batch: reward_pipeline.RewardedBatch,
      groups: np.ndarray,
      seconds: float,
  ) -> dict[str, float]:
    """Return {'mfu': model FLOPs utilisation} of a step; see `flops.model`.

    The FLOPs are those of scoring and updating on the included episodes, as a
    share of the peak of the devices; empty if the peak is neither given by
    config.log.peak_flops nor known.
    """
    known = devices.peaks(self.mesh.devices.flat[0].device_kind)
    peak = self.config.log.peak_flops or (known.flops if known else 0)
    if not peak or not seconds:
      return {}
    included, c = batch.included[groups], self.config.grpo
    tokens = [len(e.tokens) for e in batch.rollouts.episodes]
    completions = np.reshape(tokens, batch.graded.shape)[groups] * included
    prompts = np.array([len(batch.rollouts.prompts[i]) for i in groups])
    once = flops.model(self._cfg, prompts * included.any(1), completions)
    times = (not self.algorithm.on_policy) + self.algorithm.reference
    times += c.epochs * flops.passes(self._cfg)
    return {'mfu': times * once / (seconds * self.mesh.size * peak)}

  def _minibatch(
      self, batch: reward_pipeline.RewardedBatch, groups: np.ndarray
  ) -> tuple[np.ndarray, update_lib.Batch, jax.Array]:
    """Return the groups in the order of the batch, the batch, and `live`.

    `live` is the number of micro-batches that hold a kept group.
    """
    c, g = self.config, self.config.grpo.group_size
    index = (groups[:, None] * g + np.arange(g)).reshape(-1)
    rollouts = batch.rollouts
    arrays, live, order = update_lib.make_batch(
        [np.asarray(rollouts.prompts[i // g], np.int32) for i in index],
        [rollouts.episodes[i] for i in index],
        batch.advantages[groups],
        batch.included[groups],
        max_prompt_tokens=c.data.max_prompt_tokens,
        max_tokens=c.rollout.max_tokens,
        micro_groups=c.grpo.micro_groups,
        layout=c.grpo.layout,
        shards=sharding.batch_shards(self.mesh),
    )
    shardings = update_lib.batch_shardings(arrays, self.mesh)
    return (
        groups[order],
        sharding.to_device(arrays, shardings),
        sharding.to_device(np.int32(live), self._replicated),
    )


def _mean(values: Sequence[np.ndarray]) -> float:
  """Return the mean of a metric; NaN if no update had tokens to measure it."""
  known = [value for value in values if not np.isnan(value)]
  return float(np.mean(known)) if known else math.nan


def checkpoint_tree(
    state: update_lib.State, key: Any, cursor: int, step: int
) -> dict[str, Any]:
  """Return the arrays of a checkpoint, on which the next step depends.

  Args:
    state: See `update.init_state`.
    key: The run's random key.
    cursor: Number of problems of the stream that are used up.
    step: Number of finished steps.
  """
  return dict(
      learner=update_lib.trained(state),
      key=key,
      cursor=np.asarray(cursor, np.int64),
      policy_version=np.asarray(step, np.int32),
  )


def abstract_state(state: update_lib.State) -> dict[str, Any]:
  """Return shapes and shardings of a checkpoint's arrays, to restore one."""
  key = jax.eval_shape(lambda: jax.random.key(0))
  # Replicated, like the count of steps.
  whole = state['step'].sharding
  key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=whole)
  return checkpoint_tree(state, key, 0, 0)
