"""Local copies of workdirs that are in an object store.

    with opened('gs://bucket/runs/grpo') as path:   # A folder on this machine.
      ...                                           # Files, as in any workdir.

A run reads and writes the files of the copy. `publish` uploads new files to the
store, under the same names, whenever a checkpoint is complete and whenever the
ledger has a new row. While other processes of this machine write to the copy,
such as the workers of arms, `publish_soon` uploads from time to time. The store
holds:

    <url>/...                  the files of the workdir
    <url>/.files.json, .files/ the names of the valid files, see `listing`
    <url>/ledger/000003.json   one object per row of ledger.jsonl
    <url>/.lease/000001.json   see `lease`

A process that is killed during an upload leaves objects that the list of files
does not name. Readers ignore them, so that a checkpoint, a harness or an arm is
complete or absent. Rows of the ledger are written after the list, each by a
write that never replaces an object, so that a second writer cannot add any.
Parameters are large and are downloaded only when they are read, see `fetch`;
all other files are downloaded at the start.

A folder of the workdir may be lent to a process on another machine, such as
that of an arm: the process has a copy of this folder alone, with a list of
files and a lease of its own, until the run takes it back, see `Mirror.lend`.

If a run has several processes, each has a copy. Process 0 holds the lease and
writes the run's files, their list and the rows. The others `follow` it: they
upload only their own shards of parameters, by `send`, and process 0 adds these
to the list, see `adding`.

Every upload scans the files of the copy. A run with many arms marks the folders
of finished ones as settled, see `settle`: they are scanned rarely, so that the
cost of an upload does not grow with the number of arms.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
from typing import BinaryIO

from absl import logging

from evojax.runtime import lease as lease_lib
from evojax.runtime import mirrored
from evojax.runtime import storage
from evojax.runtime import stored_names as stored


class Runs:
  """A folder of an object store with runs below it, which are only read.

  Attributes:
    url: URL of the folder.
    root: The copy.
  """

  def __init__(
      self, url: str, root: pathlib.Path, wanted: Callable[[str], bool]
  ):
    """Open the store without a request to it.

    Args:
      url: URL of the folder in the store.
      root: The local folder, which only this object uses.
      wanted: Takes a file's name in its run; returns True if it is needed.
    """
    self.url, self.root, self._wanted = url, root, wanted
    self._store = storage.Store(url)
    self._mirrors: dict[str, mirrored.Mirror] = {}
    self._lease: lease_lib.Lease | None = None

  def pull(self) -> None:
    """Download the runs that are there."""
    self.root.mkdir()
    there = self._store.list()
    runs = stored.lent(there)
    if stored.FILES in there:
      self.refresh('')
      runs = ()
    for name in runs:
      if not stored.is_below(name, runs):  # Skip arms that a run has lent.
        self.refresh(name)

  def refresh(self, name: str) -> None:
    """Download what has changed of the run with a name, '' for the folder."""
    if name in self._mirrors:
      self._mirrors[name].refresh()
    else:
      url = f'{self.url}/{name}'.rstrip('/')
      self._mirrors[name] = _open(url, self.root / name, self._wanted)

  def put(self, name: str) -> None:
    """Upload one file that belongs to no run, such as a table of the runs.

    Raises:
      lease.LeaseError: If another process has taken the folder over.
    """
    if self._lease is not None:
      self._lease.check()
    self._store.upload(self.root / name, name)

  @contextlib.contextmanager
  def leased(self, seconds: float) -> Iterator[None]:
    """Hold the lease of the folder, apart from those of its runs.

    Args:
      seconds: Time to wait for a holder that renews its lease.

    Raises:
      lease.LeaseError: If another process holds it.
    """
    self._lease = lease_lib.take(self._store, seconds)
    try:
      yield
    finally:
      with contextlib.suppress(OSError):  # The lease expires by itself.
        self._lease.release()
      self._lease = None

  def close(self) -> None:
    """Forget the runs."""
    for mirror in self._mirrors.values():
      _opened.remove(mirror)


# ------------------------------------------------------------------ by path

_opened: list[mirrored.Mirror] = []
_folders: list[Runs] = []  # See `opened_below`.
# URL by local folder; kept after `opened`, because later messages need it.
_urls: dict[str, str] = {}


def of(path: str | os.PathLike[str]) -> mirrored.Mirror | None:
  """Return the mirror that contains a local path; None if none does."""
  path = pathlib.Path(path)
  found = (m for m in _opened if path.is_relative_to(m.root))
  # A borrowed folder has a mirror of its own.
  return max(found, key=lambda m: len(m.root.parts), default=None)


def publish(path: pathlib.Path) -> None:
  """Upload new files of a path's workdir, if the workdir is in a store.

  Raises:
    OSError: As `Mirror.publish` does.
  """
  if found := of(path):
    found.wake(path)
    found.publish()


def settle(path: pathlib.Path) -> None:
  """Mark a folder as settled, if its workdir is in a store.

  See `Mirror.settle`.
  """
  if found := of(path):
    found.settle(path)


def publish_soon(path: pathlib.Path) -> None:
  """Upload in a thread, if a path's workdir is in a store.

  Raises:
    OSError: As `Mirror.publish_soon` does.
  """
  if found := of(path):
    found.publish_soon()


def fetch(
    path: pathlib.Path, wanted: Callable[[str], bool] = lambda name: True
) -> None:
  """Download the missing files of a folder, if its workdir is in a store.

  Args:
    path: The folder.
    wanted: See `Mirror.fetch`.

  Raises:
    storage.StorageError: As `Mirror.fetch` does.
  """
  if found := of(path):
    found.fetch(path, wanted)


@contextlib.contextmanager
def adding(path: pathlib.Path, sizes: Mapping[str, int]) -> Iterator[None]:
  """Add files that other processes have sent; see `Mirror.adding`."""
  found = divided(path)
  with found.adding(sizes) if found else contextlib.nullcontext():
    yield


def divided(path: pathlib.Path) -> mirrored.Mirror | None:
  """Return the mirror of a path of which each process of the run has a copy.

  None if the processes share the path's directory, or if there is only one.
  """
  found = of(path)
  return found if found and found.divided else None


def is_copy(path: pathlib.Path) -> bool:
  """Return True if a path is in a copy, which only this process can see."""
  return of(path) is not None or folder(path) is not None


def take_back(path: pathlib.Path) -> None:
  """Take back a folder of a workdir, if it is lent.

  Raises:
    OSError: As `Mirror.take_back` does.
  """
  if (found := of(path)) and found.has_lent(path):
    found.take_back(path)


def is_there(path: pathlib.Path) -> bool:
  """Return True if a file's folder is lent, and its new writer has the file.

  Raises:
    storage.StorageError: If the store does not answer.
  """
  found = of(path)
  return bool(found and found.has_lent(path.parent) and found.is_there(path))


def peek(path: pathlib.Path) -> None:
  """Download the newest version of a file, if its folder is lent.

  Raises:
    storage.StorageError: If the store does not answer.
  """
  if (found := of(path)) and found.has_lent(path.parent):
    found.peek(path)


def shown(text: str) -> str:
  """Return a text in which the URLs replace the paths of their local copies."""
  for root, url in _urls.items():
    text = text.replace(root, url)
  return text


def put(path: pathlib.Path) -> None:
  """Upload one file of a workdir or of a folder of workdirs in a store.

  Raises:
    storage.StorageError: If the store does not answer.
  """
  if found := of(path) or folder(path):
    found.put(path.relative_to(found.root).as_posix())


def refresh(path: pathlib.Path) -> None:
  """Download what has changed of a run below a folder of `opened_below`.

  Raises:
    storage.StorageError: If the store does not answer.
  """
  if found := folder(path):
    found.refresh(path.relative_to(found.root).as_posix())


def folder(path: pathlib.Path) -> Runs | None:
  """Return the folder of `opened_below` that contains a local path, if any."""
  return next((f for f in _folders if path.is_relative_to(f.root)), None)


@contextlib.contextmanager
def opened(
    path: str, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[str]:
  """Yield the local path of a workdir, which may be in a store.

  Args:
    path: A path, which is yielded unchanged, or a URL.
    wanted: Takes a file's name; returns True if the file is needed. A run that
      continues needs all files.

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
      # Some files, such as the page, are written after the run's end.
      mirror.publish(complete=True)
    finally:
      _release(mirror)


@contextlib.contextmanager
def borrowed(
    url: str,
    folder: str,
    files: Mapping[str, int],
    wanted: Callable[[str], bool] = lambda name: True,
    divided: bool = False,
) -> Iterator[pathlib.Path]:
  """Yield a copy of a workdir in a store, for a process that writes one folder.

  Args:
    url: URL of the workdir.
    folder: Name of the folder, which the run has lent.
    files: Size in bytes by name of the other files that this process reads.
    wanted: Takes a file's name in the folder; returns True if it is needed.
    divided: True if several processes, each with a copy, write it together.

  Raises:
    storage.StorageError: If the store cannot be used or does not answer.
  """
  with _scratch() as scratch:
    mirror = mirrored.Mirror(url, scratch / 'run')
    mirror.learn(files)
    mirror.divided = divided
    own = _open(f'{mirror.url}/{folder}', mirror.root / folder, wanted)
    _opened.append(mirror)
    _urls[str(mirror.root)] = mirror.url
    try:
      mirror.fetch(mirror.root, lambda name: not stored.companion(name))
      yield mirror.root
    finally:
      _opened.remove(mirror)
      _release(own)


@contextlib.contextmanager
def opened_below(
    path: str, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[str]:
  """Yield the local path of a folder of workdirs that are only read.

  `refresh` shows what their runs write meanwhile.

  Args:
    path: A path, which is yielded unchanged, or a URL.
    wanted: Takes a file's name in its workdir; returns True if it is needed.

  Raises:
    storage.StorageError: If the store cannot be used or does not answer.
  """
  if not storage.is_remote(path):
    yield path
    return
  with _scratch() as folder:
    found = Runs(path.rstrip('/'), folder / 'runs', wanted)
    _urls[str(found.root)] = found.url
    _folders.append(found)
    try:
      found.pull()
      yield str(found.root)
    finally:
      _folders.remove(found)
      found.close()


def _release(mirror: mirrored.Mirror) -> None:
  try:
    mirror.release()
  except OSError as error:
    logging.warning(
        'the lease of %s stays until it ends: %s', mirror.url, error
    )
  _opened.remove(mirror)


def _open(
    url: str, root: pathlib.Path, wanted: Callable[[str], bool]
) -> mirrored.Mirror:
  """Download a workdir and register its mirror, so that `of` finds it."""
  mirror = mirrored.Mirror(url, root)
  mirror.pull(wanted)
  _opened.append(mirror)
  _urls[str(root)] = mirror.url
  return mirror


@contextlib.contextmanager
def _scratch() -> Iterator[pathlib.Path]:
  """Yield a new folder for this process; remove those of dead processes."""
  base = storage.cache_folder() / 'runs'
  base.mkdir(parents=True, exist_ok=True)
  for old in base.iterdir():
    with contextlib.suppress(OSError), (old / '.lock').open('rb') as file:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      shutil.rmtree(old, ignore_errors=True)
  folder, held = _make(base)
  with held:
    try:
      yield folder
    finally:
      shutil.rmtree(folder, ignore_errors=True)


def _make(base: pathlib.Path) -> tuple[pathlib.Path, BinaryIO]:
  """Return a new folder and its file, which is locked."""
  while True:
    folder = pathlib.Path(tempfile.mkdtemp(dir=base))
    file = (folder / '.lock').open('wb')
    fcntl.flock(file, fcntl.LOCK_EX)
    if (folder / '.lock').exists():
      return folder, file
    file.close()  # Before it was locked, another process removed the folder.
