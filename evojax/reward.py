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
  if not module or not all(x.isidentifier() for x in path.split('.')):
    raise RewardError(
        f'config.reward.parts={path!r} is not the dotted path of a function,'
        ' such as my_package.my_module.parts'
    )
  try:
    found = getattr(importlib.import_module(module), name, None)
  except ImportError as error:
    raise RewardError(
        f'config.reward.parts={path!r} cannot be imported ({error}); its module'
        ' is looked up in PYTHONPATH and the working directory'
    ) from error
  if not callable(found):
    raise RewardError(
        f'config.reward.parts={path!r}: {module} has no function {name}; name'
        " one that it has, or leave the field empty for the domain's own"
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
    RewardError: If a weight names no part, a part has another shape, or a part
      or the sum is not finite.
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
    try:
      part = np.asarray(found[name], np.float32)
    except (TypeError, ValueError) as error:
      raise RewardError(
          f'reward part {name!r} is not an array of numbers: {error}'
      ) from error
    if part.shape != shape:
      raise RewardError(
          f'reward part {name!r} has shape {part.shape}; it must be [P, G] ='
          f' {shape}'
      )
    part = np.where(view.valid, part, 0)
    bad = np.argwhere(~np.isfinite(part)).tolist()
    if bad:
      raise RewardError(
          f'reward part {name!r} is {part[tuple(bad[0])]} at [p, g] = {bad[0]}'
          f' and {len(bad) - 1} other places; give every completion a finite'
          ' number'
      )
    used[name] = part
    with np.errstate(over='ignore', invalid='ignore'):
      total += np.float32(weight) * part
  if not np.isfinite(total).all():
    raise RewardError(
        f'the reward leaves the range of float32 with config.reward.weights ='
        f' {dict(weights)}; lower them'
    )
  return total, used
