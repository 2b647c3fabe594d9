"""Extraction of the program in a completion: the last complete fenced block.

The last block counts because a completion that thinks aloud tries programs
first and answers at its end, as in LiveCodeBench's `extract_code`. A block that
is never closed is not a program, since its rest is unknown. Text without a
fence is not a program either, and neither is an unmarked block without a call
that follows a program: it shows an input or an output.
"""

import re

# Fences follow CommonMark 0.31, Sec. 4.5: at most 3 spaces before them, at
# least 3 backticks, an info string only after the opening one. No two parts of
# the pattern match the same text; otherwise a completion of spaces would take
# quadratic time.
_FENCE = re.compile(r'^( {0,3})(`{3,})([^`\r\n]*)\r?$', re.MULTILINE)
_THINKS = re.compile(r'^[ \t]*<think>', re.MULTILINE)
# python, py3, python3.11, {.python .numberLines}, python:main.py; not
# python-repl or pycon, whose lines begin with a prompt.
_PYTHON = re.compile(r'(\{ *\.?)?py(thon)?[0-9.]*($|[\s:,}])', re.IGNORECASE)
_CALL = re.compile(r'\w *\(')


def extract(text: str) -> str | None:
  """Return the program of a completion, or None.

  Args:
    text: A completion without special tokens. Text before </think>, or after a
      <think> that is not closed, is not part of the answer.

  Returns:
    The content of the last complete block that is marked as Python or may be
    Python without a mark; None if there is none.
  """
  text = text.rpartition('</think>')[2]
  if _THINKS.search(text):
    return None
  found, opened, mark = None, None, ''
  for fence in _FENCE.finditer(text):
    ticks, info = fence[2], fence[3].strip()
    if opened is None:
      opened, mark = fence, info
    elif len(ticks) >= len(opened[2]) and not info:
      block = text[opened.end() + 1 : fence.start()]
      is_python = _PYTHON.match(mark) if mark else _CALL.search(block)
      if is_python or not mark and found is None:
        # The lines of a block within a list are indented like its fence.
        margin = rf'^ {{0,{len(opened[1])}}}'
        found = re.sub(margin, '', block, flags=re.MULTILINE)
      opened = None
  return found
