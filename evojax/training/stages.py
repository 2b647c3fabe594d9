"""The stages of a run, as its config implies them: for progress and plans."""

from typing import Any

import ml_collections

from evojax.runtime import progress

FIRST, RETRAINING, SEALED = 'v0', 'retraining', 'sealed scores'
# Share of the trials after which new control arms and perturbed scores are
# needed, because a change was kept: see the runs in BUILD_NOTES.md.
_KEPT = 0.3


def of_training(config: ml_collections.ConfigDict) -> list[progress.Stage]:
  """Return the stages of --mode=train after the base policy's first score."""
  c = config
  between = (c.steps - 1) // c.eval.every if c.eval.every and c.steps else 0
  score = dict(problems=c.eval.problems, samples=c.eval.samples)
  found = [
      progress.Stage(
          name='',
          steps=c.steps,
          prompts=c.grpo.prompts,
          group_size=c.grpo.group_size,
          scores=between + 1,
          **score,
      )
  ]
  if c.eval.sealed:
    found.append(progress.Stage(name=SEALED, arms=2, **score))
  return found


def of_trial(
    config: ml_collections.ConfigDict, trial: int
) -> list[progress.Stage]:
  """Return the stages of a trial; every one may end early."""
  e = config.evolve
  step = dict(prompts=e.prompts, group_size=e.group_size)
  arm = step | dict(steps=e.updates, problems=e.problems, samples=e.samples)

  def stage(role: str, arms: int, expected: float | int, **fields: Any):
    name = trial_name(config, trial, role)
    return progress.Stage(name=name, arms=arms, expected=expected, **fields)

  # A version that was not changed has its control arms already.
  again = _KEPT if trial else 1
  children = (e.children + e.max_children) / 2
  scored = e.controls + e.max_children
  return [
      # Parent and candidate, from an early and a late checkpoint.
      stage(
          'backtest',
          4,
          4,
          steps=e.replay_updates,
          replays=True,
          problems=e.replay_problems,
          samples=e.samples,
          **step,
      ),
      stage('control', e.controls, again * e.controls, **arm),
      stage('child', e.max_children, children, **arm),
      stage(
          'perturbed score',
          scored,
          _KEPT * scored,
          problems=e.problems,
          samples=max(1, e.samples // 2),
      ),
  ]


def trial_name(config: ml_collections.ConfigDict, trial: int, role: str) -> str:
  """Return the name of a stage of a trial; trials are numbered from 0."""
  return f'trial {trial} ({trial + 1}/{config.evolve.trials}) {role}'


def of_evolution(
    config: ml_collections.ConfigDict, compared: int = 0
) -> list[progress.Stage]:
  """Return the stages of a run that evolves.

  Args:
    config: Of the run.
    compared: Policies of other runs that are scored beside it.
  """
  c, e = config, config.evolve
  first = progress.Stage(
      name=FIRST,
      steps=e.first_updates,
      prompts=e.prompts,
      group_size=e.group_size,
  )
  last = progress.Stage(
      name=RETRAINING,
      steps=c.steps,
      prompts=c.grpo.prompts,
      group_size=c.grpo.group_size,
  )
  # The base policy, and both that evolved.
  sealed = progress.Stage(
      name=SEALED,
      arms=3 + compared,
      problems=c.eval.problems,
      samples=c.eval.samples,
  )
  trials = [stage for t in range(e.trials) for stage in of_trial(c, t)]
  return [first, *trials, last, sealed]
