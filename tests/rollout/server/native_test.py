"""/generate, against a real web server and a service without a model."""

import json
import threading

from absl.testing import absltest
from absl.testing import parameterized
import httpx2
import transformers

from tests.rollout.server import fakes


class NativeTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.service = fakes.FakeService()
    cls.server = fakes.Server(cls.service)
    cls.client = cls.server.client()

  @classmethod
  def tearDownClass(cls):
    cls.client.close()
    cls.server.close()
    cls.service.close(0)
    super().tearDownClass()

  def setUp(self):
    super().setUp()
    self.service.script = None
    self.service.per_step = 1
    self.service.step_seconds = 0

  def tearDown(self):
    stats = self.service.stats()
    self.assertEqual((stats.running, stats.waiting), (0, 0))
    super().tearDown()

  def _generate(self, status: int = 200, **body):
    response = self.client.post('/generate', json=body)
    self.assertEqual(response.status_code, status, response.text)
    return response.json()

  def _error(self, **body) -> str:
    error = self._generate(400, **body)['error']
    self.assertEqual(error['code'], 400)
    self.assertEqual(error['type'], 'invalid_request_error')
    return error['message']

  def _say(self, text: str, *, end: bool = True):
    tokens = list(text.encode()) + [fakes.EOS] * end
    self.service.script = lambda job: tokens

  def test_answer(self):
    self._say('hi!')
    answer = self._generate(input_ids=[1, 2, 3], rid='me')
    meta = answer['meta_info']
    self.assertEqual(answer['text'], 'hi!')
    # The end of sequence was sampled, so it is there.
    self.assertEqual(answer['output_ids'], [*b'hi!', fakes.EOS])
    self.assertGreater(meta.pop('e2e_latency'), 0)
    self.assertEqual(
        meta,
        {
            'id': 'me',
            'finish_reason': {'type': 'stop', 'matched': fakes.EOS},
            'prompt_tokens': 3,
            'completion_tokens': 4,
            'cached_tokens': 0,
            'weight_version': 'v0',
            'weight_versions': [{'version': 'v0', 'start': 0, 'end': 4}],
        },
    )

  def test_cached_tokens(self):
    for expected in (0, 4):
      answer = self._generate(input_ids=[9, 9, 9, 9, 8])
      self.assertEqual(answer['meta_info']['cached_tokens'], expected)

  def test_text_is_a_rendered_prompt(self):
    # Special tokens are special: 257 is one token.
    answer = self._generate(text='<|im_start|>é')
    self.assertEqual(answer['meta_info']['prompt_tokens'], 1 + 2)

  def test_length(self):
    answer = self._generate(text='a', sampling_params={'max_new_tokens': 5})
    self.assertLen(answer['output_ids'], 5)
    self.assertEqual(
        answer['meta_info']['finish_reason'], {'type': 'length', 'length': 5}
    )
    self.assertLen(self._generate(text='a')['output_ids'], 128)

  def test_stop_string(self):
    self._say('one→two')
    params = {'stop': ['x', '→t']}
    for kept, expected in ((False, 'one'), (True, 'one→t')):
      answer = self._generate(
          text='a', sampling_params=params | {'no_stop_trim': kept}
      )
      self.assertEqual(answer['text'], expected)
      # Three letters, the three bytes of the arrow, and t.
      self.assertEqual(answer['output_ids'], [*'one→t'.encode()])
      self.assertEqual(
          answer['meta_info']['finish_reason'],
          {'type': 'stop', 'matched': '→t'},
      )

  def test_stop_token(self):
    self._say('abc')
    answer = self._generate(
        text='a', sampling_params={'stop_token_ids': [ord('b')]}
    )
    self.assertEqual(answer['text'], 'a')
    self.assertEqual(answer['output_ids'], [*b'ab'])
    answer = self._generate(
        text='a',
        sampling_params={'stop_token_ids': [ord('b')], 'no_stop_trim': True},
    )
    self.assertEqual(answer['text'], 'ab')

  def test_special_tokens(self):
    self.service.script = lambda job: [257, ord('a'), 258, ord('b'), fakes.EOS]
    params = {'max_new_tokens': 4}
    for skip, expected in ((True, 'ab'), (False, '<|im_start|>a<|im_end|>b')):
      answer = self._generate(
          text='a', sampling_params=params | {'skip_special_tokens': skip}
      )
      self.assertEqual(answer['text'], expected)

  def test_special_token_as_a_stop_string(self):
    self.service.script = lambda job: [ord('a'), 258, ord('b'), fakes.EOS]
    stop = {'stop': '<|im_end|>'}
    for more, expected in (
        ({}, 'a'),
        ({'skip_special_tokens': False}, 'a'),
        ({'skip_special_tokens': False, 'no_stop_trim': True}, 'a<|im_end|>'),
    ):
      answer = self._generate(text='a', sampling_params=stop | more)
      self.assertEqual(answer['text'], expected)
      self.assertEqual(answer['output_ids'], [ord('a'), 258])
      self.assertEqual(
          answer['meta_info']['finish_reason'],
          {'type': 'stop', 'matched': '<|im_end|>'},
      )

  def test_logprobs(self):
    self._say('ab')
    answer = self._generate(
        input_ids=[5, 6, 7], return_logprob=True, top_logprobs_num=2
    )
    meta = answer['meta_info']
    # logprob(t) = -(1 + t % 7) / 8: a is 97 = 13 * 7 + 6, b 98, the end 256.
    self.assertEqual(
        meta['output_token_logprobs'],
        [[-0.875, 97, None], [-0.125, 98, None], [-0.625, 256, None]],
    )
    self.assertEqual(
        meta['output_top_logprobs'], [[[-0.125, 0, None], [-0.25, 1, None]]] * 3
    )
    self.assertEqual(meta['input_token_logprobs'], [])
    self.assertEqual(meta['input_top_logprobs'], [])
    self.assertNotIn(
        'output_token_logprobs', self._generate(text='a')['meta_info']
    )

  def test_logprobs_of_the_prompt(self):
    answer = self._generate(
        input_ids=[5, 6, 7],
        return_logprob=True,
        logprob_start_len=0,
        return_text_in_logprobs=True,
        top_logprobs_num=1,
        sampling_params={'max_new_tokens': 1},
    )
    meta = answer['meta_info']
    # Nothing comes before the first token: it has no log-prob.
    self.assertEqual(
        meta['input_token_logprobs'],
        [[None, 5, '\x05'], [-0.875, 6, '\x06'], [-0.125, 7, '\x07']],
    )
    self.assertEqual(meta['input_top_logprobs'][0], None)
    self.assertEqual(meta['input_top_logprobs'][1], [[-0.125, 0, '\x00']])
    answer = self._generate(
        input_ids=[5, 6, 7], return_logprob=True, logprob_start_len=2
    )
    self.assertEqual(
        answer['meta_info']['input_token_logprobs'], [[-0.125, 7, None]]
    )

  def test_batch(self):
    answers = self._generate(
        input_ids=[[1], [2, 3]],
        sampling_params=[
            {'n': 2, 'sampling_seed': 5, 'max_new_tokens': 4},
            {'n': 2, 'sampling_seed': 6, 'max_new_tokens': 3},
        ],
        return_logprob=[True, False],
        rid=['x', 'y'],
    )
    # Prompt by prompt.
    self.assertEqual(
        [a['meta_info']['prompt_tokens'] for a in answers], [1, 1, 2, 2]
    )
    self.assertEqual([len(a['output_ids']) for a in answers], [4, 4, 3, 3])
    self.assertEqual(
        ['output_token_logprobs' in a['meta_info'] for a in answers],
        [True, True, False, False],
    )
    self.assertEqual(
        [a['meta_info']['id'] for a in answers], ['x_0', 'x_1', 'y_0', 'y_1']
    )
    # Sample i of a prompt is what seed + i alone gives.
    alone = self._generate(
        input_ids=[1],
        sampling_params={'sampling_seed': 6, 'max_new_tokens': 4},
    )
    self.assertEqual(answers[1]['output_ids'], alone['output_ids'])
    self.assertNotEqual(answers[0]['output_ids'], alone['output_ids'])

  def test_shapes(self):
    one = {'max_new_tokens': 1}
    self.assertIsInstance(self._generate(text='a', sampling_params=one), dict)
    self.assertLen(self._generate(text=['a'], sampling_params=one), 1)
    self.assertLen(self._generate(input_ids=[[1]], sampling_params=one), 1)
    answers = self._generate(text='a', sampling_params=one | {'n': 3}, rid='q')
    self.assertEqual(
        [a['meta_info']['id'] for a in answers], ['q_0', 'q_1', 'q_2']
    )

  def test_seeds(self):
    fixed = {'sampling_seed': 3, 'max_new_tokens': 20}
    first, again = (
        self._generate(text='a', sampling_params=fixed)['text'] for _ in '12'
    )
    self.assertEqual(first, again)
    free = {'max_new_tokens': 20, 'n': 4}
    texts = {a['text'] for a in self._generate(text='a', sampling_params=free)}
    texts |= {a['text'] for a in self._generate(text='a', sampling_params=free)}
    self.assertLen(texts, 8)

  @parameterized.parameters(
      ({}, 'send either text or input_ids'),
      ({'text': 'a', 'input_ids': [1]}, 'send either text or input_ids'),
      ({'text': ''}, 'text: the prompt is empty'),
      ({'text': []}, 'text: the batch is empty'),
      ({'text': ['a', '']}, 'text: the prompt is empty'),
      ({'input_ids': []}, 'input_ids: the batch is empty'),
      ({'input_ids': [[]]}, 'input_ids: the prompt is empty'),
      ({'input_ids': [270]}, 'input_ids: 270 is no token id'),
      ({'input_ids': [-1]}, 'input_ids: -1 is no token id'),
      ({'input_ids': [2**40]}, 'is no token id'),
      ({'input_ids': [1] * 1024}, 'the prompt has 1024 tokens'),
      (
          {'input_ids': [1] * 1025, 'sampling_params': {'max_new_tokens': 0}},
          'the prompt has 1025 tokens',
      ),
      ({'text': 'a' * 5000}, 'the prompt has 5000 tokens'),
      ({'text': 'a', 'rid': ['x']}, 'rid: a list, where there is one prompt'),
      ({'text': ['a', 'b'], 'rid': ['x']}, 'rid: 1 values for 2 prompts'),
      ({'text': ['a', 'b'], 'rid': ['x', 'x']}, 'rid: holds the same id twice'),
      (
          {'text': ['a', 'b'], 'return_logprob': [True]},
          'return_logprob: 1 values for 2 prompts',
      ),
      (
          {'text': ['a', 'b'], 'sampling_params': [{}]},
          'sampling_params: 1 values for 2 prompts',
      ),
      (
          {'text': ['a', 'b'], 'sampling_params': [{'n': 1}, {'n': 2}]},
          'sampling_params.n: must be equal',
      ),
      (
          {'text': 'a', 'sampling_params': {'n': 65}},
          'asks for 65 samples, more than 64',
      ),
      ({'text': ['a'] * 65}, 'asks for 65 samples, more than 64'),
      (
          {'text': ['a'] * 2, 'sampling_params': {'n': 2**20}},
          'samples, more than 64',
      ),
      ({'text': 'a', 'top_logprobs_num': 21}, '[0, 20]; run SGLang for more'),
      ({'text': 'a', 'top_logprobs_num': -1}, 'top_logprobs_num: -1'),
      (
          {'text': 'a', 'return_logprob': True, 'logprob_start_len': 2},
          'logprob_start_len: 2 is no position',
      ),
      (
          {'text': 'a', 'return_logprob': True, 'logprob_start_len': -2},
          'logprob_start_len: -2 is no position',
      ),
      (
          {'text': 'a', 'sampling_params': {'regex': 'x'}},
          'sampling_params.regex: constrained output is not served; run SGLang',
      ),
  )
  def test_refused(self, body, message):
    self.assertIn(message, self._error(**body))

  def test_count_is_checked_before_the_parameters(self):
    # Each of a million would be read, else.
    params = [{'temperature': 'x'}] * 65
    message = self._error(text=['a'] * 65, sampling_params=params)
    self.assertIn('65 samples', message)

  def test_prompt_is_scored_without_a_sample(self):
    # As teachers of a distillation, and SGLang's frontend where it chooses.
    answer = self._generate(
        input_ids=[5, 6, 7],
        return_logprob=True,
        logprob_start_len=1,
        top_logprobs_num=1,
        sampling_params={'temperature': 0, 'max_new_tokens': 0},
    )
    meta = answer['meta_info']
    self.assertEqual((answer['text'], answer['output_ids']), ('', []))
    self.assertEqual(meta['finish_reason'], {'type': 'length', 'length': 0})
    self.assertEqual((meta['prompt_tokens'], meta['completion_tokens']), (3, 0))
    self.assertEqual(
        meta['input_token_logprobs'], [[-0.875, 6, None], [-0.125, 7, None]]
    )
    self.assertEqual(meta['input_top_logprobs'], [[[-0.125, 0, None]]] * 2)
    self.assertEqual(meta['output_token_logprobs'], [])
    self.assertEqual(meta['output_top_logprobs'], [])
    self.assertEqual(meta['weight_version'], 'v0')

  def test_nothing_is_sampled(self):
    nothing = {'max_new_tokens': 0}
    # A prompt that fills the context; a batch; several samples; the end.
    full = self._generate(input_ids=[1] * 1024, sampling_params=nothing)
    self.assertEqual(full['meta_info']['prompt_tokens'], 1024)
    for answer in (
        *self._generate(text=['ab', 'c'], sampling_params=nothing),
        *self._generate(text='a', sampling_params=nothing | {'n': 2}),
    ):
      self.assertEqual(answer['output_ids'], [])
    answer = self._generate(
        input_ids=[5, 6],
        return_logprob=True,
        logprob_start_len=2,
        sampling_params=nothing,
    )
    self.assertEqual(answer['meta_info']['input_token_logprobs'], [])
    # And the prefix is in the cache.
    answer = self._generate(text='ab')
    self.assertEqual(answer['meta_info']['cached_tokens'], 1)
    body = {'text': 'a', 'stream': True, 'sampling_params': nothing}
    with self.client.stream('POST', '/generate', json=body) as response:
      *found, done = fakes.events(response)
    self.assertEqual((len(found), done), (1, '[DONE]'))
    self.assertEqual(found[0]['meta_info']['finish_reason']['type'], 'length')

  def test_default_is_fitted_to_the_context(self):
    answer = self._generate(input_ids=[1] * 1000)
    self.assertLen(answer['output_ids'], 24)

  def test_ids_of_the_prompt(self):
    asked = {'return_prompt_token_ids': True, 'text': ['<|im_end|>a', 'b']}
    answers = self._generate(**asked)
    self.assertEqual(
        [a['prompt_token_ids'] for a in answers], [[258, 97], [98]]
    )
    self.assertNotIn('prompt_token_ids', self._generate(text='a'))

  def test_spaces_between_special_tokens(self):
    # The text is what transformers decodes with either value.
    ids = [257, 258, ord('a'), 258, fakes.EOS]
    self.service.script = lambda job: ids
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(
        fakes.tokenizer_path()
    )
    for options in (
        {'spaces_between_special_tokens': spaces, 'skip_special_tokens': skip}
        for spaces in (False, True)
        for skip in (False, True)
    ):
      params = {'no_stop_trim': True, **options}
      answer = self._generate(text='a', sampling_params=params)
      self.assertEqual(answer['text'], reference.decode(ids, **options))

  def test_wrong_bodies(self):
    for content, status in (
        (b'{"text": "a"', 400),
        (b'\xff\xfe', 400),
        (b'', 400),
        (b'null', 400),
        (b'{"text": "' + b'a' * (17 << 20) + b'"}', 413),
    ):
      response = self.client.post('/generate', content=content)
      self.assertEqual(response.status_code, status, content[:20])
      self.assertIn('message', response.json()['error'])

  def test_body_without_a_length_is_bounded_too(self):
    sent = 0

    def parts():
      nonlocal sent
      for _ in range(1000):
        sent += 1 << 20
        yield b' ' * (1 << 20)

    try:
      response = self.client.post('/generate', content=parts())
      self.assertEqual(response.status_code, 413)
    except httpx2.WriteError:  # It hung up in the middle of the body.
      pass
    self.assertLess(sent, 100 << 20)

  def test_paths(self):
    for method, path, status in (
        ('GET', '/nothing', 404),
        ('GET', '/generate', 405),
        ('GET', '/docs', 404),
    ):
      response = self.client.request(method, path)
      self.assertEqual(response.status_code, status)
      self.assertIn(path, response.json()['error']['message'])

  def test_stream(self):
    self._say('né→!')
    with self.client.stream(
        'POST',
        '/generate',
        json={'text': 'a', 'stream': True, 'return_logprob': True},
    ) as response:
      self.assertEqual(
          response.headers['content-type'], 'text/event-stream; charset=utf-8'
      )
      *found, done = fakes.events(response)
    self.assertEqual(done, '[DONE]')
    ids = [*'né→!'.encode(), fakes.EOS]
    seen, size = '', 0
    for event in found:
      # Each event holds all so far, and never half a letter.
      self.assertStartsWith('né→!', event['text'])
      self.assertStartsWith(event['text'], seen)
      seen = event['text']
      self.assertEqual(event['output_ids'], ids[: len(event['output_ids'])])
      self.assertGreater(len(event['output_ids']), size)
      size = len(event['output_ids'])
      meta = event['meta_info']
      self.assertEqual(meta['completion_tokens'], size)
      self.assertLen(meta['output_token_logprobs'], size)
    self.assertEqual(seen, 'né→!')
    self.assertEqual(size, len(ids))
    self.assertEqual(
        [e['meta_info']['finish_reason'] for e in found[:-1]],
        [None] * (len(found) - 1),
    )
    self.assertEqual(found[-1]['meta_info']['finish_reason']['type'], 'stop')

  def test_stream_of_a_batch(self):
    self.service.step_seconds = 0.002
    body = {
        'text': ['a', 'b'],
        'stream': True,
        'sampling_params': {'n': 2, 'max_new_tokens': 9, 'sampling_seed': 1},
    }
    with self.client.stream('POST', '/generate', json=body) as response:
      *found, _ = fakes.events(response)
    last = {event['index']: event for event in found}
    whole = self._generate(**(body | {'stream': False}))
    self.assertLen(last, 4)
    for index, answer in enumerate(whole):
      self.assertEqual(last[index]['text'], answer['text'])
      self.assertEqual(last[index]['output_ids'], answer['output_ids'])
    self.assertGreater(len(found), 4)

  def test_stop_string_is_never_streamed(self):
    # Slow, so that each token is an event.
    self.service.step_seconds = 0.004
    self._say('ab STOP')
    body = {
        'text': 'a',
        'stream': True,
        'sampling_params': {'stop': ['STOP', 'é']},
    }
    with self.client.stream('POST', '/generate', json=body) as response:
      *found, _ = fakes.events(response)
    self.assertGreater(len(found), 3)
    for event in found:
      self.assertNotIn('S', event['text'])
    self.assertEqual(found[-1]['text'], 'ab ')
    self.assertEqual(bytes(found[-1]['output_ids']), b'ab STOP')

  def test_wrong_requests_are_refused_before_a_stream_begins(self):
    self.assertIn('empty', self._error(text='', stream=True))

  def test_many_at_once(self):
    answers = {}

    def ask(seed):
      with self.server.client() as client:
        body = {
            'text': f'{seed}',
            'sampling_params': {'sampling_seed': seed, 'max_new_tokens': 30},
        }
        answers[seed] = client.post('/generate', json=body).json()['text']

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(20)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    for seed, text in answers.items():
      alone = self._generate(
          text=f'{seed}',
          sampling_params={'sampling_seed': seed, 'max_new_tokens': 30},
      )
      self.assertEqual(text, alone['text'])

  def test_rid_in_use(self):
    self.service.pause('in_place')
    thread = threading.Thread(
        target=self.client.post,
        args=('/generate',),
        kwargs={'json': {'text': 'a', 'rid': 'same'}},
    )
    thread.start()
    self.assertTrue(fakes.wait_for(lambda: self.service.stats().waiting == 1))
    try:
      self.assertIn("rid: 'same' is in use", self._error(text='a', rid='same'))
    finally:
      self.service.resume()
      thread.join()
    # It may be used again.
    self._generate(text='a', rid='same')

  def test_impossible_tokens_have_no_logprob(self):
    # A bias may rule a token out; JSON has no infinity.
    original = fakes.logprob
    fakes.logprob = lambda token: float('-inf')
    self.addCleanup(setattr, fakes, 'logprob', original)
    answer = self._generate(
        text='a', return_logprob=True, sampling_params={'max_new_tokens': 1}
    )
    self.assertIsNone(answer['meta_info']['output_token_logprobs'][0][0])

  def test_service_refuses(self):
    # The service's own errors are told as it words them.
    server = fakes.Server(self.service, context_tokens=10_000)
    self.addCleanup(server.close)
    response = httpx2.post(
        f'{server.url}/generate', content=json.dumps({'input_ids': [1] * 3000})
    )
    self.assertEqual(response.status_code, 400)
    self.assertIn('too long', response.json()['error']['message'])


if __name__ == '__main__':
  absltest.main()
