"""Families of generated coding problems by name, levels easiest first.

Each family is an array of tables in one of the TOML files of this folder. A
table holds the fields of a `level.Level`, see `level.parse`.
"""

from collections.abc import Mapping
import importlib.resources
import tomllib

from evojax.domains.coding.families import level

# Lists of integers, words, intervals and grids, then numbers and simulations.
# A stream of problems depends on the order of the families.
_FILES = ('numeric.toml', 'strings.toml', 'structures.toml', 'processes.toml')


def _read(name: str) -> dict[str, tuple[level.Level, ...]]:
  """Return the families in one of the files."""
  text = importlib.resources.files(__name__).joinpath(name).read_text('utf-8')
  families = tomllib.loads(text)
  return {f: tuple(map(level.parse, tables)) for f, tables in families.items()}


FAMILIES: Mapping[str, tuple[level.Level, ...]] = {
    family: levels for name in _FILES for family, levels in _read(name).items()
}
