"""Records of which a test sets only what it is about."""

import dataclasses
import pathlib
import types
import typing
from typing import Any

from evojax.ledger import chain
from evojax.ledger import history
from evojax.ledger import records
from evojax.ledger import rows as rows_lib


def record(cls: type, **fields: Any) -> Any:
  """A record with these fields; the others are empty, 0 or None."""
  hints = typing.get_type_hints(cls)
  for field in dataclasses.fields(cls):
    if field.default is dataclasses.MISSING and field.name not in fields:
      fields[field.name] = _empty(hints[field.name])
  return cls(**fields)


def _empty(hint: Any) -> Any:
  if dataclasses.is_dataclass(hint):
    return record(hint)
  if isinstance(hint, types.UnionType):
    return None
  return (typing.get_origin(hint) or hint)()


def row(record_: records.Record, device_seconds: float = 0.0) -> rows_lib.Row:
  """A row that holds a record, outside any chain."""
  return rows_lib.Row(
      n=0,
      record=record_,
      schema=record_.VERSION,
      hash='',
      sandbox='',
      measured=records.Measured(device_seconds=device_seconds),
  )


def run(*found: records.Record) -> history.History:
  """The history of a run with these records."""
  return history.History([row(record_) for record_ in found])


def write(
    workdir: pathlib.Path, *found: records.Record, device_seconds: float = 0.0
) -> None:
  """Writes the ledger of a run."""
  ledger = chain.Ledger(workdir / 'ledger.jsonl')
  for record_ in found:
    measured = records.Measured(device_seconds=device_seconds)
    rows_lib.append(ledger, record_, measured)


def trial(
    number: int,
    parent: str,
    version: str,
    effect: float | None = None,
    **fields
) -> list[records.Record]:
  """The records of a trial with a verdict; `fields` belong to verify."""
  if effect is not None:
    fields = {'low': effect, 'high': effect} | fields
  return [
      record(
          records.Hypothesize,
          trial=number,
          version=parent,
          proposer='rules',
          expected=(0.0, 0.02),
      ),
      record(
          records.Design,
          trial=number,
          delta=record(records.Delta, intervention_class='clip'),
      ),
      record(
          records.Verify,
          trial=number,
          version=version,
          effect=effect,
          **{'status': 'keep' if version else 'discard'} | fields,
      ),
  ]
