"""Final: sealed scores of all policies, and the tokens that each one cost."""

from collections.abc import Mapping
import dataclasses
import functools
import pathlib

import numpy as np

from evojax.eval import estimates
from evojax.evidence import store
from evojax.evolve import compared as compared_lib
from evojax.evolve import opening
from evojax.evolve import scoring
from evojax.evolve.steps import retrain as retrain_lib
from evojax.ledger import records
from evojax.runtime import decisions
from evojax.runtime import run_files
from evojax.training import arm as arm_lib
from evojax.training import stages

# Rows that the final table always has, even without --compare.
COMPARED = ('reference', 'seed', 'random')


def check_stored(run: opening.Run) -> None:
  """Check that sealed scores on disk have as many problems as the config.

  A run that is stopped while it is scored has the scores of some policies, and
  a run that has ended has those of all. Further policies are compared with
  these, problem by problem.

  Raises:
    ValueError: If config.eval.problems or samples has changed since.
  """
  wanted = run.config.eval.problems, run.config.eval.samples

  def read() -> list[tuple[int, int]]:
    folders = (run.path / run_files.SEALED_EVIDENCE).glob('*')
    return [
        store.counts(folder, 'sealed', step)
        for folder in folders
        for step in store.list_steps(folder, 'sealed')
    ]

  for problems, samples in map(tuple, decisions.decide(read)):
    if (problems, samples) != wanted:
      raise ValueError(
          f'config.eval.problems={wanted[0]} and samples={wanted[1]}, but'
          f' policies of {run.path} were scored on {problems} sealed problems'
          f' with {samples} samples each, and all have to be scored alike: set'
          f' --config.eval.problems={problems} --config.eval.samples={samples}'
      )


def score(
    run: opening.Run,
    head: records.Version,
    retrained: records.Retrain | None,
) -> records.Final:
  """Score base, evolved and compared policies on the same sealed problems.

  Args:
    run: The run.
    head: The newest version, with the policy trained through the race.
    retrained: The base policy trained under its harness, if configured.
  """
  c = run.config.eval
  seed = run.recorder.find(records.Seal).seed
  others, before = placed(run), run.recorder.find(records.Final)
  # All policies get the same problems, so that their differences are paired,
  # and the tools and turns of the final harness.
  domain = run.harnesses.judge(head.harness)
  policies = {
      'base': {},
      'evolved': dict(
          checkpoint=run.path / head.checkpoint, harness=head.harness
      ),
  }
  if retrained:
    checkpoint = retrained_checkpoint(run, retrained)
    policies['retrained'] = dict(
        checkpoint=checkpoint, harness=retrained.harness
    )
  policies |= {name: dict(policy=o.policy) for name, o in others.items()}
  outcomes = {}
  for i, (name, policy) in enumerate(policies.items()):
    run.progress.enter(stages.SEALED, arm=i)
    wanted = scoring.Scored(
        folder=run.path / run_files.SEALED_EVIDENCE / name,
        split='sealed',
        seed=seed,
        problems=c.problems,
        samples=c.samples,
        domain=domain,
        **policy,
    )
    outcomes[name] = run.scorer.scores(wanted)
  compute = _compute(run, others)
  # Runs compared at an earlier start stay in the table.
  for name in sorted(scored(before) - set(outcomes)):
    folder = run.path / run_files.SEALED_EVIDENCE / name
    outcomes[name] = decisions.decide(
        lambda folder=folder: store.problem_scores(folder, 'sealed').tolist()
    )
    outcomes[name] = np.array(outcomes[name])
    compute[name] = before.compute[name]
  all_but = lambda own: {n: x for n, x in outcomes.items() if n != own}
  score = functools.partial(estimates.over_problems, within=estimates.SHARES)
  gain = functools.partial(estimates.over_problems, within=estimates.GAINS)
  scores = dict.fromkeys((*outcomes, *COMPARED))
  return records.Final(
      harness=head.harness,
      version=head.version,
      problems=c.problems,
      samples=c.samples,
      scores=scores | {name: score(x) for name, x in outcomes.items()},
      gains={
          name: gain(values - outcomes['base'])
          for name, values in all_but('base').items()
      },
      evolved_over={
          name: gain(outcomes['evolved'] - values)
          for name, values in all_but('evolved').items()
      },
      compute=compute,
  )


def placed(run: opening.Run) -> dict[str, compared_lib.Compared]:
  """Return the runs of --compare by the names of their sealed scores."""
  if not run.compared:
    return {}
  folder = run.path / run_files.SEALED_EVIDENCE
  names = decisions.decide(
      lambda: list(compared_lib.place(run.compared, folder))
  )
  return dict(zip(names, run.compared, strict=True))


def scored(final: records.Final | None) -> set[str]:
  """Return the policies that have a sealed score."""
  return {n for n, score in final.scores.items() if score} if final else set()


def retrained_checkpoint(
    run: opening.Run, retrained: records.Retrain
) -> pathlib.Path:
  """Return the checkpoint of the retrained policy."""
  folder = run.path / retrain_lib.FOLDER
  return arm_lib.checkpoint_of(folder, retrained.updates)


def _compute(
    run: opening.Run, others: Mapping[str, compared_lib.Compared]
) -> dict[str, records.Tokens]:
  """Return sampled tokens of each policy's training and of its whole run."""

  def count() -> dict[str, tuple[int, int]]:
    final = compared_lib.total_tokens(run.path / retrain_lib.FOLDER)
    history = run.recorder.history
    total = compared_lib.total_tokens(run.path, history)
    total += history.replayed_tokens
    found = {'evolved': (history.policy_tokens, total - final)}
    if final:
      found['retrained'] = (final, total)
    return found | {
        name: dataclasses.astuple(compared_lib.tokens_of(other.path))
        for name, other in others.items()
    }

  return {
      name: records.Tokens(training=training, total=total)
      for name, (training, total) in decisions.decide(count).items()
  }
