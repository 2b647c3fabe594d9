"""A tokenizer and a multi-turn domain that need no files."""

import threading
import time

import numpy as np

from evojax import records
from evojax.domains import base
from evojax.domains import environments
from evojax.episodes import collect
from evojax.evidence import schema
from evojax.models import tokenizer

EOS = 1
PROMPT, TOKENS, TURN = 8, 40, 6


class Tokenizer(tokenizer.Tokenizer):
  """Uses one letter per token; 2 opens a message, 1 ends an answer."""

  def __init__(self):
    self.eos_ids = (EOS,)

  def encode(self, text):
    return [3 + (ord(c) - ord('a')) % 30 for c in text]

  def decode(self, ids):
    return ''.join(chr(ord('a') + i - 3) for i in ids if i > 2)

  def render(self, messages, *, tools=None):
    return [t for m in messages for t in (2, *self.encode(m['content']))]

  def render_reply(self, before, reply, *, ended, tools=None):
    return [*([] if ended else [EOS]), *self.render(reply)]


class Environment:
  """Replies with the first letters of each turn, after a delay."""

  def __init__(self, domain):
    self._domain, self.heard, self.closed = domain, [], 0

  def reply(self, turn):
    with self._domain.lock:
      self._domain.now += 1
      self._domain.most = max(self._domain.most, self._domain.now)
    time.sleep(self._domain.delay())
    with self._domain.lock:
      self._domain.now -= 1
    if self._domain.fails and turn.text[:1] in self._domain.fails:
      raise RuntimeError('the world has ended')
    self.heard.append(turn.text)
    text = self._domain.says or turn.text[:2] + 'x'
    said = {'role': 'tool', 'content': text}
    ends = turn.text.endswith('z')
    return environments.Reply(() if ends else (said,), 1, 0, not ends)

  def close(self):
    with self._domain.lock:
      self._domain.closed += 1
    return self.heard


class Domain(base.Domain):
  name = 'echo'
  columns = (
      schema.with_codes('grade_status', {'ok': 0, records.INFRA_ERROR: 1}),
      schema.with_codes('actions', {'none': 0, 'say': 1}),
      schema.with_codes('arguments', {'none': 0}),
  )

  def __init__(self, delay=lambda: 0.0, fails='', says='', **limits):
    self.limits = environments.Limits(**({'turns': 4} | limits))
    self.delay, self.fails, self.says = delay, fails, says
    self.lock = threading.Lock()
    self.now = self.most = self.opened = self.closed = 0

  def source(self, split, seed):
    raise NotImplementedError

  def environment(self, problem):
    if problem.family == 'plain':
      return None
    with self.lock:
      self.opened += 1
    return Environment(self)

  def grade(self, problem, completion):
    return records.Grade(True, 1.0, 'ok', {})

  def reward_parts(self, e):
    return {'outcome': e.outcome.astype(np.float32)}


def asked(count=4, group_size=3, family='echo', **params):
  problems = [
      records.Problem(
          f'{i:08x}00000000',
          family,
          ({'role': 'user', 'content': 'abcdef'[: 2 + i]},),
          '',
      )
      for i in range(count)
  ]
  sampling = records.SamplingParams(
      **({'max_tokens': TOKENS, 'turn_tokens': TURN} | params)
  )
  return collect.request_batch(
      Tokenizer(),
      problems,
      sampling,
      group_size=group_size,
      seed=7,
      max_prompt_tokens=PROMPT,
  )
