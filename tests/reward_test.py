"""A reward is the weighted sum of parts that fit, or a clear refusal."""

import math
import pathlib
import sys
import tempfile
import types

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax import reward

VIEW = types.SimpleNamespace(
    valid=np.array([[True, True, True], [True, True, False]])
)


def parts(view):
  del view
  return {
      'outcome': np.array([[1, 0, 1], [0, 1, math.nan]]),
      'length': np.array([[-1, -0.5, 0], [0.25, 0, 1e9]], np.float32),
      'unused': np.full((2, 3), math.nan),
      'count': np.array([[1, 2, 3], [4, 5, 6]]),
  }


def returning(name, value):
  return lambda view: {name: value}


class ComputeTest(parameterized.TestCase):

  def test_by_hand(self):
    total, used = reward.compute(
        parts, VIEW, {'outcome': 2.0, 'length': -4.0, 'count': 1}
    )
    # 2 outcome - 4 length + count; the completion that is not valid is 0.
    np.testing.assert_array_equal(
        total, [[2 + 4 + 1, 0 + 2 + 2, 2 - 0 + 3], [0 - 1 + 4, 2 - 0 + 5, 0]]
    )
    self.assertEqual(total.dtype, np.float32)
    # Before their weights, in the order of the weights, and only those.
    self.assertEqual(list(used), ['outcome', 'length', 'count'])
    np.testing.assert_array_equal(used['outcome'], [[1, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(used['length'], [[-1, -0.5, 0], [0.25, 0, 0]])

  def test_linear_in_the_weights(self):
    one, _ = reward.compute(parts, VIEW, {'outcome': 1.0})
    two, _ = reward.compute(parts, VIEW, {'length': 1.0})
    both, _ = reward.compute(parts, VIEW, {'outcome': 0.5, 'length': 3.0})
    np.testing.assert_allclose(both, 0.5 * one + 3 * two, rtol=1e-6)

  @parameterized.named_parameters(
      ('wrong name', parts, {'out': 1.0}, r"weights names \['out'\].*'count'"),
      ('no dict', lambda v: np.ones((2, 3)), {'x': 1.0}, 'returned ndarray'),
      (
          'flat',
          returning('x', np.ones(6)),
          {'x': 1.0},
          r"part 'x' has shape \(6,\); it must be \[P, G\] = \(2, 3\)",
      ),
      (
          'would broadcast',
          returning('x', np.ones((2, 1))),
          {'x': 1.0},
          r"part 'x' has shape \(2, 1\)",
      ),
      ('scalar', returning('x', 1.0), {'x': 1.0}, r"'x' has shape \(\)"),
      (
          'text',
          returning('x', [['a'] * 3] * 2),
          {'x': 1.0},
          "'x' is not an array of numbers",
      ),
      (
          'ragged',
          returning('x', [[1, 2, 3], [4]]),
          {'x': 1.0},
          "'x' is not an array of numbers",
      ),
      (
          'not a number',
          returning('x', np.array([[1, 2, 3], [math.nan, math.inf, 0]])),
          {'x': 1.0},
          r"part 'x' is nan at \[p, g\] = \[1, 0\] and 1 other places",
      ),
      (
          'beyond float32',
          returning('x', np.full((2, 3), 1e30)),
          {'x': 1e30},
          r"leaves the range of float32 .*\{'x': 1e\+30\}; lower them",
      ),
      (
          'weight beyond float32',
          returning('x', np.zeros((2, 3))),
          {'x': 1e39},
          'leaves the range of float32',
      ),
  )
  def test_refuses(self, function, weights, message):
    with self.assertRaisesRegex(reward.RewardError, message):
      reward.compute(function, VIEW, weights)


class LoadTest(parameterized.TestCase):

  def test_empty_is_the_default(self):
    self.assertIs(reward.load_parts('', parts), parts)

  def test_dotted_path(self):
    module = 'evojax.domains.math.seed_harness.reward'
    found = reward.load_parts(f'{module}.parts', parts)
    self.assertEqual(found.__name__, 'parts')
    self.assertEqual(found.__module__, module)

  def test_module_of_the_users_own(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    pathlib.Path(folder, 'users_own_reward.py').write_text(
        'def brief(e): return {"brief": e.valid * 1.0}\nnumber = 3\n'
    )
    self.enterContext(absltest.mock.patch.object(sys, 'path', [folder]))
    self.addCleanup(sys.modules.pop, 'users_own_reward', None)
    found = reward.load_parts('users_own_reward.brief', parts)
    total, _ = reward.compute(found, VIEW, {'brief': 2.0})
    np.testing.assert_array_equal(total, [[2, 2, 2], [2, 2, 0]])
    with self.assertRaisesRegex(
        reward.RewardError, 'users_own_reward has no function number'
    ):
      reward.load_parts('users_own_reward.number', parts)

  @parameterized.parameters(
      (
          'no_such_module.parts',
          "='no_such_module.parts' cannot be imported.*No "
          "module named 'no_such_module'.*PYTHONPATH",
      ),
      ('evojax.reward.nothing', 'evojax.reward has no function nothing'),
      ('parts', 'is not the dotted path of a function'),
      ('.parts', 'is not the dotted path of a function'),
      ('evojax..parts', 'is not the dotted path of a function'),
      ('my reward.parts', 'is not the dotted path of a function'),
      ('rewards/mine.py', 'is not the dotted path of a function'),
  )
  def test_refuses(self, path, message):
    with self.assertRaisesRegex(reward.RewardError, message):
      reward.load_parts(path, parts)


if __name__ == '__main__':
  absltest.main()
