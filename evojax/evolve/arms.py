"""The arms of a run: what is computed, as jobs for an executor."""

from collections.abc import Sequence
import hashlib
from typing import Any

from evojax import config as config_lib
from evojax.evolve import opening
from evojax.ledger import records
from evojax.training import arm as arm_lib
from evojax.training import setup as setup_lib

_NEWEST = 2  # Checkpoints to resume from; the older one if one is damaged.


def seed_of(run: opening.Training, purpose: str, *key: int) -> int:
  """Return a seed that depends on the run's seed, a purpose and its numbers.

  Not on what was found before: two machines that part in a measurement still
  draw the same numbers.
  """
  text = ' '.join(map(str, (purpose, run.config.seed, *key)))
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], 'big')


def changes(run: opening.Training, seed: int, updates: int) -> dict[str, Any]:
  """Return what an arm of a round changes in the run's config.

  Args:
    run: The run.
    seed: Of the arm's problems and samples.
    updates: Steps of the arm.
  """
  half, most = updates // 2, run.config.checkpoint.every
  # One falls on the half, where arms are compared.
  fitting = [n for n in range(1, most + 1) if half and half % n == 0]
  return {
      'seed': seed,
      'steps': updates,
      # Sealed problems are for the final policies alone.
      'eval.sealed': False,
      'checkpoint.every': max(fitting, default=1),
      # Those at the half and the end stay as well, see `arm.retained`: with the
      # one that is being written, an arm has at most four at once.
      'checkpoint.keep': min(run.config.checkpoint.keep, _NEWEST),
  }


def job(run: opening.Training, **fields: Any) -> arm_lib.ArmJob:
  """Return the job of an arm of a run.

  Args:
    run: The run.
    **fields: Those of `ArmJob` that the run does not hold; without `start` the
      arm starts from the base policy.
  """
  return arm_lib.ArmJob(
      workdir=str(run.path),
      config=config_lib.to_mapping(run.config),
      **{'start': '', **fields},
  )


def train_all(
    run: opening.Training,
    jobs: Sequence[arm_lib.ArmJob],
    stage: str,
    groups: Sequence[int] | None = None,
    place: tuple[int, int] = (0, 0),
) -> list[records.Arm | None]:
  """Train arms, side by side as far as the executor can.

  Args:
    run: The run.
    jobs: In the order of the records.
    stage: Name of the stage that they are, for the progress.
    groups: Group of each arm: one that is not 'done' decides about its group,
      whose later arms are not trained. None: all are trained.
    place: Other arms of the stage, before and after these.

  Returns:
    One record per job, None where it was not trained.
  """
  # All are queued before the first is waited for: workers train side by side.
  first, later = place
  run.progress.enter(stage, arm=first, arms=first + len(jobs) + later)
  for job_ in jobs:
    run.executor.submit(job_)
  found: list[records.Arm | None] = []
  decided: set[int] = set()
  for i, job_ in enumerate(jobs):
    group = groups[i] if groups else -1
    if group in decided:
      run.executor.cancel(job_)
      found.append(None)
      continue
    run.progress.enter(stage, arm=first + i)
    found.append(arm := run.executor.wait(job_))
    if groups and arm.status != 'done':
      decided.add(group)
  return found


def train_one(
    run: opening.Training, job_: arm_lib.ArmJob, stage: str, refusal: str
) -> records.Arm:
  """Train an arm that the run cannot do without, a stage of its own.

  Raises:
    ValueError: If it does not train; begins with `refusal`.
  """
  (arm,) = train_all(run, [job_], stage)
  if arm.status != 'done':
    raise ValueError(f'{refusal}: {arm.why}')
  return arm


def setup_under(run: opening.Training, harness: str) -> setup_lib.Setup:
  """Return the setup of an arm with the seed of the run, for replays."""
  changed = changes(run, run.config.seed, run.config.evolve.updates)
  arm = job(run, folder='', harness=harness, changes=changed, label='')
  return run.setup.under(arm.arm_config())
