"""FLOPs of a model, worked out by hand."""

import dataclasses

from absl.testing import absltest
import numpy as np

from evojax.models import decoder
from evojax.models import flops

CFG = decoder.DecoderConfig(
    family='qwen3',
    vocab_size=11,
    hidden_size=4,
    intermediate_size=6,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=3,
    tie_embeddings=True,
    qk_norm=True,
)


class ModelTest(absltest.TestCase):

  def test_two_groups(self):
    # Tokens: prompts 3 + 1, completions 2 + 0 + 1 + 4 = 11.
    # A token attends to itself and those before it: in prompts 3 * 4 / 2 + 1,
    # in completions (4 + 5) + 0 + 2 + (2 + 3 + 4 + 5) = 25; 32 in all.
    # Weights of a layer: 4 (2 + 2) 3 + 2 * 3 * 4 + 3 * 4 * 6 = 144.
    # 2 layers * (2 * 144 * 11 + 4 * 2 * 3 * 32) + 2 * 4 * 11 * 7 logits.
    found = flops.model(CFG, np.array([3, 1]), np.array([[2, 0], [1, 4]]))
    self.assertEqual(found, 2 * (2 * 144 * 11 + 4 * 2 * 3 * 32) + 2 * 44 * 7)

  def test_of_long_sequences_it_is_six_times_the_parameters(self):
    # Palm's rule, 6 N per token of an update, where attention is small.
    cfg = dataclasses.replace(
        CFG, hidden_size=512, intermediate_size=2048, head_dim=128
    )
    n = decoder.count_params(cfg)
    found = flops.passes(cfg) * flops.model(
        cfg, np.array([0]), np.full((1, 1), 64)
    )
    self.assertAlmostEqual(found / (6 * n * 64), 1, delta=0.02)

  def test_lora(self):
    self.assertEqual(flops.passes(dataclasses.replace(CFG, lora_rank=4)), 2)


if __name__ == '__main__':
  absltest.main()
