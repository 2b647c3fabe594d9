"""Futility: whether a half-trained arm is worth the rest of its updates."""

import math
from typing import Literal

from jaxtyping import Float
import numpy as np

from evojax.stats import intervals


def early(
    candidate: Float[np.ndarray, 'T'],
    incumbents: Float[np.ndarray, 'C T'],
) -> Literal['futility', 'collapse'] | None:
  """Return why a candidate's arm should stop halfway; None to continue.

  collapse: over the last quarter of the updates the candidate solves less than
  half of what the incumbents solve, and less than each of them.

  futility: the upper 97.5 % bound of the candidate's mean outcome minus that of
  the incumbents is below 0. The difference is taken per update, so that common
  effects cancel. Its error is that of one new arm among C,
  sigma^2 (1 + 1/C), where sigma is the spread of the incumbents' means, with
  C - 1 degrees of freedom. The spread of the differences over updates is only a
  lower bound of the error: the differences of one arm are correlated, and this
  spread alone would stop one in four candidates that are equally good.

  Stopping is not a test and uses up no error budget, since it can only discard
  candidates.

  Args:
    candidate: [T], T >= 1, mean outcome of the training rollouts of each update
      so far.
    incumbents: [C, T], C >= 2, the same of the incumbent's arms.

  Raises:
    ValueError: If there are fewer than 2 incumbents or the updates differ.
  """
  count, updates = incumbents.shape
  if count < 2 or candidate.shape != (updates,) or not updates:
    raise ValueError(
        f'outcomes of the candidate {candidate.shape} and of the incumbents'
        f' {incumbents.shape} must be [T] and [C, T] with T >= 1, C >= 2'
    )
  quarter = -(-updates // 4)
  late = candidate[-quarter:].mean()
  incumbents_late = incumbents[:, -quarter:].mean(axis=1)
  if late < incumbents_late.mean() / 2 and late < incumbents_late.min():
    return 'collapse'

  difference = candidate - incumbents.mean(axis=0)
  square = incumbents.mean(axis=1).var(ddof=1) * (1 + 1 / count)
  if updates > 1:
    square = max(square, difference.var(ddof=1) / updates)
  margin = intervals.margin(math.sqrt(square), count - 1)
  return 'futility' if difference.mean() + margin < 0 else None
