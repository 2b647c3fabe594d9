"""A user's own domain: math with fields that a proposal may change."""

import dataclasses

from evojax.domains.math import domain as math_domain
from evojax.harness import surface

FIELDS = (
    surface.Field(
        intervention_class='tools',
        path='domain.kwargs.tools',
        kind='names',
        choices=('python', 'search'),
    ),
    surface.Field(
        intervention_class='leaks',
        path='domain.kwargs.scrubbed',
        kind='choice',
        choices=(False, True),
    ),
)


@dataclasses.dataclass(frozen=True)
class OwnDomain(math_domain.MathDomain):
  """Math with fields for tools, and for a history, scrubbed or not."""

  tools: tuple[str, ...] = ()
  scrubbed: bool = True

  surface_fields = FIELDS


def make(tools=(), scrubbed=True, **kwargs):
  """Return the domain; see `evojax.domains.math.make` for the rest."""
  made = vars(math_domain.make(**kwargs))
  return OwnDomain(**made, tools=tuple(tools), scrubbed=scrubbed)
