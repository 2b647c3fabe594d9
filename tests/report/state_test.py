"""What the head of a page says about a run."""

import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from evojax.ledger import history
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

  def test_a_run_that_goes_on_after_its_end(self):
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    write = lambda name, value: (path / name).write_text(json.dumps(value))
    self.assertFalse(state.goes_on(path))
    write('config.json', {'config': {'steps': 3}})
    self.assertFalse(state.goes_on(path))
    for steps, expected in ((3, False), (2, True)):
      write('summary.json', {'steps': steps})
      self.assertEqual(state.goes_on(path), expected)
    samples.write(path, samples.record(records.Race))
    head = history.read(path).rows[-1].hash
    for known, expected in ((head, False), ('older', True)):
      write('summary.json', {'ledger_head': known, 'ended': 'rounds'})
      self.assertEqual(state.goes_on(path), expected)


if __name__ == '__main__':
  absltest.main()
