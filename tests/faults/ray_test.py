"""A run whose arms are on a Ray cluster ends with the rows of one process.

The driver, a machine and a worker are killed in mid-arm.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest
import pytest

from evojax.evolve import loop
from evojax.ledger import chain
from evojax.runtime import listing
from evojax.runtime import mirror
from evojax.runtime import storage
from evojax.runtime import stored_names
from tests import clusters
from tests import compiled
from tests import objects
from tests import tiny

pytest.importorskip('ray', reason='the extra ray')

from ray import cluster_utils  # noqa: E402

# All arms of a stage train side by side; an arm saves at every second step.
OPTIONS = dict(
    evolve__rounds=1,
    evolve__policy='mean',
    evolve__updates=8,
    checkpoint__every=2,
)
_DRIVER = """
import sys
import evojax
from tests import tiny
from tests.faults import ray_test
config = tiny.evolving(**ray_test.OPTIONS)
evojax.run(config, sys.argv[1], executor='ray', workers=3)
"""
# The arms of a run with two devices, each on two machines with one device.
_WIDE = """
import os
import sys
os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'
import evojax
from tests import tiny
from tests.faults import ray_test
config = tiny.evolving(**ray_test.WIDE)
evojax.run(config, sys.argv[1], **eval(sys.argv[2]))
"""
WIDE = dict(
    evolve__rounds=1,
    evolve__updates=4,
    checkpoint__every=2,
    mesh__data=1,
    mesh__fsdp=2,
)
# Runs a command in a mount namespace in which a directory is its own.
_ROOM = 'mount -t tmpfs none "$1" && shift && exec "$@"'


def payloads(folder):
  return [row['payload'] for row in chain.read(folder / 'ledger.jsonl')]


def processes(folder):
  """Numbers of the processes whose command names a folder."""
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    with contextlib.suppress(OSError):
      if str(folder).encode() in path.read_bytes():
        found.append(int(path.parent.name))
  return found


def marked(mark):
  """Number -> command of the processes that inherited a variable's text."""
  found = {}
  for folder in pathlib.Path('/proc').glob('[0-9]*'):
    with contextlib.suppress(OSError):
      if mark.encode() in (folder / 'environ').read_bytes().split(b'\0'):
        command = (folder / 'cmdline').read_bytes().replace(b'\0', b' ')
        found[int(folder.name)] = command.decode(errors='replace')[:200]
  return found


def repeated(log):
  """Steps that the arm of a log made more than once."""
  steps = re.findall(r'step (\d+)/\d+', log.read_text())
  assert steps, log
  return len(steps) - len(set(steps))


def wait_for(found, seconds=600):
  """Return the first true value that a function returns."""
  deadline = time.monotonic() + seconds
  while not (value := found()):
    assert time.monotonic() < deadline
    time.sleep(0.05)
  return value


class ClusterTestCase(absltest.TestCase):
  """A cluster of three machines with one CPU each."""

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    variables = self.variables() | {'EVOJAX_RAY_TEST': str(self.root)}
    self.enterContext(
        absltest.mock.patch.dict(
            os.environ, tiny.environment(**variables), clear=True
        )
    )
    self.addCleanup(self.check_that_nothing_is_left)
    head = dict(num_cpus=0, include_dashboard=False)
    self.cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args=head
    )
    self.addCleanup(self.cluster.shutdown)
    self.nodes = []
    for _ in range(3):
      self.add_machine()
    os.environ['RAY_ADDRESS'] = self.cluster.address
    self.folder = self.root / 'ray'

  def variables(self):
    """Environment of all processes."""
    return {}

  def add_machine(self):
    self.nodes.append(self.cluster.add_node(num_cpus=1))

  def check_that_nothing_is_left(self):
    """Fails if a process of the cluster or of a run outlives it by 30 s."""
    mark = f'EVOJAX_RAY_TEST={self.root}'
    deadline = time.monotonic() + 30
    while (left := marked(mark)) and time.monotonic() < deadline:
      time.sleep(0.5)
    for process in left:
      with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    self.assertEmpty(left)

  def popen(self, *command):
    """Starts a command, which ends with the test."""
    log = self.enterContext(open(self.root / 'driver.log', 'ab'))
    started = subprocess.Popen(
        command, cwd=tiny.ROOT, stdout=log, stderr=log
    )
    self.addCleanup(started.wait)
    self.addCleanup(started.kill)
    return started

  def kill_machine_of(self, process):
    worker = clusters.parent_of(process)
    clusters.kill_machine(self.cluster, self.nodes, worker)


@pytest.mark.long
class RunTest(ClusterTestCase):

  def drive(self):
    return self.popen(sys.executable, '-c', _DRIVER, self.folder)

  def training(self, name):
    """Numbers of the processes that train an arm which has made a step."""
    arm = self.folder / 'arms' / name

    def find():
      made = list(arm.glob('evidence/train/*.parquet'))
      return made and processes(arm / 'job.json')

    return wait_for(find)

  def test_same_payloads_whatever_is_killed(self):
    first = self.drive()
    self.training('r000-incumbent-0')
    first.kill()
    first.wait()
    wait_for(lambda: not processes(self.folder), seconds=30)
    second = self.drive()
    (moved,) = self.training('r000-incumbent-1')
    (killed,) = self.training('r000-incumbent-2')
    os.kill(killed, signal.SIGKILL)
    self.kill_machine_of(moved)
    self.add_machine()
    self.assertEqual(second.wait(), 0, (self.root / 'driver.log').read_text())
    config = tiny.evolving(**OPTIONS)
    loop.run(config, str(self.root / 'here'))
    expected = payloads(self.root / 'here')
    self.assertEqual(payloads(self.folder), expected)
    for workers in (1, 2):
      folder = self.root / f'local-{workers}'
      loop.run(config, str(folder), executor='local', workers=workers)
      self.assertEqual(payloads(folder), expected)
    self.assertIn('lost its machine', (self.root / 'driver.log').read_text())
    self.assertIn('ended by a signal', (self.root / 'driver.log').read_text())
    for log in self.folder.glob('arms/*/worker.log'):
      self.assertLessEqual(repeated(log), config.checkpoint.every, log)

  def test_an_arm_on_two_machines_is_one_process_with_two_devices(self):
    """Outcomes are equal; parameters differ by the rounding of sums."""
    found = {}
    for name, placed, flags in (
        ('wide', "executor='ray', workers=1, arm_hosts='2'", ''),
        ('here', '', '--xla_force_host_platform_device_count=2'),
    ):
      code = (
          'from evojax.evolve import loop; from tests import tiny\n'
          'config = tiny.evolving(evolve__rounds=1, mesh__data=-1)\n'
          f'loop.run(config, {str(self.root / name)!r}, {placed})'
      )
      subprocess.run(
          [sys.executable, '-c', code],
          cwd=tiny.ROOT,
          env=os.environ | {'XLA_FLAGS': flags},
          check=True,
      )
      found[name] = [
          [arm['outcome'] for arm in row['arms']]
          for row in payloads(self.root / name)
          if 'arms' in row
      ]
    self.assertNotEmpty(found['here'])
    self.assertEqual(found['wide'], found['here'])


@pytest.mark.long
class StoreTest(ClusterTestCase):
  """Machines with a disk each, which share an object store and nothing else."""

  URL = 'objects://bucket/run'

  def variables(self):
    # Every process of Ray and of evojax knows the scheme objects://.
    (self.root / 'sitecustomize.py').write_text('import tests.objects\n')
    paths = os.pathsep.join([str(self.root), str(tiny.ROOT)])
    return objects.make(self.root) | {
        'PYTHONPATH': paths,
        'OBJECTS_FAILING': '0.02',
    }

  def add_machine(self):
    disk = str(self.root / f'disk{len(os.listdir(self.root))}')
    os.mkdir(disk)
    with absltest.mock.patch.dict(os.environ, XDG_CACHE_HOME=disk):
      super().add_machine()

  def start(self, *command):
    """Starts the run's process, whose disk no other process can see."""
    cache = self.root / 'cache'
    cache.mkdir(exist_ok=True)
    room = ['unshare', '--mount', 'sh', '-c', _ROOM, 'sh', str(cache)]
    if os.geteuid():  # Then it is only another directory.
      room = []
    self.started = self.popen(*room, sys.executable, *command)
    return self.started

  def said(self):
    return (self.root / 'driver.log').read_text()

  def training(self, name):
    """The process that trains an arm which has saved a checkpoint."""
    arm = storage.Store(f'{self.URL}/arms/{name}')

    def find():
      self.assertIsNone(self.started.poll(), self.said())
      time.sleep(0.5)
      saved = 'checkpoints/step_000002/meta.json' in listing.read(arm).files
      return saved and processes(f'{self.URL}/arms/{name}/.job.json')

    return wait_for(find, seconds=1200)[0]

  def test_same_payloads_whatever_is_killed(self):
    first = self.start('-c', _DRIVER, self.URL)
    self.training('v0')
    first.kill()
    first.wait()
    wait_for(lambda: not processes(self.URL), seconds=90)
    second = self.start('-c', _DRIVER, self.URL)
    self.kill_machine_of(self.training('r000-incumbent-1'))
    self.add_machine()
    self.assertEqual(second.wait(), 0, self.said())
    self.assertEmpty(os.listdir(self.root / 'cache'))
    loop.run(tiny.evolving(**OPTIONS), str(self.root / 'here'))
    with mirror.opened(self.URL) as path:
      found = pathlib.Path(path)
      self.assertEqual(payloads(found), payloads(self.root / 'here'))
      logs = sorted(p.name for p in (found / 'logs/arms').iterdir())
      self.assertIn('r000-incumbent-0.log', logs)
    self.assertIn('lost its machine', self.said())
    names = storage.Store(self.URL).list()
    self.assertEmpty([n for n in names if stored_names.is_of_loan(n)])

  def test_an_arm_on_two_machines(self):
    """Each has a disk and half of the parameters; one is killed."""
    placed = "{'executor': 'ray', 'workers': 1, 'arm_hosts': '2'}"
    swept = self.start('-c', _WIDE, self.URL, placed)
    self.kill_machine_of(self.training('r000-incumbent-1'))
    self.assertEqual(swept.wait(), 0, self.said())
    self.assertIn('lost its machine', self.said())
    here = self.root / 'here'
    subprocess.run(
        [sys.executable, '-c', _WIDE, here, '{}'], cwd=tiny.ROOT, check=True
    )
    outcomes = lambda folder: [
        [arm['outcome'] for arm in row['arms']]
        for row in payloads(folder)
        if 'arms' in row
    ]
    with mirror.opened(self.URL) as path:
      self.assertEqual(outcomes(pathlib.Path(path)), outcomes(here))
    names = storage.Store(self.URL).list()
    self.assertEmpty([n for n in names if stored_names.is_of_loan(n)])

  def test_a_sweep(self):
    policy = tiny.make_policy(self.root / 'policy')
    file = self.root / 'mine.py'
    file.write_text("MODE = 'train'\nSEEDS = (1, 2)\n")
    swept = self.start(
        *('-m', 'evojax.main', '--mode=sweep'),
        *(f'--config=tests/tiny.py:{policy}', f'--sweep={file}'),
        *('--executor=ray', '--workers=2', '--arm_resources=CPU=1'),
        *('--config.eval.every=0', f'--workdir={self.URL}'),
        f'--compilation_cache={compiled.CACHE}',
    )
    self.assertEqual(swept.wait(), 0, self.said())
    store = storage.Store(self.URL)
    (row,) = json.loads(store.read('sweep.json'))
    self.assertEqual((row['seeds'], row['of']), (2, 2))
    self.assertIn('step 4/4', store.read('logs/all-1.log').decode())
    self.assertEmpty(os.listdir(self.root / 'cache'))


@pytest.mark.long
class SweepTest(ClusterTestCase):

  def test_no_point_runs_twice_after_the_driver_is_killed(self):
    """It dies in the middle of the second of three points."""
    policy = tiny.make_policy(self.root / 'policy')
    file = self.root / 'mine.py'
    file.write_text("MODE = 'train'\nSEEDS = (1, 2, 3)\n")
    command = [
        *(sys.executable, '-m', 'evojax.main', '--mode=sweep'),
        *(f'--config=tests/tiny.py:{policy}', f'--sweep={file}'),
        *('--config.steps=80', '--config.eval.every=0'),
        *('--executor=ray', '--workers=1', '--arm_resources=CPU=1'),
        *(f'--workdir={self.folder}', f'--compilation_cache={compiled.CACHE}'),
    ]
    start = lambda: self.popen(*command)
    points = [self.folder / f'all/seed-{seed}' for seed in (1, 2, 3)]
    first = start()
    wait_for(lambda: list(points[1].glob('evidence/train/*.parquet')))
    first.kill()
    first.wait()
    wait_for(lambda: not processes(self.folder), seconds=30)
    second = start()
    said = lambda: (self.root / 'driver.log').read_text()
    self.assertEqual(second.wait(), 0, said())
    starts = [
        len(json.loads((point / 'manifest.json').read_text()))
        for point in points
    ]
    self.assertEqual(starts, [1, 2, 1], said())
    for point in points:
      lines = (point / 'metrics.jsonl').read_text().splitlines()
      steps = [
          row['step'] for row in map(json.loads, lines) if 'loss' in row
      ]
      self.assertEqual(steps, list(range(1, 81)), point)
    (row,) = json.loads((self.folder / 'sweep.json').read_text())
    self.assertEqual((row['seeds'], row['of']), (3, 3))


if __name__ == '__main__':
  absltest.main()
