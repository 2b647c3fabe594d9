"""One arm: a harness and a seed, trained from a checkpoint for some updates."""

from collections.abc import Callable, Iterator
import contextlib
import json
import math
import pathlib
import shutil
import time
from typing import Any

import ml_collections
import numpy as np

from evojax.evidence import store
from evojax.evolve import session as session_lib
from evojax.harness import run as run_lib
from evojax.runtime import progress as progress_lib
from evojax.runtime import workdir as workdir_lib
from evojax.training import loop as training_loop
from evojax.training import reward_parts
from evojax.training import setup as setup_lib
from evojax.training import trainer as trainer_lib
from evojax.training import update as update_lib

# outcomes so far -> why to stop, or None.
Watch = Callable[[np.ndarray], str | None]


class _Stopped(Exception):
  """An arm ends before its last update."""

  def __init__(self, status: str, why: str):
    super().__init__(why)
    self.status = status


def config_of(
    session: session_lib.Session,
    harness: str,
    seed: int,
    updates: int | None = None,
) -> ml_collections.ConfigDict:
  """The config of an arm: the run's, with the arm's shapes and seed.

  Args:
    session: The run.
    harness: Hash of the harness that trains the arm.
    seed: Of its problems and samples.
    updates: Default: evolve.updates.
  """
  c = session.under(harness)
  e = c.evolve
  with c.unlocked():
    c.seed = seed
    c.steps = updates or e.updates
    c.grpo.prompts, c.grpo.group_size = e.prompts, e.group_size
    c.grpo.micro_groups = math.gcd(c.grpo.micro_groups, e.prompts)
    c.eval.sealed = False
    c.checkpoint.every = _interval(c.steps // 2, c.checkpoint.every)
    c.checkpoint.keep = c.steps  # `_tidy` deletes what nobody needs.
  return c


def _interval(half: int, most: int) -> int:
  """Largest divisor of `half` up to `most`, so that one falls on the half."""
  return max(
      (n for n in range(1, most + 1) if half and half % n == 0), default=1
  )


def retained(folder: pathlib.Path, updates: int) -> list[pathlib.Path]:
  """Checkpoints that stay: the half, where backtests replay, and the end."""
  paths = [end_of(folder, n) for n in (updates // 2, updates)]
  return [path for path in paths if path.exists()]


def _tidy(folder: pathlib.Path, updates: int) -> None:
  """Deletes the checkpoints of an arm that was only to be resumed from them."""
  keep = {path.name for path in retained(folder, updates)}
  for path in (folder / 'checkpoints').iterdir():
    if path.name not in keep:
      shutil.rmtree(path)


def outcomes(folder: pathlib.Path) -> np.ndarray:
  """float64 [T]: share of solved rollouts of each update so far."""
  means = [
      store.mean_outcome(folder, 'train', step)
      for step in store.list_steps(folder, 'train')
  ]
  return np.array(means, np.float64)


def end_of(folder: pathlib.Path, updates: int) -> pathlib.Path:
  """Checkpoint of an arm after all its updates."""
  return folder / 'checkpoints' / f'step_{updates:06d}'


def train_arm(
    session: session_lib.Session,
    name: str,
    config: ml_collections.ConfigDict,
    start: pathlib.Path | None,
    *,
    label: str,
    watch: Watch | None = None,
) -> dict[str, Any]:
  """Trains an arm to its end; a second call returns what the first found.

  Args:
    session: The run.
    name: Folder of the arm below the workdir.
    config: From `config_of`, say.
    start: Checkpoint that it starts from; None is the base policy.
    label: For the reader of the progress.
    watch: Asked once, at the half.

  Returns:
    JSON values: arm, seed, harness; start and end, fingerprints of the state;
    status ('done', 'futility', 'collapse', 'crash', 'train_budget_overrun')
    and why; updates, outcome (one value per update) and sampled_tokens.
  """
  folder = session.path / name
  stored = session.decide(lambda: _read(folder / 'arm.json'))
  if stored is not None:
    return stored
  setup = session.setup.under(config)
  result = _train(session, folder, setup, start, label, watch)
  harness = pathlib.Path(config.harness.path).name
  result = dict(result, arm=name, seed=config.seed, harness=harness)
  if session.primary:
    if result['status'] == 'done':
      _tidy(folder, config.steps)
    data = json.dumps(result, sort_keys=True).encode()
    workdir_lib.write_atomic(folder / 'arm.json', data)
  return result


def _read(path: pathlib.Path) -> dict[str, Any] | None:
  return json.loads(path.read_bytes()) if path.exists() else None


def _train(
    session: session_lib.Session,
    folder: pathlib.Path,
    setup: setup_lib.Setup,
    start: pathlib.Path | None,
    label: str,
    watch: Watch | None,
) -> dict[str, Any]:
  """Trains, and says how it ended."""
  config = setup.config
  if session.primary:
    folder.mkdir(parents=True, exist_ok=True)
  trainer = trainer_lib.Trainer(
      setup, folder, session.phases, engine=session.engine, start=start
  )
  began = time.monotonic()
  limit = config.evolve.arm_seconds
  half = config.steps // 2

  def before_step() -> None:
    try:
      session.stop_if_asked()
    except session_lib.STOPS:  # What was paid for is saved.
      if trainer.saved_step < trainer.step:
        trainer.save()
      raise
    if limit and time.monotonic() - began > limit:
      why = f'more than evolve.arm_seconds={limit:g} s'
      raise _Stopped('train_budget_overrun', why)
    if watch and trainer.step == half and half > 0:
      status = session.decide(lambda: watch(outcomes(folder)[:half]))
      if status:
        raise _Stopped(status, f'after {half} of {config.steps} updates')

  status, why = 'done', ''
  with contextlib.ExitStack() as stack:
    stack.callback(trainer.checkpointer.wait)
    after_step = lambda log: None
    if session.primary:
      after_step = stack.enter_context(
          _shown(trainer, f'{session.config.name}/{folder.name}', label)
      )
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
  first, end = trainer.start, trainer.learner.fingerprint()
  del trainer  # Its state would lie beside the next arm's.
  solved = session.decide(lambda: outcomes(folder).tolist())
  tokens = session.decide(lambda: sampled_tokens(folder))
  return dict(
      start=first,
      end=end,
      status=status,
      why=why,
      updates=len(solved),
      outcome=solved,
      sampled_tokens=tokens,
  )


@contextlib.contextmanager
def _shown(
    trainer: trainer_lib.Trainer, name: str, label: str
) -> Iterator[Callable[[dict[str, float]], None]]:
  """Writes and shows the metrics of every step; process 0 alone does."""
  steps = trainer.config.steps
  with (
      training_loop.open_metrics(trainer, name) as writer,
      progress_lib.Progress(
          steps, start=trainer.step, every=max(1, steps // 3)
      ) as progress,
  ):
    progress.print(label)

    def after_step(log: dict[str, float]) -> None:
      writer.write(trainer.step, log)
      progress.update(trainer.step, log)

    yield after_step


def sampled_tokens(folder: pathlib.Path, split: str = 'train') -> int:
  """Tokens in all completions of a split of an arm."""
  return sum(
      int(store.read_numbers(folder, split, step, 'n_tokens').sum())
      for step in store.list_steps(folder, split)
  )
