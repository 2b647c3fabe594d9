"""The grade of a final tree, determined in a fresh one.

An agent's changes of tests, of their configuration and of links are left out:
its changes of source files are put into the tree of the task, and the hidden
tests run on that. Only the box runs any of this code.
"""

import base64
from collections.abc import Mapping
import dataclasses
import json
import sys
import time
from typing import Any

from evojax import records
from evojax.domains.swe import container as container_lib
from evojax.domains.swe import suite as suite_lib
from evojax.domains.swe import tasks
from evojax.domains.swe import trees
from evojax.sandbox import image
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import repository

GRADE_STATUS = {
    'ok': 0,  # The tests ran to their end, whatever they found.
    'no_edit': 1,  # No source file differs, so nothing was run.
    'bad_tree': 2,  # The tree cannot be read or written: names, sizes.
    'broken': 3,  # No test reported anything: the code cannot be imported.
    'error': 4,  # The tests ended early.
    'timeout': 5,
    'cpu_limit': 6,
    'memory_limit': 7,
    'output_limit': 8,
    'disk_limit': 9,
    records.INFRA_ERROR: 10,  # The box failed: there is no grade.
}
_SECONDS = 5.0  # CPU time of all tests as data, and of a single one.
_TEST_SECONDS = 0.5
_ATTEMPTS = 3  # Runs of tests that timed out on a busy machine.
_PYTEST_SECONDS = 300.0  # CPU time of third-party tests.
_OUTPUT_BYTES = 16 << 20
_LONGEST = 1 << 20  # Maximum bytes of a changed file.
_LONGEST_EDITS = 4 << 20  # Maximum bytes of all changed files.
_SHADOWS = frozenset(sys.stdlib_module_names) | {
    *image.PACKAGES, '_pytest', 'py'
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Report:
  """The grade of a final tree, with its details."""

  outcome: bool  # Whether all tests pass, also those that passed before.
  f2p_passed: float  # Passing share of the tests that failed at first, 0..1.
  p2p_passed: float  # The same of those that passed; 1 if there are none.
  status: str  # Key of GRADE_STATUS.
  edited: tuple[str, ...]  # Paths of source files that differ from the task's.
  tests_touched: int  # Number of other files that differ, see `changes`.
  trust: str = tasks.OUTSIDE
  tier: str = ''
  seconds: float = 0.0
  failed: tuple[str, ...] = ()  # Names of failed tests; hidden from policies.

  @property
  def files_edited(self) -> int:
    """Number of source files that differ from the task's."""
    return len(self.edited)


def grade(
    task: tasks.Task,
    files: Mapping[str, repository.File],
    box: repository.Workspace,
    container: container_lib.Container | None = None,
) -> Report:
  """Grade a final tree.

  Args:
    task: The task that the agent was given.
    files: The content of its tree, as returned by `Workspace.read`.
    box: See `grade_changes`.
    container: See `grade_changes`.
  """
  return grade_changes(task, changes(task, files), box, container)


@dataclasses.dataclass(frozen=True)
class Changes:
  """The changes of an agent that matter for a grade."""

  edits: Mapping[str, bytes | None]  # Source files; None for a deleted one.
  touched: int  # Number of other files that differ, see `changes`.
  readable: bool = True  # False if the tree is unreadable or too large.

  def to_json(self) -> dict[str, Any]:
    """Return a JSON value for `from_json`; content may be any bytes."""
    text = lambda data: base64.b64encode(data).decode()
    edits = {
        path: None if data is None else text(data)
        for path, data in self.edits.items()
    }
    return dataclasses.asdict(self) | {'edits': edits}

  @classmethod
  def from_json(cls, value: Mapping[str, Any]) -> 'Changes':
    """Return the changes in a JSON value."""
    data = lambda text: None if text is None else base64.b64decode(text)
    edits = {path: data(text) for path, text in value['edits'].items()}
    return cls(edits, value['touched'], value['readable'])


NO_CHANGES = Changes({}, 0)
UNREADABLE = Changes({}, 0, readable=False)


def grade_changes(
    task: tasks.Task,
    changed: Changes,
    box: repository.Workspace,
    container: container_lib.Container | None = None,
) -> Report:
  """Grade the changes of an agent.

  Args:
    task: The task that the agent was given.
    changed: The agent's changes.
    box: A workspace with an entry of `inside`, or of `inside_pytest` if the
      task's trust is 'in_process'. It is cleared first, so it must not be the
      agent's.
    container: Runs third-party tests that the box cannot run.
  """
  start = time.monotonic()
  edits, touched = changed.edits, changed.touched
  if not changed.readable:
    return _report(task, {}, 'bad_tree', edits, touched, start)
  final = {p: d for p, d in task.tree.items() if not trees.is_test(p)}
  for path, data in edits.items():
    if data is None:
      final.pop(path, None)
    else:
      final[path] = data
  if not edits:
    return _report(task, {}, 'no_edit', edits, touched, start)
  if container is not None and task.trust == tasks.IN_PROCESS:
    paths = tuple(sorted({n.partition('::')[0] for n in _names(task)}))
    whole = {**final, **task.hidden}
    found, status, _ = container.run(task.instance_id, whole, paths)
    return _report(task, _with_cut(found), status, edits, touched, start)
  try:
    for _ in range(_ATTEMPTS):
      box.clear()
      box.write(final)
      if task.trust == tasks.IN_PROCESS:
        box.write(task.hidden)
        found, result = _by_pytest(task, box)
      else:
        found, result = _by_values(task, box)
      late = result.status == 'timeout' and result.contended
      if not late:
        break
  except repository.WorkspaceError as error:
    status = records.INFRA_ERROR if error.infra else 'bad_tree'
    return _report(task, {}, status, edits, touched, start)
  status = records.INFRA_ERROR if late else result.status
  if status == 'ok' and not found:
    status = 'broken'
  report = _report(task, found, status, edits, touched, start)
  return dataclasses.replace(report, tier=result.tier)


def changes(
    task: tasks.Task, files: Mapping[str, repository.File] | None
) -> Changes:
  """Return an agent's changes of source files, and the number of others.

  Links count as others wherever they are, and so do files that are too large or
  that would be imported instead of a module of the standard library or pytest.

  Args:
    task: The task that the agent was given.
    files: The content of its tree; None if it is unreadable.
  """
  if files is None:
    return UNREADABLE
  edits: dict[str, bytes | None] = {}
  touched = 0
  for path in sorted({*task.tree, *files}):
    if path.split('/')[0] == '.git' or '__pycache__' in path:
      continue
    file, before = files.get(path), task.tree.get(path)
    if file is not None and not file.link and file.data == before:
      continue
    if not trees.is_source(path) or (
        file is not None
        and (file.link or len(file.data) > _LONGEST or _shadows(path, before))
    ):
      touched += 1
    else:
      edits[path] = file.data if file else None
  if sum(len(p) + len(d or b'') for p, d in edits.items()) > _LONGEST_EDITS:
    return UNREADABLE
  return Changes(edits, touched)


def _shadows(path: str, before: bytes | None) -> bool:
  """Return whether a new file would be imported instead of a known module."""
  name = path.split('/')[0].partition('.')[0]
  return before is None and name in _SHADOWS


def _by_values(
    task: tasks.Task, box: repository.Workspace
) -> tuple[dict[str, bool], limits_lib.Result]:
  """Return test -> whether it passes, by values that are compared here."""
  programs = dict(task.suite.programs)
  arguments = json.dumps(
      {'programs': programs, 'seconds': _TEST_SECONDS}
  ).encode()
  result = box.call('probe', arguments, limits=_limits(box, _SECONDS))
  found = suite_lib.read(result.stdout)
  if not found:
    return {}, result
  failures = task.suite.failures(found)
  return {name: name not in failures for name in task.suite.names}, result


def _by_pytest(
    task: tasks.Task, box: repository.Workspace
) -> tuple[dict[str, bool], limits_lib.Result]:
  """Return test -> whether it passes, according to pytest in the box."""
  names = _names(task)
  arguments = json.dumps({'names': names}).encode()
  result = box.call('pytest', arguments, limits=_limits(box, _PYTEST_SECONDS))
  outcomes = suite_lib.read(result.stdout)
  found = {name: said == 'passed' for name, said in outcomes.items()}
  return _with_cut(found), result


def _with_cut(found: Mapping[str, bool]) -> dict[str, bool]:
  """Return outcomes of tests, also under names that end at the first blank.

  SWE-bench cut the names in its lists at the first blank: its 'test_a[x' stands
  for test_a[x y] as well as for test_a[x z].
  """
  cut: dict[str, bool] = {}
  for name, passed in found.items():
    word = name.partition(' ')[0]
    cut[word] = passed and cut.get(word, True)
  return {**cut, **found}


def _names(task: tasks.Task) -> list[str]:
  return [*task.fail_to_pass, *task.pass_to_pass]


def _limits(box: repository.Workspace, seconds: float) -> limits_lib.Limits:
  return dataclasses.replace(
      box.limits,
      cpu_seconds=seconds,
      wall_seconds=3 * seconds,
      output_bytes=_OUTPUT_BYTES,
  )


def _report(
    task: tasks.Task,
    found: Mapping[str, bool],
    status: str,
    edits: Mapping[str, Any],
    touched: int,
    start: float,
) -> Report:
  if status == 'no_edit':
    found = dict.fromkeys(task.pass_to_pass, True)
  shares = [
      sum(found.get(name, False) for name in group) / len(group)
      if group
      else 1.0
      for group in (task.fail_to_pass, task.pass_to_pass)
  ]
  failed = tuple(name for name in _names(task) if not found.get(name, False))
  return Report(
      outcome=not failed and bool(task.fail_to_pass) and status == 'ok',
      f2p_passed=shares[0],
      p2p_passed=shares[1],
      status=status,
      edited=tuple(sorted(edits)),
      tests_touched=touched,
      trust=task.trust,
      seconds=time.monotonic() - start,
      failed=failed,
  )
