"""Sources of a gain: choosing better modes, or doing better within a mode.

A domain may classify completions into modes (for math: direct answer, steps,
...), an int32 evidence column `mode` with a code table. Reinforcement learning
then has two ways to gain: to shift to modes that score well, or to score better
within them.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from jaxtyping import Bool, Int
import numpy as np

from evojax.evidence import schema

COLUMN = 'mode'
# A mode seen less often cannot be an oracle: its accuracy is mostly luck (the
# standard error is 0.11 at 20), and the maximum over modes picks the luckiest.
MIN_ROLLOUTS = 20


@dataclasses.dataclass(frozen=True)
class Mode:
  """A mode before and after training, with its terms of the decomposition."""

  name: str
  share_before: float  # Share of all completions.
  share_after: float
  accuracy_before: float | None  # Share solved; None without completions.
  accuracy_after: float | None
  shift: float  # Its term of the mode shift.
  within: float  # Its term of the gain within a mode.


@dataclasses.dataclass(frozen=True)
class Decomposition:
  """The terms of a gain in the share solved: shift + within, up to rounding."""

  shift: float
  within: float
  modes: tuple[Mode, ...]  # The modes that occur, in the order of the codes.


@dataclasses.dataclass(frozen=True)
class Oracle:
  """The best mode of a policy."""

  mode: str
  accuracy: float
  rollouts: int  # Number of completions behind the accuracy.


def codes_of(columns: Sequence[schema.Column]) -> dict[str, int] | None:
  """Return the code table of the column `mode`; None if there is no column."""
  for column in columns:
    if column.name == COLUMN and not column.shape and not column.nullable:
      return dict(column.codes) if column.codes is not None else None
  return None


def _count(
    modes: np.ndarray, outcomes: np.ndarray, codes: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray]:
  """Return the numbers of all and of solved completions of each mode."""
  if modes.shape != outcomes.shape or not modes.size:
    raise ValueError(
        f'modes {modes.shape} and outcomes {outcomes.shape} must be of one'
        ' shape [P, k], with at least one completion'
    )
  values = np.asarray(list(codes.values()))
  is_mode = modes.reshape(-1, 1) == values  # [B, M]
  if not is_mode.any(axis=1).all():
    strange = modes.reshape(-1)[~is_mode.any(axis=1)][0]
    raise ValueError(f'mode code {strange} is not in the table {dict(codes)}')
  return is_mode.sum(axis=0), is_mode[outcomes.reshape(-1)].sum(axis=0)


def decompose(
    before_modes: Int[np.ndarray, 'P j'],
    before_outcomes: Bool[np.ndarray, 'P j'],
    after_modes: Int[np.ndarray, 'P k'],
    after_outcomes: Bool[np.ndarray, 'P k'],
    codes: Mapping[str, int],
) -> Decomposition:
  """Split a gain into mode shift and gain within a mode.

  With share s and accuracy a of mode m, before (0) and after (1),

    shift  = sum_m (s1_m - s0_m) (a0_m + a1_m) / 2
    within = sum_m (s0_m + s1_m) / 2 (a1_m - a0_m),

  the symmetric decomposition of rates (Kitagawa 1955, JASA 50(272); the
  two-fold Oaxaca-Blinder with equal weights). It is exact: shift + within is
  the gain. A mode that occurs on one side only has an accuracy there only; the
  other side takes that value, so that all its gain or loss counts as shift.

  The split is by completion, regardless of the problem: if a mode is used on
  easier problems than before, that appears as a gain within it.

  Args:
    before_modes: int [P, j], codes of the base policy's completions.
    before_outcomes: bool [P, j].
    after_modes: int [P, k], of the trained policy on the same problems.
    after_outcomes: bool [P, k].
    codes: Mode name -> code.

  Raises:
    ValueError: If shapes differ, a side is empty, or a code is not in the
      table.
  """
  count0, solved0 = _count(before_modes, before_outcomes, codes)
  count1, solved1 = _count(after_modes, after_outcomes, codes)
  share0, share1 = count0 / count0.sum(), count1 / count1.sum()
  # At least 1, so that a mode without completions has accuracy 0, not 0 / 0.
  accuracy0 = solved0 / np.maximum(count0, 1)
  accuracy1 = solved1 / np.maximum(count1, 1)
  accuracy0 = np.where(count0 > 0, accuracy0, accuracy1)
  accuracy1 = np.where(count1 > 0, accuracy1, accuracy0)
  shift = (share1 - share0) * (accuracy0 + accuracy1) / 2
  within = (share0 + share1) / 2 * (accuracy1 - accuracy0)
  return Decomposition(
      shift=float(shift.sum()),
      within=float(within.sum()),
      modes=tuple(
          Mode(
              name=name,
              share_before=float(share0[m]),
              share_after=float(share1[m]),
              accuracy_before=float(accuracy0[m]) if count0[m] else None,
              accuracy_after=float(accuracy1[m]) if count1[m] else None,
              shift=float(shift[m]),
              within=float(within[m]),
          )
          for m, name in enumerate(codes)
          if count0[m] or count1[m]
      ),
  )


def oracle(
    modes: Int[np.ndarray, 'P k'],
    outcomes: Bool[np.ndarray, 'P k'],
    codes: Mapping[str, int],
    *,
    min_rollouts: int = MIN_ROLLOUTS,
) -> Oracle | None:
  """Return the best single mode: the score that selection alone would reach.

  It is max_m accuracy_m of the base policy, over modes with at least
  `min_rollouts` completions. A policy that scores more has learned something
  within a mode. It is an estimate, as the problems on which the base policy
  chose the mode may differ from the others.

  Args:
    modes: int [P, k], of the base policy.
    outcomes: bool [P, k].
    codes: Mode name -> code.
    min_rollouts: Completions that a mode needs to be considered.

  Returns:
    None if no mode has enough completions.

  Raises:
    ValueError: If shapes differ or a code is not in the table.
  """
  count, solved = _count(modes, outcomes, codes)
  enough = count >= max(1, min_rollouts)
  if not enough.any():
    return None
  # -1 is below every accuracy, so a mode with too few is never the best.
  accuracy = np.where(enough, solved / np.maximum(count, 1), -1)
  best = int(accuracy.argmax())
  return Oracle(list(codes)[best], float(accuracy[best]), int(count[best]))
