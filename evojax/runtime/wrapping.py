"""Wrapping of text into lines of limited width, broken between words.

Only the standard library is used, because messages are also printed before
other packages are imported.
"""

import re
import textwrap

WIDTH = 80
# A text from a proposer or a server must not control the terminal, and no
# terminal can show half of a surrogate pair.
_CONTROL = re.compile(
    '[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]'
)

# A line that begins with one of the two commands that start evojax.
_COMMAND = re.compile(r'\s*(?:\S*python[\d.]* -m|bash) \S')
_ARGUMENT = re.compile(r"(?:'[^']*'|[^\s'])+")


def wrap(text: str, columns: int) -> list[str]:
  """Return the lines of a text, broken between words only.

  A continued line keeps its indentation. A command is continued by backslashes,
  so that it can be pasted into a shell. A word that is longer than a line, such
  as a path, is not broken. Control characters are escaped.
  """
  text = _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
  lines = []
  for line in text.expandtabs().splitlines() or ['']:
    indent = line[: len(line) - len(line.lstrip())]
    if _COMMAND.match(line):
      lines += _wrap_command(line, columns, indent)
      continue
    lines += textwrap.wrap(
        line,
        columns,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or ['']
  return lines


def _wrap_command(line: str, columns: int, indent: str) -> list[str]:
  first, *words = _ARGUMENT.findall(line)
  lines = [indent + first]
  for word in words:
    if len(lines[-1]) + len(word) + len('  \\') > columns:
      lines[-1] += ' \\'
      lines.append(f'{indent}  {word}')
    else:
      lines[-1] += f' {word}'
  return lines
