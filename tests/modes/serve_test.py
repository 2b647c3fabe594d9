"""--mode=serve from its first second to its last, without a model."""

import os
import signal
import socket
import tempfile
import threading
import time
from unittest import mock

from absl.testing import absltest
import httpx2
import jax

from configs import math as math_config
from evojax import records
from evojax.modes import serve
from evojax.rollout import service as service_lib
from evojax.rollout.server import app as app_lib
from evojax.training import settings
from tests import tiny
from tests.rollout.server import fakes


class UrlTest(absltest.TestCase):

  def test_of_each_family(self):
    for name, url in (
        (('127.0.0.1', 80), 'http://127.0.0.1:80'),
        (('::1', 80, 0, 0), 'http://[::1]:80'),
    ):
      with self.subTest(url):
        sock = mock.create_autospec(socket.socket, instance=True)
        sock.getsockname.return_value = name
        self.assertEqual(serve.url_of(sock), url)


class ServeTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.service = fakes.FakeService(step_seconds=0.01)
    self.addCleanup(self.service.close, 0)
    self.make = lambda: self.service

  def _serve(self, client, *, shutdown_seconds: float = 20.0):
    """Serves in this thread, with a client beside it."""
    app = app_lib.App(fakes.make_tokenizer(), fakes.make_settings())
    sock = serve.listen('127.0.0.1', 0, 5.0)
    url = f'http://127.0.0.1:{sock.getsockname()[1]}'
    problems = []

    def run():
      try:
        with httpx2.Client(base_url=url, timeout=20, verify=False) as http:
          client(http)
      except BaseException as e:
        problems.append(e)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=run)
    thread.start()
    try:
      serve.serve(
          app,
          self.make,
          sock,
          shutdown_seconds=shutdown_seconds,
      )
    finally:
      thread.join(20)
    if problems:
      raise problems[0]

  def _wait(self, http, status: int) -> None:
    self.assertTrue(
        fakes.wait_for(lambda: http.get('/health').status_code == status, 20)
    )

  def test_from_start_to_end(self):
    may_start = threading.Event()

    def make():
      may_start.wait(20)
      return self.service

    self.make = make
    answers = []

    def client(http):
      # The port answers before there is a model.
      self._wait(http, 503)
      may_start.set()
      self._wait(http, 200)
      body = {'text': 'a', 'sampling_params': {'max_new_tokens': 60}}

      def ask():
        answers.append(http.post('/generate', json=body))

      thread = threading.Thread(target=ask)
      thread.start()
      self.assertTrue(fakes.wait_for(lambda: self.service.stats().running == 1))
      os.kill(os.getpid(), signal.SIGTERM)
      thread.join()

    before = signal.getsignal(signal.SIGTERM)
    self._serve(client)
    # It came back rather than to die of the signal, with all 60 tokens.
    self.assertLen(answers[0].json()['output_ids'], 60)
    self.assertEqual(signal.getsignal(signal.SIGTERM), before)
    # The service is closed.
    self.assertFalse(self.service._thread.is_alive())
    # Warmed up, which counts as nothing.
    self.assertTrue(self.service.warm)
    self.assertEqual(self.service.stats().generated_tokens, 60)

  def test_long_requests_are_aborted(self):
    answers = []

    def client(http):
      self._wait(http, 200)
      body = {'text': 'a', 'sampling_params': {'max_new_tokens': 500}}

      def ask():
        answers.append(http.post('/generate', json=body))

      thread = threading.Thread(target=ask)
      thread.start()
      self.assertTrue(fakes.wait_for(lambda: self.service.stats().running == 1))
      os.kill(os.getpid(), signal.SIGINT)
      # No one else is let in.
      self.assertTrue(fakes.wait_for(lambda: self._is_closed(http)))
      thread.join()

    self._serve(client, shutdown_seconds=0.3)
    meta = answers[0].json()['meta_info']
    self.assertEqual(meta['finish_reason']['type'], 'abort')
    self.assertGreater(meta['completion_tokens'], 0)

  def _is_closed(self, http) -> bool:
    try:
      with socket.create_connection(('127.0.0.1', http.base_url.port), 1):
        return False
    except OSError:
      return True

  def test_signal_while_starting(self):
    release = threading.Event()

    def make():
      release.wait(20)
      return self.service

    self.make = make

    def client(http):
      self._wait(http, 503)
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(0.2)
      release.set()

    self._serve(client)

  def test_service_that_cannot_be_made(self):
    def make():
      raise ValueError('no weights there')

    self.make = make
    with self.assertRaisesRegex(ValueError, 'no weights there'):
      self._serve(lambda http: None)

  def test_service_that_cannot_sample(self):
    def warm_up():
      raise service_lib.ServiceFailedError('out of memory')

    self.service.warm_up = warm_up
    with self.assertRaisesRegex(RuntimeError, 'out of memory'):
      self._serve(lambda http: None)

  def test_several_processes(self):
    config = math_config.get_config('smoke')
    with mock.patch.object(jax, 'process_count', return_value=2):
      with self.assertRaisesRegex(ValueError, '--distributed'):
        serve.run(config, 0)

  def test_port_that_is_taken(self):
    with serve.listen('127.0.0.1', 0, 5.0) as sock:
      port = sock.getsockname()[1]
      with self.assertRaisesRegex(OSError, f'--port={port}'):
        serve.listen('127.0.0.1', port, 5.0)

  def test_connections_are_ended_by_the_kernel(self):
    with serve.listen('127.0.0.1', 0, 5.0) as sock:
      with socket.create_connection(sock.getsockname()) as _:
        accepted, _ = sock.accept()
        with accepted:
          self.assertTrue(
              accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
          )
          if hasattr(socket, 'TCP_USER_TIMEOUT'):
            self.assertEqual(
                accepted.getsockopt(
                    socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
                ),
                5000,
            )



class MakeServiceTest(absltest.TestCase):

  def test_special_token_is_a_stop_string(self):
    path = tiny.make_policy(self.enterContext(tempfile.TemporaryDirectory()))
    config = tiny.make_config(path, serve__context_tokens=64)
    policy = settings.open_policy(config)
    service = serve.make_service(config, policy)
    self.addCleanup(service.close, 0.0)
    special = policy.tokenizer.pad_id
    params = records.SamplingParams(
        max_tokens=4,
        temperature=0.0,
        logit_bias=((special, 100.0),),
        stop=(policy.tokenizer.decode_all([special]),),
    )
    chunks, ended = [], threading.Event()

    def listen(chunk):
      chunks.append(chunk)
      if chunk.finish:
        ended.set()

    service.submit([service_lib.Job('a', (5, 6), params, 0)], [listen])
    self.assertTrue(ended.wait(120))
    self.assertEqual(chunks[-1].finish.matched, params.stop[0])
    sampled = [token.token for chunk in chunks for token in chunk.tokens]
    self.assertEqual(sampled, [special])


if __name__ == '__main__':
  absltest.main()
