"""Text of a sample while it grows: nothing is shown that could change."""

from collections.abc import Callable, Sequence

from evojax.rollout import service
from evojax.rollout import stops

# What a decoder writes for bytes that are no character, or not yet.
_BROKEN = '\ufffd'
# Tokens without a whole character at their end, after which not every further
# one is looked at.
_PATIENCE = 64


def final(
    decode: Callable[[Sequence[int]], str],
    ids: Sequence[int],
    finish: service.Finish | None,
    *,
    trim: bool,
) -> str:
  """Text of a sample as its client gets it.

  Args:
    decode: Token ids -> text.
    ids: All sampled tokens.
    finish: How the sample ended; None while it runs.
    trim: Leave out what stopped the sample: the last token where a token did,
      everything from the first occurrence on where a string did. False: the
      text of all tokens, to the end of the one that completed the string.
  """
  matched = finish.matched if finish and finish.reason == 'stop' else None
  if not trim or matched is None:
    return decode(ids)
  if isinstance(matched, str):
    return stops.cut(decode(ids), (matched,))
  return decode(ids[:-1] if ids and ids[-1] == matched else ids)


class Detokenizer:
  """Decodes tokens as they come, without ever showing half a character.

  `text` only grows. It is decode(tokens so far) up to a tail of characters
  that are not complete, whatever way the tokens cut them. (Decoders that fall
  back to single bytes may take back characters which invalid bytes follow; the
  text keeps them.)
  """

  def __init__(self, decode: Callable[[Sequence[int]], str]):
    self.text = ''
    self._decode = decode
    # Tokens whose text may yet change, after some whose text cannot: a decoder
    # treats the first token of a text specially, e.g. drops its space.
    self._window: list[int] = []
    self._context = 0  # Leading tokens of the window that are in `text`.
    self._shown = 0  # Leading characters of the window's text that are.
    self._wait = 0  # Length of the window that is worth another look.

  def push(self, ids: Sequence[int]) -> None:
    """Appends tokens."""
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
      # Special tokens, or broken ones: it may go on like this for long, and all
      # looks together shall cost n log n.
      pending = size - self._context
      self._wait = size + 1 + max(pending - _PATIENCE, 0) // 8


class Text:
  """Text of a sample, without what may turn out to be a stop string."""

  def __init__(
      self,
      decode: Callable[[Sequence[int]], str],
      *,
      stop: Sequence[str],
      trim: bool,
  ):
    """Starts empty.

    Args:
      decode: Token ids -> text.
      stop: Strings that the service stops at.
      trim: See `final`.
    """
    self.value = ''  # What may be shown; only grows.
    self._decode = decode
    self._trim = trim
    self._stop = stop if trim else ()
    self._detokenizer = Detokenizer(decode)

  def push(self, ids: Sequence[int]) -> None:
    """Appends tokens of a sample that goes on."""
    self._detokenizer.push(ids)
    tail = self._detokenizer.text[len(self.value) :]
    for stop in self._stop:
      tail = tail[: settled(tail, stop)]
    self.value += tail

  def close(self, ids: Sequence[int], finish: service.Finish) -> None:
    """Shows what was held back, given all tokens and how the sample ended."""
    text = final(self._decode, ids, finish, trim=self._trim)
    self.value += text[len(self.value) :]


def settled(text: str, stop: str) -> int:
  """Characters of text that come before a stop string or the head of one."""
  at = text.find(stop)
  if at >= 0:
    return at
  for size in range(min(len(stop) - 1, len(text)), 0, -1):
    if text.endswith(stop[:size]):
      return len(text) - size
  return len(text)
