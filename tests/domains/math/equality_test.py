"""Expressions are compared as functions, under a limit that holds."""

import os
import signal
import threading
import time

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.math import equality
from evojax.domains.math import expressions

# A number of about 10^8 digits: seconds of work inside C, then gigabytes.
_HEAVY = '(((9^99)^99)^99)^99'


class EqualityTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.comparer = equality.Comparer(timeout_s=10.0)
    self.addCleanup(self.comparer.close)

  def _compare(self, a, b):
    return self.comparer.compare(expressions.parse(a), expressions.parse(b))

  def test_verdicts(self):
    for a, b, verdict in (
        ('x+1', '1+x', 'equal'),
        ('x^2-1', '(x-1)(x+1)', 'equal'),
        (r'2\sqrt{3}', r'\sqrt{12}', 'equal'),
        (r'\frac{\pi}{2}', '0.5 pi', 'equal'),
        ('sin(x)^2 + cos(x)^2', '1', 'equal'),
        ('ln(x)', 'log(x)', 'equal'),
        ('x^2', 'x^3', 'different'),
        ('x', 'y', 'different'),
        ('(x+1)^2', 'x^2+1', 'different'),
        (r'\sqrt{x^2}', 'x', 'different'),  # Not for negative x.
        (r'\sqrt{x^2}', 'abs(x)', 'equal'),
        ('1.4142135623730951', r'\sqrt{2}', 'different'),  # 16 digits of it.
        ('1/(x-x)', '0', 'undefined'),
        ('x/0', 'x/0', 'undefined'),
        ('tan(pi/2)', '0', 'undefined'),
    ):
      self.assertEqual(self._compare(a, b), verdict, (a, b))

  def test_a_late_comparison_is_killed_and_the_next_one_works(self):
    self.assertEqual(self._compare('x', 'x'), 'equal')
    self.comparer._timeout_s = 0.5
    begin = time.monotonic()
    self.assertEqual(self._compare(_HEAVY, 'x'), 'timeout')
    self.assertLess(time.monotonic() - begin, 15)
    self.comparer._timeout_s = 10.0
    self.assertEqual(self._compare('x', 'x'), 'equal')

  def test_the_limit_holds_in_a_thread(self):
    # signal.setitimer would raise here: it works in the main thread only.
    self.assertEqual(self._compare('x', 'x'), 'equal')
    self.comparer._timeout_s = 0.5
    verdicts = []
    thread = threading.Thread(
        target=lambda: verdicts.append(self._compare(_HEAVY, 'x'))
    )
    thread.start()
    thread.join(timeout=30)
    self.assertEqual(verdicts, ['timeout'])

  def test_a_dead_child_is_replaced(self):
    self.assertEqual(self._compare('x', 'x'), 'equal')
    process = self.comparer._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    self.assertEqual(self._compare('x', 'x+0'), 'equal')

  def test_close_ends_the_child(self):
    self._compare('x', 'x')
    process = self.comparer._process
    self.comparer.close()
    self.assertIsNotNone(process.poll())


if __name__ == '__main__':
  absltest.main()
