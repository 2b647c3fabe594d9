"""Commands on a Ray cluster of several node processes, and their deaths.

The commands are small programs that stand in for those of evojax.
"""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from evojax.runtime import commands
from evojax.runtime import preemption
from tests import clusters

pytest.importorskip('ray', reason='the extra ray')

from ray import cluster_utils  # noqa: E402

from evojax.runtime import ray_engine  # noqa: E402

# Counts its steps in a file and goes on where it was; saves when asked to stop.
_PROGRAM = """
import os, pathlib, signal, sys, time
folder, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
parent = int(sys.argv[3].removeprefix('--parent='))
(folder / 'pid').write_text(f'{os.getpid()} {parent}')
def stop(*_):
  (folder / 'saved').write_text('')
  sys.exit(75)
signal.signal(signal.SIGTERM, stop)
if steps < 0:
  sys.exit(print('error: it is broken') or 2)
step = len(list(folder.glob('step_*')))
with open(folder / 'starts', 'a') as file:
  file.write(f'{step}\\n')
for step in range(step, steps):
  time.sleep(0.1)
  if os.getppid() != parent:
    stop()
  (folder / f'step_{step:03d}').write_text('')
(folder / 'done').write_text('')
"""
# One of several processes: says with what flags it runs, and on which machine.
_JOINED = """
import os, pathlib, sys, time
folder, flags = pathlib.Path(sys.argv[1]), sys.argv[3:]
index = flags[3].rpartition('=')[2]
start = len(list(folder.glob(f'flags_{index}_*')))
def parent_of(pid):
  with open(f'/proc/{pid}/stat') as file:
    return file.read().rpartition(')')[2].split()[1]
flags[4:] = [str(os.getpid()), parent_of(os.getppid())]
part = folder / f'part_{index}'
part.write_text(' '.join(flags))
part.rename(folder / f'flags_{index}_{start}')
while not (folder / 'go').exists():
  time.sleep(0.05)
print('process', index, 'ended')
if index == '0':
  (folder / 'done').write_text('')
"""

# A run with a command that runs and one that waits for a machine.
_RUN = """
import contextlib, pathlib, sys, time
from evojax.runtime import preemption
preemption.listen()
from evojax import main
from evojax.runtime import commands, ray_engine
folder, program = pathlib.Path(sys.argv[1]), sys.argv[2]
ray_engine._GONE_SECONDS = float(sys.argv[3])
preemption.SAVE_SECONDS = 5.0
commands.Command.argv = lambda c: [sys.executable, '-c', *c.flags]
def run():
  pool = commands.Pool(ray_engine.Ray(commands.Share({'CPU': 1.0})), 2)
  with preemption.stop_flag() as asked, contextlib.closing(pool):
    preemption.note()
    for name in ('runs', 'waits'):
      pool.submit(commands.Command(
          name, (program, str(folder), '900'), folder / 'log', lambda: False
      ))
    while not asked:
      pool.advance()
      time.sleep(0.05)
    raise preemption.Preempted(asked)
main._run = run
main.main([])
"""


def wait_until(holds, seconds=60):
  deadline = time.monotonic() + seconds
  while not holds():
    assert time.monotonic() < deadline
    time.sleep(0.05)


def runs(pid):
  """Return True if a process runs, False if it has ended."""
  try:
    return b') Z ' not in pathlib.Path(f'/proc/{pid}/stat').read_bytes()
  except OSError:
    return False


@pytest.mark.slow
class RayTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    head = dict(num_cpus=0, include_dashboard=False)
    # As where a cluster is started in the background of a script.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    cls.cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args=head
    )
    cls.addClassCleanup(cls.cluster.shutdown)
    cls.nodes = [cls.cluster.add_node(num_cpus=2) for _ in range(2)]
    signal.signal(signal.SIGINT, interrupt)
    cls.enterClassContext(
        absltest.mock.patch.dict(
            os.environ, RAY_ADDRESS=cls.cluster.address, OMP_NUM_THREADS='3'
        )
    )
    argv = lambda command: [sys.executable, '-c', *command.flags]
    cls.enterClassContext(
        absltest.mock.patch.object(commands.Command, 'argv', argv)
    )

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    self.meter = commands.Meter()
    self.pool = commands.Pool(
        ray_engine.Ray(commands.Share({'CPU': 1.0})),
        workers=6,
        meter=self.meter,
    )
    self.addCleanup(lambda: self.pool.close())
    self.assertEqual(
        handlers,
        [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)],
    )

  def command(self, name, steps=3, program=_PROGRAM):
    folder = self.root / name
    folder.mkdir()
    return commands.Command(
        name,
        (program, str(folder), str(steps)),
        folder / 'log',
        (folder / 'done').exists,
    )

  def pids(self, command):
    """Numbers of the command and of Ray's process that started it."""
    path = command.log.parent / 'pid'
    wait_until(lambda: path.exists() and path.read_text())
    return [int(n) for n in path.read_text().split()]

  def starts(self, command):
    """The step at which each start began."""
    text = (command.log.parent / 'starts').read_text()
    return [int(line) for line in text.splitlines()]

  def advance(self, *names, seconds=90):
    deadline = time.monotonic() + seconds
    while any(name in self.pool.running for name in names):
      self.pool.advance()
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.05)

  def test_results_devices_and_failures(self):
    good, bad = self.command('good', steps=10), self.command('bad', steps=-1)
    text = 'import os, sys; print(os.getcwd(), os.environ["OMP_NUM_THREADS"])'
    where = self.command('where', program=text)
    began = time.monotonic()
    for command in (good, bad, where):
      self.pool.submit(command)
    self.advance('good', 'bad')
    self.pool.check('good')
    self.assertTrue(good.is_done())
    # Each holds one CPU while it runs.
    seconds = time.monotonic() - began
    self.assertBetween(self.meter.total(), 1.0, 3 * seconds)
    with self.assertRaisesRegex(
        commands.CommandError, 'bad ended with exit status 2: error: it is brok'
    ):
      self.pool.check('bad')
    self.assertEqual(self.pool.deaths, (0, 0))
    wait_until(lambda: f'{os.getcwd()} 3' in where.log.read_text())
    self.pool.cancel('where')

  def test_a_machine_without_the_checkout_is_named(self):
    command = self.command('nowhere')
    with absltest.mock.patch.object(os, 'getcwd', return_value='/nowhere'):
      self.pool.submit(command)
    self.advance('nowhere')
    with self.assertRaisesRegex(
        commands.CommandError, 'Ray cannot start it: .*/nowhere.*same paths'
    ):
      self.pool.check('nowhere')

  def test_what_no_machine_has_is_waited_for_and_costs_nothing(self):
    self.pool.close()
    large = ray_engine.Ray(commands.Share({'CPU': 7.0}))
    self.pool = commands.Pool(large, 1, self.meter)
    command = self.command('large')
    say = self.enterContext(
        absltest.mock.patch.object(ray_engine.output, 'say')
    )
    self.enterContext(
        absltest.mock.patch.object(ray_engine, '_SAY_SECONDS', 0.0)
    )
    self.pool.submit(command)
    for _ in range(3):
      self.pool.advance()
    say.assert_called_with(
        'large: waits; no machine has enough free resources'
    )
    self.assertEqual(self.meter.total(), 0.0)
    self.pool.cancel('large')
    self.assertFalse((command.log.parent / 'pid').exists())

  def test_a_killed_command_and_a_killed_worker_go_on(self):
    killed, orphan = (self.command(n, steps=60) for n in ('killed', 'orphan'))
    self.pool.submit(killed)
    self.pool.submit(orphan)
    own, _ = self.pids(killed)
    child, worker = self.pids(orphan)
    for command in (killed, orphan):
      wait_until((command.log.parent / 'step_005').exists)
    os.kill(own, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not runs(child), seconds=30)
    self.advance('killed', 'orphan')
    self.assertEqual(self.pool.deaths, (1, 1))
    for command in (killed, orphan):
      first, second = self.starts(command)
      self.assertEqual(first, 0)
      self.assertGreater(second, 4)  # It went on.

  def test_a_killed_machine_goes_on_elsewhere(self):
    command = self.command('moved', steps=60)
    self.pool.submit(command)
    child, worker = self.pids(command)
    wait_until((command.log.parent / 'step_005').exists)
    clusters.kill_machine(self.cluster, self.nodes, worker)
    wait_until(lambda: not runs(child), seconds=30)
    self.nodes.append(self.cluster.add_node(num_cpus=2))
    self.advance('moved')
    self.assertEqual(self.pool.deaths, (0, 1))
    self.assertTrue(command.is_done())
    first, second = self.starts(command)
    self.assertGreater(second, 4)

  def test_whoever_is_stopped_saves(self):
    command = self.command('stopped', steps=600)
    self.pool.submit(command)
    child, _ = self.pids(command)
    wait_until((command.log.parent / 'step_001').exists)
    self.pool.close()
    self.assertFalse(runs(child))
    self.assertTrue((command.log.parent / 'saved').exists())

  def test_a_command_of_two_machines(self):
    self.pool.close()
    engine = ray_engine.Ray(commands.Share({'CPU': 2.0}, hosts=2))
    self.assertEqual(engine.devices, 2)
    self.pool = commands.Pool(engine, 2, self.meter)
    command = self.command('wide', program=_JOINED)
    folder = command.log.parent
    self.pool.submit(command)
    wait_until(lambda: len(list(folder.glob('flags_*_0'))) == 2)
    # One process on each, of one another.
    flags = [(folder / f'flags_{i}_0').read_text().split() for i in (0, 1)]
    self.assertEqual([f[:4] for f in flags], [
        ['--distributed', flags[0][1], '--processes=2', f'--process={i}']
        for i in (0, 1)
    ])  # fmt: skip
    self.assertRegex(flags[0][1], r'--coordinator=[\d.]+:\d+')
    processes = [int(f[4]) for f in flags]
    nodes = [clusters.parent_of(clusters.parent_of(p)) for p in processes]
    self.assertNotEqual(*nodes)
    # One is killed: the other is stopped, and both go on, all counted once.
    self.enterContext(
        absltest.mock.patch.object(ray_engine, '_PEERS_SECONDS', 0.5)
    )
    os.kill(int(flags[1][4]), signal.SIGKILL)
    wait_until(lambda: self.pool.advance() or self.pool.deaths == (1, 0))
    wait_until(lambda: len(list(folder.glob('flags_*_1'))) == 2)
    (folder / 'go').write_text('')
    self.advance('wide')
    self.pool.check('wide')
    self.assertEqual(self.pool.deaths, (1, 0))
    self.assertIn(
        'process 1 ended', pathlib.Path(f'{command.log}.1').read_text()
    )

  def test_a_command_of_a_whole_tpu_slice(self):
    """Machines that say they are a slice: 2 x 4 chips, and half of another."""
    kind = {
        'ray.io/tpu-topology': '2x2x2',
        'ray.io/accelerator-type': 'TPU-V5P',
    }

    def machine(slice_, worker):
      labels = kind | {
          'ray.io/tpu-slice-name': slice_,
          'ray.io/tpu-worker-id': str(worker),
          'ray.io/tpu-pod-type': 'v5p-16',
      }
      resources = {'TPU': 4, slice_: 1}
      resources |= {} if worker else {'TPU-v5p-16-head': 1}
      node = self.cluster.add_node(
          num_cpus=1,
          resources=resources,
          labels=labels,
          env_vars={'TPU_NAME': slice_},  # As on the real ones.
      )
      self.addCleanup(self.cluster.remove_node, node)
      return node.all_processes['raylet'][0].process.pid

    whole = [machine('whole', worker) for worker in (0, 1)]
    machine('half', 1)
    self.pool.close()
    share = commands.share([], 'v5p:2x2x2')
    engine = ray_engine.Ray(share)
    self.assertEqual(engine.devices, 8)
    self.pool = commands.Pool(engine, 2, self.meter)
    command = self.command('slice', program=_JOINED)
    folder = command.log.parent
    (folder / 'go').write_text('')
    self.pool.submit(command)
    self.advance('slice')
    self.pool.check('slice')
    seen = {
        int((folder / f'flags_{i}_0').read_text().split()[5]) for i in (0, 1)
    }
    self.assertEqual(seen, set(whole))
    # Nothing is left reserved: another gets the slice.
    again = self.command('again', program=_JOINED)
    (again.log.parent / 'go').write_text('')
    self.pool.submit(again)
    self.advance('again')
    self.pool.check('again')
    with self.assertRaisesRegex(ValueError, '--arm_hosts=v5p:3x5x7 is no TPU'):
      ray_engine.Ray(commands.share([], 'v5p:3x5x7'))

  def test_what_explains_most_counts(self):
    stopped, lost = preemption.AGAIN, commands.LOST
    for statuses, joint in (
        ((0, 0), 0),
        ((stopped, 0), stopped),
        ((stopped, 1), 1),  # The user's to mend.
        ((1, -9, stopped), -9),
        ((-6, 1, lost), lost),
    ):
      self.assertEqual(ray_engine._joint(statuses), joint)


@pytest.mark.slow
class GoneClusterTest(absltest.TestCase):
  """Calls of Ray block once its head is gone; then Ray ends the process."""

  def end_without_cluster(self, gone_seconds, end=lambda run: None):
    """Start a run, kill its cluster, call end(run), and return what it prints.

    Args:
      gone_seconds: The time after which the run itself sees the loss.
      end: What is done after the loss.
    """
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    cluster = cluster_utils.Cluster(
        initialize_head=True,
        head_node_args=dict(num_cpus=1, include_dashboard=False),
    )
    self.addCleanup(cluster.shutdown)
    run = subprocess.Popen(
        [sys.executable, '-c', _RUN, root, _PROGRAM, str(gone_seconds)],
        env=os.environ | {'RAY_ADDRESS': cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    self.addCleanup(run.kill)
    wait_until((root / 'step_001').exists)
    for started in cluster.head_node.all_processes.values():
      for info in started:
        info.process.kill()
        info.process.wait()
    end(run)
    began = time.monotonic()
    out, _ = run.communicate(timeout=90)
    self.assertEqual(run.returncode, preemption.AGAIN, out)
    # Ray itself would end it after 60 s.
    self.assertLess(time.monotonic() - began, 30)
    return out

  def test_a_run_without_its_cluster_ends_soon_after_sigterm(self):
    self.end_without_cluster(1000, lambda run: run.terminate())

  def test_a_run_without_its_cluster_ends_by_itself_and_says_why(self):
    out = self.end_without_cluster(3)
    self.assertRegex(out, r'Ray cluster at [\d.]+:\d+ has not answered for 3 s')


class NoClusterTest(parameterized.TestCase):

  def join(self, address):
    """Open the engine; ray.init would take minutes where nothing answers."""
    environment = {'RAY_ADDRESS': address}
    with (
        absltest.mock.patch.dict(os.environ, environment),
        absltest.mock.patch.object(ray_engine.ray, 'init') as init,
        absltest.mock.patch.object(ray_engine, '_Head'),
    ):
      try:
        ray_engine.Ray(commands.Share({'CPU': 1.0}))
      finally:
        self.asked = [call.kwargs['address'] for call in init.call_args_list]

  @parameterized.parameters(
      '127.0.0.1:{}', 'localhost:{}', 'ray://127.0.0.1:{}', '[::1]:{}'
  )
  def test_a_wrong_address_is_refused_at_once(self, form):
    with socket.socket() as bound:  # Nobody listens.
      bound.bind(('', 0))
      address = form.format(bound.getsockname()[1])
      with self.assertRaisesRegex(
          ValueError,
          'finds no cluster: nothing accepts connections at'
          rf' RAY_ADDRESS={re.escape(address)}\. Start one',
      ):
        self.join(address)
    self.assertEmpty(self.asked)

  def test_an_address_that_answers_is_left_to_ray(self):
    own = ray_engine.util.get_node_ip_address()
    for host in ('127.0.0.1', own):
      with socket.create_server((host, 0)) as server:
        port = server.getsockname()[1]
        # Ray replaces the loopback by the machine's own address.
        for address in (f'{host}:{port}', f'localhost:{port}', 'auto'):
          self.join(address)
          self.assertEqual(self.asked, [address])

  def test_is_told_what_to_start(self):
    environment = {
        **os.environ,
        'RAY_ADDRESS': '',
        'RAY_TMPDIR': '/nonexistent',
    }
    code = (
        'from evojax.runtime import commands\n'
        'try:\n'
        '  commands.open_engine("ray", ["CPU=1"])\n'
        'except ValueError as error:\n'
        '  print(error)\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertRegex(done.stdout, 'finds no cluster.*ray start')


if __name__ == '__main__':
  absltest.main()
