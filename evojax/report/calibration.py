"""How well effects were predicted, from the trials that realised one."""

from collections.abc import Callable, Sequence
import dataclasses

from evojax.report import history


@dataclasses.dataclass(frozen=True)
class Signs:
  """Over the realised effects whose interval excludes 0."""

  decided: int
  right: int  # Their sign was predicted.
  base: int  # What always naming the commoner sign gets right.


@dataclasses.dataclass(frozen=True)
class Row:
  """Trials of one class, proposer or statistic."""

  name: str
  trials: int
  kept: int
  predicted: float | None  # Mean midpoint.
  realised: float | None  # Mean.
  covered: int  # Realised effects inside the predicted interval.
  judged: int  # Trials that have both.
  signs: Signs


Predict = Callable[[history.Trial], tuple[float, float] | None]


def middle(interval: tuple[float, float]) -> float:
  return (interval[0] + interval[1]) / 2


def judged(
    trials: Sequence[history.Trial], predict: Predict
) -> list[history.Trial]:
  """Trials with a prediction and a realised effect."""
  return [t for t in trials if predict(t) and t.effect is not None]


def signs(trials: Sequence[history.Trial], predict: Predict) -> Signs:
  """How often the sign of a clear effect was predicted, and the base rate."""
  up, right, decided = 0, 0, 0
  for trial in judged(trials, predict):
    interval, effect = trial.realised, trial.effect
    if interval is None or interval[0] <= 0 <= interval[1]:
      continue
    decided += 1
    up += effect > 0
    right += effect * middle(predict(trial)) > 0  # 0 predicts no sign.
  return Signs(decided, right, max(up, decided - up))


def _mean(values: Sequence[float]) -> float | None:
  return sum(values) / len(values) if values else None


def row(name: str, trials: Sequence[history.Trial], predict: Predict) -> Row:
  """Predicted against realised over some trials."""
  both = judged(trials, predict)
  return Row(
      name=name,
      trials=len(trials),
      kept=sum(t.kind == 'keep' for t in trials),
      predicted=_mean([middle(predict(t)) for t in both]),
      realised=_mean([t.effect for t in both]),
      covered=sum(predict(t)[0] <= t.effect <= predict(t)[1] for t in both),
      judged=len(both),
      signs=signs(trials, predict),
  )


def by(
    trials: Sequence[history.Trial],
    key: Callable[[history.Trial], str],
    predict: Predict,
) -> list[Row]:
  """One row per value of the key, in alphabetical order."""
  names = sorted({key(trial) for trial in trials})
  return [
      row(name, [t for t in trials if key(t) == name], predict)
      for name in names
  ]
