"""A local connection that stays open when the remote machine disappears.

jax's client of the coordination service aborts its process, with a dozen lines
from C++, as soon as its connection breaks. A client that connects through a
forwarder does not see the break. `lost` records it, and other code (see
`peers`) decides what to do.
"""

import contextlib
import socket
import threading
import time

_CHUNK_BYTES = 1 << 16
_RETRY_SECONDS = 0.2


class Forwarder:
  """Threads that forward a local port to a remote address."""

  def __init__(self, address: str):
    """Listen on a free port of this machine.

    Args:
      address: HOST:PORT of a server, which may start later.
    """
    host, _, port = address.rpartition(':')
    self._target = host.strip('[]'), int(port)
    # When the remote side broke, on the monotonic clock; None: it has not.
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
    """Connect a client to the address as soon as the server is reachable."""
    while self.lost is None:
      with contextlib.suppress(OSError):
        far = socket.create_connection(self._target, timeout=10)
        break
      time.sleep(_RETRY_SECONDS)
    else:
      return  # The client's connection stays open until its process ends.
    for end in (near, far):
      end.settimeout(None)
      # Send small messages at once, because the receiver waits for each.
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
    else:  # The client has closed its side: close the remote one, too.
      with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
