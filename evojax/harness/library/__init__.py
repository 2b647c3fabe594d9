"""Shipped functions that proposals and seed harnesses use, by file.

keep/NAME.py, weight/NAME.py and backtests/NAME.py are whole files of a harness;
reward/NAME.py holds parts that `parts.add` adds to a reward. What the
domains' seed harnesses share is in seed/ (their reward), diagnostics/ and
blind/ (diagnostics of a seed_harness and of a seed_blind); their library.json
names it, see `spec.read`. They are text here: they run in the box only.

Functions that come with the package, those of the domains' seed harnesses
included, are recognised by their text.
"""

import functools
import pathlib

_ROOT = pathlib.Path(__file__).parent
_DOMAINS = _ROOT.parents[1] / 'domains'
FOLDERS = ('keep', 'weight', 'reward', 'backtests')
SEEDS = ('seed', 'diagnostics', 'blind')


def names() -> tuple[str, ...]:
  """Return the files for proposals, sorted: 'keep/outcome_variance.py', ..."""
  return _files(FOLDERS)


def every() -> tuple[str, ...]:
  """Return these and the files that seed harnesses share, sorted."""
  return _files(FOLDERS + SEEDS)


def _files(folders: tuple[str, ...]) -> tuple[str, ...]:
  return tuple(
      sorted(
          path.relative_to(_ROOT).as_posix()
          for folder in folders
          for path in (_ROOT / folder).glob('[a-z]*.py')
      )
  )


def source(name: str) -> str:
  """Return the text of a shipped function.

  Raises:
    ValueError: If there is none of that name.
  """
  known = every()
  if name not in known:
    raise ValueError(f'the library has no {name!r}; it has {", ".join(known)}')
  return (_ROOT / name).read_text(encoding='utf-8')


def is_shipped(path: str, source: str) -> bool:
  """Return whether a source comes with the package for this kind of file.

  Args:
    path: Path in the harness: 'reward.py', 'diagnostics/groups.py'.
    source: Text of the file.
  """
  return (_kind(path), source) in _shipped()


@functools.cache
def _shipped() -> frozenset[tuple[str, str]]:
  """Return (kind, text) of all files of the library and of seed harnesses."""
  found = {(_kind(name), source(name)) for name in every()}
  for folder in ('seed_harness', 'seed_blind'):
    for root in _DOMAINS.glob(f'*/{folder}'):
      for path in root.glob('**/*.py'):
        kind = _kind(path.relative_to(root).as_posix())
        # `spec.read` normalises the end of a file in this way.
        found.add((kind, path.read_text().rstrip('\n') + '\n'))
  return frozenset(found)


def _kind(path: str) -> str:
  """Return 'reward', 'keep', 'weight', 'diagnostics' or 'backtests'."""
  folder = path.rpartition('/')[0] or path.removesuffix('.py')
  return {'seed': 'reward', 'blind': 'diagnostics'}.get(folder, folder)
