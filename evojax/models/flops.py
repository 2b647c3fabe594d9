"""FLOPs of a forward pass, and FLOP/s of a device.

Only matrix products are counted, at two FLOPs per multiply-add.
"""

import math
import time
from typing import Any

import jax
import numpy as np

from evojax.models import decoder

FORMULA = (
    'forward(tokens, pairs, logits) ='
    ' layers (2 (D (N + 2K) H + N H D + 3 D F) tokens + 4 N H pairs)'
    ' + 2 D V logits'
)


def forward(
    cfg: decoder.DecoderConfig,
    tokens: int | float,
    pairs: int | float,
    logits: int | float,
) -> int | float:
  """Return the FLOPs of a forward pass by FORMULA.

  Args:
    cfg: Shape of the decoder.
    tokens: Number of tokens that run through the layers, padding included.
    pairs: Number of query-key pairs with a score, masked ones included.
    logits: Number of tokens whose logits are computed.
  """
  d, h, n, k = (cfg.hidden_size, cfg.head_dim, cfg.num_heads, cfg.num_kv_heads)
  layer = d * (n + 2 * k) * h + n * h * d + 3 * d * cfg.intermediate_size
  return (
      2 * cfg.num_layers * layer * tokens
      + 4 * cfg.num_layers * n * h * pairs
      + 2 * d * cfg.vocab_size * logits
  )


def measure(device: Any, *, size: int = 1024, seconds: float = 0.3) -> float:
  """Return a device's FLOP/s, the best of a few float32 matrix products."""
  x = jax.device_put(np.ones((size, size), np.float32), device)
  product = jax.jit(lambda x: x @ x).lower(x).compile()
  best, stop = math.inf, time.perf_counter() + seconds
  while time.perf_counter() < stop or math.isinf(best):
    start = time.perf_counter()
    product(x).block_until_ready()
    best = min(best, time.perf_counter() - start)
  return 2 * size**3 / best
