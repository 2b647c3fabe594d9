"""Clients that leave, stall or talk nonsense cost nobody else anything."""

import asyncio
import concurrent.futures
import json
import os
import random
import socket
import threading
import time

from absl.testing import absltest
from absl.testing import parameterized
import httpx2

from tests.rollout.server import fakes

_LONG = {'max_new_tokens': 400}


def _request(path: str, body: bytes, length: int | None = None) -> bytes:
  """A request as bytes; `length` may promise more than there is."""
  head = (
      f'POST {path} HTTP/1.1\r\nHost: localhost\r\n'
      'Content-Type: application/json\r\n'
      f'Content-Length: {len(body) if length is None else length}\r\n\r\n'
  )
  return head.encode() + body


class ClientsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.service = fakes.FakeService()
    self.addCleanup(self.service.close, 0)
    self.server = fakes.Server(
        self.service, sndbuf=4096, client_seconds=1.0, health_seconds=20.0
    )
    self.addCleanup(self.server.close)
    self.client = self.server.client()
    self.addCleanup(self.client.close)

  def tearDown(self):
    # Nothing is left behind: no sample, no batch, no name.
    self.assertTrue(fakes.wait_for(lambda: self._left() == (0, 0, 0)))
    super().tearDown()

  def _left(self) -> tuple[int, int, int]:
    host = self.server.host
    return self._jobs(), len(host._batches), len(host._names)

  def _jobs(self) -> int:
    stats = self.service.stats()
    return stats.running + stats.waiting

  def _connect(self, **body) -> socket.socket:
    sock = socket.socket()
    self.addCleanup(sock.close)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(('127.0.0.1', self.server.port))
    if body:
      sock.sendall(_request('/generate', json.dumps(body).encode()))
    return sock

  def _is_served(self) -> None:
    """Others get their answers."""
    body = {'text': 'b', 'sampling_params': {'max_new_tokens': 3}}
    response = self.client.post('/generate', json=body)
    self.assertLen(response.json()['output_ids'], 3)

  @parameterized.product(stream=(False, True), paused=(False, True))
  def test_leaves(self, stream, paused):
    self.service.step_seconds = 0.01
    if paused:
      self.service.pause('in_place')
    sock = self._connect(
        text=['a', 'b'], stream=stream, sampling_params=_LONG | {'n': 3}
    )
    self.assertTrue(fakes.wait_for(lambda: self._jobs() == 6))
    if stream and not paused:
      self.assertIn(b'data: ', sock.recv(4096) + sock.recv(4096))
    sock.close()
    self.assertTrue(fakes.wait_for(lambda: self._jobs() == 0))
    self.assertEqual(self.service.stats().aborted, 6)
    self.assertEqual(self.service.stats().finished, 0)
    self.service.resume()

  @parameterized.parameters('/v1/completions', '/v1/chat/completions')
  def test_leaves_openai(self, path):
    self.service.step_seconds = 0.01
    prompt = {'prompt': 'a', 'max_tokens': 400}
    if 'chat' in path:
      prompt = {'messages': [{'role': 'user', 'content': 'a'}]}
    for stream in (False, True):
      sock = self._connect()
      body = prompt | {'stream': stream}
      sock.sendall(_request(path, json.dumps(body).encode()))
      self.assertTrue(fakes.wait_for(lambda: self._jobs() == 1))
      sock.close()
      self.assertTrue(fakes.wait_for(lambda: self._jobs() == 0))

  def test_leaves_while_its_health_is_checked(self):
    self.service.pause('in_place')
    sock = self._connect()
    sock.sendall(b'GET /health_generate HTTP/1.1\r\nHost: localhost\r\n\r\n')
    self.assertTrue(fakes.wait_for(lambda: self._jobs() == 1))
    sock.close()
    self.assertTrue(fakes.wait_for(lambda: self._jobs() == 0))
    self.service.resume()

  def test_many_checks_of_health_take_one_place_in_the_queue(self):
    self.service.pause('in_place')
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
      checks = [
          threads.submit(self.client.get, '/health_generate') for _ in range(8)
      ]
      self.assertTrue(fakes.wait_for(lambda: self._jobs() == 1))
      self.assertFalse(fakes.wait_for(lambda: self._jobs() > 1, seconds=0.2))
      self.service.resume()
      found = [check.result().status_code for check in checks]
    self.assertEqual(found, [200] * 8)

  def test_leaves_in_the_middle_of_its_request(self):
    sock = self._connect()
    sock.sendall(_request('/generate', b'{"text": "a', length=1000))
    sock.close()
    self._is_served()

  def test_slow_writer_is_told(self):
    sock = self._connect()
    sock.sendall(_request('/generate', b'{"text": ', length=1000))
    start = time.monotonic()
    self._is_served()
    sock.settimeout(10)
    self.assertStartsWith(sock.recv(4096), b'HTTP/1.1 408')
    self.assertBetween(time.monotonic() - start, 0.5, 5)

  def test_slow_reader_gets_all_in_few_parts(self):
    # 400 events of up to 400 tokens are some 20 * 400 * 200 bytes = 1.6 MB,
    # many times what the buffers between the two hold.
    self.service.step_seconds = 0.001
    body = {'text': 'a', 'stream': True, 'return_logprob': True}
    sock = self._connect(**body, sampling_params=_LONG)
    # The sample does not wait for its reader, and nor does anybody else.
    self.assertTrue(fakes.wait_for(lambda: self.service.stats().finished == 1))
    self._is_served()
    received = b''
    while b'[DONE]' not in received:
      received += sock.recv(1 << 16)
    lines = [
        line for line in received.split(b'\r\n') if line.startswith(b'data: {')
    ]
    # An event may be cut by the chunks of HTTP, but for the last one.
    self.assertLess(len(lines), 350)
    whole = received[received.rindex(b'data: {') :]
    text = b''.join(p for p in whole.split(b'\r\n') if len(p) > 8)
    event = json.loads(text.removeprefix(b'data: ').split(b'\n\n')[0])
    self.assertLen(event['output_ids'], 400)
    self.assertEqual(event['meta_info']['finish_reason']['type'], 'length')

  def test_dead_reader_is_dropped(self):
    self.service.step_seconds = 0.002
    sock = self._connect(
        text='a',
        stream=True,
        return_logprob=True,
        sampling_params={'max_new_tokens': 512, 'n': 4},
    )
    self.assertTrue(fakes.wait_for(lambda: self._jobs() == 4))
    self._is_served()
    # After client_seconds of reading nothing.
    self.assertTrue(fakes.wait_for(lambda: self._left() == (0, 0, 0), 15))
    self._is_served()
    sock.close()

  def test_nonsense(self):
    for text in (
        b'\x00\xff' * 100,
        b'GET\r\n\r\n',
        b'POST /generate HTTP/1.1\r\nContent-Length: -5\r\n\r\n',
        b'POST /generate HTTP/1.1\r\nContent-Length: x\r\n\r\n{}',
        b'GET /%ff%00 HTTP/1.1\r\nHost: localhost\r\n\r\n',
        b'A' * 100_000,
    ):
      sock = self._connect()
      sock.settimeout(5)
      try:
        sock.sendall(text)
        self.assertNotIn(b' 500 ', sock.recv(4096)[:20])
      except OSError:  # It may just hang up.
        pass
      sock.close()
    self._is_served()

  def test_soak(self):
    """Everybody gets their own answer among all of the above."""
    rng = random.Random(0)
    self._is_served()
    tasks, files = self._tasks(), len(os.listdir('/proc/self/fd'))
    expected = {}
    for seed in range(10):
      body = self._body(seed)
      response = self.client.post('/generate', json=body)
      expected[seed] = response.json()['text']
    refused, served = 0, 0
    self.service.step_seconds = 0.002  # So that some leave in time.

    async def ask(client: httpx2.AsyncClient, seed: int) -> None:
      nonlocal refused, served
      stream = rng.random() < 0.5
      body = self._body(seed) | {'stream': stream}
      try:
        # Some have less patience than an answer takes.
        patience = rng.choice((0.01, 0.05, 30, 30, 30))
        async with asyncio.timeout(patience):
          if not stream:
            response = await client.post('/generate', json=body)
            text = response.text
          else:
            async with client.stream(
                'POST', '/generate', json=body
            ) as response:
              text = ''
              async for line in response.aiter_lines():
                if 'DONE' not in line and line:
                  text = line.removeprefix('data: ')
      except TimeoutError:
        return
      if response.status_code == 503:
        refused += 1
        return
      self.assertEqual(response.status_code, 200, text)
      self.assertEqual(json.loads(text)['text'], expected[seed])
      served += 1

    async def disturb(client: httpx2.AsyncClient) -> None:
      content = rng.choice(
          (
              b'{',
              b'\xff',
              b'{"text": 5}',
              b'{"text": "%s"}' % (b'x' * 100_000),
              b'{"input_ids": [-1]}',
              b'{"text": "a", "sampling_params": {"top_p": NaN}}',
          )
      )
      response = await client.post('/generate', content=content)
      self.assertEqual(response.status_code, 400)

    async def drop() -> None:
      _, writer = await asyncio.open_connection('127.0.0.1', self.server.port)
      body = json.dumps(self._body(0) | {'stream': rng.random() < 0.5})
      whole = _request('/generate', body.encode())
      # Half of them leave in the middle of their request.
      cut = rng.choice((len(whole), rng.randrange(1, len(whole))))
      writer.write(whole[:cut])
      await asyncio.sleep(rng.random() * 0.05)
      writer.transport.abort()

    async def soak() -> None:
      limits = httpx2.Limits(max_connections=32)
      async with httpx2.AsyncClient(
          base_url=self.server.url, timeout=60, verify=False, limits=limits
      ) as client:
        await asyncio.gather(
            *(ask(client, rng.randrange(10)) for _ in range(150)),
            *(disturb(client) for _ in range(50)),
            *(drop() for _ in range(50)),
        )

    asyncio.run(soak())
    self.assertGreater(served, 50)
    self.assertTrue(fakes.wait_for(lambda: self._left() == (0, 0, 0)))
    self.assertTrue(fakes.wait_for(lambda: self._tasks() <= tasks))
    self.assertTrue(
        fakes.wait_for(lambda: len(os.listdir('/proc/self/fd')) <= files)
    )
    stats = self.service.stats()
    self.assertEqual(stats.refused, refused)
    # All that was ever submitted has ended in one way.
    self.assertGreater(stats.aborted, 0)
    self._is_served()

  def _body(self, seed: int) -> dict:
    params = {'max_new_tokens': 20, 'sampling_seed': seed}
    return {'text': f'prompt {seed}', 'sampling_params': params}

  def _tasks(self) -> int:
    """Tasks in the server's loop."""

    async def count() -> int:
      return len(asyncio.all_tasks())

    loop = self.server.host._mailbox._loop
    return asyncio.run_coroutine_threadsafe(count(), loop).result(10)


class DrainTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.service = fakes.FakeService(step_seconds=0.01)
    self.addCleanup(self.service.close, 0)
    self.server = fakes.Server(self.service)
    self.addCleanup(self.server.close)

  def _answer(self, tokens: int, seconds: float) -> dict:
    """Return the answer to a request that runs when the server has to stop."""
    answers = []

    def ask():
      with self.server.client() as client:
        body = {'text': 'a', 'sampling_params': {'max_new_tokens': tokens}}
        answers.append(client.post('/generate', json=body).json())

    thread = threading.Thread(target=ask)
    thread.start()
    self.assertTrue(fakes.wait_for(lambda: self.service.stats().running == 1))
    loop = self.server.host._mailbox._loop
    start = time.monotonic()
    asyncio.run_coroutine_threadsafe(
        self.server.host.drain(seconds), loop
    ).result(20)
    self.seconds = time.monotonic() - start
    thread.join()
    return answers[0]

  def test_running_requests_finish(self):
    answer = self._answer(30, 20.0)
    self.assertLen(answer['output_ids'], 30)
    self.assertEqual(answer['meta_info']['finish_reason']['type'], 'length')
    # It does not wait for longer than there is something to wait for.
    self.assertLess(self.seconds, 10)

  def test_what_takes_too_long_is_aborted(self):
    answer = self._answer(500, 0.2)
    finish = answer['meta_info']['finish_reason']
    self.assertEqual(finish['type'], 'abort')
    self.assertIn('shutting down', finish['message'])
    self.assertBetween(len(answer['output_ids']), 1, 400)


if __name__ == '__main__':
  absltest.main()
