"""One box for all threads of a process."""

import concurrent.futures
import threading

from absl.testing import absltest

from evojax.sandbox import probe
from evojax.sandbox import shared


class SharedTest(absltest.TestCase):

  def test_threads_that_come_first_at_once_get_one_box(self):
    probe._find.cache_clear()  # As in a new process.
    shared._opened.cache_clear()
    together = threading.Barrier(6)

    def run(_):
      together.wait()
      box = shared.open_box(2)
      return box, box.run('print(6 * 7)').stdout

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
      found = list(pool.map(run, range(6)))
    self.assertLen({id(box) for box, _ in found}, 1)
    self.assertEqual([out for _, out in found], [b'42\n'] * 6)


if __name__ == '__main__':
  absltest.main()
