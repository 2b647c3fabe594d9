"""Predicted against realised effects, over the trials that realised one."""

from collections.abc import Callable, Sequence
import dataclasses
import statistics

from evojax.ledger import history
from evojax.ledger import records


@dataclasses.dataclass(frozen=True)
class Signs:
  """Signs over the realised effects whose interval excludes 0."""

  decided: int
  right: int  # Effects whose sign was predicted.
  base: int  # Effects that always naming the commoner sign gets right.


@dataclasses.dataclass(frozen=True)
class Row:
  """Trials of one class, proposer or statistic."""

  name: str
  trials: int
  kept: int
  predicted: float | None  # Mean midpoint.
  realised: float | None  # Mean.
  covered: int  # Realised effects inside the predicted interval.
  compared: int  # Trials that have both.
  signs: Signs


Predict = Callable[[history.Trial], records.Interval | None]


def middle(interval: records.Interval) -> float:
  """Return the midpoint of an interval."""
  return (interval[0] + interval[1]) / 2


def compared(
    trials: Sequence[history.Trial], predict: Predict
) -> list[history.Trial]:
  """Return the trials with a prediction and a realised effect."""
  return [t for t in trials if predict(t) and t.effect is not None]


def signs(trials: Sequence[history.Trial], predict: Predict) -> Signs:
  """Count how often the sign of a clear effect was predicted."""
  up, right, decided = 0, 0, 0
  for trial in compared(trials, predict):
    low, high = trial.realised
    if low <= 0 <= high:
      continue
    decided += 1
    up += trial.effect > 0
    # A prediction of exactly 0 predicts no sign.
    right += trial.effect * middle(predict(trial)) > 0
  return Signs(decided, right, max(up, decided - up))


def row(name: str, trials: Sequence[history.Trial], predict: Predict) -> Row:
  """Compare predicted with realised effects over some trials."""
  both = compared(trials, predict)
  mean = lambda values: statistics.fmean(values) if both else None
  return Row(
      name=name,
      trials=len(trials),
      kept=sum(t.kind == 'keep' for t in trials),
      predicted=mean([middle(predict(t)) for t in both]),
      realised=mean([t.effect for t in both]),
      covered=sum(predict(t)[0] <= t.effect <= predict(t)[1] for t in both),
      compared=len(both),
      signs=signs(trials, predict),
  )


def by(
    trials: Sequence[history.Trial],
    key: Callable[[history.Trial], str],
    predict: Predict,
) -> list[Row]:
  """Return one row per value of the key, in alphabetical order."""
  names = sorted({key(trial) for trial in trials})
  return [
      row(name, [t for t in trials if key(t) == name], predict)
      for name in names
  ]
