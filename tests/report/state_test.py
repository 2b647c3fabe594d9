"""What the head of a page says about a run."""

import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from evojax.ledger import records
from evojax.report import state
from tests.ledger import samples


class StateTest(parameterized.TestCase):

  @parameterized.parameters(
      (2, {'evolve.rounds': 3}, '2 of 3 rounds, last row: race'),
      # The shadow of a change that was kept late trains beyond the last round.
      (4, {'evolve.rounds': 3}, '3 of 3 rounds and 1 for a shadow, '),
      (4, {}, '4 rounds, '),
  )
  def test_rounds(self, done, config, expected):
    rows = [samples.record(records.Race, round=n) for n in range(done)]
    folder = self.enterContext(tempfile.TemporaryDirectory())
    found = state.of_history(
        pathlib.Path(folder), samples.run(*rows), config, False
    )
    self.assertEqual(found.kind, 'stopped')
    self.assertStartsWith(found.where, expected)


if __name__ == '__main__':
  absltest.main()
