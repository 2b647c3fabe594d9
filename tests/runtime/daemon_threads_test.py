"""Threads that hold up nobody."""

import subprocess
import sys
import threading

from absl.testing import absltest

from evojax.runtime import daemon_threads
from tests import tiny

_PROGRAM = """
import threading
from evojax.runtime import daemon_threads
threads = daemon_threads.DaemonThreads(1, 'test')
threads.run(threading.Event().wait)
print('over')
"""


class DaemonThreadsTest(absltest.TestCase):

  def test_all_work_is_done_by_at_most_so_many(self):
    threads = daemon_threads.DaemonThreads(3, 'test')
    names, done = set(), threading.Semaphore(0)

    def work():
      names.add(threading.get_ident())
      done.release()

    for _ in range(50):
      threads.run(work)
    for _ in range(50):
      self.assertTrue(done.acquire(timeout=30))
    self.assertBetween(len(names), 1, 3)
    threads.end()

  def test_another_takes_the_place_of_one_that_hangs(self):
    threads = daemon_threads.DaemonThreads(1, 'test')
    never, done = threading.Event(), threading.Event()
    threads.run(never.wait)
    threads.run(done.set)
    self.assertFalse(done.wait(0.2))
    threads.replace()
    self.assertTrue(done.wait(30))
    never.set()
    threads.end()

  def test_the_exit_does_not_wait(self):
    ended = subprocess.run(
        [sys.executable, '-c', _PROGRAM],
        env=tiny.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    self.assertEqual(ended.stdout, 'over\n')


if __name__ == '__main__':
  absltest.main()
