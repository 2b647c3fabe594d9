"""Hypothesize: the change to try next, and its expected effect."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from evojax.evolve import arms
from evojax.evolve import opening
from evojax.evolve import propose as propose_lib
from evojax.evolve import prospects
from evojax.evolve import recorded
from evojax.evolve import recorder
from evojax.evolve import repairs
from evojax.evolve import search
from evojax.evolve import skills as skills_lib
from evojax.evolve.propose import human
from evojax.evolve.propose import remedies
from evojax.harness import delta as delta_lib
from evojax.harness import spec
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.ledger import rows as rows_lib
from evojax.runtime import decisions
from evojax.runtime import numerals
from evojax.runtime import preemption
from evojax.runtime import run_files


def hypothesize(
    run: opening.Run,
    diagnosis: records.Diagnose,
    version: records.Version,
    only: Sequence[str],
    note: str,
) -> records.Hypothesize:
  """Return the next proposal.

  A change in the user's inbox comes first, then a diagnostic that the run found
  by itself, which costs no tokens.

  Args:
    run: The run.
    diagnosis: The diagnosis of the version.
    version: The version to change.
    only: If not empty, the proposer may only repair findings of these
      severities.
    note: What the row says if there is no proposal, unless a fault ends the
      run.

  Raises:
    preemption.Interrupted: If a signal came while the proposer worked.
  """

  def choose() -> tuple[Any, Any] | None:
    try:
      row, made = _choose(run, diagnosis, version, only, note)
    except preemption.Interrupted:  # Raised below, in all processes.
      return None
    parts = made and {'overlay': dict(made.overlay), 'files': dict(made.files)}
    return rows_lib.to_json(row), parts

  chosen = decisions.decide(choose)
  if chosen is None:
    raise preemption.Interrupted
  fields, harness = chosen
  if harness:
    # The harness is written before the row that names it. After a kill between
    # the two, it is written again.
    run.harnesses.write(spec.Harness(**harness))
  return rows_lib.from_json(records.Hypothesize, fields)


def ends_run(run: opening.Run, diagnosis: records.Diagnose) -> bool:
  """Return whether a fault that no harness can repair ends the run.

  The loop ends it only if no candidate races.
  """
  if not run.config.evolve.end_at_fault:
    return False
  return remedies.is_beyond_repair(run.setup.surface, diagnosis.findings)


def none(diagnosis: records.Diagnose) -> records.Hypothesize:
  """Return the row of a diagnosis without a proposal."""
  return records.Hypothesize(trial=diagnosis.trial, version=diagnosis.version)


def _choose(
    run: opening.Run,
    diagnosis: records.Diagnose,
    version: records.Version,
    only: Sequence[str],
    note: str,
) -> tuple[records.Hypothesize, spec.Harness | None]:
  """Return the choice of process 0: the row, and the changed harness if any."""
  e = run.config.evolve
  rejected: set[str] = set()  # Factors that were not worth trying.

  def is_worth_trying(
      delta: delta_lib.Delta, expected: records.Interval
  ) -> bool:
    if only:
      return repairs.severity(diagnosis.findings, delta.changes) in only
    found = prospects.is_worth_trying(
        run, diagnosis.round, diagnosis.findings, delta, expected
    )
    if not found:
      rejected.add(delta.factor)
    return found

  context = propose_lib.Context(
      parent=run.harnesses.load(version.harness),
      config=run.harnesses.values(version.harness),
      measures=diagnosis.measures,
      findings=diagnosis.findings,
      history=[
          without_audit(t)
          for t in run.recorder.history.trials
          if t.status not in history_lib.UNTRIED
      ],
      skills=skills_lib.read_all(
          [*e.skills, run.path / run_files.SKILLS], run.setup.surface
      ),
      # Seeded alike on machines whose measurements differ slightly.
      rng=np.random.default_rng(arms.seed_of(run, 'propose', diagnosis.trial)),
      domain=run.config.domain.name,
      surface=run.setup.surface,
      vetoes=human.vetoes(run.inbox),
      levels=run.setup.domain.levels,
      solved=recorded.solved_by_family(run.path / version.folder),
      is_worth_trying=is_worth_trying,
  )
  proposal = human.propose(context, run.inbox)
  ends = ends_run(run, diagnosis)
  if proposal is None and e.search and not ends:
    proposal = search.propose(run, context, version)
  faulty = any(f.severity in only for f in diagnosis.findings)
  wanted = (faulty or not only) and not ends
  if proposal is None and wanted:
    propose = propose_lib.load(e.proposer)
    # A proposer may wait for a language model.
    proposal = preemption.until_asked(lambda: propose(context))
    if proposal and not is_worth_trying(proposal.delta, proposal.expected):
      proposal = None
    if proposal is None and rejected:
      least = prospects.least_chance(run, diagnosis.round)
      note = (
          f'none of {numerals.counted(len(rejected), "change")} is expected to'
          f' prove a gain with a probability well above {least:.2f}; so the'
          ' tokens that a test would take train the policy instead'
      )
  row = dict(trial=diagnosis.trial, version=version.version)
  if proposal is None:
    return records.Hypothesize(**row, note='' if ends else note), None
  row |= dict(harness=proposal.after.sha256)
  row |= dict(expected=tuple(map(float, proposal.expected)))
  made = recorder.made_from(records.Hypothesize, proposal, **row)
  return made, proposal.after


def without_audit(trial: history_lib.Trial) -> history_lib.Trial:
  """Return a trial without its results on the evaluator's own problems.

  A proposer that saw these scores could learn to optimise them.
  """
  trial = dataclasses.replace(trial, audit=None)
  verdict = trial.verify
  if verdict is None or verdict.perturbed_effect is None:
    return trial
  hidden = dict(perturbed_effect=None, perturbed_error=None, reasons=())
  return dataclasses.replace(
      trial, verify=dataclasses.replace(verdict, **hidden)
  )
