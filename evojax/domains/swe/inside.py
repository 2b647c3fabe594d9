"""The entry of the box: tools, tests, and tests of many changed trees.

This file is the entry of a workspace, see `sandbox.repository`: `call` runs in
a fresh process in the tree. It uses the standard library only. Nothing here is
trusted once code of the tree has run.
"""

import ast
import contextlib
import json
import os
import pathlib
import re
import runpy
import select
import signal
import stat
import sys
import time
import traceback
import types

_HERE = os.path.dirname(os.path.abspath(__file__))
values = types.SimpleNamespace(
    **runpy.run_path(os.path.join(_HERE, 'values.py'))
)
_LONGEST_FILE = 1 << 20
_SKIPPED = ('.git', '__pycache__')


def call(source, data):
  """Run an operation; see `OPERATIONS`.

  Args:
    source: Name of the operation.
    data: Its arguments, a JSON object.
  """
  arguments = json.loads(bytes(data) or b'{}')
  return OPERATIONS[source](**arguments) or b''


# ----------------------------------------------------------------------- tests


class LateError(BaseException):
  """A test has used up its time."""


def probe(programs, seconds):
  """Report the value of each check of test programs, line by line.

  Args:
    programs: Path -> source, see `suite`.
    seconds: CPU seconds per test.
  """
  with _quiet() as out:
    programs = {p: compile(t, p, 'exec') for p, t in programs.items()}
    _probe(programs, seconds, out)


def _probe(programs, seconds, out, patient=True):
  """Run test programs; write [check, value] lines to a descriptor.

  Args:
    programs: Path -> code, see `suite`.
    seconds: CPU seconds per test.
    out: The descriptor.
    patient: Whether to go on after a test that used up its time.
  """

  def check(name, thunk):
    try:
      text = values.encode(thunk())
    except LateError:
      raise
    except BaseException as error:
      text = values.encode_error(error)
    os.write(out, json.dumps([name, text]).encode() + b'\n')

  _prepare()
  for path, program in programs.items():
    scope = {'__name__': _module_name(path), '_check': check}
    try:
      with _limit(seconds):
        exec(program, scope)
    except BaseException:
      continue
    for name, test in list(scope.items()):
      if name.startswith('test_'):
        try:
          with _limit(seconds):
            test()
        except LateError:
          if not patient:
            os._exit(1)
        except BaseException:
          pass


def survey(programs, candidates, seconds, most):
  """Report, for each changed file, the value of each check.

  Every candidate has its own process, which ends at the first test that is too
  slow; the tree is restored afterwards. The lines are [number, [check, value]],
  and [number, 'done'] after those of a candidate that finished in time.

  Args:
    programs: Path -> source, see `suite`.
    candidates: [path, text] pairs.
    seconds: CPU seconds per test.
    most: Wall seconds per candidate, which may have to wait for a core.
  """
  with _quiet() as out:
    programs = {p: compile(t, p, 'exec') for p, t in programs.items()}
    each(
        candidates,
        most,
        out,
        lambda writer: _probe(programs, seconds, writer, patient=False),
    )


def each(candidates, most, out, work):
  """Run a separate process on each candidate; see `survey`.

  Args:
    candidates: [path, text] pairs.
    most: Wall seconds per candidate.
    out: Descriptor for the lines.
    work: Called with a descriptor for the lines of one candidate.
  """
  for number, (path, text) in enumerate(candidates):
    before = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_text(text)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
      os.close(reader)
      try:
        work(writer)
        os._exit(0)
      finally:
        os._exit(1)
    os.close(writer)
    in_time = _collect(reader, child, most, number, out)
    pathlib.Path(path).write_bytes(before)
    if in_time:
      os.write(out, b'[%d, "done"]\n' % number)


def _collect(reader, child, most, number, out):
  """Forward the lines of a child; return whether it ended well and in time."""
  data, end = b'', time.monotonic() + most
  while select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
    chunk = os.read(reader, 1 << 16)
    if not chunk:
      break
    data += chunk
  else:
    os.kill(child, signal.SIGKILL)
  os.close(reader)
  for line in data.split(b'\n')[:-1]:
    os.write(out, b'[%d, %s]\n' % (number, line))
  return os.waitpid(child, 0)[1] == 0


def visible(seconds, only=''):
  """Run the tests in the tree, and return a report as text.

  Args:
    seconds: CPU seconds per test.
    only: A part of the names of the tests to run.
  """
  with _quiet() as out:
    _prepare()
    sys.modules['pytest'] = _stand_in()
    passed, failed, lines = 0, 0, []
    for path in _test_files():
      try:
        with _limit(seconds):
          scope = _load(path)
      except BaseException as error:
        if only in path:
          failed += 1
          lines += [f'{path} FAILED', f'  {_said(error)}']
        continue
      for name, test in list(scope.items()):
        full = f'{path}::{name}'
        if (
            not name.startswith('test')
            or not callable(test)
            or only not in full
        ):
          continue
        try:
          with _limit(seconds):
            test()
          passed += 1
        except BaseException as error:
          failed += 1
          lines.append(f'{full} FAILED')
          if where := _line_of(error, path):
            lines.append(f'  {where}')
          lines.append(f'  {_said(error)}')
    lines.insert(0, f'{passed} passed, {failed} failed')
    os.write(out, '\n'.join(lines).encode(errors='replace'))


def _stand_in():
  """Return the substitute for pytest in tests, which only has `raises`."""
  module = types.ModuleType('pytest')

  @contextlib.contextmanager
  def raises(kind):
    try:
      yield
    except kind:
      return
    raise AssertionError(f'{kind.__name__} was not raised')

  def missing(name):
    raise AttributeError(f'only pytest.raises works here, not pytest.{name}')

  module.raises, module.__getattr__ = raises, missing
  return module


class _Asserts(ast.NodeTransformer):
  """Makes a failing `assert a == b` show the value of a."""

  def visit_Assert(self, node):
    if node.msg is None and isinstance(node.test, ast.Compare):
      left = node.test.left
      node.test.left = ast.NamedExpr(ast.Name('_found', ast.Store()), left)
      node.msg = ast.parse('f"found {_found!r:.300}"', mode='eval').body
    return ast.fix_missing_locations(node)


def _load(path):
  """Return the names that a test file defines."""
  with open(path, encoding='utf-8') as file:
    tree = _Asserts().visit(ast.parse(file.read(), path))
  scope = {'__name__': _module_name(path), '__file__': path}
  exec(compile(ast.fix_missing_locations(tree), path, 'exec'), scope)
  return scope


def _test_files():
  found = []
  for path in _walk('.'):
    name = os.path.basename(path)
    if re.fullmatch(r'test_.*\.py|.*_test\.py', name):
      found.append(path)
  return found


def _line_of(error, path):
  """Return the line of a test file where an error was raised."""
  for frame in reversed(traceback.extract_tb(error.__traceback__)):
    if frame.filename == path:
      with contextlib.suppress(OSError, IndexError, UnicodeDecodeError):
        with open(path, encoding='utf-8') as file:
          return file.read().split('\n')[frame.lineno - 1].strip()
  return ''


def _said(error):
  text = f'{type(error).__name__}: {error}'
  return ' '.join(text.split())[:300]


def _prepare():
  """Set up imports from the tree as in a fresh interpreter started there."""
  sys.path.insert(0, os.getcwd())
  sys.dont_write_bytecode = True
  signal.signal(signal.SIGPROF, _late)


def _late(number, frame):
  raise LateError('too slow')


@contextlib.contextmanager
def _limit(seconds):
  """Raise an error after some CPU seconds, and repeatedly soon after."""
  signal.setitimer(signal.ITIMER_PROF, seconds, 0.1)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_PROF, 0)


@contextlib.contextmanager
def _quiet():
  """Yield a descriptor of stdout; output of the tree's code is dropped."""
  out = os.dup(1)
  null = os.open(os.devnull, os.O_WRONLY)
  for stream in (1, 2):
    os.dup2(null, stream)
  try:
    yield out
  finally:
    sys.stdout.flush()
    os.dup2(out, 1)


def _module_name(path):
  return path.removesuffix('.py').replace('/', '.')


# ----------------------------------------------------------------------- tools


class Refused(Exception):
  """An argument is wrong; the message says how."""


def tool(name, arguments):
  """Run a tool that looks at files or changes them; reply in JSON."""
  try:
    answer = {'ok': True, 'text': TOOLS[name](**arguments)}
  except Refused as error:
    answer = {'ok': False, 'text': str(error)}
  except OSError as error:
    answer = {'ok': False, 'text': f'{error.strerror}: {error.filename}'}
  return json.dumps(answer).encode()


def _ls(path):
  top = _at(path or '.')
  if not os.path.isdir(top):
    raise Refused(f'{path} is not a folder; read shows files')
  names = []
  for name in sorted(os.listdir(top)):
    full = os.path.join(top, name)
    if name not in _SKIPPED:
      names.append(name + ('/' if os.path.isdir(full) else ''))
  return '\n'.join(names) or 'the folder is empty'


def _grep(pattern, path):
  top = _at(path or '.')
  try:
    expression = re.compile(pattern)
  except (re.error, RecursionError, OverflowError) as error:
    raise Refused(f'{pattern!r} is not a valid regex: {error}') from error
  if os.path.isdir(top):
    paths = _walk(top)
  else:
    _text(top)  # A file that is named must be there, and be text.
    paths = [top]
  lines, size = [], 0
  for file in paths:
    try:
      text = _text(file)
    except Refused:
      continue
    for number, line in enumerate(text.split('\n'), 1):
      if expression.search(line):
        lines.append(f'{os.path.relpath(file)}:{number}:{line}'[:400])
        size += len(lines[-1])
    if size > 100_000:
      break
  return '\n'.join(lines) or f'no line has {pattern}'


def _read(path, first, last, most):
  lines = _lines(_text(_at(path)))
  if not lines:
    return 'the file is empty'
  whole = last is None
  last = min(first + most - 1 if whole else last, len(lines))
  if not 1 <= first <= len(lines) or last < first:
    raise Refused(
        f'lines {first} to {last}: {path} has lines 1 to {len(lines)}'
    )
  chosen = enumerate(lines[first - 1 : last], first)
  shown = [f'{number} {line}' for number, line in chosen]
  if whole and last < len(lines):
    shown.append(f'... {len(lines) - last} lines more')
  return '\n'.join(shown)


def _edit(path, old, new):
  file = _at(path)
  if not os.path.lexists(file):
    if old:
      raise Refused(f'there is no file {path}')
    os.makedirs(os.path.dirname(file) or '.', exist_ok=True)
    _write(file, new)
    return f'{path} is new'
  text = _text(file)
  if text and not old:
    raise Refused(f'{path} exists: say which text is to be replaced')
  count = text.count(old)
  if count != 1:
    found = 'not' if not count else f'{count} times'
    raise Refused(f'the old text is {found} in {path}; it must be there once')
  _write(file, text.replace(old, new))
  return (
      f'{path} is changed at line {text[: text.index(old)].count(chr(10)) + 1}'
  )


def _edit_lines(path, first, last, new):
  file = _at(path)
  lines = _lines(_text(file))
  # The line after the last one may be named, to append.
  if first < 1 or not first - 1 <= last <= len(lines):
    raise Refused(
        f'lines {first} to {last}: {path} has lines 1 to {len(lines)}'
    )
  lines[first - 1 : last] = _lines(new)
  _write(file, ''.join(f'{line}\n' for line in lines))
  return f'{path} is changed at line {first}'


def _lines(text):
  lines = text.split('\n')
  return lines[:-1] if lines[-1] == '' else lines


def _text(file):
  """Return the text of a regular file that is not too large to show."""
  path = os.path.relpath(file)
  if os.path.isdir(file):
    raise Refused(f'{path} is a folder; ls shows what is in it')
  if not os.path.lexists(file):
    raise Refused(f'there is no file {path}')
  status = os.lstat(file)
  if not stat.S_ISREG(status.st_mode):
    raise Refused(f'{path} is a link or a device, which is not followed')
  if status.st_size > _LONGEST_FILE:
    raise Refused(f'{path} has {status.st_size} bytes, which is too much')
  with open(file, 'rb') as opened:
    data = opened.read()
  try:
    if b'\0' in data:
      raise ValueError
    return data.decode()
  except ValueError:
    raise Refused(f'{path} is binary') from None


def _write(file, text):
  """Replace a file instead of writing to it: it may have a second name."""
  if len(text) > _LONGEST_FILE:
    raise Refused(f'a text of {len(text)} letters is too long')
  mode = 0o755 if os.path.exists(file) and os.access(file, os.X_OK) else 0o644
  if os.path.lexists(file):
    os.unlink(file)
  with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, mode), 'w') as out:
    out.write(text)


def _at(path):
  """Return a path in the tree, unless a link leads out of it."""
  parts = pathlib.PurePosixPath(path).parts
  if path.startswith('/') or '..' in parts or '\0' in path:
    raise Refused(f'{path!r} leads out of the repository; name a path within')
  if '.git' in parts:
    raise Refused('.git is not for this tool; git shows what is in it')
  for end in range(1, len(parts) + 1):
    if os.path.islink(os.path.join(*parts[:end])):
      raise Refused(f'{"/".join(parts[:end])} is a link, which is not followed')
  return os.path.join('.', *parts)


def _walk(top):
  """Yield the regular files below a folder, in order."""
  for folder, folders, files in os.walk(top):
    folders[:] = sorted(set(folders) - set(_SKIPPED))
    for name in sorted(files):
      yield os.path.relpath(os.path.join(folder, name))


TOOLS = {
    'ls': _ls,
    'grep': _grep,
    'read': _read,
    'edit': _edit,
    'edit_lines': _edit_lines,
}
OPERATIONS = {
    'probe': probe,
    'survey': survey,
    'visible': visible,
    'tool': tool,
}
