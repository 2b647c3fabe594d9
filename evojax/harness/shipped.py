"""Functions that come with the package: recognised by what they say."""

import functools
import hashlib
import pathlib

import evojax
from evojax.harness import library


def source_sha256(source: str) -> str:
  """Hash of a source's text."""
  return hashlib.sha256(source.encode()).hexdigest()


def is_shipped(path: str, source: str) -> bool:
  """Whether a source comes with the package, for such a file of a harness.

  Args:
    path: In the harness: 'reward.py', 'diagnostics/groups.py'.
    source: Its text.
  """
  return (_kind(path), source_sha256(source)) in _shipped()


@functools.cache
def _shipped() -> frozenset[tuple[str, str]]:
  """(kind, hash) of the library's and of the domains' seed harnesses' files."""
  found = [(name, library.source(name)) for name in library.every()]
  domains = pathlib.Path(evojax.__file__).parent / 'domains'
  for folder in ('seed_harness', 'seed_blind'):
    for root in domains.glob(f'*/{folder}'):
      for path in root.glob('**/*.py'):
        name = path.relative_to(root).as_posix()
        # As `spec` reads it.
        found.append((name, path.read_text().rstrip('\n') + '\n'))
  return frozenset((_kind(name), source_sha256(text)) for name, text in found)


def _kind(path: str) -> str:
  """'reward', 'keep', 'weight', 'diagnostics' or 'backtests'."""
  folder = path.rpartition('/')[0] or path.removesuffix('.py')
  return {'seed': 'reward', 'blind': 'diagnostics'}.get(folder, folder)
