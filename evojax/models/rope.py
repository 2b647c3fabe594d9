"""Rotary position embeddings (Su et al. 2021, arXiv:2104.09864).

SCALINGS holds the methods that extend them to longer texts. Their fields are
named as in config.json; fields without a default are required.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Linear:
  """All positions are divided by a factor (transformers `linear`)."""

  factor: float

  def frequencies(self, freq: np.ndarray, theta: float) -> np.ndarray:
    """Return the scaled freq [H / 2], in radians per position."""
    del theta
    return freq / self.factor


@dataclasses.dataclass(frozen=True)
class Dynamic:
  """NTK scaling that grows with the length of the text (`dynamic`).

  Up to max_position_embeddings it changes nothing. Beyond that, transformers
  rotates new keys and queries with frequencies for the longest text so far, but
  does not update the keys in its cache. The log-prob of a token then depends on
  how it was computed, so that a sampler and a trainer cannot agree.
  `policy.open_policy` refuses longer texts, as for every model. SGLang and vLLM
  scale short texts, too, so their log-probs differ.
  """

  factor: float

  def frequencies(self, freq: np.ndarray, theta: float) -> np.ndarray:
    """Return freq [H / 2], radians per position."""
    del theta
    return freq


@dataclasses.dataclass(frozen=True)
class Llama3:
  """Scales low frequencies but not high ones (transformers `llama3`)."""

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_max_position_embeddings: int | float

  def frequencies(self, freq: np.ndarray, theta: float) -> np.ndarray:
    """Return the scaled freq [H / 2], in radians per position."""
    del theta
    wavelength = 2 * np.pi / freq
    ratio = self.original_max_position_embeddings / wavelength
    smooth = (ratio - self.low_freq_factor) / (
        self.high_freq_factor - self.low_freq_factor
    )
    # 0: a long wavelength, scaled by the factor; 1: a short one, unchanged.
    smooth = np.clip(smooth, 0, 1)
    slowed = (1 - smooth) * freq / self.factor
    return slowed + smooth * freq


@dataclasses.dataclass(frozen=True)
class Yarn:
  """YaRN (Peng et al. 2023, arXiv:2309.00071; transformers `yarn`)."""

  factor: float
  original_max_position_embeddings: int | float
  attention_factor: float | None = None
  beta_fast: float | None = None  # Turns of the shortest wave that is scaled.
  beta_slow: float | None = None  # Turns of the longest partly scaled wave.
  mscale: float | None = None
  mscale_all_dim: float | None = None
  truncate: bool = True  # Round the bounds to whole frequencies.

  def frequencies(self, freq: np.ndarray, theta: float) -> np.ndarray:
    """Return the scaled freq [H / 2], in radians per position."""
    dim = 2 * len(freq)

    def bound(turns):
      """Return the index of the frequency with these turns before scaling."""
      wavelength = self.original_max_position_embeddings / turns
      return dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))

    low, high = bound(self.beta_fast or 32), bound(self.beta_slow or 1)
    if self.truncate:
      low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    # transformers uses the same difference when the bounds are equal.
    ramp = np.arange(len(freq), dtype=np.float32) - low
    slow = np.clip(ramp / (high - low or 0.001), 0, 1)
    return freq / self.factor * slow + freq * (1 - slow)

  @property
  def attention(self) -> float:
    """Factor of the queries, and also of the keys."""
    if self.attention_factor is not None:
      return self.attention_factor
    if self.mscale and self.mscale_all_dim:
      return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
    return self._magnitude()

  @property
  def attn_factor(self) -> float:
    """The field of SGLang and vLLM; it multiplies the default `attention`.

    They read neither `attention_factor` nor, for this type, `mscale`;
    transformers does not read `attn_factor`. A file with both fields has the
    same meaning everywhere.
    """
    return self.attention / self._magnitude()

  def _magnitude(self, scale: float = 1.0) -> float:
    return max(1.0, 0.1 * scale * math.log(self.factor) + 1.0)


Scaling = Linear | Dynamic | Llama3 | Yarn
SCALINGS = {
    'linear': Linear,
    'dynamic': Dynamic,
    'llama3': Llama3,
    'yarn': Yarn,
}


def frequencies(
    head_dim: int, theta: float, scaling: Scaling | None
) -> np.ndarray:
  """Return float32 [H / 2], radians per position."""
  freq = 1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
  if scaling is not None:
    freq = scaling.frequencies(freq, theta)
  return freq.astype(np.float32)


def table(
    positions: jax.Array,
    head_dim: int,
    theta: float | None,
    scaling: Scaling | None,
) -> tuple[jax.Array, jax.Array]:
  """Return (cos, sin), each [..., T, H / 2] for positions [..., T].

  If theta is None, nothing is rotated: cos is 1 and sin 0.
  """
  if theta is None:
    shape = (*positions.shape, head_dim // 2)
    return jnp.ones(shape), jnp.zeros(shape)
  angles = positions[..., None].astype(jnp.float32)
  angles = angles * frequencies(head_dim, theta, scaling)
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  if isinstance(scaling, Yarn):
    cos, sin = cos * scaling.attention, sin * scaling.attention
  return cos, sin


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
  """Return x [..., H], rotated; cos and sin broadcast to [..., H / 2]."""
  first, second = jnp.split(x, 2, -1)
  cos, sin = cos.astype(x.dtype), sin.astype(x.dtype)
  return jnp.concatenate(
      [first * cos - second * sin, second * cos + first * sin], -1
  )
