"""Files in the box: an agent's tree is read and written there, never outside.

A tree is sent as records: a line of JSON, followed by the number of bytes that
it gives. Links are named and never followed.
"""

import errno
import json
import os
import stat


def _write_tree(scratch, request):
  """Write the records of stdin below a folder."""
  del request
  with os.fdopen(0, 'rb', closefd=False) as records:
    while line := records.readline():
      record = json.loads(line)
      path = _at(scratch, record['path'])
      os.makedirs(os.path.dirname(path), exist_ok=True)
      data = records.read(record['size'])
      # The old file is removed instead of overwritten: it may have a second
      # name elsewhere, or be a pipe.
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
  """Write the records of a folder to stdout.

  Files and folders that their owner made unreadable are made readable, so that
  a tree cannot hide anything.
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
        record = {'path': os.path.relpath(path, top)}
        if stat.S_ISLNK(mode):
          kind, data = 'link', os.fsencode(os.readlink(path))
        elif stat.S_ISREG(mode):
          kind, record['executable'] = 'file', bool(mode & 0o100)
          if not mode & 0o400:
            os.chmod(path, stat.S_IMODE(mode) | 0o400)
          flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
          with os.fdopen(os.open(path, flags), 'rb') as file:
            data = file.read()
        else:
          continue
        record |= {'kind': kind, 'size': len(data)}
        out.write(json.dumps(record).encode() + b'\n' + data)
  return 0


def _at(scratch, path):
  """Return the location of a path in the tree; make its folders accessible.

  An agent may have put a link anywhere, even in place of the whole tree.

  Raises:
    OSError: If a link is on the way.
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


FOLDERS = ('tree', 'home', 'tmp')  # The folders in a box for repositories.
OPERATIONS = {
    'write': _write_tree,
    'read': _read_tree,
    'clear': lambda scratch, request: 0,  # The zygote clears afterwards.
}


def clear(folder):
  """Empty a directory of any depth, whatever its modes are."""
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
          # Moved to the top under a new name, so that no path becomes too long
          # and nothing recurses.
          moved += 1
          target = f'.{moved}.{os.urandom(8).hex()}'
          os.rename(child, target, src_dir_fd=inner, dst_dir_fd=top)
        else:
          os.unlink(child, dir_fd=inner)
      os.close(inner)
      os.rmdir(name, dir_fd=top)
  os.close(top)


def _is_real_directory(name, folder=None):
  """Return whether a path is a real directory; if so, make it accessible."""
  mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
  if stat.S_ISDIR(mode):
    os.chmod(name, 0o700, dir_fd=folder)
  return stat.S_ISDIR(mode)
