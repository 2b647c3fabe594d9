"""A broken run is repaired; takes minutes of training, marked `long`."""

import pathlib
import tempfile
import threading

from absl.testing import absltest
import pytest

from benchmarks.faults import evaluation
from benchmarks.faults import settings


@pytest.mark.long
class RepairTest(absltest.TestCase):

  def test_the_sign_of_the_reward(self):
    setting = settings.read(settings.FOLDER / 'math_sign')
    command = evaluation.systems(['evojax'])['evojax']
    with tempfile.TemporaryDirectory() as folder:
      row = evaluation.run_job(
          'evojax',
          command,
          setting,
          0,
          pathlib.Path(folder),
          tokens=300_000,
          seconds=3600,
          stop=threading.Event(),
      )
    # The base policy solves 32 %, and less under the fault.
    self.assertEqual((row['verdict'], row['why']), ('repaired', ''))
    self.assertGreater(row['true'], 0.55)
    self.assertLessEqual(row['tokens'], 330_000)


if __name__ == '__main__':
  absltest.main()
