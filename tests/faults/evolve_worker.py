"""Evolves the tiny run several times, and ends most of them by SIGKILL.

    python evolve_worker.py ROOT URL

ROOT/reference is one undisturbed run. ROOT/killed is one run that dies before
the row of every step in turn, and inside an arm, each time in a process of its
own, which continues what the one before it left. The run at URL, such as
objects://bucket/run, is in an object store, and dies at STORED.

The processes are forked before jax starts a thread, and after all imports, also
those that a run makes late: importing takes longer than training.
"""

import dataclasses
import gc
import json
import os
import pathlib
import signal
import sys
import time

from absl import logging
import pandas  # noqa: F401
import reasoning_gym  # noqa: F401
from scipy import stats  # noqa: F401
from transformers import PreTrainedTokenizerFast  # noqa: F401

import evojax
from evojax.eval import race
from evojax.evolve import learning
from evojax.evolve.steps import verify
from evojax.ledger import chain
from evojax.runtime import durable
from evojax.runtime import storage
from evojax.training import trainer as trainer_lib
from tests import objects  # noqa: F401, which registers a scheme.
from tests import tiny

STEPS = (
    'open', 'train', 'diagnose', 'hypothesize', 'design', 'admit', 'backtest',
    'verify', 'promote', 'accumulate', 'race', 'audit', 'shadow', 'retrain',
    'seal', 'final',
)  # fmt: skip
# In the order in which one run meets them; 'promote' and what is before it for
# the measurement, the race of the first round, the shadow of the second, the
# race of the round after the last one and its shadow.
POINTS = (
    *STEPS[:10], 'torn', 'arm', 'race', 'audit', 'shadow', 'look', 'horizon',
    'last', *STEPS[13:], 'summary',
)  # fmt: skip
STORED = 'arm', 'final'
# A diagnostic that follows the score is kept for certain: there is a promotion.
QUEUED = {
    'delta': {'file': 'diagnostics/solved.py', 'source_file': 'solved.py'},
    'hypothesis': 'How much is solved should be seen.',
    'expected': [0.0, 0.0],
}
RACED = {
    'delta': {'overlay': {'optim.learning_rate': 0.002}},
    'hypothesis': 'It learns too slowly.',
    'expected': [0.0, 0.5],
}
SOLVED = """
LAYER = 'score'
UNIT = 'fraction'


def measure(e):
  if not e.valid.any():
    return {}
  return {'share_solved': float(e.outcome[e.valid].mean())}
"""


def die():
  os.kill(os.getpid(), signal.SIGKILL)
  time.sleep(60)  # Not one more line is run.


def intercept(owner, name, matches):
  """Replaces a function by one that dies where its arguments match."""
  original = getattr(owner, name)

  def wrapper(*args, **kwargs):
    return die() if matches(*args, **kwargs) else original(*args, **kwargs)

  setattr(owner, name, wrapper)


def prepare_death(point):
  """Makes this process die at a point."""
  if point in STEPS:
    intercept(chain.Ledger, 'append', lambda self, step, *args: step == point)
  elif point == 'torn':  # Half of the last row reaches the disk.
    write = chain.Ledger._write

    def torn(self, at, data):
      write(self, at, data[: len(data) // 2])
      die()

    chain.Ledger._write = torn
  elif point == 'arm':
    train_on = trainer_lib.Trainer._train_on

    def dies_once_evidence_is_there(trainer, batch):
      if trainer.step == 1 and 'incumbent-2' in str(trainer.workdir):
        trainer.learner.learn = lambda batch: die()
      return train_on(trainer, batch)

    trainer_lib.Trainer._train_on = dies_once_evidence_is_there
  elif point == 'look':
    intercept(
        chain.Ledger,
        'append',
        lambda self, step, row, *rest: step == 'shadow' and row['look'],
    )
  elif point in ('horizon', 'last'):
    step_of = {'horizon': 'race', 'last': 'shadow'}[point]
    intercept(
        chain.Ledger,
        'append',
        lambda self, step, row, *rest: step == step_of and row['round'] == 3,
    )
  elif point == 'summary':
    intercept(
        durable,
        'write_atomic',
        lambda path, *args: pathlib.Path(path).name == 'summary.json',
    )


def leave(workdir):
  """Leaves the changes in the inbox of a run that has not begun."""
  texts = {
      'solved.py': SOLVED,
      '10-solved.json': json.dumps(QUEUED),
      '20-raced.json': json.dumps(RACED),
  }
  for name, text in texts.items():
    if storage.is_remote(workdir):
      storage.Store(workdir).write(f'inbox/{name}', text.encode())
    else:
      path = pathlib.Path(workdir, 'inbox', name)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text)


def run(name, workdir, config, audited):
  """One process; its exit status."""
  child = os.fork()
  if child:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
  logging.set_verbosity(logging.ERROR)
  prepare_death(name)
  # Every candidate is kept, so that there is a shadow, which trains beyond the
  # last round.
  race.passed = lambda standings, thresholds: sorted(standings)
  gate = race.gate
  race.gate = lambda *given, **options: dataclasses.replace(
      gate(*given, **options), status='holds'
  )
  if not audited:
    verify._perturbed = lambda *_: None
  race.horizon = lambda *_, last, **__: race.Verdict(
      'keep' if last else 'go_on', ''
  )
  learning.could_catch_up = lambda *_: True
  evojax.run(config, workdir)
  os._exit(0)


def play(deaths, config, audited=False):
  """Runs a config several times.

  Args:
    deaths: Workdir -> the points at which a run dies.
    config: The config.
    audited: Whether candidates are scored on perturbed problems.
  """
  gc.freeze()  # No process searches what all of them share.
  for workdir, points in deaths.items():
    leave(workdir)
    for name in (*points, 'finish'):
      started = time.time()
      status = run(name, workdir, config, audited)
      seconds = time.time() - started
      print(f'{workdir} {name}: {status} {seconds:.1f} s', flush=True)
      wanted = -signal.SIGKILL if name in points else 0
      if status != wanted:
        sys.exit(f'{workdir} {name}: exit status {status}, not {wanted}')


def main(root, url):
  deaths = {f'{root}/reference': (), f'{root}/killed': POINTS, url: STORED}
  config = tiny.evolving(evolve__rounds=3, evolve__retrain=True)
  play(deaths, config, audited=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
