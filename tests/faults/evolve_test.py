"""Killed before the row of every step, the run ends as if undisturbed."""

import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest
from pyarrow import parquet
import pytest

from evojax.ledger import chain
from evojax.ledger import records
from evojax.runtime import mirror
from evojax.runtime import storage
from tests import compiled
from tests import objects
from tests import tiny
from tests.faults import evolve_worker
from tests.sandbox import attacks

WORKER = pathlib.Path(__file__).with_name('evolve_worker.py')


URL = 'objects://bucket/run'
POLICIES = 'policy', 'policy_retrained'


class _Killed(absltest.TestCase):
  """Tests of the runs that a worker left in ROOT/reference and elsewhere."""

  root: pathlib.Path

  @classmethod
  def play(cls, *command, **variables):
    """Run a worker; compilation is optimised, as it computes for long."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tiny.ROOT,
        env=tiny.environment(**compiled.OPTIMISED, **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
      raise AssertionError(done.stdout[-3000:] + done.stderr)

  def assert_same_end(self, workdir, policies):
    """The rows and policies of a run are those of the undisturbed one."""
    reference = self.root / 'reference'
    undisturbed, killed = (
        [row['payload'] for row in chain.read(folder / 'ledger.jsonl')]
        for folder in (reference, workdir)
    )
    for expected, found in zip(undisturbed, killed, strict=True):
      self.assertEqual(found, expected)
    for policy in policies:
      weights = [
          (folder / policy / 'model.safetensors').read_bytes()
          for folder in (reference, workdir)
      ]
      self.assertEqual(*weights)


class PointsTest(absltest.TestCase):

  def test_no_step_is_forgotten(self):
    # 'stop' ends a run whose budget is spent.
    self.assertCountEqual(evolve_worker.STEPS, set(records.STEPS) - {'stop'})
    # 'look', 'horizon' and 'last' are later rows of the same steps.
    self.assertContainsSubset(set(evolve_worker.STEPS), evolve_worker.POINTS)


@pytest.mark.slow
class KillTest(_Killed):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    variables = objects.make(cls.root)
    cls.enterClassContext(absltest.mock.patch.dict(os.environ, variables))
    cls.play(WORKER, cls.root, URL, OBJECTS_FAILING='0.05')

  def test_same_ledger_verdicts_and_parameters(self):
    self.assert_same_end(self.root / 'killed', POLICIES)
    self.assertLen(
        list((self.root / 'killed').glob('ledger.jsonl.damaged-*')), 1
    )

  def test_the_same_in_a_store(self):
    with mirror.opened(URL) as path:
      mirror.fetch(pathlib.Path(path))
      self.assert_same_end(pathlib.Path(path), POLICIES)
      names = {f.relative_to(path).as_posix() for f in files(path)}
    there = {n for n in storage.Store(URL).list() if not n.startswith('.')}
    rows = {name for name in there if name.startswith('ledger/')}
    self.assertLen(rows, len(chain.read(self.root / 'killed/ledger.jsonl')))
    # Nothing is left there of what the kills have cut off.
    self.assertEqual(there - rows, names - {'ledger.jsonl'})

  def test_a_store_names_no_folder_of_this_machine(self):
    with mirror.opened(URL) as path:
      texts = {f.name: f.read_text() for f in files(path) if f.suffix == '.txt'}
      self.assertIn('log.txt', texts)
      for name, text in texts.items():
        self.assertNotIn(str(self.root / 'cache'), text, name)


@pytest.mark.slow
@pytest.mark.long
class SweKillTest(_Killed):

  def test_agents_in_the_box(self):
    if missing := attacks.missing('T0'):
      self.skipTest(missing)
    self.root = pathlib.Path(
        self.enterContext(tempfile.TemporaryDirectory())
    )
    policy = tiny.make_policy(self.root / 'policy', max_positions=1024)
    self.play('-m', 'tests.faults.evolve_swe_worker', self.root, policy)
    killed = self.root / 'killed'
    self.assert_same_end(killed, ('policy',))
    rows = chain.read(killed / 'ledger.jsonl')
    steps = {row['payload']['step'] for row in rows}
    self.assertContainsSubset({'backtest', 'race', 'final'}, steps)
    for found in sorted(self.root.glob('reference/**/*.parquet')):
      other = killed / found.relative_to(self.root / 'reference')
      tables = [
          parquet.ParquetFile(file).read().drop_columns('grade_seconds')
          for file in (found, other)
      ]
      self.assertTrue(tables[0].equals(tables[1]), found)


def files(root):
  return [file for file in pathlib.Path(root).rglob('*') if file.is_file()]


if __name__ == '__main__':
  absltest.main()
