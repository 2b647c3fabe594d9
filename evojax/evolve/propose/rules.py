"""The default proposer: a diagnosis, interventions, and the ledger.

Remedies that the diagnosis names come first, then skills whose alert or finding
is raised. Otherwise the interventions that an alert calls for compete with
numeric mutations of earlier changes: Thompson sampling chooses the intervention
class, then the change within it. Beliefs are Normal: the library's interval is
the prior, the trials of the run are observations. No language model is called,
and equal contexts give equal proposals.
"""

from collections.abc import Sequence
import dataclasses
import itertools
import math

import numpy as np

from evojax.evolve import diagnose
from evojax.evolve import propose as propose_lib
from evojax.evolve import repairs
from evojax.evolve import skills as skills_lib
from evojax.evolve.propose import agents
from evojax.evolve.propose import changes
from evojax.evolve.propose import directions
from evojax.evolve.propose import discovered
from evojax.evolve.propose import library
from evojax.evolve.propose import remedies
from evojax.harness import delta as delta_lib
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.stats import intervals

# Standard deviations of the true effect between changes of the same factor, and
# of the same class. The smaller it is, the more a trial tells about others.
_SPREAD_FACTOR = 0.03
_SPREAD_CLASS = 0.06
# Share of the trials that goes to untried classes while an alert calls for one.
# Priors come from other policies, so each class is tried before it is trusted.
_EXPLORED = 0.75
_REMEDY = (-0.02, 0.25)  # Expected effect of a change that repairs a fault.
# Relative size; the effect of a smaller step is lost in the noise of a trial.
_SMALLEST_STEP = 0.05


@dataclasses.dataclass(frozen=True)
class _Candidate:
  """A change that may be proposed."""

  delta: delta_lib.Delta
  after: spec.Harness
  trigger: str
  idea: library.Entry


@dataclasses.dataclass(frozen=True)
class Belief:
  """A Normal distribution of an effect on Avg@k."""

  mean: float
  deviation: float

  def interval(self) -> tuple[float, float]:
    """The central 90 % interval."""
    half = intervals.Z90 * self.deviation
    return round(self.mean - half, 4), round(self.mean + half, 4)

  def sample(self, rng: np.random.Generator) -> float:
    return float(rng.normal(self.mean, self.deviation))


def believe(
    expected: tuple[float, float],
    intervention_class: str,
    factor: str,
    history: Sequence[history_lib.Trial],
) -> Belief:
  """Return the posterior of an effect, given the trials of its class.

  The observations are the realised effects with variance SE^2 + spread^2. The
  effect of a kept change of the same factor counts half, since repeating a step
  gains less. Trials without an effect (a crash) are no observation.

  Args:
    expected: Central 90 % interval of the prior.
    intervention_class: The class whose trials are the observations.
    factor: The factor of the change; '' stands for the class as a whole.
    history: Trials of the run.

  Returns:
    The posterior of the effect.
  """
  low, high = expected
  mean = (low + high) / 2
  variance = max((high - low) / 2 / intervals.Z90, 1e-4) ** 2
  for trial in history:
    if trial.intervention_class != intervention_class or trial.effect is None:
      continue
    same, effect = trial.delta.factor == factor, trial.effect
    near = same or not factor
    # The interval is Student's: after two pairs it is six times as wide as one
    # of a Normal distribution with this error.
    error = trial.standard_error
    if error is None:
      bottom, top = trial.realised
      error = (top - bottom) / 2 / intervals.Z95
    if same and trial.status == 'keep':
      effect /= 2
    noise = error**2 + (_SPREAD_FACTOR if near else _SPREAD_CLASS) ** 2
    gain = variance / (variance + noise)
    mean += gain * (effect - mean)
    variance *= 1 - gain
  return Belief(mean, math.sqrt(variance))


def propose(context: propose_lib.Context) -> propose_lib.Proposal | None:
  """Return the next change.

  It is None if nothing is left to try, or while the repair of a critical fault
  waits or races.
  """
  if found := _from_findings(context):
    return found
  critical = {f.check for f in context.findings if f.severity == 'critical'}
  for trial in context.history:
    if trial.verify is not None:
      continue
    changed = repairs.severity(context.findings, trial.delta.changes)
    if trial.hypothesize.trigger in critical or changed == 'critical':
      return None  # Faults are repaired before anything else is changed.
  return _from_skills(context) or _from_library(context)


# -------------------------------------------------------------------- findings


def _from_findings(context: propose_lib.Context) -> propose_lib.Proposal | None:
  """Propose the first untried remedy of the worst finding."""
  for finding in context.findings:
    for remedy in finding.remedies:
      change = remedies.change(context, remedy)
      if change is None or (after := change.apply(context)) is None:
        continue
      try:
        return propose_lib.make(
            context,
            after,
            hypothesis=f'{_capitalized(finding.text)}.',
            expected=_REMEDY,
            source=f'evojax: the check {finding.check} of evojax-diagnose',
            trigger=finding.check,
        )
      except propose_lib.ProposalError:
        continue
  return None


def _capitalized(text: str) -> str:
  """Return a sentence with a capital letter, unless a field's name is first."""
  first = text.partition(' ')[0]
  named = '.' in first or '_' in first
  return text if named else text[:1].upper() + text[1:]


# ---------------------------------------------------------------------- skills


def _from_skills(context: propose_lib.Context) -> propose_lib.Proposal | None:
  """Propose the best-supported skill that applies and has an untried factor."""
  tried = {trial.delta.factor for trial in context.history}
  for skill in skills_lib.matching(
      context.skills, context.domain, context.measures, context.findings
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
    if made.delta.factor in tried:
      continue
    if context.is_worth_trying(made.delta, made.expected):
      return made
  return None


# --------------------------------------------------------------------- library


def _from_library(context: propose_lib.Context) -> propose_lib.Proposal | None:
  """Propose a change that an alert calls for, else any that applies."""
  alerts = diagnose.raised(context.measures)
  candidates = _called(context, alerts) or _called(context, None)
  candidates = [
      c
      for c in candidates
      if context.is_worth_trying(c.delta, _belief(context, c).interval())
  ]
  if not candidates:
    return None
  chosen = _choose(context, candidates)
  return propose_lib.make(
      context,
      chosen.after,
      hypothesis=chosen.idea.hypothesis,
      expected=_belief(context, chosen).interval(),
      source=chosen.idea.source,
      trigger=chosen.trigger,
      check=chosen.idea.check,
  )


def _belief(context: propose_lib.Context, candidate: _Candidate) -> Belief:
  expected, delta = candidate.idea.expected, candidate.delta
  return believe(
      expected, delta.intervention_class, delta.factor, context.history
  )


def _called(
    context: propose_lib.Context, alerts: Sequence[records.Measure] | None
) -> list[_Candidate]:
  """Return the changes that alerts call for; for None, all changes."""
  surface = context.surface
  ideas: list[tuple[library.Entry, int]] = []
  # Factor -> index of the worst alert that calls for it.
  places: dict[str, int] = {}
  known = itertools.chain(
      library.ENTRIES.values(),
      agents.entries(context),
      discovered.entries(context),
      directions.entries(context),
  )
  for entry in known:
    place = 0
    if alerts is not None:
      answers = [entry.answers(alert, surface) for alert in alerts]
      if not any(answers):
        continue
      place = answers.index(True)
    factor = entry.change.factor(surface)
    places[factor] = min(place, places.get(factor, place))
    ideas.append((entry, place))
  mutations = ((m, m.change.factor(surface)) for m in _mutations(context))
  ideas += [(m, places[factor]) for m, factor in mutations if factor in places]
  found: dict[str, _Candidate] = {}
  for idea, place in ideas:
    if (after := idea.apply(context)) is None:
      continue
    try:
      delta, _ = propose_lib.consider(context, after)
    except propose_lib.ProposalError:
      continue
    trigger = alerts[place].name if alerts else ''
    # Two entries may make the same change: the first gives hypothesis, source.
    found.setdefault(delta.sha256, _Candidate(delta, after, trigger, idea))
  return list(found.values())


# ------------------------------------------------------------------- mutations


def _mutations(context: propose_lib.Context) -> list[library.Entry]:
  """Return a further value for every factor with a single changed number."""
  latest = {trial.delta.factor: trial for trial in context.history}
  found = (_mutate(context, latest[factor]) for factor in sorted(latest))
  return [mutation for mutation in found if mutation is not None]


def _mutate(
    context: propose_lib.Context, trial: history_lib.Trial
) -> library.Entry | None:
  """Return the next value to try after the last trial of a factor.

  After a kept change, the same step is made again. After a change that was
  tried on this parent and not kept, the step is doubled if it gained a little,
  and halved if it lost or failed; its direction is reversed once two steps in
  that direction have lost.
  """
  if trial.verify is None:  # It waits or races: it has neither won nor lost.
    return None
  (path, old, new), *others = trial.delta.changes
  if others or path.partition(':')[0].endswith('.py'):
    return None
  field = context.surface.field(path)
  current = context.config.get(path, 0.0)
  numbers = all(map(skills_lib.is_number, (old, new, current)))
  if field.kind not in ('float', 'int') or not numbers:
    return None
  # It never ran, so nothing was learned.
  if trial.status in ('disqualified', 'size_blocked'):
    return None
  # A field that is off cannot be changed further in that direction: the step
  # 10 -> 0 lifts a limit, and the same step again would set a limit of 1.
  if trial.status == 'keep' and new == field.off:
    return None
  here = trial.delta.before == context.parent.sha256
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
  return library.Entry(
      change=changes.set_value(path, value),
      expected=expected,
      hypothesis=f'{path} {old:g} -> {new:g} {why}, {current:g} -> {value:g}.',
      source=f'numeric mutation of delta {trial.delta.sha256[:12]}',
  )


def _lost_steps(context: propose_lib.Context, path: str, up: bool) -> int:
  """Count the losing steps of a path in one direction on this parent."""
  lost = [
      t.delta.changes
      for t in context.history
      if t.delta.before == context.parent.sha256
      and t.verify
      and (t.effect is None or t.effect <= 0)
  ]
  # All are numbers, since the steps start from this parent's value.
  return sum(
      changed == path and (new > old) == up
      for (changed, old, new), *others in lost
      if not others
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
    value, small = current * ratio, abs(math.log(ratio)) < _SMALLEST_STEP
  else:
    step = times * (new - old)
    value, small = current + step, abs(step) < _SMALLEST_STEP * abs(current)
  return current if small else changes.within(context, field.path, value)


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
  # Sorted, so that equal contexts draw equal numbers for equal classes. Each
  # class is sampled once, so that a large class has no better chance.
  best = max(
      sorted(eligible), key=lambda n: _sample_class(context, n, classes[n])
  )
  return max(
      classes[best], key=lambda c: _belief(context, c).sample(context.rng)
  )


def _sample_class(
    context: propose_lib.Context, name: str, members: Sequence[_Candidate]
) -> float:
  """Sample the gain of a class; -inf if its change would not even run."""
  mine = [
      t for t in context.history if t.verify and t.intervention_class == name
  ]
  ran = sum(trial.effect is not None for trial in mine)
  runs = context.rng.random() < (ran + 1) / (len(mine) + 1)
  # The best change of a class counts, so that having many is no disadvantage.
  expected = max((c.idea.expected for c in members), key=lambda e: (sum(e), e))
  belief = believe(expected, name, '', mine)
  gain = belief.sample(context.rng)
  return gain if runs else -math.inf
