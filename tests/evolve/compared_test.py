"""Finished runs beside a run: which are scored, and their tokens."""

import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
import pandas as pd

from evojax.evolve import compared
from evojax.ledger import records
from evojax.models import policy as policy_lib
from evojax.training import settings
from evojax.training import setup as setup_lib
from tests.ledger import samples


class OpenTest(absltest.TestCase):

  def test_a_run_that_is_named_twice_is_one(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    for name in ('a', 'b'):
      (root / name / 'policy').mkdir(parents=True)
      config = {'config': {'name': 'math-seed'}}
      (root / name / 'config.json').write_text(json.dumps(config))
    policy = mock.Mock(spec=policy_lib.Policy, cfg='the same')
    setup = mock.Mock(spec=setup_lib.Setup, policy=policy, config=None)
    self.enterContext(
        mock.patch.object(settings, 'open_policy', return_value=policy)
    )
    workdirs = [f'{root}/a', f'{root}/b', f'{root}/b/../a']
    found = compared.open_all(workdirs, setup)
    self.assertEqual([f.path.resolve().name for f in found], ['a', 'b'])


class TotalTokensTest(absltest.TestCase):

  def test_what_a_fork_copied_was_sampled_by_another_run(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    for folder, split, tokens in (
        ('arms/v0', 'train', 100),
        ('arms/r000-incumbent-0', 'train', 20),
        ('rounds/000/r000-incumbent-0', 'dev', 3),
    ):
      path = root / folder / 'evidence' / split / 'step_000000.parquet'
      path.parent.mkdir(parents=True)
      pd.DataFrame({'n_tokens': [tokens]}).to_parquet(path)
    for forked, sampled, total in (
        ('', 100, 123),
        ('run:v1', 0, 23),
        ('run:v1', 100, 123),  # As older forks counted.
    ):
      run = samples.run(
          samples.record(records.Open, forked=forked),
          samples.record(
              records.Train, folder='arms/v0', sampled_tokens=sampled
          ),
      )
      with self.subTest(forked=forked, sampled=sampled):
        self.assertEqual(compared.total_tokens(root, run), total)
    self.assertEqual(compared.total_tokens(root), 123)


if __name__ == '__main__':
  absltest.main()
