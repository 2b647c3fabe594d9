"""A bound on what a process that runs for months writes to its log."""

import dataclasses
import logging
import time

_CHARS = 2000  # Longest line; tracebacks are cut in their middle.
_LINES = 10  # Different lines of one statement within its window.
_FIRST_SECONDS, _LAST_SECONDS = 30.0, 3600.0


@dataclasses.dataclass
class _Site:
  """A statement that logs."""

  end: float  # When its window ends, by time.monotonic().
  seconds: float = _FIRST_SECONDS
  texts: set[str] = dataclasses.field(default_factory=set)
  left_out: int = 0


class Limit(logging.Filter):
  """A filter that shortens lines and leaves out what repeats.

  Within a window of time a statement logs a line once, and at most `_LINES`
  different ones. The next line after the window says how many were left out,
  and the next window is twice as long, up to an hour.
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
      text += f' (of such lines {left_out} were left out)'
    record.msg, record.args = text, None
    record.exc_info = record.exc_text = None
    return True
