"""The reward pipeline: from graded rollouts to the advantages of each turn.

    graded rows -> reward parts -> rewards -> advantages -> turns, kept groups

It reads evidence rows only, so that recorded rollouts are rewarded exactly like
live ones.
"""

from collections.abc import Sequence
import dataclasses
import hashlib
from typing import Any

from jaxtyping import Bool, Float
import numpy as np

from evojax.episodes import collect
from evojax.evidence import schema
from evojax.rl import advantages as advantages_lib
from evojax.rl import filters
from evojax.runtime import decisions
from evojax.runtime import interruptible
from evojax.training import reward_parts
from evojax.training import setup as setup_lib


@dataclasses.dataclass(frozen=True)
class RewardedBatch:
  """P groups of G episodes, with their rewards and advantages.

  Episodes that could not be graded have reward and advantage 0, and enter no
  update.
  """

  rollouts: collect.RolloutBatch
  graded: Bool[np.ndarray, 'P G']
  rewards: Float[np.ndarray, 'P G']
  parts: dict[str, Float[np.ndarray, 'P G']]  # Before weighting.
  # One advantage per turn, computed before groups are dropped; 0 at padding.
  advantages: Float[np.ndarray, 'P G A']
  kept: Bool[np.ndarray, 'P']  # Groups that enter the update.

  @property
  def included(self) -> Bool[np.ndarray, 'P G']:
    """The episodes that enter the update."""
    return self.kept[:, None] & self.graded

  @property
  def episode_advantages(self) -> Float[np.ndarray, 'P G']:
    """Mean advantage of each episode's turns."""
    mean = self.advantages.sum(-1) / self.rollouts.n_turns
    return mean.astype(np.float32)

  @property
  def columns(self) -> dict[str, Any]:
    """Evidence of the stage 'reward': column -> B values."""
    # The reward of an episode that was not graded is unknown, not 0.
    known = lambda x: np.where(self.graded, x, np.nan).reshape(-1)
    turns = self.rollouts.n_turns.reshape(-1)
    flat = self.advantages.reshape(len(turns), -1)
    # 'turn_advantages' is empty for one turn, where 'advantage' is the same.
    trained = np.where((turns > 1) & self.graded.reshape(-1), turns, 0)
    return {
        'reward': known(self.rewards),
        'advantage': known(self.episode_advantages),
        'turn_advantages': [
            row[:n] for row, n in zip(flat, trained, strict=True)
        ],
        'kept': self.included.reshape(-1),
        **{
            schema.PART_PREFIX + name: known(values)
            for name, values in self.parts.items()
        },
    }


class RewardPipeline:
  """The stage that computes advantages and kept groups from graded rollouts.

  Attributes:
    keep: Hash of the harness's filter; '' without one.
    keep_state: State of the filter, passed from batch to batch.
  """

  def __init__(self, setup: setup_lib.Setup):
    self._setup, self.keep = setup, ''
    self.keep_state: dict[str, np.ndarray] = {}
    if setup.functions and setup.functions.has('keep'):
      source = setup.harness.files['keep.py']
      self.keep = hashlib.sha256(source.encode()).hexdigest()
      self.keep_state = setup.functions.init()

  def __call__(self, rollouts: collect.RolloutBatch) -> RewardedBatch:
    """Reward a batch of whole groups, and update the filter's state.

    In a run of several processes, all must call it; an error of one, such as a
    function that is late on one machine, is raised in all.

    Raises:
      preemption.Interrupted: If a signal came while the reward was computed.
      reward_parts.RewardError: If a part does not fit, or is not finite, or if
        rewards or credit are too large for float32.
      harness.run.FunctionError: If a function of the harness fails.
    """
    batch, state = decisions.agreed(lambda: self._reward(rollouts))
    self.keep_state = state
    return batch

  def _reward(
      self, rollouts: collect.RolloutBatch
  ) -> tuple[RewardedBatch, dict[str, np.ndarray]]:
    """Return the rewarded batch, and the next state of the filter."""
    config, functions = self._setup.config, self._setup.functions
    graded, state = rollouts.graded, self.keep_state
    e = self._setup.view(rollouts.rows)
    # A function of the user may take long, and may ask a judge.
    rewards, parts = interruptible.call_here(lambda: self._setup.rewards(e))
    # An advantage compares an episode with its whole group. Groups without
    # signal are dropped afterwards, from the loss and from its denominator.
    advantages = np.asarray(
        advantages_lib.ADVANTAGES[config.grpo.advantage](rewards, e.valid)
    )
    turns = rollouts.n_turns
    weights = np.ones((*graded.shape, int(turns.max())), np.float32)
    if functions and functions.has('weight'):
      # Its last axis may be shorter: it covers the turns of graded episodes.
      credit = functions.weight(e)
      weights[..., : credit.shape[-1]] = credit
    kept = filters.KEEP[config.grpo.keep](rewards, e.outcome, e.valid)
    if functions and functions.has('keep'):
      chosen, state = functions.keep(e, state)
      kept = kept & chosen
    with np.errstate(over='ignore'):
      credited = advantages_lib.per_turn(advantages, weights, turns)
    if not np.isfinite(credited).all():
      raise reward_parts.RewardError(
          'advantages leave the range of float32: weight.py returns up to'
          f' {np.abs(weights).max():.3g}; return weights near 1'
      )
    batch = RewardedBatch(
        rollouts=rollouts,
        graded=graded,
        rewards=rewards,
        parts=parts,
        advantages=credited,
        kept=kept.any(1),
    )
    return batch, state


def join(batches: Sequence[RewardedBatch]) -> RewardedBatch:
  """Join the rollout rounds of one step into one batch, in their order."""
  if len(batches) == 1:
    return batches[0]
  turns = max(b.advantages.shape[-1] for b in batches)
  wide = lambda x: np.pad(x, ((0, 0), (0, 0), (0, turns - x.shape[-1])))
  stack = lambda *values: np.concatenate(values)
  return RewardedBatch(
      rollouts=collect.join([b.rollouts for b in batches]),
      parts={
          name: stack(*(b.parts[name] for b in batches))
          for name in batches[0].parts
      },
      advantages=stack(*(wide(b.advantages) for b in batches)),
      **{
          name: stack(*(getattr(b, name) for b in batches))
          for name in ('graded', 'rewards', 'kept')
      },
  )
