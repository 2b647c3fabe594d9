"""Tests of a task in a user's container, if the box cannot run them.

Some repositories need more than Python and pytest. A user who has container
images for them gives the command that runs one; nothing here depends on Docker.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
import shlex
import signal
import stat
import subprocess
import tempfile
import time
from xml.etree import ElementTree

from evojax.domains.swe import trees

_REPORT = '.evojax-report.xml'
_MOST_BYTES = 64 << 20
_KILLED = (128 + signal.SIGKILL, -signal.SIGKILL)  # Exit codes.
_START = 60.0  # Seconds in which a container starts and is removed.
_FIELDS = ('tree', 'command', 'instance_id')


@dataclasses.dataclass(frozen=True)
class Container:
  """The way to run a command in a container.

  The container has to confine the agent's code: give it no network and nothing
  worth reading.
  """

  # A command line with {tree}, the folder to mount, and {command}, one word;
  # {instance_id} may choose an image. For example 'docker run --rm
  # --network=none -v {tree}:/testbed -w /testbed IMAGE sh -c {command}'.
  template: str
  # The command that runs the tests; it writes {report} in the tree.
  tests: str = (
      'python -m pytest -q -p no:cacheprovider -o junit_family=xunit1'
      ' --junitxml={report} {paths}'
  )
  # After so many seconds, rounded up, `timeout` of the container's coreutils or
  # busybox kills the tests. A client that is killed does not stop a container.
  seconds: float = 1800.0

  def __post_init__(self):
    for name, needed in (
        ('template', ('{tree}', '{command}')),
        ('tests', ('{report}',)),
    ):
      for field in needed:
        if field not in getattr(self, name):
          raise ValueError(f'{name}={getattr(self, name)!r} lacks {field}')
    try:
      self._words('', '', '')
    except (KeyError, IndexError, ValueError) as error:
      raise ValueError(
          f'template={self.template!r}: {error}; the fields are {_FIELDS}'
      ) from error

  @property
  def most_seconds(self) -> float:
    """Seconds after which `run` has returned."""
    return math.ceil(self.seconds) + _START

  def run(
      self, instance_id: str, files: trees.Tree, paths: tuple[str, ...] = ()
  ) -> tuple[dict[str, bool], str, str]:
    """Run tests on a tree.

    Args:
      instance_id: Id of the task.
      files: The tree.
      paths: Test files; all if empty.

    Returns:
      Test -> whether it passed according to pytest in the container; one of
      'ok', 'timeout' or 'broken'; and the last output.

    Raises:
      OSError: If the template's command does not exist.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
      top = pathlib.Path(folder)
      for path, data in files.items():
        file = top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
      command = self.tests.format(report=_REPORT, paths=shlex.join(paths))
      seconds = math.ceil(self.seconds)
      command = f'timeout -s KILL {seconds} sh -c {shlex.quote(command)}'
      # Written to a file, since the program may print without end.
      with tempfile.TemporaryFile() as said:
        start = time.monotonic()
        process = subprocess.Popen(
            self._words(folder, command, instance_id),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
          process.wait(self.most_seconds)
        except BaseException as error:
          with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
          process.wait()
          if not isinstance(error, subprocess.TimeoutExpired):
            raise
        elapsed = time.monotonic() - start
        late = elapsed >= seconds and process.returncode in _KILLED
        size = said.seek(0, os.SEEK_END)
        said.seek(max(0, size - 10_000))
        text = said.read().decode(errors='replace')
      found = _outcomes(top / _REPORT)
    status = 'timeout' if late else 'broken' if found is None else 'ok'
    return found or {}, status, text

  def _words(self, tree: str, command: str, instance_id: str) -> list[str]:
    return [
        word.format(tree=tree, command=command, instance_id=instance_id)
        for word in shlex.split(self.template)
    ]


def _outcomes(report: pathlib.Path) -> dict[str, bool] | None:
  """Return the outcomes in a JUnit report; None if there is none."""
  try:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(report, flags)
  except OSError:
    return None
  with os.fdopen(descriptor, 'rb') as file:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
      return None
    data = file.read(_MOST_BYTES)
  try:
    if b'<!' in data.replace(b'<![CDATA[', b''):  # Entities can expand hugely.
      return None
    top = ElementTree.fromstring(data)
  except ElementTree.ParseError:
    return None
  found: dict[str, bool] = {}
  for case in top.iter('testcase'):
    file, name = case.get('file') or '', case.get('name') or ''
    module = file.removesuffix('.py').replace('/', '.')
    kinds = (case.get('classname') or '').removeprefix(module).strip('.')
    parts = [file, *filter(None, kinds.split('.')), name]
    passed = not any(
        case.find(kind) is not None for kind in ('failure', 'error', 'skipped')
    )
    identity = '::'.join(parts)
    found[identity] = passed and found.get(identity, True)
  return found
