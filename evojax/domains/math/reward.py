"""Reward parts of the math domain; a config weighs them and adds them up."""

from jaxtyping import Float
import numpy as np

from evojax.evidence import views

OVERLONG_CACHE = 0.25  # L_cache as a share of max_tokens.


def parts(e: views.View) -> dict[str, Float[np.ndarray, 'P G']]:
  """The parts of the reward, each before its weight.

  outcome: 1 if solved, else 0.
  format: 1 if there is an answer in the required format, else 0.
  overlong: 0 up to L_max - L_cache tokens, then linearly down to -1 at L_max;
    soft overlong punishment, DAPO (Yu et al. 2025, arXiv:2503.14476, eq. 13)
    with L_cache = L_max / 4.
  length: share of max_tokens used, 0..1; a negative weight pays for brevity.

  Args:
    e: Reads outcome, format_ok (bool [P, G]), n_tokens (int32 [P, G], tokens)
      and max_tokens (L_max, the sampling limit in tokens).

  Returns:
    Name -> float32 [P, G].
  """
  used = e.n_tokens.astype(np.float32) / np.float32(e.max_tokens)
  free = np.float32(1 - OVERLONG_CACHE)
  overlong = np.clip((free - used) / np.float32(OVERLONG_CACHE), -1, 0)
  return {
      'outcome': e.outcome.astype(np.float32),
      'format': e.format_ok.astype(np.float32),
      'overlong': overlong,
      'length': used,
  }
