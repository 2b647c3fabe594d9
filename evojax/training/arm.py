"""An arm: one harness and one seed, trained from a checkpoint for some updates.

An arm is data in (`ArmJob`) and data out (`ledger.records.Arm`, which is also
`arm.json` in the arm's folder), so that any process can train it: the one that
runs the meta-loop, or one of its own (`--mode=arm --job=JOB.json`).
"""

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import json
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
from evojax.runtime import decisions
from evojax.runtime import durable
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import sharding
from evojax.runtime import workdir as workdir_lib
from evojax.training import loop as training_loop
from evojax.training import reward_parts
from evojax.training import setup as setup_lib
from evojax.training import trainer as trainer_lib
from evojax.training import update as update_lib

RESULT = 'arm.json'


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmJob:
  """All that an arm depends on.

  Folders are relative to `workdir`, so that rows of the ledger, which repeat
  them, stay true where a run is moved.
  """

  workdir: str  # Absolute path of the run.
  folder: str  # Of the arm's evidence, checkpoints and result.
  config: Mapping[str, Any]  # The run's config, resolved, nested.
  changes: Mapping[str, Any]  # Dotted config path -> value for this arm.
  harness: str  # Hash of the harness, which lies in workdir/harness.
  start: str  # Checkpoint that it starts from; '' is the base policy.
  label: str  # One line for whoever watches the progress.
  # Outcomes of the incumbent's arms, one list per arm and one value per update:
  # the arm is compared with them at its half. Empty: it always ends.
  incumbents: tuple[tuple[float, ...], ...] = ()

  @property
  def path(self) -> pathlib.Path:
    """The arm's folder."""
    return pathlib.Path(self.workdir, self.folder)

  def arm_config(self) -> ml_collections.ConfigDict:
    """Return the run's config with the arm's changes, which names its harness.

    The values of the harness are not in it: `Setup.under` applies them.
    """
    config = config_lib.from_mapping(self.config).unlock()
    harness = pathlib.Path(self.workdir, 'harness', self.harness)
    for name, value in {**self.changes, 'harness.path': str(harness)}.items():
      config_lib.check_field(config, name)
      config.update_from_flattened_dict({name: value})
    return config.lock()

  def to_json(self) -> str:
    """Return the text of a job file."""
    return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + '\n'


def read_job(path: pathlib.Path) -> ArmJob:
  """Return the job in a file.

  Raises:
    ValueError: If the file is not a job; names the field and its value.
  """
  try:
    fields = json.loads(path.read_text())
    if not isinstance(fields, dict):
      raise ValueError(f'it holds a {type(fields).__name__}, not an object')
  except (OSError, ValueError) as error:
    raise ValueError(
        f'--job={path} cannot be read: {error}; name a job.json that'
        ' --executor=local or ray wrote'
    ) from error
  kinds = {f.name: str for f in dataclasses.fields(ArmJob)}
  kinds |= {'config': dict, 'changes': dict, 'incumbents': list}
  problems = [
      f'{name}={value!r} is not a field of a job'
      if name not in kinds
      else f'{name}={value!r} must be a {kinds[name].__name__}'
      for name, value in fields.items()
      if not isinstance(value, kinds.get(name, ()))
  ]
  if missing := sorted(kinds.keys() - fields.keys() - {'incumbents'}):
    problems.append(f'the fields {missing} are missing')
  if problems:
    raise ValueError(f'--job={path}: {"; ".join(problems)}')
  incumbents = tuple(map(tuple, fields.pop('incumbents', ())))
  return ArmJob(**fields, incumbents=incumbents)


class _Stopped(Exception):
  """An arm ends before its last update."""

  def __init__(self, status: str, why: str):
    super().__init__(why)
    self.status = status


def checkpoint_of(folder: str | pathlib.Path, updates: int) -> pathlib.Path:
  """Return the checkpoint of an arm after so many updates."""
  return pathlib.Path(folder) / 'checkpoints' / f'step_{updates:06d}'


def retained(folder: pathlib.Path, updates: int) -> list[pathlib.Path]:
  """Return the checkpoints that stay: at the half, for replays, and the end."""
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
  """Return what a finished arm left, in every process; None before its end."""
  path = folder / RESULT
  stored = decisions.decide(
      lambda: json.loads(path.read_bytes()) if path.exists() else None
  )
  return stored and records.from_json(records.Arm, stored)


def train(
    job: ArmJob,
    setup: setup_lib.Setup,
    engine: step_records.RolloutEngine,
    phases: metrics_lib.Phases,
    stop_if_asked: Callable[[], None],
    show: Callable[[int, Mapping[str, Any]], None] = lambda *_: None,
) -> records.Arm:
  """Train an arm to its end; a second call returns what the first found.

  Args:
    job: The arm.
    setup: Of the run, which the arm's harness and changes are laid over.
    engine: Sampler of the shapes of the run; it gets the arm's weights.
    phases: Counts the time of each stage.
    stop_if_asked: Called before every update. What it raises ends the arm
      after a checkpoint; the same job then continues.
    show: Called with every finished step and its metrics.

  Raises:
    ValueError: If the harness is refused, or another process trains the arm.
  """
  done = result(job.path)
  if done is not None:
    return done
  spec.load(pathlib.Path(job.workdir, 'harness'), job.harness)  # Checks it.
  setup, primary = setup.under(job.arm_config()), sharding.is_primary()
  if primary:
    job.path.mkdir(parents=True, exist_ok=True)
  with (
      workdir_lib.lock_folder(job.path) if primary else contextlib.nullcontext()
  ):
    start = pathlib.Path(job.workdir, job.start) if job.start else None
    trainer = trainer_lib.Trainer(
        setup,
        job.path,
        phases,
        engine=engine,
        start=start,
        retained=_retained_steps(setup.config.steps),
    )
    arm = _train(job, trainer, stop_if_asked, show)
    if primary:
      if arm.status == 'done':
        # The others were only to resume from.
        keep = retained(job.path, setup.config.steps)
        for path in (job.path / 'checkpoints').iterdir():
          if path not in keep:
            shutil.rmtree(path)
      text = json.dumps(records.to_json(arm), sort_keys=True)
      durable.write_atomic(job.path / RESULT, text.encode())
  return arm


def _train(
    job: ArmJob,
    trainer: trainer_lib.Trainer,
    stop_if_asked: Callable[[], None],
    show: Callable[[int, Mapping[str, Any]], None],
) -> records.Arm:
  """Train, and return how it ended."""
  config, folder, began = trainer.config, job.path, time.monotonic()
  limit, half = config.evolve.arm_seconds, config.steps // 2

  def before_step() -> None:
    try:
      stop_if_asked()
    except BaseException:  # Whatever the reason, what was paid for is saved.
      trainer.save()
      raise
    if limit and time.monotonic() - began > limit:
      why = f'more than evolve.arm_seconds={limit:g} s'
      raise _Stopped('train_budget_overrun', why)
    if job.incumbents and trainer.step == half > 0:
      if status := decisions.decide(lambda: _compare(job, half)):
        raise _Stopped(status, f'after {half} of {config.steps} updates')

  def after_step(log: dict[str, float]) -> None:
    write(trainer.step, log | trainer.phases.row())
    show(trainer.step, log)

  trainer.phases.lap()  # The time before is that of other arms.
  status, why = 'done', ''
  name = f'{config.name}/{folder.name}'
  with (
      contextlib.closing(trainer),
      training_loop.open_metrics(trainer, name) as write,
  ):
    try:
      training_loop.loop(
          trainer, before_step=before_step, after_step=after_step
      )
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
      updates=len(solved),
      outcome=tuple(solved),
      sampled_tokens=tokens,
  )


def _compare(job: ArmJob, updates: int) -> str | None:
  """Return why the arm should stop after so many updates, or None."""
  incumbents = np.array(job.incumbents, np.float64)[:, :updates]
  return futility.early(np.array(outcomes(job.path)[:updates]), incumbents)
