"""The interface of a sampler that serves: jobs come while others run.

A `Service` owns decode slots and a thread that schedules them. Any thread
submits jobs and gets their tokens as they come; the weights are exchanged
between two decode steps, and every token carries the version that sampled it.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Literal, Protocol, runtime_checkable

from evojax import records

MEMORY = ('weights', 'kv_cache')  # Tags that `release_memory` takes.


class QueueFullError(Exception):
  """The queue is full; the caller may try again later."""


class ServiceFailedError(RuntimeError):
  """The service is closed or its thread died: it samples no more."""


@dataclasses.dataclass(frozen=True)
class Job:
  """One sample to generate."""

  rid: str  # Unique among all jobs that have not ended.
  prompt_tokens: tuple[int, ...]
  params: records.SamplingParams  # With max_tokens=0 the prompt is only read.
  seed: int  # uint32; equal keys, prompts and weights give equal samples.
  problem: int = 0  # uint32, part of the random key, as the seed.
  sample: int = 0  # The same.
  # First position of the prompt whose log-prob is wanted; None: no position.
  logprob_start: int | None = None
  top_logprobs: int = 0  # Most probable tokens to report beside each token.
  caller: str = ''  # Callers take turns; '' makes its batch a caller.


@dataclasses.dataclass(frozen=True)
class Token:
  """One token and its log-prob under softmax(logits / temperature)."""

  token: int
  logprob: float | None  # None for the first token of a prompt.
  top: tuple[tuple[int, float], ...] = ()  # (token, log-prob), best first.


@dataclasses.dataclass(frozen=True)
class Finish:
  """The reason why a job ended."""

  reason: Literal['stop', 'length', 'abort']
  matched: int | str | None = None  # Token or string that stopped it.
  message: str = ''  # Why it was aborted.


@dataclasses.dataclass(frozen=True)
class Chunk:
  """The tokens of a job since its last chunk; the last one has `finish`.

  Tokens are never taken back, and a token that stops a sample comes in the
  chunk that reports the stop.
  """

  tokens: tuple[Token, ...]  # A stop token is among them.
  version: str  # Version of the weights that sampled these tokens.
  finish: Finish | None = None
  # In the first chunk only:
  prompt: tuple[Token, ...] = ()  # From Job.logprob_start on.
  cached_tokens: int = 0  # Prompt tokens found in the prefix cache.


# Called in the service's thread, never after the chunk that has `finish`. It
# must return at once: hand the chunk to a loop (`loop.call_soon_threadsafe`).
Listener = Callable[[Chunk], None]


@dataclasses.dataclass(frozen=True)
class Stats:
  """Counters for /metrics and for finding leaks; all are exact."""

  running: int  # Jobs in a decode slot.
  waiting: int
  slots: int
  prompt_tokens: int = 0  # Since the start, as everything below.
  generated_tokens: int = 0
  cached_tokens: int = 0
  finished: int = 0
  aborted: int = 0
  refused: int = 0  # Because the queue was full.
  weight_updates: int = 0
  cached_prefix_tokens: int = 0  # Now in the prefix cache.


@runtime_checkable
class Service(Protocol):
  """Continuous batching behind a thread; every method may be called from any.

  Once the service has failed or is closed, methods raise ServiceFailedError.
  """

  @property
  def alive(self) -> bool:
    """True while tokens may come: the thread neither died nor was closed."""

  @property
  def version(self) -> str:
    """Version of the weights that the next token is sampled with."""

  @property
  def paused(self) -> bool:
    """True between `pause` and `resume`."""

  def warm_up(self) -> None:
    """Compile all that any job may need; blocks. Call it before the first job.

    Raises:
      ServiceFailedError: If a program cannot be compiled or does not run.
    """

  def submit(self, jobs: Sequence[Job], listeners: Sequence[Listener]) -> None:
    """Queue all jobs, or none of them.

    Raises:
      QueueFullError: If they do not fit into the queue.
      ValueError: If a job does not fit the engine's shapes (prompt too long, a
        token outside the vocabulary), naming the field; or the rid is in use.
    """

  def abort(self, rid: str, message: str = '') -> bool:
    """End a job with reason 'abort'; it keeps its tokens. False: unknown.

    Returns at once; the job may yet end otherwise, or get another chunk.
    """

  def abort_all(self, message: str = '') -> int:
    """End all jobs; returns at once how many there are."""

  def pause(self, mode: Literal['abort', 'retract', 'in_place']) -> None:
    """Stop sampling; returns when no decode step runs any more.

    abort: all jobs end. retract: running jobs go back to the queue, with their
    tokens, and are prefilled anew. in_place: they keep their keys and values.
    Jobs submitted meanwhile wait.
    """

  def resume(self) -> None:
    """End a pause."""

  def update_weights(
      self, path: str, version: str, *, abort_all: bool, flush: bool
  ) -> int:
    """Load a Hugging Face directory of the same shape; blocks until done.

    Nothing is sampled meanwhile; running jobs go on with the new weights.

    Args:
      path: The directory.
      version: Stamped on every token from now on.
      abort_all: Ends all jobs first.
      flush: Empties the prefix cache (its entries are of the old version, and
        are never used for the new one in any case).

    Returns:
      Jobs that were running.

    Raises:
      ValueError: If the directory is no policy of this shape; the old weights
        stay.
    """

  def flush(self) -> bool:
    """Empty the prefix cache; while jobs run, do nothing and return False."""

  def release_memory(self, tags: Sequence[str]) -> None:
    """Free the memory that `tags`, of MEMORY, name, until `restore_memory`.

    Raises:
      ValueError: If jobs are running or a tag is unknown.
    """

  def restore_memory(self, tags: Sequence[str]) -> None:
    """Allocate again; weights are read again from where they last came.

    Raises:
      ValueError: If a tag is unknown, or that directory is no policy any more.
    """

  def stats(self) -> Stats:
    """Return a consistent snapshot."""

  def close(self, timeout: float) -> None:
    """Refuse new jobs, wait `timeout` seconds for old ones, abort the rest."""
