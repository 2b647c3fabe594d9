"""Several SGLang servers used as one: probing, balancing, retries, revival.

All of it runs in one event loop. A server is up, or a task of its own tries to
bring it up: probes it and gives it the current weights. Requests go to the
least loaded server that is up and has those weights. One that dies or hangs
costs what it was just sampling: that is sent elsewhere, or again once it is
back, which is safe because sampling changes nothing on a server and an answer
counts once, when it is whole. Where a file names the servers, they join and
leave as it changes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
import contextlib
import time
from typing import Any
import uuid

from absl import logging
import httpx2

from evojax.rollout import answers
from evojax.rollout import roster as roster_lib
from evojax.rollout import servers as servers_lib

# Uvicorn drops idle connections after 5 s; never meet that moment.
_KEEP_ALIVE_SECONDS = 2.0
_CONNECT_SECONDS = 5.0
_PROBE_SECONDS = 30.0
# While it owes an answer, a server is asked this often whether it hangs.
_WATCH_SECONDS = 10.0
_REMIND_SECONDS = 30.0  # Between two lines about a server that stays down.
_FIRST_BACKOFF, _LAST_BACKOFF = 0.1, 5.0
_LOOK_SECONDS = 1.0  # Between two looks at the file of URLs.
# Server errors (500) that a request may meet before they are its own fault.
_MAX_FAILURES = 4
# How long a run that was asked to stop waits for a server that is down.
_STOPPING_SECONDS = 2.0


class FleetError(ConnectionError):
  """No server could be used for as long as the run waits for one."""


# Errors of servers that end a run; its state is that of the last finished step.
ERRORS = (FleetError, answers.DisagreementError)


class _GoneError(Exception):
  """A server cannot be used now; its revival is under way."""


class _LaterError(Exception):
  """A server is busy; nothing was done."""


_Json = dict[str, Any]
# A server that raises one of these cannot be used now, but perhaps later.
_UNUSABLE = (_GoneError, _LaterError, httpx2.HTTPError)
_Server = servers_lib.Server
_May = Callable[[_Server], bool]


class Fleet:
  """The servers; every method runs in the loop that `start` ran in."""

  def __init__(
      self,
      urls: tuple[str, ...],
      *,
      concurrency: int,
      timeout_seconds: float,
      api_key: str = '',
      admin_key: str = '',
      roster: roster_lib.Roster | None = None,
      check: Callable[[_Server, Mapping[str, Any]], Awaitable[None]],
      vouch: Callable[[_Server], Awaitable[None]],
      stopping: Callable[[], bool] = lambda: False,
      transport: Any = None,
  ):
    """Connect to no server yet.

    Args:
      urls: Addresses of the servers, without a path.
      concurrency: Requests in flight per server.
      timeout_seconds: How long a request, or the whole fleet, may be silent.
      api_key: Sent as bearer token; '' sends none.
      admin_key: The same for weights; '' sends api_key.
      roster: Names the servers in place of `urls`, which is empty then.
      check: Awaited for every server that comes up, with its model and
        server info; raises DisagreementError if it does not fit the run.
      vouch: Awaited for every server that is up and not trusted yet; may trust
        it.
      stopping: Returns True once the run was asked to stop: then it does not
        wait long for servers that are down.
      transport: In place of the network, in tests.
    """
    self.servers = [_Server(url) for url in roster_lib.parse_urls(urls)]
    self.weights: servers_lib.Weights | None = None
    self.resent = 0  # Requests that were sent again, since the start.
    self._concurrency = concurrency
    self.timeout_seconds = timeout_seconds
    self._roster = roster
    self._check, self._vouch = check, vouch
    # At least one turn: it finds out that there is no server.
    self._turns_of = lambda: concurrency * max(len(self.servers), 1)
    self.turns = servers_lib.Turns(self._turns_of())
    self._stopping = stopping
    bearer = lambda key: {'Authorization': f'Bearer {key}'} if key else {}
    self._admin = bearer(admin_key or api_key)
    self._http = httpx2.AsyncClient(
        headers=bearer(api_key),
        # Servers of a cluster are not behind the proxy to the world.
        trust_env=False,
        transport=transport,
        timeout=httpx2.Timeout(timeout_seconds, connect=_CONNECT_SECONDS),
        limits=httpx2.Limits(
            max_connections=None,
            max_keepalive_connections=None,
            keepalive_expiry=_KEEP_ALIVE_SECONDS,
        ),
    )
    self._changed = asyncio.Event()  # Replaced whenever it is set.
    self._versions: list[str] = []  # All that were installed.
    self._tasks: set[asyncio.Task] = set()
    self._fatal: answers.DisagreementError | None = None

  async def start(self) -> None:
    """Probe all servers; returns when one is up, others may follow.

    Raises:
      DisagreementError: If one does not fit the run.
      FleetError: If none came up in time.
      ValueError: If the file of URLs is wrong.
    """
    self._loop = asyncio.get_running_loop()
    if self._roster is not None:
      self.servers = [_Server(url) for url in self._roster.read()]
      self._spawn(self._follow())
      self.turns.resize(self._turns_of())
    for server in self.servers:
      self._revive(server)
      server.watch = self._spawn(self._watch(server))
    await asyncio.wait([s.revival for s in self.servers], timeout=1.0)
    await self._pick(lambda server: True)

  async def close(self) -> None:
    """End all tasks and connections."""
    tasks = list(self._tasks)
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await self._http.aclose()

  def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task:
    task = asyncio.create_task(work)
    self._tasks.add(task)
    task.add_done_callback(self._tasks.discard)
    return task

  # --------------------------------------------------- joining and leaving

  async def _follow(self) -> None:
    """Let servers join and leave as the file of URLs says."""
    while True:
      await asyncio.sleep(_LOOK_SECONDS)
      try:
        urls = self._roster.changed()
      except ValueError as error:
        logging.warning('%s', error)
        continue
      if urls is not None:
        self._change_to(urls)

  def _change_to(self, urls: tuple[str, ...]) -> None:
    """Use these servers; those that were refused get another chance."""
    known = {server.url: server for server in self.servers}
    for url in known.keys() - urls:
      self._leave(known[url])
    for url in urls:
      server = known.get(url)
      if server is not None and not server.refused:
        continue
      if server is None:
        logging.warning('%s joins', url)
        server = _Server(url, newcomer=True)
        self.servers.append(server)
        server.watch = self._spawn(self._watch(server))
      server.refused = False
      self._revive(server)
    self.turns.resize(self._turns_of())
    self._notify()

  def _leave(self, server: _Server) -> None:
    """Use a server no more; what it owes is sent elsewhere."""
    logging.warning(
        '%s leaves; its requests that are sent again: %d',
        server.url,
        server.in_flight,
    )
    self.servers.remove(server)
    server.left, server.up, server.error = True, False, 'it left'
    for task in (server.revival, server.watch):
      task.cancel()
    for waits in server.waits:
      waits.reschedule(self._loop.time())

  def refuse(self, url: str, error: Exception) -> None:
    """Leave a newcomer out that does not fit; from any thread."""

    def leave_out() -> None:
      for server in self.servers:
        if server.url == url and server.newcomer:
          self._refuse(server, error)

    self._loop.call_soon_threadsafe(leave_out)

  def _refuse(self, server: _Server, error: Exception) -> None:
    server.refused, server.up, server.error = True, False, str(error)
    logging.warning(
        'left out until %s changes: %s', self._roster.path, server.error
    )

  # ------------------------------------------------------------- requests

  async def generate(
      self, body: _Json, read: Callable[..., answers.Part], *, only: str = ''
  ) -> answers.Part:
    """Return one answer to one request, from whichever server gives it.

    Args:
      body: Body of POST /generate, without a rid.
      read: (answer, body, url=url) -> what it says; raises DisagreementError.
      only: URL of the one server to ask, as long as it is up, whether it is
        trusted or not.

    Raises:
      DisagreementError: If a server refuses the request or answers nonsense.
      FleetError: If no server can be used for too long.
    """
    failures, pause, busy_since = 0, _FIRST_BACKOFF, 0.0
    while True:
      may = self._has_weights if only else self._serves
      server = await self._pick(may, only)
      server.in_flight += 1
      # A server may still hold an earlier attempt under its name.
      attempt = {**body, 'rid': uuid.uuid4().hex}
      try:
        answer = await self._post(server, '/generate', attempt)
        if not self._is_stale(server, answer):
          return read(answer, attempt, url=server.url)
      except _GoneError as error:
        failures += 1
        if failures >= _MAX_FAILURES * max(len(self.servers), 1):
          message = f'a request failed {failures} times, at last: {error}'
          raise FleetError(message) from error
      except _LaterError as error:
        busy_since = busy_since or time.monotonic()
        if time.monotonic() - busy_since > self.timeout_seconds:
          raise FleetError(
              f'a request was put off for {self.timeout_seconds:g} s'
              ' (config.rollout.timeout_seconds): the servers are busy with'
              ' others; lower config.rollout.concurrency or start more'
          ) from error
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LAST_BACKOFF)
      finally:
        server.in_flight -= 1
        self._notify()
      self.resent += 1

  def _has_weights(self, server: _Server) -> bool:
    """Return True if a server can sample from the current weights now."""
    current = self.weights.version if self.weights else ''
    return server.weights == current and server.in_flight < self._concurrency

  def _serves(self, server: _Server) -> bool:
    """Return True if a server may sample for the run now."""
    return server.trusted and self._has_weights(server)

  def trust(self, urls: Collection[str]) -> None:
    """Say that the log-probs of these servers are the policy's.

    A server that was not there when they were last compared is compared with
    one that was, or waits for the next time; one that comes back is given the
    weights, and was trusted before.
    """
    for server in self.servers:
      if server.url in urls:
        server.trusted, server.newcomer = True, False
    self._loop.call_soon_threadsafe(self._notify)

  def _is_stale(self, server: _Server, answer: Any) -> bool:
    """Return True if an answer is of other weights; give the server ours.

    That happens when somebody restarted the server since it took the weights.

    Raises:
      DisagreementError: If it keeps answering with other weights.
    """
    meta = answer.get('meta_info') if isinstance(answer, dict) else None
    if not isinstance(meta, dict):
      return False  # `answers.read` raises an error that says so.
    version = meta.get('weight_version')
    if version is None and server.abilities.reports_version:
      raise answers.DisagreementError(
          f'{server.url}/generate answered no meta_info.weight_version, but'
          f' {server.abilities.model_info} has one: does a proxy in between'
          ' mix several servers?'
      )
    if version is None or version in self._versions:
      server.stale = 0
      return False
    server.stale += 1
    if server.stale > self._concurrency + _MAX_FAILURES:
      raise answers.DisagreementError(
          f'{server.url}/generate answered weight_version={version!r}, wanted'
          f' {self.weights.version!r}, which it was given and said it had:'
          ' another run may be using this server; give each run its own'
      )
    self._lost(server, f'serves weight_version={version!r}')
    return True

  async def _pick(self, may: _May, only: str = '') -> _Server:
    """Wait for a server that may be used; return the least loaded one.

    Raises:
      FleetError: If none was up for too long.
      DisagreementError: If one does not fit the run.
    """
    silent_since = time.monotonic()
    while True:
      if self._fatal is not None:
        raise self._fatal
      now = time.monotonic()
      up = [s for s in self.servers if s.up]
      if any(s.trusted or may != self._serves for s in up):
        silent_since = now
      wanted = [s for s in up if s.url == only] or up
      free = [s for s in wanted if may(s) and s.rests_until <= now]
      if free:
        return min(free, key=lambda s: s.in_flight)
      patience = self.timeout_seconds
      if self._stopping():
        patience = min(patience, _STOPPING_SECONDS)
      left = patience - (now - silent_since)
      if left <= 0:
        raise self._silent(now - silent_since)
      rests = [s.rests_until - now for s in up if s.rests_until > now]
      with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(self._changed.wait(), min([left, *rests, 1.0]))

  def _silent(self, seconds: float) -> FleetError:
    unknown = 'is up, but could not be compared with the policy yet'
    named = self._roster.path if self._roster else 'config.rollout.urls'
    lines = ''.join(f'\n  {s.url}: {s.error or unknown}' for s in self.servers)
    return FleetError(
        f'none of the {len(self.servers)} servers of {named} could'
        f' be used for {seconds:.0f} s (config.rollout.timeout_seconds ='
        f' {self.timeout_seconds:g}):{lines}\nStart one, e.g. with'
        ' launch/sglang_jax.sh, then run the same command again: it continues'
        ' with the step that this one could not finish'
    )

  def _notify(self) -> None:
    """Wake all that wait for a server."""
    self._changed.set()
    self._changed = asyncio.Event()

  async def _post(
      self,
      server: _Server,
      path: str,
      body: _Json,
      headers: _Json | None = None,
  ) -> Any:
    """Return the JSON of a 200 answer; see `_UNUSABLE` for other ones.

    Raises:
      DisagreementError: If the server refuses, or answers no JSON.
    """
    url = server.url + path
    try:
      async with servers_lib.waiting(server):
        response = await self._http.post(url, json=body, headers=headers)
      if response.status_code == 200:
        return response.json()
    except (httpx2.HTTPError, TimeoutError) as error:
      if isinstance(error, httpx2.TimeoutException):
        what = f'no answer to {path} in {self.timeout_seconds:g} s'
      else:  # `_watch` has said why.
        hangs = isinstance(error, TimeoutError)
        what = server.error if hangs else _described(error)
      self._lost(server, what)
      await self._abort(server, body.get('rid'))
      raise _GoneError(f'{server.url}: {what}') from error
    except ValueError as error:
      raise answers.DisagreementError(
          f'{url} answered {response.text[:200]!r}, which is no JSON: is it an'
          ' SGLang server?'
      ) from error
    status, text = response.status_code, response.text[:500]
    if status in (429, 503):
      server.rests_until = time.monotonic() + servers_lib.retry_after(response)
      raise _LaterError('it is too busy')
    if status in (401, 403):
      raise self._denied(server, path)
    if status >= 500:
      self._lost(server, f'{path} answered {status}: {text}')
      raise _GoneError(f'{url} answered {status}: {text}')
    raise answers.DisagreementError(f'{url} refused with {status}: {text}')

  def _denied(self, server: _Server, path: str) -> answers.DisagreementError:
    return answers.DisagreementError(
        f"{server.url}{path} refused the key: put the server's --api-key into"
        ' the environment variable that config.rollout.api_key_env names, and'
        ' its --admin-api-key, if it has one, into that of'
        ' config.rollout.admin_key_env'
    )

  async def _abort(self, server: _Server, rid: str | None) -> None:
    """Spare a slow server the rest of a sample nobody waits for."""
    if rid is None or not (server.abilities and server.abilities.abort):
      return
    url, body = f'{server.url}/abort_request', {'rid': rid, 'abort_all': False}
    with contextlib.suppress(httpx2.HTTPError):
      await self._http.post(url, json=body, timeout=_CONNECT_SECONDS)

  async def read_text(
      self, server: _Server, text: str
  ) -> list[tuple[float | None, int]] | None:
    """Return a server's (log-prob, token) of a text; None if it tells none.

    The first token has no log-prob.

    Raises:
      DisagreementError: If the server refuses it, or keeps other weights.
    """
    body = {
        'rid': uuid.uuid4().hex,
        'text': text,
        'sampling_params': {'max_new_tokens': 1, 'temperature': 0.0},
        'return_logprob': True,
        'logprob_start_len': 0,
    }
    try:
      answer = await self._post(server, '/generate', body)
      if server.up and self.weights and self._is_stale(server, answer):
        return None
      pairs = answer['meta_info']['input_token_logprobs']
      return [(pair[0], pair[1]) for pair in pairs] or None
    except (_GoneError, _LaterError, LookupError, TypeError):
      return None

  # -------------------------------------------------------------- weights

  def dtype(self) -> str:
    """Return 'bfloat16' if all servers that are up compute in it, else ''."""
    found = {s.abilities.dtype for s in self.servers if s.up}
    return 'bfloat16' if found == {'bfloat16'} else ''

  async def install(self, weights: servers_lib.Weights) -> None:
    """Give all servers new weights, in parallel; one at least has to take.

    The others get them when they come back.

    Raises:
      DisagreementError: If a server refuses them or has no way to take any.
      FleetError: If no server is left for too long.
    """
    self.weights = weights
    self._versions.append(weights.version)
    exchanges = [self._exchange(s) for s in self.servers if s.up]
    for error in await asyncio.gather(*exchanges, return_exceptions=True):
      if error is not None:
        raise error
    await self._pick(self._has_weights)

  async def _exchange(self, server: _Server) -> None:
    """Give weights to a server that is up; one that fails is revived."""
    try:
      # One that hangs is known in less time than weights may take to load.
      # (Mainline takes a second for /health.)
      await self._get(server, server.abilities.model_info)
      while server.up and server.weights != self.weights.version:
        await self._give_weights(server)
    except _UNUSABLE as error:
      self._lost(server, _described(error))
    except answers.DisagreementError as error:
      if not server.newcomer:
        raise
      self._refuse(server, error)

  async def _give_weights(self, server: _Server) -> None:
    """Make one server serve the current weights."""
    weights = self.weights
    if not server.abilities.update:
      raise answers.DisagreementError(
          f'{server.url} has no /update_weights_from_disk (it is version'
          f' {server.abilities.version!r}), so it cannot follow the training:'
          ' start it with launch/sglang_jax.sh or launch/sglang.sh'
      )
    server.taking = weights.version
    body = {'model_path': weights.path, 'weight_version': weights.version}
    body |= {'abort_all_requests': False, 'flush_cache': True}
    path = '/update_weights_from_disk'
    try:
      answer = await self._post(server, path, body, self._admin)
    except answers.DisagreementError:
      if self.weights is not weights:
        return  # There are newer ones, which it may take.
      raise
    finally:
      server.taking = ''
    if not isinstance(answer, dict) or not answer.get('success'):
      raise answers.DisagreementError(
          f'{server.url} did not take the weights in {weights.path}: {answer};'
          ' it must see that directory under the same path'
          ' (config.rollout.weights_dir) and serve a policy of this shape'
      )
    server.weights = weights.version
    if server.abilities.reports_version:
      info = await self._get(server, server.abilities.model_info)
      if info.get('weight_version') != weights.version:
        raise answers.DisagreementError(
            f'{server.url}{server.abilities.model_info} says weight_version='
            f'{info.get("weight_version")!r} after an update to'
            f' {weights.version!r}: another run may be using this server; give'
            ' each run its own'
        )

  # -------------------------------------------------------------- revival

  def _lost(self, server: _Server, error: str) -> None:
    """Take a server out of use until its revival succeeds; say so once."""
    if server.left or server.refused:
      return
    server.error = error
    if server.up:
      server.up = False
      logging.warning(
          '%s is lost: %s; its requests that are sent again: %d',
          server.url,
          error,
          server.in_flight,
      )
      self._revive(server)

  async def _watch(self, server: _Server) -> None:
    """Lose a server that hangs, over and over.

    A process that is stopped, or a machine that is gone, leaves connections
    open: without this, what it owes would be waited for as long as the longest
    answer may take.
    """
    while True:
      await asyncio.sleep(_WATCH_SECONDS)
      if not server.waits or server.abilities is None:
        continue
      path = server.abilities.model_info
      try:
        await self._fetch(server, path)
      except httpx2.TimeoutException:
        self._lost(server, f'no answer to {path} in {_PROBE_SECONDS:g} s')
        for waits in server.waits:
          waits.reschedule(self._loop.time())
      except httpx2.HTTPError:
        pass  # Its pending requests fail by themselves.

  def _revive(self, server: _Server) -> None:
    server.revival = self._spawn(self._bring_up(server))

  async def _bring_up(self, server: _Server) -> None:
    """Probe a server and give it the weights, until both succeed."""
    pause, known = _FIRST_BACKOFF, server.abilities is not None
    # One that was up is known to be lost.
    told = time.monotonic() if known else -_REMIND_SECONDS
    while not server.up:
      try:
        await self._probe(server)
        while self.weights and server.weights != self.weights.version:
          await self._give_weights(server)
        server.up, server.error = True, ''
      except _UNUSABLE as error:
        server.error = _described(error)
        if time.monotonic() - told >= _REMIND_SECONDS:
          logging.warning('%s is not up: %s', server.url, server.error)
          told = time.monotonic()
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LAST_BACKOFF)
      except answers.DisagreementError as error:
        if server.newcomer:
          self._refuse(server, error)
        else:
          self._fatal = error
        break
    if known and server.up:
      logging.warning('%s is back', server.url)
    self._notify()
    if server.up and self.weights and not server.trusted:
      with contextlib.suppress(*_UNUSABLE, *ERRORS):  # The next update decides.
        await self._vouch(server)

  async def _get(self, server: _Server, path: str) -> Any:
    """Return the JSON object of a path; {} if the server does not have it."""
    response = await self._fetch(server, path)
    if response.status_code in (401, 403):
      raise self._denied(server, path)
    if response.status_code in (404, 405):
      return {}
    if response.status_code != 200:
      raise _GoneError(_refused(server.url + path, response))
    with contextlib.suppress(ValueError):
      if isinstance(value := response.json(), dict):
        return value
    return {}

  async def _fetch(self, server: _Server, path: str) -> httpx2.Response:
    return await self._http.get(server.url + path, timeout=_PROBE_SECONDS)

  async def _has(self, server: _Server, path: str) -> bool:
    """Return True if a path takes a POST; a GET of it does nothing."""
    return (await self._fetch(server, path)).status_code != 404

  async def _probe(self, server: _Server) -> None:
    """Find out what a server is, and whether it is up at all."""
    health = await self._fetch(server, '/health')
    if health.status_code != 200:
      raise _GoneError(_refused(server.url + '/health', health))
    for path in ('/model_info', '/get_model_info'):
      if model := await self._get(server, path):
        break
    else:
      raise answers.DisagreementError(
          f'{server.url} has neither /model_info nor /get_model_info: is it an'
          ' SGLang server?'
      )
    info = await self._get(server, '/server_info')
    info = info or await self._get(server, '/get_server_info')
    version = model.get('weight_version')
    server.abilities = servers_lib.Abilities(
        model_info=path,
        update=await self._has(server, '/update_weights_from_disk'),
        abort=await self._has(server, '/abort_request'),
        seeds=bool(
            info.get('enable_deterministic_sampling')
            or info.get('enable_deterministic_inference')
        ),
        reports_version=version is not None,
        version=str(info.get('version') or ''),
        dtype=str(info.get('dtype') or ''),
    )
    # It may have been restarted since we gave it weights.
    keeps = self.weights and version == self.weights.version
    server.weights = version if keeps else ''
    await self._check(server, {**model, **info})


def _refused(url: str, response: httpx2.Response) -> str:
  """Return what a server answered that is not up, or not for this client."""
  return f'{url} answered {response.status_code} {response.text[:300]}'.strip()


def _described(error: Exception) -> str:
  """Return what is wrong with a server; errors of HTTP may have no text."""
  if isinstance(error, httpx2.HTTPError):
    return f'{type(error).__name__} {error}'.strip()
  return str(error)
