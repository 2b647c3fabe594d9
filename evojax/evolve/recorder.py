"""The steps of a run as rows of its ledger, known to every process.

Process 0 owns the ledger and decides; the others receive its rows. All
processes go through the same steps, so that they use the devices together.
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
from evojax.ledger import rows as rows_lib
from evojax.ledger import unrecorded
from evojax.runtime import commands
from evojax.runtime import decisions

# Time between two writes of a step's cost, so that a kill loses little of it.
_KEEP_SECONDS = 30.0

R = TypeVar('R', bound=records.Record)
T = TypeVar('T')


def made_from(step: type[T], source: Any, /, **fields: Any) -> T:
  """Return a record made of another object's attributes and further fields.

  Args:
    step: The record, or a part of one.
    source: An object with attributes named like fields of the record.
    **fields: Fields that the source lacks, or that are to differ from it.
  """
  names = [field.name for field in dataclasses.fields(step)]
  # `asdict` would turn nested records into dictionaries.
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
    """Read the existing rows.

    Args:
      ledger: The ledger in process 0; None in the others.
      budget: Limits of the run's cost.
      preempted: Raises `Preempted` after a signal; called before every step.
      keep: Called before anything is computed, see `Workdir.keep`.
      meter: Counts the device-seconds of jobs that have their own devices.
    """
    self._ledger, self.budget = ledger, budget
    self._preempted, self._keep = preempted, keep
    self._meter = meter or commands.Meter()
    self._since, self._metered = time.perf_counter(), self._meter.total()
    stored = decisions.decide(lambda: list(ledger.rows))
    self.rows = [rows_lib.parse(row) for row in stored]
    # The cost of the next row that earlier processes have paid.
    self._paid = unrecorded.Cost(
        *decisions.decide(
            lambda: dataclasses.astuple(unrecorded.read(ledger.path, self.head))
        )
    )
    self._kept, self._begun = self._since, False

  @property
  def history(self) -> history_lib.History:
    """The run's history as computed from the rows so far."""
    return history_lib.History(self.rows)

  @property
  def head(self) -> str:
    """Hash of the last row."""
    return self.rows[-1].hash if self.rows else chain.START

  def find(self, step: type[R], **match: Any) -> R | None:
    """Return the last record of a step whose fields have these values."""
    return rows_lib.find(self.rows, step, **match)

  def record(self, step: type[R], make: Callable[[], R], **key: Any) -> R:
    """Return the record of a step; do the step if it has no record yet.

    Files that `make` writes are on disk before the row is.

    Args:
      step: Class of the record.
      make: Does the step and returns its record; called in every process.
      **key: Fields that distinguish the row from others of the same class.
    """
    found = self.find(step, **key)
    if found is None:
      # Time before the step, such as that of opening the run, is not its cost.
      self._since, self._metered = time.perf_counter(), self._meter.total()
      self._check()
      found = self.append(make())
    return found

  def append(self, record: R) -> R:
    """Append a row for all work since the last one; return its record."""
    # After `Open` alone, a start that fails still leaves the workdir as it was.
    if not isinstance(record, records.Open):
      self._begin()
    cost = self._cost()
    self._since, self._metered = time.perf_counter(), self._meter.total()

    def append() -> chain.Row:
      peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
      measured = records.Measured(
          **dataclasses.asdict(cost),
          peak_rss_mb=peak,
      )
      row = rows_lib.append(self._ledger, record, measured)
      unrecorded.remove(self._ledger.path)
      return row

    self.rows.append(rows_lib.parse(decisions.decide(append)))
    self._paid = unrecorded.Cost()
    return self.rows[-1].record

  def _cost(self) -> unrecorded.Cost:
    """Return the cost since the last row, also that of earlier processes."""
    seconds = time.perf_counter() - self._since
    elsewhere = self._meter.total() - self._metered
    here = unrecorded.Cost(seconds, seconds * jax.device_count() + elsewhere)
    return self._paid + here

  def _begin(self) -> None:
    """Keep the files that this start has written, as computing begins now."""
    self._keep()
    self._begun = True

  def keep_cost(self) -> None:
    """Store the cost since the last row for the process that continues.

    Nothing is written if nothing was computed yet, because a start that fails
    leaves the workdir as it was.
    """
    if self._ledger is not None and self._begun:
      self._kept = time.perf_counter()
      unrecorded.write(self._ledger.path, self.head, self._cost())

  def stop_if_asked(self) -> None:
    """Raise if the run has to stop, before anything more is computed.

    Call it only where all work so far is saved, or can be.

    Raises:
      preemption.Preempted: After SIGINT or SIGTERM.
      BudgetExhaustedError: If the budget is spent, counting the current step,
        which has no row yet.
    """
    self._check()
    self._begin()
    if time.perf_counter() - self._kept > _KEEP_SECONDS:
      self.keep_cost()

  def _check(self) -> None:
    """Raise as `stop_if_asked` does."""
    self._preempted()
    spent = self._cost().device_seconds
    if decisions.decide(lambda: spent >= self.budget.remaining(self.rows)):
      raise BudgetExhaustedError

  def stop(self, reason: str) -> None:
    """Record why the run ends here, and the cost since the last row."""
    if not self.rows or not isinstance(self.rows[-1].record, records.Stop):
      self.append(records.Stop(reason=reason))
    else:  # Otherwise each start would spend the rest of the budget again.
      self.keep_cost()
