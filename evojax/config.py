"""The config of a run: every field, declared once, with its allowed values.

FIELDS declares name, default, meaning, bounds and choices of every field, and
for some fields how a harness may change them. `base` makes the default config,
which the files in `configs/` modify; `runtime.config_checks`, `harness.surface`
and `--mode=check` use the same declarations.

This module imports ml_collections only, so that configs stay light.
"""

from collections.abc import Mapping
import dataclasses
import difflib
import hashlib
import json
import math
from typing import Any

import ml_collections
from ml_collections import config_dict


@dataclasses.dataclass(frozen=True)
class Tunable:
  """The changes that a harness may make to a field, with their bounds."""

  intervention_class: str  # Topic of a trial that changes it, e.g. 'optimizer'.
  low: int | float = -math.inf  # Bounds of a number, both allowed.
  high: int | float = math.inf
  off: int | float | None = None  # Extra value that turns it off.
  scale: str = 'linear'  # linear | log: scale of steps between values.
  group: str = ''  # Factor group; '': a factor of its own.
  compiles: bool = False  # Whether a change compiles a new train step.
  end: str = ''  # Field whose value is an upper bound, too.

  def highest(self, config: Mapping[str, Any]) -> int | float:
    """Return the upper bound, given a config's values by dotted path."""
    return min(self.high, config[self.end]) if self.end else self.high


@dataclasses.dataclass(frozen=True)
class Field:
  """One field of the config."""

  path: str  # Dotted: 'grpo.group_size'.
  # A type stands for a placeholder of that type, which is None until it is set.
  # A dict stands for a group with arbitrary names.
  default: Any
  doc: str  # Meaning and unit.
  low: int | float = -math.inf  # Bounds of a number, both allowed.
  high: int | float = math.inf
  choices: tuple[str, ...] = ()  # Allowed values; empty: all.
  # The reason for the bounds, if it is not obvious, and the remedy.
  reason: str = ''
  # The usual range, both ends included; a diagnosis reports other values.
  usual: tuple[float | int, float | int] | None = None
  tunable: Tunable | None = None  # None: no harness may change it.

  def problem(self, value: Any) -> str:
    """Return what is wrong with a value; '' if nothing is."""
    if self.choices and value not in self.choices:
      return f'choose one of {self.choices}'
    if isinstance(value, float) and not math.isfinite(value):
      return 'must be a finite number'
    bounded = (self.low, self.high) != (-math.inf, math.inf)
    if bounded and not self.low <= value <= self.high:
      return self.reason or f'must lie in [{self.low:g}, {self.high:g}]'
    return ''

  def is_usual(self, value: Any) -> bool:
    """Return whether a value is in the usual range, if one is declared."""
    if self.usual is None or not isinstance(value, int | float):
      return True
    low, high = self.usual
    off = self.tunable.off if self.tunable else None
    return low <= value <= high or value == off


# A table laid out by hand, since one line per argument would take four times
# the space. Its columns are path, default, meaning, lowest and highest value.
# Moving a tunable field changes the draws of the random proposer, which numbers
# the tunable fields in this order.
# fmt: off
FIELDS = (
    Field('name', 'run', 'Name in progress lines, W&B and reports.'),
    Field('seed', 0, 'Seeds problems, sampling and shuffles.', 0, 2**32 - 1),
    Field('steps', 100, 'GRPO steps, each a rollout and an update. In a run'
          ' that evolves, only evolve.retrain trains for this many.', 0),

    Field('domain.name', 'math',
          'Key of evojax.domains.DOMAINS, or the dotted path of a module.'),
    Field('domain.kwargs', {}, 'Arguments for making the domain.'),
    Field('domain.judge', {}, 'A language model that scores every episode into'
          ' the column judge, see evojax/domains/judged.py; empty: none.'),

    Field('model.path', str, 'Hugging Face directory, also gs://BUCKET/x;'
          ' package:NAME is the policy shipped with the domain NAME.'),
    Field('model.chat_template_kwargs', {}, 'Options of the chat template in'
          " every prompt: {'enable_thinking': False}. A request to --mode=serve"
          ' may override them.'),
    # The default of Llama's templates if they cannot ask for the time.
    Field('model.chat_template_date', '2024-07-26', 'Date, YYYY-MM-DD, that a'
          " template writes instead of today's, so that prompts stay equal."),
    Field('model.param_dtype', 'float32', 'Type of the stored parameters.',
          choices=('float32', 'bfloat16')),
    Field('model.compute_dtype', 'float32', 'Type of the activations.',
          choices=('float32', 'bfloat16')),
    Field('model.remat', 'none', 'What each layer recomputes in the backward'
          ' pass: nothing (none), all but matrix products with weights (dots)'
          ' or everything (full).', choices=('none', 'dots', 'full')),
    Field('model.scan_layers', False,
          'Compile one layer and scan over it, which compiles faster.'),
    Field('model.lora_rank', 0, 'Rank of LoRA; 0 trains all parameters.', 0),
    Field('model.lora_alpha', 16.0,
          'The LoRA update is scaled by lora_alpha / lora_rank.', 1e-6,
          usual=(1.0, 1024.0)),
    Field('model.logprob_chunk', 0,
          'Tokens whose vocabulary logits are held at once; 0: all.', 0),

    Field('optim.learning_rate', 1e-4, 'Peak of the schedule.', 0.0, 1.0,
          usual=(1e-7, 3e-3),
          tunable=Tunable('optimizer', 1e-6, 3e-3, scale='log')),
    Field('optim.schedule', 'constant',
          'Learning rate after the warm-up; cosine and linear end at 0, anew in'
          ' each arm.',
          choices=('constant', 'cosine', 'linear')),
    Field('optim.warmup_steps', 0,
          'Steps of linear warm-up, repeated in every arm.', 0, usual=(0, 1000),
          tunable=Tunable('optimizer', 0, 100, end='steps')),
    Field('optim.max_grad_norm', 1.0,
          'Global norm to which gradients are clipped; 0 is off.', 0.0,
          usual=(0.01, 100.0),
          tunable=Tunable('optimizer', 0.01, 10.0, off=0.0, scale='log')),
    Field('optim.weight_decay', 0.0, 'Decoupled weight decay of matrices.', 0.0,
          usual=(0.0, 0.5),
          tunable=Tunable('regularisation', 1e-4, 0.3, off=0.0, scale='log')),
    Field('optim.b1', 0.9, "Decay of Adam's first moment.", 0.0, 1.0 - 1e-9,
          usual=(0.5, 0.99)),
    Field('optim.b2', 0.95, "Decay of Adam's second moment.", 0.0, 1.0 - 1e-9,
          usual=(0.9, 0.9999)),
    Field('optim.eps', 1e-8, "Adam's epsilon, outside the square root.", 1e-30,
          1.0, usual=(1e-16, 1e-5)),

    Field('grpo.prompts', 12, 'P: prompts per step.', 1),
    Field('grpo.group_size', 8, 'G: completions per prompt.', 2,
          reason='a group of one has no advantage: set'
          ' --config.grpo.group_size=8'),
    # With one update of a batch, every ratio is 1 and no bound applies.
    Field('grpo.clip_low', 0.2, 'The ratio is clipped below at 1 - clip_low.',
          0.0, 1.0, usual=(1e-4, 0.9),
          tunable=Tunable('clip', 0.05, 0.5, group='clip')),
    Field('grpo.clip_high', 0.2, 'The ratio is clipped above at 1 + clip_high.',
          0.0, usual=(1e-4, 10.0),
          tunable=Tunable('clip', 0.05, 1.0, group='clip')),
    Field('grpo.dual_clip', 0.0,
          'Bound, above 1, of the ratio under negative advantages; 0 is off.',
          0.0, tunable=Tunable('clip', 2.0, 10.0, off=0.0)),
    Field('grpo.aggregation', 'sequence', 'Mean of the loss over sequences,'
          ' over tokens, or over a constant number of tokens (Dr. GRPO).',
          choices=('sequence', 'token', 'constant'),
          tunable=Tunable('loss', compiles=True)),
    Field('grpo.advantage', 'group_norm', 'Estimator of the advantage.',
          choices=('group_norm', 'group_mean', 'leave_one_out'),
          tunable=Tunable('loss')),
    Field('grpo.ratio', 'token', 'Importance ratio: of each token (GRPO), or of'
          ' a sequence (GSPO).', choices=('token', 'sequence'),
          tunable=Tunable('loss', compiles=True)),
    # A change from or to 0 compiles: the reference policy is added or removed.
    Field('grpo.kl_coef', 0.0, 'Weight of the k3 KL to the reference policy, in'
          ' nats; 0 loads no reference policy.', 0.0,
          usual=(0.0, 0.5),
          tunable=Tunable('regularisation', 1e-4, 0.1, off=0.0, scale='log',
                          compiles=True)),
    # A change from or to 0 compiles: the entropy gets a gradient.
    Field('grpo.entropy_coef', 0.0, 'Weight of an entropy bonus at the trained'
          ' tokens, in nats; a weight below 0 lowers the entropy.',
          -1.0, 1.0, usual=(-0.1, 0.05),
          tunable=Tunable('regularisation', 1e-4, 0.05, off=0.0, scale='log',
                          compiles=True)),
    # A sampler's probabilities differ from the trainer's because of other
    # kernels, another precision or older weights. No harness may change the
    # correction, since a trial would show nothing if the two agree.
    Field('grpo.tis_cap', 0.0,
          'Cap of the trainer/sampler importance weights; 0 is off.', 0.0,
          usual=(0.0, 100.0)),
    Field('grpo.tis_floor', 0.0, 'Lower bound of these weights; 0 is none.',
          0.0, 1.0, usual=(0.0, 0.95)),
    Field('grpo.tis_mode', 'token_truncate', 'The weight of a token is its own'
          ' ratio, or that of its whole sequence; beyond cap or floor it is set'
          " to that bound (truncate) or to 0 (mask). TRL's default is"
          ' sequence_mask with a cap of 3.',
          choices=('token_truncate', 'token_mask', 'sequence_truncate',
                   'sequence_mask')),
    Field('grpo.reject', 'none', 'Leave tokens or sequences out of the'
          ' update and its denominator if their trainer/sampler ratio is not'
          ' in [reject_low, reject_high]; geometric takes the mean ratio of a'
          " sequence's tokens, for which 0.999 to 1.001 is usual.",
          choices=('none', 'token', 'sequence', 'geometric')),
    Field('grpo.reject_low', 0.5, 'Lowest ratio that enters the update.', 0.0,
          1.0, usual=(0.0, 0.9999)),
    Field('grpo.reject_high', 2.0, 'Highest ratio that enters the update.',
          1.0, usual=(1.0001, 1e9)),
    Field('grpo.veto', 0.0, 'A sequence is rejected if one of its tokens has a'
          ' lower ratio, such as 1e-4; 0 is off.', 0.0, 1.0, usual=(0.0, 0.5)),
    Field('grpo.epochs', 1, "Passes over one step's rollouts.", 1),
    Field('grpo.minibatches', 1,
          'Optimizer updates per pass; groups stay whole.', 1),
    Field('grpo.micro_groups', 2,
          'Groups per forward and backward pass inside one update; if there are'
          ' fewer than devices, groups are split.', 1),
    Field('grpo.keep', 'all', 'Groups that enter the update.',
          choices=('all', 'reward_variance', 'outcome_variance'),
          tunable=Tunable('filter', group='filter')),
    Field('grpo.refill_rounds', 0, 'Extra rollout rounds to replace dropped'
          ' groups.', 0, tunable=Tunable('filter', 0, 4, group='filter')),
    Field('grpo.layout', 'shared', 'Batch layout: the prompt once per group,'
          ' or rows packed with sequences.', choices=('shared', 'packed')),

    Field('rollout.max_tokens', 64, 'Maximum tokens after the prompt; a'
          ' compiled shape. In an episode, turns and observations count'
          ' together.', 1),
    Field('rollout.turn_tokens', 0, 'Maximum sampled tokens of one turn; a'
          ' compiled shape. 0: episodes have one turn.', 0),
    Field('rollout.prefill_chunk', 64, 'Tokens of an episode that are prefilled'
          ' at once, and reused in its next turn.', 1),
    Field('rollout.temperature', 1.0,
          'Temperature of sampling in training, and of every log-prob.', 1e-3,
          10.0, reason='log-probs are of softmax(logits / temperature)',
          usual=(0.5, 1.3),
          tunable=Tunable('exploration', 0.5, 1.5)),
    Field('rollout.token_limit', 0,
          'Tokens after which training stops a completion; 0: max_tokens.'
          ' Evaluations always use max_tokens.', 0,
          tunable=Tunable('length', 1, 2**20, off=0, scale='log',
                          end='rollout.max_tokens')),
    # A filtered sampler is not the policy that the loss differentiates.
    Field('rollout.top_p', 1.0, 'Nucleus sampling of --mode=eval; training'
          ' needs 1.', 1e-6, 1.0),
    Field('rollout.top_k', -1, 'Top-k sampling of --mode=eval; training needs'
          ' -1.', -1),
    Field('rollout.min_p', 0.0, 'Min-p sampling of --mode=eval; training needs'
          ' 0.', 0.0, 1.0),
    Field('rollout.stop', (), 'Strings that end a completion, e.g. special'
          ' tokens; the text that is graded ends before them.'),
    Field('rollout.decode_slots', 128,
          'Rows decoded at once; a compiled shape, fixed for the run.', 1),
    Field('rollout.prefill_rows', 16,
          'Prompts prefilled at once; a compiled shape, fixed for the run.', 1),
    Field('rollout.refill_every', 16, 'Decode steps between refills of finished'
          ' rows; 0: refill only when all rows are done.', 0),
    Field('rollout.kind', 'engine', 'Sampler: engine (in this process) or'
          ' sglang (servers, see launch/).', choices=('engine', 'sglang')),
    Field('rollout.urls', (), "'http://HOST:PORT' of each server."),
    Field('rollout.urls_file', '', 'File with such a URL on each line, in place'
          ' of urls: servers join and leave as it changes.'),
    Field('rollout.api_key_env', '', "Environment variable with the servers'"
          ' --api-key; empty: they have none.'),
    Field('rollout.admin_key_env', '', "Environment variable with the servers'"
          ' --admin-api-key; empty: they have none.'),
    Field('rollout.concurrency', 64, 'Requests in flight per server.', 1),
    Field('rollout.timeout_seconds', 600.0, 'A request without an answer for'
          ' this long is sent to another server; if no server is usable for'
          ' this long, the run stops with an error.', 1.0),
    Field('rollout.weights_dir', '', 'Directory for new weights, with the same'
          ' path for servers and this process: a mount that all machines share.'
          " Empty: the run's own."),
    Field('rollout.weights_transport', 'folder', 'How servers get new weights:'
          ' folder (they read the directory of weights) or tensors (sent over'
          ' HTTP, for servers that cannot see it).',
          choices=('folder', 'tensors')),
    Field('rollout.queue_depth', 0, 'Steps sampled in advance. 1 samples the'
          ' next step during the update of this one, with the weights before'
          ' it; grpo.tis_cap corrects for that.', 0, 1,
          reason='0 samples each step with its own weights, 1 one step early'),
    Field('rollout.max_staleness', 0, 'Maximum number of versions by which a'
          ' rollout may be older than the weights it trains; an older one is'
          ' sampled again, before grpo.reject applies.', 0),

    Field('data.max_prompt_tokens', 64, 'Maximum tokens of a prompt; a longer'
          ' one is an error; it is not cut.', 1),
    Field('data.families', (),
          "Families of problems to train on, ('name:levels', ...); empty: all."
          ' Evaluations always use all.', tunable=Tunable('data')),

    Field('harness.path', '',
          'Directory of the training harness: reward, filter, credit and config'
          ' values. Empty: --mode=train takes the reward of config.reward, and'
          " --mode=evolve starts from the domain's seed harness."),

    Field('reward.parts', '', 'Dotted path of parts(evidence view) -> {name:'
          " float32 [P, G]}; empty: the domain's own."),
    Field('reward.weights', {'outcome': 1.0},
          'Weight of each reward part; the reward is their weighted sum.',
          tunable=Tunable('reward', -2.0, 2.0, group='reward:*')),

    # If the product of these sizes is not the number of devices, a run that
    # has begun takes the nearest mesh that fits, see `training.meshes`.
    Field('mesh.slice', 1, 'TPU slices, each of which is a replica; only'
          ' gradients are sent between them; -1: the rest.'),
    Field('mesh.data', 1, 'Replicas; -1 takes the remaining devices.'),
    Field('mesh.fsdp', 1, 'Shards of parameters and batch; -1: the rest.'),
    Field('mesh.tensor', 1, 'Shards of heads and MLP width; -1: the rest.'),

    Field('checkpoint.every', 10,
          'Steps between checkpoints; a killed run loses at most these.', 1),
    Field('checkpoint.keep', 2, 'Newest checkpoints that are kept on disk.', 1),

    Field('eval.every', 0, 'Steps between dev evaluations of --mode=train; 0:'
          ' before and after training only.', 0),
    Field('eval.split', 'dev', 'Split that --mode=eval scores.',
          choices=('dev', 'sealed')),
    Field('eval.problems', 128, 'Problems per evaluation.', 2,
          reason='an interval over problems needs at least two'),
    Field('eval.samples', 8, 'Completions per problem: k in Avg@k, pass@k.', 1),
    Field('eval.temperature', 1.0,
          'Sampling temperature, independent of that in training.', 1e-3, 10.0,
          usual=(1e-3, 1.3)),
    Field('eval.sealed', True,
          'Score base and trained policy on the sealed split at the end of'
          ' --mode=train; a run that evolves always does.'),

    # Only --mode=plan reads this.
    Field('plan.mean_tokens', 0, 'Mean tokens of a completion (of an episode,'
          ' with observations), for the expected cost. 0: unknown; every'
          ' completion then counts with rollout.max_tokens.', 0),

    # The meta-loop: each candidate changes the harness in one factor.
    Field('evolve.rounds', 6, 'Maximum rounds; 0 only trains.', 0),
    Field('evolve.candidates', 2, 'Maximum changes that race at once.', 1),
    Field('evolve.entries', 5, 'Changes that may enter the race in a whole run.'
          ' The more there are, the stronger the evidence each of them needs.'
          ' The last of three or more is kept for the repair of a critical'
          ' fault, or for a change from the inbox.', 1),
    Field('evolve.end_at_fault', True, 'End the run once a diagnosis calls a'
          ' fault critical that no harness can repair, such as a grader that'
          ' accepts any answer. False: it trains and races on.'),
    Field('evolve.settled', 0.05, 'Changes that repair no fault wait in the'
          ' first round, and while the solved share rises by more than this in'
          ' a round. Later, a race needs a probability of at least rise /'
          ' settled to show a gain (0.2 or more, in the last round 0.5), and a'
          ' replay has to be worth its tokens.'
          ' Changes from the inbox never wait; 1: no change waits.', 0.0,
          1.0),
    Field('evolve.patience', 3, 'Maximum rounds that a candidate races.', 1),
    Field('evolve.pairs', 4, 'Arms of each harness in a round. The i-th arms of'
          ' all harnesses share problems and sampler seeds.', 3,
          reason='the spread between pairs needs at least three'),
    Field('evolve.seed_harness', 'seed_harness',
          "Directory of the domain's harness to start from."),
    Field('evolve.proposer', 'rules', 'rules, random, or the dotted path of a'
          ' module with propose(context).'),
    Field('evolve.search', True, 'Add found diagnostics: evolve/search.py.'),
    Field('evolve.updates', 8, 'GRPO steps of every arm of a round.', 2),
    Field('evolve.policy', 'chain', "How a round's arms train the policy."
          ' chain: one after the other; each pair starts where the previous'
          " pair's arm ended. mean: all start from one state, side by side on"
          ' many workers, and training continues from their mean.',
          choices=('chain', 'mean')),
    Field('evolve.outer_learning_rate', 2.0, 'For evolve.policy mean: the step'
          ' from the start of the arms towards their mean. 1 ends at the mean,'
          ' 2 goes twice as far.', 1.0),
    # The default is small: once most is learned, no change of the harness can
    # show a gain.
    Field('evolve.first_updates', 8,
          'GRPO steps of version 0, on which the first diagnosis is based.', 1),
    Field('evolve.problems', 64, 'Fresh dev problems for each pair whose'
          ' arms sample differently, and perturbed problems for a change before'
          ' it is kept.', 2),
    Field('evolve.samples', 2, 'Completions of each such problem.', 1),
    Field('evolve.audits', 8, 'How often a run may score a candidate on'
          ' perturbed problems. Each such score decides whether a change is'
          ' kept, and so tells a little about these problems. Once all scores'
          ' are spent, no change is kept any more.', 1, 1000),
    Field('evolve.horizon', 3, 'Rounds after a change is kept in which the'
          ' former harness keeps training beside the policy, in the place of a'
          ' candidate or, if a change was kept late, after the last round; if'
          ' the policy loses, the change is taken back. 0: none.', 0),
    Field('evolve.false_discovery_rate', 0.2, 'Bound on the expected share of'
          ' changes without a real gain among those that a run keeps.', 1e-6,
          1.0 - 1e-6),
    Field('evolve.replay_updates', 3, 'K: replayed updates of a backtest.', 1),
    Field('evolve.replay_problems', 48,
          'Held-out train problems that score a backtest.', 2),
    Field('evolve.arm_seconds', 0.0, 'Wall time limit of an arm; 0: no limit.',
          0.0),
    Field('evolve.device_seconds', 0.0,
          'Device-seconds that the run may spend; 0: no limit.', 0.0),
    Field('evolve.tokens', 0, 'Tokens that the run may sample, except for'
          ' evolve.retrain and sealed scores; 0: no limit. A candidate races'
          ' only if they suffice for its arms and scores; else the incumbent'
          ' trains alone, or the run ends.', 0),
    Field('evolve.dollars', 0.0, 'Dollars that the run may spend; 0: no limit.',
          0.0),
    Field('evolve.dollars_per_device_hour', 0.0,
          'Price of a device, in dollars per hour.', 0.0),
    Field('evolve.skills', (), 'Directories with skills of other runs.'),
    Field('evolve.retrain', False, 'Train the final harness again from the base'
          ' policy, with the steps and prompts of the config, to tell a good'
          ' recipe from a lucky policy.'),
    Field('evolve.salt', '',
          'Salt of the sealed problems; empty: drawn at random, once.'),

    # --mode=serve also reads rollout.decode_slots, prefill_rows, refill_every.
    Field('serve.model_name', '',
          "Name that /v1/models shows; empty: the config's name."),
    Field('serve.weight_version', 'default',
          'Version of the weights at the start.'),
    Field('serve.context_tokens', 512,
          'Tokens of prompt and completion together; a compiled shape.', 2),
    Field('serve.prefill_chunk', 16,
          'Tokens of a prompt that are prefilled at once.', 1),
    Field('serve.prefix_chunks', 1024, 'Chunks in the prefix cache; 0: none.',
          0),
    Field('serve.max_waiting', 1024,
          'Maximum samples that wait for a slot; more get status 503.', 0),
    Field('serve.api_key_env', '', 'Environment variable with the key of'
          ' clients; empty: no key is needed.'),
    Field('serve.admin_key_env', '', 'Environment variable with the key for'
          ' weights, pauses and caches; empty: no key is needed.'),
    Field('serve.connections', 4096,
          'Maximum concurrent requests; more get status 503.', 1),
    Field('serve.body_bytes', 16 << 20, 'Maximum bytes of one request.', 1),
    Field('serve.client_seconds', 60.0, 'Seconds after which a client that'
          ' neither sends nor reads is disconnected.', 0.1),
    Field('serve.shutdown_seconds', 30.0,
          'Seconds to finish running samples after SIGTERM.', 0.0),

    Field('log.every', 1, 'Steps between progress lines.', 1),
    Field('log.tensorboard', True, 'Write event files to workdir/tensorboard.'),
    Field('log.wandb', 'disabled', 'Mode of Weights & Biases; needs wandb.',
          choices=('disabled', 'offline', 'online')),
    Field('log.wandb_project', 'evojax', 'Project in Weights & Biases.'),
    Field('log.peak_flops', 0.0, 'Peak FLOP/s of a device, of which `mfu` is a'
          ' share; 0: that of its kind, if evojax knows it.', 0.0),
    Field('log.profile_start', -1,
          'First step of the profiler window, counted from 0; -1: none.'),
    Field('log.profile_steps', 2, 'Steps of the profiler window.', 1),

    # Only --mode=warmstart reads these, to train a small Qwen3.
    Field('warmstart.steps', 0,
          'Updates; 0: the config describes no warm start.', 0),
    Field('warmstart.start', '', 'Hugging Face directory or package:NAME of a'
          ' policy to continue from; empty: a new one.'),
    Field('warmstart.vocab_size', 448, 'Rows of the embedding table.', 1),
    Field('warmstart.hidden_size', 192, 'Width of the model.', 1),
    Field('warmstart.intermediate_size', 512, 'Width of the MLP.', 1),
    Field('warmstart.num_layers', 3, 'Layers.', 1),
    Field('warmstart.num_heads', 2, 'Query heads.', 1),
    Field('warmstart.num_kv_heads', 1, 'Key and value heads.', 1),
    Field('warmstart.head_dim', 128,
          "Width of a head; SGLang's TPU kernels need 128.", 2),
    Field('warmstart.rows', 32, 'Packed rows per update.', 1),
    Field('warmstart.length', 96, 'Tokens per row.', 2),
    Field('warmstart.examples', 84,
          'Demonstrations per update, about as many as fit the rows.', 1),
    Field('warmstart.max_completion', 64,
          'Most tokens; a longer example is an error, or cut if endless.', 1),
    Field('warmstart.learning_rate', 0.02,
          "Learning rate of Muon, for the layers' matrices.", 0.0),
    Field('warmstart.adam_learning_rate', 3e-3,
          'Learning rate of Adam, for embeddings and norms.', 0.0),
    Field('warmstart.warmup_steps', 70, 'Steps of linear warm-up.', 0),
    Field('warmstart.weight_decay', 0.05,
          'Decoupled weight decay of the matrices.', 0.0),
    Field('warmstart.checkpoint_every', 100, 'Updates between checkpoints.',
          1),
    Field('warmstart.log_every', 20, 'Updates between progress lines.', 1),
)
# fmt: on


_BY_PATH = {field.path: field for field in FIELDS}
_UNDECLARED = Field('', None, '')


class ConfigError(ValueError):
  """Everything that is wrong with a config, one line each."""


def base() -> ml_collections.ConfigDict:
  """Return a config with the default of every field, not locked."""
  tree = {}
  for field in FIELDS:
    group, _, name = field.path.rpartition('.')
    holder, value = tree.setdefault(group, {}) if group else tree, field.default
    unset = isinstance(value, type)
    holder[name] = config_dict.placeholder(value) if unset else value
  return ml_collections.ConfigDict(tree)


def declaration(path: str) -> Field:
  """Return the declaration of a field, or one without bounds.

  Arguments of a domain and weights of reward parts are not declared.
  """
  return _BY_PATH.get(path, _UNDECLARED)


def token_limit(config: ml_collections.ConfigDict) -> int:
  """Return the maximum number of tokens of a training completion."""
  return config.rollout.token_limit or config.rollout.max_tokens


def check_field(config: ml_collections.ConfigDict, name: str) -> None:
  """Check that a field can be set.

  Args:
    config: Any config.
    name: Dotted name of a field or a group of fields, e.g. 'grpo.group_size'.

  Raises:
    ConfigError: If there is none; the message names similar fields.
  """
  node, known = config, 'config'
  for part in name.split('.'):
    if not isinstance(node, ml_collections.ConfigDict) or part not in node:
      break
    node, known = node[part], f'{known}.{part}'
  else:
    return
  names = list(node) if isinstance(node, ml_collections.ConfigDict) else []
  near = [f'{known}.{n}' for n in difflib.get_close_matches(part, names, n=2)]
  leaf = name.rpartition('.')[2]
  near += [
      f'config.{f}' for f in flatten(config) if f.rpartition('.')[2] == leaf
  ]
  if isinstance(declaration(known.removeprefix('config.')).default, dict):
    shown = {**node.to_dict(), part: '...'}
    hint = f'the names in {known} are yours: set all, --{known}="{shown}"'
  elif near:
    hint = f'did you mean {" or ".join(near)}?'
  elif names:
    hint = f'{known} has {", ".join(names)}'
  else:
    hint = f'{known} is a value, not a group'
  raise ConfigError(f'config.{name} is not a field; {hint}')


def with_fields(
    config: ml_collections.ConfigDict, values: Mapping[str, Any]
) -> ml_collections.ConfigDict:
  """Return a locked copy of a config with other values of some fields.

  Fields that refer to one of them keep their values.

  Args:
    config: Any config.
    values: Dotted name -> value, as in {'grpo.group_size': 8}.

  Raises:
    ConfigError: If a name is not a field.
  """
  new = config.copy_and_resolve_references().unlock()
  for name in values:
    check_field(new, name)
  new.update_from_flattened_dict(values)
  return new.lock()


def flatten(tree: Any, prefix: str = '') -> dict[str, Any]:
  """Return the values of a config or of nested mappings by dotted path.

  {'grpo': {'group_size': 8}} becomes {'grpo.group_size': 8}. An empty group of
  a config disappears; an empty mapping is a JSON value and stays.
  """
  flat = {}
  for name, value in tree.items():
    group = isinstance(value, Mapping) and value
    if group or isinstance(value, ml_collections.ConfigDict):
      flat |= flatten(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat


def to_json(config: ml_collections.ConfigDict) -> str:
  """Return the resolved config as canonical JSON: sorted keys, no spaces."""
  return json.dumps(config.to_dict(), sort_keys=True, separators=(',', ':'))


def to_mapping(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Return the resolved config as nested JSON values."""
  return json.loads(to_json(config))


def frozen(value: Any) -> Any:
  """Return a JSON value with tuples instead of lists, as in configs."""
  if isinstance(value, Mapping):
    return {name: frozen(item) for name, item in value.items()}
  return tuple(map(frozen, value)) if isinstance(value, list) else value


def from_mapping(values: Mapping[str, Any]) -> ml_collections.ConfigDict:
  """Return the locked config for a result of `to_mapping`."""
  return ml_collections.ConfigDict(frozen(values)).lock()


def sha256(config: ml_collections.ConfigDict) -> str:
  """Return the hash of the canonical form, 64 hex digits."""
  return hashlib.sha256(to_json(config).encode()).hexdigest()
