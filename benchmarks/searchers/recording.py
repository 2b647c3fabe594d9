"""The queue of training runs that fills the tables.

A row is a run under one harness of a setting and one seed. At each mark a dev
score is taken, on problems that all rows share, and the row stores what the
diagnostics call for. Under the first seed, each change of one factor is also
replayed on the recorded evidence. Rows are appended to a file of JSON lines;
runs whose rows exist are not repeated.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import pathlib
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import json_lines
from benchmarks.searchers import design as design_lib
from benchmarks.searchers import live
from benchmarks.searchers import tables
from evojax import config as config_lib
from evojax.diagnosis import examine
from evojax.diagnosis.readers import workdir
from evojax.episodes import collect
from evojax.eval import estimates
from evojax.eval import evaluate
from evojax.evolve import diagnose
from evojax.evolve import recorded
from evojax.evolve import repairs
from evojax.evolve.propose import library
from evojax.harness import delta
from evojax.harness import surface as surface_lib
from evojax.ledger import history
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import sharding
from evojax.training import arm as arm_lib
from evojax.training import engines
from evojax.training import learner as learner_lib
from evojax.training import reward_pipeline
from evojax.training import setup as setup_lib
from evojax.training import trainer as trainer_lib

_BY_MARK = ('tokens', 'dev_tokens', 'solved', 'critical', 'calls')
SAMPLES = 2  # Completions per dev problem.
_DEV_SEED = 3_000_017  # Problems of all scores.
_TRAIN_SEED = 3_000_019  # Problems for scores of replays; no run uses it.


@dataclasses.dataclass(frozen=True)
class Run:
  """A row to be recorded."""

  setting: str
  harness: int
  seed: int
  switched: tuple[int, int] | None = None  # (new harness, updates before it).

  @property
  def key(self) -> tuple[Any, ...]:
    return self.setting, self.harness, self.seed, self.switched


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """The training of runs, equal for all rows of a table."""

  updates: int  # Updates of a run.
  every: int  # Updates between marks.
  problems: int  # Problems of a score.
  bits: int = design_lib.BITS  # Factors: 2 ** bits harnesses.

  @property
  def marks(self) -> range:
    """Updates after which a score is taken."""
    return range(0, self.updates + 1, self.every)

  def queue(self, settings: Sequence[str], seeds: int) -> Iterator[Run]:
    """Yield runs, one seed of all settings before the next seed.

    They are followed by runs in which the seed's harness is changed in factor 0
    halfway; these test the assumptions of replays.
    """
    for seed in range(seeds):
      for setting in settings:
        for number in range(1 << self.bits):
          yield Run(setting, number, seed)
    middle = self.marks[len(self.marks) // 2]
    for seed in range(seeds):
      for setting in settings:
        yield Run(setting, tables.SEED, seed, (1, middle))


class Bench:
  """The data, base policy and programs that the runs of a setting share."""

  def __init__(self, setting: str, folder: pathlib.Path):
    """Open a setting; its harnesses are written to a folder."""
    self.design, self._folder = design_lib.read(setting), folder
    self.opened = setup_lib.prepare(self._config(tables.SEED, 0))
    self.mesh = sharding.make_mesh(**self.opened.config.mesh.to_dict())
    self.engine = engines.make_engine(
        self.opened.config, self.opened.policy, self.mesh
    )

  def _config(self, number: int, seed: int) -> Any:
    config, harness = self.design.recipe(number)
    return live.recipe(config, harness, seed, self._folder)

  def setup(self, number: int, seed: int) -> setup_lib.Setup:
    """Return the training setup under a harness."""
    return self.opened.under(self._config(number, seed))

  def score(self, setup: setup_lib.Setup, **options: Any) -> Any:
    """Score the weights in the engine."""
    scorer = setup.scorer(self.engine)
    return evaluate.evaluate(scorer, samples=SAMPLES, **options)


@functools.lru_cache(maxsize=1)
def _bench(setting: str) -> Bench:
  # The engine's programs are kept until a run of another setting.
  folder = tempfile.TemporaryDirectory()
  bench = Bench(setting, pathlib.Path(folder.name))
  bench.temporary = folder  # Deleted together with the bench.
  return bench


def record(run: Run, plan: Plan, path: pathlib.Path) -> dict[str, Any]:
  """Train one run and add its row to a file; return the row."""
  bench = _bench(run.setting)
  with tempfile.TemporaryDirectory() as temporary:
    row = _trained(bench, run, plan, pathlib.Path(temporary))
  json_lines.append(path, [row])
  return row


def _trained(
    bench: Bench, run: Run, plan: Plan, folder: pathlib.Path
) -> dict[str, Any]:
  """Return the row of a run."""
  row: dict[str, Any] = dict(
      **dataclasses.asdict(run), updates=list(plan.marks), samples=SAMPLES
  )
  row |= {name: [] for name in _BY_MARK}
  row['ended'] = ''
  arm = _arm(bench, run.harness, run.seed, folder / 'arm')
  done, tokens = 0, 0
  for mark in plan.marks:
    while done < mark and not row['ended']:
      try:
        tokens += int(arm.train_step()['sampled_tokens'])
        done += 1
      except live.ENDS as error:
        row['ended'] = f'after {done} updates: {error}'
    if row['ended']:
      # The policy stays as it is, and samples as much as before.
      for name in _BY_MARK[1:]:
        row[name].append(row[name][-1])
      row['tokens'].append(round(tokens * mark / max(done, 1)))
      continue
    arm.install()
    result = bench.score(
        arm.setup, split='dev', seed=_DEV_SEED, problems=plan.problems
    )
    right = (result.outcomes & result.graded).sum(axis=1)
    row['solved'].append(''.join(map(str, right)))
    row['dev_tokens'].append(round(result.n_tokens, 2))
    row['tokens'].append(tokens)
    critical, calls = _calls(arm) if mark else ([], [])
    row['critical'].append(critical)
    row['calls'].append(calls)
    if mark == plan.marks[len(plan.marks) // 2] and run.seed == 0:
      row['replayed'] = _replayed(bench, run.harness, arm, plan.bits)
    if run.switched and mark == run.switched[1]:
      state = _copy(arm.learner.state)
      arm.close()
      arm = _arm(bench, run.switched[0], run.seed, folder / 'switched')
      arm.learner.state.update(state)
      arm.install()
  arm.close()
  return row


def _arm(
    bench: Bench, number: int, seed: int, folder: pathlib.Path
) -> trainer_lib.Trainer:
  return trainer_lib.Trainer(
      bench.setup(number, seed),
      folder,
      metrics_lib.Phases(),
      engine=bench.engine,
  )


def _copy(state: Any) -> dict[str, Any]:
  """Return a state in new buffers, since an update donates its own."""
  return jax.tree.map(jnp.copy, dict(state))


def _class_of(remedy: Any, surface: surface_lib.Surface) -> str:
  """Return a remedy's intervention class; '' if no harness can do it."""
  path = repairs.path_of(remedy)
  if path.endswith('.py'):
    return delta.class_of(path.removesuffix('.py'), surface)
  try:
    return surface.field(path).intervention_class
  except surface_lib.SurfaceError:
    return ''


def _calls(arm: trainer_lib.Trainer) -> tuple[list[str], list[str]]:
  """Return the intervention classes that a diagnosis calls for, worst first.

  Returns:
    The classes of critical findings, and those of all findings and alerts.
  """
  folder, setup = arm.workdir, arm.setup
  critical: dict[str, None] = {}
  found: dict[str, None] = {}
  values = config_lib.flatten(setup.config)
  diagnosed = examine.examine(workdir.read_arms(folder, [folder], values))
  for finding in diagnosed.findings:
    classes = [_class_of(r, setup.surface) for r in finding.remedies]
    found |= dict.fromkeys(filter(None, classes))
    if finding.severity == 'critical':
      critical |= dict.fromkeys(filter(None, classes))
  steps = recorded.recent(recorded.train_steps(folder))
  rows = recorded.load_rows([(folder, step) for step in steps])
  measures = diagnose.measure(
      setup.functions,
      recorded.view_of(rows, setup.columns, setup.config),
      history.History(()),
      arm_lib.outcomes(folder),
      recorded.rewards([folder]),
  )
  for alert in diagnose.raised(measures):
    found |= dict.fromkeys(alert.calls_for)
    for entry in library.ENTRIES.values():
      if alert.name in entry.triggers:
        factor = entry.change.factor(setup.surface)
        found[delta.class_of(factor, setup.surface)] = None
  return list(critical), list(found)


def _replayed(
    bench: Bench, number: int, arm: trainer_lib.Trainer, bits: int
) -> dict[str, list[float]]:
  """Return the 95 % intervals of replayed changes, by factor.

  The procedure is that of `evolve.replay` from one checkpoint: a few updates on
  the latest recorded evidence, with and without the change. Changes of what is
  sampled have no replay.
  """
  e, changes = arm.config.evolve, bench.design.changes
  steps = recorded.train_steps(arm.workdir)[-e.replay_updates :]
  batches = [recorded.load_rows([(arm.workdir, step)]) for step in steps]

  def scores(harness: int) -> np.ndarray:
    setup = bench.setup(harness, arm.config.seed)
    learner = learner_lib.Learner(setup, bench.mesh, metrics_lib.Phases())
    learner.state.update(_copy(arm.learner.state))
    rewards = reward_pipeline.RewardPipeline(setup)
    for rows in batches:
      learner.learn(rewards(collect.RolloutBatch.recorded(rows)))
    bench.engine.update_weights(learner.params, 0)
    return bench.score(
        arm.setup,
        split='train',
        seed=_TRAIN_SEED,
        problems=e.replay_problems,
    ).problem_scores

  before, found = scores(number), {}
  for factor in range(bits):
    if changes.alike(factor):
      try:
        gains = scores(number ^ (1 << factor)) - before
      except live.ENDS:
        continue
      interval = estimates.over_problems(gains)
      found[str(factor)] = [round(interval.low, 4), round(interval.high, 4)]
  arm.install()
  return found
