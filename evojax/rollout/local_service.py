"""A `service.Service` that samples in this process, in a thread of its own.

Only this thread runs the compiled programs of the sampler; new weights are
loaded in the caller's thread. A caller queues a command, which the service's
thread carries out between two segments of decoding, and waits for the result.
"""

import collections
from collections.abc import Callable, Sequence
from concurrent import futures
import functools
import threading
import time
from typing import Any, Literal

from absl import logging
import numpy as np

from evojax.models import decoder
from evojax.rollout import scheduler
from evojax.rollout import service
from evojax.rollout import slots as slots_lib
from evojax.runtime import sharding


def _between_segments(method: Callable[..., Any]) -> Callable[..., Any]:
  """Wrap a method so that the service's thread runs it between two segments."""

  @functools.wraps(method)
  def call(self: 'LocalService', *args, **kwargs) -> Any:
    return self._call(functools.partial(method, self, *args, **kwargs))

  return call


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
    """Install the first weights and start the thread.

    Args:
      slots: Slots made with limits, for the exclusive use of this service.
      decode_text: Token ids -> the text in which stop strings are found,
        special tokens included, as in SGLang.
      load: Directory -> parameters on the device; raises ValueError if they are
        of another shape. It runs in the caller's thread.
      path: Directory of the first weights.
      version: Version of the first weights.
      refill_every: Decode steps between two checks of the queue.
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
    self.paused = self._closing = False
    self._released: set[str] = set()
    self._entries: dict[str, scheduler.Entry] = {}
    self._counts = collections.Counter()  # Fields of `service.Stats`.
    self._commands: list[tuple[Callable[[], Any], futures.Future]] = []
    self._error: BaseException | None = None
    self._ended = False  # If True, no more commands are carried out.
    self._new: list[list[scheduler.Entry]] = []
    # Guards everything above that callers touch. The thread never holds it
    # while the device works.
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

  def warm_up(self) -> None:
    self._call(lambda: self._slots.warm_up(self._schedule.width))

  def submit(
      self,
      jobs: Sequence[service.Job],
      listeners: Sequence[service.Listener],
  ) -> None:
    # All samples of a prompt are checked for the same fields: once is enough.
    same = lambda j: (
        id(j.prompt_tokens),
        id(j.params),
        j.logprob_start,
        j.top_logprobs,
    )
    for job in {same(job): job for job in jobs}.values():
      self._check(job)
    entries = [
        scheduler.Entry(job, functools.partial(self._listen, listener))
        for job, listener in zip(jobs, listeners, strict=True)
    ]
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
      self._entries |= zip(names, entries, strict=True)
      self._counts['prompt_tokens'] += sum(len(j.prompt_tokens) for j in jobs)
      self._new.append(entries)
      self._lock.notify()

  def abort(self, rid: str, message: str = '') -> bool:
    with self._lock:
      entry = self._entries.get(rid)
      if entry is not None:
        self._leave(lambda: self._schedule.abort(entry, message))
    return entry is not None

  def abort_all(self, message: str = '') -> int:
    with self._lock:
      count = len(self._entries)
      self._leave(lambda: self._abort_all(message))
    return count

  @_between_segments
  def pause(self, mode: Literal['abort', 'retract', 'in_place']) -> None:
    if mode not in ('abort', 'retract', 'in_place'):
      raise ValueError(f'mode={mode!r}: choose abort, retract or in_place')
    self.paused = True
    if mode == 'abort':
      self._abort_all('paused')
    elif mode == 'retract':
      self._schedule.retract()

  @_between_segments
  def resume(self) -> None:
    self.paused = False

  def update_weights(
      self, path: str, version: str, *, abort_all: bool, flush: bool
  ) -> int:
    del flush  # New weights always empty the prefix cache.

    def install() -> int:
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

    with self._updating:
      params = self._load(path)  # Meanwhile the thread continues to sample.
      return self._call(install)

  @_between_segments
  def flush(self) -> bool:
    idle = not self._schedule.busy
    if idle:
      self._schedule.forget_prefixes()
    return idle

  @_between_segments
  def release_memory(self, tags: Sequence[str]) -> None:
    self._check_tags(tags)
    if self._schedule.busy:
      raise ValueError('jobs are running; abort or finish them first')
    self._released |= set(tags)
    if 'weights' in tags:
      self._slots.params = None
    if 'kv_cache' in tags:
      self._schedule.forget_prefixes()
      self._slots.free()

  def restore_memory(self, tags: Sequence[str]) -> None:
    self._check_tags(tags)

    def restore() -> None:
      if wanted:
        self._slots.install(params)
      self._released -= set(tags)

    with self._updating:
      wanted = 'weights' in tags and 'weights' in self._released
      params = self._load(self._path) if wanted else None
      self._call(restore)

  def stats(self) -> service.Stats:
    with self._lock:
      running = self._schedule.live
      return service.Stats(
          running=running,
          waiting=max(0, len(self._entries) - running),
          slots=self._slots.shapes.decode_slots,
          cached_prefix_tokens=len(self._schedule.tree),
          **self._counts,
      )

  def close(self, timeout: float) -> None:
    with self._lock:
      self._closing = True
    deadline = time.monotonic() + timeout
    while self._entries and time.monotonic() < deadline and not self._error:
      time.sleep(0.02)
    with self._lock:  # If the thread has ended already, this does nothing.
      self._leave(lambda: self._abort_all('the service is shutting down'))
      self._leave(None)
    self._thread.join()

  # -------------------------------------------------------------------- checks

  def _check(self, job: service.Job) -> None:
    """Refuse a job that does not fit the shapes and limits.

    Raises:
      ValueError: Naming the field, its value and the remedy.
    """
    shapes, limits, p = self._slots.shapes, self._slots.limits, job.params
    vocab, n = self._slots.cfg.vocab_size, len(job.prompt_tokens)
    if not n:
      raise ValueError('the prompt is empty; it needs at least one token')
    if not 0 <= p.max_tokens <= shapes.max_tokens:
      raise ValueError(
          f'max_new_tokens={p.max_tokens} is outside 0..{shapes.max_tokens}'
      )
    if n > shapes.max_prompt_tokens:
      raise ValueError(
          f'the prompt has {n} tokens; at most {shapes.max_prompt_tokens} fit'
      )
    if n + p.max_tokens > shapes.context:
      raise ValueError(
          f'a prompt of {n} tokens and max_new_tokens={p.max_tokens} exceed the'
          f' context of {shapes.context} tokens: shorten one of them'
      )
    for name, tokens, most in (
        ('the prompt', job.prompt_tokens, shapes.context),
        ('stop_token_ids', p.stop_token_ids, limits.stop_ids),
        ('logit_bias', [token for token, _ in p.logit_bias], limits.logit_bias),
    ):
      if len(tokens) > most:
        raise ValueError(f'{name} has {len(tokens)} entries; at most {most}')
      strange = [t for t in tokens if not 0 <= t < vocab]
      if strange:
        raise ValueError(
            f'token {strange[0]} of {name} is outside the vocabulary of {vocab}'
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
    """Run a function in the thread, between two segments; return its result."""
    # A listener already runs in the thread; waiting would be a deadlock.
    if threading.current_thread() is self._thread:
      return do()
    with self._lock:
      self._check_alive()
      answer = self._leave(do)
    return answer.result()

  def _leave(self, do: Callable[[], Any] | None) -> futures.Future:
    """Queue a command for the thread; None ends it. The lock must be held."""
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
    """Answer all pending commands and jobs when the thread ends."""
    message = (
        f'sampling failed: {error!r}' if error else 'the service is closed'
    )
    with self._lock:
      self._error, self._ended = error, True
      commands, self._commands = self._commands, []
      entries = list(self._entries.values())
    for _, answer in commands:
      answer.set_exception(service.ServiceFailedError(message))
    end = scheduler.Progress(
        self._schedule.version, service.Finish('abort', message=message)
    )
    for entry in entries:
      try:
        entry.listener(entry, end)
      # The other listeners must still be called.
      except Exception:  # pylint: disable=broad-except
        logging.exception('a listener failed')

  def _turn(self) -> bool:
    """Carry out commands, take new jobs, do one step; return False to end."""
    if not self._can_step():
      self._schedule.notify()  # The next step may be much later.
    with self._lock:
      while not (self._commands or self._new or self._can_step()):
        self._lock.wait()
      for entries in self._new:
        self._schedule.waiting.add(entries)
      self._new = []
      count = len(self._commands)
    if count:
      # Before a command acts, listeners get all tokens sampled so far.
      self._schedule.notify()
    for _ in range(count):
      do, answer = self._commands[0]
      if do is None:
        return False  # `_end` fails the commands that are left.
      try:
        answer.set_result(do())
      except ValueError as error:  # The caller's mistake.
        answer.set_exception(error)
      # Removed only now: if the command kills the thread, `_end` answers it.
      with self._lock:
        del self._commands[0]
    if self._can_step():
      self._schedule.step()
    return True

  def _can_step(self) -> bool:
    return self._schedule.busy and not self.paused and not self._released

  def _abort_all(self, message: str) -> None:
    for entry in self._schedule.entries():
      self._schedule.abort(entry, message)

  def _listen(
      self,
      listener: service.Listener,
      entry: scheduler.Entry,
      progress: scheduler.Progress,
  ) -> None:
    """Count the progress of an entry, and send it to a listener as a chunk."""
    job, finish, cached = entry.job, progress.finish, progress.cached_tokens
    new = _tokens(progress.tokens, progress.scores, job.top_logprobs)
    prompt = _tokens(job.prompt_tokens, progress.prompt, job.top_logprobs)
    prompt = prompt[job.logprob_start :]
    if prompt and job.logprob_start == 0:  # The first token has no log-prob.
      prompt = (service.Token(prompt[0].token, None), *prompt[1:])
    with self._lock:
      if finish:
        del self._entries[job.rid]
        ended = 'aborted' if finish.reason == 'abort' else 'finished'
        self._counts[ended] += 1
      self._counts['generated_tokens'] += len(new)
      self._counts['cached_tokens'] += cached
    listener(service.Chunk(new, progress.version, finish, prompt, cached))


def _tokens(
    tokens: Sequence[int], scores: slots_lib.Scores | None, count: int
) -> tuple[service.Token, ...]:
  """Return tokens with their log-probs and the `count` most probable ones."""
  if scores is None:
    return ()
  top, best = ((),) * len(tokens), scores.best
  if best is not None and count:
    wanted = np.s_[:, :count]
    pairs = best.tokens[wanted].tolist(), best.logprobs[wanted].tolist()
    top = [tuple(zip(*row, strict=True)) for row in zip(*pairs, strict=True)]
  return tuple(map(service.Token, tokens, scores.logprobs.tolist(), top))
