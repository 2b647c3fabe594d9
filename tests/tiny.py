"""A tiny random policy, and a run that trains it in seconds.

The module is also a config file: `--config=tests/tiny.py:VARIANT`, where the
variant is the directory of the policy, or `evolving`.
"""

from collections.abc import Mapping
import os
import pathlib
import sys
from typing import Any

import jax
import ml_collections
import numpy as np

from configs import math as math_config
from evojax import domains
from evojax.models import decoder
from evojax.models import hf
from evojax.models import hf_config
from tests import compiled

ROOT = pathlib.Path(__file__).resolve().parents[1]


def environment(**extra: str) -> dict[str, str]:
  """Return the environment of a child process that shares compiled programs.

  Add `**compiled.OPTIMISED` for processes that compute longer than they
  compile.
  """
  # A child process does not inherit the paths that pytest added.
  path = os.pathsep.join(map(str, (ROOT, *filter(None, sys.path))))
  paths = {'PYTHONPATH': path, 'JAX_PLATFORMS': 'cpu'}
  return os.environ | paths | compiled.QUICKLY | extra


def make_policy(
    path: str | os.PathLike[str],
    seed: int = 0,
    *,
    tokenizer: pathlib.Path | None = None,
    max_positions: int = 64,
    kv_heads: int = 1,
    hidden_size: int = 16,
) -> pathlib.Path:
  """Write a random Qwen3 directory, by default with the math tokenizer."""
  tokenizer = tokenizer or domains.policy_path('package:math')
  cfg = decoder.DecoderConfig(
      family='qwen3',
      vocab_size=hf_config.load(tokenizer).vocab_size,
      hidden_size=hidden_size,
      intermediate_size=32,
      num_layers=1,
      num_heads=2,
      num_kv_heads=kv_heads,
      head_dim=8,
      qk_norm=True,
      tie_embeddings=True,
      max_positions=max_positions,
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
  """Return reward parts for random text, which solves nothing."""
  return {
      'sure': e.mean_logprob,  # Differs within every group,
      'coarse': np.round(e.mean_logprob),  # and not within every group.
      'brief': 1 - e.n_tokens / np.float32(e.max_tokens),
      'outcome': e.outcome.astype(np.float32),
  }


def make_config(
    policy: str | os.PathLike[str], **overrides: Any
) -> ml_collections.ConfigDict:
  """Return the config of a run: two steps of two groups of four.

  Args:
    policy: From `make_policy`.
    **overrides: Values of fields; grpo__epochs stands for grpo.epochs.
  """
  c = math_config.get_config('smoke').unlock()
  c.name = 'tiny'
  c.steps = 2
  c.evolve.rounds = 0
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
  c.reward.weights = ml_collections.ConfigDict({'sure': 2.0, 'brief': 0.5})
  c.optim.learning_rate = 1e-2
  c.checkpoint.every = 2
  c.eval.problems = 4
  c.eval.samples = 2
  c.log.tensorboard = False
  return _override(c, overrides).lock()


def _override(
    c: ml_collections.ConfigDict, values: Mapping[str, Any]
) -> ml_collections.ConfigDict:
  """Set fields; grpo__epochs stands for grpo.epochs."""
  for name, value in values.items():
    *groups, leaf = name.split('__')
    holder = c
    for group in groups:
      holder = holder[group]
    holder[leaf] = value
  return c


def get_config(policy: str) -> ml_collections.ConfigDict:
  """Return a run with everything that must survive a resume; see `kill_test`.

  Args:
    policy: From `make_policy`; 'evolving' gives a round of the meta-loop.
  """
  if policy == 'evolving':
    return evolving(evolve__rounds=1)
  return make_config(
      policy,
      seed=5,  # All steps replace groups, so the cursor's pace varies.
      steps=4,
      eval__every=2,
      grpo__keep='reward_variance',
      grpo__refill_rounds=2,
      reward__weights=ml_collections.ConfigDict({'coarse': 1.0, 'brief': 0.5}),
      optim__warmup_steps=3,
  )


def evolving(**overrides: Any) -> ml_collections.ConfigDict:
  """Return a run of the meta-loop, as small as its statistics allow.

  It needs the shipped policy: a random one solves nothing and scores 0.
  """
  options = dict(
      domain__kwargs__families=('chain_sum:0', 'products:0'),
      rollout__max_tokens=32,
      rollout__decode_slots=16,
      rollout__prefill_rows=4,
      grpo__prompts=4,
      grpo__group_size=4,
      steps=2,
      eval__problems=4,
      eval__samples=2,
      evolve__rounds=2,
      evolve__candidates=1,
      evolve__pairs=3,
      evolve__updates=2,
      evolve__first_updates=2,
      evolve__problems=8,
      evolve__samples=2,
      evolve__replay_updates=1,
      evolve__replay_problems=4,
      evolve__salt='pepper',
      log__tensorboard=False,
  )
  c = math_config.get_config('smoke')
  return _override(c.unlock(), options | overrides).lock()
