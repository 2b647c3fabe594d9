"""The state of a run and the stages of one GRPO step.

    sample -> grade -> reward -> advantages -> update -> weights

What a domain brings is data and a grader; what a harness turns are config
values and the reward. Nothing here knows more.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
import time
from typing import Any

import jax
import numpy as np

from evojax import checkpoint as checkpoint_lib
from evojax import config as config_lib
from evojax import learner
from evojax import metrics as metrics_lib
from evojax import prepare as prepare_lib
from evojax import reward as reward_lib
from evojax import sharding
from evojax import types
from evojax.eval import evaluate as evaluate_lib
from evojax.eval import rollouts
from evojax.evidence import rows as rows_lib
from evojax.evidence import schema
from evojax.evidence import store
from evojax.evidence import views
from evojax.models import policy as policy_lib
from evojax.rl import advantages as advantages_lib
from evojax.rl import filters
from evojax.rollout import engine as engine_lib


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


class Weigher:
  """Rewards, advantages and kept groups, of graded rows alone.

  Recorded evidence is weighed exactly as live rollouts are. Holds the state of
  the harness's filter.
  """

  def __init__(self, setup: prepare_lib.Setup):
    self.setup = setup
    self.keep_state: dict[str, np.ndarray] = {}
    if setup.functions and setup.functions.has('keep'):
      self.keep_state = setup.functions.init()

  def weigh(
      self, rows: dict[str, Any], prompts: int, group_size: int
  ) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Rewards [P, G], their parts, advantages [P, G] and kept groups [P]."""
    c, functions = self.setup.config, self.setup.functions
    e = views.View.from_rows(
        rows,
        self.setup.columns,
        prompts=prompts,
        group_size=group_size,
        max_tokens=config_lib.token_limit(c),
        reader=self.setup.reader,
    )
    weights = c.reward.weights.to_dict()
    rewards, parts = reward_lib.compute(self.setup.parts, e, weights)
    # Advantages compare a completion with its whole group; groups without
    # signal are dropped afterwards, and leave loss and denominator.
    advantages = np.asarray(
        advantages_lib.ADVANTAGES[c.grpo.advantage](rewards, e.valid)
    )
    if functions and functions.has('weight'):
      # One turn so far: its weight is that of the completion.
      advantages = advantages * functions.weight(e)[..., 0]
    kept = filters.KEEP[c.grpo.keep](rewards, e.outcome, e.valid)
    if functions and functions.has('keep'):
      chosen, self.keep_state = functions.keep(e, self.keep_state)
      kept = kept & chosen
    return rewards, parts, advantages, kept.any(1)


class Trainer:
  """The state of a run and one method per stage of a step."""

  def __init__(
      self,
      setup: prepare_lib.Setup,
      workdir: pathlib.Path,
      phases: metrics_lib.Phases,
      *,
      engine: engine_lib.Engine | None = None,
      start: pathlib.Path | None = None,
  ):
    """Builds mesh, state and engine, and restores the newest checkpoint.

    Args:
      setup: What `prepare` made.
      workdir: Holds the run's evidence and checkpoints.
      phases: Counts the time of each stage.
      engine: Of another trainer with the same shapes; it gets this one's
        weights. Default: a new one.
      start: Directory of a checkpoint whose parameters and moments a new run
        starts from, at step 0 and with its own problems and random numbers.
        Default: the policy of config.model.path.
    """
    c = self.config = setup.config
    self.setup, self.workdir, self.phases = setup, workdir, phases
    self.domain, self.policy = setup.domain, setup.policy
    self.source = setup.taught.source('train', c.seed)

    # Mesh, shapes, shardings; nothing is allocated yet.
    self.mesh = sharding.make_mesh(**c.mesh.to_dict())
    self.whole = sharding.replicated(self.mesh)
    cfg, self.algorithm = self.policy.cfg, prepare_lib.make_algorithm(c)
    self.engine = engine or prepare_lib.make_engine(c, self.policy, self.mesh)
    self.update = learner.jit_update_step(cfg, self.algorithm, self.mesh)
    self.score = learner.jit_score_step(cfg, self.algorithm, self.mesh)

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
    # The reference lives on; otherwise the state takes the buffers over.
    self.state = learner.jit_init_state(
        cfg, self.algorithm, self.mesh, donate=not self.algorithm.reference
    )(base)
    self.step, self.cursor = 0, 0
    # On every device of every process, as a checkpoint wants it.
    self.key = jax.jit(jax.random.key, out_shardings=self.whole)(
        sharding.to_device(np.uint32(c.seed), self.whole)
    )
    self.weigher = Weigher(setup)
    self.checkpointer = checkpoint_lib.Checkpointer(
        workdir / 'checkpoints',
        every=c.checkpoint.every,
        keep=c.checkpoint.keep,
    )
    abstract = abstract_state(self._learned())
    restored = self.checkpointer.restore_latest(abstract)
    if restored is not None:
      saved, meta = restored
      self.state.update(saved['learner'])
      self.key, self.cursor = saved['key'], int(saved['cursor'])
      self.step = meta['step']
      self.weigher.keep_state = {
          name: np.array(values, np.float32)
          for name, values in meta['metadata']['keep_state'].items()
      }
      self.start = meta['metadata']['start']
    else:
      if start is not None:
        self.state.update(checkpoint_lib.restore(start, abstract)['learner'])
      self.start = learner.fingerprint(self._learned())
    self.saved_step = self.step
    if jax.process_index() == 0:
      # What a killed process wrote beyond it is about to be written again. Dev
      # evidence of a step is of the weights after it, train evidence of those
      # before.
      store.discard_after(workdir, 'train', self.step - 1)
      store.discard_after(workdir, 'dev', self.step)
    self.install()

  def _learned(self) -> dict[str, Any]:
    """Parameters and moments."""
    return {k: v for k, v in self.state.items() if k != 'frozen'}

  def fingerprint(self) -> str:
    """Of parameters and moments, see `learner.fingerprint`."""
    return learner.fingerprint(self._learned())

  def _saved(self) -> dict[str, Any]:
    """What a checkpoint holds: all that the next step depends on.

    The filter's state, too small to be sharded, is in the metadata.
    """
    return _to_save(self._learned(), self.key, self.cursor, self.step)

  def save(self) -> None:
    """Starts an asynchronous checkpoint of the finished step."""
    self.checkpointer.save(
        self.step,
        self._saved(),
        dict(
            config_sha256=config_lib.sha256(self.config),
            jax=jax.__version__,
            start=self.start,
            keep_state={
                name: values.tolist()
                for name, values in self.weigher.keep_state.items()
            },
        ),
    )
    self.saved_step = self.step

  def install(self) -> None:
    """Gives the engine the current weights; their version is the step."""
    self.engine.update_weights(
        learner.policy_params(self.policy.cfg, self.state), self.step
    )

  def _seed(self, round_: int) -> int:
    """The sampling seed of a rollout round of this step."""
    counter = sharding.to_device(np.uint32([self.step, round_]), self.whole)
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
        prepare_lib.sampling_params(self.config),
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
    g = self.config.grpo.group_size
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
      rewards, parts, advantages, kept = self.weigher.weigh(
          rows, len(problems), g
      )
      # Grading may hit a time limit on one host only; all hosts must agree.
      rewards, advantages, kept = sharding.broadcast(
          (rewards, advantages, kept)
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
    hyper = sharding.to_device(
        prepare_lib.hyperparameters(self.config, self.step), self.whole
    )
    minibatches = [
        self._minibatch(step, groups[i :: c.minibatches])
        for i in range(c.minibatches)
    ]
    with self.phases('update'), sharding.use(self.mesh):
      for _, batch, _ in minibatches:
        if not self.algorithm.on_policy:
          params = learner.policy_params(self.policy.cfg, self.state)
          batch['old_logprobs'] = self.score(
              params, batch, hyper['temperature']
          )
        if self.algorithm.reference:
          batch['ref_logprobs'] = self.score(
              self.reference, batch, hyper['temperature']
          )
      logs = []
      for epoch in range(c.epochs):
        for order, batch, live in minibatches:
          self.state, metrics, rows = self.update(
              self.state, batch, live, hyper
          )
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
      return self.score_split(
          'dev',
          seed=c.seed,
          problems=c.eval.problems,
          samples=c.eval.samples,
          step=step,
          workdir=workdir,
      )

  def score_split(
      self,
      split: str,
      *,
      seed: int,
      problems: int,
      samples: int,
      step: int = 0,
      workdir: pathlib.Path | None = None,
  ) -> evaluate_lib.EvalResult:
    """Scores the installed weights on any problems but the sealed ones."""
    c = self.config
    return evaluate_lib.evaluate(
        self.engine,
        self.policy.tokenizer,
        self.domain,
        split=split,
        seed=seed,
        problems=problems,
        samples=samples,
        params=prepare_lib.eval_params(c),
        max_prompt_tokens=c.data.max_prompt_tokens,
        step=step,
        workdir=workdir,
        phases=self.phases,
    )


def _to_save(
    learned: dict[str, Any],
    key: jax.Array | jax.ShapeDtypeStruct,
    cursor: int,
    step: int,
) -> dict[str, Any]:
  """The tree of a checkpoint."""
  return dict(
      learner=learned,
      key=key,
      cursor=np.asarray(cursor, np.int64),
      policy_version=np.asarray(step, np.int32),
  )


def abstract_state(state: learner.State) -> dict[str, Any]:
  """Shapes and places of a checkpoint of this state, to restore one."""
  learned = {k: v for k, v in state.items() if k != 'frozen'}
  key = jax.eval_shape(lambda: jax.random.key(0))
  # Replicated, as the count of steps is.
  key = jax.ShapeDtypeStruct(
      key.shape, key.dtype, sharding=state['step'].sharding
  )
  return jax.tree.map(_abstract, _to_save(learned, key, 0, 0))


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
      'dead_groups': (step.rewards.std(1) < filters.MIN_STD).mean(),
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
