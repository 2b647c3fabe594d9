"""Samples of a request, carried from the service's thread to the event loop."""

import asyncio
import collections
from collections.abc import AsyncIterator, Callable, Sequence
import dataclasses
import functools
import time

from evojax.rollout import service as service_lib
from evojax.rollout.server import text as text_lib

_Call = Callable[[], None]
_Decode = Callable[..., str]


@dataclasses.dataclass(frozen=True)
class Ask:
  """A job, and how its answer is shown."""

  job: service_lib.Job
  skip_special_tokens: bool = True
  trim: bool = True  # Leave out the token or text that stopped the sample.
  logprobs: bool = False
  token_texts: bool = False  # Text of every token beside its log-prob.


class Sample:
  """The tokens that one job has got so far.

  The service's thread puts chunks in (`listen`); all other methods are for the
  loop, which sees the chunks after `collect`. The job's max_tokens bound the
  size, however slowly a client reads.
  """

  def __init__(self, ask: Ask, decode: _Decode, *, live: bool, wake: _Call):
    """Start empty; `Batch` makes samples.

    Args:
      ask: The job.
      decode: `ServerTokenizer.decode`.
      live: Whether to wake at every chunk, not only at the last one.
      wake: Wakes the loop; it is called in the service's thread.
    """
    self.ask = ask
    self.prompt: list[service_lib.Token] = []
    self.tokens: list[service_lib.Token] = []
    self.ids: list[int] = []  # Ids of `tokens`.
    # (version, first token, end) of each run of tokens of one version.
    self.spans: list[tuple[str, int, int]] = []
    self.cached_tokens = 0
    self.finish: service_lib.Finish | None = None
    self.submitted = time.monotonic()
    self.first_token = self.last_chunk = 0.0  # time.monotonic(); 0: not yet.
    self.decode = functools.partial(
        decode, skip_special_tokens=ask.skip_special_tokens
    )
    stop = ask.job.params.stop
    self._text = text_lib.Text(self.decode, stop=stop, trim=ask.trim)
    self._live = live
    self._wake = wake
    self._inbox: collections.deque[service_lib.Chunk] = collections.deque()

  @property
  def text(self) -> str:
    """Return the text that may be shown by now."""
    return self._text.value

  @property
  def seconds(self) -> float:
    """Return the seconds from submission to the last chunk."""
    return max(self.last_chunk - self.submitted, 0.0)

  def listen(self, chunk: service_lib.Chunk) -> None:
    """Take a chunk; the service's thread calls this."""
    self.last_chunk = time.monotonic()
    if chunk.tokens and not self.first_token:
      self.first_token = self.last_chunk
    self._inbox.append(chunk)
    if self._live or chunk.finish:
      self._wake()

  def collect(self) -> bool:
    """Take in the chunks that have arrived; return False if there is none."""
    if not self._inbox:
      return False
    while self._inbox:
      chunk = self._inbox.popleft()
      self.prompt += chunk.prompt
      self.cached_tokens += chunk.cached_tokens
      ids = [token.token for token in chunk.tokens]
      if ids:
        start = len(self.ids)
        self.tokens += chunk.tokens
        self.ids += ids
        if self.spans and self.spans[-1][0] == chunk.version:
          start = self.spans.pop()[1]
        self.spans.append((chunk.version, start, len(self.ids)))
      if chunk.finish:
        self.finish = chunk.finish
        self._text.close(self.ids, chunk.finish)
      elif self._live:
        self._text.push(ids)
    return True


class Mailbox:
  """Calls from another thread to a loop, which wakes once for many of them."""

  def __init__(self, loop: asyncio.AbstractEventLoop):
    self._loop = loop
    self._calls: collections.deque[_Call] = collections.deque()
    self._woken = False

  def call(self, function: _Call) -> None:
    """Have the loop call a function soon."""
    self._calls.append(function)
    if not self._woken:
      self._woken = True
      try:
        self._loop.call_soon_threadsafe(self._drain)
      except RuntimeError:  # The loop is closed, so nobody waits any more.
        self._calls.clear()

  def _drain(self) -> None:
    # The flag falls first, so that a call that is added from now on wakes the
    # loop anew; else it could be left behind.
    self._woken = False
    while self._calls:
      self._calls.popleft()()


class Batch:
  """Samples of one request; the host ends them when the context is left."""

  def __init__(
      self,
      asks: Sequence[Ask],
      decode: _Decode,
      mailbox: Mailbox,
      *,
      live: bool,
      on_exit: Callable[['Batch'], None],
  ):
    """Start with samples that are empty, and not submitted yet.

    Args:
      asks: One per sample.
      decode: `ServerTokenizer.decode`.
      mailbox: The mailbox of the running loop.
      live: Whether samples are shown while they grow.
      on_exit: Called when the context is left, whatever the reason.
    """
    self._on_exit = on_exit
    self._arrived: set[int] = set()
    self._event = asyncio.Event()
    wake = lambda i: mailbox.call(functools.partial(self._mark, i))
    self.samples = [
        Sample(ask, decode, live=live, wake=functools.partial(wake, i))
        for i, ask in enumerate(asks)
    ]

  def __enter__(self) -> 'Batch':
    return self

  def __exit__(self, *_) -> None:
    self._on_exit(self)

  async def changes(self) -> AsyncIterator[int]:
    """Yield the indices of samples that grew, until all have ended.

    All that a sample gets while its reader is busy is one change.
    """
    running = len(self.samples)
    while running:
      await self._event.wait()
      self._event.clear()
      arrived, self._arrived = self._arrived, set()
      for index in sorted(arrived):
        sample = self.samples[index]
        # An earlier wake-up may have collected its chunks already.
        if sample.finish is None and sample.collect():
          running -= sample.finish is not None
          yield index

  async def finished(self) -> None:
    """Return when all samples have ended."""
    async for _ in self.changes():
      pass

  def _mark(self, index: int) -> None:
    self._arrived.add(index)
    self._event.set()
