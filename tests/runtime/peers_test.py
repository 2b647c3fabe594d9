"""Who is gone, as a process judges by what it hears; see also tests/faults."""

import dataclasses
import socket
import subprocess
import sys
import threading
import time

from absl.testing import absltest
from absl.testing import parameterized
import jax

from evojax.runtime import devices
from evojax.runtime import forwarder as forwarder_lib
from evojax.runtime import peers
from evojax.runtime import preemption
from evojax.runtime import waits
from tests import tiny

STUCK = 600


class TableTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.table = peers.Table(1, 3, STUCK, 0.0)
    self.now, self.beats = 0.0, {}
    for process in range(3):
      self.set(process)

  def set(self, process, **values):
    default = peers.Beat(f'host{process}', 0, 'in update', False, 0)
    self.beats[process] = dataclasses.replace(
        self.beats.get(process, default), **values
    )

  def live(self, seconds, *alive, lost=None):
    """Lets time pass; the first verdict, if any."""
    for _ in range(int(seconds)):
      self.now += 1
      for process in alive:
        self.set(process, number=self.beats[process].number + 1)
      if 0 in alive:  # It holds the store.
        self.table.update(dict(self.beats), self.now)
      if verdict := self.table.judge(self.now, lost):
        return verdict
    return None

  def test_slow_work_is_no_death(self):
    for step in range(8):
      self.set(2, changes=step)
      self.assertIsNone(self.live(STUCK - 10, 0, 1, 2))

  def test_a_silent_process_is_named_in_time(self):
    self.assertIsNone(self.live(5, 0, 1, 2))
    verdict = self.live(300, 0, 1)
    self.assertEqual(
        verdict,
        peers.Verdict(
            'process 2 on host2 has been silent for 41 s, last seen in update',
            preemption.AGAIN,
        ),
    )

  def test_a_store_that_does_not_answer_is_process_0(self):
    self.live(5, 0, 1, 2)
    verdict = self.live(300, 1, 2)
    self.assertIn('process 0 on host0 has not answered for 41 s', verdict.text)

  def test_a_broken_connection_is_process_0(self):
    self.live(5, 0, 1, 2)
    verdict = self.live(1, 1, 2, lost=self.now)
    self.assertIn('process 0 on host0 has gone away', verdict.text)
    self.assertEqual(verdict.status, preemption.AGAIN)

  def test_whoever_was_stopped_ends_at_once(self):
    self.live(5, 0, 1, 2)
    self.now += 50
    verdict = self.live(1, 0, 1, 2)
    self.assertIn('process 1 on host1 did not run for 51 s', verdict.text)

  def test_one_that_stood_still_nearly_as_long_blames_no_other(self):
    """The others count from its last answer, up to two beats after its tick."""
    self.live(5, 0, 1, 2)
    self.now += 36
    verdict = self.live(1, 0, 1)
    self.assertIn('process 1 on host1 did not run for 37 s', verdict.text)

  def test_process_0_is_judged_by_its_answers(self):
    """It may be late with its own beat, and still answer."""
    self.live(5, 0, 1, 2)
    for _ in range(60):
      self.assertIsNone(self.live(1, 1, 2))
      self.table.update(dict(self.beats), self.now)

  @parameterized.parameters(1, 2)
  def test_a_failure_is_not_for_another_start(self, status):
    self.set(2, ended=status)
    # It may be one that this process is about to find, too.
    self.assertIsNone(self.live(5, 0, 1))
    verdict = self.live(5, 0, 1)
    self.assertEqual(verdict.status, status)
    failed = f'process 2 on host2 failed with exit code {status}'
    self.assertStartsWith(verdict.text, failed)
    # Also where it was process 0, whose store is gone since.
    self.assertEqual(self.table.judge(self.now, self.now), verdict)

  def test_they_end_together(self):
    for process in (0, 2):
      self.set(process, ended=0)
    self.assertIsNone(self.live(100, 0, 1, 2))
    self.assertFalse(self.table.all_ended())
    self.assertIn('silent', self.live(100, 0, 1).text)
    self.set(1, ended=preemption.AGAIN)
    self.live(1, 0, 1, 2)
    self.assertTrue(self.table.all_ended())
    # The store is no longer read then, and process 0 may be gone.
    self.assertIsNone(self.live(100, 1, lost=self.now))

  def test_without_progress_all_end_and_say_where_each_was(self):
    self.set(1, doing='in broadcast')
    self.assertIsNone(self.live(STUCK - 1, 0, 1, 2))
    # One that still gets further is waited for.
    self.set(2, doing='in update, all-gather', changes=1)
    self.assertIsNone(self.live(STUCK - 1, 0, 1, 2))
    verdict = self.live(5, 0, 1, 2)
    self.assertEqual(verdict.status, preemption.AGAIN)
    self.assertIn('no process has got any further for 600 s', verdict.text)
    self.assertIn('process 0 on host0 is in update, process 1', verdict.text)
    self.assertIn('process 1 on host1 is in broadcast', verdict.text)
    self.assertIn('process 2 on host2 is in update, all-gather', verdict.text)

  def test_a_compilation_has_an_hour(self):
    self.set(2, doing='in update, compilation', compiles=True)
    self.assertIsNone(self.live(3599, 0, 1, 2))
    verdict = self.live(5, 0, 1, 2)
    self.assertIn('host2 is in update, compilation', verdict.text)

  def test_a_limit_of_zero_is_none(self):
    self.table = peers.Table(1, 3, 0, 0.0)
    self.assertIsNone(self.live(7200, 0, 1, 2))

  def test_numbers_start_at_nothing(self):
    self.assertEqual(self.table.numbers(), {0: 0, 1: 0, 2: 0})
    self.live(3, 0, 1, 2)
    self.assertEqual(self.table.numbers(), {0: 3, 1: 3, 2: 3})


class JoinTest(parameterized.TestCase):

  @parameterized.parameters(0, 1)
  def test_one_that_stays_alone_ends_with_a_line(self, process):
    with socket.socket() as s:
      s.bind(('localhost', 0))
      address = f'localhost:{s.getsockname()[1]}'
    program = (
        'from evojax.runtime import peers\n'
        'peers._JOIN_SECONDS = 2\n'
        f'peers.join({address!r}, 2, {process})\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', program],
        cwd=tiny.ROOT,
        env=tiny.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, preemption.AGAIN, done.stderr)
    self.assertEqual(
        done.stdout + done.stderr,
        f'process {process} did not find all 2 processes at {address} in'
        ' 2 s; exit code 75: start all processes again\n',
    )

  def test_what_no_cluster_tells(self):
    with self.assertRaisesRegex(
        ValueError, r"neither .* tells \['--coordinator', '--process'\]"
    ):
      peers.join(processes=2)


class WaitsTest(absltest.TestCase):

  def test_names_what_is_done_now(self):
    before = waits.state()
    self.assertEqual(str(before), 'between two phases')
    with waits.at('rollout'), waits.at('broadcast'):
      inside = waits.state()
    self.assertEqual(str(inside), 'in rollout, broadcast')
    self.assertEqual(waits.state().changes, before.changes + 4)
    self.assertEmpty(waits.state().names)
    waits.advance()
    self.assertEqual(waits.state().changes, before.changes + 5)

  def test_names_compilations(self):
    devices.report_compilations()
    seen = []

    def listen(event, value, **_):
      del value
      if event == '/jax/core/compile/backend_compile_duration':
        seen.append(str(waits.state()))

    # Listeners are called in the order in which they were registered.
    jax.monitoring.register_scalar_listener(listen)
    self.addCleanup(jax.monitoring.unregister_scalar_listener, listen)
    program = jax.jit(lambda x: x * 3 + 41)
    with waits.at('update'):
      jax.block_until_ready(program(2))
      self.assertEqual(str(waits.state()), 'in update')
      self.assertContainsSubset(['in update, compilation'], seen)
      seen.clear()
      jax.block_until_ready(program(3))
    self.assertEmpty(seen)


class ForwarderTest(absltest.TestCase):

  def test_stays_open_when_the_other_end_is_gone(self):
    with socket.socket() as s:  # Nobody listens there yet.
      s.bind(('127.0.0.1', 0))
      port = s.getsockname()[1]
    forwarder = forwarder_lib.Forwarder(f'localhost:{port}')
    host, _, near_port = forwarder.address.rpartition(':')
    near = socket.create_connection((host, int(near_port)))
    self.addCleanup(near.close)
    near.sendall(b'early')
    with socket.create_server(('127.0.0.1', port)) as server:
      far, _ = server.accept()
      self.assertEqual(far.recv(100), b'early')
      far.sendall(b'answer')
      self.assertEqual(near.recv(100), b'answer')
      self.assertIsNone(forwarder.lost)
      far.close()
    deadline = time.monotonic() + 30
    while forwarder.lost is None:
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.01)
    near.settimeout(0.3)
    with self.assertRaises(TimeoutError):  # No end of file.
      near.recv(100)

  def test_ends_when_the_client_does(self):
    with socket.create_server(('127.0.0.1', 0)) as server:
      forwarder = forwarder_lib.Forwarder(
          f'127.0.0.1:{server.getsockname()[1]}'
      )
      host, _, port = forwarder.address.rpartition(':')
      near = socket.create_connection((host, int(port)))
      far, _ = server.accept()
      self.addCleanup(far.close)
      closing = threading.Thread(target=near.close)
      closing.start()
      far.settimeout(30)
      self.assertEqual(far.recv(100), b'')
      closing.join()


if __name__ == '__main__':
  absltest.main()
