"""An agent's tree, handled inside of the box: nobody outside touches it.

A tree travels as records: a line of JSON and as many bytes as it says. Links
are named and never followed.
"""

import errno
import json
import os
import stat


def _write_tree(scratch, request):
  """Writes the records of stdin below a folder."""
  del request
  with os.fdopen(0, 'rb', closefd=False) as records:
    while line := records.readline():
      record = json.loads(line)
      path = _at(scratch, record['path'])
      os.makedirs(os.path.dirname(path), exist_ok=True)
      data = records.read(record['size'])
      # A new one: what was there may have another name, or be no file.
      if os.path.lexists(path):
        os.unlink(path)
      descriptor = os.open(
          path,
          os.O_WRONLY | os.O_CREAT | os.O_EXCL,
          0o755 if record['executable'] else 0o644,
      )
      with os.fdopen(descriptor, 'wb') as file:
        file.write(data)
  return 0


def _read_tree(scratch, request):
  """Writes the records of a folder to stdout.

  What its owner shut is opened: nothing is hidden from whoever reads.
  """
  top = _at(scratch, request['folder'])
  with os.fdopen(1, 'wb', closefd=False) as out:
    for folder, folders, files in os.walk(top, onerror=_raise):
      folders.sort()
      for name in folders:
        _is_real_directory(os.path.join(folder, name))
      for name in sorted((*files, *folders)):
        path = os.path.join(folder, name)
        mode = os.lstat(path).st_mode
        record = {'path': os.path.relpath(path, top), 'size': 0}
        data = b''
        if stat.S_ISLNK(mode):
          record['kind'], data = 'link', os.fsencode(os.readlink(path))
        elif stat.S_ISREG(mode):
          record['kind'] = 'file'
          record['executable'] = bool(mode & 0o100)
          if not mode & 0o400:
            os.chmod(path, stat.S_IMODE(mode) | 0o400)
          flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
          with os.fdopen(os.open(path, flags), 'rb') as file:
            data = file.read()
        else:
          continue
        record['size'] = len(data)
        out.write(json.dumps(record).encode() + b'\n' + data)
  return 0


def _at(scratch, path):
  """Where a path of the tree lies; what is shut on the way is opened.

  Whoever worked there may have put a link anywhere, the tree's own place too.

  Raises:
    OSError: If there is one.
  """
  found = scratch
  for part in (None, 'tree', *path.split('/')):
    found = os.path.join(found, part) if part else found
    if os.path.islink(found):
      raise OSError(errno.ELOOP, 'a link in the way', found)
    shut = not os.access(found, os.R_OK | os.W_OK | os.X_OK)
    if shut and os.path.isdir(found):
      os.chmod(found, 0o700)
  return found


def _raise(error):
  raise error


FOLDERS = ('tree', 'home', 'tmp')  # Of a box for repositories.
OPERATIONS = {'write': _write_tree, 'read': _read_tree}


def clear(folder):
  """Empties a directory, however deep it is and whatever its modes are."""
  if not os.listdir(folder):
    return
  top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
  moved = 0
  while names := os.listdir(top):
    for name in names:
      if not _is_real_directory(name, top):
        os.unlink(name, dir_fd=top)
        continue
      flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
      inner = os.open(name, flags, dir_fd=top)
      for child in os.listdir(inner):
        if _is_real_directory(child, inner):
          # Up here, so that no path becomes long: of a name nobody has.
          moved += 1
          target = f'.{moved}.{os.urandom(8).hex()}'
          os.rename(child, target, src_dir_fd=inner, dst_dir_fd=top)
        else:
          os.unlink(child, dir_fd=inner)
      os.close(inner)
      os.rmdir(name, dir_fd=top)
  os.close(top)


def _is_real_directory(name, folder=None):
  """Whether it is one and no link; if so, it can be emptied afterwards."""
  mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
  if stat.S_ISDIR(mode):
    os.chmod(name, 0o700, dir_fd=folder)
  return stat.S_ISDIR(mode)
