"""Evidence rows of graded completions, of training and evaluation alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
import numpy as np

from evojax import records
from evojax.evidence import schema


def from_rollouts(
    problems: Sequence[records.Problem],
    completions: Sequence[records.Episode],
    grades: Sequence[records.Grade],
    *,
    columns: Sequence[schema.Column],
    group_size: int,
    step: int,
    split: str,
    seed: int,
    version: str,
    prompt_tokens: Sequence[Sequence[int]],
    grade_seconds: Sequence[float] | Float[np.ndarray, 'B'],
) -> dict[str, Any]:
  """Columns of the stages identity, sample and grade, B = P * G rows.

  Args:
    problems: P problems.
    completions: B, group-major: row b is sample b % G of problem b // G.
    grades: B.
    columns: The declaration, see `schema.declare`. It says how a status is
      coded and which columns the domain fills.
    group_size: G.
    step: Training step that the rows belong to.
    split: 'train', 'dev' or 'sealed'.
    seed: Seed of the requests.
    version: Training-harness version; 'seed' before any evolution.
    prompt_tokens: P rendered prompts.
    grade_seconds: B wall times, in seconds.

  Returns:
    Column name -> B values, what `store.write_step` and `views.View` take.

  Raises:
    ValueError: If lengths do not fit, or a grade does not follow the
      declaration.
  """
  prompts = len(problems)
  rows = prompts * group_size
  lengths = (
      *(len(x) for x in (completions, grades, grade_seconds)),
      len(prompt_tokens) * group_size,
  )
  if set(lengths) != {rows}:
    raise ValueError(
        f'{prompts} problems x {group_size=} need {rows} completions, grades'
        f' and times, and {prompts} prompts; given are enough for {lengths}'
    )
  repeat = lambda values: [v for v in values for _ in range(group_size)]
  integers = lambda values: np.fromiter(values, np.int32, rows)
  numbers = lambda values: np.fromiter(values, np.float32, rows)
  flags = lambda values: np.fromiter(values, bool, rows)
  none = np.zeros(0, np.int32)
  return {
      'problem_id': repeat(p.problem_id for p in problems),
      'family': repeat(p.family for p in problems),
      'group': integers(b // group_size for b in range(rows)),
      'sample': integers(b % group_size for b in range(rows)),
      'version': [version] * rows,
      'policy_version': integers(c.policy_version for c in completions),
      'step': np.full(rows, step, np.int32),
      'split': [split] * rows,
      'seed': np.full(rows, seed, np.int64),
      'n_tokens': integers(len(c.tokens) for c in completions),
      'n_turns': np.ones(rows, np.int32),
      'truncated': flags(c.finish_reason == 'length' for c in completions),
      'finish_reason': integers(
          schema.FINISH_REASON[c.finish_reason] for c in completions
      ),
      'mean_logprob': numbers(
          c.logprobs.mean() if len(c.logprobs) else 0.0 for c in completions
      ),
      # One turn, no tools.
      'actions': [none] * rows,
      'arguments': [none] * rows,
      'action_ok': [none.astype(bool)] * rows,
      'outcome': flags(g.outcome for g in grades),
      'partial': numbers(g.partial for g in grades),
      'grade_status': _status(grades, columns),
      'graded': flags(g.graded for g in grades),
      'sandbox_tier': integers(
          schema.SANDBOX_TIER[g.sandbox_tier or 'none'] for g in grades
      ),
      'grade_seconds': numbers(grade_seconds),
      'prompt_tokens': repeat(np.asarray(p, np.int32) for p in prompt_tokens),
      'tokens': [c.tokens for c in completions],
      'sampler_logprobs': [c.logprobs for c in completions],
      'prompt': repeat(p.question for p in problems),
      'completion': [c.text for c in completions],
      **_domain_columns(grades, columns),
  }


def _status(
    grades: Sequence[records.Grade], columns: Sequence[schema.Column]
) -> np.ndarray:
  """Codes of the statuses.

  Raises:
    ValueError: If the domain's code table lacks one.
  """
  column = next(column for column in columns if column.name == 'grade_status')
  codes = column.codes or {}
  unknown = {grade.status for grade in grades} - set(codes)
  if unknown:
    raise ValueError(
        f'a grade has status {min(unknown)!r}, which the code table of the'
        f' domain lacks: {dict(codes)}. Put schema.with_codes('
        "'grade_status', {NAME: CODE, ...}) into the domain's columns"
    )
  return np.array([codes[grade.status] for grade in grades], np.int32)


def _domain_columns(
    grades: Sequence[records.Grade], columns: Sequence[schema.Column]
) -> dict[str, list[Any]]:
  """What the domain's grader filled.

  Raises:
    ValueError: If a grade lacks a column, or has an undeclared one.
  """
  core = {column.name for column in schema.CORE}
  own: Mapping[str, schema.Column] = {
      column.name: column
      for column in columns
      if column.name not in core
      and not column.name.startswith(schema.PART_PREFIX)
  }
  required = {name for name, column in own.items() if not column.nullable}
  for grade in grades:
    missing = sorted(required - set(grade.columns))
    unknown = sorted(set(grade.columns) - set(own))
    if missing or unknown:
      raise ValueError(
          f'Grade.columns: {missing=} {unknown=}; a grade fills exactly the'
          ' columns that the domain declares in its `columns`, here'
          f' {sorted(own)}'
      )
  return {name: [g.columns.get(name) for g in grades] for name in own}
