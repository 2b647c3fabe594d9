"""--mode=inspect: show the evidence of runs in a terminal.

If no problem is named, each problem gets one row with its solved share at each
evaluation. If one is named, its completions are shown, across steps or runs,
and token by token on request. Only evidence is read, so the run may still be in
progress.
"""

import bisect
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import io
import math
import os
import pathlib
import sys
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich import console as rich_console
from rich import markup
from rich import table as rich_table

from evojax.episodes import rows as rows_lib
from evojax.evidence import schema
from evojax.evidence import store
from evojax.evidence import turns as turns_lib
from evojax.runtime import progress
from evojax.runtime import run_files
from evojax.runtime import wrapping

_SUMMARY_COLUMNS = 'problem_id family prompt step sample outcome graded'.split()
_SAMPLE_COLUMNS = (
    'policy_version reward advantage kept n_tokens finish_reason mean_logprob'
    ' completion'.split()
)
_TOKEN_COLUMNS = 'prompt_tokens tokens sampler_logprobs'.split()
_TURN_COLUMNS = ('turn_tokens', 'observation_tokens', 'turn_advantages')
# Folders with the evidence of a run that evolves, in order of preference.
_PLACES = ('sealed/*', 'rounds/*/*', 'trials/*/*', 'arms/*')
_KEYS = 'problem_id family prompt point'.split()
_FINISH = {code: name for name, code in schema.FINISH_REASON.items()}
_MAX_POINTS = 8  # Evaluations side by side in a table.
_WIDE = 100  # Least width of a terminal, in columns, for ids in full.
_QUESTION = 20  # Least number of characters of a question worth showing.
# Bounds of a token's probability, and the colours between them.
_BOUNDS, _COLOURS = (0.1, 0.5, 0.9), ('red', 'dark_orange', 'yellow', 'default')
# Style of a table's columns by heading; others are right-aligned numbers.
_LOOKS = {
    **dict.fromkeys(('#', 't', 'sample'), dict(justify='right', style='dim')),
    'problem': dict(style='cyan', no_wrap=True),
    'family': dict(no_wrap=True),
    'question': dict(overflow='ellipsis', no_wrap=True, ratio=1),
    'token': dict(no_wrap=True),
    'solved': dict(justify='center'),
    'end': {},
    'completion': dict(overflow='fold'),
    'policy': dict(overflow='fold'),
    'answer': dict(overflow='fold', style='dim'),
    'tool': dict(no_wrap=True),
}
_CELLS = 'sample solved reward advantage tokens log-prob end completion'.split()


def _labels(workdirs: Sequence[str]) -> list[str]:
  """Return the shortest ends of the runs' paths that are all distinct."""
  paths = [pathlib.Path(workdir).absolute().parts for workdir in workdirs]
  for count in range(1, max(map(len, paths)) + 1):
    names = [os.path.join(*path[-count:]) for path in paths]
    if len(set(names)) == len(names):
      break
  return names


def _named(folders: Sequence[pathlib.Path], root: pathlib.Path) -> str:
  """Return the name of the last folder, and how many more there are."""
  more = f' and {len(folders) - 1} more' * (len(folders) > 1)
  return f'{folders[-1].relative_to(root)}{more}'


def find(workdir: str, split: str = '') -> tuple[list[str], str, str]:
  """Return the folders of a run whose evidence is shown by default.

  A run that trains has its evidence in its own directory. A run that evolves
  has the final scores in sealed/NAME, the dev scores of an arm in
  rounds/NUMBER/NAME and the arm's training in arms/NAME. The default is the
  first of these that exists: all final scores, the newest round, or one arm:
  arms/final, else the newest.

  Args:
    workdir: The run, or a folder with evidence.
    split: Split of the evidence. '' chooses: in a run that trains dev, if it
      has one; in a run that evolves the split of the first folder above.

  Returns:
    Folders, split, and a note about the other evidence, which may be ''.

  Raises:
    ValueError: If there is no such evidence; the message lists what there is.
  """
  root = pathlib.Path(workdir).expanduser()
  if own := store.splits(root):
    if not split or split in own:
      return [str(root)], split or ('dev' if 'dev' in own else own[0]), ''
    raise ValueError(
        f'no evidence of split {split!r} in {workdir}; there is'
        f' {", ".join(own)}'
    )
  places: dict[str, list[pathlib.Path]] = {}
  for folder in (p for place in _PLACES for p in sorted(root.glob(place))):
    for each in store.splits(folder):
      places.setdefault(each, []).append(folder)
  there = '; '.join(f'{s} in {_named(f, root)}' for s, f in places.items())
  wanted = split or next(iter(places), '')
  if wanted not in places:
    below = sorted(p.parent.name for p in root.glob(f'*/{run_files.CONFIG}'))
    if below and not there:
      there = f'none, but the runs {", ".join(below)}'
    if not root.is_dir():
      raise ValueError(
          f'--workdir={workdir}: there is no such directory; name the workdir'
          ' of a run, --mode=runs lists those below runs/'
      )
    of_split = f' of split {split!r}' if split else ''
    raise ValueError(
        f'no evidence{of_split} in {workdir}; there is'
        f' {there or "none: name the workdir of a run that has begun"}'
    )
  folders = places[wanted]
  if folders[0].parent.name == 'arms':
    at = lambda p: store.path_of(p, wanted, 0).parent.stat().st_mtime
    folders = [root / 'arms/final']
    if folders[0] not in places[wanted]:
      folders = [max(places[wanted], key=at)]
  else:  # The newest round, or all final scores.
    folders = [p for p in folders if p.parent == folders[-1].parent]
  # Flips compare the first folder with the last, so base comes first and
  # evolved last, and an incumbent (r003-incumbent-0) before a candidate
  # (r003-t001-0). Pairs share no problems, nor do perturbed ones
  # (r003-t001-0-perturbed), so both ends are of pair 0.
  other = lambda p: 'child' in p.name or '-t' in p.name
  pair = lambda p: (p.name.endswith('-perturbed'), p.name.split('-')[2:3])
  last = sorted(filter(other, folders), key=pair, reverse=True)
  first = sorted((p for p in folders if not other(p)), key=pair)
  folders = sorted(first + last, key=lambda p: p.name == 'evolved')
  shown = ', '.join(str(folder.relative_to(root)) for folder in folders)
  note = (
      f'shown: {wanted} of {shown}\nthere is {there}: choose with --split, or'
      f' with --workdir={places[next(reversed(places))][0]}'
  )
  return [str(folder) for folder in folders], wanted, note


def _load(
    workdirs: Sequence[str], split: str, columns: Sequence[str]
) -> pd.DataFrame:
  """Return the evidence of all runs, with the columns `run` and `point`.

  A point is one step of one run. Points are numbered in the order of the runs
  and, within a run, of the steps. Rows that could not be graded are left out.
  Training steps count from 1, as in metrics and on pages; evidence counts them
  from 0. Names of runs and families are escaped for printing.
  """
  frames = []
  for workdir, label in zip(workdirs, _labels(workdirs), strict=True):
    frame = store.read(workdir, split, columns=columns)
    frame = frame[frame['graded']].assign(run=markup.escape(label))
    frame = frame.assign(family=frame['family'].map(_one_line))
    if split == 'train':
      frame = frame.assign(step=frame['step'] + 1)
    frames.append(frame)
  data = pd.concat(frames, ignore_index=True)
  points = data.groupby(['run', 'step'], sort=False)
  return data.assign(point=points.ngroup())


def _point_names(data: pd.DataFrame) -> dict[int, str]:
  """Return point -> 'step 10', with the run's name if there are several."""
  points = data.drop_duplicates('point')
  several = points['run'].nunique() > 1
  if several and points['run'].is_unique:  # The run alone names the point.
    return dict(zip(points['point'], points['run'], strict=True))
  return {
      row.point: f'{row.run} ' * several + f'step {row.step}'
      for row in points.itertuples()
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
        '--flips compares two evaluations, and there is one: name another run'
        ' with --runs=DIR, or evaluate more often (--config.eval.every)'
    )
  return before, last[-1]


def _pick(data: pd.DataFrame, problem: str) -> str:
  """Return the problem_id that an index, or the start of an id, refers to."""
  ids = data['problem_id'].drop_duplicates().tolist()
  # Ids have 16 digits, so a short decimal number is an index.
  if problem.isdecimal() and len(problem) <= 5 and int(problem) < len(ids):
    return ids[int(problem)]
  found = [each for each in ids if each.startswith(problem)]
  if len(found) == 1:
    return found[0]
  what = f'names {len(found)} problems' if found else 'names no problem'
  raise ValueError(
      f'--problem={problem} {what}; pass an index 0..{len(ids) - 1} or more of'
      f' an id, such as {", ".join((found or ids)[:3])}'
  )


def _shares(data: pd.DataFrame) -> pd.DataFrame:
  """Return the solved share per problem (in order of appearance) and point.

  The index holds the columns that identify a problem in a table: id, family and
  prompt.
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


def _only_flipped(data: pd.DataFrame) -> pd.DataFrame:
  """Return the samples whose outcome differs between the points of `_ends`."""
  before, after = _ends(data)
  ends = data[data['point'].isin((before, after))]
  return ends[ends.groupby('sample')['outcome'].transform('nunique') > 1]


@dataclasses.dataclass(frozen=True)
class _Screen:
  """Prints tables of evidence.

  Attributes:
    console: The console to print on.
    limit: Maximum number of rows of a table.
    flips: Whether only changed problems or samples are shown.
    tokens: Whether each token of a completion is shown.
    decode: Returns the text of token ids; None shows the ids.
    actions: Code of a tool -> its name.
  """

  console: rich_console.Console
  limit: int
  flips: bool
  tokens: bool
  decode: Callable[[list[int]], str] | None
  actions: Mapping[int, str]

  def table(self, title: str, headings: Sequence[str]) -> rich_table.Table:
    """Return an empty table."""
    terminal = self.console.is_terminal
    table = rich_table.Table(
        expand='question' in headings,
        title=title or None,
        title_justify='left',
        title_style='bold',
        box=box.SIMPLE_HEAD if terminal else None,
        header_style='bold' if terminal else '',
        pad_edge=False,
    )
    for name in headings:
      look = _LOOKS.get(name, dict(justify='right'))
      table.add_column(name, min_width=len(name), **look)
    return table

  def show_rest(self, limit: int, total: int, rows: str) -> None:
    """Print how many of a table's rows are shown, if some are not."""
    if total > limit:
      self.console.print(
          f'{limit} of {total} {rows}; a higher --limit shows more'
      )

  def show_overview(self, data: pd.DataFrame) -> None:
    """Print one row per problem with its solved share at each point."""
    shares, names = _shares(data), _point_names(data)
    if data['run'].nunique() == 1:
      names = {p: name.removeprefix('step ') for p, name in names.items()}
    # For a narrow terminal the questions are dropped first, then points.
    for count in range(min(len(names), _MAX_POINTS), 0, -1):
      # The chosen points are spread evenly from the first to the last.
      shown = np.linspace(0, len(names) - 1, count).round()
      chosen = {p: names[p] for p in (sorted(names)[int(i)] for i in shown)}
      table = self._overview(shares, chosen, questions=True)
      if self._fits(table, _QUESTION):
        break
      table = self._overview(shares, chosen, questions=False)
      if self._fits(table) or count <= 2:
        break
    self.console.print(table)
    self.show_rest(self.limit, len(shares), 'problems')
    if count < len(names):
      self.console.print(
          f'{count} of {len(names)} evaluations; at most {_MAX_POINTS} are'
          ' shown, fewer in a narrow terminal'
      )

  def _fits(self, table: rich_table.Table, spare: int = 0) -> bool:
    # Rich caps a measured width at the console's, so a wide one is assumed.
    wide = self.console.options.update_width(1000)
    needed = self.console.measure(table, options=wide).minimum + spare
    return needed <= self.console.width

  def _overview(
      self, shares: pd.DataFrame, points: dict[int, str], questions: bool
  ) -> rich_table.Table:
    """Return the table of `show_overview` for some of the points."""
    heads = ['#', 'problem', 'family', *points.values()]
    table = self.table(
        f'{len(shares)} problems, share solved',
        heads + ['question'] * questions,
    )
    # A short id is enough: --problem accepts the start of an id.
    digits = 8 if self.console.width < _WIDE else None
    rows = shares.head(self.limit).iterrows()
    for index, ((problem_id, family, prompt), row) in enumerate(rows):
      cells = [_number(share, '.0%') for share in row[[*points]]]
      cells += [_one_line(prompt)] * questions
      table.add_row(str(index), problem_id[:digits], family, *cells)
    mean = shares.mean()[[*points]]
    table.add_section()
    table.add_row('', 'mean', '', *(_number(each, '.1%') for each in mean))
    return table

  def show_flips(self, data: pd.DataFrame) -> None:
    """Print the problems whose solved share changed most between two points.

    Raises:
      ValueError: If there is one point, or the two have no problem in common.
    """
    before, after = ends = _ends(data)
    names = _point_names(data)
    shares = _shares(data)[[*ends]].dropna()
    if shares.empty:
      raise ValueError(
          f'{names[before]} and {names[after]} have no problem in common'
      )
    change = shares[after] - shares[before]
    counts = data.groupby(_KEYS)['outcome'].agg(['sum', 'count'])
    up, down = int((change > 0).sum()), int((change < 0).sum())
    self.console.print(
        f'[bold]{names[before]} → {names[after]}[/]: {len(shares)} problems in'
        f' both, solved {shares[before].mean():.1%} →'
        f' {shares[after].mean():.1%}; [green]{up} up[/], [red]{down} down[/],'
        f' {len(shares) - up - down} unchanged'
    )
    # The largest change comes first; ids fix the order of equal changes.
    changed = change[change != 0].sort_index()
    order = changed.sort_values(key=lambda x: -abs(x), kind='stable')
    table = self.table(
        '', 'problem family before after change question'.split()
    )
    for problem, gain in order.head(self.limit).items():
      problem_id, family, prompt = problem
      shares = (counts.loc[(*problem, point)] for point in ends)
      cells = [f'{int(solved)}/{count}' for solved, count in shares]
      cells.append(_signed(gain))
      table.add_row(problem_id, family, *cells, _one_line(prompt))
    if len(order):
      self.console.print(table)
    self.show_rest(self.limit, len(order), 'changed problems')

  def show_problem(self, data: pd.DataFrame) -> None:
    """Print all completions of one problem, point by point."""
    first, names = data.iloc[0], _point_names(data)
    self.console.print(f'[bold cyan]{first.problem_id}[/] {first.family}')
    self.console.print(f'[italic]{_one_line(first.prompt)}[/]')
    solved = data.groupby('point')['outcome'].mean().tolist()
    if len(solved) > 1:
      self.console.print(
          f'solved [cyan]{progress.sparkline(solved, 60)}[/] {solved[0]:.0%} →'
          f' {solved[-1]:.0%}'
      )
    if self.flips:
      data = _only_flipped(data)
      if data.empty:
        self.console.print('no sample of this problem changed its outcome')
        return
    each = max(1, self.limit // data['point'].nunique())
    for point, rows in data.groupby('point'):
      title = (
          f'{names[point]}, policy version {rows.iloc[0].policy_version}:'
          f' solved {int(rows["outcome"].sum())}/{len(rows)}'
          f'{" of the samples that changed" if self.flips else ""}'
      )
      self.console.print()
      table = self.table(title, _CELLS)
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
        turns = turns_lib.of(row._asdict(), self.actions)
        if self.tokens or turns:
          self.console.print(table)
          self.show_turns(turns)
          if self.tokens:
            self.show_tokens(row)
          table = self.table(title, _CELLS)
      if table.row_count:
        self.console.print(table)
      self.show_rest(each, len(rows), 'samples')

  def show_turns(self, turns: Sequence[turns_lib.Turn]) -> None:
    """Print an episode turn by turn."""
    table = self.table('', ('turn', 'tool', 'policy', 'answer'))
    for number, turn in enumerate(turns, 1):
      tool = markup.escape(turn.action)
      tool = tool if turn.ok else f'[red]{tool} ✗[/]'
      texts = _one_line(turn.text), _one_line(turn.observation)
      table.add_row(f'{number}/{len(turns)}', tool, *texts)
    if turns:
      self.console.print(table)

  def show_tokens(self, row: Any) -> None:
    """Print the tokens of one completion; sampled ones (mask 1) are trained."""
    start, advantage = len(row.prompt_tokens), _signed(row.advantage)
    prompt = ''.join(map(self.text, map(int, row.prompt_tokens)))
    self.console.print(f'[dim]t 0..{start - 1}, mask 0:[/] {prompt}')
    # The completion's reward stands at its last token.
    rewards = {start + len(row.tokens) - 1: _number(row.reward, '.3f')}
    (episode,) = rows_lib.to_episodes(
        {name: [value] for name, value in row._asdict().items()}
    )
    by_turn = getattr(row, 'turn_advantages', None)
    if by_turn is not None and len(by_turn):
      advantages = [_signed(by_turn[i]) for i in episode.turn_of_token]
    else:
      advantages = [advantage] * len(episode.tokens)
    lines = []
    for i, (token, mask) in enumerate(
        zip(episode.tokens, episode.loss_mask, strict=True)
    ):
      logprob = _logprob(float(episode.logprobs[i])) if mask else ''
      own = advantages[i] if mask else ''
      t, text = start + i, self.text(int(token))
      lines.append(
          (str(t), text, str(int(mask)), logprob, rewards.get(t, ''), own)
      )
    # In a wide terminal, blocks of tokens are put side by side. Output to a
    # file has one token per line, so that grep works.
    wide = self.console.is_terminal
    columns = max(1, self.console.width // 60) if wide else 1
    height = max(1, -(-len(lines) // columns))
    headings = 't token mask log-prob reward advantage'.split()
    grid = rich_table.Table.grid(padding=(0, 4))
    blocks = [self.table('', headings) for _ in lines[::height]]
    for index, line in enumerate(lines):
      blocks[index // height].add_row(*line)
    grid.add_row(*blocks)
    self.console.print(grid)

  def text(self, token: int) -> str:
    """Return a token with visible whitespace; its id if it has no text."""
    text = self.decode([token]) if self.decode is not None else ''
    return markup.escape(repr(text)[1:-1]) if text else f'<{token}>'


def run(
    workdirs: Sequence[str],
    *,
    problem: str = '',
    split: str = '',
    flips: bool = False,
    tokens: bool = False,
    limit: int = 20,
    decode: Callable[[list[int]], str] | None = None,
    out: io.TextIOBase | None = None,
) -> None:
  """Print problems, one problem, or only what changed.

  Args:
    workdirs: One run, or several to compare; see `find`.
    problem: Index in the overview, or the start of a problem_id; empty shows
      all problems.
    split: Split whose evidence is read; '' chooses, see `find`.
    flips: Show only problems (or samples of the problem) whose outcome changed
      between the first and the last step of a run, or, with several runs,
      between the last steps of the first and the last run.
    tokens: Show each token with its mask, log-prob, reward and advantage; only
      with a problem.
    limit: Maximum number of rows of a table.
    decode: Returns the text of token ids; None shows the ids.
    out: Stream to print to, stdout by default. Colours are used in a terminal
      only.

  Raises:
    ValueError: If there is no such evidence or problem.
  """
  if tokens and not problem:
    raise ValueError(
        '--tokens shows the tokens of one problem: name it with --problem=ID'
    )
  columns = [*_SUMMARY_COLUMNS]
  columns += _SAMPLE_COLUMNS * bool(problem) + _TOKEN_COLUMNS * tokens
  wanted = turns_lib.COLUMNS * bool(problem) + _TURN_COLUMNS * tokens
  folders, notes = [], []
  for workdir in workdirs:
    found, split, note = find(workdir, split)
    folders += found
    notes += [note] * bool(note)
  declared = store.declaration(folders[-1], split)
  # Columns about turns are optional: older evidence lacks them.
  columns += [c.name for c in declared if c.name in wanted]
  data = _load(folders, split, columns)
  out = out or sys.stdout
  terminal = out.isatty()
  console = rich_console.Console(
      file=out,
      force_terminal=terminal,
      no_color=not terminal,
      highlight=False,
      width=None if terminal else 160,
  )
  actions = turns_lib.names(declared)
  screen = _Screen(console, limit, flips, tokens, decode, actions)
  if problem:
    screen.show_problem(data[data['problem_id'] == _pick(data, problem)])
  elif flips:
    screen.show_flips(data)
  else:
    screen.show_overview(data)
  for note in notes:
    lines = wrapping.wrap(note, console.width) if terminal else [note]
    for line in lines:
      console.print(line, markup=False, soft_wrap=True)
