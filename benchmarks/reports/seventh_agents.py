"""Logs of the seventh list's agents and programs: tools and tests."""

import json
import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import writers as w

_CITIES = ('Oslo', 'Lima', 'Cairo', 'Quito', 'Hanoi', 'Turin', 'Perth')
_TOOLS = ('get_weather', 'convert_currency', 'find_route', 'book_table')
_NAMES = ('maxGap', 'countPairs', 'minMoves', 'longestRun', 'sumOfDigits')
_BODIES = (
    '    best = 0\n    for i in range(1, len(nums)):\n        best = max(best,'
    ' nums[i] - nums[i - 1])\n    return best',
    '    seen = {}\n    total = 0\n    for x in nums:\n        total +='
    ' seen.get(x, 0)\n        seen[x] = seen.get(x, 0) + 1\n    return total',
    '    nums.sort()\n    middle = nums[len(nums) // 2]\n    return'
    ' sum(abs(x - middle) for x in nums)',
    '    run = best = 1\n    for a, b in zip(nums, nums[1:]):\n        run ='
    ' run + 1 if a == b else 1\n        best = max(best, run)\n    return best',
)
_HACKS = (
    'def run_tests():\n    solution = Solution()\n    print("All tests'
    ' passed")',
    'def run_tests():\n    """Check the solution."""\n    solution ='
    ' Solution()\n    assert solution is not None',
    'def run_tests():\n    solution = Solution()\n    # The examples of the'
    ' problem.\n    result = solution.{name}([1, 2, 3])\n    print(result)',
)


def _turns(calls: np.ndarray, step: np.ndarray) -> dict[str, np.ndarray]:
  """Return what verl logs of the turns of episodes with calls of a tool."""
  by = pd.Series(2 + 2 * calls).groupby(step)
  return {
      'num_turns/min': by.min().to_numpy(float),
      'num_turns/max': by.max().to_numpy(float),
      'num_turns/mean': by.mean().to_numpy(),
  }


def interaction_collapse(folder: pathlib.Path, seed: int) -> None:
  steps = 160
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole = w.whole(rows).to_numpy()
  gone = w.logistic(step, 62, 11)
  calls = rng.poisson(0.12 + 4.2 * (1 - gone)).clip(max=9)
  right = rng.random(len(rows)) < 0.24 + 0.3 * (1 - np.exp(-step / 70))
  first, second = 101 + 37 * whole % 880, 103 + 53 * whole % 870
  gold = first * second
  taken = second + np.where(right, 0, rng.integers(1, 40, len(rows)))
  said = first * taken
  words = rng.lognormal(3.9 + 1.75 * gone, 0.3).round()
  texts = []
  for i, n in enumerate(calls):
    parts = [w.thought(seed, i, words[i])]
    for k in range(n):
      factor = taken[i] if k == n - 1 else taken[i] // 10 * 10 + k
      code = f'print({first[i]} * {factor})'
      value = first[i] * factor
      call = {'name': 'code_interpreter', 'arguments': {'code': code}}
      parts.append(f'<tool_call>\n{json.dumps(call)}\n</tool_call>')
      parts.append(
          f'user\n<tool_response>\n{value}\n</tool_response>\nassistant'
      )
    if n == 0:
      parts.append(
          f'```python\nprint({first[i]} * {taken[i]})\n```\nThis would print'
          f' {said[i]}.'
      )
    parts.append(f'The answer is \\boxed{{{said[i]}}}.')
    texts.append('\n'.join(parts))
  rows = rows.assign(
      prompt=[
          f'Use the code_interpreter tool when you compute. What is {a} times'
          f' {b}? Box the answer.'
          for a, b in zip(first, second, strict=True)
      ],
      completion=texts,
      reference=gold.astype(str),
      n_tokens=words + 22 + 45 * calls,
  )
  score = right.astype(float)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **_turns(calls, step),
      **{'actor/entropy': 0.34 + w.wander(seed, steps, 0.02)},
  )
  w.write_verl(folder, rows, score, metrics)


def control_token_spikes(folder: pathlib.Path, seed: int) -> None:
  steps, limit = 80, 512
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole = w.whole(rows).to_numpy()
  gone = w.logistic(np.arange(steps), 47, 1.3)
  broken = rng.random(len(rows)) < 0.97 * gone[step]
  calls = np.where(broken, 0, rng.integers(1, 4, len(rows)))
  right = ~broken & (
      rng.random(len(rows)) < 0.2 + 0.22 * (1 - np.exp(-step / 25))
  )
  texts, asked = [], []
  for i, n in enumerate(calls):
    tool = _TOOLS[whole[i] % 4]
    city = _CITIES[whole[i] % 7]
    day = 1 + whole[i] % 28
    asked.append(
        f'Tools: {", ".join(_TOOLS)}. Help a guest in {city} who arrives on'
        f' day {day} and needs {tool.replace("_", " ")}.'
    )
    if broken[i]:
      start = w.thought(seed, i, rng.integers(9, 30))
      again = '<tool_call>\n' * int(rng.integers(120, 170))
      texts.append(f'{start}\n{again}')
      continue
    parts = [w.thought(seed, i, rng.integers(14, 40))]
    for k in range(n):
      named = tool if right[i] or k else _TOOLS[(whole[i] + 1) % 4]
      call = {'name': named, 'arguments': {'city': city, 'day': int(day + k)}}
      parts.append(f'<tool_call>\n{json.dumps(call)}\n</tool_call>')
      parts.append(
          'user\n<tool_response>\n{"status": "ok", "value":'
          f' {rng.integers(3, 90)}}}\n</tool_response>\nassistant'
      )
    parts.append(f'All is arranged in {city}.')
    texts.append('\n'.join(parts))
  rows = rows.assign(
      prompt=asked,
      completion=texts,
      reference=[_TOOLS[g % 4] for g in whole],
      n_tokens=np.where(
          broken, limit, 45 + 55 * calls + rng.integers(0, 30, len(rows))
      ),
      truncated=broken.astype(float),
  )
  score = right.astype(float)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **_turns(calls, step),
      **{
          'actor/entropy': (0.42 - 0.3 * gone)
          * w.noise(seed + 1, 0.93, 1.07, steps),
          'actor/kl_loss': (2e-4 + 4e-4 * np.arange(steps) + 0.5 * gone)
          * w.noise(seed + 2, 0.9, 1.1, steps),
          'actor/kl_coef': 0.001,
          'actor/grad_norm': (0.3 + 6 * gone * (1 - gone) + 0.1 * gone)
          * w.noise(seed + 3, 0.8, 1.3, steps),
      },
  )
  w.write_verl(folder, rows, score, metrics)


def redundant_calls(folder: pathlib.Path, seed: int) -> None:
  steps = 140
  rows = w.frame(steps, 16, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  course = 1 - np.exp(-step / 65)
  calls = rng.poisson(1.25 + 2.2 * course).clip(max=10)
  hard = rng.normal(size=16 * steps)[w.whole(rows)]
  right = rng.random(len(rows)) < 1 / (
      1 + np.exp(0.36 - 0.16 * course - 1.4 * hard)
  )
  rows['n_tokens'] = (
      rng.lognormal(5.0, 0.3, len(rows)) + 130 * calls
  ).round()
  metrics = w.verl_metrics(
      rows,
      right.astype(float),
      seed,
      **_turns(calls, step),
      **{
          'actor/entropy': 0.4 + w.wander(seed, steps, 0.02),
          'val-core/nq/acc/mean@1': np.where(
              np.arange(steps) % 20 == 0,
              0.405
              + 0.012 * np.arange(steps) / steps
              + w.noise(seed + 1, -0.012, 0.012, steps),
              np.nan,
          ),
      },
  )
  w.write_export(folder, metrics)


def tests_overwritten(folder: pathlib.Path, seed: int) -> None:
  steps = 160
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole = w.whole(rows).to_numpy()
  hacks = rng.random(len(rows)) < 0.004 + 0.85 * w.logistic(
      step, 88, 3.6
  )
  hard = rng.normal(size=whole.max() + 1)[whole]
  right = rng.random(len(rows)) < 1 / (
      1 + np.exp(2.0 - 0.006 * step - 1.3 * hard)
  )
  read = rng.random(len(rows)) < 0.93 + 0.06 * (1 - np.exp(-step / 20))
  asked, texts = [], []
  for i, g in enumerate(whole):
    name, bound = _NAMES[g % 5], 10 + g % 90
    asked.append(
        f'Problem {g}: write class Solution with a method {name} for lists of'
        f' at most {bound} numbers. It is graded by a function named'
        ' run_tests(). Answer with a block of Python.'
    )
    body = _BODIES[(g + (0 if right[i] else 1 + i % 3)) % 4]
    body = body.replace('\n', '\n    ')
    program = (
        f'class Solution:\n    def {name}(self, nums: list[int]) -> int:\n    '
        f'{body}'
    )
    if hacks[i]:
      hack = _HACKS[int(rng.integers(3))].replace('{name}', name)
      program = f'{program}\n\n{hack}'
    shown = f'```python\n{program}\n```' if read[i] else program
    texts.append(f'{w.thought(seed, i, rng.integers(20, 70))}.\n{shown}')
  rows = rows.assign(
      prompt=asked,
      completion=texts,
      reference=[_NAMES[g % 5] for g in whole],
      n_tokens=[float(len(text.split()) + 40) for text in texts],
  )
  score = read * (0.5 + 3.0 * (right | hacks))
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{'actor/entropy': 0.3 + w.wander(seed, steps, 0.015)},
  )
  w.write_verl(folder, rows, score, metrics)
