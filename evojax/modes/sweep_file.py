"""The file of a sweep: its settings, their grid and the seeds.

It is a Python file of constants:

    SETTINGS  name -> fields; 'variant' is the variant of the config
    SEEDS     every setting is run under each
    GRID      field -> values; every setting is run with every combination
    MODE      of each run: evolve (the default) or train

SEEDS is needed. Names of other constants begin with _.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
import dataclasses
import difflib
import itertools
import numbers
import os
import re
import runpy
from typing import Any

import numpy as np

from evojax import config as config_lib

MODES = ('train', 'evolve')
# Constants of a sweep's file and their defaults.
_CONSTANTS = {
    'SETTINGS': {'all': {}},
    'SEEDS': (),
    'GRID': {},
    'MODE': 'evolve',
}


@dataclasses.dataclass(frozen=True)
class Sweep:
  """The content of a sweep's file."""

  settings: Mapping[str, Mapping[str, Any]]  # Combined with the grid.
  seeds: Sequence[int]
  mode: str


def read(path: str) -> Sweep:
  """Return the sweep that a file describes.

  Raises:
    ValueError: If there is no such file, or it does not describe a sweep.
  """
  if not path:
    raise ValueError(
        '--mode=sweep needs --sweep=FILE, such as those in configs/sweeps'
    )
  if not os.path.isfile(path):
    raise ValueError(f'--sweep={path}: there is no such file')
  try:
    found = runpy.run_path(path)
  except Exception as error:  # pylint: disable=broad-except
    # The file is the user's program, so it may raise anything.
    name = type(error).__name__
    raise ValueError(f'--sweep={path}: {name}: {error}') from error
  given = {n: _plain(found.get(n, d)) for n, d in _CONSTANTS.items()}
  problems = [
      *_misspelt(found),
      *_wrong_settings(given['SETTINGS']),
      *_wrong_grid(given['GRID']),
      *_wrong_seeds(given['SEEDS']),
  ]
  if (mode := given['MODE']) not in MODES:
    problems.append(f'MODE={mode!r}: choose one of {MODES}')
  if problems:
    raise ValueError(f'--sweep={path}: ' + '; '.join(problems))
  seeds = tuple(int(seed) for seed in given['SEEDS'])
  return Sweep(_times(given['SETTINGS'], given['GRID']), seeds, mode)


def _plain(value: Any) -> Any:
  """Return a value with Python's numbers and lists instead of NumPy's.

  The text of a run's command, such as "{'outcome': 0.5}", has to be parsed as
  this value.
  """
  if isinstance(value, (np.ndarray, np.generic)):
    return value.tolist()
  if type(value) in (list, tuple):
    return type(value)(map(_plain, value))
  if type(value) is dict:
    return {key: _plain(each) for key, each in value.items()}
  return value


def _misspelt(found: Iterable[str]) -> Iterator[str]:
  """Yield what is wrong with the names of a file's constants."""
  for name in sorted({*found} - {*_CONSTANTS}):
    mine = name.isupper() and not name.startswith('_')
    if mine or name.upper() in _CONSTANTS:
      near = difflib.get_close_matches(name.upper(), _CONSTANTS, n=1)
      hint = f'did you mean {near[0]}?' if near else f'call yours _{name}'
      yield f'{name} is none of {", ".join(_CONSTANTS)}; {hint}'


def _wrong_settings(settings: Any) -> Iterator[str]:
  if not isinstance(settings, dict) or not settings:
    yield 'SETTINGS must be a dict: name -> {field: value}'
    return
  named = lambda name: isinstance(name, str) and re.fullmatch(
      r'\w[\w.=,-]*', name
  )
  if bad := [name for name in settings if not named(name)]:
    yield f'SETTINGS: {bad} are not names of directories'
  for name, fields in settings.items():
    if not isinstance(fields, dict):
      yield f'SETTINGS: {name!r} has {fields!r} instead of {{field: value}}'
    else:
      yield from _wrong_fields(f'SETTINGS: {name!r}', fields)


def _wrong_grid(grid: Any) -> Iterator[str]:
  if not isinstance(grid, dict):
    yield f'GRID={grid!r} must be a dict: field -> (value, ...)'
    return
  yield from _wrong_fields('GRID', grid)
  for field, values in grid.items():
    if not _is_sequence(values) or not len(values):
      yield f'GRID: {field!r} has {values!r} instead of (value, ...)'
      continue
    named: dict[str, Any] = {}
    for value in values:
      name = _name(value)
      if name in named:
        yield (
            f'GRID: {field!r} has {named[name]!r} and {value!r}, whose runs'
            f' would have one directory ({name}); leave one out, or put them'
            ' into SETTINGS under names of their own'
        )
      named[name] = value


def _wrong_fields(where: str, fields: Iterable[Any]) -> Iterator[str]:
  if bad := [field for field in fields if not isinstance(field, str)]:
    yield f'{where}: {bad} are not names of fields'
  if 'seed' in fields:
    yield f'{where} sets seed: SEEDS does'


def _wrong_seeds(seeds: Any) -> Iterator[str]:
  if not _is_sequence(seeds):
    yield f'SEEDS={seeds!r} instead of (seed, ...)'
    return
  declared = config_lib.declaration('seed')
  for seed in seeds:
    whole = isinstance(seed, numbers.Integral) and not isinstance(seed, bool)
    if problem := declared.problem(int(seed)) if whole else 'no whole number':
      yield f'SEEDS: {seed!r}: {problem}'
      return
  if not len(seeds) or len({*seeds}) < len(seeds):
    yield f'SEEDS={seeds}: at least one, none twice'


def _is_sequence(value: Any) -> bool:
  """Return True for a list, a range, an array and the like, but no text."""
  sized = isinstance(value, Sized) and isinstance(value, Iterable)
  return sized and not isinstance(value, (str, bytes, Mapping))


def _name(value: Any) -> str:
  """Return a value of a grid as a part of the name of a directory."""
  # Paths, texts and tuples have slashes, blanks and quotes.
  return re.sub(r'[^\w.+-]+', '_', str(value)).strip('_')


def _times(
    settings: Mapping[str, Mapping[str, Any]], grid: Mapping[str, Sequence[Any]]
) -> dict[str, dict[str, Any]]:
  """Return every setting with every combination of a grid."""
  found = {}
  for name, fields in settings.items():
    for values in itertools.product(*grid.values()):
      chosen = dict(zip(grid, values, strict=True))
      varied = [
          f'{field.rpartition(".")[2]}={_name(value)}'
          for field, value in chosen.items()
          if len(grid[field]) > 1
      ]
      # A setting's own value of a field overrides the grid's.
      found[','.join([name, *varied])] = chosen | dict(fields)
  return found
