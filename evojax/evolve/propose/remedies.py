"""Remedies of a diagnosis as changes of a harness."""

from evojax.evolve import propose
from evojax.evolve import repairs
from evojax.evolve.propose import agents
from evojax.evolve.propose import changes
from evojax.harness import surface as surface_lib
from evojax.ledger import records


def change(
    context: propose.Context, remedy: records.Remedy
) -> changes.Change | None:
  """Return a remedy as a change; None if no harness may make it."""
  path = repairs.path_of(remedy)
  if path in repairs.FILES:
    return changes.original_file(path)
  try:
    context.surface.field(path)
  except surface_lib.SurfaceError:
    return None
  if remedy.setting == 'weight' and remedy.value:
    if not agents.can_pay(context, remedy.part):
      return None
    if path not in context.config:  # The part may be the library's.
      return changes.give_weight(remedy.part, remedy.value)
  value = repairs.target(remedy)
  if value is None:
    return changes.scale(path, remedy.times)
  return changes.set_value(path, value)


def outside(
    surface: surface_lib.Surface, finding: records.Finding
) -> list[records.Remedy]:
  """Return the remedies of a finding that no harness may make."""
  found = []
  for remedy in finding.remedies:
    path = repairs.path_of(remedy)
    if path in repairs.FILES:
      continue
    try:
      surface.field(path)
    except surface_lib.SurfaceError:
      found.append(remedy)
  return found


def said(remedy: records.Remedy) -> str:
  """Return advice on a remedy that no harness may make."""
  path = repairs.path_of(remedy)
  text = f'{path} is no value that a harness may change'
  return text if remedy.value is None else f'{text}; set it to {remedy.value}'
