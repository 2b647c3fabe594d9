"""The text of a growing sample, without characters that could still change."""

from collections.abc import Callable, Sequence

from evojax.rollout import service
from evojax.rollout import stops

_Decode = Callable[[Sequence[int]], str]
# Decoders write this for bytes that do not form a character, at least not yet.
_BROKEN = '\ufffd'
# After this many tokens without a complete character at the end, the text is no
# longer decoded for every further token.
_PATIENCE = 64


def final(
    decode: _Decode,
    ids: Sequence[int],
    finish: service.Finish | None,
    *,
    trim: bool,
) -> str:
  """Return the text of a sample as sent to its client.

  Args:
    decode: Token ids -> text.
    ids: All sampled tokens.
    finish: How the sample ended; None while it runs.
    trim: Whether to leave out what stopped the sample: the last token if it was
      a stop token; for a stop string, everything from its first occurrence on.
      If False, the text ends with the token that completed the string.
  """
  matched = finish.matched if finish and finish.reason == 'stop' else None
  if not trim or matched is None:
    return decode(ids)
  if isinstance(matched, str):
    return stops.cut(decode(ids), (matched,))
  return decode(ids[:-1] if ids and ids[-1] == matched else ids)


class Detokenizer:
  """An incremental decoder that never shows an incomplete character.

  `text` only grows. It is decode(tokens so far) without incomplete characters
  at the end, however the tokens cut them. (Decoders that fall back to single
  bytes may take back characters that are followed by invalid bytes; `text`
  keeps these.)
  """

  def __init__(self, decode: _Decode):
    self.text = ''
    self._decode = decode
    # The window holds the tokens whose text may still change. A few before
    # them, whose text is final, serve as context, because decoders treat the
    # first token specially (for example, they drop its space).
    self._window: list[int] = []
    self._context = 0  # Number of leading tokens already in `text`.
    self._shown = 0  # Number of leading characters already in `text`.
    self._wait = 0  # Window length at which it is decoded again.

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
      # Special or broken tokens can form long sequences. Waiting in proportion
      # to their length keeps the total cost of decoding at n log n.
      pending = size - self._context
      self._wait = size + 1 + max(pending - _PATIENCE, 0) // 8


class Text:
  """The text of a sample, without what may become a stop string."""

  def __init__(self, decode: _Decode, *, stop: Sequence[str], trim: bool):
    """Start empty.

    Args:
      decode: Token ids -> text.
      stop: The strings at which the service stops.
      trim: See `final`.
    """
    self.value = ''  # The text that may be sent; it only grows.
    self._decode = decode
    self._trim = trim
    self._stop = stop if trim else ()
    self._detokenizer = Detokenizer(decode)

  def push(self, ids: Sequence[int]) -> None:
    """Append tokens of a sample that has not ended."""
    self._detokenizer.push(ids)
    tail = self._detokenizer.text[len(self.value) :]
    for stop in self._stop:
      tail = tail[: settled(tail, stop)]
    self.value += tail

  def close(self, ids: Sequence[int], finish: service.Finish) -> None:
    """Add held-back text, given all tokens and how the sample ended."""
    text = final(self._decode, ids, finish, trim=self._trim)
    self.value += text[len(self.value) :]


def settled(text: str, stop: str) -> int:
  """Count the characters before a stop string or the start of one."""
  at = text.find(stop)
  if at >= 0:
    return at
  for size in range(min(len(stop) - 1, len(text)), 0, -1):
    if text.endswith(stop[:size]):
      return len(text) - size
  return len(text)
