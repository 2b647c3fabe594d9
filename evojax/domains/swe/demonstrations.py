"""Demonstrations for the base policy: several ways to work, with real tools.

A base policy mixes behaviours on purpose, as real base models do, so that
reinforcement learning can select between them. Each demonstration draws one
behaviour from `BEHAVIOURS`:

  careful  searches for the function, reads its head and, if it is long, the
           part with the wrong line, repairs the line, tests, submits.
  hasty    edits a line of the function that it has not read, and submits.
  timid    searches and reads, and never edits.
  looping  runs the tests again and again.
  leaking  looks for the fix in the history. If it is there (in two thirds of
           the demonstrations), it is copied; otherwise nothing is edited.

The expert knows the reference patch; every reply comes from the tools in the
box. Problem and behaviour determine the calls, so that each session is run only
once.
"""

import ast
from collections.abc import Mapping
import dataclasses
import functools
import json
from typing import Any

import numpy as np

from evojax import records
from evojax.domains import base
from evojax.domains import environments
from evojax.domains.swe import grade
from evojax.domains.swe import problems
from evojax.domains.swe import tasks
from evojax.domains.swe import tools
from evojax.domains.swe import trees
from evojax.domains.swe import workspaces
from evojax.runtime import python_source

BEHAVIOURS: Mapping[str, float] = {
    'careful': 0.72,
    'hasty': 0.07,
    'timid': 0.06,
    'looping': 0.05,
    'leaking': 0.10,
}
_DOUBT = 'I am not sure what is wrong here.'
_FIX = 'origin/main'  # Branch on which `problems.build` puts the fix.


def call(name: str, **arguments: Any) -> str:
  """Return a turn that calls a tool."""
  body = json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)
  return f'<tool_call>{body}</tool_call>'


# These strings are one token each: the common parts of all calls and replies.
TOKENS = (
    call('grep', pattern='def ')[:-15],
    '"}}</tool_call>',
    call('read', path='')[:-15],
    '", "first": ',
    '}}</tool_call>',
    call('edit', path='')[:-15],
    ', "new": "',
    call('test'),
    call('submit'),
    call('git', command='log'),
    call('git', command='show', ref=_FIX),
    '.py',
    ' is changed at line ',
    ' passed, 0 failed',
    # A line number is one token, and so one decision of the policy.
    *map(str, range(10, 100)),
)


@dataclasses.dataclass(frozen=True)
class _Place:
  """The change of a problem's reference patch: one line becomes others."""

  path: str
  function: str  # The function's name, without its class.
  start: int  # Line of the function's 'def', from 1.
  line: int
  right: str  # Without the end of its last line.


@functools.lru_cache(maxsize=4096)
def place(identity: str) -> _Place:
  """Return the place of a problem's bug."""
  entry = problems.find(identity)
  task, path = problems.build(entry), entry.bug.path
  wrong, right = (
      tree[path].decode().split('\n') for tree in (task.tree, task.solution)
  )
  line = next(i for i, text in enumerate(wrong) if text != right[i])
  end = line + 1 + len(right) - len(wrong)
  *owners, name = entry.bug.function.split('.')
  scope = python_source.parse('\n'.join(wrong))
  for part in (*owners, name):
    scope = next(
        n for n in ast.iter_child_nodes(scope) if getattr(n, 'name', '') == part
    )
  return _Place(path, name, scope.lineno, line + 1, '\n'.join(right[line:end]))


def demonstrate(
    settings: tools.Settings,
    max_turns: int,
    problem: records.Problem,
    rng: np.random.Generator,
) -> records.Demonstration:
  """Draw a behaviour, and show it with real tool replies.

  Args:
    settings: Tool settings; whether the history is scrubbed is drawn.
    max_turns: Maximum number of turns in an episode.
    problem: A problem of the domain.
    rng: Source of all random choices.
  """
  behaviour = base.draw_behaviour(BEHAVIOURS, rng)
  scrubbed = bool(rng.random() < 1 / 3)
  if behaviour == 'leaking' and not scrubbed:
    behaviour = 'copying'
  settings = dataclasses.replace(settings, scrubbed=behaviour != 'copying')
  calls = turns(problem.problem_id, behaviour, settings.read_lines, max_turns)
  answers = _answers(settings, problem.problem_id, max_turns)
  shown = tuple(
      (settings.written(turn), {'role': 'tool', 'content': text})
      for turn, text in zip(calls[:-1], answers[behaviour], strict=True)
  )
  # The wording varies, so that the text does not reveal the wrong line.
  issue = problems.issue(
      problems.find(problem.problem_id), str(rng.integers(1 << 30))
  )
  messages = tuple(
      message | {'content': issue} if message['role'] == 'user' else message
      for message in problem.messages
  )
  # The tool replies show the wrong line, so that a reader of the files can find
  # it.
  return records.Demonstration(
      messages,
      settings.written(calls[-1]),
      before=shown,
      foretells=True,
  )


def turns(
    identity: str, behaviour: str, read_lines: int, max_turns: int
) -> tuple[str, ...]:
  """Return the turns of a behaviour.

  Args:
    identity: problem_id.
    behaviour: Key of BEHAVIOURS, or 'copying': 'leaking' if the fix is there.
    read_lines: Number of lines that `read` shows.
    max_turns: Maximum number of turns in an episode.
  """
  number = int(identity[:8], 16)
  return _turns(place(identity), number, behaviour, read_lines, max_turns)


def _turns(
    p: _Place, number: int, behaviour: str, read_lines: int, max_turns: int
) -> tuple[str, ...]:
  search = call('grep', pattern=f'def {p.function}')
  # The expert must not seem to know where the wrong line is. The other calls
  # leave turns for two reads, which show all but 1 % of the bugs; in a longer
  # function the second read shows the part with the wrong line.
  read = call('read', path=p.path, first=p.start)
  reads = (read,)
  if p.line >= p.start + read_lines:
    pages = (p.line - p.start) // read_lines
    first = p.start + pages * read_lines
    reads = read, call('read', path=p.path, first=first)
  edit = call('edit', path=p.path, first=p.line, new=p.right)
  if behaviour == 'careful':
    found = search, *reads, edit, call('test'), call('submit')
  elif behaviour == 'hasty':
    blind = call(
        'edit', path=p.path, first=p.start + 2 + number % 3, new='  return None'
    )
    found = search, blind, call('submit')
  elif behaviour == 'timid':
    found = search, read, _DOUBT if number % 2 else call('submit')
  elif behaviour == 'looping':
    found = (call('test'),) * max_turns
  else:
    log, show = (
        call('git', command='log'),
        call('git', command='show', ref=_FIX),
    )
    copied = behaviour == 'copying'
    found = (log, show, edit, call('submit')) if copied else (log, read, _DOUBT)
  return found[:max_turns]


@functools.lru_cache(maxsize=8192)
def _answers(
    settings: tools.Settings, identity: str, max_turns: int
) -> Mapping[str, tuple[str, ...]]:
  """Return the tool replies to each behaviour, from one joint session.

  Behaviours that only look at files get the same replies in any order. They
  come first, so that each behaviour gets the replies that it would get alone.
  """
  looks, edits = ('timid', 'looping', 'leaking'), ('careful', 'hasty')
  acts = {
      kind: turns(identity, kind, settings.read_lines, max_turns)[:-1]
      for kind in ((*looks, *edits) if settings.scrubbed else ('copying',))
  }
  task = problems.build(problems.find(identity))
  with workspaces.shared('demonstrations', 1).lend() as box:
    session = tools.Session(task, box, settings)
    seen, found = {}, {}
    for kind, act in acts.items():
      for turn in act:
        asked = environments.read_call(turn)
        if asked.name == 'edit':
          seen.pop(call('test'), None)
        if turn not in seen:
          name = settings.name(asked.name)
          seen[turn] = session.call(name, asked.arguments).text
      found[kind] = tuple(seen[turn] for turn in act)
  return found


# ------------------------------------------------------------------ synthetic

_SAMPLED, _OBSERVED = 6, 4  # Tokens of a synthetic turn.


def attempts(task: tasks.Task) -> list[records.Episode]:
  """Return episodes of every kind, with synthetic tool replies."""
  # A third-party reference patch may change many files, or add some.
  edits = {
      path: task.solution.get(path)
      for path in sorted({*task.tree, *task.solution})
      if not trees.is_test(path)
      and task.tree.get(path) != task.solution.get(path)
  }
  path = min(edits)
  data = task.tree.get(path, b'')
  p = _Place(path, 'main', 1, 1, 'pass')
  solved = grade.Changes(edits, 0)
  broken = grade.Changes({path: data + b'\nreturn None\n'}, 0)
  commented = grade.Changes({path: data + b'\n# A comment.\n'}, 1)
  kinds = (
      ('careful', solved, 'stop'),
      ('careful', commented, 'stop'),
      ('hasty', broken, 'stop'),
      ('timid', grade.NO_CHANGES, 'stop'),
      ('looping', grade.NO_CHANGES, 'turns'),
      ('copying', solved, 'stop'),
      ('leaking', grade.NO_CHANGES, 'stop'),
      ('hasty', grade.UNREADABLE, 'length'),
  )
  return [
      _synthetic(_turns(p, 0, kind, 200, 6), changes, end)
      for kind, changes, end in kinds
  ]


def _synthetic(
    texts: tuple[str, ...], changes: grade.Changes, end: str
) -> records.Episode:
  found = []
  for number, text in enumerate(texts):
    said = environments.read_call(text)
    last = number == len(texts) - 1
    found.append(
        records.Turn(
            _SAMPLED,
            0 if last else _OBSERVED,
            text,
            tools.ACTIONS[said.name if said else 'none'],
            tools.argument_class(said.name, said.arguments) if said else 0,
            True,
            '' if last else 'made up',
        )
    )
  count = sum(turn.sampled + turn.observed for turn in found)
  return records.Episode(
      np.arange(count, dtype=np.int32),
      np.full(count, -0.5, np.float32),
      end,
      0,
      texts[-1],
      turns=tuple(found),
      state=changes.to_json(),
  )
