"""The state that training changes, and the updates that change it.

A learner needs rollouts with rewards, from wherever they come: a trainer
samples them, a backtest reads them from recorded evidence. It writes nothing.
"""

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
from evojax.training import reward_pipeline
from evojax.training import settings
from evojax.training import setup as setup_lib
from evojax.training import update as update_lib


class Learner:
  """Parameters, optimizer moments and the number of updates behind them.

  Attributes:
    state: See `update.init_state`; a new one after every update.
    step: Updates so far, the version of the parameters.
    reference: Parameters of the reference policy; None without a KL term.
  """

  def __init__(
      self,
      setup: setup_lib.Setup,
      mesh: jax.sharding.Mesh,
      phases: metrics_lib.Phases,
  ):
    """Put the base policy's parameters and zero moments on the devices."""
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
    # The reference lives on; otherwise the state takes the buffers over.
    donate = not self.algorithm.reference
    init = update_lib.compiled(update_lib.init_state, *program, donate=donate)
    self.state = init(base)

  def start_from(self, checkpoint: pathlib.Path) -> None:
    """Take parameters and moments of a checkpoint; steps are counted from 0."""
    saved = checkpoint_lib.restore(checkpoint, abstract_state(self.state))
    self.state.update(saved['learner'])

  @property
  def params(self) -> decoder.Params:
    """The parameters a sampler needs."""
    return update_lib.policy_params(self._cfg, self.state)

  def fingerprint(self) -> str:
    """Return 64 hex digits of parameters and moments; see `update`."""
    return update_lib.fingerprint(_trained(self.state))

  def compilations(self) -> int:
    """Return the number of programs compiled so far."""
    return self._update._cache_size() + self._score._cache_size()

  def learn(
      self, batch: reward_pipeline.RewardedBatch
  ) -> tuple[dict[str, float], np.ndarray]:
    """Update the policy on the groups of a batch; kept ones come first.

    Returns:
      Metrics, means over the updates made, and where some are rejected the
      numbers of episodes, and of groups of which none is left, and mfu where
      the peak of the devices is known; and float32 [P, G], the mean
      |old_logprobs - sampler_logprobs| of each episode, NaN where the update
      did not see it.

    Raises:
      update.NonFiniteError: If the loss or a gradient is not finite. The state
        is the last good one.
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
      # Before the first update: both are of the policy at the step's start.
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
          update_lib.check_finite(metrics, self.step)
          del metrics['finite']
          logs.append(metrics)
          # Later epochs compare with the same old log-probs again.
          if epoch == 0:
            gap[order] = rows['gap'].reshape(-1, c.group_size)
            rejected[order] = rows['rejected'].reshape(-1, c.group_size)
    gap[~batch.included] = np.nan
    self.step += 1
    metrics = jax.tree.map(lambda *values: float(np.mean(values)), *logs)
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
    """Return the model FLOPs utilisation of an update, see `flops.model`.

    The share of the peak that scores and updates of the groups that train reach
    together; nothing where the peak is not known.
    """
    peak = devices.peaks(self.mesh.devices.flat[0].device_kind)
    if peak is None or not seconds:
      return {}
    included, c = batch.included[groups], self.config.grpo
    tokens = [len(e.tokens) for e in batch.rollouts.episodes]
    completions = np.reshape(tokens, batch.graded.shape)[groups] * included
    prompts = np.array([len(batch.rollouts.prompts[i]) for i in groups])
    once = flops.model(self._cfg, prompts * included.any(1), completions)
    times = (not self.algorithm.on_policy) + self.algorithm.reference
    times += c.epochs * flops.passes(self._cfg)
    return {'mfu': times * once / (seconds * self.mesh.size * peak.flops)}

  def _minibatch(
      self, batch: reward_pipeline.RewardedBatch, groups: np.ndarray
  ) -> tuple[np.ndarray, update_lib.Batch, jax.Array]:
    """Return the groups as laid out, their arrays, and live micro-batches."""
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


def _trained(state: update_lib.State) -> dict[str, Any]:
  """Return the part of a state that updates change."""
  return {name: tree for name, tree in state.items() if name != 'frozen'}


def checkpoint_tree(
    state: update_lib.State, key: Any, cursor: int, step: int
) -> dict[str, Any]:
  """Return the arrays of a checkpoint: all that the next step depends on.

  Args:
    state: See `update.init_state`.
    key: The run's random key.
    cursor: Problems of the stream that are used up.
    step: Updates so far.
  """
  return dict(
      learner=_trained(state),
      key=key,
      cursor=np.asarray(cursor, np.int64),
      policy_version=np.asarray(step, np.int32),
  )


def abstract_state(state: update_lib.State) -> dict[str, Any]:
  """Return a tree with shapes and places of a checkpoint, to restore one."""
  key = jax.eval_shape(lambda: jax.random.key(0))
  # Replicated, as the count of steps is.
  whole = state['step'].sharding
  key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=whole)
  return checkpoint_tree(state, key, 0, 0)
