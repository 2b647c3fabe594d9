"""The cost of a step that has no row yet, stored for the next process.

It is in `<ledger>.unrecorded.json`, beside the ledger, with the hash of the row
after which it was spent. Once another row follows, the file is ignored.
"""

import dataclasses
import json
import pathlib

from evojax.runtime import durable


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of the next row in processes before this one."""

  seconds: float = 0.0
  device_seconds: float = 0.0

  def __add__(self, other: 'Cost') -> 'Cost':
    return Cost(
        self.seconds + other.seconds,
        self.device_seconds + other.device_seconds,
    )


def read(ledger: pathlib.Path, head: str) -> Cost:
  """Return the cost after the row with the hash `head`; 0 if none is known.

  A damaged file counts as none, since the cost is no reason to end a run.
  """
  try:
    values = json.loads(_file(ledger).read_text())
    if values.pop('after') != head:
      return Cost()
    return Cost(**{name: float(value) for name, value in values.items()})
  except (FileNotFoundError, ValueError, TypeError, AttributeError, KeyError):
    return Cost()


def write(ledger: pathlib.Path, head: str, cost: Cost) -> None:
  """Store the whole cost after the row with the hash `head`, atomically.

  Raises:
    durable.DiskError: If the disk is full.
  """
  values = {'after': head, **dataclasses.asdict(cost)}
  durable.write_json(_file(ledger), values)


def remove(ledger: pathlib.Path) -> None:
  """Remove the file, after the row that contains its cost was written."""
  _file(ledger).unlink(missing_ok=True)


def _file(ledger: pathlib.Path) -> pathlib.Path:
  return ledger.with_suffix('.unrecorded.json')
