"""The service behind a server and the state that all endpoints share."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
import concurrent.futures
import dataclasses
import functools
import pathlib
import tempfile
import time
from typing import Any, Literal

from evojax import records
from evojax.rollout import service as service_lib
from evojax.rollout.server import errors
from evojax.rollout.server import metrics as metrics_lib
from evojax.rollout.server import protocol
from evojax.rollout.server import received
from evojax.rollout.server import samples
from evojax.rollout.server import settings as settings_lib
from evojax.rollout.server import tokens

SMALL_BODY = 64 << 10  # Bytes; a larger body is parsed in a thread.
_DRAIN_SECONDS = 0.05  # Interval between checks for running samples.
_Phase = Literal['starting', 'up', 'failed', 'stopping']
_ONE_TOKEN = records.SamplingParams(max_tokens=1, temperature=0.0)
# Errors of the service that are sent to clients with their messages.
SERVICE_ERRORS = (service_lib.QueueFullError, service_lib.ServiceFailedError)
_Answer = Mapping[str, Any]


class Host:
  """The runner of requests; only the event loop's thread may call its methods.

  A host is starting until it has its service, and stopping from `drain` on; in
  both phases it answers 503. It has failed once its service can no longer
  sample.
  """

  def __init__(
      self, tokenizer: tokens.ServerTokenizer, settings: settings_lib.Settings
  ):
    """Start without a service; the tokenizer must not be used elsewhere."""
    self.tokenizer = tokenizer
    # Maximum number of characters of text per token: a tokenizer may first
    # compose up to four characters into one.
    self._token_chars = 4 * tokenizer.longest_token
    self.settings = settings
    self._phase: _Phase = 'starting'
    self.metrics = metrics_lib.Metrics(
        settings.model_name, lambda: self._service and self._service.stats()
    )
    self._service: service_lib.Service | None = None
    self._batches: set[samples.Batch] = set()
    # Name that a client gave its request -> ids of the jobs.
    self._names: dict[str, Sequence[str]] = {}
    # One thread encodes, as `ServerTokenizer.encode_prompt` sets a flag inside
    # the tokenizer without a lock. It is not the loop's thread, since encoding
    # a long text takes a while.
    self._encoder = concurrent.futures.ThreadPoolExecutor(1, 'encode')
    self._parser = concurrent.futures.ThreadPoolExecutor(1, 'parse')
    # Held by one pause, update or similar operation at a time.
    self._control = asyncio.Lock()
    # Held by one check of health at a time, so that many of them, which need no
    # key, cannot fill the queue.
    self._health = asyncio.Lock()
    self._released: set[str] = set()
    # The tensors that arrived between begin_update and end_update.
    self._received: received.ReceivedWeights | None = None
    # The directory of the present weights, if they arrived as tensors.
    self._weights_folder: tempfile.TemporaryDirectory | None = None
    self._pause_after_update = False

  def open(self, service: service_lib.Service) -> None:
    """Start serving requests with a service."""
    self._service = service
    if self._phase == 'starting':
      self._phase = 'up'

  @property
  def phase(self) -> _Phase:
    """Return the state; a failure of the service shows at once."""
    if self._phase == 'up' and not self._service.alive:
      return 'failed'
    return self._phase

  @property
  def service(self) -> service_lib.Service:
    """Return the service.

    Raises:
      ApiError: 503 unless the server is up.
    """
    if self.phase != 'up' or self._service is None:
      raise errors.ApiError(503, f'the server is {self.phase}')
    return self._service

  @functools.cached_property
  def _mailbox(self) -> samples.Mailbox:
    """The mailbox for calls from the service's thread to the event loop."""
    return samples.Mailbox(asyncio.get_running_loop())

  async def encode(self, function: Callable[..., list[int]], *args, **kwargs):
    """Return the result of an encoding function, run in the tokenizer's thread.

    Raises:
      ApiError: 400 if it raises a ValueError.
    """
    run = functools.partial(function, *args, **kwargs)
    with errors.refusing():
      loop = asyncio.get_running_loop()
      return await loop.run_in_executor(self._encoder, run)

  async def parse(self, model: type[protocol.M], body: bytes) -> protocol.M:
    """Return a parsed body; see `protocol.parse`.

    Large bodies are parsed in a thread, one at a time, so that small ones do
    not wait for them.

    Raises:
      ApiError: 400 or 413 if it is not valid for the endpoint.
    """
    most = max(protocol.MOST_VALUES, 2 * self.settings.context_tokens)
    if len(body) <= SMALL_BODY:
      return protocol.parse(model, body, most)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(
        self._parser, protocol.parse, model, body, most
    )

  def run(
      self,
      asks: Sequence[samples.Ask],
      names: Mapping[str, Sequence[str]],
      live: bool = False,
      caller: str = '',
  ) -> samples.Batch:
    """Submit the samples of a request; return the batch, to be entered.

    Args:
      asks: One per sample.
      names: Name by which `abort` finds jobs -> their ids.
      live: See `samples.Batch`.
      caller: The client; see `service.Job`.

    Raises:
      ApiError: 503 if the server is not serving, 400 if the service refuses the
        request.
      QueueFullError, ServiceFailedError: See `Service.submit`.
    """
    service = self.service
    if self._released:
      raise errors.ApiError(
          503,
          f'the memory of {sorted(self._released)} is released; call'
          ' /resume_memory_occupation first',
      )
    for name in names:
      if name in self._names:
        raise errors.bad_request('rid', f'{name!r} is in use')

    def left(batch: samples.Batch) -> None:
      self._batches.discard(batch)
      for name in names:
        del self._names[name]
      for sample in batch.samples:
        sample.collect()
        if sample.finish is None:
          service.abort(sample.ask.job.rid, 'the client is gone')
        self.metrics.observe(sample)

    decode, mailbox = self.tokenizer.decode, self._mailbox
    batch = samples.Batch(asks, decode, mailbox, live=live, on_exit=left)
    with errors.refusing():
      service.submit(
          [dataclasses.replace(ask.job, caller=caller) for ask in asks],
          [sample.listen for sample in batch.samples],
      )
    self._batches.add(batch)
    self._names.update(names)
    return batch

  def check_size(self, count: int) -> None:
    """Check the number of samples that a request asks for.

    Raises:
      ApiError: 400 if they exceed what the queue can hold.
    """
    limit = self.settings.max_samples
    if count > limit:
      message = f'the request asks for {count} samples, more than {limit}'
      raise errors.ApiError(400, message)

  def check_text(self, characters: int) -> None:
    """Check that a prompt may fit, before it is tokenized, which is slow.

    Raises:
      ApiError: 400 if it could not, even if every token had maximum length.
    """
    limit = self.settings.context_tokens
    if characters > limit * self._token_chars:
      message = (
          f'a prompt of {characters} characters does not fit into a context of'
          f' {limit} tokens'
      )
      raise errors.ApiError(400, message)

  def abort(self, rid: str, message: str) -> None:
    """Abort the request of that name, or the sample of that id, if it runs."""
    for job in self._names.get(rid, (rid,)):
      self.service.abort(job, message)

  async def health_generate(self) -> bool:
    """Sample a token; return False if none is sampled in time.

    If the queue is full, a token of any other request counts.
    """
    try:
      async with asyncio.timeout(self.settings.health_seconds), self._health:
        return await self._sample_token()
    except TimeoutError:
      return False

  async def _sample_token(self) -> bool:
    """Return whether a token was sampled; wait for it without a limit."""
    before = self.service.stats().generated_tokens
    rid = f'HEALTH_CHECK_{time.monotonic_ns()}'
    job = service_lib.Job(rid, prompt_tokens=(0,), params=_ONE_TOKEN, seed=0)
    try:
      with self.run([samples.Ask(job)], {}) as batch:
        await batch.finished()
        return bool(batch.samples[0].ids)
    except (errors.ApiError, *SERVICE_ERRORS):
      while self.phase == 'up' and not self._released:
        if self.service.stats().generated_tokens > before:
          return True
        await asyncio.sleep(0.25)
      return False

  # The methods below manage the service. Blocking calls run in a thread, and
  # the return value of a method is the answer to the client.

  async def pause(self, asked: protocol.Pause) -> _Answer:
    """Stop sampling until `resume`."""
    async with self._control:
      await asyncio.to_thread(self.service.pause, asked.mode)
      self._pause_after_update = True
    return {'message': 'generation is paused', 'status': 'ok'}

  async def resume(self, _: protocol.Empty) -> _Answer:
    """End a pause.

    Raises:
      ApiError: 400 during a weight update.
    """
    async with self._control:
      self._check_update(is_open=False)
      await asyncio.to_thread(self.service.resume)
    return {'message': 'generation continues', 'status': 'ok'}

  async def begin_update(self, _: protocol.Empty) -> _Answer:
    """Pause in place until `end_update`.

    Raises:
      ApiError: 400 if an update is already open.
    """
    async with self._control:
      self._check_update(is_open=False)
      service = self.service
      self._pause_after_update = service.paused
      if not service.paused:
        await asyncio.to_thread(service.pause, 'in_place')
      most = self.settings.tensor_bytes
      self._received = received.ReceivedWeights(most)
    return {'success': True, 'message': 'sampling waits'}

  async def receive(self, asked: protocol.Tensors) -> _Answer:
    """Hold tensors of new weights until `end_update`.

    Raises:
      ApiError: 400 if no update is open, or if the tensors are not valid.
    """
    async with self._control:
      self._check_update(is_open=True)
      # The server is one rank, and the payloads of all ranks are alike.
      payload = asked.serialized_named_tensors[0]
      try:
        await asyncio.to_thread(self._received.add, payload)
      except ValueError as e:
        raise errors.failure(f'the old weights stay: {e}') from e
      if asked.abort_all_requests:
        await asyncio.to_thread(self.service.abort_all, 'new weights')
      if asked.weight_version is not None:
        self._received.version = str(asked.weight_version)
      held = len(self._received)
    message = f'{held} tensors are held until /end_weight_update'
    return {'success': True, 'message': message}

  async def end_update(self, _: protocol.Empty) -> _Answer:
    """End the update; continue sampling unless a client paused it.

    Weights that arrived as tensors are installed first.

    Raises:
      ApiError: 400 if no update is open, or if the tensors are not those of a
        policy of this shape; the update is closed then, too, and the old
        weights stay.
    """
    async with self._control:
      self._check_update(is_open=True)
      arrived, self._received = self._received, None
      try:
        if len(arrived):
          await self._install_received(arrived)
      finally:
        if not self._pause_after_update:
          await asyncio.to_thread(self.service.resume)
    return {'success': True, 'message': 'the update is closed'}

  async def _install_received(self, arrived: received.ReceivedWeights) -> None:
    model = pathlib.Path(self.settings.model_path)
    try:
      folder = await asyncio.to_thread(arrived.write, model)
    except OSError as e:
      raise errors.failure(f'the old weights stay: {e}') from e
    try:
      await self._install(folder.name, arrived.version, flush=True)
    except errors.ApiError:
      await asyncio.to_thread(folder.cleanup)
      raise
    # The service may read the directory again until the next update.
    folder, self._weights_folder = self._weights_folder, folder
    if folder is not None:
      await asyncio.to_thread(folder.cleanup)

  def _check_update(self, *, is_open: bool) -> None:
    if (self._received is not None) != is_open:
      what, call = ('no', 'begin') if is_open else ('a', 'end')
      call = f'call /{call}_weight_update first'
      message = f'{what} weight update is open; {call}'
      raise errors.ApiError(400, message)

  async def update(self, asked: protocol.Update) -> _Answer:
    """Install weights from a directory; see `Service.update_weights`.

    Raises:
      ApiError: 400 if the directory is not valid; the old weights stay.
    """
    async with self._control:
      try:
        path = await asyncio.to_thread(self._weights, asked.model_path)
      except (ValueError, OSError) as e:
        message = f'the old weights stay: {e}'
        raise errors.failure(message, num_paused_requests=0) from e
      return await self._install(
          path,
          asked.weight_version,
          abort_all=asked.abort_all_requests,
          flush=asked.flush_cache,
      )

  async def _install(
      self,
      path: str,
      version: str | int | None,
      *,
      abort_all: bool = False,
      flush: bool,
  ) -> _Answer:
    """Install a directory; without a version, updates are counted.

    Raises:
      ApiError: 400 if the directory is not valid; the old weights stay.
    """
    service = self.service
    if version is None:
      version = service.stats().weight_updates + 1
    try:
      running = await asyncio.to_thread(
          service.update_weights,
          path,
          str(version),
          abort_all=abort_all,
          flush=flush,
      )
    except (ValueError, OSError) as e:
      message = f'the old weights stay: {e}'
      raise errors.failure(message, num_paused_requests=0) from e
    self._released.discard('weights')
    return {
        'success': True,
        'message': f'the weights are of version {str(version)!r} now',
        'num_paused_requests': running,
        'weight_version': str(version),
    }

  def _weights(self, path: str) -> str:
    """Return the real path of a directory from which weights may be read.

    Raises:
      ValueError: If it lies outside of the allowed roots.
      OSError: If it cannot be resolved.
    """
    real = pathlib.Path(path).resolve()  # Without links and '..'.
    roots = self.settings.weight_roots
    if not any(real.is_relative_to(root) for root in roots):
      raise ValueError(
          f'{path} lies outside of {", ".join(roots) or "every root"}; put it'
          ' there, or start the server with --weights_root=DIR,...'
      )
    return str(real)

  async def flush(self) -> bool:
    """Empty the prefix cache; return False while samples run."""
    async with self._control:
      return await asyncio.to_thread(self.service.flush)

  async def release(self, asked: protocol.Tags) -> None:
    """Free the memory with these tags until `restore`; None: all of it.

    Raises:
      ApiError: 400 if samples are running or a tag is unknown.
    """
    async with self._control:
      service = self.service
      chosen = [t for t in _tags(asked.tags) if t not in self._released]
      # Marked first: a request that arrives before the end would fail.
      self._released |= set(chosen)
      try:
        if chosen:
          await asyncio.to_thread(service.release_memory, chosen)
      except ValueError as e:
        self._released -= set(chosen)
        raise errors.ApiError(400, str(e)) from e

  async def restore(self, asked: protocol.Tags) -> None:
    """Allocate the memory again; without tags, all that is released.

    Raises:
      ApiError: 400 if a tag is unknown, or the service cannot allocate.
    """
    async with self._control:
      chosen = [t for t in _tags(asked.tags) if t in self._released]
      with errors.refusing():
        if chosen:
          await asyncio.to_thread(self.service.restore_memory, chosen)
      self._released -= set(chosen)

  def info(self) -> _Answer:
    """Return the part of /server_info that describes the service."""
    service = self._service
    if service is None:
      return {'status': self.phase}
    stats = service.stats()
    return {
        'status': self.phase,
        'weight_version': service.version,
        'is_paused': service.paused,
        'released_memory': sorted(self._released),
        'max_running_requests': stats.slots,
        'internal_states': [
            {
                'num_running_reqs': stats.running,
                'num_queue_reqs': stats.waiting,
                'prompt_tokens': stats.prompt_tokens,
                'generation_tokens': stats.generated_tokens,
                'cached_tokens': stats.cached_tokens,
                'weight_updates': stats.weight_updates,
            }
        ],
    }

  @property
  def weight_version(self) -> str:
    """Return the version of the weights; '' while there is no service."""
    return self._service.version if self._service else ''

  async def drain(self, seconds: float) -> None:
    """Refuse new requests; abort those still running after `seconds`."""
    self._phase = 'stopping'
    deadline = time.monotonic() + seconds
    while self._batches and time.monotonic() < deadline:
      await asyncio.sleep(_DRAIN_SECONDS)
    if self._service:
      self._service.abort_all('the server is shutting down')

  def close(self) -> None:
    """Shut down the host's threads."""
    for threads in (self._encoder, self._parser):
      threads.shutdown(wait=False, cancel_futures=True)


def _tags(tags: Sequence[str] | None) -> Sequence[str]:
  """Return memory tags after checking them; all tags for None.

  Raises:
    ApiError: 400 if a tag is unknown; names it.
  """
  for tag in tags or ():
    if tag not in service_lib.MEMORY:
      known = list(service_lib.MEMORY)
      raise errors.bad_request('tags', f'{tag!r}: choose from {known}')
  return tags or service_lib.MEMORY
