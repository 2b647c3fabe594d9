"""The variants that the configs of all domains share.

A config module defines `get_config(variant)`. It starts from `base()` of
`evojax.config`, which declares every field with its meaning, and changes some
values. evojax never executes anything in a config: it is data. A value used
twice is written once and referenced (`get_ref`), so that an override on the
command line changes both.
"""

import ml_collections
from ml_collections import config_dict

# Values for TPU slices: the mesh, and sizes that fit with a Qwen3 of that size.
SLICES = {
    'qwen3_0p6b': {  # v5e 4x4: 16 chips of 16 GiB.
        'mesh.fsdp': 4,
        'mesh.tensor': 4,
        'grpo.group_size': 8,
        'grpo.micro_groups': 4,
        'rollout.max_tokens': 3072,
        'rollout.decode_slots': 256,
    },
    'qwen3_8b': {  # v5p-16, 2x2x2: 8 chips of 95 GiB.
        'mesh.fsdp': 4,
        'mesh.tensor': 2,
        'grpo.group_size': 16,
        'grpo.micro_groups': 1,
        'rollout.max_tokens': 15_360,
        'rollout.decode_slots': 64,
    },
    'qwen3_32b': {  # v5p-64, 2x4x4: 32 chips of 95 GiB.
        'mesh.fsdp': 8,
        'mesh.tensor': 4,
        'grpo.group_size': 16,
        'grpo.micro_groups': 1,
        'rollout.max_tokens': 15_360,
        'rollout.decode_slots': 64,
    },
}
# Variants of every domain's config; a config file may add its own.
VARIANTS = ('default', 'smoke', 'reference', 'seed', 'random', *SLICES)
# Steps of the variant `seed`, more than `default` usually makes in its arms.
_SEED_STEPS = 450


def check(
    name: str, variant: str, variants: tuple[str, ...] = VARIANTS
) -> None:
  """Check that a config file has a variant.

  Raises:
    ValueError: If it does not; the message names the config file.
  """
  if variant not in variants:
    raise ValueError(f'configs/{name}.py:{variant}: choose one of {variants}')


def apply(c: ml_collections.ConfigDict, variant: str) -> None:
  """Apply the changes of a variant, which are the same for every domain.

  Args:
    c: The domain's default config.
    variant: One of VARIANTS.
  """
  if variant == 'smoke':
    c.steps = 3
    c.grpo.prompts = 4
    c.grpo.group_size = 4
    c.eval.problems = 16
    c.eval.samples = 4
    c.checkpoint.every = 2
    c.evolve.rounds = 2
    c.evolve.candidates = 1
    c.evolve.settled = 1.0  # Changes may race from the first round on.
    c.evolve.pairs = 3
    c.evolve.updates = 3
    c.evolve.first_updates = 4
    c.evolve.problems = 16
    c.evolve.samples = 2
    c.evolve.replay_updates = 1
    c.evolve.replay_problems = 8
  elif variant == 'seed':
    c.evolve.rounds = 0
    c.steps = _SEED_STEPS
  elif variant == 'random':
    c.evolve.proposer = 'random'
  elif variant == 'reference':
    c.evolve.rounds = 0
    # Clip-Higher: arXiv:2503.14476, Sec. 3.1. It has an effect only if epochs
    # or minibatches make several updates per batch.
    c.grpo.clip_high = 0.28
    c.grpo.aggregation = 'token'  # Token-level loss: ibid., Sec. 3.3.
    c.grpo.keep = 'reward_variance'  # Groups without signal: Sec. 3.2.
    c.grpo.refill_rounds = 1
    c.reward.weights = ml_collections.ConfigDict({
        'outcome': 1.0,
        'overlong': 0.5,  # Soft punishment of overlong answers: Sec. 3.4.
    })
    c.optim.learning_rate = 3e-4
    c.optim.warmup_steps = 5
  elif variant in SLICES:
    c.update_from_flattened_dict(SLICES[variant])
    c.plan.mean_tokens = 0  # Known only for the small policies.
    c.model.path = config_dict.placeholder(str)
    c.model.compute_dtype = 'bfloat16'
    c.model.remat = 'full'
    c.model.scan_layers = True
    c.model.logprob_chunk = 2048
    c.data.max_prompt_tokens = 1024
    c.rollout.prefill_rows = 16
    c.rollout.refill_every = 64
    c.grpo.prompts = 64
    c.grpo.clip_high = 0.28
    c.grpo.aggregation = 'token'
    c.grpo.keep = 'reward_variance'
    c.grpo.tis_cap = 2.0
    c.optim.learning_rate = 1e-6
    c.optim.warmup_steps = 10
    c.evolve.updates = 20
    c.evolve.problems = 256
    c.steps = 500
