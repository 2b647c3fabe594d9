"""The `service.Service` over slots of this process: one thread schedules them.

Whatever touches the device happens in that thread, between two segments of
decoding: callers leave a command and wait for its answer.
"""

from collections.abc import Callable, Sequence
from concurrent import futures
import dataclasses
import threading
import time
from typing import Any, Literal

from absl import logging
import numpy as np

from evojax.models import decoder
from evojax.rollout import sampling
from evojax.rollout import scheduler
from evojax.rollout import service
from evojax.rollout import slots as slots_lib
from evojax.runtime import sharding


class LocalService:
  """See `service.Service`."""

  def __init__(
      self,
      slots: slots_lib.Slots,
      *,
      decode_text: Callable[[Sequence[int]], str],
      load: Callable[[str], decoder.Params],
      path: str,
      version: str,
      refill_every: int,
      max_waiting: int,
  ):
    """Start the thread.

    Args:
      slots: With limits; nobody else may use them.
      decode_text: Token ids -> text without special tokens.
      load: Directory -> parameters on the device; raises ValueError if they are
        of another shape. Called in the thread of the caller.
      path: Directory of the first weights.
      version: Of the first weights.
      refill_every: Decode steps between looks at the queue.
      max_waiting: Jobs that may wait for a slot.

    Raises:
      ValueError: If the slots have no limits, or from `load`.
    """
    if slots.limits is None:
      raise ValueError('a service needs Slots with limits')
    self._slots, self._load = slots, load
    self._schedule = scheduler.Scheduler(
        slots,
        decode_text=decode_text,
        refill_every=refill_every,
        jobs_may_come=True,
    )
    self._schedule.version = version
    slots.install(load(path))
    self._path = path
    self._max_waiting = max_waiting
    self._paused = self._closing = False
    self._released: set[str] = set()
    self._entries: dict[str, scheduler.Entry] = {}
    self._listeners: dict[str, service.Listener] = {}
    self._counts = dict.fromkeys(
        (f.name for f in dataclasses.fields(service.Stats)), 0
    )
    self._commands: list[tuple[Callable[[], Any], futures.Future]] = []
    self._error: BaseException | None = None
    self._ended = False  # From then on commands are not carried out.
    self._new: list[list[scheduler.Entry]] = []
    # Guards everything above that callers touch; the thread holds it only to
    # take what is new, never while the device works.
    self._lock = threading.Condition()
    self._updating = threading.Lock()
    self._thread = threading.Thread(
        target=self._run, name='evojax-scheduler', daemon=True
    )
    self._thread.start()

  # ------------------------------------------------------------------- callers

  @property
  def alive(self) -> bool:
    return self._error is None and self._thread.is_alive()

  @property
  def version(self) -> str:
    return self._schedule.version

  @property
  def paused(self) -> bool:
    return self._paused

  def warm_up(self) -> None:
    self._call(self._schedule.warm_up)

  def submit(
      self,
      jobs: Sequence[service.Job],
      listeners: Sequence[service.Listener],
  ) -> None:
    for job in jobs:
      self._check(job)
    entries = [scheduler.Entry(job, self._tell) for job in jobs]
    with self._lock:
      self._check_alive()
      if self._closing:
        raise service.QueueFullError('the service is shutting down')
      names = [job.rid for job in jobs]
      taken = [name for name in names if name in self._entries]
      if taken or len(set(names)) < len(names):
        raise ValueError(f'rid={(taken or names)[0]!r} is in use already')
      room = self._slots.shapes.decode_slots + self._max_waiting
      if len(jobs) > room:
        raise ValueError(
            f'a batch of {len(jobs)} samples is more than the {room} that the'
            ' service holds at once: send several'
        )
      if len(self._entries) + len(jobs) > room:
        self._counts['refused'] += len(jobs)
        raise service.QueueFullError(
            f'{len(self._entries)} samples are running or wait; the service'
            f' holds {room}'
        )
      for entry, listener in zip(entries, listeners, strict=True):
        self._entries[entry.job.rid] = entry
        self._listeners[entry.job.rid] = listener
        self._counts['prompt_tokens'] += len(entry.job.prompt_tokens)
      self._new.append(entries)
      self._lock.notify()

  def abort(self, rid: str, message: str = '') -> bool:
    def do():
      entry = self._entries.get(rid)
      if entry is not None:
        self._schedule.abort(entry, message)

    with self._lock:
      known = rid in self._entries
      if known:
        self._leave(do)
    return known

  def abort_all(self, message: str = '') -> int:
    with self._lock:
      count = len(self._entries)
      self._leave(lambda: self._abort_all(message))
    return count

  def pause(self, mode: Literal['abort', 'retract', 'in_place']) -> None:
    if mode not in ('abort', 'retract', 'in_place'):
      raise ValueError(f'mode={mode!r}: choose abort, retract or in_place')

    def do():
      self._paused = True
      if mode == 'abort':
        self._abort_all('paused')
      elif mode == 'retract':
        self._schedule.retract()

    self._call(do)

  def resume(self) -> None:
    def do():
      self._paused = False

    self._call(do)

  def update_weights(
      self, path: str, version: str, *, abort_all: bool, flush: bool
  ) -> int:
    del flush  # The tree is of one version; another one empties it.
    with self._updating:
      params = self._load(path)  # Beside the sampling.

      def do():
        if abort_all:
          self._abort_all('new weights')
        running = self._schedule.live
        self._slots.install(params)
        self._path = path
        self._released.discard('weights')
        self._schedule.version = version
        self._schedule.forget_prefixes()
        self._counts['weight_updates'] += 1
        return running

      return self._call(do)

  def flush(self) -> bool:
    def do():
      if self._schedule.busy:
        return False
      self._schedule.forget_prefixes()
      return True

    return self._call(do)

  def release_memory(self, tags: Sequence[str]) -> None:
    self._check_tags(tags)

    def do():
      if self._schedule.live or self._schedule.queued:
        raise ValueError('jobs are running; abort or finish them first')
      self._released |= set(tags)
      if 'weights' in tags:
        self._slots.params = None
      if 'kv_cache' in tags:
        self._schedule.forget_prefixes()
        self._slots.free()

    self._call(do)

  def restore_memory(self, tags: Sequence[str]) -> None:
    self._check_tags(tags)
    with self._updating:
      wanted = 'weights' in tags and 'weights' in self._released
      params = self._load(self._path) if wanted else None

      def do():
        if params is not None:
          self._slots.install(params)
        self._released -= set(tags)

      self._call(do)

  def stats(self) -> service.Stats:
    with self._lock:
      counts, running = dict(self._counts), self._schedule.live
      counts |= dict(
          running=running,
          waiting=max(0, len(self._entries) - running),
          slots=self._slots.shapes.decode_slots,
          cached_prefix_tokens=len(self._schedule.tree),
      )
    return service.Stats(**counts)

  def close(self, timeout: float) -> None:
    with self._lock:
      self._closing = True
    deadline = time.monotonic() + timeout
    while self._entries and time.monotonic() < deadline and not self._error:
      time.sleep(0.02)
    with self._lock:  # The thread may have ended already: nothing is left.
      self._leave(lambda: self._abort_all('the service is shutting down'))
      self._leave(None)
    self._thread.join()

  # -------------------------------------------------------------------- checks

  def _check(self, job: service.Job) -> None:
    """Refuse what does not fit the shapes.

    Raises:
      ValueError: Naming the field, its value and the remedy.
    """
    shapes, limits, p = self._slots.shapes, self._slots.limits, job.params
    vocab, n = self._slots.cfg.vocab_size, len(job.prompt_tokens)
    if not n:
      raise ValueError('the prompt is empty; it needs at least one token')
    if not 1 <= p.max_tokens <= shapes.max_tokens:
      raise ValueError(
          f'max_new_tokens={p.max_tokens} is outside 1..{shapes.max_tokens}'
      )
    if n + p.max_tokens > shapes.context:
      raise ValueError(
          f'a prompt of {n} tokens and max_new_tokens={p.max_tokens} exceed the'
          f' context of {shapes.context} tokens: shorten one of them'
      )
    strange = [t for t in job.prompt_tokens if not 0 <= t < vocab]
    if strange:
      raise ValueError(
          f'token {strange[0]} of the prompt is outside the vocabulary of'
          f' {vocab}'
      )
    for name, values, most in (
        ('stop_token_ids', p.stop_token_ids, limits.stop_ids),
        ('logit_bias', p.logit_bias, limits.logit_bias),
    ):
      if len(values) > most:
        raise ValueError(f'{name} has {len(values)} entries; at most {most}')
    ids = [*p.stop_token_ids, *(token for token, _ in p.logit_bias)]
    strange = [t for t in ids if not 0 <= t < vocab]
    if strange:
      raise ValueError(
          f'token {strange[0]} of stop_token_ids or logit_bias is outside the'
          f' vocabulary of {vocab}'
      )
    if job.top_logprobs > limits.top_logprobs:
      raise ValueError(
          f'top_logprobs={job.top_logprobs}; at most'
          f' {limits.top_logprobs} are reported'
      )
    start = job.logprob_start
    if start is not None and not 0 <= start < n:
      raise ValueError(
          f'logprob_start_len={start} is outside the prompt of {n} tokens'
      )

  def _check_tags(self, tags: Sequence[str]) -> None:
    strange = [tag for tag in tags if tag not in service.MEMORY]
    if strange:
      raise ValueError(f'tags={strange}: choose among {service.MEMORY}')

  def _check_alive(self) -> None:
    if self._error is not None:
      raise service.ServiceFailedError(
          f'sampling has stopped: {self._error!r}; start the server anew'
      ) from self._error
    if self._ended:
      raise service.ServiceFailedError('the service is closed')

  # ---------------------------------------------------------------- the thread

  def _call(self, do: Callable[[], Any]) -> Any:
    """Run in the thread, between two segments; returns what it returns."""
    if threading.current_thread() is self._thread:
      return do()
    with self._lock:
      self._check_alive()
      answer = self._leave(do)
    return answer.result()

  def _leave(self, do: Callable[[], Any] | None) -> futures.Future:
    """Leave a command for the thread; the lock is held. None ends it."""
    answer: futures.Future = futures.Future()
    if not self._ended:
      self._commands.append((do, answer))
      self._lock.notify()
    return answer

  def _run(self) -> None:
    try:
      with sharding.use(self._slots.mesh):
        while self._turn():
          pass
    except BaseException as error:  # pylint: disable=broad-except
      logging.exception('the scheduling thread died')
      self._end(error)
    else:
      self._end(None)

  def _end(self, error: BaseException | None) -> None:
    """Answer everybody who still waits, once the thread ends."""
    message = 'the service is closed'
    if error is not None:
      message = f'sampling failed: {error!r}'
    with self._lock:
      self._error, self._ended = error, True
      commands, self._commands = self._commands, []
      entries = list(self._entries.values())
    for _, answer in commands:
      answer.set_exception(service.ServiceFailedError(message))
    abort = service.Finish('abort', message=message)
    for entry in entries:
      try:
        self._send(entry, service.Chunk((), self._schedule.version, abort))
      except Exception:  # It is one listener's; pylint: disable=broad-except
        logging.exception('a listener failed')

  def _turn(self) -> bool:
    """Carry out commands, take new jobs, do a step. False: it is closed."""
    if not self._can_step():
      self._schedule.tell()  # The next step may be far.
    with self._lock:
      while not (self._commands or self._new or self._can_step()):
        self._lock.wait()
      for entries in self._new:
        self._schedule.waiting.add(entries)
      self._new = []
      count = len(self._commands)
    if count:
      self._schedule.tell()  # What was before a command is told before it.
    for _ in range(count):
      do, answer = self._commands[0]
      if do is None:
        return False  # What is behind it is told, as if the thread had died.
      try:
        answer.set_result(do())
      except ValueError as error:  # The caller's mistake.
        answer.set_exception(error)
      with self._lock:  # Only now: if the thread died of it, it is told.
        del self._commands[0]
    if self._can_step():
      self._schedule.step()
    return True

  def _can_step(self) -> bool:
    return self._schedule.busy and not self._paused and not self._released

  def _abort_all(self, message: str) -> int:
    entries = self._schedule.entries()
    for entry in entries:
      self._schedule.abort(entry, message)
    return len(entries)

  def _tell(self, entry: scheduler.Entry, progress: scheduler.Progress) -> None:
    """Send what the scheduler reports of an entry."""
    job, scores = entry.job, progress.scores
    prompt = ()
    if scores is not None:
      prompt = _tokens(job.prompt_tokens, scores.logprobs, scores.best, job)
      prompt = prompt[job.logprob_start :]
      if job.logprob_start == 0:  # Nothing comes before it.
        prompt = (service.Token(prompt[0].token, None), *prompt[1:])
    new = _tokens(
        progress.tokens.tolist(), progress.logprobs, progress.best, job
    )
    self._send(
        entry,
        service.Chunk(
            new,
            progress.version,
            progress.finish,
            prompt=prompt,
            cached_tokens=progress.cached_tokens,
        ),
    )

  def _send(self, entry: scheduler.Entry, chunk: service.Chunk) -> None:
    """Count a chunk and call its listener."""
    rid = entry.job.rid
    with self._lock:
      listener = self._listeners[rid]
      if chunk.finish:
        del self._listeners[rid], self._entries[rid]
        aborted = chunk.finish.reason == 'abort'
        self._counts['aborted' if aborted else 'finished'] += 1
      self._counts['generated_tokens'] += len(chunk.tokens)
      self._counts['cached_tokens'] += chunk.cached_tokens
    listener(chunk)


def _tokens(
    tokens: Sequence[int],
    logprobs: np.ndarray,
    best: sampling.Best | None,
    job: service.Job,
) -> tuple[service.Token, ...]:
  """Tokens with as many of the most probable ones as the job wants."""
  count = job.top_logprobs
  top = ((),) * len(tokens)
  if best is not None and count:
    top = [
        tuple(zip(ids, scores, strict=True))
        for ids, scores in zip(
            best.tokens[:, :count].tolist(),
            best.logprobs[:, :count].tolist(),
            strict=True,
        )
    ]
  return tuple(map(service.Token, tokens, logprobs.tolist(), top))
