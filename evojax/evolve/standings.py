"""Standings: the evidence for each candidate from the pairs of all rounds."""

from collections.abc import Sequence
import dataclasses
import itertools
import statistics
from typing import Any

import numpy as np

from evojax.eval import paired
from evojax.eval import race as race_lib
from evojax.evolve import costs
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import repairs
from evojax.ledger import calibration
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.runtime import decisions
from evojax.stats import intervals
from evojax.stats import spreads

# The power is averaged over the quantiles 1/10, ..., 9/10 of a prediction.
_QUANTILES = 10
# Standard deviation of the difference of a pair, a fraction, before a run has
# measured it: default runs have 0.015 to 0.03 (BUILD_NOTES.md).
_USUAL_NOISE = 0.02


def after_race(
    run: opening.Run,
    number: int,
    field: Sequence[history_lib.Trial],
    arms: Sequence[records.RacedArm],
    scored_by: str,
) -> tuple[records.Standing, ...]:
  """Return the standings of the candidates after a round.

  Args:
    run: The run.
    number: Number of the round.
    field: The candidates, with their earlier rounds.
    arms: Arms of the round.
    scored_by: 'rollouts' or 'dev'.
  """
  compared = [
      pairs.differences(run, number, arms, scored_by, 'candidate', t.number)
      for t in field
  ]
  # The spread is pooled over all candidates, dropped ones included, so that a
  # candidate whose arms agree by chance gets no smaller spread.
  groups = [*_groups(run, number), *(found for found, _ in compared)]
  return tuple(
      _standing(
          run,
          number,
          trial,
          index,
          found,
          errors,
          groups,
          len(field),
          scored_by,
      )
      for trial, index, (found, errors) in zip(
          field, _indices(run, field), compared, strict=True
      )
  )


def hopeful(
    run: opening.Run,
    number: int,
    field: Sequence[history_lib.Trial],
    arms: Sequence[records.RacedArm],
    scored_by: str,
) -> set[int]:
  """Return the candidates whose remaining pairs are worth their cost.

  Args:
    run: The run.
    number: Number of the round.
    field: The candidates, with their earlier rounds.
    arms: Arms of the round so far.
    scored_by: 'rollouts' or 'dev'.
  """
  trained = {
      trial.number: pairs.differences(
          run, number, arms, scored_by, 'candidate', trial.number
      )
      for trial in field
      if all(a.status == 'done' for a in arms if a.trial == trial.number)
  }
  groups = [*_groups(run, number), *(found for found, _ in trained.values())]
  spread = spreads.pooled(groups) or 0.0

  def decide(trial: history_lib.Trial) -> bool:
    before, (found, errors) = of_record(trial), trained[trial.number]
    return race_lib.is_hopeful(
        [*before.differences, *found],
        [*before.errors, *errors],
        spread,
        before.worth,
    )

  # Decided in process 0, so that all processes have the same bits.
  found = decisions.decide(
      lambda: [t.number for t in field if t.number in trained and decide(t)]
  )
  return set(found)


def spread_after(run: opening.Run, number: int) -> float:
  """Return the spread of all pairs of the race up to and including a round."""
  return spreads.pooled(_groups(run, number + 1)) or 0.0


def _groups(run: opening.Run, number: int) -> list[tuple[float, ...]]:
  """Return the differences of every candidate in every earlier round."""
  races = (r for r in run.recorder.history.races if r.round < number)
  return [s.differences for race in races for s in race.standings]


def _standing(
    run: opening.Run,
    number: int,
    trial: history_lib.Trial,
    index: int,
    found: Sequence[float],
    errors: Sequence[float],
    groups: Sequence[Sequence[float]],
    candidates: int,
    scored_by: str,
) -> records.Standing:
  """Return the standing of a candidate after one more round.

  Args:
    run: The run.
    number: Number of the round.
    trial: The candidate, with its earlier rounds.
    index: Its position in the order of entry, from 1.
    found: Differences of the pairs of the round.
    errors: Their standard errors over problems.
    groups: Differences of every candidate in every round of the race so far.
    candidates: Number of candidates in the round.
    scored_by: 'rollouts' or 'dev'.
  """
  last = is_last(run, number, trial, candidates, scored_by)
  before = dataclasses.replace(of_record(trial), index=index)
  common = dict(
      trial=trial.number,
      index=index,
      differences=tuple(found),
      errors=tuple(errors),
  )
  if len(found) < 2:  # Its arms failed; the verdict gives the reason.
    return records.Standing(
        **common,
        rounds=before.rounds + 1,
        pairs=len(before.differences) + len(found),
        e_value=before.e_value,
        **dict.fromkeys(
            ('effect', 'standard_error', 'low', 'high', 'threshold')
        ),
        detectable=None,
    )
  e, margin = run.config.evolve, before.margin
  alpha = alpha_of(run, index)
  dev = scored_by == 'dev'
  left = costs.rounds_left(run, number, candidates, dev=dev)
  most = min(e.patience, before.rounds + left)
  spread = spreads.pooled(groups) or 0.0
  # The test of a repair cuts large gains (`race.counted`): its spread differs.
  cap = race_lib.cap_of(errors)
  cut = spreads.pooled(
      [race_lib.counted(g, margin, cap) for g in groups]
  )

  def judge() -> dict[str, Any]:
    after = race_lib.after_round(
        before, found, errors, spread=cut or 0.0, alpha=alpha, last=last
    )
    gain = paired.gain(after.differences, after.errors, groups=groups)
    return dict(
        rounds=after.rounds,
        pairs=len(after.differences),
        effect=gain.value,
        standard_error=gain.standard_error,
        low=gain.low,
        high=gain.high,
        e_value=after.e_value,
        threshold=1 / alpha,
        detectable=detectable(run, _noise(spread, errors), alpha, most),
    )

  # Decided in process 0, so that all processes have the same bits.
  return records.Standing(**common, **decisions.decide(judge))


def is_last(
    run: opening.Run,
    number: int,
    trial: history_lib.Trial,
    candidates: int,
    scored_by: str,
) -> bool:
  """Return whether a round is the last one of a candidate.

  It is fixed before the round, because the test then uses all the evidence.

  Args:
    run: The run.
    number: Number of the round.
    trial: The candidate.
    candidates: Number of candidates in the round.
    scored_by: 'rollouts' or 'dev'.
  """
  # Only earlier rounds count, so that this round's row makes no difference.
  before = sum(race.round < number for race in trial.races)
  spent = before + 1 >= run.config.evolve.patience
  due = repairs.is_due(trial, number)
  dev = scored_by == 'dev'
  return spent or due or costs.is_last(run, number, candidates, dev=dev)


def _noise(spread: float, errors: Sequence[float]) -> float:
  """Return the standard deviation of the difference of a pair, a fraction.

  Args:
    spread: Standard deviation of the differences of pairs so far.
    errors: Standard errors of such differences over problems; as in
      `paired.p_value`, the spread is not taken to be smaller than these.
  """
  return max(spread, spreads.rms(errors))


def _known_noise(run: opening.Run, number: int) -> float:
  """Return the `_noise` of all pairs before a round; 0 if there are none."""
  races = [r for r in run.recorder.history.races if r.round < number]
  errors = [x for r in races for s in r.standings for x in s.errors]
  return _noise(spreads.pooled(_groups(run, number)) or 0.0, errors)


def detectable(
    run: opening.Run, noise: float, alpha: float, rounds: int
) -> float | None:
  """Return the effect that a candidate's test detects with 80 % power.

  Args:
    run: The run.
    noise: Standard deviation of the difference of a pair.
    alpha: Significance level of the candidate.
    rounds: The most rounds in which it races.

  Returns:
    The effect as a fraction; None while the noise is unknown.
  """
  if not noise:
    return None
  pairs = run.config.evolve.pairs
  return paired.detectable(
      noise, pairs=pairs, alpha=alpha, rounds=rounds, worth=race_lib.WORTH
  )


def chance(
    run: opening.Run, number: int, predicted: records.Interval
) -> float:
  """Return the probability that a new candidate proves a gain.

  It is the power, averaged over the Normal distribution of the predicted
  effect, in the rounds that are left to race in. No effect is larger than the
  share of problems that the incumbent left unsolved. Before the first pairs of
  a run they are taken to differ by `_USUAL_NOISE`.

  Args:
    run: The run.
    number: The round that the candidate would enter.
    predicted: The predicted effect, a 95 % interval of fractions.
  """
  noise = _known_noise(run, number) or _USUAL_NOISE
  left = costs.rounds_left(run, number, candidates=1)
  low, high = predicted
  effects = statistics.NormalDist(
      calibration.middle(predicted),
      max(high - low, 1e-6) / (2 * intervals.Z95),
  ).quantiles(_QUANTILES)
  powers = paired.power_between(
      np.minimum(effects, _unsolved(run, number)),
      noise,
      pairs=run.config.evolve.pairs,
      alpha=alpha_of(run, 1 + len(entered(run))),
      rounds=min(run.config.evolve.patience, left),
      worth=race_lib.WORTH,
  )
  return float(powers.mean())


def _unsolved(run: opening.Run, number: int) -> float:
  """Return the unsolved share of the incumbent's last arm before a round.

  It is 1 if no arm of the incumbent sampled anything.
  """
  races = (r for r in run.recorder.history.races if r.round < number)
  arms = (a for r in races for a in r.arms if a.role == 'incumbent')
  found = [a.outcome for a in arms if a.outcome]
  return 1.0 - statistics.fmean(found[-1]) if found else 1.0


def rounds_of(trial: history_lib.Trial) -> list[records.Standing]:
  """Return the standings of a candidate after its rounds, oldest first."""
  found = [s for race in trial.races for s in race.standings]
  return [s for s in found if s.trial == trial.number]


def of_record(trial: history_lib.Trial) -> race_lib.Standing:
  """Return a candidate's standing after its last round, for the rules."""
  rows, severity = rounds_of(trial), repairs.severity_of(trial)
  newest = rows[-1].differences if rows else ()
  return race_lib.Standing(
      index=rows[-1].index if rows else 1,
      rounds=len(rows),
      e_value=rows[-1].e_value if rows else 1.0,
      differences=tuple(d for row in rows for d in row.differences),
      errors=tuple(e for row in rows for e in row.errors),
      # A repair is not dropped for a small gain, because a fault that stops
      # learning costs little in a single round. The repair of a critical fault
      # need only exclude a loss. If the fault becomes critical while it races,
      # earlier rounds, in which it had to show a gain, still count: evidence
      # for a gain is also evidence against a loss.
      worth=0.0 if repairs.repairs_fault(trial) else race_lib.WORTH,
      margin=race_lib.MARGIN if severity == 'critical' else 0.0,
      steady=not newest or race_lib.is_steady(newest),
  )


def alpha_of(run: opening.Run, index: int) -> float:
  """Return the significance level that keeps the run's bound on false keeps."""
  # The config of the first row counts: the bound was set for the whole run, and
  # no later change of the config could be accounted for.
  promised = run.recorder.find(records.Open).config['evolve']
  raced = [t for t in run.recorder.history.kept if t.effect is not None]
  # A change that its shadow may still take back does not count yet.
  kept = sum(not t.shadow or t.shadow.decision == 'keep' for t in raced)
  level = float(promised['false_discovery_rate'])
  return race_lib.alpha_of(index, promised['entries'], kept, level)


def entered(run: opening.Run) -> dict[int, int]:
  """Return the raced candidates: trial -> position in the order of entry."""
  races = run.recorder.history.races
  return {s.trial: s.index for race in races for s in race.standings}


def _indices(run: opening.Run, field: Sequence[history_lib.Trial]) -> list[int]:
  """Return the positions of candidates in the order of entry, from 1."""
  known = entered(run)
  following = itertools.count(1 + len(known))
  return [known.get(t.number) or next(following) for t in field]


def announce(
    run: opening.Run,
    number: int,
    field: Sequence[history_lib.Trial],
    scored_by: str,
) -> None:
  """Print the effect that a round can detect, before it is paid for."""
  if not field:
    return
  # The last candidate to enter needs the strongest evidence.
  alpha = alpha_of(run, max(_indices(run, field)))
  dev = scored_by == 'dev'
  left = costs.rounds_left(run, number, len(field), dev=dev)
  rounds = min(run.config.evolve.patience, left)
  least = detectable(run, _known_noise(run, number), alpha, rounds)
  if least is not None:
    within = f'{rounds} rounds' if rounds > 1 else 'this round, the last'
    racing = '1 candidate' if len(field) == 1 else f'{len(field)} candidates'
    run.say(
        f'round {number}: {racing}; if pairs differ as much as so far, a gain'
        f' of {100 * least:.1f} points is found with a probability of 80 %'
        f' within {within}'
    )
