"""Tests for metric rows and phases."""

import errno
import glob
import json
import os
import pathlib
import sys
import tempfile
import types

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from tensorboardX.proto import event_pb2

from evojax.runtime import durable
from evojax.runtime import metrics


class MetricWriterTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.workdir = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(self.workdir, 'metrics.jsonl')

  def rows(self):
    return [
        json.loads(line, parse_constant=self.fail)  # NaN is not JSON.
        for line in self.path.read_text().splitlines()
    ]

  def write(self, rows, **kwargs):
    with metrics.MetricWriter(self.workdir, **kwargs) as writer:
      for step, row in rows:
        writer.write(step, row)

  def test_rows(self):
    self.write(
        [
            (1, {'loss': np.float32(0.5), 'n': np.int64(3), 'split': 'dev'}),
            (2, {'loss': float('nan'), 'gap': np.float32('inf')}),
        ]
    )
    self.assertEqual(
        self.rows(),
        [
            {'step': 1, 'loss': 0.5, 'n': 3, 'split': 'dev'},
            {'step': 2, 'loss': None, 'gap': None},
        ],
    )

  def test_a_row_is_on_disk_once_written(self):
    writer = metrics.MetricWriter(self.workdir)
    self.addCleanup(writer.close)
    writer.write(1, {'loss': 1.0})
    self.assertLen(self.rows(), 1)  # Before close: a kill loses nothing.

  def test_resume_leaves_no_duplicates(self):
    self.write([(s, {'loss': s, 'time': 0.1}) for s in range(1, 8)])
    # Killed within the next row.
    with self.path.open('a') as file:
      file.write('{"step": 8, "lo')
    self.write([(s, {'loss': s, 'time': 0.2}) for s in range(6, 9)], step=5)
    self.assertEqual([row['step'] for row in self.rows()], list(range(1, 9)))
    self.assertEqual(
        [row['time'] for row in self.rows()], [0.1] * 5 + [0.2] * 3
    )

  def test_resume_repairs_every_torn_end(self):
    self.write([(1, {'loss': 1})])
    whole = self.path.read_bytes()
    second = b'{"step": 2, "loss": 2}\n'
    for cut in range(len(second)):
      self.path.write_bytes(whole + second[:cut])
      self.write([(2, {'loss': 2})], step=1)
      self.assertEqual(self.path.read_bytes(), whole + second, f'{cut=}')
    # Whole but for its end of line: the row stays, and stays a line.
    self.path.write_bytes(whole[:-1])
    self.write([(2, {'loss': 2})], step=1)
    self.assertEqual(self.path.read_bytes(), whole + second)

  def test_a_metric_is_written_once_per_step(self):
    self.write(
        [(3, {'train': 1}), (3, {'dev': 2, 'train': 9}), (3, {'dev': 5})]
    )
    self.assertEqual(
        self.rows(), [{'step': 3, 'train': 1}, {'step': 3, 'dev': 2}]
    )
    # A run that ended at step 3 is started again and scores dev again.
    self.write([(3, {'dev': 7, 'sealed': 1})], step=3)
    self.assertEqual(self.rows()[2:], [{'step': 3, 'sealed': 1}])

  def test_steps_do_not_go_back(self):
    with self.assertRaisesRegex(ValueError, 'step=1 after those of 2'):
      self.write([(2, {'loss': 1}), (1, {'loss': 1})])

  def test_full_disk(self):
    with metrics.MetricWriter(self.workdir) as writer:
      writer.write(1, {'loss': 1.0})
      full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
      with absltest.mock.patch.object(os, 'write', side_effect=full):
        with self.assertRaisesRegex(
            durable.DiskError, f'{self.path}.*No space left'
        ):
          writer.write(2, {'loss': 1.0})

  def test_tensorboard_holds_the_same_scalars(self):
    self.write(
        [
            (1, {'loss': 0.5, 'split': 'dev', 'bad': float('nan')}),
            (2, {'loss': 0.25}),
        ],
        tensorboard=True,
    )
    self.write([(2, {'loss': 0.25})], tensorboard=True, step=1)
    scalars, purged = [], []
    for file in sorted(glob.glob(f'{self.workdir}/tensorboard/*')):
      data = pathlib.Path(file).read_bytes()
      while data:  # Records: length (8), crc (4), payload, crc (4).
        size = int.from_bytes(data[:8], 'little')
        event = event_pb2.Event.FromString(data[12 : 12 + size])
        data = data[16 + size :]
        scalars += [
            (event.step, v.tag, v.simple_value) for v in event.summary.value
        ]
        if event.HasField('session_log'):
          purged.append(event.step)
    self.assertIn((1, 'train/loss', 0.5), scalars)
    self.assertNotIn('train/bad', [tag for _, tag, _ in scalars])
    # Events of step 2 from before the resume are marked as void.
    self.assertEqual(purged[-1], 2)


class TagTest(parameterized.TestCase):

  @parameterized.parameters(
      ('loss', 'train/loss'),
      ('outcome', 'reward/outcome'),
      ('part_outcome', 'reward/part_outcome'),
      ('truncated', 'rollout/truncated'),
      ('step_seconds', 'time/step_seconds'),
      ('seconds/rollout', 'time/rollout'),
      ('dev/avg_at_k', 'dev/avg_at_k'),
  )
  def test_curves_stand_in_groups(self, name, tag):
    self.assertEqual(metrics.tag(name), tag)


class WandbTest(parameterized.TestCase):

  @parameterized.parameters('offline', 'online')
  def test_missing_package_is_found_before_training(self, mode):
    with absltest.mock.patch('importlib.util.find_spec', return_value=None):
      with self.assertRaisesRegex(ValueError, f"log.wandb='{mode}' needs"):
        metrics.check_available(mode)
      metrics.check_available('disabled')

  def test_resume_continues_the_same_run(self):
    workdir = self.enterContext(tempfile.TemporaryDirectory())
    inits, logs = [], []
    run = types.SimpleNamespace(
        id='abc123',
        log=lambda row, step: logs.append((step, row)),
        finish=lambda: logs.append('finish'),
    )
    fake = types.ModuleType('wandb')
    fake.__spec__ = absltest.mock.Mock()
    fake.init = lambda **kwargs: inits.append(kwargs) or run
    with absltest.mock.patch.dict(sys.modules, wandb=fake):
      for step in (1, 2):
        with metrics.MetricWriter(
            workdir,
            step=step - 1,
            wandb='offline',
            wandb_project='evojax',
            name='math',
            config={'seed': 0},
        ) as writer:
          writer.write(step, {'loss': 0.5, 'bad': float('nan')})
    self.assertEqual([i['id'] for i in inits], [None, 'abc123'])
    self.assertEqual(inits[0]['project'], 'evojax')
    self.assertEqual(inits[0]['mode'], 'offline')
    self.assertEqual(inits[0]['config'], {'seed': 0})
    self.assertEqual(
        logs,
        [
            (1, {'train/loss': 0.5}),
            'finish',
            (2, {'train/loss': 0.5}),
            'finish',
        ],
    )


class PhasesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.now = 100.0
    self.phases = metrics.Phases(clock=lambda: self.now)

  def test_phases_add_up_to_the_wall_time(self):
    phases = self.phases
    self.now += 1  # other
    with phases('rollout'):
      self.now += 4
      with phases('grade'):  # Counts for itself only.
        self.now += 2
      self.now += 1
    with phases('update'):
      self.now += 2
    self.assertEqual(
        phases.lap(), {'other': 1, 'rollout': 5, 'grade': 2, 'update': 2}
    )
    with phases('rollout'):
      self.now += 10
    self.assertEqual(
        phases.lap(), {'other': 0, 'rollout': 10, 'grade': 0, 'update': 0}
    )
    # 20 s in all: rollout 15, grade 2, update 2, other 1.
    self.assertEqual(
        phases.shares(),
        {'rollout': 0.75, 'grade': 0.1, 'update': 0.1, 'other': 0.05},
    )
    self.assertStartsWith(phases.summary(), 'rollout 15.0 s (75.0%), ')

  def test_a_phase_that_fails_still_ends(self):
    with self.assertRaises(KeyError):
      with self.phases('update'):
        self.now += 3
        raise KeyError
    self.now += 1
    self.assertEqual(self.phases.lap(), {'other': 1, 'update': 3})


if __name__ == '__main__':
  absltest.main()
