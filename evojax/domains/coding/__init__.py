"""Coding: programs judged by hidden tests.

`make(**kwargs)` builds the domain; the arguments are those of `domain.make`.
"""

from evojax.domains.coding.domain import make

__all__ = ['make']
