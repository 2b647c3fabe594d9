"""Evidence that is derived from other evidence, for the gate's comparisons.

Completions and groups come in another order, other groups change, and invalid
entries are filled with anything.
"""

from collections.abc import Collection, Mapping
import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Table:
  """Columns of P groups of G completions, with the attributes of a view."""

  valid: np.ndarray  # bool [P, G]
  arrays: Mapping[str, np.ndarray]  # [P, G] or [P, G, A]
  columns: tuple[str, ...]
  codes: Mapping[str, Mapping[str, int]]
  max_tokens: int

  def __getattr__(self, name: str) -> np.ndarray:
    try:
      return self.__dict__['arrays'][name]
    except KeyError:
      raise AttributeError(name) from None


def table(view: Any, names: Collection[str]) -> Table:
  """Return the named columns of a view."""
  return Table(
      np.array(view.valid),
      {name: np.asarray(getattr(view, name)) for name in names},
      tuple(view.columns),
      view.codes,
      int(view.max_tokens),
  )


def rows(t: Table, groups: np.ndarray, samples: np.ndarray) -> Table:
  """Return the completions at some indices, both int [P', G']."""
  return dataclasses.replace(
      t,
      valid=t.valid[groups, samples],
      arrays={n: a[groups, samples] for n, a in t.arrays.items()},
  )


def in_order(t: Table, order: np.ndarray) -> Table:
  """Return groups in another order, int [P]."""
  everyone = np.arange(t.valid.shape[1])[None]
  return rows(t, order[:, None], everyone)


def within(t: Table, order: np.ndarray) -> Table:
  """Return completions in another order within each group, int [P, G]."""
  return rows(t, np.arange(len(order))[:, None], order)


def extremes(t: Table, rng: np.random.Generator) -> np.ndarray:
  """Return the places of two extreme valid completions, int [2, 2].

  They lie at both ends of a random direction in the space of all columns, so
  that a group full of either moves any statistic over groups.
  """
  score = np.zeros(t.valid.shape)
  for array in t.arrays.values():
    if array.ndim == 2 and array.dtype.kind in 'biuf':
      x = np.nan_to_num(array.astype(np.float64))
      score += rng.choice((-1.0, 1.0)) * (x - x.mean()) / (x.std() + 1e-9)
  ends = [np.argmax(np.where(t.valid, s, -np.inf)) for s in (score, -score)]
  return np.array([np.unravel_index(end, score.shape) for end in ends])


def others(t: Table, stays: np.ndarray, places: np.ndarray) -> Table:
  """Replace the groups that do not stay.

  Args:
    t: Evidence.
    stays: bool [P]; True keeps a group.
    places: int, broadcast to [P, G, 2]: (group, sample) that each completion
      is a copy of.
  """
  shape = t.valid.shape
  drawn = np.moveaxis(np.broadcast_to(places, (*shape, 2)), -1, 0)
  changes = ~stays[:, None] & t.valid
  return rows(t, *np.where(changes, drawn, np.indices(shape)))


def padded(t: Table, places: np.ndarray) -> Table:
  """Add an invalid group and an invalid completion to each group.

  Args:
    t: Evidence.
    places: int, broadcast to [P + 1, G + 1, 2]: (group, sample) whose values
      fill every invalid entry.
  """
  p, g = t.valid.shape
  groups, samples = np.indices((p + 1, g + 1))
  wider = rows(t, groups % p, samples % g)
  valid = wider.valid & (groups < p) & (samples < g)
  places = np.broadcast_to(places, (p + 1, g + 1, 2))
  drawn = rows(t, places[..., 0], places[..., 1])
  arrays = {}
  for name, array in wider.arrays.items():
    mask = np.expand_dims(valid, tuple(range(2, array.ndim)))
    arrays[name] = np.where(mask, array, drawn.arrays[name])
  return dataclasses.replace(wider, valid=valid, arrays=arrays)


def anywhere(
    t: Table, shape: tuple[int, int], rng: np.random.Generator
) -> np.ndarray:
  """Sample places of valid completions, int [*shape, 2]."""
  there = np.argwhere(t.valid if t.valid.any() else np.ones_like(t.valid))
  return there[rng.integers(0, len(there), shape)]


def resized(
    t: Table, prompts: int, group_size: int, rng: np.random.Generator
) -> Table:
  """Return groups of completions that are sampled from all valid ones."""
  drawn = anywhere(t, (prompts, group_size), rng)
  sized = rows(t, drawn[..., 0], drawn[..., 1])
  return dataclasses.replace(sized, valid=np.ones_like(sized.valid))


def scrambled(
    t: Table, prompts: int, group_size: int, rng: np.random.Generator
) -> Table:
  """Sample every column independently; a fifth of the entries is invalid.

  Columns that are constant in the evidence vary here, too.
  """
  sized = resized(t, prompts, group_size, rng)
  arrays = {n: _drawn(n, array, t, rng) for n, array in sized.arrays.items()}
  valid = rng.random(sized.valid.shape) < 0.8
  valid[:, :2] = True
  return dataclasses.replace(sized, valid=valid, arrays=arrays)


def _drawn(
    name: str, array: np.ndarray, t: Table, rng: np.random.Generator
) -> np.ndarray:
  """Sample values of a column's kind and range, and some beyond it."""
  if name in t.codes:
    codes = np.array(sorted(t.codes[name].values()) or [0], array.dtype)
    drawn = codes[rng.integers(0, len(codes), array.shape)]
    return drawn if array.ndim == 2 else np.where(array < 0, array, drawn)
  kind = array.dtype.kind
  if kind == 'b':
    # The share of True goes from all of a group to none of it.
    share = rng.permutation(np.linspace(0, 1, len(array)))
    share = share.reshape(-1, *(1,) * (array.ndim - 1))
    return rng.random(array.shape) < share
  if kind == 'f':
    finite = array[np.isfinite(array)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    if low == high:
      low, high = low - 0.5, high + 0.5
    return rng.uniform(low, high, array.shape).astype(array.dtype)
  if kind in 'iu':
    if name == 'n_turns':  # It decides the shape of what `weight` returns.
      return array
    most = t.max_tokens if name == 'n_tokens' else 8
    high = max(int(array.max(initial=0)), 8, most)
    drawn = rng.integers(1, high + 1, array.shape).astype(array.dtype)
    return drawn if array.ndim == 2 else np.where(array < 0, array, drawn)
  texts = array.ravel()
  return texts[rng.permutation(texts.size)].reshape(array.shape)


def tied(t: Table, rng: np.random.Generator) -> Table:
  """Sample every column from two of its values, so that many are equal."""
  there = np.argwhere(t.valid)

  def sample():
    two = there[rng.integers(0, len(there), 2)]
    drawn = two[rng.integers(0, 2, t.valid.shape)]
    return drawn[..., 0], drawn[..., 1]

  # Columns with a value per turn must agree with the number of turns.
  episode = sample()
  arrays = {
      name: array[episode if array.ndim > 2 or name == 'n_turns' else sample()]
      for name, array in t.arrays.items()
  }
  return dataclasses.replace(t, arrays=arrays)


def collapsed(t: Table) -> Table:
  """Replace every completion of a group by its first valid one."""
  first = np.argmax(t.valid, axis=1)[:, None]
  return within(t, np.broadcast_to(first, t.valid.shape))


def alone(t: Table, count: int) -> Table:
  """Keep at most `count` valid completions in each group."""
  few = t.valid & (np.cumsum(t.valid, 1) <= count)
  return dataclasses.replace(t, valid=few)
