"""The rules of a race: which candidates are kept, dropped, or run on.

A round trains arms of the incumbent and of several candidates, n pairs for each
candidate (`paired`). A candidate's e-value is the product of
its rounds'. Nothing here does I/O or draws random numbers.

Candidates of a round share the incumbent's arms, so that their e-values depend
on each other. The rule that bounds false keeps, `alpha_of`, holds under any
dependence.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Literal

from evojax.eval import paired
from evojax.ledger import records

WORTH = 0.02  # The least gain that a race looks for, a fraction.
MARGIN = 0.02  # A loss that a simplification, or a kept change, must exclude.
# One-sided levels of the perturbed gate and of the check at a longer horizon.
GATE_LEVEL = 0.1
HORIZON_LEVEL = 0.1
_SHARE = 0.5  # Part of a gain that perturbed problems have to show.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
  """A candidate after some rounds."""

  index: int  # 1, 2, ...: the order in which candidates entered the run.
  rounds: int = 0
  e_value: float = 1.0
  differences: tuple[float, ...] = ()  # Of all pairs, oldest first.
  errors: tuple[float, ...] = ()  # Their standard errors by problems.

  @property
  def mean(self) -> float:
    """The mean difference over all pairs, 0 before the first."""
    count = len(self.differences)
    return math.fsum(self.differences) / count if count else 0.0


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The decision on a candidate after a round."""

  status: Literal['keep', 'drop', 'go_on']
  reason: str


def alpha_of(index: int, most: int, kept: int, level: float) -> float:
  """Return the level of a candidate: false keeps stay below `level`.

    alpha_j = level gamma_j (kept + 1),
    gamma_j = (1 / j) / sum_{i <= most} 1 / i

  is e-LOND (Xu and Ramdas 2024, arXiv:2311.06412), with e-values that run on
  while later candidates enter. A candidate that is kept at e >= 1 / alpha_j is
  at most the share 1 / (kept + 1) of all that are ever kept, so the expected
  share of false ones is at most

    sum_j E[1{e_j >= 1 / alpha_j} / (kept + 1)] <= level sum_j gamma_j E[e_j]
    <= level,

  whatever the dependence between candidates and whenever the run stops. Before
  anything is kept, this also bounds the probability that anything false is.

  Args:
    index: j, the candidate's place in the order of entry, from 1. Fixed before
      its first round.
    most: Candidates that the run may enter, promised at its start.
    kept: Candidates that were kept before this round.
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


def after_round(
    standing: Standing,
    differences: Sequence[float],
    errors: Sequence[float],
    *,
    spread: float,
    alpha: float,
    last: bool,
    margin: float = 0.0,
) -> Standing:
  """Return the standing of a candidate after one more round.

  A few pairs may agree by chance, and arms that collapse now and then may not
  have done so yet. So a candidate is not taken to be steadier than all pairs of
  its race are together. This borrows no certainty, as it can only raise p. It
  takes nothing from the power for large effects, 0.1 from that for a difference
  of one standard deviation, and most of the false keeps where arms collapse.

  Args:
    standing: Before the round.
    differences: Of the round's pairs, candidate minus incumbent, fractions.
    errors: Their standard errors by problems, see `paired.gain`.
    spread: `paired.pooled_spread` of all candidates in all rounds of the race
      so far, this round and those that were dropped included.
    alpha: See `alpha_of`; fixed before the round.
    last: Whether the candidate may run no further round; fixed before it.
    margin: 0 to show a gain; MARGIN to show that there is no loss of it.

  Raises:
    ValueError: If the candidate had its last round.
  """
  if not standing.e_value:
    raise ValueError(
        f'candidate {standing.index} has bet all in round {standing.rounds};'
        ' enter it again as a new candidate'
    )
  least = [max(error, spread) for error in errors]
  p = paired.p_value(differences, least, null=-margin)
  target = 1 / (alpha * standing.e_value)
  step = float(paired.bet(p, target, last=last))
  return dataclasses.replace(
      standing,
      rounds=standing.rounds + 1,
      # Rounding must not lose a target that was reached.
      e_value=1 / alpha if step >= target > 1 else standing.e_value * step,
      differences=(*standing.differences, *differences),
      errors=(*standing.errors, *errors),
  )


def is_hopeful(
    differences: Sequence[float], errors: Sequence[float], spread: float
) -> bool:
  """Return whether more pairs of a candidate are worth their price.

  They are where a gain of WORTH is not unlikely, see `paired.is_hopeful`. This
  can only lose a good change: what is dropped is never kept, so no e-value
  gains by it.

  Args:
    differences: Of all pairs of the candidate so far, fractions.
    errors: Their standard errors by problems.
    spread: `paired.pooled_spread` of the race so far.
  """
  if len(differences) < 2:
    return math.fsum(differences) > 0
  found = paired.gain(differences, [max(error, spread) for error in errors])
  return paired.is_hopeful(found.value, found.standard_error, WORTH)


def passed(
    standings: Mapping[str, Standing], alphas: Mapping[str, float]
) -> list[str]:
  """Return the candidates that reached their level, the best mean first.

  One of them is kept: the first that the perturbed gate lets through.
  """
  found = [
      name for name, s in standings.items() if s.e_value * alphas[name] >= 1
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
  """Return what becomes of each candidate of a round.

  Dropping needs no level: it can only lose a good change, never keep a bad one.

  Args:
    standings: After the round, by name.
    rounds: A candidate's at most.
    spread: `paired.pooled_spread` of the race so far.
    kept: The one that is kept. All others end with the incumbent that they were
      compared with; each may enter again, as a new candidate.
    waiting: Those that passed and whose perturbed gate is open: they are not
      dropped for being in the worse half.

  Returns:
    'keep', 'drop' or 'go_on' with the reason; if nobody is kept or goes on, the
    race ends with nothing.
  """
  if kept:
    return {
        name: Verdict('keep', f'e-value {s.e_value:.3g} reached its target')
        if name == kept
        else Verdict('drop', f'{kept} was kept')
        for name, s in standings.items()
    }
  # As many as the better half, one at least.
  places = -(-len(standings) // 2)
  order = sorted(
      standings,
      key=lambda name: (name not in waiting, -standings[name].mean, name),
  )
  found = {}
  for place, name in enumerate(order):
    s = standings[name]
    points = f'{100 * s.mean:+.1f} points after {s.rounds} rounds'
    if s.rounds >= rounds:
      verdict = Verdict('drop', f'{points}, the last; e-value {s.e_value:.3g}')
    elif name not in waiting and not is_hopeful(
        s.differences, s.errors, spread
    ):
      least = f'a gain of {100 * WORTH:.0f} points is unlikely'
      verdict = Verdict('drop', f'{points}: {least}')
    elif name not in waiting and place >= places:
      verdict = Verdict('drop', f'{points}: in the worse half')
    else:
      verdict = Verdict('go_on', f'{points}, e-value {s.e_value:.3g}')
    found[name] = verdict
  return found


@dataclasses.dataclass(frozen=True)
class Gate:
  """The answer of the perturbed problems about a candidate that passed."""

  status: Literal['holds', 'fails', 'open']
  perturbed: paired.Gain  # Its interval is two-sided at 1 - 2 GATE_LEVEL.
  reason: str


def gate(
    differences: Sequence[float],
    perturbed: Sequence[float],
    errors: Sequence[float],
    *,
    share: float = _SHARE,
) -> Gate:
  """Ask whether a gain also shows on perturbed problems, within its own error.

  holds: the gain there is above 0, at one-sided level GATE_LEVEL: a candidate
  whose gain is nothing but the wording passes with at most that probability.
  fails: it is below half of the gain on plain problems, at the same level;
  pairs share what training did, so the difference is taken pair by pair.
  open: the errors allow neither; score more pairs, or another round.

  Args:
    differences: On plain problems, of n pairs.
    perturbed: On perturbed problems, of the same pairs in the same order.
    errors: Standard errors of `perturbed` by problems.
    share: Part of the gain that has to show there.
  """
  found = paired.gain(perturbed, errors, level=1 - 2 * GATE_LEVEL)
  # Positive where too much of the gain is missing.
  missing = [share * d - p for d, p in zip(differences, perturbed, strict=True)]
  text = (
      f'perturbed {100 * found.value:+.1f} points'
      f' [{100 * found.low:+.1f}, {100 * found.high:+.1f}]'
  )
  none = [0.0] * len(missing)
  if paired.p_value(missing, none) <= GATE_LEVEL:
    part = 'half' if share == _SHARE else f'{share:g}'
    return Gate('fails', found, f'{text}: less than {part} of the gain')
  if found.low > 0:
    return Gate('holds', found, text)
  return Gate('open', found, f'{text}: may be nothing')


def horizon(
    differences: Sequence[float],
    errors: Sequence[float],
    *,
    looks: int,
    last: bool,
) -> Verdict:
  """Decide on a kept change at a longer horizon.

  The former incumbent goes on as a shadow beside the policy, and both are
  compared after each of `looks` rounds, up to 3 or 4 times a round's updates.

  Before the last look the change is taken back if it lost, at one-sided level
  HORIZON_LEVEL / looks. At the last it stays only if a loss of MARGIN is
  excluded at level HORIZON_LEVEL, so that a change which is MARGIN or more
  behind by then stays with at most that probability.

  Args:
    differences: New minus former, of the pairs of the latest look alone: those
      before were at a shorter horizon.
    errors: Their standard errors by problems.
    looks: In all.
    last: Whether this is the last one.

  Returns:
    'keep', 'drop' (the version is taken back) or 'go_on'.
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
  """Return whether a replay is sure of a loss, so that no arm is trained.

  Args:
    predicted: 95 % interval of the replayed effect, corrected by what replays
      of the class were worth (`calibration.corrected`); None: not known.
  """
  return predicted is not None and predicted[1] < 0
