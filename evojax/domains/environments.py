"""What an episode of several turns talks to: replies, and calls of tools.

    turn of the policy -> Environment.reply -> messages -> next turn

An environment belongs to one episode. `ToolEnvironment` is that of a domain
with tools: it reads a call in Qwen3's format out of a turn,

    <tool_call>
    {"name": "python", "arguments": {"code": "print(6 * 7)"}}
    </tool_call>

runs it, and answers with a message of the role 'tool', which the chat template
renders. What a policy writes is hostile until it is read: whatever it is, the
answer says what was wrong, and nothing raises.
"""

from collections.abc import Callable, Mapping
import dataclasses
import json
from typing import Any, Protocol, runtime_checkable

import numpy as np

from evojax import records

OPEN, CLOSE = '<tool_call>', '</tool_call>'
_SHOWN = 80  # Characters of a wrong value.


@dataclasses.dataclass(frozen=True)
class Limits:
  """How long an episode of a domain may go on, besides its tokens."""

  turns: int = 1  # Turns of the policy; 1: the first one ends the episode.
  # Wall time of one reply, and of all replies of an episode.
  reply_seconds: float = 60.0
  episode_seconds: float = 600.0
  open: int = 0  # Environments that exist at the same time; 0: any number.


@dataclasses.dataclass(frozen=True)
class Reply:
  """What an environment answers to one turn."""

  # What the policy reads before its next turn; none: the episode has ended.
  messages: tuple[records.Message, ...] = ()
  # As `records.Turn` has them: codes of the domain's tables.
  action: int | None = None
  argument: int | None = None
  ok: bool = True


@runtime_checkable
class Environment(Protocol):
  """The world of one episode; its methods are called one after the other.

  With several processes each has one, and what that of process 0 says counts in
  all of them.
  """

  def reply(self, turn: records.Episode) -> Reply:
    """Answer a turn, an episode of that turn alone.

    It is called after every turn, also after the last one, where the policy
    does not read the reply any more. An exception ends the episode without a
    grade, because it is a fault of the environment and not of the policy.
    """

  def close(self) -> Any:
    """End the environment; return what the grader needs, see Episode.state.

    Called exactly once, also after `reply` has raised.
    """


class CallError(ValueError):
  """A turn holds no call that could be run; the message is for the policy."""


@dataclasses.dataclass(frozen=True)
class Call:
  """A call of a tool, as a policy wrote it."""

  name: str
  arguments: Mapping[str, Any]


def read_call(text: str) -> Call | None:
  """Return the call in a turn; None if there is none.

  Raises:
    CallError: If it is malformed, or there are several.
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
  # A deeply nested text is no call either.
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
  """What a tool answers."""

  text: str
  ok: bool = True  # The call was well formed and did not fail.
  argument: int = 0  # Class of the arguments, a code of the domain's.
  ends: bool = False  # The call ends the episode.


class ToolEnvironment:
  """An episode with tools: a turn without a call of one ends it."""

  def __init__(
      self,
      tools: Mapping[str, Callable[[Mapping[str, Any]], Answer]],
      codes: Mapping[str, int],
      close: Callable[[], Any] = lambda: None,
  ):
    """Make the environment of one episode.

    Args:
      tools: By name; each takes the arguments as the policy wrote them.
      codes: Code of each tool in the evidence column `actions`, and of 'none',
        a turn without a call that could be run.
      close: Ends what the tools use; see `Environment.close`.
    """
    self._tools, self._codes, self.close = tools, codes, close

  def reply(self, turn: records.Episode) -> Reply:
    """Run the call in a turn."""
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
  """Play the turns of an episode, whose sampling is over, once more.

  Args:
    environment: Makes the environment.
    episode: One that was not played with an environment, e.g. a completion.

  Returns:
    What `close` returned, and why the environment failed or ''.
  """
  world, state, error = None, None, ''
  # An environment may run anything of the user's or of others'.
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
