"""Coding: programs graded by hidden tests.

`make(**kwargs)` builds the domain; the arguments are those of `domain.make`.
Problems are generated (`families`, `problems`, `programs`, reworded by
`perturb`) or read (`datasets`). `grade` extracts the program of a completion
(`extract`) and `execution` runs it on the tests (`suite`), in one process if
that is safe (`one_process`), as judges do (`wrapper`), and compares its output
(`comparison`). `demonstrations` trains the base policy.
"""

from evojax.domains.coding.domain import make

__all__ = ['make']
