"""The rules of a race: which candidates are kept, dropped, or continue.

A round trains arms of the incumbent and of several candidates, n pairs for each
candidate (`paired`). A candidate's e-value is the product over its rounds.
Nothing here does I/O or uses random numbers.

Candidates of a round share the incumbent's arms, so that their e-values depend
on each other. The rule that bounds false keeps, `alpha_of`, holds under any
dependence.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math
from typing import Literal

from evojax.eval import paired
from evojax.ledger import records
from evojax.stats import spreads

WORTH = 0.02  # The smallest gain that a race looks for, a fraction.
MARGIN = 0.02  # A loss to exclude for a repair or a kept change.
# Where a loss is to be excluded, a larger gain of a pair counts only as CAP or
# as CAP_ERRORS standard errors over problems, whichever is more.
CAP, CAP_ERRORS = 0.05, 2.0
# The gains of a steady repair rise by at most this much for each pair after the
# second; see `is_steady`.
RISE = 0.0125
# One-sided levels of the perturbed gate and of the check at a longer horizon.
GATE_LEVEL = 0.1
HORIZON_LEVEL = 0.1
_SHARE = 0.5  # Part of a gain that must appear on perturbed problems.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
  """The evidence for a candidate after some rounds."""

  index: int  # 1, 2, ...: the order in which candidates entered the run.
  rounds: int = 0
  e_value: float = 1.0
  differences: tuple[float, ...] = ()  # Differences of all pairs, oldest first.
  errors: tuple[float, ...] = ()  # Their standard errors over problems.
  worth: float = WORTH  # It is dropped once this gain is unlikely.
  margin: float = 0.0  # It must exclude a loss of this size; 0: show a gain.
  # Whether the gains of the newest round pass `is_steady`; if not, a gain is to
  # be shown in spite of a margin.
  steady: bool = True

  @property
  def mean(self) -> float:
    """The mean difference over all pairs; 0 before the first."""
    count = len(self.differences)
    return math.fsum(self.differences) / count if count else 0.0


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The decision on a candidate after a round."""

  status: Literal['keep', 'drop', 'go_on']
  reason: str


def alpha_of(index: int, most: int, kept: int, level: float) -> float:
  """Return a candidate's significance level, for a rate `level` of false keeps.

    alpha_j = level gamma_j (kept + 1),
    gamma_j = (1 / j) / sum_{i <= most} 1 / i

  is e-LOND (Xu and Ramdas 2024, arXiv:2311.06412), with e-values that continue
  while later candidates enter. A candidate that is kept at e >= 1 / alpha_j is
  at most the share 1 / (kept + 1) of all that are ever kept, so the expected
  share of false ones is at most

    sum_j E[1{e_j >= 1 / alpha_j} / (kept + 1)] <= level sum_j gamma_j E[e_j]
    <= level,

  whatever the dependence between candidates and whenever the run stops. Before
  anything is kept, this also bounds the probability of any false keep. A keep
  is false if the candidate is no better than the incumbent, or, with a margin,
  worse by at least the margin.

  Args:
    index: j, the candidate's position in the order of entry, from 1. Fixed
      before its first round.
    most: Maximum number of candidates of the run, promised at its start.
    kept: Number of candidates that were kept before this round.
    level: Bound on the rate of false keeps of the whole run, in (0, 1).

  Raises:
    ValueError: If more candidates enter than were promised.
  """
  if not 1 <= index <= most:
    raise ValueError(
        f'candidate {index} of {most}: a run enters at most as many as it'
        ' promised when it began'
    )
  whole = math.fsum(1 / i for i in range(1, most + 1))
  return level * (kept + 1) / (index * whole)


def cap_of(errors: Sequence[float]) -> float:
  """Return the largest gain of a pair that counts, see `counted`.

  It is larger than `CAP` if each pair has few problems: a gain of `CAP` is then
  within their noise, and no number of such pairs could exclude a loss.

  Args:
    errors: Standard errors of the differences over problems, fractions.
  """
  return max(CAP, CAP_ERRORS * spreads.rms(errors))


def counted(
    differences: Sequence[float], margin: float, cap: float = CAP
) -> tuple[float, ...]:
  """Return differences of pairs as they count in the test of a candidate.

  With a margin, the question is whether the candidate loses, and a very large
  gain in a pair is no more evidence against a loss than a small one. Yet it
  would raise p, since Student's t divides by the spread: the repair of a fault
  gains most in its first pair, before the policy is repaired. So gains are cut
  at `cap`. This can only lower the mean that is tested. As it also lowers the
  spread, more repairs that lose `MARGIN` than the level allows would be kept if
  `is_steady` did not make pairs that differ so much show a gain.

  Args:
    differences: Candidate minus incumbent, fractions.
    margin: The `Standing.margin` of the candidate.
    cap: The largest gain of a pair that counts, see `cap_of`.
  """
  return tuple(min(d, cap) if margin else d for d in differences)


def is_steady(differences: Sequence[float]) -> bool:
  """Return whether no pair gains much more than an earlier pair of the round.

  The chain follows the repair of a critical fault, so that most gains fall from
  pair to pair, or stay what they are. How far they rise shows how much arms
  vary, and arms that vary much may collapse. No test excludes this: if one arm
  in ten collapses, 66 % of rounds of 4 pairs show no collapse.

  The gains of some repairs rise: a KL penalty binds the more, the further the
  policy is from its start. So the order of the pairs does not matter if all
  gains lie between 0 and twice the rise that is allowed, which is 5 points with
  4 pairs. Even such pairs do not exclude that arms collapse rarely.

  Args:
    differences: Candidate minus incumbent, of a round's pairs in order.
  """
  allowed = RISE * (len(differences) - 2)
  if min(differences) >= 0 and max(differences) <= 2 * allowed:
    return True
  both = itertools.combinations(differences, 2)
  rise = max((later - earlier for earlier, later in both), default=0.0)
  return rise <= allowed


def after_round(
    standing: Standing,
    differences: Sequence[float],
    errors: Sequence[float],
    *,
    spread: float,
    alpha: float,
    last: bool,
) -> Standing:
  """Return the standing of a candidate after one more round.

  A few pairs may agree by chance, and arms that collapse rarely may not have
  done so yet. So a candidate's spread is taken to be at least that of all pairs
  of its race together. This cannot make a result more significant, as it can
  only raise p. It costs no power for large effects and 0.1 for a difference of
  one standard deviation, and prevents most of the false keeps if arms collapse.

  The repair of a critical fault races alone, and no other pairs show how much
  arms vary. Where its own pairs show that they vary much (`is_steady`), it has
  to show a gain of `WORTH`; this, too, can only raise p.

  Args:
    standing: Standing before the round.
    differences: Candidate minus incumbent, of the round's pairs, fractions.
    errors: Their standard errors over problems, see `paired.gain`.
    spread: `spreads.pooled` of all candidates in all rounds of the race
      so far, including this round and dropped candidates, of differences as
      they are `counted` for this candidate.
    alpha: See `alpha_of`; fixed before the round.
    last: Whether this is the candidate's last round; fixed before it.

  Raises:
    ValueError: If the candidate had its last round.
  """
  if not standing.e_value:
    raise ValueError(
        f'candidate {standing.index} has bet all in round {standing.rounds};'
        ' enter it again as a new candidate'
    )
  least = [max(error, spread) for error in errors]
  given = counted(differences, standing.margin, cap_of(errors))
  p = paired.p_value(given, least, null=-standing.margin)
  steady = is_steady(differences)
  if standing.margin and not steady:
    p = max(p, paired.p_value(differences, least, null=WORTH))
  target = 1 / (alpha * standing.e_value)
  step = float(paired.bet(p, target, last=last))
  return dataclasses.replace(
      standing,
      rounds=standing.rounds + 1,
      # Rounding must not miss a target that was reached.
      e_value=1 / alpha if step >= target > 1 else standing.e_value * step,
      differences=(*standing.differences, *differences),
      errors=(*standing.errors, *errors),
      steady=steady,
  )


def is_hopeful(
    differences: Sequence[float],
    errors: Sequence[float],
    spread: float,
    worth: float = WORTH,
) -> bool:
  """Return whether more pairs of a candidate are worth their cost.

  They are unless a gain of `worth` is unlikely, see `paired.is_hopeful`; after
  a single pair, they are if it shows a gain. This rule can only lose a good
  change: what is dropped is never kept, so no e-value grows by it.

  Args:
    differences: Differences of all pairs of the candidate so far, fractions.
    errors: Their standard errors over problems.
    spread: `spreads.pooled` of the race so far.
    worth: The smallest gain of interest, a fraction.
  """
  if len(differences) < 2:
    return math.fsum(differences) > 0
  found = paired.gain(differences, [max(error, spread) for error in errors])
  return paired.is_hopeful(found.value, found.standard_error, worth)


def passed(
    standings: Mapping[str, Standing], thresholds: Mapping[str, float]
) -> list[str]:
  """Return the candidates that reached their level, best mean first.

  The first one that passes the perturbed gate is kept.

  Args:
    standings: Standings after the round, by name.
    thresholds: 1 / alpha of each candidate, by name; see `alpha_of`. They are
      compared as they are: the product of 1 / alpha and alpha may be rounded
      to less than 1.
  """
  found = [
      name for name, s in standings.items() if s.e_value >= thresholds[name]
  ]
  return sorted(found, key=lambda name: (-standings[name].mean, name))


def sort_out(
    standings: Mapping[str, Standing],
    *,
    rounds: int,
    spread: float,
    kept: str = '',
    waiting: Sequence[str] = (),
) -> dict[str, Verdict]:
  """Return the verdict on each candidate of a round.

  Dropping needs no level: it can lose a good change but never keep a bad one.

  Args:
    standings: Standings after the round, by name.
    rounds: Maximum number of rounds of a candidate.
    spread: `spreads.pooled` of the race so far.
    kept: Name of the candidate that is kept. All others end with the incumbent
      that they were compared with; each may enter again as a new candidate.
    waiting: Candidates that passed but cannot be kept yet, because their
      perturbed gate is open or a shadow trains: they are not dropped for being
      in the worse half.

  Returns:
    'keep', 'drop' or 'go_on' with the reason, by name; if no candidate is kept
    or goes on, the race ends without a keep.
  """
  if kept:
    return {
        name: Verdict('keep', f'e-value {s.e_value:.3g} reached its target')
        if name == kept
        else Verdict('drop', f'{kept} was kept')
        for name, s in standings.items()
    }
  # The size of the better half, at least one.
  places = -(-len(standings) // 2)
  order = sorted(
      standings,
      key=lambda name: (name not in waiting, -standings[name].mean, name),
  )
  found = {}
  for place, name in enumerate(order):
    s = standings[name]
    points = f'{100 * s.mean:+.1f} points after {s.rounds} rounds'
    if s.rounds >= rounds or not s.e_value:  # An e-value of 0 stays 0.
      verdict = Verdict('drop', f'{points}, the last; {_evidence(s)}')
    elif name not in waiting and not is_hopeful(
        s.differences, s.errors, spread, s.worth
    ):
      least = f'a gain of {100 * s.worth:.0f} points is unlikely'
      least = least if s.worth else 'a gain is unlikely'
      verdict = Verdict('drop', f'{points}: {least}')
    elif name not in waiting and place >= places:
      verdict = Verdict('drop', f'{points}: in the worse half')
    else:
      verdict = Verdict('go_on', f'{points}, e-value {s.e_value:.3g}')
    found[name] = verdict
  return found


def _evidence(standing: Standing) -> str:
  """Return why a candidate that had its last round is not kept."""
  if standing.e_value:
    return f'e-value {standing.e_value:.3g} is too small'
  loss = f'a loss of {100 * standing.margin:g} points'
  if standing.margin and not standing.steady:
    return (
        'its gains rose from pair to pair, so it had to show a gain of'
        f' {100 * WORTH:g} points as well as to exclude {loss}'
    )
  missing = f'{loss} is not excluded' if standing.margin else 'no gain is shown'
  return f'{missing} (e-value 0)'


@dataclasses.dataclass(frozen=True)
class Gate:
  """The result on perturbed problems of a candidate that passed its race."""

  status: Literal['holds', 'fails', 'open']
  # As measured; its interval is two-sided at 1 - 2 GATE_LEVEL.
  perturbed: paired.Gain
  reason: str


def gate(
    differences: Sequence[float],
    perturbed: Sequence[float],
    errors: Sequence[float],
    *,
    share: float = _SHARE,
    margin: float = 0.0,
) -> Gate:
  """Return whether a result also shows on perturbed problems, within its error.

  holds: the gain there, as measured or as it is `counted`, is above -margin at
  one-sided level GATE_LEVEL; with a margin of 0, a candidate that only gains
  from the wording passes with at most that probability. Cut gains alone would
  not do: where the errors over problems are large, only a large gain excludes a
  loss.
  fails: it is below `share` of the gain on plain problems, at the same level;
  the arms of a pair are the same, so the difference is taken per pair.
  open: the errors allow neither; score more pairs, or another round.

  Args:
    differences: Differences of n pairs on plain problems.
    perturbed: Differences of the same pairs on perturbed problems, in order.
    errors: Standard errors of `perturbed` over problems.
    share: Part of the gain that must appear on perturbed problems.
    margin: The `Standing.margin` of the candidate.
  """
  found = paired.gain(perturbed, errors, level=1 - 2 * GATE_LEVEL)
  given = counted(perturbed, margin)
  tested = paired.gain(given, errors, level=1 - 2 * GATE_LEVEL)
  # Positive if too much of the gain is missing.
  missing = [share * d - p for d, p in zip(differences, perturbed, strict=True)]
  text = f'perturbed {_points(found)}'
  if given != tuple(perturbed):
    text += f', {_points(tested)} with gains cut at {100 * CAP:g}'
  none = [0.0] * len(missing)
  if paired.p_value(missing, none) <= GATE_LEVEL:
    part = 'half' if share == _SHARE else f'{share:g}'
    return Gate('fails', found, f'{text}: less than {part} of the gain')
  if max(found.low, tested.low) > -margin:
    return Gate('holds', found, text)
  # Without a margin, a gain above 0 has to be shown.
  loss = f'a loss of {100 * margin:g}' if margin else '0'
  return Gate('open', found, f'{text}: may be {loss}')


def _points(gain: paired.Gain) -> str:
  """Return a gain and its interval in points, as text."""
  return (
      f'{100 * gain.value:+.1f} points'
      f' [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]'
  )


def horizon(
    differences: Sequence[float],
    errors: Sequence[float],
    *,
    looks: int,
    last: bool,
) -> Verdict:
  """Decide on a kept change at a longer horizon.

  The former incumbent keeps training as a shadow, in parallel with the policy,
  and the two are compared after each of `looks` rounds. Including the round in
  which the change was kept, they then differ by up to looks + 1 rounds of
  training.

  Before the last look the change is taken back if it lost, at one-sided level
  HORIZON_LEVEL / looks. At the last look it stays only if a loss of MARGIN is
  excluded at level HORIZON_LEVEL, so that a change which is then MARGIN or more
  behind stays with at most that probability.

  Args:
    differences: New minus former, for the pairs of the latest look only, since
      earlier ones were at a shorter horizon.
    errors: Their standard errors over problems.
    looks: Total number of looks.
    last: Whether this is the last one.

  Returns:
    'keep', 'drop' (the change is taken back) or 'go_on'.
  """
  found = paired.gain(differences, errors, level=1 - 2 * HORIZON_LEVEL)
  points = f'{100 * found.value:+.1f} points'
  if last:
    low = f'lower bound {100 * found.low:+.1f}'
    stays = found.low > -MARGIN
    return Verdict('keep' if stays else 'drop', f'{points}, {low}')
  lost = paired.p_value([-d for d in differences], errors)
  if lost <= HORIZON_LEVEL / looks:
    return Verdict('drop', f'{points}, p of no loss {lost:.3g}')
  return Verdict('go_on', points)


def vetoed(predicted: records.Interval | None) -> bool:
  """Return whether a replay clearly predicts a loss, so that no arm trains.

  It does if the whole interval is below 0.

  Args:
    predicted: 95 % interval of the replayed effect, corrected by how well
      replays predicted changes of the class (`calibration.corrected`); None:
      unknown.
  """
  return predicted is not None and predicted[1] < 0
