"""Policies train on the library's own kinds of environments, end to end."""

import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd
import pytest

pytest.importorskip('verifiers', reason='the extra verifiers')

from tests.domains.verifiers import run  # noqa: E402


class TrainTest(absltest.TestCase):

  def test_evidence_of_tools(self):
    folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    rewards = run.train(folder, 'keys', 2)
    self.assertLen(rewards, 2)
    files = sorted((folder / 'run/evidence/train').glob('*.parquet'))
    rows = pd.concat(map(pd.read_parquet, files))
    self.assertLen(rows, 2 * 64)
    self.assertTrue(rows.graded.all())
    np.testing.assert_allclose(rows.part_rubric, rows.partial)
    np.testing.assert_allclose(rows.reward_num_turns, rows.n_turns)
    called = [any(a == 1 for a in actions) for actions in rows.actions]
    np.testing.assert_array_equal(called, rows.reward_press_calls > 0)


@pytest.mark.long
class LearnTest(parameterized.TestCase):

  @parameterized.parameters('letters', 'counting', 'keys')
  def test_rewards_rise(self, name):
    folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    rewards = run.train(folder, name, 20)
    self.assertGreater(np.mean(rewards[-5:]), 2 * np.mean(rewards[:5]) + 0.05)


if __name__ == '__main__':
  absltest.main()
