"""Heartbeats between the processes of a run, so that none waits for a dead one.

    set_limit(3600)  # Seconds without any progress after which a run ends.
    join(...)        # Starts jax.distributed and threads that watch the others.
    watch_alone(8)   # For a run in one process with 8 devices, which may hang.
    blame()          # Does not return if another process caused the failure.
    leave(status)    # The last call of a process.

Each process writes a heartbeat to jax's key-value store, which process 0 holds,
and reads those of the others. If a process dies or is silent for too long,
every other process prints a line that names it and exits with
`preemption.AGAIN`: the same command, started again everywhere, continues the
run. If a process fails with an error, the others exit with its exit code. The
others wait for a slow process as long as any process makes progress. But if
none makes progress within the limit, all exit with `AGAIN`, too: they hang in a
collective, in one program on the devices, or in different ones. `waits` counts
progress. While a program is compiled, the limit is longer. A run in one process
has the same limit if its mesh has several devices.

If a process is missing, jax would abort the others from C++. To prevent this,
jax's own limit is longer than the one here, and processes connect to process 0
through a forwarder.
"""

from collections.abc import Mapping
import contextlib
import dataclasses
import functools
import json
import os
import socket
import sys
import threading
import time
import traceback

import jax
from jax._src import clusters
from jax._src import distributed

from evojax.runtime import devices
from evojax.runtime import forwarder as forwarder_lib
from evojax.runtime import output
from evojax.runtime import preemption
from evojax.runtime import waits

# A process without a heartbeat for this long counts as dead.
SILENT_SECONDS = 40.0
_BEAT_SECONDS = 2.0
# Time within which other processes read a message of this one.
_GRACE_SECONDS = 5.0
# jax's own limit; it applies only if the threads here cannot run.
_JAX_SECONDS = 150
_JOIN_SECONDS = 300
# The minimum limit while a program is compiled, since `waits` then counts
# nothing.
_COMPILE_SECONDS = 3600
_EXIT_SECONDS = 30.0
_BEATS, _VERDICTS = 'evojax/peers/', 'evojax/verdicts/'
# Exit statuses of a regular end, for which a process waits for all others.
_IN_ORDER = (0, *preemption.STATUSES.values())


# See `set_limit`. By default, a program that embeds evojax has no limit.
_limit_s = 0


def set_limit(seconds: int) -> None:
  """Set the time within which a run must make progress; 0: no limit.

  The limit applies to processes that call `join` after this, and to a single
  process that calls `watch_alone`. Compilations have a longer limit.
  """
  global _limit_s
  _limit_s = seconds


def limit() -> int:
  """Return the limit from `set_limit`, in seconds."""
  return _limit_s


@dataclasses.dataclass(frozen=True)
class Beat:
  """A heartbeat: the state of a process."""

  host: str
  number: int  # Counts the heartbeats of the process.
  doing: str  # Current activity, for messages.
  compiles: bool  # The process compiles a program.
  changes: int  # How often it made progress; see `waits.State`.
  ended: int | None = None  # Exit status of a process that is about to end.


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The reason why all processes end, and their exit status."""

  text: str
  status: int


class Table:
  """The heartbeats of all processes, as one process has read them."""

  def __init__(self, process: int, count: int, stuck_s: int, now: float):
    """Create an empty table.

    Args:
      process: Number of this process.
      count: Number of processes.
      stuck_s: Seconds within which at least one process must make progress, or
        _COMPILE_SECONDS, if longer, while one compiles a program; 0: no limit.
      now: Seconds on the clock that later calls use.
    """
    self._process, self._stuck_s = process, stuck_s
    self.beats: dict[int, Beat] = {}
    self._heard = dict.fromkeys(range(count), now)
    self._read = self._moved = self._ticked = now
    self._failed: float | None = None

  def update(self, beats: Mapping[int, Beat], now: float) -> None:
    """Record heartbeats that were read from the store at `now`."""
    self._read = now
    for process, beat in beats.items():
      last = self.beats.get(process)
      if last is None or last.number != beat.number:
        self._heard[process] = now
      if last is None or last.changes != beat.changes:
        self._moved = now
      if beat.ended not in (None, *_IN_ORDER):
        self._failed = self._failed or now
    self.beats.update(beats)

  def numbers(self) -> dict[int, int]:
    """Return each process's newest heartbeat number; 0: none yet."""
    beats = self.beats
    return {p: beats[p].number if p in beats else 0 for p in self._heard}

  def all_ended(self) -> bool:
    """Return True if every process is about to end with a regular status."""
    return all(
        process in self.beats and self.beats[process].ended in _IN_ORDER
        for process in self._heard
    )

  def judge(self, now: float, lost: float | None = None) -> Verdict | None:
    """Return the reason why this process has to end; None if there is none.

    Call it every few seconds: a long gap between two calls means that this
    process was paused.

    Args:
      now: Seconds.
      lost: Time at which the connection to process 0 broke, if it did.
    """
    ticked, self._ticked = self._ticked, now
    if self.all_ended():
      return None
    # Others consider this process dead SILENT_SECONDS after its last heartbeat,
    # which may be up to two beats before its last tick.
    if now - ticked > SILENT_SECONDS - 2 * _BEAT_SECONDS:
      return Verdict(
          f'{self._name(self._process)} did not run for {now - ticked:.0f} s,'
          ' and the others have gone on without it',
          preemption.AGAIN,
      )
    if self._failed is not None:
      # An error in the config makes all processes fail at the same time; each
      # then ends with its own message.
      if now - self._failed < _GRACE_SECONDS:
        return None
      number, beat = next(
          (n, b)
          for n, b in self.beats.items()
          if b.ended not in (None, *_IN_ORDER)
      )
      return Verdict(
          f'{self._name(number)} failed with exit code {beat.ended}, its own'
          ' output says why',
          beat.ended,
      )
    if lost is not None:
      return self._gone(0, 'has gone away')
    if now - self._read > SILENT_SECONDS:
      return self._gone(0, f'has not answered for {now - self._read:.0f} s')
    for process, heard in self._heard.items():
      # Process 0 is judged by its answers, see above.
      if now - heard > SILENT_SECONDS and process not in (0, self._process):
        return self._gone(process, f'has been silent for {now - heard:.0f} s')
    return self._stuck(now)

  def _stuck(self, now: float) -> Verdict | None:
    compiles = any(beat.compiles for beat in self.beats.values())
    if not _is_over(now - self._moved, self._stuck_s, compiles):
      return None
    states = ', '.join(
        f'{self._name(process)} is {beat.doing}'
        for process, beat in sorted(self.beats.items())
    )
    return Verdict(
        f'no process has got any further for {now - self._moved:.0f} s'
        f' (--collective_seconds): {states}',
        preemption.AGAIN,
    )

  def _gone(self, process: int, what: str) -> Verdict:
    beat = self.beats.get(process)
    seen = beat.doing if beat else 'at its start'
    return Verdict(
        f'{self._name(process)} {what}, last seen {seen}',
        preemption.AGAIN,
    )

  def _name(self, process: int) -> str:
    host = self.beats[process].host if process in self.beats else '?'
    return f'process {process} on {host}'


def _is_over(seconds: float, limit_s: int, compiles: bool) -> bool:
  """Return whether a run has made no progress for too long.

  Args:
    seconds: Time since its last progress.
    limit_s: Value of `set_limit`.
    compiles: Whether one of its processes compiles a program.
  """
  longest = max(limit_s, _COMPILE_SECONDS) if compiles else limit_s
  return limit_s > 0 and seconds >= longest


class _Watch:
  """The threads of this process that write, read and judge heartbeats."""

  def __init__(
      self,
      process: int,
      count: int,
      stuck_s: int,
      forwarder: forwarder_lib.Forwarder | None,
  ):
    self.process, self._forwarder = process, forwarder
    self._client = distributed.global_state.client
    self._host = socket.gethostname()
    self._number, self._ended = 0, None
    self._lock = threading.Lock()  # Guards the table.
    self._writing = threading.Lock()  # Keeps heartbeats in order.
    self._ending = threading.Lock()  # Never released once this process ends.
    self.stopped = threading.Event()
    self._table = Table(process, count, stuck_s, time.monotonic())
    for work in (self._beat, self._judge):
      threading.Thread(target=work, daemon=True).start()

  def end(self, status: int) -> None:
    """Send the others the status with which this process is about to end."""
    self._ended = status
    tell = threading.Thread(target=self._write, daemon=True)
    tell.start()
    tell.join(timeout=_GRACE_SECONDS)  # The store may be unreachable.

  def wait_for_beats(self) -> None:
    """Wait until each other process has sent a heartbeat after this call."""
    before = self._table.numbers()
    # The first new number may belong to a heartbeat sent before this call.
    alive = lambda: all(
        number >= before.get(process, 0) + 2
        for process, number in self._table.numbers().items()
    )
    while not alive():
      time.sleep(_BEAT_SECONDS / 10)

  def wait_for_all(self) -> None:
    """Wait until all other processes are about to end, too."""
    while not self._table.all_ended():
      time.sleep(_BEAT_SECONDS / 10)

  def _write(self) -> None:
    with self._writing:
      self._number += 1
      state = waits.state()
      beat = Beat(
          self._host,
          self._number,
          str(state),
          waits.COMPILATION in state.names,
          state.changes,
          self._ended,
      )
      self._set(f'{_BEATS}{self.process}', beat)

  def _set(self, key: str, value: Beat | Verdict) -> None:
    # Failed writes and reads are ignored here: `Table.judge` ends the process
    # if they last too long.
    with contextlib.suppress(jax.errors.JaxRuntimeError):
      self._client.key_value_set(
          key, json.dumps(dataclasses.asdict(value)), allow_overwrite=True
      )

  def _read(self) -> None:
    beats = {
        int(key.rpartition('/')[2]): Beat(**json.loads(text))
        for key, text in self._client.key_value_dir_get(_BEATS)
    }
    with self._lock:
      self._table.update(beats, time.monotonic())
    for _, text in self._client.key_value_dir_get(_VERDICTS):
      self._end(Verdict(**json.loads(text)), told=True)

  def _beat(self) -> None:
    """Write and read heartbeats until the end.

    This is a thread of its own, because calls to a store that is gone may hang
    for minutes.
    """
    while not self.stopped.is_set():
      self._write()
      with contextlib.suppress(jax.errors.JaxRuntimeError):
        self._read()
      # Near its end, this process writes and reads more often to end sooner.
      wait = _BEAT_SECONDS if self._ended is None else _BEAT_SECONDS / 10
      self.stopped.wait(wait)

  def _judge(self) -> None:
    while not self.stopped.wait(_BEAT_SECONDS / 2):
      if self._ended not in (None, *_IN_ORDER):
        return  # This process has failed and prints its own error.
      lost = self._forwarder and self._forwarder.lost
      with self._lock:
        verdict = self._table.judge(time.monotonic(), lost)
      if verdict and not self.stopped.is_set():
        self._end(verdict)

  def _end(self, verdict: Verdict, *, told: bool = False) -> None:
    """Print the verdict, send it to the others, and end this process.

    Args:
      verdict: The reason and the exit status.
      told: True if the verdict came from another process.
    """
    if not self._ending.acquire(blocking=False):
      return  # The other thread already ends the process.
    key = f'{_VERDICTS}{self.process}'
    tell = threading.Thread(target=self._set, args=(key, verdict), daemon=True)
    if not told:
      tell.start()
    again = verdict.status == preemption.AGAIN
    remedy = ': start all processes again, they continue' if again else ''
    _say(f'{verdict.text}; exit code {verdict.status}{remedy}')
    if self.process == 0:  # The store ends with it, so let the others read.
      time.sleep(_GRACE_SECONDS)
    elif not told:
      tell.join(timeout=1)
    preemption.exit_now(verdict.status)


_watch: _Watch | None = None


def watch_alone(count: int) -> None:
  """End this process if it makes no progress within the limit.

  This is for a run in one process, which can hang in a collective of its
  devices. Nothing is done for one device, without a limit, or after `join`.

  Args:
    count: Number of devices of the run.
  """
  if _watch is None and count > 1 and _limit_s > 0:
    devices.report_compilations()
    _start_alone()


@functools.cache  # One thread, however many arms a process trains.
def _start_alone() -> None:
  threading.Thread(target=_alone, daemon=True).start()


def _alone() -> None:
  """Wait until this process is stuck, and end it."""
  changes, moved = None, 0.0
  ticked = time.monotonic()
  while True:
    time.sleep(_BEAT_SECONDS / 2)
    state, now = waits.state(), time.monotonic()
    # A long gap means that this process was paused and could not make progress.
    if state.changes != changes or now - ticked > SILENT_SECONDS:
      changes, moved = state.changes, now
    ticked, seconds = now, now - moved
    if _is_over(seconds, _limit_s, waits.COMPILATION in state.names):
      _say(
          f'this process has got no further for {seconds:.0f} s'
          f' (--collective_seconds), it is {state}; exit code'
          f' {preemption.AGAIN}: start the same command again, it continues'
      )
      preemption.exit_now(preemption.AGAIN)


def _say(text: str) -> None:
  """Write a line to the log of the run and to stderr."""
  output.log(text)
  os.write(2, f'{text}\n'.encode(errors='replace'))


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
) -> None:
  """Join the other processes of the run, and watch them from here on.

  Under Slurm, on a TPU pod and under Open MPI, jax finds the first three
  arguments by itself.

  Args:
    coordinator: HOST:PORT, a free port on the host of process 0.
    processes: Number of processes.
    process: Number of this process.

  Raises:
    ValueError: If one of the first three is neither given nor found.
  """
  # `preemption` handles the signals.
  jax.config.update('jax_enable_preemption_service', False)
  coordinator = coordinator or os.environ.get('JAX_COORDINATOR_ADDRESS')
  local = None
  if None in (coordinator, processes, process):
    find = clusters.ClusterEnv.auto_detect_unset_distributed_params
    coordinator, processes, process, local = find(
        coordinator, processes, process, None, None, _JOIN_SECONDS
    )
  missing = [
      f'--{name}'
      for name, value in (
          ('coordinator', coordinator),
          ('processes', processes),
          ('process', process),
      )
      if value is None
  ]
  if missing:
    raise ValueError(
        f'--distributed: neither Slurm nor a TPU pod tells {missing}; give them'
    )
  forwarder = forwarder_lib.Forwarder(coordinator) if process else None
  found_all = threading.Event()

  def give_up() -> None:
    if found_all.wait(_JOIN_SECONDS):
      return
    text = (
        f'process {process} did not find all {processes} processes at'
        f' {coordinator} in {_JOIN_SECONDS} s; exit code {preemption.AGAIN}:'
        ' start all processes again'
    )
    os.write(2, f'{text}\n'.encode())
    preemption.exit_now(preemption.AGAIN)

  threading.Thread(target=give_up, daemon=True).start()
  jax.distributed.initialize(
      forwarder.address if forwarder else coordinator,
      processes,
      process,
      local,
      # Detection is done above; if all three are given, jax would use one GPU
      # per process under Slurm.
      'deactivate',
      # Longer than `give_up` waits, because jax would abort the process.
      initialization_timeout=2 * _JOIN_SECONDS,
      heartbeat_timeout_seconds=_JAX_SECONDS,
  )
  found_all.set()
  global _watch
  if processes > 1:
    devices.report_compilations()
    _watch = _Watch(process, processes, _limit_s, forwarder)


def blame() -> None:
  """Return only if all processes of the run are alive; call it after an error.

  A call that waits for a dead process may fail before the heartbeats show that
  the process is dead. In this case this process ends here, and the message
  names the dead one.
  """
  if _watch:
    _watch.wait_for_beats()


def leave(status: int) -> None:
  """Wait for the end of all processes, or exit at once after a failure.

  Args:
    status: Exit status. If it means a failure, this call does not return.
  """
  if _watch is None:
    return
  _watch.end(status)
  if status in _IN_ORDER:
    _watch.wait_for_all()
    _watch.stopped.set()
    # After this, jax only leaves its coordination service; the timer ends the
    # process if that hangs.
    timer = threading.Timer(_EXIT_SECONDS, preemption.exit_now, [status])
    timer.daemon = True
    timer.start()
    return
  if _watch.process == 0:
    time.sleep(_GRACE_SECONDS)
  sys.stdout.flush()
  sys.stderr.flush()
  preemption.exit_now(status)


def report_failure(error: BaseException) -> None:
  """Print the traceback of an error that ends this process, and end it."""
  blame()
  if _watch:
    traceback.print_exception(error)
    leave(1)
