"""Pairs of processes that wait for each other in a collective, all at once.

    python peers_worker.py ROOT SCENE ...

In the pair of a SCENE, 'SIGKILL-0' or 'SIGSTOP-1', that process gets the signal
while the other one waits for it. Prints one line of JSON per pair: exit codes,
what each process printed, and the seconds from the signal to each end. A
process that was stopped is continued once the other one has ended. Nobody gets
a signal in three pairs, whose limit on collectives is short: of 'slow-1', one
process comes later than that, but advances; of 'hang-1', both are in the same
program, which ends in neither, since one of them does not reach its collective.
In 'alone-1', process 0 has two devices and no other process: it advances for
longer than the limit, and then its second device reaches no collective.
"""

import json
import os
import pathlib
import signal
import sys
import time

import jax
import numpy as np

from evojax.runtime import metrics
from evojax.runtime import peers
from evojax.runtime import preemption
from evojax.runtime import sharding
from evojax.runtime import waits
from tests import pairs

_SETTLE_SECONDS = 8
_LIMIT_SECONDS = 12
_LIMITED = ('slow', 'hang', 'alone')


def hang(who):
  """Run a program with a collective that one of two devices never reaches."""
  mesh = sharding.make_mesh(data=2, fsdp=1, tensor=1)

  def reach(x):
    time.sleep(600 * (int(x[0]) == who))
    return x

  def program(x):
    x = jax.pure_callback(reach, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    return jax.lax.psum(x, 'data')

  where = sharding.P('data')
  array = sharding.to_device(
      np.arange(2.0), jax.sharding.NamedSharding(mesh, where)
  )
  program = jax.shard_map(
      program, mesh=mesh, in_specs=where, out_specs=sharding.P()
  )
  with metrics.Phases()('update'):
    jax.block_until_ready(jax.jit(program)(array))


def meet(folder, process, port, who, name):
  """Run one process of a pair, from its join to its end."""
  peers.set_limit(_LIMIT_SECONDS if name in _LIMITED else 3600)
  if name == 'alone':
    (folder / f'ready{process}').touch()
    if process:
      return
    os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'
    peers.watch_alone(2)
    for _ in range(10):  # Longer than the limit.
      with waits.at('step'):
        time.sleep(2)
    hang(who)
  peers.join(f'localhost:{port}', 2, process)
  try:
    sharding.broadcast(np.arange(3))
    (folder / f'ready{process}').touch()
    if name == 'hang':
      hang(who)
    elif process == who:
      with waits.at('nap'):
        for _ in range(10 if name == 'slow' else 300):
          time.sleep(2)
          if name == 'slow':
            waits.advance()
    sharding.broadcast(np.arange(3))
  except BaseException as error:
    peers.report_failure(error)
    raise
  peers.leave(0)


def start(folder, process, port, who, name):
  """One process, forked; its number."""
  if child := pairs.fork(folder, process):
    return child
  preemption.listen()
  meet(folder, process, port, who, name)
  sys.exit()


class Pair:
  """The two processes of a scene."""

  def __init__(self, root, scene):
    self.name, _, who = scene.partition('-')
    self.who, self.folder = int(who), root / scene
    self.folder.mkdir()
    port = pairs.free_port()
    self.ready = self.struck = None
    self.codes, self.seconds = {}, {}
    self.children = [
        start(self.folder, i, port, self.who, self.name) for i in range(2)
    ]

  def advance(self):
    """Look at both; False once they have ended."""
    ready = all((self.folder / f'ready{i}').exists() for i in range(2))
    if ready and self.ready is None:
      self.ready = time.monotonic()
    # A heartbeat says what they are doing.
    settled = self.ready and time.monotonic() > self.ready + _SETTLE_SECONDS
    if self.struck is None and settled:
      self.struck = time.monotonic()
      if self.name not in _LIMITED:
        os.kill(self.children[self.who], getattr(signal, self.name))
    for i, child in enumerate(self.children):
      if i in self.codes or not os.waitid(
          os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT
      ):
        continue
      self.codes[i] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
      self.seconds[i] = time.monotonic() - (self.struck or time.monotonic())
      if self.name == 'SIGSTOP' and i != self.who:
        os.kill(self.children[self.who], signal.SIGCONT)
    return len(self.codes) < 2

  def result(self):
    return dict(
        scene=self.folder.name,
        codes=[self.codes[i] for i in range(2)],
        seconds=[self.seconds[i] for i in range(2)],
        out=[(self.folder / f'out{i}').read_text() for i in range(2)],
    )


def main(root, *scenes):
  pairs = [Pair(pathlib.Path(root), scene) for scene in scenes]
  while any([pair.advance() for pair in pairs]):
    time.sleep(0.1)
  for pair in pairs:
    print(json.dumps(pair.result()), flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
