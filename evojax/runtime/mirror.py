"""A run whose workdir is in an object store works on a copy of it here.

    with opened('gs://bucket/runs/grpo') as path:   # A folder of this machine.
      ...                                           # Files, as in any workdir.

What a run reads and writes are files of the copy; `publish` sends what is new
to the store, under the same names, whenever a checkpoint is complete and
whenever the ledger has a new row:

    <url>/...                  the files of the workdir
    <url>/.files.json          the names of those that count, written last
    <url>/ledger/000003.json   one object per row of ledger.jsonl
    <url>/.lease/000001.json   see `lease`

A kill in the middle leaves objects that .files.json does not name. Readers
ignore them, so that a checkpoint, a harness or an arm is complete or absent.
Rows are written after .files.json, each by a write that only creates an object,
so that a second writer cannot add one. Parameters are large and are only
downloaded when they are read, see `fetch`; all other files are there from the
start.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import tempfile
import threading

from absl import logging

from evojax.runtime import lease as lease_lib
from evojax.runtime import storage

_FILES = '.files.json'
_LEDGER, _ROWS, _INBOX = 'ledger.jsonl', 'ledger', 'inbox'
# Folders that are not sent: servers read them here, see rollout/weights.py.
_HERE_ONLY = ('weights',)
# Large files that are rarely read, and a file that is replaced together with
# them and is always here.
_ON_DEMAND = (
    (re.compile(r'(.*checkpoints/step_\d+/)state/.+'), 'SHA256SUMS'),
    (re.compile(r'(.*/)?[^/]+\.safetensors'), 'config.json'),
)
_CHECKPOINT = re.compile(r'(.*/)?checkpoints/step_\d+/')

# Size, time in ns, inode: another one after every change.
_Signature = tuple[int, int, int]


def _companion(name: str) -> str | None:
  """Return the file that tells if one that is not here still counts."""
  for pattern, companion in _ON_DEMAND:
    if match := pattern.fullmatch(name):
      return (match[1] or '') + companion
  return None


class Mirror:
  """A folder of this machine and the folder of a store that it stands for."""

  def __init__(self, url: str, root: pathlib.Path):
    """Open the store; nothing is asked of it yet.

    Args:
      url: Of the folder in the store.
      root: The folder here, which is this object's alone.
    """
    self.url, self.root = url.rstrip('/'), root
    self._store = storage.Store(url)
    self._lock = threading.RLock()  # Checkpoints are published by a thread.
    self._lease: lease_lib.Lease | None = None
    self._publishes = False
    self._files, self._count = b'', 0
    # Files in .files.json: size, and the file here if there is one.
    self._known: dict[str, tuple[int, _Signature | None]] = {}
    self._rows: list[bytes] = []

  def pull(self, wanted: Callable[[str], bool] = lambda name: True) -> None:
    """Make the folder here equal to that of the store.

    Args:
      wanted: Whether a file is needed, by its name.

    Raises:
      storage.StorageError: If the store does not answer, the disk is full, or
        the folder holds what no run has written.
    """
    shutil.rmtree(self.root, ignore_errors=True)
    try:
      self._files = self._store.read(_FILES)
    except FileNotFoundError:
      self._files = b''
    there = self._store.list()
    if not self._files:
      # A run that was copied there by other means would look like none.
      for name in there:
        if not name.startswith((f'{_INBOX}/', '.')):
          raise storage.StorageError(
              f'{self.url} has {name} and no {_FILES}, which every run has'
              ' there: choose another --workdir. A run of a directory goes on'
              ' in a store as a new one, by --fork_from=DIRECTORY'
          )
    files = json.loads(self._files or b'{"count": 0, "files": {}}')
    self._count = files['count']
    # Files that somebody has deleted do not count any more.
    self._known = {
        n: (size, None) for n, size in files['files'].items() if n in there
    }
    # Users leave files there, which no run has written.
    self._known |= {n: (there[n]['size'], None) for n in _inbox(there)}
    names = [n for n in self._known if not _companion(n) and wanted(n)]
    self.root.parent.mkdir(parents=True, exist_ok=True)
    rows = _rows(there)
    if self._known or rows:
      self.root.mkdir()
    self._download(names)
    self._pull_rows(rows)

  def begin(self) -> None:
    """Take the lease of the folder; see again what it holds.

    Raises:
      lease.LeaseError: If another process holds it.
      storage.StorageError: If the store does not answer.
    """
    if self._lease is None:
      self._lease = lease_lib.Lease(self._store)
    try:
      found = self._store.read(_FILES)
    except FileNotFoundError:
      found = b''
    rows = _rows(self._store.list(_ROWS))
    if found != self._files or len(rows) != len(self._rows):
      self.pull()

  def keep(self) -> None:
    """Send what is new from here on; before, nothing in the store changes.

    Raises:
      OSError: As `publish` does.
    """
    if self._publishes or self._lease is None:
      return
    self._publishes = True
    if not self._files:  # From here on, the folder is that of a run.
      self._write_files({})
    # A kill may have left parts of a checkpoint, which are large.
    left = [
        name
        for name in self._store.list()
        if _CHECKPOINT.match(name) and name not in self._known
    ]
    storage.in_parallel(self._store.remove, left)
    self.publish()

  def publish(self) -> None:
    """Send what is new, whole or not at all as a reader sees it.

    Raises:
      lease.LeaseError: If another process has taken the folder over.
      storage.StorageError: If the store does not answer.
    """
    with self._lock:
      if self._publishes:
        self._publish()

  def fetch(self, path: pathlib.Path) -> None:
    """Download what belongs to a folder here and was left in the store.

    Raises:
      storage.StorageError: If the store does not answer, or the disk is full.
    """
    with self._lock:
      below = path.relative_to(self.root).as_posix() + '/'
      names = [
          name
          for name, (_, here) in self._known.items()
          if here is None and f'{name}/'.startswith(below.removeprefix('./'))
      ]
      self._download(names)

  def in_use(self) -> bool:
    """Tell if a process works on the folder in the store."""
    return self._lease is None and lease_lib.is_held(self._store)

  def put(self, name: str) -> None:
    """Send one file, whoever holds the lease: a page, which nobody reads."""
    self._store.upload(self.root / name, name)

  def release(self) -> None:
    """Give the lease back; nothing is sent any more."""
    with self._lock:
      lease, self._lease, self._publishes = self._lease, None, False
      if lease is not None:
        lease.release()

  def _download(self, names: list[str]) -> None:
    """Download files that are known."""

    def download(name: str) -> bool:
      try:
        self._store.download(name, self.root / name)
      except FileNotFoundError:  # It was deleted meanwhile.
        return False
      return True

    if names:
      size = sum(self._known[name][0] for name in names)
      storage.check_room(self.root.parent, size, self.url)
    for name, is_here in storage.in_parallel(download, names).items():
      if is_here:
        here = _signature(self.root / name)
        self._known[name] = self._known[name][0], here
      else:
        del self._known[name]

  def _pull_rows(self, names: list[str]) -> None:
    """Write the ledger from its rows.

    Raises:
      storage.StorageError: If one of them is missing.
    """
    for number, name in enumerate(names):
      if name != _row(number):
        raise storage.StorageError(
            f'{self.url} has {name} and no {_row(number)}: restore the row from'
            ' a copy, or delete those after it'
        )
    found = storage.in_parallel(self._store.read, names)
    self._rows = [found[name] for name in names]
    if names:
      (self.root / _LEDGER).write_bytes(b''.join(self._rows))

  def _publish(self) -> None:
    """Send files, then .files.json, then rows; delete what is gone."""
    assert self._lease is not None
    self._lease.check()
    local = _scan(self.root)
    changed = [n for n, s in local.items() if self._seen(n) != s]
    sizes = storage.in_parallel(self._upload, changed)
    found = {n: self._known[n] for n in local if n not in sizes}
    found |= {n: (size, local[n]) for n, size in sizes.items() if size >= 0}
    for name, (size, here) in self._known.items():
      companion = _companion(name)
      if here is None and name not in local and companion in local:
        if self._seen(companion) == local[companion]:
          found[name] = size, None
    if sizes or found.keys() != self._known.keys():
      # Uploads may have taken longer than a lease lasts.
      self._lease.check()
      self._write_files({name: size for name, (size, _) in found.items()})
    gone = [name for name in self._known if name not in found]
    self._known = found
    storage.in_parallel(self._store.remove, gone)
    self._publish_rows()

  def _write_files(self, sizes: Mapping[str, int]) -> None:
    """Write which files count; another text each time."""
    self._count += 1
    files = {'count': self._count, 'files': sizes}
    self._store.write(_FILES, json.dumps(files, sort_keys=True).encode())

  def _seen(self, name: str) -> _Signature | None:
    return self._known.get(name, (0, None))[1]

  def _upload(self, name: str) -> int:
    """Send a file; return its size, or -1 if it is gone."""
    try:
      return self._store.upload(self.root / name, name)
    except FileNotFoundError:
      return -1

  def _publish_rows(self) -> None:
    """Create an object for each row that has none; pull the user's inbox.

    Raises:
      lease.LeaseError: If another process has written one.
    """
    path = self.root / _LEDGER
    if not path.exists():
      return
    rows = path.read_bytes().splitlines(keepends=True)
    if rows and not rows[-1].endswith(b'\n'):  # It is being written.
      rows.pop()
    same = 0
    while same < min(len(rows), len(self._rows)):
      if rows[same] != self._rows[same]:
        break
      same += 1
    # Rows that were damaged are in a file of their own now.
    for number in reversed(range(same, len(self._rows))):
      self._store.remove(_row(number))
    del self._rows[same:]
    for number in range(same, len(rows)):
      if not self._store.create(_row(number), rows[number]):
        raise lease_lib.LeaseError(
            f'{self.url}/{_row(number)} was written by another process: stop'
            ' it, then run the same command again',
            'another process',
        )
      self._rows.append(rows[number])
    inbox = self._store.list(_INBOX)
    new = [name for name in _inbox(inbox) if name not in self._known]
    self._known |= {name: (inbox[name]['size'], None) for name in new}
    self._download(new)


def _row(number: int) -> str:
  return f'{_ROWS}/{number:06d}.json'


def _rows(names: Collection[str]) -> list[str]:
  return sorted(name for name in names if name.startswith(f'{_ROWS}/'))


def _inbox(names: Collection[str]) -> list[str]:
  """Return the files that a user or a run has left in the inbox."""
  below = (name for name in names if name.startswith(f'{_INBOX}/'))
  return [n for n in below if not any(map(_is_unfinished, n.split('/')))]


def _is_unfinished(name: str) -> bool:
  return name.startswith('.') or name.endswith('.tmp')


def _signature(path: pathlib.Path) -> _Signature:
  stat = path.stat()
  return stat.st_size, stat.st_mtime_ns, stat.st_ino


def _scan(root: pathlib.Path) -> dict[str, _Signature]:
  """Return the files that count: none that is being written, or hidden."""
  found = {}
  for folder, folders, files in os.walk(root):
    top = pathlib.Path(folder)
    folders[:] = [n for n in folders if not _is_unfinished(n)]
    if top == root:
      folders[:] = [n for n in folders if n not in _HERE_ONLY]
      files = [n for n in files if n != _LEDGER]
    for name in files:
      path = top / name
      if _is_unfinished(name) or path.is_symlink():
        continue
      with contextlib.suppress(FileNotFoundError):  # It has just been deleted.
        found[path.relative_to(root).as_posix()] = _signature(path)
  return found


# ------------------------------------------------------------------ by path

_opened: list[Mirror] = []
_urls: dict[str, str] = {}  # By folder; messages come after the end as well.


def of(path: str | os.PathLike[str]) -> Mirror | None:
  """Return the mirror that a path of this machine is in, if it is in one."""
  path = pathlib.Path(path)
  return next((m for m in _opened if path.is_relative_to(m.root)), None)


def publish(path: pathlib.Path) -> None:
  """Send what is new in the workdir of a path, if that is in a store.

  Raises:
    OSError: As `Mirror.publish` does.
  """
  if found := of(path):
    found.publish()


def fetch(path: pathlib.Path) -> None:
  """Download what belongs to a folder, if its workdir is in a store.

  Raises:
    storage.StorageError: As `Mirror.fetch` does.
  """
  if found := of(path):
    found.fetch(path)


def shown(text: str) -> str:
  """Return a text with the URLs of the folders that stand for them here."""
  for root, url in _urls.items():
    text = text.replace(root, url)
  return text


def put(path: pathlib.Path) -> None:
  """Send one file, if its workdir is in a store; see `Mirror.put`."""
  if found := of(path):
    found.put(path.relative_to(found.root).as_posix())


@contextlib.contextmanager
def opened(
    path: str, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[str]:
  """Yield the path of a workdir on this machine, which may be in a store.

  Args:
    path: A path, which is yielded, or a URL.
    wanted: Whether a file is needed, by its name; all are where a run goes on.

  Raises:
    storage.StorageError: If the store cannot be used or does not answer.
  """
  if not storage.is_remote(path):
    yield path
    return
  with _scratch() as folder:
    name = path.rstrip('/').rpartition('/')[2] or 'run'
    mirror = _open(path, folder / name, wanted)
    try:
      yield str(mirror.root)
      mirror.publish()  # A page, say, that was made after the run's end.
    finally:
      try:
        mirror.release()
      except OSError as error:
        logging.warning('the lease of %s stays until it ends: %s', path, error)
      _opened.remove(mirror)


@contextlib.contextmanager
def opened_below(
    path: str, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[str]:
  """Yield the path of a folder with workdirs, all of which are only read.

  Args:
    path: A path, which is yielded, or a URL.
    wanted: Whether a file is needed, by its name in its workdir.

  Raises:
    storage.StorageError: If the store cannot be used or does not answer.
  """
  if not storage.is_remote(path):
    yield path
    return
  with _scratch() as folder:
    root, url = folder / 'runs', path.rstrip('/')
    _urls[str(root)] = url
    mirrors = []
    for name in storage.Store(url).list():
      run, _, last = name.rpartition('/')
      if last == _FILES:
        mirrors.append(_open(f'{url}/{run}'.rstrip('/'), root / run, wanted))
    try:
      yield str(root)
    finally:
      for mirror in mirrors:
        _opened.remove(mirror)


def _open(
    url: str, root: pathlib.Path, wanted: Callable[[str], bool]
) -> Mirror:
  """Return a mirror that is found by its path from here on."""
  mirror = Mirror(url, root)
  mirror.pull(wanted)
  _opened.append(mirror)
  _urls[str(root)] = mirror.url
  return mirror


@contextlib.contextmanager
def _scratch() -> Iterator[pathlib.Path]:
  """Yield a folder of this process; remove those of processes that are gone."""
  base = storage.cache_folder() / 'runs'
  base.mkdir(parents=True, exist_ok=True)
  for old in base.iterdir():
    with contextlib.suppress(OSError), (old / '.lock').open('rb') as file:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      shutil.rmtree(old, ignore_errors=True)
  folder = pathlib.Path(tempfile.mkdtemp(dir=base))
  with (folder / '.lock').open('wb') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
      yield folder
    finally:
      shutil.rmtree(folder, ignore_errors=True)
