"""An arm: some updates from a checkpoint, under one harness and one seed.

The input of an arm is an `ArmJob`, its result a `ledger.records.Arm`, which is
also stored as `arm.json` in the arm's folder. Both are plain data, so that any
process can train an arm: the one that runs the meta-loop, or a separate one
(`--mode=arm --job=JOB.json`).
"""

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import time
from typing import Any

import ml_collections
import numpy as np

from evojax import config as config_lib
from evojax import records as step_records
from evojax.eval import futility
from evojax.evidence import store
from evojax.harness import run as run_lib
from evojax.harness import spec
from evojax.ledger import records
from evojax.ledger import rows as rows_lib
from evojax.runtime import decisions
from evojax.runtime import durable
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import run_files
from evojax.runtime import sharding
from evojax.runtime import storage
from evojax.runtime import workdir as workdir_lib
from evojax.training import loop as training_loop
from evojax.training import reward_parts
from evojax.training import setup as setup_lib
from evojax.training import trainer as trainer_lib
from evojax.training import update as update_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmJob:
  """All inputs of an arm.

  Folders are relative to `workdir`. Rows of the ledger repeat them, and stay
  valid if the workdir is moved.
  """

  workdir: str  # Absolute path of the run's workdir, or its URL.
  folder: str  # Folder of the arm's evidence, checkpoints and result.
  config: Mapping[str, Any]  # The run's config, resolved, as nested mappings.
  changes: Mapping[str, Any]  # Dotted config path -> value for this arm.
  harness: str  # Hash of the harness, which is in workdir/harness.
  start: str  # Checkpoint from which it starts; '': the base policy.
  label: str  # One line that describes the arm in progress output.
  # Outcomes of the incumbent's arms: one tuple per arm, one value per update.
  # After half of its updates, the arm is compared with them, and may be
  # stopped. Empty: no comparison.
  incumbents: tuple[tuple[float, ...], ...] = ()
  # Seed of the train stream, and the position in it of the arm's first problem.
  # Empty: the arm's own seed, from 0.
  problems: tuple[int, ...] = ()
  # If `workdir` is a URL: size in bytes by name of the files of the run that
  # the arm reads, its harness and its start. Otherwise empty.
  files: Mapping[str, int] = dataclasses.field(default_factory=dict)

  @property
  def path(self) -> pathlib.Path:
    """The arm's folder."""
    return pathlib.Path(self.workdir, self.folder)

  def arm_config(self) -> ml_collections.ConfigDict:
    """Return the run's config with the arm's changes and its harness's path.

    The harness's own values are not applied here, but by `Setup.under`.
    """
    harness = pathlib.Path(self.workdir, run_files.HARNESSES, self.harness)
    return config_lib.with_fields(
        config_lib.from_mapping(self.config),
        {**self.changes, 'harness.path': str(harness)},
    )

  def to_json(self) -> str:
    """Return the text of a job file."""
    return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + '\n'


def read_job(path: str | os.PathLike[str]) -> ArmJob:
  """Return the job in a file, whose path may be a URL.

  Raises:
    ValueError: If the file is not a job, naming the field and its value.
  """
  try:
    fields = json.loads(storage.read(path))
    if not isinstance(fields, dict):
      raise ValueError(f'it holds a {type(fields).__name__}, not an object')
  except (OSError, ValueError) as error:
    raise ValueError(
        f'--job={path} cannot be read: {error}; name a job.json that'
        ' --executor=local or ray wrote'
    ) from error
  kinds = {f.name: str for f in dataclasses.fields(ArmJob)}
  kinds |= {'config': dict, 'changes': dict}
  optional = {'incumbents': list, 'problems': list, 'files': dict}
  kinds |= optional
  problems = [
      f'{name}={value!r} is not a field of a job'
      if name not in kinds
      else f'{name}={value!r} must be a {kinds[name].__name__}'
      for name, value in fields.items()
      if not isinstance(value, kinds.get(name, ()))
  ]
  if missing := sorted(kinds.keys() - optional.keys() - fields.keys()):
    problems.append(f'the fields {missing} are missing')
  if problems:
    raise ValueError(f'--job={path}: {"; ".join(problems)}')
  incumbents = tuple(map(tuple, fields.pop('incumbents', ())))
  stream = tuple(fields.pop('problems', ()))
  if len(stream) not in (0, 2) or not all(type(n) is int for n in stream):
    raise ValueError(
        f'--job={path}: problems={list(stream)} must be two whole numbers, the'
        " seed of a stream and a position, or [] for the arm's own seed"
    )
  return ArmJob(**fields, incumbents=incumbents, problems=stream)


class _Stopped(Exception):
  """Raised to end an arm before its last update."""

  def __init__(self, status: str, why: str):
    super().__init__(why)
    self.status = status


def checkpoint_of(folder: str | pathlib.Path, updates: int) -> pathlib.Path:
  """Return the path of an arm's checkpoint after some number of updates."""
  return pathlib.Path(folder) / run_files.CHECKPOINTS / f'step_{updates:06d}'


def retained(folder: pathlib.Path, updates: int) -> list[pathlib.Path]:
  """Return the checkpoints to keep: halfway, for replays, and at the end."""
  paths = [checkpoint_of(folder, n) for n in _retained_steps(updates)]
  return [path for path in paths if path.exists()]


def _retained_steps(updates: int) -> tuple[int, int]:
  return updates // 2, updates


def outcomes(folder: pathlib.Path) -> list[float]:
  """Return the share of solved rollouts of each update so far."""
  return [
      float(store.mean_outcome(folder, 'train', step))
      for step in store.list_steps(folder, 'train')
  ]


def sampled_tokens(folder: pathlib.Path, split: str = 'train') -> int:
  """Return the number of tokens in all completions of a split of an arm."""
  return sum(
      int(store.read_numbers(folder, split, step, 'n_tokens')[0].sum())
      for step in store.list_steps(folder, split)
  )


def result(folder: pathlib.Path) -> records.Arm | None:
  """Return an arm's stored result, in every process; None if unfinished."""
  path = folder / run_files.ARM
  stored = decisions.decide(
      lambda: json.loads(path.read_bytes()) if path.exists() else None
  )
  return stored and rows_lib.from_json(records.Arm, stored)


def train(
    job: ArmJob,
    setup: setup_lib.Setup,
    engine: step_records.RolloutEngine,
    phases: metrics_lib.Phases,
    stop_if_asked: Callable[[], None],
    show: Callable[[int, Mapping[str, Any]], None] = lambda *_: None,
) -> records.Arm:
  """Train an arm to its end; if that was done before, return its result.

  Args:
    job: The arm.
    setup: Setup of the run; the arm's harness and changes are applied to it.
    engine: Sampler with the shapes of the run; it gets the arm's weights.
    phases: Measures the time of each stage.
    stop_if_asked: Called before every update. If it raises, a checkpoint is
      saved and the error passed on; a later call with the same job continues.
    show: Called with the number and the metrics of every finished step.

  Raises:
    ValueError: If the harness is refused, or another process trains the arm.
  """
  done = result(job.path)
  if done is not None:
    return done
  # Only to check the harness.
  spec.load(pathlib.Path(job.workdir, run_files.HARNESSES), job.harness)
  setup, primary = setup.under(job.arm_config()), sharding.is_primary()
  with workdir_lib.lock_folder(job.path, primary):
    start = pathlib.Path(job.workdir, job.start) if job.start else None
    trainer = trainer_lib.Trainer(
        setup,
        job.path,
        phases,
        engine=engine,
        start=start,
        problems=job.problems or None,
        retained=_retained_steps(setup.config.steps),
    )
    arm = _train(job, trainer, stop_if_asked, show)
    if primary:
      if arm.status == 'done':
        # The other checkpoints served only to resume the arm.
        keep = retained(job.path, setup.config.steps)
        for path in (job.path / run_files.CHECKPOINTS).iterdir():
          if path not in keep:
            shutil.rmtree(path)
      text = json.dumps(rows_lib.to_json(arm), sort_keys=True)
      durable.write_atomic(job.path / run_files.ARM, text.encode())
  return arm


def _train(
    job: ArmJob,
    trainer: trainer_lib.Trainer,
    stop_if_asked: Callable[[], None],
    show: Callable[[int, Mapping[str, Any]], None],
) -> records.Arm:
  """Train the arm, and return its result."""
  config, folder, began = trainer.config, job.path, time.monotonic()
  limit, half = config.evolve.arm_seconds, config.steps // 2

  def before_step() -> None:
    try:
      stop_if_asked()
    except BaseException:  # Save the finished updates, whatever the reason.
      trainer.save()
      raise
    # Decided in process 0, so that all processes end the arm together.
    if limit and decisions.decide(lambda: time.monotonic() - began > limit):
      why = f'more than evolve.arm_seconds={limit:g} s'
      raise _Stopped('train_budget_overrun', why)
    if job.incumbents and trainer.step == half > 0:
      if status := decisions.decide(lambda: _compare(job, half)):
        raise _Stopped(status, f'after {half} of {config.steps} updates')

  def report(log: dict[str, float]) -> None:
    write(trainer.step, log | trainer.phases.row())
    show(trainer.step, log)

  trainer.phases.lap()  # Discard the time that other arms used.
  status, why = 'done', ''
  name = f'{config.name}/{folder.name}'
  with (
      contextlib.closing(trainer),
      training_loop.open_metrics(trainer, name) as write,
  ):
    try:
      training_loop.loop(trainer, before_step=before_step, report=report)
    except _Stopped as stopped:
      status, why = stopped.status, str(stopped)
    except (
        run_lib.FunctionError,
        reward_parts.RewardError,
        update_lib.NonFiniteError,
    ) as error:
      status, why = 'crash', str(error)
  solved, tokens = decisions.decide(
      lambda: (outcomes(folder), sampled_tokens(folder))
  )
  return records.Arm(
      folder=job.folder,
      seed=config.seed,
      harness=job.harness,
      start=trainer.start,
      end=trainer.learner.fingerprint(),
      status=status,
      why=why,
      # An update that failed may have evidence, but does not count.
      updates=trainer.step,
      outcome=tuple(solved[: trainer.step]),
      sampled_tokens=tokens,
  )


def _compare(job: ArmJob, updates: int) -> str | None:
  """Return why the arm should stop after `updates` updates, or None."""
  incumbents = np.array(job.incumbents, np.float64)[:, :updates]
  return futility.early(np.array(outcomes(job.path)[:updates]), incumbents)
