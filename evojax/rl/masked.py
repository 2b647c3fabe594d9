"""Reductions over the entries that a mask keeps; an empty set gives 0.

Like the advantages, they return arrays of the library of their input: JAX
arrays (also traced ones) for JAX arrays, NumPy arrays for NumPy arrays.
"""

from types import ModuleType

import jax
from jax import numpy as jnp
from jaxtyping import Bool, Float
import numpy as np

AnyArray = jax.Array | np.ndarray
Axis = int | tuple[int, ...] | None


def array_namespace(x: AnyArray) -> ModuleType:
  """Return jax.numpy for a JAX array or tracer, else numpy."""
  return jnp if isinstance(x, jax.Array) else np


def masked_sum(
    x: Float[AnyArray, '*S'],
    mask: Bool[AnyArray, '*S'],
    axis: Axis = None,
    *,
    keepdims: bool = False,
) -> Float[AnyArray, '...']:
  """Sum x where mask is True; 0 where nothing is kept.

  Args:
    x: float [*S]. Masked entries may hold anything, NaN included.
    mask: bool [*S], the same shape.
    axis: Axes to reduce; None is all.
    keepdims: Keeps reduced axes with length 1.

  Returns:
    Array of x's dtype.
  """
  xp = array_namespace(x)
  # Selecting, not multiplying by the mask: 0 * NaN is NaN.
  kept = xp.where(mask, x, xp.zeros_like(x))
  # NumPy's full reductions are scalars, not arrays, without asarray.
  return xp.asarray(kept.sum(axis=axis, keepdims=keepdims))


def masked_mean(
    x: Float[AnyArray, '*S'],
    mask: Bool[AnyArray, '*S'],
    axis: Axis = None,
    *,
    keepdims: bool = False,
) -> Float[AnyArray, '...']:
  """Average x where mask is True; 0, with gradient 0, where nothing is kept.

  Args:
    x: float [*S]. Masked entries may hold anything, NaN included.
    mask: bool [*S], the same shape.
    axis: Axes to reduce; None is all.
    keepdims: Keeps reduced axes with length 1.

  Returns:
    Array of x's dtype.
  """
  xp = array_namespace(x)
  total = masked_sum(x, mask, axis, keepdims=keepdims)
  count = mask.sum(axis=axis, keepdims=keepdims)
  return xp.asarray(total / xp.maximum(count, 1).astype(total.dtype))
