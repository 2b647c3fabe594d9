"""A bound on the log of a process that may run for months."""

import dataclasses
import logging
import time

_CHARS = 2000  # Limit per message with traceback; longer ones lose the middle.
_LINES = 10  # Different messages per logging statement and time window.
_FIRST_SECONDS, _LAST_SECONDS = 30.0, 3600.0


@dataclasses.dataclass
class _Site:
  """The current time window of one logging statement."""

  end: float  # End of the window, by time.monotonic().
  seconds: float = _FIRST_SECONDS  # Length of the window.
  texts: set[str] = dataclasses.field(default_factory=set)  # Logged messages.
  left_out: int = 0  # Messages left out.


class Limit(logging.Filter):
  """A filter that shortens messages and leaves out repetitions.

  Within a time window a logging statement logs each message once, and at most
  `_LINES` different ones. The first message after the window includes how many
  were left out. If any were, the next window is twice as long, up to an hour.
  """

  def __init__(self):
    super().__init__()
    self._sites: dict[tuple[str, int], _Site] = {}

  def filter(self, record: logging.LogRecord) -> bool:
    now, where = time.monotonic(), (record.pathname, record.lineno)
    site = self._sites.get(where) or _Site(now + _FIRST_SECONDS)
    left_out = 0
    if now > site.end:
      left_out, longer = site.left_out, min(2 * site.seconds, _LAST_SECONDS)
      seconds = longer if left_out else _FIRST_SECONDS
      site = _Site(now + seconds, seconds)
    self._sites[where] = site
    text = record.getMessage()
    if text in site.texts or len(site.texts) >= _LINES:
      site.left_out += 1
      return False
    site.texts.add(text)
    if record.exc_info and record.exc_info[0]:
      text += '\n' + logging.Formatter().formatException(record.exc_info)
    if len(text) > _CHARS:
      text = f'{text[: _CHARS // 2]} [...] {text[-_CHARS // 2 :]}'
    if left_out:
      text += f' ({left_out} such lines were left out)'
    record.msg, record.args = text, None
    record.exc_info = record.exc_text = None
    return True
