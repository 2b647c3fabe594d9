"""Trees of files as bytes: kinds of files, changes, and patches.

A tree is a dict of path -> content, with '/' between folders and no links. No
function here touches a disk.
"""

import ast
from collections.abc import Collection, Mapping
import difflib
import pathlib
import re

from evojax.runtime import python_source

Tree = Mapping[str, bytes]

# Files that determine how tests run, in any folder. A policy's changes of them
# never reach a graded tree.
_CONFIGURATION = frozenset("""
    conftest.py pytest.ini .pytest.ini tox.ini setup.cfg setup.py pyproject.toml
    noxfile.py sitecustomize.py usercustomize.py pytest.py pytest.toml
    .pytest.toml manage.py runtests.py
""".split())
# Folders of a package's metadata, which can name plugins that pytest loads.
_METADATA = ('.dist-info', '.egg-info')
_TEST_FOLDERS = frozenset(('test', 'tests', 'testing'))
_TEST_FILE = re.compile(r'test_.*|.*_test|tests?', re.IGNORECASE)
_NO_NEWLINE = '\\ No newline at end of file\n'


def is_test(path: str) -> bool:
  """Return whether a path is a test, by the usual naming conventions."""
  parts = pathlib.PurePosixPath(path)
  folders = {folder.lower() for folder in parts.parts[:-1]}
  return bool(folders & _TEST_FOLDERS) or is_test_module(path)


def is_test_module(path: str) -> bool:
  """Return whether a path is a Python file that is named like tests."""
  parts = pathlib.PurePosixPath(path)
  return parts.suffix == '.py' and bool(_TEST_FILE.fullmatch(parts.stem))


def is_configuration(path: str) -> bool:
  """Return whether a file is hidden, or affects how tests are run."""
  parts = pathlib.PurePosixPath(path)
  return (
      parts.name.lower() in _CONFIGURATION
      or parts.suffix in ('.pth', '.pyc', '.so')
      or any(
          part.startswith('.') or part.endswith(_METADATA)
          for part in parts.parts
      )
  )


def is_source(path: str) -> bool:
  """Return whether a change of this file can be part of a solution."""
  return not (is_test(path) or is_configuration(path))


def changed(before: Tree, after: Tree) -> list[str]:
  """Return the paths that were edited, added or deleted, sorted."""
  return sorted(
      path for path in {*before, *after} if before.get(path) != after.get(path)
  )


def patch(before: Tree, after: Tree) -> str:
  """Return the changes of text files in git's format, for `git apply`.

  Files that are not UTF-8 are left out.
  """
  found = []
  for path in changed(before, after):
    try:
      old, new = (
          tree[path].decode() if path in tree else None
          for tree in (before, after)
      )
    except UnicodeDecodeError:
      continue
    found.append(f'diff --git a/{path} b/{path}\n')
    if old is None:
      found.append('new file mode 100644\n')
    if new is None:
      found.append('deleted file mode 100644\n')
    lines = difflib.unified_diff(
        _lines(old),
        _lines(new),
        '/dev/null' if old is None else f'a/{path}',
        '/dev/null' if new is None else f'b/{path}',
    )
    for line in lines:
      found.append(line if line.endswith('\n') else f'{line}\n{_NO_NEWLINE}')
  return ''.join(found)


def _lines(text: str | None) -> list[str]:
  # Not `splitlines`, which breaks lines where git does not.
  parts = (text or '').split('\n')
  lines = [f'{part}\n' for part in parts[:-1]]
  return [*lines, parts[-1]] if parts[-1] else lines


def only(text: str, names: Collection[str]) -> str:
  """Return a Python source with only some of its definitions.

  Functions and classes at the top level are removed unless they are named; all
  other code stays.

  Args:
    text: Python source.
    names: Functions and classes to keep.

  Raises:
    SyntaxError: If it is not Python.
  """
  lines = text.split('\n')
  for node in reversed(python_source.parse(text).body):
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
      if node.name not in names:
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        del lines[first - 1 : node.end_lineno]
        while len(lines) >= first and not lines[first - 1].strip():
          del lines[first - 1 : first]
        if first <= len(lines):
          # The code after it keeps its distance from the code above.
          while first > 1 and not lines[first - 2].strip():
            del lines[first - 2]
            first -= 1
          lines[first - 1 : first - 1] = ['', '']
  return '\n'.join(lines).strip('\n') + '\n' if any(lines) else ''


def definitions(text: str) -> list[str]:
  """Return the names of the functions and classes at the top level."""
  return [
      node.name
      for node in python_source.parse(text).body
      if isinstance(node, (ast.FunctionDef, ast.ClassDef))
  ]
