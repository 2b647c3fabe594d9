"""Decoders of the Qwen2, Qwen3 and Llama families.

One Flax layer serves four uses, which differ only in where keys and values
come from. The layer takes that as a function (`attend`): the whole sequence
(`forward`), a prompt that a group of completions shares (`forward_shared`), a
chunk of tokens and a cache (`extend`), or one token and a cache (`decode`).
Everything exported is a pure function over plain dicts.

Projections are stored fused, per key/value head, so that tensor parallelism
splits them along K and F without moving data:

  embed [V, D], layers: attn_norm [D], qkv [D, K, R + 2, H], qkv_bias
  [K, R + 2, H], q_norm [H], k_norm [H], out [K, R, H, D], mlp_norm [D],
  gate_up [D, 2, F], down [F, D]; final_norm [D], lm_head [V, D].

Query head n is (k, r) with n = k * R + r; axis 2 of qkv holds R queries, the
key and the value.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from evojax.models import rope as rope_lib
from evojax.runtime import sharding

Params = dict[str, Any]

REMAT_POLICIES = {
    'full': jax.checkpoint_policies.nothing_saveable,
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """Shape of a decoder (from config.json) and how it is computed."""

  family: str  # qwen2 | qwen3 | llama.
  vocab_size: int  # V
  hidden_size: int  # D
  intermediate_size: int  # F
  num_layers: int
  num_heads: int  # N
  num_kv_heads: int  # K, divides N.
  head_dim: int  # H
  rope_theta: float = 10_000.0
  rope_scaling: rope_lib.Scaling | None = None
  rms_norm_eps: float = 1e-6
  tie_embeddings: bool = True
  qkv_bias: bool = False  # Qwen2.
  qk_norm: bool = False  # Qwen3.
  max_positions: int = 32_768
  compute_dtype: str = 'float32'
  remat: str = 'none'  # none | dots | full.
  scan_layers: bool = False
  lora_rank: int = 0
  lora_alpha: float = 16.0

  @property
  def heads_per_kv(self) -> int:
    """R, query heads per key/value head."""
    return self.num_heads // self.num_kv_heads


# Number of input axes of each projection.
_INPUTS = {'qkv': 1, 'out': 3, 'gate_up': 1, 'down': 1}
_NORMS = ('final_norm', 'attn_norm', 'mlp_norm', 'q_norm', 'k_norm')
# Trailing axes of every parameter. LoRA pairs: a [in, r], b [r, out...].
_AXES = {
    'embed': ('vocab', None),
    'lm_head': ('vocab', None),
    **dict.fromkeys(_NORMS, (None,)),
    'qkv': ('embed', 'kv_heads', None, None),
    'qkv_bias': ('kv_heads', None, None),
    'out': ('kv_heads', None, None, 'embed'),
    'gate_up': ('embed', None, 'mlp'),
    'down': ('mlp', 'embed'),
}
for _name, _n in _INPUTS.items():
  _AXES[f'{_name}_lora_a'] = (*_AXES[_name][:_n], None)
  _AXES[f'{_name}_lora_b'] = (None, *_AXES[_name][_n:])


def _gathered(axes: tuple[str | None, ...]) -> tuple[str | None, ...]:
  """Return the axes of a weight in use, when fsdp no longer splits it."""
  return tuple(None if axis == 'embed' else axis for axis in axes)


def _rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
  """RMSNorm (arXiv:1910.07467) with float32 statistics, in the dtype of x."""
  x32 = x.astype(jnp.float32)
  x32 *= jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + eps)
  return (x32 * scale.astype(jnp.float32)).astype(x.dtype)


def _rope_table(cfg, positions):
  """Return (cos, sin), each [..., T, H / 2] for positions [..., T]."""
  return rope_lib.table(
      positions, cfg.head_dim, cfg.rope_theta, cfg.rope_scaling
  )


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
    """Return x and what `attend` keeps.

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
    # [B, T, K, R + 2, H]. Split, not sliced: the gradient of a split is one
    # concatenation, that of slices pads each and adds them up.
    query, key, value = jnp.split(qkv, [r, r + 1], -2)
    key, value = key[..., 0, :], value[..., 0, :]
    if cfg.qk_norm:
      query = self._norm('q_norm', query, h)
      key = self._norm('k_norm', key, h)
    cos, sin = (t[..., None, :] for t in rope)  # [B, T, 1, H / 2]
    key = rope_lib.rotate(key, cos, sin)
    query = rope_lib.rotate(query, cos[..., None, :], sin[..., None, :])
    attended, kept = attend(query, key, value)
    x = x + self._project('out', attended, (k, r, h), (d,))
    x = sharding.constrain(x, 'batch', None, None)
    hidden = self._norm('mlp_norm', x, d)
    gate_up = self._project('gate_up', hidden, (d,), (2, f))  # [B, T, 2, F]
    x = x + self._project('down', _gated(gate_up), (f,), (d,))
    return sharding.constrain(x, 'batch', None, None), kept

  def _norm(self, name: str, x: jax.Array, width: int) -> jax.Array:
    scale = self.param(name, nn.initializers.ones, (width,))
    return _rms_norm(x, scale, self.cfg.rms_norm_eps)

  def _project(
      self, name: str, x: jax.Array, ins: tuple[int, ...], outs: tuple[int, ...]
  ) -> jax.Array:
    """x [..., *ins] @ weight [*ins, *outs], plus the LoRA pair if any."""
    n, rank = len(ins), self.cfg.lora_rank
    init = _fan_in(ins)
    weight = self.param(name, init, (*ins, *outs)).astype(x.dtype)
    # The weight is gathered over fsdp here, in the compute dtype and one layer
    # at a time, so that no device holds all of them whole.
    weight = sharding.constrain(weight, *_gathered(_AXES[name]))
    widens = n == 1 and np.prod(outs) > ins[0]
    y = _widen(x, weight) if widens else jnp.tensordot(x, weight, n)
    if rank:
      zeros = nn.initializers.zeros
      a = self.param(f'{name}_lora_a', init, (*ins, rank)).astype(x.dtype)
      b = self.param(f'{name}_lora_b', zeros, (rank, *outs)).astype(x.dtype)
      update = jnp.tensordot(jnp.tensordot(x, a, n), b, 1)
      y += update * (self.cfg.lora_alpha / rank)
    return y


@jax.checkpoint  # Recomputing is cheaper than storing the intermediates.
def _gated(gate_up: jax.Array) -> jax.Array:
  """SwiGLU: silu(gate) * up, [..., F] from [..., 2, F]."""
  gate, up = jnp.split(gate_up, 2, -2)
  return (jax.nn.silu(gate) * up)[..., 0, :]


@jax.custom_vjp
def _widen(x: jax.Array, weight: jax.Array) -> jax.Array:
  """x [..., D] @ weight [D, *outs], where outs have more features than D.

  JAX computes the gradient of a weight as (dy^T x)^T, for which XLA on CPU
  copies the wide dy to its transpose. x^T dy copies the narrower x instead,
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


def init(cfg: DecoderConfig, key: jax.Array) -> Params:
  """Return random float32 parameters; `shapes` has their shapes only."""
  embed_key, head_key, *layer_keys = jax.random.split(key, cfg.num_layers + 2)
  shape = (1, 1, cfg.num_kv_heads, cfg.heads_per_kv, cfg.head_dim)
  x = jnp.zeros((1, 1, cfg.hidden_size))
  rope = _rope_table(cfg, jnp.zeros((1, 1), jnp.int32))
  attend = lambda q, k, v: (jnp.zeros(shape), None)
  layers = [Layer(cfg).init(k, x, rope, attend)['params'] for k in layer_keys]
  table = (cfg.vocab_size, cfg.hidden_size)
  params = {
      'embed': 0.02 * jax.random.normal(embed_key, table),
      'layers': stack_layers(layers) if cfg.scan_layers else layers,
      'final_norm': jnp.ones(cfg.hidden_size),
  }
  if not cfg.tie_embeddings:
    params['lm_head'] = 0.02 * jax.random.normal(head_key, table)
  return params


def stack_layers(layers: list[Params]) -> Params:
  """Stack per-layer dicts to one dict with a leading layer axis."""
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


@functools.cache
def shapes(cfg: DecoderConfig) -> Params:
  """Return the shapes and dtypes of the parameters without allocating them."""
  return jax.eval_shape(lambda: init(cfg, jax.random.key(0)))


def logical_axes(cfg: DecoderConfig, *, gathered: bool = False) -> Params:
  """Return a tree like the parameters whose leaves name each axis.

  Args:
    cfg: Shape of the decoder.
    gathered: If True, the axes of weights in use: fsdp no longer splits them,
      except for the tables of the vocabulary. If False, those of stored
      weights.
  """

  def axes(path, leaf):
    names = _AXES[path[-1].key]
    names = _gathered(names) if gathered else names
    return ('layers',) * (leaf.ndim - len(names)) + names

  return jax.tree_util.tree_map_with_path(axes, shapes(cfg))


def count_params(cfg: DecoderConfig) -> int:
  """Return the number of parameters without allocating them."""
  return sum(leaf.size for leaf in jax.tree.leaves(shapes(cfg)))


def unembedding(cfg: DecoderConfig, params: Params) -> Float[Array, 'V D']:
  """Return the matrix [V, D] that turns hidden states into logits."""
  return params['embed'] if cfg.tie_embeddings else params['lm_head']


def logits(
    cfg: DecoderConfig, params: Params, hidden: Float[Array, '*B D']
) -> Float[Array, '*B V']:
  """Return float32 logits; rl.logprobs chunks them for whole sequences."""
  table = unembedding(cfg, params).astype(hidden.dtype)
  rows = sharding.per_replica(hidden.ndim - 1)
  hidden = sharding.constrain(hidden, *rows, None)
  out = sharding.constrain(hidden @ table.T, *rows, 'vocab')
  return out.astype(jnp.float32)


def _run_layers(cfg, params, tokens, rope, attend, cache=None):
  """Embed tokens [B, T] and apply every layer and the final norm; see `Layer`.

  `attend` gets each layer's slice of `cache` first. Returned are the hidden
  states [B, T, D], and what `attend` kept of every layer.
  """
  layer = Layer(cfg)
  x = params['embed'].astype(cfg.compute_dtype)[tokens]
  x = sharding.constrain(x, 'batch', None, None)

  def body(x, layer_params, layer_cache):
    step = functools.partial(attend, layer_cache)
    return layer.apply({'params': layer_params}, x, rope, step)

  if cfg.remat != 'none':
    body = jax.checkpoint(body, policy=REMAT_POLICIES[cfg.remat])
  if cfg.scan_layers:
    step = lambda x, inputs: body(x, *inputs)
    x, kept = jax.lax.scan(step, x, (params['layers'], cache))
  else:
    kept = []
    for i, layer_params in enumerate(params['layers']):
      x, out = body(x, layer_params, None if cache is None else cache[i])
      kept.append(out)
  return _rms_norm(x, params['final_norm'], cfg.rms_norm_eps), kept


def _masked_softmax(scores: jax.Array, mask: jax.Array, h: int) -> jax.Array:
  """Softmax over the last axis in float32, of scores / sqrt(H)."""
  scores = scores.astype(jnp.float32) * h**-0.5
  # The floor is finite because a row without a single key would become NaN.
  return jax.nn.softmax(jnp.where(mask, scores, -1e30), -1)


def _attend_causal(q, k, v, mask):
  """Attend: q [B,T,K,R,H], k and v [B,S,K,H], mask as [B,K,R,T,S]."""
  scores = jnp.einsum('btkrh,bskh->bkrts', q, k)
  probs = _masked_softmax(scores, mask, q.shape[-1]).astype(q.dtype)
  return jnp.einsum('bkrts,bskh->btkrh', probs, v)


def forward(
    cfg: DecoderConfig,
    params: Params,
    tokens: Int[Array, 'B L'],
    positions: Int[Array, 'B L'],
    segment_ids: Int[Array, 'B L'],
) -> Float[Array, 'B L D']:
  """Return hidden states after the final norm, for padded or packed rows.

  A token attends to earlier tokens of its own segment (segment 0 is padding).
  """
  length = tokens.shape[1]
  causal = jnp.tril(jnp.ones((length, length), bool))
  same = segment_ids[:, :, None] == segment_ids[:, None, :]
  mask = (causal & same)[:, None, None]  # [B, 1, 1, T, S]
  attend = lambda _, q, k, v: (_attend_causal(q, k, v, mask), None)
  rope = _rope_table(cfg, positions)
  return _run_layers(cfg, params, tokens, rope, attend)[0]


def forward_shared(
    cfg: DecoderConfig,
    params: Params,
    prompts: Int[Array, 'P Lp'],
    prompt_lengths: Int[Array, 'P'],
    completions: Int[Array, 'P G Lc'],
) -> Float[Array, 'P G Lc D']:
  """Return the hidden states that predict each completion token.

  Each prompt runs once for its whole group. The result equals that of G
  separate sequences, with P*(Lp + G*Lc) tokens instead of P*G*(Lp + Lc).
  Padding is on the right of prompts and completions.

  Args:
    cfg: Shape of the decoder.
    params: Its parameters.
    prompts: int32, padded on the right.
    prompt_lengths: int32, 1 <= length <= Lp.
    completions: int32, padded on the right.

  Returns:
    hidden[p, g, t], which predicts completions[p, g, t].
  """
  p, lp = prompts.shape
  _, g, lc = completions.shape
  prompt_positions = jnp.broadcast_to(jnp.arange(lp), (p, lp))
  positions = jnp.tile(jnp.arange(lc), g) + prompt_lengths[:, None]
  # One row per group: the prompt, then its completions. [P, Lp + G * Lc]
  tokens = jnp.concatenate([prompts, completions.reshape(p, g * lc)], 1)
  # A lookup is cheaper, as every position occurs in many rows. [P, T, H / 2]
  positions = jnp.concatenate([prompt_positions, positions], 1)
  table = _rope_table(cfg, jnp.arange(lp + lc))
  rope = tuple(values[positions] for values in table)
  prompt_mask = jnp.tril(jnp.ones((lp, lp), bool))
  causal = jnp.tril(jnp.ones((lc, lc), bool))
  # A completion sees the real tokens of its prompt. [P, 1, 1, 1, 1, Lp]
  visible = jnp.arange(lp) < prompt_lengths[:, None]
  visible = visible[:, None, None, None, None]

  def attend(_, q, k, v):
    (qp, qc), (kp, kc), (vp, vc) = (jnp.split(a, [lp], 1) for a in (q, k, v))
    prompt = _attend_causal(qp, kp, vp, prompt_mask)
    qc, kc, vc = (a.reshape(p, g, lc, *a.shape[2:]) for a in (qc, kc, vc))
    to_prompt = jnp.einsum('pgtkrh,pskh->pgkrts', qc, kp)
    to_own = jnp.einsum('pgtkrh,pgskh->pgkrts', qc, kc)
    masked = (
        jnp.where(visible, to_prompt, -1e30),
        jnp.where(causal, to_own, -1e30),
    )
    scores = jnp.concatenate(masked, -1).astype(jnp.float32)
    scores *= cfg.head_dim**-0.5
    probs = jax.nn.softmax(scores, -1).astype(q.dtype)
    to_prompt, to_own = jnp.split(probs, [lp], -1)
    values = jnp.einsum('pgkrts,pskh->pgtkrh', to_prompt, vp)
    values += jnp.einsum('pgkrts,pgskh->pgtkrh', to_own, vc)
    values = values.reshape(p, g * lc, *q.shape[2:])
    return jnp.concatenate([prompt, values], 1), None

  x, _ = _run_layers(cfg, params, tokens, rope, attend)
  last = jnp.take_along_axis(x, (prompt_lengths - 1)[:, None, None], 1)
  last = jnp.broadcast_to(last[:, :, None], (p, 1, g, x.shape[-1]))
  last = last.swapaxes(1, 2)  # [P, G, 1, D]
  rest = x[:, lp:].reshape(p, g, lc, -1)[:, :, :-1]
  return jnp.concatenate([last, rest], 2)


def extend(
    cfg: DecoderConfig,
    params: Params,
    tokens: Int[Array, 'B C'],
    start: Int[Array, 'B'],
    cache: Any,
) -> tuple[Float[Array, 'B C D'], Any]:
  """Run a chunk of tokens per row against its cache, written in place.

  Row b writes slots start[b] .. start[b] + C - 1; its token t attends to slots
  <= start[b] + t.

  Args:
    cfg: Shape of the decoder.
    params: Its parameters.
    tokens: int32; tokens beyond a prompt's end change nothing before it.
    start: int32, position of the chunk's first token: <= S - C, or S for a row
      that writes nothing.
    cache: Per layer (keys, values), each [B, K, S, H].

  Returns:
    The hidden states that predict each token's successor, and the cache.
  """
  positions = start[:, None] + jnp.arange(tokens.shape[1])  # [B, C]
  slots = jax.tree.leaves(cache)[0].shape[-2]
  mask = jnp.arange(slots) <= positions[..., None]  # [B, C, S]

  @jax.vmap
  def write(row, new, position):  # [K, S, H], [C, K, H], []
    new = new.swapaxes(0, 1).astype(row.dtype)
    if new.shape == row.shape:  # The chunk is all: no scatter is needed.
      return jnp.where(position < slots, new, row)
    at = (0, position, 0)
    old = jax.lax.dynamic_slice(row, at, new.shape)  # Clamped, as the update.
    new = jnp.where(position < slots, new, old)
    return jax.lax.dynamic_update_slice(row, new, at)

  def attend(layer_cache, q, k, v):
    keys = write(layer_cache[0], k, start)
    values = write(layer_cache[1], v, start)
    scores = jnp.einsum('btkrh,bksh->bkrts', q, keys.astype(q.dtype))
    probs = _masked_softmax(scores, mask[:, None, None], cfg.head_dim)
    out = jnp.einsum(
        'bkrts,bksh->btkrh', probs.astype(q.dtype), values.astype(q.dtype)
    )
    return out, (keys, values)

  rope = _rope_table(cfg, positions)
  return _run_layers(cfg, params, tokens, rope, attend, cache)


def decode(
    cfg: DecoderConfig,
    params: Params,
    tokens: Int[Array, 'B'],
    positions: Int[Array, 'B'],
    cache: Any,
) -> tuple[Float[Array, 'B D'], Any]:
  """Run one token per row against its cache, which is written in place.

  Row b writes slot positions[b] and attends to slots <= positions[b]: slot
  and position coincide, so a sample's arithmetic does not depend on when it
  started or on its neighbours.

  Args:
    cfg: Shape of the decoder.
    params: Its parameters.
    tokens: int32, the token at `positions`.
    positions: int32, < S.
    cache: Per layer (keys, values), each [B, K, S, H].

  Returns:
    The hidden state that predicts the next token, and the cache.
  """
  slots = jax.tree.leaves(cache)[0].shape[-2]
  mask = (jnp.arange(slots) <= positions[:, None])[:, None, None]  # [B,1,1,S]

  @jax.vmap
  def write(row, new, position):  # [K, S, H], [K, H], []
    # Under vmap this becomes a scatter that partitions along the batch.
    return jax.lax.dynamic_update_slice(
        row, new[:, None].astype(row.dtype), (0, position, 0)
    )

  def attend(layer_cache, q, k, v):
    keys = write(layer_cache[0], k[:, 0], positions)
    values = write(layer_cache[1], v[:, 0], positions)
    scores = jnp.einsum('bkrh,bksh->bkrs', q[:, 0], keys.astype(q.dtype))
    probs = _masked_softmax(scores, mask, cfg.head_dim).astype(q.dtype)
    out = jnp.einsum('bkrs,bksh->bkrh', probs, values.astype(q.dtype))
    return out[:, None], (keys, values)

  rope = _rope_table(cfg, positions[:, None])
  x, cache = _run_layers(cfg, params, tokens[:, None], rope, attend, cache)
  return x[:, 0], cache


def empty_cache(cfg: DecoderConfig, rows: int, slots: int) -> Any:
  """Return zeroed keys and values for `decode`."""
  shape = (rows, cfg.num_kv_heads, slots, cfg.head_dim)
  zeros = functools.partial(jnp.zeros, dtype=cfg.compute_dtype)
  pair = lambda shape: (zeros(shape), zeros(shape))
  if cfg.scan_layers:
    return pair((cfg.num_layers, *shape))
  return [pair(shape) for _ in range(cfg.num_layers)]
