"""Comparison of predicted effects with the effects that trials realised."""

from collections.abc import Callable, Sequence
import dataclasses
import math
import statistics

from evojax.ledger import history
from evojax.ledger import records
from evojax.stats import intervals


@dataclasses.dataclass(frozen=True)
class Signs:
  """Counts of signs over the realised effects whose interval excludes 0."""

  decided: int  # Number of these effects.
  right: int  # Effects whose sign was predicted.
  base: int  # Effects with the more common sign: the baseline for `right`.


# The first prior: predictions are right, except for the spread between seeds,
# which no replay can show. A prior weighs as much as one tested prediction of
# an effect of TYPICAL.
TYPICAL, _SPREAD = 0.03, 0.02


@dataclasses.dataclass(frozen=True)
class Trust:
  """The reliability of predictions: realised = slope x predicted + error."""

  slope: float = 1.0  # 0: predictions are worthless, 1: they are unbiased.
  spread: float = _SPREAD  # Standard deviation of the error, a fraction.
  compared: int = 0  # Predictions that were tested.


@dataclasses.dataclass(frozen=True)
class Row:
  """Results over the trials of one class, proposer or statistic."""

  name: str
  trials: int
  kept: int
  vetoed: int  # Trials that a replay stopped, so that they realised nothing.
  predicted: float | None  # Mean midpoint.
  realised: float | None  # Mean.
  covered: int  # Realised effects inside the predicted interval.
  compared: int  # Trials with a predicted and a realised effect.
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


def trust(
    trials: Sequence[history.Trial],
    predict: Predict,
    prior: Trust = Trust(),
) -> Trust:
  """Return how far the predictions about some trials can be trusted.

  The slope is from a ridge regression, through 0, of realised on predicted
  effects; it is shrunk towards that of the prior and clipped to [0, 1]. The
  spread is that of the residuals, shrunk towards that of the prior. So a class
  with wrong predictions loses weight, and regains it with right ones.

  Args:
    trials: The trials, for instance those of one intervention class.
    predict: Returns the predicted interval of a trial, in fractions.
    prior: The trust without these trials.
  """
  pairs = [(middle(predict(t)), t.effect) for t in compared(trials, predict)]
  over = TYPICAL**2 * prior.slope + math.fsum(p * r for p, r in pairs)
  under = TYPICAL**2 + math.fsum(p * p for p, _ in pairs)
  slope = min(1.0, max(0.0, over / under))
  square = prior.spread**2 + math.fsum((r - slope * p) ** 2 for p, r in pairs)
  return Trust(slope, math.sqrt(square / (1 + len(pairs))), len(pairs))


def corrected(interval: records.Interval, worth: Trust) -> records.Interval:
  """Return a predicted 95 % interval, corrected for past predictions.

  Its middle is multiplied by the slope, and the spread widens it. A replay
  vetoes a candidate by the upper end of the corrected interval; see
  `evolve.ranking` for how these intervals order the queue.
  """
  half = (interval[1] - interval[0]) / 2
  half = math.hypot(worth.slope * half, intervals.Z95 * worth.spread)
  center = worth.slope * middle(interval)
  return center - half, center + half


def in_class(
    trial: history.Trial,
    trials: Sequence[history.Trial],
    predict: Predict,
    prior: Trust = Trust(),
) -> records.Interval | None:
  """Return a trial's prediction, corrected by past ones about its class.

  Args:
    trial: The trial.
    trials: The trials so far that were predicted in the same way.
    predict: Returns the predicted interval of a trial, in fractions.
    prior: The trust without any trial.

  Returns:
    The corrected 95 % interval; None without a prediction.
  """
  interval = predict(trial)
  if interval is None:
    return None
  name = trial.intervention_class
  return corrected(interval, class_trust(name, trials, predict, prior))


def class_trust(
    name: str,
    trials: Sequence[history.Trial],
    predict: Predict,
    prior: Trust = Trust(),
) -> Trust:
  """Return how far the predictions about an intervention class can be trusted.

  Before its first trial, the trust in a class is half way between the prior and
  the trust in the predictions about all other classes.

  Args:
    name: The intervention class.
    trials: The trials so far that were predicted in the same way.
    predict: Returns the predicted interval of a trial, in fractions.
    prior: The trust without any trial.
  """
  alike = [t for t in trials if t.intervention_class == name]
  others = [t for t in trials if t.intervention_class != name]
  general = trust(others, predict, prior)
  between = Trust(
      (prior.slope + general.slope) / 2,
      math.hypot(prior.spread, general.spread) / math.sqrt(2),
  )
  return trust(alike, predict, between)


def pooled(intervals: Sequence[records.Interval]) -> records.Interval:
  """Combine several 95 % intervals, as if independent, into one.

  Each is weighted by its inverse variance, so a wide one changes little.

  Args:
    intervals: At least one, each with a width above 0.
  """
  weights = [(high - low) ** -2 for low, high in intervals]
  total = math.fsum(weights)
  parts = zip(weights, intervals, strict=True)
  center = math.fsum(w * middle(interval) for w, interval in parts) / total
  half = total**-0.5 / 2
  return center - half, center + half


def row(name: str, trials: Sequence[history.Trial], predict: Predict) -> Row:
  """Compare predicted with realised effects over some trials."""
  both = compared(trials, predict)
  mean = lambda values: statistics.fmean(values) if both else None
  return Row(
      name=name,
      trials=len(trials),
      kept=sum(t.kind == 'keep' for t in trials),
      vetoed=sum(t.status == 'vetoed' for t in trials),
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
