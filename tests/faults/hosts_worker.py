"""Trains in pairs of processes without a shared directory, and kills both.

    python hosts_worker.py ROOT CONFIG POINT ...

ROOT/whole is an undisturbed run of a pair in a shared directory. Another run is
at objects://bucket/run; each of its two processes has a disk of its own, and
five calls of a hundred fail. At each POINT in turn one process dies, and the
other one with it, except at 'left'; then the same command goes on to the end.
The pair 'fork', if it is named last, starts from that run at
objects://bucket/fork. Prints one line of JSON per pair: exit codes and what
each process printed. ROOT/<name>.uploads<process> names the objects that a
process has uploaded.

The processes are forked before jax starts a thread, and after all imports, also
those that a run makes late: importing takes longer than training.
"""

import gc
import json
import os
import pathlib
import signal
import sys

from absl import logging
import pandas  # noqa: F401
import reasoning_gym  # noqa: F401
from transformers import PreTrainedTokenizerFast  # noqa: F401

from evojax import main as main_lib
from evojax.modes import train  # noqa: F401
from evojax.runtime import listing
from evojax.runtime import mirrored
from evojax.runtime import orbax_noise
from evojax.runtime import preemption
from evojax.runtime import storage
from tests import compiled
from tests import objects  # noqa: F401, which registers the scheme.
from tests import pairs
from tests.faults import kill_worker

URL, FORK = 'objects://bucket/run', 'objects://bucket/fork'
_LAST = 'step_000002'


def send():
  kill_worker.intercept(
      mirrored.Mirror,
      'send',
      lambda mirror, folder, *_: folder.name.startswith(_LAST),
      after=True,
  )


# Point -> the process that dies, and what it does last. In the order in which
# one run meets them.
POINTS = dict(
    # Process 1 has uploaded its shards, and process 0 has not been told.
    sent=(1, send),
    # As before, but process 0 lives on.
    left=(1, send),
    # All objects of a checkpoint are there, and no list names them.
    naming=(
        0,
        lambda: kill_worker.intercept(
            listing.Listing,
            'write',
            lambda self, added, removed: any(_LAST in name for name in added),
        ),
    ),
)
FLAGS = (
    '--mode=train',
    '--config.steps=2',
    '--config.optim.warmup_steps=1',
    '--config.checkpoint.every=1',
    '--config.eval.every=0',
    '--config.eval.sealed=False',
    '--config.mesh.data=1',
    '--config.mesh.fsdp=2',
    '--config.grpo.micro_groups=2',
)
WORKDIRS = dict(fork=FORK)


def start(root, flags, deaths, name, process, port):
  """One process, forked; its number."""
  if child := pairs.fork(root, process):
    return child
  preemption.listen()
  os.environ['XDG_CACHE_HOME'] = str(root / f'disk{process}')
  os.environ['OBJECTS_FAILING'] = '0.05'
  upload = storage.Store.upload

  def logged_upload(store, file, object_name):
    with open(root / f'{name}.uploads{process}', 'a') as log:
      print(object_name, file=log)
    return upload(store, file, object_name)

  storage.Store.upload = logged_upload
  who, dies = deaths.get(name, (None, None))
  if process == who:
    dies()
  workdir = root / name if name == 'whole' else WORKDIRS.get(name, URL)
  sys.argv = [
      main_lib.__file__,
      *flags,
      f'--compilation_cache={compiled.CACHE}',
      f'--workdir={workdir}',
      *(['--fork_from=' + URL] if name == 'fork' else []),
      '--distributed',
      f'--coordinator=localhost:{port}',
      '--processes=2',
      f'--process={process}',
  ]
  logging.use_absl_handler()
  orbax_noise.hush(lambda: False)
  sys.exit(main_lib.main(main_lib.parse_flags(sys.argv)))


def run(root, flags, deaths, name):
  """A pair of processes; if one is killed, so is the other."""
  port = pairs.free_port()
  children = [start(root, flags, deaths, name, i, port) for i in range(2)]
  codes = {}
  while len(codes) < 2:
    child, status = os.wait()
    codes[children.index(child)] = code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL and name != 'left':
      for other in children:
        if children.index(other) not in codes:
          os.kill(other, signal.SIGKILL)
  return [codes[i] for i in range(2)]


def play(root, flags, deaths, names):
  """Runs pairs of processes, and prints what became of them.

  Args:
    root: Directory of all files.
    flags: Command line of every process, without what tells them apart.
    deaths: As POINTS.
    names: Names of the pairs, in order.
  """
  gc.freeze()  # No process searches what all of them share.
  for name in names:
    codes = run(root, flags, deaths, name)
    out = [(root / f'out{i}').read_text() for i in range(2)]
    print(json.dumps(dict(name=name, codes=codes, out=out)), flush=True)


def main(root, config, *points):
  forks = [name for name in points if name == 'fork']
  names = ('whole', *points[: len(points) - len(forks)], 'end', *forks)
  play(pathlib.Path(root), (f'--config={config}', *FLAGS), POINTS, names)


if __name__ == '__main__':
  main(*sys.argv[1:])
