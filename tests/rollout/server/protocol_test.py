"""Wrong requests are refused with the name of what is wrong."""

import difflib
import json
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.rollout.server import errors
from evojax.rollout.server import fields as fields_lib
from evojax.rollout.server import protocol
from tests.rollout.server import fakes


def _sampling(**fields) -> dict:
  return {'text': 'a', 'sampling_params': fields}


def _check(body: dict) -> None:
  """Parses /generate as the server does, for a prompt of one token."""
  request = protocol.parse(protocol.Generate, json.dumps(body).encode())
  fields = protocol.check(protocol.Sampling, request.sampling_params)
  protocol.sampling_params(fields, fakes.make_settings(), prompt_tokens=1)


# All fields of SGLang's requests, as its own clients and its router send them
# where nobody has set them.
_SGLANG = {
    'rid': None,
    'input_embeds': None,
    'image_data': [None, None],
    'video_data': [],
    'audio_data': None,
    'mm_hashes': None,
    'use_audio_in_video': False,
    'return_logprob': None,
    'logprob_start_len': None,
    'top_logprobs_num': 0,
    'token_ids_logprob': [None],
    'return_sampling_mask': [False],
    'return_flat_raw_top_logprobs': False,
    'stream': False,
    'log_metrics': True,
    'return_hidden_states': False,
    'return_routed_experts': False,
    'routed_experts_start_len': 0,
    'modalities': None,
    'session_params': {},
    'session_id': None,
    'lora_path': [None],
    'lora_id': '',
    'custom_logit_processor': '',
    'bootstrap_host': None,
    'data_parallel_rank': None,
    'background': False,
    'priority': 0,
    'extra_key': None,
    'cache_salt': None,
    'no_logs': False,
    'return_bytes': False,
    'return_entropy': False,
}
# The same for sampling_params, with what slime and Miles set.
_SGLANG_SAMPLING = {
    'stop': '',
    'stop_token_ids': [],
    'stop_regex': None,
    'top_k': 0,
    'min_p': 1.0,
    'n': None,
    'json_schema': None,
    'regex': '',
    'ebnf': None,
    'structural_tag': None,
    'ignore_eos': False,
    'skip_special_tokens': False,
    'spaces_between_special_tokens': False,
    'no_stop_trim': True,
    'custom_params': {},
    'stream_interval': 5,
    'logit_bias': {},
    'beam_width': 1,
    'temperature': None,
    'sampling_seed': -(2**63),
}
# Fields of chats that change no answer here, from OpenAI, SGLang's router, vLLM
# and the clients of trainers.
_CHAT = {
    'store': True,
    'metadata': {'a': 'b'},
    'service_tier': 'auto',
    'user': 'me',
    'safety_identifier': 'x',
    'prompt_cache_key': 'x',
    'verbosity': 'low',
    'modalities': ['text'],
    'response_format': {'type': 'text'},
    'function_call': 'none',
    'functions': [],
    'tool_choice': 'none',
    'stream_options': {'include_usage': True, 'include_obfuscation': False},
    'separate_reasoning': True,
    'stream_reasoning': True,
    'continue_final_message': False,
    'return_hidden_states': False,
    'cache_salt': 'x',
    'priority': 3,
    'request_id': 'x',
    'length_penalty': 1.0,
    'use_beam_search': False,
    'bad_words': [],
    'allowed_token_ids': None,
    'add_generation_prompt': True,
    'include_stop_str_in_output': False,
    'include_reasoning': True,
    'prediction': {'type': 'content', 'content': 'x'},
    'routed_experts_prompt_start': 7,
}


class ProtocolTest(parameterized.TestCase):

  @parameterized.parameters(
      (b'{', 'not JSON'),
      (b'[]', 'not a JSON object'),
      (b'"x"', 'not a JSON object'),
      (b'{"text": "\xff"}', 'not JSON'),
      (b'{"text": "\\ud800"}', 'not JSON'),
      (b'{"text": NaN}', 'not JSON'),
      (b'[' * 100_000, 'not JSON'),
      (b'{"a":' * 100_000, 'not JSON'),
      (b'{"rid": ' + b'9' * 5000 + b'}', 'not JSON'),
  )
  def test_bodies(self, body, message):
    with self.assertRaisesRegex(errors.ApiError, message) as caught:
      protocol.parse(protocol.Generate, body)
    self.assertEqual(caught.exception.status, 400)

  @parameterized.parameters(
      ({'text': 5}, 'text'),
      ({'text': ['a', 5]}, r'text\[1\]'),
      ({'input_ids': 'abc'}, 'input_ids'),
      ({'input_ids': [1, 2.5]}, r'input_ids\[1\]'),
      ({'input_ids': [1, True]}, r'input_ids\[1\]'),
      ({'input_ids': [[1], 2]}, 'input_ids'),
      ({'input_ids': [2**70]}, r'input_ids\[0\]'),
      ({'stream': 'yes'}, 'stream'),
      ({'stream': 1}, 'stream'),
      ({'rid': ''}, 'rid'),
      ({'rid': 'x' * 300}, 'rid'),
      ({'image_data': 'x.png'}, 'image_data: the model reads .* run SGLang'),
      ({'image_data': [None, 'x.png']}, 'image_data: the model reads'),
      ({'video_data': ['x']}, 'video_data: .* run SGLang'),
      ({'audio_data': {'a': 1}}, 'audio_data: .* run SGLang'),
      ({'lora_path': 'x'}, 'lora_path: .*merge them, or run SGLang'),
      ({'lora_path': [None, 'x']}, 'lora_path: '),
      ({'return_hidden_states': True}, 'return_hidden_states: .*run SGLang'),
      ({'return_hidden_states': [False, True]}, 'return_hidden_states: '),
      ({'return_routed_experts': True}, 'return_routed_experts: .*run SGLang'),
      ({'return_entropy': True}, 'return_entropy: .*run SGLang'),
      ({'custom_logit_processor': 'x'}, 'custom_logit_processor: .*SGLang'),
      ({'input_embeds': [[0.5]]}, 'input_embeds: .*token ids.*SGLang'),
      ({'token_ids_logprob': [5]}, 'token_ids_logprob: .*run SGLang'),
      ({'session_params': {'id': 'x'}}, 'session_params: .*run SGLang'),
      ({'bootstrap_host': 'x'}, 'bootstrap_host: .*run SGLang'),
      (_sampling(regex='a*'), 'sampling_params.regex: .* run SGLang'),
      (_sampling(json_schema='{}'), 'sampling_params.json_schema: .*SGLang'),
      (_sampling(ebnf='x'), 'sampling_params.ebnf: constrained'),
      (_sampling(structural_tag='x'), 'sampling_params.structural_tag'),
      (_sampling(stop_regex='x'), 'sampling_params.stop_regex: .*SGLang'),
      (_sampling(custom_params={'a': 1}), 'sampling_params.custom_params'),
      (_sampling(beam_width=2), 'sampling_params.beam_width: .*SGLang'),
      (_sampling(temperature='0.5'), 'sampling_params.temperature'),
      (_sampling(temperature=-1), 'sampling_params.temperature'),
      (_sampling(temperature=1e300), 'sampling_params.temperature'),
      (_sampling(top_p=0), 'sampling_params.top_p'),
      (_sampling(top_p=1.5), 'sampling_params.top_p'),
      (_sampling(top_k=-5), 'sampling_params.top_k'),
      (_sampling(top_k=1.5), 'sampling_params.top_k'),
      (_sampling(min_p=1.5), 'sampling_params.min_p'),
      (_sampling(n=0), 'sampling_params.n'),
      (_sampling(n=2**40), 'sampling_params.n'),
      (_sampling(n=True), 'sampling_params.n'),
      (_sampling(max_new_tokens=-1), 'sampling_params.max_new_tokens'),
      (_sampling(max_new_tokens=10**30), 'max_new_tokens'),
      # 512 sampled tokens at most, of a context of 1024.
      (_sampling(max_new_tokens=513), 'max_new_tokens: 513 .*at most 512'),
      (_sampling(min_new_tokens=129), 'min_new_tokens: 129 exceeds .*=128'),
      (_sampling(frequency_penalty=3), 'sampling_params.frequency_penalty'),
      (_sampling(repetition_penalty=0), 'sampling_params.repetition_penalty'),
      (_sampling(repetition_penalty=1e-300), 'params.repetition_penalty'),
      (_sampling(stop=['a', '']), 'stop: strings have 1 to 256'),
      (_sampling(stop='x' * 257), 'stop: strings have 1 to 256'),
      (_sampling(stop=['a'] * 17), 'stop: 17 strings, more than 16'),
      (_sampling(stop=5), 'sampling_params.stop'),
      (_sampling(stop_token_ids=[270]), 'stop_token_ids: 270 is no token id'),
      (_sampling(stop_token_ids=[-1]), 'stop_token_ids: -1 is no token id'),
      (_sampling(stop_token_ids=list(range(9))), 'stop_token_ids: 9 tokens'),
      (_sampling(logit_bias={'a': 1}), "logit_bias: 'a' is no token id"),
      (_sampling(logit_bias={'²': 1}), "logit_bias: '²' is no token id"),
      (_sampling(logit_bias={'-1': 1}), "logit_bias: '-1' is no token id"),
      (_sampling(logit_bias={'270': 1}), 'logit_bias: 270 is no token id'),
      (_sampling(logit_bias={'1': 1e30}), 'logit_bias: 1e.30 exceeds'),
      (
          _sampling(logit_bias={str(i): 1 for i in range(65)}),
          'logit_bias: 65 tokens',
      ),
      (_sampling(sampling_seed='x'), 'sampling_params.sampling_seed'),
      (_sampling(sampling_seed=2**64), 'sampling_params.sampling_seed'),
      (_sampling(ignore_eos=1), 'sampling_params.ignore_eos'),
      (
          _sampling(spaces_between_special_tokens='no'),
          'sampling_params.spaces_between_special_tokens',
      ),
  )
  def test_fields(self, body, message):
    with self.assertRaisesRegex(errors.ApiError, message) as caught:
      _check({'text': 'a'} | body)
    self.assertEqual(caught.exception.status, 400)

  def test_infinity_is_no_number(self):
    # 1e999 is JSON, and overflows.
    for field in ('temperature', 'top_p', 'frequency_penalty', 'min_p'):
      body = b'{"text": "a", "sampling_params": {"%s": 1e999}}' % field.encode()
      request = protocol.parse(protocol.Generate, body)
      with self.assertRaisesRegex(errors.ApiError, field):
        protocol.check(protocol.Sampling, request.sampling_params)

  def test_messages_are_short(self):
    body = {'text': 5, 'input_ids': ['x'] * 100_000, 'y' * 10_000: 1}
    with self.assertRaises(errors.ApiError) as caught:
      protocol.parse(protocol.Generate, json.dumps(body).encode())
    self.assertLess(len(caught.exception.message), 600)

  def test_what_asks_for_nothing_is_accepted(self):
    _check({'text': 'a', **_SGLANG, 'sampling_params': _SGLANG_SAMPLING})
    _check({'text': 'a', 'sampling_params': {'top_k': 1 << 30, 'stop': None}})
    body = {'messages': [{'role': 'user', 'content': 'a'}], **_CHAT}
    chat = protocol.parse(protocol.Chat, json.dumps(body).encode())
    self.assertTrue(chat.stream_options.include_usage)
    body = b'{"prompt": "a", "logprobs": false, "add_special_tokens": true}'
    self.assertIsNone(protocol.parse(protocol.Completion, body).logprobs)
    protocol.parse(protocol.Empty, b'')
    protocol.parse(protocol.Empty, b'{"torch_empty_cache": true}')
    protocol.parse(protocol.Update, b'{"model_path": "x", "is_async": false}')

  def test_what_is_ignored_is_logged_once(self):
    self.enterContext(mock.patch.object(fields_lib, '_logged', set()))
    body = {'text': 'a', 'temprature': 0, 'no\nline': 1, 'image_data': None}
    body |= _sampling(int=1, foo=[2], regex='')
    chat = {
        'messages': [{'role': 'user', 'content': 'a', 'weight': 1}],
        'stream_options': {'x': 1},
    }
    with self.assertLogs(level='WARNING') as logs:
      for _ in range(3):
        _check(body)
        protocol.parse(protocol.Chat, json.dumps(chat).encode())
    for name in (
        "'temprature'",
        r"'no\nline'",
        "'sampling_params.int'",
        "'sampling_params.foo'",
        "'messages[].weight'",
        "'stream_options.x'",
    ):
      self.assertLen([x for x in logs.output if name in x], 1, name)
    self.assertLen(logs.output, 6)

  @parameterized.parameters(
      ({'sampling_params': {'temprature': 0.0}}, 'temperature'),
      ({'sampling_params': {'max_tokens': 5}}, 'max_new_tokens'),
      ({'return_logprobs': True}, 'return_logprob'),
      ({'temperature': 0.0}, 'sampling_params'),
      ({'max_new_tokens': 5}, 'sampling_params'),
  )
  def test_a_mistaken_name_is_refused(self, fields, said):
    """Otherwise the answer would be sampled by defaults, without a word."""
    with self.assertRaises(errors.ApiError) as caught:
      _check({'text': 'a', **fields})
    self.assertEqual(caught.exception.status, 400)
    self.assertIn(said, caught.exception.message)
    # Null asks for nothing.
    *_, (name, inner) = fields.items()
    nothing = dict.fromkeys(inner) if isinstance(inner, dict) else None
    _check({'text': 'a', name: nothing})

  def test_only_some_names_are_compared(self):
    """A body can hold a hundred thousand, or one of a megabyte."""
    likeness = mock.Mock(wraps=difflib.get_close_matches)
    self.enterContext(
        mock.patch.object(fields_lib.difflib, 'get_close_matches', likeness)
    )
    fields_lib._misspelled.cache_clear()
    many = {f'erutarepmet{i}': 1 for i in range(1000)}
    _check({'text': 'a', 'x' * 10**6: 1, 'sampling_params': many})
    self.assertBetween(likeness.call_count, 1, 8)
    with self.assertRaisesRegex(errors.ApiError, 'put it into'):
      _check({'text': 'a', **many, 'temperature': 0.0})

  def test_a_message_of_the_user_has_content(self):
    def check(message):
      body = json.dumps({'messages': [message]}).encode()
      return protocol.parse(protocol.Chat, body)

    for content in ({}, {'content': None}):
      with self.assertRaisesRegex(errors.ApiError, r'messages\[\]\.content'):
        check({'role': 'user', **content})
    check({'role': 'user', 'content': ''})
    check({'role': 'assistant', 'tool_calls': []})

  def test_nobody_fills_the_log_with_names(self):
    self.enterContext(mock.patch.object(fields_lib, '_logged', set()))
    body = {f'{"x" * 10_000 * (i % 2)}{i}': 1 for i in range(400)}
    with self.assertLogs(level='WARNING') as logs:
      protocol.parse(protocol.Empty, json.dumps(body).encode())
    self.assertLess(len(logs.output), 110)
    self.assertLess(sum(map(len, logs.output)), 30_000)
    self.assertIn('nor are other fields', logs.output[-1])

  @parameterized.parameters(
      # 1 token of 1024 is taken by the prompt, and 512 may be sampled.
      (1, {'max_new_tokens': None}, 512),
      (1000, {'max_new_tokens': None}, 24),
      (1, {'max_new_tokens': 128}, 128),
      (896, {'max_new_tokens': 128}, 128),
      # The default is 128 tokens, or what is left.
      (1, {}, 128),
      (897, {}, 127),
      (1023, {}, 1),
      # A prompt may fill the context if nothing is sampled.
      (1, {'max_new_tokens': 0}, 0),
      (1024, {'max_new_tokens': 0}, 0),
  )
  def test_room(self, prompt_tokens, fields, expected):
    params = protocol.sampling_params(
        protocol.check(protocol.Sampling, fields),
        fakes.make_settings(),
        prompt_tokens=prompt_tokens,
    )
    self.assertEqual(params.max_tokens, expected)

  @parameterized.parameters(
      # A prompt of 897 and 128 tokens are 1025; one of 1024 leaves none.
      (897, {'max_new_tokens': 128}, 'max_new_tokens: 128 .* at most 127'),
      (1024, {'max_new_tokens': None}, 'the prompt has 1024 tokens; at most'),
      (1024, {}, 'the prompt has 1024 tokens; at most 1024 fit, and one less'),
      (1025, {'max_new_tokens': 0}, 'the prompt has 1025 tokens'),
      # The default is fitted, but not below what is asked for.
      (1000, {'min_new_tokens': 30}, 'min_new_tokens: 30 exceeds .*=24'),
  )
  def test_no_room(self, prompt_tokens, fields, message):
    with self.assertRaisesRegex(errors.ApiError, message):
      protocol.sampling_params(
          protocol.check(protocol.Sampling, fields),
          fakes.make_settings(),
          prompt_tokens=prompt_tokens,
      )

  def test_conventions_of_the_engine(self):
    fields = protocol.check(
        protocol.Sampling,
        {
            'temperature': 1e-9,  # Greedy, as SGLang's.
            'max_new_tokens': 5,
            'min_new_tokens': 2,
            'top_k': 270,  # All of the vocabulary: off.
            'stop': 'x',
            'stop_token_ids': [3, 3, 4],
            'logit_bias': {'7': -1.5},
        },
    )
    params = protocol.sampling_params(
        fields,
        fakes.make_settings(),
        prompt_tokens=1,
    )
    self.assertEqual(params.temperature, 0)
    self.assertEqual(params.top_k, -1)
    self.assertEqual(params.stop, ('x',))
    self.assertEqual(params.stop_token_ids, (3, 4))
    self.assertEqual(params.logit_bias, ((7, -1.5),))
    self.assertEqual(params.min_tokens, 2)

  def test_seeds(self):
    # Sample i has seed + i, modulo 2**32; -1 is 2**32 - 1.
    def seeds(seed, n):
      return protocol.seeds(protocol.Sampling(sampling_seed=seed, n=n))

    self.assertEqual(seeds(7, 3), [7, 8, 9])
    self.assertEqual(seeds(-1, 3), [2**32 - 1, 0, 1])
    fresh = seeds(None, 100)
    self.assertGreater(len(set(fresh)), 90)
    self.assertBetween(max(fresh), 2**20, 2**32 - 1)
    self.assertNotEqual(fresh, seeds(None, 100))


if __name__ == '__main__':
  absltest.main()
