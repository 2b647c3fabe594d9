"""Decoder-only transformers of the families in `families.FAMILIES`.

One Flax layer serves four uses, which differ only in the source of keys and
values: the whole sequence (`forward`), a prompt that a group of completions
shares (`forward_shared`), a chunk of tokens and a cache (`extend`), or one
token and a cache (`decode`). The layer takes this source as a function,
`attend`. Every public function is pure and takes plain dicts as parameters:

  embed [V, D], layers (a list, or stacked; see `layer`), final_norm [D],
  lm_head [V, D].

Layers of one decoder differ only in their `layer.Kind`: the window, which is
the number of most recent tokens that a token attends to, and the rotation of
queries and keys by their positions. A window is only a mask: the cache of such
a layer still holds all positions.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from evojax.models import cache as cache_lib
from evojax.models import layer as layer_lib
from evojax.models import rope as rope_lib
from evojax.runtime import sharding

Params = dict[str, Any]
DecoderConfig = layer_lib.DecoderConfig

# A sequence with more than MOST_QUERIES queries attends in blocks of
# QUERY_BLOCK; otherwise its scores would take most of the memory of an update.
MOST_QUERIES, QUERY_BLOCK = 1024, 256
# A shorter sequence attends in blocks of this many queries. A block computes no
# scores of keys after its last query.
CAUSAL_BLOCK = 128
REMAT_POLICIES = {
    'full': jax.checkpoint_policies.nothing_saveable,
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def _rope_table(cfg, kind, positions):
  """Return (cos, sin), each [..., T, H / 2] for positions [..., T]."""
  return rope_lib.table(
      positions, cfg.head_dim, kind.rope_theta, kind.rope_scaling
  )


def init(cfg: DecoderConfig, key: jax.Array) -> Params:
  """Return random float32 parameters; `shapes` returns only their shapes."""
  embed_key, head_key, *layer_keys = jax.random.split(key, cfg.num_layers + 2)
  shape = (1, 1, cfg.num_kv_heads, cfg.heads_per_kv, cfg.head_dim)
  x = jnp.zeros((1, 1, cfg.hidden_size))
  rope = _rope_table(cfg, cfg.kinds[0], jnp.zeros((1, 1), jnp.int32))
  attend = lambda q, k, v: (jnp.zeros(shape), None)
  layer = layer_lib.Layer(cfg)
  layers = [layer.init(k, x, rope, attend)['params'] for k in layer_keys]
  table = (cfg.vocab_rows, cfg.hidden_size)
  params = {
      'embed': 0.02 * jax.random.normal(embed_key, table),
      'layers': stack_layers(layers) if cfg.scan_layers else layers,
      'final_norm': layer_lib.norm_init(cfg)(key, (cfg.hidden_size,)),
  }
  if not cfg.tie_embeddings:
    params['lm_head'] = 0.02 * jax.random.normal(head_key, table)
  return params


def stack_layers(layers: list[Params]) -> Params:
  """Stack per-layer dicts into one dict with a leading layer axis."""
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


@functools.cache
def shapes(cfg: DecoderConfig) -> Params:
  """Return the shapes and dtypes of the parameters without allocating them."""
  return jax.eval_shape(lambda: init(cfg, jax.random.key(0)))


def logical_axes(cfg: DecoderConfig, *, gathered: bool = False) -> Params:
  """Return a tree like the parameters whose leaves are the names of the axes.

  Args:
    cfg: Shape of the decoder.
    gathered: If True, the axes of weights in use, which fsdp no longer splits,
      except for the tables of the vocabulary. If False, the axes of stored
      weights.
  """

  def axes(path, leaf):
    names = layer_lib.AXES[path[-1].key]
    names = layer_lib.gathered(names) if gathered else names
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
  """Return float32 logits; `rl.logprobs` computes them in chunks.

  Logits of bfloat16 vectors are not rounded to bfloat16: between 16 and 32 its
  steps are 0.125, and a sampler and a trainer would differ by that much. Logits
  of vocabulary padding, if any, are -1e30.
  """
  table = unembedding(cfg, params).astype(hidden.dtype)
  rows = sharding.per_replica(hidden.ndim - 1)
  hidden = sharding.constrain(hidden, *rows, None)
  out = jnp.matmul(hidden, table.T, preferred_element_type=jnp.float32)
  out = sharding.constrain(out, *rows, 'vocab')
  if not cfg.vocab_padding:
    return out
  return jnp.where(jnp.arange(cfg.vocab_rows) < cfg.vocab_size, out, -1e30)


def _run_layers(cfg, params, tokens, rope, mask, attend, cache=None):
  """Embed tokens [B, T] and apply every layer and the final norm; see `Layer`.

  Args:
    cfg: Shape of the decoder.
    params: Its parameters.
    tokens: int32 [B, T].
    rope: Kind -> cos and sin of its layers.
    mask: Window -> the mask that `attend` takes for layers with this window.
    attend: As in `Layer`, but called with the layer's mask, a cache, and the
      place of the layer in it before the other arguments; it returns the cache
      as its second result. The cache is the layer's own and the place is (), or
      it is that of all layers, stacked, and the place is (layer,).
    cache: Keys and values of each layer, or stacks of them, if any.

  Returns:
    The hidden states [B, T, D], and the cache.
  """
  layer, kinds = layer_lib.Layer(cfg), list(dict.fromkeys(cfg.kinds))
  views = [(rope(kind), mask(kind.window)) for kind in kinds]
  numbers = [kinds.index(kind) for kind in cfg.kinds]
  x = params['embed'].astype(cfg.compute_dtype)[tokens]
  if cfg.scale_embeddings:
    x *= jnp.asarray(cfg.hidden_size**0.5, x.dtype)
  x = sharding.constrain(x, 'batch', None, None)

  def layer_of(number):
    """Return a layer of kind `number`, traced if a scan has several kinds."""

    def body(x, layer_params, cache, place):
      rope, mask = _select(views, number)
      if cfg.scan_layers:
        # Otherwise, masks in the shape of scores are computed before the scan,
        # kept in memory, and read by every layer.
        x, mask = jax.lax.optimization_barrier((x, mask))
      step = functools.partial(attend, mask, cache, place)
      return layer.apply({'params': layer_params}, x, rope, step)

    if cfg.remat == 'none':
      return body
    return jax.checkpoint(body, policy=REMAT_POLICIES[cfg.remat])

  if cfg.scan_layers:
    same = len(kinds) == 1
    inputs = (
        params['layers'],
        None if same else jnp.asarray(numbers),
        jnp.arange(cfg.num_layers),
    )

    def scan(carried, x, cache):
      """Run the layers; the cache is `carried` along, or scanned per layer."""

      def step(carry, inputs):
        (x, whole), ((layer_params, number, index), own) = carry, inputs
        kept = (whole, (index,)) if carried else (own, ())
        body = layer_of(0 if same else number)
        x, kept = body(x, layer_params, *kept)
        return ((x, kept), None) if carried else ((x, None), kept)

      whole, own = (cache, None) if carried else (None, cache)
      (x, whole), own = jax.lax.scan(step, (x, whole), (inputs, own))
      return x, whole if carried else own

    if cache is None:
      x, kept = scan(False, x, None)
    else:
      # Layers write to a carried cache in place. Otherwise it is an input and
      # an output of the scan, two arrays: XLA for GPUs copies one to the other
      # in every decode step, which moves 40 GB for a cache of 20 GB. XLA for
      # TPUs merges the two, but copies a carried cache to another layout.
      carried = functools.partial(scan, True)
      x, kept = jax.lax.platform_dependent(
          x,
          cache,
          cuda=carried,
          rocm=carried,
          default=functools.partial(scan, False),
      )
  else:
    bodies = [layer_of(number) for number in range(len(kinds))]
    kept = []
    for i, layer_params in enumerate(params['layers']):
      layer_cache = None if cache is None else cache[i]
      x, out = bodies[numbers[i]](x, layer_params, layer_cache, ())
      kept.append(out)
  return layer_lib.rms_norm(cfg, x, params['final_norm']), kept


def _select(views: list[Any], number: int | jax.Array) -> Any:
  """Return tree `number`; the trees' arrays broadcast with each other."""
  if isinstance(number, int):
    return views[number]
  select = lambda *xs: jax.lax.select_n(number, *jnp.broadcast_arrays(*xs))
  return jax.tree.map(select, *views)


def _attend_causal(cfg, q, k, v, mask):
  """Return values for q [B,T,K,R,H], k, v [B,S,K,H], mask as [B,K,R,T,S]."""

  def attend(q, masks, kept):
    scores = jnp.einsum('btkrh,bskh->bkrts', q, kept[0])
    probs = layer_lib.masked_softmax(cfg, scores, *masks).astype(q.dtype)
    return jnp.einsum('bkrts,bskh->btkrh', probs, kept[1])

  count = q.shape[1]
  if count > MOST_QUERIES:
    return _in_blocks(attend, 1, q, (mask,), (k, v))
  values = []
  for start, stop in causal_blocks(count):
    visible = mask[..., start:stop, :stop]
    kept = k[:, :stop], v[:, :stop]
    values.append(attend(q[:, start:stop], (visible,), kept))
  return jnp.concatenate(values, 1)


def causal_blocks(count: int) -> list[tuple[int, int]]:
  """Return (start, stop) of the queries of each block.

  A block reads only the keys before its stop, so that almost half of the scores
  of a long sequence are not computed.
  """
  starts = range(0, count, CAUSAL_BLOCK)
  return [(start, min(start + CAUSAL_BLOCK, count)) for start in starts]


def _in_blocks(attend, axis, q, masks, kept):
  """Return attend(q, masks, kept), computed block by block for long sequences.

  Only the scores of one block are in memory at a time, also in the backward
  pass, which computes them again.

  Args:
    attend: (queries, masks, keys and values) -> values, shaped as the queries.
    axis: The axis of q that holds queries; in masks it is the second to last.
    q: Queries.
    masks: Each [..., T or 1, S].
    kept: Keys and values, which every block sees.
  """
  count = q.shape[axis]
  if count <= MOST_QUERIES:
    return attend(q, masks, kept)
  blocks = -(-count // QUERY_BLOCK)

  def split(x, axis):  # [..., T, ...] -> [blocks, ..., QUERY_BLOCK, ...]
    padding = [(0, 0)] * x.ndim
    padding[axis] = 0, blocks * QUERY_BLOCK - count
    shape = *x.shape[:axis], blocks, QUERY_BLOCK, *x.shape[axis + 1 :]
    # Padding repeats the last query, so that every query sees something. Its
    # values are cut off below.
    x = jnp.pad(x, padding, 'edge').reshape(shape)
    return jnp.moveaxis(x, axis, 0)

  def split_mask(x):
    x = jnp.broadcast_to(x, (*x.shape[:-2], count, x.shape[-1]))
    return split(x, x.ndim - 2)

  # Gradients of keys and values are summed over the blocks in float32.
  wide = [x.astype(jnp.float32) for x in kept]

  @functools.partial(jax.checkpoint, prevent_cse=False)
  def block(item):
    return attend(*item, [x.astype(q.dtype) for x in wide])

  out = jax.lax.map(block, (split(q, axis), tuple(map(split_mask, masks))))
  out = jnp.moveaxis(out, 0, axis)
  out = out.reshape(*q.shape[:axis], -1, *q.shape[axis + 1 :])
  return jax.lax.slice_in_dim(out, 0, count, axis=axis)


def _causal(length: int, window: int) -> jax.Array:
  """Return which tokens each token of a sequence sees, [T, T]; see `Kind`."""
  mask = jnp.tril(jnp.ones((length, length), bool))
  return jnp.triu(mask, 1 - window) if window else mask


def _visible(slots: int, positions: jax.Array, window: int) -> jax.Array:
  """Return which cache slots a token at each position sees, [..., S]."""
  positions, slot = positions[..., None], jnp.arange(slots)
  mask = slot <= positions
  return mask & (slot > positions - window) if window else mask


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
  same = segment_ids[:, :, None] == segment_ids[:, None, :]

  def mask(window):  # [B, 1, 1, T, S]
    return (_causal(tokens.shape[1], window) & same)[:, None, None]

  def attend(mask, cache, place, q, k, v):
    return _attend_causal(cfg, q, k, v, mask), cache

  rope = lambda kind: _rope_table(cfg, kind, positions)
  return _run_layers(cfg, params, tokens, rope, mask, attend)[0]


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
  # Every position occurs in many rows, so looking up the angles is cheaper.
  # [P, T, H / 2]
  positions = jnp.concatenate([prompt_positions, positions], 1)

  def rope(kind):
    table = _rope_table(cfg, kind, jnp.arange(lp + lc))
    return tuple(values[positions] for values in table)

  def mask(window):
    # A completion sees the real tokens of its prompt. [P, 1, 1, 1, Lp]
    prompt = jnp.arange(lp) < prompt_lengths[:, None]
    prompt = prompt[:, None, None, None]
    if window:  # [P, 1, 1, Lc, Lp]
      at = prompt_lengths[:, None] + jnp.arange(lc)
      prompt &= _visible(lp, at, window)[:, None, None]
    return _causal(lp, window), prompt, _causal(lc, window)

  # With queries in the order [P, K, G, t, R, H], both products give scores
  # [P, K, G, t, R, S]. In another order XLA would transpose the scores, which
  # are the largest arrays of an update.
  def of_completions(q, masks, kept):  # q [P, G, t, K, R, H]
    (visible, causal), (kp, vp, kc, vc) = masks, kept
    q = jnp.einsum('pgtkrh->pkgtrh', q)
    to_prompt = jnp.einsum('pkgtrh,pskh->pkgtrs', q, kp)
    to_own = jnp.einsum('pkgtrh,pgskh->pkgtrs', q, kc)
    scores = [
        x.astype(jnp.float32) * cfg.score_scale
        + jnp.where(mask, 0, -1e30)[..., None, :]
        for mask, x in ((visible, to_prompt), (causal, to_own))
    ]
    # One softmax over both parts, which are not copied into one array.
    largest = jnp.maximum(*(x.max(-1, keepdims=True) for x in scores))
    largest = jax.lax.stop_gradient(largest)
    weights = [jnp.exp(x - largest) for x in scores]
    total = sum(x.sum(-1, keepdims=True) for x in weights)
    to_prompt, to_own = (x.astype(q.dtype) for x in weights)
    values = jnp.einsum('pkgtrs,pskh->pkgtrh', to_prompt, vp)
    values += jnp.einsum('pkgtrs,pgskh->pkgtrh', to_own, vc)
    values = (values / total).astype(q.dtype)
    return jnp.einsum('pkgtrh->pgtkrh', values)

  def attend(mask, cache, place, q, k, v):
    prompt_mask, visible, causal = mask
    (qp, qc), (kp, kc), (vp, vc) = (jnp.split(a, [lp], 1) for a in (q, k, v))
    prompt = _attend_causal(cfg, qp, kp, vp, prompt_mask)
    qc, kc, vc = (a.reshape(p, g, lc, *a.shape[2:]) for a in (qc, kc, vc))
    kept = kp, vp, kc, vc
    values = _in_blocks(of_completions, 2, qc, (visible, causal), kept)
    values = values.reshape(p, g * lc, *q.shape[2:])
    return jnp.concatenate([prompt, values], 1), cache

  x, _ = _run_layers(cfg, params, tokens, rope, mask, attend)
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
  """Run a chunk of tokens per row against its cache, updated in place.

  Row b writes slots start[b] .. start[b] + C - 1. Its token t attends to slots
  <= start[b] + t, limited by the window of the layer.

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
  used = jnp.where(start < slots, start, 0).max() + tokens.shape[1]

  def mask(window):  # [B, 1, 1, C, S]
    return _visible(slots, positions, window)[:, None, None]

  def attend(mask, cache, place, q, k, v):
    cache = cache_lib.write(cache, place, (k, v), start)
    return cache_lib.attend(cfg, q, mask, cache, place, used), cache

  rope = lambda kind: _rope_table(cfg, kind, positions)
  return _run_layers(cfg, params, tokens, rope, mask, attend, cache)


def decode(
    cfg: DecoderConfig,
    params: Params,
    tokens: Int[Array, 'B'],
    positions: Int[Array, 'B'],
    cache: Any,
    used: Int[Array, ''],
) -> tuple[Float[Array, 'B D'], Any]:
  """Run one token per row against its cache, updated in place.

  Row b writes slot positions[b] and attends to slots <= positions[b]. The slot
  of a token is its position, so that the arithmetic of a sample depends neither
  on when it started nor on the other rows.

  Args:
    cfg: Shape of the decoder.
    params: Its parameters.
    tokens: int32, the token at `positions`.
    positions: int32, < S.
    cache: Per layer (keys, values), each [B, K, S, H].
    used: int32, >= 1; rows with a position >= `used` get a wrong result. Later
      slots are not read, if the cache is long.

  Returns:
    The hidden state that predicts the next token, and the cache.
  """
  slots = jax.tree.leaves(cache)[0].shape[-2]

  def mask(window):  # [B, 1, 1, S]
    return _visible(slots, positions, window)[:, None, None]

  def attend(mask, cache, place, q, k, v):
    cache = cache_lib.write(cache, place, (k, v), positions)
    out = cache_lib.attend_one(
        cfg, q[:, 0], mask, cache, place, positions, used
    )
    return out[:, None], cache

  rope = lambda kind: _rope_table(cfg, kind, positions[:, None])
  x, cache = _run_layers(
      cfg, params, tokens[:, None], rope, mask, attend, cache
  )
  return x[:, 0], cache
