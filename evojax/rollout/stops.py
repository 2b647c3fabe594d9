"""Stop strings: the end of a completion in its text and in its tokens."""

import bisect
from collections.abc import Callable, Sequence

# The maximum number of tokens per character, and of characters at the beginning
# of a window that may differ from those in the whole text.
_TOKENS_PER_CHARACTER, _BLURRED = 4, 4


def first(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
  """Return (position, stop string) of the first stop string in a text."""
  hits = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
  return min(hits, default=None)


def cut(text: str, stops: Sequence[str]) -> str:
  """Return the text before the first stop string."""
  hit = first(text, stops)
  return text[: hit[0]] if hit else text


def find(
    tokens: Sequence[int],
    stops: Sequence[str],
    decode: Callable[[Sequence[int]], str],
    checked: int = 0,
) -> tuple[int, str] | None:
  """Return how many tokens reach the first stop string, and this string.

  Args:
    tokens: Token ids of a completion.
    stops: Stop strings.
    decode: Token ids -> text, special tokens included: a policy may end its
      turns with one that is not its end-of-sequence token.
    checked: Number of leading tokens in which an earlier call found none.

  Returns:
    (number of tokens, stop string): the smallest number of leading tokens whose
    text contains a stop string; None if there is none.
  """
  if not stops:
    return None
  # A completion is searched repeatedly while it grows, so only its end is
  # decoded at first.
  end = _end(tokens, max(map(len, stops)), decode, checked)
  if not all(first(decode(part), stops) for part in (end, tokens)):
    return None
  # A longer prefix contains every stop string that a shorter one does, so the
  # length is bisected. Trying all lengths would block other samples for
  # seconds.
  hit_in = lambda n: first(decode(tokens[:n]), stops)
  found = lambda n: hit_in(n) is not None
  n = 1 + bisect.bisect_left(range(1, len(tokens)), True, key=found)
  return n, hit_in(n)[1]


def _end(
    tokens: Sequence[int],
    longest: int,
    decode: Callable[[Sequence[int]], str],
    checked: int,
) -> Sequence[int]:
  """Return enough of the last tokens to hold any stop string not found before.

  Args:
    tokens: Token ids of a completion.
    longest: Characters of the longest stop string.
    decode: As in `find`.
    checked: As in `find`.
  """
  # The first characters may differ from those in the whole text, as the window
  # may begin within a character, and decoders drop a space at the beginning.
  wanted = longest + _BLURRED
  begin = max(checked - _TOKENS_PER_CHARACTER * wanted, 0)
  # Some tokens have no text.
  is_enough = len(decode(tokens[begin:checked])) >= wanted
  return tokens[begin:] if is_enough else tokens
