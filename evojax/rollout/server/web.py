"""Limits for the web server's connections: number, time and head size.

uvicorn parses requests, but limits neither the number of connections that wait
for their clients nor, with httptools, the size of a request's head. Here each
connection has a time limit for its next request. If there are too many, the one
that has waited longest is closed to make room for a new one.
"""

import asyncio
import functools
from typing import Any

import uvicorn
from uvicorn.protocols.http import httptools_impl

from evojax.rollout.server import errors
from evojax.rollout.server import settings as settings_lib
from evojax.runtime import descriptors

_HEAD_BYTES = 64 << 10  # Request line and headers, or trailers.
_HEADERS = 100
_HEADER_COST = 32  # Bytes that each header counts in addition to its text.
# A body may come in chunks of one byte, each with five bytes of framing.
_FRAMING = 8
_PIPELINED = 16  # Most requests queued behind the current one.
_KEEP_ALIVE_SECONDS = 65  # Longer than client pools keep connections.
_IDLE = 8  # Open connections allowed per concurrent request.
_OTHER_DESCRIPTORS = 128  # File descriptors for other uses than connections.


def config(app, settings: settings_lib.Settings, **options) -> uvicorn.Config:
  """Return uvicorn's configuration for an application with these settings.

  It also raises the process's limit of open files as far as allowed.

  Args:
    app: The ASGI application.
    settings: The limits.
    **options: Further options of `uvicorn.Config`.
  """
  files = descriptors.raise_limit()
  # Up to this many connections are accepted before they are counted.
  backlog = min(2048, files // 4)
  room = max(files - backlog - _OTHER_DESCRIPTORS, 16)
  connections = Connections(min(_IDLE * settings.connections, room))
  return uvicorn.Config(
      app,
      http=functools.partial(Protocol, connections, settings.client_seconds),
      ws='none',
      lifespan='off',
      access_log=False,
      log_config=None,
      proxy_headers=False,
      backlog=backlog,
      timeout_keep_alive=_KEEP_ALIVE_SECONDS,
      **options,
  )


class Connections:
  """The open connections of a server, by client address."""

  def __init__(self, most: int):
    """Allow `most` connections; one client may have half of them."""
    self.most = most
    self.most_of_one = max(most // 2, 1)
    self._open: dict[str, set[Protocol]] = {}
    # Connections that wait for their client, longest wait first.
    self._waiting: dict[str, dict[Protocol, None]] = {}
    self._count = 0

  def add(self, connection: 'Protocol') -> bool:
    """Count a new connection; return False if there is no room for it.

    If its client has too many, others of that client are closed; otherwise
    those of the client with the most waiting connections.
    """
    address = connection.address
    mine = len(self._open.get(address, ())) >= self.most_of_one
    if mine or self._count >= self.most:
      size = lambda one: len(self._waiting[one])
      whose = address if mine else max(self._waiting, key=size, default='')
      oldest = next(iter(self._waiting.get(whose, ())), None)
      if oldest is None:
        return False
      self.remove(oldest)
      oldest.transport.abort()
    self._open.setdefault(address, set()).add(connection)
    self._count += 1
    self.wait(connection)
    return True

  def wait(self, connection: 'Protocol') -> None:
    """Note that from now on a connection waits for its client."""
    if connection in self._open.get(connection.address, ()):
      self._waiting.setdefault(connection.address, {})[connection] = None

  def work(self, connection: 'Protocol') -> None:
    """Note that from now on a client waits for its answer."""
    waiting = self._waiting.get(connection.address, {})
    waiting.pop(connection, None)
    if not waiting:
      self._waiting.pop(connection.address, None)

  def remove(self, connection: 'Protocol') -> None:
    """Remove a connection, if it is still known."""
    self.work(connection)
    known = self._open.get(connection.address, set())
    if connection in known:
      known.remove(connection)
      self._count -= 1
    if not known:
      self._open.pop(connection.address, None)


class Protocol(httptools_impl.HttpToolsProtocol):
  """uvicorn's connection, with limits."""

  def __init__(self, connections: Connections, seconds: float, **of_uvicorn):
    """Start without a transport.

    Args:
      connections: All connections of the server.
      seconds: Time limit for the head of a request, from its first byte on.
      **of_uvicorn: Arguments of uvicorn's protocol.
    """
    super().__init__(**of_uvicorn)
    self.address = ''  # Client address without its port.
    self._all = connections
    self._seconds = seconds
    self._late: asyncio.TimerHandle | None = None
    # Bytes of the incoming message: of its head, of its body, and of framing or
    # not yet classified data.
    self._head = self._body = self._framing = 0
    self._error = errors.ApiError(400, 'this is no HTTP request')

  def connection_made(self, transport: Any) -> None:
    super().connection_made(transport)
    self.address = self.client[0] if self.client else ''
    if self._all.add(self):
      self._expect()
    else:
      error = 'too many connections are open, and all of them are busy'
      self._refuse(errors.ApiError(503, error))

  def connection_lost(self, exc: Exception | None) -> None:
    self._expected()
    self._all.remove(self)
    super().connection_lost(exc)

  def data_received(self, data: bytes) -> None:
    if self.cycle is None or self.cycle.response_complete:
      self._expect()
    self._framing += len(data)
    super().data_received(data)
    if not self.transport.is_closing():
      self._check_framing()

  def _check_framing(self) -> None:
    """Refuse a message with too much besides its body, such as trailers."""
    if self._framing > _HEAD_BYTES + _FRAMING * self._body:
      self._refuse(_too_large())

  # Calls of the parser; an error ends the connection by `send_400_response`.

  def on_message_begin(self) -> None:
    super().on_message_begin()
    self._head = 0

  def on_url(self, url: bytes) -> None:
    super().on_url(url)
    self._count(len(url))

  def on_header(self, name: bytes, value: bytes) -> None:
    self._count(len(name) + len(value) + _HEADER_COST)
    if len(self.headers) >= _HEADERS:
      self._error = _too_large()
      raise self._error
    super().on_header(name, value)

  def _count(self, size: int) -> None:
    self._head += size
    if self._head > _HEAD_BYTES:
      self._error = _too_large()
      raise self._error

  def on_headers_complete(self) -> None:
    self._expected()
    self._framing = 0
    super().on_headers_complete()
    if len(self.pipeline) > _PIPELINED:
      self.transport.abort()  # An answer is being written, so none can be sent.

  def on_body(self, body: bytes) -> None:
    self._framing -= len(body)
    self._body += len(body)
    super().on_body(body)

  def on_message_complete(self) -> None:
    super().on_message_complete()
    self._framing = self._body = 0
    if not self.cycle.response_complete:
      self._all.work(self)

  def on_response_complete(self) -> None:
    super().on_response_complete()
    # Unless another request has already arrived completely in the pipeline.
    if self.cycle.response_complete or self.cycle.more_body:
      self._all.wait(self)

  def send_400_response(self, msg: str) -> None:
    del msg
    self._refuse(self._error)

  # Time.

  def _expect(self) -> None:
    """Start the time limit for the head of a request, once."""
    if self._late is None:
      self._late = self.loop.call_later(self._seconds, self._end)

  def _expected(self) -> None:
    if self._late is not None:
      self._late.cancel()
      self._late = None

  def _end(self) -> None:
    """End a connection whose next request did not arrive in time."""
    self._late = None
    if self.cycle is not None and not self.cycle.response_complete:
      return  # A request is being answered; the next is partial.
    if self._framing:
      seconds = f'{self._seconds:g}'
      self._refuse(errors.ApiError(408, f'no request within {seconds} seconds'))
    else:
      self.transport.close()

  def _refuse(self, error: errors.ApiError) -> None:
    """Answer a request that never reaches the application, and hang up."""
    if self.cycle is not None and not self.cycle.response_complete:
      self.transport.abort()  # Its answer may have begun.
      return
    body = error.response().body
    head = (
        'Content-Type: application/json\r\nConnection: close\r\n'
        f'Content-Length: {len(body)}\r\n\r\n'
    )
    status = httptools_impl.STATUS_LINE[error.status]
    self.transport.write(status + head.encode() + body)
    self.transport.close()


def _too_large() -> errors.ApiError:
  message = (
      f'the request line and the headers exceed {_HEAD_BYTES} bytes or'
      f' {_HEADERS} headers'
  )
  return errors.ApiError(431, message)
