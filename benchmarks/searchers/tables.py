"""Recorded training as a world in which a rule spends tokens.

A table has the curves of all harnesses of a setting under several seeds. A
`World` replays it: a rule trains arms, has them scored, and pays for both,
until its tokens are spent. Only NumPy is needed, since rivals run in their own
environment.

What a replay assumes:
- An arm follows the mean curve of its harness plus a random mix of the seeds'
  deviations from the mean, minus the part due to noise of the scores. The mix
  has the covariance of the recorded seeds over time; arms of a pair share it.
- A replay also shifts all curves by the uncertainty that three seeds leave
  about their mean.
- A policy that continues under another harness is at the point where that
  harness would have had the same score. If it scored less than the base policy,
  it regains that at the steepest rise of the curve, or nothing if this would
  take longer than the whole curve; if it scored more than the curve ever does,
  it changes like the curve after its best. `error_of_switches` compares this
  with runs in which the harness was really changed.
- After its end, a curve is flat; `World.beyond` shows whether this was used.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math
from typing import Any

import numpy as np

STEPS = 4  # Updates at a time when a policy trains to the end.
SEED = 0  # Number of the harness with which a run starts.


class SpentError(Exception):
  """The remaining tokens do not suffice for what a rule wants."""


class TableError(ValueError):
  """Rows do not form a table."""


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
  """The recorded data of a setting: harnesses H, seeds S, marks M, problems Q.

  Bit k of a harness's number is the level of factor k.
  """

  setting: str
  updates: np.ndarray  # int64 [M], from 0.
  share: np.ndarray  # float64 [H, S, M, Q]: solved share of samples.
  tokens: np.ndarray  # float64 [H, S, M]: sampled up to the mark.
  dev_tokens: np.ndarray  # float64 [H, M]: mean per scored completion.
  samples: int  # Completions per problem.
  # Classes that the diagnostics of a harness call for at a mark: [H][M].
  calls: Sequence[Sequence[Sequence[str]]]
  # Classes that a critical finding calls for.
  critical: Sequence[Sequence[Sequence[str]]]
  # 95 % interval of the replayed effect of a factor, by harness and factor.
  replayed: Mapping[tuple[int, int], tuple[float, float]]
  switches: Sequence[Mapping[str, Any]]  # Rows in which the harness changed.

  @property
  def factors(self) -> int:
    """Number of factors with their own bit."""
    return int(math.log2(len(self.share)))

  @property
  def curves(self) -> np.ndarray:
    """Scores, float64 [H, S, M]."""
    return self.share.mean(axis=3)

  @property
  def off(self) -> np.ndarray:
    """Deviation of each seed from the mean curve, without noise, [H, S, M].

    Scores of all seeds are on the same problems, so only samples are noise;
    their part of the variance is removed.
    """
    off = self.curves - self.curves.mean(axis=1, keepdims=True)
    seeds, problems = self.share.shape[1], self.share.shape[3]
    # An unbiased estimate of p (1 - p) / samples.
    each = self.share * (1 - self.share) / max(self.samples - 1, 1)
    noise = float(each.mean()) / problems
    found = float((off[..., 1:] ** 2).sum() / off[..., 1:].size)
    found *= seeds / (seeds - 1)
    return off * math.sqrt(max(0.0, 1 - noise / found) if found else 0.0)


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
  """Return the key by which a row is unique."""
  switched = tuple(row['switched']) if row.get('switched') else None
  return row['setting'], row['harness'], row['seed'], switched


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, Table]:
  """Return the tables of all settings that are completely recorded.

  Only seeds recorded for all harnesses count; a setting with fewer than 2 of
  these has no table.

  Raises:
    TableError: If the rows of a setting do not match.
  """
  found = {}
  for setting in dict.fromkeys(row['setting'] for row in rows):
    mine = {key(r)[1:]: r for r in rows if r['setting'] == setting}
    plain = {k[:2]: r for k, r in mine.items() if k[2] is None}
    count = max((h for h, _ in plain), default=-1) + 1
    if count < 2 or count & (count - 1):
      continue  # A design's last harness has all of its bits.
    seeds = sorted({s for _, s in plain})
    seeds = [s for s in seeds if all((h, s) in plain for h in range(count))]
    if len(seeds) > 1:
      switches = [r for k, r in mine.items() if k[2] is not None]
      found[setting] = _table(setting, plain, range(count), seeds, switches)
  return found


def _table(
    setting: str,
    rows: Mapping[tuple[int, int], Mapping[str, Any]],
    harnesses: Sequence[int],
    seeds: Sequence[int],
    switches: Sequence[Mapping[str, Any]],
) -> Table:
  """Return the table from complete rows."""
  each = [[rows[h, s] for s in seeds] for h in harnesses]
  marks = {tuple(row['updates']) for of in each for row in of}
  samples = {row['samples'] for of in each for row in of}
  lengths = {len(text) for of in each for row in of for text in row['solved']}
  if len(marks) != 1 or len(samples) != 1 or len(lengths) != 1:
    raise TableError(
        f'{setting}: rows differ in their marks {sorted(marks)}, samples'
        f' {sorted(samples)} or problems {sorted(lengths)}; record all rows of'
        ' a setting with the same flags'
    )
  (samples,) = samples
  grid = lambda read: np.array([[read(row) for row in of] for of in each])
  return Table(
      setting=setting,
      updates=np.array(marks.pop()),
      share=grid(shares),
      tokens=grid(lambda row: row['tokens']).astype(float),
      dev_tokens=grid(lambda row: row['dev_tokens']).mean(axis=1),
      samples=samples,
      calls=[of[0]['calls'] for of in each],
      critical=[of[0]['critical'] for of in each],
      replayed={
          (h, int(k)): tuple(interval)
          for h, of in zip(harnesses, each, strict=True)
          for k, interval in of[0].get('replayed', {}).items()
      },
      switches=switches,
  )


def shares(row: Mapping[str, Any]) -> np.ndarray:
  """Return the solved share of each problem at each mark, [M, Q]."""
  digits = np.array([[int(c) for c in text] for text in row['solved']])
  return digits / row['samples']


# ----------------------------------------------------------------------- worlds


@dataclasses.dataclass(frozen=True)
class State:
  """A policy in a replay."""

  harness: int  # The harness that trained it last; -1: none.
  at: float  # Updates of that harness's curve.
  score: float  # True score, a fraction.
  late: float  # Mean true score over the second half of its last training.
  start: float  # True score before its last training.


@dataclasses.dataclass(frozen=True)
class _Curve:
  """The scores of an arm by updates; see the file's head for values outside."""

  updates: np.ndarray  # [M]
  scores: np.ndarray  # [M]

  @property
  def slope(self) -> float:
    """The steepest rise per update."""
    return float((np.diff(self.scores) / np.diff(self.updates)).max())

  def __call__(self, at: np.ndarray | float) -> Any:
    inside = np.interp(at, self.updates, self.scores)
    return inside + np.minimum(at, 0) * max(self.slope, 0)

  def find(self, score: float) -> float:
    """Return where the curve first reaches a score, or comes nearest to it."""
    if score <= self.scores[0]:
      missing = self.scores[0] - score
      # A curve that hardly rises regains nothing, however long it goes on.
      if missing > self.slope * self.updates[-1]:
        return 0.0
      return -float(missing / self.slope) if missing else 0.0
    above = np.flatnonzero(self.scores >= score)
    if not len(above):
      return float(self.updates[int(self.scores.argmax())])
    low, high = above[0] - 1, above[0]
    rise = self.scores[high] - self.scores[low]
    part = (score - self.scores[low]) / rise
    return float(
        self.updates[low] + part * (self.updates[high] - self.updates[low])
    )


class World:
  """One replay of a table, in which tokens are spent.

  Attributes:
    spent: Tokens spent so far.
    limit: Limit of tokens; a rule may lower it for a part of its work.
    base: The policy before training.
    beyond: Whether a policy was trained beyond the end of its curve.
  """

  def __init__(
      self,
      table: Table,
      tokens: float,
      *,
      shift: np.random.Generator,
      rng: np.random.Generator,
      problems: int = 64,
      samples: int = 2,
  ):
    """Sample the curves of the replay.

    Args:
      table: The table to replay.
      tokens: Tokens that may be spent.
      shift: Generator for the shifts of the mean curves.
      rng: Generator for arms and scores.
      problems: Dev problems of a score.
      samples: Completions per problem.
    """
    self.table, self.limit, self.spent = table, tokens, 0.0
    self.beyond = False
    self._rng, self._problems, self._samples = rng, problems, samples
    self._means, self._off = table.curves.mean(axis=1), table.off
    self._seeds = table.share.shape[1]
    n = self._seeds
    self._shift = shift.standard_normal(n) / math.sqrt(n * (n - 1))
    self._profiles = table.share.mean(axis=1)  # [H, M, Q]
    self._cost = table.tokens.mean(axis=1)  # [H, M]
    first = float(table.curves[:, :, 0].mean())
    self.base = State(-1, 0.0, first, first, first)

  def luck(self) -> np.ndarray:
    """Sample the seed effect of an arm, or of a pair of arms."""
    n = self._seeds
    return self._rng.standard_normal(n) / math.sqrt(n - 1)

  def _curve(self, harness: int, luck: np.ndarray) -> _Curve:
    mixed = (self._shift + luck) @ self._off[harness]
    return _Curve(self.table.updates, self._means[harness] + mixed)

  def _tokens_at(self, harness: int, at: float) -> float:
    """Return the tokens of a curve up to a number of updates."""
    updates, cost = self.table.updates, self._cost[harness]
    rates = np.diff(cost) / np.diff(updates)
    outside = min(at, 0) * rates[0] + max(at - updates[-1], 0) * rates[-1]
    return float(np.interp(at, updates, cost) + outside)

  def price(self, state: State, updates: int) -> float:
    """Return the tokens that updates cost under the harness of a state."""
    harness = max(state.harness, SEED)
    end = self._tokens_at(harness, state.at + updates)
    return end - self._tokens_at(harness, state.at)

  def pay(self, tokens: float) -> None:
    """Spend tokens.

    Raises:
      SpentError: If fewer are left; then none is spent.
    """
    if self.spent + tokens > self.limit:
      raise SpentError
    self.spent += tokens

  def train(
      self,
      state: State,
      harness: int,
      updates: int,
      luck: np.ndarray | None = None,
  ) -> State:
    """Return the policy after some updates under a harness.

    Args:
      state: Where training starts.
      harness: Number of the harness.
      updates: Updates of the arm.
      luck: Seed effect of the arm; by default a new one.

    Raises:
      SpentError: If the tokens do not suffice.
    """
    curve = self._curve(harness, self.luck() if luck is None else luck)
    if state.harness == harness:
      at = state.at
    else:
      at = 0.0 if state.harness < 0 else curve.find(state.score)
    end = at + updates
    self.pay(self._tokens_at(harness, end) - self._tokens_at(harness, at))
    self.beyond |= end > self.table.updates[-1]
    clipped = lambda score: float(np.clip(score, 0, 1))
    change = lambda to: state.score + curve(to) - curve(at)
    half = np.linspace(at + updates / 2, end, 5)
    return State(
        harness,
        end,
        score=clipped(change(end)),
        late=clipped(change(half).mean()),
        start=state.score,
    )

  def finish(self, state: State) -> State:
    """Return the policy after all remaining tokens were spent on it."""
    harness, luck = max(state.harness, SEED), self.luck()
    while True:
      try:
        state = self.train(state, harness, STEPS, luck)
      except SpentError:
        return state

  def problems(self, count: int | None = None) -> np.ndarray:
    """Sample problems, by default as many as a score has."""
    count = count or self._problems
    return self._rng.integers(self.table.share.shape[3], size=count)

  def score(self, state: State, problems: np.ndarray) -> np.ndarray:
    """Return a measured score: the solved share of each dev problem.

    Raises:
      SpentError: If the tokens do not suffice.
    """
    dev = np.interp(
        state.at, self.table.updates, self.table.dev_tokens[state.harness]
    )
    self.pay(len(problems) * self._samples * float(dev))
    return self.answers(state, state.score, problems, self._samples)

  def answers(
      self, state: State, level: float, problems: np.ndarray, samples: int
  ) -> np.ndarray:
    """Return the solved share of each problem in rollouts, which cost nothing.

    Args:
      state: The policy, which finds some problems easier than others.
      level: The true mean over all problems.
      problems: The problems asked.
      samples: Completions per problem.
    """
    place = np.interp(
        state.at, self.table.updates, np.arange(len(self.table.updates))
    )
    low = int(place)
    high = min(low + 1, len(self.table.updates) - 1)
    profiles = self._profiles[max(state.harness, SEED)]
    own = profiles[low] + (place - low) * (profiles[high] - profiles[low])
    chances = own[problems] + level - own.mean()
    spread = np.sqrt(np.clip(chances * (1 - chances), 0, None) / samples)
    return chances + spread * self._rng.standard_normal(len(problems))

  def calls(self, state: State) -> tuple[Sequence[str], Sequence[str]]:
    """Return the classes that a diagnosis calls for, the most urgent first.

    The diagnosis is the one recorded at the nearest mark: after 8 updates, the
    one after 12.

    Returns:
      All classes, and those of critical findings.
    """
    harness = max(state.harness, SEED)
    mark = int(np.abs(self.table.updates - state.at).argmin())
    return self.table.calls[harness][mark], self.table.critical[harness][mark]


def reports(most: int) -> list[int]:
  """Return the units after which a trial reports: 1, 3, 9, ..., most."""
  return [3**i for i in range(20) if 3**i < most] + [most]


class Trials:
  """Trials of a searcher: each trains the base policy under one harness.

  A trial reports after 1, 3, 9, ... units of updates. All are scored on the
  same dev problems, so that differences of problems do not matter.
  """

  def __init__(self, world: World, *, unit: int, most: int, part: float):
    """Begin a search.

    Args:
      world: The world to search.
      unit: Updates of a unit.
      most: Most units of a trial.
      part: Part of the tokens for trials; the rest trains the best policy.
    """
    self.world, self.unit, self.most = world, unit, most
    self._all, world.limit = world.limit, part * world.limit
    self._problems = world.problems()
    self.best: tuple[float, State] = (-math.inf, world.base)

  def run(self, harness: int) -> Iterator[tuple[int, float]]:
    """Train a trial; yield its units and its score at every report.

    Raises:
      SpentError: If the search has no tokens left.
    """
    state, luck, done = self.world.base, self.world.luck(), 0
    for units in reports(self.most):
      state = self.world.train(state, harness, (units - done) * self.unit, luck)
      done = units
      score = float(self.world.score(state, self._problems).mean())
      self.best = max(self.best, (score, state), key=lambda pair: pair[0])
      yield units, score

  def finish(self) -> State:
    """Return the policy of a search after all tokens are spent."""
    self.world.limit = self._all
    return self.world.finish(self.best[1])


def error_of_switches(table: Table) -> list[tuple[float, float]]:
  """Return predicted and recorded last scores of runs with a switch."""
  found = []
  curves = table.curves.mean(axis=1)
  for row in table.switches:
    to, when = row['switched']
    recorded = shares(row).mean(axis=1)
    place = list(row['updates']).index(when)
    curve = _Curve(table.updates, curves[to])
    at = curve.find(float(recorded[place]))
    end = at + row['updates'][-1] - when
    predicted = float(recorded[place] + curve(end) - curve(at))
    found.append((predicted, float(recorded[-1])))
  return found
