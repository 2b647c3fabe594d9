"""Requests that no client of the server sends, but a web page might."""

import json
import os
import pathlib
import socket
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.rollout.server import protocol
from tests.rollout.server import fakes

_SAMPLE = {'text': 'a', 'sampling_params': {'max_new_tokens': 3}}

_FIELDS = b','.join([b'"%06d":0' % i for i in range(100_000)])


def _many(field: str, value: bytes, count: int) -> bytes:
  values = b','.join([value] * count)
  return b'{"%s": [%s]}' % (field.encode(), values)


class GateTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.service = fakes.FakeService()
    cls.addClassCleanup(cls.service.close, 0)
    cls.server = fakes.Server(cls.service, hosts=('node7', 'lb.example'))
    cls.addClassCleanup(cls.server.close)
    cls.keyed = fakes.Server(cls.service, api_key='k')
    cls.addClassCleanup(cls.keyed.close)

  def post(self, headers, path='/generate', server=None, **kwargs):
    with (server or self.server).client() as client:
      kwargs = kwargs or {'json': _SAMPLE}
      return client.post(path, headers=headers, **kwargs)

  def refused(self, response, status, *words):
    self.assertEqual(response.status_code, status, response.text)
    error = response.json()['error']
    for word in words:
      self.assertIn(word, error['message'])
    self.assertEqual(error['code'], status)
    self.assertLess(len(error['message']), 400)
    self.assertFalse(self.service.paused)

  @parameterized.parameters(
      'evil.example',
      'evil.example:80',
      '127.0.0.1.evil.example',
      'localhost.evil.example:30000',
      'evil',
      'localhost, evil.example',
      'localhost@evil.example',
      '[::1].evil.example',
      'a' * 5000,
      '\xff',
      ':30000',
  )
  def test_foreign_host(self, host):
    headers = {b'Host': host.encode('latin-1')}
    for path in ('/generate', '/pause_generation', '/flush_cache'):
      self.refused(self.post(headers, path), 421, '--hosts', 'Host')
    with self.server.client() as client:
      for path in ('/metrics', '/v1/models', '/health', '/flush_cache'):
        response = client.get(path, headers=headers)
        self.assertEqual(response.status_code, 421, path)
    # A client with a key is no web page, whatever name a proxy used.
    bearer = {b'Authorization': b'Bearer k'}
    response = self.post(headers, server=self.keyed)
    self.assertEqual(response.status_code, 401)
    response = self.post(headers | bearer, server=self.keyed)
    self.assertEqual(response.status_code, 200)

  @parameterized.parameters(
      '127.0.0.1',
      '10.1.2.3:30000',
      '[::1]:30000',
      'localhost',
      'LOCALHOST.:80',
      'node7:30000',
      'lb.example',
      socket.gethostname(),
  )
  def test_own_host(self, host):
    self.assertEqual(self.post({'Host': host}).status_code, 200)

  def test_any_host(self):
    server = fakes.Server(self.service, hosts=('*',))
    self.addCleanup(server.close)
    response = self.post({'Host': 'any.example'}, server=server)
    self.assertEqual(response.status_code, 200)

  @parameterized.parameters(
      {'Origin': 'https://evil.example'},
      {'Origin': 'null'},
      {'Origin': 'http://localhost:8888'},
      {'Origin': ''},
      {'Origin': 'http://127.0.0.1'},
      {'Sec-Fetch-Site': 'cross-site'},
      {'Sec-Fetch-Site': 'same-site'},
  )
  def test_foreign_page(self, **headers):
    self.refused(self.post(headers), 403, 'Origin')
    self.refused(self.post(headers, '/pause_generation', json={}), 403)
    with self.server.client() as client:
      # An image or a script of a page is a GET without an Origin.
      self.refused(client.get('/flush_cache', headers=headers), 403)
      response = client.options('/generate', headers=headers)
      self.assertEqual(response.status_code, 403)
      self.assertNotIn('access-control-allow-origin', response.headers)
    # Browsers may know a key, too: of a proxy, or typed into a page.
    key = {'Authorization': 'Bearer k'}
    self.refused(self.post(headers | key, server=self.keyed), 403)

  def test_own_page(self):
    headers = {'Origin': self.server.url, 'Sec-Fetch-Site': 'same-origin'}
    self.assertEqual(self.post(headers).status_code, 200)

  @parameterized.parameters(
      'text/plain',
      'application/x-www-form-urlencoded',
      'multipart/form-data; boundary=x',
      'text/plain; application/json',
      'application/jsonp',
      'application/json, text/plain',
      '',
  )
  def test_other_content(self, kind):
    headers = {'Content-Type': kind}
    content = json.dumps(_SAMPLE)
    for body in (content, b''):
      self.refused(
          self.post(headers, content=body), 415, 'send application/json'
      )
      response = self.post(headers, '/pause_generation', content=body)
      self.refused(response, 415)

  @parameterized.parameters(
      'application/json',
      'Application/JSON; charset=utf-8',
      'application/json;charset=UTF-8',
      'application/vnd.api+json',
      None,
  )
  def test_json(self, kind):
    headers = {'Content-Type': kind} if kind else {}
    response = self.post(headers, content=json.dumps(_SAMPLE))
    self.assertEqual(response.status_code, 200, response.text)

  @parameterized.parameters('gzip', 'deflate', 'br', 'identity, gzip')
  def test_compressed(self, encoding):
    """A compressed body is refused before it is unpacked."""
    headers = {
        'Content-Type': 'application/json',
        'Content-Encoding': encoding,
    }
    response = self.post(headers, content=b'\x1f\x8b' * 100)
    self.refused(response, 415, 'uncompressed')

  @parameterized.parameters('content-type', 'origin')
  def test_header_that_comes_twice(self, name):
    value = 'application/json' if name == 'content-type' else 'x'
    headers = [(name, value), (name.title(), value)]
    response = self.post(headers, content=b'{}')
    self.refused(response, 400, name, 'twice')

  @parameterized.parameters(('k', 'x', 200), ('x', 'k', 200), ('x', 'y', 401))
  def test_one_key_of_several_is_enough(self, first, second, status):
    # A router adds its own to that of its client.
    keys = [('Authorization', f'Bearer {key}') for key in (first, second)]
    with self.keyed.client() as client:
      response = client.get('/v1/models', headers=keys)
    self.assertEqual(response.status_code, status, response.text)

  @parameterized.parameters(
      '/release_memory_occupation',
      '/resume_memory_occupation',
      '/pause_generation',
      '/continue_generation',
      '/abort_request',
      '/update_weights_from_disk',
      '/begin_weight_update',
      '/generate',
  )
  def test_get_changes_nothing(self, path):
    before = self.service.stats()
    with self.server.client() as client:
      for method in ('GET', 'HEAD', 'DELETE'):
        response = client.request(method, path)
        self.assertEqual(response.status_code, 405)
      self.refused(client.get(path), 405, f'GET {path}: use', 'POST')
      self.assertEmpty(client.get('/server_info').json()['released_memory'])
    self.assertEqual(self.service.stats(), before)


class WeightsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.service = fakes.FakeService()
    self.addCleanup(self.service.close, 0)
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(folder).resolve()
    self.root, self.model = self.folder / 'root', self.folder / 'model'
    for path in ('root/7', 'root-2', 'model', 'elsewhere/8'):
      (self.folder / path).mkdir(parents=True)
    (self.root / 'link').symlink_to(self.folder / 'elsewhere')
    (self.folder / 'mine').symlink_to(self.root / '7')
    roots = (str(self.root), str(self.model))
    self.client = self.enterContext(
        fakes.serving(self.service, weight_roots=roots)
    )

  def update(self, path: str):
    return self.client.post(
        '/update_weights_from_disk', json={'model_path': path}
    )

  @parameterized.parameters(
      'root-2', 'elsewhere/8', 'root/../elsewhere/8', 'root/link/8', '', '..'
  )
  def test_outside(self, path):
    response = self.update(os.path.join(self.folder, path))
    self.assertEqual(response.status_code, 400)
    message = response.json()['message']
    self.assertIn(f'lies outside of {self.root}, {self.model}', message)
    self.assertIn('--weights_root', message)
    self.assertEmpty(self.service.updates)

  @parameterized.parameters(
      ('root/7', 'root/7'),
      ('root/./7/', 'root/7'),
      ('mine', 'root/7'),
      ('root', 'root'),
      ('model', 'model'),
  )
  def test_inside(self, path, real):
    response = self.update(os.path.join(self.folder, path))
    self.assertEqual(response.status_code, 200, response.text)
    # The checked path is read, even if a link is changed meanwhile.
    self.assertEqual(self.service.updates[0][0], str(self.folder / real))

  @parameterized.parameters(
      '/', '/etc', 'package:math', 'a\0b', '~', 'x' * 4000
  )
  def test_elsewhere(self, path):
    self.assertEqual(self.update(path).status_code, 400)
    self.assertEmpty(self.service.updates)


class SizeTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.service = fakes.FakeService()
    cls.addClassCleanup(cls.service.close, 0)
    cls.server = fakes.Server(cls.service)
    cls.addClassCleanup(cls.server.close)
    cls.client = cls.enterClassContext(cls.server.client())

  def refused(self, body: bytes, status: int, words: str, path='/generate'):
    response = self.client.post(path, content=body)
    self.assertEqual(response.status_code, status, response.text[:500])
    self.assertIn(words, response.json()['error']['message'])
    self.assertLess(len(response.content), 2000)

  @parameterized.parameters(
      ('/generate', 'text', '"a"'),
      ('/generate', 'input_ids', '[1]'),
      ('/v1/completions', 'prompt', '"a"'),
      ('/v1/completions', 'prompt', '[1]'),
  )
  def test_prompts_are_counted_first(self, path, field, prompt):
    # Nothing is checked, tokenised or made for any of them.
    never = self.enterContext(
        mock.patch.object(protocol, 'sampling_params', side_effect=OSError)
    )
    for count in (65, 10_000):
      many = ','.join([prompt] * count)
      body = f'{{"{field}": [{many}]}}'.encode()
      self.refused(body, 400, f'asks for {count} samples, more than 64', path)
    never.assert_not_called()

  def test_common_parameters_are_checked_once(self):
    check = mock.Mock(side_effect=protocol.check)
    with mock.patch.object(protocol, 'check', check):
      body = _SAMPLE | {'text': ['a'] * 32}
      answers = self.client.post('/generate', json=body).json()
    self.assertLen(answers, 32)
    self.assertLess(check.call_count, 4)

  @parameterized.named_parameters(
      ('prompts', _many('text', b'""', 3_000_000)),
      ('tokens', _many('input_ids', b'1', 3_000_000)),
      ('messages', _many('messages', b'{}', 100_000)),
      ('parts', _many('messages', b'{"content":[{}]}', 50_000)),
      ('lists', _many('text', b'[]', 600_000)),
      ('towers', _many('text', b'[' * 90 + b']' * 90, 9_000)),
      ('parameters', _many('sampling_params', b'{}', 100_000)),
      ('fields', b'{%s}' % _FIELDS.replace(b':0', b':[]')),
  )
  def test_values(self, body):
    self.assertLess(len(body), 16 << 20)
    with mock.patch.object(protocol, 'check') as check:
      self.refused(body, 413, 'send several requests')
    check.assert_not_called()

  @parameterized.named_parameters(
      ('wrong_fields', b'{"prompt": "", %s}' % _FIELDS),
      ('wrong_biases', b'{"prompt": "", "logit_bias": {%s}}' % _FIELDS),
      ('wrong_stops', _many('stop', b'7', 100_000)),
      ('wrong_flags', _many('return_logprob', b'7', 100_000)),
      ('wrong_parts', b'{"messages": [%s]}' % _many('content', b'7', 100_000)),
  )
  def test_many_problems_are_few_words(self, body):
    response = self.client.post('/v1/completions', content=body)
    self.assertEqual(response.status_code, 400)
    self.assertLess(len(response.content), 2000)

  @parameterized.named_parameters(
      ('nan', b'{"text": "a", "sampling_params": {"top_p": NaN}}'),
      ('infinity', b'{"text": "a", "sampling_params": {"top_p": -Infinity}}'),
      ('nested', b'{"text": ' + b'[' * 100_000),
      ('nested_objects', b'{"a":' * 30_000),
      ('not_utf8', b'{"text": "\xff\xfe"}'),
      ('surrogate', b'{"text": "\\ud800"}'),
      ('utf16', '{"text": "a"}'.encode('utf-16')),
      ('large_integer', b'{"input_ids": [' + b'9' * 100_000 + b']}'),
      ('large_exponent', b'{"text": "a", "sampling_params": {"top_p": 1e999}}'),
      ('two_objects', b'{"text": "a"}{"text": "b"}'),
      ('zero', b'\0'),
  )
  def test_json_that_is_none(self, body):
    response = self.client.post('/generate', content=body)
    self.assertEqual(response.status_code, 400)
    self.assertLess(len(response.content), 2000)

  def test_text_that_cannot_fit_is_not_tokenised(self):
    text = 'x' * 1_000_000  # The limit: 1024 tokens of at most 12 characters.
    part = {'type': 'text', 'text': text}
    call = {'function': {'name': 'add', 'arguments': {'a': text}}}
    tool = {'function': {'name': 'add', 'description': text}}
    chats = [
        {'messages': [{'role': 'user', 'content': '', **fields}], **options}
        for fields, options in (
            ({'content': [part]}, {}),
            ({'reasoning_content': text}, {}),
            ({'tool_calls': [call]}, {}),
            ({}, {'tools': [tool]}),
            ({}, {'chat_template_kwargs': {'a': [text]}}),
        )
    ]
    with mock.patch.object(self.server.host, 'encode', side_effect=OSError):
      for path, body in (
          ('/generate', {'text': text}),
          ('/generate', {'text': ['a' * 100_000]}),
          ('/v1/completions', {'prompt': text}),
          *(('/v1/chat/completions', chat) for chat in chats),
      ):
        body = json.dumps(body).encode()
        self.refused(body, 400, 'characters does not fit into a context', path)

  def test_large_bodies_share_a_bound(self):
    server = fakes.Server(self.service, body_bytes=200_000)
    self.addCleanup(server.close)
    body = b' ' * 150_000
    socks = []
    for _ in range(25):  # 22 of them hold over 16 times the largest body.
      sock = socket.create_connection(('127.0.0.1', server.port), 10)
      self.addCleanup(sock.close)
      sock.sendall(b'POST /generate HTTP/1.1\r\nHost: localhost\r\n')
      sock.sendall(b'Content-Length: 200000\r\n\r\n' + body)
      socks.append(sock)
    self.assertIn(b'503', socks[-1].recv(1000))
    with server.client() as client:  # Small ones are served.
      self.assertEqual(client.post('/generate', json=_SAMPLE).status_code, 200)
    for sock in socks:
      sock.close()
    self.assertTrue(fakes.wait_for(lambda: not server.app._held))


if __name__ == '__main__':
  absltest.main()
