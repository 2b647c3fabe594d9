"""Environments of episodes with several turns: replies and tool calls.

    turn of the policy -> Environment.reply -> messages -> next turn

An environment belongs to one episode. `ToolEnvironment` is for domains with
tools: it parses a call in Qwen3's format from a turn,

    <tool_call>
    {"name": "python", "arguments": {"code": "print(6 * 7)"}}
    </tool_call>

runs it, and replies with a message of the role 'tool', which the chat template
renders. A policy's text is untrusted. Whatever it contains, no exception is
raised: the reply to a malformed call says what is wrong.
"""

from collections.abc import Callable, Mapping
import dataclasses
import json
from typing import Any, Protocol, runtime_checkable

import numpy as np

from evojax import records

OPEN, CLOSE = '<tool_call>', '</tool_call>'
_SHOWN = 80  # Characters of a wrong value that are shown.


@dataclasses.dataclass(frozen=True)
class Limits:
  """Limits of an episode of a domain, besides its tokens."""

  turns: int = 1  # Turns of the policy; 1: the first one ends the episode.
  # Wall time of one reply, or of `close`, and of all replies of an episode.
  reply_seconds: float = 60.0
  episode_seconds: float = 600.0
  open: int = 0  # Maximum number of concurrent environments; 0: any number.


@dataclasses.dataclass(frozen=True)
class Reply:
  """The reply of an environment to one turn."""

  # Messages for the policy before its next turn; none: the episode has ended.
  messages: tuple[records.Message, ...] = ()
  # As in `records.Turn`: codes of the domain's tables.
  action: int | None = None
  argument: int | None = None
  ok: bool = True


@runtime_checkable
class Environment(Protocol):
  """The environment of one episode; its methods are called sequentially.

  With several processes it is in one of them; the others receive its replies,
  and what `close` returns, which therefore must be picklable.
  """

  def reply(self, turn: records.Episode) -> Reply:
    """Return the reply to a turn, given as an episode of that turn alone.

    It is called after every turn, including the last one, whose reply the
    policy does not read. An exception ends the episode without a grade, because
    it is a fault of the environment and not of the policy.
    """

  def close(self) -> Any:
    """End the environment; return data for the grader, see Episode.state.

    It is called exactly once, also after `reply` has raised.
    """


class CallError(ValueError):
  """A turn holds no valid call; the message is shown to the policy."""


@dataclasses.dataclass(frozen=True)
class Call:
  """A tool call as the policy wrote it."""

  name: str
  arguments: Mapping[str, Any]


def read_call(text: str) -> Call | None:
  """Return the call in a turn; None if there is none.

  Raises:
    CallError: If it is malformed, or there is more than one.
  """
  start = text.find(OPEN)
  if start < 0:
    if CLOSE in text:
      raise CallError(f'{CLOSE} without {OPEN}')
    return None
  body, closed, rest = text[start + len(OPEN) :].partition(CLOSE)
  if not closed:
    raise CallError(f'the call is not closed: write {CLOSE} after it')
  if OPEN in body or OPEN in rest:
    raise CallError('more than one call; make one call in a turn')
  try:
    call = json.loads(body)
  # Text that is nested too deeply is not a call either.
  except (ValueError, RecursionError) as error:
    raise CallError(f'the call is not JSON: {_short(str(error))}') from error
  if not isinstance(call, dict):
    raise CallError(
        'the call must be an object {"name": ..., "arguments": {...}}'
    )
  name, arguments = call.get('name'), call.get('arguments', {})
  if not isinstance(name, str):
    raise CallError('the call has no "name", the name of a tool')
  if not isinstance(arguments, dict):
    raise CallError('"arguments" must be an object')
  return Call(name, arguments)


def _short(text: str) -> str:
  return text if len(text) <= _SHOWN else text[:_SHOWN] + '...'


@dataclasses.dataclass(frozen=True)
class Answer:
  """The answer of a tool."""

  text: str
  ok: bool = True  # Whether the call was well formed and did not fail.
  argument: int = 0  # Class of the arguments, one of the domain's codes.
  ends: bool = False  # The call ends the episode.


class ToolEnvironment:
  """An episode with tools; a turn without a tool call ends it."""

  def __init__(
      self,
      tools: Mapping[str, Callable[[Mapping[str, Any]], Answer]],
      codes: Mapping[str, int],
      close: Callable[[], Any] = lambda: None,
  ):
    """Make the environment of one episode.

    Args:
      tools: Functions by name; each takes the arguments as the policy wrote
        them.
      codes: Code of each tool in the evidence column `actions`, and of 'none',
        for a turn without a valid call.
      close: Ends the tools' resources; see `Environment.close`.
    """
    self._tools, self._codes, self.close = tools, codes, close

  def reply(self, turn: records.Episode) -> Reply:
    """Run the call in a turn and return the answer."""
    try:
      call = read_call(turn.text)
      if call is None:
        return Reply(action=self._codes['none'], argument=0)
      if call.name not in self._tools:
        raise CallError(
            f'there is no tool {_short(call.name)!r}; there are'
            f' {", ".join(self._tools)}'
        )
    except CallError as error:
      wrong = Answer(f'error: {error}', ok=False)
      return self._reply(wrong, self._codes['none'])
    answer = self._tools[call.name](call.arguments)
    return self._reply(answer, self._codes[call.name])

  def _reply(self, answer: Answer, action: int) -> Reply:
    message = {'role': 'tool', 'content': answer.text}
    return Reply(
        () if answer.ends else (message,), action, answer.argument, answer.ok
    )


def replay(
    environment: Callable[[], Environment], episode: records.Episode
) -> tuple[Any, str]:
  """Replay the turns of a finished episode in an environment.

  Args:
    environment: Makes the environment.
    episode: An episode played without environment, e.g. a completion.

  Returns:
    The result of `close`, and why the environment failed, or ''.
  """
  world, state, error = None, None, ''
  # An environment may run any code, the user's or a third party's.
  try:
    world = environment()
    for turn in episode.turns:
      none = np.zeros(turn.sampled, np.float32)
      last = turn is episode.turns[-1]
      world.reply(
          records.Episode(
              tokens=none.astype(np.int32),
              logprobs=none,
              finish_reason=episode.finish_reason if last else 'stop',
              policy_version=episode.policy_version,
              text=turn.text,
          )
      )
  except Exception as e:  # pylint: disable=broad-except
    error = f'{type(e).__name__}: {e}'
  try:
    state = world.close() if world else None
  except Exception as e:  # pylint: disable=broad-except
    error = error or f'{type(e).__name__}: {e}'
  return state, error
