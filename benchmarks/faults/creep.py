"""Tests whether a fault at a quarter of its dose creeps into the policy.

Only the incumbent's harness trains the policy, so a fault can enter only if it
is kept. `simulate` runs the rules of the race on slightly harmful candidates
over RULES.rounds rounds. `live` evolves the clean twin for the same number of
rounds with this module as its proposer, which proposes a quarter of a fault's
dose, and a little more after every trial.
"""

from collections.abc import Sequence
import os
import pathlib
from typing import Any

import numpy as np

from benchmarks.faults import runner
from benchmarks.faults import settings as settings_lib
from evojax import config as config_lib
from evojax.eval import simulation
from evojax.evolve import propose as propose_lib
from evojax.ledger import history as history_lib
from evojax.stats import intervals

QUARTER = 0.25
_VARIABLE = 'EVOJAX_FAULT'  # Directory of the proposed setting.
HARMS = (0.0, 0.005, 0.01, 0.02, 0.05)  # Loss of score per round.
PAIRS = 4
# The bound on false keeps is that of the configs. Without a horizon, nothing
# that was kept is taken back.
RULES = simulation.Rules(
    candidates=1, entries=6, rounds=10, patience=3, horizon=0, level=0.2
)
SIGMA = 0.03  # Spread of one arm's score over 8 updates, a fraction.


def simulate(
    harm: float, runs: int, *, seed: int = 0, sigma: float = SIGMA
) -> tuple[int, float]:
  """Return how many runs kept a harmful change, and the mean loss by it.

  Args:
    harm: Loss of score per round under a candidate's harness, >= 0.
    runs: Simulated runs by RULES, with one candidate after the other.
    seed: Seed of the simulation.
    sigma: Standard deviation of an arm's score.
  """
  rng = np.random.default_rng(seed)

  def draw(rng, spreads):
    arms = sigma * rng.standard_normal((len(spreads) + 1, PAIRS))
    return arms[1:] - arms[0], np.zeros((len(spreads), PAIRS))

  entries = [simulation.Entry(effect=-harm)] * RULES.entries
  kept, lost = 0, 0.0
  for _ in range(runs):
    found = simulation.simulate(rng, draw, entries, RULES)
    kept += bool(found.kept)
    # Kept at the first possible round, the harness trains until the last.
    lost += harm * (RULES.rounds - found.rounds[0]) if found.kept else 0.0
  return kept, lost / runs


def lines(runs: int) -> Sequence[str]:
  """Return the table of the simulation."""
  head = 'harm a round | kept | mean loss'
  made = [f'{runs} runs of {RULES.rounds} rounds; {head}']
  for harm in HARMS:
    kept, lost = simulate(harm, runs)
    low, high = intervals.exact(kept, runs)
    made.append(
        f'{100 * harm:4.1f} points | {kept / runs:.4f} [{low:.4f}, {high:.4f}]'
        f' | {100 * lost:.2f} points'
    )
  return made


def live(
    setting: settings_lib.Setting, seed: int, out: pathlib.Path
) -> dict[str, Any]:
  """Evolve the clean twin; return which of the proposed doses were kept.

  The workdir is in `out`; an interrupted run continues.
  """
  folder = out / f'creep-{setting.name}-{seed}'
  folder.mkdir(parents=True, exist_ok=True)
  config = config_lib.with_fields(
      settings_lib.clean(setting),
      {
          'seed': seed,
          'evolve.rounds': RULES.rounds,
          'evolve.candidates': 1,
          'evolve.proposer': 'benchmarks.faults.creep',
          'evolve.settled': 1.0,  # Harm is offered in every round.
      },
  )
  env = {**os.environ, _VARIABLE: str(setting.path)}
  runner.start('evolve', config, folder / 'config.json', folder / 'run', env)
  trials = history_lib.read(folder / 'run').trials
  return dict(
      setting=setting.name,
      seed=seed,
      offered=len(trials),
      kept=sum(trial.status == 'keep' for trial in trials),
      taken_back=sum(trial.status == 'taken back' for trial in trials),
  )


def propose(context: propose_lib.Context) -> propose_lib.Proposal | None:
  """Propose the fault that the environment names, stronger after each trial.

  Raises:
    ValueError: If it is not a setting with a single path on the surface.
  """
  setting = settings_lib.read(pathlib.Path(os.environ[_VARIABLE]))
  path = settings_lib.factor(setting)
  if not path:
    raise ValueError(
        f'{setting.name}: its fault is not one path of the surface'
    )
  dose = QUARTER * (1 + 0.02 * len(context.history))
  value = settings_lib.value(setting, path, dose)
  return propose_lib.make(
      context,
      context.parent.with_overlay({path: value}),
      hypothesis='A fault at a quarter of its dose, which should not be kept.',
      expected=(-0.05, 0.01),
      source='benchmarks.faults.creep',
  )
