"""Python source as a syntax tree, for any thread."""

import ast
import threading

_LOCK = threading.Lock()


def parse(source: str, path: str = '<unknown>') -> ast.Module:
  """Return the tree of a source; like `ast.parse`, but safe in threads.

  Before 3.11.8 and 3.12.2, CPython uses one counter for the depth of all trees
  that are being built (python/cpython issue 106905). If a second thread parses
  during a garbage collection in the first, `ast.parse` raises SystemError; an
  episode would then randomly end without a grade.

  Args:
    source: Text of a module.
    path: Its name in the messages of errors.

  Raises:
    SyntaxError: If it is not Python.
    ValueError: If it has null bytes.
    RecursionError: If it is nested too deeply.
    MemoryError: If it is far too deep.
  """
  with _LOCK:
    return ast.parse(source, path)
