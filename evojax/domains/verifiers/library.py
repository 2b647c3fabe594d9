"""An environment as made by the library `verifiers`, and its event loop."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
import contextlib
import contextvars
import dataclasses
import functools
import importlib
import inspect
import signal
import threading
from typing import Any

_FIELD = 'domain.kwargs.environment'
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
ALIVE_SECONDS = 5.0  # A loop that does not answer for so long is blocked.
# Libraries with which a reward function may call a service.
_CLIENTS = ('aiohttp', 'anthropic', 'httpcore', 'httpx', 'httpx2', 'openai')
# Failures of tools and reward functions in the running task.
_failures: contextvars.ContextVar[list['Failure']] = contextvars.ContextVar(
    'failures'
)


class LibraryError(ValueError):
  """An environment cannot be loaded, or cannot be driven turn by turn."""


class LateError(RuntimeError):
  """A coroutine took too long and was cancelled."""


class HeldUpError(RuntimeError):
  """Some code blocks the event loop, which was therefore abandoned."""


@dataclasses.dataclass(frozen=True)
class Failure:
  """An error that the library would turn into a value."""

  name: str  # Name of the function that raised.
  text: str
  outside: bool  # Whether a service is to blame, e.g. an unreachable judge.


class Loop:
  """An event loop in its own thread.

  All episodes share it, as they do in the library: clients and locks of an
  environment belong to one loop.
  """

  def __init__(self):
    self._lock = threading.Lock()
    self._loop: asyncio.AbstractEventLoop | None = None

  def run(self, coroutine: Coroutine[Any, Any, Any], seconds: float) -> Any:
    """Return a coroutine's result; call it from any thread but the loop's.

    Raises:
      LateError: If it takes longer; it is then cancelled.
      HeldUpError: If the loop never runs it, because some code blocks the loop.
    """
    loop = self._running()
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
      return future.result(seconds)
    except TimeoutError:
      if future.done():  # The coroutine itself raised the error.
        raise
      future.cancel()
    alive = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop)
    try:
      alive.result(ALIVE_SECONDS)
    except TimeoutError as error:
      with self._lock:
        if self._loop is loop:
          self._loop = None
      raise HeldUpError(
          'the event loop of the environment is held up: a tool or a reward'
          ' function blocks it. Make that function a coroutine that awaits, or'
          ' give it a time limit of its own'
      ) from error
    raise LateError(f'no answer within {seconds:g} s')

  def _running(self) -> asyncio.AbstractEventLoop:
    with self._lock:
      if self._loop is None:
        self._loop = asyncio.new_event_loop()
        # A daemon, so that blocked code does not keep the process from ending.
        threading.Thread(
            target=self._loop.run_forever, name='verifiers', daemon=True
        ).start()
      return self._loop


@contextlib.contextmanager
def failures() -> Iterator[list[Failure]]:
  """Collect the failures of tools and reward functions of this task."""
  found = []
  token = _failures.set(found)
  try:
    yield found
  finally:
    _failures.reset(token)


def load(name: str, arguments: Mapping[str, Any]) -> Any:
  """Return a `verifiers.MultiTurnEnv` that records its failures.

  Args:
    name: Name of an installed package, as in `verifiers.load_environment`; or
      'package.module:function', a function that returns an environment.
    arguments: Arguments of the environment.

  Raises:
    LibraryError: If the library is missing or has another version, or there is
      no such environment, or it cannot be driven.
  """
  library = _import()
  module, colon, function = name.partition(':')
  with _own_signals():
    try:
      if colon:
        make = getattr(importlib.import_module(module), function)
      else:
        make = functools.partial(library.load_environment, name)
      made = make(**arguments)
    except (
        AttributeError,
        ImportError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
      raise LibraryError(
          f'{_FIELD}={name!r} with arguments={dict(arguments)}: {error}. It is'
          ' the name of an installed environment package, or'
          " 'package.module:function'"
      ) from error
  _check(library, name, made)
  for rubric in rubrics(made.rubric):
    judges = isinstance(rubric, library.JudgeRubric)
    rubric.funcs = [_noted(f, judges, number=True) for f in rubric.funcs]
  if hasattr(made, 'call_tool'):
    made.call_tool = _noted(made.call_tool)
  return made


def rubrics(rubric: Any) -> list[Any]:
  """Return the rubrics that a rubric consists of."""
  inner = getattr(rubric, 'rubrics', None)
  return [r for i in inner for r in rubrics(i)] if inner else [rubric]


def _import() -> Any:
  """Return the library.

  Raises:
    LibraryError: If it is not installed, or has another interface.
  """
  try:
    import verifiers
  except ModuleNotFoundError as error:
    if error.name != 'verifiers':
      raise
    raise LibraryError(
        "domain.name='verifiers' needs the library: pip install"
        " 'verifiers>=0.3,<0.4'"
    ) from error
  if not hasattr(verifiers, 'MultiTurnEnv'):
    raise LibraryError(
        f'verifiers {verifiers.__version__} has no MultiTurnEnv, which this'
        " domain needs: pip install 'verifiers>=0.3,<0.4'"
    )
  return verifiers


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
  """Restore the signal handlers, which an environment replaces."""
  # Only the main thread may set them; elsewhere the library gets a ValueError.
  kept = {number: signal.getsignal(number) for number in _SIGNALS}
  try:
    yield
  finally:
    if threading.current_thread() is threading.main_thread():
      for number, handler in kept.items():
        signal.signal(number, handler)


def _check(library: Any, name: str, made: Any) -> None:
  """Refuse objects that are not environments or cannot be driven turn by
  turn."""
  if not isinstance(made, library.MultiTurnEnv):
    raise LibraryError(
        f'{_FIELD}={name!r} is a {type(made).__name__}, which plays its'
        ' episodes by itself. Only SingleTurnEnv, MultiTurnEnv, ToolEnv and'
        ' their subclasses can be driven. Of a group of environments, name a'
        ' single one'
    )
  if made.rubric.has_group_rewards or made.rubric.has_advantages:
    raise LibraryError(
        f'{_FIELD}={name!r}: its rubric compares completions with each other,'
        ' but each episode is graded by itself here. Leave the comparison to'
        ' the advantages'
    )
  weights = [w for r in rubrics(made.rubric) for w in r.weights]
  if not any(weights):
    raise LibraryError(
        f'{_FIELD}={name!r}: its rubric has no reward function with a weight,'
        ' so every episode would have the same reward'
    )


def _noted(
    function: Callable[..., Any], judges: bool = False, number: bool = False
) -> Callable[..., Any]:
  """Return a function whose errors are recorded before the library hides them.

  Args:
    function: A reward function or a tool's call; a coroutine function or not.
    judges: Whether every error of it counts as the failure of a service.
    number: Whether it must return a number.
  """

  @functools.wraps(function)
  async def noted(*args, **kwargs):
    try:
      found = function(*args, **kwargs)
      if inspect.isawaitable(found):
        found = await found
      return float(found) if number else found
    except Exception as error:
      text = f'{type(error).__name__}: {error}'
      outside = judges or _is_outside(error)
      name = getattr(function, '__name__', 'function')
      _failures.get([]).append(Failure(name, text, outside))
      raise

  return noted


def _is_outside(error: BaseException | None) -> bool:
  """Return whether an error, or its cause, concerns a connection."""
  while error is not None:
    if isinstance(error, OSError):  # This includes timeouts.
      return True
    kinds = {kind.__module__.partition('.')[0] for kind in type(error).__mro__}
    names = {kind.__name__ for kind in type(error).__mro__}
    if kinds & set(_CLIENTS) or ('verifiers' in kinds and 'Error' in names):
      return True
    error = error.__cause__
  return False
