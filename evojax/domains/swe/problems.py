"""Problems of the shipped packages: a bug, an issue, hidden tests, by split.

A problem is a function of its catalogue entry alone, so that an id always has
the same text, tree and tests, whatever the seed of the stream.
"""

import datetime
import functools
import hashlib
import re

from evojax.domains import splits
from evojax.domains.swe import catalogue
from evojax.domains.swe import history
from evojax.domains.swe import issues
from evojax.domains.swe import shipped
from evojax.domains.swe import suite as suite_lib
from evojax.domains.swe import tasks
from evojax.domains.swe import trees
from evojax.domains.swe import values

# One in this many sealed problems is from a package that nothing is trained on.
_UNSEEN_OF = 4
_FIXED_AFTER = datetime.timedelta(days=14)


@functools.cache
def entries(split: str) -> tuple[catalogue.Entry, ...]:
  """Return the entries of a split, in the split's own order.

  Every fourth sealed entry is from a package that nothing is trained on.

  Raises:
    ValueError: If there is no such split.
  """
  splits.check(split)
  found = [e for e in catalogue.load() if e.split == split]
  found.sort(key=lambda e: e.identity)
  seen = [e for e in found if e.package not in shipped.UNSEEN]
  unseen = [e for e in found if e.package in shipped.UNSEEN]
  if not unseen:
    return tuple(seen)
  groups = min(len(unseen), len(seen) // (_UNSEEN_OF - 1))
  mixed = []
  for number in range(groups):
    start = number * (_UNSEEN_OF - 1)
    mixed += [*seen[start : start + _UNSEEN_OF - 1], unseen[number]]
  return tuple(mixed)


@functools.cache
def _by_identity() -> dict[str, catalogue.Entry]:
  return {entry.identity: entry for entry in catalogue.load()}


def find(identity: str) -> catalogue.Entry:
  """Return the entry of a problem_id.

  Raises:
    KeyError: If there is no such problem.
  """
  return _by_identity()[identity]


LEVELS = 2  # See `level`.


@functools.cache
def level(entry: catalogue.Entry) -> int:
  """Return 0 if the issue names the function that has the bug, else 1."""
  check = _checks(entry.package)[entry.shown]
  name = entry.bug.function.rpartition('.')[2]
  code = ''.join(issues.plain(t, check) for t in (check.before, check.call))
  return 0 if re.search(rf'\b{re.escape(name)}\b', code) else 1


def issue(entry: catalogue.Entry, seed: str) -> str:
  """Return the issue of an entry in a wording that the seed chooses."""
  check = _checks(entry.package)[entry.shown]
  return issues.write(check, values.decode(entry.found), seed)


@functools.cache
def _checks(package: str) -> dict[str, suite_lib.Check]:
  """Return the checks of a package, keyed by 'test#number'."""
  shown = shipped.load(package)
  tests = suite_lib.parse({path: shown.tree[path] for path in shown.tests})
  return {
      f'{test.name}#{number}': check
      for test in tests.tests
      for number, check in enumerate(test.checks)
  }


@functools.lru_cache(maxsize=4096)
def build(entry: catalogue.Entry, shown_failing: int = 0) -> tasks.Task:
  """Return the task of an entry.

  About half of the tests that pass despite the bug are visible. All tests are
  graded, including the visible ones.

  Args:
    entry: An entry of the catalogue.
    shown_failing: Number of failing tests that are visible, with at least one
      failing test kept hidden. As in SWE-bench, the default is none.
  """
  package = shipped.load(entry.package)
  hidden = {path: package.tree[path] for path in package.tests}
  tests = suite_lib.parse(hidden)
  failing = {check.partition('#')[0] for check in entry.failing}
  fail_to_pass = tuple(n for n in tests.names if n in failing)
  pass_to_pass = tuple(n for n in tests.names if n not in failing)
  ranked = sorted(pass_to_pass, key=lambda n: _hash(entry.identity + n))
  visible = set(ranked[: (len(ranked) + 1) // 2])
  ranked = sorted(fail_to_pass, key=lambda n: _hash(entry.identity + n))
  visible.update(ranked[: min(shown_failing, len(ranked) - 1)])
  bug = entry.bug
  wrong = bug.apply(package.tree[bug.path].decode()).encode()
  tree = {**package.tree, bug.path: wrong}
  for path in package.tests:
    data = _visible(package.tree[path], path, visible)
    if data is None:
      del tree[path]
    else:
      tree[path] = data
  # An unscrubbed history reveals this fix.
  commits = package.commits(tree)
  fixed = {**tree, bug.path: package.tree[bug.path]}
  message = f'Fix {bug.function.rpartition(".")[2]}'
  date = commits[-1].date + _FIXED_AFTER
  fix = history.Commit(message, date, fixed)
  scrubbed = history.make(commits)
  whole = functools.cache(lambda: history.make([*commits, fix], ahead=1))
  return tasks.Task(
      instance_id=entry.identity,
      repo=entry.package,
      issue=issue(entry, entry.identity),
      base_commit=scrubbed.head,
      tree=tree,
      hidden=hidden,
      solution=package.tree,
      fail_to_pass=fail_to_pass,
      pass_to_pass=pass_to_pass,
      history=lambda scrub: (scrubbed if scrub else whole()).files,
      family=entry.bug.operator,
      unseen=entry.package in shipped.UNSEEN,
  )


def _visible(data: bytes, path: str, names: set[str]) -> bytes | None:
  """Return a test file with some of its tests; None if none is left."""
  text = data.decode()
  kept = {
      name
      for name in trees.definitions(text)
      if not name.startswith('test') or f'{path}::{name}' in names
  }
  if not any(name.startswith('test') for name in kept):
    return None
  return trees.only(text, kept).encode()


def _hash(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()
