"""Rollouts to read, and flips between two arms, from Parquet evidence."""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from evojax.evidence import schema
from evojax.evidence import store

MAX_CHARS = 4000  # Longest text that is shown; the rest is counted.
FLIPS = 3  # Shown of each direction.
_KEY = ('group', 'problem_id', 'sample')
_FACTS = (
    *_KEY,
    'family',
    'policy_version',
    'outcome',
    'graded',
    'truncated',
    'finish_reason',
    'n_tokens',
    'mean_logprob',
    'reward',
    'advantage',
    'kept',
)
_TEXT = ('prompt', 'completion')


@dataclasses.dataclass(frozen=True)
class Rollout:
  """One completion, as a reader sees it."""

  why: str  # The kind of rollout that it is an example of.
  prompt: str
  completion: str
  cut: int  # Characters of the completion that are left out.
  row: Mapping[str, Any]
  parts: Mapping[str, float | None]  # Before their weights.
  codes: Mapping[str, str]  # Column -> name of its code.


@dataclasses.dataclass(frozen=True)
class Sampled:
  """Rollouts of one arm."""

  rollouts: Sequence[Rollout] = ()
  source: str = ''  # Where they are from.
  note: str = ''  # Why there are none.


@dataclasses.dataclass(frozen=True)
class Counts:
  """Samples of the same problems in two arms, counted by who solved them."""

  both: int
  first: int
  second: int
  neither: int

  @property
  def total(self) -> int:
    return self.both + self.first + self.second + self.neither


@dataclasses.dataclass(frozen=True)
class Flips:
  """Samples that a control and a child did not both solve or both fail."""

  counts: Counts | None = None
  # Two controls against each other: flips without any change.
  noise: Counts | None = None
  gained: Sequence[tuple[Rollout, Rollout]] = ()  # (control, child).
  lost: Sequence[tuple[Rollout, Rollout]] = ()
  source: str = ''
  note: str = ''


class _Missing(Exception):
  """Evidence is missing or damaged; the message says which."""


def _file(
    workdir: str | os.PathLike[str], arm: str, split: str
) -> pathlib.Path:
  """Return the newest file of an arm's split.

  Raises:
    _Missing: If there is none inside the workdir.
  """
  root = pathlib.Path(workdir).resolve()
  folder = (root / arm).resolve()
  steps = []
  if arm and folder.is_relative_to(root):
    steps = store.list_steps(folder, split)
  if not steps:
    raise _Missing(f'no {split} evidence in {arm or "any arm"}')
  return store.path_of(folder, split, steps[-1])


def _read(path: pathlib.Path, columns: Sequence[str] | None) -> pa.Table:
  """Read the named columns that a file has; None reads all but the lists.

  Raises:
    _Missing: If the file is damaged.
  """
  try:
    file = parquet.ParquetFile(path)
    there = [f.name for f in file.schema_arrow if not pa.types.is_list(f.type)]
    names = [n for n in there if columns is None or n in columns]
    return file.read(names)
  except (OSError, pa.ArrowException) as error:
    raise _Missing(f'{path.name} cannot be read: {error}') from error


def _codes(table: pa.Table) -> dict[str, dict[int, str]]:
  """Return column -> code -> name, as the file declares them."""
  tables = {}
  for field in table.schema:
    text = (field.metadata or {}).get(b'codes', b'null')
    names = json.loads(text)
    if names:
      tables[field.name] = {code: name for name, code in names.items()}
  return tables


def _lottery(row: Mapping[str, Any]) -> str:
  """Return a sort key by hash: no choice of ours, equal in every build."""
  key = ':'.join(str(row.get(name)) for name in _KEY)
  return hashlib.sha256(key.encode()).hexdigest()


def _rollouts(
    table: pa.Table, chosen: Sequence[tuple[int, str]]
) -> list[Rollout]:
  """Return some rows of a table, each with what it is an example of."""
  codes = _codes(table)
  if not chosen:  # Arrow takes no untyped, empty list of indices.
    return []
  rows = table.take([index for index, _ in chosen]).to_pylist()
  found = []
  for (_, why), row in zip(chosen, rows, strict=True):
    prompt, completion = (row.get(name) or '' for name in _TEXT)
    found.append(
        Rollout(
            why=why,
            prompt=prompt[:MAX_CHARS],
            completion=completion[:MAX_CHARS],
            cut=max(len(completion) - MAX_CHARS, 0),
            row=row,
            parts={
                name.removeprefix(schema.PART_PREFIX): value
                for name, value in row.items()
                if name.startswith(schema.PART_PREFIX)
            },
            codes={
                name: names.get(row[name], str(row[name]))
                for name, names in codes.items()
                if row.get(name) is not None
            },
        )
    )
  return found


def sample(workdir: str | os.PathLike[str], arm: str) -> Sampled:
  """Return a handful of an arm's newest training rollouts, drawn by a hash.

  Two that are solved, two that failed, one cut by the limit, and the one with
  the largest advantage; those of evaluations where the arm did not train.
  """
  try:
    try:
      path = _file(workdir, arm, 'train')
    except _Missing:
      path = _file(workdir, arm, 'dev')
    table = _read(path, None)
  except _Missing as missing:
    return Sampled(note=str(missing))
  facts = table.select([n for n in _FACTS if n in table.column_names])
  rows = sorted(enumerate(facts.to_pylist()), key=lambda r: _lottery(r[1]))
  rows = [r for r in rows if r[1].get('graded', True)]
  truncated = lambda row: bool(row.get('truncated'))
  wanted = (
      ('solved', 2, lambda row: row.get('outcome')),
      ('failed', 2, lambda row: not (row.get('outcome') or truncated(row))),
      ('truncated', 1, truncated),
  )
  chosen, problems, taken = [], set(), set()
  strongest = [r for r in rows if r[1].get('advantage')]
  if strongest:
    index, row = max(strongest, key=lambda r: abs(r[1]['advantage']))
    chosen.append((index, 'largest |advantage|'))
    problems.add(row.get('problem_id'))
    taken.add(index)
  for why, count, is_one in wanted:
    found = [r for r in rows if is_one(r[1]) and r[0] not in taken]
    # Other problems first; the same one rather than nothing.
    found.sort(key=lambda r: r[1].get('problem_id') in problems)
    for index, row in found[:count]:
      chosen.append((index, why))
      problems.add(row.get('problem_id'))
      taken.add(index)
  source = path.relative_to(pathlib.Path(workdir).resolve()).as_posix()
  return Sampled(_rollouts(table, chosen), source)


def _outcomes(table: pa.Table) -> dict[tuple, tuple[int, bool]]:
  """Return (group, problem, sample) -> (row, solved) of graded samples."""
  keys = zip(*(table.column(name).to_pylist() for name in _KEY), strict=True)
  solved = table.column('outcome').to_pylist()
  graded = table.column('graded').to_pylist()
  return {
      key: (i, bool(s))
      for i, (key, s, there) in enumerate(
          zip(keys, solved, graded, strict=True)
      )
      if there
  }


def _count(first: Mapping, second: Mapping) -> Counts:
  pairs = [(first[key][1], second[key][1]) for key in first if key in second]
  return Counts(
      both=pairs.count((True, True)),
      first=pairs.count((True, False)),
      second=pairs.count((False, True)),
      neither=pairs.count((False, False)),
  )


def flips(
    workdir: str | os.PathLike[str],
    control: str,
    child: str,
    other_control: str = '',
) -> Flips:
  """Return samples of the same dev problems that one side alone solved.

  The problems whose solved share moved most come first.

  Args:
    workdir: The run's directory.
    control: Folder of a control arm.
    child: Folder of a child arm.
    other_control: Folder of a second control arm: what flips between the two
      flips without any change.
  """
  try:
    old_path = _file(workdir, control, 'dev')
    new_path = _file(workdir, child, 'dev')
    old_table, new_table = _read(old_path, None), _read(new_path, None)
    old, new = _outcomes(old_table), _outcomes(new_table)
  except _Missing as missing:
    return Flips(note=str(missing))
  except KeyError as missing:
    return Flips(note=f'dev evidence lacks the column {missing}')
  noise = None
  try:
    path = _file(workdir, other_control, 'dev')
    noise = _count(old, _outcomes(_read(path, ('outcome', 'graded', *_KEY))))
  except (_Missing, KeyError):  # One control arm: nothing to compare with.
    pass
  keys = [key for key in old if key in new]
  if not keys:
    return Flips(note=f'{control} and {child} share no dev sample')
  moved: dict[tuple, int] = {}
  for key in keys:
    moved[key[:2]] = moved.get(key[:2], 0) + new[key][1] - old[key][1]

  def shown(sign: int) -> list[tuple]:
    found = [k for k in keys if new[k][1] - old[k][1] == sign]
    found.sort(key=lambda k: (-sign * moved[k[:2]], k))
    # One of each problem first.
    seen: set[tuple] = set()
    first = [k for k in found if not (k[:2] in seen or seen.add(k[:2]))]
    return first[:FLIPS]

  gained, lost = shown(1), shown(-1)
  pairs = list(
      zip(
          _rollouts(old_table, [(old[k][0], control) for k in gained + lost]),
          _rollouts(new_table, [(new[k][0], child) for k in gained + lost]),
          strict=True,
      )
  )
  return Flips(
      counts=_count(old, new),
      noise=noise,
      gained=pairs[: len(gained)],
      lost=pairs[len(gained) :],
      source=f'{control} and {child}, {new_path.stem}',
  )
