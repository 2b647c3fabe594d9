"""FLOPs of a forward pass, and FLOP/s of a device.

Only matrix products are counted, at two FLOPs per multiply-add.
"""

import math
import time
from typing import Any

import jax
from jaxtyping import Int
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


def model(
    cfg: decoder.DecoderConfig,
    prompts: Int[np.ndarray, 'P'],
    completions: Int[np.ndarray, 'P G'],
) -> int | float:
  """Return the minimum FLOPs of a forward pass over groups.

  This is the count for model FLOPs utilisation (Chowdhery et al. 2022,
  arXiv:2204.02311, App. B): neither padding nor recomputation counts. In
  addition, a token attends only to itself and earlier tokens, a prompt counts
  once for its group, and only the tokens after the prompt have logits, those of
  observations included. The windows of layers are not subtracted.

  Args:
    cfg: Shape of the decoder.
    prompts: Number of tokens of each prompt.
    completions: Number of tokens of each completion.
  """
  prompt, new = np.float64(prompts), np.float64(completions)
  pairs = (prompt * (prompt + 1) / 2).sum() + (
      new * prompt[:, None] + new * (new + 1) / 2
  ).sum()
  return forward(cfg, prompt.sum() + new.sum(), pairs, new.sum())


def passes(cfg: decoder.DecoderConfig) -> int:
  """Return the FLOPs of an update in units of its forward pass.

  The backward pass has two products for each product of the forward pass, or
  one where weights are frozen.
  """
  return 2 if cfg.lora_rank else 3


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
