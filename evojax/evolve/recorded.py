"""Recorded evidence of an arm, as the functions of a harness see it."""

from collections.abc import Sequence
import pathlib
from typing import Any

import ml_collections
import numpy as np

from evojax import config as config_lib
from evojax.diagnosis import examine
from evojax.diagnosis import findings as findings_lib
from evojax.diagnosis import rules
from evojax.diagnosis.readers import workdir
from evojax.episodes import collect
from evojax.evidence import schema
from evojax.evidence import store
from evojax.evidence import views
from evojax.evolve import diagnose
from evojax.evolve import opening
from evojax.ledger import records
from evojax.runtime import copies
from evojax.runtime import decisions


def load_rows(folder: pathlib.Path, steps: Sequence[int]) -> dict[str, Any]:
  """Return the train evidence of some steps as one batch, by column.

  All processes call it together. Groups are numbered consecutively over the
  steps. Steps may differ in their number of groups, because of refill rounds.
  """
  paths = [store.path_of(folder, 'train', step) for step in steps]
  wanted = {path.name for path in paths}
  copies.fetch(paths[0].parent, wanted.__contains__)
  frame = store.read(folder, 'train', list(steps))
  rows = {name: frame[name].to_numpy() for name in frame.columns}
  # Every step numbers its groups from 0, so offsets are added.
  first, offset = {}, 0
  for step in steps:
    first[step] = offset
    offset += int(rows['group'][rows['step'] == step].max()) + 1
  rows['group'] = rows['group'] + np.array([first[s] for s in rows['step']])
  return rows


def view_of(
    rows: dict[str, Any],
    columns: tuple[schema.Column, ...],
    config: ml_collections.ConfigDict,
) -> views.View:
  """Return rows as a view for the diagnostics of a harness."""
  limit = config_lib.token_limit(config)
  return collect.view(rows, columns, limit, 'diagnostic')


def train_steps(folder: pathlib.Path) -> list[int]:
  """Return the numbers of the steps with train evidence, in every process."""
  return decisions.decide(lambda: store.list_steps(folder, 'train'))


def recent(steps: Sequence[int]) -> Sequence[int]:
  """Return the last third of the steps, at least one."""
  return steps[-max(1, len(steps) // 3) :]


def view(run: opening.Run, folder: str, harness: str) -> views.View:
  """Return the recent evidence of an arm as a harness's diagnostics see it."""
  path = run.path / folder
  config = run.harnesses.config_under(harness)
  columns = collect.columns(run.setup.domain, config)
  return view_of(load_rows(path, recent(train_steps(path))), columns, config)


def measure(
    run: opening.Run, folder: str, harness: str, outcome: Sequence[float]
) -> list[records.Measure]:
  """Return the measures that a harness's diagnostics take of an arm.

  Args:
    run: The run.
    folder: Folder of the arm, below the workdir.
    harness: Hash of the harness.
    outcome: Share of solved rollouts of each update of the arm.
  """
  config = run.harnesses.config_under(harness)
  columns = collect.columns(run.setup.domain, config)
  return diagnose.measure(
      run.harnesses.functions(harness),
      view(run, folder, harness),
      run.recorder.history,
      outcome,
      rewards(run.path / folder),
      effort(run.path / folder, columns),
  )


def findings(
    run: opening.Run, folders: Sequence[str], harness: str
) -> tuple[records.Finding, ...]:
  """Return the findings of `evojax-diagnose` on arms, worst first.

  Args:
    run: The run.
    folders: Folders of arms, each of which continues the one before.
    harness: Hash of the harness that they were trained under.
  """

  def read() -> list[dict[str, Any]]:
    found = workdir.read_arms(
        run.path,
        [run.path / folder for folder in folders],
        run.harnesses.values(harness),
    )
    fields = ('check', 'severity', 'text', 'remedies')
    return [
        {name: findings_lib.plain(getattr(finding, name)) for name in fields}
        for finding in examine.examine(found).findings
    ]

  # Decided in process 0, so that all processes have the same bits.
  return tuple(
      records.Finding(
          **row
          | {'remedies': tuple(records.Remedy(**r) for r in row['remedies'])}
      )
      for row in decisions.decide(read)
  )


def effort(
    folder: pathlib.Path, columns: Sequence[schema.Column]
) -> dict[str, float]:
  """Return the `rules.effort_curve` of an arm; {} where a run cannot see it.

  A domain without agents has no such column, and a blind run may not read it.
  """
  tested = 'tested_after_edit'
  if not any(c.name == tested and 'diagnostic' in c.readers for c in columns):
    return {}

  def read() -> dict[str, float]:
    steps = [
        store.read_numbers(folder, 'train', step, tested, 'n_turns', 'graded')
        for step in store.list_steps(folder, 'train')
    ]
    done = [float(values[graded].mean()) for values, _, graded in steps]
    turns = [float(values[graded].mean()) for _, values, graded in steps]
    return dict(rules.effort_curve(done, turns))

  return decisions.decide(read)


def solved_by_family(folder: pathlib.Path) -> dict[str, float]:
  """Return the share of an arm's graded rollouts that solve, by family.

  Only process 0 may call it, where evidence is written.
  """
  columns = ['family', 'outcome', 'graded']
  rows = store.read(folder, 'train', columns=columns)
  rows = rows[rows['graded'].astype(bool)]
  shares = rows.astype({'outcome': float}).groupby('family')['outcome'].mean()
  return {str(family): float(share) for family, share in shares.items()}


def rewards(folder: pathlib.Path) -> list[float]:
  """Return the mean reward of each update of an arm, in every process."""

  def read() -> list[float]:
    steps = store.list_steps(folder, 'train')
    columns = ('reward', 'graded')
    each = (store.read_numbers(folder, 'train', s, *columns) for s in steps)
    return [float(reward[graded].mean()) for reward, graded in each]

  return decisions.decide(read)
