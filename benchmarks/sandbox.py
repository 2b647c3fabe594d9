"""Compares the box's runs per second with bare forks of a warm interpreter.

    python -m benchmarks.sandbox [--runs=10000] [--slots=2] [--tiers=T0,T1,T2]

A bare zygote forks, runs the program on two pipes and waits, without any limits
or isolation. All systems alternate in short batches, so that other load on the
machine slows all of them; the ratio is compared. Afterwards, anything left
behind on the machine is counted.
"""

import concurrent.futures
import gc
import glob
import importlib
import os
import pathlib
import socket
import statistics
import sys
import tempfile
import time
import types

from absl import app
from absl import flags

from evojax.sandbox import box
from evojax.sandbox import probe
from evojax.sandbox import wire
from evojax.sandbox import zygote

# Smallest allowed share of the bare zygote's runs per second.
TARGETS = dict(T0=0.30, T1=0.60)
_PROGRAM = """\
n = int(input())
values = sorted(map(int, input().split()))
print(n, sum(values), values[n // 2])
"""
_STDIN = b'9\n3 1 4 1 5 9 2 6 5\n'
_STDOUT = b'9 36 4\n'
_BATCH = 100

_RUNS = flags.DEFINE_integer('runs', 10_000, 'Runs of the box, over all tiers.')
_SLOTS = flags.DEFINE_integer('slots', 2, 'Number of concurrent runs.')
_TIERS = flags.DEFINE_list('tiers', ['T0', 'T1', 'T2'], 'Tiers to time.')


class Bare:
  """Warm interpreters that only fork."""

  def __init__(self, slots: int):
    self._ends, self._processes = [], []
    for _ in range(slots):
      ours, theirs = socket.socketpair()
      process = os.fork()
      if not process:
        for end in (ours, *self._ends):  # Otherwise they never see it closed.
          end.close()
        _bare_zygote(theirs)
      theirs.close()
      self._ends.append(ours)
      self._processes.append(process)
    self._pool = concurrent.futures.ThreadPoolExecutor(slots)

  def run(self, count: int) -> None:
    """Run the program `count` times."""
    share = count // len(self._ends)
    list(self._pool.map(lambda end: self._serve(end, share), self._ends))

  def _serve(self, end, count):
    for _ in range(count):
      wire.send(end, {'program': _PROGRAM, 'stdin': _STDIN.decode()})
      answer, _ = wire.receive(end)
      if answer['stdout'].encode() != _STDOUT:
        raise RuntimeError(f'the bare zygote answered {answer}')

  def close(self):
    self._pool.shutdown()
    for end, process in zip(self._ends, self._processes, strict=True):
      end.close()
      os.waitpid(process, 0)


def _bare_zygote(control):
  for name in zygote.PRELOAD:
    importlib.import_module(name)
  gc.collect()
  gc.freeze()
  while True:
    try:
      request, _ = wire.receive(control)
    except EOFError:
      os._exit(0)
    stdin, write_stdin = os.pipe()
    stdout, write_stdout = os.pipe()
    os.write(write_stdin, request['stdin'].encode())
    os.close(write_stdin)
    process = os.fork()
    if not process:
      os.dup2(stdin, 0)
      os.dup2(write_stdout, 1)
      sys.stdin, sys.stdout = open(0), open(1, 'w')
      main = types.ModuleType('__main__')
      exec(compile(request['program'], 'main.py', 'exec'), main.__dict__)
      sys.stdout.flush()
      os._exit(0)
    os.close(stdin)
    os.close(write_stdout)
    with open(stdout) as file:
      text = file.read()
    os.waitpid(process, 0)
    wire.send(control, {'stdout': text})


def left_behind() -> dict[str, int]:
  """Count everything that runs could leave behind on this machine."""
  me = os.getpid()
  children = 0
  for path in glob.glob('/proc/[0-9]*/stat'):
    try:
      fields = pathlib.Path(path).read_text().rpartition(')')[2].split()
      command = pathlib.Path(path).with_name('cmdline').read_bytes()
    except OSError:
      continue
    children += int(fields[1]) == me or b'sandbox/supervisor.py' in command
  return {
      'processes': children,
      'mounts': len(pathlib.Path('/proc/self/mounts').read_text().split('\n')),
      'descriptors': len(os.listdir('/proc/self/fd')),
      'directories': len(
          glob.glob(os.path.join(tempfile.gettempdir(), 'evojax-box-*'))
      ),
      'shared memory': len(os.listdir('/dev/shm')),
  }


def main(argv):
  del argv
  before = left_behind()
  tiers = [tier for tier in _TIERS.value if not probe.faults(tier)]
  bare = Bare(_SLOTS.value)
  boxes = {tier: box.Box(tier=tier, slots=_SLOTS.value) for tier in tiers}
  pool = concurrent.futures.ThreadPoolExecutor(_SLOTS.value)
  seconds = {name: [] for name in ('bare', *tiers)}
  for one in boxes.values():
    one.start()
  rounds = max(2, _RUNS.value // (_BATCH * len(tiers)))
  for index in range(rounds + 1):
    times = {}
    start = time.perf_counter()
    bare.run(_BATCH)
    times['bare'] = time.perf_counter() - start
    for tier, one in boxes.items():
      start = time.perf_counter()
      runs = [pool.submit(one.run, _PROGRAM, _STDIN) for _ in range(_BATCH)]
      results = [run.result() for run in runs]
      times[tier] = time.perf_counter() - start
      wrong = [r for r in results if r.stdout != _STDOUT or r.status != 'ok']
      if wrong:
        raise RuntimeError(f'{len(wrong)} wrong results, e.g. {wrong[0]}')
    if index:  # The first round warms up.
      for name, took in times.items():
        seconds[name].append(took)
  for one in boxes.values():
    one.close()
  bare.close()
  pool.shutdown()
  failed = False
  for name, taken in seconds.items():
    ratio = statistics.median(
        b / t for b, t in zip(seconds['bare'], taken, strict=True)
    )
    target = TARGETS.get(name, 0.0)
    failed |= ratio < target
    print(
        f'{name:5} {_BATCH / statistics.median(taken):7.0f} runs/s'
        f'  {100 * ratio:5.1f} % of bare'
        + (f'  (target {100 * target:.0f} %)' if target else '')
    )
  after = left_behind()
  failed |= before != after
  print(
      f'{_BATCH * (rounds + 1) * len(tiers)} runs left',
      {name: after[name] - count for name, count in before.items()},
  )
  return int(failed)


if __name__ == '__main__':
  app.run(main)
