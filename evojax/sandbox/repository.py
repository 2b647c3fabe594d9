"""A tree for an agent to work in: commands in the box, files as bytes.

    with repository.Workspace(tier='T0') as workspace:
      workspace.write({'a.py': b'print(1)'})
      result = workspace.run([repository.PYTHON, 'a.py'])
      files = workspace.read()

No process outside opens, lists or follows anything in the tree: whatever git, a
hook or a link does there happens in the box. Processes that a command leaves
running are ended with it. Its files stay until the workspace is closed, also
those in its home, where a `.gitconfig` or `usercustomize.py` takes effect on
the next command. So grade a tree in a fresh workspace, or in a cleared one,
which is as good and saves the start of its processes.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import json
import os
import pathlib
import sys
from typing import Any

from evojax.sandbox import box as box_lib
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import probe

# An interpreter that every box has; it finds the packages of the image.
PYTHON = os.path.join(
    sys.base_prefix, 'bin', f'python3.{sys.version_info.minor}'
)
LIMITS = limits_lib.Limits(
    wall_seconds=60.0,
    cpu_seconds=60.0,
    memory_bytes=2 << 30,
    disk_bytes=128 << 20,
    files=16384,
    processes=64,
)
# Maximum length of a file's JSON line: a path has up to 4096 bytes, and JSON
# may need six for each.
_RECORD_BYTES = 32 << 10


class WorkspaceError(Exception):
  """The tree could not be written or read.

  Attributes:
    result: The result of the attempt.
    infra: Whether the box failed. Otherwise the tree's contents are the cause:
      paths that are too long, more files than allowed, a link on the way.
  """

  def __init__(self, message: str, result: limits_lib.Result):
    super().__init__(f'{message}: {result.status}: {result.message}')
    self.result = result
    self.infra = result.status == 'infra_error'


@dataclasses.dataclass(frozen=True)
class File:
  """A file or link, possibly made by an agent: check it strictly."""

  data: bytes  # For a link, the path that it points to.
  executable: bool = False
  link: bool = False


class Workspace:
  """One tree and the box around it; one command at a time.

  Attributes:
    limits: Limits of a command for which none are given.
  """

  def __init__(
      self,
      *,
      tier: str,
      limits: limits_lib.Limits = LIMITS,
      allow_weak: bool | None = None,
      **options: Any,
  ):
    """Make an empty tree; see `box.Box`.

    Args:
      tier: See `probe.choose`.
      limits: Limits of every command; the memory limit is per process.
      allow_weak: Whether commands may run as root, whose processes cannot be
        counted; None: as given to `probe.tier`.
      **options: `readable` (commands may run these, too: e.g. a virtual
        environment, besides the system and PYTHON), `environment`,
        `grace_seconds`, `without` and `entry` of `box.Box`.

    Raises:
      probe.WeakSandboxError: If they would run as root, which is not allowed.
    """
    self.limits = limits
    # A single attempt: in a second one the tree would be empty.
    self._box = box_lib.Box(
        'repository', tier=tier, limits=limits, attempts=1, **options
    )
    self._has_entry = options.get('entry') is not None
    self._lost: limits_lib.Result | None = None
    if allow_weak is None:
      allow_weak = probe.allows_weak()
    is_root = os.geteuid() == 0 and not self._box.own_user
    if is_root and tier == 'T1' and not allow_weak:
      raise probe.WeakSandboxError(
          'in T1 commands would run as root, and the kernel does not count its'
          ' processes: one could take all that this machine can have. Run as'
          ' another user, or with a Python that every user may read'
          f' ({os.path.dirname(os.__file__)} is not), or in T0;'
          ' --allow_weak_sandbox runs them anyway'
      )

  def __enter__(self) -> 'Workspace':
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def close(self) -> None:
    """End all processes, and remove the tree."""
    self._box.close()
    message = 'the tree is lost: the workspace is closed'
    self._lost = limits_lib.Result(
        'infra_error', self._box.tier, message=message
    )

  def run(
      self,
      command: Sequence[str],
      stdin: bytes = b'',
      *,
      folder: str = '.',
      environment: Mapping[str, str] | None = None,
      limits: limits_lib.Limits | None = None,
  ) -> limits_lib.Result:
    """Run a command in the tree.

    Args:
      command: Program and arguments, without a shell.
      stdin: The command's input.
      folder: The folder of the tree to start in.
      environment: Additional environment variables.
      limits: Limits of this command; None takes the workspace's. `disk_bytes`,
        `files` and `processes` must equal the workspace's.

    Returns:
      The result. After one 'infra_error' all later results are too, because the
      tree is lost.
    """
    fields = {
        'command': list(command),
        'folder': _inside(folder),
        'environment': dict(environment or {}),
    }
    return self._request(fields, stdin, limits)

  def call(
      self,
      source: str,
      data: bytes = b'',
      *,
      folder: str = '.',
      limits: limits_lib.Limits | None = None,
  ) -> limits_lib.Result:
    """Call the workspace's entry in a fresh copy of a process that loaded it.

    No interpreter is started, and nothing in the tree or the home is run before
    the entry.

    Args:
      source: The entry's first argument.
      data: The entry's second argument.
      folder: The folder of the tree to start in.
      limits: As in `run`.

    Returns:
      As `run`; `stdout` ends with the return value of the entry.

    Raises:
      ValueError: If the workspace has no entry.
    """
    if not self._has_entry:
      raise ValueError('there is no entry to call: name one to Workspace')
    fields = {'program': source, 'folder': _inside(folder)}
    return self._request(fields, data, limits)

  def clear(self) -> None:
    """Remove everything in the tree, the home and the temporary folder.

    Raises:
      WorkspaceError: If the box has failed.
    """
    result = self._request({'operation': 'clear'})
    if result.status != 'ok':
      raise WorkspaceError('the tree is not cleared', result)

  def write(
      self, files: Mapping[str, bytes], executable: Collection[str] = ()
  ) -> None:
    """Write files and the folders above them.

    Args:
      files: Path in the tree -> content.
      executable: Paths of the files to make executable.

    Raises:
      WorkspaceError: If there is no room, or a link is in the way.
      ValueError: If a path leads out of the tree.
    """
    records = []
    for path, data in files.items():
      record = dict(path=_inside(path), size=len(data))
      record['executable'] = path in executable
      records.append(json.dumps(record).encode() + b'\n' + data)
    result = self._request({'operation': 'write'}, b''.join(records))
    if result.status != 'ok':
      raise WorkspaceError(f'{len(files)} files are not written', result)

  def read(self, folder: str = '.') -> dict[str, File]:
    """Return everything below a folder, by path; links are not followed.

    Raises:
      WorkspaceError: If it cannot be read, or is larger than the tree can be.
    """
    limits = self.limits
    fits = limits.disk_bytes + limits.files * _RECORD_BYTES
    fields = {'operation': 'read', 'folder': _inside(folder)}
    wide = dataclasses.replace(limits, output_bytes=fits)
    result = self._request(fields, limits=wide)
    if result.status == 'ok':
      try:
        return parse(result.stdout)
      except (ValueError, KeyError, TypeError) as error:
        result = dataclasses.replace(
            result, status='error', message=f'no records: {error}'
        )
    raise WorkspaceError(f'{folder} is not read', result)

  def _request(
      self,
      fields: Mapping[str, Any],
      stdin: bytes = b'',
      limits: limits_lib.Limits | None = None,
  ) -> limits_lib.Result:
    if self._lost is None:
      result = self._box.request(fields, stdin, limits)
      if result.status != 'infra_error':
        return result
      self._lost = dataclasses.replace(
          result, message=f'the tree is lost: {result.message}'
      )
    return self._lost


def _inside(path: str) -> str:
  """Return a path if it stays inside the tree.

  Raises:
    ValueError: If it leads out of the tree.
  """
  parts = pathlib.PurePosixPath(path).parts
  if path.startswith('/') or '..' in parts or '\0' in path:
    raise ValueError(f'{path!r} is not a path within the tree')
  return path


def parse(data: bytes) -> dict[str, File]:
  """Parse the records of a tree.

  Raises:
    ValueError, KeyError, TypeError: If `tree` did not write the records.
  """
  files, position = {}, 0
  try:
    while position < len(data):
      end = data.index(b'\n', position, position + _RECORD_BYTES)
      record = json.loads(data[position:end])
      position = end + 1 + int(record['size'])
      content = data[end + 1 : position]
      if len(content) != record['size'] or record['size'] < 0:
        raise ValueError('a record is cut off')
      path, kind = _inside(record['path']), record['kind']
      if path in files:
        raise ValueError(f'{path!r} twice')
      executable = kind == 'file' and bool(record['executable'])
      files[path] = File(content, executable, link=kind == 'link')
  except (AttributeError, OverflowError, RecursionError) as error:
    raise ValueError(f'{error}') from error
  return files
