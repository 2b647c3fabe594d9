"""Race: the arms of a round, trained from one state and compared in pairs.

The incumbent harness and each candidate get one arm per seed. The i-th arms of
all harnesses share problems and sampler seeds: a pair of them differs in the
harness alone. The share that a pair solves in its own rollouts is its score
where candidates sample as the incumbent does; else all arms of the round answer
the same fresh dev problems.
"""

from collections.abc import Iterator, Sequence
import functools
import itertools
from typing import Any

from evojax.evolve import arms
from evojax.evolve import opening
from evojax.evolve import recorder
from evojax.evolve import scoring
from evojax.evolve import standings
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.training import arm as arm_lib
from evojax.training import stages

# Intervention classes under which rollouts of two harnesses do not compare:
# they change what is asked, how it is sampled, or how long an answer may be.
SAMPLED_OTHERWISE = ('data', 'exploration', 'length')


def race(
    run: opening.Run,
    version: records.Version,
    number: int,
    field: Sequence[history_lib.Trial],
) -> records.Race:
  """Train the arms of a round, score them, and say how candidates stand.

  Args:
    run: The run.
    version: Whose state all arms start from, and whose harness is the
      incumbent.
    number: Of the round.
    field: The candidates; none trains the incumbent alone.

  Raises:
    ValueError: If no arm of the incumbent trains.
    RuntimeError: If the arms did not start alike.
  """
  e = run.config.evolve
  standings.announce(run, number, field)
  make = functools.partial(_job, run, version, number)
  trained = arms.train_all(
      run,
      [make(i, version.harness, 'incumbent') for i in range(e.pairs)],
      stages.round_name(run.config, number, 'incumbent'),
  )
  found = [(None, arm) for arm in trained]
  controls = tuple(arm.outcome for arm in trained if arm.status == 'done')
  if not controls:
    raise ValueError(
        f'{version.version}: its harness does not train any more:'
        f' {trained[0].status} {trained[0].why}'
    )
  jobs, groups = [], []
  for trial in field:
    harness = run.harnesses.rebased(
        trial.delta.before, trial.design.harness, version.harness
    )
    # Else they would compare what is sampled, not what is learned.
    alike = trial.intervention_class not in SAMPLED_OTHERWISE
    compared = controls if alike and len(controls) > 1 else ()
    for i in range(e.pairs):
      name = f't{trial.number:03d}'
      jobs.append(make(i, harness, name, controls=compared))
      groups.append(trial.number)
  stage = stages.round_name(run.config, number, 'candidates')
  trained = arms.train_all(run, jobs, stage, groups)
  found += [pair for pair in zip(groups, trained, strict=True) if pair[1]]
  starts = {arm.start for _, arm in found}
  # From different states, arms would compare policies and not harnesses.
  if starts != {version.end}:
    raise RuntimeError(
        f'arms of round {number} started from {sorted(starts)}, not from'
        f' {version.version}, {version.end}'
    )
  by_dev = any(t.intervention_class in SAMPLED_OTHERWISE for t in field)
  raced, scores, groups = [], {None: {}, **{t.number: {} for t in field}}, {}
  for trial, arm in found:
    pair = sum(a.trial == trial for a in raced)
    score = None
    if arm.status == 'done':
      if by_dev:
        each, sizes = run.scorer.scores(on_dev(run, number, pair, arm)), ()
      else:
        each, sizes = standings.own_scores(run, arm)
      scores[trial][pair], groups[trial, pair] = each, sizes
      score = float(each.mean())
    dev = dev_folder(number, arm.folder)
    fields = dict(trial=trial, pair=pair, score=score, dev=dev)
    raced.append(recorder.made_from(records.RacedArm, arm, **fields))
  placed = []
  for trial, index in zip(field, _indices(run, field), strict=True):
    shared = {
        i: groups.get((trial.number, i)) == groups.get((None, i))
        for i in range(e.pairs)
    }
    placed.append(
        standings.standing(
            run,
            trial,
            index,
            *standings.differences(scores, trial.number, shared),
            last=is_last(run, number, trial),
        )
    )
  return records.Race(
      round=number,
      version=version.version,
      start=version.end,
      scored_by='dev' if by_dev else 'rollouts',
      arms=tuple(raced),
      standings=tuple(placed),
  )


def _indices(
    run: opening.Run, field: Sequence[history_lib.Trial]
) -> Iterator[int]:
  """Yield the places of candidates in the order in which they entered."""
  known = standings.entered(run)
  following = itertools.count(1 + len(known))
  for trial in field:
    yield known.get(trial.number) or next(following)


def is_last(run: opening.Run, number: int, trial: history_lib.Trial) -> bool:
  """Return whether a candidate may race no more after a round."""
  e = run.config.evolve
  # Without this round, whether its row is there or not.
  before = sum(race.round < number for race in trial.races)
  return before + 1 >= e.patience or number + 1 >= e.rounds


def _job(
    run: opening.Run,
    version: records.Version,
    number: int,
    pair: int,
    harness: str,
    name: str,
    **fields: Any,
) -> arm_lib.ArmJob:
  """Return the job of an arm of a round."""
  seed = arms.seed_of(run, 'arm', number, pair)
  return arms.job(
      run,
      folder=f'arms/r{number:03d}-{name}-{pair}',
      harness=harness,
      changes=arms.changes(run, seed, run.config.evolve.updates),
      start=version.checkpoint,
      label=f'round {number}: {name}, pair {pair}',
      **fields,
  )


def dev_folder(number: int, folder: str) -> str:
  """Return where the dev evidence of an arm lies, below the workdir."""
  return f'rounds/{number:03d}/{folder.removeprefix("arms/")}'


def on_dev(
    run: opening.Run, number: int, pair: int, arm: records.Arm, **fields: Any
) -> scoring.Scored:
  """Return the last state of an arm on the dev problems of its pair.

  No other pair is asked them, as far as the split goes: what some problems make
  of a change is then part of the spread between pairs.

  Args:
    run: The run.
    number: Of the round.
    pair: Of the arm.
    arm: A finished arm.
    **fields: Of `scoring.Scored`, if they differ.
  """
  e = run.config.evolve
  wanted = dict(
      folder=run.path / dev_folder(number, arm.folder),
      checkpoint=arm_lib.checkpoint_of(run.path / arm.folder, arm.updates),
      split='dev',
      seed=run.config.seed,
      first=(number * e.pairs + pair) * e.problems,
      problems=e.problems,
      samples=e.samples,
      step=arm.updates,
  )
  return scoring.Scored(**wanted | fields)
