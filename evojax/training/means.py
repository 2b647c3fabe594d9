"""Means of training states, computed on the devices of a run."""

import functools
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(jax.jit, donate_argnums=0)
def add(total: Any, state: Any, weight: jax.Array) -> Any:
  """Return total + weight * state in float32; leave integers unchanged.

  Step counts are equal in all states; averaging could only introduce rounding.

  Args:
    total: The sum so far, whose memory the result takes; None for the first
      state.
    state: A tree of arrays, with the structure of the total.
    weight: A float32 number.
  """
  if total is None:
    total = jax.tree.map(jnp.zeros_like, state)

  def added(before, x):
    if not jnp.issubdtype(x.dtype, jnp.floating):
      return x
    return before.astype(jnp.float32) + weight * x.astype(jnp.float32)

  return jax.tree.map(added, total, state)


@jax.jit
def outer_step(start: Any, mean: Any, rate: jax.Array) -> Any:
  """Return start + rate * (mean - start) in float32.

  Args:
    start: A tree of parameters.
    mean: A tree with the same structure.
    rate: A float32 number.
  """

  def of(x, towards):
    x = x.astype(jnp.float32)
    return x + rate * (towards - x)

  return jax.tree.map(of, start, mean)
