"""Names of the objects of a workdir in a store; see `mirror`."""

from collections.abc import Callable, Collection
import contextlib
import os
import pathlib
import re

from evojax.runtime import run_files

JOB = '.job.json'  # The job of a process that writes a lent folder.
FILES, SEGMENTS = '.files.json', '.files'  # See `listing`.
ROWS = 'ledger'  # The rows of the ledger, one object each.
# Folders that are not uploaded, because only servers on this machine read them,
# see rollout/weights.py.
_HERE_ONLY = ('weights',)
# Large files that are rarely read, each with a companion: a file that is always
# downloaded and is replaced together with the large file.
_ON_DEMAND = (
    (re.compile(r'(.*checkpoints/step_\d+/)state/.+'), 'SHA256SUMS'),
    (re.compile(r'(.*/)?[^/]+\.safetensors'), 'config.json'),
)
_LOAN = re.compile(r'.+/\.(files/|files\.json$|lease/|job\.json$)')
_CHECKPOINT = re.compile(r'(.*/)?checkpoints/step_\d+/')
# Files of a run that processes other than 0 read, too.
_FOR_ALL = re.compile(
    r'config\.json|harness/.+|policy(_\w+)?/.+|(.*/)?checkpoints/.+'
)

# Size, modification time in ns, inode: differs after every change of a file.
Signature = tuple[int, int, int]


def companion(name: str) -> str | None:
  """Return the companion of a file that is downloaded on demand, else None.

  While the companion is unchanged, a copy in the store is still valid.
  """
  for pattern, other in _ON_DEMAND:
    if match := pattern.fullmatch(name):
      return (match[1] or '') + other
  return None


def is_of_checkpoint(name: str) -> bool:
  """Return True if an object belongs to a checkpoint."""
  return _CHECKPOINT.match(name) is not None


def is_for_all(name: str) -> bool:
  """Return True if processes other than 0 may read a file of the run."""
  return _FOR_ALL.fullmatch(name) is not None


def row(number: int) -> str:
  """Return the name of a row of the ledger."""
  return f'{ROWS}/{number:06d}.json'


def segment(number: int) -> str:
  """Return the name of a segment of the list of files."""
  return f'{SEGMENTS}/{number:06d}.json'


def segment_number(name: str) -> int:
  """Return the number of a segment."""
  return int(name.rpartition('/')[2].removesuffix('.json'))


def rows(names: Collection[str]) -> list[str]:
  """Return the names of rows, in the order of the ledger."""
  return sorted(name for name in names if name.startswith(f'{ROWS}/'))


def inbox(names: Collection[str]) -> list[str]:
  """Return the complete files that a user or a run has left in the inbox."""
  below = (name for name in names if name.startswith(f'{run_files.INBOX}/'))
  return [n for n in below if not any(map(_is_unfinished, n.split('/')))]


def _is_unfinished(name: str) -> bool:
  return name.startswith('.') or name.endswith('.tmp')


def signature(path: pathlib.Path) -> Signature:
  """Return the signature of a local file."""
  return _signature(path.stat())


def _signature(stat: os.stat_result) -> Signature:
  return stat.st_size, stat.st_mtime_ns, stat.st_ino


def lent(names: Collection[str]) -> set[str]:
  """Return the folders that have a list of their own, see `Mirror.lend`."""
  end = f'/{FILES}'
  return {name.removesuffix(end) for name in names if name.endswith(end)}


def is_of_loan(name: str) -> bool:
  """Return True if an object is the list, lease or job of a lent folder."""
  return _LOAN.match(name) is not None


def is_below(name: str, folders: Collection[str]) -> bool:
  """Return True if a file or folder lies below one of some folders."""
  return any(name.startswith(f'{folder}/') for folder in folders)


def scan(
    root: pathlib.Path, left_out: Callable[[str], bool] = lambda folder: False
) -> dict[str, Signature]:
  """Return the files to upload, without hidden or unfinished ones.

  Args:
    root: The local folder.
    left_out: Takes the name of a folder below it; returns True if its files are
      not wanted.
  """
  # Every upload scans, and pathlib would take three times as long.
  found, folders = {}, ['']
  while folders:
    below = folders.pop()
    with contextlib.suppress(FileNotFoundError):  # Deleted just now.
      with os.scandir(os.path.join(root, below)) as entries:
        for entry in entries:
          name = below + entry.name
          if _is_unfinished(entry.name) or entry.is_symlink():
            continue
          if entry.is_dir():
            if name not in _HERE_ONLY and not left_out(name):
              folders.append(f'{name}/')
          elif name != run_files.LEDGER:
            with contextlib.suppress(FileNotFoundError):
              found[name] = _signature(entry.stat())
  return found
