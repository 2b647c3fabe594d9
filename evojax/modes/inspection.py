"""--mode=inspect: the evidence of runs, in a terminal.

Without a problem, one row per problem shows its solved share at each
evaluation. With one, every completion of it is shown, across steps or runs, and
token by token if asked. Only evidence is read, so the run may still be going
on.
"""

from collections.abc import Callable, Sequence
import io
import math
import os
import pathlib
import sys
from typing import Any

import pandas as pd
from rich import box
from rich import console as rich_console
from rich import markup
from rich import table as rich_table

from evojax.evidence import schema
from evojax.evidence import store
from evojax.runtime import progress

_SUMMARY_COLUMNS = (
    'problem_id',
    'family',
    'prompt',
    'step',
    'sample',
    'outcome',
    'graded',
)
_SAMPLE_COLUMNS = (
    *_SUMMARY_COLUMNS,
    'policy_version',
    'reward',
    'advantage',
    'kept',
    'n_tokens',
    'finish_reason',
    'mean_logprob',
    'completion',
)
_TOKEN_COLUMNS = ('prompt_tokens', 'tokens', 'sampler_logprobs')
_FINISH = {code: name for name, code in schema.FINISH_REASON.items()}
_MAX_POINTS = 8  # Evaluations side by side in a table.


def _labels(workdirs: Sequence[str]) -> list[str]:
  """The shortest distinct names of the runs."""
  paths = [pathlib.Path(os.path.abspath(w)) for w in workdirs]
  names = [path.name for path in paths]
  if len(set(names)) < len(names):
    return [str(path) for path in paths]
  return names


def _load(
    workdirs: Sequence[str], split: str, columns: Sequence[str]
) -> pd.DataFrame:
  """Evidence of all runs, with the columns `run` and `point` added.

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
  points = data[['run', 'step']].drop_duplicates().itertuples(index=False)
  index = {tuple(point): i for i, point in enumerate(points)}
  keys = zip(data['run'], data['step'], strict=True)
  return data.assign(point=[index[key] for key in keys])


def _point_names(data: pd.DataFrame) -> dict[int, str]:
  """Point -> 'step 10', with the run's name where there are several."""
  firsts = data.drop_duplicates('point')
  several = data['run'].nunique() > 1
  return {
      row.point: f'{row.run} step {row.step}' if several else f'step {row.step}'
      for row in firsts.itertuples()
  }


def _ends(data: pd.DataFrame) -> tuple[int, int]:
  """The two points that flips compare.

  These are the first and the last step of one run, or the last steps of the
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
  """The problem_id that an index of the overview or an id prefix names."""
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
  """Solved share per problem (rows, in order of appearance) and point."""
  return (
      data.groupby(['problem_id', 'point'], sort=False)['outcome']
      .mean()
      .unstack()
  )


def _number(value: Any, form: str) -> str:
  return '-' if value is None or pd.isna(value) else format(float(value), form)


def _one_line(text: str) -> str:
  """Text without line breaks and with control characters made visible.

  A sampled text may hold escape sequences, which would control the terminal.
  """
  text = ' '.join(text.split())
  return markup.escape(
      ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)
  )


def _signed(value: Any) -> str:
  """A number coloured by its sign."""
  text = _number(value, '+.2f')
  if text == '-' or float(text) == 0:
    return text
  return f'[{"green" if float(text) > 0 else "red"}]{text}[/]'


def _logprob(value: float) -> str:
  """A log-prob; the less likely the token was, the redder it is."""
  share = min(max(math.exp(value), 0.0), 1.0)
  colour = next(
      name
      for bound, name in (
          (0.9, 'default'),
          (0.5, 'yellow'),
          (0.1, 'dark_orange'),
          (0, 'red'),
      )
      if share >= bound
  )
  return f'[{colour}]{value:.3f}[/]'


def _mark(solved: bool) -> str:
  return '[green]✓[/]' if solved else '[red]✗[/]'


def _table(
    console: rich_console.Console, title: str = '', *, expand: bool = False
) -> rich_table.Table:
  return rich_table.Table(
      expand=expand,
      title=title or None,
      title_justify='left',
      title_style='bold',
      box=box.SIMPLE_HEAD if console.is_terminal else None,
      header_style='bold' if console.is_terminal else '',
      pad_edge=False,
  )


def _thinned(points: Sequence[int]) -> list[int]:
  """At most _MAX_POINTS of the points, spread evenly from first to last."""
  if len(points) <= _MAX_POINTS:
    return list(points)
  gap = (len(points) - 1) / (_MAX_POINTS - 1)
  return [points[round(i * gap)] for i in range(_MAX_POINTS)]


def _show_overview(
    console: rich_console.Console, data: pd.DataFrame, limit: int
) -> None:
  """Print one row per problem with its solved share at each point."""
  shares = _shares(data)
  names = _point_names(data)
  points = _thinned(sorted(names))
  several = data['run'].nunique() > 1
  facts = data.drop_duplicates('problem_id').set_index('problem_id')
  table = _table(
      console, f'{len(shares)} problems, share solved by step', expand=True
  )
  table.add_column('#', justify='right', style='dim')
  table.add_column('problem', style='cyan', no_wrap=True)
  table.add_column('family', no_wrap=True)
  for point in points:
    head = names[point] if several else names[point].removeprefix('step ')
    table.add_column(head, justify='right')
  table.add_column('question', overflow='ellipsis', no_wrap=True, ratio=1)
  for index, (problem_id, row) in enumerate(shares.head(limit).iterrows()):
    fact = facts.loc[problem_id]
    table.add_row(
        str(index),
        problem_id,
        fact['family'],
        *(_number(row[point], '.0%') for point in points),
        _one_line(fact['prompt']),
    )
  mean = shares.mean()
  table.add_section()
  table.add_row(
      '', 'mean', '', *(_number(mean[point], '.1%') for point in points), ''
  )
  console.print(table)
  if len(shares) > limit:
    console.print(
        f'{limit} of {len(shares)} problems; a higher --limit shows more'
    )


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
  counts = data.groupby(['problem_id', 'point'])['outcome'].agg(
      ['sum', 'count']
  )
  up, down = int((change > 0).sum()), int((change < 0).sum())
  console.print(
      f'[bold]{names[before]} → {names[after]}[/]: {len(shares)} problems in'
      f' both, solved {shares[before].mean():.1%} → {shares[after].mean():.1%};'
      f' [green]{up} up[/], [red]{down} down[/],'
      f' {len(shares) - up - down} unchanged',
      highlight=False,
  )
  changed = change[change != 0]
  # The largest change comes first; ids fix the order of equal changes.
  order = sorted(changed.index, key=lambda name: (-abs(changed[name]), name))
  facts = data.drop_duplicates('problem_id').set_index('problem_id')
  table = _table(console, expand=True)
  table.add_column('problem', style='cyan', no_wrap=True)
  table.add_column('family', no_wrap=True)
  table.add_column('before', justify='right')
  table.add_column('after', justify='right')
  table.add_column('change', justify='right')
  table.add_column('question', overflow='ellipsis', no_wrap=True, ratio=1)
  for problem_id in order[:limit]:
    cells = []
    for point in (before, after):
      solved, count = counts.loc[(problem_id, point)]
      cells.append(f'{int(solved)}/{count}')
    table.add_row(
        problem_id,
        facts.loc[problem_id, 'family'],
        *cells,
        _signed(changed[problem_id]),
        _one_line(facts.loc[problem_id, 'prompt']),
    )
  if order:
    console.print(table)
  if len(order) > limit:
    console.print(
        f'{limit} of {len(order)} changed problems; a higher --limit shows more'
    )


def _only_flipped(data: pd.DataFrame) -> pd.DataFrame:
  """Rows of the samples whose outcome differs between the two ends."""
  before, after = _ends(data)
  ends = data[data['point'].isin((before, after))]
  kinds = ends.groupby('sample')['outcome'].nunique()
  flipped = kinds.index[kinds > 1]
  return ends[ends['sample'].isin(flipped)]


def _token_text(token: int, decode: Callable[[list[int]], str] | None) -> str:
  """A token as text with visible whitespace; its id where it has none."""
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
  console.print(f'[dim]t 0..{start - 1}, mask 0:[/] {prompt}', highlight=False)
  lines = [
      (
          str(start + index),
          _token_text(int(token), decode),
          '1',
          _logprob(float(logprob)),
          # The completion's reward stands at its last token.
          _number(row.reward, '.3f') if index == len(row.tokens) - 1 else '',
          _signed(row.advantage),
      )
      for index, (token, logprob) in enumerate(
          zip(row.tokens, row.sampler_logprobs, strict=True)
      )
  ]
  # Blocks stand side by side in a wide terminal. Elsewhere one token is one
  # line, for grep.
  columns = max(1, console.width // 60) if console.is_terminal else 1
  height = -(-len(lines) // columns)
  grid = rich_table.Table.grid(padding=(0, 4))
  blocks = []
  for first in range(0, len(lines), max(height, 1)):
    block = _table(console)
    block.add_column('t', justify='right', style='dim')
    block.add_column('token', no_wrap=True)
    for name in ('mask', 'log-prob', 'reward', 'advantage'):
      block.add_column(name, justify='right', min_width=len(name))
    for line in lines[first : first + height]:
      block.add_row(*line)
    blocks.append(block)
  grid.add_row(*blocks)
  console.print(grid)


def _sample_table(
    console: rich_console.Console, title: str
) -> rich_table.Table:
  table = _table(console, title)
  table.add_column('sample', justify='right', style='dim')
  table.add_column('solved', justify='center')
  for name in ('reward', 'advantage', 'tokens', 'log-prob'):
    table.add_column(name, justify='right')
  table.add_column('end')
  table.add_column('completion', overflow='fold')
  return table


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
  console.print(
      f'[bold cyan]{first.problem_id}[/] {first.family}', highlight=False
  )
  console.print(f'[italic]{_one_line(first.prompt)}[/]', highlight=False)
  names = _point_names(data)
  solved = data.groupby('point')['outcome'].mean().tolist()
  if len(solved) > 1:
    console.print(
        f'solved [cyan]{progress.sparkline(solved, 60)}[/] {solved[0]:.0%} →'
        f' {solved[-1]:.0%}',
        highlight=False,
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
    table = _sample_table(console, title)
    for row in rows.head(each).itertuples():
      cells = (
          str(row.sample),
          _mark(row.outcome),
          _number(row.reward, '.3f'),
          _signed(row.advantage),
          str(row.n_tokens),
          _logprob(row.mean_logprob),
          _FINISH[row.finish_reason],
          _one_line(row.completion),
      )
      table.add_row(*cells)
      if tokens:
        console.print(table)
        _show_tokens(console, row, decode)
        table = _sample_table(console, title)
    if not tokens:
      console.print(table)
    if len(rows) > each:
      console.print(
          f'{each} of {len(rows)} samples; a higher --limit shows more'
      )


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
  columns = _SAMPLE_COLUMNS if problem else _SUMMARY_COLUMNS
  if tokens:
    columns = (*columns, *_TOKEN_COLUMNS)
  data = _load(workdirs, split, columns)
  out = sys.stdout if out is None else out
  terminal = out.isatty()
  console = rich_console.Console(
      file=out,
      force_terminal=terminal,
      no_color=not terminal,
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
