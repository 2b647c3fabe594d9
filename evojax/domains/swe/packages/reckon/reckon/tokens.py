"""Splits a formula into numbers, names and signs."""

SIGNS = '+-*/^(),'


def split(text):
  """Return the (kind, value) tokens of a formula.

  Raises:
    ValueError: If there is a sign that nobody knows.
  """
  tokens = []
  start = 0
  while start < len(text):
    letter = text[start]
    if letter.isspace():
      start += 1
    elif letter in SIGNS:
      tokens.append(('sign', letter))
      start += 1
    elif letter.isdigit() or letter == '.':
      end = span(text, start, lambda c: c.isdigit() or c == '.')
      tokens.append(('number', float(text[start:end])))
      start = end
    elif letter.isalpha():
      end = span(text, start, lambda c: c.isalnum() or c == '_')
      tokens.append(('name', text[start:end]))
      start = end
    else:
      raise ValueError(f'{letter!r} at {start} means nothing')
  return tokens


def span(text, start, belongs):
  """Return where the letters end that belong together."""
  end = start
  while end < len(text) and belongs(text[end]):
    end += 1
  return end


def names(text):
  """Return the names in a formula, in order, each once."""
  return sorted({value for kind, value in split(text) if kind == 'name'})
