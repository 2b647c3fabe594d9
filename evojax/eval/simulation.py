"""Simulated runs: which candidates of known effect the races of a run keep.

The rules of `race` are applied to differences that a `Draw` generates, or that
are taken from trained arms (`Dealt`). If all arms are equal, every keep is
false.

The rounds are those of the meta-loop without a limit of tokens: candidates that
go on keep their places, new ones fill the rest, the repair of a critical fault
enters alone, and after a keep the former harness becomes a shadow, in the
place of a candidate. Not simulated are vetoes by replays, waiting because a
gain could hardly be proved, and, unless `Rules.perturbed` is set, scores on
perturbed problems; all of these can only prevent keeps.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import itertools
from typing import Any, Literal

from jaxtyping import Float
import numpy as np

from evojax.eval import paired
from evojax.eval import race
from evojax.stats import intervals
from evojax.stats import spreads

# (rng, spread of each candidate) -> differences and errors, each [C, n].
Draw = Callable[
    [np.random.Generator, Sequence[float]], tuple[np.ndarray, np.ndarray]
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """A candidate that may enter a simulated run."""

  # Mean difference of its pairs, or that of each pair; fractions.
  effect: float | tuple[float, ...] = 0.0
  spread: float = 1.0  # An argument of `Draw`.
  # Severity of the finding that it repairs; '': none.
  repairs: Literal['', 'warning', 'critical'] = ''

  @property
  def margin(self) -> float:
    """The loss that it has to exclude, a fraction; 0: it has to show a gain."""
    return race.MARGIN if self.repairs == 'critical' else 0.0

  @property
  def is_false(self) -> bool:
    """True if a keep is false, see `race.alpha_of`."""
    return float(np.mean(self.effect)) <= -self.margin


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
  """The race settings that a run promises at its start."""

  candidates: int  # Places in a round, for candidates and a shadow.
  entries: int  # Most candidates of the whole run.
  rounds: int  # Rounds of the run.
  patience: int  # Most rounds of a candidate.
  horizon: int  # Most rounds of a shadow; 0: none.
  level: float  # Bound on the rate of false keeps.
  # Standard deviation of the difference of a pair on perturbed problems, a
  # fraction; None: they are not scored.
  perturbed: float | None = None

  @classmethod
  def of(cls, evolve: Any) -> 'Rules':
    """Return the rules of a run from its config.evolve."""
    names = 'candidates', 'entries', 'rounds', 'patience', 'horizon'
    fields = {name: evolve[name] for name in names}
    return cls(level=evolve.false_discovery_rate, **fields)

  def null_runs(
      self, rng: np.random.Generator, draw: Draw, runs: int
  ) -> Iterator[bool]:
    """Yield for each simulated run whether it keeps any of the dealt arms."""
    for _ in range(runs):
      yield bool(simulate(rng, draw, [Entry()] * self.entries, self).kept)


@dataclasses.dataclass
class Outcome:
  """The result of a simulated run."""

  # Indices from 0, in order; those that are taken back later are among them.
  kept: list[int] = dataclasses.field(default_factory=list)
  # Rounds that each of them had raced when it was kept.
  rounds: list[int] = dataclasses.field(default_factory=list)
  taken_back: list[int] = dataclasses.field(default_factory=list)
  spent: int = 0  # Rounds in which candidates raced.

  @property
  def stayed(self) -> list[int]:
    """The candidates that are part of the harness at the end."""
    return [i for i in self.kept if i not in self.taken_back]


def simulate(
    rng: np.random.Generator,
    draw: Draw,
    entries: Sequence[Entry],
    rules: Rules,
    first: int = 1,
) -> Outcome:
  """Return what a run keeps.

  Args:
    rng: Random number generator.
    draw: Draws the pairs of a round.
    entries: The candidates in their order of entry.
    rules: Settings of the run.
    first: Position of the first of them in that order, from 1; above 1 if
      others entered in earlier rounds.
  """
  run = _Run(rng, draw, entries, rules, first)
  for number in itertools.count():
    over = number >= rules.rounds  # Only a shadow still trains.
    if not over:
      run.enter()
    if not run.racing and run.shadow is None:
      return run.found
    alphas = run.alphas()  # Fixed before the round.
    ended = number + 1 >= rules.rounds
    last = {name for name in run.racing if run.is_last(name, ended)}
    run.train(alphas, last)
    if run.shadow is not None:
      run.look()
    run.decide(alphas, last, ended)


class _Run:
  """The state of a simulated run between its rounds."""

  def __init__(
      self,
      rng: np.random.Generator,
      draw: Draw,
      entries: Sequence[Entry],
      rules: Rules,
      first: int,
  ):
    self.found = Outcome()
    self.racing: dict[str, race.Standing] = {}  # By the index in `entries`.
    self.shadow: int | None = None  # The change that a shadow lacks.
    self._rng, self._draw, self._rules = rng, draw, rules
    self._entries, self._first = entries, first
    self._entered = self._looks = self._confirmed = 0
    # Differences of every candidate in every round of the run.
    self._groups: list[list[float]] = []

  def enter(self) -> None:
    """Fill the free places; the repair of a critical fault enters alone."""
    free = self._rules.candidates - len(self.racing)
    free -= self.shadow is not None
    new = self._entries[self._entered :][: max(free, 0)]
    alone = [bool(entry.margin) for entry in new]
    if any(alone):
      new = new[: max(1, alone.index(True))]
    for entry in new:
      self.racing[str(self._entered)] = race.Standing(
          index=self._first + self._entered,
          worth=0.0 if entry.repairs else race.WORTH,
          margin=entry.margin,
      )
      self._entered += 1

  def alphas(self) -> dict[str, float]:
    """Return the level of each candidate."""
    most, level = self._rules.entries, self._rules.level
    return {
        name: race.alpha_of(s.index, most, self._confirmed, level)
        for name, s in self.racing.items()
    }

  def is_last(self, name: str, ended: bool) -> bool:
    """Return whether a round is a candidate's last, see `evolve.standings`."""
    standing = self.racing[name]
    # The repair of a critical fault has only one.
    spent = standing.rounds + 1 >= self._rules.patience
    return ended or spent or standing.margin > 0

  def train(self, alphas: dict[str, float], last: set[str]) -> None:
    """Add the pairs of a round to the standings of its candidates.

    A candidate that is not hopeful after half of its pairs (`race.is_hopeful`)
    skips the other half, and ends.
    """
    names = list(self.racing)
    if not names:
      return
    self.found.spent += 1
    d, errors = self._drawn([int(name) for name in names])
    half = paired.first_half(d.shape[1])
    early = spreads.pooled([*self._groups, *d[:, :half].tolist()]) or 0.0
    told, given_up = [], []
    for name, own, noise in zip(
        names, d.tolist(), errors.tolist(), strict=True
    ):
      before = self.racing[name]
      # If the chain follows a repair, all of its arms train: they are the ones
      # that train the policy.
      followed = before.margin > 0 and self.shadow is None
      hopeful = followed or race.is_hopeful(
          [*before.differences, *own[:half]],
          [*before.errors, *noise[:half]],
          early,
          before.worth,
      )
      told.append(own if hopeful else own[:half])
      given_up += [] if hopeful else [name]
    self._groups += told
    for name, own, noise in zip(names, told, errors.tolist(), strict=True):
      before = self.racing[name]
      if name not in given_up:
        self.racing[name] = race.after_round(
            before,
            own,
            noise,
            spread=self._spread(before.margin, race.cap_of(noise)),
            alpha=alphas[name],
            last=name in last,
        )
    for name in given_up:
      del self.racing[name]

  def look(self) -> None:
    """Compare the policy with its shadow, and decide on the kept change."""
    d, errors = self._drawn([self.shadow])
    looks = self._rules.horizon
    self._looks += 1
    verdict = race.horizon(
        d[0].tolist(),
        errors[0].tolist(),
        looks=looks,
        last=self._looks >= looks,
    )
    if verdict.status == 'go_on':
      return
    if verdict.status == 'keep':
      self._confirmed += 1
    else:
      self.found.taken_back.append(self.shadow)
      # They were compared with the harness that is now replaced.
      self.racing = {}
    self.shadow = None

  def decide(
      self, alphas: dict[str, float], last: set[str], ended: bool
  ) -> None:
    """Keep at most one candidate, and drop those that do not race on."""
    kept, waiting = '', []
    thresholds = {name: 1 / alpha for name, alpha in alphas.items()}
    for name in race.passed(self.racing, thresholds):
      status = 'open' if self.shadow is not None else self._judged(name)
      if status == 'holds':
        kept = name
        break
      if status == 'open' and name not in last:
        waiting.append(name)
      else:
        del self.racing[name]
    verdicts = race.sort_out(
        self.racing,
        rounds=0 if ended else self._rules.patience,
        spread=self._spread(0.0, race.CAP),
        kept=kept,
        waiting=waiting,
    )
    if kept:
      index = int(kept)
      self.found.kept.append(index)
      self.found.rounds.append(self.racing[kept].rounds)
      # The repair of a critical fault gets no shadow, as in `steps.shadow`.
      if self._rules.horizon and not self._entries[index].margin:
        self.shadow, self._looks = index, 0
      else:
        self._confirmed += 1
    self.racing = {
        name: s
        for name, s in self.racing.items()
        if verdicts[name].status == 'go_on'
    }

  def _judged(self, name: str) -> str:
    """Return the result of the perturbed gate for a candidate that passed."""
    if self._rules.perturbed is None:
      return 'holds'
    standing, entry = self.racing[name], self._entries[int(name)]
    count = len(standing.differences) // standing.rounds
    plain = standing.differences[-count:]  # The pairs of the newest round.
    noise = self._rules.perturbed * self._rng.standard_normal(count)
    found = race.gate(
        plain,
        np.add(entry.effect, noise).tolist(),
        [0.0] * count,
        margin=standing.margin,
    )
    return found.status

  def _drawn(self, indices: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the differences of some candidates, and their errors, [C, n]."""
    entries = [self._entries[i] for i in indices]
    d, errors = self._draw(self._rng, [entry.spread for entry in entries])
    return d + np.array([
        np.broadcast_to(entry.effect, d.shape[1]) for entry in entries
    ]), errors

  def _spread(self, margin: float, cap: float) -> float:
    """Return the spread of all pairs, as they count with a margin and a cap."""
    groups = [race.counted(group, margin, cap) for group in self._groups]
    return spreads.pooled(groups) or 0.0


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


def false_keeps(
    arms: Dealt,
    rules: Rules,
    *,
    runs: int,
    resamples: int,
    resampled_runs: int,
    beat: Callable[[], None] = lambda: None,
) -> intervals.Interval:
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
  tail = 50 * (1 - intervals.LEVEL)
  low, high = np.percentile(rates, [tail, 100 - tail])
  least, most = intervals.exact(count, runs)
  return intervals.Interval(
      count / runs, min(float(low), least), max(float(high), most)
  )
