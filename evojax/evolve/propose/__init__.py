"""Proposals: one change of a harness, with what it is expected to do.

A proposer is a module with `propose(context) -> Proposal | None`. All of them
see the same `Context`, and what they propose passes the same `consider`: on the
surface, one factor, not vetoed, not tried on this parent before.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import importlib
from typing import Any

import numpy as np

from evojax.evolve import diagnose
from evojax.evolve import skills as skills_lib
from evojax.harness import delta as delta_lib
from evojax.harness import spec
from evojax.harness import surface as surface_lib

PROPOSERS = {
    'rules': 'evojax.evolve.propose.rules',
    'random': 'evojax.evolve.propose.random_changes',
}
CRITERION = (
    'Avg@k on fresh dev problems rises: one-sided p <= alpha against the'
    ' control arms, the perturbed score agrees in sign, no new critical alert'
)


class ProposalError(ValueError):
  """A change may not be proposed; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
  """What became of an earlier proposal."""

  delta_sha: str  # Identity of the change, independent of the parent.
  factor: str
  intervention_class: str
  status: str  # keep, discard, crash, refused, ...
  effect: float | None  # Realised, a fraction of Avg@k; None: not measured.
  low: float | None  # 95 % interval of the effect.
  high: float | None
  expected: tuple[float, float]
  parent_sha: str  # Harness that it was tried on.
  # (path, value before, value after), as in the delta.
  changes: tuple[tuple[str, Any, Any], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
  """All that a proposer may look at."""

  parent: spec.Harness
  config: Mapping[str, Any]  # Values under the parent: 'grpo.keep' -> 'all'.
  measures: Sequence[diagnose.Measure]
  history: Sequence[Trial]  # Oldest first.
  skills: Sequence[skills_lib.Skill]
  rng: np.random.Generator
  domain: str
  surface: surface_lib.Surface
  vetoes: frozenset[str] = frozenset()  # Factors, and hashes of deltas.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proposal:
  """One change and the prediction that it is judged by."""

  hypothesis: str
  after: spec.Harness
  delta: delta_lib.Delta
  expected: tuple[float, float]  # Effect on Avg@k, fractions.
  criterion: str
  rollback: str
  source: str  # Paper, equation or earlier trial that the idea comes from.
  proposer: str
  trigger: str  # Alert or rule that called for it; '' if none did.
  skill: str = ''  # Hash of the skill that it applies.
  note: str = ''  # Why something is tried again.


def load(name: str) -> Callable[[Context], Proposal | None]:
  """The `propose` of a proposer.

  Raises:
    ValueError: If there is none of this name.
  """
  if name not in PROPOSERS:
    raise ValueError(f'proposer={name!r} is not one of {sorted(PROPOSERS)}')
  return importlib.import_module(PROPOSERS[name]).propose


def consider(
    context: Context, after: spec.Harness
) -> tuple[delta_lib.Delta, str]:
  """The change from the parent, and the note that trying it needs.

  Args:
    context: The parent and what was tried.
    after: The harness that would be proposed.

  Returns:
    The delta, and why it is tried although it was before: '' if it was not.

  Raises:
    ProposalError: If it is off the surface, no single factor, vetoed, leads
      back to a harness that was a parent, or was tried on this parent.
  """
  try:
    context.surface.check(after.overlay)
    change = delta_lib.diff(
        context.parent, after, context.surface, context.config
    )
  except (surface_lib.SurfaceError, delta_lib.DeltaError) as error:
    raise ProposalError(str(error)) from error
  for veto in (change.sha256, change.factor):
    if veto in context.vetoes:
      raise ProposalError(f'{veto} is vetoed')
  if _undoes(context, change):
    raise ProposalError(
        f'{change.factor} would lead back to a harness that was left for a'
        ' better one'
    )
  return change, _note(context, change)


def _undoes(context: Context, change: delta_lib.Delta) -> bool:
  """Whether the change takes the last kept trials back, and nothing else."""
  wanted = {path: new for path, _, new in change.changes}
  earlier: dict[str, Any] = {}  # Values under an ancestor.
  for trial in reversed(context.history):
    if trial.status != 'keep':
      continue
    earlier |= {path: old for path, old, _ in trial.changes}
    moved = {
        path: value
        for path, value in earlier.items()
        if context.config.get(path) != value
    }
    if moved == wanted:
      return True
  return False


def _note(context: Context, change: delta_lib.Delta) -> str:
  """'' for something new.

  Raises:
    ProposalError: If the change was tried on this parent.
  """
  before = [t for t in context.history if t.delta_sha == change.sha256]
  for trial in before:
    if trial.parent_sha == context.parent.sha256:
      raise ProposalError(
          f'{change.factor}: this change was tried on this parent'
          f' ({_result(trial)}); more seeds of it are not another change'
      )
  if not before:
    return ''
  last = before[-1]
  return (
      f'tried before on {last.parent_sha[:12]} ({_result(last)}); the parent is'
      f' another one now, {context.parent.sha256[:12]}'
  )


def _result(trial: Trial) -> str:
  if trial.effect is None:
    return trial.status
  return f'{trial.status}, {100 * trial.effect:+.1f} points'


def rollback(context: Context) -> str:
  """What happens if the change does not hold."""
  return (
      f'the parent harness {context.parent.sha256[:12]} and its policy go on'
      ' unchanged'
  )
