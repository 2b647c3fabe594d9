"""Samples of a request, passed from the service's thread to the event loop."""

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
  """A job, and options of its answer."""

  job: service_lib.Job
  skip_special_tokens: bool = True
  trim: bool = True  # Leave out the stop token or string.
  logprobs: bool = False
  token_texts: bool = False  # Report the text of every token.


class Sample:
  """The tokens of one job so far.

  The service's thread adds chunks (`listen`). All other methods belong to the
  event loop, which sees chunks after `collect`. The job's max_tokens bounds the
  size, however slowly a client reads.
  """

  def __init__(self, ask: Ask, decode: _Decode, *, live: bool, wake: _Call):
    """Start without tokens; `Batch` makes samples.

    Args:
      ask: The job.
      decode: `ServerTokenizer.decode`.
      live: Whether to wake at every chunk instead of only at the last one.
      wake: Wakes the loop; called in the service's thread.
    """
    self.ask = ask
    self.prompt: list[service_lib.Token] = []
    self.tokens: list[service_lib.Token] = []
    self.ids: list[int] = []  # Ids of `tokens`.
    # (version, first token, end) of each run of tokens with the same version.
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
    """Return the text that may be sent so far."""
    return self._text.value

  @property
  def seconds(self) -> float:
    """Return the seconds from submission to the last chunk."""
    return max(self.last_chunk - self.submitted, 0.0)

  def listen(self, chunk: service_lib.Chunk) -> None:
    """Add a chunk; called in the service's thread."""
    self.last_chunk = time.monotonic()
    if chunk.tokens and not self.first_token:
      self.first_token = self.last_chunk
    self._inbox.append(chunk)
    if self._live or chunk.finish:
      self._wake()

  def collect(self) -> bool:
    """Process the chunks that have arrived; return whether there were any."""
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
  """Passes calls from other threads to a loop, many with one wake-up."""

  def __init__(self, loop: asyncio.AbstractEventLoop):
    self._loop = loop
    self._calls: collections.deque[_Call] = collections.deque()
    self._woken = False

  def call(self, function: _Call) -> None:
    """Make the loop call a function soon."""
    self._calls.append(function)
    if not self._woken:
      self._woken = True
      try:
        self._loop.call_soon_threadsafe(self._drain)
      except RuntimeError:  # The loop is closed, so no request waits for it.
        self._calls.clear()

  def _drain(self) -> None:
    # The flag is cleared first, so that a call added from now on wakes the loop
    # again; otherwise it could be left behind.
    self._woken = False
    while self._calls:
      self._calls.popleft()()


class Batch:
  """The samples of one request; the host ends them when the context exits."""

  def __init__(
      self,
      asks: Sequence[Ask],
      decode: _Decode,
      mailbox: Mailbox,
      *,
      live: bool,
      on_exit: Callable[['Batch'], None],
  ):
    """Start with empty samples that have not been submitted.

    Args:
      asks: One per sample.
      decode: `ServerTokenizer.decode`.
      mailbox: The mailbox of the running loop.
      live: Whether samples are sent while they grow.
      on_exit: Called when the context exits, for whatever reason.
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

    All chunks that arrive while the consumer is busy count as one change.
    """
    running = len(self.samples)
    while running:
      await self._event.wait()
      self._event.clear()
      arrived, self._arrived = self._arrived, set()
      for index in sorted(arrived):
        sample = self.samples[index]
        # An earlier wake-up may already have collected the chunks.
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
