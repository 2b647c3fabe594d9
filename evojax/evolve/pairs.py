"""Pairs of arms: what they are scored by, and how much one is ahead.

The i-th arms of all harnesses of a round share problems and sampler seeds. The
share that they solve in their own rollouts is their score where all of them
sample alike; else each pair answers dev problems of its own.
"""

from collections.abc import Sequence
import math
from typing import Any

from jaxtyping import Float
import numpy as np

from evojax.diagnosis import rules
from evojax.evidence import store
from evojax.evolve import opening
from evojax.evolve import scoring
from evojax.ledger import records
from evojax.runtime import decisions
from evojax.training import arm as arm_lib

# Intervention classes under which rollouts of two harnesses do not compare:
# they change what is asked, how it is sampled, how long an answer may be, or
# what an environment offers.
SAMPLED_OTHERWISE = ('data', 'exploration', 'length', 'tools')
# Standard errors; every arm of a run is asked, and some differ by chance.
_CLEARLY = 3.0


def dev_folder(number: int, folder: str) -> str:
  """Return where the dev evidence of an arm lies, below the workdir."""
  return f'rounds/{number:03d}/{folder.removeprefix("arms/")}'


def on_dev(
    run: opening.Run, number: int, pair: int, arm: records.Arm, **fields: Any
) -> scoring.Scored:
  """Return the last state of an arm on the dev problems of its pair.

  No other pair is asked them, as far as the split goes: what some problems make
  of a change is then part of the spread between pairs. Where a harness may
  change the environment itself, the evaluator's own is the exam: a history that
  gives the fix away must not make a harness look good.

  Args:
    run: The run.
    number: Of the round.
    pair: Of the arm.
    arm: A finished arm.
    **fields: Of `scoring.Scored`, if they differ.
  """
  e, domain = run.config.evolve, run.setup.domain
  wanted = dict(
      domain=domain.audit if domain.surface_fields else None,
      folder=run.path / dev_folder(number, arm.folder),
      checkpoint=arm_lib.checkpoint_of(run.path / arm.folder, arm.updates),
      harness=arm.harness,
      split='dev',
      seed=run.config.seed,
      first=(number * e.pairs + pair) * e.problems,
      problems=e.problems,
      samples=e.samples,
      step=arm.updates,
  )
  return scoring.Scored(**wanted | fields)


def is_scored(arm: records.Arm, scored_by: str) -> bool:
  """Return whether an arm has a score.

  One that collapsed is scored by what it sampled: without it, the other pairs
  would look steadier than they are.
  """
  if arm.status == 'collapse':
    return scored_by == 'rollouts'
  return arm.status == 'done'


def own_scores(
    run: opening.Training, arm: records.Arm, *, whole: bool = False
) -> tuple[Float[np.ndarray, '_'], tuple[int, ...]]:
  """Return the solved share of each group that an arm sampled.

  Of arms that start from one state, only the second half of the updates counts:
  the first is about the state that they share.

  Args:
    run: The run.
    arm: It need not have ended.
    whole: Whether all updates count.

  Returns:
    Shares of the groups in order, and the number of groups of every update.
    Arms of a pair with equal numbers met the same problems.
  """
  folder = run.path / arm.folder

  def read() -> list[list[float]]:
    steps = store.list_steps(folder, 'train')
    each = (store.problem_scores(folder, 'train', step) for step in steps)
    return [scores[np.isfinite(scores)].tolist() for scores in each]

  by_step = decisions.decide(read)
  first = 0 if whole else len(by_step) // 2
  return np.concatenate(by_step[first:]), tuple(map(len, by_step))


def is_clearly_worse(
    scores: Float[np.ndarray, 'P'], than: Float[np.ndarray, 'Q']
) -> bool:
  """Return whether groups solve less than others, beyond all chance.

  Args:
    scores: Solved share of each group.
    than: The same of groups of other problems.
  """
  behind, error = difference(scores, than, shared=False)
  return behind < -_CLEARLY * error


def is_wasted(
    run: opening.Training, arm: records.Arm, *, suspect: bool
) -> bool:
  """Return whether training is better off without an arm.

  Args:
    run: The run.
    arm: Its first update samples from the state that it started from.
    suspect: Whether its harness has a critical finding. Then it must have
      learned something; else it is only wasted if it solves clearly less at its
      end than at its start.
  """
  if suspect and len(arm.outcome) > 2:
    return rules.learning_curve(arm.outcome)['outcome_rise'] <= 0
  late, by_step = own_scores(run, arm)
  every, _ = own_scores(run, arm, whole=True)
  first = every[: by_step[0]]
  return len(by_step) > 1 and is_clearly_worse(late, first)


def difference(
    candidate: Float[np.ndarray, 'P'],
    incumbent: Float[np.ndarray, 'Q'],
    shared: bool,
) -> tuple[float, float]:
  """Return the difference of a pair, and its standard error by problems.

  Args:
    candidate: Scores of its problems.
    incumbent: The same of the other arm.
    shared: Whether both have the same problems in one order.
  """
  found = float(candidate.mean() - incumbent.mean())
  if shared:
    square = (candidate - incumbent).var(ddof=1) / len(candidate)
  else:
    square = candidate.var(ddof=1) / len(candidate)
    square += incumbent.var(ddof=1) / len(incumbent)
  return found, math.sqrt(square)


def differences(
    run: opening.Run,
    number: int,
    arms: Sequence[records.RacedArm],
    scored_by: str,
    role: str,
    trial: int | None,
    perturbed: Any = None,
) -> tuple[list[float], list[float]]:
  """Return how much the arms of a harness are ahead of the incumbent's.

  Args:
    run: The run.
    number: Of the round.
    arms: Of the round.
    scored_by: 'rollouts' or 'dev'.
    role: Of the arms.
    trial: The change that they are about.
    perturbed: The evaluator's domain, whose dev problems are asked instead.

  Returns:
    The differences of the pairs of which both arms have a score, in order, and
    the standard errors that their problems give.
  """

  def scores(arm: records.RacedArm) -> tuple[np.ndarray, tuple[int, ...]]:
    if perturbed is not None:
      folder = run.path / f'{arm.dev}-perturbed'
      more = dict(folder=folder, domain=perturbed)
      wanted = on_dev(run, number, arm.pair, arm, **more)
      return run.scorer.scores(wanted), ()
    if scored_by == 'dev':
      return run.scorer.scores(on_dev(run, number, arm.pair, arm)), ()
    # A shadow has a state of its own from the first update on.
    return own_scores(run, arm, whole=role == 'shadow')

  done = [
      arm
      for arm in arms
      if is_scored(arm, 'dev' if perturbed is not None else scored_by)
  ]
  incumbent = {a.pair: a for a in done if a.role == 'incumbent'}
  mine = {a.pair: a for a in done if (a.role, a.trial) == (role, trial)}
  found = []
  for pair in sorted(incumbent.keys() & mine.keys()):
    (ahead, its), (behind, other) = scores(mine[pair]), scores(incumbent[pair])
    found.append(difference(ahead, behind, its == other))
  return [d for d, _ in found], [e for _, e in found]
