"""The stages of one GRPO step, and the state of a run between two steps.

    sample -> grade -> reward -> advantages -> update -> weights

A domain provides data and a grader; a harness changes config values and the
reward. No stage here depends on a particular domain or harness.
"""

import base64
from collections.abc import Callable, Collection, Sequence
import contextlib
import dataclasses
import io
import json
import math
import pathlib
import time
from typing import Any

import jax
import numpy as np

from evojax import config as config_lib
from evojax import records
from evojax.episodes import collect
from evojax.episodes import episode as episode_lib
from evojax.eval import evaluate as evaluate_lib
from evojax.evidence import schema
from evojax.evidence import store
from evojax.rl import filters
from evojax.rollout import packed as packed_lib
from evojax.runtime import checkpoint as checkpoint_lib
from evojax.runtime import config_changes
from evojax.runtime import decisions
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import output
from evojax.runtime import preemption
from evojax.runtime import run_files
from evojax.runtime import sharding
from evojax.training import engines
from evojax.training import learner as learner_lib
from evojax.training import meshes
from evojax.training import reward_pipeline
from evojax.training import settings
from evojax.training import setup as setup_lib

_GAP = 'sampler_trainer_logprob_gap'


class Trainer:
  """The state of a run, and the stages of a step as methods.

  Attributes:
    learner: Parameters, moments and the number of finished steps.
    rewards: The reward pipeline, with the state of the harness's filter.
    cursor: Position in the train stream of the next problem; in a run that was
      given `problems`, that of the next refill.
    prefetching: The next step's first request batch, while it is sampled.
    prefetched: The next step's first request batch with its episodes.
    start: Fingerprint of the parameters and moments at the start of the run.
    saved_step: Step of the newest checkpoint.
  """

  def __init__(
      self,
      setup: setup_lib.Setup,
      workdir: pathlib.Path,
      phases: metrics_lib.Phases,
      *,
      engine: records.RolloutEngine | None = None,
      start: pathlib.Path | None = None,
      problems: tuple[int, int] | None = None,
      retained: Collection[int] = (),
      stopping: Callable[[], bool] = lambda: False,
  ):
    """Build mesh, state and engine, and restore the newest checkpoint.

    Args:
      setup: Result of `setup.prepare` or `Setup.under`.
      workdir: Directory of the run's evidence and checkpoints.
      phases: Measures the time of each stage.
      engine: The engine of another trainer with the same shapes; it gets the
        weights of this trainer. Default: a new engine.
      start: Directory of a checkpoint. A new run starts from its parameters and
        moments, but at step 0 and with its own problems and random numbers.
        Default: the policy of config.model.path.
      problems: Seed of the train stream, and a position in it. From there on,
        every update has its own config.grpo.prompts problems, and refills come
        after those of all updates: runs with and without refills then have the
        same problems, and can be compared. Default: config.seed, and problems
        and refills follow each other from 0.
      retained: Steps whose checkpoints are kept in addition to the newest ones.
      stopping: Returns whether the run was asked to stop; see `fleet.Fleet`.
    """
    c = self.config = setup.config
    self.setup, self.workdir, self.phases = setup, workdir, phases
    stream, self._first = problems or (c.seed, None)
    self.source = setup.training_domain.source('train', stream)
    self.prefetching: tuple[records.RequestBatch, Any] | None = None
    self.prefetched: tuple[records.RequestBatch, Any] | None = None
    self.cursor, self._refused = 0, 0
    self.finished: dict[str, float] | None = None  # Metrics of the last step.
    if self._first is not None:
      self.cursor = self._first + c.steps * c.grpo.prompts
    r, processes = c.rollout, jax.process_count()
    in_thread = r.kind == 'engine' or setup.domain.limits.turns > 1
    if r.queue_depth and in_thread and processes > 1:
      raise ValueError(
          'config.rollout.queue_depth=1 with the engine in this process, or'
          ' with episodes of several turns, needs one process, not'
          f' {processes}: they would start sampling and training in different'
          ' orders; use --config.rollout.queue_depth=0'
      )
    # Shapes and shardings only; nothing is allocated yet.
    self.mesh = meshes.open_mesh(c, setup.policy)
    self._replicated = sharding.replicated(self.mesh)
    with contextlib.ExitStack() as stack:
      self.engine = engine or stack.enter_context(
          engines.open_sampler(c, setup.policy, self.mesh, workdir, stopping)
      )
      self._player = episode_lib.Player(
          self.engine, setup.policy.tokenizer, setup.domain
      )
      # The order of a restore: (1) the base policy's weights, for the
      # reference, for frozen parameters and for a new run; (2) zeros for the
      # optimizer; (3) the newest intact checkpoint, which replaces both; (4)
      # the weights of the engine.
      self.learner = learner_lib.Learner(setup, self.mesh, phases)
      # Replicated on the devices of all processes, as checkpoints require.
      seed = sharding.to_device(np.uint32(c.seed), self._replicated)
      make_key = jax.jit(jax.random.key, out_shardings=self._replicated)
      self.key = make_key(seed)
      self.rewards = reward_pipeline.RewardPipeline(setup)
      self.checkpointer = checkpoint_lib.Checkpointer(
          workdir / run_files.CHECKPOINTS, **c.checkpoint, retained=retained
      )
      stack.callback(self.checkpointer.wait)
      self.start = self._restore(start)
      self.saved_step = self.step
      self._discarded = not sharding.is_primary()
      self.install()
      self._open = stack.pop_all()

  @property
  def step(self) -> int:
    """Number of finished steps, which is also the version of the weights."""
    return self.learner.step

  def _restore(self, start: pathlib.Path | None) -> str:
    """Restore the newest checkpoint; return the fingerprint of the run's start.

    A run without checkpoints starts from `start`, or else from the base policy.
    """
    learner = self.learner
    restored = self.checkpointer.restore_latest(
        learner_lib.abstract_state(learner.state)
    )
    if restored is None:
      if start is not None:
        learner.start_from(start)
      return learner.fingerprint()
    saved, meta = restored
    metadata = meta['metadata']
    learner.state.update(saved['learner'])
    learner.step = meta['step']
    self.key, self.cursor = saved['key'], int(saved['cursor'])
    # The filter's state is in the metadata, since it is too small to shard.
    # A fork may have another filter, which begins with a state of its own.
    if metadata.get('keep', self.rewards.keep) == self.rewards.keep:
      self.rewards.keep_state = {
          name: np.array(values, np.float32)
          for name, values in metadata['keep_state'].items()
      }
    if 'ahead' in metadata:
      self.cursor, packed = metadata['ahead']
      # With another recipe, as in a fork, problems, prompts or sampling
      # parameters may differ; then the prefetched episodes are not used.
      # Older checkpoints have the hash of the whole config.
      hashes = (
          config_changes.recipe(self.config),
          config_lib.sha256(self.config),
      )
      if metadata.get('recipe', metadata['config_sha256']) in hashes:
        asked = self.next_requests(self.config.grpo.prompts, self.step, 0)
        tokenizer = self.setup.policy.tokenizer
        self.prefetched = asked, _unpack(packed, asked.requests, tokenizer)
    return metadata['start']

  def save(self) -> None:
    """Start to write a checkpoint of the finished step, unless it has one.

    After SIGTERM it is not written if it would not be durable in time. Then a
    message is printed, and the run will resume from the last checkpoint. If it
    takes longer than expected, a message says so, too.
    """
    if self.saved_step == self.step:
      return
    tree = learner_lib.checkpoint_tree(
        self.learner.state, self.key, self.cursor, self.step
    )
    if late := self._too_late(tree):
      if sharding.is_primary():
        output.say(late)
      return
    state = self.rewards.keep_state
    metadata = dict(
        config_sha256=config_lib.sha256(self.config),
        recipe=config_changes.recipe(self.config),
        jax=jax.__version__,
        start=self.start,
        keep=self.rewards.keep,
        keep_state={name: values.tolist() for name, values in state.items()},
    )
    if self.prefetched:
      # The cursor before the prefetch; a restore takes the same problems again.
      asked, episodes = self.prefetched
      metadata['ahead'] = [self.cursor - self._moved(asked), _pack(episodes)]
    with preemption.told_if_late(
        f'the checkpoint of step {self.step} is not complete yet. If the'
        f' machine goes away now, {self.saved_step} steps are saved'
    ):
      self.checkpointer.save(self.step, tree, metadata)
      if math.isfinite(preemption.seconds_left()):
        self.checkpointer.wait()
    self.saved_step = self.step

  def _too_late(self, tree: Any) -> str:
    """Return why a checkpoint would not be durable in time; '' if it would."""
    # The signal may have reached only some of the processes.
    left = sharding.to_host(np.array([preemption.seconds_left()])).min().item()
    size, seconds = self.checkpointer.estimate(tree)
    if not decisions.decide(lambda: seconds > left):
      return ''
    return (
        f'no checkpoint of step {self.step}: {size / 1e9:.1f} GB take about'
        f' {seconds:.0f} s, and {max(0.0, left):.0f} of the'
        f' {preemption.SAVE_SECONDS:.0f} s after SIGTERM are left.'
        f' {self.saved_step} steps are saved'
    )

  def install(self) -> None:
    """Install the current weights in the engine; their version is the step."""
    self.engine.update_weights(self.learner.params, self.step)

  def close(self) -> None:
    """Wait for the last checkpoint; close the engine if created here."""
    self._open.close()

  def compilations(self) -> int:
    """Return the number of programs compiled so far, including the engine's."""
    return self.engine.compilations() + self.learner.compilations()

  # ---------------------------------------------------------------- stages

  def next_requests(
      self, prompts: int, step: int, round_: int
  ) -> records.RequestBatch:
    """Return requests for the next problems, for a rollout round of a step."""
    first = self.cursor
    if self._first is not None and round_ == 0:
      first = self._first + step * prompts
    else:
      self.cursor += prompts
    problems = self.source.take(first, prompts)
    counter = sharding.to_device(np.uint32([step, round_]), self._replicated)
    return collect.request_batch(
        self.setup.policy.tokenizer,
        problems,
        settings.sampling_params(self.config),
        group_size=self.config.grpo.group_size,
        seed=int(sharding.to_host(_fold(self.key, counter))),
        max_prompt_tokens=self.config.data.max_prompt_tokens,
    )

  def _moved(self, asked: records.RequestBatch) -> int:
    """Return by how much the first requests of a step moved the cursor."""
    return 0 if self._first is not None else len(asked.problems)

  def start_prefetch(self) -> None:
    """Start to sample the next step with this step's weights."""
    if self.config.rollout.queue_depth and self.step + 1 < self.config.steps:
      asked = self.next_requests(self.config.grpo.prompts, self.step + 1, 0)
      self.prefetching = asked, self._player.begin(asked)

  def finish_prefetch(self) -> None:
    """Wait for the prefetch; after that the weights may change."""
    if self.prefetching:
      (asked, pending), self.prefetching = self.prefetching, None
      try:
        with self.phases('rollout'):
          self.prefetched = asked, self._player.finish(pending)
      except engines.ERRORS:
        self.cursor -= self._moved(asked)
        raise

  def roll_out(self) -> reward_pipeline.RewardedBatch:
    """Sample and reward groups until P are kept or no refill round is left."""
    c = self.config.grpo
    self._refused, missing = 0, c.prompts
    oldest = self.step - self.config.rollout.max_staleness
    rounds: list[reward_pipeline.RewardedBatch] = []
    for round_ in range(1 + c.refill_rounds):
      if self.prefetched:
        (asked, episodes), self.prefetched = self.prefetched, None
      else:
        asked, episodes = self.next_requests(missing, self.step, round_), None
      with self.phases('rollout'):
        if episodes is None:
          episodes = self._player.play(asked)
        stale = [i for i, e in enumerate(episodes) if e.policy_version < oldest]
        self._refused += len(stale)
        if stale:  # Prefetched rollouts may be too old; sample them again.
          again = self._player.play(asked, stale)
          for i, episode in zip(stale, again, strict=True):
            episodes[i] = episode
      # In refill rounds, problems that cannot be graded are only dropped.
      rounds.append(self.reward(asked, episodes, need_grades=not rounds))
      missing = c.prompts - sum(int(r.kept.sum()) for r in rounds)
      if missing <= 0:
        break
    batch = reward_pipeline.join(rounds)
    batch.rollouts.rows.update(batch.columns)
    return batch

  def reward(
      self,
      asked: records.RequestBatch,
      episodes: Sequence[records.Episode],
      *,
      need_grades: bool = True,
  ) -> reward_pipeline.RewardedBatch:
    """Grade and reward the episodes of a request batch.

    Raises:
      collect.GradingError: If grades are needed, and none could be made.
    """
    with self.phases('grade'):
      s, step = self.setup, self.step
      rollouts = collect.rollout_batch(
          s.domain,
          s.columns,
          asked,
          episodes,
          step=step,
          version=s.version,
          divided=True,
          stopping=self.engine.stopping,
          need_grades=need_grades,
      )
    with self.phases('reward'):
      batch = self.rewards(rollouts)
      # All hosts use the values of process 0, since processors may round in
      # other ways, and a function of the user may be random.
      shared = ('rewards', 'advantages', 'kept', 'graded')
      values = {name: getattr(batch, name) for name in shared}
      return dataclasses.replace(batch, **sharding.broadcast(values))

  def train_step(self) -> dict[str, float]:
    """Make one step; evidence is on disk before the update that uses it.

    After each of the errors below, the state is that of the last finished step
    and may be saved. If the update was finished, `finished` holds its metrics.

    Returns:
      Metrics of the step.

    Raises:
      fleet.FleetError: If no server was usable for too long.
      answers.DisagreementError: If a server does not fit the run.
      preemption.Interrupted: If the run was asked to stop.
      collect.GradingError: If the grader does not work.
    """
    started, self.finished = time.perf_counter(), None
    self._discard_later()
    before = self.cursor, self.prefetched, self.rewards.keep_state
    waited = self._player.waited
    try:
      batch = self.roll_out()
    except engines.ERRORS:
      self.cursor, self.prefetched, self.rewards.keep_state = before
      raise
    self.start_prefetch()
    metrics = {}
    try:
      try:
        metrics |= self._train_on(batch)
        self.finished = metrics
      except BaseException:
        # The state may be that of half a step. An error of the engine must not
        # hide this, since the caller would save the state.
        with contextlib.suppress(*engines.ERRORS):
          self.finish_prefetch()
        raise
      self.finish_prefetch()  # Until then, nothing else may use the engine.
      with self.phases('sync'):
        self.install()
      metrics |= self.engine.metrics()
    finally:
      if self.finished is not None:
        seconds = time.perf_counter() - started
        metrics['step_seconds'] = seconds
        metrics['tokens_per_second'] = metrics['sampled_tokens'] / seconds
    if self.setup.domain.limits.turns > 1:
      metrics['environment_wait_seconds'] = self._player.waited - waited
    return metrics

  def _discard_later(self) -> None:
    """Delete evidence of later steps, when the first step begins.

    A killed process may have written it, and it will be written again. Train
    evidence of a step belongs to the weights before the step, dev evidence to
    the weights after it.
    """
    if not self._discarded:
      store.discard_after(self.workdir, 'train', self.step - 1)
      store.discard_after(self.workdir, 'dev', self.step)
      self._discarded = True

  def _train_on(self, batch: reward_pipeline.RewardedBatch) -> dict[str, float]:
    """Store the evidence of a batch, and update the policy on the batch."""
    primary, step = sharding.is_primary(), self.step
    versions = np.array([e.policy_version for e in batch.rollouts.episodes])
    staleness = (step - versions).astype(np.float32)
    rows = batch.rollouts.rows | {'staleness': staleness}
    if primary:
      with self.phases('evidence'):
        store.write_step(self.workdir, 'train', step, rows, self.setup.columns)
    with self.phases('checkpoint'):
      # The last checkpoint was written during this step's rollout. Wait for it
      # here, so that a kill never repeats more than checkpoint.every steps.
      self.checkpointer.wait()
    learned, gap = self.learner.learn(batch)
    if primary:
      with self.phases('evidence'):
        store.fill(self.workdir, 'train', step, {_GAP: gap.reshape(-1)})
    return dict(
        _summary(batch),
        **learned,
        learning_rate=settings.learning_rate(self.config)(step),
        staleness=float(staleness.max()),
        refused_stale=self._refused,
    )

  def evaluate(
      self, step: int, workdir: pathlib.Path | None
  ) -> evaluate_lib.EvalResult:
    """Score the installed weights of a step on the run's dev problems."""
    c = self.config
    # No harness has trained the weights of step 0.
    version = None if step else 'seed'
    with self.phases('eval'):
      return evaluate_lib.evaluate(
          self.setup.scorer(self.engine, self.phases, version=version),
          split='dev',
          seed=c.seed,
          problems=c.eval.problems,
          samples=c.eval.samples,
          step=step,
          workdir=workdir,
      )


def _pack(episodes: Sequence[records.Episode]) -> str:
  """Return episodes as text for a checkpoint, without any loss of precision."""
  width = max(len(e.tokens) for e in episodes)
  # Plain completions are restored from arrays alone; other episodes are not.
  told = [
      None
      if _is_completion(e)
      else [e.text, [dataclasses.astuple(t) for t in e.turns], e.state, e.error]
      for e in episodes
  ]
  buffer = io.BytesIO()
  np.savez_compressed(
      buffer, told=json.dumps(told), **packed_lib.pack(episodes, width)
  )
  return base64.b64encode(buffer.getvalue()).decode()


def _unpack(
    packed: str,
    requests: Sequence[records.Request],
    tokenizer: packed_lib.Decodes,
) -> list[records.Episode]:
  """Return the episodes that `_pack` packed."""
  # Copied to a dict, since NpzFile decompresses an array at every access.
  arrays = dict(np.load(io.BytesIO(base64.b64decode(packed))))
  # Older checkpoints have no 'told'.
  told = json.loads(str(arrays.pop('told', '[]')))
  episodes = packed_lib.unpack(arrays, requests, tokenizer)
  for i, values in enumerate(told):
    if values is not None:
      text, turns, state, error = values
      episodes[i] = dataclasses.replace(
          episodes[i],
          text=text,
          turns=tuple(records.Turn(*turn) for turn in turns),
          state=state,
          error=error,
      )
  return episodes


def _is_completion(e: records.Episode) -> bool:
  """Return whether an episode is a single completion without an environment."""
  plain = (records.Turn(len(e.tokens), text=e.text),)
  return e.turns == plain and e.state is None and not e.error


@jax.jit
def _fold(key, counter):
  """Return a uint32 seed from the run's key and (step, round)."""
  key = jax.random.fold_in(jax.random.fold_in(key, counter[0]), counter[1])
  return jax.random.bits(key)


def _summary(batch: reward_pipeline.RewardedBatch) -> dict[str, float]:
  """Return metrics of the very rollouts and rewards that train the policy."""
  rows, graded = batch.rollouts.rows, batch.graded
  outcomes = np.asarray(rows['outcome'], bool).reshape(graded.shape)
  spread = np.ma.array(batch.rewards, mask=~graded).std(1).filled(0)
  varies = filters.keep_reward_variance(batch.rewards, outcomes, graded)
  metrics = {
      'reward': batch.rewards[graded].mean(),
      'reward_std_in_group': spread.mean(),
      'outcome': outcomes[graded].mean(),
      'dead_groups': 1 - varies[:, 0].mean(),
      'not_graded': (~graded).sum(),
      'groups': len(batch.kept),
      'groups_kept': batch.kept.sum(),
      'truncated': np.mean(rows['truncated']),
      'n_tokens': np.mean(rows['n_tokens']),
      'sampled_tokens': np.sum(rows['n_tokens']),
      'mean_logprob': np.mean(rows['mean_logprob']),
  }
  for name, values in batch.parts.items():
    metrics[schema.PART_PREFIX + name] = values[graded].mean()
  return {name: float(value) for name, value in metrics.items()}
