"""A rollout engine that samples on SGLang servers.

`SGLangEngine` has the same interface as the in-process engine: it takes
requests and weights. The servers run sglang, sglang-jax, or evojax's own
server. With several processes, only process 0 talks to the servers; every
process gets the same completions, or an error.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
import concurrent.futures
import functools
import os
import secrets
import threading
import time
from typing import Any

import numpy as np

from evojax import records
from evojax.rollout import answers
from evojax.rollout import comparison as comparison_lib
from evojax.rollout import connections as connections_lib
from evojax.rollout import fleet as fleet_lib
from evojax.rollout import packed as packed_lib
from evojax.rollout import roster as roster_lib
from evojax.rollout import servers as servers_lib
from evojax.rollout import stops
from evojax.rollout import weights as weights_lib
from evojax.runtime import preemption
from evojax.runtime import sharding
from evojax.runtime import waits

_Requests, _Episodes = Sequence[records.Request], list[records.Episode]
_Arrays = dict[str, np.ndarray]
_Future = concurrent.futures.Future[Any] | None  # None except in process 0.
_WATCH_SECONDS = 0.5  # Interval between checks for a request to stop the run.
_ERROR_BYTES = 4096  # Size of the error message that all processes receive.


class SGLangEngine:
  """A sampler on servers; see `records.RolloutEngine`."""

  def __init__(
      self,
      urls: Sequence[str],
      model: comparison_lib.Model,
      *,
      weights_folder: str | os.PathLike[str],
      urls_file: str | os.PathLike[str] = '',
      concurrency: int = 64,
      timeout_seconds: float = 600.0,
      weights_transport: str = 'folder',
      stopping: Callable[[], bool] = lambda: False,
      **options: Any,
  ):
    """Probe the servers, and return once one of them is up.

    Args:
      urls: http://HOST:PORT of each server; () if urls_file names them.
      model: The policy.
      weights_folder: Folder for new weights, which no other run may use. The
        servers must see it under the same path, unless they get tensors.
      urls_file: File that names the servers, which join and leave as the file
        changes; see `roster`.
      concurrency: Requests in flight per server.
      timeout_seconds: Longest time that a request may go unanswered, or that
        all servers may be unusable.
      weights_transport: 'folder' or 'tensors'; see `transfer`.
      stopping: See `records.RolloutEngine`; only process 0 calls it.
      **options: API keys and `transport`; see `connections.Connections`.

    Raises:
      answers.DisagreementError: If a server does not fit the policy.
      fleet.FleetError: If no server is up in time.
      ValueError: If the file of URLs is invalid.
    """
    self.model = model
    self.stopping = stopping
    self.policy_version = -1
    # Part of the name of every weight version: distinguishes the weights of
    # this engine from those of other runs and of earlier starts of this run.
    self._name = secrets.token_hex(4)
    self._versions: dict[str, int] = {}
    self._folder = weights_lib.WeightFolder(weights_folder)
    self._metrics: dict[str, float] = {}
    self._resumed = 0  # Number of times an aborted request was resumed.
    self._comparison = comparison_lib.Comparison(
        model, sample=self._sample, on_primary=self._on_primary
    )
    self._fleet: fleet_lib.Fleet | None = None
    self._loop: asyncio.AbstractEventLoop | None = None
    if sharding.is_primary():
      self._loop = asyncio.new_event_loop()
      run = self._loop.run_forever
      self._thread = threading.Thread(target=run, name='sglang', daemon=True)
      self._thread.start()
      self._fleet = fleet_lib.Fleet(
          tuple(urls),
          connections_lib.Connections(timeout_seconds, **options),
          concurrency=concurrency,
          weights_transport=weights_transport,
          roster=roster_lib.Roster(urls_file) if urls_file else None,
          check=self._comparison.check_server,
          vouch=self._comparison.vouch,
          stopping=stopping,
      )
      self._comparison.fleet = self._fleet
    try:
      self._on_primary(lambda: self._fleet.start())
    except BaseException:
      self.close()
      raise

  # ------------------------------------------------------------- interface

  def generate(self, requests: _Requests) -> _Episodes:
    """Sample every request; return the episodes in the order of the requests.

    Raises:
      ValueError: If no weights were installed, or a request does not fit.
      answers.DisagreementError: If a server does not serve this policy.
      fleet.FleetError: If no server was usable for too long.
      preemption.Interrupted: If the run was asked to stop.
    """
    return self.finish(self.begin(requests))

  def begin(self, requests: _Requests) -> Callable[[], _Episodes]:
    """Start `generate`; the weights must not change before `finish`.

    Raises:
      ValueError: If no weights were installed, or a request does not fit.
    """
    self.check(requests)
    width = max((r.params.max_tokens for r in requests), default=1)

    async def sample() -> _Arrays:
      return packed_lib.pack(await self._sample_all(requests), width)

    empty = packed_lib.pack([None] * len(requests), width)
    future = self._run(sample)

    def wait() -> _Episodes:
      packed = self._share(future, empty)
      return packed_lib.unpack(packed, requests, self.model)

    return wait

  def check(self, requests: Iterable[records.Request]) -> None:
    """Refuse requests that do not fit the limits of the model.

    Raises:
      ValueError: If no weights were installed, or a request does not fit.
    """
    if self.policy_version < 0:
      raise ValueError('SGLangEngine.generate before update_weights.')
    for request in requests:
      request.check(self.model.max_prompt_tokens, self.model.max_tokens)

  def finish(self, pending: Callable[[], _Episodes]) -> _Episodes:
    """Return the episodes of the requests given to `begin`; see `generate`."""
    return pending()

  def stream(
      self, ended: Callable[[int, records.Episode | BaseException], None]
  ) -> records.Stream:
    """Return a stream, which accepts requests while others are sampled.

    The stream samples in a separate thread and calls `ended` there. It is for
    runs of one process, since other processes would not get the episodes.
    """
    return _Stream(self, ended)

  def update_weights(self, params: Any, version: int) -> None:
    """Send the weights to all servers, and check that they sample with them.

    Args:
      params: The parameters, on the device.
      version: Recorded with every completion sampled from now on.

    Raises:
      answers.DisagreementError: If a server refuses the weights, or samples
        with other weights.
      fleet.FleetError: If no server was usable for too long.
      OSError: If the weights cannot be written.
    """
    started = time.perf_counter()
    name = f'{version:06d}-{self._name}-{len(self._versions)}'
    # Files are handled in threads, so that the event loop is not blocked.
    self._on_primary(lambda: asyncio.to_thread(self._folder.prepare))

    async def halves() -> _Arrays:
      return dict(halves=np.array(self._fleet.dtype() == 'bfloat16'))

    half = self._on_primary(halves, dict(halves=np.array(False)))['halves']
    dtype = 'bfloat16' if half else ''
    self.model.export(params, self._folder.unfinished(name), dtype)
    self._on_primary(lambda: asyncio.to_thread(self._folder.commit, name))
    written = time.perf_counter()
    self._versions[name] = version

    weights = servers_lib.Weights(name, str(self._folder.path_of(name)))
    self._on_primary(lambda: self._fleet.install(weights))
    self.policy_version = version
    sent = time.perf_counter()
    self._comparison.check_parity(params, version)
    if sharding.is_primary():
      needed = [{s.weights, s.taking} for s in self._fleet.servers]
      self._folder.remove_old(set().union(*needed))
    self._metrics |= {
        'sync/export_seconds': written - started,
        'sync/transfer_seconds': sent - written,
        'sync/check_seconds': time.perf_counter() - sent,
        'sync/logprob_gap': self._comparison.gap,
    }

  def metrics(self) -> dict[str, float]:
    """Return the seconds of the last update, and failures since the start."""
    if self._fleet is None:
      return dict(self._metrics)
    return self._metrics | {
        'fleet/servers_up': sum(s.up for s in self._fleet.servers),
        'fleet/resent': self._fleet.resent,
        'fleet/resumed': self._resumed,
    }

  def compilations(self) -> int:
    """Return 0, since the servers compile the programs."""
    return 0

  def servers(self) -> Sequence[servers_lib.Server]:
    """Return the state of each server; empty except in process 0."""
    return self._fleet.servers if self._fleet else ()

  def close(self) -> None:
    """Close the connections and end the thread; the servers keep running."""
    if self._loop is None:
      return
    if self._fleet is not None:
      asyncio.run_coroutine_threadsafe(self._fleet.close(), self._loop).result()
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
    self._loop.close()
    self._loop = None
    self._folder.clear()

  # -------------------------------------------------------------- sampling

  async def _sample_all(self, requests: _Requests) -> _Episodes:
    """Sample all requests, as many at a time as the servers accept."""
    completions: list[records.Episode | None] = [None] * len(requests)

    async def work(i: int) -> None:
      async with self._fleet.turns:
        completions[i] = await self._sample(requests[i])

    async def watch() -> None:
      while not self.stopping():
        await asyncio.sleep(_WATCH_SECONDS)
      raise preemption.Interrupted

    async with asyncio.TaskGroup() as group:  # One failure cancels all tasks.
      watching = group.create_task(watch())
      async with asyncio.TaskGroup() as workers:
        for i in range(len(requests)):
          workers.create_task(work(i))
      watching.cancel()
    await self._comparison.check_all_unchanged()
    return completions

  async def _sample(
      self, request: records.Request, server: str = ''
  ) -> records.Episode:
    """Sample one completion; an aborted request resumes where it stopped."""
    # `versions` holds the version of the weights that sampled each token.
    sampled = tokens, logprobs, versions = [], [], []
    model = self.model
    read = functools.partial(
        answers.read, vocab_size=model.vocab_size, eos_ids=model.eos_ids
    )
    reason, pause, fruitless = 'abort', 0.1, time.monotonic()
    while reason == 'abort' and len(tokens) < request.params.max_tokens:
      body = answers.ask(request, tokens, eos_ids=model.eos_ids)
      part = await self._fleet.generate(body, read, only=server)
      waits.advance()
      begin = len(tokens)
      tokens += part.tokens
      logprobs += part.logprobs
      default = (self._fleet.weights.version, len(part.tokens))
      for name, end in part.spans or (default,):
        versions += [self._number(name)] * (begin + end - len(versions))
      reason = part.reason
      # The server cannot find these stop strings: one may begin in an earlier
      # part, and an aborted answer is not searched for them.
      if begin or reason == 'abort':
        if hit := stops.find(tokens, request.params.stop, model.decode_all):
          reason = 'stop'
          for values in sampled:
            del values[hit[0] :]
      if reason != 'abort':
        break
      self._resumed += 1
      if part.tokens:
        pause, fruitless = 0.1, time.monotonic()
      elif time.monotonic() - fruitless > self._fleet.timeout_seconds:
        raise fleet_lib.FleetError(
            'a request was aborted again and again for'
            f' {self._fleet.timeout_seconds:g} s: who else sends /abort_request'
            ' or /pause_generation to these servers?'
        )
      await asyncio.sleep(pause)
      pause = min(pause * 2, 5.0)
    return records.Episode(
        tokens=np.array(tokens, np.int32),
        logprobs=np.array(logprobs, np.float32),
        finish_reason='length' if reason == 'abort' else reason,
        policy_version=min(versions),
        text='',  # `packed.unpack` decodes the tokens in every process.
        version_spans=packed_lib.spans(np.array(versions)),
    )

  def _number(self, name: str) -> int:
    """Return the policy version of weights, given their name on the servers."""
    if name not in self._versions:
      raise answers.DisagreementError(
          f'tokens were sampled with weights {name!r}, which this run never'
          ' gave to a server: give each run its own servers'
      )
    return self._versions[name]

  # ------------------------------------------------------------- processes

  def _on_primary(
      self, work: Callable[[], Any], empty: _Arrays | None = None
  ) -> Any:
    """Run a coroutine in process 0; return its result in all processes.

    If the coroutine fails, every process raises an error.

    Args:
      work: Creates the coroutine.
      empty: Arrays with the shapes and dtypes of its result.
    """
    return self._share(self._run(work), empty)

  def _run(self, work: Callable[[], Any]) -> _Future:
    """Start a coroutine in process 0."""
    if self._loop is None:
      return None
    return asyncio.run_coroutine_threadsafe(work(), self._loop)

  def _share(self, future: _Future, empty: _Arrays | None) -> Any:
    """Return process 0's result in all processes, or raise an error in all."""
    result, error, message = empty, None, np.zeros(_ERROR_BYTES, np.uint8)
    if future is not None:
      try:
        result = future.result()
      except KeyboardInterrupt:
        future.cancel()
        raise
      # Any error must reach the other processes, which wait for a broadcast.
      except Exception as e:  # pylint: disable=broad-except
        error = _first(e)
        text = f'{type(error).__name__}: {error}'.encode()[:_ERROR_BYTES]
        message[: len(text)] = np.frombuffer(text, np.uint8)
        result = empty
    result, message = sharding.broadcast((result, message))
    if error is not None:
      raise error
    if message.any():
      text = bytes(np.asarray(message)).rstrip(b'\0').decode(errors='replace')
      raise fleet_lib.FleetError(f'process 0 failed: {text}')
    return result


class _Stream:
  """Requests that are sent one by one; see `SGLangEngine.stream`."""

  def __init__(
      self,
      client: SGLangEngine,
      ended: Callable[[int, records.Episode | BaseException], None],
  ):
    self._client, self._ended = client, ended
    self._futures: list[concurrent.futures.Future[None]] = []

  def __enter__(self) -> '_Stream':
    return self

  def __exit__(self, kind: Any, *_: Any) -> None:
    for future in self._futures:
      future.cancel()
    if kind is None:
      self._client._on_primary(self._client._comparison.check_all_unchanged)

  def submit(self, requests: Mapping[int, records.Request]) -> None:
    """Send requests; see `SGLangEngine.generate`."""
    self._client.check(requests.values())
    self._futures = [f for f in self._futures if not f.done()]
    for number, request in requests.items():
      work = functools.partial(self._sample, number, request)
      self._futures.append(self._client._run(work))

  def work(self) -> bool:
    """Return False, since the servers do all the work."""
    return False

  async def _sample(self, number: int, request: records.Request) -> None:
    # The caller waits for `ended`, so it is called after any error, too.
    try:
      async with self._client._fleet.turns:
        found = await self._client._sample(request)
      packed = packed_lib.pack([found], request.params.max_tokens)
      model = self._client.model
      (episode,) = packed_lib.unpack(packed, [request], model)
    except BaseException as error:
      self._ended(number, _first(error))
      raise
    self._ended(number, episode)


def _first(error: BaseException) -> BaseException:
  """Return the first error of a group."""
  while isinstance(error, BaseExceptionGroup):
    error = error.exceptions[0]
  return error
