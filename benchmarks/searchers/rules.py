"""Rules that decide where the next tokens go, on a replayed table.

A rule receives a world and returns the policy that it delivers when the tokens
are spent. A change flips one factor of the incumbent harness, and with it the
factors that the design aliases with it. Sizes are the defaults of the config,
not tuned on any table.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

from benchmarks.searchers import racing
from benchmarks.searchers import tables
from evojax import config as config_lib
from evojax.eval import race
from evojax.stats import spreads

Rule = Callable[
    [tables.World, np.random.Generator, racing.Changes], tables.State
]


def evojax(
    world: tables.World, rng: np.random.Generator, changes: racing.Changes
) -> tables.State:
  """Run the race of evojax."""
  order = range(world.table.factors)
  return racing.Race(world, rng, changes, order).run()


def shuffled(
    world: tables.World, rng: np.random.Generator, changes: racing.Changes
) -> tables.State:
  """Run the race with alerts that call for the wrong changes."""
  order = rng.permutation(world.table.factors).tolist()
  return racing.Race(world, rng, changes, order).run()


# --------------------------------------------------------------- simpler rules


def seed(
    world: tables.World, rng: np.random.Generator, changes: racing.Changes
) -> tables.State:
  """Continue training under the seed's harness."""
  del rng, changes
  return world.finish(world.base)


def trials(
    world: tables.World, rng: np.random.Generator, changes: racing.Changes
) -> tables.State:
  """Try changes one by one, each in a fixed number of arms.

  Arms of a version start from its state, and the incumbent's arms are trained
  once for all trials against it. A change is kept by Student's t test of both
  groups, at the levels of the race; training continues from its first arm.
  """
  e = config_lib.base().evolve
  harness, kept, entered = tables.SEED, 0, 0
  state = world.base
  try:
    state = world.train(state, harness, e.first_updates)
    controls: list[tables.State] = []
    tried: set[int] = set()
    while entered < e.entries:
      left = [k for k in range(world.table.factors) if k not in tried]
      if not left:
        break
      called, _ = world.calls(state)
      rng.shuffle(left)
      left.sort(key=lambda k: not set(changes.classes[k]) & set(called))
      entered += 1
      tried.add(left[0])
      arms = lambda h, start=state: [
          world.train(start, h, e.updates) for _ in range(e.pairs)
      ]
      controls = controls or arms(harness)
      children = arms(harness ^ (1 << left[0]))
      problems = world.problems()
      groups = [
          [world.score(arm, problems).mean() for arm in of]
          for of in (children, controls)
      ]
      level = race.alpha_of(entered, e.entries, kept, e.false_discovery_rate)
      if _p_of_groups(*groups) <= level:
        kept, harness = kept + 1, harness ^ (1 << left[0])
        state, controls, tried = children[0], [], {left[0]}
  except tables.SpentError:
    pass
  return world.finish(state)


def _p_of_groups(ahead: Sequence[float], behind: Sequence[float]) -> float:
  """Return the one-sided p of Student's t test with a pooled variance."""
  df = spreads.degrees([ahead, behind])
  error = spreads.of_difference(ahead, behind)
  difference = float(np.mean(ahead) - np.mean(behind))
  if not error:
    return 0.0 if difference > 0 else 1.0
  return float(special.stdtr(df, -difference / error))


def greedy(
    world: tables.World, rng: np.random.Generator, changes: racing.Changes
) -> tables.State:
  """Continue with the better of two arms, one of which has a random change."""
  del changes
  updates = config_lib.base().evolve.updates
  harness, state = tables.SEED, world.base
  try:
    while True:
      other = harness ^ (1 << int(rng.integers(world.table.factors)))
      luck, problems = world.luck(), world.problems()
      arms = [world.train(state, h, updates, luck) for h in (harness, other)]
      scores = [world.score(arm, problems).mean() for arm in arms]
      best = int(scores[1] > scores[0])
      harness, state = (harness, other)[best], arms[best]
  except tables.SpentError:
    return world.finish(state)


def random_search(
    search: tables.Trials, rng: np.random.Generator
) -> tables.State:
  """Train random harnesses within the trials' budget; the best continues."""
  try:
    while True:
      for _ in search.run(int(rng.integers(len(search.world.table.share)))):
        pass
  except tables.SpentError:
    return search.finish()


RULES: dict[str, Rule] = {
    'evojax': evojax,
    'shuffled alerts': shuffled,
    'trials': trials,
    'greedy': greedy,
    'seed': seed,
}
