"""Environments of the library's own kinds, as users write them."""

import asyncio
import time

import datasets
import verifiers as vf

_WORDS = ('north', 'south', 'east', 'west', 'red', 'green', 'blue', 'grey')


def _rows(count, ask):
  return datasets.Dataset.from_list(
      [{'question': ask(n), 'answer': _WORDS[n % 8][0]} for n in range(count)]
  )


def _ask(n):
  return f'{_WORDS[n % 8]} {n}?'


def last_text(completion):
  """Return the text of the policy's last answer."""
  return [m for m in completion if m.role == 'assistant'][-1].content or ''


def letters(count=200, **kwargs):
  """Return a one-turn environment that rewards the share of the letter a."""

  def share(completion):
    text = last_text(completion)
    return text.count('a') / max(len(text), 1)

  def length(completion):
    return len(last_text(completion))

  rubric = vf.Rubric(funcs=[share])
  rubric.add_metric(length)
  return vf.SingleTurnEnv(
      dataset=_rows(count, _ask),
      eval_dataset=_rows(count + 40, _ask).select(range(count - 2, count + 40)),
      system_prompt='Say a.',
      rubric=rubric,
      **kwargs,
  )


class Counting(vf.MultiTurnEnv):
  """Reports the number of digits, until a turn has none twice."""

  async def setup_state(self, state):
    state['seen'] = []
    return state

  @vf.stop
  async def twice_none(self, state):
    return [digits for digits, _ in state['seen'][-2:]] == [0, 0]

  async def add_trajectory_step(self, state, trajectory_step):
    await super().add_trajectory_step(state, trajectory_step)
    text = trajectory_step['completion'][-1].content
    digits = sum(c.isdigit() for c in text)
    state['seen'].append((digits, max(len(text), 1)))

  async def env_response(self, messages, state, **kwargs):
    await asyncio.sleep(0)
    return [{'role': 'user', 'content': f'{state["seen"][-1][0]}. Again!'}]


def counting(count=200, max_turns=3, **kwargs):
  """Return a multi-turn environment; rewards digits in three turns."""

  def digits(state):
    return sum(found / length for found, length in state['seen']) / 3

  return Counting(
      dataset=_rows(count, _ask),
      rubric=vf.Rubric(funcs=[digits]),
      max_turns=max_turns,
      **kwargs,
  )


def press(key: str, times: int = 1) -> str:
  """Press a key.

  Args:
    key: Which one.
    times: How often.
  """
  if key == 'z':
    raise ValueError('there is no z')
  return key * times


async def wait(seconds: float) -> str:
  """Wait."""
  await asyncio.sleep(seconds)
  return 'done'


def sleep(seconds: float) -> str:
  """Wait, and let nothing else happen."""
  time.sleep(seconds)
  return 'done'


def keys(count=200, max_turns=3, **kwargs):
  """Return an environment with tools; rewards pressed keys."""

  def pressed(completion):
    told = [m.content for m in completion if m.role == 'tool']
    return min(sum(text == 'k' for text in told), 2) / 2

  return vf.ToolEnv(
      dataset=_rows(count, _ask),
      tools=[press, wait, sleep],
      rubric=vf.Rubric(funcs=[pressed]),
      max_turns=max_turns,
      **kwargs,
  )


class Counter(vf.StatefulToolEnv):
  """A tool with a state that is hidden from the policy."""

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.add_tool(self.add, args_to_skip=['so_far'])

  async def setup_state(self, state):
    state['sum'] = 0
    return state

  def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
    state['sum'] += tool_args.get('number', 0)
    return tool_args | {'so_far': state['sum']}

  async def add(self, number: int, so_far: int) -> str:
    """Add a number."""
    return f'{so_far}'


def counter(count=200, **kwargs):
  """Return an environment with state; rewards the sum, from -1 to 3."""

  def total(state):
    return float(state['sum'])

  return Counter(
      dataset=_rows(count, _ask), rubric=vf.Rubric(funcs=[total]), **kwargs
  )


def broken(where='', count=200):
  """Return an environment that fails at a given place, or its rubric."""

  def fails(completion):
    text = last_text(completion)
    if where == 'judge' and 'x' in text:
      try:
        raise ConnectionError('no judge')
      except ConnectionError as error:
        raise RuntimeError('Judge model API error') from error
    if where == 'reward' and 'x' in text:
      raise ValueError('no number')
    return 1.0

  class Broken(Counting):

    async def setup_state(self, state):
      if where == 'setup':
        raise vf.Error('no sandbox')
      if where == 'prompt':
        state['prompt'] = [*state['prompt'], vf.UserMessage(content='More.')]
      return await super().setup_state(state)

    async def env_response(self, messages, state, **kwargs):
      if where == 'reply':
        raise vf.Error('the sandbox is gone')
      if where == 'rewrites':
        messages.clear()
      if where == 'asks':
        await self.get_model_response(state, messages)
      if where == 'late':
        await asyncio.sleep(60)
      return await super().env_response(messages, state, **kwargs)

  return Broken(
      dataset=_rows(count, _ask), rubric=vf.Rubric(funcs=[fails]), max_turns=3
  )


def grouped(count=200):
  """Return an environment whose rubric compares completions."""

  def best(completions, **kwargs):
    return [1.0] * len(completions)

  return vf.SingleTurnEnv(
      dataset=_rows(count, _ask), rubric=vf.Rubric(funcs=[best])
  )


def unpaid(count=200):
  """Return an environment whose rubric has no reward function."""
  return vf.SingleTurnEnv(dataset=_rows(count, _ask))


def nothing():
  """Return nothing instead of an environment."""
  return 3
