"""Simulated races: what a run keeps for candidates of known effect.

The rules of `race` are applied to differences that a `Draw` generates, or that
are taken from trained arms (`Dealt`). If all arms are equal, every keep is
false.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses

from jaxtyping import Float
import numpy as np
from scipy import special

from evojax.eval import estimates
from evojax.eval import paired
from evojax.eval import race

# (rng, spread of each candidate) -> differences and errors, each [C, n].
Draw = Callable[
    [np.random.Generator, Sequence[float]], tuple[np.ndarray, np.ndarray]
]


@dataclasses.dataclass
class Outcome:
  """A simulated run."""

  kept: list[int] = dataclasses.field(default_factory=list)  # Indices from 0.
  # Rounds of the race until each keep.
  rounds: list[int] = dataclasses.field(default_factory=list)
  spent: int = 0  # Total rounds of all races.


def simulate(
    rng: np.random.Generator,
    draw: Draw,
    effects: Sequence[float],
    spreads: Sequence[float],
    *,
    candidates: int,
    rounds: int,
    level: float,
) -> Outcome:
  """Return what a run keeps over successive races; a keep ends its race.

  Args:
    rng: Random number generator.
    draw: Draws the pairs of a round.
    effects: Effects of the run's candidates in order, fractions.
    spreads: Spreads of the candidates, as arguments of `draw`.
    candidates: C, the number of candidates at the start of a race.
    rounds: Maximum number of rounds of a race.
    level: Bound on the rate of false keeps of the whole run, in (0, 1).
  """
  found = Outcome()
  for first in range(0, len(effects), candidates):
    entered = range(first, min(first + candidates, len(effects)))
    standings = {str(i): race.Standing(index=i + 1) for i in entered}
    groups: list[list[float]] = []
    for number in range(rounds):
      found.spent += 1
      alphas = {
          name: race.alpha_of(s.index, len(effects), len(found.kept), level)
          for name, s in standings.items()
      }
      names = [int(name) for name in standings]
      d, errors = draw(rng, [spreads[i] for i in names])
      d = d + np.array([effects[i] for i in names])[:, None]
      # A candidate without hope after half of its pairs skips the other half.
      half = paired.first_half(d.shape[1])
      early = paired.pooled_spread([*groups, *d[:, :half].tolist()]) or 0.0
      told = []
      for i, own, noise in zip(names, d.tolist(), errors.tolist(), strict=True):
        before = standings[str(i)]
        hopeful = race.is_hopeful(
            [*before.differences, *own[:half]],
            [*before.errors, *noise[:half]],
            early,
        )
        told.append(own if hopeful else own[:half])
      groups += told
      spread = paired.pooled_spread(groups) or 0.0
      standings = {
          name: race.after_round(
              standings[name],
              of_pairs,
              of_errors[: len(of_pairs)],
              spread=spread,
              alpha=alphas[name],
              last=number == rounds - 1,
          )
          for name, of_pairs, of_errors in zip(
              standings, told, errors.tolist(), strict=True
          )
      }
      kept = next(iter(race.passed(standings, alphas)), '')
      verdicts = race.sort_out(
          standings, rounds=rounds, spread=spread, kept=kept
      )
      if kept:
        found.kept.append(int(kept))
        found.rounds.append(number + 1)
      standings = {
          name: s
          for name, s in standings.items()
          if verdicts[name].status == 'go_on'
      }
      if not standings:
        break
  return found


def exact_interval(count: int, of: int) -> tuple[float, float]:
  """Return the exact 95 % interval of a share (Clopper and Pearson 1934)."""
  tail = (1 - estimates.LEVEL) / 2
  low = special.betaincinv(count, of - count + 1, tail) if count else 0.0
  high = 1.0
  if count < of:
    high = special.betaincinv(count + 1, of - count, 1 - tail)
  return float(low), float(high)


# ------------------------------------------------------------------ equal arms


class Dealt:
  """Arms of one harness, dealt at random to the groups of a round.

  No arm occurs twice in a round, and every round is dealt anew. The arms of a
  pair share nothing, so that the errors of their scores add up.
  """

  def __init__(
      self,
      means: Float[np.ndarray, 'A'],
      errors: Float[np.ndarray, 'A'],
      pairs: int,
  ):
    """Store scores [A], their standard errors over problems, and n pairs."""
    # Sorted, so that races do not depend on the order of the arms.
    order = np.lexsort((errors, means))
    self.means, self.errors, self._pairs = means[order], errors[order], pairs

  def __call__(
      self, rng: np.random.Generator, spreads: Sequence[float]
  ) -> tuple[np.ndarray, np.ndarray]:
    shape = 1 + len(spreads), self._pairs
    dealt = rng.permutation(len(self.means))[: shape[0] * shape[1]]
    dealt = dealt.reshape(shape)  # [1 + C, n]
    means, errors = self.means[dealt], self.errors[dealt]
    return means[1:] - means[0], np.hypot(errors[1:], errors[0])

  def resampled(self, rng: np.random.Generator) -> 'Dealt':
    """Return equally many arms, drawn from these with replacement."""
    chosen = rng.integers(len(self.means), size=len(self.means))
    return type(self)(self.means[chosen], self.errors[chosen], self._pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
  """The race settings that a run promises at its start."""

  candidates: int  # Per race.
  entries: int  # In the whole run.
  rounds: int  # Maximum per candidate.
  level: float  # Bound on the rate of false keeps.

  def null_runs(
      self, rng: np.random.Generator, draw: Draw, runs: int
  ) -> Iterator[bool]:
    """Yield for each simulated run whether it keeps any of the dealt arms."""
    same = [0.0] * self.entries, [1.0] * self.entries
    for _ in range(runs):
      found = simulate(
          rng,
          draw,
          *same,
          candidates=self.candidates,
          rounds=self.rounds,
          level=self.level,
      )
      yield bool(found.kept)


@dataclasses.dataclass(frozen=True)
class Rate:
  """The share of runs that keep anything, with its 95 % interval."""

  value: float
  low: float
  high: float


def false_keeps(
    arms: Dealt,
    rules: Rules,
    *,
    runs: int,
    resamples: int,
    resampled_runs: int,
    beat: Callable[[], None] = lambda: None,
) -> Rate:
  """Return how often a run keeps anything although all its arms are equal.

  Runs share their arms, so more runs do not make the rate more certain than the
  arms do. The interval is that of a bootstrap over arms: the plain percentiles
  of the rates of resampled arms, which include the noise of their few runs. It
  is never narrower than the exact interval of the runs with the original arms;
  otherwise it would have no width if no run keeps anything.

  Args:
    arms: At least as many as a round needs.
    rules: Race settings of the run.
    runs: Number of runs simulated with the original arms.
    resamples: Number of resampled sets of arms.
    resampled_runs: Number of runs simulated with each of these sets.
    beat: Called between simulations, to raise if the process has to stop.
  """
  rng = np.random.default_rng(0)

  def kept(each: Iterable[bool]) -> int:
    count = 0
    for i, one in enumerate(each):
      if not i % 100:
        beat()
      count += one
    return count

  count = kept(rules.null_runs(rng, arms, runs))
  rates = [
      kept(rules.null_runs(rng, arms.resampled(rng), resampled_runs))
      / resampled_runs
      for _ in range(resamples)
  ]
  tail = 50 * (1 - estimates.LEVEL)
  low, high = np.percentile(rates, [tail, 100 - tail])
  least, most = exact_interval(count, runs)
  return Rate(count / runs, min(float(low), least), max(float(high), most))
