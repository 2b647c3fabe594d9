"""A pair of processes evolves without a shared directory."""

import os
import pathlib
import tempfile

from absl.testing import absltest
import pytest

from evojax.ledger import chain
from evojax.runtime import mirror
from tests import objects
from tests import pairs
from tests.faults import hosts_worker


def payloads(folder):
  return [row['payload'] for row in chain.read(folder / 'ledger.jsonl')]


@pytest.mark.slow
@pytest.mark.long
class RoundsTest(absltest.TestCase):

  def test_the_rows_are_those_of_a_shared_directory(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    variables = objects.make(root)
    self.enterContext(absltest.mock.patch.dict(os.environ, variables))
    for row in pairs.play('tests.faults.rounds_worker', root):
      self.assertEqual(row['codes'], [0, 0], row['out'])
    with mirror.opened(hosts_worker.URL) as path:
      found = payloads(pathlib.Path(path))
    self.assertEqual(found, payloads(root / 'whole'))
    steps = {payload['step'] for payload in found}
    self.assertContainsSubset({'shadow', 'promote', 'final'}, steps)


if __name__ == '__main__':
  absltest.main()
