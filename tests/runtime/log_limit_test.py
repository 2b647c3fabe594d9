"""A log that nobody can fill."""

import io
import logging
from unittest import mock

from absl.testing import absltest

from evojax.runtime import log_limit


class LogLimitTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.stream = io.StringIO()
    handler = logging.StreamHandler(self.stream)
    handler.addFilter(log_limit.Limit())
    self.log = logging.Logger('log')
    self.log.addHandler(handler)
    self.now = 1000.0
    clock = mock.Mock(monotonic=lambda: self.now)
    self.enterContext(mock.patch.object(log_limit, 'time', clock))

  def say(self, text: str) -> None:
    self.log.warning('%s', text)

  def lines(self) -> list[str]:
    lines = self.stream.getvalue().splitlines()
    self.stream.seek(0)
    self.stream.truncate()
    return lines

  def test_repeated_line(self):
    for _ in range(1000):
      self.say('full')
    self.log.warning('%s', 'another statement')
    self.assertEqual(self.lines(), ['full', 'another statement'])
    self.now += 31
    self.say('full')
    self.say('full')
    left_out = 'full (999 such lines were left out)'
    self.assertEqual(self.lines(), [left_out])

  def test_lines_that_differ(self):
    for i in range(1000):
      self.say(f'line {i}')
    self.assertLen(self.lines(), 10)

  def test_flood_is_heard_less_and_less(self):
    for _ in range(24 * 3600 // 5):  # A day.
      self.now += 5
      self.say(f'{self.now} ' + 'x' * 10_000)
      self.say(f'{self.now} again')
    # Every hour ten lines of 2 kB, and more of them only in the first.
    size = sum(map(len, self.lines()))
    self.assertBetween(size, 24 * 10_000, (24 + 8) * 21_000)
    self.now += 7201
    self.say('calm')
    self.now += 7201
    for _ in range(3):
      self.say('calm')
      self.now += 20
    self.assertLen(self.lines(), 3)

  def test_long_line_and_traceback(self):
    self.say('a' * 100_000 + 'b')
    (line,) = self.lines()
    self.assertLess(len(line), 2100)
    self.assertEndsWith(line, 'ab')
    try:
      raise ValueError('c' * 100_000 + 'd')
    except ValueError:
      self.log.exception('failed')
    text = '\n'.join(self.lines())
    self.assertStartsWith(text, 'failed\nTraceback')
    self.assertEndsWith(text, 'cd')
    self.assertLess(len(text), 2100)


if __name__ == '__main__':
  absltest.main()
