"""Recorded evidence of an arm, as the functions of a harness see it."""

from collections.abc import Sequence
import itertools
import pathlib
from typing import Any, TypeVar

import ml_collections
import numpy as np
import pandas as pd

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

_T = TypeVar('_T')
Step = tuple[pathlib.Path, int]  # Folder of an arm, and number of a step.

# Number of groups that a diagnosis reads if one arm has fewer recent ones: a
# share of them is known to within 5 points. More would only take memory.
_GROUPS = 120


def load_rows(steps: Sequence[Step]) -> dict[str, Any]:
  """Return the train evidence of some steps as one batch, by column.

  All processes call it together. Groups are numbered consecutively over the
  steps. Steps may differ in their number of groups, because of refill rounds.
  """
  frames, groups = [], 0
  for folder, members in itertools.groupby(steps, key=lambda step: step[0]):
    numbers = [number for _, number in members]
    paths = [store.path_of(folder, 'train', number) for number in numbers]
    copies.fetch(paths[0].parent, {path.name for path in paths}.__contains__)
    for number in numbers:
      frame = store.read(folder, 'train', [number])
      # Every step numbers its groups from 0.
      frames.append(frame.assign(group=frame['group'] + np.int32(groups)))
      groups = int(frames[-1]['group'].max()) + 1
  whole = pd.concat(frames, ignore_index=True)
  return {name: whole[name].to_numpy() for name in whole.columns}


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


def recent(steps: Sequence[_T]) -> Sequence[_T]:
  """Return the last third of the steps, at least one."""
  return steps[-max(1, len(steps) // 3) :]


def view(run: opening.Run, folders: Sequence[str], harness: str) -> views.View:
  """Return the recent evidence of arms as a harness's diagnostics see it.

  It is the last third of the steps, but at most as many steps as the last third
  of the last arm has, or as are needed for _GROUPS groups if that is more.

  Args:
    run: The run.
    folders: Folders of arms, each of which continues the one before.
    harness: Hash of the harness.
  """
  paths = [run.path / folder for folder in folders]
  arms = [[(path, step) for step in train_steps(path)] for path in paths]
  enough = -(-_GROUPS // run.config.grpo.prompts)
  most = max(len(recent(arms[-1])), enough)
  steps = recent(list(itertools.chain(*arms)))[-most:]
  config = run.harnesses.config_under(harness)
  columns = collect.columns(run.setup.domain, config)
  return view_of(load_rows(steps), columns, config)


def measure(
    run: opening.Run,
    folders: Sequence[str],
    harness: str,
    outcome: Sequence[float],
    recent: Sequence[float] | None = None,
) -> list[records.Measure]:
  """Return the measures that a harness's diagnostics take of arms.

  Args:
    run: The run.
    folders: Folders of arms, each of which continues the one before.
    harness: Hash of the harness.
    outcome: Share of solved rollouts of each update of the arms.
    recent: The same of the policy's recent training; None: that of the arms.
  """
  config = run.harnesses.config_under(harness)
  columns = collect.columns(run.setup.domain, config)
  paths = [run.path / folder for folder in folders]
  return diagnose.measure(
      run.harnesses.functions(harness),
      view(run, folders, harness),
      run.recorder.history,
      outcome,
      rewards(paths),
      effort(paths, columns),
      recent,
  )


def findings(
    run: opening.Run, folders: Sequence[str], harness: str
) -> tuple[records.Finding, ...]:
  """Return the findings of `evojax-diagnose` on arms, worst first.

  A blind run gets none: the checks report what such a run has to discover.

  Args:
    run: The run.
    folders: Folders of arms, each of which continues the one before.
    harness: Hash of the harness that they were trained under.
  """
  if run.config.evolve.seed_harness == 'seed_blind':
    return ()

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
    folders: Sequence[pathlib.Path], columns: Sequence[schema.Column]
) -> dict[str, float]:
  """Return the `rules.effort_curve` of arms; {} where a run cannot see it.

  A domain without agents has no such column, and a blind run may not read it.
  """
  tested = 'tested_after_edit'
  if not any(c.name == tested and 'diagnostic' in c.readers for c in columns):
    return {}

  def read() -> dict[str, float]:
    steps = _numbers(folders, tested, 'n_turns', 'graded')
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


def rewards(folders: Sequence[pathlib.Path]) -> list[float]:
  """Return the mean reward of each update of arms, in every process."""

  def read() -> list[float]:
    each = _numbers(folders, 'reward', 'graded')
    return [float(reward[graded].mean()) for reward, graded in each]

  return decisions.decide(read)


def _numbers(
    folders: Sequence[pathlib.Path], *columns: str
) -> list[list[np.ndarray]]:
  """Return columns of all steps of arms; only where evidence is written."""
  return [
      store.read_numbers(folder, 'train', number, *columns)
      for folder in folders
      for number in store.list_steps(folder, 'train')
  ]
