"""Shipped functions that proposals and seed harnesses use, by file.

keep/NAME.py, weight/NAME.py and backtests/NAME.py are whole files of a harness;
reward/NAME.py holds parts that `syntax.add_part` adds to a reward. What the
domains' seed harnesses share is in seed/ (their reward), diagnostics/ and
blind/ (diagnostics of a seed_harness and of a seed_blind); their library.json
names it, see `spec.read`. They are text here: they run in the box only.
"""

import pathlib

_ROOT = pathlib.Path(__file__).parent
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
