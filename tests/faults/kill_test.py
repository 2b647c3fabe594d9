"""Killed anywhere, the same command goes on as if nothing had happened."""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from absl.testing import absltest
from absl.testing import parameterized
from pyarrow import parquet
import pytest

from evojax.evidence import store
from evojax.runtime import preemption
from tests import compiled
from tests import tiny
from tests.sandbox import attacks

# In the order of kill_worker.POINTS.
POINTS = (
    'sampled',
    'evidence',
    'updated',
    'logged',
    'saving',
    'committed',
    'evaluating',
    'exporting',
    'summary',
)
STEPS, EVERY = 4, 2
# Times differ between runs.
TIMING = ('seconds', 'tokens_per_second', 'goodput', 'restarts')


def metrics(workdir):
  """(step, name) -> value of metrics.jsonl, without timing."""
  found = {}
  for line in (workdir / 'metrics.jsonl').read_text().splitlines():
    row = json.loads(line)
    step = row.pop('step')
    for name, value in row.items():
      if not any(word in name for word in TIMING):
        if (step, name) in found:
          raise AssertionError(f'{workdir}: {name} of step {step} twice')
        found[step, name] = value
  return found


def evidence(workdir):
  """Path -> table, without timing; a half-written file is none of them."""
  root = workdir / 'evidence'
  return {
      str(file.relative_to(root)): parquet.ParquetFile(file)
      .read()
      .drop_columns('grade_seconds')
      for file in sorted(root.rglob('*.parquet'))
  }


def policy(workdir):
  """File name -> bytes of the exported directory."""
  return {f.name: f.read_bytes() for f in (workdir / 'policy').iterdir()}


def timeless(tree):
  """JSON without what a clock, a path or the life of a process decides."""
  if not isinstance(tree, dict):
    return tree
  gone = ('seconds', 'time_shares', 'compilations', 'policy')
  return {
      name: timeless(value)
      for name, value in tree.items()
      if name not in gone and not name.endswith('/seconds')
  }


def read_json(file):
  return timeless(json.loads(file.read_text()))


class _Killed(parameterized.TestCase):
  """Tests of the files that `kill_worker` left of the run of a config."""

  WORKER = 'kill_worker'
  CONFIG: str  # See there.
  POINTS: tuple[str, ...]
  POSITIONS = 64  # Of the policy.

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.policy = tiny.make_policy(
        cls.root / 'policy', max_positions=cls.POSITIONS
    )
    worker = subprocess.run(
        [
            sys.executable,
            '-m',
            f'tests.faults.{cls.WORKER}',
            cls.CONFIG,
            cls.policy,
            cls.root,
            *cls.POINTS,
        ],
        cwd=tiny.ROOT,
        env=tiny.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert worker.returncode == 0, worker.stdout + worker.stderr
    cls.reference = cls.root / 'reference'

  def finished_steps(self, name):
    """Steps whose update the process of a point finished."""
    file = self.root / f'{name}.steps'
    return [int(x) for x in file.read_text().split()] if file.exists() else []

  def assert_bit_equal(self, workdir):
    self.assertEqual(metrics(workdir), metrics(self.reference))
    found, wanted = evidence(workdir), evidence(self.reference)
    self.assertEqual(list(found), list(wanted))
    for name, table in wanted.items():
      self.assertTrue(found[name].equals(table), name)
    self.assertEqual(policy(workdir), policy(self.reference))
    for name in ('sealed.json', 'summary.json'):
      self.assertEqual(
          read_json(workdir / name), read_json(self.reference / name)
      )

  def assert_no_box_is_left(self):
    """No supervisor of a box outlives the process that started it."""
    # Those of a test that another worker is running now are gone soon.
    deadline = time.monotonic() + 10
    while (left := self.orphans()) and time.monotonic() < deadline:
      time.sleep(0.1)
    self.assertEmpty(left)

  def orphans(self):
    """Command lines of supervisors of this tree whose parent is gone."""
    left, ours = [], os.fsencode(tiny.ROOT / 'evojax/sandbox/supervisor.py')
    for folder in pathlib.Path('/proc').glob('[0-9]*'):
      try:
        line = (folder / 'cmdline').read_bytes()
        parent = (folder / 'stat').read_text().rpartition(')')[2].split()[1]
      except OSError:  # It has ended.
        continue
      if ours in line and parent == '1':
        left.append(line)
    return left


@pytest.mark.slow
class KillTest(_Killed):
  CONFIG, POINTS = 'tests.tiny', POINTS

  def test_reference_is_worth_comparing_with(self):
    rows = metrics(self.reference)
    groups = [rows[step + 1, 'groups'] for step in range(STEPS)]
    self.assertLen(set(groups), 3)  # The cursor is more than a step count.
    for step in range(STEPS):
      self.assertGreater(rows[step + 1, 'grad_norm'], 0.1)
    rates = [rows[step + 1, 'learning_rate'] for step in range(STEPS)]
    self.assertGreater(rates[1], rates[0])
    self.assertEqual(
        list(evidence(self.reference)),
        [f'dev/step_{i:06}.parquet' for i in (0, 2, 4)]
        + [f'sealed/step_{i:06}.parquet' for i in (0, 4)]
        + [f'train/step_{i:06}.parquet' for i in range(STEPS)],
    )
    start = (self.policy / 'model.safetensors').read_bytes()
    self.assertNotEqual(policy(self.reference)['model.safetensors'], start)

  def test_the_end_is_bit_equal(self):
    self.assert_bit_equal(self.root / 'killed')

  @parameterized.parameters(*POINTS)
  def test_what_a_kill_leaves_is_of_the_reference(self, point):
    left = self.root / point
    found, wanted = metrics(left), metrics(self.reference)
    self.assertNotEmpty(found)
    self.assertEqual(found, {key: wanted[key] for key in found})
    wanted = evidence(self.reference)
    for name, table in evidence(left).items():
      if not table.equals(wanted[name]):
        # Its update was not finished.
        gap = 'sampler_trainer_logprob_gap'
        self.assertEqual(table[gap].null_count, len(table), name)
        sampled = wanted[name].drop_columns(gap)
        self.assertTrue(table.drop_columns(gap).equals(sampled), name)
    self.assertEqual((left / 'policy').exists(), point == 'summary')
    self.assertFalse((left / 'summary.json').exists())

  def test_points_are_where_they_say(self):
    train = lambda point: sorted(
        path.name for path in (self.root / point / 'evidence/train').iterdir()
    )
    files = [f'step_{i:06}.parquet' for i in range(STEPS)]
    self.assertEqual(train('sampled'), files[:1])
    self.assertEqual(train('evidence'), files[:2])
    self.assertEqual(self.finished_steps('evidence'), [0])
    self.assertEqual(self.finished_steps('updated'), [0, 1])
    self.assertEqual(self.finished_steps('logged'), [0, 1])
    checkpoints = lambda point: sorted(
        p.name for p in (self.root / point / 'checkpoints').iterdir()
    )
    self.assertEqual(checkpoints('saving'), ['step_000002.tmp'])
    self.assertEqual(checkpoints('committed'), ['step_000002'])
    self.assertEqual(checkpoints('exporting'), ['step_000002', 'step_000004'])

  def test_at_most_checkpoint_every_steps_are_run_again(self):
    reached = 0  # Steps that were finished, by any process.
    for name in (*POINTS, 'finish'):
      steps = self.finished_steps(name)
      if steps:
        self.assertEqual(steps, list(range(steps[0], steps[-1] + 1)), name)
        self.assertLessEqual(reached - steps[0], EVERY, name)
        reached = max(reached, steps[-1] + 1)
    self.assertEqual(reached, STEPS)
    # The thread that writes the checkpoint was slow, and training waited.
    self.assertEqual(self.finished_steps('saving'), [0, 1])
    # Steps that were saved are not trained again.
    self.assertEqual(self.finished_steps('evaluating')[0], 2)
    self.assertEqual(self.finished_steps('summary'), [])
    self.assertEqual(self.finished_steps('finish'), [])

  def run_command(self, workdir, fatal):
    return subprocess.run(
        [
            sys.executable,
            '-m',
            'evojax.main',
            f'--config=tests/tiny.py:{self.policy}',
            '--config.reward.parts=tests.faults.fatal_reward.parts',
            f'--compilation_cache={compiled.CACHE}',
            f'--workdir={workdir}',
        ],
        cwd=tiny.ROOT,
        env=tiny.environment(FATAL=fatal),
        capture_output=True,
        text=True,
        check=False,
    )

  def test_commands_that_are_killed_and_terminated(self):
    workdir = self.root / 'command'
    # Calls of the reward: one before the run, 2 in step 0, 4 in step 1, ...
    killed = self.run_command(workdir, f'{signal.SIGKILL}@9')
    self.assertEqual(killed.returncode, -signal.SIGKILL, killed.stderr)
    self.assertIn('step 2/4', killed.stdout)
    for name in ('SIGINT', 'SIGTERM'):
      number = getattr(signal, name)
      stopped = self.run_command(workdir, f'{number}@2')
      expected = preemption.STATUSES[number]
      self.assertEqual(stopped.returncode, expected, stopped.stderr)
      self.assertRegex(
          ' '.join(stopped.stdout.split()),
          rf'{name}: \d steps are saved in {workdir}; the same command'
          r' continues: \S+ -m evojax\.main .*--config=',
      )
      self.assertNotIn('Traceback', stopped.stderr)
    # A signal saves the steps that are finished, although no checkpoint was
    # due. There may be none if the killed run had no checkpoint yet.
    found = max(step for step, _ in metrics(workdir))
    finished = self.run_command(workdir, '')
    self.assertEqual(finished.returncode, 0, finished.stderr)
    going_on = f'continuing from step {found}\n'
    self.assertEqual(going_on in finished.stdout, found > 0)
    self.assertStartsWith(finished.stdout, 'devices: 1 x cpu')
    self.assertEqual(metrics(workdir), metrics(self.reference))
    self.assertEqual(policy(workdir), policy(self.reference))
    starts = json.loads((workdir / 'manifest.json').read_text())
    self.assertLen(starts, 4)


@pytest.mark.slow
class LongRolloutTest(absltest.TestCase):
  # From SIGTERM to the line that tells what is saved: 2 s until it is noticed,
  # and slack for the save and for the other processes of a machine of two
  # cores. The rollout takes 10 s if nothing else runs; a process that notices
  # the signal only after it is ended after preemption.SAVE_SECONDS.
  SECONDS = 2 + 4

  def test_a_signal_in_the_middle(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    start = tiny.make_policy(root / 'policy', max_positions=8192)
    run = subprocess.Popen(
        [
            sys.executable,
            '-m',
            'evojax.main',
            f'--config=tests/tiny.py:{start}',
            f'--compilation_cache={compiled.CACHE}',
            f'--workdir={root / "run"}',
            '--config.rollout.max_tokens=4000',
            # All sequences start at once: no refill makes a segment short.
            '--config.rollout.decode_slots=64',
            '--config.rollout.prefill_rows=16',
            '--config.grpo.prompts=16',
            '--config.eval.samples=1',
            '--config.eval.problems=2',
        ],
        cwd=tiny.ROOT,
        env=tiny.environment(PYTHONUNBUFFERED='1'),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    self.addCleanup(run.stdout.close)
    self.addCleanup(run.kill)
    first = list(itertools.takewhile(lambda x: 'step 0' not in x, run.stdout))
    self.assertIsNone(run.poll(), first)
    time.sleep(1)
    began = time.monotonic()
    run.terminate()
    line = run.stdout.readline()
    seconds = time.monotonic() - began
    # Otherwise it says after 2 s that the signal has arrived.
    self.assertStartsWith(line, 'SIGTERM: 0 steps are saved in')
    self.assertLess(seconds, self.SECONDS)
    self.assertEqual(run.wait(), preemption.AGAIN)


@pytest.mark.slow
class TurnsKillTest(_Killed):
  """In mid-episode, with the next step sampled ahead."""

  CONFIG = 'tests.talk'
  POINTS = ('answering', 'evidence', 'logged', 'committed')

  def test_the_end_is_bit_equal(self):
    self.assert_bit_equal(self.root / 'killed')

  def test_reference_is_worth_comparing_with(self):
    for name, table in evidence(self.reference).items():
      turns = table['n_turns'].to_pylist()
      self.assertGreater(max(turns), 1, name)
      self.assertEqual(table['heard'].to_pylist(), turns, name)
      if 'train' in name:
        self.assertGreater(len(set(turns)), 1, name)
      for texts, actions, count in zip(
          table['turn_texts'].to_pylist(),
          table['actions'].to_pylist(),
          turns,
      ):
        self.assertLen(actions, count)
        self.assertIn(len(texts), (0, count))
    rows = metrics(self.reference)
    for step in range(STEPS):
      self.assertGreater(rows[step + 1, 'grad_norm'], 0.01)
      self.assertLess(rows[step + 1, 'gap'], 1.0)


@pytest.mark.slow
class CodingKillTest(_Killed):
  """With programs in the box, whose zygotes outlive no run."""

  CONFIG = 'tests.domains.coding.scripted'
  POINTS = ('sampled', 'updated', 'saving', 'evaluating')

  def test_the_end_is_bit_equal(self):
    self.assert_bit_equal(self.root / 'killed')

  def test_reference_is_worth_comparing_with(self):
    tables = evidence(self.reference)
    graded = [
        value
        for name, table in tables.items()
        for value in table['grade_status'].to_pylist()
    ]
    self.assertGreater(len(set(graded)), 3)  # Right, late, crashed, ...
    rows = metrics(self.reference)
    for step in range(STEPS):
      self.assertGreater(rows[step + 1, 'grad_norm'], 0.01)

  def test_no_zygote_is_left(self):
    self.assert_no_box_is_left()


@pytest.mark.slow
class SweKillTest(_Killed):
  """With agents in workspaces in the box, one of which is cut off."""

  CONFIG = 'tests.domains.swe.scripted'
  POINTS = ('editing', 'committed', 'evaluating')
  POSITIONS = 1024

  @classmethod
  def setUpClass(cls):
    if missing := attacks.missing('T0'):
      raise unittest.SkipTest(missing)
    super().setUpClass()

  def test_the_end_is_bit_equal(self):
    self.assert_bit_equal(self.root / 'killed')

  def test_reference_is_worth_comparing_with(self):
    rows = store.read(self.reference, 'train')
    edits = rows['first_edit_turn'] >= 0
    for found in (edits, rows['outcome'], rows['read_history']):
      self.assertLen(set(found), 2)
    self.assertGreater(len(set(rows['stop_reason'])), 1)
    self.assertGreater(rows['n_turns'].max(), 3)
    logged = metrics(self.reference)
    for step in range(3):
      self.assertGreater(logged[step + 1, 'grad_norm'], 0.01)

  def test_points_are_where_they_say(self):
    left = lambda point: {
        split: sorted(f.name for f in (folder / split).glob('*.parquet'))
        for folder in [self.root / point / 'evidence']
        for split in ('train', 'sealed')
    }
    files = [f'step_{i:06}.parquet' for i in range(3)]
    self.assertEqual(left('editing')['train'], [])
    self.assertEqual(left('committed')['train'], files[:2])
    self.assertEqual(left('evaluating'), {'train': files, 'sealed': files[:1]})

  def test_no_workspace_is_left(self):
    self.assert_no_box_is_left()


if __name__ == '__main__':
  absltest.main()
