"""An object store for tests: objects://BUCKET/..., without network.

It has what real stores have and no more: objects are read, written, listed and
deleted as a whole; there is no rename, no append and no lock, and a write may
ask that there be no object yet, which is true for one of several writers. All
lies in the directory that OBJECTS names, one file per object, so that processes
share it. A share OBJECTS_FAILING of all calls fails, half of them after they
have done what they were asked for.
"""

import os
import pathlib
import random
import tempfile
from typing import Any
import urllib.parse

import fsspec


class ObjectStore(fsspec.AbstractFileSystem):
  protocol = 'objects'
  calls = 0  # Of this process, those that failed included.

  def __init__(self, **kwargs: Any):
    super().__init__(**kwargs)
    self._root = pathlib.Path(os.environ['OBJECTS'])

  def cat_file(self, path, start=None, end=None, **kwargs):
    return self._flaky(lambda: self._file(path).read_bytes())

  def pipe_file(self, path, value, mode='overwrite', **kwargs):
    self._flaky(lambda: self._write(path, value, mode))

  def put_file(self, lpath, rpath, callback=None, mode='overwrite', **kwargs):
    data = pathlib.Path(lpath).read_bytes()
    self._flaky(lambda: self._write(rpath, data, mode))

  def get_file(self, rpath, lpath, callback=None, outfile=None, **kwargs):
    data = self._flaky(lambda: self._file(rpath).read_bytes())
    pathlib.Path(lpath).write_bytes(data)

  def rm_file(self, path):
    self._flaky(self._file(path).unlink)

  def find(self, path, maxdepth=None, withdirs=False, detail=False, **kwargs):
    names = self._flaky(lambda: os.listdir(self._root))
    found = {}
    for name in names:
      key = urllib.parse.unquote(name)
      if key.startswith(f'{path}/') and not name.startswith('.'):
        try:
          stat = self._file(key).stat()
        except FileNotFoundError:
          continue
        found[key] = {
            'name': key,
            'type': 'file',
            'size': stat.st_size,
            'etag': f'{stat.st_mtime_ns}',
        }
    return found if detail else sorted(found)

  def _refuse(self, *args, **kwargs):
    raise NotImplementedError('object stores cannot do this')

  open = ls = mv = copy = cp_file = makedirs = mkdir = _refuse

  def _file(self, path):
    return self._root / urllib.parse.quote(path, safe='')

  def _write(self, path, data, mode):
    handle, name = tempfile.mkstemp(prefix='.', dir=self._root)
    with os.fdopen(handle, 'wb') as file:
      file.write(data)
    if mode == 'overwrite':
      os.replace(name, self._file(path))
      return
    try:
      os.link(name, self._file(path))  # One of several processes is first.
    finally:
      os.unlink(name)

  def _flaky(self, call):
    ObjectStore.calls += 1
    fails = random.random() < float(os.environ.get('OBJECTS_FAILING', '0'))
    if fails and random.random() < 0.5:
      raise ConnectionError('the request was lost')
    found = call()
    if fails:
      raise TimeoutError('the answer was lost')
    return found


def make(root: pathlib.Path) -> dict[str, str]:
  """Make an empty store and a cache; return the variables of processes.

  Args:
    root: An existing directory for both.
  """
  (root / 'objects').mkdir()
  return {
      'OBJECTS': str(root / 'objects'),
      'XDG_CACHE_HOME': str(root / 'cache'),
  }


fsspec.register_implementation('objects', ObjectStore, clobber=True)
