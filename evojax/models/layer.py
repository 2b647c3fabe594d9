"""The shape of a decoder, and one of its layers.

Projections are stored fused, per key/value head, so that tensor parallelism
splits them along K and F without moving data. A layer has these parameters:

  attn_norm [D], qkv [D, K, R + 2, H], qkv_bias [K, R + 2, H], q_norm [H],
  k_norm [H], out [K, R, H, D], out_bias [D], attn_post_norm [D], mlp_norm [D],
  gate_up [D, 2, F], down [F, D], mlp_post_norm [D].

Query head n is (k, r) with n = k * R + r. Axis 2 of qkv holds R queries, then
the key and the value.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from evojax.models import rope as rope_lib
from evojax.runtime import sharding

ACTIVATIONS = {
    'silu': jax.nn.silu,
    'gelu_pytorch_tanh': functools.partial(jax.nn.gelu, approximate=True),
}


@dataclasses.dataclass(frozen=True)
class Kind:
  """The properties in which layers of one decoder may differ."""

  window: int  # Visible tokens, the token itself included; 0: all earlier.
  rope_theta: float | None  # None: queries and keys are not rotated.
  rope_scaling: rope_lib.Scaling | None


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """Shape of a decoder (from config.json) and options of its computation."""

  family: str  # Key of families.FAMILIES.
  vocab_size: int  # V, without padding.
  hidden_size: int  # D
  intermediate_size: int  # F
  num_layers: int
  num_heads: int  # N
  num_kv_heads: int  # K, divides N.
  head_dim: int  # H
  rope_theta: float = 10_000.0
  rope_scaling: rope_lib.Scaling | None = None
  sliding_window: int = 0  # Window of some layers, in tokens; see Kind.
  sliding: tuple[bool, ...] = ()  # Layers with the window; (): none.
  # The rope_theta of layers with windows, unscaled; None: as in other layers.
  sliding_rope_theta: float | None = None
  unrotated: tuple[bool, ...] = ()  # Layers without positions; (): none.
  rms_norm_eps: float = 1e-6
  tie_embeddings: bool = True
  qkv_bias: bool = False
  out_bias: bool = False
  qk_norm: bool = False
  post_norms: bool = False  # Also normalise after attention and MLP.
  norm_plus_one: bool = False  # Norms multiply by 1 + weight.
  scale_embeddings: bool = False  # Multiply embedded tokens by sqrt(D).
  activation: str = 'silu'  # Key of ACTIVATIONS.
  query_scalar: int | float | None = None  # Scores / sqrt of this; None: H.
  max_positions: int = 32_768
  compute_dtype: str = 'float32'
  remat: str = 'none'  # none | dots | full.
  scan_layers: bool = False
  lora_rank: int = 0
  lora_alpha: float = 16.0
  # Zero rows at the end of the vocabulary's tables, so that devices can share
  # the rows evenly. No token has such an id; their logits are -1e30.
  vocab_padding: int = 0

  @property
  def vocab_rows(self) -> int:
    """Number of rows of the vocabulary's tables, and of logits per token."""
    return self.vocab_size + self.vocab_padding

  @property
  def heads_per_kv(self) -> int:
    """R, query heads per key/value head."""
    return self.num_heads // self.num_kv_heads

  @property
  def score_scale(self) -> float:
    """Factor by which the scores of queries and keys are multiplied."""
    return (self.query_scalar or self.head_dim) ** -0.5

  @property
  def kinds(self) -> tuple[Kind, ...]:
    """The kind of each layer."""
    none = (False,) * self.num_layers
    kinds = []
    for slides, unrotated in zip(
        self.sliding or none, self.unrotated or none, strict=True
    ):
      rope = self.rope_theta, self.rope_scaling
      if slides and self.sliding_rope_theta:
        rope = self.sliding_rope_theta, None
      if unrotated:
        rope = None, None
      kinds.append(Kind(self.sliding_window if slides else 0, *rope))
    return tuple(kinds)


# Number of input axes of each projection.
_INPUTS = {'qkv': 1, 'out': 3, 'gate_up': 1, 'down': 1}
_WHOLE = (
    'final_norm', 'attn_norm', 'attn_post_norm', 'mlp_norm', 'mlp_post_norm',
    'q_norm', 'k_norm', 'out_bias',
)  # fmt: skip
# The axes of every parameter, without a layer axis. LoRA pairs: a [in, r], b
# [r, out...].
AXES = {
    'embed': ('vocab', None),
    'lm_head': ('vocab', None),
    **dict.fromkeys(_WHOLE, (None,)),
    'qkv': ('embed', 'kv_heads', None, None),
    'qkv_bias': ('kv_heads', None, None),
    'out': ('kv_heads', None, None, 'embed'),
    'gate_up': ('embed', None, 'mlp'),
    'down': ('mlp', 'embed'),
}
# Parameters that are not matrices, however many axes they have.
VECTORS = frozenset((*_WHOLE, 'qkv_bias'))
for _name, _n in _INPUTS.items():
  AXES[f'{_name}_lora_a'] = (*AXES[_name][:_n], None)
  AXES[f'{_name}_lora_b'] = (None, *AXES[_name][_n:])


def gathered(axes: tuple[str | None, ...]) -> tuple[str | None, ...]:
  """Return the axes of a weight in use, which fsdp no longer splits."""
  return tuple(None if axis == 'embed' else axis for axis in axes)


def norm_init(cfg: DecoderConfig) -> Callable[..., jax.Array]:
  """Return the initializer of a norm's scale."""
  init = nn.initializers
  return init.zeros if cfg.norm_plus_one else init.ones


def rms_norm(cfg: DecoderConfig, x: jax.Array, scale: jax.Array) -> jax.Array:
  """Return RMSNorm (arXiv:1910.07467) in x's dtype, statistics in float32."""
  x32 = x.astype(jnp.float32)
  x32 *= jax.lax.rsqrt(
      jnp.mean(x32 * x32, -1, keepdims=True) + cfg.rms_norm_eps
  )
  scale = scale.astype(jnp.float32)
  return (x32 * (1 + scale if cfg.norm_plus_one else scale)).astype(x.dtype)


def masked_softmax(
    cfg: DecoderConfig, scores: jax.Array, mask: jax.Array
) -> jax.Array:
  """Return the float32 softmax of the scaled scores over the last axis."""
  scores = scores.astype(jnp.float32) * cfg.score_scale
  # -inf would make a row without any visible key NaN.
  return jax.nn.softmax(jnp.where(mask, scores, -1e30), -1)


class Layer(nn.Module):
  """One pre-norm transformer layer over x [..., T, D]."""

  cfg: DecoderConfig

  @nn.compact
  def __call__(
      self,
      x: jax.Array,
      rope: tuple[jax.Array, jax.Array],
      attend: Callable[..., tuple[jax.Array, Any]],
  ) -> tuple[jax.Array, Any]:
    """Return the new x and the second result of `attend`.

    Args:
      x: [B, T, D], compute dtype.
      rope: cos and sin, [B or 1, T, H / 2].
      attend: (q [B, T, K, R, H], k [B, T, K, H], v [B, T, K, H]) ->
        (values [B, T, K, R, H], anything).
    """
    cfg = self.cfg
    d, f, h = cfg.hidden_size, cfg.intermediate_size, cfg.head_dim
    k, r = cfg.num_kv_heads, cfg.heads_per_kv
    hidden = self._norm('attn_norm', x, d)
    qkv = self._project('qkv', hidden, (d,), (k, r + 2, h))
    if cfg.qkv_bias:
      bias = self.param('qkv_bias', nn.initializers.zeros, (k, r + 2, h))
      qkv += bias.astype(x.dtype)
    # [B, T, K, R + 2, H]. A split rather than slices, because its gradient is a
    # single concatenation; the gradients of slices are each padded and summed.
    query, key, value = jnp.split(qkv, [r, r + 1], -2)
    key, value = key[..., 0, :], value[..., 0, :]
    if cfg.qk_norm:
      query = self._norm('q_norm', query, h)
      key = self._norm('k_norm', key, h)
    cos, sin = (t[..., None, :] for t in rope)  # [B, T, 1, H / 2]
    key = rope_lib.rotate(key, cos, sin)
    query = rope_lib.rotate(query, cos[..., None, :], sin[..., None, :])
    attended, kept = attend(query, key, value)
    attended = self._project('out', attended, (k, r, h), (d,))
    if cfg.out_bias:
      bias = self.param('out_bias', nn.initializers.zeros, (d,))
      attended += bias.astype(x.dtype)
    if cfg.post_norms:
      attended = self._norm('attn_post_norm', attended, d)
    x = sharding.constrain(x + attended, 'batch', None, None)
    hidden = self._norm('mlp_norm', x, d)
    gate_up = self._project('gate_up', hidden, (d,), (2, f))  # [B, T, 2, F]
    down = self._project('down', _gated(gate_up, cfg.activation), (f,), (d,))
    if cfg.post_norms:
      down = self._norm('mlp_post_norm', down, d)
    return sharding.constrain(x + down, 'batch', None, None), kept

  def _norm(self, name: str, x: jax.Array, width: int) -> jax.Array:
    scale = self.param(name, norm_init(self.cfg), (width,))
    return rms_norm(self.cfg, x, scale)

  def _project(
      self, name: str, x: jax.Array, ins: tuple[int, ...], outs: tuple[int, ...]
  ) -> jax.Array:
    """Return x [..., *ins] @ weight [*ins, *outs], with LoRA if any."""
    n, rank = len(ins), self.cfg.lora_rank
    init = _fan_in(ins)
    weight = self.param(name, init, (*ins, *outs)).astype(x.dtype)
    # The weight is gathered over fsdp here, in the compute dtype and for one
    # layer at a time, so that no device ever holds all weights.
    weight = sharding.constrain(weight, *gathered(AXES[name]))
    widens = n == 1 and np.prod(outs) > ins[0]
    y = _widen(x, weight) if widens else jnp.tensordot(x, weight, n)
    if rank:
      zeros = nn.initializers.zeros
      a = self.param(f'{name}_lora_a', init, (*ins, rank)).astype(x.dtype)
      b = self.param(f'{name}_lora_b', zeros, (rank, *outs)).astype(x.dtype)
      update = jnp.tensordot(jnp.tensordot(x, a, n), b, 1)
      y += update * (self.cfg.lora_alpha / rank)
    return y


# Recomputation is cheaper than storing the intermediate values.
@functools.partial(jax.checkpoint, static_argnums=1)
def _gated(gate_up: jax.Array, activation: str) -> jax.Array:
  """SwiGLU or GeGLU: activation(gate) * up, [..., F] from [..., 2, F]."""
  gate, up = jnp.split(gate_up, 2, -2)
  return (ACTIVATIONS[activation](gate) * up)[..., 0, :]


@jax.custom_vjp
def _widen(x: jax.Array, weight: jax.Array) -> jax.Array:
  """Return x [..., D] @ weight [D, *outs], for outs with more than D features.

  JAX computes the gradient of a weight as (dy^T x)^T, for which XLA on CPU
  copies the wide dy to transpose it. x^T dy copies the narrower x instead,
  which saves 5 % of an update.
  """
  return jnp.tensordot(x, weight, 1)


def _widen_backward(saved, dy):
  x, weight = saved
  outs = tuple(range(1 - weight.ndim, 0))  # Trailing axes of dy and weight.
  tokens = tuple(range(x.ndim - 1))  # Leading axes of dy and x.
  return (
      jnp.tensordot(dy, weight, (outs, outs)),
      jnp.tensordot(x, dy, (tokens, tokens)),
  )


_widen.defvjp(lambda *args: (_widen(*args), args), _widen_backward)


def _fan_in(ins: tuple[int, ...]) -> Callable[..., jax.Array]:
  return nn.initializers.normal(stddev=float(np.prod(ins)) ** -0.5)
