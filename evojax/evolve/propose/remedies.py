"""Remedies of a diagnosis as changes of a harness."""

from collections.abc import Sequence

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
  if remedy.setting == 'tools':
    return changes.with_name(path, value)
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


def is_beyond_repair(
    surface: surface_lib.Surface, findings: Sequence[records.Finding]
) -> bool:
  """Return whether critical faults can only be repaired outside the harness.

  It is False while a harness may make a remedy of any critical fault: this
  remedy comes first, since the other faults may be consequences of that one.
  """
  critical = [f for f in findings if f.severity == 'critical' and f.remedies]
  return bool(critical) and all(
      len(outside(surface, finding)) == len(finding.remedies)
      for finding in critical
  )


def said(remedy: records.Remedy) -> str:
  """Return advice on a remedy that no harness may make."""
  path = repairs.path_of(remedy)
  text = f'a harness cannot change {path}'
  return text if remedy.value is None else f'{text}; set it to {remedy.value}'
