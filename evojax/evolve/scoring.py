"""Scores of policies from checkpoints, with the evidence stored on disk."""

from collections.abc import Callable
import dataclasses
import pathlib

from jaxtyping import Float
import numpy as np

from evojax import records as step_records
from evojax.domains import base
from evojax.eval import evaluate as evaluate_lib
from evojax.evidence import store
from evojax.evolve import states as states_lib
from evojax.models import policy as policy_lib
from evojax.runtime import decisions
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import progress as progress_lib
from evojax.runtime import sharding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scored:
  """A policy, and the problems that it is scored on."""

  folder: pathlib.Path  # Folder of the score's evidence.
  split: str
  seed: int  # Seed of problems and sampler.
  problems: int
  samples: int  # Samples of each problem.
  first: int = 0  # Position of the first problem in the split's stream.
  step: int = 0  # Step in the name of the evidence file.
  # Checkpoint of an arm or a version; None: the policy's own directory is read.
  checkpoint: pathlib.Path | None = None
  harness: str = 'seed'  # Hash of the harness that trained the policy, if any.
  policy: policy_lib.Policy | None = None  # None: the run's policy.
  domain: base.Domain | None = None  # None: the run's domain.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scorer:
  """Scores policies with the engine of the run."""

  states: states_lib.States
  engine: step_records.RolloutEngine
  phases: metrics_lib.Phases
  progress: progress_lib.Progress
  stop_if_asked: Callable[[], None]
  # Returns True once nothing is trained or proposed any more.
  may_open_sealed: Callable[[], bool]

  def scores(self, wanted: Scored) -> Float[np.ndarray, 'P']:
    """Return the mean outcome of each problem; sample only if not on disk.

    Raises:
      ValueError: If the split is sealed and something may still be trained.
      collect.GradingError: If no completion of some problem could be graded.
        The next call samples again.
    """
    folder, split = wanted.folder, wanted.split
    if not decisions.decide(lambda: _is_scored(folder, split)):
      self.stop_if_asked()
      self._evaluate(wanted)
    # Read from disk even if just sampled, so that an interrupted run and an
    # uninterrupted one get identical numbers.
    return np.array(
        decisions.decide(lambda: store.problem_scores(folder, split).tolist()),
        np.float64,
    )

  def _evaluate(self, wanted: Scored) -> None:
    """Sample, grade and write the evidence."""
    checkpoint = wanted.checkpoint
    params = self.states.params(checkpoint, wanted.policy)
    self.engine.update_weights(params, 0)
    scorer = self.states.setup.scorer(
        self.engine, self.phases, version=wanted.harness
    )
    completions = wanted.problems * wanted.samples
    with self.phases('eval'), self.progress.scoring(completions):
      evaluate_lib.evaluate(
          dataclasses.replace(scorer, domain=wanted.domain or scorer.domain),
          split=wanted.split,
          seed=wanted.seed,
          problems=wanted.problems,
          samples=wanted.samples,
          first=wanted.first,
          step=wanted.step,
          workdir=wanted.folder if sharding.is_primary() else None,
          allow_sealed=self.may_open_sealed(),
      )


def _is_scored(folder: pathlib.Path, split: str) -> bool:
  """Return whether a folder holds evidence with a score of every problem.

  An evaluation writes its evidence even if it then fails, because no completion
  of some problem could be graded.
  """
  steps = store.list_steps(folder, split)
  return bool(steps) and store.are_all_graded(folder, split, steps[-1])
