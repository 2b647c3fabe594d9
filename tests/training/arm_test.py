"""Arms as data: jobs in files, and the arm that one describes."""

import dataclasses
import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax import config as config_lib
from evojax.evidence import store
from evojax.harness import spec
from evojax.ledger import records
from evojax.ledger import rows as rows_lib
from evojax.runtime import checkpoint
from evojax.runtime import decisions
from evojax.runtime import metrics
from evojax.runtime import sharding
from evojax.training import arm as arm_lib
from evojax.training import engines
from evojax.training import setup as setup_lib
from evojax.training import update as update_lib
from tests import tiny


def make_job(workdir, policy, steps=5, **fields):
  """The job of an arm that trains the tiny policy under an empty harness."""
  workdir = pathlib.Path(workdir)
  config = tiny.make_config(policy, checkpoint__every=1)
  harness = spec.Harness({'optim.learning_rate': 0.003}, {})
  spec.write(harness, workdir / 'harness')
  values = dict(
      workdir=str(workdir),
      folder='arms/a',
      config=config_lib.to_mapping(config),
      changes={'seed': 3, 'steps': steps},
      harness=harness.sha256,
      start='',
      label='an arm',
  )
  return arm_lib.ArmJob(**values | fields)


def train(job, stop_if_asked=lambda: None):
  """Trains a job in this process."""
  config = config_lib.from_mapping(job.config)
  setup = setup_lib.prepare(config)
  mesh = sharding.make_mesh(**config.mesh.to_dict())
  engine = engines.make_engine(config, setup.policy, mesh)
  return arm_lib.train(job, setup, engine, metrics.Phases(), stop_if_asked)


class JobTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    policy = tiny.make_policy(self.root / 'policy')
    self.job = make_job(self.root, policy, incumbents=((0.5, 0.25), (0.0, 1.0)))

  def write(self, **fields):
    path = self.root / 'job.json'
    values = json.loads(self.job.to_json()) | fields
    values = {k: v for k, v in values.items() if v is not None}
    path.write_text(json.dumps(values))
    return path

  def test_what_is_read_is_what_was_written(self):
    self.assertEqual(arm_lib.read_job(self.write()), self.job)

  def test_the_config_is_that_of_the_run_with_the_changes(self):
    config = self.job.arm_config()
    self.assertEqual((config.seed, config.steps), (3, 5))
    harness = str(self.root / 'harness' / self.job.harness)
    self.assertEqual(config.harness.path, harness)
    flat = config_lib.flatten(config)
    run = config_lib.flatten(config_lib.from_mapping(self.job.config))
    changed = {name for name, value in flat.items() if run[name] != value}
    self.assertEqual(changed, {*self.job.changes, 'harness.path'})

  @parameterized.parameters(
      (dict(seed=3), 'seed=3 is not a field of a job'),
      (dict(folder=None), r"the fields \['folder'\] are missing"),
      (dict(changes=[]), r'changes=\[\] must be a dict'),
      (dict(start=7), 'start=7 must be a str'),
      (dict(problems=[7]), r'problems=\[7\] must be two whole numbers'),
      (dict(problems=[7, 0.5]), r'problems=\[7, 0.5\] must be two whole'),
  )
  def test_a_wrong_job_is_refused_in_one_line(self, fields, message):
    with self.assertRaisesRegex(ValueError, message) as context:
      arm_lib.read_job(self.write(**fields))
    self.assertNotIn('\n', str(context.exception))

  def test_a_job_that_is_no_json(self):
    path = self.root / 'job.json'
    for text in ('{', '[]'):
      path.write_text(text)
      with self.assertRaisesRegex(ValueError, 'job.json cannot be read'):
        arm_lib.read_job(path)
    with self.assertRaisesRegex(ValueError, 'none.json cannot be read'):
      arm_lib.read_job(self.root / 'none.json')

  def test_a_change_of_no_field(self):
    job = dataclasses.replace(self.job, changes={'grpo.promts': 4})
    with self.assertRaisesRegex(ValueError, 'grpo.promts is not a field'):
      job.arm_config()


class TrainTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.policy = tiny.make_policy(cls.root / 'policy')

  def test_the_record_is_what_is_on_disk(self):
    job = make_job(self.root / 'done', self.policy, steps=4)
    arm = train(job)
    self.assertEqual((arm.status, arm.updates, arm.seed), ('done', 4, 3))
    self.assertEqual(arm.harness, job.harness)
    stored = json.loads((job.path / 'arm.json').read_text())
    self.assertEqual(rows_lib.from_json(records.Arm, stored), arm)
    frame = store.read(job.path, 'train', [0, 1, 2, 3])
    self.assertEqual(arm.sampled_tokens, frame['n_tokens'].sum())
    kept = sorted(p.name for p in (job.path / 'checkpoints').iterdir())
    self.assertEqual(kept, ['step_000002', 'step_000004'])
    # A second call reads it: nothing is asked any more.
    again = train(job, stop_if_asked=lambda: self.fail('it trains again'))
    self.assertEqual(again, arm)

  def test_an_arm_has_at_most_four_checkpoints_at_once(self):
    job = make_job(self.root / 'few', self.policy, steps=8)
    commit, folder = checkpoint.Checkpointer._commit, job.path / 'checkpoints'
    seen = []

    def watched(checkpointer, *args):
      seen.append(sorted(p.name for p in folder.iterdir()))  # One is written.
      commit(checkpointer, *args)

    with absltest.mock.patch.object(
        checkpoint.Checkpointer, '_commit', watched
    ):
      self.assertEqual(train(job).status, 'done')
    self.assertEqual(max(map(len, seen)), 4)
    # The half stays for replays, and two to resume from.
    self.assertEqual(
        seen[-1],
        ['step_000004', 'step_000006', 'step_000007', 'step_000008.tmp'],
    )
    left = sorted(p.name for p in folder.iterdir())
    self.assertEqual(left, ['step_000004', 'step_000008'])

  def test_an_arm_that_falls_behind_the_incumbents_ends_at_its_half(self):
    job = make_job(
        self.root / 'futile',
        self.policy,
        steps=4,
        incumbents=((1.0,) * 4, (0.9,) * 4),
    )
    arm = train(job)
    self.assertEqual((arm.status, arm.updates), ('collapse', 2))
    self.assertEqual(arm.why, 'after 2 of 4 updates')

  def test_an_update_that_fails_is_not_counted(self):
    job = make_job(self.root / 'diverged', self.policy, steps=3)
    check, calls = update_lib.check_finite, []

    def second_fails(metrics, step):
      calls.append(step)
      check({**metrics, 'finite': len(calls) < 2}, step)

    with absltest.mock.patch.object(update_lib, 'check_finite', second_fails):
      arm = train(job)
    self.assertEqual((arm.status, arm.updates), ('crash', 1))
    self.assertLen(arm.outcome, 1)
    # The tokens of both were paid for.
    frame = store.read(job.path, 'train', [0, 1])
    self.assertEqual(arm.sampled_tokens, frame['n_tokens'].sum())

  def test_an_arm_that_takes_too_long_ends(self):
    job = make_job(self.root / 'late', self.policy, steps=2)
    changes = {**job.changes, 'evolve.arm_seconds': 1e-9}
    arm = train(dataclasses.replace(job, changes=changes))
    self.assertEqual((arm.status, arm.updates), ('train_budget_overrun', 0))

  def test_process_0_decides_whether_an_arm_takes_too_long(self):
    job = make_job(self.root / 'together', self.policy, steps=2)
    changes = {**job.changes, 'evolve.arm_seconds': 1e-9}
    decide = decisions.decide

    def of_process_0(choose):
      """Returns what a faster process 0 would: no arm is late there."""
      found = decide(choose)
      return False if found is True else found

    with absltest.mock.patch.object(decisions, 'decide', of_process_0):
      arm = train(dataclasses.replace(job, changes=changes))
    self.assertEqual((arm.status, arm.updates), ('done', 2))

  def test_whatever_stops_an_arm_what_was_paid_for_is_saved(self):
    job = make_job(self.root / 'stopped', self.policy, steps=3)
    calls = []

    def stop():
      calls.append(None)
      if len(calls) == 3:
        raise KeyboardInterrupt

    with self.assertRaises(KeyboardInterrupt):
      train(job, stop)
    self.assertTrue((job.path / 'checkpoints/step_000002').exists())
    self.assertFalse((job.path / 'arm.json').exists())
    whole = dataclasses.replace(job, folder='arms/b')
    resumed, undisturbed = train(job), train(whole)
    self.assertEqual(resumed.end, undisturbed.end)
    np.testing.assert_array_equal(resumed.outcome, undisturbed.outcome)

  def test_a_start_is_a_checkpoint_of_the_run(self):
    job = make_job(self.root / 'first', self.policy, steps=2)
    first = train(job)
    start = str(arm_lib.checkpoint_of(job.folder, first.updates))
    second = dataclasses.replace(job, folder='arms/b', start=start)
    self.assertEqual(train(second).start, first.end)


if __name__ == '__main__':
  absltest.main()
