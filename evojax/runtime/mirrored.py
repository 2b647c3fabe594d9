"""A folder of an object store and its copy on this machine; see `mirror`."""

from collections.abc import Callable, Collection, Iterator, Mapping
import concurrent.futures
import contextlib
import pathlib
import shutil
import threading
import time
from typing import Any

from evojax.runtime import lease as lease_lib
from evojax.runtime import listing as listing_lib
from evojax.runtime import run_files
from evojax.runtime import storage
from evojax.runtime import stored_names as stored
from evojax.runtime import stored_rows

_SOON_SECONDS = 30.0
# Settled folders are scanned once in this many uploads, or in as many uploads
# as there are settled folders if that is more. On average, an upload scans at
# most one of them.
_LEAST_UPLOADS = 16
# Time in which a process that is being stopped saves and ends.
_RETURN_SECONDS = 60.0

_Files = dict[str, tuple[int, stored.Signature | None]]


class Mirror:
  """A folder of an object store and its copy on this machine.

  Attributes:
    url: URL of the folder.
    root: The copy.
    divided: True if other processes of the run have copies of their own.
    lent: Folders that other processes write, see `lend`.
  """

  def __init__(self, url: str, root: pathlib.Path):
    """Open the store without a request to it.

    Args:
      url: URL of the folder in the store.
      root: The local folder, which only this object uses.
    """
    self.url, self.root = url.rstrip('/'), root
    self._store = storage.Store(url)
    self._lock = threading.RLock()  # Checkpoints are published by a thread.
    self._lease: lease_lib.Lease | None = None
    self._publishes = False
    self.divided = False
    self.lent: set[str] = set()
    self._leader = 0  # Number of the lease of process 0, in other processes.
    self._wanted: Callable[[str], bool] = lambda name: True
    self._listing = listing_lib.Listing(self._store)
    # Files in the list: size, and the signature of the local copy if any.
    self._known: _Files = {}
    # Files of settled folders, which are not in `_known`, by folder. Names of
    # folders end with '/'.
    self._settled: dict[str, _Files] = {}
    self._settling: set[str] = set()  # Settled by the next upload.
    self._uploads = 0  # Since all folders were scanned.
    # Objects of other processes, which the next list names: size.
    self._added: dict[str, int] = {}
    self._rows = stored_rows.Rows(self._store, root / run_files.LEDGER)
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._soon: concurrent.futures.Future[None] | None = None
    self._next = 0.0  # Time of the next upload by that thread.

  def pull(self, wanted: Callable[[str], bool] | None = None) -> None:
    """Make the local folder equal to that of the store.

    Args:
      wanted: Takes a file's name; returns True if the file is needed. Default:
        the function of the last call; in the first call, all files are needed.

    Raises:
      storage.StorageError: If the store does not answer, the disk is full, or
        the folder holds files that no run has written.
    """
    self._wanted = wanted or self._wanted
    self._settled.clear()
    self._settling.clear()
    shutil.rmtree(self.root, ignore_errors=True)
    self._listing.read()
    there = self._store.list()
    if not self._listing.version:
      # Otherwise a run that other tools have copied there would not be seen.
      for name in there:
        if not name.startswith((f'{run_files.INBOX}/', '.')):
          raise storage.StorageError(
              f'{self.url} has {name} and no {stored.FILES}, which every run'
              ' has there: choose another --workdir. To continue a run of a'
              ' local directory in a store, start a new run there with'
              ' --fork_from=DIRECTORY'
          )
    # Files that were deleted from the store are no longer valid.
    self._known = {
        n: (size, None) for n, size in self._listing.files.items() if n in there
    }
    self.lent = stored.lent(there)
    for name in [n for n in self._known if stored.is_below(n, self.lent)]:
      del self._known[name]  # `lend` was killed between two of its steps.
    # The list does not name files that users have left in the inbox.
    self._known |= {n: (there[n]['size'], None) for n in stored.inbox(there)}
    small = (name for name in self._known if not stored.companion(name))
    names = [name for name in small if self._wanted(name)]
    self.root.parent.mkdir(parents=True, exist_ok=True)
    rows = stored.rows(there)
    if self._known or rows:
      self.root.mkdir()
    self._download(names)
    self._rows.pull(rows)

  def begin(self, seconds: float = 0.0) -> None:
    """Take the lease of the folder; download it again if it has changed.

    Args:
      seconds: Time to wait for a holder that renews its lease.

    Raises:
      lease.LeaseError: If another process holds it.
      storage.StorageError: If the store does not answer.
    """
    if self._lease is None:
      self._lease = lease_lib.take(self._store, seconds)
    self.refresh()

  def refresh(self) -> None:
    """Download the folder again if it has changed in the store.

    Raises:
      storage.StorageError: If the store does not answer.
    """
    version = listing_lib.read(self._store).version
    rows = stored.rows(self._store.list(stored.ROWS))
    if version != self._listing.version or len(rows) != len(self._rows):
      self.pull()

  def lead(self) -> dict[str, Any]:
    """Become the copy of process 0; return what `follow` needs."""
    assert self._lease is not None
    self.divided = True
    return {'lease': self._lease.number, 'files': self._listing.version}

  def follow(self, lead: Mapping[str, Any]) -> None:
    """Become the copy of a process other than 0.

    Another run may have written the folder since it was downloaded; then it is
    downloaded again.

    Args:
      lead: Result of `lead` in process 0, from the same start of the run.

    Raises:
      storage.StorageError: If the store does not answer, or shows this process
        other files than process 0.
    """
    self.divided, self._leader = True, lead['lease']
    if self._listing.version != lead['files']:
      self.pull()
    if self._listing.version != lead['files']:
      raise storage.StorageError(
          f'{self.url}: processes see different versions of the list of files.'
          ' Make sure that nothing else writes there, then start all processes'
          ' again'
      )

  def keep(self) -> None:
    """Upload new files from here on; before, nothing in the store changes.

    Raises:
      OSError: As `publish` does.
    """
    if self._publishes or self._lease is None:
      return
    self._publishes = True
    if not self._listing.version:  # Marks the folder as that of a run.
      self._listing.write({}, ())
    # A killed process may have left parts of a checkpoint, which are large, or
    # the lease of a folder that it was taking back.
    left = [
        name
        for name in self._store.list()
        if name not in self._known
        and not stored.is_below(name, self.lent)
        and (stored.is_of_checkpoint(name) or stored.is_of_loan(name))
    ]
    storage.in_parallel(self._store.remove, left)
    self.publish()

  def publish(self, *, complete: bool = False) -> None:
    """Upload new files; a reader sees all of them or none.

    Args:
      complete: Whether settled folders are scanned, too.

    Raises:
      lease.LeaseError: If another process has taken the folder over.
      storage.StorageError: If the store does not answer.
    """
    with self._lock:
      if self._publishes:
        due = max(_LEAST_UPLOADS, len(self._settled))
        if complete or self._uploads >= due:
          self._wake('')
        self._publish()

  def settle(self, path: pathlib.Path) -> None:
    """Mark a folder as settled: its files will not change any more.

    After the next upload, a change there is uploaded late: when the settled
    folders are scanned, see `_LEAST_UPLOADS`, and at the end.

    Args:
      path: The local folder.
    """
    with self._lock:
      if self._lease is not None:
        name = path.relative_to(self.root).as_posix() + '/'
        if name not in self._settled:
          self._settling.add(name)

  def wake(self, path: pathlib.Path) -> None:
    """Scan a folder in the next upload, even if it is settled."""
    with self._lock:
      self._wake(path.relative_to(self.root).as_posix() + '/')

  def _wake(self, name: str) -> None:
    """Scan the settled folders that contain a folder or lie in it; '': all."""
    if not name:
      self._uploads = 0
    for folder in list(self._settled):
      if folder.startswith(name) or name.startswith(folder):
        self._known |= self._settled.pop(folder)
        self._settling.add(folder)

  def publish_soon(self) -> None:
    """Start an upload in a thread, unless one was less than 30 s ago.

    Raises:
      OSError: As `publish` does, for the upload before this one.
    """
    if time.monotonic() < self._next:
      return
    if self._soon is not None:
      if not self._soon.done():
        return
      self._soon.result()
    self._next = time.monotonic() + _SOON_SECONDS
    self._soon = self._thread.submit(self.publish)

  def send(
      self,
      folder: pathlib.Path,
      names: Collection[str],
      target: pathlib.Path,
  ) -> dict[str, int]:
    """Upload files of a process other than 0.

    Args:
      folder: A local folder.
      names: Files to upload, relative to `folder`.
      target: The folder in which process 0 has files of the same kind; the
        objects are named as if the files were there.

    Returns:
      Size in bytes by object name, for `adding` in process 0.

    Raises:
      lease.LeaseError: If process 0 has lost its lease.
      storage.StorageError: If the store does not answer.
    """
    lease_lib.check(self._store, self._leader)
    # An older version that was downloaded differs from the store now.
    shutil.rmtree(target, ignore_errors=True)
    base = target.relative_to(self.root).as_posix()
    return storage.in_parallel(
        lambda name: self._store.upload(folder / name[len(base) + 1 :], name),
        [f'{base}/{name}' for name in names],
    )

  @contextlib.contextmanager
  def adding(self, sizes: Mapping[str, int]) -> Iterator[None]:
    """Return a context at whose end files of other processes enter the list.

    Within it, the caller writes the companion of these files, such as the
    SHA256SUMS of a checkpoint. Nothing is uploaded within it, because the new
    objects would seem to belong to an older companion.

    Args:
      sizes: Results of `send`.
    """
    with self._lock:
      yield
      self._added |= sizes
      self._known |= {name: (size, None) for name, size in sizes.items()}

  def published(self, path: pathlib.Path) -> dict[str, int]:
    """Upload new files; return the sizes of those of a folder, by name.

    Args:
      path: The local folder.

    Raises:
      OSError: As `publish` does.
    """
    with self._lock:
      below = path.relative_to(self.root).as_posix() + '/'
      self._wake(below)
      self.publish()
      self._wake(below)
      return {
          name: size
          for name, (size, _) in self._known.items()
          if name.startswith(below)
      }

  def learn(self, sizes: Mapping[str, int]) -> None:
    """Let `fetch` find files that process 0 has uploaded since the start.

    Args:
      sizes: Result of `published` in process 0.
    """
    with self._lock:
      for name, size in sizes.items():
        path, here = self.root / name, None
        if path.is_file() and path.stat().st_size == size:
          here = stored.signature(path)
        self._known[name] = size, here

  def fetch(
      self,
      path: pathlib.Path,
      wanted: Callable[[str], bool] = lambda name: True,
  ) -> None:
    """Download the files of a local folder that are still only in the store.

    Args:
      path: The folder.
      wanted: Takes a file's name relative to the folder; returns True if the
        file is needed.

    Raises:
      storage.StorageError: If the store does not answer, or the disk is full.
    """
    with self._lock:
      below = path.relative_to(self.root).as_posix() + '/'
      below = below.removeprefix('./')
      self._wake(below)
      names = [
          name
          for name, (_, here) in self._known.items()
          if here is None
          and name.startswith(below)
          and wanted(name.removeprefix(below))
      ]
      self._download(names)

  def lend(self, path: pathlib.Path, job: bytes) -> str:
    """Let a process on another machine write a folder, until `take_back`.

    Like a workdir, the folder then has a list and a lease of its own, which
    that process takes; until then, this process neither reads nor uploads its
    files. A folder that is already lent stays lent, with the new job.

    Args:
      path: The local folder, below the workdir.
      job: Content of an object that tells that process what to do.

    Returns:
      The URL of that object.

    Raises:
      OSError: As `publish` does.
    """
    assert self._publishes
    folder = path.relative_to(self.root).as_posix()
    with self._lock:
      if folder not in self.lent:
        sizes = self.published(path)
        self._settling.discard(f'{folder}/')
        for name in sizes:
          del self._known[name]
        if sizes:  # If killed between the writes, both lists exist; see `pull`.
          files = {name[len(folder) + 1 :]: n for name, n in sizes.items()}
          self._list_of(folder).write(files, ())
          self._listing.write({}, sizes)
        self.lent.add(folder)
        shutil.rmtree(path, ignore_errors=True)
    self._store.write(f'{folder}/{stored.JOB}', job)
    return f'{self.url}/{folder}/{stored.JOB}'

  def has_lent(self, path: pathlib.Path) -> bool:
    """Return True if a local folder is lent."""
    return path.relative_to(self.root).as_posix() in self.lent

  def is_there(self, path: pathlib.Path) -> bool:
    """Return True if the process that writes a lent folder has a file there.

    Args:
      path: The local path that the file would have.
    """
    folder = path.parent.relative_to(self.root).as_posix()
    return path.name in self._list_of(folder).files

  def peek(self, path: pathlib.Path) -> None:
    """Download the newest version of a file of a lent folder, if it exists.

    Args:
      path: The local path of the file, which is not uploaded from here.
    """
    with contextlib.suppress(FileNotFoundError):
      self._store.download(path.relative_to(self.root).as_posix(), path)

  def take_back(self, path: pathlib.Path) -> None:
    """Take over a lent folder with all files that its list names.

    Args:
      path: The local folder.

    Raises:
      lease.LeaseError: If the process that writes there does not end.
      OSError: As `publish` does.
    """
    folder = path.relative_to(self.root).as_posix()
    store = storage.Store(f'{self.url}/{folder}')
    lease = lease_lib.take(store, _RETURN_SECONDS)
    try:
      with self._lock:
        listed, there = listing_lib.read(store).files, store.list()
        names = {f'{folder}/{n}': listed[n] for n in listed if n in there}
        shutil.rmtree(path, ignore_errors=True)
        self._known |= {name: (size, None) for name, size in names.items()}
        self._download([n for n in names if not stored.companion(n)])
        self.lent.discard(folder)
        self.publish()
        # If killed before this line, the folder stays lent, with equal files.
        store.remove(stored.FILES)
    finally:
      lease.release()
    storage.in_parallel(store.remove, [n for n in there if n not in listed])

  def _list_of(self, folder: str) -> listing_lib.Listing:
    """Return the list of a lent folder."""
    return listing_lib.read(storage.Store(f'{self.url}/{folder}'))

  def in_use(self) -> bool:
    """Return True if another process works on the folder in the store."""
    return self._lease is None and lease_lib.is_held(self._store)

  def put(self, name: str) -> None:
    """Upload one file without the lease: a page, which no run reads."""
    self._store.upload(self.root / name, name)

  def release(self) -> None:
    """Release the lease; nothing is uploaded afterwards."""
    with self._lock:
      lease, self._lease, self._publishes = self._lease, None, False
      if lease is not None:
        lease.release()

  def _download(self, names: list[str]) -> None:
    """Download files of `_known`, and drop those that have been deleted."""

    def download(name: str) -> bool:
      try:
        self._store.download(name, self.root / name)
      except FileNotFoundError:  # The object has just been deleted.
        return False
      return True

    if names:
      size = sum(self._known[name][0] for name in names)
      storage.check_room(self.root.parent, size, self.url)
    for name, is_here in storage.in_parallel(download, names).items():
      if is_here:
        here = stored.signature(self.root / name)
        self._known[name] = self._known[name][0], here
      else:
        del self._known[name]

  def _publish(self) -> None:
    """Upload files, then their list, then rows; remove files deleted here."""
    assert self._lease is not None
    self._lease.check()
    local = stored.scan(self.root, self._is_left_out)
    changed = [n for n, s in local.items() if self._seen(n) != s]
    sizes = storage.in_parallel(self._upload, changed)
    found = {n: self._known[n] for n in local if n not in sizes}
    found |= {n: (size, local[n]) for n, size in sizes.items() if size >= 0}
    for name in self._added:
      found.setdefault(name, self._known[name])
    for name, (size, here) in self._known.items():
      if here is None and name not in local:
        companion = stored.companion(name)
        if companion in local and self._seen(companion) == local[companion]:
          found[name] = size, None
    listed = self._listing.files
    added = {
        name: size
        for name, (size, _) in found.items()
        if name in sizes or name in self._added or listed.get(name) != size
    }
    seen = self._known if self._settled else listed
    removed = [name for name in seen if name in listed and name not in found]
    if added or removed:
      # Uploads may have taken longer than a lease lasts.
      self._lease.check()
      self._listing.write(added, removed)
    self._added.clear()
    gone = [name for name in self._known if name not in found]
    self._known = found
    storage.in_parallel(self._store.remove, gone)
    self._uploads += 1
    self._settle()
    if (self.root / run_files.LEDGER).exists():
      self._rows.publish()
      self._pull_inbox()

  def _settle(self) -> None:
    """Move the files of folders that are settled out of `_known`."""
    if not self._settling:
      return
    settled = {folder: {} for folder in self._settling}
    for name in list(self._known):
      slash = name.find('/')
      while slash >= 0:
        if (folder := name[: slash + 1]) in settled:
          settled[folder][name] = self._known.pop(name)
          break
        slash = name.find('/', slash + 1)
    self._settled |= settled
    self._settling.clear()

  def _is_left_out(self, folder: str) -> bool:
    return folder in self.lent or f'{folder}/' in self._settled

  def _seen(self, name: str) -> stored.Signature | None:
    return self._known.get(name, (0, None))[1]

  def _upload(self, name: str) -> int:
    """Upload a file; return its size in bytes, or -1 if it is gone."""
    try:
      return self._store.upload(self.root / name, name)
    except FileNotFoundError:
      return -1

  def _pull_inbox(self) -> None:
    """Download new files of the inbox."""
    inbox = self._store.list(run_files.INBOX)
    new = [name for name in stored.inbox(inbox) if name not in self._known]
    self._known |= {name: (inbox[name]['size'], None) for name in new}
    self._download(new)
