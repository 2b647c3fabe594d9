"""The tokens of a run, counted from its evidence."""

import pathlib
import tempfile

from absl.testing import absltest
import pandas as pd

from evojax.evolve import compared
from evojax.ledger import records
from tests.ledger import samples


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
