"""Size and structure of the package's source, and the cost of importing it.

    python -m benchmarks.house [ROOT]

ROOT is a checkout, by default the working directory. BUILD_NOTES.md holds the
numbers of two checkouts. Lines of code exclude docstrings, comments and blank
lines. Import times are medians over five fresh interpreters.
"""

import ast
from collections.abc import Iterator
import io
import pathlib
import statistics
import subprocess
import sys
import tokenize

_STATEMENTS = {
    'import evojax': 'import evojax',
    'import of a domain': 'import evojax.domains.math',
    'import of the trainer': 'import evojax.training.trainer',
}
_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def main(root: pathlib.Path) -> None:
  """Print one number per line."""
  # Data, not our source.
  data = root / 'evojax' / 'domains' / 'swe' / 'packages'
  sources = {
      path: path.read_text()
      for path in sorted((root / 'evojax').rglob('*.py'))
      if not path.is_relative_to(data)
  }
  lines = {path: len(text.splitlines()) for path, text in sources.items()}
  code = comments = documented = 0
  functions = []
  for path, text in sources.items():
    tree = ast.parse(text)
    docs = set().union(*map(set, _docstrings(tree)), set())
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    with_code = {
        number
        for token in tokens
        if token.type not in _NO_CODE
        for number in range(token.start[0], token.end[0] + 1)
    }
    code += len(with_code - docs)
    documented += len(docs)
    comments += sum(line.lstrip().startswith('#') for line in text.splitlines())
    functions += [
        (f'{path.relative_to(root)}:{node.name}', node)
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS)
    ]
  total = sum(lines.values())
  longest = max(lines, key=lines.get)
  largest = max(functions, key=lambda item: length(item[1]))
  widest = max(functions, key=lambda item: parameters(item[1]))
  loose = [path for path in sources if path.parent == root / 'evojax']
  print(f'files                {len(sources)}')
  print(f'lines                {total:,}')
  print(f'lines of code        {code:,}')
  print(f'docstrings           {documented / total:.1%}')
  print(f'comment lines        {comments / total:.1%}')
  print(f'longest file         {lines[longest]} {longest.relative_to(root)}')
  print(f'longest function     {length(largest[1])} {largest[0]}')
  print(f'most parameters      {parameters(widest[1])} {widest[0]}')
  print(f'modules at the top   {len(loose)}')
  for name, statement in _STATEMENTS.items():
    print(f'{name:20} {_seconds(root, statement)}')


def _docstrings(tree: ast.AST) -> Iterator[range]:
  """Yield the line ranges of all docstrings."""
  for node in ast.walk(tree):
    if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
      if ast.get_docstring(node) is not None:
        yield range(node.body[0].lineno, node.body[0].end_lineno + 1)


def length(function: ast.FunctionDef) -> int:
  """Return the number of lines from `def` to the last one."""
  return function.end_lineno - function.lineno + 1


def parameters(function: ast.FunctionDef) -> int:
  """Return the number of named parameters without `self` and `cls`."""
  arguments = function.args
  names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
  return sum(argument.arg not in ('self', 'cls') for argument in names)


def _seconds(root: pathlib.Path, statement: str) -> str:
  """Return the median of five fresh interpreters, or that a module is
  missing."""
  code = f'import time; t = time.perf_counter(); {statement}; '
  code += 'print(time.perf_counter() - t)'
  times = []
  for _ in range(5):
    run = subprocess.run(
        [sys.executable, '-c', code],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
      return 'not there'
    times.append(float(run.stdout))
  return f'{statistics.median(times):.3f} s'


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else '.').resolve())
