"""Log-probs under the policy of this process, to compare with a server's.

If a server and this process agree on the log-probs of sampled tokens, they have
the same weights, the same token ids and the same meaning of temperature.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evojax.models import decoder
from evojax.runtime import sharding

_Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]
# (params, rows of (prompt, completion), temperatures) -> log-probs, per row.
Scorer = Callable[[Any, _Pairs, Sequence[float]], list[np.ndarray]]


def make_scorer(
    cfg: decoder.DecoderConfig,
    mesh: jax.sharding.Mesh,
    *,
    rows: int,
    length: int,
) -> Scorer:
  """Return a scorer of one shape, which is compiled once.

  Args:
    cfg: Shape of the policy.
    mesh: The devices that hold its parameters.
    rows: Rows that are computed at once; rounded up to a multiple of the
      mesh's batch shards.
    length: Maximum number of tokens of a row, prompt and completion together.
  """
  shards = sharding.batch_shards(mesh)
  rows = -(-rows // shards) * shards
  batch = sharding.shardings(mesh, ('batch', None))
  whole = sharding.replicated(mesh)

  @jax.jit
  def score(params, tokens, segments, temperatures):
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    hidden = decoder.forward(cfg, params, tokens, positions, segments)
    # The tokens are so few that all logits fit into memory at once.
    logits = decoder.logits(cfg, params, hidden[:, :-1])
    scores = jax.nn.log_softmax(logits / temperatures[:, None, None], -1)
    return jnp.take_along_axis(scores, tokens[:, 1:, None], -1)[..., 0]

  def some(params, pairs, temperatures):
    tokens, segments = np.zeros((2, rows, length), np.int32)
    scale = np.ones(rows, np.float32)
    for b, (prompt, completion) in enumerate(pairs):
      row = [*prompt, *completion]
      tokens[b, : len(row)] = row
      segments[b, : len(row)] = 1
      scale[b] = temperatures[b]
    with sharding.use(mesh):
      arrays = [sharding.to_device(x, batch) for x in (tokens, segments)]
      scores = score(params, *arrays, sharding.to_device(scale, whole))
      scores = sharding.to_host(scores)
    return [
        scores[b, len(prompt) - 1 : len(prompt) + len(completion) - 1]
        for b, (prompt, completion) in enumerate(pairs)
    ]

  def scorer(params, pairs, temperatures):
    found = []
    for i in range(0, len(pairs), rows):
      j = i + rows
      found += some(params, pairs[i:j], temperatures[i:j])
    return found

  return scorer
