"""Decoders of the families of `families.FAMILIES`.

One Flax layer serves four uses, which differ only in the source of keys and
values. The layer takes this source as a function, `attend`: the whole sequence
(`forward`), a prompt that a group of completions shares (`forward_shared`), a
chunk of tokens and a cache (`extend`), or one token and a cache (`decode`).
Every public function is pure and takes plain dicts as parameters:

  embed [V, D], layers (a list, or stacked; see `layer`), final_norm [D],
  lm_head [V, D].

Layers of one decoder differ only in their `layer.Kind`: the window, which is
the number of latest tokens that a token sees, and the rotation of queries and
keys by positions. A window is only a mask: the cache of such a layer still
holds all positions.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from evojax.models import layer as layer_lib
from evojax.models import rope as rope_lib
from evojax.runtime import sharding

Params = dict[str, Any]
DecoderConfig = layer_lib.DecoderConfig

# A sequence with more than MOST_QUERIES queries attends in blocks of
# QUERY_BLOCK; otherwise its scores would take most of the memory of an update.
MOST_QUERIES, QUERY_BLOCK = 1024, 256
# A shorter one attends in blocks of this many queries, none of which computes
# scores of the keys behind it.
CAUSAL_BLOCK = 128
# A cache with more slots is read in blocks, see `key_block`.
MOST_SLOTS = 512
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
  """Return float32 logits; rl.logprobs chunks them for sequences.

  Logits of vocabulary padding, if any, are -1e30.
  """
  table = unembedding(cfg, params).astype(hidden.dtype)
  rows = sharding.per_replica(hidden.ndim - 1)
  hidden = sharding.constrain(hidden, *rows, None)
  out = sharding.constrain(hidden @ table.T, *rows, 'vocab')
  out = out.astype(jnp.float32)
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
    attend: As in `Layer`, but called with the layer's mask and its slice of
      `cache` before the other arguments.
    cache: Keys and values of each layer, if any.

  Returns:
    The hidden states [B, T, D], and the second result of `attend` per layer.
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

    def body(x, layer_params, layer_cache):
      rope, mask = _select(views, number)
      step = functools.partial(attend, mask, layer_cache)
      return layer.apply({'params': layer_params}, x, rope, step)

    if cfg.remat == 'none':
      return body
    return jax.checkpoint(body, policy=REMAT_POLICIES[cfg.remat])

  if cfg.scan_layers:
    same = len(kinds) == 1
    step = lambda x, inputs: layer_of(0 if same else inputs[2])(x, *inputs[:2])
    inputs = params['layers'], cache, None if same else jnp.asarray(numbers)
    x, kept = jax.lax.scan(step, x, inputs)
  else:
    bodies = [layer_of(number) for number in range(len(kinds))]
    kept = []
    for i, layer_params in enumerate(params['layers']):
      layer_cache = None if cache is None else cache[i]
      x, out = bodies[numbers[i]](x, layer_params, layer_cache)
      kept.append(out)
  return layer_lib.rms_norm(cfg, x, params['final_norm']), kept


def _select(views: list[Any], number: int | jax.Array) -> Any:
  """Return tree `number`; the trees' arrays broadcast with each other."""
  if isinstance(number, int):
    return views[number]
  select = lambda *xs: jax.lax.select_n(number, *jnp.broadcast_arrays(*xs))
  return jax.tree.map(select, *views)


def _masked_softmax(
    cfg: DecoderConfig, scores: jax.Array, mask: jax.Array
) -> jax.Array:
  """Return the float32 softmax over the last axis, of scaled scores."""
  scores = scores.astype(jnp.float32) * cfg.score_scale
  # The floor is finite, since a row without any visible key would become NaN.
  return jax.nn.softmax(jnp.where(mask, scores, -1e30), -1)


def _attend_causal(cfg, q, k, v, mask):
  """Return values for q [B,T,K,R,H], k, v [B,S,K,H], mask as [B,K,R,T,S]."""

  def attend(q, masks, kept):
    scores = jnp.einsum('btkrh,bskh->bkrts', q, kept[0])
    probs = _masked_softmax(cfg, scores, *masks).astype(q.dtype)
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
  """Return the first query of each block, and the one after its last.

  A block reads the keys before its end, so that almost half of the scores of a
  long sequence are not computed.
  """
  starts = range(0, count, CAUSAL_BLOCK)
  return [(start, min(start + CAUSAL_BLOCK, count)) for start in starts]


def _in_blocks(attend, axis, q, masks, kept):
  """Return attend(q, masks, kept), computed block by block for long sequences.

  Only the scores of one block are in memory at a time. The backward pass
  computes them again, so this holds there, too.

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
    # Padding repeats the last query: a query that sees nothing would give NaN.
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


def key_block(slots: int) -> int:
  """Return how many slots of a cache are read at once."""
  if slots <= MOST_SLOTS:
    return slots
  # On accelerators every block costs the start of some kernels, so there are
  # few of them.
  return max(128, 1 << ((slots - 1) // 8).bit_length())


def _attend_cache(cfg, q, mask, keys, values, used):
  """Return values for queries whose keys are in a cache, shaped as q.

  Blocks without a used slot are not read. The softmax is accumulated block by
  block (online softmax, arXiv:1805.02867). A block that a row does not see adds
  exactly 0, so that a row's result does not depend on the blocks that are read
  for other rows.

  Args:
    cfg: Shape of the decoder.
    q: Queries, [B, T, K, R, H], or [B, K, R, H] for one token per row.
    mask: Which slots a query sees, [B, 1, 1, T, S] or [B, 1, 1, S].
    keys: [B, K, S, H].
    values: [B, K, S, H].
    used: int32 scalar, >= 1; no row whose result matters sees a later slot.
  """
  slots, size = keys.shape[-2], key_block(keys.shape[-2])
  keys, values = keys.astype(q.dtype), values.astype(q.dtype)
  t = 't' if q.ndim == 5 else ''
  to_keys = functools.partial(jnp.einsum, f'b{t}krh,bksh->bkr{t}s')
  if size == slots:
    probs = _masked_softmax(cfg, to_keys(q, keys), mask).astype(q.dtype)
    return jnp.einsum(f'bkr{t}s,bksh->b{t}krh', probs, values)

  def add_block(i, carry):
    largest, total, sums = carry
    start = jnp.minimum(i * size, slots - size)
    take = lambda x, axis: jax.lax.dynamic_slice_in_dim(x, start, size, axis)
    # The last block overlaps the one before it.
    new = start + jnp.arange(size) >= i * size
    scores = to_keys(q, take(keys, 2)).astype(jnp.float32) * cfg.score_scale
    scores = jnp.where(take(mask, mask.ndim - 1) & new, scores, -1e30)
    higher = jnp.maximum(largest, scores.max(-1))
    weights = jnp.exp(scores - higher[..., None])
    added = jnp.einsum(
        f'bkr{t}s,bksh->bkr{t}h',
        weights.astype(q.dtype),
        take(values, 2),
        preferred_element_type=jnp.float32,
    )
    shrink = jnp.exp(largest - higher)
    total = total * shrink + weights.sum(-1)
    return higher, total, sums * shrink[..., None] + added

  shape = jax.eval_shape(to_keys, q, keys).shape[:-1]
  carry = jnp.full(shape, -1e30), jnp.zeros(shape)
  carry = *carry, jnp.zeros((*shape, q.shape[-1]))
  blocks = jnp.minimum(-(-used // size), -(-slots // size))
  _, total, sums = jax.lax.fori_loop(0, blocks, add_block, carry)
  out = (sums / total[..., None]).astype(q.dtype)
  return jnp.moveaxis(out, 3, 1) if t else out


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

  attend = lambda mask, _, q, k, v: (_attend_causal(cfg, q, k, v, mask), None)
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
  # Every position occurs in many rows, so that looking up angles is cheaper.
  # [P, T, H / 2]
  positions = jnp.concatenate([prompt_positions, positions], 1)

  def rope(kind):
    table = _rope_table(cfg, kind, jnp.arange(lp + lc))
    return tuple(values[positions] for values in table)

  def mask(window):
    # A completion sees the real tokens of its prompt. [P, 1, 1, 1, 1, Lp]
    prompt = jnp.arange(lp) < prompt_lengths[:, None]
    prompt = prompt[:, None, None, None, None]
    if window:  # [P, 1, 1, 1, Lc, Lp]
      at = prompt_lengths[:, None] + jnp.arange(lc)
      prompt &= _visible(lp, at, window)[:, None, None, None]
    return _causal(lp, window), prompt, _causal(lc, window)

  def of_completions(q, masks, kept):  # q [P, G, t, K, R, H]
    (visible, causal), (kp, vp, kc, vc) = masks, kept
    to_prompt = jnp.einsum('pgtkrh,pskh->pgkrts', q, kp)
    to_own = jnp.einsum('pgtkrh,pgskh->pgkrts', q, kc)
    masked = (
        jnp.where(visible, to_prompt, -1e30),
        jnp.where(causal, to_own, -1e30),
    )
    scores = jnp.concatenate(masked, -1).astype(jnp.float32)
    scores *= cfg.score_scale
    probs = jax.nn.softmax(scores, -1).astype(q.dtype)
    to_prompt, to_own = jnp.split(probs, [lp], -1)
    values = jnp.einsum('pgkrts,pskh->pgtkrh', to_prompt, vp)
    return values + jnp.einsum('pgkrts,pgskh->pgtkrh', to_own, vc)

  def attend(mask, _, q, k, v):
    prompt_mask, visible, causal = mask
    (qp, qc), (kp, kc), (vp, vc) = (jnp.split(a, [lp], 1) for a in (q, k, v))
    prompt = _attend_causal(cfg, qp, kp, vp, prompt_mask)
    qc, kc, vc = (a.reshape(p, g, lc, *a.shape[2:]) for a in (qc, kc, vc))
    kept = kp, vp, kc, vc
    values = _in_blocks(of_completions, 2, qc, (visible, causal), kept)
    values = values.reshape(p, g * lc, *q.shape[2:])
    return jnp.concatenate([prompt, values], 1), None

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

  @jax.vmap
  def write(row, new, position):  # [K, S, H], [C, K, H], []
    new = new.swapaxes(0, 1).astype(row.dtype)
    if new.shape == row.shape:  # The chunk fills the cache: no scatter needed.
      return jnp.where(position < slots, new, row)
    at = (0, position, 0)
    old = jax.lax.dynamic_slice(row, at, new.shape)  # Clamped like the update.
    new = jnp.where(position < slots, new, old)
    return jax.lax.dynamic_update_slice(row, new, at)

  def mask(window):  # [B, 1, 1, C, S]
    return _visible(slots, positions, window)[:, None, None]

  def attend(mask, layer_cache, q, k, v):
    keys = write(layer_cache[0], k, start)
    values = write(layer_cache[1], v, start)
    out = _attend_cache(cfg, q, mask, keys, values, used)
    return out, (keys, values)

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

  Row b writes slot positions[b] and attends to slots <= positions[b]. Slot and
  position coincide, so that the arithmetic of a sample depends neither on the
  time when it started nor on its neighbours.

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

  @jax.vmap
  def write(row, new, position):  # [K, S, H], [K, H], []
    # Under vmap this becomes a scatter that partitions along the batch.
    return jax.lax.dynamic_update_slice(
        row, new[:, None].astype(row.dtype), (0, position, 0)
    )

  def mask(window):  # [B, 1, 1, S]
    return _visible(slots, positions, window)[:, None, None]

  def attend(mask, layer_cache, q, k, v):
    keys = write(layer_cache[0], k[:, 0], positions)
    values = write(layer_cache[1], v[:, 0], positions)
    out = _attend_cache(cfg, q[:, 0], mask, keys, values, used)
    return out[:, None], (keys, values)

  rope = lambda kind: _rope_table(cfg, kind, positions[:, None])
  x, cache = _run_layers(
      cfg, params, tokens[:, None], rope, mask, attend, cache
  )
  return x[:, 0], cache


def empty_cache(cfg: DecoderConfig, rows: int, slots: int) -> Any:
  """Return zeroed keys and values of each layer, the cache of `decode`."""
  shape = (rows, cfg.num_kv_heads, slots, cfg.head_dim)
  zeros = functools.partial(jnp.zeros, dtype=cfg.compute_dtype)
  pair = lambda shape: (zeros(shape), zeros(shape))
  if cfg.scan_layers:
    return pair((cfg.num_layers, *shape))
  return [pair(shape) for _ in range(cfg.num_layers)]
