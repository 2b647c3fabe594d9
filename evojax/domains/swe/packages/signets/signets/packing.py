"""Packs runs of letters: aaab is 3ab."""


def runs(text):
  """Return (letter, count) of runs of equal letters."""
  found = []
  for letter in text:
    if found and found[-1][0] == letter:
      found[-1] = (letter, found[-1][1] + 1)
    else:
      found.append((letter, 1))
  return found


def pack(text, least=2):
  """Return a text whose runs of at least some letters are counted."""
  packed = ''
  for letter, count in runs(text):
    if count >= least:
      packed += f'{count}{letter}'
    else:
      packed += letter * count
  return packed


def unpack(packed):
  """Return the text of one that `pack` made of letters.

  Raises:
    ValueError: If it ends with a count.
  """
  text = ''
  count = ''
  for sign in packed:
    if sign.isdigit():
      count += sign
    else:
      text += sign * int(count or 1)
      count = ''
  if count:
    raise ValueError(f'nothing comes {count} times')
  return text


def saving(text):
  """Return by how many percent packing makes a text shorter."""
  if not text:
    return 0
  return round(100 * (len(text) - len(pack(text))) / len(text))


def blocks(text, size=5, gap=' '):
  """Return a text in blocks of a size."""
  return gap.join(text[i : i + size] for i in range(0, len(text), size))


def rails(text, count):
  """Return a text written down and up on some rails, read line by line."""
  if count < 2:
    return text
  lines = [''] * count
  row, step = 0, 1
  for letter in text:
    lines[row] += letter
    if row + step < 0 or row + step >= count:
      step = -step
    row += step
  return ''.join(lines)
