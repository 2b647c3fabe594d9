"""Object stores: gs://, s3:// and other schemes that fsspec supports.

    store = Store('gs://bucket/runs/grpo')
    store.write('metrics.jsonl', data)      # An older object is replaced.
    store.create('ledger/000003.json', row) # False if another one is there.
    path = cached('gs://bucket/models/qwen3-0p6b')

An object is complete or absent; there is no rename, no lock, no append and no
operation on a folder. Failed calls are repeated up to _ATTEMPTS times, with
exponential backoff.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
import concurrent.futures
import contextlib
import fcntl
import functools
import hashlib
import inspect
import json
import logging as logging_lib
import os
import pathlib
import random
import shutil
import time
from typing import Any

from absl import logging

from evojax.runtime import durable

_ATTEMPTS = 8
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0  # Seconds; doubled after each attempt.
_SILENT = 5.0  # Seconds without an answer after which a warning is logged.
_THREADS = 16
_AT_ONCE_BYTES = 1 << 23  # Files up to this size are sent from memory.
# Package that a scheme needs, and the command that installs it.
_GCS = 'gcsfs', 'pip install -r requirements/gcs.txt'
_EXTRAS = {
    'gs': _GCS,
    'gcs': _GCS,
    's3': ('s3fs', 'pip install --no-deps -r requirements/s3.txt'),
}
# Errors after which a call is not repeated, since this would not help: answers
# of the store, final errors, and bugs.
_ANSWERS = (FileNotFoundError, FileExistsError)
_FINAL = (
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ImportError,
)
_BUGS = (TypeError, AttributeError, NameError)
# Metadata that differs between versions of an object; a store has some of it.
_IDENTITY = (
    *('size', 'etag', 'ETag', 'md5Hash', 'crc32c', 'generation'),
    *('mtime', 'LastModified', 'last_modified', 'created'),
)


class StorageError(OSError):
  """A store is unusable or does not answer; the message names a remedy."""


def is_remote(path: str | os.PathLike[str]) -> bool:
  """Return True if a path is a URL, such as 'gs://bucket/x'."""
  return '://' in os.fspath(path)


def read(path: str | os.PathLike[str]) -> bytes:
  """Return the content of a file or of an object.

  Args:
    path: A path of this machine, or a URL.

  Raises:
    OSError: If it cannot be read.
  """
  if not is_remote(path):
    return pathlib.Path(path).read_bytes()
  folder, _, name = os.fspath(path).rpartition('/')
  return Store(folder).read(name)


def cache_folder() -> pathlib.Path:
  """Return the local folder for copies of objects."""
  # If the home directory is small, the user sets this standard variable.
  base = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  return pathlib.Path(base).expanduser().absolute() / 'evojax' / 'remote'


class Store:
  """The objects below a URL, by names relative to it, such as 'a/b.json'.

  Every method raises StorageError if the store does not answer.
  """

  def __init__(self, url: str):
    """Open the file system without a request to the store.

    Args:
      url: URL of a folder, 'gs://bucket/folder'.

    Raises:
      StorageError: If its scheme is unknown or needs a missing package.
    """
    self.url = url.rstrip('/')
    self._fs = _file_system(self.url)
    self._root = self._fs._strip_protocol(self.url)
    self._warned = False

  def read(self, name: str) -> bytes:
    """Return the content of an object.

    Raises:
      FileNotFoundError: If there is no such object.
    """
    return self._call(self._fs.cat_file, self._path(name))

  def read_json(self, name: str, key: str) -> tuple[bytes, dict[str, Any]]:
    """Return the content of an object, as bytes and as the JSON object in it.

    Any other content, such as the error page of a proxy, counts as no answer.

    Args:
      name: Name of the object.
      key: A key that the JSON object has.

    Raises:
      FileNotFoundError: If there is no such object.
    """

    def read() -> tuple[bytes, dict[str, Any]]:
      data = self._fs.cat_file(self._path(name))
      value = json.loads(data)
      if not isinstance(value, dict) or key not in value:
        raise ValueError(f'{name} holds no {key!r}')
      return data, value

    return self._call(read)

  def write(self, name: str, data: bytes) -> None:
    """Write an object, replacing an older one."""
    self._write(self._fs.pipe_file, self._path(name), data)

  def create(self, name: str, data: bytes) -> bool:
    """Write an object unless the name is taken.

    Returns:
      True if the object exists with this content, False if it has another
      content. If several processes write different contents, one gets True.
    """
    try:
      self._write(self._fs.pipe_file, self._path(name), data, mode='create')
    except FileExistsError:
      # An earlier attempt, whose answer was lost, may have written the object.
      return self.read(name) == data
    return True

  def upload(self, file: pathlib.Path, name: str) -> int:
    """Write a file's content as an object; return its size in bytes.

    Raises:
      FileNotFoundError: If there is no such file.
    """
    size = file.stat().st_size
    if size <= _AT_ONCE_BYTES:  # The file may grow: return the size sent.
      data = file.read_bytes()
      self.write(name, data)
      return len(data)
    self._write(self._fs.put_file, str(file), self._path(name))
    return size

  def download(self, name: str, file: pathlib.Path) -> None:
    """Write an object to a file, completely or not at all.

    Raises:
      FileNotFoundError: If there is no such object.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f'.{file.name}.part')
    try:
      self._call(self._fs.get_file, self._path(name), str(part))
      os.replace(part, file)
    finally:
      part.unlink(missing_ok=True)

  def remove(self, name: str) -> None:
    """Delete an object if it exists."""
    with contextlib.suppress(FileNotFoundError):
      self._call(self._fs.rm_file, self._path(name))

  def list(self, folder: str = '') -> dict[str, dict[str, Any]]:
    """Return the metadata of the objects below a folder, by object name.

    Raises:
      StorageError: If a name is not a path below the folder.
    """
    self._fs.invalidate_cache()
    try:
      found = self._call(
          self._fs.find, self._path(folder).rstrip('/'), detail=True
      )
    except FileNotFoundError:
      return {}
    start = len(self._root.rstrip('/')) + 1
    objects = {path[start:]: info for path, info in found.items()}
    for name in objects:
      # Such an object would be downloaded to a path outside the target folder.
      if '..' in name.split('/') or name.startswith('/'):
        raise StorageError(
            f'{self.url} holds an object {name!r}, which is no path below it:'
            ' delete or rename it'
        )
    # Consoles mark folders by objects whose names end in '/'.
    return {n: i for n, i in objects.items() if n and not n.endswith('/')}

  def _write(self, function: Callable[..., Any], *args: Any, **kwargs: Any):
    """Call a writing function; FileNotFoundError means a missing bucket."""
    try:
      self._call(function, *args, **kwargs)
    except FileNotFoundError as error:
      raise StorageError(
          f'{self.url}: there is no such bucket ({error}); make it, or correct'
          ' the URL'
      ) from error

  def _path(self, name: str) -> str:
    return f'{self._root}/{name}'

  def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any):
    """Call the store; repeat a call that fails, with exponential backoff."""
    began = time.monotonic()
    for attempt in range(_ATTEMPTS):
      try:
        return function(*args, **kwargs)
      except (*_ANSWERS, *_BUGS):
        raise
      # Each kind of store has its own error classes; not all are OSErrors.
      except Exception as error:
        if attempt == _ATTEMPTS - 1 or isinstance(error, _FINAL):
          raise StorageError(
              f'{self.url} does not answer: {type(error).__name__}: {error}.'
              ' See if the URL is right, if this machine reaches the store and'
              ' if its credentials may read and write there, then run the same'
              ' command again'
          ) from error
        if not self._warned and time.monotonic() - began > _SILENT:
          self._warned = True
          logging.warning(
              '%s does not answer (%s); trying again, %d times in all',
              self.url,
              type(error).__name__,
              _ATTEMPTS,
          )
      wait = min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT)
      time.sleep(wait * random.uniform(0.5, 1.5))


def _file_system(url: str) -> Any:
  """Return the fsspec file system of a URL.

  Raises:
    StorageError: If its scheme is unknown or needs a missing package.
  """
  import fsspec  # Imported here because most runs do not need it.

  scheme = url.partition('://')[0]
  package, command = _EXTRAS.get(scheme, ('a package', 'pip install it'))
  try:
    kind = fsspec.get_filesystem_class(scheme)
  except ImportError as error:
    raise StorageError(
        f'{url} needs {package}, which is an extra: {command} ({error})'
    ) from error
  except ValueError as error:
    raise StorageError(
        f'{url}: the scheme {scheme!r} is unknown; gs:// and s3:// are known,'
        ' and those of fsspec packages that are installed'
    ) from error
  if scheme in ('file', 'local'):
    raise StorageError(f'{url}: pass a folder of this machine as a plain path')
  try:
    inspect.signature(kind.__init__).bind(None)
  except TypeError as error:
    raise StorageError(
        f'{url}: the scheme {scheme!r} cannot be used ({error}); use gs:// or'
        ' s3://'
    ) from error
  # gcsfs logs a traceback for each of its own attempts.
  logging_lib.getLogger('gcsfs').setLevel(logging_lib.CRITICAL)
  # A cached listing would not show objects that other processes write.
  return kind(use_listings_cache=False, skip_instance_cache=True)


def in_parallel(
    function: Callable[[str], Any], names: Collection[str]
) -> dict[str, Any]:
  """Return function(name) by name; raise the first error after all calls."""
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
    return dict(zip(names, pool.map(function, names), strict=True))


def check_room(folder: pathlib.Path, size: int, what: str) -> None:
  """Raise an error if a folder's disk has no room for a download.

  Raises:
    StorageError: With `what` and the variable that moves the folder.
  """
  free = shutil.disk_usage(folder).free
  if free < size:
    raise StorageError(
        f'{what} needs {size:,} bytes in {folder}, {free:,} are free: free'
        ' space there, or set XDG_CACHE_HOME to a folder on a larger disk'
    )


# ---------------------------------------------------------------------- models


@functools.cache  # Within one process, a model does not change.
def cached(url: str, only: tuple[str, ...] | None = None) -> pathlib.Path:
  """Return a copy of a model's directory; download it once per machine.

  Before a copy is used again, every file is checked: its metadata against the
  store, its SHA-256 against the download. Subfolders are left out, because
  nothing reads them.

  Args:
    url: URL of a Hugging Face directory.
    only: Names of the files that the caller reads, if they are there; None:
      all. Other files of the copy are left as they are.

  Raises:
    StorageError: If the store does not answer or holds no such directory, or
      the disk has no room.
  """
  store = Store(url)
  name = hashlib.sha256(store.url.encode()).hexdigest()[:12]
  folder = cache_folder() / 'models' / f'{store.url.rpartition("/")[2]}-{name}'
  with _alone(folder):
    listed = {n: info for n, info in store.list().items() if '/' not in n}
    if not listed:
      raise StorageError(
          f'{url} holds no files: name a Hugging Face directory, and see if'
          ' this machine may read it'
      )
    _fill(store, folder, listed, lambda name: only is None or name in only)
  return folder


def _fill(
    store: Store,
    folder: pathlib.Path,
    listed: Mapping[str, dict[str, Any]],
    wanted: Callable[[str], bool],
) -> None:
  """Make the wanted files in a folder equal to the wanted objects."""
  listed = {name: info for name, info in listed.items() if wanted(name)}
  record = folder / '.remote.json'
  known: dict[str, Any] = {}
  with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
    known |= json.loads(record.read_text())  # Without it, all is downloaded.
  identity = {
      name: {k: str(info[k]) for k in _IDENTITY if k in info}
      for name, info in listed.items()
  }

  def digest(name: str) -> str:
    with (folder / name).open('rb') as file:
      return hashlib.file_digest(file, 'sha256').hexdigest()

  def is_here(name: str) -> bool:
    old = known.get(name, {})
    if old.get('identity') != identity[name] or not (folder / name).is_file():
      return False
    return digest(name) == old['sha256']

  here = in_parallel(is_here, list(listed))
  for path in folder.iterdir():
    mine = wanted(path.name) and not path.name.startswith('.')
    if mine and not here.get(path.name):
      path.unlink()
  missing = [name for name in listed if not here[name]]
  check_room(folder, sum(listed[n]['size'] for n in missing), store.url)

  def download(name: str) -> dict[str, Any]:
    store.download(name, folder / name)
    if (size := (folder / name).stat().st_size) != listed[name]['size']:
      raise StorageError(
          f'{store.url}/{name} has {listed[name]["size"]:,} bytes, {size:,}'
          ' arrived: run the same command again'
      )
    return {'identity': identity[name], 'sha256': digest(name)}

  # The next caller that wants the other files checks them.
  found = {n: known[n] for n in known if here.get(n) or not wanted(n)}
  found |= in_parallel(download, missing)
  if missing or found.keys() != known.keys():
    durable.write_json(record, found, sort_keys=True)


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
  """Create a folder and lock it; wait while another process holds the lock."""
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / '.lock').open('w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield
