"""The web server's connections: how many, how long, and how large a head.

uvicorn parses requests; it bounds neither the connections that only wait for
their clients nor, with httptools, the size of a request's head. Here each
connection has a time for the next request, and where there are too many, the
one that has waited longest gives way to the new one.
"""

import asyncio
import contextlib
import functools
import resource
from typing import Any

import uvicorn
from uvicorn.protocols.http import httptools_impl

from evojax.rollout.server import errors
from evojax.rollout.server import settings as settings_lib

_HEAD_BYTES = 64 << 10  # Request line and headers; also trailers.
_HEADERS = 100
_HEADER_COST = 32  # Bytes that count for a header beside its text.
# A body may come in chunks of one byte, each framed by five.
_FRAMING = 8
_PIPELINED = 16  # Requests behind one that is being answered.
_KEEP_ALIVE_SECONDS = 65  # Longer than a client's pool keeps a connection.
_IDLE = 8  # Open connections allowed for each request that may run.
_DESCRIPTORS = 1 << 16  # Enough, where the hard limit allows more.
_OTHER_DESCRIPTORS = 128  # Those that are no connections.


def config(app, settings: settings_lib.Settings, **options) -> uvicorn.Config:
  """Return uvicorn's configuration for an application of these settings.

  It raises the process's limit of open files as far as it may.

  Args:
    app: The ASGI application.
    settings: The limits.
    **options: Further ones of `uvicorn.Config`.
  """
  files = _raise_descriptors()
  # So many connections are accepted at once, before any of them is counted.
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


def _raise_descriptors() -> int:
  """Raise the limit of open files; return it."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  unlimited = resource.RLIM_INFINITY
  wanted = _DESCRIPTORS if hard == unlimited else min(hard, _DESCRIPTORS)
  if soft != unlimited and soft < wanted:
    with contextlib.suppress(ValueError, OSError):
      resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
      return wanted
  return _DESCRIPTORS if soft == unlimited else min(soft, _DESCRIPTORS)


class Connections:
  """The open connections of a server, by the address of their client."""

  def __init__(self, most: int):
    """Allow so many; one client may have half of them."""
    self.most = most
    self.most_of_one = max(most // 2, 1)
    self._open: dict[str, set[Protocol]] = {}
    # Those that wait for their client, the longest first.
    self._waiting: dict[str, dict[Protocol, None]] = {}
    self._count = 0

  def add(self, connection: 'Protocol') -> bool:
    """Count a new connection; return False where there is no room for it.

    Where one client has too many, its own give way; otherwise those of the
    client that lets most of them wait.
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
    """Note that a connection waits for its client from now on."""
    if connection in self._open.get(connection.address, ()):
      self._waiting.setdefault(connection.address, {})[connection] = None

  def work(self, connection: 'Protocol') -> None:
    """Note that a connection's client waits for its answer."""
    waiting = self._waiting.get(connection.address, {})
    waiting.pop(connection, None)
    if not waiting:
      self._waiting.pop(connection.address, None)

  def remove(self, connection: 'Protocol') -> None:
    """Forget a connection; it may be forgotten already."""
    self.work(connection)
    known = self._open.get(connection.address, set())
    if connection in known:
      known.remove(connection)
      self._count -= 1
    if not known:
      self._open.pop(connection.address, None)


class Protocol(httptools_impl.HttpToolsProtocol):
  """uvicorn's connection, with bounds."""

  def __init__(self, connections: Connections, seconds: float, **of_uvicorn):
    """Start without a transport.

    Args:
      connections: All those of the server.
      seconds: Time for the head of a request, from its first byte on.
      **of_uvicorn: Arguments of uvicorn's protocol.
    """
    super().__init__(**of_uvicorn)
    self.address = ''  # The client's, without its port.
    self._all = connections
    self._seconds = seconds
    self._late: asyncio.TimerHandle | None = None
    # Bytes of the message that comes in: of its head, of its body, and those
    # that are no body or not yet known to be.
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
    """End a message most of which is no body: a long head, many trailers."""
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
      self.transport.abort()  # An answer is being written: nothing fits in.

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
    # Unless another one, from the pipeline, has come as a whole.
    if self.cycle.response_complete or self.cycle.more_body:
      self._all.wait(self)

  def send_400_response(self, msg: str) -> None:
    del msg
    self._refuse(self._error)

  # Time.

  def _expect(self) -> None:
    """Give the client its time for the head of a request, once."""
    if self._late is None:
      self._late = self.loop.call_later(self._seconds, self._end)

  def _expected(self) -> None:
    if self._late is not None:
      self._late.cancel()
      self._late = None

  def _end(self) -> None:
    """End a connection whose next request has not come in time."""
    self._late = None
    if self.cycle is not None and not self.cycle.response_complete:
      return  # It is being answered; a part of another is behind it.
    if self._framing:
      seconds = f'{self._seconds:g}'
      self._refuse(errors.ApiError(408, f'no request within {seconds} seconds'))
    else:
      self.transport.close()

  def _refuse(self, error: errors.ApiError) -> None:
    """Answer what never reaches the application, and hang up."""
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
