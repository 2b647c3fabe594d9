"""Pairs of processes of one run: workers start them, and tests read them."""

import json
import os
import pathlib
import socket
import subprocess
import sys

from tests import tiny


def free_port() -> int:
  """Return a port of this machine at which the first process can listen."""
  with socket.socket() as s:
    s.bind(('localhost', 0))
    return s.getsockname()[1]


def fork(root: pathlib.Path, process: int) -> int:
  """Fork a process whose output goes to ROOT/out<process>.

  Returns:
    Its number in the worker; 0 in the process itself.
  """
  child = os.fork()
  if child:
    return child
  out = os.open(
      root / f'out{process}', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644
  )
  os.dup2(out, 1)
  os.dup2(out, 2)
  return 0


def play(worker: str, *arguments: str | os.PathLike[str]) -> list[dict]:
  """Run a worker, a module that prints one line of JSON for each pair.

  Args:
    worker: Name of the module.
    *arguments: Its arguments.

  Raises:
    AssertionError: If it fails; with all that it printed.
  """
  done = subprocess.run(
      [sys.executable, '-m', worker, *arguments],
      cwd=tiny.ROOT,
      env=tiny.environment(
          XLA_FLAGS='--xla_force_host_platform_device_count=1'
      ),
      capture_output=True,
      text=True,
      check=False,
  )
  if done.returncode:
    raise AssertionError(done.stdout + done.stderr)
  return [json.loads(line) for line in done.stdout.splitlines()]
