"""Servers in processes of their own: evojax's, sglang-jax, sglang."""

from collections.abc import Iterator, Sequence
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


@contextlib.contextmanager
def _run(
    command: Sequence[str], port: int, **environment: str
) -> Iterator[str]:
  """The URL of a server, once it is up; it dies at the end."""
  url = f'http://127.0.0.1:{port}'
  with tempfile.TemporaryFile('w+') as log:
    process = subprocess.Popen(
        command,
        cwd=tiny.ROOT,
        # Compiled as in earnest: they decode thousands of tokens.
        env=os.environ | {'JAX_PLATFORMS': 'cpu'} | environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # All of its processes end with it.
    )
    try:
      deadline = time.monotonic() + _START_SECONDS
      while not _healthy(url):
        if process.poll() is not None or time.monotonic() > deadline:
          log.seek(0)
          raise RuntimeError(f'{command} is not up:\n{log.read()[-4000:]}')
        time.sleep(0.5)
      yield url
    finally:
      if process.poll() is not None:
        log.seek(0)
        print(f'{url} died; its last words:\n{log.read()[-4000:]}')
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
      process.wait()


def _healthy(url: str) -> bool:
  try:
    return httpx2.get(url + '/health', timeout=5).status_code == 200
  except httpx2.HTTPError:
    return False


def evojax() -> contextlib.AbstractContextManager[str]:
  """evojax's own service."""
  port = _free_port()
  return _run(
      [
          sys.executable,
          '-m',
          'evojax.main',
          '--config=configs/math.py',
          '--mode=serve',
          f'--port={port}',
          f'--config.serve.context_tokens={CONTEXT}',
          f'--config.serve.api_key_env={KEY_VARIABLE}',
          f'--weights_root={tempfile.gettempdir()}',
          '--config.rollout.decode_slots=8',
      ],
      port,
      PYTHONPATH=tiny.environment()['PYTHONPATH'],
      **{KEY_VARIABLE: KEY},
  )


def _python(variable: str, what: str) -> str:
  """The Python that a variable names; without one the tests are skipped."""
  python = os.environ.get(variable, '')
  if not pathlib.Path(python).is_file():
    raise unittest.SkipTest(f'{variable} names no Python with {what}')
  return python


def sglang_jax() -> contextlib.AbstractContextManager[str]:
  """A real sglang-jax on the CPU, started as launch/sglang_jax.sh does."""
  python = _python(
      'EVOJAX_SGLANG_JAX_PYTHON',
      'sglang-jax; test.sh makes one where Python 3.12 is found',
  )
  port = _free_port()
  flags = {
      'model-path': domains.policy_path(MODEL),
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
      'disable-radix-cache',
      'disable-overlap-schedule',
      'skip-server-warmup',
  )
  return _run(
      [python, 'launch/sglang_jax.py', *_flags(flags, switches)],
      port,
      # Not this process's packages.
      PYTHONPATH='',
      JAX_COMPILATION_CACHE_DIR=os.path.expanduser(
          '~/.cache/evojax/tests-sglang-jax'
      ),
  )


def sglang() -> contextlib.AbstractContextManager[str]:
  """A real sglang on the CPU, started as launch/sglang_cpu.sh does."""
  python = _python(
      'EVOJAX_SGLANG_PYTHON',
      'sglang; `bash launch/sglang_cpu.sh --python` makes one and prints it',
  )
  port = _free_port()
  flags = {
      'model-path': domains.policy_path(MODEL),
      'port': port,
      'api-key': KEY,
      'dtype': 'float32',
      'context-length': CONTEXT,
      'max-total-tokens': 4096,
      'max-running-requests': 8,
  }
  return _run(
      [
          python,
          'launch/sglang_cpu.py',
          *_flags(flags, ('skip-server-warmup',)),
      ],
      port,
      # Not this process's packages.
      PYTHONPATH='',
      # Several wait for each other by spinning: where other programs run, a
      # token takes fifty times as long.
      OMP_NUM_THREADS='1',
  )


def _flags(values: dict[str, object], switches: Sequence[str]) -> list[str]:
  words = []
  for name, value in values.items():
    many = value if isinstance(value, tuple) else (value,)
    words += [f'--{name}', *map(str, many)]
  return [*words, *(f'--{name}' for name in switches)]
