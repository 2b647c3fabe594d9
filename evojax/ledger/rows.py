"""Rows of the ledger: records as JSON values, and back.

Every row is written from a record (`append`) and read back into one (`parse`);
rows of an older version of their record are upgraded.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import json
import types
import typing
from typing import Any, TypeVar

from evojax import config as config_lib
from evojax.ledger import chain
from evojax.ledger import records
from evojax.ledger import upgrades

T = TypeVar('T')
R = TypeVar('R', bound=records.Record)


class RecordError(ValueError):
  """A row does not hold what its record declares."""


def _clipped(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 100 else f'{text[:100]}...'


def to_json(record: records.Arm | records.Record) -> dict[str, Any]:
  """Return the fields of a record, and its version, as JSON values."""
  fields = {'schema': record.VERSION, **dataclasses.asdict(record)}
  return json.loads(json.dumps(fields))  # Lists for tuples.


def from_json(cls: type[T], values: Mapping[str, Any]) -> T:
  """Return the record that `to_json` of this or an older version wrote.

  Args:
    cls: A dataclass with a VERSION: a record, `Arm` or `evolve.skills.Skill`.
    values: JSON values; without `schema` they are of version 0.

  Raises:
    RecordError: If a field is missing, unknown or of another type, or the row
      is of a newer version; the message names the record, field and value.
  """
  values = dict(values)
  version = values.pop('schema', 0)
  name = cls.__name__
  if not isinstance(version, int) or not 0 <= version <= cls.VERSION:
    raise RecordError(
        f'{name}: schema={version!r} is not one of 0 to {cls.VERSION}, which'
        ' this evojax reads; read it with the evojax that wrote it'
    )
  for older in range(version, cls.VERSION):
    upgrade = upgrades.UPGRADES.get((cls, older))
    try:
      values = upgrade(values) if upgrade else values
    except (KeyError, TypeError, AttributeError) as error:
      raise RecordError(
          f'{name} of version {older}: {error!r} in {_clipped(values)}'
      ) from error
  return _read(cls, values, name)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
  """Return the type of each field."""
  hints = typing.get_type_hints(cls)
  return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _read(hint: Any, value: Any, place: str) -> Any:
  """Return a JSON value converted to the type of a field.

  Raises:
    RecordError: If the value does not have that type.
  """
  origin, args = typing.get_origin(hint), list(typing.get_args(hint))
  if hint is Any:
    return config_lib.frozen(value)
  if origin is types.UnionType:
    if value is None and types.NoneType in args:
      return None
    options = [arg for arg in args if arg is not types.NoneType]
    # isinstance would accept True as an int.
    matching = [arg for arg in options if type(value) is arg]
    return _read((matching or options)[0], value, place)
  if dataclasses.is_dataclass(hint) and isinstance(value, dict):
    hints = _hints(hint)
    for what, names in (
        ('missing', hints.keys() - value.keys()),
        ('unknown', value.keys() - hints.keys()),
    ):
      if names:
        raise RecordError(f'{place}.{min(names)} is {what}')
    return hint(
        **{n: _read(h, value[n], f'{place}.{n}') for n, h in hints.items()}
    )
  if origin is dict and isinstance(value, dict):
    return {k: _read(args[1], v, f'{place}.{k}') for k, v in value.items()}
  if origin is tuple and isinstance(value, list):
    if args[-1] is Ellipsis:
      args = args[:1] * len(value)
    if len(args) == len(value):
      return tuple(
          _read(args[i], item, f'{place}[{i}]') for i, item in enumerate(value)
      )
  if hint is float and type(value) is int:  # JSON may hold 1 for 1.0.
    return float(value)
  if type(value) is hint:
    return value
  wanted = hint.__name__ if isinstance(hint, type) else hint
  raise RecordError(f'{place} = {_clipped(value)} is not of type {wanted}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """A row of the ledger, read back."""

  n: int  # 0, 1, ... in the order of the ledger.
  record: records.Record
  schema: int  # Version of the record as written.
  hash: str  # Hash over this row and all before it.
  sandbox: str  # Tier of the box that ran untrusted code, '' for none.
  measured: records.Measured


def append(
    ledger: chain.Ledger, record: records.Record, measured: records.Measured
) -> chain.Row:
  """Add the row of a step; it is on disk when this returns.

  Returns:
    The row as JSON values, for `parse` in this and in other processes.

  Raises:
    chain.LedgerError: If a value is not JSON (NaN, an array), or another
      process wrote to the file.
    RecordError: If a value has another type than its field. Such a row could
      not be read again, and with it no later one.
    OSError: If the disk is full. The ledger is unchanged after each of these.
  """
  # `to_json` is not used, because the chain's error names the field of a value
  # that is not JSON.
  fields = {'schema': record.VERSION, **dataclasses.asdict(record)}
  from_json(type(record), json.loads(chain.canonical_json(fields)))
  return ledger.append(record.STEP, fields, dataclasses.asdict(measured))


def parse(row: chain.Row) -> Row:
  """Return a row of the chain as a record.

  Raises:
    RecordError: If the step is unknown, or `from_json` refuses the fields.
  """
  fields = dict(row['payload'])
  n, step = fields.pop('n'), fields.pop('step')
  sandbox = fields.pop('sandbox', '')
  try:
    step = upgrades.FORMER.get(step, step)
    if step not in records.STEPS:
      raise RecordError(
          f'step={step!r} is not one of {", ".join(records.STEPS)}'
      )
    record = from_json(records.STEPS[step], fields)
  except RecordError as error:
    raise RecordError(f'row {n} of the ledger: {error}') from error
  return Row(
      n=n,
      record=record,
      schema=fields.get('schema', 0),
      hash=row['hash'],
      sandbox=sandbox,
      measured=records.Measured(**row['measured']),
  )


def find(rows: Sequence[Row], step: type[R], **match: Any) -> R | None:
  """Return the last record of a step whose fields have these values."""
  for row in reversed(rows):
    record = row.record
    if isinstance(record, step) and all(
        getattr(record, name) == value for name, value in match.items()
    ):
      return record
  return None
