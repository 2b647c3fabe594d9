"""The cost of placing arms: simulated runs, sleeping arms, and real ones.

    python -m benchmarks.arms [--arms=10,100,1000] [--at_a_time=8]
    python -m benchmarks.arms --sleep=20        # Ray, six workers; needs ray.
    python -m benchmarks.arms --overhead=5      # Real arms, one at a time.

The first command trains nothing: arms are small programs that count steps, save
every few steps and occasionally lose their machine. The local executor runs
them as in a real run: all are submitted at once and awaited in order. Neither
this process's seconds per arm nor the number of repeated steps per arm may grow
with the number of arms. The second command starts a Ray cluster of three
machines with two CPUs each on this machine, and compares one sleeping arm with
six at a time. The third command trains arms of `configs/math.py` by
`--mode=arm`, from a checkpoint and with compiled programs in the cache. It
prints the overhead of an arm by its parts: the median wall and CPU seconds that
are not steps at the speed of the later steps.
"""

from collections.abc import Sequence
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

from configs import math as math_config
from evojax import config as config_lib
from evojax.evolve import executor
from evojax.evolve import opening
from evojax.harness import spec
from evojax.ledger import records
from evojax.ledger import rows as rows_lib
from evojax.runtime import commands
from evojax.runtime import progress
from evojax.training import arm as arm_lib

_ARMS = flags.DEFINE_list('arms', ['10', '100', '1000'], 'Arms of each run.')
_AT_A_TIME = flags.DEFINE_integer('at_a_time', 8, 'Arms that train at once.')
_OVERHEAD = flags.DEFINE_integer('overhead', 0, 'Real arms to measure.')
_SLEEP = flags.DEFINE_float('sleep', 0.0, 'Seconds of a sleeping arm, on Ray.')

# Average number of times that an arm loses its machine.
STEPS, EVERY, DEATHS = 20, 5, 0.3
_UPDATES = 4  # Steps of a real arm.
_PROGRAM = f"""
import os, pathlib, random, signal, sys
folder = pathlib.Path(sys.argv[1])
made, saved = folder / 'made', folder / 'saved'
start = int(saved.read_text()) if saved.exists() else 0
tried = made.stat().st_size if made.exists() else 0
chance = random.Random(f'{{folder.name}} {{tried}}')
dies = chance.random() < {DEATHS} and start + 1 + chance.randrange({STEPS})
for step in range(start + 1, {STEPS} + 1):
  with made.open('ab') as file:
    file.write(b'.')
  if step == dies:
    os.kill(os.getpid(), signal.SIGKILL)
  if step % {EVERY} == 0:
    saved.write_text(str(step))
os.replace(folder / 'result', folder / 'arm.json')  # Whole, or not there.
"""
_SLEEPER = """
import pathlib, sys, time
time.sleep(float(sys.argv[2]))
(pathlib.Path(sys.argv[1]) / 'done').write_text('')
"""


class _Program(commands.Command):
  """A small program instead of `--mode=arm`."""

  def argv(self) -> list[str]:
    return [sys.executable, '-S', '-E', '-c', *self.flags]


class _Mortal(commands.ThisMachine):
  """Runs the programs; a killed program counts as a lost machine."""

  def start(self, command: commands.Command) -> commands.Process:
    flags_ = (_PROGRAM, str(command.log.parent))
    process = super().start(
        _Program(command.name, flags_, command.log, command.is_done)
    )
    poll = process.poll
    lost = {-signal.SIGKILL: commands.LOST}
    process.poll = lambda: lost.get(poll(), poll())
    return process


def simulate(root: pathlib.Path, count: int, workers: int) -> dict[str, float]:
  """Run `count` arms; return the costs per arm."""
  pool = commands.Pool(_Mortal(), workers)
  shown = progress.Progress(
      [progress.Stage(name='arm', arms=count, steps=STEPS)], shown=False
  )
  placed = executor.Workers(pool, lambda: None, shown)
  jobs = []
  for i in range(count):
    arm = records.Arm(
        folder=f'arms/{i:06d}',
        seed=i,
        harness='',
        start='',
        end='',
        status='done',
        why='',
        updates=STEPS,
        outcome=(0.0,) * STEPS,
        sampled_tokens=0,
    )
    job = arm_lib.ArmJob(
        workdir=str(root),
        folder=arm.folder,
        config={},
        changes={},
        harness='',
        start='',
        label='',
    )
    job.path.mkdir(parents=True)
    (job.path / 'result').write_text(json.dumps(rows_lib.to_json(arm)))
    jobs.append(job)
  wall, cpu = time.monotonic(), time.process_time()
  for job in jobs:
    placed.submit(job)
  found = [placed.wait(job).folder for job in jobs]
  wall, cpu = time.monotonic() - wall, time.process_time() - cpu
  pool.close()
  if found != [job.folder for job in jobs]:
    raise RuntimeError('the records are not in the order of the jobs')
  made = sum((job.path / 'made').stat().st_size for job in jobs)
  _, losses = pool.deaths
  return {
      'arms': count,
      'machines lost': losses,
      'cpu ms/arm': 1e3 * cpu / count,
      'wall ms/arm': 1e3 * wall / count,
      'steps repeated/loss': (made - STEPS * count) / max(1, losses),
  }


def sleeping(root: pathlib.Path, seconds: float) -> dict[str, float]:
  """Return the seconds of one sleeping arm, and of six on six workers."""
  from ray import cluster_utils

  cluster = cluster_utils.Cluster(
      initialize_head=True,
      head_node_args=dict(num_cpus=0, include_dashboard=False),
  )
  for _ in range(3):
    cluster.add_node(num_cpus=2)
  os.environ['RAY_ADDRESS'] = cluster.address
  found = {}
  for count in (1, 6):
    pool = commands.Pool(commands.open_engine('ray', ['CPU=1']), 6)
    began, names = time.monotonic(), []
    for i in range(count):
      folder = root / f'{count}-{i}'
      folder.mkdir()
      names.append(folder.name)
      flags_ = (_SLEEPER, str(folder), str(seconds))
      done = (folder / 'done').exists
      pool.submit(_Program(folder.name, flags_, folder / 'log', done))
    while pool.running:
      pool.advance()
      time.sleep(0.05)
    found[f'{count} arms'] = time.monotonic() - began
    pool.close()
  cluster.shutdown()
  found['six / one'] = found['6 arms'] / found['1 arms']
  found['overhead s/arm'] = found['6 arms'] - seconds
  return found


def overhead(root: pathlib.Path, count: int) -> dict[str, tuple[float, float]]:
  """Return the median wall and CPU seconds of each part of real arms."""
  config = math_config.get_config()
  harness = opening.seed_harness(config)
  spec.write(harness, root / 'harness')
  rows: dict[str, list[tuple[float, float]]] = {}
  for i in range(-1, count):  # Arm -1 fills the cache, and trains the start.
    job = arm_lib.ArmJob(
        workdir=str(root),
        folder=f'arms/{i}',
        config=config_lib.to_mapping(config),
        changes={
            'seed': i + 1,
            'steps': _UPDATES,
            'eval.sealed': False,
            'checkpoint.every': _UPDATES,
        },
        harness=harness.sha256,
        start='' if i < 0 else f'arms/-1/checkpoints/step_{_UPDATES:06d}',
        label='',
    )
    job.path.mkdir(parents=True)
    (job.path / 'job.json').write_text(job.to_json())
    marks, command = job.path / 'marks.json', [
        *(sys.executable, '-m', 'benchmarks.timed_arm'),
        *(str(job.path / 'marks.json'), '--mode=arm'),
        f'--job={job.path / "job.json"}',
    ]
    began = time.time()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    if i >= 0:
      parts = _parts(json.loads(marks.read_text()), began, time.time())
      for part, seconds in parts.items():
        rows.setdefault(part, []).append(seconds)
  return {
      part: tuple(statistics.median(s) for s in zip(*seconds, strict=True))
      for part, seconds in rows.items()
  }


def _parts(
    marks: Sequence[tuple[str, float, float]], began: float, ended: float
) -> dict[str, tuple[float, float]]:
  """Return the wall and CPU seconds of the parts of an arm's overhead.

  Args:
    marks: End of each part, as (name, wall time, CPU time).
    began: Wall time at which the process was started.
    ended: Wall time at which it had ended.
  """
  parts, steps, before = {}, [], (began, 0.0)
  for name, *now in marks:
    spent = tuple(b - a for a, b in zip(before, now, strict=True))
    before = now
    if name == 'step':
      steps.append(spent)
    else:
      parts[name] = spent
  usual = [statistics.median(s) for s in zip(*steps[1:], strict=True)]
  parts['first step, compiled'] = tuple(
      a - b for a, b in zip(steps[0], usual, strict=True)
  )
  parts['exit'] = (ended - before[0], 0.0)
  parts['overhead'] = tuple(map(sum, zip(*parts.values(), strict=True)))
  parts['a later step'] = tuple(usual)
  return parts


def main(_):
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    if _OVERHEAD.value:
      for part, (wall, cpu) in overhead(root, _OVERHEAD.value).items():
        print(f'{part:22} {wall:6.2f} s, CPU {cpu:6.2f} s')
      return
    if _SLEEP.value:
      found = sleeping(root, _SLEEP.value)
      print('  '.join(f'{name} {x:.2f}' for name, x in found.items()))
      return
    for count in map(int, _ARMS.value):
      found = simulate(root / str(count), count, _AT_A_TIME.value)
      print('  '.join(f'{name} {x:.4g}' for name, x in found.items()))


if __name__ == '__main__':
  app.run(main)
