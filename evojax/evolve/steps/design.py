"""Design: the one factor in which a candidate differs, found from its files."""

from evojax.evolve import opening
from evojax.evolve import recorder
from evojax.harness import delta as delta_lib
from evojax.harness import library
from evojax.harness import spec
from evojax.ledger import records


def design(
    run: opening.Run, version: records.Version, proposal: records.Hypothesize
) -> records.Design:
  """Return the candidate and its difference from the parent version."""
  delta = run.harnesses.delta(version.harness, proposal.harness)
  after = run.harnesses.load(proposal.harness)
  return records.Design(
      trial=proposal.trial,
      harness=proposal.harness,
      delta=recorder.made_from(
          records.Delta, delta, text=_in_a_line(delta, after)
      ),
  )


def _in_a_line(delta: delta_lib.Delta, after: spec.Harness) -> str:
  """Return the change in a line, with the name of a shipped function."""
  for path, *_ in delta.changes:
    for name in library.names():
      if path in after.files and after.files[path] == library.source(name):
        return f'{delta.factor} ({name})'
  return str(delta)
