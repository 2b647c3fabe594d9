"""Endpoints of trainers and of those who watch, with and without keys."""

import base64
import collections
import json
import pathlib
import tempfile
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import httpx2
import numpy as np
from safetensors import numpy as safetensors

from evojax.rollout import torch_pickle
from tests.rollout.server import fakes

_ADMIN = (
    '/flush_cache',
    '/pause_generation',
    '/continue_generation',
    '/update_weights_from_disk',
    '/begin_weight_update',
    '/end_weight_update',
    '/release_memory_occupation',
    '/resume_memory_occupation',
    '/update_weights_from_tensor',
)


def _tensor(name, *values):
  data = np.array(values, np.float32).tobytes()
  return torch_pickle.Tensor(name, 'F32', (len(values),), data)


class ManageTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.service = fakes.FakeService(slots=2, max_waiting=3)
    self.addCleanup(self.service.close, 0)
    model = self.enter_context(tempfile.TemporaryDirectory())
    for name in ('config.json', 'tokenizer.json', 'model.safetensors'):
      pathlib.Path(model, name).write_text('{}')
    self.server = fakes.Server(self.service, model_path=model)
    self.addCleanup(self.server.close)
    self.client = self.server.client()
    self.addCleanup(self.client.close)

  def _post(self, path: str, body=None, status: int = 200):
    response = self.client.post(path, json=body)
    self.assertEqual(response.status_code, status, response.text)
    return response.json() if response.content else None

  def _start(self, count: int = 1, **body) -> list[dict]:
    """Begins requests in threads; their answers appear in the list."""
    answers = []
    body = {'text': 'a', 'sampling_params': {'max_new_tokens': 400}} | body

    def ask():
      with self.server.client() as client:
        answers.append(client.post('/generate', json=body))

    before = self._jobs()
    for _ in range(count):
      thread = threading.Thread(target=ask)
      thread.start()
      self.addCleanup(thread.join)
    self.assertTrue(fakes.wait_for(lambda: self._jobs() >= before + count))
    return answers

  def _jobs(self) -> int:
    stats = self.service.stats()
    return stats.running + stats.waiting

  def _tokens(self) -> int:
    return self.service.stats().generated_tokens

  def test_pause_and_continue(self):
    self.service.step_seconds = 0.01
    answers = self._start()
    self.assertEqual(
        self._post('/pause_generation', {'mode': 'in_place'})['status'], 'ok'
    )
    tokens = self._tokens()
    time.sleep(0.1)
    self.assertEqual(self._tokens(), tokens)
    self.assertEmpty(answers)
    self.service.step_seconds = 0
    self._post('/continue_generation', {})
    self.assertTrue(fakes.wait_for(lambda: answers))
    self.assertLen(answers[0].json()['output_ids'], 400)

  @parameterized.parameters((None,), ({},), ({'mode': 'abort'},))
  def test_pause_aborts_unless_told_otherwise(self, body):
    self.service.step_seconds = 0.01
    answers = self._start()
    self._post('/pause_generation', body)
    self.assertTrue(fakes.wait_for(lambda: answers))
    # The sampled tokens are kept, for the client to resume from.
    answer = answers[0].json()
    self.assertEqual(answers[0].status_code, 200)
    self.assertEqual(answer['meta_info']['finish_reason']['type'], 'abort')
    self.assertLess(len(answer['output_ids']), 400)

  def test_wrong_pause(self):
    error = self._post('/pause_generation', {'mode': 'nap'}, 400)['error']
    self.assertIn("'abort', 'retract' or 'in_place'", error['message'])
    self.assertFalse(self.service.paused)

  def test_abort(self):
    self.service.step_seconds = 0.01
    ones = self._start(rid='one')
    # All samples of a request go by its name, one by its own id.
    many = self._start(
        text='b', rid='many', sampling_params={'n': 2, 'max_new_tokens': 300}
    )
    self.assertEqual(self._jobs(), 3)
    self._post('/abort_request', {'rid': 'unknown'})
    self._post('/abort_request', {'rid': 'many_0'})
    self.assertTrue(fakes.wait_for(lambda: self._jobs() == 2))
    self.assertEmpty(many)
    self._post('/abort_request', {'rid': 'many', 'abort_message': 'why not'})
    self.assertTrue(fakes.wait_for(lambda: many))
    self.assertEqual(
        [a['meta_info']['finish_reason']['message'] for a in many[0].json()],
        ['aborted by /abort_request', 'why not'],
    )
    self.assertEmpty(ones)
    self._post('/abort_request', {'abort_all': True})
    self.assertTrue(fakes.wait_for(lambda: ones))
    self.assertEqual(
        ones[0].json()['meta_info']['finish_reason']['type'], 'abort'
    )
    self._post('/abort_request', {}, 400)

  def test_update(self):
    self.service.step_seconds = 0.01
    answers = self._start()
    self.assertTrue(fakes.wait_for(lambda: self._tokens() > 3))
    with tempfile.TemporaryDirectory() as path:
      answer = self._post(
          '/update_weights_from_disk',
          {
              'model_path': path,
              'load_format': 'auto',
              'weight_version': '7',
              'flush_cache': False,
              'torch_empty_cache': True,
          },
      )
      self.assertEqual(answer['success'], True)
      self.assertEqual(answer['num_paused_requests'], 1)
      self.assertIn('7', answer['message'])
      self.assertEqual(self.service.updates, [(path, '7', False, False)])
    self.service.step_seconds = 0
    self.assertTrue(fakes.wait_for(lambda: answers))
    meta = answers[0].json()['meta_info']
    old, new = meta['weight_versions']
    self.assertEqual((old['version'], new['version']), ('v0', '7'))
    self.assertEqual((old['start'], new['end']), (0, 400))
    self.assertEqual(old['end'], new['start'])
    self.assertBetween(old['end'], 3, 399)
    self.assertEqual(meta['weight_version'], '7')
    for path in ('/get_model_info', '/model_info', '/server_info'):
      self.assertEqual(self.client.get(path).json()['weight_version'], '7')

  def test_updates_without_a_version_are_counted(self):
    with tempfile.TemporaryDirectory() as path:
      for expected in ('1', '2'):
        self._post('/update_weights_from_disk', {'model_path': path})
        self.assertEqual(self.service.version, expected)
      self._post(
          '/update_weights_from_disk',
          {
              'model_path': path,
              'weight_version': 12,
              'abort_all_requests': True,
          },
      )
      # The defaults of SGLang: keep what runs, flush the cache.
      self.assertEqual(
          [update[1:] for update in self.service.updates],
          [('1', False, True), ('2', False, True), ('12', True, True)],
      )

  @parameterized.parameters(
      ({'model_path': '/no/such'}, 'the old weights stay: /no/such'),
      ({'model_path': 'a\0b'}, 'the old weights stay'),
      ({'model_path': 'x' * 4000}, 'the old weights stay'),
  )
  def test_failed_update(self, body, message):
    answer = self._post('/update_weights_from_disk', body, 400)
    self.assertEqual(answer['success'], False)
    self.assertIn(message, answer['message'])
    self.assertIn(message, answer['error']['message'])
    self.assertEqual(answer['num_paused_requests'], 0)
    self.assertEqual(self.service.version, 'v0')

  @parameterized.parameters(
      ({}, 'model_path: missing'),
      ({'model_path': 'x', 'load_format': 'dummy'}, 'load_format'),
      ({'model_path': 'x', 'is_async': True}, 'is_async: not served'),
      ({'model_path': 'x', 'keep_pause': True}, '/pause_generation'),
  )
  def test_wrong_update(self, body, message):
    error = self._post('/update_weights_from_disk', body, 400)['error']
    self.assertIn(message, error['message'])

  def test_bracket(self):
    self._post('/end_weight_update', {}, 400)
    self._post('/begin_weight_update', {'selector': 'all'})
    self.assertTrue(self.service.paused)
    for path in ('/begin_weight_update', '/continue_generation'):
      error = self._post(path, {}, 400)['error']
      self.assertIn('/end_weight_update', error['message'])
    with tempfile.TemporaryDirectory() as path:
      self._post('/update_weights_from_disk', {'model_path': path})
    self.assertTrue(self.service.paused)
    self._post('/end_weight_update')
    self.assertFalse(self.service.paused)

  def test_bracket_inside_a_pause(self):
    self._post('/pause_generation', {'mode': 'retract'})
    self._post('/begin_weight_update')
    self._post('/end_weight_update')
    self.assertTrue(self.service.paused)
    self._post('/continue_generation')
    # ... and a pause inside a bracket.
    self._post('/begin_weight_update')
    self._post('/pause_generation')
    self._post('/end_weight_update')
    self.assertTrue(self.service.paused)

  def _send(self, tensors, status: int = 200, **body):
    payload = base64.b64encode(torch_pickle.dumps(tensors)).decode()
    body |= {'serialized_named_tensors': [payload]}
    return self._post('/update_weights_from_tensor', body, status)

  def test_tensors(self):
    def look(path, *args, load=self.service.update_weights, **kwargs):
      found.update(safetensors.load_file(f'{path}/model.safetensors'))
      found['files'] = {file.name for file in pathlib.Path(path).iterdir()}
      return load(path, *args, **kwargs)

    found = {}
    self._post('/begin_weight_update')
    with mock.patch.object(self.service, 'update_weights', look):
      self._send([_tensor('a', 1.0, 2.0)])
      self._send([_tensor('a', 3.0, 4.0), _tensor('b')], weight_version='new')
      self.assertEmpty(self.service.updates)  # Until all of them are there.
      self._post('/end_weight_update')
    ((_, version, abort_all, _),) = self.service.updates
    self.assertEqual((version, abort_all), ('new', False))
    self.assertEqual(found['a'].tolist(), [3.0, 4.0])
    self.assertEqual(found['b'].shape, (0,))
    self.assertContainsSubset(['config.json', 'tokenizer.json'], found['files'])
    self.assertFalse(self.service.paused)

  def test_tensors_that_are_no_policy(self):
    self._post('/begin_weight_update')
    self._send([_tensor('a', 1.0)])
    refuse = mock.Mock(side_effect=ValueError('a is no tensor of this policy'))
    with mock.patch.object(self.service, 'update_weights', refuse):
      answer = self._post('/end_weight_update', status=400)
    self.assertIn('old weights stay: a is no', answer['message'])
    self.assertFalse(self.service.paused)
    folder = refuse.call_args.args[0]
    self.assertFalse(pathlib.Path(folder).exists())
    # Nothing of it is left for the next update.
    self._post('/begin_weight_update')
    self._post('/end_weight_update')
    self.assertEmpty(self.service.updates)

  def test_old_directory_is_removed(self):
    folders = []
    for _ in range(2):
      self._post('/begin_weight_update')
      self._send([_tensor('a', 1.0)])
      self._post('/end_weight_update')
      folders.append(pathlib.Path(self.service.updates[-1][0]))
    self.assertEqual([f.exists() for f in folders], [False, True])

  @parameterized.parameters(
      ({'serialized_named_tensors': ['no Base64!']}, 'old weights stay: '),
      ({'serialized_named_tensors': ['gASVAA==']}, 'no pickle of tensors'),
      # os.system('true')
      (
          {'serialized_named_tensors': ['Y29zCnN5c3RlbQooVnRydWUKdFIu']},
          'os.sys',
      ),
      ({'serialized_named_tensors': []}, 'serialized_named_tensors'),
      ({'serialized_named_tensors': 'abc'}, 'serialized_named_tensors'),
      ({}, 'serialized_named_tensors'),
      (
          {
              'serialized_named_tensors': ['gASVAA=='],
              'load_format': 'flattened_bucket',
          },
          'load_format: not served',
      ),
  )
  def test_tensors_that_are_none(self, body, message):
    self._post('/begin_weight_update')
    answer = self._post('/update_weights_from_tensor', body, 400)
    self.assertIn(message, json.dumps(answer))
    self._post('/end_weight_update')
    self.assertEmpty(self.service.updates)

  def test_tensors_without_an_update(self):
    answer = self._send([_tensor('a', 1.0)], 400)
    message = answer['error']['message']
    self.assertIn('call /begin_weight_update first', message)

  def test_too_many_tensors(self):
    most = self.server.host.settings.tensor_bytes
    self._post('/begin_weight_update')
    self._send([_tensor('a', *[0.0] * (most // 8))])
    self._send([_tensor('a', *[0.0] * (most // 8))])  # In place of the first.
    answer = self._send([_tensor('b', *[0.0] * (most // 8 + 1))], 400)
    self.assertIn('more than the', answer['message'])
    body = {'serialized_named_tensors': ['A' * (3 * most + (17 << 20))]}
    self._post('/update_weights_from_tensor', body, 413)

  @parameterized.parameters(
      '/update_weights_from_distributed',
      '/init_weights_update_group',
      '/update_weight_version',
      '/load_lora_adapter',
      '/pull_weights',
      '/post_process_weights',
      '/weights_checker',
  )
  def test_what_needs_torch(self, path):
    answer = self._post(path, {'anything': 1}, 501)
    self.assertEqual(answer['success'], False)
    self.assertIn('/update_weights_from_disk', answer['message'])
    self.assertIn('run SGLang', answer['message'])
    self.assertIn(path, answer['error']['message'])

  def test_what_no_trainer_needs(self):
    for path in ('/tokenize', '/v1/embeddings', '/v1/responses', '/encode'):
      answer = self._post(path, {}, 404)
      self.assertRegex(answer['error']['message'], f'{path}: .*run SGLang')

  def test_load(self):
    # slime aborts until these are zero.
    def load():
      response = self.client.get('/v1/loads?include=core')
      (found,) = response.json()['loads']
      names = 'num_running_reqs', 'num_waiting_reqs', 'num_total_reqs'
      return tuple(found[name] for name in names)

    self.assertEqual(load(), (0, 0, 0))
    self.service.step_seconds = 0.01
    self._start(3)
    self.assertTrue(fakes.wait_for(lambda: load() == (2, 1, 3)))
    self._post('/abort_request', {'abort_all': True}, 200)

  def test_weight_version(self):
    for path in ('/get_weight_version', '/model_info'):
      found = self.client.get(path).json()
      self.assertEqual(found['weight_version'], 'v0')

  def test_flush(self):
    self._post('/generate', {'text': 'abc'})
    self.assertEqual(self.service.stats().cached_prefix_tokens, 3)
    for method in ('GET', 'POST'):
      response = self.client.request(method, '/flush_cache')
      self.assertStartsWith(response.text, 'Cache flushed')
    self.assertEqual(self.service.stats().cached_prefix_tokens, 0)
    self.service.pause('in_place')
    self._start()
    self.assertEqual(self.client.get('/flush_cache').status_code, 400)
    self.service.resume()

  def test_memory(self):
    self.assertIsNone(
        self._post('/release_memory_occupation', {'tags': ['kv_cache']})
    )
    response = self.client.post('/generate', json={'text': 'a'})
    self.assertEqual(response.status_code, 503)
    self.assertIn('/resume_memory_occupation', response.text)
    self._post('/release_memory_occupation', {})
    info = self.client.get('/server_info').json()
    self.assertEqual(info['released_memory'], ['kv_cache', 'weights'])
    # Twice is once, and what is not released needs nothing.
    self._post('/release_memory_occupation')
    self._post('/resume_memory_occupation', {'tags': ['weights']})
    self.assertEqual(self.service._released, {'kv_cache'})
    self._post('/resume_memory_occupation')
    self._post('/resume_memory_occupation')
    self.assertEqual(
        self._post('/generate', {'text': 'a'})['text'][-1:].isalpha(), True
    )
    for path in ('/release_memory_occupation', '/resume_memory_occupation'):
      error = self._post(path, {'tags': ['gpu']}, 400)['error']
      self.assertIn("'gpu'", error['message'])

  def test_memory_is_not_released_while_samples_run(self):
    self.service.pause('in_place')
    self._start()
    self._post('/release_memory_occupation', {}, 400)
    self.service.resume()
    self.assertEmpty(self.client.get('/server_info').json()['released_memory'])

  def test_full_queue(self):
    self.service.pause('in_place')
    self._start(count=2)
    # 2 of 3 places are taken: 2 samples do not fit, and none is queued.
    body = {'text': 'a', 'sampling_params': {'n': 2}}
    response = self.client.post('/generate', json=body)
    self.assertEqual(response.status_code, 503)
    self.assertEqual(response.headers['retry-after'], '1')
    self.assertIn('full', response.json()['error']['message'])
    self.assertEqual(self._jobs(), 2)
    response = self.client.post(
        '/v1/completions', json={'prompt': ['a', 'b'], 'stream': True}
    )
    self.assertEqual(response.status_code, 503)
    self.service.resume()

  def test_more_requests_than_connections(self):
    server = fakes.Server(self.service, connections=2)
    self.addCleanup(server.close)
    self.service.step_seconds = 0.01
    body = {'text': 'a', 'stream': True}
    body['sampling_params'] = {'max_new_tokens': 400}
    with server.client() as client:
      with client.stream('POST', '/generate', json=body) as one:
        with client.stream('POST', '/generate', json=body) as two:
          running = [stream.iter_lines() for stream in (one, two)]
          for lines in running:
            next(lines)
          for path in ('/generate', '/server_info', '/nothing'):
            response = client.post(path, json=body)
            self.assertEqual(response.status_code, 503, path)
            self.assertEqual(response.headers['retry-after'], '1')
            error = response.json()['error']
            self.assertIn('2 requests', error['message'])
            self.assertEqual(error['type'], 'overloaded_error')
          # Monitoring is let in.
          self.assertEqual(client.get('/health').status_code, 200)
          self.assertEqual(client.get('/metrics').status_code, 200)
      # Clients that are gone do not count.
      self.assertTrue(
          fakes.wait_for(lambda: client.get('/server_info').status_code == 200)
      )

  def test_health_generate(self):
    self.assertEqual(self.client.get('/health_generate').status_code, 200)
    self.assertEqual(self._tokens(), 1)
    self.service.pause('in_place')
    self.assertEqual(self.client.get('/health_generate').status_code, 503)
    # It leaves no sample behind.
    self.assertEqual(self._jobs(), 0)
    self.service.resume()

  def test_health_of_a_full_server(self):
    self.service.step_seconds = 0.01
    long = {'max_new_tokens': 500}
    self._start(count=2, sampling_params=long)
    self.assertTrue(fakes.wait_for(lambda: self.service.stats().running == 2))
    self._start(count=3, sampling_params=long)
    self.assertEqual(self.service.stats().waiting, 3)
    self.assertEqual(self.client.get('/health_generate').status_code, 200)
    self.service.pause('in_place')
    self.assertEqual(self.client.get('/health_generate').status_code, 503)
    self.service.abort_all()
    self.service.resume()

  def test_info(self):
    info = self.client.get('/get_model_info').json()
    self.assertEqual(info, self.client.get('/model_info').json())
    self.assertEqual(info['model_path'], self.server.host.settings.model_path)
    self.assertEqual(info['weight_version'], 'v0')
    self.assertTrue(info['is_generation'])
    info = self.client.get('/get_server_info').json()
    self.assertEqual(info, self.client.get('/server_info').json())
    self.assertEqual(info['max_running_requests'], 2)
    self.assertEqual(info['context_length'], 1024)
    self.assertEqual(info['status'], 'up')
    self.assertEqual(info['internal_states'][0]['num_running_reqs'], 0)

  def test_models(self):
    (card,) = self.client.get('/v1/models').json()['data']
    self.assertEqual(card['id'], 'tiny')
    self.assertEqual(card['max_model_len'], 1024)
    self.assertEqual(self.client.get('/v1/models/tiny').json(), card)
    response = self.client.get('/v1/models/other/one')
    self.assertEqual(response.status_code, 404)
    self.assertIn('other/one', response.json()['error']['message'])

  def test_metrics(self):
    body = {'input_ids': [1, 2, 3], 'sampling_params': {'max_new_tokens': 5}}
    for _ in range(2):
      self._post('/generate', body)
    self.service.step_seconds = 0.01
    self._start(rid='x', sampling_params={'max_new_tokens': 400})
    self.assertTrue(fakes.wait_for(lambda: self.service.stats().running))
    self._post('/abort_request', {'rid': 'x'})
    self.assertTrue(fakes.wait_for(lambda: self._jobs() == 0))
    response = self.client.get('/metrics')
    self.assertStartsWith(response.headers['content-type'], 'text/plain')
    values = dict(
        line.rsplit(' ', 1)
        for line in response.text.splitlines()
        if not line.startswith('#')
    )
    label = '{model_name="tiny"}'
    stats = self.service.stats()
    for name, expected in (
        ('sglang:prompt_tokens_total', 7),
        # The second prompt was found but for its last token.
        ('sglang:cached_tokens_total', 2),
        ('sglang:cache_hit_rate', 2 / 7),
        ('sglang:generation_tokens_total', stats.generated_tokens),
        ('sglang:num_requests_total', stats.finished + stats.aborted),
        ('sglang:num_aborted_requests_total', stats.aborted),
        ('sglang:num_running_reqs', 0),
        ('sglang:num_queue_reqs', 0),
        ('evojax:slots', 2),
        ('evojax:weight_updates_total', 0),
    ):
      self.assertAlmostEqual(float(values[name + label]), expected, msg=name)
    # Histograms know of samples that ended by themselves.
    ended = stats.finished
    for name in (
        'time_to_first_token_seconds',
        'inter_token_latency_seconds',
        'e2e_request_latency_seconds',
    ):
      self.assertEqual(
          float(values[f'sglang:{name}_count{label}']), ended, name
      )


class PhaseTest(absltest.TestCase):

  def test_starting_and_stopping(self):
    service = fakes.FakeService()
    self.addCleanup(service.close, 0)
    server = fakes.Server(service, open_now=False)
    self.addCleanup(server.close)
    with server.client() as client:
      for path in ('/health', '/health_generate'):
        self.assertEqual(client.get(path).status_code, 503)
        self.assertEqual(client.get(path).content, b'')
      response = client.post('/generate', json={'text': 'a'})
      self.assertEqual(response.status_code, 503)
      self.assertIn('starting', response.json()['error']['message'])
      self.assertIn('retry-after', response.headers)
      # The server tells all that it knows already.
      self.assertEqual(client.get('/server_info').json()['status'], 'starting')
      self.assertEqual(client.get('/v1/models').status_code, 200)
      self.assertEqual(client.get('/metrics').status_code, 200)
      server.host.open(service)
      self.assertEqual(client.get('/health').status_code, 200)
      self.assertEqual(client.get('/health').content, b'')
      self.assertEqual(
          client.post('/generate', json={'text': 'a'}).status_code, 200
      )
      server.host._phase = 'stopping'
      self.assertEqual(client.get('/health').status_code, 503)
      response = client.post('/generate', json={'text': 'a'})
      self.assertIn('stopping', response.json()['error']['message'])

  def test_service_that_has_failed(self):
    service = fakes.FakeService()
    self.addCleanup(service.close, 0)
    with fakes.serving(service) as client:
      service.broken = 'out of memory'
      # /health reports the failure before any sample is requested.
      self.assertEqual(client.get('/health').status_code, 503)
      response = client.post('/generate', json={'text': 'a'})
      self.assertEqual(response.status_code, 503)
      self.assertIn('failed', response.json()['error']['message'])
      self.assertEqual(client.get('/health_generate').status_code, 503)
      self.assertEqual(client.get('/server_info').json()['status'], 'failed')


class KeysTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.service = fakes.FakeService()
    cls.servers = {
        'none': fakes.Server(cls.service),
        'api': fakes.Server(cls.service, api_key='käy'),
        'admin': fakes.Server(cls.service, admin_key='boss'),
        'both': fakes.Server(cls.service, api_key='käy', admin_key='boss'),
    }

  @classmethod
  def tearDownClass(cls):
    for server in cls.servers.values():
      server.close()
    cls.service.close(0)
    super().tearDownClass()

  @parameterized.product(
      server=('none', 'api', 'admin', 'both'),
      given=('', 'Bearer käy', 'Bearer boss', 'Bearer', 'käy', 'Bearer k'),
  )
  def test_keys(self, server, given):
    has_api, has_admin = given == 'Bearer käy', given == 'Bearer boss'
    may_sample = {
        'none': True,
        'api': has_api,
        'admin': True,
        'both': has_api or has_admin,
    }[server]
    may_manage = {
        'none': True,
        'api': has_api,
        'admin': has_admin,
        'both': has_admin,
    }[server]
    headers = {'Authorization': given.encode()} if given else {}
    with self.servers[server].client(headers=headers) as client:
      for path in ('/health', '/health_generate', '/metrics'):
        self.assertEqual(client.get(path).status_code, 200)
      for path in ('/v1/models', '/server_info', '/nothing'):
        allowed = client.get(path).status_code != 401
        self.assertEqual(allowed, may_sample, path)
      response = client.post('/abort_request', json={'rid': 'x'})
      self.assertEqual(response.status_code, 200 if may_sample else 401)
      response = client.post('/abort_request', json={'abort_all': True})
      self.assertEqual(response.status_code, 200 if may_manage else 401)
      for path in _ADMIN:
        response = client.post(path, content=b'[')
        self.assertEqual(response.status_code != 401, may_manage, path)
      self.assertFalse(self.service.paused)

  def test_callers(self):
    """A key, and an address without its port, are one caller."""
    callers = collections.Counter()
    for server, key, address in (
        ('none', '', '127.0.0.1'),
        ('none', '', '127.0.0.1'),
        ('none', 'Bearer made up', '127.0.0.1'),
        ('none', '', '127.0.0.2'),
        ('both', 'Bearer boss', '127.0.0.1'),
        ('both', 'Bearer käy', '127.0.0.1'),
    ):
      self.service.callers.clear()
      transport = httpx2.HTTPTransport(local_address=address)
      headers = {'Authorization': key.encode()} if key else {}
      with self.servers[server].client(
          headers=headers, transport=transport
      ) as client:
        for path, body in (
            ('/generate', {'text': ['a', 'b']}),
            ('/v1/completions', {'prompt': 'a'}),
            (
                '/v1/chat/completions',
                {'messages': [{'role': 'user', 'content': 'a'}]},
            ),
        ):
          response = client.post(path, json=body)
          self.assertEqual(response.status_code, 200, response.text)
      self.assertLen(self.service.callers, 4)
      (caller,) = set(self.service.callers.values())
      self.assertNotIn('boss', caller)
      callers[caller] += 1
    self.assertCountEqual(callers.values(), [3, 1, 1, 1])

  def test_refusal(self):
    response = httpx2.post(f'{self.servers["both"].url}/generate', content=b'x')
    self.assertEqual(response.status_code, 401)
    self.assertEqual(response.headers['www-authenticate'], 'Bearer')
    error = response.json()['error']
    self.assertEqual(error['type'], 'authentication_error')
    self.assertNotIn('käy', response.text)

  def test_keys_are_not_shown(self):
    headers = {'Authorization': 'Bearer boss'}
    url = self.servers['both'].url
    for path in ('/server_info', '/get_model_info', '/metrics'):
      text = httpx2.get(url + path, headers=headers).text
      self.assertNotIn('boss', text)
      self.assertNotIn('käy', text)


if __name__ == '__main__':
  absltest.main()
