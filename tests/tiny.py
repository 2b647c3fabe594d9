"""A tiny random policy, and a run that trains it in seconds.

Also a config file: `--config=tests/tiny.py:DIRECTORY_OF_THE_POLICY`.
"""

import os
import pathlib
from typing import Any

import jax
import ml_collections
import numpy as np

from configs import math as math_config
from evojax.models import decoder
from evojax.models import hf
from evojax.models import policy as policy_lib

# Processes that compile the same small programs compile them once. Set before
# jax reads its environment, so in the environment of a child.
CACHE = {
    'JAX_PLATFORMS': 'cpu',
    'JAX_COMPILATION_CACHE_DIR': os.path.expanduser('~/.cache/evojax/tests'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
}


def make_policy(path: str | os.PathLike[str], seed: int = 0) -> pathlib.Path:
  """Writes a random Qwen3 directory with the tokenizer of the math policy."""
  tokenizer = policy_lib.resolve('package:math')
  cfg = decoder.DecoderConfig(
      family='qwen3',
      vocab_size=hf.load_config(tokenizer).vocab_size,
      hidden_size=16,
      intermediate_size=32,
      num_layers=1,
      num_heads=2,
      num_kv_heads=1,
      head_dim=8,
      qk_norm=True,
      tie_embeddings=True,
      max_positions=64,
  )
  rng = np.random.default_rng(seed)
  params = jax.tree.map(
      lambda x: (
          rng.normal(0, 0.3, x.shape).astype(np.float32)
          if len(x.shape) > 1
          else np.ones(x.shape, np.float32)
      ),
      jax.eval_shape(lambda: decoder.init(cfg, jax.random.key(0))),
  )
  path = pathlib.Path(path)
  hf.save(path, cfg, params, dtype='float32', tokenizer_dir=tokenizer)
  return path


def parts(e: Any) -> dict[str, np.ndarray]:
  """Reward parts that differ within every group, even of random text."""
  return {
      'sure': e.mean_logprob,
      'brief': 1 - e.n_tokens / np.float32(e.max_tokens),
      'outcome': e.outcome.astype(np.float32),
  }


def make_config(
    policy: str | os.PathLike[str], **overrides: Any
) -> ml_collections.ConfigDict:
  """The run, locked.

  Args:
    policy: From `make_policy`.
    **overrides: Values of fields, 'grpo__epochs' for grpo.epochs.
  """
  c = math_config.get_config('smoke').unlock()
  c.name = 'tiny'
  c.steps = 2
  c.model.path = os.fspath(policy)
  c.domain.kwargs.families = ('chain_sum:0', 'products:0')
  c.rollout.max_tokens = 12
  c.rollout.decode_slots = 8
  c.rollout.prefill_rows = 2
  c.rollout.refill_every = 4
  c.grpo.prompts = 2
  c.grpo.group_size = 4
  c.grpo.micro_groups = 1
  c.reward.parts = 'tests.tiny.parts'
  c.reward.weights = ml_collections.ConfigDict({'sure': 1.0, 'brief': 0.5})
  c.optim.learning_rate = 1e-2
  c.checkpoint.every = 2
  c.eval.problems = 4
  c.eval.samples = 2
  c.log.tensorboard = False
  c.update_from_flattened_dict(
      {name.replace('__', '.'): value for name, value in overrides.items()}
  )
  return c.lock()


def get_config(policy: str) -> ml_collections.ConfigDict:
  """The run as a config file; its variant is the policy's directory."""
  return make_config(policy, steps=4)
