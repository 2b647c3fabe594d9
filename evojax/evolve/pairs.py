"""Pairs of arms: their scores, and the difference within each pair.

The i-th arms of all harnesses of a round share problems and sampler seeds. If
all harnesses sample alike, an arm's score is the solved share of its own
training rollouts; otherwise the arms of a pair are scored on dev problems,
which differ from pair to pair.
"""

from collections.abc import Callable, Sequence
import functools
import math
import pathlib
from typing import Any

from jaxtyping import Float
import numpy as np

from evojax.diagnosis import rules
from evojax.domains import base
from evojax.evidence import store
from evojax.evolve import opening
from evojax.evolve import scoring
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.runtime import decisions
from evojax.stats import spreads
from evojax.training import arm as arm_lib

# Intervention classes whose rollouts are not comparable between two harnesses:
# they change the problems, the sampling, the maximum length, or what an
# environment offers.
SAMPLED_OTHERWISE = ('data', 'exploration', 'length', 'tools')
# Arms whose scores are kept in memory: a round asks for them several times.
_REMEMBERED = 64
# Least clear difference, in standard errors. It is high because it is applied
# to every arm.
_CLEARLY = 3.0


def is_alike(trial: history_lib.Trial) -> bool:
  """Return whether rollouts with and without a change are comparable."""
  return trial.intervention_class not in SAMPLED_OTHERWISE


def scored_by(trials: Sequence[history_lib.Trial]) -> str:
  """Return how the arms of a round that tests some changes are scored.

  Returns:
    'rollouts' if those of all harnesses are comparable, else 'dev'.
  """
  return 'rollouts' if all(map(is_alike, trials)) else 'dev'


def shadowed(
    run: opening.Run, shadow: records.Shadow | None
) -> list[history_lib.Trial]:
  """Return the trial of the change that a shadow lacks, if there is one."""
  trials = run.recorder.history.trials
  return [t for t in trials if shadow and t.number == shadow.trial]


def dev_folder(number: int, folder: str) -> str:
  """Return the folder of an arm's dev evidence, below the workdir."""
  return f'rounds/{number:03d}/{folder.removeprefix("arms/")}'


def on_dev(
    run: opening.Run, number: int, pair: int, arm: records.Arm, **fields: Any
) -> scoring.Scored:
  """Return an arm's last state with the dev problems of its pair.

  No other pair gets these problems, if the split is large enough; the spread
  between pairs then includes how the effect varies with the problems. If a
  harness may change the environment, the arm has the tools and turns that its
  harness gives, in the evaluator's version of the environment: otherwise a
  harness would look good by showing, say, a git history that contains the fix.

  Args:
    run: The run.
    number: Number of the round.
    pair: Number of the pair.
    arm: A finished arm.
    **fields: Fields of `scoring.Scored` that differ from the default.
  """
  e, domain = run.config.evolve, None
  if run.setup.domain.surface_fields:
    domain = run.harnesses.judge(arm.harness)
  wanted = dict(
      domain=domain,
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

  An arm that collapsed is scored by its rollouts: dropping it would make the
  spread between pairs look smaller than it is.
  """
  if arm.status == 'collapse':
    return scored_by == 'rollouts'
  return arm.status == 'done'


def own_scores(
    run: opening.Training, arm: records.Arm, *, whole: bool = False
) -> Float[np.ndarray, 'U P']:
  """Return the solved shares of the groups by which an arm is compared.

  These are the groups that every update samples first. Those that replace
  dropped ones are left out: an arm of another harness has none, or others. For
  arms that start from one state, only the second half of the updates counts:
  the first half mostly measures the state that they share.

  Args:
    run: The run.
    arm: An arm, finished or not.
    whole: Whether all updates count.

  Returns:
    Shares by update and group, NaN where no rollout was graded. Arms of a pair
    with equally many updates had the same problems.
  """
  shares = _solved(run.path / arm.folder, arm.end, run.config.grpo.prompts)
  return np.array(shares[0 if whole else len(shares) // 2 :], np.float64)


@functools.lru_cache(maxsize=_REMEMBERED)
def _solved(
    folder: pathlib.Path, end: str, prompts: int
) -> list[list[float | None]]:
  """Return the solved shares of the first groups of an arm's updates.

  Args:
    folder: Folder of the arm.
    end: Fingerprint of its last state. An arm of another run that was trained
      in the same folder before has another one.
    prompts: Number of groups that an update samples first.

  Returns:
    For every update, the share of each group; None if none was graded.
  """
  del end

  def read() -> list[list[float | None]]:
    found = []
    for step in store.list_steps(folder, 'train'):
      shares = store.problem_scores(folder, 'train', step)[:prompts].tolist()
      shares += [math.nan] * (prompts - len(shares))
      found.append([None if math.isnan(share) else share for share in shares])
    return found

  return decisions.decide(read)


def is_clearly_worse(
    scores: Float[np.ndarray, '*P'], than: Float[np.ndarray, '*Q']
) -> bool:
  """Return whether some groups are solved less often than others.

  They are if the means differ by more than _CLEARLY standard errors.

  Args:
    scores: Solved share of each group; NaN: not graded.
    than: Solved shares to compare with, of groups of other problems.
  """
  late, early = scores[np.isfinite(scores)], than[np.isfinite(than)]
  if not len(late) or not len(early) or not spreads.degrees([late, early]):
    return False
  # Both sides share one variance: a few groups that are all solved have
  # variance 0, although further groups of the same policy would vary.
  error = spreads.of_difference(late, early)
  return float(late.mean() - early.mean()) < -_CLEARLY * error


def is_wasted(
    run: opening.Training, arm: records.Arm, *, suspect: bool
) -> bool:
  """Return whether an arm's training should be left out of the policy.

  Args:
    run: The run.
    arm: An arm, whose first update samples from the state that it started from.
    suspect: Whether its harness has a critical finding. Then the arm is wasted
      unless its solved share rises; otherwise, or after at most two updates,
      only if it solves clearly less at its end than at its start.
  """
  if suspect and len(arm.outcome) > 2:
    return rules.learning_curve(arm.outcome)['outcome_rise'] <= 0
  every = own_scores(run, arm, whole=True)
  return len(every) > 1 and is_clearly_worse(own_scores(run, arm), every[0])


def is_left_out(
    run: opening.Run, version: str, role: str, arm: records.Arm
) -> bool:
  """Return whether a chain leaves an arm out, see `is_wasted`.

  Args:
    run: The run.
    version: Name of the version that the round started from.
    role: Role of the arm.
    arm: The arm.
  """
  diagnosed = run.recorder.find(records.Diagnose, version=version)
  found = diagnosed.findings if diagnosed else ()
  # The findings are about the incumbent's harness.
  suspect = role == 'incumbent' and any(
      finding.severity == 'critical' for finding in found
  )
  return is_wasted(run, arm, suspect=suspect)


def difference(
    candidate: Float[np.ndarray, '*P'],
    incumbent: Float[np.ndarray, '*Q'],
    shared: bool,
) -> tuple[float, float]:
  """Return the difference of a pair and its standard error over problems.

  Args:
    candidate: Scores of the candidate's problems; NaN: not graded.
    incumbent: The same of the incumbent.
    shared: Whether both list the same problems in the same order. Then a
      problem counts only if both have a score of it.

  Returns:
    Both are NaN if fewer than two problems are left: these have no spread.
  """
  mine, other = np.isfinite(candidate), np.isfinite(incumbent)
  if shared:
    mine = other = mine & other
  ahead, behind = candidate[mine], incumbent[other]
  if min(len(ahead), len(behind)) < 2:
    return math.nan, math.nan
  found = float(ahead.mean() - behind.mean())
  if shared:
    square = (ahead - behind).var(ddof=1) / len(ahead)
  else:
    square = ahead.var(ddof=1) / len(ahead)
    square += behind.var(ddof=1) / len(behind)
  return found, math.sqrt(square)


def differences(
    run: opening.Run,
    number: int,
    arms: Sequence[records.RacedArm],
    scored_by: str,
    role: str,
    trial: int | None,
    perturbed: Callable[[base.Domain], base.Domain] | None = None,
) -> tuple[list[float], list[float]]:
  """Return the differences between a harness's arms and the incumbent's.

  Args:
    run: The run.
    number: Number of the round.
    arms: Arms of the round.
    scored_by: 'rollouts' or 'dev'.
    role: Role of the harness's arms.
    trial: Number of the trial that they belong to.
    perturbed: Returns the domain whose dev problems replace the run's, given
      the evaluator's domain for a harness.

  Returns:
    The differences of the pairs in which both arms have a score of two problems
    or more, in order, and their standard errors over problems.
  """

  def scores(arm: records.RacedArm) -> Float[np.ndarray, '*P']:
    if perturbed is not None:
      folder = run.path / f'{arm.dev}-perturbed'
      domain = perturbed(run.harnesses.judge(arm.harness))
      more = dict(folder=folder, domain=domain)
      wanted = on_dev(run, number, arm.pair, arm, **more)
      return run.scorer.scores(wanted)
    if scored_by == 'dev':
      return run.scorer.scores(on_dev(run, number, arm.pair, arm))
    # A shadow's state differs from the first update on, so all updates count.
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
    both = mine[pair], incumbent[pair]
    ahead, behind = map(scores, both)
    # An arm that collapsed has fewer updates, and other problems at its end.
    shared = both[0].updates == both[1].updates and ahead.shape == behind.shape
    found.append(difference(ahead, behind, shared))
  found = [(d, e) for d, e in found if math.isfinite(e)]
  return [d for d, _ in found], [e for _, e in found]
