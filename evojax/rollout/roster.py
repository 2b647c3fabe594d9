"""The file that names the servers of a run, with one URL per line.

    # Servers of the run; read again whenever it changes.
    http://host-a:30000
    http://host-b:30000

The servers may change during the run. A change takes effect once two successive
reads have found the same text, since a half-written file would lack servers.
"""

from collections.abc import Sequence
import os
import pathlib

from evojax.runtime import config_checks


class Roster:
  """The URLs that a file names."""

  def __init__(self, path: str | os.PathLike[str]):
    """Store the path; nothing is read yet."""
    self.path = pathlib.Path(path).expanduser()
    self._text = self._seen = ''  # The text in use, and the text last read.
    self._told = ''  # The last fault that was raised, to raise it only once.

  def read(self) -> tuple[str, ...]:
    """Return the URLs.

    Raises:
      ValueError: If the file cannot be read, names no server, or has a line
        that is not a URL.
    """
    try:
      self._text = self._seen = self.path.read_text()
    except (OSError, UnicodeDecodeError) as error:
      raise ValueError(
          f'config.rollout.urls_file={str(self.path)!r} cannot be read'
          f" ({error}): write the servers of the run there, 'http://HOST:PORT'"
          ' on a line each'
      ) from error
    urls = self._parse(self._text)
    if not urls:
      raise ValueError(
          f"{self.path} names no server: write 'http://HOST:PORT' on a line"
      )
    return urls

  def changed(self) -> tuple[str, ...] | None:
    """Read the file again; return its URLs if it changed, otherwise None.

    Raises:
      ValueError: As in `read`, except that the file may name no server. The
        same fault is raised only once in a row.
    """
    try:
      text = self.path.read_text()
    except (OSError, UnicodeDecodeError) as error:
      self._tell(f'{self.path} cannot be read ({error}): its servers stay')
      return None
    settled, self._seen = text == self._seen, text
    if text == self._text:
      self._told = ''  # The fault is mended; if it recurs, it is raised again.
      return None
    if not settled:
      return None
    try:
      urls = self._parse(text)
    except ValueError as error:
      self._tell(f'{error}: its servers stay')
      return None
    self._text, self._told = text, ''
    return urls

  def _tell(self, fault: str) -> None:
    if fault != self._told:
      self._told = fault
      raise ValueError(fault)

  def _parse(self, text: str) -> tuple[str, ...]:
    lines = [line.split('#')[0].strip() for line in text.splitlines()]
    for number, line in enumerate(lines, 1):
      if line and not config_checks.URL.fullmatch(line):
        raise ValueError(
            f"{self.path}, line {number}: {line!r}; wanted 'http://HOST:PORT',"
            ' without a path'
        )
    return parse_urls([line for line in lines if line])


def parse_urls(urls: Sequence[str]) -> tuple[str, ...]:
  """Return URLs without duplicates and without a slash at the end."""
  return tuple(dict.fromkeys(url.rstrip('/') for url in urls))
