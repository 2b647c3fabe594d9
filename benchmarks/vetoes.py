"""False vetoes of replays, simulated, and how far recorded replays missed.

    python -m benchmarks.vetoes [--replays=1000]
    python -m benchmarks.vetoes --ledgers=DIR,DIR,...

A replay vetoes a candidate if the upper end of its interval, corrected as in a
run, is below 0. Here the interval is computed by the code of a run from the
scores of simulated policies, whose true difference is known. Replays of a
candidate differ from the realised effect by an error that all checkpoints share
(few updates on old rollouts), and from checkpoint to checkpoint by another one;
both are normal. PROBLEMS are scored SAMPLES times by both policies of each
checkpoint. No device is used; on one core it takes minutes.

The second command reads the ledgers of runs that evolved, and compares the
replays of the changes that raced with their measured effects. It prints by how
much they missed, and which part of this the errors over problems and between
pairs do not explain: the errors that the simulation takes as given. Changes
that a replay vetoed have no measured effect. It also prints which replays of
changes that repair nothing would be worth their tokens by today's rule
(`evolve.prospects`), and what became of these changes.
"""

from collections.abc import Sequence
import dataclasses
import functools
import itertools
import math
import statistics
import types

from absl import app
from absl import flags
import ml_collections
import numpy as np

from evojax.eval import estimates
from evojax.eval import race
from evojax.evolve import prospects
from evojax.evolve import recorder
from evojax.evolve import repairs
from evojax.harness import delta as delta_lib
from evojax.ledger import calibration
from evojax.ledger import history
from evojax.ledger import records
from evojax.stats import intervals

# Defaults of evolve.replay_problems and evolve.samples.
PROBLEMS, SAMPLES = 48, 2
EFFECTS = (0.05, 0.02, 0.0, -0.05, -0.10, -0.20)
CHECKPOINTS = (1, 2, 4)
# Standard deviations of the shared error and of that of a checkpoint.
ERRORS = ((0.0, 0.0), (0.02, 0.02), (0.05, 0.05), (0.10, 0.05))
# Predictions by the prior, and those of a class that mispredicted.
TRUSTS = {
    'prior': calibration.Trust(),
    'slope 0.5, spread 5 points': calibration.Trust(0.5, 0.05, 4),
}

_REPLAYS = flags.DEFINE_integer('replays', 1000, 'Replays of each number.')
_LEDGERS = flags.DEFINE_list('ledgers', [], 'Workdirs of runs that evolved.')


def gains(rng: np.random.Generator, effects: np.ndarray) -> np.ndarray:
  """Return each problem's gain, averaged over checkpoints.

  Args:
    rng: Random number generator.
    effects: Difference of the solved share at each checkpoint, a fraction. A
      large loss turns out smaller, as no share falls below 0.
  """
  # Solved shares of problems, mostly near 0 or 1; an effect is largest between.
  before = rng.beta(0.5, 0.5, PROBLEMS)
  room = before * (1 - before)
  after = before + effects[:, None] * room / room.mean()
  shape = len(effects), PROBLEMS
  old, new = (
      rng.binomial(SAMPLES, np.clip(share, 0, 1), shape) / SAMPLES
      for share in (before, after)
  )
  return (new - old).mean(0)


def is_vetoed(
    rng: np.random.Generator,
    effect: float,
    checkpoints: int,
    errors: tuple[float, float],
    trust: calibration.Trust,
) -> bool:
  """Return whether a candidate with a true effect is vetoed."""
  shared, own = errors
  each = effect + shared * rng.standard_normal()
  each += own * rng.standard_normal(checkpoints)
  found = estimates.over_problems(gains(rng, each))
  interval = calibration.corrected((found.low, found.high), trust)
  return race.vetoed(interval)


def rates(replays: int) -> list[tuple[str, list[int]]]:
  """Return the vetoes of each effect, by trust, checkpoints and errors."""
  rows = []
  cases = itertools.product(TRUSTS.items(), CHECKPOINTS, ERRORS)
  for (name, trust), checkpoints, errors in cases:
    shared, own = (100 * x for x in errors)
    counts = []
    for effect in EFFECTS:
      veto = functools.partial(
          is_vetoed, np.random.default_rng(1), effect, checkpoints
      )
      counts.append(sum(veto(errors, trust) for _ in range(replays)))
    text = f'{name}; {checkpoints} checkpoints; errors {shared:g}, {own:g}'
    rows.append((text, counts))
  return rows


@dataclasses.dataclass(frozen=True)
class Missed:
  """By how much replays missed the measured effects, in points."""

  changes: int
  mean: float  # Mean of the measured effect minus the replayed one.
  deviation: float  # Standard deviation of these differences.
  noise: float  # The part of it that is due to problems and pairs.

  @property
  def rest(self) -> float:
    """The part of the deviation that is not due to problems and pairs."""
    return math.sqrt(max(self.deviation**2 - self.noise**2, 0.0))


def missed(trials: Sequence[history.Trial]) -> Missed | None:
  """Compare the replays of trials with their effects; None for fewer than 2.

  Trials that lack one of them, or a standard error, are left out.
  """
  known = [
      t
      for t in calibration.compared(trials, lambda t: t.backtested)
      if t.standard_error is not None
  ]
  if len(known) < 2:
    return None
  errors, noise = [], []
  for trial in known:
    low, high = trial.backtested
    errors.append(100 * (trial.effect - (low + high) / 2))
    own = (high - low) / 2 / intervals.Z95
    noise.append(1e4 * (own**2 + trial.standard_error**2))
  return Missed(
      changes=len(known),
      mean=statistics.fmean(errors),
      deviation=statistics.stdev(errors),
      noise=math.sqrt(statistics.fmean(noise)),
  )


def print_missed(paths: Sequence[str]) -> None:
  """Print by how much the replays of some runs missed."""
  trials = [t for path in paths for t in history.read(path).trials]
  for name, wanted in (('repair nothing', False), ('repair a fault', True)):
    chosen = [t for t in trials if repairs.repairs_fault(t) == wanted]
    lost = [t for t in chosen if t.status == 'vetoed' and t.backtested]
    count = sum(t.backtested[1] < 0 for t in lost)
    if found := missed(chosen):
      print(
          f'{found.changes} changes that {name}: measured minus replayed effect'
          f' {found.mean:+.1f} points, standard deviation'
          f' {found.deviation:.1f}, of which {found.noise:.1f} by problems and'
          f' pairs and {found.rest:.1f} else; {count} more were vetoed'
      )
    else:
      print(f'fewer than 2 changes that {name} were replayed and measured')


def worth(path: str) -> list[tuple[history.Trial, bool]]:
  """Return the replayed changes of a run that repair nothing.

  Args:
    path: Workdir of the run.

  Returns:
    Each change with whether its replay was worth its tokens, by what the run
    knew when the change was proposed.
  """
  whole, found = history.read(path), []
  config = ml_collections.ConfigDict(whole.find(records.Open).config)
  for trial in whole.trials:
    proposed = trial.hypothesize is not None and trial.expected is not None
    replayed = trial.backtest and trial.backtest.sampled_tokens
    if not proposed or not replayed:
      continue
    findings = trial.diagnose.findings
    if repairs.severity(findings, trial.delta.changes) in repairs.FAULTS:
      continue
    number = next(
        i
        for i, row in enumerate(whole.rows)
        if row.record is trial.hypothesize
    )
    known = history.History(whole.rows[:number])
    run = types.SimpleNamespace(
        config=config,
        recorder=types.SimpleNamespace(history=known, find=known.find),
    )
    delta = recorder.made_from(
        delta_lib.Delta, trial.delta, after=trial.hypothesize.harness
    )
    is_worth = prospects.is_worth_trying(
        run, trial.diagnose.round, findings, delta, trial.expected
    )
    found.append((trial, is_worth))
  return found


def print_worth(paths: Sequence[str]) -> None:
  """Print which replays of some runs were worth their tokens."""
  found = [each for path in paths for each in worth(path)]
  for text, wanted in (('are worth', True), ('are not worth', False)):
    chosen = [trial for trial, is_worth in found if is_worth == wanted]
    tokens = sum(trial.backtest.sampled_tokens for trial in chosen)
    raced = sum(bool(trial.races) for trial in chosen)
    kept = sum(trial.status == 'keep' for trial in chosen)
    print(
        f'{len(chosen)} of {len(found)} replays {text} their tokens:'
        f' {tokens:,} tokens; {raced} of these changes raced, {kept} were kept'
    )


def main(_):
  if _LEDGERS.value:
    print_missed(_LEDGERS.value)
    print_worth(_LEDGERS.value)
    return
  replays = _REPLAYS.value
  print(f'share of {replays} replays that veto, by the true effect in points')
  head = '  '.join(f'{100 * effect:+5.0f}' for effect in EFFECTS)
  print(f'{"":58}{head}  no worse: 95 % interval')
  for text, counts in rates(replays):
    cells = '  '.join(f'{count / replays:5.3f}' for count in counts)
    low, high = intervals.exact(counts[2], replays)
    print(f'{text:58}{cells}  [{low:.4f}, {high:.4f}]', flush=True)


if __name__ == '__main__':
  app.run(main)
