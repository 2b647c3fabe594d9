"""The directory of a run: its lock, config and environment.

    <workdir>/config.json     the resolved config and its hash
    <workdir>/manifest.json   one entry per start: versions, devices, command
    <workdir>/.lock           held while a process works on the run

`run_files` lists what else a run writes. The directory is a local path, a
mount, or the copy of a folder in an object store, see `mirror`. With several
hosts the directory is shared, or each has a copy of the folder in the store;
only process 0 locks and writes it. It belongs to the mode that created it. A
start that ends before `Workdir.keep` leaves the directory unchanged.
"""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import time
from typing import Any

from absl import logging
import ml_collections

from evojax import config as config_lib
from evojax.runtime import config_changes
from evojax.runtime import durable
from evojax.runtime import found as found_lib
from evojax.runtime import invocation
from evojax.runtime import lease
from evojax.runtime import locks
from evojax.runtime import mirror as mirror_lib
from evojax.runtime import mirrored
from evojax.runtime import preemption
from evojax.runtime import run_files
from evojax.runtime import storage

_PACKAGES = (
    'jax jaxlib flax optax orbax-checkpoint transformers pyarrow reasoning-gym'
    ' sympy'
    # Packages that code in the box can import, see `sandbox.image`.
    ' iniconfig numpy packaging pluggy pygments pytest'
).split()
# A resumed run is bit-equal only if these are the same.
_NUMERICS = (
    'jax',
    'jaxlib',
    'XLA_FLAGS',
    'platform',
    'device',
    'devices',
    'mesh',
    'chat_template',
)

# A process that is being stopped finishes its update first.
_LOCK_SECONDS = 60.0
# File -> the mode that writes it; used if config.json does not name the mode.
_TRACES = {
    run_files.LEDGER: 'evolve',
    run_files.METRICS: 'train',
    run_files.EVAL: 'eval',
    run_files.EQUAL_ARMS: 'aa',
    'tokenizer': 'warmstart',
}


class WorkdirError(ValueError):
  """The directory cannot be used for a run; the message says what to do."""


def _now() -> str:
  return datetime.datetime.now().astimezone().isoformat(timespec='seconds')


def _fork_command(path: pathlib.Path) -> str:
  """Return this command, changed to fork the run into a new directory."""
  fork = path.with_name(path.name + '-fork')
  flags = f'--workdir={fork}', f'--fork_from={path}'
  command = invocation.command(*flags, without=('workdir', 'fork_from'))
  return command or f'the same command with {shlex.join(flags)}'


def _lock(folder: pathlib.Path) -> locks.Lock:
  """Take the lock of a folder.

  Raises:
    WorkdirError: If another process holds it.
    durable.DiskError: If the disk is full.
  """
  holder = f'pid {os.getpid()} on {socket.gethostname()} since {_now()}'
  try:
    return locks.take(folder, holder)
  except locks.HeldError as error:
    raise WorkdirError(_in_use(folder, error.holder)) from error


def _in_use(workdir: str | pathlib.Path, holder: str) -> str:
  return (
      f'workdir {workdir} is in use by {holder}. Wait for it or stop it, or'
      ' choose another --workdir'
  )


def in_use(path: str | os.PathLike[str]) -> bool:
  """Return True if a process works on a run's directory; changes nothing."""
  if mirror := mirror_lib.of(path):
    return mirror.in_use()
  return locks.is_held(pathlib.Path(path))


@contextlib.contextmanager
def lock_folder(
    path: pathlib.Path, primary: bool = True, *, seconds: float | None = None
) -> Iterator[None]:
  """Create a folder that one process at a time may work on, and hold its lock.

  If a run in a store has lent the folder, its lease is held instead, and it is
  uploaded at the end. A folder of runs in a store has a lease, too.

  Args:
    path: The folder.
    primary: True in process 0; others change nothing. All processes call this
      together.
    seconds: Time to wait for another holder; None: _LOCK_SECONDS, because a
      process that is being stopped releases its lock only after it has saved.

  Raises:
    WorkdirError: If another process holds the lock for longer.
  """
  seconds = _LOCK_SECONDS if seconds is None else seconds
  lent = mirror_lib.of(path)
  if lent and lent.root == path:
    if primary:
      _take(lent, seconds)
    _meet(lent)
    lent.keep()
    path.mkdir(parents=True, exist_ok=True)
    yield
    lent.publish()
    return
  if not primary:
    yield
    return
  if (runs := mirror_lib.folder(path)) and runs.root == path:
    with contextlib.ExitStack() as stack:
      with _named(runs.url):
        stack.enter_context(runs.leased(seconds))
      yield
    return
  path.mkdir(parents=True, exist_ok=True)
  deadline = time.monotonic() + seconds
  while True:
    try:
      lock = _lock(path)
      break
    except WorkdirError:
      if time.monotonic() > deadline:
        raise
      time.sleep(0.1)
  try:
    yield
  finally:
    lock.release()


@dataclasses.dataclass
class Workdir(contextlib.AbstractContextManager):
  """An open run directory.

  As a context manager it releases the lock at the end; after an error before
  `keep` it restores the directory as it was before this start.
  """

  path: pathlib.Path
  resumed: bool  # The directory held this run already.
  _lock: locks.Lock | None = None  # None in all processes but the first.
  _found: found_lib.Found | None = None  # Earlier files; None after `keep`.
  _mirror: mirrored.Mirror | None = None  # None for a local directory.

  def keep(self) -> None:
    """Keep the files that this start has written; its first step begins next.

    From here on, signals are handled by the code that polls them.
    """
    preemption.note()
    self._found = None
    if self._mirror:
      self._mirror.keep()

  def close(self) -> None:
    """Keep the written files and release the lock."""
    try:
      self.keep()
      if self._mirror:
        self._mirror.publish(complete=True)
    finally:
      self._release()

  def _release(self) -> None:
    lock, self._lock = self._lock, None
    if lock is not None:
      lock.release()

  def put_back(self) -> None:
    """Restore the directory as it was before this start."""
    found, self._found = self._found, None
    if found is None:
      return
    found.put_back()
    self._release()
    found_lib.remove(found.new)
    if self._mirror:
      with contextlib.suppress(OSError):  # The lease expires by itself.
        self._mirror.release()

  def __exit__(self, kind: type[BaseException] | None, *_) -> None:
    if kind is not None:
      self.put_back()
    self.close()

  def record_start(self, **run: Any) -> dict[str, Any] | None:
    """Add this start to manifest.json and return its entry.

    Only process 0 does so; others return None. If a setting that influences
    numerics differs from the last start, a warning names it: the resumed run is
    correct, but not bit-equal. This opens the devices.

    Args:
      **run: JSON values that are added to `environment` in the entry.

    Raises:
      WorkdirError: If the run began with other `problems`.
    """
    if self._lock is None:
      return None
    check_problems(self.path, run.get('problems', {}))
    entry, manifest = environment() | run, self.path / run_files.MANIFEST
    starts = run_files.starts(self.path)
    last = starts[-1] if starts else entry
    for name in _NUMERICS:
      if name in last and last[name] != entry.get(name):
        logging.warning(
            f'{name} changed since the last start of {self.path}:'
            f' {last[name]} -> {entry.get(name)}; what follows is not bit-equal'
            ' to an uninterrupted run'
        )
    durable.write_json(manifest, [*starts, entry])
    return entry


def check_problems(
    path: str | os.PathLike[str], problems: Mapping[str, Any]
) -> None:
  """Refuse problems that differ from those with which a run began.

  Args:
    path: A local workdir.
    problems: See `agreement.problems`.

  Raises:
    WorkdirError: If they differ, in a split that earlier starts have used.
  """
  path, was, lines = pathlib.Path(path), {}, ''
  for start in run_files.starts(path):  # Not every start uses sealed problems.
    was |= start.get('problems', {})
  for split in was:
    if was[split] == problems.get(split, was[split]):
      continue
    before, after = was[split]['count'], problems[split]['count']
    lines += f'\n  {split}: {before:,} -> {after:,} problems'
    lines += (
        '; some of them, their answers or their order differ'
    ) * (before == after)
  if not lines:
    return
  remedy = 'choose another --workdir'
  if owner(path) in ('train', 'evolve'):
    remedy += f', or fork:\n  {_fork_command(path)}'
  raise WorkdirError(
      f'workdir {path} began with different problems:{lines}\nA run keeps its'
      ' problems. To continue it, restore its data set. To use the new one,'
      f' {remedy}'
  )


def _git_commit() -> str:
  """Return the commit of this checkout, with '-dirty' if it has changes."""
  root = pathlib.Path(__file__).resolve().parents[2]
  if not (root / '.git').exists() or shutil.which('git') is None:
    return ''
  command = 'git describe --always --dirty --abbrev=40'
  describe = subprocess.run(
      command.split(), cwd=root, capture_output=True, text=True, check=False
  )
  return describe.stdout.strip()


def environment() -> dict[str, Any]:
  """Return versions, devices, commit and command of this process."""
  versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
  import jax  # Imported here because most users of this module need no device.

  from evojax.runtime import devices

  device = devices.open_all()[0]
  return {
      'start': _now(),
      'command': shlex.join([sys.executable, *sys.argv]),
      'commit': _git_commit(),
      'host': socket.gethostname(),
      'python': platform.python_version(),
      **versions,
      'XLA_FLAGS': os.environ.get('XLA_FLAGS', ''),
      'platform': device.platform,
      'device': device.device_kind,
      'devices': jax.device_count(),
      'processes': jax.process_count(),
      'cpus': os.cpu_count(),
  }


def _make_directory(path: pathlib.Path) -> None:
  """Create the directory.

  Raises:
    WorkdirError: If the path cannot be a directory that this process writes.
  """
  problem = ''
  try:
    path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
      problem = (
          f'cannot be written by user {os.getuid()}; change its permissions or'
          ' pass another --workdir'
      )
  except FileExistsError:
    problem = 'is a file; pass a directory as --workdir'
  except OSError as error:
    problem = (
        f'cannot be created: {error.strerror}; pass a path that can be written'
        ' as --workdir'
    )
  if problem:
    raise WorkdirError(f'workdir {path} {problem}')


def _read_config(path: pathlib.Path) -> dict[str, Any]:
  """Return the saved config of a run.

  Raises:
    WorkdirError: If the file is not what evojax wrote.
  """
  try:
    return json.loads(path.read_text())['config']
  except (ValueError, KeyError, TypeError) as error:
    raise WorkdirError(
        f'{path} is not a config written by evojax ({error}); restore it or'
        ' choose another --workdir'
    ) from error


def owner(path: str | os.PathLike[str]) -> str:
  """Return the mode that created a workdir; '' if it holds no run."""
  path = pathlib.Path(path)
  try:
    mode = json.loads((path / run_files.CONFIG).read_text())['mode']
  except (OSError, ValueError, KeyError, TypeError):
    mode = ''
  found = (mode for name, mode in _TRACES.items() if (path / name).exists())
  return mode or next(found, '')


def check(
    path: str | os.PathLike[str], config: ml_collections.ConfigDict, mode: str
) -> bool:
  """Check that a mode may work in a directory; change nothing.

  Args:
    path: The directory, which need not exist.
    config: The resolved config.
    mode: See `open_workdir`.

  Returns:
    True if the directory already holds this run.

  Raises:
    WorkdirError: If the path cannot hold a run, or if it holds a run of another
      mode or with another config.
  """
  path = _local(path)
  saved = path / run_files.CONFIG
  if path.is_file():
    raise WorkdirError(
        f'workdir {path} is a file; pass a directory as --workdir'
    )
  _check_owner(path, mode)
  if not saved.exists():
    return False
  found = changes(path, config, mode)
  lines = ''.join(
      f'\n  {name}: {json.dumps(before)} -> {json.dumps(after)}'
      for name, (before, after) in found.items()
  )
  if lines:
    remedy = 'For another one, choose another --workdir'
    if mode in ('train', 'evolve'):
      remedy = (
          'To fork it, starting from its newest checkpoint with the new'
          f' config:\n  {_fork_command(path)}'
      )
    undo = 'To continue that run, undo the change.'
    if '-> "(absent)"' in lines:
      undo = 'An older evojax made that run; only that version continues it.'
    raise WorkdirError(
        f'workdir {path} holds a run with another config:{lines}\n{undo}'
        f' {remedy}'
    )
  return True


def changes(
    path: str | os.PathLike[str],
    config: ml_collections.ConfigDict,
    mode: str,
    *,
    ended: bool = False,
) -> dict[str, tuple[Any, Any]]:
  """Return the fields in which the config of a run differs from another one.

  Args:
    path: A local workdir.
    config: The resolved config that the run should have.
    mode: The mode that it should have, see `open_workdir`.
    ended: True if the run has ended, so that its results stay as they are: then
      those fields count, too, that a resumed run may change.

  Returns:
    Field -> (its value in the workdir, its value in `config`), as JSON; `mode`
    alone if another mode made the run. Empty if there is no run.

  Raises:
    WorkdirError: If the workdir's config cannot be read.
  """
  saved = pathlib.Path(path) / run_files.CONFIG
  if not saved.exists():
    return {}
  if (made_by := owner(path)) and made_by != mode:
    return {'mode': (made_by, mode)}
  new = config_lib.to_mapping(config)
  return config_changes.refused(_read_config(saved), new, mode, ended)


def _local(path: str | os.PathLike[str]) -> pathlib.Path:
  """Return the absolute path of a directory of this machine."""
  # Otherwise a URL would become a local folder named 'gs:', and the run would
  # be lost with this machine.
  if storage.is_remote(path):
    raise WorkdirError(
        f'workdir {path} is not a path of this machine; `evojax.run` and the'
        ' command line open it, see runtime/mirror.py'
    )
  found = pathlib.Path(os.path.abspath(os.path.expanduser(path)))
  try:
    str(found).encode()
  except UnicodeEncodeError as error:  # Checkpoints could not be read again.
    raise WorkdirError(
        f'workdir {str(found)!a} has bytes in its name that are not UTF-8;'
        ' rename it, or choose another --workdir'
    ) from error
  return found


def _check_owner(path: pathlib.Path, mode: str) -> None:
  """Raise WorkdirError if the run in a directory is of another mode."""
  made_by = owner(path)
  if made_by and made_by != mode:
    trials = ' and config.evolve.rounds > 0' * (made_by == 'evolve')
    raise WorkdirError(
        f'workdir {path} holds a run of --mode={made_by}: continue it with'
        f' --mode={made_by}{trials}, or give --mode={mode} a directory of its'
        f' own, such as --workdir={path}-{mode}'
    )
  if made_by and not (path / run_files.CONFIG).exists():
    raise WorkdirError(
        f'workdir {path} holds a run of --mode={made_by}, whose config.json is'
        ' missing: restore it from a copy, or choose another --workdir'
    )


def _take(mirror: mirrored.Mirror, seconds: float = 0.0) -> None:
  """Take the lease of a directory in a store, see `Mirror.begin`.

  Raises:
    WorkdirError: If another process holds it.
  """
  with _named(mirror.url):
    mirror.begin(seconds)


@contextlib.contextmanager
def _named(url: str) -> Iterator[None]:
  """Turn the error of a lease that is held into a WorkdirError with the URL."""
  try:
    yield
  except lease.LeaseError as error:
    raise WorkdirError(_in_use(url, error.holder)) from error


def _meet(mirror: mirrored.Mirror) -> None:
  """Let all processes of a run begin with the same files of a store.

  Raises:
    StorageError: If the processes see different files.
  """
  import jax  # Imported here because most users of this module need no device.

  if not jax.distributed.is_initialized():
    return
  from evojax.runtime import decisions

  lead = decisions.decide(mirror.lead)
  if jax.process_index():
    mirror.follow(lead)


def open_workdir(
    path: str | os.PathLike[str],
    config: ml_collections.ConfigDict,
    *,
    mode: str,
    primary: bool = True,
) -> Workdir:
  """Create or open the directory of a run, before a device is touched.

  Args:
    path: The directory.
    config: The resolved config.
    mode: The mode that works in it: train, evolve, aa, eval or warmstart.
    primary: True in process 0 of the run; others change nothing. All processes
      of a run in a store call this together.

  Returns:
    The open directory. In process 0, `resumed` is True if the directory held
    this run before; in others it may also be True because process 0 has just
    written the config.

  Raises:
    WorkdirError: If the path cannot be used, another process works on it, or
      it holds a run of another mode or with another config.
    durable.DiskError: If the disk is full.
  """
  path = _local(path)
  saved = path / run_files.CONFIG
  mirror = mirror_lib.of(path)
  if not primary:
    if mirror:
      _meet(mirror)
    return Workdir(path, resumed=saved.exists())
  if mirror:
    _take(mirror)
  new = found_lib.missing(path)
  try:
    _make_directory(path)
    lock = _lock(path)
  except BaseException:
    found_lib.remove(new)
    raise
  # Only under the lock: without it, another process may change the files.
  found = found_lib.Found(path, new)
  workdir = Workdir(path, saved.exists(), lock, found, mirror)
  preemption.put_back_with(workdir.put_back)
  try:
    check(path, config, mode)
    content = {
        'mode': mode,
        'hash': config_lib.sha256(config),
        'config': config_lib.to_mapping(config),
    }
    text = json.dumps(content, indent=2) + '\n'
    if not workdir.resumed or saved.read_text() != text:
      durable.write_atomic(saved, text.encode())
    if mirror:
      _meet(mirror)
  except BaseException:
    workdir.put_back()
    raise
  return workdir
