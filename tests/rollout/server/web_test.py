"""Connections that only wait, heads without end, and other non-requests."""

import contextlib
import json
import logging
import resource
import socket
import subprocess
import sys
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.rollout.server import web
from tests.rollout.server import fakes

_GET = b'GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n'
_HEAD = b'POST /generate HTTP/1.1\r\nHost: localhost\r\n'
_BODY = b'{"text": "a", "sampling_params": {"max_new_tokens": 3}}'
_POST = _HEAD + b'Content-Length: %d\r\n\r\n' % len(_BODY) + _BODY


def _chunked(*parts: bytes) -> bytes:
  body = b''.join(b'%x\r\n%s\r\n' % (len(part), part) for part in parts)
  return _HEAD + b'Transfer-Encoding: chunked\r\n\r\n' + body + b'0\r\n'


class WebTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.service = fakes.FakeService()
    cls.addClassCleanup(cls.service.close, 0)
    cls.enterClassContext(mock.patch.object(web, '_IDLE', 1))
    # 12 connections, 6 of one client.
    cls.server = fakes.Server(cls.service, connections=12, client_seconds=1.0)
    cls.addClassCleanup(cls.server.close)

  def connect(self, data: bytes = b'', address: str = '127.0.0.1'):
    sock = socket.create_connection(
        ('127.0.0.1', self.server.port), 10, source_address=(address, 0)
    )
    self.addCleanup(sock.close)
    sock.sendall(data)
    return sock

  def answer(self, sock: socket.socket) -> bytes:
    """All that comes until the server hangs up or a body has ended."""
    found = b''
    with contextlib.suppress(ConnectionError):
      while part := sock.recv(1 << 16):
        found += part
        head, _, body = found.partition(b'\r\n\r\n')
        length = head.lower().partition(b'content-length: ')[2].split(b'\r')[0]
        if length and len(body) >= int(length):
          break
    return found

  def status(self, data: bytes) -> int:
    return int(self.answer(self.connect(data)).split()[1])

  def is_open(self, sock: socket.socket) -> bool:
    sock.settimeout(0.05)
    try:
      return bool(sock.recv(1))
    except TimeoutError:
      return True
    except ConnectionError:
      return False

  def test_idle_connections_give_way(self):
    other = self.connect(address='127.0.0.2')
    half = [self.connect(_HEAD) for _ in range(20)]
    no_body = [self.connect(_POST[:-5]) for _ in range(20)]
    idle = [self.connect() for _ in range(20)]
    self.assertEqual(self.status(_POST), 200)
    # The oldest went, and only those of the client that had too many.
    self.assertTrue(self.is_open(other))
    self.assertFalse(any(map(self.is_open, (*half, *no_body))))
    self.assertBetween(sum(map(self.is_open, idle)), 4, 6)
    # Nothing is counted twice, or for ever.
    for sock in (other, *half, *no_body, *idle):
      sock.close()
    for _ in range(30):
      self.assertEqual(self.status(_GET), 200)

  def test_connections_at_work_do_not_give_way(self):
    self.service.pause('in_place')
    busy = [self.connect(_POST) for _ in range(6)]
    self.assertTrue(fakes.wait_for(lambda: len(self.server.host._batches) == 6))
    self.assertEqual(self.status(b''), 503)  # Even before it asks.
    sock = self.connect(_GET, address='127.0.0.2')
    self.assertIn(b' 200 ', self.answer(sock))
    self.service.resume()
    for sock in busy:
      self.assertIn(b' 200 ', self.answer(sock))
    self.assertEqual(self.status(_GET), 200)

  def test_client_with_most_idle_connections_pays(self):
    idle = [self.connect(address='127.0.0.2') for _ in range(5)]
    others = [self.connect(address=f'127.0.0.{i}') for i in range(3, 10)]
    new = self.connect(_GET)
    self.assertIn(b' 200 ', self.answer(new))
    self.assertEqual(sum(map(self.is_open, idle)), 4)
    self.assertTrue(all(map(self.is_open, others)))

  def test_time_for_a_head(self):
    slow, silent, kept = self.connect(), self.connect(), self.connect(_GET)
    self.assertIn(b' 200 ', self.answer(kept))
    start = time.monotonic()
    with contextlib.suppress(OSError):
      for byte in _GET * 2:
        slow.sendall(bytes([byte]))
        if not (time.monotonic() - start) % 1 or time.monotonic() > start + 4:
          break
        time.sleep(0.05)
    self.assertLess(time.monotonic() - start, 4)
    self.assertIn(b' 408 ', self.answer(slow))
    self.assertEqual(self.answer(silent), b'')
    # One that was answered may rest, but not begin another and stop.
    kept.sendall(_GET)
    self.assertIn(b' 200 ', self.answer(kept))
    kept.sendall(_GET[:9])
    self.assertIn(b' 408 ', self.answer(kept))

  def test_body_that_nobody_asked_for_ends(self):
    sock = self.connect(_GET[:-2] + b'Content-Length: 999999999\r\n\r\n')
    self.assertIn(b' 200 ', self.answer(sock))
    start = time.monotonic()
    with contextlib.suppress(OSError):
      while time.monotonic() < start + 6:
        sock.sendall(b'x' * 10)
        time.sleep(0.05)
    self.assertLess(time.monotonic() - start, 5)

  @parameterized.named_parameters(
      ('one_header', b'X: ' + b'x' * 70_000),
      ('many_headers', b'\r\n'.join(b'X%d: 1' % i for i in range(101))),
      ('empty_names', b'\r\n'.join([b'X:'] * 3000)),
      ('no_end', b'X: ' + b'x' * 1_000_000),
      ('no_end_of_a_name', b'x' * 1_000_000),
      ('cookies', b'\r\n'.join([b'Cookie: ' + b'x' * 4000] * 20)),
  )
  def test_large_head(self, lines):
    with contextlib.suppress(ConnectionError):
      answer = self.answer(self.connect(_GET[:-2] + lines + b'\r\n\r\n'))
      self.assertIn(b' 431 ', answer)
      self.assertIn(b'headers exceed 65536 bytes or 100 headers', answer)
    self.assertEqual(self.status(_GET), 200)

  def test_long_url(self):
    self.assertEqual(self.status(_GET.replace(b'/v1', b'/x' * 40_000)), 431)
    self.assertEqual(self.status(_GET.replace(b'/v1', b'/x' * 4_000)), 404)

  def test_trailers_and_chunk_extensions(self):
    """Trailers and chunk extensions of a body are bounded, too."""
    body = _chunked(_BODY)
    self.assertEqual(self.status(body + b'X: 1\r\n\r\n'), 200)
    for endless in (
        body + b'X: ' + b'x' * 2_000_000,
        body + b'X: 1\r\n' * 300_000,
        _chunked()[:-3] + b'1;' + b'x' * 2_000_000,
    ):
      with contextlib.suppress(ConnectionError):
        answer = self.answer(self.connect(endless))
        self.assertNotIn(b' 200 ', answer)
    # A client that sends byte by byte is slow, and served.
    letters = [bytes([byte]) for byte in _BODY]
    self.assertEqual(self.status(_chunked(*letters) + b'\r\n'), 200)

  def test_pipelining(self):
    found = self.connect(_GET * 3 + b'GET /no HTTP/1.0\r\n\r\n')
    text = b''
    while part := found.recv(1 << 16):
      text += part
    statuses = [line.split()[1] for line in text.split(b'HTTP/1.1')[1:]]
    self.assertLen(text.split(b'HTTP/1.1 200')[1:], 3, statuses)
    self.assertLen(text.split(b'HTTP/1.1 404')[1:], 1)
    # Behind a request that takes long, there may not be any number of others.
    self.service.pause('in_place')
    sock = self.connect(_POST)
    with contextlib.suppress(ConnectionError):
      for _ in range(100):
        sock.sendall(_GET * 10)
        time.sleep(0.001)
    self.assertFalse(self.is_open(sock))
    self.service.resume()
    self.assertTrue(fakes.wait_for(lambda: not self.server.host._batches))

  @parameterized.named_parameters(
      ('old_version', _GET.replace(b'1.1', b'1.0'), 200),
      ('no_host', b'GET /v1/models HTTP/1.0\r\n\r\n', 200),
      ('absolute_form', _GET.replace(b'/v1', b'http://evil.example/v1'), 200),
      ('authority_form', b'CONNECT evil.example:80 HTTP/1.1\r\n\r\n', 400),
      ('asterisk_form', b'OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n', 404),
      ('version_2', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 400),
      ('two_hosts', _GET[:-2] + b'Host: localhost\r\n\r\n', 400),
      (
          'two_lengths',
          _POST.replace(b'Content', b'Content-Length: 1\r\nContent'),
          400,
      ),
      (
          'length_and_chunks',
          _POST.replace(b'Content', b'Transfer-Encoding: chunked\r\nContent'),
          400,
      ),
      ('huge_length', _HEAD + b'Content-Length: 99999999999999\r\n\r\n', 413),
      ('no_number', _HEAD + b'Content-Length: 0x10\r\n\r\n', 400),
      ('not_http', b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03' * 9, 400),
      (
          'upgrade',
          _GET[:-2] + b'Connection: upgrade\r\nUpgrade: h2c\r\n\r\n',
          200,
      ),
  )
  def test_forms_of_requests(self, data, status):
    answer = self.answer(self.connect(data))
    self.assertEqual(answer.split()[1], b'%d' % status, answer)
    self.assertEqual(self.status(_GET), 200)

  def test_refusal_is_json(self):
    answer = self.answer(self.connect(b'nonsense\r\n\r\n'))
    body = json.loads(answer.partition(b'\r\n\r\n')[2])
    self.assertEqual(body['error']['code'], 400)


class DescriptorsTest(absltest.TestCase):

  def test_limit_is_raised(self):
    code = (
        'import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (300, 1000))\n'
        'from evojax.rollout.server import settings, web\n'
        "s = settings.Settings('m', '/m', 9, 9, 9)\n"
        'config = web.config(None, s)\n'
        'print(r.getrlimit(r.RLIMIT_NOFILE), config.http.args[0].most)'
    )
    found = subprocess.check_output([sys.executable, '-c', code], text=True)
    # A quarter may be accepted at once, and 128 are no connections.
    self.assertEqual(found.strip(), '(1000, 1000) 622')

  def test_connections_stay_below_the_limit(self):
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = fakes.make_settings(connections=1 << 30)
    self.assertLess(web.config(None, settings).http.args[0].most, soft)


if __name__ == '__main__':
  logging.disable()
  absltest.main()
