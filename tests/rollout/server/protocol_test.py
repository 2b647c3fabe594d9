"""Wrong requests are refused with the name of what is wrong."""

import json

from absl.testing import absltest
from absl.testing import parameterized

from evojax.rollout.server import errors
from evojax.rollout.server import protocol
from tests.rollout.server import fakes


def _sampling(**fields) -> dict:
  return {'text': 'a', 'sampling_params': fields}


def _check(body: dict) -> None:
  """Parses /generate as the server does, for a prompt of one token."""
  request = protocol.parse(protocol.Generate, json.dumps(body).encode())
  fields = protocol.check(
      protocol.Sampling, request.sampling_params, 'sampling_params.'
  )
  protocol.sampling_params(fields, fakes.make_settings(), prompt_tokens=1)


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
      ({'return_logprobs': True}, 'return_logprobs: unknown field'),
      ({'image_data': 'x.png'}, 'image_data: the model reads text only'),
      ({'lora_path': 'x'}, 'lora_path: .*merged'),
      ({'return_hidden_states': True}, 'return_hidden_states: .*torch'),
      ({'custom_logit_processor': 'x'}, 'custom_logit_processor: .*logit_bias'),
      ({'input_embeds': [[0.5]]}, 'input_embeds: .*input_ids'),
      (_sampling(foo=1), 'sampling_params.foo: unknown field'),
      # ... and is told, also where it could be read as part of a path.
      (_sampling(int=1), 'sampling_params.int: unknown field'),
      (_sampling(regex='a*'), 'sampling_params.regex: constrained'),
      (_sampling(json_schema='{}'), 'sampling_params.json_schema: constrained'),
      (_sampling(ebnf='x'), 'sampling_params.ebnf: constrained'),
      (_sampling(structural_tag='x'), 'sampling_params.structural_tag'),
      (_sampling(temperature='0.5'), 'sampling_params.temperature'),
      (_sampling(temperature=-1), 'sampling_params.temperature'),
      (_sampling(temperature=1e300), 'sampling_params.temperature'),
      (_sampling(top_p=0), 'sampling_params.top_p'),
      (_sampling(top_p=1.5), 'sampling_params.top_p'),
      (_sampling(top_k=0), 'top_k: 0'),
      (_sampling(top_k=-5), 'sampling_params.top_k'),
      (_sampling(top_k=1.5), 'sampling_params.top_k'),
      (_sampling(min_p=1), 'sampling_params.min_p'),
      (_sampling(n=0), 'sampling_params.n'),
      (_sampling(n=2**40), 'sampling_params.n'),
      (_sampling(n=True), 'sampling_params.n'),
      (_sampling(max_new_tokens=0), 'sampling_params.max_new_tokens'),
      (_sampling(max_new_tokens=10**30), 'max_new_tokens'),
      # 512 sampled tokens at most, of a context of 1024.
      (_sampling(max_new_tokens=513), 'max_new_tokens: 513 .*at most 512'),
      (_sampling(min_new_tokens=129), 'min_new_tokens: 129 exceeds .*=128'),
      (_sampling(frequency_penalty=3), 'sampling_params.frequency_penalty'),
      (_sampling(repetition_penalty=0), 'sampling_params.repetition_penalty'),
      (_sampling(stop=''), 'stop: strings have 1 to 256'),
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
          _sampling(spaces_between_special_tokens=False),
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
    # As clients send it that fill in every field.
    _check(
        {
            'text': 'a',
            'image_data': None,
            'lora_path': [],
            'return_hidden_states': False,
            'log_metrics': True,
            'stream': None,
            'sampling_params': {
                'regex': None,
                'temperature': None,
                'stop': None,
                'n': None,
                'top_k': 1 << 30,
                'sampling_seed': -(2**63),
            },
        }
    )
    protocol.parse(protocol.Empty, b'')
    protocol.parse(protocol.Update, b'{"model_path": "x"}')

  @parameterized.parameters(
      # 1 token of 1024 is taken by the prompt, and 512 may be sampled.
      (1, None, 512),
      (1000, None, 24),
      (1, 128, 128),
      (896, 128, 128),
  )
  def test_room(self, prompt_tokens, max_tokens, expected):
    params = protocol.sampling_params(
        protocol.Sampling(max_new_tokens=max_tokens),
        fakes.make_settings(),
        prompt_tokens=prompt_tokens,
    )
    self.assertEqual(params.max_tokens, expected)

  def test_no_room(self):
    # A prompt of 897 and 128 tokens are 1025; one of 1024 leaves none.
    for prompt_tokens, max_tokens, message in (
        (897, 128, 'max_new_tokens: 128 .* at most 127'),
        (1024, None, 'the prompt has 1024 tokens; .*at most 1023'),
    ):
      with self.assertRaisesRegex(errors.ApiError, message):
        protocol.sampling_params(
            protocol.Sampling(max_new_tokens=max_tokens),
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
