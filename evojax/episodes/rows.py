"""Conversion between graded episodes and evidence rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
import numpy as np

from evojax import records
from evojax.evidence import schema

# List columns with one value per turn, in the order of the turns.
TURN_COLUMNS = (
    'turn_tokens',
    'observation_tokens',
    'actions',
    'arguments',
    'action_ok',
    'turn_texts',
    'observations',
)


def from_rollouts(
    asked: records.RequestBatch,
    episodes: Sequence[records.Episode],
    grades: Sequence[records.Grade],
    grade_seconds: Sequence[float] | Float[np.ndarray, 'B'],
    columns: Sequence[schema.Column],
    *,
    step: int,
    split: str,
    version: str,
) -> dict[str, Any]:
  """Return B = P * G rows of the columns that sampling and grading fill.

  Args:
    asked: P problems with their rendered prompts.
    episodes: B episodes, group-major: row b is sample b % G of problem b // G.
    grades: B grades.
    grade_seconds: B wall times, in seconds.
    columns: The declared columns, see `schema.declare`. They give the codes of
      statuses and the columns that the domain fills.
    step: Training step that the rows belong to.
    split: 'train', 'dev' or 'sealed'.
    version: Hash of the training harness; 'seed' if there is none.

  Returns:
    Column name -> B values, as `store.write_step` and `views.View` take them.

  Raises:
    ValueError: If lengths are inconsistent, or a grade does not follow the
      declaration.
  """
  problems, prompts, rows = asked.problems, asked.prompts, len(episodes)
  lengths = len(problems), len(prompts), rows, len(grades), len(grade_seconds)
  group_size = rows // max(len(problems), 1)
  if lengths != (len(problems),) * 2 + (len(problems) * group_size,) * 3:
    raise ValueError(
        'rows need as many prompts as problems and, for every episode of whole'
        ' groups, a grade and a time; given are (problems, prompts, episodes,'
        f' grades, times) = {lengths}'
    )
  repeat = lambda values: [v for v in values for _ in range(group_size)]
  integers = lambda values: np.fromiter(values, np.int32, rows)
  numbers = lambda values: np.fromiter(values, np.float32, rows)
  flags = lambda values: np.fromiter(values, bool, rows)
  masks = [e.loss_mask for e in episodes]
  return {
      'problem_id': repeat(p.problem_id for p in problems),
      'family': repeat(p.family for p in problems),
      'group': integers(b // group_size for b in range(rows)),
      'sample': integers(b % group_size for b in range(rows)),
      'version': [version] * rows,
      'policy_version': integers(e.policy_version for e in episodes),
      'step': np.full(rows, step, np.int32),
      'split': [split] * rows,
      'seed': np.full(rows, asked.seed, np.int64),
      'n_tokens': integers(mask.sum() for mask in masks),
      'n_turns': integers(len(e.turns) for e in episodes),
      'truncated': flags(e.finish_reason == 'length' for e in episodes),
      'finish_reason': integers(
          schema.FINISH_REASON[e.finish_reason] for e in episodes
      ),
      'mean_logprob': numbers(
          e.logprobs[mask].mean() if mask.any() else 0.0
          for e, mask in zip(episodes, masks, strict=True)
      ),
      **_turn_columns(episodes),
      'outcome': flags(g.outcome for g in grades),
      'partial': numbers(g.partial for g in grades),
      'grade_status': _status(grades, columns),
      'graded': flags(g.graded for g in grades),
      'sandbox_tier': integers(
          schema.SANDBOX_TIER[g.sandbox_tier or 'none'] for g in grades
      ),
      'grade_seconds': numbers(grade_seconds),
      'prompt_tokens': repeat(np.asarray(p, np.int32) for p in prompts),
      'tokens': [e.tokens for e in episodes],
      'sampler_logprobs': [e.logprobs for e in episodes],
      'prompt': repeat(p.question for p in problems),
      'completion': [e.text for e in episodes],
      **_domain_columns(grades, columns),
  }


def _turn_columns(episodes: Sequence[records.Episode]) -> dict[str, list[Any]]:
  """Return the columns with one value per turn.

  The lists of an episode of one turn that calls no tool are empty: `n_tokens`
  already has the information, and most files hold only such episodes.

  Raises:
    ValueError: If only some turns of an episode have an action code.
  """
  found = {name: [] for name in TURN_COLUMNS}
  for e in episodes:
    turns = e.turns
    called = [turn.action is not None for turn in turns]
    if any(called) and not all(called):
      raise ValueError(
          f'an episode has {sum(called)} actions for {len(turns)} turns; give'
          ' turns without a tool call a code of their own'
      )
    plain = len(turns) == 1 and not turns[0].observed and not called[0]
    spans = () if plain else turns
    calls = turns if any(called) else ()
    for name, values in (
        ('turn_tokens', [t.sampled for t in spans]),
        ('observation_tokens', [t.observed for t in spans]),
        ('actions', [t.action for t in calls]),
        ('arguments', [t.argument or 0 for t in calls]),
    ):
      found[name].append(np.array(values, np.int32))
    found['action_ok'].append(np.array([t.ok for t in calls], bool))
    found['turn_texts'].append([t.text for t in spans])
    found['observations'].append([t.observation for t in spans])
  return found


def to_episodes(rows: Mapping[str, Any]) -> list[records.Episode]:
  """Return the episodes of rows that were read from evidence.

  Older evidence lacks the columns of turns: its rows are episodes of one turn.

  Args:
    rows: Column -> B values, with tokens and sampler_logprobs.
  """
  # Codes back to names: an episode holds no codes of the evidence.
  reasons = {code: name for name, code in schema.FINISH_REASON.items()}
  absent = [None] * len(rows['tokens'])
  lists = [rows.get(name, absent) for name in TURN_COLUMNS]
  episodes = []
  for i in range(len(absent)):
    found = [
        [] if values[i] is None else np.asarray(values[i]).tolist()
        for values in lists
    ]
    sampled, observed, actions, arguments, ok, texts, answers = found
    count = len(sampled)
    turns = [
        records.Turn(*values)
        for values in zip(
            sampled,
            observed,
            texts or [''] * count,
            actions or [None] * count,
            arguments or [None] * count,
            ok or [True] * count,
            answers or [''] * count,
            strict=True,
        )
    ]
    episodes.append(
        records.Episode(
            tokens=np.asarray(rows['tokens'][i], np.int32),
            logprobs=np.asarray(rows['sampler_logprobs'][i], np.float32),
            finish_reason=reasons[int(rows['finish_reason'][i])],
            policy_version=int(rows['policy_version'][i]),
            text=rows['completion'][i],
            turns=tuple(turns),
        )
    )
  return episodes


def _status(
    grades: Sequence[records.Grade], columns: Sequence[schema.Column]
) -> np.ndarray:
  """Return the codes of the grades' statuses.

  Raises:
    ValueError: If the domain's code table lacks one.
  """
  codes = schema.codes_of(columns, 'grade_status')
  unknown = {grade.status for grade in grades} - set(codes)
  if unknown:
    raise ValueError(
        f'a grade has status {min(unknown)!r}, which the code table of the'
        f' domain lacks: {codes}. Put schema.with_codes('
        "'grade_status', {NAME: CODE, ...}) into the domain's columns"
    )
  return np.array([codes[grade.status] for grade in grades], np.int32)


def _domain_columns(
    grades: Sequence[records.Grade], columns: Sequence[schema.Column]
) -> dict[str, list[Any]]:
  """Return the columns that the domain's grader fills.

  Raises:
    ValueError: If a grade lacks a column, or has an undeclared one.
  """
  core = {column.name for column in schema.CORE}
  own = {
      column.name: column.nullable
      for column in columns
      if column.name not in core
      and not column.name.startswith(schema.PART_PREFIX)
  }
  # A grade fills all columns of its domain: a gap would be read as a value.
  required = {name for name, nullable in own.items() if not nullable}
  for grade in grades:
    missing = sorted(required - grade.columns.keys())
    unknown = sorted(grade.columns.keys() - own)
    if missing or unknown:
      raise ValueError(
          f'Grade.columns: {missing=} {unknown=}; a grade fills exactly the'
          ' columns that the domain declares in its `columns`, here'
          f' {sorted(own)}'
      )
  return {name: [g.columns.get(name) for g in grades] for name in own}
