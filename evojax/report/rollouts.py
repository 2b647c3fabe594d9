"""Rollouts to read, and flips between two arms, from Parquet evidence."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import statistics
import typing
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from evojax.evidence import schema
from evojax.evidence import store
from evojax.evidence import turns as turns_lib

if typing.TYPE_CHECKING:  # A training writes pages without these imports.
  import pandas

MAX_CHARS = 4000  # Maximum characters of a shown text; the rest is counted.
_FLIPS = 3  # Flips shown per direction.
_STEPS = 5  # Steps of a training whose rollouts are shown.
_GAMED = 3  # Wrong completions shown with their rewards.
_PROBLEM = ['group', 'problem_id']
_KEY = [*_PROBLEM, 'sample']
# The columns that `sample` uses to choose.
_FACTS = (*_KEY, 'outcome', 'graded', 'truncated', 'advantage', 'reward')


@dataclasses.dataclass(frozen=True)
class Rollout:
  """One completion as it is shown."""

  why: str  # The kind of rollout that it is an example of.
  prompt: str
  completion: str
  cut: int  # Characters of the completion that are left out.
  row: Mapping[str, Any]
  parts: Mapping[str, float | None]  # Before their weights.
  codes: Mapping[str, str]  # Column -> name of its code.
  turns: Sequence[turns_lib.Turn] = ()  # Empty for a single turn without tools.


@dataclasses.dataclass(frozen=True)
class Sampled:
  """Rollouts of one arm."""

  rollouts: Sequence[Rollout] = ()
  source: str = ''  # Where the rollouts come from.
  note: str = ''  # Why there are none.
  step: int = 0  # Step that trained on them, from 1 as in the curves.
  legend: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Gamed:
  """Wrong completions that were rewarded."""

  rewarded: tuple[Rollout, ...] = ()  # Wrong ones with the highest rewards.
  perturbed: tuple[Rollout, ...] = ()  # Wrong ones on perturbed problems.
  wrong: int = 0  # Number of wrong completions of the step.
  as_good: int = 0  # Wrong ones with at least the median reward of right ones.
  source: str = ''


@dataclasses.dataclass(frozen=True)
class Counts:
  """Samples of the same problems in two arms, counted by which arm solved."""

  both: int
  first: int
  second: int
  neither: int

  @property
  def total(self) -> int:
    return self.both + self.first + self.second + self.neither


@dataclasses.dataclass(frozen=True)
class Flips:
  """Samples that exactly one of two paired arms solved."""

  counts: Counts | None = None
  # Flips between two incumbent arms, which happen without any change.
  noise: Counts | None = None
  gained: Sequence[tuple[Rollout, Rollout]] = ()  # (incumbent, candidate).
  lost: Sequence[tuple[Rollout, Rollout]] = ()
  source: str = ''
  note: str = ''


class _Missing(Exception):
  """Evidence is missing or damaged; the message says which file."""


def _read(
    workdir: str | os.PathLike[str],
    arm: str,
    *splits: str,
    step: int | None = None,
) -> tuple[pathlib.Path, pa.Table]:
  """Return the newest evidence, or a step's, of the first split of an arm.

  List columns of numbers, which a page does not show, are left out.

  Raises:
    _Missing: If there is none inside the workdir, or the file is damaged.
  """
  root = pathlib.Path(workdir).resolve()
  folder = (root / arm).resolve()
  # The folder comes from the ledger: '../x' must not read another run.
  inside = arm and folder.is_relative_to(root)
  found = [s for s in splits if inside and store.list_steps(folder, s)]
  if not found:
    raise _Missing(f'no {splits[-1]} evidence in {arm or "any arm"}')
  if step is None:
    step = store.list_steps(folder, found[0])[-1]
  path = store.path_of(folder, found[0], step)
  try:
    file = parquet.ParquetFile(path)
    fields = [
        field.name
        for field in file.schema_arrow
        if not pa.types.is_list(field.type) or field.name in turns_lib.COLUMNS
    ]
    return path, file.read(fields)
  except (OSError, pa.ArrowException) as error:
    raise _Missing(f'{path.name} cannot be read: {error}') from error


def _legend(table: pa.Table) -> dict[str, str]:
  """Return meaning and values of each coded column, from the file."""
  found = {}
  for field in table.schema:
    text = {k.decode(): v.decode() for k, v in (field.metadata or {}).items()}
    if codes := json.loads(text.get('codes', 'null')):
      values = f'One of {", ".join(codes)}.'
      found[field.name] = f'{text.get("doc", "")} {values}'.lstrip()
  return found


def _lottery(row: Mapping[str, Any]) -> str:
  """Return a hash as a sort key: arbitrary, but the same in every build."""
  key = ':'.join(
      str(row.get(name)) for name in ('group', 'problem_id', 'sample')
  )
  return hashlib.sha256(key.encode()).hexdigest()


def _rollouts(
    table: pa.Table, chosen: Sequence[tuple[int, str]]
) -> list[Rollout]:
  """Return some rows of a table, each with the kind that it exemplifies."""
  if not chosen:  # Arrow refuses an untyped, empty list of indices.
    return []
  # Column -> name -> code, as the file declares them.
  tables = {
      field.name: json.loads((field.metadata or {}).get(b'codes', b'null'))
      for field in table.schema
  }
  names = {
      column: {code: name for name, code in codes.items()}
      for column, codes in tables.items()
      if codes
  }
  rows = table.take([index for index, _ in chosen]).to_pylist()
  found = []
  for (_, why), row in zip(chosen, rows, strict=True):
    completion = row.get('completion') or ''
    found.append(
        Rollout(
            why=why,
            prompt=(row.get('prompt') or '')[:MAX_CHARS],
            completion=completion[:MAX_CHARS],
            cut=max(len(completion) - MAX_CHARS, 0),
            row=row,
            parts={
                name.removeprefix(schema.PART_PREFIX): value
                for name, value in row.items()
                if name.startswith(schema.PART_PREFIX)
            },
            codes={
                column: named.get(row[column], str(row[column]))
                for column, named in names.items()
                if row[column] is not None and column not in turns_lib.COLUMNS
            },
            turns=_shorten(turns_lib.of(row, names.get('actions', {}))),
        )
    )
  return found


def _shorten(turns: Sequence[turns_lib.Turn]) -> list[turns_lib.Turn]:
  most = MAX_CHARS // max(len(turns), 1)
  return [
      dataclasses.replace(
          t, text=t.text[:most], observation=t.observation[:most]
      )
      for t in turns
  ]


# Title of a kind of example, maximum number, and condition for a rollout.
_Wanted = tuple[str, int, Callable[[Mapping[str, Any]], Any]]
_RIGHT: _Wanted = ('right', 1, lambda row: row.get('outcome'))
_WRONG: _Wanted = ('wrong', 1, lambda row: not row.get('outcome'))


def _facts(table: pa.Table) -> list[dict[str, Any]]:
  """Return the columns for choosing rows, in an order given by a hash."""
  facts = table.select([n for n in _FACTS if n in table.column_names])
  rows = [row | {'index': i} for i, row in enumerate(facts.to_pylist())]
  return sorted((r for r in rows if r.get('graded', True)), key=_lottery)


def _choose(
    rows: Sequence[Mapping[str, Any]], wanted: Sequence[_Wanted]
) -> list[tuple[int, str]]:
  """Return (index, why) of the first rows of each kind, each row once."""
  chosen, problems = {}, set()
  for why, count, is_one in wanted:
    found = [r for r in rows if is_one(r) and r['index'] not in chosen]
    # Problems that are not shown yet come first.
    found.sort(key=lambda row: row.get('problem_id') in problems)
    chosen |= {row['index']: why for row in found[:count]}
    problems |= {row.get('problem_id') for row in found[:count]}
  return list(chosen.items())


def _highest_wrong(
    rows: Sequence[Mapping[str, Any]], count: int = 1
) -> _Wanted:
  """Return the kind of the wrong completions with the highest rewards."""
  earned = {r['index']: r.get('reward') for r in rows if not r.get('outcome')}
  earned = {i: reward for i, reward in earned.items() if reward is not None}
  # If all of them earned the same, none is of this kind.
  least = min(earned.values(), default=0)
  best = [i for i, reward in earned.items() if reward > least]
  best = set(sorted(best, key=lambda i: -earned[i])[:count])
  return 'highest reward but wrong', count, lambda row: row['index'] in best


def _source(workdir: str | os.PathLike[str], path: pathlib.Path) -> str:
  return path.relative_to(pathlib.Path(workdir).resolve()).as_posix()


def sample(workdir: str | os.PathLike[str], arm: str) -> Sampled:
  """Return a few of an arm's newest training rollouts, chosen by hash.

  They are the one with the largest advantage, the wrong one with the highest
  reward, two that are right, two that are wrong and one that was cut by the
  limit. If the arm did not train, rollouts of evaluations are used.
  """
  try:
    path, table = _read(workdir, arm, 'train', 'dev')
  except _Missing as missing:
    return Sampled(note=str(missing))
  rows = _facts(table)
  advantage = lambda row: abs(row.get('advantage') or 0)
  most = max(map(advantage, rows), default=0)
  failed = lambda row: not (row.get('outcome') or row.get('truncated'))
  wanted = (
      ('largest |advantage|', 1, lambda row: most and advantage(row) == most),
      _highest_wrong(rows),
      ('right', 2, _RIGHT[2]),
      ('wrong', 2, failed),
      ('truncated', 1, lambda row: row.get('truncated')),
  )
  found = _rollouts(table, _choose(rows, wanted))
  return Sampled(found, _source(workdir, path), legend=_legend(table))


def over_steps(workdir: str | os.PathLike[str], folder: str) -> list[Sampled]:
  """Return rollouts of a few steps of a training, from the first to the last.

  Each step shows one that is right, one that is wrong, and the wrong one with
  the highest reward.
  """
  steps = store.list_steps(pathlib.Path(workdir, folder), 'train')
  last = len(steps) - 1
  places = {round(i * last / (_STEPS - 1)) for i in range(_STEPS) if steps}
  found = []
  for step in (steps[i] for i in sorted(places)):
    try:
      path, table = _read(workdir, folder, 'train', step=step)
    except _Missing as missing:
      found.append(Sampled(note=str(missing), step=step + 1))
      continue
    rows = _facts(table)
    wanted = (_RIGHT, _WRONG, _highest_wrong(rows))
    shown = _rollouts(table, _choose(rows, wanted))
    # Evidence counts steps from 0, metrics and curves from 1.
    more = dict(step=step + 1, legend=_legend(table))
    found.append(Sampled(shown, _source(workdir, path), **more))
  return found


def gamed(workdir: str | os.PathLike[str], folder: str, scores: str) -> Gamed:
  """Return completions that may have fooled the reward, for a reader to judge.

  Args:
    workdir: The run's directory.
    folder: Folder of a training.
    scores: Folder of dev scores of its policy; perturbed problems are in
      `<scores>-perturbed`. '' if there are none.
  """
  try:
    path, table = _read(workdir, folder, 'train')
  except _Missing:
    return Gamed()
  rows = _facts(table)
  right = [r['reward'] for r in rows if r.get('outcome') and _earned(r)]
  wrong = [r for r in rows if not r.get('outcome') and _earned(r)]
  middle = statistics.median(right) if right else math.inf
  chosen = _choose(rows, [_highest_wrong(rows, _GAMED)])
  perturbed = []
  try:
    _, other = _read(workdir, scores and f'{scores}-perturbed', 'dev')
    why = 'wrong on a perturbed problem'
    wanted = [(why, _GAMED, _WRONG[2])]
    perturbed = _rollouts(other, _choose(_facts(other), wanted))
  except _Missing:  # Only policies that passed have perturbed ones.
    pass
  return Gamed(
      rewarded=tuple(_rollouts(table, chosen)),
      perturbed=tuple(perturbed),
      wrong=len(wrong),
      as_good=sum(row['reward'] >= middle for row in wrong),
      source=_source(workdir, path),
  )


def _earned(row: Mapping[str, Any]) -> bool:
  return row.get('reward') is not None


def _outcomes(table: pa.Table) -> 'pandas.DataFrame':
  """Return row and outcome of graded samples by group, problem and sample."""
  frame = table.select([*_KEY, 'outcome', 'graded']).to_pandas()
  frame = frame.assign(row=frame.index)[frame['graded']]
  return frame.set_index(_KEY)[['row', 'outcome']]


def _paired(
    first: 'pandas.DataFrame', second: 'pandas.DataFrame'
) -> 'pandas.DataFrame':
  """Return the samples that both arms have, in the order of the first."""
  return first.add_suffix('_old').join(second.add_suffix('_new'), how='inner')


def _count(pairs: 'pandas.DataFrame') -> Counts:
  old, new = pairs['outcome_old'], pairs['outcome_new']
  each = (old & new, old & ~new, ~old & new, ~old & ~new)
  return Counts(*(int(those.sum()) for those in each))


def flips(
    workdir: str | os.PathLike[str],
    incumbent: str,
    candidate: str,
    other: str = '',
) -> Flips:
  """Return samples of the same problems that only one side solved.

  The problems whose solved share changed most come first.

  Args:
    workdir: The run's directory.
    incumbent: Folder of an incumbent arm.
    candidate: Folder of a candidate arm.
    other: Folder of a second incumbent arm; flips between the two incumbents
      happen without any change.
  """
  try:
    _, old_table = _read(workdir, incumbent, 'dev', 'train')
    path, new_table = _read(workdir, candidate, 'dev', 'train')
    old, new = _outcomes(old_table), _outcomes(new_table)
  except _Missing as missing:
    return Flips(note=str(missing))
  except KeyError as missing:
    return Flips(note=f'their evidence lacks the column {missing}')
  noise = None
  try:
    second = _outcomes(_read(workdir, other, 'dev')[1])
    noise = _count(_paired(old, second))
  except (_Missing, KeyError):  # There is only one incumbent arm.
    pass
  pairs = _paired(old, new)
  if pairs.empty:
    return Flips(note=f'{incumbent} and {candidate} share no sample')
  flip = pairs['outcome_new'].astype(int) - pairs['outcome_old'].astype(int)
  moved = flip.groupby(level=_PROBLEM).transform('sum')

  def shown(sign: int) -> list[tuple[Rollout, Rollout]]:
    found = pairs.assign(rank=-sign * moved)[flip == sign].reset_index()
    # One sample of each problem.
    found = found.sort_values(['rank', *_KEY]).drop_duplicates(_PROBLEM)
    sides = (
        _rollouts(table, [(row, arm) for row in found[column][:_FLIPS]])
        for table, arm, column in (
            (old_table, incumbent, 'row_old'),
            (new_table, candidate, 'row_new'),
        )
    )
    return list(zip(*sides, strict=True))

  return Flips(
      counts=_count(pairs),
      noise=noise,
      gained=shown(1),
      lost=shown(-1),
      source=f'{incumbent} and {candidate}, {path.stem}',
  )
