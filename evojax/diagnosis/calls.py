"""Tool calls of an episode, parsed from any form in which it was logged.

    turns = calls.read(completion)
    table = calls.table([turns, ...])

Three forms are parsed: messages with `tool_calls` (OpenAI's; TRL and verifiers
log them), text with Qwen3's <tool_call>{...}</tool_call> and
<tool_response>...</tool_response> (verl decodes it), and the turns and replies
of evojax's own evidence. The kind of a call is inferred from the tool's name,
or from the command that a shell runs. Two rules apply to all tools: a call
reads the history if its reply lists commits, and lines that are added by a
patch in a reply do not count as source.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import re
from typing import Any

import pandas as pd

from evojax.diagnosis import literals

KINDS = ('look', 'edit', 'test', 'history', 'submit', 'other', 'malformed')
_CALL = re.compile(r'<tool_call>(.*?)(?:</tool_call>|$)', re.DOTALL)
_REPLY = re.compile(r'<tool_response>(.*?)(?:</tool_response>|$)', re.DOTALL)
# Remains of a chat template between turns, after special tokens are removed.
_ROLES = re.compile(r'^\s*(?:user|assistant|tool)?\s*$')
# Gaps are bounded, because matching would otherwise take minutes if a policy
# repeats a command in one call up to the token limit.
_EDITS = (
    r'\b(?:sed|perl)\b.{0,200}\s-(?:\w*i|-in-place)|<<|(?<![\d&])>>?\s*[\w./]'
    r'|\b(?:tee|patch|apply_patch)\b'
    r'|\bgit\s+(?:apply|am|checkout|restore|revert|cherry-pick|stash\s+pop)\b'
    r'|^\s*(?:rm|mv|cp)\b'
)
# Patterns for a shell's command; the first match gives the kind of the call.
_COMMANDS = (
    (
        'history',
        r'\bgit\b[^|;&\n]{0,200}\b(?:log|show|reflog|cherry-pick|whatchanged'
        r'|rev-list|cat-file)\b|\.git/(?:objects|refs|logs|packed)',
    ),
    ('submit', r'^\s*submit\b|COMPLETE_TASK'),
    ('edit', _EDITS),
    ('test', r'\b(?:pytest|unittest|tox|runtests)\b|\b(?:npm|go|cargo) test\b'),
    (
        'look',
        r'\b(?:ls|cat|grep|rg|find|head|tail|sed|tree|wc|nl)\b'
        r'|\bgit\s+(?:diff|status)\b',
    ),
)
# Patterns for the name of a tool; the first match gives the kind of the call.
_NAMES = (
    ('submit', r'submit|finish|hand_in|complete_task'),
    ('edit', r'edit|write|replace|create|insert|patch|delete|undo'),
    ('test', r'test'),
    ('look', r'grep|read|search|find|view|open|list|glob|cat|scroll|goto|^ls$'),
    ('history', r'history|blame'),
)
_SHELL = re.compile(r'bash|shell|terminal|execute|command|^cmd$|^run$|^sh$')
_FAILED = re.compile(
    r'^\W*(?:error|exception|traceback|invalid|unknown (?:tool|function))',
    re.IGNORECASE,
)
# Replies to a call of a tool that the agent was not given.
_NO_TOOL = re.compile(
    r'^\W*(?:error\W*)?(?:there is no tool|no such tool'
    r'|unknown (?:tool|function)'
    r'|(?:tool|function) \S+ (?:is )?(?:not found|not available|unknown)'
    r'|(?:tool|function) \S+ does not exist)',
    re.IGNORECASE,
)
# Words at the end of a reply by which tools of evojax and others say that the
# reply is cut.
_CUT = re.compile(
    r'truncated|clipped|omitted'
    r'|(?:letters|char(?:acter)?s|bytes|lines) (?:more|left)\b'
    r'|\bmore (?:letters|char(?:acter)?s|bytes|lines)\b',
    re.IGNORECASE,
)
_CUT_WITHIN = 120  # Characters at the end of a reply that may say so.
_TEST_PATH = re.compile(
    r'(?:^|[\s/\'"])(?:tests?/|testing/|test_\w+\.\w+|\w+_test\.\w+|conftest\.py)'
)
_PATHS = ('path', 'file', 'file_path', 'filename', 'filepath')
_NEW = ('new', 'new_str', 'new_string', 'content', 'file_text', 'text', 'patch')
_OLD = ('old', 'old_str', 'old_string')
# Prefix of a code line in a reply: a path and a line number, or the sign of a
# diff.
_BEFORE_LINE = re.compile(r'^(?:[\w./-]*:)?\s*(?:\d+\s*[:|\t-]|[+-])\s?')
# A line in a reply that numbers the lines of a file.
_NUMBERED = re.compile(r'^ *(\d+)(?:[:|\t]| ?)(.*)$', re.MULTILINE)
# The text that a shell writes to a file.
_HEREDOC = re.compile(
    r'<<-?\s*[\'"]?(\w+)[\'"]?[^\n]*\n(.*?)\n\s*\1\b', re.DOTALL
)
_SHORTEST = 8  # Characters of a line that is distinctive enough to compare.
# A hunk of a patch, a line that a patch adds, and a commit's abbreviated hash.
_HUNK = re.compile(r'^@@ ', re.MULTILINE)
_ADDED = re.compile(r'^\+(?!\+\+ )', re.MULTILINE)
_COMMIT = re.compile(
    r'^(?:commit )?(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,40}(?: |$)', re.MULTILINE
)
_COUNTS = re.compile(r'(\d+) (passed|failed|errors?)\b')


@dataclasses.dataclass(frozen=True)
class Call:
  """One call of a tool, with its reply."""

  name: str  # '' if it could not be parsed.
  arguments: Mapping[str, Any]
  reply: str = ''  # The tool's reply; '' if it is not logged.
  failed: bool | None = None  # None: inferred from the reply.

  @functools.cached_property
  def key(self) -> str:
    """The tool and its arguments as text: equal calls have equal keys."""
    given = json.dumps(self.arguments, sort_keys=True, default=str)
    return f'{self.name} {given}'

  @property
  def is_cut(self) -> bool:
    """True if the reply says that a part of it is missing."""
    return bool(_CUT.search(self.reply[-_CUT_WITHIN:]))

  @property
  def command(self) -> str:
    """The command passed to a shell; '' for other tools."""
    found = self.arguments.get('command', self.arguments.get('cmd', ''))
    if isinstance(found, Sequence) and not isinstance(found, str):
      return ' '.join(map(str, found))
    return found if isinstance(found, str) else ''

  @functools.cached_property
  def kind(self) -> str:
    """The kind of the call, one of KINDS."""
    if not self.name:
      return 'malformed'
    name = self.name.lower()
    command = self.command
    if _SHELL.search(name) and command:
      return _first(_COMMANDS, command) or 'other'
    if 'edit' in name and command in ('view', 'undo_edit'):
      return 'look' if command == 'view' else 'edit'
    # A tool with subcommands is treated like a shell command.
    found = _first(_COMMANDS, f'{name} {command}') if command else ''
    found = found or _first(_NAMES, name) or 'other'
    if found in ('look', 'other') and _COMMIT.search(self.reply):
      return 'history'
    return found

  @property
  def edits(self) -> bool:
    """True if the call changes files, even if its kind is 'history'."""
    return self.kind == 'edit' or (
        self.kind == 'history' and bool(re.search(_EDITS, self.command))
    )

  @property
  def ok(self) -> bool:
    """True if the call was well formed and, as far as is known, worked."""
    if self.failed is not None:
      return not self.failed
    return bool(self.name) and not _FAILED.match(self.reply[:200])

  @property
  def offered(self) -> bool:
    """False if the reply says that the agent has no such tool."""
    return not (self.name and _NO_TOOL.match(self.reply[:200]))

  @property
  def touches_tests(self) -> bool:
    """True if the call changes a test."""
    if self.kind != 'edit':
      return False
    texts = [self.command, *(self.arguments.get(name) for name in _PATHS)]
    return any(isinstance(t, str) and _TEST_PATH.search(t) for t in texts)


Turn = tuple[Call, ...]


def _first(table: Iterable[tuple[str, str]], text: str) -> str:
  for kind, pattern in table:
    if re.search(pattern, text):
      return kind
  return ''


# -------------------------------------------------------------------- reading


def read(value: Any) -> list[Turn]:
  """Return the turns of a logged completion, each with its calls.

  Args:
    value: Text, or messages: dictionaries with role, content and tool_calls.
  """
  if isinstance(value, str):
    return _of_text(value)
  if isinstance(value, Mapping):
    value = [value]
  if not hasattr(value, '__iter__'):
    return []
  messages = [m for m in value if isinstance(m, Mapping)]
  turns: list[Turn] = []
  for message in messages:
    if message.get('role', 'assistant') == 'assistant':
      turns.append(_of_message(message))
    elif message.get('role') == 'tool' and turns:
      turns[-1] = _answered(turns[-1], [_text(message.get('content'))])
  return turns


def of_turns(
    texts: Sequence[str], replies: Sequence[str], ok: Sequence[bool]
) -> list[Turn]:
  """Return the turns of evojax's evidence, each with its calls.

  Args:
    texts: The policy's text of each turn.
    replies: The reply to each turn.
    ok: Whether the call was well formed and did not fail; may be empty.
  """
  turns = []
  for i, (text, reply) in enumerate(zip(texts, replies, strict=True)):
    found = _answered(_in_text(text), [reply])
    if len(ok):
      found = tuple(
          dataclasses.replace(call, failed=not ok[i]) for call in found
      )
    turns.append(found)
  return turns


def _of_text(text: str) -> list[Turn]:
  turns, place = [], 0
  for match in _REPLY.finditer(text):
    said = text[place : match.start()]
    if _ROLES.match(said) and turns:  # Another reply to the previous turn.
      turns[-1] = _answered(turns[-1], [match[1]])
    else:
      turns.append(_answered(_in_text(said), [match[1]]))
    place = match.end()
  if not turns or not _ROLES.match(text[place:]):
    turns.append(_in_text(text[place:]))
  return turns


def _in_text(text: str) -> Turn:
  """Return the turn of a text, with the calls in it."""
  found = []
  for match in _CALL.finditer(text):
    try:
      value = json.loads(match[1])
    except (ValueError, RecursionError):
      value = None
    found.append(_call(value))
  return tuple(found)


def _of_message(message: Mapping[str, Any]) -> Turn:
  calls = message.get('tool_calls')
  if calls is None or not len(calls):
    return _in_text(_text(message.get('content')))
  return tuple(_call(call.get('function') or call) for call in calls)


def _call(value: Any) -> Call:
  """Return the call that a value {'name': ..., 'arguments': ...} describes."""
  if not isinstance(value, Mapping) or not isinstance(value.get('name'), str):
    return Call('', {})
  arguments = value.get('arguments')
  if isinstance(arguments, str):  # OpenAI writes arguments as a JSON string.
    try:
      arguments = json.loads(arguments)
    except (ValueError, RecursionError):
      return Call('', {})
  if arguments is None:
    arguments = {}
  if not isinstance(arguments, Mapping):
    return Call('', {})
  # A Parquet table gives every call the argument names of all others, as None.
  given = {k: v for k, v in arguments.items() if v is not None}
  return Call(value['name'], given)


def _answered(turn: Turn, replies: Iterable[str]) -> Turn:
  """Assign replies to the first calls that have none."""
  left = list(turn)
  for reply in replies:
    for i, call in enumerate(left):
      if not call.reply:
        left[i] = dataclasses.replace(call, reply=reply.strip('\n'))
        break
  return tuple(left)


def _text(value: Any) -> str:
  return (
      value if isinstance(value, str) else '' if value is None else str(value)
  )


def as_text(message: Mapping[str, Any]) -> str:
  """Return the calls of a message as text, as Qwen3 writes them."""
  calls = message.get('tool_calls')
  if calls is None or not len(calls):
    return ''
  made = [_call(call.get('function') or call) for call in calls]
  texts = [
      json.dumps({'name': c.name, 'arguments': c.arguments}, default=str)
      for c in made
  ]
  return '\n'.join(f'<tool_call>{text}</tool_call>' for text in texts)


# ------------------------------------------------------------------- measuring

COLUMNS = (
    'n_turns',
    'n_calls',
    'calls_failed',
    'repeated',
    'first_call',
    'all_calls',
    'edited',
    'looked',
    'tested',
    'submitted',
    'history',
    'tests_touched',
    'copied',
    'hard_coded',
    'visible_passed',
    'missing_tool',
    'replies_cut',
)
# Columns that are dropped in a run without calls of such a tool.
_NEEDS = {
    'edited': 'edit',
    'tests_touched': 'edit',
    'copied': 'edit',
    'hard_coded': 'edit',
    'submitted': 'submit',
    'tested': 'test',
    'visible_passed': 'test',
}


def table(episodes: Sequence[Sequence[Turn]]) -> pd.DataFrame:
  """Return measures of the calls of episodes, one row each; see `form.ROLLOUT`.

  The table has no columns if no episode calls a tool. A column that needs a
  kind of tool is left out if no episode calls one.
  """
  kinds = {c.kind for turns in episodes for turn in turns for c in turn}
  if not kinds:
    return pd.DataFrame(index=range(len(episodes)))
  rows = pd.DataFrame([_row(turns) for turns in episodes], columns=COLUMNS)
  gone = [name for name, kind in _NEEDS.items() if kind not in kinds]
  if not rows['missing_tool'].any():
    gone.append('missing_tool')
  return rows.drop(columns=gone)


def _row(turns: Sequence[Turn]) -> dict[str, float | str | None]:
  made = [call for turn in turns for call in turn]
  kinds = [call.kind for call in made]
  edits = [i for i, call in enumerate(made) if call.edits and call.ok]
  tests = [call for call in made if call.kind == 'test']
  replied = [call for call in made if call.reply]
  return {
      'n_turns': float(len(turns)),
      'n_calls': float(len(made)),
      'calls_failed': sum(not c.ok for c in made) / len(made) if made else None,
      'repeated': _repeated(made) / len(made) if made else 0.0,
      'first_call': _number(made[0].key if made else ''),
      'all_calls': _number('\n'.join(call.key for call in made)),
      'edited': float(bool(edits)),
      'looked': float('look' in kinds),
      'tested': float('test' in kinds[edits[-1] if edits else 0 :]),
      'submitted': float('submit' in kinds),
      'history': float('history' in kinds),
      'tests_touched': float(any(c.touches_tests and c.ok for c in made)),
      'copied': float(bool(copied_from(made))),
      'hard_coded': float(hard_codes(made)),
      'visible_passed': _passed(tests[-1].reply) if tests else None,
      'missing_tool': next((c.name for c in made if not c.offered), ''),
      'replies_cut': sum(c.is_cut for c in replied) / len(replied)
      if replied
      else None,
  }


def _number(text: str) -> float:
  """Return a number that identifies a text; a float64 holds it exactly."""
  return float(int(hashlib.sha256(text.encode()).hexdigest()[:12], 16))


def _repeated(made: Sequence[Call]) -> int:
  """Count the calls made again although nothing was edited in between."""
  seen: set[str] = set()
  count = 0
  for call in made:
    if not call.name:  # Without a name, calls cannot be compared.
      continue
    if call.kind == 'edit' and call.key not in seen:
      seen = set()
    count += call.key in seen
    seen.add(call.key)
  return count


def _passed(reply: str) -> float | None:
  """Return 1 if tests passed, 0 if some failed, None if a reply has neither.

  The counts are parsed in pytest's format.
  """
  counts = {word: int(n) for n, word in _COUNTS.findall(reply)}
  if not counts:
    return None
  bad = sum(n for word, n in counts.items() if word != 'passed')
  return float(counts.get('passed', 0) > 0 and not bad)


def _lines(text: str) -> set[str]:
  """Return the lines of code in a text, without indentation."""
  found = set()
  for line in text.splitlines():
    bare = _BEFORE_LINE.sub('', line).strip()
    found |= {line.strip(), bare}
  return {line for line in found if len(line) >= _SHORTEST}


def _added(text: str) -> set[str]:
  """Return the lines of code that a patch in a text adds."""
  if not _HUNK.search(text):
    return set()
  lines = (line for line in text.splitlines() if _ADDED.match(line))
  return _lines('\n'.join(lines))


def _argument(call: Call, names: Iterable[str]) -> str:
  found = [call.arguments.get(name) for name in names]
  return '\n'.join(text for text in found if isinstance(text, str))


def copied_from(made: Sequence[Call]) -> str:
  """Return the tool whose reply contains a line of a later edit; '' if none.

  Lines that a reply to 'look' or 'test' showed before as source do not count,
  but lines that are added by a patch in such a reply do.
  """
  looked: set[str] = set()
  told: dict[str, str] = {}
  for call in made:
    if call.kind == 'edit' and call.ok:
      new = _lines(_argument(call, _NEW)) - _lines(_argument(call, _OLD))
      for line in new - looked:
        if line in told:
          return told[line]
      looked |= new
      continue
    shown = _lines(call.reply)
    if call.kind in ('look', 'test'):
      added = _added(call.reply)
      looked |= shown - added
      told |= dict.fromkeys(added, call.name)
    elif call.kind in ('history', 'other'):
      told |= dict.fromkeys(shown, call.name)
  return ''


def hard_codes(made: Sequence[Call]) -> bool:
  """Return whether an edit of the source adds a special case, see `literals`.

  A special case that was in the source before, as seen in an earlier reply or
  in the text that is replaced, does not count.
  """
  looks: list[Call] = []
  for call in made:
    if call.kind != 'edit':
      looks.append(call)
    elif call.ok and not call.touches_tests:
      new = _written(call)
      if not literals.may_answer(new):
        continue  # For most edits, no earlier reply has to be read.
      old = _argument(call, _OLD) or _replaced(call, looks)
      if literals.is_constant(new, old):
        return True
      if added := literals.cases(new) - literals.cases(old):
        seen = set().union(*(_lines(look.reply) for look in looks))
        if any(case.line not in seen for case in added):
          return True
  return False


def _replaced(call: Call, looks: Sequence[Call]) -> str:
  """Return the lines that an edit by line numbers replaces, as far as seen."""
  first = call.arguments.get('first')
  if not isinstance(first, int):
    return ''
  last = call.arguments.get('last', first)
  last = last if isinstance(last, int) else first
  seen = {
      (_argument(look, _PATHS), int(number)): line
      for look in looks
      for number, line in _NUMBERED.findall(look.reply)
  }
  path = _argument(call, _PATHS)
  places = range(first, min(last, first + len(seen)) + 1)
  return '\n'.join(seen.get((path, place), '') for place in places)


def _written(call: Call) -> str:
  """Return the text that an edit writes; for a patch, the lines it adds."""
  text = _argument(call, _NEW)
  if not text:
    text = '\n'.join(body for _, body in _HEREDOC.findall(call.command))
  if _HUNK.search(text) or '*** Begin Patch' in text:
    added = (line[1:] for line in text.splitlines() if _ADDED.match(line))
    return '\n'.join(added)
  return text
