"""The fields every run has, with their meaning, unit and default.

A config module defines `get_config(variant)`, starts from `base()` and changes
what differs. Nothing here is executed by evojax: a config is data. A value used
twice is written once and referred to (`get_ref`), so that an override on the
command line moves both.
"""

import ml_collections
from ml_collections import config_dict


def base() -> ml_collections.ConfigDict:
  """Returns the shared defaults; every field is documented where it is set."""
  c = ml_collections.ConfigDict()
  c.name = 'run'  # Shown in progress lines, W&B and reports.
  c.seed = 0  # Seeds problems, sampling and shuffles.
  c.steps = 100  # GRPO steps (rollout + update).

  c.domain = ml_collections.ConfigDict()
  c.domain.name = 'math'  # Key of evojax.domains.DOMAINS or a dotted path.
  c.domain.kwargs = ml_collections.ConfigDict()  # Arguments of the domain.

  c.model = ml_collections.ConfigDict()
  # Hugging Face directory; 'package:NAME' is a policy shipped with evojax.
  c.model.path = config_dict.placeholder(str)
  c.model.param_dtype = 'float32'  # Stored parameters: float32 | bfloat16.
  c.model.compute_dtype = 'float32'  # Activations: float32 | bfloat16.
  c.model.remat = 'none'  # Rematerialise each layer: none | dots | full.
  c.model.scan_layers = False  # One compiled layer: faster to compile.
  c.model.lora_rank = 0  # 0 trains all parameters.
  c.model.lora_alpha = 16.0  # LoRA update is scaled by alpha / rank.
  # Tokens whose vocabulary logits are alive at once; 0 keeps all of them.
  c.model.logprob_chunk = 0

  c.data = ml_collections.ConfigDict()
  c.data.max_prompt_tokens = 64  # A longer prompt is an error, not a cut.
  # Slice of the domain's families that is trained on, ('name:levels', ...);
  # empty: all of them. Evaluations always draw from all.
  c.data.families = ()

  c.rollout = ml_collections.ConfigDict()
  c.rollout.max_tokens = 64  # Sampled tokens per completion; a shape.
  # Where training stops a completion earlier; 0: at max_tokens. Evaluations
  # always go up to max_tokens.
  c.rollout.token_limit = 0
  c.rollout.temperature = 1.0  # Also the temperature of every log-prob.
  c.rollout.top_p = 1.0  # Training needs 1: see config.validate.
  c.rollout.top_k = -1  # Likewise -1.
  c.rollout.min_p = 0.0  # Likewise 0.
  c.rollout.stop = ()  # Strings that end a completion.
  c.rollout.decode_slots = 128  # Rows decoded at once, fixed for the run.
  c.rollout.prefill_rows = 16  # Prompts prefilled at once, fixed likewise.
  # Decode steps between refills of finished rows; 0: only when all are done.
  c.rollout.refill_every = 16
  # Who samples: engine (in this process) | sglang (servers, see launch/).
  c.rollout.kind = 'engine'
  c.rollout.urls = ()  # 'http://HOST:PORT' of each server.
  # Names of environment variables that hold the servers' --api-key and
  # --admin-api-key; empty: they have none.
  c.rollout.api_key_env = ''
  c.rollout.admin_key_env = ''
  c.rollout.concurrency = 64  # Requests in flight per server.
  # A request that is silent for so long is sent elsewhere; when no server can
  # be used for so long, the run stops with an error.
  c.rollout.timeout_seconds = 600.0
  # Where servers find new weights, under the same path as this process: a
  # directory, on several machines of a mount that all share. Empty: the
  # run's own.
  c.rollout.weights_dir = ''
  # Steps sampled ahead: 1 samples the next step beside the update of this one,
  # with the weights before it, which grpo.tis_cap corrects.
  c.rollout.queue_depth = 0
  # Versions that a rollout may be older than the weights it trains; an older
  # one is sampled again.
  c.rollout.max_staleness = 0

  c.grpo = ml_collections.ConfigDict()
  c.grpo.prompts = 16  # P: prompts per step.
  c.grpo.group_size = 8  # G: completions per prompt.
  c.grpo.advantage = 'group_norm'  # group_norm | group_mean | leave_one_out.
  c.grpo.ratio = 'token'  # token (GRPO) | sequence (GSPO).
  c.grpo.aggregation = 'sequence'  # sequence | token | constant (Dr.GRPO).
  c.grpo.clip_low = 0.2  # Ratio is clipped below at 1 - clip_low.
  c.grpo.clip_high = 0.2  # ... and above at 1 + clip_high.
  c.grpo.dual_clip = 0.0  # Bound (> 1) for negative advantages; 0 is off.
  c.grpo.kl_coef = 0.0  # k3 KL to the reference policy; 0 loads none.
  c.grpo.tis_cap = 0.0  # Cap of trainer/sampler importance weights; 0 is off.
  c.grpo.epochs = 1  # Passes over one step's rollouts.
  c.grpo.minibatches = 1  # Optimizer updates per pass; groups stay whole.
  c.grpo.micro_groups = 2  # Groups per forward/backward inside one update.
  # Groups that enter the update: all | reward_variance | outcome_variance.
  c.grpo.keep = 'all'
  c.grpo.refill_rounds = 0  # Extra rollout rounds that replace dropped groups.
  c.grpo.layout = 'shared'  # shared (prompt once per group) | packed.

  # Directory of the training harness: reward, filter, credit, and the config
  # values they go with. Empty: --mode=train takes the reward of `reward`, and
  # --mode=evolve starts from the domain's seed harness.
  c.harness = ml_collections.ConfigDict()
  c.harness.path = ''

  c.reward = ml_collections.ConfigDict()
  # Dotted path of `parts(evidence view) -> {name: float32 [P, G]}`; empty is
  # the domain's own.
  c.reward.parts = ''
  c.reward.weights = ml_collections.ConfigDict({'outcome': 1.0})

  c.optim = ml_collections.ConfigDict()
  c.optim.learning_rate = 1e-4  # Peak of the schedule.
  c.optim.schedule = 'constant'  # constant | cosine | linear (to 0).
  c.optim.warmup_steps = 0
  c.optim.b1 = 0.9
  c.optim.b2 = 0.95
  c.optim.eps = 1e-8
  c.optim.weight_decay = 0.0  # Decoupled; matrices only.
  c.optim.max_grad_norm = 1.0  # Global norm; 0 is off.

  c.mesh = ml_collections.ConfigDict()
  c.mesh.data = 1  # Replicas; -1 takes the devices that are left.
  c.mesh.fsdp = 1  # Shards of parameters and batch.
  c.mesh.tensor = 1  # Shards of heads and MLP width.

  c.checkpoint = ml_collections.ConfigDict()
  c.checkpoint.every = 10  # Steps; a kill repeats at most this many.
  c.checkpoint.keep = 2  # Newest checkpoints that stay on disk.

  c.eval = ml_collections.ConfigDict()
  c.eval.every = 0  # Steps between dev evaluations; 0: first and last only.
  c.eval.split = 'dev'  # Split of --mode=eval: dev | sealed.
  c.eval.problems = 128  # Problems per evaluation.
  c.eval.samples = 8  # k of Avg@k and pass@k.
  c.eval.temperature = 1.0  # Whatever temperature trains.
  c.eval.sealed = True  # Score base and trained policy on sealed at the end.

  # The meta-loop: one change of the harness per trial.
  c.evolve = ml_collections.ConfigDict()
  c.evolve.trials = 4  # At most; 0 trains without evolution.
  c.evolve.seed_harness = 'seed_harness'  # Of the domain: or seed_blind.
  c.evolve.proposer = 'rules'  # rules | random.
  c.evolve.updates = 30  # GRPO steps of every arm of a trial.
  # ... and of version 0, whose evidence is diagnosed first. Few: where most is
  # learned already, no change of the harness can show what it is worth.
  c.evolve.first_updates = 8
  c.evolve.prompts = 12  # P of an arm's step.
  c.evolve.group_size = 8  # G of an arm's step.
  c.evolve.controls = 4  # Arms of the parent, one seed each; >= 4.
  c.evolve.children = 2  # Arms of the changed harness, at least; >= 2.
  c.evolve.max_children = 4  # More are run where 2 would detect too little.
  # A trial that could not detect its own prediction: refuse | run.
  c.evolve.underpowered = 'refuse'
  # Fresh dev problems of a trial. Many: with 1,024 samples an arm, most of the
  # spread between arms was that of the samples, and a change that helps some
  # problems and not others needs problems to be told.
  c.evolve.problems = 512
  # Completions of each; a change that passes the test is also scored on
  # perturbed problems, with half of them.
  c.evolve.samples = 4
  c.evolve.false_discovery_rate = 0.2  # Over all trials of a run, online.
  c.evolve.replay_updates = 3  # K replayed updates of a backtest.
  c.evolve.replay_problems = 48  # Held-out train problems that score it.
  c.evolve.arm_seconds = 0.0  # Wall time that ends an arm; 0: none.
  c.evolve.device_seconds = 0.0  # Budget of the run; 0: none.
  c.evolve.dollars = 0.0  # Likewise.
  c.evolve.dollars_per_device_hour = 0.0  # What a device costs.
  c.evolve.skills = ()  # Directories of skills that other runs wrote.
  c.evolve.salt = ''  # Of the sealed draw; empty: drawn at random, once.

  # --mode=serve; rollout.decode_slots, prefill_rows and refill_every hold here,
  # too.
  c.serve = ml_collections.ConfigDict()
  c.serve.model_name = ''  # Shown by /v1/models; empty: the config's name.
  c.serve.weight_version = 'default'  # Of the weights at the start.
  c.serve.context_tokens = 512  # Prompt and completion together: a shape.
  c.serve.prefill_chunk = 16  # Tokens of a prompt prefilled at once.
  c.serve.prefix_chunks = 1024  # Chunks in the prefix cache; 0: none.
  c.serve.max_waiting = 1024  # Samples that wait for a slot; more get a 503.
  # Names of environment variables that hold the keys; empty: none is asked for.
  c.serve.api_key_env = ''
  c.serve.admin_key_env = ''  # For weights, pauses and caches.
  c.serve.connections = 4096  # Requests at once; more get a 503.
  c.serve.body_bytes = 16 << 20  # Of one request.
  # A client that sends, or reads what it is sent, more slowly is dropped.
  c.serve.client_seconds = 60.0
  c.serve.shutdown_seconds = 30.0  # For running samples, after SIGTERM.

  c.log = ml_collections.ConfigDict()
  c.log.every = 1  # Steps between progress lines.
  c.log.tensorboard = True  # Event files in workdir/tensorboard.
  c.log.wandb = 'disabled'  # disabled | offline | online; needs wandb.
  c.log.wandb_project = 'evojax'
  c.log.profile_start = -1  # First step of the profiler window; -1: none.
  c.log.profile_steps = 2  # Its length.

  # Only --mode=warmstart reads these: a small Qwen3 made from nothing.
  c.warmstart = ml_collections.ConfigDict()
  c.warmstart.steps = 0  # Updates; 0: the config describes no warm start.
  c.warmstart.vocab_size = 448  # Rows of the embedding table.
  c.warmstart.hidden_size = 192
  c.warmstart.intermediate_size = 512
  c.warmstart.num_layers = 3
  c.warmstart.num_heads = 2
  c.warmstart.num_kv_heads = 1
  c.warmstart.head_dim = 128  # What SGLang's TPU kernels ask for.
  c.warmstart.rows = 32  # Packed rows per update.
  c.warmstart.length = 96  # Tokens per row.
  c.warmstart.examples = 84  # Demonstrations per update: what fits the rows.
  c.warmstart.max_completion = 64  # Tokens; longer rambling is cut there.
  c.warmstart.learning_rate = 0.02  # Muon, for the layers' matrices.
  c.warmstart.adam_learning_rate = 3e-3  # Embeddings and norms.
  c.warmstart.warmup_steps = 70
  c.warmstart.weight_decay = 0.05  # Of the matrices, decoupled.
  c.warmstart.checkpoint_every = 100
  c.warmstart.log_every = 20
  return c


# What every domain's config has; a config module may have others beside them.
VARIANTS = ('default', 'smoke', 'reference', 'seed', 'random', 'qwen3_0p6b')


def check(name: str, variant: str) -> None:
  """Checks that a variant is one of VARIANTS.

  Raises:
    ValueError: If it is not; names the config file.
  """
  if variant not in VARIANTS:
    raise ValueError(f'configs/{name}.py:{variant}: choose one of {VARIANTS}')


def apply(
    c: ml_collections.ConfigDict, variant: str, *, seed_steps: int
) -> None:
  """What a variant changes in whatever domain.

  Args:
    c: The domain's default.
    variant: One of VARIANTS.
    seed_steps: Steps that take the seed recipe about as long as `default`.
  """
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
    c.steps = seed_steps
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
    c.model.path = config_dict.placeholder(str)
    c.model.compute_dtype = 'bfloat16'
    c.model.remat = 'full'
    c.model.scan_layers = True
    c.model.logprob_chunk = 2048
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
