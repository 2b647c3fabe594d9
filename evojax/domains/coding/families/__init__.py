"""Families of generated coding problems by name, levels easiest first."""

from collections.abc import Mapping

from evojax.domains.coding.families import level
from evojax.domains.coding.families import numeric
from evojax.domains.coding.families import processes
from evojax.domains.coding.families import strings
from evojax.domains.coding.families import structures

FAMILIES: Mapping[str, tuple[level.Level, ...]] = {
    **numeric.FAMILIES,
    **strings.FAMILIES,
    **structures.FAMILIES,
    **processes.FAMILIES,
}
