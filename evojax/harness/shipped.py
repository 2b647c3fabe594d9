"""Functions that come with the package, recognised by a hash of their text."""

import functools
import hashlib
import pathlib

import evojax
from evojax.harness import library


def source_sha256(source: str) -> str:
  """Return the hash of a source's text."""
  return hashlib.sha256(source.encode()).hexdigest()


def is_shipped(path: str, source: str) -> bool:
  """Return whether a source comes with the package for this kind of file.

  Args:
    path: Path in the harness: 'reward.py', 'diagnostics/groups.py'.
    source: Text of the file.
  """
  return (_kind(path), source_sha256(source)) in _shipped()


@functools.cache
def _shipped() -> frozenset[tuple[str, str]]:
  """Return (kind, hash) of all files of the library and of seed harnesses."""
  found = [(name, library.source(name)) for name in library.every()]
  domains = pathlib.Path(evojax.__file__).parent / 'domains'
  for folder in ('seed_harness', 'seed_blind'):
    for root in domains.glob(f'*/{folder}'):
      for path in root.glob('**/*.py'):
        name = path.relative_to(root).as_posix()
        # `spec.read` normalises the end of a file in this way.
        found.append((name, path.read_text().rstrip('\n') + '\n'))
  return frozenset((_kind(name), source_sha256(text)) for name, text in found)


def _kind(path: str) -> str:
  """Return 'reward', 'keep', 'weight', 'diagnostics' or 'backtests'."""
  folder = path.rpartition('/')[0] or path.removesuffix('.py')
  return {'seed': 'reward', 'blind': 'diagnostics'}.get(folder, folder)
