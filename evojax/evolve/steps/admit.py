"""Admit: the gate's decision on a candidate."""

from evojax.evolve import arms
from evojax.evolve import opening
from evojax.evolve import recorded
from evojax.harness import admit as admit_lib
from evojax.ledger import records
from evojax.runtime import decisions


def admit(
    run: opening.Run, version: records.Version, design: records.Design
) -> records.Admit:
  """Return the gate's reasons against a candidate; none means admitted."""
  view = recorded.view(run, version.folder, version.harness)
  reasons = decisions.decide(
      lambda: admit_lib.admit(
          run.harnesses.load(version.harness),
          run.harnesses.load(design.harness),
          run.config,
          run.setup.surface,
          run.setup.synthetic,
          view,
      )
  )
  try:
    arms.setup_under(run, design.harness)
  except ValueError as error:  # Values that are inconsistent in an arm.
    reasons = [*reasons, str(error)]
  return records.Admit(trial=design.trial, reasons=tuple(reasons))
