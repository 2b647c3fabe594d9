"""Reward parts with hand-worked values."""

from absl.testing import absltest
import numpy as np

from evojax import domains
from evojax.domains.math import grade
from evojax.evidence import schema
from evojax.evidence import views


class PartsTest(absltest.TestCase):

  def test_values(self):
    # In the view of a reward: a part that reads a column closed to rewards (the
    # seed, the split, seconds) fails here.
    evidence = views.View(
        {
            'group': [0, 0, 0, 1, 1, 1],
            'sample': [0, 1, 2, 0, 1, 2],
            'graded': [True] * 6,
            'outcome': [True, False, False, True, True, False],
            'format_ok': [True, True, False, True, True, False],
            'n_tokens': [16, 48, 64, 49, 56, 0],
        },
        schema.declare(grade.COLUMNS),
        prompts=2,
        group_size=3,
        max_tokens=64,
        reader='reward',
    )
    # L_max = 64, L_cache = 16: 0 up to 48 tokens, then (48 - n) / 16:
    # 49 -> -1/16, 56 -> -1/2, 64 -> -1.
    expected = {
        'outcome': [[1, 0, 0], [1, 1, 0]],
        'format': [[1, 1, 0], [1, 1, 0]],
        'overlong': [[0, 0, -1], [-1 / 16, -1 / 2, 0]],
        'length': [[1 / 4, 3 / 4, 1], [49 / 64, 7 / 8, 0]],
    }
    parts = domains.make('math', families='gcd:0').reward_parts(evidence)
    self.assertEqual(set(parts), set(expected))
    for name, value in expected.items():
      self.assertEqual(parts[name].dtype, np.float32, name)
      np.testing.assert_array_equal(parts[name], np.float32(value), name)


if __name__ == '__main__':
  absltest.main()
