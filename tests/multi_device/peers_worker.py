"""Pairs of processes that wait for each other in a collective, all at once.

    python peers_worker.py ROOT SCENE ...

In the pair of a SCENE, 'SIGKILL-0' or 'SIGSTOP-1', that process gets the signal
while the other one waits for it. Prints one line of JSON per pair: exit codes,
what each process printed, and the seconds from the signal to each end. A
process that was stopped is continued once the other one has ended. Of the pair
'slow-1', one process comes late and nobody gets a signal.
"""

import json
import os
import pathlib
import signal
import sys
import time

import numpy as np

from evojax.runtime import peers
from evojax.runtime import preemption
from evojax.runtime import sharding
from evojax.runtime import waits
from tests import pairs

_SLOW_SECONDS, _SETTLE_SECONDS = 5, 8


def meet(folder, process, port, who, slow):
  """What a process of a pair does, from its join to its end."""
  peers.join(f'localhost:{port}', 2, process)
  try:
    sharding.broadcast(np.arange(3))
    (folder / f'ready{process}').touch()
    if process == who:
      with waits.at('nap'):
        time.sleep(_SLOW_SECONDS if slow else 600)
    sharding.broadcast(np.arange(3))
  except BaseException as error:
    peers.report_failure(error)
    raise
  peers.leave(0)


def start(folder, process, port, who, slow):
  """One process, forked; its number."""
  if child := pairs.fork(folder, process):
    return child
  preemption.listen()
  meet(folder, process, port, who, slow)
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
        start(self.folder, i, port, self.who, self.name == 'slow')
        for i in range(2)
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
      if self.name != 'slow':
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
