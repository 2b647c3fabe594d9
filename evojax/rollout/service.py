"""The interface of a sampler for servers, which accepts jobs while others run.

A `Service` owns decode slots and a thread that schedules them. Any thread may
submit jobs and receives their tokens as they are sampled. The weights can be
replaced between two decode steps; every token is reported with the version of
the weights that sampled it.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Literal, Protocol, runtime_checkable

from evojax import records

MEMORY = ('weights', 'kv_cache')  # Tags that `release_memory` takes.


class QueueFullError(Exception):
  """The queue is full; the caller may try again later."""


class ServiceFailedError(RuntimeError):
  """The service no longer samples: it is closed, or its thread died."""


@dataclasses.dataclass(frozen=True)
class Job:
  """One sample to generate."""

  rid: str  # Unique among all jobs that have not ended.
  prompt_tokens: tuple[int, ...]
  params: records.SamplingParams  # max_tokens=0: the prompt is only prefilled.
  seed: int  # uint32; equal keys, prompts and weights give equal samples.
  problem: int = 0  # uint32, part of the random key.
  sample: int = 0  # uint32, part of the random key.
  # First prompt position whose log-prob is reported; None: none are reported.
  logprob_start: int | None = None
  top_logprobs: int = 0  # How many most probable tokens to report per token.
  caller: str = ''  # Callers take turns; '': each submitted batch is a caller.


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
  matched: int | str | None = None  # The stop token or string that was found.
  message: str = ''  # Why it was aborted.


@dataclasses.dataclass(frozen=True)
class Chunk:
  """The tokens of a job since its previous chunk; the last chunk has `finish`.

  Tokens are never retracted. A stop token is in the chunk that reports the
  stop.
  """

  tokens: tuple[Token, ...]  # Includes a stop token.
  version: str  # Version of the weights that sampled these tokens.
  finish: Finish | None = None
  # In the first chunk only:
  prompt: tuple[Token, ...] = ()  # From Job.logprob_start on.
  cached_tokens: int = 0  # Prompt tokens found in the prefix cache.


# A listener is called in the service's thread, with `finish` in its last call.
# It must return at once, for example after it has handed the chunk to an event
# loop (`loop.call_soon_threadsafe`).
Listener = Callable[[Chunk], None]


@dataclasses.dataclass(frozen=True)
class Stats:
  """Exact counters, for /metrics and for finding leaks."""

  running: int  # Jobs in a decode slot.
  waiting: int  # Jobs without one.
  slots: int
  prompt_tokens: int = 0  # This and the counters below: since the start.
  generated_tokens: int = 0
  cached_tokens: int = 0
  finished: int = 0
  aborted: int = 0
  refused: int = 0  # Jobs refused because the queue was full.
  weight_updates: int = 0
  cached_prefix_tokens: int = 0  # In the prefix cache now, not since the start.


@runtime_checkable
class Service(Protocol):
  """Continuous batching in a thread; all methods may be called from any thread.

  Once the service has failed or is closed, `submit` and the methods that wait
  for its thread raise ServiceFailedError; `abort`, `abort_all`, `stats` and
  `close` do not.
  """

  @property
  def alive(self) -> bool:
    """True while the service can sample: it neither failed nor was closed."""

  @property
  def version(self) -> str:
    """Version of the weights that will sample the next token."""

  @property
  def paused(self) -> bool:
    """True between `pause` and `resume`."""

  def warm_up(self) -> None:
    """Compile all programs that a job may need; return when it is done.

    It must be called before the first job.

    Raises:
      ServiceFailedError: If a program cannot be compiled or does not run.
    """

  def submit(self, jobs: Sequence[Job], listeners: Sequence[Listener]) -> None:
    """Queue all jobs, or none of them.

    Raises:
      QueueFullError: If they do not fit into the queue.
      ValueError: If a job does not fit the engine's shapes (for example a
        prompt that is too long, or a token outside the vocabulary), naming the
        field; or if a rid is in use.
    """

  def abort(self, rid: str, message: str = '') -> bool:
    """End a job with reason 'abort'; it keeps its tokens.

    The method does not wait: the job may still get a chunk, or end for another
    reason.

    Returns:
      False if there is no such job.
    """

  def abort_all(self, message: str = '') -> int:
    """End all jobs; return their number without waiting for their end."""

  def pause(self, mode: Literal['abort', 'retract', 'in_place']) -> None:
    """Stop sampling; return when no decode step is running any more.

    Jobs that are submitted during the pause wait.

    Args:
      mode: 'abort' ends all jobs. 'retract' puts running jobs back into the
        queue with their tokens; they are prefilled again later. 'in_place'
        keeps running jobs in their slots, with keys and values.
    """

  def resume(self) -> None:
    """End a pause."""

  def update_weights(
      self, path: str, version: str, *, abort_all: bool, flush: bool
  ) -> int:
    """Load a Hugging Face directory of the same shape; return when it is done.

    No token is sampled while the weights are replaced; running jobs continue
    with the new weights.

    Args:
      path: The directory.
      version: Reported with every token from now on.
      abort_all: Whether all jobs are ended first.
      flush: Whether the prefix cache is emptied. Entries of the old version are
        never used with the new weights in any case.

    Returns:
      Number of jobs that were running.

    Raises:
      ValueError: If the directory is not a policy of this shape; the old
        weights stay.
    """

  def flush(self) -> bool:
    """Empty the prefix cache; while there are jobs, return False instead."""

  def release_memory(self, tags: Sequence[str]) -> None:
    """Free the named parts of the memory until `restore_memory`.

    Args:
      tags: Names of MEMORY.

    Raises:
      ValueError: If jobs are running or a tag is unknown.
    """

  def restore_memory(self, tags: Sequence[str]) -> None:
    """Allocate memory again; weights are read from their last directory.

    Args:
      tags: Names of MEMORY.

    Raises:
      ValueError: If a tag is unknown, or the directory no longer is a policy of
        this shape.
    """

  def stats(self) -> Stats:
    """Return a consistent snapshot."""

  def close(self, timeout: float) -> None:
    """Refuse new jobs, wait `timeout` seconds for others, then abort them."""
