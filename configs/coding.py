"""GRPO on procedurally generated programming problems.

    python -m evojax.main --config=configs/coding.py[:variant]

The policy writes Python 3 that reads stdin and writes stdout; every program
runs in the box (`python -m evojax.sandbox.probe` prints how strong it is).

variant      what                                          hardware    time
default      evolves the seed recipe on the shipped policy 2 CPU cores 20 min
smoke        a little of everything                        2 CPU cores 3 min
reference    hand-tuned, with known improvements           2 CPU cores 4 min
seed         the seed recipe alone, 450 steps              2 CPU cores
random       default with random changes                   2 CPU cores 20 min
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
# evojax/domains/coding/families/.
FAMILIES = (
    'sums:0-2',
    'counting:0-2',
    'extremes:0-2',
    'sorting:0-2',
    'pairs:0-2',
    'windows:0-2',
    'letters:0-2',
    'slices:0-2',
    'ciphers:0-2',
    'words:0-2',
    'intervals:0-2',
    'grids:0-2',
    'multiples:0-2',
    'simulation:0-2',
    'dynamic:0-2',
)
VARIANTS = common.VARIANTS


def get_config(variant: str = 'default') -> ml_collections.ConfigDict:
  """Return the locked config of a variant.

  Raises:
    ValueError: If the variant is not one of VARIANTS.
  """
  common.check('coding', variant)
  c = config_lib.base()
  c.name = f'coding-{variant}'
  c.domain.name = 'coding'
  c.domain.kwargs = ml_collections.ConfigDict({
      'families': FAMILIES,  # Names, 'name:levels' or 'all'.
      # Runs and counts all tests, for the intervention that rewards partial
      # credit. False stops at the first failing test: half as many runs.
      'partial': True,
      'slots': 0,  # Concurrent programs; 0: one per core.
  })
  c.model.path = 'package:coding'
  c.data.max_prompt_tokens = 112  # Most prompts have 27 to 92, a few 98.
  c.rollout.max_tokens = 96  # Finished programs have 10 to 90.
  c.rollout.decode_slots = 64
  c.rollout.prefill_rows = 8
  c.rollout.refill_every = 8
  c.steps = 60
  # After three rounds, 95 % of the training problems are solved
  # (BUILD_NOTES.md).
  c.evolve.rounds = 4
  c.eval.problems = 256
  c.grpo.micro_groups = 2
  c.optim.learning_rate = 1e-4
  c.plan.mean_tokens = 50  # In training with the shipped policy.
  c.warmstart.steps = 2000
  c.warmstart.vocab_size = 768
  c.warmstart.length = 192
  c.warmstart.examples = 60
  c.warmstart.max_completion = 96

  common.apply(c, variant)
  if variant in common.SLICES:
    c.domain.kwargs = ml_collections.ConfigDict({
        'families': ('all',),
        'partial': False,
        'slots': 0,
        'system_prompt': (
            'Write a Python 3 program that reads standard input and prints the'
            ' answer. Think first, then give the whole program in one ```python'
            ' block.'
        ),
    })
  return c.lock()
