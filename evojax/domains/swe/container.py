"""Tests of a task in a user's container, for what the box cannot run.

Some repositories need more than Python and pytest. Users who have images of
them say how to enter one; nothing here knows Docker.
"""

import dataclasses
import os
import pathlib
import shlex
import stat
import subprocess
import tempfile
from xml.etree import ElementTree

from evojax.domains.swe import trees

_REPORT = '.evojax-report.xml'
_MOST_BYTES = 64 << 20
_FIELDS = ('tree', 'command', 'instance_id')


@dataclasses.dataclass(frozen=True)
class Container:
  """The way to run a command in a container.

  The container has to contain the agent's code: give it no network and nothing
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
      # Written to a file, since the program may print without end.
      with tempfile.TemporaryFile() as said:
        try:
          subprocess.run(
              self._words(folder, command, instance_id),
              stdin=subprocess.DEVNULL,
              stdout=said,
              stderr=said,
              timeout=self.seconds,
              check=False,
          )
          status = 'ok'
        except subprocess.TimeoutExpired:
          status = 'timeout'
        size = said.seek(0, os.SEEK_END)
        said.seek(max(0, size - 10_000))
        text = said.read().decode(errors='replace')
      found = _outcomes(top / _REPORT)
    return found or {}, status if found is not None else 'broken', text

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
