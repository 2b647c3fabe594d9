"""Standings: what the pairs of all rounds say of a candidate."""

from collections.abc import Mapping, Sequence
import math

import numpy as np
from scipy import special

from evojax.evolve import opening
from evojax.ledger import history as history_lib
from evojax.ledger import records


def standing(
    run: opening.Run,
    number: int,
    trial: history_lib.Trial,
    arms: Sequence[records.RacedArm],
) -> records.Standing:
  rounds = [
      _differences(race.arms, trial.number) for race in trial.races
  ] + [_differences(arms, trial.number)]
  d = np.concatenate(rounds)
  n = len(d)
  none = dict.fromkeys(('effect', 'standard_error', 'low', 'high', 'e_value', 'threshold', 'detectable'))
  base = dict(trial=trial.number, rounds=len(rounds), pairs=n)
  if len(rounds[-1]) < 2:
    return records.Standing(**base, **none, decision='drop', reason='too few pairs ended')
  m, se = float(d.mean()), float(d.std(ddof=1) / math.sqrt(n)) or 1e-3
  half = float(special.stdtrit(n - 1, 0.975)) * se
  e = math.exp(max(0.0, m / se) ** 2 / 2 - 1)
  decision = 'keep' if e > 20 else 'drop' if m + half < 0 else 'go on'
  return records.Standing(
      **base, effect=m, standard_error=se, low=m - half, high=m + half,
      e_value=e, threshold=20.0, detectable=2.5 * se, decision=decision, reason=f'e-value {e:.3g}, {20} keeps it')


def _differences(arms: Sequence[records.RacedArm], trial: int) -> np.ndarray:
  """Return candidate minus incumbent of the pairs of a round that ended."""
  scores: dict[int | None, dict[int, float]] = {None: {}, trial: {}}
  for arm in arms:
    if arm.trial in scores and arm.score is not None:
      scores[arm.trial][arm.pair] = arm.score
  both = sorted(scores[None].keys() & scores[trial].keys())
  return np.array([scores[trial][i] - scores[None][i] for i in both])


def paired(mine: Mapping[int, float], incumbent: Mapping[int, float]) -> tuple[float, float]:
  d = np.array([mine[i] - incumbent[i] for i in sorted(mine.keys() & incumbent.keys())])
  return float(d.mean()), float(d.std(ddof=1) / math.sqrt(len(d)))


def contradicts(standing: records.Standing, effect: float, error: float) -> str:
  if effect + 2 * error < 0:
    return 'perturbed'
  return ''
