"""Find the program in a completion: the last complete fenced block.

The last, as a completion that thinks aloud tries things first and answers at
its end; so does LiveCodeBench's `extract_code`. A block that is never closed is
no program, whether the limit cut it or the policy forgot: nobody knows what
would have followed. Nor is text without a fence.
"""

import re

# Fences as in CommonMark 0.31, Sec. 4.5: at most 3 spaces before them, at least
# 3 backticks, an info string after the opening one only. No two of its parts
# match the same text: a completion of spaces would take the square of its time.
_FENCE = re.compile(r'^( {0,3})(`{3,})([^`\r\n]*)\r?$', re.MULTILINE)
_THINKS = re.compile(r'^[ \t]*<think>', re.MULTILINE)
_LANGUAGES = ('', 'py', 'py3', 'python', 'python3')


def extract(text: str) -> str | None:
  """The program of a completion, or None.

  Args:
    text: A completion without special tokens. What is before a </think> is not
      the answer, nor what is behind a <think> without one.

  Returns:
    The content of the last complete block that names Python or no language.
  """
  text = text.rpartition('</think>')[2]
  if _THINKS.search(text):
    return None
  found, opened, language = None, None, ''
  for fence in _FENCE.finditer(text):
    ticks, info = fence[2], fence[3].strip()
    if opened is None:
      opened, language = fence, info.partition(' ')[0].lower()
    elif len(ticks) >= len(opened[2]) and not info:
      if language in _LANGUAGES:
        found = text[opened.end() + 1 : fence.start()]
        # Of a fence in a list, the lines are indented as it is.
        margin = rf'^ {{0,{len(opened[1])}}}'
        found = re.sub(margin, '', found, flags=re.MULTILINE)
      opened = None
  return found
