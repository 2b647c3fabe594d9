"""Compares servers: the same model, client and requests for each.

This is a part of benchmarks.serve. Each server is started alone, serves the
shipped math policy (head_dim 128) in float32 with 64 slots, and receives
requests for 64 tokens from 1, 8 and 64 streaming clients. A server that is
already running is named by its URL and must serve that policy; its key is in
EVOJAX_TEST_KEY.
"""

import asyncio
import collections
from collections.abc import Callable
import contextlib
import json
import os
import statistics
import time

import numpy as np

from tests.contract import servers

CLIENTS = (1, 8, 64)
PROMPT, TOKENS = 16, 64
_ROUNDS = 4  # Requests of each client.
_SLOTS, _CONTEXT = 64, 128

_SGLANG = (
    f'--max-running-requests={_SLOTS}',
    f'--max-total-tokens={_SLOTS * _CONTEXT}',
    f'--context-length={_CONTEXT}',
)
# Name -> function that makes a server without starting it.
_MAKE: dict[str, Callable[[], servers.Server]] = {
    'evojax': lambda: servers.evojax(
        servers.MODEL,
        f'--config.rollout.decode_slots={_SLOTS}',
        f'--config.serve.context_tokens={_CONTEXT}',
    ),
    'sglang_jax': lambda: servers.sglang_jax(
        servers.MODEL,
        *_SGLANG,
        # Shapes for few and for many requests at a time.
        *('--precompile-bs-paddings', '1', '8', str(_SLOTS)),
        *('--precompile-token-paddings', '16', '128', '1024', '8192'),
        '--max-prefill-tokens=8192',
    ),
    'sglang': lambda: servers.sglang(servers.MODEL, *_SGLANG),
}


def check(names: list[str]) -> None:
  """Check that each name is a URL or a server that can be started.

  Raises:
    ValueError: If one is neither.
  """
  for name in names:
    if name not in _MAKE and not name.startswith('http://'):
      raise ValueError(f'--against={name}: wanted {list(_MAKE)} or http://...')


@contextlib.contextmanager
def _serving(name: str):
  """Yield the address of a server, which is started unless it is a URL."""
  if name not in _MAKE:
    yield name
    return
  os.environ.setdefault(servers.KEY_VARIABLE, servers.KEY)
  with _MAKE[name]() as server:
    yield server.url


async def _ask(url: str, prompt: list[int], seed: int) -> tuple[float, float]:
  """Return seconds to the first token of a streamed answer, and to its end."""
  params = dict(max_new_tokens=TOKENS, ignore_eos=True, sampling_seed=seed)
  body = dict(input_ids=prompt, sampling_params=params, stream=True)
  data = json.dumps(body).encode()
  address = url.removeprefix('http://')
  key = os.environ.get(servers.KEY_VARIABLE, '')
  head = (
      f'POST /generate HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n'
      f'Content-Type: application/json\r\nAuthorization: Bearer {key}\r\n'
      f'Content-Length: {len(data)}\r\n\r\n'
  )
  start, first, answer = time.perf_counter(), 0.0, b''
  reader, writer = await asyncio.open_connection(*address.split(':'))
  writer.write(head.encode() + data)
  while chunk := await reader.read(1 << 16):
    answer += chunk
    if not first and b'data: ' in answer:
      first = time.perf_counter() - start
    if b'data: [DONE]' in answer[-200:]:
      break
  seconds = time.perf_counter() - start
  writer.close()
  last = answer.rpartition(b'data: {')[2].partition(b'\n')[0]
  count = json.loads(b'{' + last)['meta_info']['completion_tokens']
  if count != TOKENS:
    raise ValueError(f'{url} sampled {count} tokens instead of {TOKENS}')
  return first, seconds


async def _round(
    url: str, clients: int, seed: int
) -> tuple[float, list[float]]:
  """Return tokens per second, and each request's seconds to a first token."""
  rng = np.random.default_rng(seed)
  prompts = rng.integers(10, 400, (clients * _ROUNDS, PROMPT)).tolist()
  queue, first = collections.deque(enumerate(prompts)), []

  async def work():
    while queue:
      k, prompt = queue.popleft()
      first.append((await _ask(url, prompt, k))[0])

  start = time.perf_counter()
  await asyncio.gather(*(work() for _ in range(clients)))
  return len(prompts) * TOKENS / (time.perf_counter() - start), first


def run(names: list[str], rounds: int) -> None:
  """Measure the servers one by one and print a table."""
  print(
      f'{PROMPT} + {TOKENS} tokens, {_ROUNDS} requests a client, median of'
      f' {rounds} rounds; load before {os.getloadavg()[0]:.1f}'
  )
  print('| server | clients | tokens/s | first token, median (95 %) |')
  print('| --- | --- | --- | --- |')
  for name in names:
    with _serving(name) as url:
      for clients in CLIENTS:
        asyncio.run(_round(url, clients, seed=0))  # Warms up its shapes.
        speeds, first = [], []
        for seed in range(1, rounds + 1):
          speed, seconds = asyncio.run(_round(url, clients, seed))
          speeds.append(speed)
          first += seconds
        p50, p95 = np.percentile(first, [50, 95])
        print(
            f'| {name} | {clients} | {statistics.median(speeds):,.0f} |'
            f' {p50 * 1e3:.0f} ms ({p95 * 1e3:.0f} ms) |',
            flush=True,
        )
