"""The arms of a run: their jobs for an executor, and their training."""

from collections.abc import Sequence
import hashlib
from typing import Any

from evojax import config as config_lib
from evojax.evolve import opening
from evojax.ledger import records
from evojax.training import arm as arm_lib
from evojax.training import setup as setup_lib

_NEWEST = 2  # Checkpoints to resume from: the older if the newer is damaged.


def seed_of(run: opening.Training, purpose: str, *key: int | str) -> int:
  """Return a seed derived from the run's seed, a purpose and a key.

  It does not depend on measured values: two machines whose measurements
  differ still draw the same numbers.
  """
  text = ' '.join(map(str, (purpose, run.config.seed, *key)))
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], 'big')


def changes(run: opening.Training, seed: int, updates: int) -> dict[str, Any]:
  """Return the config values that an arm of a round overrides.

  Args:
    run: The run.
    seed: Seed of the arm's samples, and of its problems unless its job names
      them (`ArmJob.problems`).
    updates: Number of update steps of the arm.

  Returns:
    Values of config fields by dotted path.
  """
  half, most = updates // 2, run.config.checkpoint.every
  # One checkpoint falls on the halfway step, where arms are compared.
  fitting = [n for n in range(1, most + 1) if half and half % n == 0]
  return {
      'seed': seed,
      'steps': updates,
      # Only final policies are scored on sealed problems.
      'eval.sealed': False,
      'checkpoint.every': max(fitting, default=1),
      # The checkpoints halfway and at the end are kept as well, see
      # `arm.retained`. With the one being written, an arm has at most four.
      'checkpoint.keep': min(run.config.checkpoint.keep, _NEWEST),
  }


def job(run: opening.Training, **fields: Any) -> arm_lib.ArmJob:
  """Return the job of an arm of a run.

  Args:
    run: The run.
    **fields: Fields of `ArmJob` that the run does not determine. Without
      `start` the arm starts from the base policy.
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
    whose: Sequence[str] = (),
) -> list[records.Arm | None]:
  """Train arms, as many at a time as the executor can.

  Args:
    run: The run.
    jobs: Jobs of the arms, in the order of the returned records.
    stage: Name of the stage, shown in the progress line.
    groups: Group of each arm. Once an arm of a group ends with a status other
      than 'done', the later arms of that group are skipped. None trains all.
    place: Number of arms of the same stage before and after these.
    whose: Role of each arm's harness, shown in the progress line, if they
      differ.

  Returns:
    One record per job; None for a skipped one.
  """
  # All are submitted before the first wait, so that workers run in parallel.
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
    role = whose[i] if whose else ''
    run.progress.enter(stage, arm=first + i, whose=role)
    found.append(arm := run.executor.wait(job_))
    if groups and arm.status != 'done':
      decided.add(group)
  return found


def train_one(
    run: opening.Training, job_: arm_lib.ArmJob, stage: str, refusal: str
) -> records.Arm:
  """Train an arm without which the run cannot continue, as its own stage.

  Raises:
    ValueError: If training fails; the message begins with `refusal`.
  """
  (arm,) = train_all(run, [job_], stage)
  if arm.status != 'done':
    raise ValueError(f'{refusal}: {arm.why}')
  return arm


def setup_under(run: opening.Training, harness: str) -> setup_lib.Setup:
  """Return the setup of an arm under the run's seed, for replays."""
  changed = changes(run, run.config.seed, run.config.evolve.updates)
  arm = job(run, folder='', harness=harness, changes=changed, label='')
  return run.setup.under(arm.arm_config())
