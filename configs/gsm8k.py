"""GRPO of a Qwen3 checkpoint on GSM8K, or on files in the same format.

    bash launch/reference_run.sh DIR DATA

variant      what                                        hardware
default      100 steps of 64 prompts x 8 completions     GPUs or TPUs
smoke        three small steps                           a CPU

The script sets the model and the files. `default` shares the parameters among
all available devices (mesh.fsdp = -1); --mode=plan says whether they fit.
The budget is fixed, so that results on different hardware can be compared.
There are no scores yet: the README says which rows have been run.
"""

import ml_collections

from configs import common
from configs import math as math_config

VARIANTS = ('default', 'smoke')


def get_config(variant: str = 'default') -> ml_collections.ConfigDict:
  """Return the locked config of a variant.

  Raises:
    ValueError: If the variant is not one of VARIANTS.
  """
  common.check('gsm8k', variant, VARIANTS)
  c = math_config.get_config('qwen3_0p6b').unlock()
  c.name = f'gsm8k-{variant}'
  c.domain.kwargs = ml_collections.ConfigDict({
      # Empty: dev and sealed problems are split off from train, by hash.
      'jsonl': {'train': '', 'dev': '', 'sealed': ''},
      'answer_format': 'boxed',
      'system_prompt': (
          'Reason step by step and put the final answer in \\boxed{}.'
      ),
  })
  c.mesh.fsdp = -1
  c.mesh.tensor = 1
  c.data.max_prompt_tokens = 512
  c.rollout.max_tokens = 1024
  c.rollout.decode_slots = 128  # With 256, one H100 could not hold the cache.
  c.steps = 100
  c.evolve.rounds = 0
  c.eval.problems = 512
  c.eval.samples = 4
  if variant == 'smoke':
    c.model.compute_dtype = 'float32'
    c.rollout.max_tokens = 16
    c.rollout.decode_slots = 16
    c.rollout.prefill_rows = 4
    c.rollout.refill_every = 8
    c.grpo.prompts = 4
    c.grpo.group_size = 4
    c.grpo.micro_groups = 2
    # With random weights nothing is solved, so that a filter by the variance of
    # rewards would drop every group, and no update would be made.
    c.grpo.keep = 'all'
    c.steps = 3
    c.optim.warmup_steps = 0
    c.eval.problems = 16
    c.eval.samples = 2
  return c.lock()
