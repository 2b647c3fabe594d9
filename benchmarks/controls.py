"""Control runs, which train for as many tokens as an evolving run sampled."""

import pathlib

from benchmarks import runs
from evojax.evidence import store
from evojax.ledger import history
from evojax.ledger import records


def steps_for(run: history.History, total: int) -> int:
  """Return the number of updates of one arm that sample about `total` tokens.

  An update is assumed to sample as much as the average update of the arms that
  became the policy.

  Args:
    run: A run that evolved.
    total: Tokens.
  """
  sampled = {arm.folder: arm for race in run.races for arm in race.arms}
  policy = [
      sampled[s.folder] for v in run.all(records.Promote) for s in v.sources
  ]
  updates = run.base.updates + sum(arm.updates for arm in policy)
  tokens = run.base.sampled_tokens + sum(a.sampled_tokens for a in policy)
  return round(total * updates / tokens)


def train(
    config: str, workdir: pathlib.Path, total: int, guess: int, *given: str
) -> None:
  """Train a variant for about `total` tokens; the same call continues it.

  A variant may sample more tokens an update than the run that evolved, for
  instance because it refills the places of dropped groups. So a quarter of the
  expected updates is trained first, and its tokens say how many are needed.

  Args:
    config: File and variant.
    workdir: Directory of the training.
    total: Tokens.
    guess: Number of updates that would sample as many tokens if each sampled as
      many as those of the run that evolved.
    *given: Further flags.
  """
  first = max(guess // 4, 1)
  if len(store.list_steps(workdir, 'train')) < first:
    steps = f'--config.steps={first}'
    runs.start(config, workdir, *given, steps, '--config.eval.sealed=False')
  sampled = sum(
      store.read_numbers(workdir, 'train', step, 'n_tokens')[0].sum()
      for step in store.list_steps(workdir, 'train')[:first]
  )
  steps = max(round(total * first / sampled), first)
  runs.start(config, workdir, *given, f'--config.steps={steps}')
