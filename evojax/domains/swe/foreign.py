"""Tasks from third-party repositories: source distributions and JSON lines.

Pytest runs their tests in the same process as the code that they test, so that
this code can forge a verdict: `trust` is 'in_process', and by default no policy
is trained on such tasks.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import datetime
import functools
import hashlib
import io
import json
import os
import pathlib
import subprocess
import tempfile
from typing import Any

from evojax.domains.swe import grade
from evojax.domains.swe import history
from evojax.domains.swe import operators
from evojax.domains.swe import sdist
from evojax.domains.swe import suite as suite_lib
from evojax.domains.swe import survey
from evojax.domains.swe import tasks
from evojax.domains.swe import trees
from evojax.sandbox import repository
from evojax.sandbox import wire

ENTRY = wire.Entry(str(pathlib.Path(__file__).with_name('inside_pytest.py')))
_BATCH = 20  # Candidates per call.
_RELEASED = datetime.date(2020, 1, 1)  # Unknown, but fixed: ids depend on it.
_LINK = b'120000'  # Git's mode of a symbolic link.
_FIELDS = (
    'instance_id', 'repo', 'base_commit', 'problem_statement', 'patch',
    'test_patch', 'FAIL_TO_PASS', 'PASS_TO_PASS',
)  # fmt: skip


# ------------------------------------------------------- source distributions


def from_sdist(
    path: str | pathlib.Path,
    sha256: str,
    tier: str,
    *,
    candidates: int = 200,
    seed: int = 0,
) -> list[tasks.Task]:
  """Return tasks of a pure-Python source distribution with its own tests.

  A bug is kept if at least one test fails that passed before, at least one
  passes, and none takes long.

  Args:
    path: See `sdist.read`.
    sha256: See `sdist.read`.
    tier: Tier of the box, see `probe.tier`.
    candidates: Number of bugs to try.
    seed: Chooses the candidates.

  Raises:
    ValueError: If the archive is refused, or none of its tests passes in the
      box, which has pytest and NumPy but no other package.
    RuntimeError: If the tests of the candidates do not run to their end.
  """
  name, tree = sdist.read(path, sha256)
  sources = [p for p in tree if p.endswith('.py') and trees.is_source(p)]
  tests = [p for p in tree if trees.is_test(p)]
  if not sources or not tests:
    raise ValueError(
        f'{name}: {len(sources)} modules and {len(tests)} files of tests; a'
        ' source distribution needs both'
    )
  bugs = []
  for source in sources:
    try:
      bugs += operators.bugs(source, tree[source].decode())
    except (SyntaxError, ValueError):  # For another Python, or not UTF-8.
      continue
  bugs.sort(key=lambda b: _hash(f'{seed}/{b}'))
  limits = survey.LIMITS
  with repository.Workspace(tier=tier, limits=limits, entry=ENTRY) as box:
    box.write(tree)
    result = box.call('pytest', b'{}')
    if result.status != 'ok':
      raise ValueError(
          f'{name}: its tests end with {result.status}: {result.message}'
      )
    before = suite_lib.read(result.stdout)
    # A bug may make tests slower; it is left out if they exceed this limit.
    seconds = 2.0 + 2 * result.cpu_seconds
    passing = sorted(n for n, said in before.items() if said == 'passed')
    if not passing:
      raise ValueError(
          f'{name}: none of its tests passes in the box, which has pytest and'
          ' NumPy, but no other package that the tests may import'
      )
    return [
        _task(name, tree, bug, failing, passing, said)
        for bug, failing, said in _try(
            box, tree, bugs[:candidates], passing, seconds
        )
    ]


def _try(
    box: repository.Workspace,
    tree: trees.Tree,
    bugs: Sequence[operators.Bug],
    passing: Sequence[str],
    seconds: float,
) -> Iterator[tuple[operators.Bug, list[str], str]]:
  """Yield bugs that some tests detect, these tests, and one test's message."""
  for start in range(0, len(bugs), _BATCH):
    batch = bugs[start : start + _BATCH]
    changed = [(b.path, b.apply(tree[b.path].decode())) for b in batch]
    arguments = json.dumps({'candidates': changed, 'seconds': seconds})
    limits = dataclasses.replace(
        box.limits,
        cpu_seconds=_BATCH * (seconds + 1),
        wall_seconds=10 * _BATCH * (seconds + 1),
    )
    result = box.call('survey', arguments.encode(), limits=limits)
    if result.status != 'ok':
      raise RuntimeError(f'{result.status}: {result.message}')
    found: dict[int, dict[str, str]] = {}
    for line in result.stdout.split(b'\n')[:-1]:
      number, what = json.loads(line)
      if what != 'done':
        found.setdefault(number, {})[what[0]] = json.loads(what[1])
        continue
      said = found.pop(number, {})
      failing = [n for n in passing if said.get(n) != 'passed']
      reasons = [said[f'{n}!'] for n in failing if f'{n}!' in said]
      if reasons and len(failing) < len(passing):
        yield batch[number], failing, min(reasons, key=len)


def _task(
    name: str,
    tree: trees.Tree,
    bug: operators.Bug,
    failing: Sequence[str],
    passing: Sequence[str],
    said: str,
) -> tasks.Task:
  # Third-party tests cannot be split: a file with a failing test is hidden.
  hidden = {test.partition('::')[0] for test in failing}
  wrong = bug.apply(tree[bug.path].decode()).encode()
  given = {p: d for p, d in tree.items() if p not in hidden} | {bug.path: wrong}
  first = history.Commit(f'Import {name}', _RELEASED, given)
  fixed = {**given, bug.path: tree[bug.path]}
  message = f'Fix {bug.function.rpartition(".")[2]}'
  commits = [first, history.Commit(message, _RELEASED, fixed)]
  repositories = functools.cache(
      lambda scrubbed: history.make(
          commits[:1] if scrubbed else commits, 0 if scrubbed else 1
      )
  )
  return tasks.Task(
      instance_id=f'{name}-{_hash(f"{name}/{bug}")[:16]}',
      repo=name,
      issue=f'A check of ours fails since the last release:\n\n{said}',
      base_commit=repositories(True).head,
      tree=given,
      hidden=_tests(tree),
      solution=tree,
      fail_to_pass=tuple(failing),
      pass_to_pass=tuple(n for n in passing if n not in failing),
      history=lambda scrubbed: repositories(scrubbed).files,
      trust=tasks.IN_PROCESS,
      family=bug.operator,
      unseen=True,
  )


def _tests(tree: trees.Tree) -> dict[str, bytes]:
  return {p: d for p, d in tree.items() if not trees.is_source(p)}


# ------------------------------------------------------------------- JSON lines


def read_rows(path: str | pathlib.Path) -> list[dict[str, Any]]:
  """Return the rows of a file in the format of SWE-bench or SWE-rebench.

  Raises:
    ValueError: If a line is not such a row, naming the line and the field; or
      if there is no row.
  """
  rows = []
  # Lines are decoded one by one, so that an error of encoding names its line.
  with open(path, 'rb') as file:
    for number, line in enumerate(file, 1):
      if line.strip():
        try:
          rows.append(_row(json.loads(line)))
        except ValueError as error:
          raise ValueError(f'{path}, line {number}: {error}') from error
  if not rows:  # The shipped problems would stay in place of these.
    raise ValueError(f'{path} holds no row')
  return rows


def _row(row: Any) -> dict[str, Any]:
  missing = set(_FIELDS) - set(row if isinstance(row, Mapping) else ())
  if missing:
    raise ValueError(f'no field {sorted(missing)}; a row has {_FIELDS}')
  found = {name: row[name] for name in _FIELDS}
  for name in ('FAIL_TO_PASS', 'PASS_TO_PASS'):
    value = row[name]
    if isinstance(value, str):  # SWE-bench's lists are JSON within JSON.
      value = json.loads(value)
    if not isinstance(value, list) or not all(
        isinstance(test, str) for test in value
    ):
      raise ValueError(f'{name} must be a list of names of tests')
    if other := next((test for test in value if '::' not in test), None):
      raise ValueError(
          f'{name} has {other!r:.80}, which is not a test name of pytest like'
          ' tests/test_a.py::test_b. Tests of other runners, such as those of'
          ' django and sympy, cannot be graded here: leave the row out'
      )
    found[name] = tuple(value)
  # Without a test that fails first, doing nothing would solve the row.
  if not found['FAIL_TO_PASS']:
    raise ValueError('FAIL_TO_PASS is empty')
  for name in _FIELDS[:-2]:
    if not isinstance(found[name], str):
      raise ValueError(f'{name}={found[name]!r:.60} must be a text')
  return found


def from_row(
    row: Mapping[str, Any],
    checkout: str | pathlib.Path,
    box: repository.Workspace,
) -> tasks.Task:
  """Return the task of a row.

  Args:
    row: A row from `read_rows`.
    checkout: A local clone of the repository that has the base commit.
    box: An empty workspace, in which the patches are applied.

  Raises:
    ValueError: If the commit does not exist, or a patch does not apply.
  """
  name, commit = row['instance_id'], row['base_commit']
  tree = _tree(checkout, commit, f'{name} at {commit}')
  with_tests = _patched(box, tree, row['test_patch'], f'{name}: test_patch')
  solution = _patched(box, with_tests, row['patch'], f'{name}: patch')
  # Not all files of test patches look like tests: mypy's are *.test.
  patched = {p: d for p, d in with_tests.items() if tree.get(p) != d}
  return tasks.Task(
      instance_id=name,
      repo=row['repo'],
      issue=row['problem_statement'],
      base_commit=commit,
      tree=tree,
      hidden=_tests(with_tests) | patched,
      solution=solution,
      fail_to_pass=row['FAIL_TO_PASS'],
      pass_to_pass=row['PASS_TO_PASS'],
      history=functools.cache(
          lambda scrubbed: _clone(checkout, commit, scrubbed)
      ),
      trust=tasks.IN_PROCESS,
      family=row['repo'],
      unseen=True,
  )


def check(task: tasks.Task, box: repository.Workspace) -> list[str]:
  """Return what is wrong with a task, as lines; [] if it can be used.

  Its tests must fail and pass as the task says, without a change and with the
  reference patch.

  Args:
    task: A task.
    box: A workspace, see `grade.grade`.
  """
  faults = []
  solution = {p: repository.File(d) for p, d in task.solution.items()}
  after = grade.grade(task, solution, box)
  if not after.outcome:
    faults.append(
        f'the reference patch fails ({after.status}): {after.failed[:3]}'
    )
  # Without any difference, no test would be run.
  touched = {p: repository.File(d) for p, d in task.tree.items()}
  touched['EVOJAX_CHECK'] = repository.File(b'')
  before = grade.grade(task, touched, box)
  if before.f2p_passed or before.p2p_passed < 1:
    faults.append(
        f'without a patch {before.f2p_passed:.0%} of FAIL_TO_PASS and'
        f' {before.p2p_passed:.0%} of PASS_TO_PASS pass ({before.status})'
    )
  return faults


def _tree(
    checkout: str | pathlib.Path, commit: str, what: str
) -> dict[str, bytes]:
  """Return the regular files of a commit as they are stored.

  `git archive` would leave out or change files that .gitattributes names: some
  repositories do not export their tests.
  """
  listed = _git(checkout, 'ls-tree', '-r', '-l', '-z', '--full-tree', commit)
  found, size = {}, 0
  for line in listed.split(b'\0')[:-1]:
    entry, _, path = line.partition(b'\t')
    mode, kind, identity, length = entry.split()
    if kind == b'blob' and mode != _LINK:
      found[os.fsdecode(path)] = identity
      size += int(length)
  sdist.check_size(what, len(found), size)
  asked = b''.join(b'%s\n' % identity for identity in found.values())
  answer = io.BytesIO(_git(checkout, 'cat-file', '--batch', stdin=asked))
  tree = {}
  for path in found:
    length = int(answer.readline().split()[2])
    tree[path] = answer.read(length)
    answer.read(1)  # The end of the line.
  return tree


def _patched(
    box: repository.Workspace, tree: trees.Tree, patch: str, what: str
) -> dict[str, bytes]:
  """Return a tree after a patch, which git applies in the box."""
  if not patch.strip():
    return dict(tree)
  box.clear()
  box.write(tree)
  command = ['git', 'apply', '--whitespace=nowarn', '-']
  result = box.run(command, patch.encode())
  if result.status != 'ok':
    said = result.stderr.decode(errors='replace')[:200] or result.message
    raise ValueError(f'{what} does not fit: {said}')
  return {p: f.data for p, f in box.read().items() if not f.link}


def _clone(
    checkout: str | pathlib.Path, commit: str, scrubbed: bool
) -> dict[str, bytes]:
  """Return the .git of a clone: what the commit reaches, or all branches."""
  with tempfile.TemporaryDirectory() as folder:
    _git(folder, 'init', '--quiet', '--initial-branch=main', '.')
    source = str(pathlib.Path(checkout).absolute())
    wanted = [f'{commit}:refs/heads/main']
    if not scrubbed:
      wanted.append('refs/heads/*:refs/remotes/origin/*')
    _git(
        folder,
        *('-c', 'uploadpack.allowAnySHA1InWant=true'),
        *('fetch', '--quiet', '--no-tags', '--update-head-ok', source),
        *wanted,
    )
    _git(folder, 'read-tree', 'main')
    top = pathlib.Path(folder)
    return {
        path.relative_to(top).as_posix(): path.read_bytes()
        for path in sorted((top / '.git').rglob('*'))
        if path.is_file()
        and not path.is_symlink()
        and path.parent.name not in ('hooks', 'info')
        and path.name != 'FETCH_HEAD'
    }


def _git(
    folder: str | pathlib.Path, *arguments: str, stdin: bytes = b''
) -> bytes:
  """Run git on a user's repository, and return its output.

  Raises:
    ValueError: If it fails, or is not installed.
  """
  command = ['git', '-C', str(folder), '-c', 'core.fsmonitor=false', *arguments]
  try:
    run = subprocess.run(
        command, input=stdin, capture_output=True, check=False
    )
  except OSError as error:
    raise ValueError(f'git is needed to read a checkout: {error}') from error
  if run.returncode:
    said = run.stderr.decode(errors='replace').strip()[:300]
    raise ValueError(f'git {arguments[0]} in {folder}: {said}')
  return run.stdout


def _hash(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()
