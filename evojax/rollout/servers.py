"""The state of one server, and of the weights that it is to serve."""

import asyncio
import collections
from collections.abc import AsyncIterator
import contextlib
import dataclasses

import httpx2

# Seconds of rest that a busy server gets: by itself, at least, at most.
_REST, _SHORTEST_REST, _LONGEST_REST = 0.1, 0.05, 30.0


@dataclasses.dataclass(frozen=True)
class Abilities:
  """Abilities of a server, and what it reports of itself."""

  model_info: str  # Which of the two paths it has; '' if none.
  update: bool  # POST /update_weights_from_disk.
  abort: bool  # POST /abort_request.
  seeds: bool  # It says that it heeds sampling_seed.
  reports_version: bool  # weight_version is in model_info.
  version: str  # The version of its software.
  dtype: str  # In which it computes; '' or 'auto' where it does not tell.


@dataclasses.dataclass
class Server:
  """The state of one server."""

  url: str
  up: bool = False
  abilities: Abilities | None = None  # As the last probe found them.
  weights: str = ''  # Version that it serves, as far as we gave it one.
  taking: str = ''  # Version that it is being given.
  trusted: bool = False  # Its log-probs were compared with the policy's.
  # It joined in mid-run and was not compared: if it does not fit, it is left
  # out, and the run goes on.
  newcomer: bool = False
  refused: bool = False  # It is left out, until the file of URLs changes.
  left: bool = False  # The file of URLs names it no more.
  in_flight: int = 0
  rests_until: float = 0.0  # It asked for a pause.
  stale: int = 0  # Answers in a row from weights that it was not given here.
  error: str = 'never answered'  # Why it is not up.
  revival: asyncio.Task | None = None
  watch: asyncio.Task | None = None
  # One for each POST that waits for an answer; to end it is to give up waiting.
  waits: set[asyncio.Timeout] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Weights:
  """The weights that all servers are to serve."""

  version: str
  path: str


class Turns:
  """Requests take turns, as many at a time as the servers take; `async with`.

  A semaphore, first come, first served, whose size may change.
  """

  def __init__(self, size: int):
    """Let so many in at a time."""
    self._size, self._taken = size, 0
    self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()

  def resize(self, size: int) -> None:
    """Let so many in from now on; nobody is put out."""
    self._size = size
    self._let_in()

  async def __aenter__(self) -> None:
    turn = asyncio.get_running_loop().create_future()
    self._waiting.append(turn)
    self._let_in()
    try:
      await turn
    except asyncio.CancelledError:
      if turn.cancelled():  # It is still in the queue, and will be passed over.
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
  """Wait for an answer, until `Fleet._watch` gives it up: TimeoutError."""
  async with asyncio.timeout(None) as waits:
    server.waits.add(waits)
    try:
      yield
    finally:
      server.waits.discard(waits)


def retry_after(response: httpx2.Response) -> float:
  """Return the seconds that a busy server asks for, within reason."""
  try:
    asked = float(response.headers['Retry-After'])
  except (KeyError, ValueError):
    return _REST
  return min(max(asked, _SHORTEST_REST), _LONGEST_REST)
