"""Runs a searcher from another Python environment on a live job.

The searcher's process (`rivals`) names the trial to train, its values and the
number of units; this process trains it and returns a dev score, until the
tokens of the search are spent. Then the best policy so far trains under its own
values with the remaining tokens. Scores are taken on dev problems that all
trials share, by the job's own grader, and their tokens count.

A unit of PBT is an arm of evojax. Searchers that start each trial from the base
policy need many short trials: their unit is the number of updates with which a
trial of full length takes an eighth of the tokens of the search.
"""

from collections.abc import Mapping, Sequence
import contextlib
import json
import pathlib
import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from benchmarks.searchers import live
from evojax import config as config_lib
from evojax.eval import evaluate
from evojax.evolve import opening
from evojax.harness import parts as parts_lib
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.models import policy as policy_lib
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import sharding
from evojax.training import engines
from evojax.training import setup as setup_lib
from evojax.training import trainer as trainer_lib

UNIT = 8  # Updates of a unit of PBT, as in an arm of evojax.
MOST = 3  # Most units of a trial of the other searchers.
FULL = 8  # Trials of that length that the tokens of the search pay for.
# Share of tokens for the search; the rest trains the best policy. PBT, whose
# trials continue the best policies, searches with all tokens.
PART = 0.5
PROBLEMS, SAMPLES = 64, 2  # Problems of a score, and completions of each.
_ROOT = pathlib.Path(__file__).parents[2]
_ON = ':on'  # Dimension that turns a field off, which its bounds exclude.
_FILE = 'file:'  # Dimension that removes a function from the harness.
_OUTCOME = surface_lib.WEIGHTS + 'outcome'
_LEAST = 0.25  # Least weight of the outcome; it is never punished.

Values = Mapping[str, Any]


def _fields(harness: spec.Harness) -> Sequence[surface_lib.Field]:
  """Return the fields of the surface, including weights of reward parts."""
  source = harness.files.get('reward.py')
  names = sorted(parts_lib.hashes(source)) if source else []
  factors = surface_lib.recipe().factors(names).values()
  # A list of names is not a number: `space` gives it a dimension of its own.
  return [f for fields in factors for f in fields if f.kind != 'names']


def _may_be_off(field: surface_lib.Field) -> bool:
  weight = surface_lib.is_weight(field.path) and field.path != _OUTCOME
  return weight or field.off is not None


def space(
    config: ml_collections.ConfigDict, harness: spec.Harness
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
  """Return the dimensions of the surface, and the job's values in them.

  Values outside of the bounds are moved to the bounds. A field that can be off
  has a second dimension for that; functions of the harness may be removed.
  """
  found: list[dict[str, Any]] = []
  first: dict[str, Any] = {}
  flat = config_lib.flatten(config)
  surface = surface_lib.recipe()

  def add(value: Any, **dimension: Any) -> None:
    found.append(dimension)
    first[dimension['name']] = value

  for field in _fields(harness):
    path = field.path
    value = surface.value(config, harness.overlay, path)
    if field.kind == 'choice':
      add(value, name=path, choices=list(field.choices))
      continue
    low, high = field.low, field.highest(flat)
    low = _LEAST if path == _OUTCOME else low
    whole, log = field.kind == 'int', field.scale == 'log'
    bounded = min(max(value, low), high)
    if _may_be_off(field):
      off = field.off or 0
      add(int(value != off), name=path + _ON, choices=[0, 1])
    add(
        bounded,
        name=path,
        low=low,
        high=high,
        # An integer with a wide range is sampled as a number and rounded.
        log=log,
        int=whole and not log,
    )
  for name in ('keep.py', 'weight.py'):
    if name in harness.files:
      add(1, name=_FILE + name, choices=[0, 1])
  if config.data.families:
    add(1, name='data.families' + _ON, choices=[0, 1])
  return found, first


def apply(
    values: Values, config: ml_collections.ConfigDict, harness: spec.Harness
) -> spec.Harness:
  """Return the harness for values of the dimensions."""
  overlay: dict[str, Any] = {}
  for field in _fields(harness):
    path, value = field.path, values[field.path]
    if _may_be_off(field) and not values[path + _ON]:
      value = field.off or 0
    if field.kind == 'int':
      value = round(value)
    overlay[path] = value
  if not values.get('data.families' + _ON, 1):
    overlay['data.families'] = ()
  if overlay['grpo.keep'] == 'all':  # Refilling needs a filter.
    overlay['grpo.refill_rounds'] = 0
  found = harness.with_overlay(overlay)
  for name in ('keep.py', 'weight.py'):
    if not values.get(_FILE + name, 1):
      found = found.with_file(name, None)
  return found


class Trials:
  """Trials of a job, trained as a searcher asks for them.

  Attributes:
    tokens: Tokens sampled so far, including scores.
    best: The best score so far, with its state and trainer.
  """

  def __init__(
      self, job: Mapping[str, Any], limit: float, unit: int | None = None
  ):
    """Open a job.

    Args:
      job: See `benchmarks.faults.jobs`.
      limit: Tokens that its search may spend.
      unit: Updates of a unit; None: as many as FULL says, by the tokens of the
        first update, which has the job's own values.
    """
    self.config = config_lib.from_mapping(
        json.loads(pathlib.Path(job['config']).read_text())
    )
    self.folder = pathlib.Path(job['workdir'])
    self.harness = opening.seed_harness(self.config)
    self.opened = setup_lib.prepare(self._config(self.harness, job['seed']))
    mesh = sharding.make_mesh(**self.opened.config.mesh.to_dict())
    self._engine = engines.make_engine(
        self.opened.config, self.opened.policy, mesh
    )
    self.tokens, self._limit, self._seed = 0, limit, job['seed']
    self._unit = unit
    self._price = 0  # Cost of the last score, expected for the next.
    self._arms: dict[int, trainer_lib.Trainer] = {}
    self.best: tuple[float, Any, trainer_lib.Trainer] | None = None

  def _config(self, harness: spec.Harness, seed: int) -> Any:
    return live.recipe(self.config, harness, seed, self.folder)

  def train(
      self, trial: int, start: int | None, values: Values, units: int
  ) -> float | None:
    """Train a trial; return its score, or None if the tokens are spent.

    A recipe that does not fit the run, or fails in training, scores 0.
    """
    try:
      if trial not in self._arms:
        self._arms[trial] = self._open(trial, start, values)
      arm = self._arms[trial]
      arm.install()
      updates = 0
      # Evidence is complete even if a trial ends early.
      while self._unit is None or updates < units * self._unit:
        if self.tokens + self._price >= self._limit:
          return None
        sampled = int(arm.train_step()['sampled_tokens'])
        self.tokens, updates = self.tokens + sampled, updates + 1
        if self._unit is None:
          self._unit = max(1, int(self._limit / (FULL * MOST * sampled)))
    except (ValueError, *live.ENDS) as error:
      print(f'trial {trial} ended: {error}', flush=True)
      return 0.0
    found = evaluate.evaluate(
        arm.setup.scorer(self._engine),
        split='dev',
        seed=self.config.seed,
        problems=PROBLEMS,
        samples=SAMPLES,
    )
    self._price = round(found.n_tokens * found.outcomes.size)
    self.tokens += self._price
    score = found.avg_at_k.value
    if self.best is None or score > self.best[0]:
      self.best = score, _copy(arm.learner.state), arm
    print(f'trial {trial}: {score:.3f}, {self.tokens} tokens', flush=True)
    return score

  def _open(
      self, trial: int, start: int | None, values: Values
  ) -> trainer_lib.Trainer:
    harness = apply(values, self.config, self.harness)
    seed = self._seed + 1_000_003 * trial  # No two trials share problems.
    arm = trainer_lib.Trainer(
        self.opened.under(self._config(harness, seed)),
        self.folder / f'trial-{trial}',
        metrics_lib.Phases(),
        engine=self._engine,
    )
    if start is not None and start in self._arms:
      arm.learner.state.update(_copy(self._arms[start].learner.state))
    return arm

  def finish(self, tokens: int) -> tuple[int, dict[str, Any]]:
    """Train the best policy until all tokens are spent, and export it.

    Returns:
      All sampled tokens, and the values that trained the policy, by path.
    """
    if self.best is None:
      arm = self._open(len(self._arms), None, self._seed_values())
    else:
      _, state, arm = self.best
      arm.learner.state.update(state)
    with contextlib.closing(arm):
      arm.install()
      self.tokens += live.spend(arm, tokens - self.tokens)
      policy_lib.export(
          self.opened.policy,
          arm.learner.params,
          self.folder / 'policy',
          self.config.model.param_dtype,
      )
    return self.tokens, config_lib.flatten(arm.config)

  def _seed_values(self) -> Values:
    _, first = space(self.config, self.harness)
    return first


def _copy(state: Any) -> dict[str, Any]:
  """Return a state in new buffers, since an update donates its own."""
  return jax.tree.map(jnp.copy, dict(state))


def solve(rival: str, python: str, job: Mapping[str, Any]) -> dict[str, Any]:
  """Return a searcher's answer to a job.

  Args:
    rival: Key of `rivals.LIVE`.
    python: Python of the environment of `rivals`.
    job: See `benchmarks.faults.jobs`.

  Raises:
    RuntimeError: If the searcher's process fails.
  """
  if rival == 'pbt':
    trials = Trials(job, job['tokens'], UNIT)
  else:
    trials = Trials(job, job['tokens'] * PART)
  dimensions, first = space(trials.config, trials.harness)
  request = dict(
      rival=rival,
      space=dimensions,
      first=first,
      most=MOST,
      seed=job['seed'],
  )
  with subprocess.Popen(
      [python, '-m', 'benchmarks.searchers.rivals'],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      cwd=_ROOT,
  ) as process:
    say = lambda value: print(json.dumps(value), file=process.stdin, flush=True)
    say(request)
    for line in process.stdout:
      score = trials.train(**json.loads(line))
      say(score)
      if score is None:
        break
  if process.returncode:
    raise RuntimeError(f'{rival} ended with exit code {process.returncode}')
  spent, values = trials.finish(job['tokens'])
  return dict(
      status='repaired',
      causes=[],
      tokens=spent,
      since=None,
      policy=str(trials.folder / 'policy'),
      values=values,
  )
