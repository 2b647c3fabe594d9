"""Futility: is an arm that is half trained worth the rest of its updates?"""

import math
from typing import Literal

from jaxtyping import Float
import numpy as np
from scipy import special


def early(
    child_outcomes: Float[np.ndarray, 'T'],
    control_outcomes: Float[np.ndarray, 'C T'],
) -> Literal['futility', 'collapse'] | None:
  """Return why a child arm should stop at its half, or None to go on.

  collapse: over the last quarter of the updates the child solves less than half
  of what the controls solve, and less than each of them.

  futility: the upper 97.5 % bound of the child's mean outcome minus that of the
  controls is below 0. The difference is taken update by update, so that what
  all arms share cancels. Its error is that of one new arm among C,
  sigma^2 (1 + 1/C), where sigma is the spread of the controls' means, with
  C - 1 degrees of freedom. The spread of the differences over updates is only a
  lower bound of the error: the differences of one arm are correlated, and this
  spread alone would stop one in four children that do as well as the controls.

  Stopping is not a test and costs no error budget, since it can only discard.

  Args:
    child_outcomes: [T], T >= 1, mean outcome of the training rollouts of each
      update so far.
    control_outcomes: [C, T], C >= 2, of the control arms.

  Raises:
    ValueError: If there are fewer than 2 controls or the updates differ.
  """
  controls, updates = control_outcomes.shape
  if controls < 2 or child_outcomes.shape != (updates,) or not updates:
    raise ValueError(
        f'outcomes of the child {child_outcomes.shape} and of the controls'
        f' {control_outcomes.shape} must be [T] and [C, T] with T >= 1, C >= 2'
    )
  quarter = -(-updates // 4)
  late = child_outcomes[-quarter:].mean()
  control_late = control_outcomes[:, -quarter:].mean(axis=1)
  if late < control_late.mean() / 2 and late < control_late.min():
    return 'collapse'

  difference = child_outcomes - control_outcomes.mean(axis=0)
  square = control_outcomes.mean(axis=1).var(ddof=1) * (1 + 1 / controls)
  if updates > 1:
    square = max(square, difference.var(ddof=1) / updates)
  margin = special.stdtrit(controls - 1, 0.975) * math.sqrt(square)
  return 'futility' if difference.mean() + margin < 0 else None
