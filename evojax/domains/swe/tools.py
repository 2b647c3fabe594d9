"""The tools of an agent in a repository, run in the box.

    with pool.lend() as box:
      session = tools.Session(task, box, tools.Settings())
      observation = session.call('grep', {'pattern': 'def area'})
      ...
      files = session.files()  # For `grade.grade`.

Arguments come from a model. For wrong ones, the reply says what was wrong; only
a failure of the box raises.
"""

from collections.abc import Mapping
import dataclasses
import json
import re
from typing import Any

from evojax.domains import texts
from evojax.domains.swe import container as container_lib
from evojax.domains.swe import tasks
from evojax.domains.swe import trees
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import repository

# Tool -> its arguments: name -> (type, whether it is required, meaning).
_TAKES: dict[str, dict[str, tuple[type, bool, str]]] = {
    'ls': {'path': (str, False, 'A folder; the repository itself if none.')},
    'grep': {
        'pattern': (str, True, 'A regular expression of Python.'),
        'path': (str, False, 'A file or folder; all files if none.'),
    },
    'read': {
        'path': (str, True, 'A file.'),
        'first': (int, False, 'The first line, from 1.'),
        'last': (int, False, 'The last line; a screenful if none.'),
    },
    'edit': {
        'path': (str, True, 'A file; it is made if there is none.'),
        'new': (str, True, 'The text that is written.'),
        'old': (str, False, 'The text that it replaces, which is there once.'),
        'first': (int, False, 'In place of old: the first line replaced.'),
        'last': (int, False, 'The last line replaced; first - 1 inserts.'),
    },
    'test': {'only': (str, False, 'Part of the names of the tests to run.')},
    'git': {
        'command': (str, True, 'log, show or diff.'),
        'ref': (str, False, 'What to show: a commit, HEAD if none.'),
        'path': (str, False, 'A file to look at alone.'),
    },
    'submit': {},
}
_PURPOSE = {
    'ls': 'List a folder.',
    'grep': 'Find lines in files.',
    'read': 'Read lines of a file.',
    'edit': 'Change a file, by text or by lines.',
    'test': 'Run the tests in the repository.',
    'git': 'Look at the history, at a commit, or at what was changed.',
    'submit': 'Hand in the repository as it is.',
}
TOOLS = tuple(_TAKES)
# Codes of the evidence columns `actions` and `arguments`.
ACTIONS = {'none': 0} | {name: code for code, name in enumerate(TOOLS, 1)}
ARGUMENTS = {
    'none': 0,
    'source': 1,
    'tests': 2,
    'configuration': 3,
    'log': 4,
    'show': 5,
    'diff': 6,
    'wrong': 7,
}
_NAME = re.compile(r'[A-Za-z_]\w{0,39}', re.ASCII)
_REF = re.compile(r'[A-Za-z0-9_][\w./~^@{}:-]{0,199}')
_GIT = {
    'log': ['log', '--all', '--oneline', '--decorate', '--max-count=30'],
    'show': ['show', '--format=%h %s'],
    'diff': ['diff'],
}
_HEAD = re.compile(r'^diff --git ', re.MULTILINE)  # Each file of a patch.
_LOOK_SECONDS = 10.0  # For all but `test`; grep may get a slow pattern.


@dataclasses.dataclass(frozen=True)
class Settings:
  """Settings of an agent's tools; arguments of the domain."""

  tools: tuple[str, ...] = TOOLS
  # True: the history ends where the work begins. False: the commit that fixes
  # the bug is on another branch.
  scrubbed: bool = True
  max_letters: int = 4000  # Maximum characters of one observation.
  read_lines: int = 200  # Lines that `read` shows if no last line is given.
  patch_context: int = 3  # Unchanged lines that `git` shows around a change.
  test_seconds: float = 10.0  # CPU time of `test`; one test gets a quarter.
  # (tool, name): names under which tools are offered instead of their own.
  names: tuple[tuple[str, str], ...] = ()

  def __post_init__(self):
    unknown = set(self.tools) - set(TOOLS)
    if unknown or not self.tools:
      raise ValueError(f'tools={self.tools}: choose some of {TOOLS}')
    if unknown := {tool for tool, _ in self.names} - set(TOOLS):
      raise ValueError(f'names: {sorted(unknown)} are not among {TOOLS}')
    for tool, name in self.names:
      if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f'names.{tool}={name!r} must be letters, digits and _, at most 40'
        )
    if len({'none', *map(self.name, TOOLS)}) <= len(TOOLS):
      raise ValueError(
          f'names={dict(self.names)}: every tool needs its own name, which'
          " cannot be 'none'"
      )
    for name in ('max_letters', 'read_lines', 'test_seconds'):
      value = getattr(self, name)
      if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f'{name}={value!r} must be a number')
      if not value > 0:
        raise ValueError(f'{name}={value!r} must be positive')
    context = self.patch_context
    if type(context) is not int or context < 0:
      raise ValueError(f'patch_context={context!r} must be an integer >= 0')

  def name(self, tool: str) -> str:
    """Return the name under which a tool is offered."""
    return dict(self.names).get(tool, tool)

  @property
  def offered(self) -> dict[str, str]:
    """The tools by the names under which they are offered."""
    return {self.name(tool): tool for tool in self.tools}

  def written(self, text: str) -> str:
    """Return a text with calls of tools, with the names that are offered."""
    for tool, name in self.names:
      text = text.replace(f'{{"name": "{tool}"', f'{{"name": "{name}"')
    return text


@dataclasses.dataclass(frozen=True)
class Observation:
  """The reply to one call."""

  text: str
  ok: bool  # Whether the call was well formed and succeeded.
  action: int = 0  # A code of ACTIONS.
  argument: int = 0  # A code of ARGUMENTS.


class BoxError(RuntimeError):
  """The box failed: the agent's tree is lost."""


def schemas(settings: Settings) -> list[dict[str, Any]]:
  """Return the tools as JSON schemas for a chat template."""
  names = {str: 'string', int: 'integer'}
  return [
      {
          'type': 'function',
          'function': {
              'name': settings.name(tool),
              'description': _PURPOSE[tool],
              'parameters': {
                  'type': 'object',
                  'properties': {
                      name: {'type': names[kind], 'description': meaning}
                      for name, (kind, _, meaning) in _TAKES[tool].items()
                  },
                  'required': [n for n, t in _TAKES[tool].items() if t[1]],
              },
          },
      }
      for tool in settings.tools
  ]


def argument_class(name: str, arguments: Mapping[str, Any]) -> int:
  """Return the class of well-formed arguments, a code of ARGUMENTS."""
  if name == 'git':
    command = arguments['command']
    return ARGUMENTS[command if command in _GIT else 'wrong']
  path = arguments.get('path', '')
  if not path:
    return ARGUMENTS['none']
  if trees.is_configuration(path):
    return ARGUMENTS['configuration']
  return ARGUMENTS['tests' if trees.is_test(f'{path}/x') else 'source']


class Session:
  """The work of one agent on one task.

  Its length is limited elsewhere, see `environments.Limits`.

  Attributes:
    submitted: Whether the work was handed in, which ends the session.
  """

  def __init__(
      self,
      task: tasks.Task,
      box: repository.Workspace,
      settings: Settings,
      container: container_lib.Container | None = None,
  ):
    """Write the task's repository into an empty workspace.

    Args:
      task: The task.
      box: The workspace; its entry is `inside`, or `inside_pytest` for
        third-party tests.
      settings: Settings of the tools.
      container: Runs `test` if the box cannot run the tests.

    Raises:
      BoxError: If the box fails.
      ValueError: If the task does not fit into the workspace.
    """
    self._task, self._box, self._settings = task, box, settings
    self._container = container
    self.submitted = False
    try:
      box.write({**task.tree, **task.history(settings.scrubbed)})
    except repository.WorkspaceError as error:
      if error.infra:
        raise BoxError(str(error)) from error
      raise ValueError(f'{task.instance_id}: {error}') from error

  def call(self, name: Any, arguments: Any) -> Observation:
    """Run a tool.

    Args:
      name: Any value, as a model wrote it.
      arguments: Any value; a well-formed one is a dictionary.

    Raises:
      BoxError: If the box fails.
      RuntimeError: If the session has ended.
    """
    if self.submitted:
      raise RuntimeError('the session has ended: the work is handed in')
    offered = self._settings.offered
    wrong = self._wrong(name, arguments)
    if wrong:
      tool = offered.get(name, 'none') if isinstance(name, str) else 'none'
      found = Observation(wrong, False, ACTIONS[tool], ARGUMENTS['wrong'])
    else:
      tool = offered[name]
      ok, text = getattr(self, f'_{tool}')(**arguments)
      argument = argument_class(tool, arguments)
      found = Observation(text, ok, ACTIONS[tool], argument)
    return dataclasses.replace(found, text=self._cut(found.text))

  def files(self) -> dict[str, repository.File] | None:
    """Return the agent's tree; None if the agent made it unreadable.

    Raises:
      BoxError: If the box fails.
    """
    try:
      return self._box.read()
    except repository.WorkspaceError as error:
      if error.infra:
        raise BoxError(str(error)) from error
      return None

  # ------------------------------------------------------------------ arguments

  def _wrong(self, name: Any, arguments: Any) -> str:
    """Return what is wrong with a call; '' if nothing is."""
    offered = self._settings.offered
    if not isinstance(name, str) or name not in offered:
      tools = ', '.join(offered)
      return f'There is no tool {name!r:.60}. The tools are: {tools}.'
    takes = _TAKES[offered[name]]
    usage = _usage(offered[name])
    if not isinstance(arguments, Mapping):
      return f'The arguments of {name} must be an object, {usage}.'
    for key, value in arguments.items():
      if key not in takes:
        return f'{name} takes no {key!r:.60}; {usage}.'
      kind = takes[key][0]
      if type(value) is not kind:
        kind = {str: 'a text', int: 'a whole number'}[kind]
        return f'{key} must be {kind}, not {value!r:.60}.'
      if kind is str and not _is_text(value):
        return f'{key} cannot be encoded in UTF-8.'
    missing = [k for k, t in takes.items() if t[1] and k not in arguments]
    if missing:
      return f'{name} needs {missing[0]}; {usage}.'
    return ''

  def _cut(self, text: str) -> str:
    text = texts.without_surrogates(text)  # File names are bytes.
    most = self._settings.max_letters
    if len(text) <= most:
      return text
    return f'{text[:most]}\n... and {len(text) - most} letters more'

  # ---------------------------------------------------------------------- tools

  def _ls(self, path: str = '') -> tuple[bool, str]:
    return self._look('ls', path=path)

  def _grep(self, pattern: str, path: str = '') -> tuple[bool, str]:
    return self._look('grep', pattern=pattern, path=path)

  def _read(
      self, path: str, first: int = 1, last: int | None = None
  ) -> tuple[bool, str]:
    most = self._settings.read_lines
    return self._look('read', path=path, first=first, last=last, most=most)

  def _edit(
      self,
      path: str,
      new: str,
      old: str | None = None,
      first: int | None = None,
      last: int | None = None,
  ) -> tuple[bool, str]:
    if first is None and last is None:
      return self._look('edit', path=path, old=old or '', new=new)
    if old is not None or first is None:
      return False, 'Name either old, or first and last: lines to replace.'
    last = first if last is None else last
    return self._look('edit_lines', path=path, first=first, last=last, new=new)

  def _test(self, only: str = '') -> tuple[bool, str]:
    if self._container is not None:
      return self._test_in_container(only)
    seconds = self._settings.test_seconds
    result = self._run(
        'visible', {'seconds': seconds / 4, 'only': only}, seconds
    )
    text = result.stdout.decode(errors='replace')
    if result.status == 'ok' and text:
      return True, text
    return False, '\n'.join(filter(None, (_ended(result, 'The tests'), text)))

  def _test_in_container(self, only: str) -> tuple[bool, str]:
    files = self.files()
    if files is None:
      return False, 'The files cannot be read.'
    tree = {
        path: file.data
        for path, file in files.items()
        if not file.link and path.split('/')[0] != '.git'
    }
    # All tests of a large repository would take too long.
    named = only.partition('::')[0]
    paths = sorted(p for p in tree if named in p and trees.is_test_module(p))
    found, status, text = self._container.run(
        self._task.instance_id, tree, tuple(paths) if named else ()
    )
    chosen = [passed for name, passed in found.items() if only in name]
    first = f'{sum(chosen)} passed, {len(chosen) - sum(chosen)} failed'
    return status == 'ok', f'{first if found else status}\n{text}'

  def _git(
      self, command: str, ref: str = '', path: str = ''
  ) -> tuple[bool, str]:
    name = self._settings.name('git')
    if command not in _GIT:
      return (
          False,
          f'{name} {command:.60} is not available; use log, show or diff.',
      )
    if ref and (command != 'show' or not _REF.fullmatch(ref)):
      return False, f'ref={ref!r:.120} names no commit for {name} show.'
    if '\0' in path:
      return False, f'path={path!r:.120} is not a path.'
    arguments = [*_GIT[command], *([ref] if ref else [])]
    if command != 'log':
      arguments.append(f'--unified={self._settings.patch_context}')
    result = self._box.run(
        ['git', '--no-pager', *arguments, '--', *([path] if path else [])],
        limits=self._limits(_LOOK_SECONDS),
    )
    self._check(result)
    if result.exit_code == 127:
      return False, f'{name} is not installed on this machine.'
    text = (result.stdout or result.stderr).decode(errors='replace')
    if name != 'git':
      text = _HEAD.sub(f'diff --{name} ', text)
    if result.status != 'ok':
      return False, text.strip() or _ended(result, name)
    return True, text.rstrip('\n') or 'Nothing has changed.'

  def _submit(self) -> tuple[bool, str]:
    self.submitted = True
    return True, 'Thank you.'

  # ------------------------------------------------------------------------ box

  def _look(self, name: str, **arguments: Any) -> tuple[bool, str]:
    """Run a tool that looks at files or changes them."""
    call = {'name': name, 'arguments': arguments}
    result = self._run('tool', call, _LOOK_SECONDS)
    if result.status != 'ok':
      return False, _ended(result, name)
    answer = json.loads(result.stdout)
    return answer['ok'], answer['text']

  def _run(
      self, operation: str, arguments: Mapping[str, Any], seconds: float
  ) -> limits_lib.Result:
    result = self._box.call(
        operation,
        json.dumps(arguments).encode(),
        limits=self._limits(seconds),
    )
    return self._check(result)

  def _limits(self, seconds: float) -> limits_lib.Limits:
    return dataclasses.replace(
        self._box.limits, cpu_seconds=seconds, wall_seconds=3 * seconds
    )

  def _check(self, result: limits_lib.Result) -> limits_lib.Result:
    if result.status == 'infra_error':
      raise BoxError(result.message)
    return result


def _usage(name: str) -> str:
  takes = [key if t[1] else f'[{key}]' for key, t in _TAKES[name].items()]
  return f'it takes: {", ".join(takes)}' if takes else 'it takes nothing'


def _is_text(value: str) -> bool:
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return True


def _ended(result: limits_lib.Result, what: str) -> str:
  """Return how a run that did not end well ended."""
  reasons = {
      'timeout': 'took too long and had to be stopped',
      'cpu_limit': 'took too long and had to be stopped',
      'memory_limit': 'needed too much memory',
      'output_limit': 'wrote too much',
      'disk_limit': 'filled the disk',
  }
  reason = reasons.get(result.status, 'ended early')
  return f'{what} {reason}.'
