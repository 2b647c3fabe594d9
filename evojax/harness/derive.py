"""Evidence derived from other evidence, for the gate's comparisons.

Completions and groups are reordered, other groups are changed, invalid entries
are filled with arbitrary values, and values are set to rare extremes.
"""

from collections.abc import Collection, Mapping
import dataclasses
from typing import Any

import numpy as np

_UNIFORM = 12  # Most tables of `uniform`; only long code tables need more.
# Magnitudes of floats that may occur in training: zero, denormal, tiny.
_RARE = (0.0, -0.0, 1e-42, 1e-12, 1e-6)
# Log-probs from usual ones to one that no sampler produces.
_LOGPROBS = (-0.1, -3.0, -8.0, -15.0, -30.0, -50.0)
# These do not occur in training, but a function must still end on them.
_FAR = (0.0, 100.0, 1e4, 1e30, np.inf, np.nan)
_FAR_STEP = 10**5  # Last step of a long run.
_TIMES = ('step', 'policy_version')  # Columns that count steps.


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
  """Return the completions at the given indices, both int [P', G']."""
  return dataclasses.replace(
      t,
      valid=t.valid[groups, samples],
      arrays={n: a[groups, samples] for n, a in t.arrays.items()},
  )


def in_order(t: Table, order: np.ndarray) -> Table:
  """Return the groups reordered by int [P]."""
  everyone = np.arange(t.valid.shape[1])[None]
  return rows(t, order[:, None], everyone)


def within(t: Table, order: np.ndarray) -> Table:
  """Return the completions of each group reordered by int [P, G]."""
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
  """Replace the groups that are not marked to stay.

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
  """Return groups of completions sampled from all valid ones."""
  drawn = anywhere(t, (prompts, group_size), rng)
  sized = rows(t, drawn[..., 0], drawn[..., 1])
  return dataclasses.replace(sized, valid=np.ones_like(sized.valid))


def scrambled(
    t: Table,
    prompts: int,
    group_size: int,
    rng: np.random.Generator,
    steps: int = 8,
) -> Table:
  """Sample every column independently; a fifth of the entries is invalid.

  The first two completions of each group are always valid. Columns that are
  constant in the evidence vary here, too. Floats lie in the range of their
  column, and some groups also have 0 and sizes from 1e-12 to 100.

  Args:
    t: Evidence.
    prompts: Number of groups in the result.
    group_size: Completions per group.
    rng: Random number generator.
    steps: Maximum of the columns that count steps.
  """
  sized = resized(t, prompts, group_size, rng)
  arrays = {
      n: _drawn(n, array, t, rng, steps) for n, array in sized.arrays.items()
  }
  valid = rng.random(sized.valid.shape) < 0.8
  valid[:, :2] = True
  return dataclasses.replace(sized, valid=valid, arrays=arrays)


def _drawn(
    name: str,
    array: np.ndarray,
    t: Table,
    rng: np.random.Generator,
    steps: int,
) -> np.ndarray:
  """Sample values of a column's kind and range, and some beyond it."""
  if name in t.codes:
    codes = np.array(sorted(t.codes[name].values()) or [0], array.dtype)
    drawn = codes[rng.integers(0, len(codes), array.shape)]
    return drawn if array.ndim == 2 else np.where(array < 0, array, drawn)
  kind = array.dtype.kind
  if kind == 'b':
    # With enough groups, the share of True ranges from 1 to 0, so that some
    # groups have only True and some only False.
    p = len(array)
    share = rng.permutation(np.linspace(0, 1, p) if p > 4 else np.full(p, 0.5))
    share = share.reshape(-1, *(1,) * (array.ndim - 1))
    return rng.random(array.shape) < share
  if kind == 'f':
    low, high = span = _range(t.arrays[name])
    if low == high:
      low, high = low - 0.5, high + 0.5
    drawn = low + (high - low) * _shares(array.shape, rng)
    far = _signed(10 ** rng.uniform(-12, 2, array.shape), span, rng)
    far[rng.random(array.shape) < 0.2] = 0.0
    # Some groups have no such extremes, so that their maximum differs.
    share = rng.permutation(np.linspace(0, 0.6, len(array)).clip(0.3) - 0.3)
    share = share.reshape(-1, *(1,) * (array.ndim - 1))
    drawn = np.where(rng.random(array.shape) < share, far, drawn)
    return drawn.astype(array.dtype)
  if kind in 'iu':
    if name == 'n_turns':  # It determines the shape of `weight`'s answer.
      return array
    most = {'n_tokens': t.max_tokens, **dict.fromkeys(_TIMES, steps)}
    high = max(int(array.max(initial=0)), 8, most.get(name, 8))
    drawn = 1 + np.floor(high * _shares(array.shape, rng))
    drawn = drawn.clip(1, high).astype(array.dtype)
    return drawn if array.ndim == 2 else np.where(array < 0, array, drawn)
  texts = array.ravel()
  return texts[rng.permutation(texts.size)].reshape(array.shape)


def _shares(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
  """Sample shares of a range, in [0, 1).

  With enough groups, each covers a part of the range, of any width and at
  either end, so that a filter by a group's maximum or minimum keeps some
  groups.
  """
  p, drawn = shape[0], rng.random(shape)
  if p <= 4:
    return drawn
  width, order = np.linspace(0.2, 1, p), rng.permutation(p)
  start = np.choose(order % 3, [0, 1, rng.random(p)])
  width, start = (
      x.reshape(-1, *(1,) * (drawn.ndim - 1)) for x in (width[order], start)
  )
  return (1 - width) * start + width * drawn


def _range(array: np.ndarray) -> tuple[float, float]:
  finite = array[np.isfinite(array)]
  if not finite.size:
    return 0.0, 0.0
  return float(finite.min()), float(finite.max())


def _signed(
    size: np.ndarray, span: tuple[float, float], rng: np.random.Generator
) -> np.ndarray:
  """Return magnitudes with the signs that a column has; both if it has both."""
  low, high = span
  if low >= 0 and high > 0:
    return size
  if high <= 0 and low < 0:
    return -size
  return np.where(rng.random(size.shape) < 0.5, size, -size)


def rare(t: Table, rng: np.random.Generator) -> Table:
  """Return groups with values at the edges of what may occur in training.

  Some groups are constant in a column, and some have one valid completion or
  none.
  """
  sized = resized(t, 12, 3, rng)
  arrays = dict(sized.arrays)
  for name, array in arrays.items():
    if (edges := _edges(name, t)) is None:
      continue
    each = rng.integers(0, len(edges), array.shape)
    alike = rng.random(len(array)) < 0.5
    each[alike] = each[alike, :1]
    arrays[name] = edges[each]
  valid = np.ones_like(sized.valid)
  count = np.array([3] * 9 + [1, 1, 0])
  valid = np.arange(3) < rng.permutation(count)[:, None]
  return dataclasses.replace(sized, valid=valid, arrays=arrays)


def uniform(t: Table, rng: np.random.Generator) -> list[Table]:
  """Return tables in which each column has one value for all completions.

  Together they cover every edge of each column, up to _UNIFORM: all are solved,
  none is, each code once.
  """
  sized = resized(t, 2, 3, rng)
  edges = {n: _edges(n, t) for n in sized.arrays}
  edges = {n: values for n, values in edges.items() if values is not None}
  longest = max(map(len, edges.values()), default=0)
  count = min(_UNIFORM, longest)
  orders = {
      n: rng.permutation(np.resize(rng.permutation(len(values)), count))
      for n, values in edges.items()
  }
  return [
      dataclasses.replace(
          sized,
          arrays=sized.arrays
          | {
              n: np.full(sized.valid.shape, values[orders[n][i]], values.dtype)
              for n, values in edges.items()
          },
      )
      for i in range(count)
  ]


def far(t: Table, rng: np.random.Generator) -> Table:
  """Return values beyond any training; a function must end on them, too."""
  sized = resized(t, 3, 4, rng)
  arrays = dict(sized.arrays)
  for name, array in arrays.items():
    if array.ndim > 2 or name in t.codes or name == 'n_turns':
      continue
    if array.dtype.kind == 'f':
      size = rng.choice(_FAR, array.shape)
      with np.errstate(over='ignore'):
        size = _signed(size, _range(t.arrays[name]), rng)
        arrays[name] = size.astype(array.dtype)
    elif array.dtype.kind in 'iu':
      high = _FAR_STEP if name in _TIMES else 10 * max(8, int(array.max()))
      arrays[name] = rng.choice([0, high], array.shape).astype(array.dtype)
  return dataclasses.replace(sized, arrays=arrays)


def _edges(name: str, t: Table) -> np.ndarray | None:
  """Return the extreme values of a column; None if it stays unchanged."""
  array = t.arrays[name]
  if array.ndim > 2 or name == 'n_turns':
    return None
  kind, dtype = array.dtype.kind, array.dtype
  if name in t.codes:
    return np.array(sorted(t.codes[name].values()) or [0], dtype)
  if kind == 'b':
    return np.array([False, True])
  if name == 'n_tokens':
    return np.array([1, t.max_tokens], dtype)
  if kind == 'f':
    low, high = _range(array)
    signs = [s for s, there in ((1, high > 0), (-1, low < 0)) if there] or [1]
    ends = _LOGPROBS if high <= 0 and low < 0 else (low, high)
    tiny = [sign * size for sign in signs for size in _RARE]
    return np.array([*tiny, *ends], dtype)
  if name == 'completion':
    return np.array(['', str(array.ravel()[0])])
  return None


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
  """Replace every completion of a group by the group's first valid one."""
  first = np.argmax(t.valid, axis=1)[:, None]
  return within(t, np.broadcast_to(first, t.valid.shape))


def fewer(t: Table, groups: int) -> Table:
  """Return the first groups."""
  return in_order(t, np.arange(groups))


def copies(t: Table, axis: int, few: int) -> tuple[Table, Table]:
  """Return a part of the evidence, and copies of it at the full size.

  Args:
    t: Evidence.
    axis: 0 takes groups; 1 takes completions of each group and marks the others
      as not valid, so that the shape stays.
    few: Number of groups or completions to take.
  """
  count = t.valid.shape[axis]
  order = np.arange(count) % few
  if axis == 0:
    return fewer(t, few), in_order(t, order)
  valid = t.valid & (np.arange(count) < few)
  many = within(t, np.broadcast_to(order, t.valid.shape))
  return dataclasses.replace(t, valid=valid), many


def alone(t: Table, count: int) -> Table:
  """Keep at most `count` valid completions in each group."""
  few = t.valid & (np.cumsum(t.valid, 1) <= count)
  return dataclasses.replace(t, valid=few)
