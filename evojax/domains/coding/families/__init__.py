"""Families of generated coding problems by name, levels easiest first.

Each family is an array of tables in one of the TOML files in this folder. A
table holds the fields of a `level.Level`, see `level.parse`.
"""

from collections.abc import Mapping
import importlib.resources
import tomllib

from evojax.domains.coding.families import level

# Lists of integers, words, intervals and grids, then numbers and simulations.
# A stream of problems depends on the order of the families.
_FILES = ('numeric.toml', 'strings.toml', 'structures.toml', 'processes.toml')

_FOLDER = importlib.resources.files(__name__)

FAMILIES: Mapping[str, tuple[level.Level, ...]] = {
    family: tuple(map(level.parse, tables))
    for text in (_FOLDER.joinpath(f).read_text('utf-8') for f in _FILES)
    for family, tables in tomllib.loads(text).items()
}
