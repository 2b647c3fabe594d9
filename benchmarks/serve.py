"""Compares the service with the bare engine, and tests it under abuse.

    python -m benchmarks.serve [--rounds=5] [--soak=10000]
    python -m benchmarks.serve --against=evojax,sglang_jax,sglang,URL

Throughput: 64 clients repeatedly ask for 64 tokens each, alternating with the
bare engine in this process, on the shipped math policy. The service has fewer
slots than clients, so that no slot waits for its client's next request; the
engine is as fast with 32 slots as with 64. The client's CPU time is counted
separately. Then it measures latency, and the time from the call of a weight
update to the first token of the new version. Last, with 64 slots, it measures
throughput with fewer and with more clients: waiting clients must cost nothing.
With --soak, it sends that many short requests, among them cancellations,
malformed JSON, huge prompts, wrong types, slow readers and dropped connections.
Afterwards no slot, task, memory or descriptor may be left behind, and no answer
may have been wrong. With --against, it only compares the given servers; see
`benchmarks.against`.
"""

import asyncio
import collections
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags
from absl import logging
import httpx2
import numpy as np

from benchmarks import against
from configs import math as math_config
from evojax import domains
from evojax import records
from evojax.models import policy as policy_lib
from evojax.runtime import sharding
from evojax.training import engines

TARGET_RATIO = 0.85
CLIENTS, TOKENS, PROMPT = 64, 64, 16
SLOTS = 40
QUEUE_SLOTS, QUEUE_CLIENTS = 64, (8, 64, 256)
TARGET_QUEUED = 0.9  # Throughput with the most clients / with one per slot.
_HOST = 'Host: localhost\r\n'
CONTEXT = 96  # Longest prompt and completion together.

_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Timed rounds.', lower_bound=1)
_REQUESTS = flags.DEFINE_integer('requests', 512, 'Requests of a round.')
_AGAINST = flags.DEFINE_list(
    'against', [], 'Servers to compare: names or URLs.'
)
_SOAK = flags.DEFINE_integer('soak', 0, 'Requests of the soak; 0: none.')


def _config():
  c = math_config.get_config().unlock()
  c.rollout.decode_slots = CLIENTS
  c.data.max_prompt_tokens = CONTEXT - TOKENS
  c.rollout.max_tokens = TOKENS
  return c


def _prompts(count: int) -> list[list[int]]:
  rng = np.random.default_rng(0)
  return rng.integers(10, 400, (count, PROMPT)).tolist()


class Bare:
  """The engine in this process."""

  def __init__(self):
    config = _config()
    model = config.model.to_dict()
    model['path'] = domains.policy_path(config.model.path)
    policy = policy_lib.open_policy(max_tokens=CONTEXT, **model)
    mesh = sharding.make_mesh(data=1, fsdp=1, tensor=1)
    self._engine = engines.make_engine(config, policy, mesh)
    params = policy_lib.load_params(policy, mesh, param_dtype='float32')
    self._engine.update_weights(params, 0)
    self.path = policy.path

  def run(self, prompts: list[list[int]]) -> float:
    """Return tokens per second."""
    params = records.SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    requests = [
        records.Request(tuple(p), i, 0, 0, params)
        for i, p in enumerate(prompts)
    ]
    start = time.perf_counter()
    self._engine.generate(requests)
    return len(prompts) * TOKENS / (time.perf_counter() - start)


class Server:
  """A server in its own process."""

  def __init__(self, slots: int = SLOTS):
    self._slots = slots

  def __enter__(self) -> 'Server':
    self.process = subprocess.Popen(
        [
            sys.executable,
            '-m',
            'evojax.main',
            '--mode=serve',
            '--config=configs/math.py',
            '--port=0',
            f'--weights_root={tempfile.gettempdir()}',
            f'--config.rollout.decode_slots={self._slots}',
            # The same shapes as the engine here, since attention covers all of
            # it.
            f'--config.serve.context_tokens={CONTEXT}',
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    self.url = ''
    for line in self.process.stdout:
      if found := re.search(r'http://\S+', line):
        self.url = found[0]
      if line == 'ready\n':
        return self
    raise RuntimeError('the server did not start; see its errors above')

  def __exit__(self, *_) -> None:
    self.process.terminate()
    self.process.wait(60)

  def cpu_seconds(self) -> float:
    fields = pathlib.Path(f'/proc/{self.process.pid}/stat').read_text()
    user, system = fields.rpartition(')')[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf('SC_CLK_TCK')

  def held(self) -> dict[str, float]:
    """Return amounts that a leak would increase."""
    root = pathlib.Path(f'/proc/{self.process.pid}')
    rss = re.search(r'VmRSS:\s+(\d+)', (root / 'status').read_text())[1]
    return dict(
        descriptors=len(list((root / 'fd').iterdir())),
        threads=len(list((root / 'task').iterdir())),
        rss_mb=int(rss) / 1024,
    )


def _ask(tokens: list[int], seed: int, count: int = TOKENS, **extra) -> dict:
  params = dict(max_new_tokens=count, ignore_eos=True, sampling_seed=seed)
  return dict(input_ids=tokens, sampling_params=params, **extra)


class Connection:
  """A client with little overhead, since the server is to be measured."""

  def __init__(self, url: str):
    self._address = url.removeprefix('http://').split(':')

  async def __aenter__(self) -> 'Connection':
    self._reader, self._writer = await asyncio.open_connection(*self._address)
    return self

  async def __aexit__(self, *_) -> None:
    self._writer.close()

  async def post(self, path: str, body: dict) -> dict:
    """Return the JSON of the answer."""
    data = json.dumps(body).encode()
    head = f'POST {path} HTTP/1.1\r\n{_HOST}Content-Length: {len(data)}'
    self._writer.write(f'{head}\r\n\r\n'.encode() + data)
    head = await self._reader.readuntil(b'\r\n\r\n')
    length = int(re.search(rb'content-length: (\d+)', head.lower())[1])
    return json.loads(await self._reader.readexactly(length))


async def _round(
    url: str, prompts: list[list[int]], clients: int = CLIENTS
) -> tuple[float, list[float]]:
  """Return (tokens per second, seconds of each request)."""
  queue = collections.deque(enumerate(prompts))
  latencies = []

  async def work():
    async with Connection(url) as connection:
      while queue:
        seed, tokens = queue.popleft()
        start = time.perf_counter()
        answer = await connection.post('/generate', _ask(tokens, seed))
        latencies.append(time.perf_counter() - start)
        assert answer['meta_info']['completion_tokens'] == TOKENS, answer

  start = time.perf_counter()
  await asyncio.gather(*(work() for _ in range(clients)))
  seconds = time.perf_counter() - start
  return len(prompts) * TOKENS / seconds, latencies


async def _throughput(server: Server, bare: Bare) -> bool:
  prompts = _prompts(_REQUESTS.value)
  await _round(server.url, prompts[:CLIENTS])
  bare.run(prompts[:CLIENTS])
  served, alone, latencies, cpu = [], [], [], []
  for _ in range(_ROUNDS.value):
    alone.append(bare.run(prompts))
    before = time.process_time(), server.cpu_seconds()
    speed, seconds = await _round(server.url, prompts)
    served.append(speed)
    latencies += seconds
    after = time.process_time(), server.cpu_seconds()
    cpu.append([b - a for a, b in zip(before, after, strict=True)])
  ratio = statistics.median(a / b for a, b in zip(served, alone, strict=True))
  own, theirs = np.median(cpu, axis=0)
  p50, p99 = np.percentile(latencies, [50, 99])
  print(
      f'{CLIENTS} clients, {TOKENS} tokens: service'
      f' {statistics.median(served):,.0f} tok/s, bare engine'
      f' {statistics.median(alone):,.0f} tok/s, ratio {ratio:.2f} (at least'
      f' {TARGET_RATIO}); CPU-s of a round: server {theirs:.1f}, client'
      f' {own:.1f}; latency p50 {p50:.2f} s, p99 {p99:.2f} s'
  )
  await _updates(server, bare.path)
  return ratio >= TARGET_RATIO


async def _queued(server: Server) -> bool:
  """Compare numbers of clients, alternating, on one server."""
  speeds = collections.defaultdict(list)
  prompts = _prompts(_REQUESTS.value)
  for turn in range(_ROUNDS.value + 1):
    for clients in QUEUE_CLIENTS:
      asked = prompts[: max(CLIENTS, 4 * clients)]
      speed, _ = await _round(server.url, asked, clients)
      if turn:  # The first turn warms up.
        speeds[clients].append(speed)
  medians = {n: statistics.median(found) for n, found in speeds.items()}
  ratio = medians[QUEUE_CLIENTS[-1]] / medians[QUEUE_SLOTS]
  shown = ', '.join(f'{n}: {speed:,.0f}' for n, speed in medians.items())
  print(
      f'{QUEUE_SLOTS} slots, tok/s by clients: {shown}; ratio {ratio:.2f} (at'
      f' least {TARGET_QUEUED})'
  )
  return ratio >= TARGET_QUEUED


async def _updates(server: Server, path: pathlib.Path) -> None:
  """Print the time from the call to the new version's first token, under
  load."""
  seconds, stop = [], False
  shown: dict[str, float] = {}  # Version -> time when its first token arrived.

  async def load(seed):
    async with Connection(server.url) as connection:
      while not stop:
        answer = await connection.post('/generate', _ask([5, 6], seed))
        for span in answer['meta_info']['weight_versions']:
          shown.setdefault(span['version'], time.perf_counter())

  async def first_token(version):
    async with Connection(server.url) as connection:
      while version not in shown:
        answer = await connection.post('/generate', _ask([7, 8], 0, 1))
        told = answer['meta_info']['weight_version']
        shown.setdefault(told, time.perf_counter())

  with tempfile.TemporaryDirectory() as folder:
    target = pathlib.Path(folder, 'weights')
    shutil.copytree(path, target)
    async with Connection(server.url) as control:
      busy = [asyncio.create_task(load(i)) for i in range(SLOTS)]
      await asyncio.sleep(0.5)
      for n in range(5):
        start = time.perf_counter()
        watch = asyncio.create_task(first_token(f'new-{n}'))
        body = dict(model_path=str(target), weight_version=f'new-{n}')
        answer = await control.post('/update_weights_from_disk', body)
        assert answer['success'], answer
        await watch
        seconds.append(shown[f'new-{n}'] - start)
      stop = True
      await asyncio.gather(*busy)
  print(
      'update call to first token of the new version:'
      f' {1e3 * statistics.median(seconds):.0f} ms (median of 5, slots busy)'
  )


# ------------------------------------------------------------------------ soak


class _Soak:
  """Well-behaved and misbehaving clients at the same time on one server."""

  def __init__(self, server: Server, client: httpx2.AsyncClient):
    self._server, self._client = server, client
    self._rng = random.Random(0)
    self._prompts = _prompts(50)
    self._expected = []  # Token ids for each prompt, sampled without load.
    self.wrong = []
    self.seen = collections.Counter()

  def _body(self, i: int, tokens: int = 8, **fields) -> dict:
    return _ask(self._prompts[i], i, tokens, **fields)

  async def _post(self, i: int, tokens: int = 8) -> httpx2.Response:
    return await self._client.post('/generate', json=self._body(i, tokens))

  async def _fine(self, i):
    answer = await self._post(i)
    if answer.status_code == 503:
      self.seen['full'] += 1
    elif answer.json().get('output_ids') != self._expected[i]:
      self.wrong.append((i, answer.text[:200]))

  async def _cancelled(self, i):
    try:
      await asyncio.wait_for(self._post(i, 60), self._rng.random() * 0.2)
    except TimeoutError:
      pass

  async def _malformed(self, i):
    del i
    bodies = (b'{', b'\xff\xfe', b'[]', b'{"text": ' + b'[' * 500, b'')
    body = self._rng.choice(bodies)
    answer = await self._client.post('/generate', content=body)
    if answer.status_code not in (400, 413, 422):
      self.wrong.append(('malformed', answer.status_code, answer.text[:200]))

  async def _strange(self, i):
    fields = self._rng.choice(
        (
            dict(input_ids=[5] * 100_000),
            dict(input_ids=[10**9]),
            dict(input_ids='no'),
            dict(text=['a', 3]),
            dict(text='a', sampling_params={'temperature': 'hot'}),
            dict(text='a', sampling_params={'max_new_tokens': -1}),
            dict(text='a', sampling_params={'regex': str(i)}),
        )
    )
    answer = await self._client.post('/generate', json=fields)
    if answer.status_code != 400:
      self.wrong.append((fields.keys(), answer.status_code, answer.text[:200]))

  async def _slow(self, i):
    body = self._body(i, stream=True)
    last = None
    async with self._client.stream('POST', '/generate', json=body) as answer:
      if answer.status_code != 200:
        self.seen['full'] += 1
        return
      async for line in answer.aiter_lines():
        await asyncio.sleep(self._rng.random() * 0.05)
        if line.startswith('data: {'):
          last = json.loads(line[6:])
    if last['output_ids'] != self._expected[i]:
      self.wrong.append((i, 'stream', last))

  async def _dropped(self, i):
    host, _, port = self._server.url.removeprefix('http://').partition(':')
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(self._body(i, 60, stream=True)).encode()
    head = f'POST /generate HTTP/1.1\r\n{_HOST}Content-Length: {len(body)}'
    cut = self._rng.randrange(len(body))
    writer.write(head.encode() + b'\r\n\r\n' + body[:cut])
    if self._rng.random() < 0.5:
      writer.write(body)
      await reader.read(10)
    writer.transport.abort()

  async def _work(self, left: list[int]):
    kinds = [self._fine] * 12 + [
        self._cancelled,
        self._malformed,
        self._strange,
        self._slow,
        self._dropped,
    ]
    while left:
      left.pop()
      kind = self._rng.choice(kinds)
      await kind(self._rng.randrange(len(self._prompts)))
      self.seen[kind.__name__.strip('_')] += 1

  async def _settle(self):
    """Wait, at most a minute, until the server runs nothing."""
    for _ in range(600):
      answer = await self._client.get('/server_info')
      info = answer.json()['internal_states'][0]
      if not info['num_running_reqs'] and not info['num_queue_reqs']:
        return
      await asyncio.sleep(0.1)
    self.wrong.append(('left running', info))

  async def run(self, count: int) -> list[dict[str, float]]:
    """Send `count` requests; return what the server holds after 1/5 and all."""
    for i in range(len(self._prompts)):
      self._expected.append((await self._post(i)).json()['output_ids'])
    held = []
    for share in (count // 5, count - count // 5):  # The first part warms up.
      left = list(range(share))
      await asyncio.gather(*(self._work(left) for _ in range(CLIENTS)))
      await self._settle()
      held.append(self._server.held())
    return held


async def _soak(server: Server, count: int) -> bool:
  """Return whether all answers were right and nothing was left behind."""
  limits = httpx2.Limits(max_connections=None)
  async with httpx2.AsyncClient(
      base_url=server.url, timeout=300, limits=limits
  ) as client:
    soak = _Soak(server, client)
    before, after = await soak.run(count)
  print(f'soak: {dict(soak.seen)}; wrong: {len(soak.wrong)}')
  for line in soak.wrong[:10]:
    print(' ', line)
  print(f'held after {count // 5} requests {before}, after all {after}')
  grown = (
      after['descriptors'] > before['descriptors'] + 8
      or after['threads'] > before['threads'] + 2
      or after['rss_mb'] > 1.05 * before['rss_mb'] + 20
  )
  return not soak.wrong and not grown


def main(_):
  logging.set_verbosity(logging.WARNING)  # httpx2 logs every request.
  if _AGAINST.value:
    against.check(_AGAINST.value)
    against.run(_AGAINST.value, _ROUNDS.value)
    return 0
  bare = Bare()
  with Server() as server:
    fine = asyncio.run(_throughput(server, bare))
    if _SOAK.value:
      fine &= asyncio.run(_soak(server, _SOAK.value))
  with Server(QUEUE_SLOTS) as server:
    fine &= asyncio.run(_queued(server))
  return int(not fine)


if __name__ == '__main__':
  app.run(main)
