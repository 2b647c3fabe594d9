"""Rules that decide where the next tokens go, on a replayed table.

A rule receives a world and returns the policy that it delivers when the tokens
are spent. A change flips one factor of the incumbent harness, and with it the
factors that the design aliases with it. Sizes are the defaults of the config,
not tuned on any table.
"""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from benchmarks.searchers import tables
from evojax import config as config_lib
from evojax.diagnosis import rules as diagnosis_rules
from evojax.eval import paired
from evojax.eval import race
from evojax.evolve import learning
from evojax.evolve import pairs as pairs_lib
from evojax.stats import spreads


@dataclasses.dataclass(frozen=True)
class Changes:
  """Knowledge about the factors of a setting before any training."""

  # The intervention classes of each factor, without those of aliased factors.
  classes: Sequence[Sequence[str]]

  def alike(self, factor: int) -> bool:
    """Return whether rollouts before and after a flip are comparable."""
    return set(self.classes[factor]).isdisjoint(pairs_lib.SAMPLED_OTHERWISE)


Rule = Callable[[tables.World, np.random.Generator, Changes], tables.State]


# ------------------------------------------------------------------------- race


class _Candidate:
  """A change that races against the incumbent."""

  def __init__(self, factor: int, harness: int, index: int, mends: bool):
    self.factor, self.harness = factor, harness
    self.mends = mends  # Whether it answered a critical finding as it entered.
    self.standing = race.Standing(index=index)
    self.state: tables.State | None = None  # State of its last arm.


@dataclasses.dataclass
class _Shadow:
  """The former harness, which continues training after a change was kept."""

  harness: int
  state: tables.State
  alike: bool
  mends: bool  # Whether the change that it lacks repairs a fault.
  looks: int = 0


class _Race:
  """A run of evojax: rounds of pairs in a chain; see `evojax.evolve.steps`.

  Two gates are omitted because tables lack the data: perturbed problems, and
  the limits on what a proposer may write. Omitted, too, are the mean of arms,
  the chain that follows the repair of a critical fault, and the entry that is
  kept for one. When no further round is affordable, the policy continues
  training.
  """

  def __init__(
      self,
      world: tables.World,
      rng: np.random.Generator,
      changes: Changes,
      order: Sequence[int],
  ):
    """Begin a run.

    Args:
      world: World in which the run trains.
      rng: Random choice among equally urgent changes.
      changes: Changes of the setting.
      order: For each factor, the factor whose classes are used when alerts
        call.
    """
    base = config_lib.base()
    self._e, self._grpo = base.evolve, base.grpo
    self._world, self._rng = world, rng
    self._changes, self._order = changes, order
    self.harness, self.policy = tables.SEED, world.base
    self._entered = self._confirmed = 0
    self._tried: set[int] = set()  # Factors tried on this incumbent.
    self._racing: list[_Candidate] = []
    self._groups: list[list[float]] = []
    self._shadow: _Shadow | None = None

  def run(self) -> tables.State:
    """Return the policy after all tokens are spent."""
    world, base = self._world, self._world.base
    try:
      first = world.train(base, self.harness, self._e.first_updates)
      wasted = self._is_wasted(first, self._is_suspect(first))
      self.policy = dataclasses.replace(
          base if wasted else first, harness=self.harness
      )
      while (places := self._places()) is not None:
        self._fill(places)
        self._round()
    except tables.SpentError:
      pass
    return world.finish(self.policy)

  def _places(self) -> int | None:
    """Return the number of free places; None if no round is affordable."""
    e, world = self._e, self._world
    others = len(self._racing) + bool(self._shadow)
    free = max(min(e.candidates - others, e.entries - self._entered), 0)
    left = world.limit - world.spent
    arms = e.pairs * world.price(self.policy, e.updates)
    payable = math.floor(left / arms) - 1 - others
    return None if payable < 0 else min(free, payable)

  def _is_suspect(self, state: tables.State) -> bool:
    _, critical = self._world.calls(state)
    return bool(critical)

  def _fill(self, places: int) -> None:
    """Enter candidates: first those that the diagnosis calls for, then any.

    Critical problems are repaired before anything is improved.
    """
    called, critical = self._world.calls(self.policy)
    racing = {c.factor for c in self._racing}
    busy = self._tried | racing
    left = [k for k in range(self._world.table.factors) if k not in busy]
    left = [k for k in left if not self._vetoed(k)]
    classes = lambda k: self._changes.classes[self._order[k]]
    among = lambda k, found: not set(classes(k)).isdisjoint(found)
    ranks = {
        k: min((called.index(c) for c in classes(k) if c in called), default=99)
        for k in left
    }
    self._rng.shuffle(left)
    for factor in sorted(left, key=ranks.get)[:places]:
      if any(among(k, critical) for k in racing):
        break
      racing.add(factor)
      self._entered += 1
      harness = self.harness ^ (1 << factor)
      mends = among(factor, critical)
      self._racing.append(_Candidate(factor, harness, self._entered, mends))

  def _vetoed(self, factor: int) -> bool:
    """Return whether a replay shows with confidence that a change loses."""
    return race.vetoed(self._world.table.replayed.get((self.harness, factor)))

  def _samples(self, state: tables.State, level: float, updates: int) -> Any:
    """Return the shares of the groups of some updates, for a true mean."""
    problems = self._world.problems(self._grpo.prompts * updates)
    size = self._grpo.group_size
    return self._world.answers(state, level, problems, size)

  def _late(self, state: tables.State) -> Any:
    """Return the shares of the groups in the second half of an arm."""
    updates = self._e.updates - self._e.updates // 2
    return self._samples(state, state.late, updates)

  def _outcomes(self, state: tables.State) -> list[float]:
    """Return the share solved in every update of an arm."""
    levels = np.linspace(state.start, state.score, self._e.updates + 1)[:-1]
    return [float(self._samples(state, x, 1).mean()) for x in levels]

  def _is_wasted(self, state: tables.State, suspect: bool) -> bool:
    """Return whether an arm's training should be left out of the policy."""
    if suspect:
      curve = diagnosis_rules.learning_curve(self._outcomes(state))
      return curve['outcome_rise'] <= 0
    first = self._samples(state, state.start, 1)
    return pairs_lib.is_clearly_worse(self._late(state), than=first)

  def _chain(
      self,
      state: tables.State,
      harness: int,
      lucks: Sequence[np.ndarray],
      suspect: bool,
  ) -> tuple[list[tables.State], list[tables.State], tables.State]:
    """Train arms one after the other.

    Returns:
      The states at which each arm started and ended, and the resulting policy:
      the last state, unless an earlier one solved clearly more.
    """
    starts, ends = [], []
    for luck in lucks:
      end = self._world.train(state, harness, self._e.updates, luck)
      starts.append(state)
      ends.append(end)
      if not self._is_wasted(end, suspect):
        state = end
    scores = [self._late(end) for end in ends]
    best = len(ends) - 1
    for i in reversed(range(best)):
      if pairs_lib.is_clearly_worse(scores[best], than=scores[i]):
        best = i
    return starts, ends, ends[best]

  def _round(self) -> None:
    """Train the incumbent and its candidates for a round; then decide."""
    lucks = [self._world.luck() for _ in range(self._e.pairs)]
    suspect = self._is_suspect(self.policy)
    starts, ends, self.policy = self._chain(
        self.policy, self.harness, lucks, suspect
    )
    shadows = []
    if shadow := self._shadow:
      _, shadows, shadow.state = self._chain(
          shadow.state, shadow.harness, lucks, False
      )
    alike = all(self._changes.alike(c.factor) for c in self._racing)
    alike &= not self._shadow or self._shadow.alike
    found = self._compare(starts, ends, lucks, alike)
    if self._shadow and self._look(ends, shadows, alike) == 'drop':
      return  # The candidates were compared with a change now taken back.
    self._decide(found, ends)

  def _compare(
      self,
      starts: Sequence[tables.State],
      ends: Sequence[tables.State],
      lucks: Sequence[np.ndarray],
      alike: bool,
  ) -> dict[str, tuple[list[float], list[float]]]:
    """Train candidates; return the differences of their pairs, with errors."""
    half = paired.first_half(len(lucks))
    found = {str(c.factor): ([], []) for c in self._racing}
    racing = self._racing
    for part in (range(half), range(half, len(lucks))):
      for c in racing:
        for i in part:
          c.state = self._world.train(
              starts[i], c.harness, self._e.updates, lucks[i]
          )
          d, error = self._difference(c.state, ends[i], alike)
          found[str(c.factor)][0].append(d)
          found[str(c.factor)][1].append(error)
      groups = [d for d, _ in found.values()]
      spread = spreads.pooled([*self._groups, *groups]) or 0.0
      racing = [
          c for c in racing if self._hopeful(c, found[str(c.factor)], spread)
      ]
    return found

  def _hopeful(
      self,
      candidate: _Candidate,
      found: tuple[list[float], list[float]],
      spread: float,
  ) -> bool:
    before = candidate.standing
    return race.is_hopeful(
        [*before.differences, *found[0]], [*before.errors, *found[1]], spread
    )

  def _difference(
      self,
      ahead: tables.State,
      behind: tables.State,
      alike: bool,
      whole: bool = False,
  ) -> tuple[float, float]:
    """Return the difference of a pair, and its standard error.

    Args:
      ahead: State of the arm in question after its training.
      behind: State of the other arm of the pair.
      alike: Whether their rollouts are comparable; dev problems cost more.
      whole: Whether the rollouts of all updates count instead of the second
        half.
    """
    world, updates = self._world, self._e.updates
    if alike:
      counted = updates if whole else updates - updates // 2
      problems = world.problems(self._grpo.prompts * counted)
      size = self._grpo.group_size
      level = lambda s: (s.start + s.score) / 2 if whole else s.late
      scores = [
          world.answers(s, level(s), problems, size) for s in (ahead, behind)
      ]
    else:
      problems = world.problems()
      scores = [world.score(s, problems) for s in (ahead, behind)]
    return pairs_lib.difference(*scores, shared=True)

  def _look(
      self,
      ends: Sequence[tables.State],
      shadows: Sequence[tables.State],
      alike: bool,
  ) -> str:
    """Compare a kept change with its shadow; return the decision."""
    shadow, looks = self._shadow, self._e.horizon
    shadow.looks += 1
    found = [
        self._difference(new, old, alike, whole=True)
        for new, old in zip(ends, shadows, strict=True)
    ]
    ahead, errors = map(list, zip(*found, strict=True))
    last = shadow.looks == looks
    status = race.horizon(ahead, errors, looks=looks, last=last).status
    low = paired.gain(ahead, errors).low
    if status == 'go_on' and not self._is_needed(
        shadows, low, looks - shadow.looks, shadow.mends
    ):
      status = 'keep'
    if status == 'drop':
      self.harness, self.policy = shadow.harness, shadow.state
      self._racing = []
    if status != 'go_on':
      self._confirmed += status == 'keep'
      self._shadow = None
    return status

  def _is_needed(
      self,
      ends: Sequence[tables.State],
      behind: float,
      rounds: int,
      mends: bool,
  ) -> bool:
    """Return whether a former harness could catch up as a shadow.

    Args:
      ends: The states at which its arms of a round ended.
      behind: Lower bound of its deficit.
      rounds: Number of rounds that are left.
      mends: Whether the change that it lacks repairs a fault.
    """
    outcome = [x for end in ends for x in self._outcomes(end)]
    return learning.could_catch_up(outcome, behind, rounds, mends)

  def _decide(
      self,
      found: dict[str, tuple[list[float], list[float]]],
      ends: Sequence[tables.State],
  ) -> None:
    """Keep, drop or continue candidates; ends are those of the incumbent."""
    if not self._racing:
      return
    self._groups += [d for d, _ in found.values()]
    spread = spreads.pooled(self._groups) or 0.0
    alphas = {}
    for c in self._racing:
      name = str(c.factor)
      alphas[name] = race.alpha_of(
          c.standing.index,
          self._e.entries,
          self._confirmed,
          self._e.false_discovery_rate,
      )
      c.standing = race.after_round(
          c.standing,
          *found[name],
          spread=spread,
          alpha=alphas[name],
          last=c.standing.rounds + 1 >= self._e.patience,
      )
    standings = {str(c.factor): c.standing for c in self._racing}
    passed = race.passed(standings, alphas)
    # No change is kept while the shadow of an earlier one is still training.
    kept = '' if self._shadow else next(iter(passed), '')
    verdicts = race.sort_out(
        standings,
        rounds=self._e.patience,
        spread=spread,
        kept=kept,
        waiting=() if kept else passed,
    )
    if kept:
      (winner,) = (c for c in self._racing if str(c.factor) == kept)
      gain = paired.gain(winner.standing.differences, winner.standing.errors)
      looks, mends = self._e.horizon, winner.mends
      if looks and self._is_needed(ends, gain.low, looks, mends):
        alike = self._changes.alike(winner.factor)
        self._shadow = _Shadow(self.harness, self.policy, alike, mends)
      else:
        self._confirmed += 1
      self.harness, self.policy = winner.harness, winner.state
      self._racing, self._tried = [], {winner.factor}
      return
    status = lambda c: verdicts[str(c.factor)].status
    self._tried |= {c.factor for c in self._racing if status(c) == 'drop'}
    self._racing = [c for c in self._racing if status(c) == 'go_on']


def evojax(
    world: tables.World, rng: np.random.Generator, changes: Changes
) -> tables.State:
  """Run the race of evojax."""
  order = range(world.table.factors)
  return _Race(world, rng, changes, order).run()


def shuffled(
    world: tables.World, rng: np.random.Generator, changes: Changes
) -> tables.State:
  """Run the race with alerts that call for the wrong changes."""
  order = rng.permutation(world.table.factors).tolist()
  return _Race(world, rng, changes, order).run()


# --------------------------------------------------------------- simpler rules


def seed(
    world: tables.World, rng: np.random.Generator, changes: Changes
) -> tables.State:
  """Continue training under the seed's harness."""
  del rng, changes
  return world.finish(world.base)


def trials(
    world: tables.World, rng: np.random.Generator, changes: Changes
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
    world: tables.World, rng: np.random.Generator, changes: Changes
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
