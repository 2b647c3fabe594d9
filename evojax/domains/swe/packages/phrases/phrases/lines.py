"""Lines of text."""


def wrap(text, width=20):
  """Return the lines of a text, each at most so long where words allow."""
  lines = []
  line = ''
  for word in text.split():
    if not line:
      line = word
    elif len(line) + 1 + len(word) <= width:
      line = f'{line} {word}'
    else:
      lines.append(line)
      line = word
  if line:
    lines.append(line)
  return lines


def shorten(text, width, mark='...'):
  """Return a text that is at most so long; a mark says what was cut."""
  if len(text) <= width:
    return text
  return text[: width - len(mark)].rstrip() + mark


def even(line, width):
  """Return a line with spaces between words up to a width.

  The gaps on the left are the larger ones.
  """
  words = line.split()
  if len(words) < 2:
    return line
  room = width - sum(len(word) for word in words)
  least, more = divmod(room, len(words) - 1)
  text = words[0]
  for number, word in enumerate(words[1:]):
    text += ' ' * (least + (1 if number < more else 0)) + word
  return text


def columns(pairs, gap=2):
  """Return lines of two columns, the second of which begins at one place."""
  width = max((len(left) for left, _ in pairs), default=0) + gap
  return [(left.ljust(width) + right).rstrip() for left, right in pairs]
