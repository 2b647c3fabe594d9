"""The lower bound of a GRPO step: the benchmark's workload in bare JAX.

This is the cost of the arithmetic alone: no padding, masks, stop tokens,
ratios, clipping, metrics or checks, with one dtype on one device.
`benchmarks/grpo_step.py` times evojax against it. It shares no code with the
package, only the two ideas that determine the cost: a group's prompt runs once
in rollout and update, and an update accumulates over micro-batches of whole
groups.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Workload:
  """Shape of a Qwen3-style decoder and of one GRPO step."""

  layers: int = 4
  width: int = 256  # D
  heads: int = 4  # N
  kv_heads: int = 2  # K
  head_dim: int = 64  # H
  mlp: int = 1024  # F
  vocab: int = 512  # V
  prompts: int = 16  # P
  group: int = 8  # G
  prompt_tokens: int = 32  # Lp
  new_tokens: int = 64  # Lc
  micro_groups: int = 2  # Groups per forward and backward pass.


def optimizer() -> optax.GradientTransformation:
  """Return AdamW, as in evojax's update."""
  return optax.adamw(1e-4, b1=0.9, b2=0.95, weight_decay=0.0)


def init(w: Workload, key: jax.Array) -> Params:
  """Return random float32 parameters."""
  n, k, h = w.heads, w.kv_heads, w.head_dim

  def layer(key):
    keys = jax.random.split(key, 4)
    dense = lambda key, ins, outs: (
        jax.random.normal(key, (ins, outs)) * ins**-0.5
    )
    return dict(
        norm1=jnp.ones(w.width),
        qkv=dense(keys[0], w.width, (n + 2 * k) * h),
        q_norm=jnp.ones(h),
        k_norm=jnp.ones(h),
        out=dense(keys[1], n * h, w.width),
        norm2=jnp.ones(w.width),
        gate_up=dense(keys[2], w.width, 2 * w.mlp),
        down=dense(keys[3], w.mlp, w.width),
    )

  keys = jax.random.split(key, w.layers + 1)
  return dict(
      embed=0.02 * jax.random.normal(keys[-1], (w.vocab, w.width)),
      layers=[layer(key) for key in keys[:-1]],
      norm=jnp.ones(w.width),
  )


def _norm(x, scale):
  return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def _rope(x, positions):
  """Return x [..., T, heads, H], rotated by positions [T]."""
  h = x.shape[-1]
  freq = 1e6 ** (-jnp.arange(0, h, 2) / h)
  angles = positions[:, None, None] * freq
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  a, b = x[..., : h // 2], x[..., h // 2 :]
  return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def _layer(w, p, x, positions, attend):
  """Return (x [B, T, D], kept); attend maps q [B,T,K,R,H], k, v [B,T,K,H]."""
  n, k, h = w.heads, w.kv_heads, w.head_dim
  qkv = (_norm(x, p['norm1']) @ p['qkv']).reshape(*x.shape[:2], n + 2 * k, h)
  q = _rope(_norm(qkv[:, :, :n], p['q_norm']), positions)
  key = _rope(_norm(qkv[:, :, n : n + k], p['k_norm']), positions)
  q = q.reshape(*x.shape[:2], k, n // k, h)
  values, kept = attend(q, key, qkv[:, :, n + k :])
  x = x + values.reshape(*x.shape[:2], n * h) @ p['out']
  gate, up = jnp.split(_norm(x, p['norm2']) @ p['gate_up'], 2, -1)
  return x + (jax.nn.silu(gate) * up) @ p['down'], kept


def _softmax(scores, visible, h):
  return jax.nn.softmax(jnp.where(visible, scores * h**-0.5, -1e30), -1)


def _causal(q, k, v):
  t = q.shape[1]
  scores = jnp.einsum('btkrh,bskh->bkrts', q, k)
  probs = _softmax(scores, jnp.tril(jnp.ones((t, t), bool)), q.shape[-1])
  return jnp.einsum('bkrts,bskh->btkrh', probs, v)


def _prefill(w, params, prompts):
  """Return logits [P, V] and a cache [P, K, Lp + Lc, H] per layer."""

  def attend(q, k, v):
    grow = ((0, 0), (0, 0), (0, w.new_tokens), (0, 0))
    kept = tuple(jnp.pad(a.swapaxes(1, 2), grow) for a in (k, v))
    return _causal(q, k, v), kept

  x, cache = params['embed'][prompts], []
  for p in params['layers']:
    x, kept = _layer(w, p, x, jnp.arange(w.prompt_tokens), attend)
    cache.append(kept)
  return _norm(x[:, -1], params['norm']) @ params['embed'].T, cache


def _decode(w, params, token, position, cache):
  """Return logits [B, V] after `token` [B], and the cache including it."""
  slots = w.prompt_tokens + w.new_tokens
  visible = jnp.arange(slots) <= position

  def attend(kept, q, k, v):
    keys, values = (
        jax.lax.dynamic_update_slice_in_dim(
            old, new.swapaxes(1, 2), position, 2
        )
        for old, new in zip(kept, (k, v), strict=True)
    )
    scores = jnp.einsum('bkrh,bksh->bkrs', q[:, 0], keys)
    probs = _softmax(scores, visible, w.head_dim)
    out = jnp.einsum('bkrs,bksh->bkrh', probs, values)
    return out[:, None], (keys, values)

  x, new_cache = params['embed'][token][:, None], []
  for p, kept in zip(params['layers'], cache, strict=True):
    x, kept = _layer(w, p, x, position[None], functools.partial(attend, kept))
    new_cache.append(kept)
  return _norm(x[:, 0], params['norm']) @ params['embed'].T, new_cache


def rollout(
    w: Workload, params: Params, prompts: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Return [P * G, Lc] sampled tokens and log-probs for prompts [P, Lp]."""
  logits, cache = _prefill(w, params, prompts)
  logits, cache = jax.tree.map(
      lambda x: jnp.repeat(x, w.group, 0), (logits, cache)
  )
  rows = len(logits)

  def draw(n, logits, tokens, logprobs):
    token = jax.random.categorical(jax.random.fold_in(key, n), logits)
    logprob = logits[jnp.arange(rows), token] - jax.nn.logsumexp(logits, -1)
    return token, tokens.at[n].set(token), logprobs.at[n].set(logprob)

  def step(carry):
    n, token, cache, tokens, logprobs = carry
    position = w.prompt_tokens + n - 1
    logits, cache = _decode(w, params, token, position, cache)
    token, tokens, logprobs = draw(n, logits, tokens, logprobs)
    return n + 1, token, cache, tokens, logprobs

  empty = jnp.zeros((w.new_tokens, rows))
  token, tokens, logprobs = draw(0, logits, empty.astype(jnp.int32), empty)
  *_, tokens, logprobs = jax.lax.while_loop(
      lambda carry: carry[0] < w.new_tokens,
      step,
      (jnp.int32(1), token, cache, tokens, logprobs),
  )
  return tokens.T, logprobs.T


def _completion_logprobs(w, params, prompts, completions):
  """Return log-probs [p, G, Lc] of completions; each prompt runs once."""
  p, g, t = completions.shape
  lp = w.prompt_tokens
  positions = jnp.concatenate([jnp.arange(lp), lp + jnp.tile(jnp.arange(t), g)])
  causal = jnp.tril(jnp.ones((t, t), bool))

  def attend(q, k, v):
    prompt = _causal(q[:, :lp], k[:, :lp], v[:, :lp])
    split = lambda x: x[:, lp:].reshape(p, g, t, *x.shape[2:])
    qc, kc, vc = split(q), split(k), split(v)
    to_prompt = jnp.einsum('pgtkrh,pskh->pgkrts', qc, k[:, :lp])
    to_own = jnp.einsum('pgtkrh,pgskh->pgkrts', qc, kc)
    to_own = jnp.where(causal, to_own, -1e30)
    scores = jnp.concatenate([to_prompt, to_own], -1) * w.head_dim**-0.5
    probs = jax.nn.softmax(scores, -1)
    out = jnp.einsum('pgkrts,pskh->pgtkrh', probs[..., :lp], v[:, :lp])
    out += jnp.einsum('pgkrts,pgskh->pgtkrh', probs[..., lp:], vc)
    out = out.reshape(p, g * t, *out.shape[3:])
    return jnp.concatenate([prompt, out], 1), None

  tokens = jnp.concatenate([prompts, completions.reshape(p, g * t)], 1)
  x = params['embed'][tokens]
  for layer in params['layers']:
    x, _ = _layer(w, layer, x, positions, attend)
  own = x[:, lp:].reshape(p, g, t, -1)
  last = jnp.broadcast_to(x[:, None, lp - 1 : lp], (p, g, 1, w.width))
  x = jnp.concatenate([last, own[:, :, :-1]], 2)
  logits = _norm(x, params['norm']) @ params['embed'].T
  chosen = jnp.take_along_axis(logits, completions[..., None], -1)[..., 0]
  return chosen - jax.nn.logsumexp(logits, -1)


def update(
    w: Workload,
    params: Params,
    moments: Any,
    prompts: jax.Array,
    completions: jax.Array,
    advantages: jax.Array,
) -> tuple[Params, Any]:
  """Apply one AdamW update; prompts [P, Lp], completions [P, G, Lc], [P, G]."""

  def loss(params, micro):
    prompts, completions, advantages = micro
    logprobs = _completion_logprobs(w, params, prompts, completions)
    # The gradient of the ratio, evaluated at the policy that sampled.
    return -jnp.sum(advantages[..., None] * logprobs) / scale

  def accumulate(total, micro):
    return jax.tree.map(jnp.add, total, jax.grad(loss)(params, micro)), None

  scale = completions.size
  split = lambda x: x.reshape(-1, w.micro_groups, *x.shape[1:])
  grads, _ = jax.lax.scan(
      accumulate,
      jax.tree.map(jnp.zeros_like, params),
      jax.tree.map(split, (prompts, completions, advantages)),
  )
  step, moments = optimizer().update(grads, moments, params)
  return optax.apply_updates(params, step), moments


def jit_rollout(w: Workload) -> Any:
  """Return `rollout`, compiled."""
  return jax.jit(functools.partial(rollout, w))


def jit_update(w: Workload) -> Any:
  """Return `update`, compiled; parameters and moments are donated."""
  return jax.jit(functools.partial(update, w), donate_argnums=(0, 1))
