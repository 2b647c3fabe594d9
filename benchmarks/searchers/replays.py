"""Many replays of a table under one rule; needs only NumPy, like `tables`."""

from collections.abc import Callable, Iterator
import dataclasses
import itertools
from typing import Any

import numpy as np

from benchmarks.searchers import tables

# Options of searchers, chosen for each table and rule in its favour: most units
# of a trial, and the part of the tokens that trials may spend.
MOST = (3, 9, 27)
PARTS = (0.5, 1.0)

_TUNING = 10**6  # Worlds from this number on serve only to choose options.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """The replays; all rules see the same worlds."""

  tokens: float  # Tokens of a replay.
  worlds: int = 50  # Number of worlds, each with its own mean curves.
  repeats: int = 20  # Replays per world.
  tuning: int = 100  # Replays for each option of a searcher.
  unit: int = 8  # Updates of a searcher's unit.
  problems: int = 64  # Problems of a score.
  samples: int = 2  # Completions per problem.

  def replays(
      self, table: tables.Table, *, tuning: bool = False
  ) -> Iterator[tuple[tables.World, np.random.Generator]]:
    """Yield a world for every replay, with a random generator for the rule."""
    first = _TUNING if tuning else 0
    worlds, repeats = (
        (self.tuning, 1) if tuning else (self.worlds, self.repeats)
    )
    for number, repeat in itertools.product(range(worlds), range(repeats)):
      key = first + number
      rng, rule = np.random.default_rng([1, key, repeat]).spawn(2)
      world = tables.World(
          table,
          self.tokens,
          shift=np.random.default_rng([2, key]),
          rng=rng,
          problems=self.problems,
          samples=self.samples,
      )
      yield world, rule


def replayed(
    table: tables.Table,
    plan: Plan,
    rule: Callable[[tables.World, np.random.Generator], tables.State],
    *,
    tuning: bool = False,
) -> dict[str, Any]:
  """Return a rule's results: scores [worlds][repeats], harnesses, beyond.

  beyond is the share of replays that trained beyond the end of a curve.
  """
  scores, harnesses, beyond = [], [], []
  for world, rng in plan.replays(table, tuning=tuning):
    state = rule(world, rng)
    scores.append(state.score)
    harnesses.append(state.harness)
    beyond.append(bool(world.beyond))
  repeats = 1 if tuning else plan.repeats
  return dict(
      scores=np.reshape(scores, (-1, repeats)).tolist(),
      harnesses=harnesses,
      beyond=float(np.mean(beyond)),
  )


def searched(
    table: tables.Table,
    plan: Plan,
    rule: Callable[[tables.Trials, np.random.Generator], tables.State],
) -> dict[str, Any]:
  """Return a searcher's results under the options that are best for it."""

  def under(most: int, part: float, tuning: bool) -> dict[str, Any]:
    def search(world, rng):
      return rule(
          tables.Trials(world, unit=plan.unit, most=most, part=part), rng
      )

    return replayed(table, plan, search, tuning=tuning)

  options = [
      (float(np.mean(under(most, part, True)['scores'])), most, part)
      for most, part in itertools.product(MOST, PARTS)
  ]
  _, most, part = max(options)
  return under(most, part, False) | dict(most=most, part=part)


def best_known(table: tables.Table, plan: Plan) -> tuple[int, float]:
  """Return the harness that is best at the full tokens, and its mean score."""
  found = []
  for harness in range(len(table.share)):

    def train(world, rng, harness=harness):
      del rng
      return world.finish(dataclasses.replace(world.base, harness=harness))

    scores = replayed(table, plan, train, tuning=True)['scores']
    found.append((float(np.mean(scores)), harness))
  score, harness = max(found)
  return harness, score
