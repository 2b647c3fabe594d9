"""Training on programs that run in the real box."""

import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.domains.coding import grade
from evojax.episodes import collect
from evojax.evidence import schema
from evojax.evidence import store
from evojax.sandbox import box as box_lib
from evojax.sandbox import limits
from evojax.sandbox import shared
from evojax.training import loop as training_loop
from evojax.training import update as update_lib
from tests import tiny
from tests.domains.coding import scripted


class TrainTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.policy = tiny.make_policy(cls.root / 'policy')

  def test_two_steps(self):
    workdir = self.root / 'plain'
    training_loop.run(scripted.make_config(self.policy), str(workdir))
    for split in ('train', 'dev', 'sealed'):
      rows = store.read(workdir, split)
      self.assertTrue(rows['graded'].all())
      tier = shared.open_box(2).tier
      self.assertEqual(set(rows['sandbox_tier']), {schema.SANDBOX_TIER[tier]})
      solved = rows['tests_passed'] == rows['tests_total']
      self.assertEqual(rows['outcome'].tolist(), solved.tolist())
      np.testing.assert_allclose(
          rows['partial'], rows['tests_passed'] / 4, rtol=1e-6
      )
      self.assertEqual(
          rows['reward'].isna().all(), split != 'train', 'evaluations have none'
      )
    names = {code: name for name, code in grade.GRADE_STATUS.items()}
    found = {
        names[code]
        for split in ('train', 'dev', 'sealed')
        for code in store.read(workdir, split)['grade_status']
    }
    self.assertContainsSubset(
        {'ok', 'error', 'syntax_error', 'cpu_limit'}, found
    )
    summary = json.loads((workdir / 'summary.json').read_text())
    self.assertEqual(summary['steps'], 2)

  def test_what_the_box_lost_does_not_train(self):
    """Its rows have no reward and enter no update, as if they did not exist."""
    lost = limits.Result('infra_error', 'T1', message='gone')
    run = box_lib.Box.run

    def flaky(box, program, *args, **kwargs):
      if '+ 1)' in program or 'Key' in program:
        return lost
      return run(box, program, *args, **kwargs)

    self.enterContext(absltest.mock.patch.object(box_lib.Box, 'run', flaky))
    batches, make_batch = [], update_lib.make_batch

    def watched(*args, **kwargs):
      batches.append(args[3])
      return make_batch(*args, **kwargs)

    self.enterContext(
        absltest.mock.patch.object(update_lib, 'make_batch', watched)
    )
    workdir = self.root / 'flaky'
    # Each problem has some such rows.
    config = scripted.make_config(self.policy, eval__samples=8)
    training_loop.run(config, str(workdir))
    rows = store.read(workdir, 'train')
    gone = ~rows['graded']
    self.assertBetween(gone.sum(), 1, len(rows) - 1)
    self.assertFalse(rows['kept'][gone].any())
    self.assertLen(batches, 2)
    for step, included in enumerate(batches):
      kept = rows['kept'][rows['step'] == step]
      self.assertEqual(included.ravel().tolist(), kept.tolist())
    for name in ('reward', 'advantage', 'sampler_trainer_logprob_gap'):
      self.assertTrue(rows[name][gone].isna().all(), name)
      self.assertTrue(rows[name][~gone].notna().all(), name)
    metrics = [
        json.loads(line)
        for line in (workdir / 'metrics.jsonl').read_text().splitlines()
    ]
    counted = sum(m.get('not_graded', 0) for m in metrics)
    self.assertEqual(counted, gone.sum())
    for step in (0, 1):
      there = rows[(rows['step'] == step) & rows['graded']]
      written = next(m for m in metrics if m.get('step') == step + 1)
      self.assertAlmostEqual(
          written['reward'], there['reward'].mean(), places=5
      )
      self.assertAlmostEqual(written['outcome'], there['outcome'].mean())

  def test_a_box_that_does_not_work_stops_the_run(self):
    lost = limits.Result('infra_error', 'T1', message='gone')
    shared.open_box(2)  # The probe needs a working box.
    self.enterContext(
        absltest.mock.patch.object(box_lib.Box, 'run', return_value=lost)
    )
    with self.assertRaisesRegex(collect.GradingError, 'evojax.sandbox.probe'):
      training_loop.run(
          scripted.make_config(self.policy), str(self.root / 'broken')
      )


if __name__ == '__main__':
  absltest.main()
