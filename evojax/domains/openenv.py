"""An environment on an OpenEnv server, driven by the library's own client.

    config.domain.name = 'openenv'
    config.domain.kwargs = {'url': 'http://localhost:8000', 'action': 'text'}

A problem is a seed: the prompt is what the server shows after `reset(seed)`,
each turn is a `step`, and the rewards of an episode are summed. The library is
pinned in requirements/openenv.txt; no other domain needs it.
"""

from collections.abc import Mapping, Sequence
import concurrent.futures
import contextlib
import json
from typing import Any
import urllib.request

import numpy as np

from evojax import records
from evojax.domains import base
from evojax.domains import datasets
from evojax.domains import environments
from evojax.domains import graders
from evojax.domains import sources
from evojax.domains import splits
from evojax.evidence import schema

_TOOL = 'step'  # Name of the tool whose call is an action.
_REFUSED = 'VALIDATION_ERROR'  # The server's code for an invalid action.
_SUM = schema.Column(
    'reward_sum',
    'float32',
    doc='Sum of the rewards of all steps.',
    nullable=True,
)
_SEED = 'seed'  # Key of Problem.metadata.


class Session:
  """An episode on the server; see `environments.Environment`."""

  def __init__(self, domain: 'OpenEnvDomain', seed: int):
    """Connect, and start the episode of a seed."""
    self._domain, self._sum = domain, 0.0
    self._client = _library().GenericEnvClient(base_url=domain.url).sync()
    try:
      self._client.connect()
      first = self._client.reset(seed=seed)
      self.prompt = domain.show(domain.prompt, first.observation)
    except BaseException:
      self._client.close()
      raise

  def reply(self, turn: records.Episode) -> environments.Reply:
    """Take a step, with the turn as its action."""
    domain = self._domain
    role, coded = 'user', {}
    action = {domain.action: turn.text}
    if not domain.action:
      role, coded = 'tool', dict(action=1, argument=0)
      try:
        action = _read(turn.text)
      except environments.CallError as error:
        return _wrong(str(error), role)
    try:
      result = self._client.step(action)
    except RuntimeError as error:
      if _REFUSED not in str(error) or domain.action:
        raise
      return _wrong(f'the server refuses these arguments: {error}', role)
    self._sum += float(result.reward or 0.0)
    if result.done:
      return environments.Reply(**coded)
    text = domain.show(domain.observation, result.observation)
    return environments.Reply(({'role': role, 'content': text},), **coded)

  def close(self) -> dict[str, float]:
    """Disconnect; return the sum of the rewards."""
    self._client.close()
    return {'sum': self._sum}


class OpenEnvDomain(base.Domain):
  """The problems, turns and grades of a server, see `make`."""

  name = 'openenv'

  def __init__(
      self,
      url: str,
      templates: tuple[str, str],
      action: str,
      limits: environments.Limits,
      scale: graders.Scale,
      seeds: int,
  ):
    """Ask the server for its observation under each of `seeds` seeds."""
    self.url, self.action = url, action
    self.prompt, self.observation = templates
    self.limits, self._scale = limits, scale
    tools = () if action else (_describe(url),)
    with concurrent.futures.ThreadPoolExecutor(limits.open) as pool:
      found = list(pool.map(lambda s: self._problem(s, tools), range(seeds)))
    self._data = datasets.divide({'train': found})

  @property
  def columns(self) -> tuple[schema.Column, ...]:
    """The statuses, the sum of rewards, and whether each turn is a call."""
    codes = {'ok': 0, records.INFRA_ERROR: 1}
    status = schema.with_codes('grade_status', codes)
    if self.action:
      return status, graders.NOTE, _SUM
    return (
        status,
        graders.NOTE,
        _SUM,
        schema.with_codes('actions', {'none': 0, _TOOL: 1}),
        schema.with_codes('arguments', {'any': 0}),
    )

  def source(self, split: str, seed: int) -> records.ProblemSource:
    """Return the problems of 'train', 'dev' or 'sealed', disjoint by id."""
    return sources.FiniteSource(self._data[splits.check(split)], split, seed)

  def environment(self, problem: records.Problem) -> Session:
    """Return the session of a new episode.

    Raises:
      ValueError: If the server shows another observation than before.
    """
    session = Session(self, problem.metadata[_SEED])
    if session.prompt != problem.question:
      session.close()
      raise ValueError(
          f'the server {self.url} shows {session.prompt[:80]!r} under the seed'
          f' {problem.metadata[_SEED]}, and {problem.question[:80]!r} before:'
          ' its `reset` must depend on the seed alone'
      )
    return session

  def grade(
      self, problem: records.Problem, completion: records.Episode
  ) -> records.Grade:
    """Grade an episode by the sum of its rewards.

    Raises:
      GraderError: If the sum is out of range.
    """
    state, error = completion.state, completion.error
    if state is None and not error:
      if completion.finish_reason == 'seconds':
        error = 'the server was late'
      else:
        state, error = environments.replay(
            lambda: self.environment(problem), completion
        )
    if error:
      note = {graders.NOTE.name: error, _SUM.name: None}
      return records.Grade(False, 0.0, records.INFRA_ERROR, note)
    outcome, partial = self._scale.grade(self.url, state['sum'])
    columns = {graders.NOTE.name: '', _SUM.name: state['sum']}
    return records.Grade(outcome, partial, 'ok', columns)

  def reward_parts(self, e: Any) -> Mapping[str, np.ndarray]:
    """Return `outcome`, and `sum`: the sum of rewards, scaled to 0..1."""
    return {
        'outcome': e.outcome.astype(np.float32),
        'sum': e.partial.astype(np.float32),
    }

  def show(self, template: str, observation: Mapping[str, Any]) -> str:
    """Return an observation as text.

    Raises:
      ValueError: If it lacks a field of the template.
    """
    try:
      return template.format(**observation)
    except (LookupError, ValueError, AttributeError) as error:
      raise ValueError(
          f'the template {template!r} cannot be filled in with what {self.url}'
          f' shows, {sorted(observation)}: {error!r}. Set domain.kwargs.prompt'
          ' and domain.kwargs.observation'
      ) from error

  def _problem(
      self, seed: int, tools: tuple[Mapping[str, Any], ...]
  ) -> records.Problem:
    with contextlib.closing(Session(self, seed)) as session:
      ask = {'role': 'user', 'content': session.prompt}
    return records.Problem(
        splits.problem_id(f'{seed}\n{session.prompt}'),
        'openenv',
        (ask,),
        '',
        metadata={_SEED: seed},
        tools=tools,
    )


def make(
    *,
    url: str,
    action: str = '',
    prompt: str = '{text}',
    observation: str = '{text}',
    seeds: int = 200,
    sessions: int = 1,
    max_turns: int = 10,
    range: Sequence[float | int] = (0.0, 1.0),
    threshold: float | int | None = None,
    reply_seconds: float | int = 60.0,
    episode_seconds: float | int = 600.0,
) -> OpenEnvDomain:
  """Connect to a server and ask for its observation under each seed.

  Args:
    url: Address of the server, e.g. 'http://localhost:8000'.
    action: Field of the action that takes the text of a turn. If empty, the
      policy calls the tool `step`, whose arguments are the action; the server
      describes them.
    prompt: The prompt, with fields of the first observation in braces.
    observation: The text that the policy reads after a step, with fields of the
      observation in braces.
    seeds: Number of problems: the seeds from 0.
    sessions: Number of episodes that the server plays concurrently.
    max_turns: Maximum number of steps in an episode.
    range: The lowest and the highest sum of rewards, which become the partial
      credits 0 and 1.
    threshold: The lowest sum of a solved problem; None is the highest of range.
    reply_seconds: Time for a step; the first one also connects and resets.
    episode_seconds: Time for all steps of an episode.

  Raises:
    ValueError: If the library is missing, the server cannot be used, or an
      argument is invalid.
  """
  _library()
  scale = graders.Scale.read(range, threshold)
  for name, value in (
      ('seeds', seeds),
      ('sessions', sessions),
      ('max_turns', max_turns),
  ):
    if type(value) is not int or value < 1:
      raise ValueError(
          f'domain.kwargs.{name}={value!r} must be an integer >= 1'
      )
  limits = environments.Limits(
      max_turns, float(reply_seconds), float(episode_seconds), sessions
  )
  try:
    return OpenEnvDomain(
        url.rstrip('/'), (prompt, observation), action, limits, scale, seeds
    )
  except OSError as error:
    raise ValueError(
        f'domain.kwargs.url={url!r}: there is no server of OpenEnv ({error})'
    ) from error


def _library() -> Any:
  """Return the library.

  Raises:
    ValueError: If it is not installed.
  """
  try:
    from openenv import core
  except ModuleNotFoundError as error:
    if error.name != 'openenv':
      raise
    raise ValueError(
        "domain.name='openenv' needs the library: pip install --no-deps -r"
        ' requirements/openenv.txt'
    ) from error
  return core


def _describe(url: str) -> dict[str, Any]:
  """Return a tool whose arguments are an action of the server."""
  with urllib.request.urlopen(f'{url}/schema', timeout=60) as answer:
    parameters = json.load(answer)['action']
  known = dict(parameters['properties'])
  known.pop('metadata', None)  # The client sets it, not the policy.
  return {
      'type': 'function',
      'function': {
          'name': _TOOL,
          'description': parameters.get('description', 'Take a step.'),
          'parameters': {**parameters, 'properties': known},
      },
  }


def _read(text: str) -> Mapping[str, Any]:
  """Return the action in a turn.

  Raises:
    CallError: If it has no valid action.
  """
  call = environments.read_call(text)
  if call is None:
    raise environments.CallError(f'no call; call the tool {_TOOL!r}')
  if call.name != _TOOL:
    raise environments.CallError(f'the only tool is {_TOOL!r}')
  return dict(call.arguments)


def _wrong(text: str, role: str) -> environments.Reply:
  message = {'role': role, 'content': f'error: {text}'}
  return environments.Reply((message,), action=0, argument=0, ok=False)
