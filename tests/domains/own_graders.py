"""Graders of users of other libraries, which the workers import.

`gsm8k` and `accuracy_reward` have the signatures and behaviour of verl's
verl/utils/reward_score/gsm8k.py and TRL's trl/rewards/accuracy_rewards.py.
"""

import asyncio
import json
import os
import pathlib
import re
import sys
import time


def gsm8k(
    solution_str, ground_truth, method='strict', format_score=0.0, score=1.0
):
  """Grade like verl: '#### 72' if strict, otherwise the last number."""
  if method == 'strict':
    found = re.search(r'#### (\-?[0-9\.\,]+)', solution_str)
    answer = found and found[1].replace(',', '').replace('$', '')
  else:
    numbers = re.findall(r'(\-?[0-9\.\,]+)', solution_str)
    answer = next((n for n in reversed(numbers) if n not in ('', '.')), None)
  if answer is None:
    return 0
  return score if answer == ground_truth else format_score


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
  """Return a dict with further columns, like verl's functions for math."""
  right = solution_str.strip() == ground_truth
  return {
      'score': float(right),
      'acc': right,
      'pred': solution_str,
      'seen': json.dumps([data_source, ground_truth, extra_info]),
  }


def countdown(solution_str, ground_truth):
  """Grade like TinyZero, whose reference is an object."""
  factors = list(map(int, solution_str.split('*')))
  if factors != ground_truth['numbers']:
    return 0.0
  return float(factors[0] * factors[1] == ground_truth['target'])


def model_output_score(model_output: str, ground_truth: str) -> bool:
  """Grade like verl's math_verify, which names the text differently."""
  return model_output == ground_truth


def accuracy_reward(completions, solution, log_extra=None, **kwargs):
  """Grade like TRL, but compare texts instead of using math-verify."""
  contents = [completion[0]['content'] for completion in completions]
  found = [re.findall(r'\\boxed\{(.*)\}', text) for text in contents]
  rewards = [
      float(f[-1:] == [s]) if s else None for f, s in zip(found, solution)
  ]
  if log_extra is not None:
    log_extra('answer_parsed', [str(f) for f in found])
  return rewards


def of_texts(prompts, completions, answer, **kwargs):
  """Grade in TRL's form for a standard data set."""
  assert all(isinstance(prompt, str) for prompt in prompts)
  return [float(c.strip() == a) for c, a in zip(completions, answer)]


def of_messages(prompts, completions, answer, difficulty, **kwargs):
  """Grade in TRL's form for a conversational data set."""
  assert all(prompt[-1]['role'] == 'user' for prompt in prompts)
  assert all(isinstance(level, int) for level in difficulty)
  return [float(c[0]['content'] == a) for c, a in zip(completions, answer)]


async def later(completions, answer, completion_ids, **kwargs):
  await asyncio.sleep(0.001)
  assert all(isinstance(i, int) for ids in completion_ids for i in ids)
  return [float(c == a) for c, a in zip(completions, answer)]


class Within:
  """A class that is constructed with arguments from the config."""

  def __init__(self, tolerance):
    self.tolerance = tolerance

  def __call__(self, solution_str, ground_truth):
    return abs(float(solution_str) - float(ground_truth)) <= self.tolerance


def _act(text):
  """Do what a hostile completion may cause a function to do."""
  if text == 'raise':
    raise ValueError('not a number: raise')
  if text == 'exit':
    sys.exit(3)
  if text == 'die':
    os._exit(3)
  if text == 'sleep':
    time.sleep(60)
  if text == 'regex':  # Backtracks forever, inside C code.
    re.match(r'(a+)+$', 'a' * 60 + 'b')
  if text == 'memory':
    return len(bytearray(1 << 40))
  values = {'none': None, 'nan': float('nan'), 'two': 2.0, 'text': '1.0'}
  return values.get(text)


def hostile(solution_str, ground_truth):
  if solution_str in ('none', 'nan', 'two', 'text'):
    return _act(solution_str)
  _act(solution_str)
  return solution_str == ground_truth


def hostile_list(completions, answer, **kwargs):
  return [hostile(c, a) for c, a in zip(completions, answer)]


def process(solution_str, ground_truth):
  """Report its process, and take its time."""
  print('a\nprint')
  time.sleep(0.05)
  folder, _, name = solution_str.partition(':')
  pathlib.Path(folder, f'{os.getpid()}-{name}').touch()
  return 1.0


def needs_more(solution_str, ground_truth, tests):
  return 1.0


def always(solution_str, ground_truth):
  return 1.0


def neither(text):
  return 1.0


def returns_text(solution_str, ground_truth):
  return 'right'


def returns_one(completions, **kwargs):
  return [1.0]


def key_error(completions, **kwargs):
  return [float(c == s) for c, s in zip(completions, kwargs['solution'])]


not_callable = 3
