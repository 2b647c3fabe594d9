"""Coding: programs graded by hidden tests.

`make(**kwargs)` builds the domain; the arguments are those of `domain.make`.
Problems are generated (`families`, `problems`, `programs`, reworded by
`perturb`) or read (`datasets`). `grade` extracts the program of a completion
(`extract`). `execution` runs it on the tests (`suite`), all of them in one
process if that is safe (`one_process`), and compares its output (`comparison`).
`wrapper` sets limits as in online judges, and calls the function that some
problems ask for. `demonstrations` trains the base policy.
"""

from evojax.domains.coding.domain import make

__all__ = ['make']
