"""Stop strings are found at the token that completes them."""

import random

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax import records
from evojax.rollout import packed
from evojax.rollout import stops
from tests.rollout.server import fakes


class FindTest(parameterized.TestCase):

  @parameterized.parameters(range(20))
  def test_fewest_tokens_that_reach_a_stop_string(self, seed):
    rng = random.Random(seed)
    decode = fakes.make_tokenizer().decode_all
    tokens = list('é<|end|>x数'.encode()) + [fakes.EOS, 257]
    tokens = rng.choices(tokens, k=rng.randrange(1, 60))
    wanted = rng.sample(('x<', 'x', '<|end|>', 'é', '数x', '>|', 'no'), 2)
    heads = (decode(tokens[:n]) for n in range(1, len(tokens) + 1))
    hits = [(n, stops.first(head, wanted)) for n, head in enumerate(heads, 1)]
    want = next(((n, hit[1]) for n, hit in hits if hit), None)
    self.assertEqual(stops.find(tokens, wanted, decode), want)

  @parameterized.parameters(range(20))
  def test_growing_completion(self, seed):
    rng = random.Random(seed)
    decode = fakes.make_tokenizer().decode_all
    # The last id has no text.
    letters = [*'é<|end|>x数'.encode(), fakes.EOS, 257, fakes.VOCAB - 1]
    tokens = rng.choices(letters, k=400)
    wanted = ['x' + decode(tokens[-3:]), '数数数数é']
    checked = 0
    while checked < len(tokens):
      n = checked + rng.randrange(1, 9)
      hit = stops.find(tokens[:n], wanted, decode, checked)
      self.assertEqual(hit, stops.find(tokens[:n], wanted, decode))
      if hit:
        break
      checked = n

  def test_old_text_of_a_growing_completion_is_not_decoded(self):
    lengths = []

    def decode(tokens):
      lengths.append(len(tokens))
      return ''.join(map(chr, tokens))

    tokens = [ord('a')] * 5000
    self.assertIsNone(stops.find(tokens, ['bb'], decode, 4990))
    self.assertLess(max(lengths), 50)

  def test_few_heads_of_a_long_completion_are_decoded(self):
    lengths = []

    def decode(tokens):
      lengths.append(len(tokens))
      return ''.join(map(chr, tokens))

    tokens = [ord('a')] * 5000 + [ord('b')] * 3
    self.assertEqual(stops.find(tokens, ['bb'], decode), (5002, 'bb'))
    self.assertLess(len(lengths), 20)

  def test_text_is_cut_where_sampling_stopped(self):
    # Without its special token, the second text holds a string that stopped
    # nothing.
    tokenizer = fakes.make_tokenizer()
    params = records.SamplingParams(max_tokens=9, stop=('42',))
    request = records.Request((1,), 0, 0, 0, params)
    for tokens, reason, text in (
        ([ord('x'), ord('4'), ord('2')], 'stop', 'x'),
        ([ord('4'), 257, ord('2')], 'length', '42'),
        ([ord('4'), 257, ord('2'), fakes.EOS], 'stop', '42'),
    ):
      episode = records.Episode(
          np.array(tokens, np.int32), np.zeros(len(tokens), np.float32),
          reason, 0, '',
      )  # fmt: skip
      (found,) = packed.unpack(
          packed.pack([episode], 9), [request], tokenizer
      )
      self.assertEqual(found.text, text)


if __name__ == '__main__':
  absltest.main()
