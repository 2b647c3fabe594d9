"""One of two processes that grade together; started by grading_test.py.

grading_worker.py OUTPUT [PROCESS PORT]
"""

import dataclasses
import os
import pickle
import signal
import sys
import threading
import time
import types

import jax
import numpy as np

from evojax import config as config_lib
from evojax import records
from evojax.episodes import collect
from evojax.harness import calls
from evojax.runtime import interruptible
from evojax.runtime import preemption
from evojax.training import reward_pipeline
from tests.eval import fakes

PROBLEMS, GROUP = 5, 3


class Domain(fakes.Domain):
  """Remembers what it graded; fails as it is told."""

  def __init__(self, fails=None):
    super().__init__()
    self.asked, self.fails = [], fails or (lambda text: '')

  def grade_many(self, problems, completions):
    grades = []
    for problem, completion in zip(problems, completions, strict=True):
      self.asked.append((problem.problem_id, completion.text))
      if self.fails(completion.text) == 'raise':
        raise Odd('first', 'second')
      status = self.fails(completion.text) or 'ok'
      right = completion.text.endswith('1')
      columns = {'mode': np.int32(len(self.asked))}
      grades.append(records.Grade(right, 0.25, status, columns))
    return grades


class Odd(Exception):
  """Cannot be made again from its text."""

  def __init__(self, one, two):
    super().__init__(f'{one} {two}')


def episodes(problems):
  one = np.ones(1, np.int32), np.zeros(1, np.float32), 'stop', 0
  texts = [f'{p}-{g}' for p in range(problems) for g in range(GROUP)]
  return [records.Episode(*one, text) for text in texts]


def graded(domain, problems=PROBLEMS, stopping=None):
  asked = [fakes.make_problem(f'problem {p}') for p in range(problems)]
  try:
    grades, seconds = collect.grade(
        domain, asked, episodes(problems), divided=True, stopping=stopping
    )
  except Exception as error:
    return f'{type(error).__name__}: {error}', domain.asked
  assert seconds.dtype == np.float32 and len(seconds) == len(grades)
  # Without the fields that depend on the process that graded.
  grades = [dataclasses.replace(g, seconds=None, columns={}) for g in grades]
  return grades, domain.asked


def rewarded(asked):
  """The rewards of a function that is slow where the signal comes."""

  def work():
    if asked:
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(60)
    return 7

  with preemption.stop_flag():
    try:
      return interruptible.call_here(work), ()
    except preemption.Interrupted:
      return 'Interrupted', ()


def failed(fails):
  """The rewards of a harness, one function of which may fail.

  Args:
    fails: 'rewards', 'weight' or '' for neither.

  Returns:
    The error as text, and the number of updates of the filter's state.
  """

  def result(function, value):
    if fails == function:
      raise calls.FunctionError('hang', 'weight.py', 'no answer', alone=False)
    return value

  shape = 2, GROUP
  ones = np.ones(shape, bool)
  credit, rewards = np.ones((*shape, 1), np.float32), np.zeros(shape)
  functions = types.SimpleNamespace(
      has=lambda kind: kind in ('weight', 'keep'),
      init=lambda: {'n': np.zeros(1)},
      keep=lambda e, state: (e.valid, {'n': state['n'] + 1}),
      weight=lambda e: result('weight', credit),
  )
  setup = types.SimpleNamespace(
      config=config_lib.base(),
      functions=functions,
      harness=types.SimpleNamespace(files={'keep.py': ''}),
      view=lambda rows: types.SimpleNamespace(valid=ones, outcome=ones),
      rewards=lambda e: result('rewards', (rewards, {})),
  )
  pipeline = reward_pipeline.RewardPipeline(setup)
  turns = np.ones(shape, np.int32)
  try:
    pipeline(types.SimpleNamespace(graded=ones, n_turns=turns, rows={}))
    text = 'no error'
  except calls.FunctionError as error:
    text = f'{error} {error.status} {error.alone}'
  return (text, pipeline.keep_state['n'].item()), ()


def main(output, process=None, port=None):
  if process is not None:
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    jax.distributed.initialize(
        f'localhost:{port}', num_processes=2, process_id=int(process)
    )
  infra, number = records.INFRA_ERROR, int(process or 0)

  def hangs(text):
    """The grading of problem 1, by process 1, never ends."""
    if text == '1-2':
      threading.Event().wait()
    return ''

  found = {
      'good': graded(Domain()),
      'not stopped': graded(Domain(), stopping=lambda: False),
      # Only the process that does not hang gets the signal.
      'stopped': graded(Domain(hangs), stopping=lambda: number == 0),
      'reward': rewarded(False),
      'reward stopped': rewarded(number == 0),
      'reward holds': failed(''),
      'reward fails': failed('rewards' if number == 0 else ''),
      'weight fails': failed('weight' if number == 0 else ''),
      'one problem': graded(Domain(), problems=1),
      # All that process 1 grades, and more.
      'one host fails': graded(Domain(lambda t: '' if t[0] == '0' else infra)),
      'all fail': graded(Domain(lambda t: infra)),
      'raises': graded(Domain(lambda t: 'raise' if t == '3-1' else '')),
  }
  with open(output, 'wb') as f:
    pickle.dump(found, f)


if __name__ == '__main__':
  main(*sys.argv[1:])
