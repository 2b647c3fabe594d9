"""A pair of processes evolves without a shared directory, and is killed."""

import os
import pathlib
import tempfile

from absl.testing import absltest
import pytest

from evojax.ledger import chain
from evojax.runtime import mirror
from evojax.runtime import preemption
from tests import objects
from tests import pairs
from tests.faults import hosts_worker


def payloads(folder):
  return [row['payload'] for row in chain.read(folder / 'ledger.jsonl')]


@pytest.mark.slow
@pytest.mark.long
class RoundsTest(absltest.TestCase):

  def test_the_rows_are_those_of_an_undisturbed_run(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    variables = objects.make(root)
    self.enterContext(absltest.mock.patch.dict(os.environ, variables))
    rows = pairs.play('tests.faults.rounds_worker', root)
    found = {row['name']: row for row in rows}
    for name in ('whole', 'end'):
      self.assertEqual(found[name]['codes'], [0, 0], found[name]['out'])
    left, raced = found['left'], found['raced']
    self.assertEqual(left['codes'], [preemption.AGAIN, -9], left['out'])
    self.assertRegex(left['out'][0], r'process 1 on \S+ has (gone|been silent)')
    self.assertEqual(raced['codes'], [-9, -9], raced['out'])
    with mirror.opened(hosts_worker.URL) as path:
      ledger = payloads(pathlib.Path(path))
    self.assertEqual(ledger, payloads(root / 'whole'))
    steps = {payload['step'] for payload in ledger}
    self.assertContainsSubset({'shadow', 'promote', 'final'}, steps)


if __name__ == '__main__':
  absltest.main()
