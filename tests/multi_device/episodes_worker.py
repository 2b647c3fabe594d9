"""One of two processes that play episodes together; see episodes_test.py.

episodes_worker.py OUTPUT [PROCESS PORT]
"""

import dataclasses
import pickle
import sys
import threading
import time

import jax
import numpy as np

from evojax import records
from evojax.domains import environments
from evojax.episodes import collect
from evojax.episodes import episode
from tests.episodes import echo

UNKNOWN = '?'


class Sampler:
  """Writes letters that depend on the request alone."""

  def generate(self, requests):
    return [self._one(request) for request in requests]

  def _one(self, r):
    rng = np.random.default_rng([r.seed, *r.prompt_tokens])
    tokens = rng.integers(3, 30, min(r.params.max_tokens, 4)).astype(np.int32)
    zeros = np.zeros(len(tokens), np.float32)
    text = echo.Tokenizer().decode(tokens.tolist())
    return records.Episode(tokens, zeros, 'stop', 0, text)


class Environment(echo.Environment):
  """Tells when it is closed."""

  def close(self):
    time.sleep(0.05)
    self._domain.moves.append((time.time(), -1))
    return super().close()


class Mute(echo.Environment):
  """Sends a message that the chat template cannot render."""

  def reply(self, turn):
    return environments.Reply(({'role': 'tool', 'content': UNKNOWN},), 1, 0)


class Tokenizer(echo.Tokenizer):
  """Has a chat template that cannot render one text."""

  def encode(self, text):
    if text == UNKNOWN:
      raise TypeError('the template does not know this')
    return super().encode(text)


class Open(echo.Environment):
  """Leaves what cannot be sent to another process."""

  def close(self):
    return threading.Lock()


class Domain(echo.Domain):
  """Grades what the environments have heard."""

  def __init__(self, second=None, **options):
    super().__init__(**options)
    self.second = second  # Environment of the second problem.
    self.moves, self.graded = [], 0  # Times at which one opens or closes.

  def environment(self, problem):
    if problem.family == 'plain':
      return None
    self.moves.append((time.time(), 1))
    if self.second and problem.problem_id.startswith('00000001'):
      return self.second(self)
    return Environment(self)

  def grade(self, problem, completion):
    self.graded += 1
    heard = completion.state or ()
    right = heard == [turn.text for turn in completion.turns]
    status = records.INFRA_ERROR if completion.error else 'ok'
    return records.Grade(right, len(heard) / 9, status, {})


CASES = {
    'plain': dict(family='plain'),
    'turns': {},
    'few are open': dict(open=3),
    'fails': dict(fails='bcdef'),
    'slow': dict(delay=lambda: 0.01),
    'late': dict(delay=lambda: 2.0, reply_seconds=0.1),
}

# The second problem belongs to the second process.
ERRORS = {'mute': Mute, 'open': Open}


def fail(case):
  """Return the error of episodes whose second problem has a bad environment."""
  player = episode.Player(
      Sampler(), Tokenizer(), Domain(second=ERRORS[case])
  )
  try:
    player.play(echo.asked(count=5))
  except Exception as error:
    return f'{type(error).__name__}: {error}'
  return ''


def play(case):
  """Play and grade a case; return what all see, and what is done here."""
  options = dict(CASES[case])
  asked = echo.asked(count=5, family=options.pop('family', 'echo'))
  domain = Domain(**options)
  player = episode.Player(Sampler(), echo.Tokenizer(), domain)
  episodes = player.play(asked)
  # The first two again, as after a group was refused.
  again = player.play(asked, [3, 4, 13])
  grades, _ = collect.grade(domain, asked.problems, episodes, divided=True)
  seen = [
      (e.tokens.tolist(), e.finish_reason, e.state, e.error, e.turns)
      for e in (*episodes, *again)
  ]
  # Their times differ.
  grades = [dataclasses.replace(grade, seconds=None) for grade in grades]
  return (seen, grades), (domain.moves, domain.graded)


def main(output, process='', port=''):
  if port:
    jax.distributed.initialize(
        f'localhost:{port}', num_processes=2, process_id=int(process)
    )
  found = {case: play(case) for case in CASES}
  found |= {case: fail(case) for case in ERRORS}
  with open(output, 'wb') as file:
    pickle.dump(found, file)


if __name__ == '__main__':
  main(*sys.argv[1:])
