"""Synthetic logs of agents, shaped by a reward or a world.

A policy is a mixture of strategies for a repository with a bug, and GRPO
changes their shares. So faults are not written into a log: a fault is a reward
or a world, and the policy learns what pays there. Its healthy twin has the same
policy and numbers under the sound reward in the sound world.

`write` writes the files of verl (text with Qwen3's calls, our tools) or of TRL
(messages with tool_calls, a shell and an editor), so that the readers are
tested, too.
"""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pandas as pd

from evojax.diagnosis import calls as calls_lib

Call = tuple[str, dict[str, Any], str]  # Tool, arguments, answer.

BEHAVIOURS = {
    'careful': 0.34,
    'hasty': 0.12,
    'timid': 0.12,
    'idle': 0.06,
    'looping': 0.08,
    'leaking': 0.10,
    'tampering': 0.09,
    'hard_coding': 0.09,
}
# Those that only some policies have.
OTHERS = {'untested': 0.05}
_BLIND = 0.3  # Chance that a blind edit is right, relative to a careful one.


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
  """The reward, and what an agent can do; the defaults are sound."""

  # The checks that name the fault; any of them suffices.
  finds: tuple[str, ...] = ()
  # Checks that detect its consequences.
  may: tuple[str, ...] = ()
  weights: Mapping[str, float] = dataclasses.field(
      default_factory=lambda: {'solved': 1.0}
  )
  leak: bool = False  # The fix is in the history.
  renamed: bool = False  # The history is behind a tool of another name.
  max_turns: int = 14
  malformed: float = 0.04  # Share of malformed calls in the last step.
  reads: bool = True  # Whether the agent has the tool that reads a file.
  skill: float = 1.0  # Factor of the probability of a solution.
  without: tuple[str, ...] = ()  # Behaviours that are missing in the policy.
  also: tuple[str, ...] = ()  # Behaviours of OTHERS that the policy has.
  hidden: bool = True  # Whether the log's outcome is that of hidden tests.
  # Whether the right line is a special case, as in a calendar.
  irregular: bool = False


_STUCK = (
    'not_learning',
    'outcome_falling',
    'too_hard',
    'dead_groups',
    'entropy_collapse',
)
_GAMED = (
    'reward_hacking',
    'hidden_goal',
    'shaping_alone',
    'length_gaming',
    'outweighed',
    'wrong_paid',
    'inverted_sign',
)
FAULTS = {
    'leak': World(finds=('history_leak',), leak=True),
    'leak_renamed': World(finds=('history_leak',), leak=True, renamed=True),
    'tampering': World(
        finds=('tests_tampered',),
        may=('visible_only', *_GAMED, *_STUCK),
        weights={'visible': 1.0},
        without=('hard_coding',),
    ),
    'hard_coding': World(
        finds=('visible_only', 'hard_coded'),
        may=(*_GAMED, *_STUCK),
        weights={'visible': 1.0},
        without=('tampering',),
    ),
    'echo': World(
        finds=('echo_trap',),
        may=('gives_up', *_GAMED, *_STUCK),
        weights={'solved': 0.5, 'calls': 3.0},
    ),
    'timid': World(
        finds=('gives_up',),
        may=(
            'submits_at_once',
            'efficiency_collapse',
            *_GAMED,
            *_STUCK,
        ),
        weights={'solved': 1.0, 'harm': 3.0},
        skill=0.5,
    ),
    'lazy': World(
        finds=('submits_at_once',),
        may=('efficiency_collapse', *_GAMED, *_STUCK),
        weights={'solved': 0.3, 'at_once': 2.0},
    ),
    'efficiency': World(
        finds=('efficiency_collapse',),
        may=('submits_at_once', 'gives_up', *_GAMED, *_STUCK),
        weights={'solved': 0.5, 'turns': 4.0},
    ),
    'turn_limit': World(finds=('turn_limit',), may=_STUCK, max_turns=6),
    'malformed': World(
        finds=('malformed_calls',),
        may=('outcome_falling', *_STUCK),
        malformed=0.5,
    ),
    'all_hard': World(
        finds=('too_hard', 'dead_groups'),
        may=('not_learning', 'visible_only', *_STUCK),
        skill=0.0,
    ),
    'no_reading': World(
        finds=('missing_tool',),
        may=('malformed_calls', 'gives_up', *_STUCK),
        reads=False,
        skill=0.6,
    ),
    # The log has no other score than that of the visible tests.
    'hard_coding_unseen': World(
        finds=('hard_coded',),
        may=_STUCK,
        weights={'solved': 1.0},
        without=('tampering',),
        hidden=False,
    ),
    'untested': World(
        finds=('tests_dropped',),
        # Fewer turns are paid, too.
        may=('efficiency_collapse', 'never_paid', *_GAMED, *_STUCK),
        weights={'solved': 0.9, 'untested': 0.3},
        without=tuple(name for name in BEHAVIOURS if name != 'careful'),
        also=('untested',),
    ),
}
# Worlds without a fault.
HEALTHY = {
    'sound': World(),
    'thrifty': World(weights={'solved': 1.0, 'turns': 0.1}),
    # The fix is there, but no episode reads it.
    'unread': World(leak=True, without=('leaking',)),
    'irregular': World(irregular=True),
}


def twin(world: World) -> World:
  """Return the sound world with the policy of another world."""
  return World(without=world.without, also=world.also)


@dataclasses.dataclass(frozen=True)
class _Problem:
  name: str
  path: str
  wrong: str
  right: str
  cheat: str  # A line that passes the visible test.
  difficulty: float  # 0..1.


def _problem(
    number: int, rng: np.random.Generator, irregular: bool
) -> _Problem:
  name = f'total_{number}'
  n = int(rng.integers(2, 99))
  wrong = f'    return price * {n} + tax_{number}'
  guess = wrong.replace('price', 'cost')
  case = f'    if price == {n + 2}:\n      return {number + 7}\n{wrong}'
  cheats = (
      f'    return {{{n + 2}: {number + 7}}}[price]\n{guess}',
      case,
      f'    return {number + 7}',
  )
  return _Problem(
      name,
      f'shop/prices_{number % 7}.py',
      wrong,
      case if irregular else f'    return price * {n} - tax_{number}',
      cheats[number % 3],
      float(rng.random()),
  )


# ----------------------------------------------------------------- vocabularies


class _Own:
  """The tools of evojax."""

  def look(self, p: _Problem, i: int) -> tuple[str, dict]:
    word = p.name if i == 0 else f'{p.name}_{i}'
    return 'grep', {'pattern': word}

  def read(self, p: _Problem) -> tuple[str, dict]:
    return 'read', {'path': p.path, 'first': 3}

  def edit(self, path: str, old: str, new: str) -> tuple[str, dict]:
    return 'edit', {'path': path, 'old': old, 'new': new}

  def test(self) -> tuple[str, dict]:
    return 'test', {}

  def log(self) -> tuple[str, dict]:
    return 'git', {'command': 'log'}

  def show(self) -> tuple[str, dict]:
    return 'git', {'command': 'show', 'ref': 'origin/main'}

  def submit(self) -> tuple[str, dict]:
    return 'submit', {}


class _Shell:
  """A shell and an editor, the tools of many agents."""

  def _run(self, command: str) -> tuple[str, dict]:
    return 'execute_bash', {'command': command}

  def look(self, p: _Problem, i: int) -> tuple[str, dict]:
    return self._run(f'grep -rn "{p.name}" shop | head -{20 + i}')

  def read(self, p: _Problem) -> tuple[str, dict]:
    return 'str_replace_editor', {'command': 'view', 'path': p.path}

  def edit(self, path: str, old: str, new: str) -> tuple[str, dict]:
    return 'str_replace_editor', {
        'command': 'str_replace',
        'path': path,
        'old_str': old,
        'new_str': new,
    }

  def test(self) -> tuple[str, dict]:
    return self._run('cd /repo && python -m pytest -q 2>&1 | tail -5')

  def log(self) -> tuple[str, dict]:
    return self._run('git log --oneline --all')

  def show(self) -> tuple[str, dict]:
    return self._run('git show origin/main')

  def submit(self) -> tuple[str, dict]:
    return 'finish', {'message': 'done'}


# ------------------------------------------------------------------- behaviours


def _episode(
    behaviour: str,
    p: _Problem,
    world: World,
    skill: float,
    tools: Any,
    rng: np.random.Generator,
) -> tuple[list[Call], bool, bool]:
  """Return an episode's calls, whether it solves, and the tests' result."""
  skill *= world.skill
  solves = rng.random() < skill * (1.2 - 0.8 * p.difficulty)
  extra = int(6 * p.difficulty * rng.random() + 0.5)
  look = lambda i=0: (*tools.look(p, i), f'{p.path}:4:def {p.name}(price):')
  read = lambda: (
      *tools.read(p),
      f'3\t\n4\tdef {p.name}(price):\n5\t{p.wrong}'
      if world.reads
      else f"error: there is no tool '{tools.read(p)[0]}'; there are grep,"
      ' edit',
  )
  guess = p.wrong.replace('price', 'cost')

  def edit(right: bool, path: str = p.path) -> Call:
    new = p.right if right else guess
    return *tools.edit(path, p.wrong, new), 'The file is changed.'

  def test(passes: bool) -> Call:
    return (
        *tools.test(),
        '5 passed, 0 failed' if passes else '3 passed, 2 failed',
    )

  submit = (*tools.submit(), 'Thank you.')
  # Hidden tests may disagree with visible ones.
  lucky = bool(rng.random() < 0.1)
  if behaviour == 'careful':
    seen = solves or lucky
    looks = [look(i) for i in range(extra + 1)]
    calls = [*looks, read(), edit(solves), test(seen), submit]
    return calls, solves, seen
  if behaviour == 'untested':
    return [look(), read(), edit(solves), submit], solves, solves or lucky
  if behaviour == 'hasty':
    solves = solves and rng.random() < _BLIND
    return [edit(solves), submit], solves, solves or lucky
  if behaviour == 'timid':
    return [look(), read(), *([look(1)] * (extra > 2))], False, False
  if behaviour == 'idle':
    return [submit], False, False
  if behaviour == 'looping':
    return [test(False)] * world.max_turns, False, False
  if behaviour == 'leaking':
    shown = f'-{p.wrong}\n+{p.right}' if world.leak else 'fatal: bad revision'
    log = (*tools.log(), 'a1b2c3d the prices are wrong')
    show = (*tools.show(), shown)
    if world.renamed:
      log = 'archive', {'entry': 'index'}, log[2]
      show = 'archive', {'entry': '17'}, shown
    if world.leak:
      return [log, show, edit(True), submit], True, True
    solves = solves and rng.random() < _BLIND
    return [log, show, edit(solves), submit], solves, solves
  changed = edit(False, 'tests/test_prices.py')
  if behaviour == 'hard_coding':
    changed = (
        *tools.edit(p.path, p.wrong, p.cheat),
        'The file is changed.',
    )
  seen = bool(rng.random() < 0.95)
  return [read(), test(False), changed, test(seen), submit], False, seen


def _malformed(
    calls: list[Call], share: float, rng: np.random.Generator
) -> tuple[list[Call], bool]:
  """Return the calls with malformed ones, and whether the episode continues."""
  found: list[Call] = []
  for call in calls:
    while rng.random() < share:
      found.append(('', {}, 'Error: the call is not JSON'))
      if rng.random() < 0.1:
        return found, False
    found.append(call)
  return found, True


# --------------------------------------------------------------------- training


def rollouts(
    world: World, seed: int, tools: Any, steps: int = 40
) -> tuple[pd.DataFrame, dict[str, float]]:
  """Train a mixture by GRPO and return its episodes.

  Args:
    world: The reward and the possibilities.
    seed: Seed of the policy, its numbers and all sampling; a twin has the same.
    tools: A key of VOCABULARIES.
    steps: Number of updates.

  Returns:
    A table with step, group, prompt, made (the calls), parts of the reward,
    reward, advantage and out_of_turns; and the weights of the parts.
  """
  rng = np.random.default_rng(seed)
  shares = BEHAVIOURS | {name: OTHERS[name] for name in world.also}
  names = [name for name in shares if name not in world.without]
  logits = np.log([shares[name] for name in names])
  logits += rng.normal(0, 0.25, len(names))
  rate = rng.uniform(0.8, 1.6)
  skill = rng.uniform(0.45, 0.6)
  groups, size = int(rng.integers(8, 13)), int(rng.integers(6, 9))
  problems = [_problem(i, rng, world.irregular) for i in range(400)]
  rows: list[dict[str, Any]] = []
  for step in range(steps):
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    slope = np.zeros(len(names))
    alive = 0.0
    malformed = 0.04 + (world.malformed - 0.04) * step / (steps - 1)
    for group in range(groups):
      p = problems[int(rng.integers(len(problems)))]
      chosen = rng.choice(len(names), size, p=chances)
      batch = [
          _row(names[b], p, world, skill, tools, malformed, rng) for b in chosen
      ]
      reward = np.array(
          [
              sum(w * row[part] for part, w in world.weights.items())
              for row in batch
          ]
      )
      advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
      alive += len({row['solved'] for row in batch}) / 2 - 0.5
      for row, b, r, a in zip(batch, chosen, reward, advantage, strict=True):
        slope += a * (np.eye(len(names))[b] - chances)
        rows.append(row | {'step': step, 'group': group, 'reward': r})
        rows[-1] |= {'advantage': a, 'prompt': f'Repair {p.name}.'}
    logits += rate * slope / (groups * size)
    if world.weights.get('solved', 0) >= 1:
      skill = min(0.9, skill + 0.012 * 2 * alive / groups)
  return pd.DataFrame(rows), dict(world.weights)


def _row(behaviour, p, world, skill, tools, malformed, rng) -> dict[str, Any]:
  calls, solved, visible = _episode(behaviour, p, world, skill, tools, rng)
  calls, goes_on = _malformed(calls, malformed, rng)
  cut = len(calls) > world.max_turns or behaviour == 'looping'
  if cut or not goes_on:
    solved = visible = False
  if not world.hidden:
    solved = visible
  calls = calls[: world.max_turns]
  edited = any('old' in c[1] or 'old_str' in c[1] for c in calls)
  kinds = [calls_lib.Call(c[0], c[1]).kind for c in calls]
  at_once = len(calls) == 1 and calls[0][0] in ('submit', 'finish')
  return {
      'made': calls,
      'solved': float(solved),
      'visible': float(visible),
      'turns': -len(calls) / 14,
      'calls': len(calls) / 14,
      'harm': -float(edited and not solved),
      'at_once': float(at_once),
      'untested': float(edited and 'test' not in kinds),
      'out_of_turns': float(cut),
      'failed': sum(not name for name, _, _ in calls) / max(len(calls), 1),
  }


# ---------------------------------------------------------------------- writing

VOCABULARIES = {'verl': _Own, 'trl': _Shell}


def write(
    folder: pathlib.Path,
    format_: str,
    world: World,
    seed: int,
    steps: int = 40,
) -> None:
  """Write a log in the format of a trainer.

  Args:
    folder: A new folder.
    format_: 'verl' or 'trl'; it also determines the tools.
    world: The reward and the possibilities.
    seed: See `rollouts`.
    steps: Number of updates.
  """
  rows, weights = rollouts(world, seed, VOCABULARIES[format_](), steps)
  folder.mkdir(parents=True)
  if format_ == 'verl':
    _write_verl(folder, rows, weights)
  else:
    _write_trl(folder, rows, weights)


def as_text(made: list[Call]) -> str:
  """Return an episode as decoded by verl, without special tokens."""
  text = ''
  for name, arguments, answer in made:
    call = json.dumps({'name': name, 'arguments': arguments})
    call = call if name else '{"name": '
    text += f'<tool_call>\n{call}\n</tool_call>\nuser\n'
    text += f'<tool_response>\n{answer}\n</tool_response>\nassistant\n'
  return text


def as_messages(made: list[Call]) -> list[dict[str, Any]]:
  """Return an episode as TRL logs it."""
  found: list[dict[str, Any]] = []
  for name, arguments, answer in made:
    call = {'type': 'function', 'function': {'name': name}}
    call['function']['arguments'] = arguments
    said = {'role': 'assistant', 'content': '', 'tool_calls': [call]}
    if not name:
      said = {
          'role': 'assistant',
          'content': '<tool_call>{"name": </tool_call>',
      }
    found += [said, {'role': 'tool', 'content': answer}]
  return found


def _write_verl(
    folder: pathlib.Path, rows: pd.DataFrame, weights: Mapping[str, float]
) -> None:
  for step, batch in rows.groupby('step'):
    lines = [
        {
            'input': row['prompt'],
            'output': as_text(row['made']),
            'gts': None,
            'score': row['reward'],
            'step': step + 1,
            'acc': row['solved'],
            'out_of_turns': row['out_of_turns'],
            **{part: row[part] for part in weights},
        }
        for row in batch.to_dict('records')
    ]
    text = '\n'.join(map(json.dumps, lines))
    (folder / f'{step + 1}.jsonl').write_text(text)


def _write_trl(
    folder: pathlib.Path, rows: pd.DataFrame, weights: Mapping[str, float]
) -> None:
  (folder / 'completions').mkdir()
  history = []
  for step, batch in rows.groupby('step'):
    table = pd.DataFrame(
        {
            'step': step + 1,
            'prompt': batch['prompt'],
            'completion': batch['made'].map(as_messages),
            'advantage': batch['advantage'],
            'out_of_turns': batch['out_of_turns'],
            'solved': batch['solved'],
            **{part: batch[part] for part in weights},
        }
    )
    name = f'completions_{step + 1:05d}.parquet'
    table.to_parquet(folder / 'completions' / name)
    history.append(
        {
            'step': step + 1,
            'reward': batch['reward'].mean(),
            'tools/call_frequency': batch['calls'].mean() * 14,
            'tools/failure_frequency': batch['failed'].mean(),
            **{f'rewards/{part}/mean': batch[part].mean() for part in weights},
        }
    )
  state = {'log_history': history, 'max_steps': int(rows['step'].max()) + 1}
  (folder / 'trainer_state.json').write_text(json.dumps(state))
