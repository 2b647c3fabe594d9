"""Evidence for the validation of a diagnostic or a backtest statistic."""

from collections.abc import Sequence
import dataclasses

from evojax.episodes import collect
from evojax.evolve import opening
from evojax.evolve import recorded
from evojax.evolve import search
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
    proposal = run.recorder.find(records.Hypothesize, trial=design.trial)
    found = validate.diagnostic(_readings(run, functions, name, proposal))
  # Every process reads the numbers, but process 0 decides, so that rounding
  # cannot make processes disagree.
  kept, reasons = decisions.decide(lambda: dataclasses.astuple(found))
  return validate.Validation(kept, tuple(reasons))


def _readings(
    run: opening.Run,
    functions: run_lib.Functions,
    name: str,
    proposal: records.Hypothesize,
) -> list[validate.Readings]:
  """Run a diagnostic on the recent evidence of every past version.

  One that a search found is not run on the evidence on which it was chosen. If
  that was the race of a change, it is also run on the pairs that were left out:
  the arms of the change count as one version, and the incumbent's as another.
  """
  history = run.recorder.history
  # A version that trained nothing has the evidence of its parent.
  versions = {v.folder: v for v in reversed(history.versions)}
  places = [
      (v.version, [v.folder], v.harness) for v in reversed(versions.values())
  ]
  # The last third of the steps, as in a diagnosis. To confirm a predicate that
  # a search found, all steps are read.
  part = 3
  if proposal.proposer == search.PROPOSER:
    part, number = 1, search.raced(proposal.trigger)
    if number is None:
      chosen_on = history.version(proposal.version).folder
      places = [place for place in places if place[1] != [chosen_on]]
    else:
      trial = next(t for t in history.trials if t.number == number)
      arms = search.compared(trial, held_out=True)
      for label, folders in zip(
          (f'the arms of trial {number}', "the incumbent's"), arms, strict=True
      ):
        if folders:
          places.append((label, list(folders), trial.delta.before))
  return [_reading(run, functions, name, *p, part) for p in places]


def _reading(
    run: opening.Run,
    functions: run_lib.Functions,
    name: str,
    label: str,
    folders: Sequence[str],
    harness: str,
    part: int,
) -> validate.Readings:
  """Run a diagnostic on the evidence of some arms.

  Args:
    run: The run.
    functions: The functions of the candidate harness.
    name: The diagnostic.
    label: Name of the readings.
    folders: Folders of the arms.
    harness: Hash of the harness that declares their columns.
    part: 1 to read all steps of each arm, 3 for the last third.
  """
  steps = []
  for folder in folders:
    every = recorded.train_steps(run.path / folder)
    # More if they have too few groups.
    needed = -(-validate.SLICES // run.config.grpo.prompts)
    last = every[-max(needed, len(every) // part) :]
    steps += [(run.path / folder, step) for step in last]
  rows = recorded.load_rows(steps)
  config = run.harnesses.config_under(harness)
  columns = collect.columns(run.setup.domain, config)
  whole, *slices = (
      validate.read(functions, name, recorded.view_of(cut, columns, config))
      for cut in (rows, *validate.slices(rows))
  )
  return validate.Readings(label, whole, tuple(slices))


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
