"""Environments of the library `verifiers`, each with its rubric as the grader.

    config.domain.name = 'verifiers'
    config.domain.kwargs = {'environment': 'my_package', 'arguments': {...}}

`domain.make` documents the arguments. The library is the extra `verifiers`; no
other domain needs it.
"""

from evojax.domains.verifiers.domain import make

__all__ = ['make']
