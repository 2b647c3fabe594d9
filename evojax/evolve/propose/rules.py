"""The embedded proposer: alerts, a library, and what the run has learned.

Skills whose alert fires come first. Else the entries of the library whose alert
fires, and numeric mutations of what was tried, compete: Thompson sampling
chooses the intervention class, then the change within it. Beliefs are Normal:
the library's interval is the prior, the trials of the run are observations.
No model is asked, and equal contexts give equal proposals.
"""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from evojax.evolve import diagnose
from evojax.evolve import propose as propose_lib
from evojax.evolve import skills as skills_lib
from evojax.evolve.propose import library
from evojax.harness import delta as delta_lib
from evojax.harness import spec
from evojax.harness import surface as surface_lib

_Z90 = 1.6449  # Half width of a central 90 % interval, in deviations.
_Z95 = 1.9600
# Spread of the true effects of changes of the same factor, and of the same
# class: how much one of them tells about another.
_SPREAD_FACTOR = 0.03
_SPREAD_CLASS = 0.06
# At least this share of trials goes to classes that were not tried, while one
# of them has an alert: a belief is worth what it was tested on.
_EXPLORED = 0.75
_SMALLEST_STEP = 0.05  # A smaller mutation cannot be told from no change.


@dataclasses.dataclass(frozen=True)
class _Candidate:
  """A change that may be proposed."""

  delta: delta_lib.Delta
  after: spec.Harness
  note: str
  trigger: str
  expected: tuple[float, float]
  hypothesis: str
  source: str
  check: str


@dataclasses.dataclass(frozen=True)
class Belief:
  """Normal distribution of an effect on Avg@k."""

  mean: float
  deviation: float

  def interval(self) -> tuple[float, float]:
    """Its central 90 %."""
    half = _Z90 * self.deviation
    return round(self.mean - half, 4), round(self.mean + half, 4)

  def draw(self, rng: np.random.Generator) -> float:
    return float(rng.normal(self.mean, self.deviation))


def believe(
    expected: tuple[float, float],
    intervention_class: str,
    factor: str,
    history: Sequence[propose_lib.Trial],
) -> Belief:
  """Posterior of an effect: the prior's interval and the trials of its class.

  Observations are the realised effects with variance SE^2 + spread^2. A kept
  change of the same factor counts half: the same step again gains less.
  Trials without an effect (a crash) are no observation.

  Args:
    expected: Central 90 % of the prior.
    intervention_class: Intervention class.
    factor: Factor; '' for the class as a whole.
    history: Trials of the run.
  """
  low, high = expected
  mean = (low + high) / 2
  variance = max((high - low) / 2 / _Z90, 1e-4) ** 2
  for trial in history:
    if trial.intervention_class != intervention_class or trial.effect is None:
      continue
    near = trial.factor == factor or not factor
    effect, error = trial.effect, 0.0
    if trial.low is not None and trial.high is not None:
      error = (trial.high - trial.low) / 2 / _Z95
    if trial.factor == factor and trial.status == 'keep':
      effect /= 2
    noise = error**2 + (_SPREAD_FACTOR if near else _SPREAD_CLASS) ** 2
    gain = variance / (variance + noise)
    mean += gain * (effect - mean)
    variance *= 1 - gain
  return Belief(mean, math.sqrt(variance))


def propose(context: propose_lib.Context) -> propose_lib.Proposal | None:
  """The next change, or None where nothing is left to try."""
  return _from_skills(context) or _from_library(context)


# ---------------------------------------------------------------------- skills


def _from_skills(
    context: propose_lib.Context,
) -> propose_lib.Proposal | None:
  """The surest skill whose alert fires and whose factor is new to this run."""
  tried = {trial.factor for trial in context.history}
  for skill in skills_lib.matching(
      context.skills, context.domain, context.measures
  ):
    try:
      after = skill.apply(context.parent, context.config, context.surface)
      delta, note = propose_lib.consider(context, after)
    except (skills_lib.SkillError, propose_lib.ProposalError):
      continue
    if delta.factor in tried:
      continue
    first = skill.evidence[0]
    return propose_lib.Proposal(
        hypothesis=skill.hypothesis,
        after=after,
        delta=delta,
        expected=skill.expected,
        criterion=propose_lib.CRITERION,
        rollback=propose_lib.rollback(context),
        source=(
            f'skill {skill.sha256[:12]}: {len(skill.evidence)} kept trials in'
            f' {", ".join(skill.domains)}; first {first.run}, trial'
            f' {first.trial}, {100 * first.effect:+.1f} points'
        ),
        proposer='rules',
        trigger=skill.trigger,
        skill=skill.sha256,
        note=note,
    )
  return None


# --------------------------------------------------------------------- library


def _from_library(
    context: propose_lib.Context,
) -> propose_lib.Proposal | None:
  candidates = _candidates(context)
  if not candidates:
    return None
  chosen = _choose(context, candidates)
  belief = believe(
      chosen.expected,
      chosen.delta.intervention_class,
      chosen.delta.factor,
      context.history,
  )
  criterion = propose_lib.CRITERION
  if chosen.check:
    criterion += f'; if the hypothesis holds, {chosen.check}'
  return propose_lib.Proposal(
      hypothesis=chosen.hypothesis,
      after=chosen.after,
      delta=chosen.delta,
      expected=belief.interval(),
      criterion=criterion,
      rollback=propose_lib.rollback(context),
      source=chosen.source,
      proposer='rules',
      trigger=chosen.trigger,
      note=chosen.note,
  )


def _candidates(context: propose_lib.Context) -> list[_Candidate]:
  """What the alerts call for; everything that applies if nothing does."""
  alerts = diagnose.alerts(context.measures)
  called = _called(context, alerts)
  return called or _called(context, None)


def _called(
    context: propose_lib.Context, alerts: Sequence[str] | None
) -> list[_Candidate]:
  """Changes whose trigger is among the alerts (None: all, untriggered)."""
  found: dict[str, _Candidate] = {}

  def add(after, trigger, expected, hypothesis, source, check):
    try:
      delta, note = propose_lib.consider(context, after)
    except propose_lib.ProposalError:
      return
    found.setdefault(
        delta.sha256,
        _Candidate(
            delta, after, note, trigger, expected, hypothesis, source, check
        ),
    )

  triggers: dict[str, str] = {}  # Factor -> the worst alert that calls for it.
  for entry in library.ENTRIES:
    trigger = _trigger(entry, alerts)
    if trigger is None:
      continue
    known = triggers.setdefault(entry.factor, trigger)
    if alerts and alerts.index(trigger) < alerts.index(known):
      triggers[entry.factor] = trigger
    after = entry.change(context)
    if after is not None:
      add(
          after,
          trigger,
          entry.expected,
          entry.hypothesis,
          entry.source,
          entry.check,
      )
  for mutation in _mutations(context):
    if mutation.factor in triggers:
      add(
          mutation.after,
          triggers[mutation.factor],
          mutation.expected,
          mutation.hypothesis,
          mutation.source,
          '',
      )
  return list(found.values())


def _trigger(entry: library.Entry, alerts: Sequence[str] | None) -> str | None:
  """The worst alert that calls for an entry; '' if none has to."""
  if alerts is None:
    return ''
  return next((name for name in alerts if name in entry.triggers), None)


# ------------------------------------------------------------------- mutations


@dataclasses.dataclass(frozen=True)
class _Mutation:
  """Another value of a number that was changed before."""

  factor: str
  after: spec.Harness
  expected: tuple[float, float]
  hypothesis: str
  source: str


def _mutations(context: propose_lib.Context) -> list[_Mutation]:
  """One further value for every factor that a single number was changed in."""
  latest = {trial.factor: trial for trial in context.history}
  return [
      mutation
      for factor in sorted(latest)
      if (mutation := _mutate(context, latest[factor])) is not None
  ]


def _mutate(
    context: propose_lib.Context, trial: propose_lib.Trial
) -> _Mutation | None:
  """The next value after the last trial of a factor.

  Kept: the same step again. Tried on this parent and not kept: twice the step
  if it gained a little, half of it if it lost or failed, and the whole step the
  other way once two steps in one direction lost.
  """
  if len(trial.changes) != 1:
    return None
  ((path, old, new),) = trial.changes
  if path.partition(':')[0].endswith('.py'):
    return None
  field = context.surface.field(path)
  current = context.config.get(path, 0.0)
  if field.kind not in ('float', 'int') or not _numbers(old, new, current):
    return None
  if trial.status == 'disqualified':  # Refused unseen: nothing was learned.
    return None
  here = trial.parent_sha == context.parent.sha256
  lost = trial.effect is None or trial.effect <= 0
  if trial.status == 'keep' and current == new:
    times, why = 1.0, 'helped: the same step again'
    expected = (-0.01, max(0.01, trial.effect or 0.0))
  elif trial.status != 'keep' and here and not lost:
    times, why = 2.0, 'helped too little to be told: twice the step'
    expected = trial.expected
  elif trial.status != 'keep' and here:
    turned = _lost_steps(context, path, new > old) >= 2
    times = -1.0 if turned else 0.5
    why = 'lost twice: the other way' if turned else 'lost: half the step'
    low, high = trial.expected
    expected = (low / 2, max(high / 2, 0.01))
  else:
    return None
  value = _step(context, field, current, old, new, times)
  if value == current:
    return None
  return _Mutation(
      factor=trial.factor,
      after=context.parent.with_overlay({path: value}),
      expected=expected,
      hypothesis=f'{path} {old:g} -> {new:g} {why}, {current:g} -> {value:g}.',
      source=f'numeric mutation of delta {trial.delta_sha[:12]}',
  )


def _numbers(*values: object) -> bool:
  return all(
      isinstance(v, int | float) and not isinstance(v, bool) for v in values
  )


def _lost_steps(context: propose_lib.Context, path: str, up: bool) -> int:
  """Steps of a path in one direction that lost on this parent."""
  return sum(
      len(t.changes) == 1
      and t.changes[0][0] == path
      and _numbers(*t.changes[0][1:])
      and (t.changes[0][2] > t.changes[0][1]) == up
      and t.parent_sha == context.parent.sha256
      and (t.effect is None or t.effect <= 0)
      for t in context.history
  )


def _step(
    context: propose_lib.Context,
    field: surface_lib.Field,
    current: int | float,
    old: int | float,
    new: int | float,
    times: float,
) -> int | float:
  """`current` moved by `times` the step from old to new, within the bounds."""
  if field.scale == 'log' and min(old, new, current) > 0:
    ratio = (new / old) ** times
    if abs(math.log(ratio)) < _SMALLEST_STEP:
      return current
    return library.within(context, field, current * ratio)
  step = times * (new - old)
  if abs(step) < _SMALLEST_STEP * abs(current):
    return current
  return library.within(context, field, current + step)


# -------------------------------------------------------------------- choosing


def _choose(
    context: propose_lib.Context, candidates: Sequence[_Candidate]
) -> _Candidate:
  """Thompson sampling over classes, then over the changes of the class."""
  classes: dict[str, list[_Candidate]] = {}
  for candidate in candidates:
    classes.setdefault(candidate.delta.intervention_class, []).append(candidate)
  tried = [trial.intervention_class for trial in context.history]
  untried = [
      intervention_class
      for intervention_class in classes
      if intervention_class not in tried
  ]
  repeats = len(tried) - len(set(tried))
  allowed = math.ceil((len(tried) + 1) * (1 - _EXPLORED))
  eligible = untried if untried and repeats >= allowed else list(classes)
  draws = {
      intervention_class: _draw_class(
          context, intervention_class, classes[intervention_class]
      )
      for intervention_class in sorted(eligible)
  }
  members = classes[max(draws, key=draws.__getitem__)]
  return max(
      members,
      key=lambda c: believe(
          c.expected,
          c.delta.intervention_class,
          c.delta.factor,
          context.history,
      ).draw(context.rng),
  )


def _draw_class(
    context: propose_lib.Context,
    intervention_class: str,
    members: Sequence[_Candidate],
) -> float:
  """A sample of what the class would gain; -inf if it would not run at all."""
  mine = [
      trial
      for trial in context.history
      if trial.intervention_class == intervention_class
  ]
  ran = sum(trial.effect is not None for trial in mine)
  runs = context.rng.random() < (ran + 1) / (len(mine) + 1)
  low, high = np.mean([c.expected for c in members], axis=0)
  draw = believe((float(low), float(high)), intervention_class, '', mine).draw(
      context.rng
  )
  return draw if runs else -math.inf
