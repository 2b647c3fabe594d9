"""Values on their way out of the box, in a text that hides nothing.

Only plain values of builtin types are encoded, and only these are compared
outside, so that no object of an agent can claim to equal anything. This file is
used on both sides of the box, see `inside`.
"""

import builtins
import json

_MOST = 20_000  # Maximum characters of one value.
_DEPTH = 40


def encode(value):
  """Return a value as JSON text; other objects become their class's name."""
  try:
    text = json.dumps(_plain(value, _DEPTH))
  except (RecursionError, ValueError, OverflowError):
    text = '["o", "deep"]'
  return text if len(text) <= _MOST else '["o", "long"]'


def _plain(value, depth):
  if depth == 0:
    raise RecursionError
  kind = type(value)
  if value is None or kind in (bool, int, str):
    return value
  if kind is float:
    return ['f', repr(value)]
  if kind is bytes:
    return ['b', value.hex()]
  if kind in (list, tuple):
    return ['l' if kind is list else 't', [_plain(v, depth - 1) for v in value]]
  if kind in (set, frozenset):
    return ['s', [_plain(v, depth - 1) for v in value]]
  if kind is dict:
    pairs = [[_plain(x, depth - 1) for x in pair] for pair in value.items()]
    return ['d', pairs]
  return ['o', kind.__name__]


def encode_error(error):
  """Return the text of an exception: the name of its first builtin class."""
  for kind in type(error).__mro__:
    if kind.__module__ == 'builtins':
      return json.dumps(['e', kind.__name__, f'{error}'[:200]])
  return json.dumps(['e', 'BaseException', ''])


class Foreign:
  """An object that is not a plain value; it equals nothing, not even itself."""

  __hash__ = None

  def __init__(self, name):
    self.name = name

  def __eq__(self, other):
    return False

  def __repr__(self):
    return f'<{self.name}>'


class Raised:
  """An exception of a builtin kind."""

  def __init__(self, kind, message):
    self.kind, self.message = kind, message

  def is_a(self, name):
    """Return whether it is of a kind, given by name."""
    kind, other = (getattr(builtins, n, None) for n in (self.kind, name))
    known = isinstance(kind, type) and isinstance(other, type)
    return known and issubclass(kind, other)

  def __repr__(self):
    return f'{self.kind}: {self.message}' if self.message else self.kind


def decode(text):
  """Return the value of a text from an untrusted source.

  Raises:
    ValueError: If `encode` and `encode_error` cannot have written it.
  """
  if len(text) > 2 * _MOST:
    raise ValueError('a value that is too long')
  try:
    return _value(json.loads(text))
  except (TypeError, KeyError, RecursionError, OverflowError) as error:
    raise ValueError(f'no value: {error}') from error


def _value(plain):
  if plain is None or type(plain) in (bool, int, str):
    return plain
  if type(plain) is not list or len(plain) < 2:
    raise ValueError('no value')
  kind, data = plain[:2]
  if kind == 'f':
    return float(data)
  if kind == 'b':
    return bytes.fromhex(data)
  if kind in ('l', 't', 's'):
    return {'l': list, 't': tuple, 's': set}[kind](map(_value, data))
  if kind == 'd':
    return {_value(key): _value(value) for key, value in data}
  if kind == 'e':
    return Raised(str(data), str(plain[2]))
  if kind == 'o':
    return Foreign(str(data))
  raise ValueError(f'no kind of value: {kind!r}')
