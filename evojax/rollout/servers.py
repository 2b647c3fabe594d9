"""The state of one server, the weights it must serve, and turns of requests."""

import asyncio
import collections
from collections.abc import AsyncIterator
import contextlib
import dataclasses
import math

import httpx2

# Seconds for which a busy server gets no requests: the default, and the bounds
# for a time that the server itself gives.
_REST, _SHORTEST_REST, _LONGEST_REST = 0.1, 0.05, 30.0


@dataclasses.dataclass(frozen=True)
class Abilities:
  """Abilities of a server, as it reports them."""

  model_info: str  # The path it has: '/model_info' or '/get_model_info'.
  update: bool  # Whether it has POST /update_weights_from_disk.
  tensors: bool  # Whether it has POST /update_weights_from_tensor.
  ranks: int  # Its tensor-parallel ranks.
  replicas: int  # Its data-parallel replicas.
  abort: bool  # Whether it has POST /abort_request.
  seeds: bool  # Whether it reports that it uses sampling_seed.
  reports_version: bool  # Whether its model info has weight_version.
  version: str  # Version of its software.
  dtype: str  # Dtype in which it computes; '' or 'auto' if not reported.


@dataclasses.dataclass
class Server:
  """The state of one server."""

  url: str
  up: bool = False
  abilities: Abilities | None = None  # Result of the last probe.
  weights: str = ''  # Version that it serves; '' if not from this fleet.
  taking: str = ''  # Version that is being sent to it now.
  # Held while weights are sent. If the server is lost during an update, its
  # revival sends them, too, and one update must not end the other.
  sending: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
  trusted: bool = False  # Its log-probs were compared with the policy's.
  # It joined during the run and was not compared yet. If it does not fit, it is
  # left out, and the run continues.
  newcomer: bool = False
  refused: bool = False  # It is left out until the file of URLs changes.
  left: bool = False  # The file of URLs does not name it any more.
  in_flight: int = 0  # Number of requests that wait for its answer.
  rests_until: float = 0.0  # No requests before this time.monotonic().
  busy: bool = False  # It refused a request as busy since `_watch` last looked.
  stale: int = 0  # Successive answers from weights that this run did not send.
  error: str = 'never answered'  # Why it is not up.
  revival: asyncio.Task | None = None  # Brings it up.
  watch: asyncio.Task | None = None  # Checks whether it hangs.
  # One timeout for each POST that waits for an answer; `Fleet._watch` lets them
  # expire to give up waiting.
  waits: set[asyncio.Timeout] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Weights:
  """The weights that all servers must serve."""

  version: str
  path: str


class Turns:
  """A first-come, first-served semaphore whose size may change.

  It limits the requests in flight to what the servers accept; used with
  `async with`.
  """

  def __init__(self, size: int):
    """Allow `size` holders at a time."""
    self._size, self._taken = size, 0
    self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()

  def resize(self, size: int) -> None:
    """Allow `size` holders from now on; present holders may finish."""
    self._size = size
    self._let_in()

  async def __aenter__(self) -> None:
    turn = asyncio.get_running_loop().create_future()
    self._waiting.append(turn)
    self._let_in()
    try:
      await turn
    except asyncio.CancelledError:
      if turn.cancelled():  # It is still queued, and `_let_in` skips it.
        raise
      await self.__aexit__()
      raise

  async def __aexit__(self, *_: object) -> None:
    self._taken -= 1
    self._let_in()

  def _let_in(self) -> None:
    while self._waiting and self._taken < self._size:
      turn = self._waiting.popleft()
      if not turn.done():
        turn.set_result(None)
        self._taken += 1


@contextlib.asynccontextmanager
async def waiting(server: Server) -> AsyncIterator[None]:
  """Return a context in which to wait for a server's answer.

  Raises:
    TimeoutError: If `Fleet._watch` finds that the server hangs.
  """
  async with asyncio.timeout(None) as waits:
    server.waits.add(waits)
    try:
      yield
    finally:
      server.waits.discard(waits)


def retry_after(response: httpx2.Response) -> float:
  """Return the seconds to wait for a busy server: its Retry-After, bounded."""
  try:
    asked = float(response.headers['Retry-After'])
  except (KeyError, ValueError):  # It may also be a date.
    return _REST
  if math.isnan(asked):
    return _REST
  return min(max(asked, _SHORTEST_REST), _LONGEST_REST)
