"""Trains the tiny run several times, and ends most of them by SIGKILL.

    python kill_worker.py CONFIG POLICY ROOT POINT ...

CONFIG is a module with get_config(POLICY). ROOT/reference is one undisturbed
run. ROOT/killed is one run that meets its end at each of these POINTS in turn,
each time in a process of its own, which continues what the one before it left.
ROOT/<point>/ shows what was left, and ROOT/<point>.steps the steps whose update
that process finished.

The processes are forked before jax starts a thread, and after all imports, also
those that a run makes late: importing takes longer than training.
"""

import gc
import importlib
import os
import pathlib
import shutil
import signal
import sys
import time

from absl import logging
import pandas  # noqa: F401
import reasoning_gym  # noqa: F401
from transformers import PreTrainedTokenizerFast  # noqa: F401

import evojax
from evojax.domains import environments
from evojax.domains.swe import tools
from evojax.eval import sealed
from evojax.models import hf
from evojax.runtime import checkpoint
from evojax.runtime import durable
from evojax.training import learner as learner_lib
from evojax.training import trainer as trainer_lib

UNDISTURBED = ('reference', 'finish')


def die():
  os.kill(os.getpid(), signal.SIGKILL)
  time.sleep(60)  # Not one more line is run.


def intercept(owner, name, matches, after=False):
  """Replaces a function by one that dies where its arguments match."""
  original = getattr(owner, name)

  def wrapper(*args, **kwargs):
    found = matches(*args, **kwargs)
    result = original(*args, **kwargs) if after or not found else None
    return die() if found else result

  setattr(owner, name, wrapper)


def at_step(step):
  return lambda owner, *args, **kwargs: owner.step == step


def writes(name):
  return lambda path, *args: pathlib.Path(path).name == name


def saving():
  original = checkpoint.Checkpointer._commit

  def slow(*args):
    time.sleep(1)  # The training could run ahead, if nothing held it.
    original(*args)

  checkpoint.Checkpointer._commit = slow
  intercept(durable, 'write_atomic', writes('meta.json'))


def exporting():
  def last_step_is_saved(tmp, path):
    checkpoints = path.with_name('checkpoints')
    while not (checkpoints / 'step_000004').exists():
      time.sleep(0.01)
    return True

  intercept(hf, '_replace', last_step_is_saved)


def answering():
  from tests import talk  # Only here: others need no jax for it.

  reply, heard = talk.Environment.reply, []

  def last_words(self, turn):
    heard.append(turn)
    return die() if len(heard) == 30 else reply(self, turn)

  talk.Environment.reply = last_words


def editing():
  """An agent has changed its tree, and the call after that never returns."""
  reply, changed = environments.ToolEnvironment.reply, set()

  def last_words(self, turn):
    if id(self) in changed:
      die()
    answer = reply(self, turn)
    if answer.action == tools.ACTIONS['edit'] and answer.ok:
      changed.add(id(self))
    return answer

  environments.ToolEnvironment.reply = last_words


# In the order in which one run meets them; steps count from 0.
POINTS = dict(
    answering=answering,
    editing=editing,
    sampled=lambda: intercept(trainer_lib.Trainer, 'reward', at_step(1)),
    evidence=lambda: intercept(learner_lib.Learner, 'learn', at_step(1)),
    updated=lambda: intercept(
        learner_lib.Learner, 'learn', at_step(1), after=True
    ),
    logged=lambda: intercept(trainer_lib.Trainer, 'save', at_step(2)),
    saving=saving,
    committed=lambda: intercept(
        checkpoint.Checkpointer, '_delete_old', lambda self: True
    ),
    evaluating=lambda: intercept(
        sealed.evaluate,
        'evaluate',
        lambda *args, split, step, **kwargs: split == 'sealed' and step > 0,
    ),
    exporting=exporting,
    summary=lambda: intercept(durable, 'write_atomic', writes('summary.json')),
)


def run(config, root, name, workdir):
  """One process; its exit status."""
  child = os.fork()
  if child:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
  logging.set_verbosity(logging.ERROR)
  learn = learner_lib.Learner.learn

  def logged_learn(learner, batch):
    number = learner.step
    result = learn(learner, batch)
    with open(root / f'{name}.steps', 'a') as file:
      print(number, file=file)
    return result

  learner_lib.Learner.learn = logged_learn
  POINTS.get(name, lambda: None)()
  evojax.run(config, workdir)
  os._exit(0)


def main(config, policy, root, *points, killed=''):
  root = pathlib.Path(root)
  killed = killed or str(root / 'killed')
  gc.freeze()  # No process searches what all of them share.
  config = importlib.import_module(config).get_config(policy)
  for name in ('reference', *points, 'finish'):
    started = time.time()
    workdir = str(root / 'reference') if name == 'reference' else killed
    status = run(config, root, name, workdir)
    wanted = 0 if name in UNDISTURBED else -signal.SIGKILL
    print(f'{name}: {status} {time.time() - started:.1f} s', flush=True)
    if status != wanted:
      sys.exit(f'{name}: exit status {status}, not {wanted}')
    if name in POINTS and os.path.isdir(killed):
      shutil.copytree(killed, root / name)


if __name__ == '__main__':
  main(*sys.argv[1:])
