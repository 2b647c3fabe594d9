"""Diagnosis of a training run in progress, in a separate process."""

from collections.abc import Callable, Sequence
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from absl import logging

from evojax.diagnosis import run as run_lib
from evojax.diagnosis import show
from evojax.evidence import store
from evojax.runtime import output
from evojax.runtime import pace

_SECONDS = 60.0  # Minimum time before the first diagnosis and between two.
# A diagnosis takes about 40 bytes of memory for each byte of evidence.
_MOST_BYTES = 128 * 2**20
_NICE = 10  # Added to the training's niceness, so that training has priority.


class Live(contextlib.AbstractContextManager):
  """Reports what is wrong with a run as soon as its logs show it.

  Each new critical finding is printed once. If a diagnosis fails, the run
  continues without further ones. Used by the process that writes the evidence.
  """

  def __init__(
      self,
      workdir: str | os.PathLike[str],
      clock: Callable[[], float] = time.monotonic,
  ):
    self._path = pathlib.Path(workdir)
    self._pace = pace.Pace(_SECONDS, clock)
    self._process: subprocess.Popen | None = None
    self._said: set[str] = set()  # Checks whose findings were printed.
    self._began = self._ended = False

  def update(self) -> None:
    """Start a diagnosis if it is due, or print new critical findings.

    It is called at every step.
    """
    if self._ended:
      return
    if self._process is None:
      if self._pace.is_due():
        self._start()
        self._give_way()
    elif found := self._result():
      new = [
          finding
          for finding in found['findings']
          if finding['severity'] == 'critical'
          and finding['check'] not in self._said
      ]
      if new:
        self._say('diagnosis so far', new)

  def finish(self, must: bool = False) -> None:
    """Print the diagnosis of the finished run.

    Args:
      must: Whether to diagnose even a run of less than a minute.
    """
    self._stop()
    if self._ended or not (must or self._began or self._pace.is_due()):
      return
    self._start()
    if self._process is None or not (found := self._result(wait=True)):
      return
    faults = [f for f in found['findings'] if f['severity'] != 'note']
    if faults:
      self._say('diagnosis', faults)
    else:
      output.say(f'diagnosis: {found["summary"]}')

  def __exit__(self, *_) -> None:
    self._stop()

  def _start(self) -> None:
    """Start a diagnosis, unless there is too much evidence."""
    self._began = True
    module = ['-m', 'evojax.diagnosis', str(self._path), '--format=evojax']
    try:
      files = (
          store.path_of(self._path, 'train', step)
          for step in store.list_steps(self._path, 'train')
      )
      if sum(file.stat().st_size for file in files) > _MOST_BYTES:
        self._ended = True
        output.say(
            'the training is no longer diagnosed while it runs: there are over'
            f' {_MOST_BYTES >> 20} MB of evidence; --mode=diagnose reads more'
        )
        return
      self._process = subprocess.Popen(
          [sys.executable, *module],
          stdin=subprocess.DEVNULL,
          stdout=subprocess.DEVNULL,
          stderr=subprocess.DEVNULL,
      )
    except OSError as error:
      self._fail(error)

  def _give_way(self) -> None:
    """Give the diagnosis a lower priority than the training has."""
    if self._process is not None:
      own = os.getpriority(os.PRIO_PROCESS, 0)
      os.setpriority(os.PRIO_PROCESS, self._process.pid, min(own + _NICE, 19))

  def _result(self, wait: bool = False) -> dict[str, Any]:
    """Return diagnosis.json if the process has succeeded, otherwise {}.

    Args:
      wait: Whether to wait for the process to end.
    """
    options = 0 if wait else os.WNOHANG
    pid, status, usage = os.wait4(self._process.pid, options)
    if not pid:
      return {}
    code = self._process.returncode = os.waitstatus_to_exitcode(status)
    self._process = None
    # CPU time, since the process may have had to wait for a CPU.
    self._pace.took(usage.ru_utime + usage.ru_stime)
    try:
      if code not in (0, 1):
        raise ValueError(f'exit code {code}')
      return json.loads((self._path / run_lib.FILES[0]).read_bytes())
    except (OSError, ValueError) as error:
      self._fail(error)
      return {}

  def _fail(self, error: Exception) -> None:
    """Stop diagnosing after an error, which must not end the run."""
    self._ended = True
    logging.warning(f'no diagnosis of {self._path}: {error}')

  def _say(self, what: str, findings: Sequence[dict[str, Any]]) -> None:
    self._said.update(finding['check'] for finding in findings)
    output.say(f'{what}:')
    output.say('\n'.join(show.brief(findings)))
    output.say(f'page: {self._path / run_lib.FILES[1]}')

  def _stop(self) -> None:
    if self._process is not None:
      self._process.kill()
      self._process.wait()
      self._process = None
