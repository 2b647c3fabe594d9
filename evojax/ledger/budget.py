"""The cost of a run so far, and its remaining budget, from its ledger alone.

Only rows count. A step that a signal interrupts keeps its finished arms and the
saved updates of the others; its cost so far is added to its row when the run
continues, see `unrecorded`. After SIGKILL, at most the last half minute of its
cost is in no row. A device-second is one second of one device, whether the
run's own processes use the device or an arm trains on it elsewhere.
"""

from collections import defaultdict
from collections.abc import Sequence
import dataclasses
import math

from evojax.ledger import records
from evojax.ledger import rows as rows_lib

Rows = Sequence[rows_lib.Row]


def spent(rows: Rows) -> float:
  """Return the device-seconds of all rows."""
  return math.fsum(row.measured.device_seconds for row in rows)


def by_version(rows: Rows) -> dict[str, float]:
  """Return the device-seconds of each version, in the order of the ledger.

  A row of a trial counts for the version that the trial made. Rows without a
  version (of a trial that made none, of a sealed evaluation) count for ''.
  """
  made = {
      row.record.trial: row.record.version
      for row in rows
      if isinstance(row.record, records.Verify)
  }
  seconds = defaultdict(list)
  for row in rows:
    if isinstance(row.record, records.OfTrial):
      version = made.get(row.record.trial, '')
    else:
      version = getattr(row.record, 'version', '')
    seconds[version].append(row.measured.device_seconds)
  return {version: math.fsum(parts) for version, parts in seconds.items()}


def promoted_points(rows: Rows) -> float:
  """Return the summed effects of the kept changes, in percentage points.

  A change that trained nothing adds none, and neither does one that its shadow
  took back.
  """
  taken_back = {
      row.record.trial
      for row in rows
      if isinstance(row.record, records.Shadow)
      and row.record.decision == 'drop'
  }
  return math.fsum(
      100 * row.record.effect
      for row in rows
      if isinstance(row.record, records.Verify)
      and row.record.status == 'keep'
      and row.record.effect is not None
      and row.record.trial not in taken_back
  )


def per_point(rows: Rows) -> float | None:
  """Return the device-seconds per promoted point; None if none was gained."""
  gained = promoted_points(rows)
  return spent(rows) / gained if gained > 0 else None


@dataclasses.dataclass(frozen=True)
class Budget:
  """Limits of a run's cost, and the price of a device; 0 means no limit."""

  device_seconds: float | int = 0
  dollars: float | int = 0
  dollars_per_device_hour: float | int = 0

  def __post_init__(self):
    for name, value in dataclasses.asdict(self).items():
      if not 0 <= value < math.inf:
        raise ValueError(f'{name}={value} must be finite and >= 0 (0 is off)')
    if self.dollars and not self.dollars_per_device_hour:
      raise ValueError(
          f'dollars={self.dollars} limits nothing at dollars_per_device_hour=0;'
          ' set the price of one device for an hour'
      )

  @property
  def limit(self) -> float:
    """The smaller of both limits, in device-seconds; infinite without any."""
    limits = [math.inf]
    if self.device_seconds:
      limits.append(float(self.device_seconds))
    if self.dollars:
      limits.append(3600 * self.dollars / self.dollars_per_device_hour)
    return min(limits)

  def remaining(self, rows: Rows) -> float:
    """Return the device-seconds left, >= 0; infinite without a limit."""
    return max(0.0, self.limit - spent(rows))

  def cost(self, seconds: float | int) -> float:
    """Return the price of device-seconds in dollars; 0 without a price."""
    return seconds * self.dollars_per_device_hour / 3600
