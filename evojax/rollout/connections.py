"""HTTP requests to the servers of a run, with its keys and timeouts."""

from collections.abc import Callable
import contextlib
import time
from typing import Any

import httpx2

from evojax.rollout import answers
from evojax.rollout import probes
from evojax.rollout import servers as servers_lib
from evojax.runtime import descriptors

# Uvicorn drops idle connections after 5 s. The client drops them earlier, so
# that no request is sent on a connection that is just being closed.
_KEEP_ALIVE_SECONDS = 2.0
_CONNECT_SECONDS = 5.0
# File descriptors kept for other purposes, and how many of these for probes.
_OTHER_FILES, _PROBES = 512, 128

_Json = dict[str, Any]
_Lost = Callable[[servers_lib.Server, str], None]


class BusyError(Exception):
  """A server is too busy and did nothing with the request."""


class Connections:
  """Connections to all servers of a run.

  Attributes:
    timeout_seconds: Longest time that a request may go unanswered.
    http: The client that holds the connections, for the requests of `probes`.
    most: Maximum number of concurrent requests, since each needs a connection
      and thus a file descriptor.
  """

  def __init__(
      self,
      timeout_seconds: float,
      *,
      api_key: str = '',
      admin_key: str = '',
      transport: Any = None,
  ):
    """Make the client; it does not connect to any server yet.

    Args:
      timeout_seconds: Longest time that a request may go unanswered.
      api_key: Sent as bearer token; '' sends none.
      admin_key: Sent in place of api_key with updates of the weights; '' sends
        api_key.
      transport: Replaces the network, in tests.
    """
    self.timeout_seconds = timeout_seconds
    files = descriptors.raise_limit()
    self.most = max(files - _OTHER_FILES, files // 2)
    for_probes = min(_PROBES, files // 8)
    bearer = lambda key: {'Authorization': f'Bearer {key}'} if key else {}
    self._admin = bearer(admin_key or api_key)
    self.http = httpx2.AsyncClient(
        headers=bearer(api_key),
        # Ignore proxy settings: the servers are in the same cluster.
        trust_env=False,
        transport=transport,
        timeout=httpx2.Timeout(timeout_seconds, connect=_CONNECT_SECONDS),
        limits=httpx2.Limits(
            max_connections=self.most + for_probes,
            max_keepalive_connections=None,
            keepalive_expiry=_KEEP_ALIVE_SECONDS,
        ),
    )

  async def close(self) -> None:
    """Close all connections."""
    await self.http.aclose()

  async def post(
      self,
      server: servers_lib.Server,
      path: str,
      body: _Json,
      *,
      admin: bool = False,
      lost: _Lost,
  ) -> Any:
    """Return the JSON of an answer with status 200.

    Args:
      server: A server that was probed.
      path: Path of the route.
      body: JSON body of the request; a 'rid' identifies it on the server.
      admin: Whether the request needs the key for updates of the weights.
      lost: Called with the server and the reason if the server does not answer
        or answers with a server error.

    Raises:
      DisagreementError: If the server refuses, or the answer is not JSON.
      GoneError: After a call of `lost`.
      BusyError: If the server is too busy.
    """
    url, headers = server.url + path, self._admin if admin else None
    try:
      async with servers_lib.waiting(server):
        response = await self.http.post(url, json=body, headers=headers)
      if response.status_code == 200:
        return response.json()
    except (httpx2.HTTPError, TimeoutError) as error:
      if isinstance(error, httpx2.TimeoutException):
        what = f'no answer to {path} in {self.timeout_seconds:g} s'
      else:  # After a TimeoutError, `Fleet._watch` has stored the reason.
        hangs = isinstance(error, TimeoutError)
        what = server.error if hangs else probes.described(error)
      lost(server, what)
      await self._abort(server, body.get('rid'))
      raise probes.GoneError(f'{server.url}: {what}') from error
    except ValueError as error:
      raise answers.DisagreementError(
          f'{url} answered {response.text[:200]!r}, which is no JSON: is it an'
          ' SGLang server?'
      ) from error
    status, text = response.status_code, response.text[:500]
    # 408 means that the request did not arrive in time; some proxies send it on
    # a connection that was idle.
    if status in (408, 429, 503):
      server.rests_until = time.monotonic() + servers_lib.retry_after(response)
      server.busy = True
      raise BusyError(f'{url} answered {status}: {text}')
    if status in (401, 403):
      raise probes.denied(url)
    if status >= 500:
      lost(server, f'{path} answered {status}: {text}')
      raise probes.GoneError(f'{url} answered {status}: {text}')
    raise answers.DisagreementError(f'{url} refused with {status}: {text}')

  async def _abort(self, server: servers_lib.Server, rid: str | None) -> None:
    """Abort a request whose result is no longer needed, to save work."""
    if rid is None or not (server.abilities and server.abilities.abort):
      return
    url, body = f'{server.url}/abort_request', {'rid': rid, 'abort_all': False}
    with contextlib.suppress(httpx2.HTTPError):
      await self.http.post(url, json=body, timeout=_CONNECT_SECONDS)
