"""Stop strings: the end of a completion in its text and in its tokens."""

import bisect
from collections.abc import Callable, Sequence


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
) -> tuple[int, str] | None:
  """Return how many tokens reach the first stop string, and this string.

  Args:
    tokens: Token ids of a completion.
    stops: Stop strings.
    decode: Token ids -> text, special tokens included: a policy may end its
      turns with one that is not its end-of-sequence token.

  Returns:
    (number of tokens, stop string): the fewest first tokens whose text contains
    a stop string; None if there is none.
  """
  if not stops or first(decode(tokens), stops) is None:
    return None
  # A longer head holds whatever a shorter one does, so the length is bisected.
  # Trying all lengths would block all other samples for seconds.
  hit_in = lambda n: first(decode(tokens[:n]), stops)
  found = lambda n: hit_in(n) is not None
  n = 1 + bisect.bisect_left(range(1, len(tokens)), True, key=found)
  return n, hit_in(n)[1]
