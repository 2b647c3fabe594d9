"""Tests of many candidates: the bugs of a package that make good problems.

One workspace holds the package; its preloaded process forks once per candidate,
so that a candidate takes milliseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
import pathlib
from typing import Any

from evojax.domains.swe import operators
from evojax.domains.swe import shipped
from evojax.domains.swe import suite as suite_lib
from evojax.domains.swe import values
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import repository
from evojax.sandbox import wire

ENTRY = wire.Entry(str(pathlib.Path(__file__).with_name('inside.py')))
_TEST_SECONDS = 0.2  # A test of right code takes less than a millisecond.
_CANDIDATE_SECONDS = 30.0  # Wall time, since the machine may be busy.
_BATCH = 100  # Candidates per call.
LIMITS = limits_lib.Limits(
    wall_seconds=600.0,
    cpu_seconds=300.0,
    memory_bytes=1 << 30,
    output_bytes=64 << 20,
    disk_bytes=32 << 20,
    files=4096,
    processes=32,
)


@dataclasses.dataclass(frozen=True)
class Finding:
  """A bug that some but not all tests detect."""

  bug: operators.Bug
  failures: Mapping[str, Sequence[int]]  # Test -> its failing checks.
  found: Mapping[str, Any]  # 'test#check' -> value, for failing checks.


def survey(
    package: shipped.Package, tier: str, paths: Sequence[str] = ()
) -> list[Finding]:
  """Return the bugs of a package that make good problems.

  At least one test fails, at least one passes, none takes long, and at least
  two checks fail: the issue shows one of them, and the other one detects a
  solution that only handles this case.

  Args:
    package: The package.
    tier: Tier of the box, see `probe.tier`.
    paths: Modules to put bugs into; all if empty.

  Raises:
    RuntimeError: If a test fails without a bug, or the box fails.
  """
  tests = suite_lib.parse({p: package.tree[p] for p in package.tests})
  candidates = [
      bug
      for path in paths or package.sources
      for bug in operators.bugs(path, package.tree[path].decode())
  ]
  found = []
  with repository.Workspace(tier=tier, limits=LIMITS, entry=ENTRY) as box:
    box.write({path: package.tree[path] for path in package.sources})
    broken = tests.failures(probe(box, tests, _TEST_SECONDS * 10))
    if broken:
      raise RuntimeError(f'{package.name} fails without a bug: {broken}')
    for start in range(0, len(candidates), _BATCH):
      batch = candidates[start : start + _BATCH]
      for bug, values_found in _run(box, package, tests, batch):
        failures = tests.failures(values_found)
        checks = [f'{t}#{n}' for t, wrong in failures.items() for n in wrong]
        if len(checks) >= 2 and len(failures) < len(tests.tests):
          wrong = {c: values_found[c] for c in checks if c in values_found}
          if wrong:
            found.append(Finding(bug, failures, wrong))
  return found


def probe(
    box: repository.Workspace, tests: suite_lib.Suite, seconds: float
) -> dict[str, Any]:
  """Return the values of the checks for the tree in a workspace.

  Raises:
    RuntimeError: If the box fails.
  """
  arguments = {'programs': dict(tests.programs), 'seconds': seconds}
  result = box.call('probe', json.dumps(arguments).encode())
  if result.status == 'infra_error':
    raise RuntimeError(f'the box failed: {result.message}')
  return suite_lib.read(result.stdout)


def _run(
    box: repository.Workspace,
    package: shipped.Package,
    tests: suite_lib.Suite,
    bugs: Sequence[operators.Bug],
) -> Iterator[tuple[operators.Bug, dict[str, Any]]]:
  """Yield the bugs whose tests ended in time, with the checks' values."""
  arguments = {
      'programs': dict(tests.programs),
      'candidates': [
          (bug.path, bug.apply(package.tree[bug.path].decode())) for bug in bugs
      ],
      'seconds': _TEST_SECONDS,
      'most': _CANDIDATE_SECONDS,
  }
  result = box.call('survey', json.dumps(arguments).encode())
  if result.status != 'ok':
    raise RuntimeError(f'{package.name}: {result.status}: {result.message}')
  found: dict[int, dict[str, Any]] = {}
  for line in result.stdout.split(b'\n')[:-1]:
    number, what = json.loads(line)
    if what == 'done':
      yield bugs[number], found.get(number, {})
    else:
      name, text = what
      found.setdefault(number, {})[name] = values.decode(text)
