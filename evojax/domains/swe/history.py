"""A git repository made of snapshots, as the files of its `.git` folder.

Git is not run here, so a history is a function of its snapshots. All objects go
into one pack with its index, and the pack only holds what the branches reach.
For the formats see https://git-scm.com/docs: gitformat-pack,
-index.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import datetime
import hashlib
import struct
import zlib

from evojax.domains.swe import trees

_AUTHOR = 'A. Maintainer <maintainer@example.org>'
_KINDS = {'commit': 1, 'tree': 2, 'blob': 3}
_FILE, _FOLDER = '100644', '40000'
_CONFIG = b"""[core]
\trepositoryformatversion = 0
\tfilemode = false
\tbare = false
"""


@dataclasses.dataclass(frozen=True)
class Commit:
  """One snapshot with its message."""

  message: str
  date: datetime.date
  tree: trees.Tree


@dataclasses.dataclass(frozen=True)
class Repository:
  """A history that is ready to be written to disk."""

  files: Mapping[str, bytes]  # Path in the tree, starting with '.git/'.
  head: str  # The commit to check out.
  ids: tuple[str, ...]  # Ids of all commits, oldest first.


def make(commits: Sequence[Commit], ahead: int = 0) -> Repository:
  """Return a repository with a linear history of commits.

  Args:
    commits: The commits, oldest first.
    ahead: Number of the last commits that are on `origin/main` but not yet on
      `main`, which is checked out.

  Raises:
    ValueError: If no commit is left to check out.
  """
  if not 0 <= ahead < len(commits):
    raise ValueError(f'{ahead=} of {len(commits)} commits leaves none for main')
  objects: dict[str, tuple[str, bytes]] = {}
  ids: list[str] = []
  for commit in commits:
    top = _add_tree(objects, commit.tree)
    noon = datetime.datetime.combine(
        commit.date, datetime.time(12), datetime.UTC
    )
    who = f'{_AUTHOR} {int(noon.timestamp())} +0000'
    parent = f'parent {ids[-1]}\n' if ids else ''
    text = (
        f'tree {top}\n{parent}author {who}\ncommitter {who}\n\n'
        f'{commit.message}\n'
    )
    ids.append(_add(objects, 'commit', text.encode()))
  pack, index = _pack(objects)
  name = pack[-20:].hex()
  head = ids[-1 - ahead]
  files = {
      'HEAD': b'ref: refs/heads/main\n',
      'config': _CONFIG,
      'index': _index(commits[-1 - ahead].tree),
      'refs/heads/main': f'{head}\n'.encode(),
      f'objects/pack/pack-{name}.pack': pack,
      f'objects/pack/pack-{name}.idx': index,
  }
  if ahead:
    files['refs/remotes/origin/main'] = f'{ids[-1]}\n'.encode()
  files = {f'.git/{path}': data for path, data in files.items()}
  return Repository(files, head, tuple(ids))


def _add(objects: dict[str, tuple[str, bytes]], kind: str, data: bytes) -> str:
  """Add an object; return its id."""
  name = _id(kind, data)
  objects[name] = kind, data
  return name


def _id(kind: str, data: bytes) -> str:
  header = f'{kind} {len(data)}\0'.encode()
  return hashlib.sha1(header + data, usedforsecurity=False).hexdigest()


def _add_tree(objects: dict[str, tuple[str, bytes]], tree: trees.Tree) -> str:
  """Add the files of a folder, recursively; return the tree's id."""
  entries, folders = [], {}
  for path, data in tree.items():
    name, _, rest = path.partition('/')
    if rest:
      folders.setdefault(name, {})[rest] = data
    else:
      entries.append((_FILE, name, _add(objects, 'blob', data)))
  for name, below in folders.items():
    entries.append((_FOLDER, name, _add_tree(objects, below)))
  # Git sorts a folder as if its name ended in a slash.
  entries.sort(key=lambda e: (e[1] + '/' * (e[0] == _FOLDER)).encode())
  rows = (
      f'{mode} {name}\0'.encode() + bytes.fromhex(identity)
      for mode, name, identity in entries
  )
  return _add(objects, 'tree', b''.join(rows))


def _pack(objects: Mapping[str, tuple[str, bytes]]) -> tuple[bytes, bytes]:
  """Return a pack of all objects, and its index."""
  pack = bytearray(struct.pack('>4sII', b'PACK', 2, len(objects)))
  places = {}
  for name in sorted(objects):
    kind, data = objects[name]
    start, size = len(pack), len(data)
    byte = _KINDS[kind] << 4 | size & 15
    size >>= 4
    while size:
      pack.append(byte | 0x80)
      byte, size = size & 0x7F, size >> 7
    pack.append(byte)
    pack += zlib.compress(data)
    places[name] = start, zlib.crc32(pack[start:])
  pack += _sha1(bytes(pack))
  names = [bytes.fromhex(name) for name in places]
  index = bytearray(b'\xfftOc' + struct.pack('>I', 2))
  for first in range(256):
    index += struct.pack('>I', sum(name[0] <= first for name in names))
  index += b''.join(names)
  index += b''.join(struct.pack('>I', check) for _, check in places.values())
  index += b''.join(struct.pack('>I', start) for start, _ in places.values())
  index += pack[-20:]
  index += _sha1(bytes(index))
  return bytes(pack), bytes(index)


def _index(tree: trees.Tree) -> bytes:
  """Return the index file of a tree that was just checked out.

  Sizes and times of files are not known yet, so that git compares contents.
  """
  rows = (_index_row(path, tree[path]) for path in _sorted(tree))
  data = struct.pack('>4sII', b'DIRC', 2, len(tree)) + b''.join(rows)
  return data + _sha1(data)


def _index_row(path: str, data: bytes) -> bytes:
  name = path.encode()
  row = struct.pack('>6I', 0, 0, 0, 0, 0, 0)
  row += struct.pack('>4I', 0o100644, 0, 0, 0)
  row += bytes.fromhex(_id('blob', data))
  row += struct.pack('>H', min(len(name), 0xFFF)) + name
  return row + bytes(8 - len(row) % 8)


def _sorted(paths: Iterable[str]) -> list[str]:
  return sorted(paths, key=str.encode)


def _sha1(data: bytes) -> bytes:
  return hashlib.sha1(data, usedforsecurity=False).digest()
