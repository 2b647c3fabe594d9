"""Servers in processes of their own: evojax's, sglang-jax, sglang."""

from collections.abc import Sequence
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import httpx2

from evojax import domains
from tests import compiled
from tests import tiny

KEY = 'a key of the servers'
KEY_VARIABLE = 'EVOJAX_TEST_KEY'
MODEL = 'package:math'  # Its head_dim is what sglang-jax needs.
CONTEXT = 512
_START_SECONDS = 240


def _free_port() -> int:
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return s.getsockname()[1]


class Server:
  """A server in processes of its own, on a port that it keeps."""

  def __init__(self, command: Sequence[str], port: int, **environment: str):
    """Start nothing yet.

    Args:
      command: Starts the server.
      port: That the command names.
      **environment: In addition to this process's.
    """
    self.url = f'http://127.0.0.1:{port}'
    self._command = command
    # Optimised, unless told otherwise: they decode thousands of tokens.
    self._environment = (
        os.environ | compiled.OPTIMISED | {'JAX_PLATFORMS': 'cpu'} | environment
    )
    self._process: subprocess.Popen | None = None

  def __enter__(self) -> 'Server':
    self._log = tempfile.TemporaryFile('w+')
    self.start()
    return self

  def __exit__(self, *_) -> None:
    if self._process.poll() not in (None, -signal.SIGKILL):
      print(f'{self.url} died; its last words:\n{self._last_words()}')
    self.kill()
    self._log.close()

  def start(self) -> None:
    """Start it, again after `kill`; return once it is up."""
    self._process = subprocess.Popen(
        self._command,
        cwd=tiny.ROOT,
        env=self._environment,
        stdin=subprocess.DEVNULL,
        stdout=self._log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # All of its processes end with it.
    )
    deadline = time.monotonic() + _START_SECONDS
    while not _healthy(self.url):
      if self._process.poll() is not None or time.monotonic() > deadline:
        self.kill()
        words = self._last_words()
        raise RuntimeError(f'{self._command} is not up:\n{words}')
      time.sleep(0.2)

  def signal(self, number: int) -> None:
    """Send a signal to all of its processes."""
    os.killpg(self._process.pid, number)

  def kill(self) -> None:
    """End it as the kernel does where memory is short."""
    with contextlib.suppress(ProcessLookupError):
      self.signal(signal.SIGKILL)
    self._process.wait()

  def _last_words(self) -> str:
    self._log.seek(0)
    return self._log.read()[-4000:]


def _healthy(url: str) -> bool:
  try:
    return httpx2.get(url + '/health', timeout=5).status_code == 200
  except httpx2.HTTPError:
    return False


def evojax(
    model: str | os.PathLike[str] = MODEL,
    *flags: str,
    port: int = 0,
    **environment: str,
) -> Server:
  """evojax's own service."""
  port = port or _free_port()
  return Server(
      [
          sys.executable,
          '-m',
          'evojax.main',
          '--config=configs/math.py',
          '--mode=serve',
          f'--port={port}',
          f'--compilation_cache={compiled.CACHE}',
          f'--config.model.path={os.fspath(model)}',
          f'--config.serve.context_tokens={CONTEXT}',
          f'--config.serve.api_key_env={KEY_VARIABLE}',
          f'--weights_root={tempfile.gettempdir()}',
          '--config.rollout.decode_slots=8',
          *flags,
      ],
      port,
      PYTHONPATH=tiny.environment()['PYTHONPATH'],
      **{KEY_VARIABLE: KEY},
      **environment,
  )


def _python(variable: str, what: str) -> str:
  """The Python that a variable names; without one the tests are skipped."""
  python = os.environ.get(variable, '')
  if not pathlib.Path(python).is_file():
    raise unittest.SkipTest(f'{variable} names no Python with {what}')
  return python


def sglang_jax(
    model: str | os.PathLike[str] = MODEL, *flags: str, port: int = 0
) -> Server:
  """A real sglang-jax on the CPU, started as launch/sglang_jax.sh does."""
  python = _python(
      'EVOJAX_SGLANG_JAX_PYTHON',
      'sglang-jax; test.sh makes one where Python 3.12 is found',
  )
  port = port or _free_port()
  values = {
      'model-path': domains.policy_path(os.fspath(model)),
      'port': port,
      'api-key': KEY,
      'device': 'cpu',
      'dtype': 'float32',
      'attention-backend': 'native',
      'mem-fraction-static': 0.1,
      'max-total-tokens': 4096,
      'context-length': CONTEXT,
      'max-running-requests': 8,
      'page-size': 1,
      'chunked-prefill-size': -1,
      'max-prefill-tokens': 2048,
      # Few shapes: each is compiled at the start. All that runs may have to be
      # prefilled at once, and what fits no shape kills the server.
      'precompile-token-paddings': (64, 256, 2048),
      'precompile-bs-paddings': (8,),
  }
  switches = (
      'enable-deterministic-sampling',
      'disable-overlap-schedule',
      'skip-server-warmup',
  )
  return Server(
      [python, 'launch/sglang_jax.py', *_flags(values, switches), *flags],
      port,
      # Not this process's packages.
      PYTHONPATH='',
      JAX_COMPILATION_CACHE_DIR=os.path.expanduser(
          '~/.cache/evojax/tests-sglang-jax'
      ),
  )


def sglang(
    model: str | os.PathLike[str] = MODEL, *flags: str, port: int = 0
) -> Server:
  """A real sglang on the CPU, started as launch/sglang_cpu.sh does."""
  python = _python(
      'EVOJAX_SGLANG_PYTHON',
      'sglang; `bash launch/sglang_cpu.sh --python` makes one and prints it',
  )
  port = port or _free_port()
  values = {
      'model-path': domains.policy_path(os.fspath(model)),
      'port': port,
      'api-key': KEY,
      'dtype': 'float32',
      'context-length': CONTEXT,
      'max-total-tokens': 4096,
      'max-running-requests': 8,
  }
  return Server(
      [
          python,
          'launch/sglang_cpu.py',
          *_flags(values, ('skip-server-warmup',)),
          *flags,
      ],
      port,
      # Not this process's packages.
      PYTHONPATH='',
      # Several wait for each other by spinning: where other programs run, a
      # token takes fifty times as long.
      OMP_NUM_THREADS='1',
  )


def router(worker: str) -> Server:
  """SGLang's own router in front of a server at a URL.

  Its package is no dependency of ours: `pip install sglang-router==0.3.2` into
  an environment, and name its Python.
  """
  python = _python('EVOJAX_SGLANG_ROUTER_PYTHON', 'sglang-router')
  port = _free_port()
  values = {
      'host': '127.0.0.1',
      'port': port,
      'worker-urls': worker,
      'api-key': KEY,
      'policy': 'round_robin',
      'prometheus-port': _free_port(),
  }
  command = [python, '-m', 'sglang_router.launch_router', *_flags(values, ())]
  return Server(command, port, PYTHONPATH='')


def _flags(values: dict[str, object], switches: Sequence[str]) -> list[str]:
  words = []
  for name, value in values.items():
    many = value if isinstance(value, tuple) else (value,)
    words += [f'--{name}', *map(str, many)]
  return [*words, *(f'--{name}' for name in switches)]
