"""Scores of policies: parameters from a checkpoint, evidence on disk."""

from collections.abc import Callable
import dataclasses
import pathlib

import jax
from jaxtyping import Float
import numpy as np

from evojax import records as step_records
from evojax.domains import base
from evojax.eval import evaluate as evaluate_lib
from evojax.evidence import store
from evojax.models import decoder
from evojax.models import policy as policy_lib
from evojax.runtime import checkpoint as checkpoint_lib
from evojax.runtime import decisions
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import progress as progress_lib
from evojax.runtime import sharding
from evojax.training import arm as arm_lib
from evojax.training import learner as learner_lib
from evojax.training import settings
from evojax.training import setup as setup_lib
from evojax.training import update as update_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scored:
  """A policy, and the problems that it is scored on."""

  folder: pathlib.Path  # Where the evidence of the score lies.
  split: str
  seed: int  # Of problems and sampler.
  problems: int
  samples: int  # Of each problem.
  step: int = 0  # Names the evidence file.
  # An arm's checkpoint; without one, the policy is that of a directory.
  checkpoint: pathlib.Path | None = None
  policy: policy_lib.Policy | None = None  # Default: the run's.
  domain: base.Domain | None = None  # Default: the run's.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scorer:
  """Scores policies with the engine of the run."""

  setup: setup_lib.Setup  # Of the run, without a harness.
  mesh: jax.sharding.Mesh
  engine: step_records.RolloutEngine
  phases: metrics_lib.Phases
  progress: progress_lib.Progress
  stop_if_asked: Callable[[], None]
  # True once nothing is trained or proposed any more.
  may_open_sealed: Callable[[], bool]

  def params(
      self, checkpoint: pathlib.Path | None, policy: policy_lib.Policy | None
  ) -> decoder.Params:
    """Return the parameters of a checkpoint, or else of a policy's directory.

    Args:
      checkpoint: Of an arm.
      policy: Of the shape of the run's, which it is for None.
    """
    policy = policy or self.setup.policy
    config = self.setup.config
    dtype = config.model.param_dtype
    params = policy_lib.load_params(
        policy, self.mesh, param_dtype=dtype, seed=config.seed
    )
    if checkpoint is not None:
      # Parameters and moments have one form under every algorithm.
      algorithm = settings.algorithm(config)
      state = update_lib.compiled(
          update_lib.init_state, policy.cfg, algorithm, self.mesh
      )(params)
      shape = learner_lib.abstract_state(state)
      saved = checkpoint_lib.restore(checkpoint, shape)
      state.update(saved['learner'])
      params = update_lib.policy_params(policy.cfg, state)
    return params

  def scores(self, wanted: Scored) -> Float[np.ndarray, 'P']:
    """Return the mean outcome of each problem; sampled once, then read.

    Raises:
      ValueError: If the split is sealed and something may still be trained.
    """
    folder, split = wanted.folder, wanted.split
    if not decisions.decide(lambda: bool(store.list_steps(folder, split))):
      self.stop_if_asked()
      self._evaluate(wanted)
    # Read from disk also where it was just sampled: a run that was killed and
    # one that was not get the same numbers.
    return np.array(
        decisions.decide(lambda: store.problem_scores(folder, split).tolist()),
        np.float64,
    )

  def _evaluate(self, wanted: Scored) -> None:
    """Sample and grade; leave evidence."""
    checkpoint = wanted.checkpoint
    self.engine.update_weights(self.params(checkpoint, wanted.policy), 0)
    arm = checkpoint and arm_lib.result(checkpoint.parents[1])
    scorer = self.setup.scorer(
        self.engine, self.phases, version=arm.harness if arm else 'seed'
    )
    completions = wanted.problems * wanted.samples
    with self.phases('eval'), self.progress.scoring(completions):
      evaluate_lib.evaluate(
          dataclasses.replace(scorer, domain=wanted.domain or scorer.domain),
          split=wanted.split,
          seed=wanted.seed,
          problems=wanted.problems,
          samples=wanted.samples,
          step=wanted.step,
          workdir=wanted.folder if sharding.is_primary() else None,
          allow_sealed=self.may_open_sealed(),
      )

  def export(self, checkpoint: pathlib.Path, target: pathlib.Path) -> None:
    """Write a checkpoint's policy as a Hugging Face directory, once."""
    if not decisions.decide(target.is_dir):
      policy, dtype = self.setup.policy, self.setup.config.model.param_dtype
      params = self.params(checkpoint, policy)
      policy_lib.export(policy, params, target, dtype)
