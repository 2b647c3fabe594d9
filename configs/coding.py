"""GRPO on procedurally generated programming problems.

    python -m evojax.main --config=configs/coding.py[:variant]

The policy writes Python 3 that reads stdin and writes stdout; every program
runs in the box (`python -m evojax.sandbox.probe` says how strong it is here).

variant      what                                          hardware    time
default      evolves the seed recipe on the shipped policy 2 CPU cores 25 min
smoke        a little of everything                        2 CPU cores 3 min
reference    tuned by hand with what the field knows       2 CPU cores
seed         the seed recipe for as long as default takes  2 CPU cores
random       default with random changes                   2 CPU cores 25 min
qwen3_0p6b   any Qwen3-0.6B directory (--config.model.path=DIR) on TPU v5e 4x4

Numbers are changed on the command line (--config.grpo.group_size=8), not by new
variants.
"""
import ml_collections

from configs import common

# What the shipped base policy was taught: family:levels of
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
VARIANTS = ('default', 'smoke', 'reference', 'seed', 'random', 'qwen3_0p6b')


def get_config(variant: str = 'default') -> ml_collections.ConfigDict:
  """Returns the locked config of a variant.

  Raises:
    ValueError: If the variant is not one of VARIANTS.
  """
  if variant not in VARIANTS:
    raise ValueError(f'configs/coding.py:{variant}: choose one of {VARIANTS}')
  c = common.base()
  c.name = f'coding-{variant}'
  c.domain.name = 'coding'
  c.domain.kwargs = ml_collections.ConfigDict({
      'families': FAMILIES,  # Names, 'name:levels' or 'all'.
      # All tests are run and counted, for the intervention that rewards partial
      # credit. False stops at the first that fails: half as many runs.
      'partial': True,
      'slots': 0,  # Programs at the same time; 0: one per core.
  })
  c.model.path = 'package:coding'
  c.data.max_prompt_tokens = 96  # Its prompts have 40 to 90.
  c.rollout.max_tokens = 96  # Programs that end have 10 to 90.
  c.rollout.decode_slots = 64
  c.rollout.prefill_rows = 8
  c.rollout.refill_every = 8
  c.steps = 40
  c.eval.problems = 256
  c.grpo.prompts = 16
  c.grpo.group_size = 8
  c.grpo.micro_groups = 2
  c.optim.learning_rate = 1e-4
  c.evolve.trials = 3
  c.evolve.updates = 24
  c.evolve.problems = 320
  c.evolve.samples = 2
  c.warmstart.steps = 2000
  c.warmstart.vocab_size = 768
  c.warmstart.length = 192
  c.warmstart.examples = 60
  c.warmstart.max_completion = 96

  if variant == 'smoke':
    c.steps = 3
    c.grpo.prompts = 8
    c.grpo.group_size = 8
    c.eval.problems = 16
    c.eval.samples = 4
    c.checkpoint.every = 2
    c.evolve.trials = 3
    c.evolve.updates = 4
    c.evolve.first_updates = 4
    c.evolve.prompts = 4
    c.evolve.group_size = 4
    c.evolve.problems = 16
    c.evolve.samples = 2
    c.evolve.replay_updates = 1
    c.evolve.replay_problems = 8
    c.evolve.underpowered = 'run'  # So little can detect nothing.
  elif variant == 'seed':
    c.evolve.trials = 0
    c.steps = 300
  elif variant == 'random':
    c.evolve.proposer = 'random'
  elif variant == 'reference':
    c.evolve.trials = 0
    c.grpo.clip_high = 0.28  # Clip-Higher: arXiv:2503.14476, Sec. 3.1.
    c.grpo.aggregation = 'token'  # Token-level loss: ibid., Sec. 3.3.
    c.grpo.keep = 'reward_variance'  # Groups without signal: Sec. 3.2.
    c.grpo.refill_rounds = 1
    c.reward.weights = ml_collections.ConfigDict({
        'outcome': 1.0,
        'overlong': 0.5,  # Soft punishment of overlong answers: Sec. 3.4.
    })
    c.optim.learning_rate = 3e-4
    c.optim.warmup_steps = 5
  elif variant == 'qwen3_0p6b':
    c.model.path = ml_collections.config_dict.placeholder(str)
    c.model.compute_dtype = 'bfloat16'
    c.model.remat = 'full'
    c.model.scan_layers = True
    c.model.logprob_chunk = 2048
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
    c.data.max_prompt_tokens = 1024
    c.rollout.max_tokens = 3072
    c.rollout.decode_slots = 256
    c.rollout.prefill_rows = 16
    c.rollout.refill_every = 64
    c.mesh.fsdp = 8
    c.mesh.tensor = 2
    c.grpo.prompts = 64
    c.grpo.group_size = 8
    c.grpo.micro_groups = 8
    c.grpo.clip_high = 0.28
    c.grpo.aggregation = 'token'
    c.grpo.keep = 'reward_variance'
    c.grpo.tis_cap = 2.0
    c.optim.learning_rate = 1e-6
    c.optim.warmup_steps = 10
    c.evolve.updates = 50
    c.evolve.prompts = 32
    c.evolve.problems = 256
    c.steps = 500
  return c.lock()
