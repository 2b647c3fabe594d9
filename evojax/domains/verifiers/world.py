"""One episode of a `verifiers` environment, driven from outside.

The library's own loop asks a model for every turn. Here the turns come from
outside, in one call of `reply` each. `reply` does what the library does between
two requests to its model, in the same order:

    init_state, setup_state
    add_model_response, is_completed, get_prompt_messages (env_response), ...
    cleanup, score_rollout
"""

from collections.abc import Mapping, Sequence
import json
import math
from typing import Any
import uuid

from evojax import records
from evojax.domains import environments
from evojax.domains import graders
from evojax.domains.verifiers import library

_WRONG = 'wrong_call'  # Name of a call that could not be parsed.


class World:
  """An `environments.Environment`; `close` returns the rubric's results."""

  def __init__(
      self,
      env: Any,
      loop: library.Loop,
      problem: records.Problem,
      seconds: float,
      codes: Mapping[str, int],
  ):
    """Set up the state of the episode.

    Args:
      env: The environment from `library.load`.
      loop: The event loop that runs it.
      problem: A problem of the domain, with its row of the data set.
      seconds: Time limit of the setup, of each reply and of the scoring.
      codes: Code of each tool in the evidence column `actions`, and of 'none';
        empty without tools.

    Raises:
      ValueError: If the setup changes the prompt.
    """
    self._env, self._loop, self._seconds = env, loop, seconds
    self._codes = codes
    self._broken = False  # True: nothing can be scored.
    self._state: Any = None
    self._messages: list[Any] = []  # The conversation so far.
    try:
      self._run(self._open(problem))
    except BaseException:
      self._broken = True
      self.close()  # The caller gets no object to close.
      raise

  def reply(self, turn: records.Episode) -> environments.Reply:
    """Return the environment's reply to a turn."""
    call, wrong = self._read(turn.text)
    codes = self._codes
    shown = dict(action=codes['none'], argument=0) if codes else {}
    if call and not wrong:
      shown['action'] = codes[call['name']]
    try:
      said, ok = self._run(self._reply(turn, call, wrong))
    except library.LateError:
      # As in the library, the episode ends and counts in its current state.
      self._env.mark_timed_out(self._state)
      return environments.Reply(ok=False, **shown)
    except BaseException:
      self._broken = True
      raise
    return environments.Reply(said, ok=ok, **shown)

  def close(self) -> dict[str, Any] | None:
    """Return the reward, the value of each function, and any failures."""
    if self._state is None:  # The setup did not succeed.
      return None
    return self._run(self._close(self._state))

  def _run(self, coroutine: Any) -> Any:
    return self._loop.run(coroutine, self._seconds)

  async def _open(self, problem: records.Problem) -> None:
    env = self._env
    row = problem.metadata[graders.ROW]
    self._state = await env.init_state(row, _client(), 'policy', {})
    changed = await env.setup_state(self._state)
    if changed is not None:
      self._state = changed
    self._messages = list(await env.get_prompt_messages(self._state))
    if show(self._messages) != tuple(problem.messages):
      raise ValueError(
          f'the environment {type(env).__name__} changes the prompt of its data'
          ' set when an episode begins; put what it asks into the data set'
      )

  async def _reply(
      self, turn: records.Episode, call: Mapping[str, Any] | None, wrong: str
  ) -> tuple[tuple[records.Message, ...], bool]:
    """Return the reply to a turn, and whether its call succeeded."""
    env, state = self._env, self._state
    asked = self._messages
    await env.add_model_response(state, asked, _response(turn, call))
    if await env.is_completed(state):
      return (), not wrong
    step = state['trajectory'][-1]
    said = [*step['prompt'], *step['completion']]
    if wrong:
      self._messages = [*said, _tool_message(call['id'], wrong)]
      return show(self._messages[len(said) :]), False
    with library.failures() as failures:
      self._messages = list(await env.get_prompt_messages(state))
    if state.get('final_env_response') is not None:
      await env.is_completed(state)
      return (), not failures
    if self._messages[: len(said)] != said or len(self._messages) == len(said):
      raise ValueError(
          f'the environment {type(env).__name__} answers with'
          f' {len(self._messages)} messages that do not go on from the'
          f' {len(said)} so far. Tokens are carried from turn to turn, so'
          ' only a conversation that grows can be trained'
      )
    return show(self._messages[len(said) :]), not failures

  async def _close(self, state: Any) -> dict[str, Any] | None:
    env = self._env
    # One of our limits may have ended it.
    state['is_truncated'] = state['is_truncated'] or not state['is_completed']
    state['is_completed'] = True
    await env.cleanup(state)
    if self._broken:
      await env.rubric.cleanup(state)
      return None
    with library.failures() as failures:
      await env.rubric.score_rollout(state)
    await env.rubric.cleanup(state)
    reward = float(state['reward'])
    if not math.isfinite(reward):
      raise ValueError(f'the reward of the rubric is {reward}')
    values = {k: float(v) for k, v in (state['metrics'] or {}).items()}
    return {
        'reward': reward,
        'values': {k: v for k, v in values.items() if math.isfinite(v)},
        'failures': [[f.name, f.text, f.outside] for f in failures],
    }

  def _read(self, text: str) -> tuple[dict[str, Any] | None, str]:
    """Return the call in a turn in the library's form, and what is wrong."""
    known = [tool.name for tool in self._state['tool_defs']]
    if not known:
      return None, ''
    body = text.partition(environments.OPEN)[2]
    name, arguments, wrong = _WRONG, body, ''
    try:
      call = environments.read_call(text)
      if call is None:
        return None, ''
      name, arguments = call.name, json.dumps(dict(call.arguments))
      if name not in known:
        wrong = f'there is no tool {name!r:.80}; there are {", ".join(known)}'
    except environments.CallError as error:
      wrong = str(error)
    number = len(self._state['trajectory'])
    call = {'id': f'call_{number}', 'name': name, 'arguments': arguments}
    return call, f'error: {wrong}' if wrong else ''


def _response(turn: records.Episode, call: Mapping[str, Any] | None) -> Any:
  """Return a turn in the form of a server's answer."""
  from verifiers import types

  text = turn.text
  if call:  # A server returns the call separately from the text.
    before, _, rest = text.partition(environments.OPEN)
    text = (before + rest.partition(environments.CLOSE)[2]).strip()
  cut = turn.finish_reason == 'length'
  message = types.ResponseMessage(
      content=text,
      tool_calls=[types.ToolCall(**call)] if call else None,
      finish_reason='length' if cut else 'tool_calls' if call else 'stop',
      is_truncated=cut,
  )
  count = len(turn.tokens)
  usage = types.Usage(
      prompt_tokens=0,  # Not counted here.
      reasoning_tokens=0,
      completion_tokens=count,
      total_tokens=count,
  )
  return types.Response(
      id=uuid.uuid4().hex,
      created=0,
      model='policy',
      usage=usage,
      message=message,
  )


def _tool_message(call_id: str, text: str) -> Any:
  from verifiers import types

  return types.ToolMessage(tool_call_id=call_id, content=text)


def _client() -> Any:
  """Return the client of an episode; requests to its model are refused."""
  from verifiers import clients

  class Client(clients.OpenAIChatCompletionsClient):

    async def get_response(self, *args, **kwargs):
      raise RuntimeError(
          'the environment calls the model itself; only environments that leave'
          ' these calls to the loop of episodes can be driven'
      )

  return Client(None)


def show(messages: Sequence[Any]) -> tuple[records.Message, ...]:
  """Return messages of the library in the form for a chat template.

  Raises:
    ValueError: If one holds more than text.
  """
  return tuple(map(_show, messages))


def _show(message: Any) -> records.Message:
  content = message.content or ''
  if not isinstance(content, str):
    if any(part['type'] != 'text' for part in content):
      raise ValueError('a message holds more than text, e.g. an image')
    content = ''.join(part['text'] for part in content)
  # Calls are written as the policy writes them, whatever its template does.
  for call in message.get('tool_calls') or ():
    arguments = json.loads(call.arguments)
    written = json.dumps({'name': call.name, 'arguments': arguments})
    content += f'\n{environments.OPEN}\n{written}\n{environments.CLOSE}'
  return {'role': message.role, 'content': content.lstrip('\n')}


def read_prompt(prompt: Any) -> tuple[records.Message, ...]:
  """Return the prompt in a row of a data set.

  Raises:
    ValueError: If it is not a chat, or holds more than text.
  """
  from verifiers.utils import message_utils

  if isinstance(prompt, str):
    raise ValueError(
        f'the prompt {prompt[:80]!r} of the data set is plain text to complete;'
        ' a policy needs a list of chat messages'
    )
  return show(message_utils.normalize_messages(prompt))


def read_tools(env: Any, row: Mapping[str, Any]) -> list[Any]:
  """Return the tools of a row, or those of the environment."""
  from verifiers import types

  info = row.get('info')
  info = json.loads(info) if isinstance(info, str) else info
  own = info.get('tool_defs') if isinstance(info, Mapping) else None
  return [types.Tool.model_validate(t) for t in own or env.tool_defs or ()]
