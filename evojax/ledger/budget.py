"""What a run has spent and may still spend, from its ledger alone.

Only rows count: what a kill interrupted has no row and is done, and paid for,
once more. A device-second is one second of all devices of the run.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def spent(rows: Rows) -> float:
  """Device-seconds of all rows."""
  return math.fsum(row['measured'].get('device_seconds', 0) for row in rows)


def by_version(rows: Rows) -> dict[str, float]:
  """Device-seconds of each version, in the order of the ledger.

  A row of a trial counts for the version that the trial made; what made none
  (a refused proposal, a sealed evaluation) stands under ''.
  """
  made = {
      row['payload']['trial']: row['payload']['version']
      for row in rows
      if row['payload']['step'] == 'verify'
  }
  seconds = defaultdict(list)
  for row in rows:
    payload = row['payload']
    if 'trial' in payload:
      version = made.get(payload['trial'], '')
    else:
      version = payload.get('version', '')
    seconds[version].append(row['measured'].get('device_seconds', 0))
  return {version: math.fsum(parts) for version, parts in seconds.items()}


def per_point(rows: Rows) -> float | None:
  """Device-seconds of the run per percentage point that was promoted.

  The points are the measured effects of the kept changes that trained
  something, added up. None if nothing was gained.
  """
  gained = math.fsum(
      100 * row['payload']['effect']
      for row in rows
      if row['payload']['step'] == 'verify'
      and row['payload']['status'] == 'keep'
      and row['payload']['effect'] is not None
  )
  return spent(rows) / gained if gained > 0 else None


@dataclasses.dataclass(frozen=True)
class Budget:
  """Limits of a run; 0 is none."""

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
          ' set what an hour of all devices costs'
      )

  @property
  def limit(self) -> float:
    """Device-seconds that both limits allow; infinite without any."""
    limits = [math.inf]
    if self.device_seconds:
      limits.append(float(self.device_seconds))
    if self.dollars:
      limits.append(3600 * self.dollars / self.dollars_per_device_hour)
    return min(limits)

  def remaining(self, rows: Rows) -> float:
    """Device-seconds left, >= 0; infinite without a limit."""
    return max(0.0, self.limit - spent(rows))

  def exhausted(self, rows: Rows) -> bool:
    """Whether no further step may begin."""
    return self.remaining(rows) == 0

  def cost(self, seconds: float | int) -> float:
    """Dollars of so many device-seconds; 0 where no price is set."""
    return seconds * self.dollars_per_device_hour / 3600
