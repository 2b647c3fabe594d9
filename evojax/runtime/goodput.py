"""Goodput: the share of a training's wall time spent in useful steps.

<workdir>/times.jsonl   one line per finished step, including repeated steps

The wall time begins with the first step. If a restart repeats a step, only the
last execution is useful. The seconds lost to restarts are the gaps between
useful steps of different starts. A gap contains the unsaved steps, the time
without a process, and the time until the new process begins its first step.

For a run that evolves see `of_evolving`.
"""

from collections.abc import Callable, Iterator
import contextlib
import datetime
import itertools
import json
import math
import os
import pathlib
import time
from typing import Any, NamedTuple

from evojax.runtime import durable
from evojax.runtime import run_files


class _Step(NamedTuple):
  """A finished step."""

  step: int  # Counted from 1.
  start: int  # Number of the training's start that made it, from 0.
  began: float  # Unix time.
  ended: float


class Clock(contextlib.AbstractContextManager):
  """Records when the steps of a training end; a context manager."""

  def __init__(
      self, folder: pathlib.Path, clock: Callable[[], float] = time.time
  ):
    """Read the records of earlier starts; write nothing yet.

    Args:
      folder: The folder of the file.
      clock: Returns Unix time; clocks of several machines may differ.
    """
    self._path, self._clock = folder / run_files.TIMES, clock
    self._steps: list[_Step] = []  # Useful steps: the last execution of each.
    self._first, self._start = math.inf, 0
    self._whole = b''
    found = self._path.read_bytes() if self._path.exists() else b''
    for line, step in _read(found):
      self._count(step)
      self._whole += line.rstrip(b'\n') + b'\n'
    self._is_torn = self._whole != found
    self._file, self._mine = None, 0

  @property
  def wall(self) -> float:
    """The seconds from the first step to the end of the last one."""
    return self._steps[-1].ended - self._first if self._steps else 0.0

  def _count(self, step: _Step) -> None:
    """Add a useful step in place of the steps that it repeats."""
    while self._steps and self._steps[-1].step >= step.step:
      self._steps.pop()
    self._steps.append(step)
    self._first = min(self._first, step.began)
    self._start = max(self._start, step.start + 1)

  def _write(self, step: _Step) -> None:
    """Append a line.

    Raises:
      durable.DiskError: If the disk is full.
    """
    if self._is_torn:
      durable.write_atomic(self._path, self._whole)
      self._is_torn = False
    text = (json.dumps(step._asdict()) + '\n').encode()
    try:
      if self._file is None:
        self._file = self._path.open('ab', buffering=0)
      durable.write_all(self._file.fileno(), text)
    except OSError as error:
      raise durable.error(self._path, len(text), error) from error

  def finish(self, step: int, seconds: float) -> dict[str, float]:
    """Record a step that has just ended; return the metrics up to here.

    Args:
      step: Number of the step, counted from 1.
      seconds: Duration of the step.

    Returns:
      goodput: useful share of the wall time so far; restarts: number of
      restarts; lost_seconds: wall time lost to restarts.

    Raises:
      durable.DiskError: If the disk is full.
    """
    now = self._clock()
    if self._file is None:
      self._mine = self._start  # Starts that finished no step do not count.
    made = _Step(step, self._mine, now - seconds, now)
    self._write(made)
    self._count(made)
    lost, end, start = 0.0, self._first, 0
    for each in self._steps:
      if each.start != start:
        lost += max(each.began - end, 0.0)
      end, start = each.ended, each.start
    useful = math.fsum(each.ended - each.began for each in self._steps)
    # If clocks differ, the wall time may seem shorter than the sum of steps.
    wall = max(self.wall, useful)
    return {
        'goodput': useful / wall if wall else 1.0,
        'restarts': self._mine,
        'lost_seconds': lost,
    }

  def __exit__(self, *_) -> None:
    if self._file is not None:
      self._file.close()


def open_clock(
    folder: str | os.PathLike[str], primary: bool
) -> contextlib.AbstractContextManager[Clock | None]:
  """Return the clock of process 0; None in all others."""
  if not primary:
    return contextlib.nullcontext()
  return Clock(pathlib.Path(folder))


def ends(folder: str | os.PathLike[str]) -> dict[int, float]:
  """Return the Unix time at which each useful step ended, by its number."""
  return {step.step: step.ended for step in Clock(pathlib.Path(folder))._steps}


def _read(data: bytes) -> Iterator[tuple[bytes, _Step]]:
  """Yield the whole lines of a file, each with its step."""
  for line in data.splitlines(keepends=True):
    # A killed process may have written a part of a line.
    with contextlib.suppress(ValueError, TypeError):
      yield line, _Step(**json.loads(line))


def held(
    folder: str | os.PathLike[str],
) -> list[tuple[dict[str, Any], float]]:
  """Return each start with the seconds for which it held its devices.

  This time ends with the last step of the start, whether it was saved or not;
  what a start did after that, such as an unfinished step, is not known. Starts
  are entries of the manifest.
  """
  starts = run_files.starts(folder)
  file = pathlib.Path(folder, run_files.TIMES)
  data = file.read_bytes() if file.exists() else b''
  ends_ = [step.ended for _, step in _read(data)]
  found = []
  began = [*map(_began, starts), math.inf]
  for start, (first, next_) in zip(
      starts, itertools.pairwise(began), strict=True
  ):
    last = max((end for end in ends_ if first <= end < next_), default=first)
    found.append((start, last - first))
  return found


def of_evolving(
    folder: str | os.PathLike[str], useful: float, end: float
) -> dict[str, float]:
  """Return how much of the wall time of a run that evolves was useful.

  Here the wall time begins with the start of the first process, and not with
  the first step, so that it includes the time to load the policy.

  Args:
    folder: The run's directory.
    useful: Seconds of all steps in the ledger.
    end: Unix time of its end, or the present time.

  Returns:
    goodput, restarts and lost_seconds (all time that was not useful); {} if no
    start is recorded.
  """
  starts = run_files.starts(folder)
  if not starts:
    return {}
  wall = max(end - _began(starts[0]), useful)
  return {
      'goodput': useful / wall if wall else 1.0,
      'restarts': len(starts) - 1,
      'lost_seconds': wall - useful,
  }


def _began(start: dict[str, Any]) -> float:
  return datetime.datetime.fromisoformat(start['start']).timestamp()


def start_of(
    folder: str | os.PathLike[str],
) -> Callable[[int], dict[str, Any]]:
  """Return a function from a step to the start that made it.

  A start is an entry of the manifest. It names the devices, since a run may
  continue on others. A step without a recorded end belongs to the last start.

  Raises:
    FileNotFoundError: If there is no manifest.
  """
  starts = run_files.starts(folder)
  if not starts:
    raise FileNotFoundError(f'{folder} has no {run_files.MANIFEST}')
  began = list(map(_began, starts))
  known = ends(folder)

  def find(step: int) -> dict[str, Any]:
    before = sum(time <= known.get(step, math.inf) for time in began)
    return starts[max(before - 1, 0)]

  return find
