"""Hypothesize: which change to try next, and what it is expected to do."""

import dataclasses

import numpy as np

from evojax.evolve import opening
from evojax.evolve import propose as propose_lib
from evojax.evolve import skills as skills_lib
from evojax.evolve.propose import human
from evojax.harness import spec
from evojax.ledger import records
from evojax.runtime import decisions


def hypothesize(
    run: opening.Run, diagnosis: records.Diagnose, version: records.Version
) -> records.Hypothesize:
  """Return the next proposal; a change in the user's inbox comes first."""
  fields = decisions.decide(
      lambda: dataclasses.asdict(_choose(run, diagnosis, version))
  )
  return records.from_json(records.Hypothesize, {'schema': 1} | fields)


def _choose(
    run: opening.Run, diagnosis: records.Diagnose, version: records.Version
) -> records.Hypothesize:
  """Process 0's choice."""
  e = run.config.evolve
  context = propose_lib.Context(
      parent=run.harnesses.load(version.harness),
      config=run.harnesses.values(version.harness),
      measures=diagnosis.measures,
      history=_history(run),
      skills=skills_lib.read_all(
          [*e.skills, run.path / 'skills'], run.setup.surface
      ),
      # The decisions so far seed the next random draws.
      rng=np.random.default_rng(int(run.recorder.head[:16], 16)),
      domain=run.config.domain.name,
      surface=run.setup.surface,
      vetoes=human.vetoes(run.inbox),
  )
  proposal = human.propose(context, run.inbox)
  if proposal is None:
    proposal = propose_lib.load(e.proposer)(context)
  if proposal is None:
    return records.Hypothesize(trial=diagnosis.trial, version=version.version)
  spec.write(proposal.after, run.path / 'harness')
  return records.Hypothesize(
      trial=diagnosis.trial,
      version=version.version,
      proposer=proposal.proposer,
      trigger=proposal.trigger,
      hypothesis=proposal.hypothesis,
      expected=tuple(map(float, proposal.expected)),
      criterion=proposal.criterion,
      rollback=proposal.rollback,
      source=proposal.source,
      skill=proposal.skill,
      note=proposal.note,
      harness=proposal.after.sha256,
  )


def _history(run: opening.Run) -> list[propose_lib.Trial]:
  """Earlier trials, as proposers see them."""
  trials = []
  for verdict in run.recorder.history.all(records.Verify):
    proposal = run.recorder.find(records.Hypothesize, trial=verdict.trial)
    delta = run.recorder.find(records.Design, trial=verdict.trial).delta
    trials.append(
        propose_lib.Trial(
            delta_sha=delta.sha256,
            factor=delta.factor,
            intervention_class=delta.intervention_class,
            status=verdict.status,
            effect=verdict.effect,
            low=verdict.low,
            high=verdict.high,
            expected=proposal.expected,
            parent_sha=delta.before,
            changes=delta.changes,
        )
    )
  return trials
