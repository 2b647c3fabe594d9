"""Middleware that decides which requests are accepted, and how many."""

from collections.abc import Iterable
import contextlib
import hmac
import ipaddress
import re
import socket

from starlette import types as asgi

from evojax.rollout.server import errors
from evojax.rollout.server import settings as settings_lib

# Paths that need no key and are not counted, so that monitoring always works.
PUBLIC = frozenset(('/health', '/health_generate', '/metrics'))
# Headers that identify the client and the content; duplicates could contradict
# each other. Keys may come twice, since a router adds its own to its client's.
_ONCE = (b'host', b'origin', b'content-type')
_JSON = re.compile(r'application/(json|[\w.+-]+\+json)\s*(;.*)?$', re.ASCII)
_SHOWN = 100  # Characters of a header in a message.


class Gate:
  """Middleware that refuses requests that no legitimate client sends.

  If a user can reach the server, any web page in the user's browser can send
  requests to it: with the page's Origin, to a host name that the page has
  pointed at the server's address, or as a form. All of these are refused.
  """

  def __init__(
      self,
      app: asgi.ASGIApp,
      settings: settings_lib.Settings,
      admin_paths: Iterable[str],
  ):
    """Guard an application; `admin_paths` need the admin key."""
    self._app = app
    self._settings = settings
    self._admin_paths = frozenset(admin_paths)
    names = ('localhost', socket.gethostname(), *settings.hosts)
    self._names = {name.lower().rstrip('.') for name in names}
    self._count = 0

  async def __call__(
      self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send
  ) -> None:
    if scope['type'] != 'http':
      await self._app(scope, receive, send)
      return
    try:
      self._check(scope)
      most, is_public = self._settings.connections, scope['path'] in PUBLIC
      if self._count >= most and not is_public:
        raise errors.ApiError(503, f'{most} requests are running already')
    except errors.ApiError as error:
      response = error.response()
      response.headers['Connection'] = 'close'  # Its body stays unread.
      await response(scope, receive, send)
      return
    self._count += not is_public
    try:
      await self._app(scope, receive, send)
    finally:
      self._count -= not is_public

  def _check(self, scope: asgi.Scope) -> None:
    """Check the headers of a request and note the client.

    Raises:
      ApiError: If the request is refused.
    """
    headers: dict[bytes, str] = {}
    for name, value in scope['headers']:
      if name in headers and name in _ONCE:
        raise errors.ApiError(400, f'the header {name.decode()} comes twice')
      headers[name] = value.decode('latin-1')
    has_key = self._check_key(scope)
    host = headers.get(b'host', '')
    if not has_key and not self._is_ours(host):
      raise errors.ApiError(
          421,
          f'Host {host[:_SHOWN]!r} is not a name of this server; use its'
          ' address, or start it with --hosts=NAME,...',
      )
    origin = headers.get(b'origin')
    site = headers.get(b'sec-fetch-site', 'none')
    if origin is not None:
      is_foreign = origin.partition('://')[2] != host
    else:
      is_foreign = site not in ('none', 'same-origin')
    if is_foreign:
      whose = 'another site' if origin is None else repr(origin[:_SHOWN])
      message = f'Origin: pages of {whose} may not use this server'
      raise errors.ApiError(403, message)
    _check_body(scope['method'], headers)

  def _check_key(self, scope: asgi.Scope) -> bool:
    """Record the rights of a client; return whether it sent a valid key.

    Raises:
      ApiError: 401 if it lacks the key that the path needs.
    """
    settings, path = self._settings, scope['path']
    given = [v for name, v in scope['headers'] if name == b'authorization']
    has_api, has_admin = (
        # Compared in constant time, so that timing does not leak the key.
        bool(key)
        and any(hmac.compare_digest(v, f'Bearer {key}'.encode()) for v in given)
        for key in (settings.api_key, settings.admin_key)
    )
    may_sample = has_api or has_admin or not settings.api_key
    is_admin = has_admin if settings.admin_key else may_sample
    scope['is_admin'] = is_admin
    # A wrong key counts as no key, since one client could invent many.
    key = 'admin' if has_admin else 'api' if has_api else 'no'
    address, _ = scope.get('client') or ('', 0)
    scope['caller'] = f'{address}, {key} key'
    needs_admin = path in self._admin_paths
    if path in PUBLIC or (is_admin if needs_admin else may_sample):
      return has_api or has_admin
    which = 'admin key' if needs_admin and settings.admin_key else 'API key'
    raise errors.ApiError(401, f'{path[:_SHOWN]} needs the {which}: Bearer KEY')

  def _is_ours(self, host: str) -> bool:
    """Return whether a Host header names this server.

    A web page can point its own host name at any address (DNS rebinding), but
    the Host header then holds this name. Bare addresses are therefore accepted.
    """
    found = re.fullmatch(r'(\[[^]]*\]|[^:]*)(:\d*)?', host)
    if not host:  # Some HTTP/1.0 clients; every browser sends one.
      return True
    name = found[1].lower().rstrip('.') if found else ''
    with contextlib.suppress(ValueError):
      ipaddress.ip_address(name.strip('[]'))
      return True
    return '*' in self._names or name in self._names


def _check_body(method: str, headers: dict[bytes, str]) -> None:
  """Refuse a body that is not JSON: forms of web pages can send other types.

  Some clients send no content type. A page that does so is refused because of
  its Origin.

  Raises:
    ApiError: 415, with the content type to send.
  """
  kind = headers.get(b'content-type')
  if method not in ('GET', 'HEAD') and kind is not None:
    if not _JSON.match(kind.strip().lower()):
      message = f'Content-Type {kind[:_SHOWN]!r}: send application/json'
      raise errors.ApiError(415, message)
  encoding = headers.get(b'content-encoding', 'identity').strip().lower()
  if encoding not in ('', 'identity'):
    message = f'Content-Encoding {encoding[:_SHOWN]!r}: send it uncompressed'
    raise errors.ApiError(415, message)
