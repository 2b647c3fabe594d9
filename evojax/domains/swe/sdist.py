"""Source distributions as trees: an archive is read, never unpacked."""

import hashlib
import io
import pathlib
import tarfile

_MOST_BYTES = 64 << 20  # Total size of all files.
_MOST_FILES = 10_000


def read(path: str | pathlib.Path, sha256: str) -> tuple[str, dict[str, bytes]]:
  """Return the name and the files of a pinned source distribution.

  Args:
    path: A .tar.gz, as from `pip download --no-binary :all: NAME==VERSION`.
    sha256: Its hash in hex, as in a requirements file.

  Returns:
    'name-version', and the files below the archive's folder of that name.

  Raises:
    ValueError: If it has another hash, is not such an archive, is too large, or
      has files outside its folder.
  """
  path = pathlib.Path(path)
  data = path.read_bytes()
  found = hashlib.sha256(data).hexdigest()
  if found != sha256.removeprefix('sha256:').lower():
    raise ValueError(f'{path.name} has the hash sha256:{found}, not {sha256}')
  members = read_tar(data, path.name)
  tops = {name.partition('/')[0] for name in members}
  if len(tops) != 1 or any('/' not in name for name in members):
    raise ValueError(
        f'{path.name} is not a source distribution: its files must be in one'
        f' folder, not in {sorted(tops)[:5]}'
    )
  (top,) = tops
  return top, {
      name.partition('/')[2]: data
      for name, data in members.items()
      if '.egg-info/' not in name
  }


def read_tar(data: bytes, name: str) -> dict[str, bytes]:
  """Return the regular files of a tar archive, without links and devices.

  Args:
    data: The archive, compressed or not.
    name: Name of the archive in messages.

  Raises:
    ValueError: If it is not a tar archive, is too large, has a file twice, or
      has a path that leads out of it.
  """
  found, size = {}, 0
  try:
    with tarfile.open(fileobj=io.BytesIO(data), mode='r|*') as archive:
      for member in archive:
        if not member.isreg():
          continue
        path = member.name.removeprefix('./')
        parts = pathlib.PurePosixPath(path).parts
        if path.startswith('/') or '..' in parts or not parts or '\0' in path:
          raise ValueError(f'{name}: {member.name!r} leads out of the archive')
        path = '/'.join(parts)
        size += member.size
        if path in found:
          raise ValueError(f'{name}: {path!r} occurs in it twice')
        check_size(name, len(found) + 1, size)
        found[path] = archive.extractfile(member).read()
  except (tarfile.TarError, EOFError, OSError) as error:
    raise ValueError(f'{name} is not a tar archive: {error}') from error
  return found


def check_size(name: str, files: int, size: int) -> None:
  """Refuse a tree with too many files, or too many bytes in all.

  Raises:
    ValueError: If it is too large.
  """
  if size > _MOST_BYTES or files > _MOST_FILES:
    raise ValueError(
        f'{name} has more than {_MOST_BYTES} bytes or {_MOST_FILES} files;'
        ' leave out what tests do not need'
    )
