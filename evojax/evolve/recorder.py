"""The steps of a run as rows of its ledger, known to every process.

Process 0 owns the ledger and decides; the others receive its rows. All of them
walk the same steps, so that devices are used together.
"""

from collections.abc import Callable
import dataclasses
import resource
import time
from typing import Any, TypeVar

import jax

from evojax.ledger import budget as budget_lib
from evojax.ledger import chain
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.runtime import commands
from evojax.runtime import decisions

R = TypeVar('R', bound=records.Record)
T = TypeVar('T')


def made_from(step: type[T], source: Any, /, **fields: Any) -> T:
  """Return a record with the fields that another object has, and these.

  Args:
    step: The record, or a part of one.
    source: An object with some attributes of the same names.
    **fields: The others, and those that differ.
  """
  names = [field.name for field in dataclasses.fields(step)]
  # Not `asdict`, which copies nested records into dictionaries.
  shared = {n: getattr(source, n) for n in names if hasattr(source, n)}
  return step(**shared | fields)


class BudgetExhaustedError(Exception):
  """The run may spend no more; everything is saved."""


class Recorder:
  """The rows of a run; a step that has one is not done again."""

  def __init__(
      self,
      ledger: chain.Ledger | None,
      budget: budget_lib.Budget,
      preempted: Callable[[], None],
      keep: Callable[[], None],
      meter: commands.Meter | None = None,
  ):
    """Read the rows that are there.

    Args:
      ledger: Of process 0; None in the others.
      budget: What the run may spend.
      preempted: Raises `Preempted` after a signal; asked before every step.
      keep: Called before anything is computed, see `Workdir.keep`.
      meter: Of the jobs that have devices of their own.
    """
    self._ledger, self.budget = ledger, budget
    self._preempted, self._keep = preempted, keep
    self._meter = meter or commands.Meter()
    self._since, self._metered = time.perf_counter(), self._meter.total()
    stored = decisions.decide(lambda: list(ledger.rows))
    self.rows = [records.parse(row) for row in stored]

  @property
  def history(self) -> history_lib.History:
    """Everything that follows from the rows so far."""
    return history_lib.History(self.rows)

  @property
  def head(self) -> str:
    """Hash of the last row."""
    return self.rows[-1].hash if self.rows else chain.START

  def find(self, step: type[R], **match: Any) -> R | None:
    """Return the last record of a step whose fields have these values."""
    return records.find(self.rows, step, **match)

  def record(self, step: type[R], make: Callable[[], R], **key: Any) -> R:
    """Return the record of a step, which is made now if there is none.

    Whatever `make` leaves on disk is there before the row is.

    Args:
      step: Kind of record.
      make: Does the step, in every process.
      **key: Fields that tell the row from others of its step.
    """
    found = self.find(step, **key)
    if found is None:
      # Time before it, such as that of opening the run, is no cost of the step.
      self._since, self._metered = time.perf_counter(), self._meter.total()
      self._check()
      found = self.append(make())
    return found

  def append(self, record: R) -> R:
    """Add a row for all that was done since the last one; return its record."""
    if not isinstance(record, records.Open):  # Its row says how it starts.
      self._keep()
    seconds, spent = self._spent()
    self._since += seconds
    self._metered = self._meter.total()

    def append() -> chain.Row:
      peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
      measured = records.Measured(
          seconds=seconds,
          device_seconds=spent,
          peak_rss_mb=peak,
      )
      return records.append(self._ledger, record, measured)

    self.rows.append(records.parse(decisions.decide(append)))
    return self.rows[-1].record

  def _spent(self) -> tuple[float, float]:
    """Return the seconds and the device-seconds since the last row."""
    seconds = time.perf_counter() - self._since
    elsewhere = self._meter.total() - self._metered
    return seconds, seconds * jax.device_count() + elsewhere

  def stop_if_asked(self) -> None:
    """Raise if the run has to stop, before something is computed.

    To be called where everything up to here is, or can be, saved.

    Raises:
      preemption.Preempted: After SIGINT or SIGTERM.
      BudgetExhaustedError: If the run has spent what it may, with the step that
        has no row yet.
    """
    self._check()
    self._keep()

  def _check(self) -> None:
    """Raise as `stop_if_asked` does."""
    self._preempted()
    _, spent = self._spent()
    if decisions.decide(lambda: spent >= self.budget.remaining(self.rows)):
      raise BudgetExhaustedError

  def stop(self, reason: str) -> None:
    """Record why the run ends here, and what was spent since the last row."""
    if not self.rows or not isinstance(self.rows[-1].record, records.Stop):
      self.append(records.Stop(reason=reason))
