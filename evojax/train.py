"""The GRPO loop, for every domain.

    sample -> grade -> reward -> advantages -> update -> weights -> log, save

One step is one call each. What a domain brings is data and a grader; what a
harness turns are config values and the reward. Nothing here knows more.
"""
from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import shutil
import signal
import time
from typing import Any

from absl import logging
import jax
import ml_collections
import numpy as np
from rich import console as rich_console

from evojax import checkpoint as checkpoint_lib
from evojax import config as config_lib
from evojax import domains
from evojax import learner
from evojax import metrics as metrics_lib
from evojax import progress as progress_lib
from evojax import reward as reward_lib
from evojax import sharding
from evojax import types
from evojax import workdir as workdir_lib
from evojax.eval import evaluate as evaluate_lib
from evojax.eval import report as report_lib
from evojax.eval import rollouts
from evojax.eval import sealed as sealed_lib
from evojax.evidence import rows as rows_lib
from evojax.evidence import schema
from evojax.evidence import store
from evojax.evidence import views
from evojax.models import policy as policy_lib
from evojax.rl import advantages as advantages_lib
from evojax.rl import filters
from evojax.rollout import engine as engine_lib

# Standard deviation of a group's rewards below which it teaches nothing.
_DEAD_STD = 1e-3


class Preempted(SystemExit):
  """SIGTERM arrived; the state is saved and the same command continues.

  Its code is 143, what a shell reports of a process that SIGTERM ended.
  """


@dataclasses.dataclass(frozen=True)
class Setup:
  """All that a run needs before a device is touched."""

  config: ml_collections.ConfigDict
  domain: types.Domain
  policy: policy_lib.Policy
  parts: reward_lib.Parts
  columns: tuple[schema.Column, ...]


@dataclasses.dataclass
class Step:
  """The rollouts of one step; B = P * G, group-major."""

  rows: dict[str, Any]  # Evidence, one value per completion.
  prompts: list[np.ndarray]  # [B] int32.
  completions: list[types.Completion]  # [B]
  rewards: np.ndarray  # float32 [P, G]
  advantages: np.ndarray  # float32 [P, G], before groups are dropped.
  kept: np.ndarray  # bool [P]
  parts: dict[str, np.ndarray]  # float32 [P, G], before weighting.


def prepare(config: ml_collections.ConfigDict) -> Setup:
  """Checks and builds everything that needs no device.

  The reward is tried on one graded problem, so that a wrong weight or a broken
  function of the user's own shows up here and not after the first rollout.

  Raises:
    ValueError: Whatever is wrong, with the field, its value and the remedy.
  """
  config_lib.validate(config)
  metrics_lib.check_available(config.log.wandb)
  domain = domains.make(config.domain.name, **config.domain.kwargs.to_dict())
  policy = policy_lib.open_policy(
      tensor_shards=max(config.mesh.tensor, 1),
      max_tokens=config.data.max_prompt_tokens + config.rollout.max_tokens,
      **config.model.to_dict(),
  )
  parts = reward_lib.load_parts(config.reward.parts, domain.reward_parts)
  columns = schema.declare(domain.columns, tuple(config.reward.weights))
  problem = _check_prompts(config, domain, policy)
  silent = types.Completion(
      np.zeros(1, np.int32), np.zeros(1, np.float32), 'length', 0, ''
  )
  grade = domain.grade(problem, silent)
  rows = rows_lib.from_rollouts(
      [problem],
      [silent] * 2,
      [grade] * 2,
      columns=columns,
      group_size=2,
      step=0,
      split='train',
      seed=config.seed,
      version='seed',
      prompt_tokens=[()],
      grade_seconds=[0.0] * 2,
  )
  view = views.View.from_rows(
      rows,
      columns,
      prompts=1,
      group_size=2,
      max_tokens=config.rollout.max_tokens,
  )
  reward_lib.compute(parts, view, config.reward.weights.to_dict())
  return Setup(config, domain, policy, parts, columns)


def _check_prompts(
    config: ml_collections.ConfigDict,
    domain: types.Domain,
    policy: policy_lib.Policy,
) -> types.Problem:
  """Renders the first step and every evaluation; returns the first problem.

  Sealed problems are asked last: one that is too long must not show up only
  then.

  Raises:
    ValueError: If a prompt is too long, or the chat template refuses it.
  """
  counts = {'train': config.grpo.prompts, 'dev': config.eval.problems}
  if config.eval.sealed or config.eval.split == 'sealed':
    counts['sealed'] = config.eval.problems
  drawn = {
      split: domain.source(split, config.seed).take(0, count)
      for split, count in counts.items()
  }
  for problems in drawn.values():
    rollouts.render(policy.tokenizer, problems, config.data.max_prompt_tokens)
  return drawn['train'][0]


def make_engine(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    mesh: jax.sharding.Mesh,
) -> engine_lib.Engine:
  """The in-process engine at the run's fixed shapes."""
  return engine_lib.Engine(
      policy.cfg,
      eos_ids=policy.tokenizer.eos_ids,
      decode_text=policy.tokenizer.decode,
      max_prompt_tokens=config.data.max_prompt_tokens,
      max_tokens=config.rollout.max_tokens,
      decode_slots=config.rollout.decode_slots,
      prefill_rows=config.rollout.prefill_rows,
      refill_every=config.rollout.refill_every,
      mesh=mesh,
  )


def make_algorithm(config: ml_collections.ConfigDict) -> learner.Algorithm:
  """What of the config is compiled into the update."""
  return learner.Algorithm(
      ratio=config.grpo.ratio,
      aggregation=config.grpo.aggregation,
      layout=config.grpo.layout,
      on_policy=config.grpo.epochs == 1 and config.grpo.minibatches == 1,
      reference=config.grpo.kl_coef > 0,
      importance=config.grpo.tis_cap > 0,
      max_tokens=config.rollout.max_tokens,
      logprob_chunk=config.model.logprob_chunk,
      b1=config.optim.b1,
      b2=config.optim.b2,
      eps=config.optim.eps,
  )


def hyperparameters(
    config: ml_collections.ConfigDict, step: int
) -> dict[str, np.float32]:
  """The traced scalars of a step."""
  values = dict(
      learning_rate=config_lib.learning_rate(config)(step),
      weight_decay=config.optim.weight_decay,
      max_grad_norm=config.optim.max_grad_norm,
      temperature=config.rollout.temperature,
      clip_low=config.grpo.clip_low,
      clip_high=config.grpo.clip_high,
      dual_clip=config.grpo.dual_clip,
      kl_coef=config.grpo.kl_coef,
      tis_cap=config.grpo.tis_cap,
  )
  return {name: np.float32(values[name]) for name in learner.HYPERPARAMETERS}


def sampling_params(config: ml_collections.ConfigDict) -> types.SamplingParams:
  """How training and evaluation sample."""
  return types.SamplingParams(
      max_tokens=config.rollout.max_tokens,
      temperature=config.rollout.temperature,
      top_p=config.rollout.top_p,
      top_k=config.rollout.top_k,
      min_p=config.rollout.min_p,
      stop=tuple(config.rollout.stop),
  )


class Trainer:
  """The state of a run and one method per stage of a step."""

  def __init__(
      self,
      setup: Setup,
      workdir: pathlib.Path,
      phases: metrics_lib.Phases,
  ):
    """Builds mesh, state and engine, and restores the newest checkpoint."""
    c = self.config = setup.config
    self.setup, self.workdir, self.phases = setup, workdir, phases
    self.domain, self.policy = setup.domain, setup.policy
    self.source = self.domain.source('train', c.seed)

    # Mesh, shapes, shardings; nothing is allocated yet.
    self.mesh = sharding.make_mesh(**c.mesh.to_dict())
    self.whole = sharding.replicated(self.mesh)
    cfg, self.algorithm = self.policy.cfg, make_algorithm(c)
    self.layout = learner.state_shardings(cfg, self.algorithm, self.mesh)
    self.engine = make_engine(c, self.policy, self.mesh)
    self.update = learner.jit_update_step(cfg, self.algorithm, self.mesh)
    self.score = jax.jit(
        functools.partial(learner.score_step, cfg, self.algorithm),
        out_shardings=sharding.shardings(self.mesh, (None, 'batch')),
    )

    # The order of a restore: (1) the base policy's weights, for the reference,
    # for frozen parameters and for a new run; (2) the optimizer's zeros; (3)
    # the newest intact checkpoint over both; (4) the engine.
    base = policy_lib.load_params(
        self.policy,
        self.mesh,
        param_dtype=c.model.param_dtype,
        seed=c.seed,
    )
    self.reference = base if self.algorithm.reference else None
    self.state = jax.jit(
        functools.partial(learner.init_state, cfg, self.algorithm),
        out_shardings=self.layout,
        # The reference lives on; otherwise the state takes the buffers over.
        donate_argnums=() if self.algorithm.reference else 0,
    )(base)
    self.step, self.cursor = 0, 0
    self.key = jax.random.key(c.seed)
    self.checkpointer = checkpoint_lib.Checkpointer(
        workdir / 'checkpoints', every=c.checkpoint.every, keep=c.checkpoint.keep
    )
    restored = self.checkpointer.restore_latest(
        jax.tree.map(_abstract, self._saved())
    )
    if restored is not None:
      saved, meta = restored
      self.state.update(saved['learner'])
      self.key, self.cursor = saved['key'], int(saved['cursor'])
      self.step = meta['step']
    self.saved_step = self.step
    if jax.process_index() == 0:
      # What a killed process wrote beyond it is about to be written again. Dev
      # evidence of a step is of the weights after it, train evidence of those
      # before.
      store.discard_after(workdir, 'train', self.step - 1)
      store.discard_after(workdir, 'dev', self.step)
    self.install()

  def _saved(self) -> dict[str, Any]:
    """What a checkpoint holds: all that the next step depends on."""
    learned = {k: v for k, v in self.state.items() if k != 'frozen'}
    return dict(
        learner=learned,
        key=self.key,
        cursor=np.asarray(self.cursor, np.int64),
        policy_version=np.asarray(self.step, np.int32),
    )

  def save(self) -> None:
    """Starts an asynchronous checkpoint of the finished step."""
    self.checkpointer.save(
        self.step,
        self._saved(),
        dict(config_sha256=config_lib.sha256(self.config), jax=jax.__version__),
    )
    self.saved_step = self.step

  def install(self) -> None:
    """Gives the engine the current weights; their version is the step."""
    self.engine.update_weights(
        learner.policy_params(self.policy.cfg, self.state), self.step
    )

  def _seed(self, round_: int) -> int:
    """The sampling seed of a rollout round of this step."""
    counter = sharding.to_device(
        np.uint32([self.step, round_]), self.whole
    )
    return int(sharding.to_host(_fold(self.key, counter)))

  def compilations(self) -> int:
    """Programs compiled so far, of engine and learner."""
    compiled = self.update._cache_size() + self.score._cache_size()
    return self.engine.compilations() + compiled

  # ---------------------------------------------------------------- stages

  def sample(
      self, problems: Sequence[types.Problem], round_: int
  ) -> tuple[int, list[tuple[int, ...]], list[types.Completion]]:
    """Sampling seed, prompts [P] and completions [B] of a rollout round."""
    prompts = rollouts.render(
        self.policy.tokenizer, problems, self.config.data.max_prompt_tokens
    )
    seed = self._seed(round_)
    requests = rollouts.requests(
        problems,
        prompts,
        sampling_params(self.config),
        group_size=self.config.grpo.group_size,
        seed=seed,
    )
    with self.phases('rollout'):
      return seed, prompts, self.engine.generate(requests)

  def collect(self) -> Step:
    """Rolls out until P groups are kept, or the refill rounds are used up."""
    c = self.config.grpo
    rounds: list[Step] = []
    missing = c.prompts
    for round_ in range(1 + c.refill_rounds):
      problems = self.source.take(self.cursor, missing)
      self.cursor += missing
      seed, prompts, completions = self.sample(problems, round_)
      rounds.append(
          self.judge(
              problems,
              prompts,
              completions,
              seed=seed,
              first_group=sum(len(r.kept) for r in rounds),
          )
      )
      missing = c.prompts - sum(int(r.kept.sum()) for r in rounds)
      if missing <= 0:
        break
    return _join(rounds)

  def judge(
      self,
      problems: Sequence[types.Problem],
      prompts: Sequence[tuple[int, ...]],
      completions: Sequence[types.Completion],
      *,
      seed: int,
      first_group: int,
  ) -> Step:
    """Grades, rewards and compares the completions of whole groups."""
    c, g = self.config, self.config.grpo.group_size
    with self.phases('grade'):
      grades, seconds = rollouts.grade(self.domain, problems, completions)
    rows = rows_lib.from_rollouts(
        problems,
        completions,
        grades,
        columns=self.setup.columns,
        group_size=g,
        step=self.step,
        split='train',
        seed=seed,
        version='seed',
        prompt_tokens=prompts,
        grade_seconds=seconds,
    )
    with self.phases('reward'):
      view = views.View.from_rows(
          rows,
          self.setup.columns,
          prompts=len(problems),
          group_size=g,
          max_tokens=c.rollout.max_tokens,
      )
      weights = c.reward.weights.to_dict()
      rewards, parts = reward_lib.compute(self.setup.parts, view, weights)
      # Advantages compare a completion with its whole group; groups without
      # signal are dropped afterwards, and leave loss and denominator.
      advantages = np.asarray(
          advantages_lib.ADVANTAGES[c.grpo.advantage](rewards, view.valid)
      )
      kept = filters.KEEP[c.grpo.keep](rewards, view.outcome, view.valid)
      # Grading may hit a time limit on one host only; all hosts must agree.
      rewards, advantages, kept = sharding.broadcast(
          (rewards, advantages, kept.any(1))
      )
    rows['group'] = np.asarray(rows['group']) + first_group
    rows['reward'] = rewards.reshape(-1)
    rows['advantage'] = advantages.reshape(-1)
    rows['kept'] = np.repeat(kept, g)
    for name, values in parts.items():
      rows[schema.PART_PREFIX + name] = values.reshape(-1)
    return Step(
        rows=rows,
        prompts=[np.array(p, np.int32) for p in prompts for _ in range(g)],
        completions=list(completions),
        rewards=rewards,
        advantages=advantages,
        kept=kept,
        parts=parts,
    )

  def learn(self, step: Step) -> dict[str, float]:
    """Updates the policy on the step's groups; kept ones come first."""
    c = self.config.grpo
    groups = np.argsort(~step.kept, kind='stable')[: c.prompts]
    gap = np.full(step.rewards.shape, np.nan, np.float32)
    hyper = sharding.to_device(hyperparameters(self.config, self.step), self.whole)
    minibatches = [
        self._minibatch(step, groups[i :: c.minibatches])
        for i in range(c.minibatches)
    ]
    with self.phases('update'), sharding.use(self.mesh):
      for _, batch, _ in minibatches:
        if not self.algorithm.on_policy:
          params = learner.policy_params(self.policy.cfg, self.state)
          batch['old_logprobs'] = self.score(params, batch, hyper['temperature'])
        if self.algorithm.reference:
          batch['ref_logprobs'] = self.score(
              self.reference, batch, hyper['temperature']
          )
      logs = []
      for epoch in range(c.epochs):
        for order, batch, live in minibatches:
          self.state, metrics, rows = self.update(self.state, batch, live, hyper)
          metrics, rows = sharding.to_host((metrics, rows))
          learner.check_finite(metrics, self.step)
          logs.append(metrics)
          if epoch == 0:
            gap[order] = rows['gap'].reshape(-1, c.group_size)
    gap[~step.kept] = np.nan
    step.rows['sampler_trainer_logprob_gap'] = gap.reshape(-1)
    return {
        name: float(np.mean([log[name] for log in logs]))
        for name in logs[0]
        if name != 'finite'
    }

  def _minibatch(
      self, step: Step, groups: np.ndarray
  ) -> tuple[np.ndarray, learner.Batch, jax.Array]:
    """(groups in the order of the batch, the batch, live micro-batches)."""
    c, g = self.config, self.config.grpo.group_size
    index = (groups[:, None] * g + np.arange(g)).reshape(-1)
    batch, live, order = learner.make_batch(
        [step.prompts[i] for i in index],
        [step.completions[i].tokens for i in index],
        [step.completions[i].logprobs for i in index],
        step.advantages[groups],
        np.broadcast_to(step.kept[groups, None], (len(groups), g)),
        max_prompt_tokens=c.data.max_prompt_tokens,
        max_tokens=c.rollout.max_tokens,
        micro_groups=c.grpo.micro_groups,
        layout=c.grpo.layout,
    )
    return (
        groups[order],
        sharding.to_device(batch, learner.batch_shardings(batch, self.mesh)),
        sharding.to_device(np.int32(live), self.whole),
    )

  def train_step(self) -> dict[str, float]:
    """One step; evidence is on disk before the update that uses it."""
    started = time.perf_counter()
    step = self.collect()
    primary = jax.process_index() == 0
    if primary:
      with self.phases('evidence'):
        store.write_step(
            self.workdir, 'train', self.step, step.rows, self.setup.columns
        )
    with self.phases('checkpoint'):
      # It is written beside this step's rollout. Were it not there after this
      # step's update, a kill would repeat more than checkpoint.every steps.
      self.checkpointer.wait()
    learned = self.learn(step)
    if primary:
      with self.phases('evidence'):
        name = 'sampler_trainer_logprob_gap'
        store.fill(self.workdir, 'train', self.step, {name: step.rows[name]})
    metrics = dict(_summary(step), **learned)
    metrics['learning_rate'] = config_lib.learning_rate(self.config)(self.step)
    metrics['staleness'] = max(
        self.step - c.policy_version for c in step.completions
    )
    self.step += 1
    self.install()
    seconds = time.perf_counter() - started
    metrics['step_seconds'] = seconds
    metrics['tokens_per_second'] = metrics['sampled_tokens'] / seconds
    return metrics

  def evaluate(
      self, step: int, workdir: pathlib.Path | None
  ) -> evaluate_lib.EvalResult:
    """Scores the installed weights, of a step, on the run's dev problems."""
    c = self.config
    with self.phases('eval'):
      return evaluate_lib.evaluate(
          self.engine,
          self.policy.tokenizer,
          self.domain,
          split='dev',
          seed=c.seed,
          problems=c.eval.problems,
          samples=c.eval.samples,
          params=sampling_params(c),
          max_prompt_tokens=c.data.max_prompt_tokens,
          step=step,
          workdir=workdir,
          phases=self.phases,
      )


@jax.jit
def _fold(key, counter):
  """A uint32 seed from the run's key and (step, round)."""
  key = jax.random.fold_in(jax.random.fold_in(key, counter[0]), counter[1])
  return jax.random.bits(key)


def _abstract(leaf: Any) -> Any:
  """Shape, dtype and place of a leaf, for a restore."""
  if isinstance(leaf, jax.Array):
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
  return leaf


def _join(rounds: Sequence[Step]) -> Step:
  """The rounds of one step as one."""
  if len(rounds) == 1:
    return rounds[0]
  stack = lambda name: np.concatenate([getattr(r, name) for r in rounds])
  chain = lambda name: [x for r in rounds for x in getattr(r, name)]
  return Step(
      rows={
          name: [x for r in rounds for x in r.rows[name]]
          for name in rounds[0].rows
      },
      prompts=chain('prompts'),
      completions=chain('completions'),
      rewards=stack('rewards'),
      advantages=stack('advantages'),
      kept=stack('kept'),
      parts={
          name: np.concatenate([r.parts[name] for r in rounds])
          for name in rounds[0].parts
      },
  )


def _summary(step: Step) -> dict[str, float]:
  """Metrics of the rollouts: of the very arrays that train the policy."""
  rows = step.rows
  outcomes = np.asarray(rows['outcome'], bool).reshape(step.rewards.shape)
  metrics = {
      'reward': step.rewards.mean(),
      'reward_std_in_group': step.rewards.std(1).mean(),
      'outcome': outcomes.mean(),
      'dead_groups': (step.rewards.std(1) < _DEAD_STD).mean(),
      'groups': len(step.kept),
      'groups_kept': step.kept.sum(),
      'truncated': np.mean(rows['truncated']),
      'n_tokens': np.mean(rows['n_tokens']),
      'sampled_tokens': np.sum(rows['n_tokens']),
      'mean_logprob': np.mean(rows['mean_logprob']),
  }
  for name, values in step.parts.items():
    metrics[schema.PART_PREFIX + name] = values.mean()
  return {name: float(value) for name, value in metrics.items()}


@contextlib.contextmanager
def _sigterm_flag():
  """Yields a list that is non-empty once SIGTERM has arrived."""
  arrived: list[int] = []
  try:
    old = signal.signal(signal.SIGTERM, lambda number, _: arrived.append(number))
  except ValueError:  # Not the main thread: the embedding program decides.
    yield arrived
    return
  try:
    yield arrived
  finally:
    signal.signal(signal.SIGTERM, old)


def run(
    config: ml_collections.ConfigDict, workdir: str, *, fork_from: str = ''
) -> dict[str, Any]:
  """Trains a policy; the same call on the same workdir continues it.

  Args:
    config: From a file in configs/, with overrides applied.
    workdir: The run's directory, created if needed.
    fork_from: Workdir of another run, whose newest checkpoint a new workdir
      starts from.

  Returns:
    The summary that is also in workdir/summary.json.

  Raises:
    ValueError: If the config, the model, the domain or the workdir is wrong.
    learner.NonFiniteError: If training diverged.
    Preempted: After SIGTERM, with the state saved.
  """
  setup = prepare(config)
  # Process 0 owns the directory; a lone process is process 0, and asking would
  # touch the device.
  primary = not jax.distributed.is_initialized() or jax.process_index() == 0
  with (
      workdir_lib.open_workdir(
          workdir,
          config_lib.to_json(config),
          config_lib.sha256(config),
          primary=primary,
      ) as directory,
      _sigterm_flag() as sigterm,
  ):
    trainer = None
    with _given_back(
        directory,
        primary,
        used=lambda: trainer.step if trainer else directory.resumed,
    ):
      if fork_from and primary:
        _fork(pathlib.Path(fork_from).expanduser(), directory.path)
      print(describe_devices(), flush=True)
      trainer = Trainer(setup, directory.path, metrics_lib.Phases())
      return _run(trainer, directory, sigterm, primary)


@contextlib.contextmanager
def _given_back(
    directory: workdir_lib.Workdir, primary: bool, used: Callable[[], Any]
):
  """After an error, lets a corrected config have an unused directory."""
  try:
    yield
  except BaseException:
    if primary and not used():
      (directory.path / 'config.json').unlink(missing_ok=True)
    raise


def describe_devices() -> str:
  """One line: what this run computes on."""
  kinds: dict[str, int] = {}
  for device in jax.devices():
    name = f'{device.platform} ({device.device_kind})'
    kinds[name] = kinds.get(name, 0) + 1
  listed = ', '.join(f'{count} x {name}' for name, count in kinds.items())
  return f'devices: {listed}; {os.cpu_count()} host cores, jax {jax.__version__}'


def _fork(source: pathlib.Path, target: pathlib.Path) -> None:
  """Copies the newest checkpoint of another run, unless there is one already."""
  found = checkpoint_lib.Checkpointer(
      source / 'checkpoints', every=1, keep=1
  )
  steps = found.steps()
  if not steps:
    raise ValueError(
        f'--fork_from={source} holds no checkpoint; name the workdir of a run'
        ' that has saved one, or leave the flag out to start with the policy of'
        ' config.model.path'
    )
  if (target / 'checkpoints').exists():
    return
  newest = found.path_of(steps[-1])
  temporary = target / 'checkpoints.tmp'
  shutil.rmtree(temporary, ignore_errors=True)
  shutil.copytree(newest, temporary / newest.name)
  os.replace(temporary, target / 'checkpoints')


def _run(
    trainer: Trainer,
    directory: workdir_lib.Workdir,
    sigterm: list[int],
    primary: bool,
) -> dict[str, Any]:
  """The loop, between an opened workdir and the summary."""
  config, path, phases = trainer.config, directory.path, trainer.phases
  if primary:
    directory.record_start()
  with contextlib.ExitStack() as stack:
    stack.callback(trainer.checkpointer.wait)
    writer = progress = None
    if primary:
      writer = stack.enter_context(
          metrics_lib.MetricWriter(
              path,
              step=trainer.step,
              tensorboard=config.log.tensorboard,
              wandb=config.log.wandb,
              wandb_project=config.log.wandb_project,
              name=config.name,
              config=json.loads(config_lib.to_json(config)),
          )
      )
      progress = stack.enter_context(
          progress_lib.Progress(
              config.steps, start=trainer.step, every=config.log.every
          )
      )
    evaluations: dict[int, evaluate_lib.EvalResult] = {}

    def evaluate() -> None:
      if trainer.step in evaluations:
        return
      result = trainer.evaluate(trainer.step, path if primary else None)
      evaluations[trainer.step] = result
      if primary:
        writer.write(trainer.step, result.metrics())
        score = report_lib.percent(result.avg_at_k.value)
        progress.print(
            f'step {trainer.step}: dev Avg@{config.eval.samples} {score}'
        )

    def stop_if_asked() -> None:
      # Hosts are told at different times, but save together.
      if not np.any(sharding.to_host(np.array([bool(sigterm)]))):
        return
      with phases('checkpoint'):
        if trainer.saved_step < trainer.step:
          trainer.save()
        trainer.checkpointer.wait()
      if primary:
        progress.print(
            f'SIGTERM: {trainer.step} steps are saved in {path}; the same'
            ' command continues'
        )
      raise Preempted(128 + signal.SIGTERM)

    if trainer.step:
      progress and progress.print(f'continuing from step {trainer.step}')
    else:
      evaluate()
    while trainer.step < config.steps:
      stop_if_asked()
      # An array that crosses to the device unasked is a bug: every step would
      # wait for it.
      with (
          _profiler(config, path, trainer.step),
          jax.transfer_guard('disallow'),
      ):
        log = trainer.train_step()
      if primary and trainer.step % config.log.every == 0:
        with phases('log'):
          lap = {f'seconds/{k}': v for k, v in phases.lap().items()}
          writer.write(trainer.step, dict(log, **lap))
          progress.update(trainer.step, log)
      # Before the checkpoint: a kill in between repeats the evaluation.
      if config.eval.every and trainer.step % config.eval.every == 0:
        evaluate()
      if (
          trainer.checkpointer.due(trainer.step)
          or trainer.step == config.steps
      ):
        with phases('checkpoint'):
          trainer.save()
    stop_if_asked()
    evaluate()
    return _finish(trainer, evaluations, primary)


@contextlib.contextmanager
def _profiler(config: ml_collections.ConfigDict, path: pathlib.Path, step: int):
  """Records the steps of config's profiler window."""
  first, count = config.log.profile_start, config.log.profile_steps
  if step == first:
    jax.profiler.start_trace(str(path / 'profile'))
  try:
    yield
  finally:
    if first >= 0 and step == min(first + count, config.steps) - 1:
      jax.profiler.stop_trace()


def _finish(
    trainer: Trainer,
    evaluations: dict[int, evaluate_lib.EvalResult],
    primary: bool,
) -> dict[str, Any]:
  """Scores the trained policy against its base, exports it, sums up."""
  config, path = trainer.config, trainer.workdir

  def install_base():
    params = policy_lib.load_params(
        trainer.policy,
        trainer.mesh,
        param_dtype=config.model.param_dtype,
        seed=config.seed,
    )
    trainer.engine.update_weights(params, 0)

  reports = {}
  if trainer.step and config.eval.sealed:
    with trainer.phases('eval'):
      reports['sealed'] = sealed_lib.score(
          trainer.engine,
          trainer.policy.tokenizer,
          trainer.domain,
          install_base=install_base,
          install_trained=trainer.install,
          workdir=path,
          seed=config.seed,
          problems=config.eval.problems,
          samples=config.eval.samples,
          params=sampling_params(config),
          max_prompt_tokens=config.data.max_prompt_tokens,
          step=trainer.step,
          primary=primary,
      )
  elif trainer.step:
    if 0 not in evaluations:  # A resumed run.
      install_base()
      evaluations[0] = trainer.evaluate(0, None)
    reports['dev'] = report_lib.report_gain(
        evaluations[0], evaluations[trainer.step]
    )
  with trainer.phases('export'):
    policy_lib.export(
        trainer.policy,
        learner.policy_params(trainer.policy.cfg, trainer.state),
        path / 'policy',
        config.model.param_dtype,
    )
  summary = dict(
      name=config.name,
      steps=trainer.step,
      config_sha256=config_lib.sha256(config),
      scores=evaluations[trainer.step].metrics(),
      policy=str(path / 'policy'),
      compilations=trainer.compilations(),
      time_shares=trainer.phases.shares(),
      gain=reports,
  )
  if primary:
    text = json.dumps(summary, indent=2, allow_nan=False) + '\n'
    workdir_lib.write_atomic(path / 'summary.json', text.encode())
    console = rich_console.Console(highlight=False)
    for report in reports.values():
      report_lib.print_gain(report, console)
    print(f'time: {trainer.phases.summary()}')
    print(f'compiled programs: {summary["compilations"]}')
    print(f'policy: {path / "policy"} (Hugging Face format)')
  return summary


def evaluate(config: ml_collections.ConfigDict, workdir: str) -> dict[str, Any]:
  """Scores the policy at config.model.path: --mode=eval.

  Args:
    config: Its eval.split, eval.problems and eval.samples say on what.
    workdir: Where evidence and eval.json go.

  Returns:
    What is in workdir/eval.json.

  Raises:
    ValueError: As `run`.
  """
  setup = prepare(config)
  primary = not jax.distributed.is_initialized() or jax.process_index() == 0
  with (
      workdir_lib.open_workdir(
          workdir,
          config_lib.to_json(config),
          config_lib.sha256(config),
          primary=primary,
      ) as directory,
      _given_back(directory, primary, used=lambda: directory.resumed),
  ):
    path = directory.path
    if (path / 'metrics.jsonl').exists():
      raise ValueError(
          f'workdir {path} holds a training run, whose evidence an evaluation'
          ' would replace; pass another --workdir'
      )
    print(describe_devices(), flush=True)
    mesh = sharding.make_mesh(**config.mesh.to_dict())
    engine = make_engine(config, setup.policy, mesh)
    engine.update_weights(
        policy_lib.load_params(
            setup.policy, mesh, param_dtype=config.model.param_dtype
        ),
        0,
    )
    if primary:
      directory.record_start()
    result = evaluate_lib.evaluate(
        engine,
        setup.policy.tokenizer,
        setup.domain,
        split=config.eval.split,
        seed=config.seed,
        problems=config.eval.problems,
        samples=config.eval.samples,
        params=sampling_params(config),
        max_prompt_tokens=config.data.max_prompt_tokens,
        step=0,
        workdir=path if primary else None,
        # A policy that is not being trained: nothing can be fitted to the
        # split.
        allow_sealed=True,
    )
    summary = dict(policy=str(setup.policy.path), metrics=result.metrics())
    if primary:
      text = json.dumps(summary, indent=2, allow_nan=False) + '\n'
      workdir_lib.write_atomic(path / 'eval.json', text.encode())
      report_lib.print_scores(result, rich_console.Console(highlight=False))
  return summary
