"""Pairs of processes of one run: workers start them, and tests read them."""

import json
import os
import pathlib
import pickle
import socket
import subprocess
import sys
from typing import Any

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


def compare(worker: pathlib.Path, root: pathlib.Path) -> dict[str, Any]:
  """Run a worker alone, and as the first and the second of two processes.

  Args:
    worker: A program, `worker OUTPUT [PROCESS PORT]`, that writes a pickle.
    root: An empty directory.

  Returns:
    What was written: {'one': ..., 'first': ..., 'second': ...}.

  Raises:
    AssertionError: If one of them fails; with all that it printed.
  """
  port = free_port()
  commands = {'one': (), 'first': (0, port), 'second': (1, port)}
  workers = {
      name: subprocess.Popen(
          [sys.executable, worker, root / name, *map(str, args)],
          cwd=tiny.ROOT,
          env=tiny.environment(),
          stdout=subprocess.PIPE,
          stderr=subprocess.STDOUT,
          text=True,
      )
      for name, args in commands.items()
  }
  found = {}
  try:
    for name, process in workers.items():
      log, _ = process.communicate(timeout=200)
      if process.returncode:
        raise AssertionError(f'{name} failed:\n{log}')
      found[name] = pickle.loads((root / name).read_bytes())
  finally:
    for process in workers.values():
      process.kill()
  return found
