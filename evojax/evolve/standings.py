"""Standings: what the pairs of all rounds so far say of the candidates."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from jaxtyping import Float
import numpy as np

from evojax.eval import paired
from evojax.eval import race as race_lib
from evojax.evidence import store
from evojax.evolve import opening
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.runtime import decisions

# Role of an arm in the scores of a round: a trial, or None for the incumbent.
Scores = Mapping[int | None, Mapping[int, Float[np.ndarray, '_']]]


def own_scores(
    run: opening.Run, arm: records.Arm
) -> tuple[Float[np.ndarray, '_'], tuple[int, ...]]:
  """Return the solved share of each group that an arm sampled last.

  Only the second half of its updates counts: the first is about the state that
  all arms share.

  Returns:
    Shares of the groups in order, and the number of groups of every update.
    Arms of a pair with equal numbers met the same problems.
  """
  folder = run.path / arm.folder

  def read() -> list[list[float]]:
    steps = store.list_steps(folder, 'train')
    return [
        store.problem_scores(folder, 'train', step).tolist() for step in steps
    ]

  by_step = decisions.decide(read)
  late = np.concatenate(by_step[len(by_step) // 2 :])
  return late[np.isfinite(late)], tuple(map(len, by_step))


def differences(
    scores: Scores, trial: int, shared: Mapping[int, bool]
) -> tuple[list[float], list[float]]:
  """Return the differences of a candidate's pairs, and their errors.

  Args:
    scores: By role, pair and problem.
    trial: The candidate.
    shared: Pair -> whether both arms have the same problems in one order.

  Returns:
    Mean scores of the candidate minus those of the incumbent, for the pairs
    that both have, and the standard errors that their problems give.
  """
  mine, incumbent = scores[trial], scores[None]
  found, errors = [], []
  for pair in sorted(mine.keys() & incumbent.keys()):
    a, b = mine[pair], incumbent[pair]
    found.append(float(a.mean() - b.mean()))
    if shared.get(pair) and len(a) == len(b):
      square = (a - b).var(ddof=1) / len(a)
    else:
      square = a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)
    errors.append(math.sqrt(square))
  return found, errors


def standing(
    run: opening.Run,
    trial: history_lib.Trial,
    index: int,
    found: Sequence[float],
    errors: Sequence[float],
    last: bool,
) -> records.Standing:
  """Return how a candidate stands after one more round.

  Args:
    run: The run.
    trial: The candidate, with its earlier rounds.
    index: Its place in the order of entry, from 1.
    found: Differences of the pairs of this round.
    errors: Their standard errors by problems.
    last: Whether it may run no further round.
  """
  before = of_record(trial)
  common = dict(trial=trial.number, index=index)
  if len(found) < 2:  # Its arms failed: the verdict says how.
    return records.Standing(
        **common,
        rounds=before.rounds + 1,
        differences=tuple(found),
        errors=tuple(errors),
        pairs=len(before.differences) + len(found),
        e_value=before.e_value,
        **dict.fromkeys(
            ('effect', 'standard_error', 'low', 'high', 'threshold')
        ),
        detectable=None,
    )
  alpha = alpha_of(run, index)

  def judge() -> dict[str, Any]:
    after = race_lib.after_round(before, found, errors, alpha=alpha, last=last)
    gain = paired.gain(after.differences, after.errors)
    spread = paired.pooled_spread(
        [s.differences for s in rounds_of(trial)] + [found]
    )
    return dict(
        rounds=after.rounds,
        pairs=len(after.differences),
        effect=gain.value,
        standard_error=gain.standard_error,
        low=gain.low,
        high=gain.high,
        e_value=after.e_value,
        threshold=1 / alpha,
        detectable=spread and detectable(run, spread, alpha),
    )

  # To the last bit the same in every process.
  return records.Standing(
      **common,
      differences=tuple(found),
      errors=tuple(errors),
      **decisions.decide(judge),
  )


def detectable(run: opening.Run, spread: float, alpha: float) -> float:
  """Return the effect that a candidate passes with, at probability 0.8."""
  e = run.config.evolve
  rounds = min(e.patience, e.rounds)
  return paired.detectable(spread, pairs=e.pairs, alpha=alpha, rounds=rounds)


def rounds_of(trial: history_lib.Trial) -> list[records.Standing]:
  """Return the standings of a candidate after its rounds, oldest first."""
  found = [s for race in trial.races for s in race.standings]
  return [s for s in found if s.trial == trial.number]


def of_record(trial: history_lib.Trial) -> race_lib.Standing:
  """Return a candidate after its last round, in the form of the rules."""
  rows = rounds_of(trial)
  return race_lib.Standing(
      index=rows[-1].index if rows else 1,
      rounds=len(rows),
      e_value=rows[-1].e_value if rows else 1.0,
      differences=tuple(d for row in rows for d in row.differences),
      errors=tuple(e for row in rows for e in row.errors),
  )


def alpha_of(run: opening.Run, index: int) -> float:
  """Return the level of a candidate, by what the run promised at its start."""
  # As it was when the run began: what was not promised then cannot be paid for.
  promised = run.recorder.find(records.Open).config['evolve']
  history = run.recorder.history
  kept = sum(t.kind == 'keep' and t.effect is not None for t in history.trials)
  level = float(promised['false_discovery_rate'])
  return race_lib.alpha_of(index, promised['entries'], kept, level)


def entered(run: opening.Run) -> dict[int, int]:
  """Return the candidates that were raced, with their places from 1."""
  races = run.recorder.history.races
  return {s.trial: s.index for race in races for s in race.standings}


def announce(run: opening.Run, number: int, field: Sequence[Any]) -> None:
  """Say what a round can detect, before it is paid for."""
  groups = [
      s.differences for r in run.recorder.history.races for s in r.standings
  ]
  spread = paired.pooled_spread(groups)
  if not field or not spread:
    return
  alpha = alpha_of(run, 1 + max(entered(run).values(), default=0))
  points = 100 * detectable(run, spread, alpha)
  run.say(
      f'round {number}: {len(field)} candidates; {points:.1f} points are found'
      f' with power 80 % within {run.config.evolve.patience} rounds, at the'
      f' spread of {100 * spread:.1f} points between pairs so far'
  )
