"""A trainer and its servers on machines of their own, as far as Linux can say.

Each has a network namespace, so that only the addresses below connect them, and
a mount namespace in which the directories of the others are empty.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from absl.testing import absltest
import pytest

from evojax.evidence import store
from tests import compiled
from tests import tiny

# Not routed, see RFC 5737: tests use no real network.
ADDRESSES = {
    'trainer': '192.0.2.1',
    'stays': '192.0.2.2',
    'leaves': '192.0.2.3',
    'joins': '192.0.2.4',
}
PORT = 30_000
STEPS = 60
KEY = 'a key of the servers'
_ROOM = 'mount -t tmpfs none "$1" && shift && exec "$@"'
_PAGE = (
    'import sys, urllib.request as u;'
    " print(u.urlopen(u.Request(sys.argv[1], headers={'Authorization':"
    " 'Bearer ' + sys.argv[2]}), timeout=10).read().decode())"
)


def ip(*arguments):
  subprocess.run(['ip', *arguments], check=True, capture_output=True)


def why_not():
  """Return why this machine cannot make the namespaces; '' if it can."""
  if os.geteuid() or not shutil.which('ip'):
    return 'network namespaces need root and iproute2'
  name = f'evojax-{os.getpid()}-probe'
  try:
    ip('netns', 'add', name)
    ip('netns', 'delete', name)
  except subprocess.CalledProcessError as error:
    return f'no network namespaces here: {error.stderr.decode().strip()}'
  return ''


@pytest.mark.slow
@pytest.mark.long
class NamespacesTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if why := why_not():
      raise unittest.SkipTest(why)

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    self.hub = self.make_namespace('hub')
    ip('-n', self.hub, 'link', 'add', 'bridge', 'type', 'bridge')
    ip('-n', self.hub, 'link', 'set', 'bridge', 'up')
    for name, address in ADDRESSES.items():
      space = self.make_namespace(name)
      ip(
          *('-n', space, 'link', 'add', 'eth0', 'type', 'veth'),
          *('peer', 'name', name, 'netns', self.hub),
      )
      ip('-n', self.hub, 'link', 'set', name, 'master', 'bridge', 'up')
      ip('-n', space, 'address', 'add', f'{address}/24', 'dev', 'eth0')
      ip('-n', space, 'link', 'set', 'eth0', 'up')
      tiny.make_policy(self.root / 'all' / name / 'policy')

  def make_namespace(self, name):
    space = f'evojax-{os.getpid()}-{name}'
    ip('netns', 'add', space)
    self.addCleanup(ip, 'netns', 'delete', space)
    return space

  def start(self, name, *flags):
    """Start evojax on a machine, which sees no other's directory."""
    home, hidden = self.root / name, self.root / 'all'
    home.mkdir()
    # Each machine sees its own hidden directory at another place.
    room = f'mount --bind "{hidden / name}" "{home}" && {_ROOM}'
    log = (self.root / f'{name}.log').open('w')
    self.addCleanup(log.close)
    process = subprocess.Popen(
        [
            *('ip', 'netns', 'exec', f'evojax-{os.getpid()}-{name}'),
            *('sh', '-c', room, 'sh', hidden),
            *(sys.executable, '-m', 'evojax.main'),
            f'--config=tests/tiny.py:{home / "policy"}',
            f'--compilation_cache={compiled.CACHE}',
            *flags,
        ],
        cwd=tiny.ROOT,
        env=tiny.environment(EVOJAX_TEST_KEY=KEY),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    self.addCleanup(self.end, process)
    return process

  def end(self, process):
    if process.poll() is None:
      os.killpg(process.pid, signal.SIGKILL)
      process.wait()

  def log(self, name):
    return (self.root / f'{name}.log').read_text()[-3000:]

  def url(self, name):
    return f'http://{ADDRESSES[name]}:{PORT}'

  def sampled(self, name, asker='trainer'):
    """Return how many tokens a server has sampled; None if it is not up."""
    page = subprocess.run(
        [
            *('ip', 'netns', 'exec', f'evojax-{os.getpid()}-{asker}'),
            *(sys.executable, '-c', _PAGE, f'{self.url(name)}/metrics', KEY),
        ],
        capture_output=True,
        check=False,
        text=True,
    ).stdout
    found = re.search(r'^sglang:generation_tokens_total\S* (\S+)', page, re.M)
    return float(found[1]) if found else None

  def until(self, what, process, name):
    """Wait until a condition holds, or fail when a process ends before."""
    deadline = time.monotonic() + 300
    while not what():
      self.assertIsNone(process.poll(), self.log(name))
      self.assertLess(time.monotonic(), deadline, self.log(name))
      time.sleep(0.2)

  def test_servers_on_other_machines_join_and_leave(self):
    servers = {}
    for name in ('stays', 'leaves', 'joins'):
      servers[name] = self.start(
          name,
          '--mode=serve',
          f'--host={ADDRESSES[name]}',
          f'--port={PORT}',
          '--config.serve.api_key_env=EVOJAX_TEST_KEY',
          '--config.serve.context_tokens=64',
      )
    for name, server in servers.items():
      self.until(lambda n=name: self.sampled(n) is not None, server, name)
    roster = self.root / 'all/trainer/servers'
    roster.write_text(f'{self.url("stays")}\n{self.url("leaves")}\n')
    workdir = self.root / 'all/trainer/run'
    trainer = self.start(
        'trainer',
        '--mode=train',
        f'--workdir={self.root}/trainer/run',
        f'--config.steps={STEPS}',
        '--config.rollout.kind=sglang',
        f'--config.rollout.urls_file={self.root}/trainer/servers',
        '--config.rollout.api_key_env=EVOJAX_TEST_KEY',
        '--config.rollout.weights_transport=tensors',
        '--config.rollout.queue_depth=1',
        '--config.rollout.max_staleness=1',
        '--config.grpo.tis_cap=2.0',
        # A slow machine: the newcomer has time to join.
        '--config.rollout.concurrency=1',
    )
    metrics = workdir / 'metrics.jsonl'
    self.until(
        lambda: metrics.exists() and len(metrics.read_text().split('\n')) > 4,
        trainer,
        'trainer',
    )
    self.assertEqual(self.sampled('joins'), 0)
    self.assertGreater(self.sampled('leaves'), 0)
    # One leaves, at once and without a word; another joins.
    os.killpg(servers['leaves'].pid, signal.SIGKILL)
    roster.write_text(f'{self.url("stays")}\n{self.url("joins")}\n')
    self.assertEqual(trainer.wait(300), 0, self.log('trainer'))
    for name in ('stays', 'joins'):
      self.assertGreater(self.sampled(name), 0, name)
      self.assertIsNone(servers[name].poll())
    # All trained on samples of the weights before, none on older ones.
    rows = store.read(workdir, 'train')
    self.assertEqual(sorted(set(rows['step'])), list(range(STEPS)))
    staleness = rows.groupby('step')['staleness'].max()
    self.assertEqual(staleness.iloc[0], 0)
    self.assertEqual(set(staleness.iloc[1:]), {1.0})
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    self.assertGreater(max(row.get('grad_norm', 0) for row in steps), 0)
    # No file went to a server.
    there = self.root / 'all/stays'
    self.assertEqual([p.name for p in there.iterdir()], ['policy'])


if __name__ == '__main__':
  absltest.main()
