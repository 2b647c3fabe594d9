"""`--mode=arm` with the time of its parts; a child of `benchmarks.arms`.

    python -m benchmarks.timed_arm FILE --mode=arm --job=JOB.json

It runs the command of an arm, and writes to FILE, as JSON, the wall and CPU
time at the end of every part, and of every training step.
"""

import gc
import json
import pathlib
import runpy
import sys
import time

MARKS: list[tuple[str, float, float]] = []


def mark(part: str) -> None:
  """Record the end of a part: wall time since 1970 and CPU time, in s."""
  MARKS.append((part, time.time(), time.process_time()))


def timed(holder: object, name: str, part: str) -> None:
  """Mark the end of every call of a function."""
  function = getattr(holder, name)

  def call(*args, **kwargs):
    result = function(*args, **kwargs)
    mark(part)
    return result

  setattr(holder, name, call)


def main() -> None:
  """Run the arm; exits with its status."""
  file = pathlib.Path(sys.argv.pop(1))
  # The imports of an arm are part of what is timed; as in evojax.main, garbage
  # collection is off during them.
  gc.disable()
  from evojax.training import engines
  from evojax.training import setup
  from evojax.training import trainer

  mark('start and imports')
  timed(setup, 'prepare', 'prepare')
  timed(engines, 'open_sampler', 'devices and engine')
  timed(trainer.Trainer, '__init__', 'harness and restore')
  timed(trainer.Trainer, 'train_step', 'step')
  try:
    runpy.run_module('evojax.main', run_name='__main__', alter_sys=True)
  finally:
    mark('record')
    file.write_text(json.dumps(MARKS))


if __name__ == '__main__':
  main()
