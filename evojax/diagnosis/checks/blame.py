"""The reward part to blame if a reward pays for the wrong thing."""

import dataclasses

import numpy as np
import pandas as pd

from evojax.diagnosis import form
from evojax.diagnosis import names
from evojax.ledger import records
from evojax.stats import intervals
from evojax.stats import trends

_SURE = 0.01
_SMALL = 1e-9  # Variance below which a part carries no information.
_AGREES = 0.7  # Correlation with the outcome above which a part does no harm.
_OPPOSED = 0.5  # Influence from which a part that opposes the outcome misleads.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
  """The influence of one reward part on the reward within groups."""

  name: str
  weight: float
  is_outcome: bool  # Whether it is the part that tells what is solved.
  # Standard deviation of weight x part over that of weight x outcome.
  of_outcome: intervals.Interval
  agrees: intervals.Interval  # Correlation of weight x part with the outcome.


def shares(run: form.Run) -> list[Share]:
  """Return the parts that influence the reward, the strongest first.

  Each step is one value of the intervals. The list is empty if parts, weights
  or outcomes are not logged.
  """
  weights = run.settings.get('weights') or {}
  names = [n for n in run.parts if weights.get(n)]
  if not names or not {'outcome', 'group'} <= set(run.rollouts):
    return []
  columns = [form.PART + name for name in names]
  rows = run.rollouts.dropna(subset=['outcome', 'group', *columns])
  if not len(rows):
    return []
  solved = form.within(rows, 'outcome')
  paid = [n for n in names if _is_outcome(rows, n)]
  scale = abs(weights[paid[0]]) if paid else 0.0
  steps = rows['step'].to_numpy()
  each = np.unique(steps)
  found = []
  for name, column in zip(names, columns, strict=True):
    part = weights[name] * form.within(rows, column)
    ratios, agreements = [], []
    for step in each:
      x, y = part[steps == step], solved[steps == step]
      moved, right = float(x @ x), float(y @ y)
      if moved > _SMALL and right > _SMALL:
        agreements.append(float(x @ y) / (moved * right) ** 0.5)
        if scale:
          ratios.append((moved / right) ** 0.5 / scale)
    found.append(
        Share(
            name=name,
            weight=float(weights[name]),
            is_outcome=name in paid,
            of_outcome=intervals.mean(ratios),
            agrees=intervals.mean(agreements),
        )
    )
  far = lambda share: np.nan_to_num(share.of_outcome.value)
  return sorted(found, key=far, reverse=True)


def _is_outcome(rows: pd.DataFrame, name: str) -> bool:
  return bool(np.allclose(rows[form.PART + name], rows['outcome']))


def misleads(share: Share) -> bool:
  """Return whether a part matters more than the outcome, or opposes it.

  A part that agrees with the outcome does no harm. One that opposes it does
  harm before it is as strong.
  """
  if share.is_outcome or share.agrees.high >= _AGREES:
    return False
  most = _OPPOSED if share.agrees.high < 0 else 1.0
  return bool(share.of_outcome.low > most)


def misleading(run: form.Run) -> list[records.Remedy]:
  """Return remedies that drop the parts that mislead, the worst first."""
  return [
      records.Remedy(setting='weight', part=share.name, value=0.0)
      for share in sorted(shares(run), key=_harm, reverse=True)
      if misleads(share)
  ]


def unpaid(run: form.Run) -> list[records.Remedy]:
  """Return the remedy that pays for the outcome, where its weight is 0."""
  weights = run.settings.get('weights') or {}
  parts = [name for name in run.parts if name in weights]
  if 'outcome' not in run.rollouts:
    return []
  columns = ['outcome', *(form.PART + name for name in parts)]
  rows = run.rollouts.dropna(subset=columns)
  judges = [name for name in parts if _is_outcome(rows, name)]
  if not len(rows) or not judges or any(weights[name] for name in judges):
    return []
  return [records.Remedy(setting='weight', part=judges[0], value=1.0)]


def rising(run: form.Run) -> list[str]:
  """Return the parts whose mean rises, except those that judge correctness."""
  found = []
  for column in run.steps:
    part = column.removeprefix(form.PART)
    if part == column or names.judges(part):
      continue
    _, values = run.series(column)
    if len(values) >= form.MIN_STEPS and rises(values):
      found.append(part)
  return found


def rises(values: np.ndarray) -> bool:
  """Return whether a series rises, steadily or in a jump.

  Jumps are tested separately, because a line through a jump has correlated
  residuals and therefore a wide interval.

  Args:
    values: At least `form.MIN_STEPS` values.
  """
  change = trends.change_point(values)
  jumps = change.p < _SURE and change.after > change.before
  return trends.trend(values).low > 0 or jumps


def remedies(run: form.Run) -> tuple[records.Remedy, ...]:
  """Return changes that may repair a reward, most likely ones first.

  An outcome with a weight of 0 or below gets a positive one; other parts are
  dropped, first those that influence the reward most and agree least with the
  outcome; then the harness's own reward function is dropped. That is the first
  remedy if no part is the outcome, since then nothing else pays for it.
  """
  found = shares(run)
  if made := unpaid(run):
    return (*made, records.Remedy(setting='reward_code'))
  made = [
      records.Remedy(setting='weight', part=share.name, value=-share.weight)
      for share in found
      if share.is_outcome and share.weight < 0
  ]
  made += [
      records.Remedy(setting='weight', part=share.name, value=0.0)
      for share in sorted(found, key=_harm, reverse=True)
      if not share.is_outcome
  ]
  code = records.Remedy(setting='reward_code')
  if found and not any(share.is_outcome for share in found):
    return (code, *made) if len(made) > 1 else (code,)
  return (*made, code)


def _harm(share: Share) -> float:
  """Return how far a part moves the reward away from the outcome."""
  far, agrees = share.of_outcome.value, share.agrees.value
  return float(np.nan_to_num(far) * (1 - np.nan_to_num(agrees)))
