"""A rollout engine made of SGLang servers.

`SGLangEngine` is to training what the engine in this process is: it takes
requests and weights. Behind it are servers: sglang, sglang-jax, or evojax's
own. With several processes, process 0 alone talks to them; every process gets
the same completions, or the same error.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
import concurrent.futures
import dataclasses
import functools
import os
import pathlib
import secrets
import threading
import time
from typing import Any

from absl import logging
import numpy as np

from evojax import records
from evojax.rollout import answers
from evojax.rollout import fleet as fleet_lib
from evojax.rollout import packed as packed_lib
from evojax.rollout import parity
from evojax.rollout import servers as servers_lib
from evojax.rollout import stops
from evojax.rollout import weights as weights_lib
from evojax.runtime import preemption
from evojax.runtime import sharding

PROBE_TOKENS = 16
_PROBE_TEMPERATURES = (1.0, 0.6)
PROBES = len(_PROBE_TEMPERATURES)  # Samples of each server after an update.
# Mean difference of log-probs, in nats, that the same weights may show.
_TOLERANCE = {'float32': 1e-4, 'bfloat16': 0.05}
# A server that computes in bfloat16 may differ from float32 by this many times
# what the forward pass of this process does: another order of the same sums.
_ROUNDING = 4.0
# The same of a text that one server reads twice with the same weights.
_READ_TWICE = {'float32': 1e-3, 'bfloat16': 0.05}
# Says more of a tokenizer than plain words: digits, white space, rare letters.
_TEXT = 'Add 12 + 345: "naïve"?\n\t数'
_Requests, _Episodes = Sequence[records.Request], list[records.Episode]
_Arrays = dict[str, np.ndarray]
_Future = concurrent.futures.Future[Any] | None  # None but in process 0.
_WATCH_SECONDS = 0.5  # Between two looks whether the run is to stop.
_ERROR_BYTES = 4096  # Size of an error that is sent to all processes.


@dataclasses.dataclass(frozen=True)
class Model:
  """The policy that the servers serve, as far as the client needs it."""

  vocab_size: int  # Rows of the embedding table.
  eos_ids: tuple[int, ...]
  decode: Callable[[Sequence[int]], str]  # Without special tokens.
  encode: Callable[[str], Sequence[int]]  # Adds nothing.
  max_prompt_tokens: int
  max_tokens: int
  dtype: str  # 'float32', or 'bfloat16' if anything is computed or sent so.
  # Writes a Hugging Face directory. All processes must call it and `score` at
  # the same time: both compute on arrays that are spread over them.
  export: Callable[[Any, pathlib.Path], None]
  score: parity.Scorer
  score_bfloat16: parity.Scorer  # The same, computed in bfloat16.
  corrected: bool  # The update corrects for log-probs that differ a little.
  probe: tuple[int, ...]  # A short prompt.


class SGLangEngine:
  """A sampler on servers; see `records.RolloutEngine`."""

  def __init__(
      self,
      urls: Sequence[str],
      model: Model,
      *,
      weights_folder: str | os.PathLike[str],
      concurrency: int = 64,
      timeout_seconds: float = 600.0,
      stopping: Callable[[], bool] = lambda: False,
      **options: Any,
  ):
    """Probe the servers; returns once one of them is up.

    Args:
      urls: http://HOST:PORT of each server.
      model: The policy.
      weights_folder: Where new weights are put for the servers, which see it
        under the same path; belongs to this run alone.
      concurrency: Requests in flight per server.
      timeout_seconds: How long a request, or all servers, may be silent.
      stopping: See `records.RolloutEngine`; only process 0 asks.
      **options: Keys and `transport`; see `fleet.Fleet`.

    Raises:
      answers.DisagreementError: If a server does not fit the policy.
      fleet.FleetError: If no server is up in time.
    """
    self.model = model
    self.stopping = stopping
    self.policy_version = -1
    self._urls = tuple(url.rstrip('/') for url in urls)
    self._workers = concurrency * len(self._urls)
    # Versions of this engine's weights are not those of another run's, or of
    # an earlier start of this run.
    self._name = secrets.token_hex(4)
    self._versions: dict[str, int] = {}
    self._folder = weights_lib.WeightFolder(weights_folder)
    self._metrics: dict[str, float] = {}
    self._resumed = 0  # Requests that went on after an abort.
    self._rounding: set[str] = set()  # URLs that differ as bfloat16 does.
    # URL -> the weights that were compared, and a text's log-probs with them.
    self._read: dict[str, tuple[str, np.ndarray]] = {}
    self._fleet: fleet_lib.Fleet | None = None
    self._loop: asyncio.AbstractEventLoop | None = None
    if sharding.is_primary():
      self._loop = asyncio.new_event_loop()
      run = self._loop.run_forever
      self._thread = threading.Thread(target=run, name='sglang', daemon=True)
      self._thread.start()
      self._fleet = fleet_lib.Fleet(
          self._urls,
          concurrency=concurrency,
          timeout_seconds=timeout_seconds,
          check=self._check_server,
          stopping=stopping,
          **options,
      )
    try:
      self._on_primary(lambda: self._fleet.start())
    except BaseException:
      self.close()
      raise

  # ------------------------------------------------------------- interface

  def generate(self, requests: _Requests) -> _Episodes:
    """Sample every request; episodes come in the order of the requests.

    Raises:
      ValueError: If no weights were installed, or a request does not fit.
      answers.DisagreementError: If a server does not serve this policy.
      fleet.FleetError: If no server could be used for too long.
      preemption.Interrupted: If the run was asked to stop.
    """
    return self.finish(self.begin(requests))

  def begin(self, requests: _Requests) -> Callable[[], _Episodes]:
    """Start `generate`; weights must stay until `finish`.

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
      return packed_lib.unpack(packed, requests, self.model.decode)

    return wait

  def check(self, requests: Iterable[records.Request]) -> None:
    """Refuse requests that do not fit.

    Raises:
      ValueError: If no weights were installed, or a request does not fit.
    """
    if self.policy_version < 0:
      raise ValueError('SGLangEngine.generate before update_weights.')
    for request in requests:
      request.check(self.model.max_prompt_tokens, self.model.max_tokens)

  def finish(self, pending: Callable[[], _Episodes]) -> _Episodes:
    """Return the episodes of what `begin` started; see `generate`."""
    return pending()

  def stream(
      self, ended: Callable[[int, records.Episode | BaseException], None]
  ) -> records.Stream:
    """Return what samples requests that come while others run.

    It samples in a thread of its own; `ended` is called there. It is for a run
    of one process: others would not get the episodes.
    """
    return _Stream(self, ended)

  def update_weights(self, params: Any, version: int) -> None:
    """Give the weights to all servers, and check that they have them.

    Args:
      params: On the device.
      version: Stamped on every completion sampled from now on.

    Raises:
      answers.DisagreementError: If a server refuses them, or samples from
        other ones.
      fleet.FleetError: If no server could be used for too long.
      OSError: If they cannot be written.
    """
    started = time.perf_counter()
    name = f'{version:06d}-{self._name}-{len(self._versions)}'
    # In threads: the loop must go on answering servers while the disk syncs.
    self._on_primary(lambda: asyncio.to_thread(self._folder.prepare))
    self.model.export(params, self._folder.unfinished(name))
    self._on_primary(lambda: asyncio.to_thread(self._folder.commit, name))
    written = time.perf_counter()
    self._versions[name] = version

    weights = servers_lib.Weights(name, str(self._folder.path_of(name)))
    self._on_primary(lambda: self._fleet.install(weights))
    self.policy_version = version
    sent = time.perf_counter()
    self._check_parity(params)
    if sharding.is_primary():
      needed = [{s.weights, s.taking} for s in self._fleet.servers]
      self._folder.remove_old(set.union(*needed))
    self._metrics |= {
        'sync/export_seconds': written - started,
        'sync/transfer_seconds': sent - written,
        'sync/check_seconds': time.perf_counter() - sent,
    }

  def metrics(self) -> dict[str, float]:
    """Return seconds of the last update, and failures since the start."""
    if self._fleet is None:
      return dict(self._metrics)
    return self._metrics | {
        'fleet/servers_up': sum(s.up for s in self._fleet.servers),
        'fleet/resent': self._fleet.resent,
        'fleet/resumed': self._resumed,
    }

  def compilations(self) -> int:
    """Return 0: the servers compile."""
    return 0

  def servers(self) -> Sequence[servers_lib.Server]:
    """Return the state of each server; empty in all processes but 0."""
    return self._fleet.servers if self._fleet else ()

  def close(self) -> None:
    """End connections and the thread; the servers go on."""
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
    """Sample all requests, as many at a time as the servers take."""
    completions: list[records.Episode | None] = [None] * len(requests)
    waiting = iter(range(len(requests)))

    async def work() -> None:
      for i in waiting:
        completions[i] = await self._sample(requests[i])

    async def watch() -> None:
      while not self.stopping():
        await asyncio.sleep(_WATCH_SECONDS)
      raise preemption.Interrupted

    async with asyncio.TaskGroup() as group:  # One fails: none goes on.
      watching = group.create_task(watch())
      async with asyncio.TaskGroup() as workers:
        for _ in range(min(self._workers, len(requests))):
          workers.create_task(work())
      watching.cancel()
    await self._check_all_unchanged()
    return completions

  async def _check_all_unchanged(self) -> None:
    up = [server for server in self._fleet.servers if server.up]
    await asyncio.gather(*map(self._check_unchanged, up))

  async def _sample(
      self, request: records.Request, server: str = ''
  ) -> records.Episode:
    """Sample one completion; an aborted request resumes where it stopped."""
    # `versions` are the weights that sampled each token.
    sampled = tokens, logprobs, versions = [], [], []
    model = self.model
    read = functools.partial(
        answers.read, vocab_size=model.vocab_size, eos_ids=model.eos_ids
    )
    reason, pause, fruitless = 'abort', 0.1, time.monotonic()
    while reason == 'abort' and len(tokens) < request.params.max_tokens:
      body = answers.ask(request, tokens, eos_ids=model.eos_ids)
      part = await self._fleet.generate(body, read, only=server)
      begin = len(tokens)
      tokens += part.tokens
      logprobs += part.logprobs
      default = (self._fleet.weights.version, len(part.tokens))
      for name, end in part.spans or (default,):
        versions += [self._number(name)] * (begin + end - len(versions))
      reason = part.reason
      # A stop string may begin in an earlier part, which the server does not
      # know; and a server reports an abort before it looks at the text.
      if begin or reason == 'abort':
        if hit := stops.find(tokens, request.params.stop, model.decode):
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
        text='',  # `packed.unpack` decodes the tokens, in every process.
        version_spans=packed_lib.spans(np.array(versions)),
    )

  def _number(self, name: str) -> int:
    """Return the version that this run sent to servers under a name."""
    if name not in self._versions:
      raise answers.DisagreementError(
          f'tokens were sampled with weights {name!r}, which this run never'
          ' gave to a server: give each run its own servers'
      )
    return self._versions[name]

  # ---------------------------------------------------------------- checks

  async def _check_server(
      self, server: servers_lib.Server, info: Mapping[str, Any]
  ) -> None:
    """Compare what a server says of its model with the policy."""
    if not server.abilities.seeds:
      logging.warning(
          '%s does not say that it heeds sampling_seed: a resumed run will'
          ' sample otherwise; start it with launch/sglang.sh, or with'
          ' --enable-deterministic-inference',
          server.url,
      )
    need = self.model.max_prompt_tokens + self.model.max_tokens
    for field, least, remedy in (
        ('vocab_size', self.model.vocab_size, 'serve config.model.path'),
        ('max_total_num_tokens', need, 'raise --max-total-tokens'),
        ('context_length', need, 'raise --context-length'),
    ):
      value = info.get(field)
      says = isinstance(value, int) and value != 0
      exact = field == 'vocab_size'
      if says and (value < least or (exact and value != least)):
        raise answers.DisagreementError(
            f'{server.url} has {field}={value}, this run needs {least}'
            ' (config.data.max_prompt_tokens + config.rollout.max_tokens ='
            f' {need}): {remedy}'
        )
    await self._check_tokenizer(server)

  async def _check_tokenizer(self, server: servers_lib.Server) -> None:
    """Let a server tokenise a text, where it reports the tokens.

    The client sends and reads tokens, but a server ends a completion at
    strings and special tokens, which it finds with its own tokenizer.
    """
    read = await self._fleet.read_text(server, _TEXT)
    theirs = read and [token for _, token in read]
    ours = list(self.model.encode(_TEXT))
    # A server may put a token for the beginning in front of a text.
    if theirs is not None and ours not in (theirs, theirs[1:]):
      raise answers.DisagreementError(
          f'{server.url} reads {_TEXT!r} as tokens {theirs}, this run as'
          f' {ours}: it has another tokenizer; start it with the policy of'
          ' config.model.path'
      )

  async def _read_text(self, server: servers_lib.Server) -> np.ndarray:
    """Return a server's log-probs of a text; empty if it tells none."""
    read = await self._fleet.read_text(server, _TEXT) or ()
    return np.array([x for x, _ in read if x is not None], np.float64)

  async def _check_unchanged(self, server: servers_lib.Server) -> None:
    """Check that a server still has the weights that were compared.

    Versions tell most exchanges by others; not those that keep the name, as
    mainline SGLang's do by default, and no broken memory.

    Raises:
      answers.DisagreementError: If it has not: what it sampled is not ours.
    """
    version, before = self._read.get(server.url, ('', np.zeros(0)))
    now = await self._read_text(server)
    given = server.up and not server.taking and server.weights == version
    if not given or not len(before) or len(before) != len(now):
      return
    exact = self.model.dtype == 'float32' and server.url not in self._rounding
    allowed = _READ_TWICE['float32' if exact else 'bfloat16']
    if (gap := _mean_gap(before, now)) > allowed:
      raise answers.DisagreementError(
          f'{server.url} reads the same text as after its last update, also as'
          f' weight_version={version!r}, but its log-probs differ by'
          f' {gap:.3g} nats per token (allowed: {allowed:g}): somebody'
          ' exchanged its weights without a name for them, or started it again'
          ' with another --dtype; give each run its own servers'
      )

  def _check_parity(self, params: Any) -> None:
    """Compare log-probs of samples with the forward pass in this process.

    It proves at once that weights, vocabulary, order of tokens and the meaning
    of temperature agree.
    """
    count = min(PROBE_TOKENS, self.model.max_tokens)
    rows = len(self._urls) * PROBES

    def packed(found: list[records.Episode], servers: list[int]):
      arrays = packed_lib.pack([*found, *[None] * (rows - len(found))], count)
      servers = [*servers, *[-1] * (rows - len(servers))]  # -1: an empty row.
      return arrays | {'server': np.array(servers, np.int32)}

    async def sample() -> _Arrays:
      servers = self._fleet.servers
      up = [i for i, server in enumerate(servers) if server.up]
      asked = [(i, k) for i in up for k in range(PROBES)]
      probe = lambda i, k: self._sample(self._probe(k, count), self._urls[i])
      probes = [probe(i, k) for i, k in asked]
      found = await asyncio.gather(*probes)
      reads = await asyncio.gather(*(self._read_text(servers[i]) for i in up))
      for i, read in zip(up, reads, strict=True):
        self._read[servers[i].url] = servers[i].weights, read
      # Another server answered the probes of one that died meanwhile.
      return packed(found, [i if servers[i].up else -1 for i, _ in asked])

    arrays = self._on_primary(sample, packed([], []))
    live = np.flatnonzero(arrays['server'] >= 0)
    pairs = [(self.model.probe, arrays['tokens'][b].tolist()) for b in live]
    scale = [_PROBE_TEMPERATURES[i % PROBES] for i in range(len(live))]
    scaled = self.model.score(params, pairs, scale)
    plain = self.model.score(params, pairs, [1.0] * len(live))
    sampled = arrays['logprobs'][live]
    gaps, raws = (
        list(map(_mean_gap, sampled, theirs)) for theirs in (scaled, plain)
    )
    exact = allowed = _TOLERANCE[self.model.dtype]
    if max(gaps, default=0) > exact:
      rounded = self.model.score_bfloat16(params, pairs, scale)
      rounding = np.mean(list(map(_mean_gap, rounded, scaled)))
      allowed = max(allowed, _ROUNDING * float(rounding))
    for i, b in enumerate(live):
      url, gap = self._urls[arrays['server'][b]], gaps[i]
      if scale[i] != 1 and gap > allowed >= raws[i]:
        raise answers.DisagreementError(
            f'{url} reports log-probs of softmax(logits) at temperature'
            f' {scale[i]}, this run needs softmax(logits / temperature): start'
            ' it without SGLANG_RETURN_ORIGINAL_LOGPROB'
        )
      if gap > allowed:
        raise answers.DisagreementError(
            f'{url} and this run differ by {gap:.3g} nats per token (allowed:'
            f' {exact:g}; computing in bfloat16 would explain {allowed:.2g}) on'
            f' a probe at temperature {scale[i]} with the weights of version'
            f' {self.policy_version}: it samples from other weights; start it'
            ' with the policy of config.model.path and'
            f' --dtype={self.model.dtype}'
        )
      if gap > exact and url not in self._rounding:
        self._accept_rounding(url, gap)
    self._metrics['sync/logprob_gap'] = max(gaps, default=0.0)
    if self._fleet is not None:
      self._fleet.trust({self._urls[i] for i in arrays['server'][live]})

  def _accept_rounding(self, url: str, gap: float) -> None:
    """Say once that a server computes in bfloat16, unlike this run.

    Raises:
      answers.DisagreementError: If the training would not correct for it.
    """
    message = (
        f'{url} and this run differ by {gap:.2g} nats per token, as bfloat16'
        f' does from {self.model.dtype}'
    )
    if not self.model.corrected:
      raise answers.DisagreementError(
          f'{message}, which nothing corrects: set --config.grpo.tis_cap=2, or'
          ' start the server with'
          f' --dtype={self.model.dtype}'
      )
    self._rounding.add(url)
    logging.warning('%s: the update corrects for it', message)

  def _probe(self, sample: int, count: int) -> records.Request:
    """Return a request for `count` tokens at a temperature of the probes."""
    return records.Request(
        prompt_tokens=self.model.probe,
        seed=self.policy_version,
        problem_key=0,
        sample=sample,
        params=records.SamplingParams(
            max_tokens=count,
            temperature=_PROBE_TEMPERATURES[sample],
            ignore_eos=True,
        ),
    )

  # ------------------------------------------------------------- processes

  def _on_primary(
      self, work: Callable[[], Any], empty: _Arrays | None = None
  ) -> Any:
    """Run a coroutine in process 0; all get its result, or its error.

    Args:
      work: Makes the coroutine.
      empty: Arrays with the shapes of its result.
    """
    return self._share(self._run(work), empty)

  def _run(self, work: Callable[[], Any]) -> _Future:
    """Start a coroutine in process 0."""
    if self._loop is None:
      return None
    return asyncio.run_coroutine_threadsafe(work(), self._loop)

  def _share(self, future: _Future, empty: _Arrays | None) -> Any:
    """Return process 0's result, or raise its error, in all processes."""
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
    self._free = asyncio.Semaphore(client._workers)
    self._futures: list[concurrent.futures.Future[None]] = []

  def __enter__(self) -> '_Stream':
    return self

  def __exit__(self, kind: Any, *_: Any) -> None:
    for future in self._futures:
      future.cancel()
    if kind is None:
      self._client._on_primary(self._client._check_all_unchanged)

  def submit(self, requests: Mapping[int, records.Request]) -> None:
    """Send requests; see `SGLangEngine.generate`."""
    self._client.check(requests.values())
    self._futures = [f for f in self._futures if not f.done()]
    for number, request in requests.items():
      work = functools.partial(self._sample, number, request)
      self._futures.append(self._client._run(work))

  def work(self) -> bool:
    """Return False: the servers sample."""
    return False

  async def _sample(self, number: int, request: records.Request) -> None:
    # The caller waits for `ended`, whatever happens here.
    try:
      async with self._free:
        found = await self._client._sample(request)
      packed = packed_lib.pack([found], request.params.max_tokens)
      decode = self._client.model.decode
      (episode,) = packed_lib.unpack(packed, [request], decode)
    except BaseException as error:
      self._ended(number, _first(error))
      raise
    self._ended(number, episode)


def _mean_gap(a: np.ndarray, b: np.ndarray) -> float:
  """Return the mean difference of log-probs, in nats per token."""
  return float(np.abs(a - b).mean())


def _first(error: BaseException) -> BaseException:
  """Return the first error of a group."""
  while isinstance(error, BaseExceptionGroup):
    error = error.exceptions[0]
  return error
