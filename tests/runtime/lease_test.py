"""One process at a time works in a folder of a store."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time

from absl.testing import absltest

from evojax.runtime import lease
from evojax.runtime import storage
from tests import tiny
from tests.runtime import storage_test


class LeaseTest(storage_test.StorageTestCase):

  def setUp(self):
    super().setUp()
    self.shorten(ttl=1.0, renew=0.1)

  def shorten(self, ttl, renew):
    for name, value in (
        ('TTL_SECONDS', ttl),
        ('RENEW_SECONDS', renew),
        ('_WATCH_SECONDS', 0.05),
    ):
      self.enterContext(absltest.mock.patch.object(lease, name, value))

  def take(self):
    held = lease.Lease(self.store)
    self.addCleanup(held._stop.set)
    return held

  def test_one_after_the_other(self):
    for number in (1, 2, 3):
      held = self.take()
      self.assertTrue(lease.is_held(self.store))
      held.check()
      held.release()
      self.assertFalse(lease.is_held(self.store))
      self.assertEqual(list(self.store.list()), [f'.lease/{number:06d}.json'])

  def test_another_holder_is_named_and_stays(self):
    self.failing(0.05)
    held = self.take()
    with self.assertRaisesRegex(
        lease.LeaseError, f'is in use by pid {os.getpid()} on .* since 2'
    ):
      lease.Lease(self.store)
    time.sleep(2 * lease.TTL_SECONDS)  # It is renewed.
    with self.assertRaises(lease.LeaseError):
      lease.Lease(self.store)
    held.check()

  def test_it_is_renewed_after_answers_that_are_none(self):
    self.shorten(ttl=0.4, renew=0.05)
    held = self.take()
    fs = held._store._fs
    for page in b'<html>try later</html>', b'{"error": 503}':
      with absltest.mock.patch.object(fs, 'cat_file', return_value=page):
        with self.assertRaisesRegex(storage.StorageError, 'does not answer'):
          held.check()
        time.sleep(0.2)
      time.sleep(lease.TTL_SECONDS)
      self.assertTrue(lease.is_held(self.store))

  def test_of_several_processes_one_takes_it(self):
    won, lost = [], []

    def take():
      try:
        won.append(self.take())
      except lease.LeaseError as error:
        lost.append(error)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    self.assertLen(won, 1)
    self.assertLen(lost, 7)
    won[0].check()

  def elsewhere(self, held):
    """Makes the holder a process of another machine, which stands still."""
    held._stop.set()
    with held._lock:
      held._content['place'] = {'machine': 'another', 'pid': 1, 'started': '1'}
      self.store.write(lease._name(held.number), held._data())

  def test_who_stands_still_is_replaced_and_finds_out(self):
    old = self.take()
    self.elsewhere(old)
    start = time.monotonic()
    new = self.take()
    self.assertGreater(time.monotonic() - start, lease.TTL_SECONDS)
    with self.assertRaisesRegex(lease.LeaseError, 'is in use by pid'):
      old.check()
    old.release()  # Which is not its to give back.
    new.check()
    self.assertFalse(json.loads(self.store.read(lease._name(2)))['released'])

  def test_a_process_of_this_machine_that_was_killed_is_replaced_at_once(self):
    code = """
        import os, signal
        from evojax.runtime import lease, storage
        from tests import objects
        lease.Lease(storage.Store('objects://bucket/run'))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(code)],
        cwd=tiny.ROOT,
        env={**os.environ, 'PYTHONPATH': str(tiny.ROOT)},
        check=False,
    )
    self.assertEqual(killed.returncode, -9)
    self.shorten(ttl=100, renew=10)
    start = time.monotonic()
    self.take().check()
    self.assertLess(time.monotonic() - start, 10)

  def test_a_file_system_that_cannot_keep_writers_apart_is_refused(self):
    def create(store, name, data):
      store.write(name, data)
      return True

    with absltest.mock.patch.object(storage.Store, 'create', create):
      for _ in range(2):  # Each time, since nothing is left there.
        with self.assertRaisesRegex(storage.StorageError, 'two processes'):
          lease.Lease(self.store)
      self.assertFalse(lease.is_held(self.store))


if __name__ == '__main__':
  absltest.main()
