"""The stages of a run, as its config implies them: for progress and plans."""

import ml_collections

from evojax.runtime import progress

FIRST, RETRAINING, SEALED = 'v0', 'retraining', 'sealed scores'


def of_training(config: ml_collections.ConfigDict) -> list[progress.Stage]:
  """Return the stages of --mode=train after the base policy's first score."""
  c = config
  score = c.eval.problems * c.eval.samples
  between = (c.steps - 1) // c.eval.every if c.eval.every and c.steps else 0
  return [
      progress.Stage(
          name='',
          steps=c.steps,
          completions=c.grpo.prompts * c.grpo.group_size,
          scored_between=between * score,
      ),
      # The dev problems, then the sealed ones for both policies.
      progress.Stage(
          name='scores', arms=3 if c.eval.sealed else 1, scored=score
      ),
  ]


def of_trial(
    config: ml_collections.ConfigDict, trial: int
) -> list[progress.Stage]:
  """Return the stages of a trial, at most: every one may end early."""
  c, e = config, config.evolve
  may = dict(certain=False)
  arm = may | dict(
      steps=e.updates,
      completions=e.prompts * e.group_size,
      scored=e.problems * e.samples,
  )
  name = lambda role: trial_name(config, trial, role)
  return [
      # Parent and candidate, from an early and a late checkpoint.
      progress.Stage(
          name=name('backtest'),
          arms=4,
          steps=min(e.replay_updates, e.first_updates),
          completions=e.prompts * e.group_size,
          scored=e.replay_problems * e.samples,
          **may,
      ),
      # A version that was not changed has its control arms already.
      progress.Stage(name=name('control'), arms=e.controls, **arm),
      progress.Stage(name=name('child'), arms=e.max_children, **arm),
      progress.Stage(
          name=name('perturbed score'),
          arms=e.controls + e.max_children,
          scored=e.problems * max(1, e.samples // 2),
          **may,
      ),
  ]


def trial_name(config: ml_collections.ConfigDict, trial: int, role: str) -> str:
  """Return the name of a stage of a trial; trials are counted from 0."""
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
  trials = [of_trial(config, trial) for trial in range(e.trials)]
  return [
      progress.Stage(
          name=FIRST,
          steps=e.first_updates,
          completions=e.prompts * e.group_size,
      ),
      *sum(trials, []),
      progress.Stage(
          name=RETRAINING,
          steps=c.steps,
          completions=c.grpo.prompts * c.grpo.group_size,
      ),
      # The base policy, and both that evolved.
      progress.Stage(
          name=SEALED,
          arms=3 + compared,
          scored=c.eval.problems * c.eval.samples,
      ),
  ]
