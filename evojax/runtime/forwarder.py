"""A connection to another machine that stays open when that machine is gone.

jax's client of the coordination service aborts its process, with a dozen lines
from C++, at the moment when the connection breaks. Through a forwarder it never
sees that: whoever asks for `lost` says what has happened, and decides.
"""

import contextlib
import socket
import threading
import time

_CHUNK_BYTES = 1 << 16
_RETRY_SECONDS = 0.2


class Forwarder:
  """Forwards a port of this machine to an address, in threads."""

  def __init__(self, address: str):
    """Listen on a free port of this machine.

    Args:
      address: HOST:PORT; it need not be up yet.
    """
    host, _, port = address.rpartition(':')
    self._target = host.strip('[]'), int(port)
    # Seconds on the monotonic clock; None while nothing has broken.
    self.lost: float | None = None
    self._socket = socket.create_server(('127.0.0.1', 0))
    self.address = f'127.0.0.1:{self._socket.getsockname()[1]}'
    self._run(self._accept)

  def _run(self, work, *args) -> None:
    threading.Thread(target=work, args=args, daemon=True).start()

  def _accept(self) -> None:
    while True:
      near, _ = self._socket.accept()
      self._run(self._serve, near)

  def _serve(self, near: socket.socket) -> None:
    """Connect a client to the address, as soon as it can be reached."""
    while self.lost is None:
      with contextlib.suppress(OSError):
        far = socket.create_connection(self._target, timeout=10)
        break
      time.sleep(_RETRY_SECONDS)
    else:
      return  # The client waits for the end of its process.
    for end in (near, far):
      end.settimeout(None)
      # Messages are small, and somebody waits for each.
      end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self._run(self._pump, far, near, True)
    self._pump(near, far, False)

  def _pump(
      self, source: socket.socket, sink: socket.socket, inwards: bool
  ) -> None:
    """Copy bytes in one direction until the source ends."""
    with contextlib.suppress(OSError):
      while chunk := source.recv(_CHUNK_BYTES):
        sink.sendall(chunk)
    if inwards:
      self.lost = self.lost or time.monotonic()
    else:  # The client has closed it; the other end hears of that.
      with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
