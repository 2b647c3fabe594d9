"""A pseudo-terminal for tests of output to people."""

import os
import pty
import threading


class Terminal:
  """A pseudo-terminal that stores its output."""

  def __enter__(self):
    self._main, other = pty.openpty()
    self.out = open(other, 'w', encoding='utf-8')
    self._seen = []
    # A terminal accepts a few kilobytes, then waits for a reader.
    self._reader = threading.Thread(target=self._read)
    self._reader.start()
    return self

  def _read(self):
    try:
      while data := os.read(self._main, 4096):
        self._seen.append(data)
    except OSError:  # EIO: the other end is closed.
      pass

  def __exit__(self, *_):
    self.out.close()
    self._reader.join()
    os.close(self._main)
    self.text = b''.join(self._seen).decode()
