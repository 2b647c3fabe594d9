"""Backtest: the effect of a change on past records, before an arm trains.

It computes (candidate, checkpoints, evidence, seed) -> numbers, of two kinds:
statistics of the recorded groups under the candidate's reward and filter, and
K replayed updates from retained checkpoints, scored on held-out train problems
against the same updates under the parent. A number may be NOT_IDENTIFIABLE:
old rollouts do not show what another temperature would have sampled.
"""

import hashlib
import json
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from evojax.episodes import collect
from evojax.evidence import schema
from evojax.evidence import store
from evojax.evidence import views
from evojax.evolve import arms
from evojax.evolve import backtest as statistics_lib
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import recorded
from evojax.evolve import replay
from evojax.harness import delta as delta_lib
from evojax.harness import run as run_lib
from evojax.ledger import records
from evojax.runtime import decisions
from evojax.runtime import durable
from evojax.training import arm as arm_lib
from evojax.training import reward_parts
from evojax.training import reward_pipeline
from evojax.training import update as update_lib

EQUAL = 'equal_updates'  # 1 if the change makes no difference to a replay.


def backtest(
    run: opening.Run,
    version: records.Version,
    design: records.Design,
    delta: delta_lib.Delta,
) -> records.Backtest:
  """Backtest a candidate against its parent.

  The backtest crashes if a reward fails or replayed updates diverge. Equal
  inputs give equal numbers, which are stored under the hash of the inputs.
  """
  folder = run.path / version.folder
  steps = recorded.train_steps(folder)
  arm = arm_lib.result(folder)
  key = decisions.decide(lambda: _key(run, version, design, arm, steps))
  path = run.path / 'backtests' / f'{key}.json'
  stored = decisions.decide(
      lambda: json.loads(path.read_bytes()) if path.exists() else None
  )
  crash = ''
  if stored is None:
    spent: list[int] = []
    try:
      stored = _backtest(run, version, design, delta, steps, spent)
    except (
        run_lib.FunctionError,
        reward_parts.RewardError,
        update_lib.NonFiniteError,
    ) as error:
      stored = dict(statistics={}, predicted=None)
      key, crash = '', str(error)
    # Policies that were scored before the crash cost tokens, too.
    stored['sampled_tokens'] = sum(spent)
    # A crash has no numbers to store: another run may repair the cause.
    if run.primary and not crash:
      path.parent.mkdir(exist_ok=True)
      durable.write_json(path, stored, indent=None, sort_keys=True)
  predicted = stored['predicted'] and tuple(stored['predicted'])
  return records.Backtest(
      trial=design.trial,
      key=key,
      statistics=stored['statistics'],
      predicted=predicted,
      sampled_tokens=stored['sampled_tokens'],
      crash=crash,
  )


def _key(
    run: opening.Run,
    version: records.Version,
    design: records.Design,
    arm: records.Arm,
    steps: list[int],
) -> str:
  """Return a hash of everything that the numbers depend on.

  Contents are hashed, not files: files also hold times, and their layout
  depends on the writer. An arm's start, end and evidence stand for its
  checkpoints.
  """
  e = run.config.evolve
  digest = hashlib.sha256()
  for name in (
      *(version.harness, design.harness, version.version, version.folder),
      *(arm.start, arm.end, arm.seed),
      *(run.config.seed, e.replay_updates, e.replay_problems),
      replay.WEIGHT_CAP,
  ):
    digest.update(f'{name}\n'.encode())
  for step in steps:
    path = store.path_of(run.path / version.folder, 'train', step)
    table = parquet.ParquetFile(path).read()
    table = table.drop_columns(['grade_seconds']).replace_schema_metadata()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
      writer.write_table(table)
    digest.update(sink.getvalue())
  return digest.hexdigest()


def _backtest(
    run: opening.Run,
    version: records.Version,
    design: records.Design,
    delta: delta_lib.Delta,
    steps: list[int],
    spent: list[int],
) -> dict[str, Any]:
  """Return the numbers in the form in which they are stored.

  Args:
    run: The run.
    version: The parent.
    design: The candidate.
    delta: The change.
    steps: Steps of the parent's evidence.
    spent: Gets the tokens of each score, see `replay.effect`.

  Returns:
    A dict of statistics, name -> number or NOT_IDENTIFIABLE; and predicted, the
    95 % interval of the replayed effect or None.

  Raises:
    FunctionError, RewardError: If a function of a harness fails.
    NonFiniteError: If replayed updates diverge.
  """
  folder, recent = run.path / version.folder, recorded.recent(steps)
  old, old_view = rewarded(run, version.harness, folder, recent)
  new, new_view = rewarded(run, design.harness, folder, recent)
  # The package's statistics are merged last, so that those of the harness
  # cannot replace them.
  found = _own_statistics(run, version.harness, old_view, new_view)
  found |= statistics_lib.compare(old, new)
  if delta.factor.startswith('reward:'):
    part = delta.factor.removeprefix('reward:')
    found |= statistics_lib.scan(new, part, run.setup.surface)
  names = ('replayed_effect', 'replayed_low', 'replayed_high')
  # A replay of old rollouts shows nothing about a change of the sampling, or
  # about one that trains nothing.
  if delta.intervention_class in pairs.SAMPLED_OTHERWISE or not delta.trains:
    found |= dict.fromkeys(names, statistics_lib.NOT_IDENTIFIABLE)
    return dict(statistics=found, predicted=None)
  harnesses = (version.harness, design.harness)
  replayed = replay.effect(run, harnesses, folder, steps, spent)
  effect = replayed.effect
  found |= zip(names, (effect.value, effect.low, effect.high), strict=True)
  found[EQUAL] = float(replayed.equal)
  return dict(
      statistics=found,
      predicted=None if replayed.silent else [effect.low, effect.high],
  )


def rewarded(
    run: opening.Run, harness: str, folder: pathlib.Path, steps: list[int]
) -> tuple[statistics_lib.Rewarded, views.View]:
  """Return recorded groups with the rewards of a harness.

  Args:
    run: The run.
    harness: Hash of the harness.
    folder: Folder of the arm with the evidence.
    steps: Steps of the evidence.

  Returns:
    The groups, and a view of the evidence with these rewards for the reader
    'diagnostic'.
  """
  setup = arms.setup_under(run, harness)
  rows = recorded.load_rows([(folder, step) for step in steps])
  rollouts = collect.RolloutBatch.recorded(rows)
  batch = reward_pipeline.RewardPipeline(setup)(rollouts)
  grid = lambda name: rollouts.rows[name].reshape(batch.graded.shape)
  found = statistics_lib.Rewarded(
      rewards=batch.rewards,
      advantages=batch.episode_advantages,
      kept=batch.kept,
      parts=batch.parts,
      weights=setup.config.reward.weights.to_dict(),
      outcome=grid('outcome').astype(bool),
      graded=batch.graded,
      n_tokens=grid('n_tokens').astype(np.float64),
      estimator=setup.config.grpo.advantage,
  )
  # Diagnostics see these rewards, and no reward part of the older harness.
  rows = {
      name: values
      for name, values in {**rollouts.rows, **batch.columns}.items()
      if not name.startswith(schema.PART_PREFIX)
  }
  return found, recorded.view_of(rows, setup.columns, setup.config)


def _own_statistics(
    run: opening.Run, harness: str, before: views.View, after: views.View
) -> dict[str, Any]:
  """Return the harness's own statistics; a failing one becomes a status."""
  found: dict[str, Any] = {}
  functions = run.harnesses.functions(harness)
  for name in functions.backtests:
    try:
      found |= functions.predict(name, before, after)
    except run_lib.FunctionError as error:
      found[name] = error.status
  return found
