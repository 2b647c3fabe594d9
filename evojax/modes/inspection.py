"""--mode=inspect: the evidence of runs, in a terminal.

Without a problem, one row per problem shows its solved share at each
evaluation. With one, every completion of it is shown, across steps or runs, and
token by token if asked. Only evidence is read, so the run may still be going
on.
"""

import bisect
from collections.abc import Callable, Sequence
import io
import math
import os
import sys
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich import console as rich_console
from rich import markup
from rich import table as rich_table

from evojax.evidence import schema
from evojax.evidence import store
from evojax.runtime import progress

_SUMMARY_COLUMNS = 'problem_id family prompt step sample outcome graded'.split()
_SAMPLE_COLUMNS = (
    'policy_version reward advantage kept n_tokens finish_reason mean_logprob'
    ' completion'.split()
)
_TOKEN_COLUMNS = 'prompt_tokens tokens sampler_logprobs'.split()
_KEYS = 'problem_id family prompt point'.split()
_FINISH = {code: name for name, code in schema.FINISH_REASON.items()}
_MAX_POINTS = 8  # Evaluations side by side in a table.
# Colours of a token's probability, by lower bounds.
_BOUNDS, _COLOURS = (0.1, 0.5, 0.9), ('red', 'dark_orange', 'yellow', 'default')
# The look of a table's columns by heading; numbers stand on the right.
_LOOKS = {
    **dict.fromkeys(('#', 't', 'sample'), dict(justify='right', style='dim')),
    'problem': dict(style='cyan', no_wrap=True),
    'family': dict(no_wrap=True),
    'question': dict(overflow='ellipsis', no_wrap=True, ratio=1),
    'token': dict(no_wrap=True),
    'solved': dict(justify='center'),
    'end': {},
    'completion': dict(overflow='fold'),
}
_CELLS = 'sample solved reward advantage tokens log-prob end completion'.split()


def _labels(workdirs: Sequence[str]) -> list[str]:
  """Return the shortest distinct names of the runs."""
  paths = [os.path.abspath(workdir) for workdir in workdirs]
  names = [os.path.basename(path) for path in paths]
  return names if len(set(names)) == len(names) else paths


def _load(
    workdirs: Sequence[str], split: str, columns: Sequence[str]
) -> pd.DataFrame:
  """Return the evidence of all runs, with the columns `run` and `point`.

  A point is one step of one run. Points are numbered in the order of the runs
  and, within a run, of the steps. Rows that could not be graded are left out.
  """
  frames = []
  for workdir, label in zip(workdirs, _labels(workdirs), strict=True):
    if not store.list_steps(workdir, split):
      there = ', '.join(store.splits(workdir)) or 'none'
      raise ValueError(
          f'no evidence of split {split!r} in {workdir}; splits there: {there}'
      )
    frame = store.read(workdir, split, columns=columns)
    frames.append(frame[frame['graded']].assign(run=label))
  data = pd.concat(frames, ignore_index=True)
  points = data.groupby(['run', 'step'], sort=False)
  return data.assign(point=points.ngroup())


def _point_names(data: pd.DataFrame) -> dict[int, str]:
  """Return point -> 'step 10', with the run's name if there are several."""
  several = data['run'].nunique() > 1
  return {
      row.point: f'{row.run} ' * several + f'step {row.step}'
      for row in data.drop_duplicates('point').itertuples()
  }


def _ends(data: pd.DataFrame) -> tuple[int, int]:
  """Return the two points that flips compare.

  They are the first and the last step of one run, or the last steps of the
  first and the last of several runs.
  """
  last = data.groupby('run', sort=False)['point'].max().tolist()
  before = last[0] if len(last) > 1 else int(data['point'].min())
  if before == last[-1]:
    raise ValueError(
        'flips compare two evaluations, and there is one; pass two workdirs or'
        ' evaluate more often (--config.eval.every)'
    )
  return before, last[-1]


def _pick(data: pd.DataFrame, problem: str) -> str:
  """Return the problem_id that an index of the overview or a prefix names."""
  ids = data['problem_id'].drop_duplicates().tolist()
  # Ids have 16 digits, so a short decimal number is an index.
  if problem.isdecimal() and len(problem) <= 5 and int(problem) < len(ids):
    return ids[int(problem)]
  found = [each for each in ids if each.startswith(problem)]
  if len(found) == 1:
    return found[0]
  what = f'names {len(found)} problems' if found else 'names no problem'
  raise ValueError(
      f'{problem=} {what}; pass an index 0..{len(ids) - 1} or more of an id,'
      f' such as {", ".join((found or ids)[:3])}'
  )


def _shares(data: pd.DataFrame) -> pd.DataFrame:
  """Return the solved share per problem (in order of appearance) and point.

  The index holds what a table shows of a problem: id, family and prompt.
  """
  return data.groupby(_KEYS, sort=False)['outcome'].mean().unstack()


def _number(value: Any, form: str) -> str:
  return '-' if value is None or pd.isna(value) else format(float(value), form)


def _one_line(text: str) -> str:
  """Return text on one line, with control characters made visible.

  A sampled text may hold escape sequences, which would control the terminal.
  """
  text = ' '.join(text.split())
  return markup.escape(
      ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)
  )


def _signed(value: Any) -> str:
  """Return a number coloured by its sign."""
  text = _number(value, '+.2f')
  if text == '-' or float(text) == 0:
    return text
  return f'[{"green" if float(text) > 0 else "red"}]{text}[/]'


def _logprob(value: float) -> str:
  """Return a log-prob; the less likely the token was, the redder it is."""
  colour = _COLOURS[bisect.bisect(_BOUNDS, math.exp(value))]
  return f'[{colour}]{value:.3f}[/]'


def _table(
    console: rich_console.Console, title: str, headings: Sequence[str]
) -> rich_table.Table:
  table = rich_table.Table(
      expand='question' in headings,
      title=title or None,
      title_justify='left',
      title_style='bold',
      box=box.SIMPLE_HEAD if console.is_terminal else None,
      header_style='bold' if console.is_terminal else '',
      pad_edge=False,
  )
  number = dict(justify='right')
  for name in headings:
    table.add_column(name, min_width=len(name), **_LOOKS.get(name, number))
  return table


def _print_rest(
    console: rich_console.Console, limit: int, total: int, rows: str
) -> None:
  """Say how many rows a table leaves out, if it does."""
  if total > limit:
    console.print(f'{limit} of {total} {rows}; a higher --limit shows more')


def _show_overview(
    console: rich_console.Console, data: pd.DataFrame, limit: int
) -> None:
  """Print one row per problem with its solved share at each point."""
  shares = _shares(data)
  names = _point_names(data)
  # At most _MAX_POINTS, spread evenly from the first to the last.
  shown = np.linspace(0, len(names) - 1, min(len(names), _MAX_POINTS)).round()
  points = [sorted(names)[int(index)] for index in shown]
  heads = [names[point] for point in points]
  if data['run'].nunique() == 1:
    heads = [head.removeprefix('step ') for head in heads]
  title = f'{len(shares)} problems, share solved by step'
  headings = ['#', 'problem', 'family', *heads, 'question']
  table = _table(console, title, headings)
  for index, (problem, row) in enumerate(shares.head(limit).iterrows()):
    problem_id, family, prompt = problem
    cells = (_number(share, '.0%') for share in row[points])
    table.add_row(str(index), problem_id, family, *cells, _one_line(prompt))
  mean = shares.mean()[points]
  table.add_section()
  table.add_row('', 'mean', '', *(_number(each, '.1%') for each in mean), '')
  console.print(table)
  _print_rest(console, limit, len(shares), 'problems')


def _show_flips(
    console: rich_console.Console, data: pd.DataFrame, limit: int
) -> None:
  """Print the problems whose solved share changed most between two points."""
  before, after = _ends(data)
  names = _point_names(data)
  shares = _shares(data)[[before, after]].dropna()
  if shares.empty:
    raise ValueError(
        f'{names[before]} and {names[after]} have no problem in common'
    )
  change = shares[after] - shares[before]
  counts = data.groupby(_KEYS)['outcome'].agg(['sum', 'count'])
  up, down = int((change > 0).sum()), int((change < 0).sum())
  console.print(
      f'[bold]{names[before]} → {names[after]}[/]: {len(shares)} problems in'
      f' both, solved {shares[before].mean():.1%} → {shares[after].mean():.1%};'
      f' [green]{up} up[/], [red]{down} down[/],'
      f' {len(shares) - up - down} unchanged'
  )
  # The largest change comes first; ids fix the order of equal changes.
  order = sorted(
      change[change != 0].items(), key=lambda item: (-abs(item[1]), item[0])
  )
  headings = 'problem family before after change question'.split()
  table = _table(console, '', headings)
  for problem, gain in order[:limit]:
    problem_id, family, prompt = problem
    ends = (counts.loc[(*problem, point)] for point in (before, after))
    cells = (f'{int(solved)}/{count}' for solved, count in ends)
    table.add_row(problem_id, family, *cells, _signed(gain), _one_line(prompt))
  if order:
    console.print(table)
  _print_rest(console, limit, len(order), 'changed problems')


def _only_flipped(data: pd.DataFrame) -> pd.DataFrame:
  """Return the samples whose outcome differs between the two ends."""
  before, after = _ends(data)
  ends = data[data['point'].isin((before, after))]
  return ends[ends.groupby('sample')['outcome'].transform('nunique') > 1]


def _token_text(token: int, decode: Callable[[list[int]], str] | None) -> str:
  """Return a token as text with visible whitespace; without text, its id."""
  text = decode([token]) if decode is not None else ''
  return markup.escape(repr(text)[1:-1]) if text else f'<{token}>'


def _show_tokens(
    console: rich_console.Console,
    row: Any,
    decode: Callable[[list[int]], str] | None,
) -> None:
  """Print the tokens of one completion; sampled ones (mask 1) are trained."""
  start = len(row.prompt_tokens)
  prompt = ''.join(_token_text(int(t), decode) for t in row.prompt_tokens)
  console.print(f'[dim]t 0..{start - 1}, mask 0:[/] {prompt}')
  last = start + len(row.tokens) - 1
  sampled = zip(row.tokens, row.sampler_logprobs, strict=True)
  lines = [
      (
          str(t),
          _token_text(int(token), decode),
          '1',
          _logprob(float(logprob)),
          # The completion's reward stands at its last token.
          _number(row.reward, '.3f') if t == last else '',
          _signed(row.advantage),
      )
      for t, (token, logprob) in enumerate(sampled, start)
  ]
  # Blocks stand side by side in a wide terminal. Elsewhere one token is one
  # line, for grep.
  columns = max(1, console.width // 60) if console.is_terminal else 1
  height = -(-len(lines) // columns)
  headings = 't token mask log-prob reward advantage'.split()
  blocks = []
  for first in range(0, len(lines), max(height, 1)):
    blocks.append(_table(console, '', headings))
    for line in lines[first : first + height]:
      blocks[-1].add_row(*line)
  grid = rich_table.Table.grid(padding=(0, 4))
  grid.add_row(*blocks)
  console.print(grid)


def _show_problem(
    console: rich_console.Console,
    data: pd.DataFrame,
    *,
    flips: bool,
    tokens: bool,
    limit: int,
    decode: Callable[[list[int]], str] | None,
) -> None:
  """Print all completions of one problem, point by point."""
  first = data.iloc[0]
  console.print(f'[bold cyan]{first.problem_id}[/] {first.family}')
  console.print(f'[italic]{_one_line(first.prompt)}[/]')
  names = _point_names(data)
  solved = data.groupby('point')['outcome'].mean().tolist()
  if len(solved) > 1:
    console.print(
        f'solved [cyan]{progress.sparkline(solved, 60)}[/] {solved[0]:.0%} →'
        f' {solved[-1]:.0%}'
    )
  if flips:
    data = _only_flipped(data)
    if data.empty:
      console.print('no sample of this problem changed its outcome')
      return
  each = max(1, limit // data['point'].nunique())
  for point, rows in data.groupby('point'):
    title = (
        f'{names[point]}, policy version {rows.iloc[0].policy_version}: solved'
        f' {int(rows["outcome"].sum())}/{len(rows)}'
        f'{" of the samples that changed" if flips else ""}'
    )
    console.print()
    table = _table(console, title, _CELLS)
    for row in rows.head(each).itertuples():
      table.add_row(
          str(row.sample),
          '[green]✓[/]' if row.outcome else '[red]✗[/]',
          _number(row.reward, '.3f'),
          _signed(row.advantage),
          str(row.n_tokens),
          _logprob(row.mean_logprob),
          _FINISH[row.finish_reason],
          _one_line(row.completion),
      )
      if tokens:
        console.print(table)
        _show_tokens(console, row, decode)
        table = _table(console, title, _CELLS)
    if not tokens:
      console.print(table)
    _print_rest(console, each, len(rows), 'samples')


def run(
    workdirs: Sequence[str],
    *,
    problem: str = '',
    split: str = 'dev',
    flips: bool = False,
    tokens: bool = False,
    limit: int = 20,
    decode: Callable[[list[int]], str] | None = None,
    out: io.TextIOBase | None = None,
) -> None:
  """Print problems, one problem, or what changed.

  Args:
    workdirs: One run, or several to compare.
    problem: Index in the overview, or the start of a problem_id; empty shows
      all problems.
    split: Split whose evidence is read.
    flips: Only problems (or samples of the problem) whose outcome changed
      between the first and the last step of a run, or, with several runs,
      between the last steps of the first and the last run.
    tokens: Show each token with its mask, log-prob, reward and advantage; only
      with a problem.
    limit: The most rows of a table.
    decode: Text of token ids; without it their numbers are shown.
    out: Where to print, stdout by default. Colours only in a terminal.

  Raises:
    ValueError: If there is no such evidence or problem.
  """
  if tokens and not problem:
    raise ValueError('tokens are shown of one problem; name a problem as well')
  columns = [*_SUMMARY_COLUMNS]
  columns += _SAMPLE_COLUMNS * bool(problem) + _TOKEN_COLUMNS * tokens
  data = _load(workdirs, split, columns)
  out = out or sys.stdout
  terminal = out.isatty()
  console = rich_console.Console(
      file=out,
      force_terminal=terminal,
      no_color=not terminal,
      highlight=False,
      width=None if terminal else 160,
  )
  if problem:
    chosen = data[data['problem_id'] == _pick(data, problem)]
    _show_problem(
        console, chosen, flips=flips, tokens=tokens, limit=limit, decode=decode
    )
  elif flips:
    _show_flips(console, data, limit)
  else:
    _show_overview(console, data, limit)
