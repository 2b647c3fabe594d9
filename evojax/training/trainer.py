"""The state of a run and the stages of one GRPO step.

    sample -> grade -> reward -> advantages -> update -> weights

What a domain brings is data and a grader; what a harness turns are config
values and the reward. Nothing here knows more.
"""

import base64
from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import io
import pathlib
import time
from typing import Any

import jax
import numpy as np

from evojax import config as config_lib
from evojax import records
from evojax.episodes import collect
from evojax.episodes import rows as rows_lib
from evojax.eval import evaluate as evaluate_lib
from evojax.evidence import schema
from evojax.evidence import store
from evojax.evidence import views
from evojax.models import policy as policy_lib
from evojax.rl import advantages as advantages_lib
from evojax.rl import filters
from evojax.rollout import fleet
from evojax.rollout import packed as packed_lib
from evojax.runtime import checkpoint as checkpoint_lib
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import sharding
from evojax.training import engines
from evojax.training import reward_pipeline
from evojax.training import settings
from evojax.training import setup as setup_lib
from evojax.training import update as update_lib


@dataclasses.dataclass
class Step:
  """The rollouts of one step; B = P * G, group-major."""

  rows: dict[str, Any]  # Evidence, one value per completion.
  prompts: list[np.ndarray]  # [B] int32.
  completions: list[records.Episode]  # [B]
  rewards: np.ndarray  # float32 [P, G]
  advantages: np.ndarray  # float32 [P, G], before groups are dropped.
  kept: np.ndarray  # bool [P]
  graded: np.ndarray  # bool [P, G]; what is not has no part in the update.
  parts: dict[str, np.ndarray]  # float32 [P, G], before weighting.


@dataclasses.dataclass
class Draw:
  """Problems of one rollout round and how to sample them."""

  cursor: int  # Of the stream of problems, before it.
  problems: list[records.Problem]  # [P]
  prompts: list[tuple[int, ...]]  # [P]
  seed: int
  requests: list[records.Request]  # [B]


class Weigher:
  """Rewards, advantages and kept groups, of graded rows alone.

  Recorded evidence is weighed exactly as live rollouts are. Holds the state of
  the harness's filter.
  """

  def __init__(self, setup: setup_lib.Setup):
    self.setup = setup
    self.keep_state: dict[str, np.ndarray] = {}
    if setup.functions and setup.functions.has('keep'):
      self.keep_state = setup.functions.init()

  def weigh(
      self, rows: dict[str, Any], prompts: int, group_size: int
  ) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Rewards [P, G], their parts, advantages [P, G] and kept groups [P].

    Of rows that could not be graded, all of them are 0.
    """
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
    rewards, parts = reward_pipeline.compute(self.setup.parts, e, weights)
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
      setup: setup_lib.Setup,
      workdir: pathlib.Path,
      phases: metrics_lib.Phases,
      *,
      engine: records.RolloutEngine | None = None,
      start: pathlib.Path | None = None,
      stopping: Callable[[], bool] = lambda: False,
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
      stopping: Whether the run was asked to stop; see `fleet.Fleet`.
    """
    c = self.config = setup.config
    self.setup, self.workdir, self.phases = setup, workdir, phases
    self.domain, self.policy = setup.domain, setup.policy
    self.source = setup.training_domain.source('train', c.seed)

    # Mesh, shapes, shardings; nothing is allocated yet.
    self.mesh = sharding.make_mesh(**c.mesh.to_dict())
    self.whole = sharding.replicated(self.mesh)
    self.algorithm = settings.algorithm(c)
    # The next step's first round: being sampled, then sampled.
    self.begun: tuple[Draw, Any] | None = None
    self.ahead: tuple[Draw, list[records.Episode]] | None = None
    if c.rollout.queue_depth and c.rollout.kind == 'engine':
      if jax.process_count() > 1:
        raise ValueError(
            'config.rollout.queue_depth=1 with the engine in this process'
            f' needs one process, not {jax.process_count()}: they would start'
            ' sampling and training in different orders; use'
            ' --config.rollout.kind=sglang'
        )
    with contextlib.ExitStack() as stack:
      self.engine = engine or stack.enter_context(
          engines.open_sampler(c, self.policy, self.mesh, workdir, stopping)
      )
      self._restore(start)
      self._open = stack.pop_all()

  def _restore(self, start: pathlib.Path | None) -> None:
    """Puts parameters, moments and weights on the devices."""
    c, cfg, workdir = self.config, self.policy.cfg, self.workdir
    self.update = update_lib.jit_update_step(cfg, self.algorithm, self.mesh)
    self.score = update_lib.jit_score_step(cfg, self.algorithm, self.mesh)

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
    self.state = update_lib.jit_init_state(
        cfg, self.algorithm, self.mesh, donate=not self.algorithm.reference
    )(base)
    self.step, self.cursor = 0, 0
    # On every device of every process, as a checkpoint wants it.
    self.key = jax.jit(jax.random.key, out_shardings=self.whole)(
        sharding.to_device(np.uint32(c.seed), self.whole)
    )
    self.weigher = Weigher(self.setup)
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
      if 'ahead' in meta['metadata']:
        self._restore_ahead(meta['metadata'])
    else:
      if start is not None:
        self.state.update(checkpoint_lib.restore(start, abstract)['learner'])
      self.start = update_lib.fingerprint(self._learned())
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
    return update_lib.fingerprint(self._learned())

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
            **(
                {'ahead': [self.ahead[0].cursor, _pack(self.ahead[1])]}
                if self.ahead
                else {}
            ),
        ),
    )
    self.saved_step = self.step

  def _restore_ahead(self, metadata: dict[str, Any]) -> None:
    """Goes on with what was sampled ahead, or samples it in another way."""
    c = self.config
    self.cursor, packed = metadata['ahead']
    # A fork may have other problems, prompts or sampling parameters.
    if metadata['config_sha256'] == config_lib.sha256(c):
      draw = self.draw(c.grpo.prompts, self.step, 0)
      decode = self.policy.tokenizer.decode
      self.ahead = draw, _unpack(packed, draw.requests, decode)

  def install(self) -> None:
    """Gives the engine the current weights; their version is the step."""
    self.engine.update_weights(
        update_lib.policy_params(self.policy.cfg, self.state), self.step
    )

  def close(self) -> None:
    """Ends the engine, unless another trainer goes on with it."""
    self._open.close()

  def _seed(self, step: int, round_: int) -> int:
    """The sampling seed of a rollout round of a step."""
    counter = sharding.to_device(np.uint32([step, round_]), self.whole)
    return int(sharding.to_host(_fold(self.key, counter)))

  def compilations(self) -> int:
    """Programs compiled so far, of engine and learner."""
    compiled = self.update._cache_size() + self.score._cache_size()
    return self.engine.compilations() + compiled

  # ---------------------------------------------------------------- stages

  def draw(self, prompts: int, step: int, round_: int) -> Draw:
    """The next problems, for a rollout round of a step."""
    cursor = self.cursor
    problems = self.source.take(cursor, prompts)
    self.cursor += prompts
    rendered = collect.render(
        self.policy.tokenizer, problems, self.config.data.max_prompt_tokens
    )
    seed = self._seed(step, round_)
    requests = collect.requests(
        problems,
        rendered,
        settings.sampling_params(self.config),
        group_size=self.config.grpo.group_size,
        seed=seed,
    )
    return Draw(cursor, problems, rendered, seed, requests)

  def start_ahead(self) -> None:
    """Starts to sample the next step with the weights of this one."""
    if self.config.rollout.queue_depth and self.step + 1 < self.config.steps:
      draw = self.draw(self.config.grpo.prompts, self.step + 1, 0)
      self.begun = draw, self.engine.begin(draw.requests)

  def finish_ahead(self) -> None:
    """Waits for it: then the weights may change."""
    if self.begun:
      (draw, begun), self.begun = self.begun, None
      try:
        with self.phases('rollout'):
          self.ahead = draw, self.engine.finish(begun)
      except fleet.FleetError:
        self.cursor = draw.cursor
        raise

  def _fresh(
      self,
      requests: Sequence[records.Request],
      completions: list[records.Episode],
  ) -> list[records.Episode]:
    """Samples again what is older than config.rollout.max_staleness allows."""
    oldest = self.step - self.config.rollout.max_staleness
    stale = [i for i, c in enumerate(completions) if c.policy_version < oldest]
    self.refused += len(stale)
    if stale:
      again = self.engine.generate([requests[i] for i in stale])
      for i, completion in zip(stale, again, strict=True):
        completions[i] = completion
    return completions

  def collect(self) -> Step:
    """Rolls out until P groups are kept, or the refill rounds are used up."""
    c = self.config.grpo
    self.refused = 0
    rounds: list[Step] = []
    missing = c.prompts
    for round_ in range(1 + c.refill_rounds):
      if self.ahead:
        (draw, completions), self.ahead = self.ahead, None
      else:
        draw, completions = self.draw(missing, self.step, round_), None
      with self.phases('rollout'):
        if completions is None:
          completions = self.engine.generate(draw.requests)
        completions = self._fresh(draw.requests, completions)
      rounds.append(
          self.judge(
              draw.problems,
              draw.prompts,
              completions,
              seed=draw.seed,
              first_group=sum(len(r.kept) for r in rounds),
          )
      )
      missing = c.prompts - sum(int(r.kept.sum()) for r in rounds)
      if missing <= 0:
        break
    return _join(rounds)

  def judge(
      self,
      problems: Sequence[records.Problem],
      prompts: Sequence[tuple[int, ...]],
      completions: Sequence[records.Episode],
      *,
      seed: int,
      first_group: int,
  ) -> Step:
    """Grades, rewards and compares the completions of whole groups."""
    g = self.config.grpo.group_size
    with self.phases('grade'):
      grades, seconds = collect.grade(self.domain, problems, completions)
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
      graded = np.asarray(rows['graded'], bool).reshape(-1, g)
      # Grading may hit a time limit on one host only; all hosts must agree.
      rewards, advantages, kept, graded = sharding.broadcast(
          (rewards, advantages, kept, graded)
      )
    rows['group'] = np.asarray(rows['group']) + first_group
    # A reward of what was not graded is none, not 0.
    known = lambda x: np.where(graded, x, np.nan).reshape(-1)
    rows['reward'], rows['advantage'] = known(rewards), known(advantages)
    rows['kept'] = (kept[:, None] & graded).reshape(-1)
    for name, values in parts.items():
      rows[schema.PART_PREFIX + name] = known(values)
    return Step(
        rows=rows,
        prompts=[np.array(p, np.int32) for p in prompts for _ in range(g)],
        completions=list(completions),
        rewards=rewards,
        advantages=advantages,
        kept=kept,
        graded=graded,
        parts=parts,
    )

  def learn(self, step: Step) -> dict[str, float]:
    """Updates the policy on the step's groups; kept ones come first."""
    c = self.config.grpo
    groups = np.argsort(~step.kept, kind='stable')[: c.prompts]
    gap = np.full(step.rewards.shape, np.nan, np.float32)
    hyper = sharding.to_device(
        settings.hyperparameters(self.config, self.step), self.whole
    )
    minibatches = [
        self._minibatch(step, groups[i :: c.minibatches])
        for i in range(c.minibatches)
    ]
    with self.phases('update'), sharding.use(self.mesh):
      for _, batch, _ in minibatches:
        if not self.algorithm.on_policy:
          params = update_lib.policy_params(self.policy.cfg, self.state)
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
          update_lib.check_finite(metrics, self.step)
          logs.append(metrics)
          if epoch == 0:
            gap[order] = rows['gap'].reshape(-1, c.group_size)
    gap[~(step.kept[:, None] & step.graded)] = np.nan
    step.rows['sampler_trainer_logprob_gap'] = gap.reshape(-1)
    return {
        name: float(np.mean([log[name] for log in logs]))
        for name in logs[0]
        if name != 'finite'
    }

  def _minibatch(
      self, step: Step, groups: np.ndarray
  ) -> tuple[np.ndarray, update_lib.Batch, jax.Array]:
    """(groups in the order of the batch, the batch, live micro-batches)."""
    c, g = self.config, self.config.grpo.group_size
    index = (groups[:, None] * g + np.arange(g)).reshape(-1)
    batch, live, order = update_lib.make_batch(
        [step.prompts[i] for i in index],
        [step.completions[i].tokens for i in index],
        [step.completions[i].logprobs for i in index],
        step.advantages[groups],
        step.kept[groups, None] & step.graded[groups],
        max_prompt_tokens=c.data.max_prompt_tokens,
        max_tokens=c.rollout.max_tokens,
        micro_groups=c.grpo.micro_groups,
        layout=c.grpo.layout,
    )
    return (
        groups[order],
        sharding.to_device(batch, update_lib.batch_shardings(batch, self.mesh)),
        sharding.to_device(np.int32(live), self.whole),
    )

  def train_step(self) -> dict[str, float]:
    """One step; evidence is on disk before the update that uses it.

    Raises:
      fleet.FleetError: If no server could be used for too long; what is done by
        then is whole, and may be saved.
    """
    started = time.perf_counter()
    before = self.cursor, self.ahead, self.weigher.keep_state
    try:
      step = self.collect()
    except fleet.FleetError:
      self.cursor, self.ahead, self.weigher.keep_state = before
      raise
    self.start_ahead()
    try:
      metrics = self._train_on(step)
      self.step += 1
    finally:  # Nobody else may use the engine before.
      self.finish_ahead()
    with self.phases('sync'):
      self.install()
    metrics |= self.engine.metrics()
    seconds = time.perf_counter() - started
    metrics['step_seconds'] = seconds
    metrics['tokens_per_second'] = metrics['sampled_tokens'] / seconds
    return metrics

  def _train_on(self, step: Step) -> dict[str, float]:
    """Stores what was rolled out and updates on it."""
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
    metrics['refused_stale'] = self.refused
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
        params=settings.eval_params(c),
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


def abstract_state(state: update_lib.State) -> dict[str, Any]:
  """Shapes and places of a checkpoint of this state, to restore one."""
  learned = {k: v for k, v in state.items() if k != 'frozen'}
  key = jax.eval_shape(lambda: jax.random.key(0))
  # Replicated, as the count of steps is.
  key = jax.ShapeDtypeStruct(
      key.shape, key.dtype, sharding=state['step'].sharding
  )
  return jax.tree.map(_abstract, _to_save(learned, key, 0, 0))


def _pack(completions: Sequence[records.Episode]) -> str:
  """Completions as text, bit for bit, for a checkpoint's metadata."""
  width = max(len(c.tokens) for c in completions)
  buffer = io.BytesIO()
  np.savez_compressed(buffer, **packed_lib.pack(completions, width))
  return base64.b64encode(buffer.getvalue()).decode()


def _unpack(
    text: str,
    requests: Sequence[records.Request],
    decode: Callable[[Sequence[int]], str],
) -> list[records.Episode]:
  """What `_pack` packed."""
  # Into memory: the file would unpack an array at every look at it.
  arrays = dict(np.load(io.BytesIO(base64.b64decode(text))))
  return packed_lib.unpack(arrays, requests, decode)


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
      graded=stack('graded'),
      parts={
          name: np.concatenate([r.parts[name] for r in rounds])
          for name in rounds[0].parts
      },
  )


def _summary(step: Step) -> dict[str, float]:
  """Metrics of the rollouts: of the very arrays that train the policy."""
  rows, graded = step.rows, step.graded
  outcomes = np.asarray(rows['outcome'], bool).reshape(graded.shape)
  spread = np.ma.array(step.rewards, mask=~graded).std(1).filled(0)
  metrics = {
      'reward': step.rewards[graded].mean(),
      'reward_std_in_group': spread.mean(),
      'outcome': outcomes[graded].mean(),
      'dead_groups': (spread < filters.MIN_STD).mean(),
      'not_graded': (~graded).sum(),
      'groups': len(step.kept),
      'groups_kept': step.kept.sum(),
      'truncated': np.mean(rows['truncated']),
      'n_tokens': np.mean(rows['n_tokens']),
      'sampled_tokens': np.sum(rows['n_tokens']),
      'mean_logprob': np.mean(rows['mean_logprob']),
  }
  for name, values in step.parts.items():
    metrics[schema.PART_PREFIX + name] = values[graded].mean()
  return {name: float(value) for name, value in metrics.items()}
