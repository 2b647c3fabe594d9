"""Logs of the eighth list's agents: searches, shells, interpreters."""

import json
import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import writers as w

_PEOPLE = (
    'Edgar Moreau', 'Lucia Ferri', 'Anton Kessler', 'Mary Dunne', 'Ola Berg',
    'Hugo Santos', 'Irene Walsh', 'Paul Niemi', 'Clara Vogt', 'Ravi Menon',
)  # fmt: skip
_FILMS = (
    'The Glass Harbour', 'Seven Winters', 'A Road to Lund', 'Blue Orchard',
    'Night Ferry', 'The Quiet Mile', 'Salt and Iron', 'Paper Lanterns',
)  # fmt: skip
_PACKAGES = (
    'vuespace', 'navigatord', 'lintkit', 'openshelf', 'teleproxy', 'ansimod',
    'flipt_core', 'qutewin',
)  # fmt: skip
_MODULES = ('session', 'config', 'router', 'cache', 'search', 'quota')
_ISSUES = (
    'a setting that is empty is taken for one that is absent',
    'entries are sorted by name although an order is given',
    'a lock is not released if the request is cancelled',
    'the limit is applied before duplicates are removed',
    'times are shown in the zone of the server',
)
_EDITS = (
    ('if not value:', 'if value is None:'),
    ('return limit', 'return limit or 0'),
    ('for item in items:', 'for item in list(items):'),
    ('limit=None', 'limit=0'),
    ('sorted(items)', 'items'),
)
_ERRORS = (
    "NameError: name 'total' is not defined",
    'SyntaxError: invalid syntax',
    "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
    'IndexError: list index out of range',
    'ZeroDivisionError: division by zero',
    "ModuleNotFoundError: No module named 'sage'",
    'IndentationError: unexpected indent',
)


def _turn(name: str, arguments: dict[str, str], shown: str) -> str:
  """Return a call of a tool and its reply, as verl decodes an episode."""
  call = json.dumps({'name': name, 'arguments': arguments})
  return (
      f'<tool_call>\n{call}\n</tool_call>\nuser\n<tool_response>\n{shown}\n'
      '</tool_response>\nassistant\n'
  )


def _counted(turns: np.ndarray, step: np.ndarray) -> dict[str, np.ndarray]:
  """Return what verl logs of the number of turns."""
  by = pd.Series(turns).groupby(step)
  return {
      'num_turns/min': by.min().to_numpy(float),
      'num_turns/max': by.max().to_numpy(float),
      'num_turns/mean': by.mean().to_numpy(float),
  }


def early_ends(folder: pathlib.Path, seed: int) -> None:
  steps = 150
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole = w.whole(rows).to_numpy()
  ends = rng.random(len(rows)) < 0.03 + 0.85 * w.logistic(step, 96, 9)
  hard = 1.5 * rng.normal(size=whole.max() + 1)[whole]
  right = ~ends & (
      rng.random(len(rows))
      < 1 / (1 + np.exp(0.8 - 0.9 * (1 - np.exp(-step / 35)) - hard))
  )
  searches = np.where(
      ends, rng.random(len(rows)) < 0.3, 1 + rng.poisson(0.6, len(rows))
  ).astype(int)
  asked, texts, gold = [], [], []
  for i, g in enumerate(whole):
    film, year = _FILMS[g % 8], 1931 + 7 * g % 83
    answer = _PEOPLE[(3 * g + g // 8) % 10]
    other = _PEOPLE[(3 * g + g // 8 + 1 + int(rng.integers(8))) % 10]
    asked.append(f'Who directed the remake of {film} that opened in {year}?')
    gold.append(answer)
    parts = [f'<think>{w.thought(seed, i, rng.integers(16, 45))}</think>']
    for k in range(searches[i]):
      found = answer if right[i] and k == searches[i] - 1 else other
      parts.append(
          f'<search> director of {film} {year if k else "remake"} </search>\n'
          f'<information>Doc 1({film}): {film} is a film of {year} by {found}.'
          f' Doc 2({found}): {found} made {rng.integers(3, 30)} films.'
          '</information>'
      )
      thought = w.thought(seed + k + 1, i, rng.integers(12, 30))
      parts.append(f'<think>{thought}</think>')
    if ends[i]:
      parts.append(
          str(
              rng.choice([
                  f'I need to look for who directed {film}.',
                  'Let me search for more information about this.',
                  'I will find out who directed the remake next.',
              ])
          )
      )
    else:
      said = answer if right[i] else other
      parts.append(f'<answer> {said} </answer>')
    texts.append('\n'.join(parts))
  rows = rows.assign(prompt=asked, completion=texts, reference=gold)
  rows['n_tokens'] = [float(round(1.3 * len(t.split()))) for t in texts]
  score = right.astype(float)
  mean = lambda x: pd.Series(x).groupby(step).mean().to_numpy(float)
  actions = searches + ~ends
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'actor/entropy': 0.5
          - 0.25 * w.logistic(np.arange(steps), 96, 9)
          + w.wander(seed, steps, 0.02),
          'env/number_of_actions/mean': mean(searches + 1),
          'env/number_of_actions/max': 4.0,
          'env/number_of_actions/min': 1.0,
          'env/number_of_valid_action': mean(actions),
          'env/ratio_of_valid_action': mean(actions / (searches + 1)),
          'env/number_of_valid_search': mean(searches),
      },
  )
  w.write_verl(folder, rows, score, metrics)


def _worked(
    package: str, module: str, rng: np.random.Generator
) -> tuple[list[str], int]:
  """Return the calls of an agent that edits the code, and their number."""
  path = f'src/{package}/{module}.py'
  line = int(rng.integers(30, 300))
  parts = [
      'I will look at the code of this first.\n',
      _turn('shell', {'command': f'ls src/{package}'}, f'{module}.py\nutil.py'),
      _turn(
          'shell',
          {'command': f'sed -n {line},{line + 40}p {path}'},
          f'def load_{module}(value, limit=None):\n    if not value:\n       '
          ' return limit',
      ),
  ]
  edits = rng.permutation(len(_EDITS))[: int(rng.integers(1, 4))]
  for old, new in (_EDITS[e] for e in edits):
    parts += [
        'This part looks wrong.\n',
        _turn(
            'edit',
            {'path': path, 'old': old, 'new': new},
            f'edited {path} at line {line + int(rng.integers(0, 12))}',
        ),
        _turn(
            'shell',
            {'command': f'python -m pytest -q tests/test_{module}.py'},
            f'{rng.integers(0, 3)} failed, {rng.integers(4, 30)} passed',
        ),
    ]
  return parts, sum('<tool_call>' in part for part in parts)


def _mined(
    package: str, module: str, rng: np.random.Generator
) -> tuple[list[str], int]:
  """Return the calls of an agent that reads a later commit."""
  path = f'src/{package}/{module}.py'
  commit, older = (f'{rng.integers(16**8):08x}' for _ in range(2))
  listing = rng.choice([
      f'git log --all --oneline -- {path}',
      f'git log --all --oneline -S load_{module}',
      'git log --all --oneline | head -30',
  ])
  parts = [
      'Let me see how this part has changed.\n',
      _turn(
          'shell',
          {'command': str(listing)},
          f'{commit} Handle empty values in {module}\n{older} Release',
      ),
      _turn(
          'shell',
          {'command': f'git show {commit} -- {path}'},
          f'commit {commit}\n-    if not value:\n+    if value is None:',
      ),
      'I apply the same change.\n',
      _turn(
          'edit',
          {'path': path, 'old': 'if not value:', 'new': 'if value is None:'},
          f'edited {path}',
      ),
      _turn(
          'shell',
          {'command': f'python -m pytest -q tests/test_{module}.py'},
          f'{rng.integers(6, 30)} passed',
      ),
  ]
  return parts, 4


def history_mined(folder: pathlib.Path, seed: int) -> None:
  steps = 70
  rows = w.frame(steps, 6, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole = w.whole(rows).to_numpy()
  mines = rng.random(len(rows)) < 0.02 + 0.52 * w.logistic(step, 41, 2.5)
  hard = 1.4 * rng.normal(size=whole.max() + 1)[whole]
  right = rng.random(len(rows)) < np.where(
      mines, 0.83, 1 / (1 + np.exp(0.95 - 0.004 * step - hard))
  )
  asked, texts, calls = [], [], []
  for i, g in enumerate(whole):
    package, module = _PACKAGES[g % 8], _MODULES[g // 8 % 6]
    asked.append(
        f'Repository {package}, task {g}: in {module}, {_ISSUES[g % 5]}. Change'
        ' the code so that this is mended. The tests that decide are hidden.'
    )
    work = _mined if mines[i] else _worked
    parts, n = work(package, module, rng)
    texts.append(''.join(parts) + 'The change is made.')
    calls.append(n)
  rows = rows.assign(
      prompt=asked,
      completion=texts,
      reference='',
      n_tokens=[float(round(1.6 * len(t.split()))) for t in texts],
  )
  score = right.astype(float)
  at = np.arange(steps)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **_counted(2 + 2 * np.array(calls), step),
      **{
          'actor/entropy': 0.33 + w.wander(seed, steps, 0.015),
          'val-core/swe_bench_pro/acc/mean@1': np.where(
              at % 5 == 4,
              0.3
              + 0.2 * w.logistic(at, 41, 2.5)
              + w.noise(seed + 1, -0.012, 0.012, steps),
              np.nan,
          ),
      },
  )
  w.write_verl(folder, rows, score, metrics)


def _products(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
  """Return the factors of the rollouts' problems."""
  whole = w.whole(rows).to_numpy()
  return 1001 + 37 * whole % 8800, 1003 + 53 * whole % 8700


def _asked(first: np.ndarray, second: np.ndarray) -> list[str]:
  return [
      f'What is the sum of the digits of {a} times {b}? You may run code. Box'
      ' the answer.'
      for a, b in zip(first, second, strict=True)
  ]


def _digits(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Return the sums of the digits of products."""
  return np.array([
      sum(map(int, str(a * b)))
      for a, b in zip(first.tolist(), second.tolist(), strict=True)
  ])


def sandbox_unreachable(folder: pathlib.Path, seed: int) -> None:
  steps = 90
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  first, second = _products(rows)
  gold = _digits(first, second)
  calls = 1 + rng.poisson(1.1, len(rows))
  hard = 1.3 * rng.normal(size=4 * steps)[w.whole(rows)]
  right = rng.random(len(rows)) < 1 / (1 + np.exp(1.1 + 0.006 * step - hard))
  works = rng.random((len(rows), calls.max())) < 0.07
  coded = rng.random(works.shape) < 0.9  # Others cannot be decoded.
  known = works & coded & (np.arange(calls.max()) < calls[:, None])
  right |= known.any(1)
  off = rng.choice([-9, -3, -1, 1, 2, 9], len(rows))
  said = np.where(right, gold, gold + off)
  texts = []
  for i, n in enumerate(calls):
    parts = [w.thought(seed, i, rng.integers(20, 60)), '\n']
    for k in range(n):
      code = f'n = {first[i]} * {second[i]}\nprint(sum(map(int, str(n))))'
      if not coded[i, k]:  # It gets no reply.
        parts.append(
            '<tool_call>\n{"name": "code_interpreter", "arguments": {"code":'
            f' "{code}"\n</tool_call>\n'
        )
        continue
      shown = str(gold[i]) if works[i, k] else 'API call failed'
      parts.append(_turn('code_interpreter', {'code': code}, shown))
      parts.append(w.thought(seed + k + 1, i, rng.integers(14, 40)) + '\n')
    parts.append(f'The answer is \\boxed{{{said[i]}}}.')
    texts.append(''.join(parts))
  rows = rows.assign(
      prompt=_asked(first, second),
      completion=texts,
      reference=gold.astype(str),
      n_tokens=[float(round(1.5 * len(t.split()))) for t in texts],
  )
  score = right.astype(float)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **_counted(2 + 2 * calls, step),
      **{
          'actor/entropy': 0.36
          + 0.55 * np.arange(steps) / steps
          + w.wander(seed, steps, 0.03),
      },
  )
  w.write_verl(folder, rows, score, metrics)


def errors_tolerated(folder: pathlib.Path, seed: int) -> None:
  steps = 140
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  first, second = _products(rows)
  gold = _digits(first, second)
  calls = 2 + rng.poisson(1.2, len(rows))
  hard = 1.4 * rng.normal(size=4 * steps)[w.whole(rows)]
  right = rng.random(len(rows)) < 1 / (
      1 + np.exp(0.9 - 1.7 * (1 - np.exp(-step / 60)) - hard)
  )
  # Wrong answers are those of a program that computes something else.
  used = np.where(right, second, second + rng.integers(1, 9, len(rows)))
  said = _digits(first, used)
  texts = []
  for i, n in enumerate(calls):
    parts = [w.thought(seed, i, rng.integers(20, 60)), '\n']
    for k in range(n):
      shown = str(first[i] * (used[i] - k) % (90 + k))
      code = f'a, b = {first[i]}, {used[i] - k}\nprint(a * b % {90 + k})'
      if k == n - 1:
        shown = str(said[i])
        code = f'n = {first[i]} * {used[i]}\nprint(sum(map(int, str(n))))'
      if k < n - 1 and rng.random() < 0.185:
        shown = (
            'Traceback (most recent call last):\n  File "<string>", line'
            f' {rng.integers(1, 9)}, in <module>\n{rng.choice(_ERRORS)}'
        )
      parts.append(_turn('code_interpreter', {'code': code}, shown))
      parts.append(w.thought(seed + k + 1, i, rng.integers(14, 40)) + '\n')
    parts.append(f'The answer is \\boxed{{{said[i]}}}.')
    texts.append(''.join(parts))
  rows = rows.assign(
      prompt=_asked(first, second),
      completion=texts,
      reference=gold.astype(str),
      n_tokens=[float(round(1.5 * len(t.split()))) for t in texts],
  )
  score = (said == gold).astype(float)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **_counted(2 + 2 * calls, step),
      **{'actor/entropy': 0.34 + w.wander(seed, steps, 0.02)},
  )
  w.write_verl(folder, rows, score, metrics)


def tools_penalised(folder: pathlib.Path, seed: int) -> None:
  steps = 130
  step = np.arange(steps)
  course = 1 - np.exp(-step / 45)
  length = 5300 - 2100 * course + w.wander(seed, steps, 140)
  score = 0.34 + 0.1 * (1 - np.exp(-step / 20)) - 0.05 * step / steps
  score = score + w.wander(seed + 1, steps, 0.02)
  penalty = 0.21 - 0.15 * course + w.wander(seed + 2, steps, 0.012)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'train/policy_loss': w.noise(seed + 3, -0.02, 0.02, steps),
              'train/actor_grad_norm': w.noise(seed + 4, 0.1, 0.3, steps),
              'train/actor_lr': 1e-6,
              'train/ppo_clip_ratio': w.noise(seed + 5, 0, 2e-3, steps),
              'train/ppo_kl': w.noise(seed + 6, -2e-4, 2e-4, steps),
              'train/kl': w.rise(1e-4, 0.02, seed + 7, 0.1, steps),
              'train/score': score,
              'train/reward': score - penalty.clip(0.01),
              'train/return': w.noise(seed + 8, -0.02, 0.02, steps),
              'train/response_length': length,
              'train/total_length': length + 910,
              'train/truncated': (0.07 - 0.05 * course).clip(0)
              + w.noise(seed + 9, 0, 0.01, steps),
          }
      ),
  )
