"""The default proposer: alerts, a library of interventions, and the ledger.

Skills whose alert fires come first. Otherwise the interventions that an alert
calls for compete with numeric mutations of what was tried: Thompson sampling
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
from evojax.evolve.propose import changes
from evojax.evolve.propose import library
from evojax.harness import delta as delta_lib
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.ledger import records

# Half widths of central intervals, in standard deviations.
_Z90 = 1.6449
_Z95 = 1.9600
# Standard deviation of the true effect between changes of the same factor, and
# of the same class: the smaller it is, the more one tells about another.
_SPREAD_FACTOR = 0.03
_SPREAD_CLASS = 0.06
# Share of the trials that goes to untried classes while an alert calls for one.
# Priors come from other policies: a class is tried before it is believed.
_EXPLORED = 0.75
_SMALLEST_STEP = (
    0.05  # Relative; a smaller one is lost in the noise of a trial.
)


@dataclasses.dataclass(frozen=True)
class _Mutation:
  """Another value of a number that was changed before."""

  factor: str
  after: spec.Harness
  expected: tuple[float, float]
  hypothesis: str
  source: str
  check: str = ''


@dataclasses.dataclass(frozen=True)
class _Candidate:
  """A change that may be proposed."""

  delta: delta_lib.Delta
  after: spec.Harness
  trigger: str
  idea: library.Entry | _Mutation


@dataclasses.dataclass(frozen=True)
class Belief:
  """A Normal distribution of an effect on Avg@k."""

  mean: float
  deviation: float

  def interval(self) -> tuple[float, float]:
    """Return its central 90 %."""
    half = _Z90 * self.deviation
    return round(self.mean - half, 4), round(self.mean + half, 4)

  def sample(self, rng: np.random.Generator) -> float:
    return float(rng.normal(self.mean, self.deviation))


def believe(
    expected: tuple[float, float],
    intervention_class: str,
    factor: str,
    history: Sequence[propose_lib.Trial],
) -> Belief:
  """Return the posterior of an effect, given the trials of its class.

  The observations are the realised effects with variance SE^2 + spread^2. The
  effect of a kept change of the same factor counts half, since the same step
  again gains less. Trials without an effect (a crash) are no observation.

  Args:
    expected: Central 90 % of the prior.
    intervention_class: The class that the observations are taken from.
    factor: The factor of the change; '' stands for the class as a whole.
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
  """Return the next change, or None where nothing is left to try."""
  return _from_skills(context) or _from_library(context)


# ---------------------------------------------------------------------- skills


def _from_skills(
    context: propose_lib.Context,
) -> propose_lib.Proposal | None:
  """Propose the surest skill whose alert fires and whose factor is untried."""
  tried = {trial.factor for trial in context.history}
  for skill in skills_lib.matching(
      context.skills, context.domain, context.measures
  ):
    first = skill.evidence[0]
    try:
      made = propose_lib.make(
          context,
          skill.apply(context.parent, context.config, context.surface),
          hypothesis=skill.hypothesis,
          expected=skill.expected,
          source=(
              f'skill {skill.sha256[:12]}: {len(skill.evidence)} kept trials in'
              f' {", ".join(skill.domains)}; first {first.run}, trial'
              f' {first.trial}, {100 * first.effect:+.1f} points'
          ),
          trigger=skill.trigger,
          skill=skill.sha256,
      )
    except (skills_lib.SkillError, propose_lib.ProposalError):
      continue
    if made.delta.factor not in tried:
      return made
  return None


# --------------------------------------------------------------------- library


def _from_library(
    context: propose_lib.Context,
) -> propose_lib.Proposal | None:
  candidates = _candidates(context)
  if not candidates:
    return None
  chosen = _choose(context, candidates)
  idea = chosen.idea
  return propose_lib.make(
      context,
      chosen.after,
      hypothesis=idea.hypothesis,
      expected=_belief(context, chosen).interval(),
      source=idea.source,
      trigger=chosen.trigger,
      check=idea.check,
  )


def _belief(context: propose_lib.Context, candidate: _Candidate) -> Belief:
  delta = candidate.delta
  return believe(
      candidate.idea.expected,
      delta.intervention_class,
      delta.factor,
      context.history,
  )


def _candidates(context: propose_lib.Context) -> list[_Candidate]:
  """Return what the alerts call for, or all that applies if that is nothing."""
  alerts = diagnose.raised(context.measures)
  return _called(context, alerts) or _called(context, None)


def _called(
    context: propose_lib.Context, alerts: Sequence[records.Measure] | None
) -> list[_Candidate]:
  """Return the changes that an alert calls for (None: all, without one)."""
  ideas: list[tuple[library.Entry | _Mutation, spec.Harness, str]] = []
  # Factor -> place among the alerts of the worst one that calls for it.
  places: dict[str, int] = {}
  trigger = lambda place: alerts[place].name if alerts else ''
  for entry in library.ENTRIES:
    place = 0
    if alerts is not None:
      answers = [entry.answers(alert, context.surface) for alert in alerts]
      if not any(answers):
        continue
      place = answers.index(True)
    places[entry.factor] = min(place, places.get(entry.factor, place))
    after = entry.change(context)
    if after is not None:
      ideas.append((entry, after, trigger(place)))
  ideas += [
      (mutation, mutation.after, trigger(places[mutation.factor]))
      for mutation in _mutations(context)
      if mutation.factor in places
  ]
  found: dict[str, _Candidate] = {}
  for idea, after, alert in ideas:
    try:
      delta, _ = propose_lib.consider(context, after)
    except propose_lib.ProposalError:
      continue
    found.setdefault(delta.sha256, _Candidate(delta, after, alert, idea))
  return list(found.values())


# ------------------------------------------------------------------- mutations


def _mutations(context: propose_lib.Context) -> list[_Mutation]:
  """Return a further value for every factor with a single changed number."""
  latest = {trial.factor: trial for trial in context.history}
  return [
      mutation
      for factor in sorted(latest)
      if (mutation := _mutate(context, latest[factor])) is not None
  ]


def _mutate(
    context: propose_lib.Context, trial: propose_lib.Trial
) -> _Mutation | None:
  """Return the next value after the last trial of a factor.

  After a kept change the same step is made again. After one that was tried on
  this parent and not kept, the step is twice as long if it gained a little,
  half as long if it lost or failed, and goes the other way once two steps in
  one direction lost.
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
  if trial.status == 'disqualified':  # It never ran, so nothing was learned.
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
  """Count the steps of a path in one direction that lost on this parent."""
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
  """Move `current` by `times` the step from old to new, within the bounds."""
  if field.scale == 'log' and min(old, new, current) > 0:
    ratio = (new / old) ** times
    if abs(math.log(ratio)) < _SMALLEST_STEP:
      return current
    return changes.within(context, field, current * ratio)
  step = times * (new - old)
  if abs(step) < _SMALLEST_STEP * abs(current):
    return current
  return changes.within(context, field, current + step)


# -------------------------------------------------------------------- choosing


def _choose(
    context: propose_lib.Context, candidates: Sequence[_Candidate]
) -> _Candidate:
  """Choose by Thompson sampling: the class first, then the change within it."""
  classes: dict[str, list[_Candidate]] = {}
  for candidate in candidates:
    classes.setdefault(candidate.delta.intervention_class, []).append(candidate)
  tried = [trial.intervention_class for trial in context.history]
  untried = [name for name in classes if name not in tried]
  repeats = len(tried) - len(set(tried))
  allowed = math.ceil((len(tried) + 1) * (1 - _EXPLORED))
  eligible = untried if untried and repeats >= allowed else list(classes)
  # Sorted, so that equal contexts draw equal numbers for equal classes.
  gains = {
      name: _sample_class(context, name, classes[name])
      for name in sorted(eligible)
  }
  return max(
      classes[max(gains, key=gains.__getitem__)],
      key=lambda c: _belief(context, c).sample(context.rng),
  )


def _sample_class(
    context: propose_lib.Context, name: str, members: Sequence[_Candidate]
) -> float:
  """Sample what a class would gain; -inf if its change would not even run."""
  mine = [t for t in context.history if t.intervention_class == name]
  ran = sum(trial.effect is not None for trial in mine)
  runs = context.rng.random() < (ran + 1) / (len(mine) + 1)
  low, high = np.mean([c.idea.expected for c in members], axis=0)
  belief = believe((float(low), float(high)), name, '', mine)
  gain = belief.sample(context.rng)
  return gain if runs else -math.inf
