"""The domain of a `verifiers` environment."""

from collections.abc import Mapping, Sequence
import concurrent.futures
import dataclasses
import json
import math
import re
from typing import Any

from absl import logging
import numpy as np

from evojax import records
from evojax.domains import base
from evojax.domains import datasets
from evojax.domains import environments
from evojax.domains import graders
from evojax.domains import sources
from evojax.domains import splits
from evojax.domains.verifiers import library
from evojax.domains.verifiers import world
from evojax.evidence import schema

GRADE_STATUS = {
    'ok': 0,
    'error': 1,  # A reward function raised an error, and counts as 0.
    records.INFRA_ERROR: 2,  # The environment or a judge failed: not graded.
}
_THREADS = 32  # Episodes graded concurrently.
_TURNS = 10  # Turn limit of an environment that sets none.


class VerifiersDomain(base.Domain):
  """Problems, turns and grades of an environment, see `make`."""

  name = 'verifiers'

  def __init__(
      self,
      environment: str,
      env: Any,
      data: Mapping[str, Sequence[records.Problem]],
      limits: environments.Limits,
      scale: graders.Scale,
      seconds: float,
  ):
    """Store the environment `env`, which `library.load` made.

    Args:
      environment: Its name, for messages.
      env: Plays the episodes and grades them.
      data: Split -> problems, disjoint by problem_id.
      limits: Limits of an episode.
      scale: Scale of the rewards.
      seconds: Time limit of an episode's setup, of each reply and of its
        scoring.
    """
    self.limits, self._seconds = limits, seconds
    self._name, self._env, self._data, self._scale = (
        environment,
        env,
        data,
        scale,
    )
    self._loop = library.Loop()
    names = dict.fromkeys(
        f.__name__ for r in library.rubrics(env.rubric) for f in r.funcs
    )
    self._columns = {name: _column(name) for name in names}
    problems = (p for split in data.values() for p in split)
    tools = {t['function']['name']: None for p in problems for t in p.tools}
    self._codes = (
        {n: i for i, n in enumerate(('none', *tools))} if tools else {}
    )

  @property
  def columns(self) -> tuple[schema.Column, ...]:
    """Statuses, the value of each reward function, and the tools."""
    tools = ()
    if self._codes:
      tools = (
          schema.with_codes('actions', self._codes),
          schema.with_codes('arguments', {'any': 0}),
      )
    own = {c.name: c for c in self._columns.values()}
    return (
        schema.with_codes('grade_status', GRADE_STATUS),
        graders.NOTE,
        *own.values(),
        *tools,
    )

  def source(self, split: str, seed: int) -> records.ProblemSource:
    """Return the problems of 'train', 'dev' or 'sealed', disjoint by id."""
    return sources.FiniteSource(self._data[splits.check(split)], split, seed)

  def environment(self, problem: records.Problem) -> world.World:
    """Return the environment of a new episode."""
    return world.World(
        self._env, self._loop, problem, self._seconds, self._codes
    )

  def reward_parts(self, e: Any) -> Mapping[str, np.ndarray]:
    """Return `outcome`, and `rubric`: the reward, scaled to 0..1."""
    return {
        'outcome': e.outcome.astype(np.float32),
        'rubric': e.partial.astype(np.float32),
    }

  def grade(
      self, problem: records.Problem, completion: records.Episode
  ) -> records.Grade:
    """Grade an episode by the rubric's results at its end.

    An episode without results of the environment, such as a synthetic
    completion, is replayed first.

    Raises:
      GraderError: If the reward is out of range.
    """
    score, error = completion.state, completion.error
    if score is None and not error:
      if completion.finish_reason == 'seconds':
        error = 'the environment was late'
      else:
        score, error = environments.replay(
            lambda: self.environment(problem), completion
        )
    failures = score['failures'] if score else []
    outside = [text for _, text, is_outside in failures if is_outside]
    if error or outside:
      return self._grade(None, records.INFRA_ERROR, error or outside[0], {})
    notes = '; '.join(f'{name}: {text}' for name, text, _ in failures)
    status = 'error' if failures else 'ok'
    return self._grade(score['reward'], status, notes, score['values'])

  def grade_many(
      self,
      problems: Sequence[records.Problem],
      completions: Sequence[records.Episode],
  ) -> list[records.Grade]:
    """Grade completion b of problem b, for all b."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
      return list(pool.map(self.grade, problems, completions))

  def _grade(
      self,
      reward: float | None,
      status: str,
      note: str,
      values: Mapping[str, float],
  ) -> records.Grade:
    outcome, partial = False, 0.0
    if reward is not None:
      who = f'the rubric of domain.kwargs.environment={self._name!r}'
      outcome, partial = self._scale.grade(who, reward)
    columns = {c.name: values.get(n) for n, c in self._columns.items()}
    columns[graders.NOTE.name] = note
    return records.Grade(outcome, partial, status, columns)


def make(
    *,
    environment: str,
    arguments: Mapping[str, Any] | None = None,
    max_turns: int = 0,
    range: Sequence[float | int] = (0.0, 1.0),
    threshold: float | int | None = None,
    reply_seconds: float | int = 60.0,
    episode_seconds: float | int = 600.0,
) -> VerifiersDomain:
  """Load an environment of `verifiers`, and read its data set.

  Its `dataset` is train, with a share for dev by hash; its `eval_dataset` is
  sealed. If there is only one of them, all splits are shares of it, by hash.
  Problems in both are sealed.

  Args:
    environment: Name of an installed environment package, as in
      `verifiers.load_environment`; or 'package.module:function', a function
      that returns an environment.
    arguments: Keyword arguments of the environment.
    max_turns: Maximum number of turns in an episode; 0: the environment's
      limit, or 10 if it sets none.
    range: The lowest and the highest reward of its rubric, which become the
      partial credits 0 and 1.
    threshold: The lowest reward of a solved problem; None is the highest of
      range.
    reply_seconds: Time for the setup of an episode, for a reply of the
      environment, and for the scores. An episode with a late reply ends, and is
      graded in its current state.
    episode_seconds: Time for all replies of an episode.

  Raises:
    ValueError: If the library or the environment cannot be loaded or driven, or
      has no data; or if an argument is invalid.
  """
  scale = graders.Scale.read(range, threshold)
  for name, value, least in (
      ('max_turns', max_turns, 0),
      ('reply_seconds', reply_seconds, 1e-3),
      ('episode_seconds', episode_seconds, 1e-3),
  ):
    if not least <= value < math.inf:
      raise ValueError(f'domain.kwargs.{name}={value} must be at least {least}')
  if type(max_turns) is not int:
    raise ValueError(f'domain.kwargs.{max_turns=} must be an integer')
  env = library.load(environment, arguments or {})
  own = env.max_turns if env.max_turns > 0 else 0
  env.max_turns = turns = min(max_turns or own or _TURNS, own or math.inf)
  # The first reply sets up the episode; a `World` has its own time limits.
  longest = 2 * (reply_seconds + library.ALIVE_SECONDS + 1.0)
  return VerifiersDomain(
      environment,
      env,
      _read(environment, env),
      environments.Limits(turns, longest, float(episode_seconds)),
      scale,
      float(reply_seconds),
  )


def _read(environment: str, env: Any) -> dict[str, tuple[records.Problem, ...]]:
  """Return the problems of each split."""
  found = {
      'train': _problems(env, env.build_dataset()),
      'sealed': _problems(env, env.build_eval_dataset()),
  }
  if not found['train']:  # The environment is made for evaluation.
    found = {'train': found['sealed'], 'sealed': {}}
  both = found['train'].keys() & found['sealed'].keys()
  if both:
    logging.warning(
        '%d problems of eval_dataset are in dataset of %s, too; they are'
        ' sealed, and train nothing',
        len(both),
        environment,
    )
  members = {'train': [p for k, p in found['train'].items() if k not in both]}
  if found['sealed']:
    members['sealed'] = list(found['sealed'].values())
  return datasets.divide(members)


def _problems(env: Any, dataset: Any) -> dict[str, records.Problem]:
  """Return the problems of a data set of an environment, by their ids."""
  rows = dataset.to_list() if dataset is not None else []
  made = (_problem(env, row) for row in rows)
  return {p.problem_id: p for p in made}


def _problem(env: Any, row: Mapping[str, Any]) -> records.Problem:
  """Return a row as a problem.

  Games have the same prompt in every row, so the whole row is the identity.
  """
  messages = world.read_prompt(row['prompt'])
  rest = {k: v for k, v in row.items() if k not in ('prompt', 'example_id')}
  text = json.dumps(rest, sort_keys=True, default=str)
  asked = '\n'.join(m['content'] for m in messages)
  problem = sources.make_problem(
      messages,
      str(row.get('answer') or ''),
      env.env_id or type(env).__name__,
      metadata={graders.ROW: row},
      identity=splits.problem_id(f'{asked}\n{text}'),
  )
  tools = tuple(map(_describe, world.read_tools(env, row)))
  return dataclasses.replace(problem, tools=tools)


def _describe(tool: Any) -> dict[str, Any]:
  """Return a tool's description in the form for chat templates."""
  return {
      'type': 'function',
      'function': {
          'name': tool.name,
          'description': tool.description,
          'parameters': tool.parameters,
      },
  }


def _column(name: str) -> schema.Column:
  """Return the column of a reward function."""
  word = re.sub('[^a-z0-9]+', '_', name.lower()).strip('_')
  return schema.Column(
      f'reward_{word}',
      'float32',
      doc=f'Value of the reward function or metric {name!r}.',
      nullable=True,
  )
