"""A run without signal says so, and what to do."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.evidence import store
from evojax.training import first_steps

# Rewards of one group; solved is what is at least 1.
NONE, ALL, SOME = [0.0] * 4, [1.0] * 4, [1.0, 0.0, 0.0, 0.0]
SHAPED = [0.0, 0.1, 0.2, 0.3]


class WarningTest(parameterized.TestCase):

  def warning(self, steps, cut=0.0, ended=0.0):
    """The line for steps of groups of rewards.

    Shares of them are cut by the limit of tokens, and end by that of turns.
    """
    files = []
    for groups in steps:
      reward = np.concatenate(groups)
      group = np.repeat(np.arange(len(groups)), 4)
      graded = ~np.isnan(reward)
      solved = graded & (reward >= 1)
      truncated = np.arange(len(reward)) < cut * len(reward)
      reason = np.where(np.arange(len(reward)) < ended * len(reward), 3, 0)
      files.append([group, graded, solved, reward, truncated, reason])
    with (
        absltest.mock.patch.object(
            store, 'list_steps', return_value=list(range(len(files)))
        ),
        absltest.mock.patch.object(
            store, 'read_numbers', lambda _, __, step, *___: files[step]
        ),
    ):
      return first_steps.warning(pathlib.Path('run'))

  @parameterized.parameters(
      ([[NONE] * 10] * 3, '0.0% .* 100% .* nothing is learned; .* too hard'),
      ([[ALL] * 10] * 3, '100.0% .* 100% .* nothing is learned; .* too easy'),
      ([[ALL, NONE] * 5] * 3, '50.0% .* 100% .* all right or all wrong'),
      ([[SOME] + [NONE] * 19] * 3, '1.3% .* 95% .* little is learned; .* hard'),
      ([[SHAPED] * 10] * 3, '0.0% .* 0% .* only the other parts .* too hard'),
      ([[NONE] * 10], 'in the first 1 step '),
      ([[[np.nan] + NONE[1:]] * 10] * 3, '0.0% .* 100% .*too hard'),
  )
  def test_no_signal(self, steps, pattern):
    line = self.warning(steps)
    self.assertRegex(line, f'^no signal: .*{pattern}')
    self.assertNotIn('\n', line)

  @parameterized.parameters(
      (NONE, 0.4, 'the problems are too hard'),
      (NONE, 0.6, 'most completions are cut .* max_tokens'),
      (ALL, 1.0, 'too easy'),
  )
  def test_what_is_cut_is_not_too_hard(self, group, cut, pattern):
    self.assertRegex(self.warning([[group] * 10] * 3, cut), pattern)

  @parameterized.parameters(
      (NONE, 0.0, 1.0, 'limit of turns: .*max_turns.*--mode=inspect'),
      (NONE, 0.6, 0.1, 'most completions are cut'),
      (NONE, 0.0, 0.4, 'the problems are too hard'),
      (ALL, 0.0, 1.0, 'too easy'),
  )
  def test_what_ends_by_its_turns_is_not_too_hard(
      self, group, cut, ended, pattern
  ):
    line = self.warning([[group] * 10] * 3, cut, ended)
    self.assertRegex(line, pattern)

  @parameterized.parameters(
      ([[SOME, NONE] * 5] * 3,),
      ([[SOME] * 2 + [NONE] * 8] * 3,),
      # Later steps are the policy's own doing.
      ([[SOME] * 10] * 3 + [[NONE] * 10] * 9,),
      ([],),
  )
  def test_signal(self, steps):
    self.assertEqual(self.warning(steps), '')


if __name__ == '__main__':
  absltest.main()
