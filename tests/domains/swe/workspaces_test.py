"""Workspaces are reused, and belong to one process."""

import concurrent.futures
import threading
from unittest import mock

from absl.testing import absltest

from evojax.domains.swe import workspaces
from evojax.sandbox import probe
from evojax.sandbox import repository
from tests.sandbox import attacks


class PoolTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    if missing := attacks.missing('T0'):
      self.skipTest(missing)

  def test_a_lent_one_is_empty_and_close_ends_all(self):
    pool = workspaces.Pool('T0', 1)
    with pool.lend() as box:
      box.write({'a.txt': b'1'})
      self.assertEqual(pool.lent, 1)
    self.assertEqual(pool.lent, 0)
    with pool.lend() as again:
      self.assertIs(again, box)
      self.assertEqual(again.read(), {})
      pool.close()  # Although a workspace is in use.
      with self.assertRaisesRegex(repository.WorkspaceError, 'closed'):
        again.read()

  def test_a_lost_one_is_replaced(self):
    pool = workspaces.Pool('T0', 1)
    self.addCleanup(pool.close)
    with pool.lend() as box:
      box.close()
    with pool.lend() as fresh:
      self.assertIsNot(fresh, box)
      self.assertEqual(fresh.read(), {})

  def test_all_threads_share_one(self):
    gate = threading.Barrier(8)

    def ask(_):
      gate.wait()
      return workspaces.shared('threads', 1)

    made = mock.patch.object(
        workspaces, 'Pool', side_effect=workspaces.Pool, autospec=True
    )
    with made as pool, mock.patch.object(probe, 'tier', lambda: 'T0'):
      with concurrent.futures.ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask, range(8)))
    self.assertEqual(pool.call_count, 1)
    self.assertLen(set(map(id, found)), 1)


if __name__ == '__main__':
  absltest.main()
