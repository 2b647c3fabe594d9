"""Compares which interventions different domains keep, from finished runs.

    python -m benchmarks.divergence WORKDIR WORKDIR ... [--by=factor]
        [--permutations=10000]

All domains propose from one library of interventions. A family is a changed
factor with the direction of the change (--by=factor), or an intervention class
(--by=class). The first table has a row per family and domain:

proposed    changes that the runs of the domain designed
backtested  those that were replayed on recorded rollouts
raced       those with at least one round of arms
kept        those that are part of the harness at the end; a change that was
            taken back does not count
keep rate   kept / raced, with an exact 95 % interval (Clopper and Pearson
            1934), as if trials were independent; those of one run share arms
effect      in points: the interval of the ledger for one trial, else the mean
            of trials with its t interval, or with that of the trials' own
            intervals if it is wider

Changes of diagnostics and backtests train nothing and are left out. The second
table lists every raced change with its effect as the ledger has it.

Then the domains are compared. The unit is the run: its set of kept families.
If domains did not matter, any other assignment of the domains to the runs (a
deal) would be as likely. The statistic of a family is the variance between
domains of the share of runs that kept it; p is the share of deals with at least
this variance, and for single families at least this maximum over all families
(Westfall and Young 1993), which corrects for the number of families. The number
of different deals bounds p from below. Runs with planted faults are compared
fairly only if every domain has the same faults. No device is used.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import math
import pathlib
import re
from typing import Any

from absl import app
from absl import flags
import numpy as np

from evojax import domains
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.stats import intervals

_BY = flags.DEFINE_enum('by', 'factor', ('factor', 'class'), 'Kind of family.')
_DEALS = flags.DEFINE_integer(
    'permutations', 10_000, 'Most deals of domains to runs.', lower_bound=1
)
_ALPHA = 0.05
_SHIPPED = 'package:'  # Prefix of the base policy of a domain.
_SHOWN = 60  # Most characters of a change.
_COUNTS = 'family,domain,proposed,backtested,raced,kept'


@dataclasses.dataclass(frozen=True)
class Run:
  """A run that evolved."""

  name: str
  domain: str
  hash: str  # Hash of its last row.
  trials: tuple[history_lib.Trial, ...]  # Trials that change the training.

  def families(
      self, family: Callable[[records.Delta], str], stage: str
  ) -> set[str]:
    """Return the families that reached a stage, a field of `Cell`."""
    return {family(t.delta) for t in self.trials if reached(t)[stage]}


@dataclasses.dataclass(frozen=True)
class Cell:
  """The changes of one family in the runs of one domain."""

  family: str
  domain: str
  proposed: int
  backtested: int
  raced: int
  kept: int
  effect: tuple[float, float, float] | None  # Mean, low, high; fractions.

  @property
  def rate(self) -> tuple[float, float]:
    """The exact interval of the keep rate; (0, 1) if nothing was raced."""
    if not self.raced:
      return 0.0, 1.0
    return intervals.exact(self.kept, self.raced)


def read(workdir: str) -> Run:
  """Read a run.

  Raises:
    ValueError: If the workdir has no ledger, or its run has not ended.
  """
  history = history_lib.read(workdir)
  opened = history.find(records.Open)
  if opened is None or not history.ended:
    raise ValueError(f'{workdir}: the run has not ended; let it end first')
  trials = (t for t in history.trials if t.delta)
  return Run(
      pathlib.Path(workdir).name,
      _domain(opened.config),
      history.rows[-1].hash,
      tuple(t for t in trials if t.intervention_class != 'measurement'),
  )


def _domain(config: Mapping[str, Any]) -> str:
  """Return the domain of a run; for a user's own domain, the policy's."""
  name, path = config['domain']['name'], config['model']['path']
  known = name in domains.DOMAINS or not path.startswith(_SHIPPED)
  return name if known else path.removeprefix(_SHIPPED)


def factor(delta: records.Delta) -> str:
  """Return the changed factor, and the direction of a number or the choice."""
  for _, before, after in delta.changes:
    if all(x is None or type(x) in (int, float) for x in (before, after)):
      up = (after or 0) > (before or 0)
      return f'{delta.factor} {"up" if up else "down"}'
    if delta.kind == 'recipe' and isinstance(after, str):
      return f'{delta.factor} = {after}'
  return delta.factor


def reached(trial: history_lib.Trial) -> dict[str, bool]:
  """Return the stages that a trial reached."""
  backtest = trial.backtest
  return {
      'proposed': True,
      'backtested': backtest is not None and not backtest.crash,
      'raced': bool(trial.races),
      'kept': bool(trial.races) and trial.kind == 'keep',
  }


def _effect(
    trials: Sequence[history_lib.Trial],
) -> tuple[float, float, float] | None:
  found = [t for t in trials if t.effect is not None]
  if len(found) < 2:
    return (found[0].effect, *found[0].realised) if found else None
  over = intervals.student([t.effect for t in found])
  # A few trials may agree by chance, so the margin is at least that of the
  # trials' own intervals.
  halves = [(high - low) / 2 for low, high in (t.realised for t in found)]
  margin = max(over.high - over.value, math.hypot(*halves) / len(found))
  return over.value, over.value - margin, over.value + margin


def cells(
    runs: Sequence[Run], family: Callable[[records.Delta], str]
) -> list[Cell]:
  """Return a cell per family and domain, families in alphabetical order."""
  names = sorted({family(t.delta) for run in runs for t in run.trials})
  found = []
  known = sorted({run.domain for run in runs})
  for name, domain in itertools.product(names, known):
    trials = [
        t
        for run in runs
        if run.domain == domain
        for t in run.trials
        if family(t.delta) == name
    ]
    stages = [reached(t) for t in trials]
    count = lambda stage, stages=stages: sum(s[stage] for s in stages)
    found.append(
        Cell(
            name,
            domain,
            *map(count, ('proposed', 'backtested', 'raced', 'kept')),
            _effect(trials),
        )
    )
  return found


@dataclasses.dataclass(frozen=True)
class Difference:
  """A test of whether the runs of domains differ in their sets of families."""

  families: tuple[str, ...]
  p: float  # P-value for all families together.
  each: tuple[float, ...]  # P-value by family, corrected for their number.
  least: float  # The least p that these runs could give.
  deals: int  # Deals that were compared.


def differ(
    labels: Sequence[str], sets: Sequence[set[str]], most: int, seed: int = 0
) -> Difference | None:
  """Test whether sets depend on the labels, by permutations of the labels.

  All deals are compared if there are at most `most`, else random ones.

  Args:
    labels: Domain of each run.
    sets: Families of each run.
    most: Largest number of deals.
    seed: Seed of random deals.

  Returns:
    The test; None if all runs have equal sets, or there is one domain.
  """
  families = tuple(sorted(set().union(*sets)))
  has = np.array([[f in s for f in families] for s in sets], float)
  kinds, codes = np.unique(list(labels), return_inverse=True)
  if len(kinds) < 2 or not families or (has == has[0]).all():
    return None
  counts = np.bincount(codes)
  ways = math.factorial(len(codes))
  ways //= math.prod(map(math.factorial, counts.tolist()))
  deals = np.array(list(_deals(codes, counts, ways, most, seed)))  # [N, R]
  spread = np.zeros((len(deals), len(families)))
  for kind, count in enumerate(counts):
    share = (deals == kind) @ has / count
    spread += count * (share - has.mean(0)) ** 2
  tiny = 1e-9  # Equal sums may differ in their last bits.
  observed, total = spread[0], spread.sum(1)
  largest = spread.max(1)
  return Difference(
      families,
      float(np.mean(total >= total[0] - tiny)),
      tuple(float(np.mean(largest >= x - tiny)) for x in observed),
      float(np.mean(total >= total.max() - tiny)),
      len(deals),
  )


def _deals(
    codes: np.ndarray, counts: np.ndarray, ways: int, most: int, seed: int
) -> Iterator[Sequence[int]]:
  """Yield deals of the labels to the runs, the observed one first."""
  if ways > most:
    rng = np.random.default_rng(seed)
    yield codes
    yield from (rng.permutation(codes) for _ in range(most - 1))
    return
  observed = tuple(codes.tolist())
  yield observed
  yield from (d for d in _all(counts.tolist(), len(codes)) if d != observed)


def _all(counts: list[int], length: int) -> Iterator[tuple[int, ...]]:
  """Yield all sequences with so many of each label."""
  if not length:
    yield ()
  for kind in range(len(counts)):
    if counts[kind]:
      left = [*counts]
      left[kind] -= 1
      yield from ((kind, *rest) for rest in _all(left, length - 1))


def _points(values: Sequence[float] | None) -> tuple[str, str]:
  if values is None:
    return '', ''
  value, low, high = (100 * x for x in values)
  return f'{value:+.1f}', f'[{low:+.1f}, {high:+.1f}]'


def _table(head: str, rows: Sequence[Sequence[object]]) -> list[str]:
  """Return the lines of a table: texts to the left, numbers to the right."""
  texts = [head.split(','), *(list(map(str, row)) for row in rows)]
  widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
  lines = []
  for row in texts:
    padded = (
        cell.rjust(width) if re.fullmatch(r'[-+.0-9]*', cell) else
        cell.ljust(width)
        for cell, width in zip(row, widths, strict=True)
    )
    lines.append('  '.join(padded).rstrip())
  return lines


def report(runs: Sequence[Run], by: str, most: int) -> list[str]:
  """Return the lines of the tables and of the comparison of domains.

  Args:
    runs: The runs, at least one.
    by: 'factor' or 'class'.
    most: Most deals of domains to runs, see `differ`.
  """
  family = {'factor': factor, 'class': lambda d: d.intervention_class}[by]
  found = [c for c in cells(runs, family) if c.proposed]
  per = {d: sum(r.domain == d for r in runs) for d in [r.domain for r in runs]}
  listed = ', '.join(f'{d} {n}' for d, n in sorted(per.items()))
  rows = [
      (
          *(c.family, c.domain, c.proposed, c.backtested, c.raced, c.kept),
          '{:.0f}-{:.0f} %'.format(*(100 * x for x in c.rate)),
          *_points(c.effect),
      )
      for c in found
  ]
  lines = [f'{len(runs)} runs: {listed}', '']
  lines += _table(f'{_COUNTS},keep rate,effect,interval', rows)
  raced = [(r, t) for r in runs for t in r.trials if t.races]
  rows = [
      (
          *(r.name, r.domain, t.delta.text[:_SHOWN], t.status),
          *_points((t.effect, *t.realised) if t.realised else None),
      )
      for r, t in raced
  ]
  lines += ['', *_table('run,domain,change,verdict,effect,interval', rows), '']
  for stage in ('kept', 'raced'):
    sets = [run.families(family, stage) for run in runs]
    test = differ([run.domain for run in runs], sets, most)
    lines += sentences(stage, test, len(per))
  return lines


def sentences(stage: str, test: Difference | None, domains_: int) -> list[str]:
  """Return what a test shows, and what it cannot show."""
  if domains_ < 2:
    return [f'{stage}: one domain; nothing to compare']
  if test is None:
    return [f'{stage}: all runs have the same set; nothing tells them apart']
  lines = [
      f'{stage}: p = {test.p:.3g} of a difference as large as this if domains'
      f' did not matter, from {test.deals} deals'
  ]
  for name, p in zip(test.families, test.each, strict=True):
    if p <= _ALPHA:
      lines.append(f'  {name}: p = {p:.3g} among all families')
  if test.least > _ALPHA:
    lines.append(
        f'  these runs cannot show a difference: no result has p below'
        f' {test.least:.3g}; more runs of each domain are needed'
    )
  elif len(lines) == 1:
    lines.append(
        f'  no single family differs at p <= {_ALPHA:g}; equal sets are not'
        ' shown by this either'
    )
  return lines


def main(arguments: Sequence[str]) -> None:
  try:
    runs = [read(workdir) for workdir in arguments[1:]]
    if len({run.hash for run in runs}) < len(runs):
      raise ValueError('two workdirs hold the same run; name each run once')
  except (OSError, ValueError) as error:
    raise app.UsageError(str(error)) from error
  if not runs:
    raise app.UsageError('name the workdirs of finished runs')
  print('\n'.join(report(runs, _BY.value, _DEALS.value)))


if __name__ == '__main__':
  app.run(main)
