"""Coding: programs judged by hidden tests.

`make(**kwargs)` builds the domain; the arguments are those of `domain.make`.
Problems are generated (`families`, `problems`, `programs`, asked otherwise by
`perturb`) or read (`datasets`). A completion's program (`extract`) is run on
its `tests` by `judge`, in one process where it may be (`together`), around a
function where it is one (`calls`); `grade` says what that is worth.
`demonstrations` is what the base policy was taught.
"""

from evojax.domains.coding.domain import make

__all__ = ['make']
