"""Metrics of a run: one row per step, and seconds per phase.

<workdir>/metrics.jsonl    one JSON object per row, strict JSON
<workdir>/tensorboard/     event files, with `log.tensorboard`
<workdir>/wandb/           W&B's files, with `log.wandb`
"""

import collections
from collections.abc import Iterator, Mapping
import contextlib
import importlib.util
import json
import math
import os
import pathlib
import time
from typing import Any

import numpy as np

from evojax.runtime import durable
from evojax.runtime import run_files
from evojax.runtime import waits

# Metric -> the group of its curve, if the group is not 'train'.
_GROUPS = {
    **dict.fromkeys(
        'reward reward_std_in_group outcome dead_groups groups'
        ' groups_kept'.split(),
        'reward',
    ),
    **dict.fromkeys(
        'n_tokens truncated not_graded sampled_tokens mean_logprob staleness'
        ' refused_stale'.split(),
        'rollout',
    ),
    **dict.fromkeys('tokens_per_second mfu goodput restarts'.split(), 'time'),
}


def tag(name: str) -> str:
  """Return the name of a metric's curve, e.g. 'train/loss'."""
  if name.startswith('seconds/'):
    return name.replace('seconds', 'time', 1)
  if '/' in name:  # Scores already name their split: 'dev/avg_at_k'.
    return name
  group = _GROUPS.get(name, 'train')
  if name.startswith('part_'):
    group = 'reward'
  elif name.endswith('_seconds'):
    group = 'time'
  return f'{group}/{name}'


def check_available(wandb: str) -> None:
  """Check the package that `log.wandb` needs, before a device is touched.

  Raises:
    ValueError: If wandb is wanted but not installed.
  """
  if wandb != 'disabled' and importlib.util.find_spec('wandb') is None:
    raise ValueError(
        f'log.wandb={wandb!r} needs the package wandb, which is not installed:'
        ' `pip install wandb`, or set --config.log.wandb=disabled'
    )


def _number(value: Any) -> float | int | bool | str | None:
  """Return a JSON value; NaN and infinities become None, null in the file."""
  # bool is a subclass of int: without this test it would become 0 or 1.
  if isinstance(value, (bool, str)) or value is None:
    return value
  if isinstance(value, (int, np.integer)):
    return int(value)
  number = float(value)
  return number if math.isfinite(number) else None


def newest(workdir: pathlib.Path) -> dict[str, Any]:
  """Return the last complete row of a run's metrics; {} if there is none."""
  try:
    lines = (workdir / run_files.METRICS).read_bytes().splitlines()
  except OSError:
    return {}
  for line in reversed(lines):
    # The line may be incomplete: it is being written, or its writer was killed.
    with contextlib.suppress(ValueError):
      return json.loads(line)
  return {}


def read(workdir: pathlib.Path) -> list[Any]:
  """Return the complete rows of a run's metrics.

  Returns:
    JSON values; each is an object unless the file is damaged.

  Raises:
    OSError: If there are none, or they cannot be read.
  """
  found = []
  for line in (workdir / run_files.METRICS).read_bytes().splitlines():
    with contextlib.suppress(ValueError):  # As in `newest`.
      found.append(json.loads(line))
  return found


class MetricWriter(contextlib.AbstractContextManager):
  """A writer of metric rows; a resumed run continues without duplicates.

  A context manager. With several hosts, only process 0 creates one.
  """

  def __init__(
      self,
      workdir: str | os.PathLike[str],
      *,
      step: int = 0,
      tensorboard: bool = False,
      wandb: str = 'disabled',
      wandb_project: str = '',
      name: str = '',
      config: Mapping[str, Any] | None = None,
  ):
    """Open the sinks.

    Args:
      workdir: The run's directory.
      step: Step of the checkpoint the run starts from, 0 for a new run. Rows
        of later steps are dropped, because the run writes them again.
      tensorboard: True to write event files.
      wandb: Mode of W&B: disabled, offline or online.
      wandb_project: W&B project.
      name: Name of the run in W&B.
      config: The resolved config, for W&B.

    Raises:
      durable.DiskError: If the disk is full.
    """
    self._path = pathlib.Path(workdir, run_files.METRICS)
    self._step = step
    self._written = self._rewind(step)
    self._sinks = contextlib.ExitStack()
    self._file = self._sinks.enter_context(self._path.open('ab', buffering=0))
    self._tensorboard = self._wandb = None
    if tensorboard:
      import tensorboardX  # Imported here because it takes half a second.

      self._tensorboard = tensorboardX.SummaryWriter(
          str(pathlib.Path(workdir, 'tensorboard')),
          purge_step=step + 1,
          # Default names contain the time in seconds: a restart within the same
          # second would overwrite the file.
          filename_suffix=f'.{time.time_ns()}',
      )
      self._sinks.callback(self._tensorboard.close)
    if wandb != 'disabled':
      import wandb as wandb_lib  # Imported here because it is optional.

      saved = pathlib.Path(workdir, 'wandb_id')
      self._wandb = wandb_lib.init(
          project=wandb_project,
          name=name or None,
          # The saved id makes a restart continue the same W&B run.
          id=saved.read_text().strip() if saved.exists() else None,
          resume='allow',
          mode=wandb,
          dir=str(workdir),
          config=dict(config or {}),
      )
      self._sinks.callback(self._wandb.finish)
      durable.write_atomic(saved, f'{self._wandb.id}\n'.encode())

  def _rewind(self, step: int) -> set[str]:
    """Drop rows after `step` and incomplete lines; return names at `step`."""
    names, kept = set(), []
    data = self._path.read_bytes() if self._path.exists() else b''
    for line in data.splitlines():
      try:
        row = json.loads(line)
      except ValueError:  # The line is incomplete: its writer was killed.
        continue
      if row['step'] <= step:
        kept.append(line + b'\n')
      if row['step'] == step:
        names |= set(row)
    if b''.join(kept) != data:
      durable.write_atomic(self._path, b''.join(kept))
    return names

  def write(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Append one row.

    A metric is written once per step: if a step is written again after a
    resume, the first value stays.

    Args:
      step: The step; it must not be smaller than the last one.
      metrics: Host numbers by name, e.g. 'reward'. NaN and infinities are
        written as null. `tag` gives the names of curves.

    Raises:
      ValueError: If the step goes back.
      durable.DiskError: If the disk is full.
    """
    if step < self._step:
      raise ValueError(f'metrics of {step=} after those of {self._step}')
    if step > self._step:
      self._step, self._written = step, set()
    old = self._written
    row = {n: _number(value) for n, value in metrics.items() if n not in old}
    if not row:
      return
    self._written |= set(row)
    # One unbuffered write: a kill leaves at most one incomplete line, the last.
    line = json.dumps({'step': step, **row}, allow_nan=False) + '\n'
    try:
      durable.write_all(self._file.fileno(), line.encode())
    except OSError as error:
      raise durable.error(self._path, len(line), error) from error
    row = {tag(n): value for n, value in row.items() if value is not None}
    if self._tensorboard is not None:
      for name, value in row.items():
        if not isinstance(value, str):
          self._tensorboard.add_scalar(name, value, step)
      # A resumed run does not write these rows again, so a kill must not lose
      # them in a queue.
      self._tensorboard.flush()
    if self._wandb is not None:
      self._wandb.log(row, step=step)

  def close(self) -> None:
    """Flush and close every sink."""
    self._sinks.close()

  def __exit__(self, *_) -> None:
    self.close()


class Phases:
  """Wall time by phase: `with phases('rollout'): ...`.

  Time in an inner phase does not count for the outer one, so that phases add up
  to the time since the start. Time outside all phases is 'other'. jax runs
  asynchronously: a phase that starts device work has to wait for its result.
  """

  def __init__(self, clock=time.perf_counter):
    self._clock = clock
    self._start = self._mark = clock()
    self._stack = ['other']
    self.seconds = collections.Counter()
    self._lap = collections.Counter()

  def _charge(self) -> None:
    """Add the time since the last mark to the innermost phase."""
    now = self._clock()
    self.seconds[self._stack[-1]] += now - self._mark
    self._mark = now

  @contextlib.contextmanager
  def __call__(self, name: str) -> Iterator[None]:
    self._charge()
    self._stack.append(name)
    try:
      with waits.at(name):
        yield
    finally:
      self._charge()
      self._stack.pop()

  def lap(self) -> dict[str, float]:
    """Return the seconds per phase since the last call, e.g. for one step."""
    self._charge()
    last, self._lap = self._lap, self.seconds.copy()
    return {name: total - last[name] for name, total in self._lap.items()}

  def row(self) -> dict[str, float]:
    """Start a new lap; return the last one as metrics 'seconds/<phase>'."""
    return {f'seconds/{name}': s for name, s in self.lap().items()}

  def shares(self) -> dict[str, float]:
    """Return the share of time per phase, largest first; they sum to 1."""
    self._charge()
    total = self._mark - self._start
    return {name: s / total for name, s in self.seconds.most_common()}

  def summary(self) -> str:
    """Return one line, e.g. 'rollout 12.3 s (60.0%), update ...'."""
    return ', '.join(
        f'{name} {self.seconds[name]:.1f} s ({share:.1%})'
        for name, share in self.shares().items()
    )
