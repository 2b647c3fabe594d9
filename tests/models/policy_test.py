"""The meshes that can split a policy."""

import dataclasses
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from evojax.models import decoder
from evojax.models import policy

CFG = decoder.DecoderConfig(
    family='qwen3',
    vocab_size=24,
    hidden_size=16,
    intermediate_size=36,
    num_layers=1,
    num_heads=8,
    num_kv_heads=4,
    head_dim=8,
)


class CheckShardsTest(parameterized.TestCase):

  @parameterized.parameters((1, 1), (2, 4), (4, 2), (8, 1))
  def test_that_divide(self, fsdp, tensor):
    policy.check_shards(pathlib.Path('there'), CFG, fsdp, tensor)

  @parameterized.parameters(
      (1, 3, 'config.mesh.tensor=3 does not divide the 4 key/value heads'),
      (1, 8, 'config.mesh.tensor=8 does not divide the 4 key/value heads'),
      (3, 1, 'config.mesh.fsdp=3 does not divide the 16 hidden features'),
  )
  def test_that_do_not(self, fsdp, tensor, message):
    with self.assertRaises(ValueError) as caught:
      policy.check_shards(pathlib.Path('there'), CFG, fsdp, tensor)
    expected = f'{message} of there; use a divisor'
    self.assertEqual(str(caught.exception), expected)

  def test_a_vocabulary_that_is_not_divided_is_padded(self):
    """4 and 4 each divide 24, but their product does not."""
    with self.assertRaisesRegex(ValueError, 'fsdp=4 x .* the 24 rows of the'):
      policy.check_shards(pathlib.Path('there'), CFG, 4, 4)
    cfg = policy.padded(CFG, 4, 4)
    self.assertEqual((cfg.vocab_size, cfg.vocab_rows), (24, 32))
    policy.check_shards(pathlib.Path('there'), cfg, 4, 4)
    self.assertEqual(policy.padded(cfg, 2, 1), CFG)
    # How many devices there will be is not known yet.
    odd = dataclasses.replace(CFG, vocab_size=129)
    for shards, rows in (((-1, 1), 256), ((1, -1), 256), ((-1, 3), 384)):
      self.assertEqual(policy.padded(odd, *shards).vocab_rows, rows)

  def test_intermediate_features(self):
    cfg = dataclasses.replace(CFG, intermediate_size=34)
    with self.assertRaisesRegex(ValueError, 'tensor=4 .* 34 intermediate'):
      policy.check_shards(pathlib.Path('there'), cfg, 1, 4)


if __name__ == '__main__':
  absltest.main()
