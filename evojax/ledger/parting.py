"""The first row at which the ledgers of two runs differ.

The same command gives the same payloads on one machine, up to the seal, whose
salt is random unless `evolve.salt` is set. On two machines, the ledgers differ
from the first number that is rounded differently; every later difference may
follow from it.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import os
import pathlib
from typing import Any

from evojax.ledger import chain
from evojax.runtime import run_files

MOST_FIELDS = 8  # Fields of `Parting` that are listed.
# The tier of the box is in every row, but no decision depends on it.
_IGNORED = ('sandbox',)
_ABSENT = 'absent'
_SEALED = {'salt', 'seed'}  # Fields of a seal that are drawn at random.


@dataclasses.dataclass(frozen=True)
class Parting:
  """The place where the ledgers of two runs first differ."""

  other: str  # Directory of the other run.
  rows: int  # Number of rows at the beginning that are equal in both.
  step: str = ''  # Step of the first row that differs; '': none differs.
  round: int | None = None  # Its round, if it has one.
  # (place in the row, value of this run, value of the other run), as text; at
  # most MOST_FIELDS of them.
  fields: tuple[tuple[str, str, str], ...] = ()
  count: int = 0  # Number of differing fields.
  # Whether all rows before the seal are equal; later ones depend on its salt.
  sealed: bool = False

  def __str__(self):
    if not self.step:
      which = 'before the seal' if self.sealed else 'that both have'
      return f'all {self.rows} rows {which} are equal in {self.other}'
    where = self.step
    if self.round is not None:
      where += f', round {self.round}'
    place, ours, theirs = self.fields[0]
    rest = self.count - 1
    more = f', and {rest} more field{"s" * (rest > 1)}' if rest else ''
    return (
        f'parts from {self.other} at row {self.rows} ({where}): {place} is'
        f' {ours} here and {theirs} there{more}'
    )


def find(
    workdir: str | os.PathLike[str], other: str | os.PathLike[str]
) -> Parting:
  """Compare the ledgers of two runs row by row.

  Measurements (times, memory) are not compared. A ledger that goes
  on after the end of the other one does not differ from it.

  Args:
    workdir: Directory of a run that evolves.
    other: Directory of another one.

  Raises:
    ValueError: If one of them has no ledger with a whole row.
  """
  paths = (pathlib.Path(path).expanduser() for path in (workdir, other))
  ours, theirs = map(_payloads, paths)
  for n, pair in enumerate(zip(ours, theirs, strict=False)):
    if found := list(_differences(*pair, '')):
      if {place for place, *_ in found} <= _SEALED and 'salt' in pair[0]:
        return Parting(str(other), n, sealed=True)
      number = pair[0].get('round')
      return Parting(
          str(other),
          n,
          pair[0]['step'],
          number if type(number) is int else None,
          tuple(found[:MOST_FIELDS]),
          len(found),
      )
  return Parting(str(other), min(len(ours), len(theirs)))


def _payloads(path: pathlib.Path) -> list[dict[str, Any]]:
  file = path / run_files.LEDGER
  rows = chain.read(file) if file.exists() else []
  if not rows:
    raise ValueError(
        f'{path} has no ledger with a whole row, which a run that evolves'
        ' writes; name the workdir of such a run'
    )
  return [
      {k: v for k, v in row['payload'].items() if k not in _IGNORED}
      for row in rows
  ]


def _differences(
    ours: Any, theirs: Any, place: str
) -> Iterator[tuple[str, str, str]]:
  """Yield (place, ours, theirs) of each value that differs."""
  if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
    for key in sorted({*ours, *theirs}):
      inner = f'{place}.{key}' if place else key
      yield from _differences(
          ours.get(key, _ABSENT), theirs.get(key, _ABSENT), inner
      )
  elif _is_list(ours) and _is_list(theirs) and len(ours) == len(theirs):
    for n, pair in enumerate(zip(ours, theirs, strict=True)):
      yield from _differences(*pair, f'{place}[{n}]')
  elif ours != theirs:
    yield place, _text(ours), _text(theirs)


def _is_list(value: Any) -> bool:
  return isinstance(value, Sequence) and not isinstance(value, str)


def _text(value: Any) -> str:
  if _is_list(value):
    return f'{len(value)} items'
  return value if value == _ABSENT else chain.canonical_json(value)[:200]
