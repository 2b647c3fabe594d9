"""A scripted engine, tokenizer and domain: text in and out, without weights."""

from collections.abc import Callable, Sequence
import hashlib
from typing import Any

import numpy as np

from evojax import records
from evojax.domains import base
from evojax.eval import evaluate
from evojax.evidence import schema
from evojax.evidence import views
from evojax.models import tokenizer as tokenizer_lib

MODES = {'direct': 0, 'steps': 1, 'ramble': 7}
PARAMS = records.SamplingParams(max_tokens=16)


def make_problem(text: str, family: str = 'sums') -> records.Problem:
  return records.Problem(
      problem_id=hashlib.sha256(text.encode()).hexdigest()[:16],
      family=family,
      messages=({'role': 'user', 'content': text},),
      answer='4',
  )


class Tokenizer(tokenizer_lib.Tokenizer):
  """One token per character."""

  def __init__(self):  # No directory is read.
    pass

  def render(
      self, messages: Sequence[records.Message], *, tools: Any = None
  ) -> list[int]:
    return [ord(c) for c in messages[-1]['content']]


class Engine:
  """Answers request i of every call with `script(weights, problem, sample)`."""

  def __init__(self, script: Callable[[str, str, int], str]):
    self.script = script
    self.weights = 'none'
    self.version = -1
    self.calls: list[list[records.Request]] = []

  def update_weights(self, params: str, version: int) -> None:
    self.weights, self.version = params, version

  def generate(
      self, requests: Sequence[records.Request]
  ) -> list[records.Episode]:
    self.calls.append(list(requests))
    answers = []
    for request in requests:
      problem = ''.join(map(chr, request.prompt_tokens))
      text = self.script(self.weights, problem, request.sample)
      answers.append(
          records.Episode(
              tokens=np.arange(len(text), dtype=np.int32),
              logprobs=np.full(len(text), -0.5, np.float32),
              finish_reason='length' if 'ramble' in text else 'stop',
              policy_version=self.version,
              text=text,
          )
      )
    return answers


def make_scorer(engine=None, domain=None, **changes) -> evaluate.Scorer:
  """Return a scorer of an engine on a domain, both fakes by default."""
  arguments = dict(
      engine=engine,
      tokenizer=Tokenizer(),
      domain=domain or Domain(),
      params=PARAMS,
      max_prompt_tokens=16,
  )
  return evaluate.Scorer(**arguments | changes)


class Source:
  """Provides problems '<split> <seed> <position>' of two alternating
  families."""

  def __init__(self, split: str, seed: int):
    self.split, self.seed = split, seed

  def take(self, cursor: int, count: int) -> list[records.Problem]:
    return [
        make_problem(f'{self.split} {self.seed} {i}', ('odd', 'even')[i % 2])
        for i in range(cursor, cursor + count)
    ]

  def __len__(self) -> int:
    return 1000


class Domain(base.Domain):
  """Accepts '<mode> 4' as right."""

  name = 'fake'
  columns = (
      schema.with_codes('grade_status', {'ok': 0, 'no_answer': 3}),
      schema.Column('mode', 'int32', codes=MODES),
  )

  def source(self, split: str, seed: int) -> Source:
    return Source(split, seed)

  def grade(
      self, problem: records.Problem, completion: records.Episode
  ) -> records.Grade:
    mode, _, answer = completion.text.partition(' ')
    right = answer == problem.answer
    return records.Grade(
        outcome=right,
        partial=float(right),
        status='ok' if answer else 'no_answer',
        columns={'mode': MODES[mode]},
    )

  def reward_parts(self, e: views.View) -> dict[str, np.ndarray]:
    return {'outcome': e.outcome.astype(np.float32)}
