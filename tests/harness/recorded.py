"""Evidence for the tests of the harness: P groups of G completions."""

import numpy as np

from evojax.domains.math import grade
from evojax.evidence import schema
from evojax.evidence import views

# Shipped parts of the reward that read what agents did: math has no such
# columns.
OF_AGENTS = tuple(
    f'reward/{name}.py'
    for name in (
        'edit_streak',
        'fail_to_pass',
        'few_turns',
        'searched_first',
        'tested_edit',
    )
)
# The one that reads the score of config.domain.judge.
OF_JUDGES = 'reward/judge.py'


def view(
    *,
    prompts=2,
    group_size=3,
    reader='diagnostic',
    valid=None,
    parts=(),
    max_tokens=64,
    columns=grade.COLUMNS,
    lists=None,
    **given,
):
  """A view; columns that are not given are filled with random numbers.

  The domain's columns are those of math, where none are given; `lists` are
  those with several values per row.
  """
  rng = np.random.default_rng(prompts * group_size)
  columns = schema.declare(columns, parts)
  rows = {}
  count = prompts * group_size
  for column in columns:
    if column.shape:
      value = [np.zeros(2, 'bool' if column.dtype == 'bool' else 'int32')]
      rows[column.name] = value * count
    elif column.dtype == 'string':
      rows[column.name] = ['text'] * count
    elif column.dtype == 'bool':
      rows[column.name] = rng.random(count) < 0.5
    elif column.dtype == 'float32':
      rows[column.name] = -rng.random(count).astype(np.float32)
    else:
      rows[column.name] = rng.integers(0, 2, count).astype(np.int32)
  rows['graded'] = np.ones(count, bool)
  rows['group'] = np.repeat(np.arange(prompts), group_size)
  rows['sample'] = np.tile(np.arange(group_size), prompts)
  rows['n_turns'] = np.ones(count, np.int32)
  for name, values in (lists or {}).items():
    rows[name] = [np.asarray(value) for value in values]
  for name, value in given.items():
    kind = next(c.dtype for c in columns if c.name == name)
    rows[name] = np.asarray(value, str if kind == 'string' else kind).ravel()
  return views.View(
      rows,
      columns,
      prompts=prompts,
      group_size=group_size,
      max_tokens=max_tokens,
      reader=reader,
      valid=None if valid is None else np.asarray(valid).reshape(-1),
  )
