"""Tests for the live progress."""

import io
import os

from absl.testing import absltest
from absl.testing import parameterized

from evojax.runtime import progress
from tests import terminals

METRICS = {
    'reward': 0.25,
    'outcome': 0.5,
    'dead_groups': float('nan'),
    'tokens_per_second': 9012.3,
}


class PlainTest(absltest.TestCase):

  def show(self, steps, **kwargs):
    out = io.StringIO()
    now = [0.0]
    with progress.Progress(5, out=out, clock=lambda: now[0], **kwargs) as shown:
      for step in steps:
        # The first step takes 60 s, as it compiles; the others 2 s.
        now[0] += 60 if step == steps[0] else 2
        shown.update(step, METRICS)
    return out.getvalue()

  def test_lines_without_control_characters(self):
    text = self.show([1, 2])
    self.assertEqual(
        text,
        'step 1/5  reward 0.250  solved 50.0%  tok/s 9,012  left -\n'
        # 3 steps of 2 s: compilation is not part of the pace.
        'step 2/5  reward 0.250  solved 50.0%  tok/s 9,012  left 6 s\n',
    )

  def test_every_and_always_the_last(self):
    lines = self.show([1, 2, 3, 4, 5], every=2).splitlines()
    self.assertEqual([line.split()[1] for line in lines], ['2/5', '4/5', '5/5'])

  def test_colour_is_not_forced_into_a_file(self):
    with absltest.mock.patch.dict(os.environ, FORCE_COLOR='1'):
      self.assertNotIn('\x1b', self.show([1]))


class TerminalTest(absltest.TestCase):

  def test_rows_and_a_bar(self):
    with absltest.mock.patch.dict(os.environ, TERM='xterm', COLUMNS='100'):
      with terminals.Terminal() as terminal:
        with progress.Progress(2, out=terminal.out) as shown:
          shown.update(1, METRICS)
          shown.print('a [line] of its own')
          shown.update(2, METRICS)
    for part in ('\x1b[', '1/2', '2/2', '50.0%', 'a [line] of its own', '━'):
      self.assertIn(part, terminal.text)


class TextTest(parameterized.TestCase):

  @parameterized.parameters(
      (0.4, '0 s'),
      (59.4, '59 s'),
      (59.6, '1 min 00 s'),
      (185.0, '3 min 05 s'),
      (3600.0, '1 h 00 min'),
      (7620.0, '2 h 07 min'),
  )
  def test_duration(self, seconds, text):
    self.assertEqual(progress.duration(seconds), text)

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
