"""From problems to sampled, graded evidence rows, the same for all callers.

    problems -> request batch -> episodes -> grades -> rollout batch

Training, evaluation, backtests and synthetic evidence get their episodes from
different sources, but all of them make their rows here. B = P * G episodes are
in group-major order throughout: episode b is sample b % G of problem b // G.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import re
import time
from typing import Any

import jax
import ml_collections
import numpy as np

from evojax import records
from evojax.domains import base
from evojax.episodes import rows as rows_lib
from evojax.episodes import shares
from evojax.evidence import schema
from evojax.evidence import views
from evojax.models import tokenizer as tokenizer_lib
from evojax.runtime import decisions
from evojax.runtime import interruptible

_ID = re.compile('[0-9a-f]{16}')
# Episode -> its grade, and the seconds that grading it took.
_Graded = dict[int, tuple[records.Grade, float]]


@dataclasses.dataclass(frozen=True)
class RolloutBatch:
  """Episodes of whole groups, and their evidence rows."""

  prompts: Sequence[Sequence[int]]  # [P] token ids.
  episodes: Sequence[records.Episode]  # [B]
  rows: dict[str, Any]  # Column -> B values; later stages add columns.

  @property
  def graded(self) -> np.ndarray:
    """bool [P, G]: whether the evaluator could grade the episode."""
    return self._by_group('graded', bool)

  @property
  def n_turns(self) -> np.ndarray:
    """int32 [P, G]: number of turns of each episode."""
    return self._by_group('n_turns', np.int32)

  def _by_group(self, column: str, dtype: Any) -> np.ndarray:
    return np.asarray(self.rows[column], dtype).reshape(len(self.prompts), -1)

  @classmethod
  def recorded(cls, rows: Mapping[str, np.ndarray]) -> 'RolloutBatch':
    """Return rollouts that were read back from evidence, in any order."""
    order = np.lexsort((rows['sample'], rows['group']))
    rows = {name: values[order] for name, values in rows.items()}
    group_size = int(rows['sample'].max()) + 1
    prompts = [tuple(p.tolist()) for p in rows['prompt_tokens'][::group_size]]
    return cls(prompts, rows_lib.to_episodes(rows), rows)


def view(
    rows: Mapping[str, Any],
    columns: Sequence[schema.Column],
    max_tokens: int,
    reader: str,
) -> views.View:
  """Return the view of a reader on the rows of whole groups."""
  prompts = len(np.unique(rows['group']))
  return views.View(
      rows,
      columns,
      prompts=prompts,
      group_size=len(rows['group']) // prompts,
      max_tokens=max_tokens,
      reader=reader,
  )


def columns(
    domain: base.Domain, config: ml_collections.ConfigDict
) -> tuple[schema.Column, ...]:
  """Return the columns of a run's evidence, with their readers."""
  return schema.declare(
      domain.columns,
      tuple(config.reward.weights),
      blind=config.evolve.seed_harness == 'seed_blind',
  )


def render(
    tokenizer: tokenizer_lib.Tokenizer,
    problems: Sequence[records.Problem],
    max_prompt_tokens: int,
) -> list[tuple[int, ...]]:
  """Return the prompt tokens of each problem.

  Args:
    tokenizer: Renders the messages with its chat template.
    problems: P problems.
    max_prompt_tokens: Lp, the limit of a prompt.

  Returns:
    P tuples of token ids.

  Raises:
    ValueError: If a prompt has more than `max_prompt_tokens` tokens.
  """
  # All are rendered before any is refused, so that the error names the longest.
  prompts = [
      tuple(tokenizer.render(p.messages, tools=p.tools)) for p in problems
  ]
  longest = max(map(len, prompts), default=0)
  for problem, prompt in zip(problems, prompts, strict=True):
    if len(prompt) > max_prompt_tokens:
      raise ValueError(
          f'the prompt of problem {problem.problem_id} (family'
          f' {problem.family!r}) has {len(prompt)} tokens, more than'
          f' data.max_prompt_tokens={max_prompt_tokens}. The longest of these'
          f' {len(problems)} has {longest}: set'
          f' --config.data.max_prompt_tokens={longest} or more, or leave the'
          ' family out of domain.kwargs'
      )
  return prompts


def request_batch(
    tokenizer: tokenizer_lib.Tokenizer,
    problems: Sequence[records.Problem],
    params: records.SamplingParams,
    *,
    group_size: int,
    seed: int,
    max_prompt_tokens: int,
) -> records.RequestBatch:
  """Return the requests of `group_size` samples of each problem.

  Args:
    tokenizer: Renders the messages with its chat template.
    problems: P problems.
    params: Sampling parameters.
    group_size: G.
    seed: Seed of the sampler. Requests with the same seed, problem and sample
      use the same random numbers.
    max_prompt_tokens: Lp, the limit of a prompt.

  Raises:
    ValueError: If a prompt is too long, or a problem_id is not 16 hex digits.
  """
  prompts = render(tokenizer, problems, max_prompt_tokens)
  requests = [
      records.Request(prompt, seed, _key(problem), sample, params)
      for problem, prompt in zip(problems, prompts, strict=True)
      for sample in range(group_size)
  ]
  return records.RequestBatch(problems, prompts, seed, requests)


def _key(problem: records.Problem) -> int:
  """Return the uint32 that identifies the problem for the sampler."""
  if not _ID.fullmatch(problem.problem_id):
    raise ValueError(
        f'problem_id={problem.problem_id!r} of family {problem.family!r} is not'
        ' 16 hex digits; take the head of a hash of the problem text'
    )
  # The sampler folds it into its key, so that a problem's samples do not
  # depend on its place in the batch.
  return int(problem.problem_id[:8], 16)


class GradingError(OSError):
  """The grader itself does not work, so the run cannot continue."""


def grade(
    domain: base.Domain,
    problems: Sequence[records.Problem],
    episodes: Sequence[records.Episode],
    *,
    divided: bool = False,
    stopping: Callable[[], bool] | None = None,
    need_grades: bool = True,
) -> tuple[list[records.Grade], np.ndarray]:
  """Grade B episodes of P problems.

  Args:
    domain: The domain whose grader is used.
    problems: P problems.
    episodes: B episodes, in group-major order.
    divided: Whether each process of the run grades a part of the episodes and
      gets the grades of the others; then all processes must call this function,
      and an error of one is raised in all.
    stopping: Returns whether the run was asked to stop; called about twice a
      second. If it is given, all processes must call this function. Default:
      nothing stops it.
    need_grades: Whether it is an error if no episode can be graded, which shows
      that the grader does not work: False for the few problems of a refill.

  Returns:
    B grades, and the wall time of each in seconds, float32 [B].

  Raises:
    ValueError: If the domain returns another number of grades, or other values.
    GradingError: If no episode could be graded, and grades are needed.
    preemption.Interrupted: If the run was asked to stop.
  """
  group_size = len(episodes) // max(len(problems), 1)
  shared = divided and jax.process_count() > 1
  chosen: Sequence[int] = range(len(episodes))
  if shared:
    chosen = shares.mine(len(problems), group_size)
  work = lambda: _grade(domain, problems, episodes, group_size, chosen)
  stoppable = work
  if stopping is not None:
    stoppable = lambda: interruptible.call(work, stopping)
  if shared:
    parts = decisions.exchange(stoppable)
    graded = {b: found for part in parts for b, found in part.items()}
  else:
    graded = stoppable()
  if need_grades:
    _require_one(domain, graded)
  order = sorted(graded)
  seconds = [graded[b][1] for b in order]
  return [graded[b][0] for b in order], np.array(seconds, np.float32)


def _require_one(domain: base.Domain, graded: _Graded) -> None:
  """Check that at least one completion could be graded.

  A single completion may break its grading; if all fail, the grader is broken.

  Raises:
    GradingError: If no episode could be graded.
  """
  if graded and not any(grade.graded for grade, _ in graded.values()):
    raise GradingError(
        f'domain {domain.name!r}: none of {len(graded)} completions could be'
        ' graded, so this is not their fault: the grader does not work here.'
        ' `python -m evojax.sandbox.probe` tries the box; the same'
        ' command continues the run'
    )


def _grade(
    domain: base.Domain,
    problems: Sequence[records.Problem],
    episodes: Sequence[records.Episode],
    group_size: int,
    chosen: Sequence[int],
) -> _Graded:
  """Return the grades of some episodes, and the seconds that each took."""
  if not chosen:
    return {}
  asked = [problems[b // group_size] for b in chosen]
  given = [episodes[b] for b in chosen]
  start = time.perf_counter()
  grades = list(domain.grade_many(asked, given))
  for found in grades:
    if not isinstance(found, records.Grade):
      raise ValueError(
          f'domain {domain.name!r}: a grade is {found!r:.80}; `grade` must'
          ' return evojax.records.Grade(outcome, partial, status, columns)'
      )
  if len(grades) != len(given):
    raise ValueError(
        f'domain {domain.name!r}: grade_many gave {len(grades)} grades for'
        f' {len(given)} completions'
    )
  failed = dict(outcome=False, partial=0.0, status=records.INFRA_ERROR)
  # A grade without a time of its own gets an equal share of the call's.
  share = (time.perf_counter() - start) / len(grades)
  return {
      b: (
          dataclasses.replace(g, **failed) if e.error else g,
          share if g.seconds is None else g.seconds,
      )
      for b, g, e in zip(chosen, grades, given, strict=True)
  }


def rollout_batch(
    domain: base.Domain,
    columns: Sequence[schema.Column],
    asked: records.RequestBatch,
    episodes: Sequence[records.Episode],
    *,
    step: int = 0,
    split: str = 'train',
    version: str = 'seed',
    divided: bool = False,
    stopping: Callable[[], bool] | None = None,
    need_grades: bool = True,
) -> RolloutBatch:
  """Grade the episodes of a request batch and make their evidence rows.

  Args:
    domain: Grades the episodes.
    columns: The declared columns, see `schema.declare`.
    asked: Requests for P problems.
    episodes: B episodes.
    step: Training step that the rows belong to.
    split: 'train', 'dev' or 'sealed'.
    version: Hash of the training harness; 'seed' where there is none.
    divided: See `grade`.
    stopping: See `grade`.
    need_grades: See `grade`.

  Raises:
    ValueError: If a grade does not follow the declaration.
    GradingError: If no episode could be graded.
    preemption.Interrupted: If the run was asked to stop.
  """
  grades, seconds = grade(
      domain,
      asked.problems,
      episodes,
      divided=divided,
      stopping=stopping,
      need_grades=need_grades,
  )
  place = dict(step=step, split=split, version=version)
  rows = rows_lib.from_rollouts(
      asked, episodes, grades, seconds, columns, **place
  )
  return RolloutBatch(asked.prompts, episodes, rows)


def join(batches: Sequence[RolloutBatch]) -> RolloutBatch:
  """Return several batches as one, with consecutive group numbers."""
  chain = lambda parts: list(itertools.chain.from_iterable(parts))
  prompts = chain(b.prompts for b in batches)
  episodes = chain(b.episodes for b in batches)
  rows = {
      name: chain(b.rows[name] for b in batches) for name in batches[0].rows
  }
  # Each round numbers its groups from 0, but they must be unique in a step.
  groups = np.arange(len(prompts), dtype=np.int32)
  rows['group'] = np.repeat(groups, len(episodes) // len(prompts))
  return RolloutBatch(prompts, episodes, rows)
