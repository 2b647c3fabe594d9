"""Calls that a run leaves when it has to stop."""

import contextvars
import subprocess
import sys
import threading
import time

from absl.testing import absltest

from evojax.runtime import interruptible
from evojax.runtime import preemption
from evojax.runtime import waits
from tests import tiny

never = lambda: False
# A pool's threads are joined at the exit of a process.
PROGRAM = """
import concurrent.futures, threading, sys
from evojax.runtime import interruptible, preemption
pool = concurrent.futures.ThreadPoolExecutor(1)
work = lambda: pool.submit(threading.Event().wait).result()
try:
  interruptible.call(work, lambda: True)
except preemption.Interrupted:
  print('saved')
preemption.leave(preemption.AGAIN)
"""


class InterruptibleTest(absltest.TestCase):

  def test_results_and_errors_are_those_of_the_work(self):
    number = contextvars.ContextVar('number')
    number.set(7)
    self.assertEqual(interruptible.call(number.get, never), 7)
    with self.assertRaisesRegex(ValueError, 'invalid literal'):
      interruptible.call(lambda: int('x'), never)
    with self.assertRaises(SystemExit):
      interruptible.call(sys.exit, never)

  def test_children_of_the_work_outlive_it(self):
    # A child process may end with the thread that started it.
    thread = interruptible.call(threading.current_thread, never)
    self.assertIsNot(thread, threading.current_thread())
    interruptible.call(lambda: None, never)
    time.sleep(0.1)
    self.assertTrue(thread.is_alive())

  def test_work_that_ends_at_once_is_not_left(self):
    self.assertEqual(interruptible.call(lambda: 1, lambda: True), 1)

  def test_a_stop_is_noticed_and_later_work_is_done(self):
    hangs = threading.Event()
    self.addCleanup(hangs.set)
    asked = []
    threading.Timer(0.2, asked.append, [15]).start()
    started = time.monotonic()
    with self.assertRaises(preemption.Interrupted):
      interruptible.call(hangs.wait, lambda: bool(asked))
    self.assertBetween(time.monotonic() - started, 0.2, 2.0)
    self.assertEqual(interruptible.call(lambda: 1, never), 1)

  def test_an_error_in_the_caller_leaves_the_work(self):
    hangs = threading.Event()
    self.addCleanup(hangs.set)

    def interrupted():
      raise KeyboardInterrupt

    with self.assertRaises(KeyboardInterrupt):
      interruptible.call(hangs.wait, interrupted)
    self.assertEqual(interruptible.call(lambda: 1, never), 1)

  def test_waiting_is_no_progress(self):
    hangs, changes = threading.Event(), []

    def stopping():
      with waits.at('all-gather'):  # As in an exchange.
        changes.append(waits.state().changes)
      if len(changes) == 3:
        hangs.set()
      return False

    interruptible.call(hangs.wait, stopping)
    self.assertLen(set(changes), 1)
    with waits.at('grade'):
      self.assertGreater(waits.state().changes, changes[0])

  def test_the_exit_does_not_wait_for_threads_of_the_work(self):
    ended = subprocess.run(
        [sys.executable, '-c', PROGRAM],
        env=tiny.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    self.assertEqual(ended.stdout, 'saved\n', ended.stderr)
    self.assertEqual(ended.returncode, preemption.AGAIN)


if __name__ == '__main__':
  absltest.main()
