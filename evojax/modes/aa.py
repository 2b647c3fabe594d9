"""--mode=aa: an A/A test, which measures how often races keep equal arms.

    python -m evojax.main --config=configs/math.py --mode=aa --workdir=DIR

Version 0 is trained as in a run that evolves. Then equal arms are trained from
its state: all under the seed harness, each with another seed. Races between
groups of these arms are simulated by the rules of the config. Everything that
they keep is a false keep, because no arm is better than another.

    <workdir>/arms/v0, arms/aa-000, ...   evidence and results of the arms
    <workdir>/aa.json                     the rate and how it was measured
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import math
import shutil
from typing import Any

import ml_collections
import numpy as np

from evojax.eval import estimates
from evojax.eval import paired
from evojax.eval import race
from evojax.eval import simulation
from evojax.evolve import arms as arms_lib
from evojax.evolve import executor as executor_lib
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve.steps import start
from evojax.harness import spec
from evojax.ledger import records
from evojax.runtime import decisions
from evojax.runtime import durable
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import progress as progress_lib
from evojax.runtime import run_files
from evojax.runtime import sharding
from evojax.runtime import workdir as workdir_lib
from evojax.stats import intervals
from evojax.training import arm as arm_lib
from evojax.training import stages

POWER = 0.8
# Arms are trained for this many rounds. With the arms of only one, every
# simulated round would consist of the same arms.
ROUNDS = 2
# Simulated runs with the arms as they are; resamples of the arms; runs with
# each resample. They take two minutes at most on one core.
RUNS, RESAMPLES, RESAMPLED_RUNS = 4000, 100, 300


def run(
    config: ml_collections.ConfigDict,
    workdir: str,
    **placement: Any,
) -> dict[str, Any]:
  """Train equal arms, and measure how often races between them keep one.

  Args:
    config: Config of a run that evolves.
    workdir: Directory of this measurement; the same call continues it, without
      training finished arms again.
    **placement: Fields of `executor.Placement`: where arms are trained.

  Returns:
    The content of workdir/aa.json.

  Raises:
    ValueError: If config, domain, model, harness, workdir or a flag is wrong,
      or if too few arms have a score.
    Preempted: After SIGINT or SIGTERM, with everything saved.
  """
  _check(config)
  placed = executor_lib.Placement(**placement)
  with _open(config, workdir, placed) as (opened, stop_if_asked):
    found = measure(opened, _train(opened), stop_if_asked)
    if opened.primary:
      durable.write_json(opened.path / run_files.EQUAL_ARMS, found)
    for line in found['text']:
      opened.say(line)
    opened.say(f'these numbers: {opened.path / run_files.EQUAL_ARMS}')
  return found


def _check(config: ml_collections.ConfigDict) -> None:
  """Raise ValueError if the config has no race, or has a cost limit.

  This mode has no ledger, so it could not enforce a limit.
  """
  e = config.evolve
  if not e.rounds:
    raise ValueError(
        '--mode=aa measures the races of a run that evolves; this config has'
        ' config.evolve.rounds=0: set it to 1 or more'
    )
  names = 'device_seconds', 'dollars', 'tokens'
  limits = {n: e[n] for n in names if e[n]}
  if limits:
    given = ', '.join(f'config.evolve.{n}={v:g}' for n, v in limits.items())
    raise ValueError(
        f'--mode=aa counts no costs, so that {given} would limit nothing: set'
        f' it to 0. The mode trains evolve.first_updates and the arms of'
        f' {ROUNDS} whole rounds'
    )


# ------------------------------------------------------------------------ arms


@contextlib.contextmanager
def _open(
    config: ml_collections.ConfigDict,
    workdir: str,
    placement: executor_lib.Placement,
) -> Iterator[tuple[opening.Training, Any]]:
  """Yield an opened `Training`, and a function that raises after a signal."""
  primary = sharding.is_primary()
  if primary:
    workdir_lib.check(workdir, config, 'aa')
  setup, seed, *_ = opening.check(config, opening.Options(placement=placement))
  with (
      opening.open_place(setup, config, workdir, 'aa', placement) as place,
      contextlib.ExitStack() as stack,
  ):
    path = place.directory.path

    def stop_if_asked() -> None:
      place.preempt(f'the arms in {path} are saved')
      place.directory.keep()

    phases = metrics_lib.Phases()
    progress = stack.enter_context(
        progress_lib.Progress(
            stages.of_equal_arms(config, ROUNDS),
            every=max(1, config.evolve.updates // 3),
            shown=primary,
        )
    )
    in_process = executor_lib.InProcess(
        setup, place.engine, phases, stop_if_asked, progress
    )
    opened = opening.Training(
        path=path,
        setup=setup,
        seed=seed,
        phases=phases,
        progress=progress,
        executor=stack.enter_context(
            executor_lib.open_executor(
                placement, in_process, shares=place.shares
            )
        ),
    )
    yield opened, stop_if_asked


def _train(run_: opening.Training) -> list[records.Arm]:
  """Return equal arms from the state of version 0; train those not yet there.

  Raises:
    ValueError: If existing arms were trained under another harness.
  """
  if run_.primary:
    spec.write(run_.seed, run_.path / run_files.HARNESSES)
  first = start.train_seed(run_)
  e = run_.config.evolve
  of_round = (1 + e.candidates) * e.pairs
  found: list[records.Arm] = []
  for number in range(ROUNDS):
    jobs = [
        arms_lib.job(
            run_,
            folder=f'arms/aa-{i:03d}',
            harness=run_.seed.sha256,
            changes=arms_lib.changes(
                run_, arms_lib.seed_of(run_, 'aa', i), e.updates
            ),
            start=str(arm_lib.checkpoint_of(first.folder, first.updates)),
            label=f'equal arm {i}',
        )
        for i in range(number * of_round, (number + 1) * of_round)
    ]
    trained = arms_lib.train_all(run_, jobs, stages.equal_arms(number))
    found += [arm for arm in trained if arm]
    if run_.primary:  # Arms are scored by their evidence alone.
      for job in jobs:
        shutil.rmtree(job.path / run_files.CHECKPOINTS, ignore_errors=True)
  for arm in (first, *found):
    if arm.harness != run_.seed.sha256:
      raise ValueError(
          f'{run_.path / arm.folder} was trained under the harness'
          f' {arm.harness[:12]}, and the seed harness is now'
          f' {run_.seed.sha256[:12]}: undo the change, or choose another'
          ' --workdir'
      )
  return found


# --------------------------------------------------------------------- measure


def measure(
    run_: opening.Training,
    arms: Sequence[records.Arm],
    stop_if_asked: Any = lambda: None,
) -> dict[str, Any]:
  """Return the content of aa.json.

  Args:
    run_: The run.
    arms: Equal arms.
    stop_if_asked: Called between simulations; may raise to end them.

  Raises:
    ValueError: If fewer arms have a score than a round needs.
  """
  e = run_.config.evolve
  scores = {
      arm: pairs.own_scores(run_, arm)
      for arm in arms
      if pairs.is_scored(arm, 'rollouts')
  }
  groups = {arm: own[np.isfinite(own)] for arm, own in scores.items()}
  # A standard error needs at least two graded groups.
  scored = {arm: g for arm, g in groups.items() if len(g) > 1}
  least = (1 + e.candidates) * e.pairs
  if len(scored) < least:
    lost = [arm for arm in arms if arm not in scored]
    raise ValueError(
        f'{len(scored)} of {len(arms)} equal arms have a score, and a round'
        f' needs {least}: {lost[0].folder}: {lost[0].status} {lost[0].why}'
    )
  means = np.array([scores.mean() for scores in scored.values()])
  errors = np.array([estimates.standard_error(g) for g in scored.values()])
  rules = simulation.Rules.of(e)
  rate = simulation.false_keeps(
      simulation.Dealt(means, errors, e.pairs),
      rules,
      runs=RUNS,
      resamples=RESAMPLES,
      resampled_runs=RESAMPLED_RUNS,
      beat=stop_if_asked,
  )
  spread = float(means.std(ddof=1))
  effect, rounds = None, min(e.patience, e.rounds)
  if spread:
    # Arms of a pair share nothing here, so their variances add up.
    effect = paired.detectable(
        math.sqrt(2) * spread,
        pairs=e.pairs,
        alpha=race.alpha_of(1, e.entries, 0, rules.level),
        rounds=rounds,
        wanted=POWER,
        worth=race.WORTH,
    )
  found = dict(
      rate=dataclasses.asdict(rate) | dict(level=intervals.LEVEL),
      bound=rules.level,
      spread=spread,
      detectable=dict(effect=effect, power=POWER, rounds=rounds),
      races=dataclasses.asdict(rules)
      | dict(
          pairs=e.pairs,
          runs=RUNS,
          resamples=RESAMPLES,
          runs_of_a_resample=RESAMPLED_RUNS,
      ),
      harness=run_.seed.sha256,
      updates=e.updates,
      trained=len(arms),
      arms=[
          dict(folder=arm.folder, seed=arm.seed, score=score, error=error)
          for arm, score, error in zip(
              scored, means.tolist(), errors.tolist(), strict=True
          )
      ],
  )
  # All processes get the numbers of one process, so that they are
  # bit-identical.
  return decisions.decide(lambda: found | dict(text=sentences(found)))


def sentences(found: dict[str, Any]) -> list[str]:
  """Return the content of aa.json as sentences, one per line to print."""
  races, rate, arms = found['races'], found['rate'], found['arms']
  low, high, bound = rate['low'], rate['high'], found['bound']
  if low > bound:
    verdict = 'The rate is above the bound: these races keep too many changes.'
  elif high > bound:
    verdict = 'The bound lies inside of the interval: more arms would decide.'
  else:
    verdict = 'The rate is within the bound.'
  count = f'{len(arms)} equal arms'
  if found['trained'] > len(arms):
    count += f' (of {found["trained"]}; the others have no score)'
  lines = [
      f'{count} of {found["updates"]} updates from one state, each under a seed'
      ' of its own, are dealt out to incumbent and candidates at random.',
      f'Runs that keep anything, all of it falsely: {rate["value"]:.1%}'
      f' [{low:.1%}, {high:.1%}], with the bound at {bound:.1%}. {verdict}',
      f'Runs are simulated: {races["runs"]:,} of {races["rounds"]} rounds, with'
      f' {races["pairs"]} pairs a round and at most {races["entries"]}'
      f' candidates, {races["candidates"]} at a time. The interval resamples'
      f' the arms, {races["resamples"]} times with'
      f' {races["runs_of_a_resample"]:,} runs each. Events as rare as one arm'
      ' in several hundred cannot show in it.',
      f'Standard deviation between arms: {100 * found["spread"]:.2f} points of'
      ' the share that they solve.',
  ]
  effect = found['detectable']['effect']
  if effect is None:
    lines.append('All arms score the same: the detectable effect is unknown.')
  else:
    lines.append(
        f'A first candidate that is {100 * effect:.1f} points better is kept'
        f' with probability {found["detectable"]["power"]:g} within'
        f' {found["detectable"]["rounds"]} rounds. Pairs of a race also share'
        ' their problems, which is left out here.'
    )
  return lines
