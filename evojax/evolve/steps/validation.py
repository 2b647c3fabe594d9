"""Evidence for the validation of a diagnostic or a backtest statistic."""

import dataclasses

from evojax.episodes import collect
from evojax.evolve import opening
from evojax.evolve import recorded
from evojax.evolve import validate
from evojax.evolve.steps import backtest
from evojax.harness import delta as delta_lib
from evojax.harness import run as run_lib
from evojax.ledger import records
from evojax.runtime import decisions


def validated(
    run: opening.Run,
    version: records.Version,
    design: records.Design,
    delta: delta_lib.Delta,
) -> validate.Validation:
  """Decide on a change that trains nothing, by the run's records.

  Args:
    run: The run.
    version: The parent.
    design: The candidate.
    delta: The change: a diagnostic or a backtest.
  """
  kind, _, name = delta.factor.partition(':')
  if delta.sources[0][1] == '':
    return validate.discarded(
        f'{delta.factor} was taken out: nothing is left to validate'
    )
  functions = run.harnesses.functions(design.harness)
  if kind == 'backtest':
    found = validate.backtest(_past_trials(run, functions, name))
  else:
    measures = recorded.measure(run, [version.folder], design.harness, ())
    if any(m.name == name and m.status == 'name_taken' for m in measures):
      return validate.discarded(f'{name} gives a number a name that is taken')
    found = validate.diagnostic(_readings(run, functions, name))
  # Every process reads the numbers, but process 0 decides, so that rounding
  # cannot make processes disagree.
  kept, reasons = decisions.decide(lambda: dataclasses.astuple(found))
  return validate.Validation(kept, tuple(reasons))


def _readings(
    run: opening.Run, functions: run_lib.Functions, name: str
) -> list[validate.Readings]:
  """Run a diagnostic on the recent evidence of every past version."""
  # A version that trained nothing has the evidence of its parent.
  versions = {v.folder: v for v in reversed(run.recorder.history.versions)}
  found = []
  for version in reversed(versions.values()):
    folder = run.path / version.folder
    steps = recorded.train_steps(folder)
    # The last third, as in a diagnosis, or more if it has too few groups.
    needed = -(-validate.SLICES // run.config.grpo.prompts)
    steps = steps[-max(needed, len(steps) // 3) :]
    rows = recorded.load_rows([(folder, step) for step in steps])
    config = run.harnesses.config_under(version.harness)
    columns = collect.columns(run.setup.domain, config)
    whole, *slices = (
        validate.read(functions, name, recorded.view_of(part, columns, config))
        for part in (rows, *validate.slices(rows))
    )
    found.append(validate.Readings(version.version, whole, tuple(slices)))
  return found


def _past_trials(
    run: opening.Run, functions: run_lib.Functions, name: str
) -> list[validate.PastTrial]:
  """Run a statistic on the evidence of every trial with a known effect."""
  history = run.recorder.history
  versions = {v.version: v for v in history.versions}
  found = []
  for trial in (t for t in history.trials if t.effect is not None):
    parent = versions[trial.parent]
    folder = run.path / parent.folder
    steps = recorded.recent(recorded.train_steps(folder))
    views = tuple(
        backtest.rewarded(run, harness, folder, steps)[1]
        for harness in (parent.harness, trial.design.harness)
    )
    known = dict(trial=trial.number, effect=trial.effect)
    found.append(validate.predict(functions, name, views, **known))
  return found
