"""Reward: named parts of stored evidence, weighted and added up.

Grading runs programs and is slow; reward is arithmetic on what was graded. It
is linear in its weights, and every part is logged beside the sum.
"""
from collections.abc import Callable, Mapping
import importlib
from typing import Any

from jaxtyping import Float
import numpy as np

Parts = Callable[[Any], Mapping[str, np.ndarray]]


class RewardError(ValueError):
  """A reward function or its weights do not fit the run."""


def load_parts(path: str, default: Parts) -> Parts:
  """The function at a dotted path, or the domain's own for ''.

  Raises:
    RewardError: If nothing callable is there.
  """
  if not path:
    return default
  module, _, name = path.rpartition('.')
  try:
    found = getattr(importlib.import_module(module), name, None)
  except (ImportError, ValueError) as error:
    raise RewardError(
        f'config.reward.parts={path!r} cannot be imported ({error}); it is the'
        ' dotted path of a function, and its module must be on PYTHONPATH'
    ) from error
  if not callable(found):
    raise RewardError(
        f'config.reward.parts={path!r}: {module} has no function {name}'
    )
  return found


def compute(
    parts: Parts, view: Any, weights: Mapping[str, float]
) -> tuple[Float[np.ndarray, 'P G'], dict[str, Float[np.ndarray, 'P G']]]:
  """Evaluates the weighted parts on a view.

  Args:
    parts: view -> {name: float [P, G]}.
    view: An evidence view; `view.valid` gives the shape.
    weights: Weight of each part; parts without one are not part of the reward.

  Returns:
    float32 [P, G] rewards, and the parts named in `weights`, before weighting.

  Raises:
    RewardError: If a weight names no part, or a part has another shape or is
      not finite.
  """
  shape = view.valid.shape
  found = parts(view)
  if not isinstance(found, Mapping):
    raise RewardError(
        f'the reward returned {type(found).__name__}, not a dict of name ->'
        f' float32 array of shape {shape}'
    )
  unknown = sorted(set(weights) - set(found))
  if unknown:
    raise RewardError(
        f'config.reward.weights names {unknown}; the reward has the parts'
        f' {sorted(found)}'
    )
  total, used = np.zeros(shape, np.float32), {}
  for name, weight in weights.items():
    part = np.asarray(found[name], np.float32)
    if part.shape != shape:
      raise RewardError(
          f'reward part {name!r} has shape {part.shape}; it must be [P, G] ='
          f' {shape}'
      )
    part = np.where(view.valid, part, 0)
    if not np.isfinite(part).all():
      raise RewardError(f'reward part {name!r} has values that are not finite')
    used[name] = part
    total += np.float32(weight) * part
  return total, used
