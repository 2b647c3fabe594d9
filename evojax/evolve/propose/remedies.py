"""Remedies of a diagnosis as changes of a harness."""

from typing import Any

from evojax.diagnosis import words
from evojax.evolve import propose
from evojax.evolve.propose import agents
from evojax.evolve.propose import changes
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.ledger import history as history_lib
from evojax.ledger import records

_FILES = ('reward.py', 'keep.py', 'weight.py')


def path_of(remedy: records.Remedy) -> str:
  """Return the config path or harness file that a remedy changes."""
  return words.word('evojax', remedy.setting, remedy.part)


def change(
    context: propose.Context, remedy: records.Remedy
) -> changes.Change | None:
  """Return a remedy as a change; None if no harness may make it."""
  path = path_of(remedy)
  if path in _FILES:
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
  value = _target(remedy)
  if value is None:
    return changes.scale(path, remedy.times)
  return changes.set_value(path, value)


def _target(remedy: records.Remedy) -> Any:
  """Return the value that a remedy sets; None if it scales the present one."""
  if remedy.setting == 'max_tokens':
    # Remove the training limit; sampling stops at rollout.max_tokens anyway.
    return 0
  return () if remedy.setting == 'data' else remedy.value


def severity(trial: history_lib.Trial) -> str:
  """Return the severity of the worst finding that a trial repairs; '' if none.

  What the trial changes counts, not what its proposer says. Functions of a
  harness count as no repair: there are many ways to write one.
  """
  found = trial.diagnose.findings if trial.diagnose else ()
  made = trial.delta.changes if trial.delta else ()
  for finding in found:  # The worst comes first.
    for remedy in finding.remedies:
      if any(_makes(change, remedy) for change in made):
        return finding.severity
  return ''


def _makes(change: tuple[str, Any, Any], remedy: records.Remedy) -> bool:
  """Return whether a change of a value is what a remedy asks for."""
  path, before, after = change
  if path != path_of(remedy) or path in _FILES:
    return False
  value = _target(remedy)
  if value is not None:
    return spec.as_float(after) == spec.as_float(value)
  return bool(before) and (after / before - 1) * (remedy.times - 1) > 0


def outside(
    surface: surface_lib.Surface, finding: records.Finding
) -> list[records.Remedy]:
  """Return the remedies of a finding that no harness may make."""
  found = []
  for remedy in finding.remedies:
    path = path_of(remedy)
    if path in _FILES:
      continue
    try:
      surface.field(path)
    except surface_lib.SurfaceError:
      found.append(remedy)
  return found


def said(remedy: records.Remedy) -> str:
  """Return advice on a remedy that no harness may make."""
  path = path_of(remedy)
  text = f'{path} is no value that a harness may change'
  return text if remedy.value is None else f'{text}; set it to {remedy.value}'
