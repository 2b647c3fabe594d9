"""Rotary position embeddings (Su et al. 2021, arXiv:2104.09864)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Scaling:
  """Llama-3 frequency scaling (transformers `rope_type: llama3`)."""

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_max_positions: int | float


def frequencies(
    head_dim: int, theta: float, scaling: Scaling | None
) -> np.ndarray:
  """Return float32 [H / 2], radians per position."""
  freq = 1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
  if scaling is None:
    return freq.astype(np.float32)
  wavelength = 2 * np.pi / freq
  ratio = scaling.original_max_positions / wavelength
  smooth = (ratio - scaling.low_freq_factor) / (
      scaling.high_freq_factor - scaling.low_freq_factor
  )
  # 0: a long wave, slowed by the factor; 1: a short one, unchanged.
  smooth = np.clip(smooth, 0, 1)
  slowed = (1 - smooth) * freq / scaling.factor
  return (slowed + smooth * freq).astype(np.float32)


def table(
    positions: jax.Array, head_dim: int, theta: float, scaling: Scaling | None
) -> tuple[jax.Array, jax.Array]:
  """Return (cos, sin), each [..., T, H / 2] for positions [..., T]."""
  angles = positions[..., None].astype(jnp.float32)
  angles = angles * frequencies(head_dim, theta, scaling)
  return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
  """Rotate x [..., H]; cos and sin broadcast to [..., H / 2]."""
  first, second = jnp.split(x, 2, -1)
  cos, sin = cos.astype(x.dtype), sin.astype(x.dtype)
  return jnp.concatenate(
      [first * cos - second * sin, second * cos + first * sin], -1
  )
