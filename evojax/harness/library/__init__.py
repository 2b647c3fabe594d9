"""Shipped functions that proposals draw from, by file.

keep/NAME.py, weight/NAME.py and backtests/NAME.py are whole files of a harness;
reward/NAME.py holds parts that `syntax.add_part` adds to a reward. They are
text here: they run in the worker only.
"""

import pathlib

_ROOT = pathlib.Path(__file__).parent
FOLDERS = ('keep', 'weight', 'reward', 'backtests')


def names() -> tuple[str, ...]:
  """'keep/outcome_variance.py' and so on, sorted."""
  return tuple(
      sorted(
          path.relative_to(_ROOT).as_posix()
          for folder in FOLDERS
          for path in (_ROOT / folder).glob('[a-z]*.py')
      )
  )


def source(name: str) -> str:
  """Text of a shipped function.

  Raises:
    ValueError: If there is none of that name.
  """
  if name not in names():
    raise ValueError(
        f'the library has no {name!r}; it has {", ".join(names())}'
    )
  return (_ROOT / name).read_text(encoding='utf-8')
