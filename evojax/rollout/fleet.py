"""Several SGLang servers used as one: probes, balancing, retries, recovery.

Everything runs in one event loop. While a server is not up, a task tries to
bring it up: it probes the server and gives it the current weights. A request
goes to the least loaded server that is up and has the current weights. If a
server dies or hangs, its unfinished requests are sent to another server, or
again to the same one once it is back. This is safe because sampling changes
nothing on a server, and only a complete answer is used, once. If a file names
the servers, they join and leave as the file changes.
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
from evojax.rollout import connections as connections_lib
from evojax.rollout import probes
from evojax.rollout import roster as roster_lib
from evojax.rollout import servers as servers_lib
from evojax.rollout import transfer

# A server with pending requests is checked this often for a hang.
_WATCH_SECONDS = 10.0
_REMIND_SECONDS = 30.0  # Between two log lines about a server that stays down.
_FIRST_BACKOFF, _LAST_BACKOFF = 0.1, 5.0  # Seconds between two attempts.
_LOOK_SECONDS = 1.0  # Between two reads of the file of URLs.
# Failures of one request, per server, after which the request is given up.
_MAX_FAILURES = 4
# How long a run that was asked to stop waits for a server that is down.
_STOPPING_SECONDS = 2.0


class FleetError(ConnectionError):
  """No server was usable for too long, or one request failed too often."""


# Errors of servers that end a run, in the state of the last finished step.
ERRORS = (FleetError, answers.DisagreementError)


_Json = dict[str, Any]
# After one of these errors a server is unusable, but may be usable later.
_UNUSABLE = (probes.GoneError, connections_lib.BusyError, httpx2.HTTPError)
_Server = servers_lib.Server
_May = Callable[[_Server], bool]


class Fleet:
  """The servers of a run.

  All methods must run in the event loop in which `start` ran, except for
  `refuse` and `trust`, which any thread may call.
  """

  def __init__(
      self,
      urls: tuple[str, ...],
      connections: connections_lib.Connections,
      *,
      concurrency: int,
      weights_transport: str = 'folder',
      roster: roster_lib.Roster | None = None,
      check: Callable[[_Server, Mapping[str, Any]], Awaitable[None]],
      vouch: Callable[[_Server], Awaitable[None]],
      stopping: Callable[[], bool] = lambda: False,
  ):
    """Create the fleet; it does not connect to any server yet.

    Args:
      urls: Addresses of the servers, without a path.
      connections: Sends the requests. All servers may be unusable for as long
        as a request may go unanswered.
      concurrency: Requests in flight per server.
      weights_transport: 'folder' or 'tensors'; see `transfer`.
      roster: Names the servers; `urls` is empty then.
      check: Awaited for every server that comes up, with its model and
        server info; raises DisagreementError if it does not fit the run.
      vouch: Awaited for every server that is up and not trusted yet; may trust
        it.
      stopping: Returns True once the run was asked to stop; from then on the
        fleet waits only briefly for servers that are down.
    """
    self.servers = [_Server(url) for url in roster_lib.parse_urls(urls)]
    self.weights: servers_lib.Weights | None = None
    self.resent = 0  # Number of requests that were sent again.
    self._concurrency = concurrency
    self.timeout_seconds = connections.timeout_seconds
    self._roster = roster
    self._check, self._vouch = check, vouch
    self._connections, self._http = connections, connections.http
    self.turns = servers_lib.Turns(self._most_turns())
    self._stopping = stopping
    self._weights_transport = weights_transport
    self._changed = asyncio.Event()  # Set at a change, then replaced.
    self._versions: list[str] = []  # All versions that were installed.
    self._tasks: set[asyncio.Task] = set()
    self._fatal: answers.DisagreementError | None = None

  async def start(self) -> None:
    """Probe all servers; return when one is up, while others may follow.

    Raises:
      DisagreementError: If a server does not fit the run.
      FleetError: If no server came up in time.
      ValueError: If the file of URLs is invalid.
    """
    self._loop = asyncio.get_running_loop()
    if self._roster is not None:
      self.servers = [_Server(url) for url in self._roster.read()]
      self._spawn(self._follow())
      self.turns.resize(self._most_turns())
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
    await self._connections.close()

  def _most_turns(self) -> int:
    """Return the maximum number of concurrent requests."""
    # At least 1: with no servers, that request waits and raises the FleetError.
    wanted, most = self._concurrency * len(self.servers), self._connections.most
    if wanted > most:
      logging.warning(
          'at most %d requests are under way at a time, although %d servers'
          ' take %d (config.rollout.concurrency): this process may open too few'
          ' files; raise its limit (ulimit -n)',
          most,
          len(self.servers),
          wanted,
      )
    return max(min(wanted, most), 1)

  def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task:
    task = asyncio.create_task(work)
    self._tasks.add(task)
    task.add_done_callback(self._tasks.discard)
    return task

  # --------------------------------------------------- joining and leaving

  async def _follow(self) -> None:
    """Let servers join and leave whenever the file of URLs changes."""
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
    """Use these servers; those that were excluded are tried again."""
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
    self.turns.resize(self._most_turns())
    self._notify()

  def _leave(self, server: _Server) -> None:
    """Stop using a server; its pending requests are sent to other servers."""
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
    """Exclude a new server that does not fit; callable from any thread."""

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
    """Send a request until one of the servers answers it; return the answer.

    Args:
      body: Body of POST /generate, without a rid.
      read: (answer, body, url=url) -> the part that it adds; raises
        DisagreementError.
      only: URL of the server to use while it is up, trusted or not.

    Raises:
      DisagreementError: If a server refuses the request or gives an invalid
        answer.
      FleetError: If no server is usable for too long, or the request fails too
        often.
    """
    failures, pause, busy_since = 0, _FIRST_BACKOFF, 0.0
    while True:
      may = self._has_weights if only else self._serves
      server = await self._pick(may, only)
      server.in_flight += 1
      # A new rid, since a server may still hold an earlier attempt.
      attempt = {**body, 'rid': uuid.uuid4().hex}
      try:
        answer = await self._post(server, '/generate', attempt)
        if not self._is_stale(server, answer):
          return read(answer, attempt, url=server.url)
      except probes.GoneError as error:
        failures += 1
        if failures >= _MAX_FAILURES * max(len(self.servers), 1):
          message = f'a request failed {failures} times; last error: {error}'
          raise FleetError(message) from error
      except connections_lib.BusyError as error:
        busy_since = busy_since or time.monotonic()
        if time.monotonic() - busy_since > self.timeout_seconds:
          raise FleetError(
              f'a request was put off for {self.timeout_seconds:g} s'
              f' (config.rollout.timeout_seconds); last error: {error}. If the'
              ' servers are busy with others, lower config.rollout.concurrency'
              ' or start more'
          ) from error
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LAST_BACKOFF)
      finally:
        server.in_flight -= 1
        self._notify()
      self.resent += 1

  def _has_weights(self, server: _Server) -> bool:
    """Return True if a server can sample with the current weights now."""
    current = self.weights.version if self.weights else ''
    return server.weights == current and server.in_flight < self._concurrency

  def _serves(self, server: _Server) -> bool:
    """Return True if a server may sample for the run now."""
    return server.trusted and self._has_weights(server)

  def trust(self, urls: Collection[str]) -> None:
    """Mark servers whose log-probs equal the policy's as trusted.

    A server that joins later is not trusted until `vouch` has compared it with
    another server, or the next update with the policy. A server that comes back
    stays trusted; it only has to take the current weights.
    """
    for server in self.servers:
      if server.url in urls:
        server.trusted, server.newcomer = True, False
    self._loop.call_soon_threadsafe(self._notify)

  def _is_stale(self, server: _Server, answer: Any) -> bool:
    """Return True if an answer was sampled with other weights than this run's.

    This happens if the server was restarted after it had loaded the weights. It
    is then brought up again, with the current weights.

    Raises:
      DisagreementError: If the server keeps answering with other weights.
    """
    meta = answer.get('meta_info') if isinstance(answer, dict) else None
    if not isinstance(meta, dict):
      return False  # `answers.read` raises an error for such an answer.
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
      FleetError: If no server was usable for too long.
      DisagreementError: If a server does not fit the run.
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
    """Wake all tasks that wait for a server."""
    self._changed.set()
    self._changed = asyncio.Event()

  async def _post(
      self, server: _Server, path: str, body: _Json, *, admin: bool = False
  ) -> Any:
    """Return the answer to a request; see `Connections.post`, also for errors.

    If the request fails, the server is taken out of use.
    """
    return await self._connections.post(
        server, path, body, admin=admin, lost=self._lost
    )

  async def read_text(
      self, server: _Server, text: str
  ) -> list[tuple[float | None, int]] | None:
    """Return a server's (log-prob, token) pairs of a text.

    The log-prob of the first token is None. The result is None if the server
    reports no pairs, or is unusable now.

    Raises:
      DisagreementError: If the server refuses the text, or keeps answering with
        other weights.
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
    except (*_UNUSABLE, LookupError, TypeError):
      return None

  # -------------------------------------------------------------- weights

  def dtype(self) -> str:
    """Return 'bfloat16' if all servers that are up compute in it, else ''."""
    found = {s.abilities.dtype for s in self.servers if s.up}
    return 'bfloat16' if found == {'bfloat16'} else ''

  async def install(self, weights: servers_lib.Weights) -> None:
    """Give all servers new weights in parallel; wait until one can sample.

    Servers that are down get the weights when they come back.

    Raises:
      DisagreementError: If a server refuses the weights, or cannot take any.
      FleetError: If no server is usable for too long.
    """
    self.weights = weights
    self._versions.append(weights.version)
    exchanges = [self._exchange(s) for s in self.servers if s.up]
    for error in await asyncio.gather(*exchanges, return_exceptions=True):
      if error is not None:
        raise error
    await self._pick(self._has_weights)

  async def _exchange(self, server: _Server) -> None:
    """Give the weights to a server that is up; revive it if that fails."""
    try:
      # This detects a hanging server sooner than the timeout for its weights.
      # (/health would take a second in mainline SGLang.)
      await self._model_info(server)
      while server.up and server.weights != self.weights.version:
        await self._give_weights(server)
    except _UNUSABLE as error:
      self._lost(server, probes.described(error))
    except answers.DisagreementError as error:
      if not server.newcomer:
        raise
      self._refuse(server, error)

  async def _model_info(self, server: _Server) -> _Json:
    return await probes.read(
        self._http, server.url + server.abilities.model_info
    )

  async def _give_weights(self, server: _Server) -> None:
    """Make one server serve the current weights."""
    async with server.sending:
      if server.weights != self.weights.version:
        await self._send_weights(server)

  async def _send_weights(self, server: _Server) -> None:
    weights = self.weights
    transfer.check(server, self._weights_transport)
    server.taking = weights.version

    def post(path: str, body: _Json) -> Awaitable[Any]:
      return self._post(server, path, body, admin=True)

    try:
      if self._weights_transport == 'tensors':
        ranks = server.abilities.ranks
        await transfer.from_tensors(post, server.url, weights, ranks)
      else:
        await transfer.from_folder(post, server.url, weights)
    except answers.DisagreementError:
      if self.weights is not weights:
        return  # Newer weights exist by now, which the server may accept.
      raise
    finally:
      server.taking = ''
    server.weights = weights.version
    if server.abilities.reports_version:
      info = await self._model_info(server)
      if info.get('weight_version') != weights.version:
        raise answers.DisagreementError(
            f'{server.url}{server.abilities.model_info} says weight_version='
            f'{info.get("weight_version")!r} after an update to'
            f' {weights.version!r}: another run may be using this server; give'
            ' each run its own'
        )

  # -------------------------------------------------------------- revival

  def _lost(self, server: _Server, error: str) -> None:
    """Take a server out of use until its revival succeeds; log it once."""
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
    """Check regularly whether a server hangs, and take it out of use if so.

    If a process is stopped or a machine disappears, its connections stay open.
    Without this check, its pending requests would wait until their timeout,
    which is as long as the longest answer may take.
    """
    while True:
      await asyncio.sleep(_WATCH_SECONDS)
      if server.busy:
        await self._check_busy(server)
      if not server.waits or server.abilities is None:
        continue
      path = server.abilities.model_info
      try:
        await probes.fetch(self._http, server.url + path)
      except httpx2.TimeoutException:
        self._lost(server, f'no answer to {path} in {probes.SECONDS:g} s')
        for waits in server.waits:
          waits.reschedule(self._loop.time())
      except httpx2.HTTPError:
        pass  # Then its pending requests fail by themselves.

  async def _check_busy(self, server: _Server) -> None:
    """Take a server that seemed busy out of use if it has in fact failed.

    Its status 503 may mean a full queue, which soon passes, or that it no
    longer samples; it may also come from a proxy in front of a dead server.
    """
    server.busy = False
    try:
      await probes.check_health(self._http, server.url)
    except (probes.GoneError, httpx2.HTTPError) as error:
      self._lost(server, probes.described(error))

  def _revive(self, server: _Server) -> None:
    server.revival = self._spawn(self._bring_up(server))

  async def _bring_up(self, server: _Server) -> None:
    """Probe a server and give it the weights, until both succeed."""
    pause, known = _FIRST_BACKOFF, server.abilities is not None
    # If it was up before, its loss was logged already.
    logged = time.monotonic() if known else -_REMIND_SECONDS
    while not server.up:
      try:
        await self._probe(server)
        while self.weights and server.weights != self.weights.version:
          await self._give_weights(server)
        server.up, server.error = True, ''
      except _UNUSABLE as error:
        server.error = probes.described(error)
        if time.monotonic() - logged >= _REMIND_SECONDS:
          logging.warning('%s is not up: %s', server.url, server.error)
          logged = time.monotonic()
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
      # After an error it stays untrusted until the next update's comparison.
      with contextlib.suppress(*_UNUSABLE, *ERRORS):
        await self._vouch(server)

  async def _probe(self, server: _Server) -> None:
    """Read a server's state and abilities, and check that it fits the run.

    Raises:
      DisagreementError: If it does not fit, or is not an SGLang server.
      GoneError: If the server is not up.
    """
    found = await probes.probe(self._http, server.url)
    server.abilities, model, info = found
    version = model.get('weight_version')
    # The server may have been restarted after it took the weights.
    keeps = self.weights and version == self.weights.version
    server.weights = version if keeps else ''
    await self._check(server, {**model, **info})
