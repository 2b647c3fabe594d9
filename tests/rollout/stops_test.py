"""Stop strings are found at the token that completes them."""

import random

from absl.testing import absltest
from absl.testing import parameterized

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

  def test_few_heads_of_a_long_completion_are_decoded(self):
    lengths = []

    def decode(tokens):
      lengths.append(len(tokens))
      return ''.join(map(chr, tokens))

    tokens = [ord('a')] * 5000 + [ord('b')] * 3
    self.assertEqual(stops.find(tokens, ['bb'], decode), (5002, 'bb'))
    self.assertLess(len(lengths), 20)


if __name__ == '__main__':
  absltest.main()
