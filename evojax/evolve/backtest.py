"""Statistics of recorded groups under a candidate and under its parent.

All of them are computed from rewards, advantages and outcomes; one that cannot
be computed is NOT_IDENTIFIABLE, never a number.
"""

import dataclasses
import math
from typing import Any

from jaxtyping import Bool, Float
import numpy as np

from evojax.evolve import weightings
from evojax.harness import surface as surface_lib
from evojax.rl import filters

NOT_IDENTIFIABLE = 'not identifiable'
SCANNED = 1000  # Weights that `scan` tries.
HARMLESS = 0.1  # Share of |advantage| that may come from shaping alone.


@dataclasses.dataclass(frozen=True)
class Rewarded:
  """Recorded groups with the rewards and the filter of one harness."""

  rewards: Float[np.ndarray, 'P G']
  advantages: Float[np.ndarray, 'P G']  # Before groups are dropped.
  kept: Bool[np.ndarray, 'P']  # Groups that enter the update.
  parts: dict[str, Float[np.ndarray, 'P G']]  # Before their weights.
  weights: dict[str, float]
  outcome: Bool[np.ndarray, 'P G']
  graded: Bool[np.ndarray, 'P G']
  n_tokens: Float[np.ndarray, 'P G']
  estimator: str = 'group_norm'  # Advantage estimator: `grpo.advantage`.


def compare(before: Rewarded, after: Rewarded) -> dict[str, Any]:
  """Return statistics under a candidate and under its parent.

  alive_by_outcome: share of groups that are kept and have solved and unsolved
    members.
  alive_by_shaping: share of groups that are kept and whose outcomes agree but
    whose rewards differ. Their gradient follows the shaping terms alone.
  phantom_advantage: share of the absolute advantage that falls on the groups
    that are alive by shaping.
  sign_agreement: in groups alive by outcome, the share of completions whose
    advantage is positive if solved and negative if not.
  constant_parts: number of weighted reward parts that do not vary.
  length_correlation: correlation of n_tokens and reward.
  gradient_cosine: cosine of the advantages with those of the outcome alone,
    each completion weighted by the square root of its length. It equals the
    cosine of the policy gradients if the score functions of completions are
    orthogonal and their squared norms proportional to the number of tokens.
  kept_groups: share of groups that enter the update.

  Args:
    before: Recorded groups under the parent.
    after: The same groups under the candidate.

  Returns:
    Name -> number of the candidate; '<name>_before' -> number of the parent.
  """
  result: dict[str, Any] = dict(_describe(after))
  result |= {f'{name}_before': v for name, v in _describe(before).items()}
  return result


def _describe(r: Rewarded) -> dict[str, Any]:
  """Return the statistics of `compare` under one harness."""
  kept, outcome, graded = r.kept, r.outcome, r.graded
  advantages = np.where(kept[:, None], r.advantages, 0).astype(np.float64)
  # A completion that was not graded has advantage 0 and no known outcome.
  mixed = (outcome & graded).any(1) & (~outcome & graded).any(1)
  masked = lambda x: np.ma.array(x, mask=~graded)
  differs = filters.keep_reward_variance(r.rewards, outcome, graded)[:, 0]
  shaped = kept & differs & ~mixed
  total = np.abs(advantages).sum()
  alive = kept & mixed
  counted = alive[:, None] & graded
  signs = np.sign(advantages[counted]) == np.where(outcome[counted], 1, -1)
  plain = masked(outcome.astype(np.float64))
  plain = (plain - plain.mean(1, keepdims=True)).filled(0)
  length = np.sqrt(r.n_tokens)
  a, b = (advantages * length).ravel(), (plain * length).ravel()
  norm = math.sqrt(float(a @ a) * float(b @ b))
  constant = [
      name
      for name, part in r.parts.items()
      if r.weights.get(name) and np.ptp(part[graded]) == 0
  ]
  rewards, tokens = r.rewards[graded], r.n_tokens[graded]
  varies = rewards.std() > 0 and tokens.std() > 0
  missing = NOT_IDENTIFIABLE
  return dict(
      alive_by_outcome=float(alive.mean()),
      alive_by_shaping=float(shaped.mean()),
      phantom_advantage=(
          float(np.abs(advantages[shaped]).sum() / total) if total else 0.0
      ),
      sign_agreement=float(signs.mean()) if signs.size else missing,
      constant_parts=len(constant),
      length_correlation=(
          float(np.corrcoef(tokens, rewards)[0, 1]) if varies else missing
      ),
      gradient_cosine=float(a @ b / norm) if norm else missing,
      kept_groups=float(kept.mean()),
  )


def scan(
    after: Rewarded, part: str, surface: surface_lib.Surface
) -> dict[str, Any]:
  """Return how large the weight of a reward part may be, others held fixed.

  harmless_weight: the largest of SCANNED weights between 0 and the bound of the
  surface, with the proposed sign, such that at this weight and all smaller ones
  at most HARMLESS of the absolute advantage falls on groups whose outcomes
  agree.

  Args:
    after: Recorded groups under the candidate.
    part: Name of the reward part whose weight the candidate changes.
    surface: The fields that a harness may set.

  Returns:
    {'harmless_weight': number or NOT_IDENTIFIABLE}; {} without such a part.
  """
  names = list(after.parts)
  if part not in names:
    return {}
  bound = surface.field(surface_lib.WEIGHTS + part).high
  bound = math.copysign(bound, after.weights[part])
  grid = np.linspace(0, bound, SCANNED)
  weights = np.tile([after.weights[name] for name in names], (SCANNED, 1))
  weights[:, names.index(part)] = grid
  shares = weightings.apply(
      np.stack([after.parts[name] for name in names]).astype(np.float32),
      weights.astype(np.float64),
      after.outcome,
      after.graded,
      advantage=after.estimator,
  ).phantom_share
  # The range ends at the first harmful weight, even if a larger one is
  # harmless.
  harmful = np.flatnonzero(shares > HARMLESS)
  last = harmful[0] - 1 if len(harmful) else SCANNED - 1
  found = float(grid[last]) if last >= 0 else NOT_IDENTIFIABLE
  return dict(harmless_weight=found)
