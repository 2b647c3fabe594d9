"""Tests for the live progress."""

import contextlib
import io
import os

from absl.testing import absltest
from absl.testing import parameterized

from evojax.runtime import output
from evojax.runtime import progress
from tests import terminals

METRICS = {
    'reward': 0.25,
    'outcome': 0.5,
    'dead_groups': float('nan'),
    'tokens_per_second': 9012.3,
}


class PlainTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.out = self.enterContext(contextlib.redirect_stdout(io.StringIO()))
    self.now = 0.0

  def open(self, stages, **kwargs):
    made = progress.Progress(stages, clock=lambda: self.now, **kwargs)
    return self.enterContext(made)

  def lines(self):
    return self.out.getvalue().splitlines()

  def train(self, shown, steps, seconds=2.0, **metrics):
    for step in steps:
      self.now += seconds
      shown.update(step, METRICS | {'step_seconds': seconds} | metrics)

  def test_one_line_per_step(self):
    shown = self.open(
        [progress.Stage(name='', steps=5, prompts=2, group_size=4)]
    )
    self.train(shown, [1], seconds=60.0)  # It compiles.
    self.train(shown, [2, 3])
    self.assertEqual(
        self.lines(),
        [
            'step 1/5  solved 50.0%  reward 0.250  tok/s 9,012  s/step 60.00',
            # 3 steps of 2 s: compilation is not part of the pace.
            'step 2/5  solved 50.0%  reward 0.250  tok/s 9,012  s/step 2.00'
            '  6 s left',
            'step 3/5  solved 50.0%  reward 0.250  tok/s 9,012  s/step 2.00'
            '  4 s left',
        ],
    )

  def test_every_and_always_the_last(self):
    shown = self.open([progress.Stage(name='', steps=5)], every=2)
    self.train(shown, range(1, 6))
    self.assertEqual(
        [line.split()[1] for line in self.lines()], ['2/5', '4/5', '5/5']
    )

  def test_whose_arm_it_is(self):
    stage = progress.Stage(name='round 0 (1/3) incumbent', arms=3, steps=1)
    shown = self.open([stage])
    for arm, whose in enumerate(('incumbent', 'candidate', '')):
      shown.enter(stage.name, arm=arm)  # The arms are submitted.
      shown.enter(stage.name, arm=arm, whose=whose)
      self.train(shown, [1])
    self.assertEqual(
        [' '.join(line.split()[3:5]) for line in self.lines()],
        ['incumbent 1/3', 'candidate 2/3', 'incumbent 3/3'],
    )

  def test_the_time_left_is_that_of_the_whole_run(self):
    arm = dict(steps=10, prompts=2, group_size=2, problems=50, samples=2)
    shown = self.open(
        [
            progress.Stage(name='v0', steps=3, prompts=2, group_size=2),
            progress.Stage(name='trial', arms=3, expected=1.5, **arm),
            progress.Stage(name='last', steps=5, prompts=2, group_size=4),
            progress.Stage(name='scores', arms=2, problems=25, samples=2),
        ]
    )
    self.train(shown, [1, 2, 3])
    # 0.5 s a completion, and half of it where it is only scored: 1.5 arms
    # of 10 * 4 / 2 + 100 / 4 s, 5 steps of 8 / 2 s, 2 scores of 50 / 4 s.
    self.assertAlmostEqual(shown.left(), 1.5 * 45 + 20 + 25)
    self.assertEndsWith(self.lines()[-1], '  about 1 min 52 s left')
    # Only two arms, and the first of them is there: it leaves one and a bit.
    shown.enter('trial', arms=2)
    shown.enter('trial', arm=1)
    self.train(shown, range(1, 7))
    self.assertAlmostEqual(shown.left(), 8 + 25 + 20 + 25)
    self.assertEndsWith(self.lines()[-1], '  1 min 18 s left')
    self.assertStartsWith(self.lines()[-1], 'trial 2/2 step 6/10  solved')
    self.train(shown, range(7, 11))
    with shown.scoring(100):
      self.now += 10.0  # 0.1 s a completion, from now on.
    # 5.5 s that were neither, over 8 steps of v0 and 10 of an arm.
    self.now += 5.0
    shown.enter('last')
    self.assertAlmostEqual(
        shown.left(), 20 + 10 + 3 * 5.0 / (2 / 3 + 1), places=5
    )
    self.train(shown, range(1, 6), seconds=4.0)
    self.assertStartsWith(self.lines()[-1], 'last step 5/5  solved')

  def test_replays_count_as_they_took(self):
    replay = dict(arms=4, steps=9, prompts=1, group_size=1, replays=True)
    shown = self.open(
        [
            progress.Stage(name='v0', steps=3, prompts=1, group_size=1),
            progress.Stage(name='replay 0', **replay),
            progress.Stage(name='arm', steps=3, prompts=1, group_size=1),
            progress.Stage(name='replay 1', **replay),
        ]
    )
    self.train(shown, [1, 2, 3])
    self.assertAlmostEqual(shown.left(), (36 + 3 + 36) * 2.0)
    shown.enter('replay 0')
    self.now += 7.0
    shown.enter('arm')
    self.train(shown, [1])
    self.assertAlmostEqual(shown.left(), 2 * 2.0 + 7.0)

  def test_arms_side_by_side(self):
    stage = progress.Stage(
        name='child', arms=4, steps=10, prompts=2, group_size=2
    )
    shown = self.open([stage])
    for steps in (0, 3, 3, 13):
      shown.enter('child', arm=0)
      self.now += 5.0
      shown.update_beside(steps, METRICS)
    self.assertLen(self.lines(), 2)
    self.assertStartsWith(self.lines()[1], 'child 4 arms, step 13/40  solved')
    self.assertAlmostEqual(shown.left(), 27.0)  # 10 steps in 10 s, 27 to go.

  @parameterized.parameters(60, 80)
  def test_fits_the_columns(self, columns):
    stages = [
        progress.Stage(name='trial 11 (12/20) perturbed', arms=99, steps=999)
    ]
    self.enterContext(
        absltest.mock.patch.object(output, 'width', lambda: columns)
    )
    shown = self.open(stages)
    self.train(shown, range(990, 1000), dead_groups=0.5, n_tokens=1e6)
    for line in self.lines():
      self.assertLessEqual(len(line), columns)
    self.assertIn('perturbed 1/99 step 999/999', self.out.getvalue())

  def test_the_log_has_the_same_line_in_its_columns(self):
    name, arm = 'trial 0 (1/4) control', dict(prompts=2, group_size=4)
    shown = self.open(
        [
            progress.Stage(name=name, arms=4, expected=4, steps=30, **arm),
            progress.Stage(name='last', steps=1000, **arm),
        ]
    )
    logged = self.enterContext(absltest.mock.patch.object(output, 'log'))
    self.train(shown, [29, 30], seconds=7.0)
    where = f'{name} 1/4 step 30/30  solved 50.0%'
    self.assertEqual(self.lines()[-1], f'{where}  about 2 h 07 min left')
    self.assertEqual(logged.call_args.args, (f'{where}  reward 0.250',))
    shown.enter('last')
    self.train(shown, [1])
    self.assertIn(' min left', logged.call_args.args[0])
    self.assertLessEqual(len(logged.call_args.args[0]), output.LOGGED)

  def test_another_process_shows(self):
    shown = self.open([progress.Stage(name='', steps=5)], shown=False)
    self.train(shown, [1, 2])
    self.assertEmpty(self.lines())

  def test_colour_is_not_forced_into_a_file(self):
    with absltest.mock.patch.dict(os.environ, FORCE_COLOR='1'):
      self.train(self.open([progress.Stage(name='', steps=5)]), [1])
    self.assertNotIn('\x1b', self.out.getvalue())


class TerminalTest(absltest.TestCase):

  def test_a_block_that_is_written_again(self):
    stages = [progress.Stage(name='', steps=2, prompts=2, group_size=4)]
    with absltest.mock.patch.dict(os.environ, TERM='xterm', COLUMNS='100'):
      with terminals.Terminal() as terminal:
        with absltest.mock.patch('sys.stdout', terminal.out):
          with progress.Progress(stages) as shown:
            shown.update(1, METRICS)
            output.say('a [line] of its own')
            shown.update(2, METRICS | {'step_seconds': 0.1})
    for part in ('\x1b[', '1/2', '2/2', '50.0%', 'a [line] of its own', '━'):
      self.assertIn(part, terminal.text)


class TextTest(parameterized.TestCase):

  @parameterized.parameters(
      ([], ''),
      ([5.0], '▄'),
      ([1.0, 1.0], '▄▄'),
      ([0.0, 7.0], '▁█'),
      # Eight values in four blocks: the means of neighbours are 0, 2, 5, 7.
      ([0.0, 0.0, 1.0, 3.0, 5.0, 5.0, 7.0, 7.0], '▁▃▆█'),
  )
  def test_sparkline(self, values, text):
    self.assertEqual(progress.sparkline(values, 4), text)


if __name__ == '__main__':
  absltest.main()
