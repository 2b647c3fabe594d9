"""A reward is the weighted sum of parts that fit, or a clear refusal."""

import math
import pathlib
import re
import sys
import tempfile
import types

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.training import reward_parts
from tests.harness import recorded

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
    total, used = reward_parts.compute(
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
    one, _ = reward_parts.compute(parts, VIEW, {'outcome': 1.0})
    two, _ = reward_parts.compute(parts, VIEW, {'length': 1.0})
    both, _ = reward_parts.compute(parts, VIEW, {'outcome': 0.5, 'length': 3.0})
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
          r"part 'x' is nan at \[p, g\] = \[1, 0\] and 1 other place;",
      ),
      (
          'beyond float32',
          returning('x', np.full((2, 3), 1e30)),
          {'x': 1e30},
          r"leaves the range of float32 .*\{'x': 1e\+30\}; lower them",
      ),
      (
          'beyond float32 when squared',
          returning('x', np.full((2, 3), -1e20)),
          {'x': 1.0},
          r"it is up to 1e\+20, more than 1e\+15, .*\{'x': 1.0\}; lower them",
      ),
      (
          'weight beyond float32',
          returning('x', np.zeros((2, 3))),
          {'x': 1e39},
          'leaves the range of float32',
      ),
  )
  def test_refuses(self, function, weights, message):
    with self.assertRaisesRegex(reward_parts.RewardError, message):
      reward_parts.compute(function, VIEW, weights)


class LoadTest(parameterized.TestCase):

  def test_empty_is_the_default(self):
    self.assertIs(reward_parts.load_parts('', parts), parts)

  def test_dotted_path(self):
    module = 'evojax.harness.library.seed.reward'
    found = reward_parts.load_parts(f'{module}.parts', parts)
    self.assertEqual(found.__name__, 'parts')
    self.assertEqual(found.__module__, module)

  def test_module_of_the_users_own(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    pathlib.Path(folder, 'users_own_reward.py').write_text(
        'def brief(e): return {"brief": e.valid * 1.0}\nnumber = 3\n'
    )
    self.enterContext(absltest.mock.patch.object(sys, 'path', [folder]))
    self.addCleanup(sys.modules.pop, 'users_own_reward', None)
    found = reward_parts.load_parts('users_own_reward.brief', parts)
    total, _ = reward_parts.compute(found, VIEW, {'brief': 2.0})
    np.testing.assert_array_equal(total, [[2, 2, 2], [2, 2, 0]])
    with self.assertRaisesRegex(
        reward_parts.RewardError, 'users_own_reward has no function number'
    ):
      reward_parts.load_parts('users_own_reward.number', parts)

  @parameterized.parameters(
      (
          'no_such_module.parts',
          "='no_such_module.parts' cannot be imported.*No "
          "module named 'no_such_module'.*PYTHONPATH",
      ),
      (
          'evojax.training.reward_parts.nothing',
          'evojax.training.reward_parts has no function nothing',
      ),
      ('parts', 'is not the dotted path of a function'),
      ('.parts', 'is not the dotted path of a function'),
      ('evojax..parts', 'is not the dotted path of a function'),
      ('my reward.parts', 'is not the dotted path of a function'),
      ('rewards/mine.py', 'is not the dotted path of a function'),
  )
  def test_refuses(self, path, message):
    with self.assertRaisesRegex(reward_parts.RewardError, message):
      reward_parts.load_parts(path, parts)


def texts():
  """A view of three valid completions; as the trainer makes it."""
  return recorded.view(
      prompts=2,
      group_size=2,
      prompt=[['1 + 1', '1 + 1'], ['2 + 2', '2 + 2']],
      completion=[['two', '2'], ['5', 'cut']],
      outcome=[[0, 1], [0, 0]],
      n_tokens=[[2, 1], [1, 0]],
      valid=[[1, 1], [1, 0]],
  )


def outcome(view):
  return {'outcome': view.outcome * 1.0}


# As people write them for TRL ...
def digits(completions, **kwargs):
  return [float(c.isdigit()) for c in completions]


def messages(prompts, completions, n_tokens, completion_ids, **kwargs):
  del kwargs
  assert [len(ids) for ids in completion_ids] == n_tokens
  return [
      len(p[0]['content']) + len(c[0]['content'].strip())
      for p, c in zip(prompts, completions)
  ]


def solved(prompts, completions, outcome):
  return [None if not o else 2.0 for o in outcome]


def accuracy(completions, answer, **kwargs):
  return [float(c == a) for c, a in zip(completions, answer)]


def keyword(completions, **kwargs):
  return [float(c == a) for c, a in zip(completions, kwargs['solution'])]


def one(completions, **kwargs):
  return [1.0]


def words(completions, **kwargs):
  return ['good' for _ in completions]


async def later(completions, **kwargs):
  return [1.0 for _ in completions]


def broken(completions, **kwargs):
  return [c.missing for c in completions]


# ... and for verl.
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
  return {'score': len(solution_str) + 10 * extra_info['outcome'], 'acc': 1}


def brief(solution_str, **kwargs):
  return -len(solution_str) - len(kwargs['extra_info']['prompt'])


def equal(data_source, solution_str, ground_truth, extra_info=None):
  return float(solution_str == ground_truth)


def contained(data_source, solution_str, ground_truth, extra_info=None):
  return float(ground_truth in solution_str)


def searched(data_source, solution_str, ground_truth, extra_info=None):
  return float(bool(re.search(ground_truth, solution_str)))


def stripped(data_source, solution_str, ground_truth, extra_info=None):
  return float(ground_truth.strip() == solution_str)


def formatted(data_source, solution_str, ground_truth, extra_info=None):
  return float(f'{ground_truth}' in solution_str)


class TextRewardTest(parameterized.TestCase):

  def load(self, function, default=outcome):
    path = f'a.module.{function.__name__}'
    with absltest.mock.patch.object(
        reward_parts.importlib,
        'import_module',
        return_value=sys.modules[__name__],
    ):
      with self.assertWarnsRegex(
          reward_parts.RewardWarning,
          rf"the reward part '{function.__name__}'.*reads",
      ):
        return reward_parts.load_parts(path, default)

  @parameterized.parameters(
      # 0 where not valid; the fourth completion never gets there.
      (digits, [[0, 1], [1, 0]]),
      (messages, [[5 + 3, 5 + 1], [5 + 1, 0]]),
      (solved, [[0, 2], [0, 0]]),
      (compute_score, [[3, 1 + 10], [1, 0]]),
      (brief, [[-3 - 5, -1 - 5], [-1 - 5, 0]]),
  )
  def test_is_one_part_beside_the_domains(self, function, expected):
    parts = self.load(function)
    self.assertEqual(reward_parts.reader(parts), 'diagnostic')
    name = function.__name__
    for _ in range(2):
      weights = {'outcome': 100.0, name: 1.0}
      total, used = reward_parts.compute(parts, texts(), weights)
      self.assertEqual(list(used), ['outcome', name])
      np.testing.assert_array_equal(used[name], expected)
      np.testing.assert_array_equal(total - used[name], [[0, 100], [0, 0]])

  def test_a_function_of_the_view_sees_no_text(self):
    self.assertEqual(reward_parts.reader(outcome), 'reward')

  @parameterized.parameters(
      (accuracy, "asks for answer, which no reward gets.*column 'outcome'"),
      (accuracy, 'It may read prompts, completions, .*completion_ids, .*outc'),
      (equal, 'It may read data_source, .* extra_info with prompt, .*outcome'),
      (keyword, "asks for 'solution', which no reward gets"),
      (equal, r"asks for ground_truth, which.*extra_info\['outcome'\]"),
      (contained, 'asks for ground_truth'),
      (searched, 'asks for ground_truth'),
      (stripped, 'asks for ground_truth'),
      (formatted, 'asks for ground_truth'),
      (one, r'returned \[1.0\]; it must be a list of 3 numbers'),
      (words, "returned 'good' for a completion; it must be a number"),
  )
  def test_refuses(self, function, message):
    with self.assertRaisesRegex(reward_parts.RewardError, message):
      self.load(function)(texts())

  def test_sees_no_answer_and_no_identity(self):
    seen = {}

    def spy(completions, **kwargs):
      seen.update(kwargs)
      return [0.0] * len(completions)

    reward_parts.TrlReward('a.spy', spy, outcome)(texts())
    self.assertContainsSubset(
        {'prompts', 'completion_ids', 'outcome', 'n_tokens'}, seen
    )
    for name in ('problem_id', 'seed', 'split', 'family', 'grade_seconds'):
      self.assertNotIn(name, seen)
    for values in seen.values():
      self.assertLen(values, 3)

  def test_an_error_of_its_own_stays_its_own(self):
    with self.assertRaisesRegex(
        AttributeError, "'str' object has no attribute"
    ):
      self.load(broken)(texts())

  def test_name_of_a_part_of_the_domain(self):
    parts = self.load(digits, lambda view: {'digits': view.outcome * 1.0})
    with self.assertRaisesRegex(
        reward_parts.RewardError, "has a part 'digits'"
    ):
      parts(texts())

  def test_async(self):
    with self.assertRaisesRegex(reward_parts.RewardError, 'is async'):
      reward_parts.TrlReward('a.later', later, outcome)

  def test_name(self):
    with self.assertRaisesRegex(reward_parts.RewardError, "named '<lambda>'"):
      reward_parts.TrlReward('a.b', lambda completions: [], outcome)


if __name__ == '__main__':
  absltest.main()
