"""The race of evojax on a replayed table, by the rules of `evojax.evolve`.

Sizes are the defaults of the config, not tuned on any table.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any

import numpy as np

from benchmarks.searchers import tables
from evojax import config as config_lib
from evojax.diagnosis import rules as diagnosis_rules
from evojax.eval import paired
from evojax.eval import race
from evojax.evolve import learning
from evojax.evolve import pairs as pairs_lib
from evojax.evolve import ranking
from evojax.stats import spreads

# Differences of pairs, candidate minus incumbent, and their standard errors.
_Found = tuple[list[float], list[float]]


def _add(found: _Found, difference: tuple[float, float]) -> None:
  for values, value in zip(found, difference, strict=True):
    values.append(value)


@dataclasses.dataclass(frozen=True)
class Changes:
  """Knowledge about the factors of a setting before any training."""

  # The intervention classes of each factor, without those of aliased factors.
  classes: Sequence[Sequence[str]]

  def alike(self, factor: int) -> bool:
    """Return whether rollouts before and after a flip are comparable."""
    return set(self.classes[factor]).isdisjoint(pairs_lib.SAMPLED_OTHERWISE)


class _Candidate:
  """A change that races against the incumbent."""

  def __init__(self, factor: int, harness: int, index: int, mends: bool):
    self.factor, self.harness = factor, harness
    self.mends = mends  # Whether it answered a critical finding at entry.
    self.standing = race.Standing(
        index=index,
        worth=0.0 if mends else race.WORTH,
        margin=race.MARGIN if mends else 0.0,
    )
    # The state that training continues from if it is kept, and the states at
    # which its arms of the newest round ended.
    self.state: tables.State | None = None
    self.ends: list[tables.State] = []

  @property
  def is_due(self) -> bool:
    """True if it repairs a critical fault and has not raced yet.

    In the next round the chain then follows it.
    """
    return self.mends and not self.standing.rounds


@dataclasses.dataclass
class _Shadow:
  """The former harness, which continues training after a change was kept."""

  harness: int
  state: tables.State
  alike: bool
  mends: bool  # Whether the change that it lacks repairs a fault.
  looks: int = 0


class Race:
  """A run of evojax: rounds of pairs in a chain; see `evojax.evolve.steps`.

  Some parts are omitted because tables lack their data: the gate of perturbed
  problems, the limits on what a proposer may write, predicted gains (which
  order changes that repair nothing, and let hopeless ones wait), and findings
  that are warnings. The mean of arms is omitted, too. When no further round is
  affordable, the policy continues training.
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
      rng: Generator for the choice among equally urgent changes.
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
    # Factors tried on this incumbent; those tried as repairs of a critical
    # fault, once for each time.
    self._tried: set[int] = set()
    self._repairs: list[_Candidate] = []
    self._racing: list[_Candidate] = []
    self._groups: list[list[float]] = []
    self._shadow: _Shadow | None = None
    # Solved shares of the updates that made the policy, by round.
    self._taught: list[list[float]] = []

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

    The repair of a critical fault enters alone, and the last entry of a run is
    for one. Other changes wait while the policy learns fast.
    """
    called, critical = self._world.calls(self.policy)
    racing = {c.factor for c in self._racing}
    left = [k for k in range(self._world.table.factors) if k not in racing]
    left = [k for k in left if not self._vetoed(k)]
    classes = lambda k: self._changes.classes[self._order[k]]
    among = lambda k, found: not set(classes(k)).isdisjoint(found)
    left = [
        k
        for k in left
        if k not in self._tried or (among(k, critical) and self._may_repair(k))
    ]
    ranks = {
        k: min((called.index(c) for c in classes(k) if c in called), default=99)
        for k in left
    }
    self._rng.shuffle(left)
    left = sorted(left, key=ranks.get)
    repairs = [k for k in left if among(k, critical)]
    if not repairs:
      ordinary = ranking.ordinary_entries(self._e.entries) - self._entered
      places = 0 if self._learns_fast() else max(min(places, ordinary), 0)
    for factor in (repairs[:1] or left)[:places]:
      self._entered += 1
      harness = self.harness ^ (1 << factor)
      mends = bool(repairs)
      self._racing.append(_Candidate(factor, harness, self._entered, mends))

  def _may_repair(self, factor: int) -> bool:
    """Return whether a repair was never tried as one, or once and with a
    gain."""
    before = [c for c in self._repairs if c.factor == factor]
    return not before or (len(before) == 1 and before[0].standing.mean > 0)

  def _learns_fast(self) -> bool:
    """Return whether changes that repair nothing wait; see `learning`."""
    newest = self._taught[-learning.ROUNDS :]
    return not newest or learning.rise_of(newest) > self._e.settled

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

  def _follow(
      self,
      candidate: _Candidate,
      lucks: Sequence[np.ndarray],
      suspect: bool,
      alike: bool,
  ) -> tuple[list[tables.State], list[tables.State], _Found]:
    """Train a chain that follows the repair of a critical fault.

    Each pair starts where the repair's previous arm ended. If a gain becomes
    unlikely, the chain goes back to the incumbent's own arms. Sets the states
    of both.

    Returns:
      The states at which each pair started and the incumbent's arm ended, and
      the differences of the pairs.
    """
    train = functools.partial(self._world.train, updates=self._e.updates)
    own = state = self.policy
    candidate.state, candidate.ends, follows = state, [], True
    starts, ends, taught, found = [], [], [], ([], [])
    for i, luck in enumerate(lucks):
      starts.append(state)
      end = train(state, self.harness, luck=luck)
      ends.append(end)
      if state is own and not self._is_wasted(end, suspect):
        own = end
        taught += self._outcomes(end)
      if follows:
        repaired = train(state, candidate.harness, luck=luck)
        candidate.ends.append(repaired)
        _add(found, self._difference(repaired, end, alike))
        if not self._is_wasted(repaired, suspect):
          candidate.state = repaired
        if i + 1 == paired.first_half(len(lucks)):
          spread = spreads.pooled([*self._groups, found[0]]) or 0.0
          follows = self._hopeful(candidate, found, spread)
      state = candidate.state if follows else own
    self.policy = own
    self._taught.append(taught)
    return starts, ends, found

  def _round(self) -> None:
    """Train the incumbent and its candidates for a round; then decide."""
    lucks = [self._world.luck() for _ in range(self._e.pairs)]
    suspect = self._is_suspect(self.policy)
    alike = all(self._changes.alike(c.factor) for c in self._racing)
    alike &= not self._shadow or self._shadow.alike
    due = [c for c in self._racing if c.is_due and not self._shadow]
    done = {}
    if due:
      starts, ends, done[str(due[0].factor)] = self._follow(
          due[0], lucks, suspect, alike
      )
    else:
      starts, ends, self.policy = self._chain(
          self.policy, self.harness, lucks, suspect
      )
      self._taught.append([x for end in ends for x in self._outcomes(end)])
    shadows = []
    if shadow := self._shadow:
      _, shadows, shadow.state = self._chain(
          shadow.state, shadow.harness, lucks, False
      )
    found = self._compare(starts, ends, lucks, alike, done)
    if self._shadow and self._look(ends, shadows, alike) == 'drop':
      return  # The candidates were compared with a change now taken back.
    self._decide(found, ends)

  def _compare(
      self,
      starts: Sequence[tables.State],
      ends: Sequence[tables.State],
      lucks: Sequence[np.ndarray],
      alike: bool,
      done: Mapping[str, _Found],
  ) -> dict[str, _Found]:
    """Train the candidates that are not done; return all differences."""
    half = paired.first_half(len(lucks))
    racing = [c for c in self._racing if str(c.factor) not in done]
    found = {**done, **{str(c.factor): ([], []) for c in racing}}
    for c in racing:
      c.ends = []
    for part in (range(half), range(half, len(lucks))):
      for c in racing:
        for i in part:
          c.state = self._world.train(
              starts[i], c.harness, self._e.updates, lucks[i]
          )
          c.ends.append(c.state)
          difference = self._difference(c.state, ends[i], alike)
          _add(found[str(c.factor)], difference)
      groups = [d for d, _ in found.values()]
      spread = spreads.pooled([*self._groups, *groups]) or 0.0
      racing = [
          c for c in racing if self._hopeful(c, found[str(c.factor)], spread)
      ]
    return found

  def _hopeful(
      self,
      candidate: _Candidate,
      found: _Found,
      spread: float,
  ) -> bool:
    before = candidate.standing
    return race.is_hopeful(
        [*before.differences, *found[0]],
        [*before.errors, *found[1]],
        spread,
        before.worth,
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
      found: Mapping[str, _Found],
      ends: Sequence[tables.State],
  ) -> None:
    """Keep, drop or continue candidates; ends are those of the incumbent."""
    if not self._racing:
      return
    self._groups += [d for d, _ in found.values()]
    spread = spreads.pooled(self._groups) or 0.0
    thresholds = {}
    for c in self._racing:
      name = str(c.factor)
      alpha = race.alpha_of(
          c.standing.index,
          self._e.entries,
          self._confirmed,
          self._e.false_discovery_rate,
      )
      thresholds[name] = 1 / alpha
      cap = race.cap_of(found[name][1])
      margin = c.standing.margin
      counted = [race.counted(g, margin, cap) for g in self._groups]
      c.standing = race.after_round(
          c.standing,
          *found[name],
          spread=spreads.pooled(counted) or 0.0,
          alpha=alpha,
          last=c.is_due or c.standing.rounds + 1 >= self._e.patience,
      )
    # As in a run, a candidate that was dropped after half its pairs is never
    # kept.
    standings = {
        str(c.factor): c.standing
        for c in self._racing
        if len(c.ends) == len(ends)
    }
    passed = race.passed(standings, thresholds)
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
      self._taught[-1] = [x for end in winner.ends for x in self._outcomes(end)]
      self._racing, self._tried = [], {winner.factor}
      self._repairs = [winner, winner]  # It is not undone.
      return
    goes_on = {name for name, v in verdicts.items() if v.status == 'go_on'}
    dropped = [c for c in self._racing if str(c.factor) not in goes_on]
    self._tried |= {c.factor for c in dropped}
    self._repairs += [c for c in dropped if c.mends]
    self._racing = [c for c in self._racing if str(c.factor) in goes_on]
