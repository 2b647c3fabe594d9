"""The bugs of the shipped packages that make good problems, found in advance.

    python -m evojax.domains.swe.catalogue

finds them again, after a change of a package or an operator, and writes
catalogue.json. Each was tested in the box, see `survey`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import pathlib
import time
from typing import Any

from evojax.domains import splits
from evojax.domains.swe import issues
from evojax.domains.swe import operators
from evojax.domains.swe import shipped
from evojax.domains.swe import suite
from evojax.domains.swe import survey
from evojax.domains.swe import values
from evojax.runtime import output
from evojax.sandbox import probe

FILE = pathlib.Path(__file__).with_name('catalogue.json')
# Maximum problems per function and operator; otherwise long functions dominate.
# Further bugs are only demonstrated: the more repairs a policy is shown, the
# better it repairs others.
_OF_A_KEY = 2
_SHOWN = 120  # Maximum characters of the value that an issue shows.
_ISSUE = 400  # Maximum characters of an issue.


@dataclasses.dataclass(frozen=True)
class Entry:
  """One bug, and the results of its tests."""

  package: str
  bug: operators.Bug
  failing: tuple[str, ...]  # Checks: 'tests/test_ring.py::test_last#0'.
  shown: str  # The failing check that the issue describes.
  found: str  # The value of that check, encoded.

  @property
  def key(self) -> tuple[str, str, str]:
    """The key (package, function, operator), which occurs in one split only."""
    where = f'{self.bug.path}:{self.bug.function}'
    return self.package, where, self.bug.operator

  @property
  def identity(self) -> str:
    """The problem's id, 16 hex digits."""
    place = self.bug.start, self.bug.end, self.bug.new
    return splits.problem_id(json.dumps([*self.key, *place]))

  @property
  def split(self) -> str:
    """The split: 'train', 'dev' or 'sealed'."""
    if self.package in shipped.UNSEEN:
      return 'sealed'
    return splits.split_of(splits.problem_id(json.dumps(self.key)))

  @property
  def demonstrated(self) -> bool:
    """True if demonstrations show the repair, so that GRPO does not train on
    it.

    This holds for half of the bugs of train. Once a key has _OF_A_KEY bugs, the
    catalogue only takes further ones that are demonstrated.
    """
    return self.split == 'train' and int(self.identity[8], 16) % 2 == 0


def entries_of(
    package: shipped.Package, tier: str, paths: Sequence[str] = ()
) -> list[Entry]:
  """Return the entries of a package; runs its tests on every candidate.

  Args:
    package: The package.
    tier: Tier of the box, see `probe.tier`.
    paths: Modules to put bugs into; all if empty.
  """
  tests = suite.parse({p: package.tree[p] for p in package.tests})
  kept: dict[tuple[str, str, str], list[Entry]] = {}
  for finding in survey.survey(package, tier, paths):
    if 2 * len(finding.failures) <= len(tests.tests):
      if entry := _entry(package.name, tests, finding):
        kept.setdefault(entry.key, []).append(entry)
  for found in kept.values():  # Bugs that the fewest tests detect are hardest.
    found.sort(key=lambda e: (len(e.failing), e.bug.start, e.bug.new))
  return [
      entry
      for key in sorted(kept)
      for number, entry in enumerate(kept[key])
      if number < _OF_A_KEY or entry.demonstrated
  ]


def _entry(
    package: str, tests: suite.Suite, finding: survey.Finding
) -> Entry | None:
  """Return the entry of a finding; None if no issue can describe it."""
  checks = {
      f'{test.name}#{number}': check
      for test in tests.tests
      for number, check in enumerate(test.checks)
  }
  name = finding.bug.function.rpartition('.')[2]
  failing = tuple(
      f'{test}#{n}' for test, wrong in finding.failures.items() for n in wrong
  )
  demonstrated = Entry(package, finding.bug, failing, '', '').demonstrated
  best = None
  for shown, found in finding.found.items():
    check = checks[shown]
    text = issues.write(check, found, '')
    if (
        isinstance(found, values.Foreign)
        or len(repr(found)) > _SHOWN
        or len(text) > _ISSUE
        or repr(values.Foreign('')) in text
    ):
      continue
    # An issue that does not name the function is preferred, except where the
    # search for the function is demonstrated.
    named = f'{name}(' in f'{check.before}{check.call}'
    rank = named != demonstrated, len(text), shown
    if best is None or rank < best[0]:
      best = rank, shown, found
  if best is None:
    return None
  shown, found = best[1:]
  text = (
      json.dumps(['e', found.kind, ''])
      if isinstance(found, values.Raised)
      else values.encode(found)
  )
  return Entry(package, finding.bug, failing, shown, text)


def digest(package: shipped.Package) -> str:
  """Return a hash of a package's files."""
  hashed = hashlib.sha256()
  for path, data in sorted(package.tree.items()):
    hashed.update(f'{path} {len(data)}\n'.encode() + data)
  return hashed.hexdigest()[:16]


@functools.cache
def load() -> tuple[Entry, ...]:
  """Return all entries.

  Raises:
    ValueError: If a package has changed since its bugs were found.
  """
  stored = json.loads(FILE.read_text())
  found = []
  for name in shipped.names():
    package = shipped.load(name)
    if stored[name]['digest'] != digest(package):
      raise ValueError(
          f'packages/{name} has changed since {FILE.name} was made; run'
          ' python -m evojax.domains.swe.catalogue'
      )
    tests = suite.parse({p: package.tree[p] for p in package.tests})
    found += decode(name, tests, stored[name]['bugs'])
  return tuple(found)


def encode(tests: suite.Suite, found: Sequence[Entry]) -> list[list[Any]]:
  """Return the entries of one package as short rows."""
  numbers = {name: number for number, name in enumerate(_checks(tests))}
  return [
      [
          *(e.bug.path, e.bug.function, e.bug.operator),
          *(e.bug.start, e.bug.end, e.bug.new),
          [numbers[check] for check in e.failing],
          numbers[e.shown],
          e.found,
      ]
      for e in found
  ]


def decode(
    package: str, tests: suite.Suite, rows: Sequence[Sequence[Any]]
) -> list[Entry]:
  """Return the entries of rows from `encode`."""
  checks = _checks(tests)
  return [
      Entry(
          package,
          operators.Bug(*row[:6]),
          tuple(checks[number] for number in row[6]),
          checks[row[7]],
          row[8],
      )
      for row in rows
  ]


def _checks(tests: suite.Suite) -> list[str]:
  return [
      f'{test.name}#{number}'
      for test in tests.tests
      for number in range(len(test.checks))
  ]


def _text(stored: Mapping[str, Any]) -> str:
  """Return JSON with one line per bug, so that diffs are readable."""
  parts = []
  for name, part in stored.items():
    rows = ',\n'.join(json.dumps(row) for row in part['bugs'])
    parts.append(
        f'{json.dumps(name)}: {{"digest": "{part["digest"]}", "bugs": [\n'
        f'{rows}\n]}}'
    )
  return '{\n' + ',\n'.join(parts) + '\n}\n'


def main() -> None:
  """Find all entries again and write them."""
  tier, stored = probe.tier(), {}
  for name in shipped.names():
    package = shipped.load(name)
    start = time.perf_counter()
    found = entries_of(package, tier)
    seconds = time.perf_counter() - start
    tests = suite.parse({p: package.tree[p] for p in package.tests})
    rows = encode(tests, found)
    stored[name] = {'digest': digest(package), 'bugs': rows}
    output.say(f'{name}: {len(found)} bugs in {seconds:.1f} s')
  FILE.write_text(_text(stored))


if __name__ == '__main__':
  main()
