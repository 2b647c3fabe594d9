"""Proposals: one change of a harness, with its expected effect.

A proposer is a module with `propose(context) -> Proposal | None`, one of
PROPOSERS or a module of the user's own by its dotted path:

    from evojax.evolve import propose as propose_lib

    def propose(context):
      after = context.parent.with_overlay({'grpo.clip_high': 0.3})
      return propose_lib.make(
          context, after, hypothesis='...', expected=(-0.02, 0.05), source='me'
      )

All proposers see the same `Context`, and every change has to pass `consider`:
it lies on the surface, is one factor, is not vetoed, and was not tried on this
parent before; numbers within 1 % of each other count as equal, and so do lists
that differ only in order. While the policy learns fast (`evolve.settled`), a
proposer is called only if there is a critical finding or a warning, and only a
change that repairs one is accepted. Later, a change that repairs nothing is
accepted only if its expected effect makes a test worth its tokens
(`Context.is_worth_trying`).
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from evojax.evolve import repairs
from evojax.evolve import skills as skills_lib
from evojax.harness import delta as delta_lib
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.runtime import plugins

# Relative difference up to which two numbers count as equal, since no race can
# tell their effects apart.
_SAME = 0.01

PROPOSERS = {
    'rules': 'evojax.evolve.propose.rules',
    'random': 'evojax.evolve.propose.random_changes',
}
INBOX = 'human'  # Proposer of the changes in the user's inbox, see `human`.
TRIGGER = 'inbox/'  # Their trigger is this prefix and the name of the file.
CRITERION = (
    'its arms solve more than those of the incumbent beside them: the e-value'
    ' of all pairs reaches its threshold; it holds on perturbed problems, if'
    ' the domain has any, without a new critical alert'
)
UNTRAINED = (
    'it trains nothing, and is judged by the records of the run: it works on'
    ' every version, and what it measures goes with the score'
)


class ProposalError(ValueError):
  """A proposed change is not allowed; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
  """Everything that a proposer may read."""

  parent: spec.Harness
  config: Mapping[str, Any]  # Values under the parent: 'grpo.keep' -> 'all'.
  measures: Sequence[records.Measure]
  findings: Sequence[records.Finding]  # Worst first.
  # Oldest first. Those that still wait or race have no verdict (`verify`).
  history: Sequence[history_lib.Trial]
  skills: Sequence[skills_lib.Skill]
  rng: np.random.Generator
  domain: str
  surface: surface_lib.Surface
  vetoes: frozenset[str] = frozenset()  # Factors, and hashes of deltas.
  # (family, level) of the training problems, see `Domain.levels`.
  levels: Sequence[tuple[str, int]] = ()
  # Family -> share of its recorded rollouts that solve their problem.
  solved: Mapping[str, float] = dataclasses.field(default_factory=dict)
  # Whether a change with an expected effect is worth the tokens of its
  # backtest; one that is not is not taken. See `evolve.prospects`.
  is_worth_trying: Callable[
      [delta_lib.Delta, tuple[float, float]], bool
  ] = lambda delta, expected: True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proposal:
  """One change, and its prediction, which is scored later; see `make`."""

  hypothesis: str  # Why it should help, in a sentence.
  after: spec.Harness  # The parent with the change.
  delta: delta_lib.Delta
  expected: tuple[float, float]  # 90 % interval, fractions of Avg@k.
  criterion: str
  rollback: str
  source: str  # Paper, equation or earlier trial that the idea comes from.
  proposer: str = ''  # Filled in by `load`.
  trigger: str = ''  # Alert that called for the change; '' if none did.
  skill: str = ''  # Hash of the skill that was applied.
  note: str = ''  # Why a change is tried again.

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.type is str and not isinstance(value, str):
        raise ValueError(f'{field.name}={value!r} of a proposal is not text')
    try:
      low, high = self.expected
      fine = bool(-1 <= low <= high <= 1)
    except (TypeError, ValueError):
      fine = False
    if not fine:
      raise ValueError(
          f'expected={self.expected} of a proposal is not (low, high), the'
          ' effect on Avg@k in fractions: (0.0, 0.05) is nothing to 5 points'
      )


def load(name: str) -> Callable[[Context], Proposal | None]:
  """Return a proposer's `propose`, wrapped so that its result is checked.

  Args:
    name: A key of PROPOSERS, or the dotted path of a module.

  Raises:
    ValueError: If there is no such module or it has no `propose`. The returned
      function raises it if the module returns something else than a proposal,
      or a change that is not allowed.
  """
  field = 'evolve.proposer'
  module = plugins.load(
      field,
      name,
      PROPOSERS,
      needs='propose(context) that returns a Proposal or None',
      example='my_package.my_proposer',
  )

  def propose(context: Context) -> Proposal | None:
    proposal = module.propose(context)
    if proposal is None:
      return None
    if not isinstance(proposal, Proposal):
      raise ValueError(
          f'{field}={name!r}: propose returned a {type(proposal).__name__}; it'
          ' returns what evojax.evolve.propose.make makes, or None'
      )
    if is_users(proposal.trigger):
      raise ValueError(
          f'{field}={name!r} gave trigger={proposal.trigger!r}, which means a'
          " file in the user's inbox; name an alert or a finding, or leave it"
          ' empty'
      )
    try:
      delta, _ = consider(context, proposal.after)
    except ProposalError as error:
      raise ValueError(
          f'{field}={name!r} proposed a change that may not be made: {error};'
          ' catch the ProposalError of evojax.evolve.propose.make and propose'
          ' something else'
      ) from error
    # The change itself counts, not what is said to have changed.
    return dataclasses.replace(proposal, delta=delta, proposer=name)

  return propose


def make(
    context: Context,
    after: spec.Harness,
    *,
    note: str = '',
    check: str = '',
    **said: Any,
) -> Proposal:
  """Make a proposal of a change that passes `consider`.

  Args:
    context: The context that the proposer was given.
    after: The parent with the change.
    note: Further text to record.
    check: A further sign to expect if the hypothesis holds.
    **said: Fields of `Proposal`: hypothesis, expected and source; optionally
      trigger and skill.

  Raises:
    ProposalError: See `consider`.
  """
  delta, retry = consider(context, after)
  holds = f'; if the hypothesis holds, {check}' if check else ''
  return Proposal(
      after=after,
      delta=delta,
      criterion=(CRITERION if delta.trains else UNTRAINED) + holds,
      rollback=(
          f'the parent harness {context.parent.sha256[:12]} and its policy go'
          ' on unchanged'
      ),
      note='; '.join(filter(None, (note, retry))),
      **said,
  )


def consider(
    context: Context, after: spec.Harness
) -> tuple[delta_lib.Delta, str]:
  """Check that a change may be proposed.

  Args:
    context: The parent and the earlier trials.
    after: The harness that would be proposed.

  Returns:
    The change from the parent, and why it is tried again ('' if it is new).

  Raises:
    ProposalError: If it is off the surface, is more than one factor, is vetoed,
      changes numbers by less than 1 %, leads back to a harness that was a
      parent, or was tried on this parent. The last does not hold for a repair
      of a critical fault that was not yet tried as such a repair, or that
      gained in its only trial.
  """
  surface = context.surface
  try:
    surface.check(after.overlay)
    change = delta_lib.diff(context.parent, after, surface, context.config)
  except (surface_lib.SurfaceError, delta_lib.DeltaError) as error:
    raise ProposalError(str(error)) from error
  if all(_is_near(old, new) for _, old, new in change.changes):
    said = ', '.join(f'{p} {a!r} -> {b!r}' for p, a, b in change.changes)
    raise ProposalError(
        f'{said} changes a number by less than {100 * _SAME:g} % or only an'
        ' order; no race can measure the effect: propose a larger change'
    )
  for veto in (change.sha256, change.factor):
    if veto in context.vetoes:
      raise ProposalError(
          f'{veto} is vetoed by a file in the inbox or its done/; take that'
          ' out, or propose another change'
      )
  if _undoes(context, change):
    raise ProposalError(
        f'{change.factor} would lead back to a harness that was left for a'
        ' better one'
    )
  return change, _note(context, change)


def is_users(trigger: str) -> bool:
  """Return whether the trigger of a proposal is a file in the inbox."""
  return trigger.startswith(TRIGGER)


def _is_near(one: Any, other: Any) -> bool:
  """Return whether two values count as one: equal, or nearly so."""
  if one == other:
    return True
  if all(isinstance(value, list | tuple) for value in (one, other)):
    return set(one) == set(other)
  if not (skills_lib.is_number(one) and skills_lib.is_number(other)):
    return False
  return abs(one - other) <= _SAME * max(abs(one), abs(other))


def _are_near(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
  """Return whether values by path are those of the same paths, or nearly so."""
  return one.keys() == other.keys() and all(
      _is_near(value, other[path]) for path, value in one.items()
  )


def _values(changes: Sequence[repairs.Change]) -> dict[str, Any]:
  """Return the values after changes by path."""
  return {path: new for path, _, new in changes}


def _undoes(context: Context, change: delta_lib.Delta) -> bool:
  """Return whether a change merely reverts the last kept trials."""
  wanted = _values(change.changes)
  earlier: dict[str, Any] = {}  # Values under an ancestor.
  for trial in reversed(context.history):
    if trial.status != 'keep':
      continue
    # The value that a path had before the first of these trials changed it.
    earlier |= {path: old for path, old, _ in trial.delta.changes}
    moved = {
        path: value
        for path, value in earlier.items()
        if context.config.get(path) != value
    }
    if _are_near(moved, wanted):
      return True
  return False


def _note(context: Context, change: delta_lib.Delta) -> str:
  """Return why a change is tried again, or '' if it is new.

  Raises:
    ProposalError: If the change was tried on this parent.
  """
  wanted = _values(change.changes)
  before = [
      t
      for t in context.history
      if t.delta.sha256 == change.sha256
      or _are_near(_values(t.delta.changes), wanted)
  ]
  severity = repairs.severity(context.findings, change.changes)
  parent = context.parent.sha256
  for trial in before:
    # A change that has not shown a gain may repair a fault that shows later,
    # and then need only exclude a loss. If it gained, but not for sure, it is
    # tried once more.
    judged = trial.verify and repairs.severity_of(trial) != 'critical'
    gained = len(before) == 1 and (trial.effect or 0.0) > 0
    if severity == 'critical' and trial.verify and (judged or gained):
      continue
    if trial.delta.before == parent:
      raise ProposalError(
          f'{change.factor}: this change was tried on this parent'
          f' ({_result(trial)}); propose another change'
      )
  if not before:
    return ''
  last = before[-1]
  now = 'now it repairs a critical fault'
  if repairs.severity_of(last) == 'critical':
    now = 'the fault that it repairs is still critical'
  if last.delta.before != parent:
    now = f'the parent is another one now, {parent[:12]}'
  return f'tried before on {last.delta.before[:12]} ({_result(last)}); {now}'


def _result(trial: history_lib.Trial) -> str:
  if trial.effect is None:
    return trial.status
  return f'{trial.status}, {100 * trial.effect:+.1f} points'
