"""Accumulate: record what was learned from a trial, or withdraw it."""

from evojax.evolve import opening
from evojax.evolve import propose as propose_lib
from evojax.evolve import skills as skills_lib
from evojax.harness import delta as delta_lib
from evojax.ledger import records
from evojax.runtime import decisions
from evojax.runtime import numerals
from evojax.runtime import run_files


def conclude(run: opening.Run, verdict: records.Verify) -> None:
  """Record the lesson of a verdict, once, and print it."""
  find, trial = run.recorder.find, verdict.trial
  proposal = find(records.Hypothesize, trial=trial)
  designed = find(records.Design, trial=trial)
  parent = run.recorder.history.version(proposal.version)
  delta = run.harnesses.delta(parent.harness, designed.harness)
  run.recorder.record(
      records.Accumulate,
      lambda: accumulate(run, parent, delta, proposal, verdict),
      trial=trial,
  )
  run.say(in_a_line(verdict))


def accumulate(
    run: opening.Run,
    version: records.Version,
    delta: delta_lib.Delta,
    proposal: records.Hypothesize,
    verdict: records.Verify,
) -> records.Accumulate:
  """Return the skill that was learned, and how good the predictions were."""
  predicted = sum(proposal.expected) / 2
  realised = verdict.effect
  backtest = run.recorder.find(records.Backtest, trial=verdict.trial)
  replayed = backtest.statistics.get('replayed_effect') if backtest else None
  if not isinstance(replayed, float):
    replayed = None  # The backtest's row says why there is no number.

  def agrees(prediction: float | None) -> bool | None:
    # A prediction of exactly 0 has no sign to agree with.
    if not prediction or realised is None:
      return None
    return (prediction > 0) == (realised > 0)

  return records.Accumulate(
      trial=verdict.trial,
      skill=decisions.decide(
          lambda: _learn(run, version, delta, proposal, verdict)
      ),
      validity=records.Validity(
          intervention_class=delta.intervention_class,
          proposer=proposal.proposer,
          predicted=predicted,
          replayed=replayed,
          realised=realised,
          sign_agrees=agrees(predicted),
          replay_sign_agrees=agrees(replayed),
      ),
  )


def _learn(
    run: opening.Run,
    version: records.Version,
    delta: delta_lib.Delta,
    proposal: records.Hypothesize,
    verdict: records.Verify,
) -> str:
  """Write the skill that a kept trial supports; return its hash, or ''."""
  known = proposal.trigger and not propose_lib.is_users(proposal.trigger)
  # The repair of a critical fault may be kept without a gain.
  gained = verdict.effect is not None and verdict.effect > 0
  if verdict.status != 'keep' or not gained or not known:
    return ''
  try:
    skill = skills_lib.learned(
        delta,
        run.harnesses.load(delta.after),
        run.harnesses.values(version.harness),
        run.setup.surface,
        trigger=proposal.trigger,
        hypothesis=proposal.hypothesis,
        evidence=skills_lib.Evidence(
            run=_name(run),
            trial=verdict.trial,
            domain=run.config.domain.name,
            base=version.harness,
            effect=verdict.effect,
            # With few arms, the interval may exceed the range of effects.
            low=max(verdict.low, -1.0),
            high=min(verdict.high, 1.0),
        ),
    )
  except skills_lib.SkillError:
    return ''
  skills_lib.write(run.path / run_files.SKILLS, skill)
  return skill.sha256


def unlearn(run: opening.Run, trial: int) -> None:
  """Withdraw the skill of a trial whose change is taken back."""
  learned = run.recorder.find(records.Accumulate, trial=trial)
  if learned.skill:
    folder, name = run.path / run_files.SKILLS, _name(run)
    decisions.decide(
        lambda: skills_lib.withdraw(folder, learned.skill, name, trial)
    )


def _name(run: opening.Run) -> str:
  """Return the run's name at its start; a resumed run may have another one."""
  return run.recorder.find(records.Open).config['name']


def in_a_line(verdict: records.Verify) -> str:
  """Return the outcome of a trial in one line."""
  text = f'trial {verdict.trial}: {verdict.status}'
  if verdict.effect is not None:
    text += f', {numerals.points(verdict.effect)} points'
    text += f' {numerals.between((verdict.low, verdict.high))}'
  return f'{text} ({"; ".join(verdict.reasons)})'
