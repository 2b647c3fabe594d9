"""GRPO on repositories with a bug, which an agent repairs with tools.

    python -m evojax.main --config=configs/swe.py[:variant]

An episode is up to 6 turns of the policy; tools and tests run in the box
(`python -m evojax.sandbox.probe` prints how strong it is).

variant      what                                          hardware
default      evolves the seed recipe                        2 CPU cores
smoke        a little of everything                        2 CPU cores
reference    hand-tuned, with known improvements           2 CPU cores
seed         the seed recipe alone, 150 steps              2 CPU cores
random       default with random changes                   2 CPU cores
leaky        default, but the history contains the fix     2 CPU cores
hard         default; a third of issues name no function   2 CPU cores
qwen3_0p6b   any Qwen3-0.6B directory (--config.model.path=DIR) on TPU v5e 4x4
qwen3_8b     any Qwen3-8B directory, on TPU v5p-16 (2x2x2, 8 chips)
qwen3_32b    any Qwen3-32B directory, on TPU v5p-64 (2x4x4, 32 chips)

Scores are in BUILD_NOTES.md. Numbers are changed on the command line
(--config.grpo.group_size=8), not by new variants.
"""
import ml_collections

from configs import common
from evojax import config as config_lib

# The bugs that the base policy is trained on, as OPERATOR:LEVEL. Operators are
# those of evojax/domains/swe/operators.py; at level 0 the issue names the
# function that has the bug, at level 1 it does not.
FAMILIES = (
    'boundary_slice:0',
    'dropped_call:0',
    'dropped_statement:0',
    'inverted_condition:0',
    'lost_sign:0',
    'off_by_one:0',
    'removed_return:0',
    'swapped_arguments:0',
    'swapped_operands:0',
    'wrong_assignment:0',
    'wrong_comparison:0',
    'wrong_default:0',
    'wrong_jump:0',
    'wrong_operator:0',
    'wrong_variable:0',
)
TOOLS = ('ls', 'grep', 'read', 'edit', 'test', 'git', 'submit')
VARIANTS = (*common.VARIANTS, 'leaky', 'hard')


def get_config(variant: str = 'default') -> ml_collections.ConfigDict:
  """Return the locked config of a variant.

  Raises:
    ValueError: If the variant is not one of VARIANTS.
  """
  common.check('swe', variant, VARIANTS)
  c = config_lib.base()
  c.name = f'swe-{variant}'
  c.domain.name = 'swe'
  c.domain.kwargs = ml_collections.ConfigDict({
      'families': FAMILIES,  # 'operator', 'operator:levels' or 'all'.
      'max_turns': 6,
      'scrubbed': True,  # False: the fix is on another branch of the history.
      'tools': TOOLS,
      'slots': 32,  # Concurrent workspaces, one per decode slot.
      'max_letters': 700,  # Characters of one tool reply.
      'read_lines': 14,  # Lines that `read` shows by default.
      # Unchanged lines that `git` shows around a change; 0, since episodes are
      # short. A patch still gives its line numbers.
      'patch_context': 0,
  })
  c.model.path = 'package:swe'
  c.data.max_prompt_tokens = 160
  c.rollout.max_tokens = 700  # In an episode, including tool replies.
  c.rollout.turn_tokens = 96
  c.rollout.decode_slots = 32
  c.rollout.prefill_rows = 8
  c.rollout.refill_every = 8
  c.steps = 60
  c.eval.problems = 93  # All dev problems.
  c.eval.samples = 4
  # Less than in other domains, since an update takes longer.
  c.evolve.rounds = 3
  c.evolve.pairs = 3  # The fewest from which a spread can be estimated.
  c.evolve.updates = 5
  c.evolve.problems = 24
  c.grpo.layout = 'packed'  # Most episodes use a quarter of the tokens.
  c.grpo.micro_groups = 6
  c.optim.learning_rate = 1e-4
  c.plan.mean_tokens = 220  # In training episodes of the shipped policy.
  c.warmstart.steps = 2400
  c.warmstart.vocab_size = 1344
  c.warmstart.hidden_size = 160
  c.warmstart.intermediate_size = 320
  c.warmstart.num_layers = 5  # Finding the wrong line takes several steps.
  c.warmstart.num_heads = 4
  c.warmstart.num_kv_heads = 2
  c.warmstart.head_dim = 32  # 128 would put most parameters into attention.
  c.warmstart.rows = 8
  c.warmstart.length = 544
  c.warmstart.examples = 20
  c.warmstart.max_completion = 560

  common.apply(c, variant)
  if variant == 'smoke':
    c.grpo.micro_groups = 2
    c.evolve.updates = 2  # An update takes longer than in other domains.
    c.rollout.decode_slots = 16  # As many as an update has episodes.
    c.domain.kwargs.slots = 16
  elif variant == 'seed':
    c.steps = 150  # An update takes longer than in other domains.
  elif variant == 'reference':
    # With 12 prompts and 80 updates, the dev score levels off at 32 % after 20
    # to 40 updates; with 32 prompts, at 34 to 36 %.
    c.grpo.prompts = 32
    c.grpo.micro_groups = 8
    c.steps = 40
    # The base policy solves 38 % of dev at temperature 0.2 and 21 % at 1: its
    # likeliest choices are better than its average ones. Training that samples
    # at a higher temperature than evaluations has to make these choices
    # clearer.
    c.rollout.temperature = 1.3
  elif variant == 'leaky':
    c.domain.kwargs.scrubbed = False
  elif variant == 'hard':
    c.domain.kwargs.families = ('all',)
  elif variant in common.SLICES:
    c.data.max_prompt_tokens = 3072  # Mostly the description of the tools.
    c.rollout.max_tokens = 8192
    c.rollout.turn_tokens = 2048
    c.rollout.decode_slots = 64  # 11,264 tokens each, and cached prefixes.
    c.rollout.prefill_rows = 8
    c.grpo.layout = 'shared'  # A group shares one long prompt.
    c.grpo.micro_groups = 1
    c.domain.kwargs = ml_collections.ConfigDict({
        'families': 'all',
        'max_turns': 20,
        'scrubbed': True,
        'tools': TOOLS,
        'slots': 64,
        'system_prompt': (
            'You repair a repository. Find the cause of the issue, change as'
            ' little as you can, run the tests, and submit.'
        ),
    })
  return c.lock()
