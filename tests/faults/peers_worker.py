"""Trains or evolves in pairs of processes; one of each pair meets its end.

    python peers_worker.py ROOT MODE CONFIG SCENE ...

ROOT/whole is a run that nothing disturbs. ROOT/run is one that meets each SCENE
in turn, 'SIGKILL-0', 'SIGSTOP-1' or 'disk-0' (its disk is full), and goes on
where it was left. Prints one line of JSON per pair: exit codes, what each
process printed, and the seconds from the signal to the end of both. A process
that was stopped is continued once the other one has ended.

The processes are forked before jax starts a thread, and after all imports, also
those that a run makes late: importing takes longer than training.
"""

import gc
import json
import os
import pathlib
import signal
import sys
import time

import pandas  # noqa: F401
import reasoning_gym  # noqa: F401
from scipy import stats  # noqa: F401
from transformers import PreTrainedTokenizerFast  # noqa: F401

from evojax import main as main_lib
from evojax.evolve import loop  # noqa: F401
from evojax.modes import train  # noqa: F401
from evojax.runtime import orbax_noise
from evojax.runtime import preemption
from tests import compiled
from tests import pairs

# Which call of the reward brings the end: the second update, an arm in a race.
_CALLS = {'train': 4, 'evolve': 8}


def start(root, mode, config, workdir, process, port, fatal):
  """One process, forked; its number."""
  if child := pairs.fork(root, process):
    return child
  preemption.listen()
  os.environ['FATAL'] = fatal
  sys.argv = [
      main_lib.__file__,
      f'--mode={mode}',
      f'--config={config}',
      '--config.reward.parts=tests.faults.fatal_reward.parts',
      '--config.mesh.data=2',
      '--config.grpo.micro_groups=2',
      '--config.checkpoint.every=1',
      '--config.eval.every=0',
      f'--compilation_cache={compiled.CACHE}',
      f'--workdir={workdir}',
      '--distributed',
      f'--coordinator=localhost:{port}',
      '--processes=2',
      f'--process={process}',
  ]
  orbax_noise.hush(lambda: False)
  sys.exit(main_lib.main(main_lib.parse_flags(sys.argv)))


def state(child):
  """'Z' of one that has ended, 'T' of one that is stopped."""
  text = pathlib.Path(f'/proc/{child}/stat').read_text()
  return text.rpartition(')')[2].split()[0]


def run(root, mode, config, folder, scene):
  """A pair of processes; what came of it."""
  name, _, who = scene.partition('-')
  port = pairs.free_port()
  what = int(getattr(signal, name, 0)) or (name == 'disk' and name)
  fatal = f'{what}@{_CALLS[mode]}' if what else ''
  children = [
      start(root, mode, config, root / folder, i, port, fatal * (str(i) == who))
      for i in range(2)
  ]
  struck, codes, seconds = None, {}, {}
  while len(codes) < 2:
    time.sleep(0.1)
    for i, child in enumerate(children):
      if i in codes:
        continue
      if struck is None and str(i) == who and state(child) in 'TZ':
        struck = time.monotonic()
      if state(child) == 'Z':
        codes[i] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        seconds[i] = round(time.monotonic() - (struck or time.monotonic()), 1)
        other = children[1 - i]
        if 1 - i not in codes and state(other) == 'T':
          os.kill(other, signal.SIGCONT)
  return dict(
      codes=[codes[i] for i in range(2)],
      seconds=[seconds[i] for i in range(2)],
      out=[(root / f'out{i}').read_text() for i in range(2)],
  )


def main(root, mode, config, *scenes):
  root = pathlib.Path(root)
  gc.freeze()  # No process searches what all of them share.
  for scene in ('whole', *scenes, 'end'):
    folder = 'whole' if scene == 'whole' else 'run'
    found = run(root, mode, config, folder, scene)
    print(json.dumps({'scene': scene} | found), flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
