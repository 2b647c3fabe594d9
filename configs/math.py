"""GRPO on procedurally generated math problems.

    python -m evojax.main --config=configs/math.py[:variant]

variant      what                                          hardware    time
default      evolves the seed recipe on the shipped policy 2 CPU cores 12 min
smoke        a little of everything                        2 CPU cores 1 min
reference    hand-tuned, with known improvements           2 CPU cores 3 min
seed         the seed recipe alone, 450 steps              2 CPU cores 12 min
random       default with random changes                   2 CPU cores 12 min
qwen3_0p6b   any Qwen3-0.6B directory (--config.model.path=DIR) on TPU v5e 4x4
qwen3_8b     any Qwen3-8B directory, on TPU v5p-16 (2x2x2, 8 chips)
qwen3_32b    any Qwen3-32B directory, on TPU v5p-64 (2x4x4, 32 chips)

Scores are in BUILD_NOTES.md. Numbers are changed on the command line
(--config.grpo.group_size=8), not by new variants.
"""
import ml_collections

from configs import common
from evojax import config as config_lib

# The families that the shipped base policy was trained on: family:levels of
# evojax/domains/math/generators.py.
FAMILIES = (
    'chain_sum:0-3',
    'decimal_chain_sum:0-1',
    'products:0',
    'leg_counting:0-1',
    'simple_equations:0-1',
    'gcd:0',
    'fraction_simplification:0',
)
VARIANTS = common.VARIANTS


def get_config(variant: str = 'default') -> ml_collections.ConfigDict:
  """Return the locked config of a variant.

  Raises:
    ValueError: If the variant is not one of VARIANTS.
  """
  common.check('math', variant)
  c = config_lib.base()
  c.name = f'math-{variant}'
  c.domain.name = 'math'
  c.domain.kwargs = ml_collections.ConfigDict({
      'families': FAMILIES,  # Names, 'name:levels', 'small' or 'all'.
      'answer_format': 'tag',  # tag | boxed | hash | last_number.
  })
  c.model.path = 'package:math'
  c.data.max_prompt_tokens = 32  # The prompts have 10 to 18.
  c.steps = 120
  c.eval.problems = 256
  c.grpo.micro_groups = 2
  # The 96 samples of an arm take 2/3 of the time that they take with 128.
  c.rollout.decode_slots = 64
  c.rollout.prefill_rows = 8
  c.rollout.refill_every = 8
  c.optim.learning_rate = 1e-4
  c.plan.mean_tokens = 28  # In training with the shipped policy.
  c.warmstart.steps = 1400

  common.apply(c, variant)
  if variant in common.SLICES:
    c.domain.kwargs = ml_collections.ConfigDict({
        'families': ('all',),
        'answer_format': 'boxed',
        'system_prompt': (
            'Reason step by step and put the final answer in \\boxed{}.'
        ),
        'max_turns': 1,  # With tools: above 1; set rollout.turn_tokens, too.
        'tools': (),  # ('python',) runs programs in the box.
    })
  return c.lock()
