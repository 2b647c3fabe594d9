"""The text of a growing sample: no character is shown that could change."""

from collections.abc import Callable, Sequence

from evojax.rollout import service
from evojax.rollout import stops

_Decode = Callable[[Sequence[int]], str]
# Decoders write this for bytes that are no character, or not yet.
_BROKEN = '\ufffd'
# After so many tokens without a whole character at their end, the text is not
# decoded anew for every further one.
_PATIENCE = 64


def final(
    decode: _Decode,
    ids: Sequence[int],
    finish: service.Finish | None,
    *,
    trim: bool,
) -> str:
  """Return the text of a sample as its client gets it.

  Args:
    decode: Token ids -> text.
    ids: All sampled tokens.
    finish: How the sample ended; None while it runs.
    trim: Whether to leave out what stopped the sample: the last token where a
      token did, everything from its first occurrence on where a string did.
      Without it, the text ends with the token that completed the string.
  """
  matched = finish.matched if finish and finish.reason == 'stop' else None
  if not trim or matched is None:
    return decode(ids)
  if isinstance(matched, str):
    return stops.cut(decode(ids), (matched,))
  return decode(ids[:-1] if ids and ids[-1] == matched else ids)


class Detokenizer:
  """A decoder of tokens as they come that never shows half a character.

  `text` only grows. It is decode(tokens so far) without a tail of characters
  that are not complete, however the tokens cut them. (Decoders that fall back
  to single bytes may take back characters that invalid bytes follow; the text
  keeps them.)
  """

  def __init__(self, decode: _Decode):
    self.text = ''
    self._decode = decode
    # Tokens whose text may still change, behind some whose text cannot: those
    # are context, because decoders treat the first token of a text specially
    # (they drop its space, for example).
    self._window: list[int] = []
    self._context = 0  # Number of leading tokens that are in `text` already.
    self._shown = 0  # Number of leading characters that are in `text` already.
    self._wait = 0  # Length of the window from which on it is decoded again.

  def push(self, ids: Sequence[int]) -> None:
    """Append tokens."""
    self._window += ids
    size = len(self._window)
    if size < self._wait:
      return
    text = self._decode(self._window)
    stable = text.rstrip(_BROKEN)
    grown = stable[self._shown :]
    self.text += grown
    self._shown = max(self._shown, len(stable))
    if grown and len(stable) == len(text):
      self._window = self._window[self._context :]
      self._context = len(self._window)
      self._shown = len(self._decode(self._window))
      self._wait = 0
    else:
      # Special or broken tokens can go on for long. Waiting in proportion keeps
      # the cost of all decodings at n log n.
      pending = size - self._context
      self._wait = size + 1 + max(pending - _PATIENCE, 0) // 8


class Text:
  """The text of a sample, without what may become a stop string."""

  def __init__(self, decode: _Decode, *, stop: Sequence[str], trim: bool):
    """Start empty.

    Args:
      decode: Token ids -> text.
      stop: The strings that the service stops at.
      trim: See `final`.
    """
    self.value = ''  # The text that may be shown; it only grows.
    self._decode = decode
    self._trim = trim
    self._stop = stop if trim else ()
    self._detokenizer = Detokenizer(decode)

  def push(self, ids: Sequence[int]) -> None:
    """Append tokens of a sample that goes on."""
    self._detokenizer.push(ids)
    tail = self._detokenizer.text[len(self.value) :]
    for stop in self._stop:
      tail = tail[: settled(tail, stop)]
    self.value += tail

  def close(self, ids: Sequence[int], finish: service.Finish) -> None:
    """Show what was held back, given all tokens and how the sample ended."""
    text = final(self._decode, ids, finish, trim=self._trim)
    self.value += text[len(self.value) :]


def settled(text: str, stop: str) -> int:
  """Count the characters before a stop string or the beginning of one."""
  at = text.find(stop)
  if at >= 0:
    return at
  for size in range(min(len(stop) - 1, len(text)), 0, -1):
    if text.endswith(stop[:size]):
      return len(text) - size
  return len(text)
