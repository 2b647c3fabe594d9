"""Final: sealed scores of all policies, and the tokens that they cost."""

import dataclasses
import pathlib

from evojax.eval import estimates
from evojax.evolve import compared as compared_lib
from evojax.evolve import opening
from evojax.evolve import scoring
from evojax.evolve.steps import retrain as retrain_lib
from evojax.ledger import records
from evojax.runtime import decisions
from evojax.training import arm as arm_lib
from evojax.training import stages

# Rows of the final table that are there even if nothing was brought in.
COMPARED = ('reference', 'seed', 'random')


def score(
    run: opening.Run, head: records.Version, retrained: records.Retrain
) -> records.Final:
  """Score base, evolved and compared policies on the same sealed problems.

  Args:
    run: The run.
    head: The newest version, whose policy went on training through the search.
    retrained: Its harness, trained from the base policy.
  """
  c = run.config.eval
  seed = run.recorder.find(records.Seal).seed
  # All meet the same problems, so that their differences are paired.
  policies = {
      'base': {},
      'continued': dict(checkpoint=run.path / head.checkpoint),
      'evolved': dict(checkpoint=evolved_checkpoint(run, retrained)),
  }
  policies |= {other.name: dict(policy=other.policy) for other in run.compared}
  outcomes = {}
  for i, (name, policy) in enumerate(policies.items()):
    run.progress.enter(stages.SEALED, arm=i)
    wanted = scoring.Scored(
        folder=run.path / 'sealed' / name,
        split='sealed',
        seed=seed,
        problems=c.problems,
        samples=c.samples,
        **policy,
    )
    outcomes[name] = run.scorer.scores(wanted)
  others = lambda own: {n: x for n, x in outcomes.items() if n != own}
  scores = dict.fromkeys((*outcomes, *COMPARED))
  return records.Final(
      harness=head.harness,
      version=head.version,
      problems=c.problems,
      samples=c.samples,
      scores=scores
      | {name: estimates.over_problems(x) for name, x in outcomes.items()},
      gains={
          name: estimates.over_problems(values - outcomes['base'])
          for name, values in others('base').items()
      },
      evolved_over={
          name: estimates.over_problems(outcomes['evolved'] - values)
          for name, values in others('evolved').items()
      },
      compute=_compute(run),
  )


def evolved_checkpoint(
    run: opening.Run, retrained: records.Retrain
) -> pathlib.Path:
  """Return the checkpoint of the retrained policy."""
  folder = run.path / retrain_lib.FOLDER
  return arm_lib.checkpoint_of(folder, retrained.updates)


def _compute(run: opening.Run) -> dict[str, records.Tokens]:
  """Sampled tokens of each policy's own training, and of its whole run."""

  def count() -> dict[str, tuple[int, int]]:
    final = compared_lib.total_tokens(run.path / retrain_lib.FOLDER)
    total = compared_lib.total_tokens(run.path)
    versions = run.recorder.history.versions
    continued = sum(version.sampled_tokens for version in versions)
    found = {'evolved': (final, total), 'continued': (continued, total - final)}
    return found | {
        other.name: dataclasses.astuple(compared_lib.tokens_of(other.path))
        for other in run.compared
    }

  return {
      name: records.Tokens(training=training, total=total)
      for name, (training, total) in decisions.decide(count).items()
  }
