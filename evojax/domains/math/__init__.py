"""Math: problems with one right answer, graded by value.

`make(**kwargs)` builds the domain; the arguments are those of `domain.make`.
"""

from evojax.domains.math.domain import make

__all__ = ['make']
