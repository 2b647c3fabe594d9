"""The train stream, and the part of it that each arm of a run gets.

Version 0 and the pairs of all rounds get consecutive parts of one stream, that
of the run's seed. The policy is trained by arms of different pairs, so it sees
no problem of a data set twice before it has seen all others. For a harness with
refill rounds, as many problems are reserved as it may need. A fork continues a
policy that was trained on such a stream, so its own stream has another seed.
"""

from collections.abc import Iterable
import dataclasses

from evojax.evolve import arms
from evojax.evolve import opening
from evojax.ledger import records


@dataclasses.dataclass(frozen=True)
class Reserve:
  """The problems of a round."""

  seed: int  # Seed of the stream.
  first: int  # Position of the first problem of pair 0.
  of_pair: int  # Number of problems of each pair.

  def of(self, pair: int) -> tuple[int, int]:
    """Return the seed, and the position of the first problem of a pair."""
    return self.seed, self.first + pair * self.of_pair


def lineage(run: opening.Run) -> tuple[str, ...]:
  """Return a key that makes a fork's seeds differ from its source's."""
  forked = run.recorder.find(records.Open).forked
  return (run.recorder.history.base.end,) if forked else ()


def reserve(
    run: opening.Run, number: int, harnesses: Iterable[str]
) -> Reserve:
  """Return the problems of a round, which begin after those of earlier ones.

  Args:
    run: The run.
    number: Number of the round.
    harnesses: Hashes of the harnesses that train in it.
  """
  e, history = run.config.evolve, run.recorder.history
  first = e.first_updates * _of_update(run, [history.base.harness])
  for race in history.races:
    if race.round < number:
      trained = {arm.harness for arm in race.arms}
      first += e.pairs * e.updates * _of_update(run, trained)
  of_pair = e.updates * _of_update(run, harnesses)
  seed, fork = run.config.seed, lineage(run)
  if fork:
    seed = arms.seed_of(run, 'fork', *fork)
  return Reserve(seed, first, of_pair)


def _of_update(run: opening.Run, harnesses: Iterable[str]) -> int:
  """Return the number of problems that an update needs at most."""
  configs = map(run.harnesses.config_under, sorted(harnesses))
  rounds = max(1 + config.grpo.refill_rounds for config in configs)
  return run.config.grpo.prompts * rounds
