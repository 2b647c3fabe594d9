"""A full forward pass of one sequence, the reference in parity tests."""

from collections.abc import Sequence
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from evojax.models import decoder

# Rows are padded on the right to this width, so that all lengths share a
# program. Attention is causal, so padding has no effect.
_WIDTH = 128
# A policy of several layers and heads that is quick to run.
CFG = decoder.DecoderConfig(
    family='qwen3',
    vocab_size=40,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    qk_norm=True,
)


def logits(
    cfg: decoder.DecoderConfig, params, tokens: Sequence[int] | np.ndarray
) -> Float[Array, 'N V']:
  """Return the logits after each token, a function that jax can differentiate.

  Raises:
    ValueError: If there are more tokens than a row holds.
  """
  row = np.zeros((1, _WIDTH), np.int32)
  row[0, : len(tokens)] = tokens
  return _forward(cfg, params, row)[: len(tokens)]


@functools.partial(jax.jit, static_argnums=0)
def _forward(cfg, params, row):
  positions = jnp.arange(row.shape[1])[None]
  hidden = decoder.forward(cfg, params, row, positions, jnp.ones_like(row))
  return decoder.logits(cfg, params, hidden[0])
