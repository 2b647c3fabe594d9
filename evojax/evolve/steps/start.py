"""The first two rows of a run: Open, and Train for version 0."""

import pathlib

import jax

from evojax import config as config_lib
from evojax.evolve import arms
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import recorded
from evojax.evolve import recorder
from evojax.ledger import records
from evojax.runtime import copies
from evojax.training import arm as arm_lib
from evojax.training import first_steps
from evojax.training import stages

_FOLDER = 'arms/v0'
_BASE = 'versions/base/checkpoints/step_000000'  # The untrained policy.


def open_ledger(run: opening.Run) -> records.Open:
  """Store the seed harness; record the config and the version of JAX."""
  run.harnesses.write(run.seed)
  return records.Open(
      config=config_lib.to_mapping(run.config),
      config_sha256=config_lib.sha256(run.config),
      harness=run.seed.sha256,
      proposer=run.config.evolve.proposer,
      jax=jax.__version__,
      forked=run.fork.name if run.fork else '',
  )


def check_opened(run: opening.Run, opened: records.Open) -> None:
  """Raise ValueError if the run was begun with other code.

  Its seed harness may have changed since, or an older evojax may have written
  its rows: comparing arms trained by two versions of the code is not fair.
  """
  for row in run.recorder.rows:
    if row.schema < row.record.VERSION:
      raise ValueError(
          f'row {row.n} ({row.record.STEP}) of {run.path / "ledger.jsonl"} was'
          f' written by an older evojax (schema {row.schema}, now'
          f' {row.record.VERSION}): let the commit in manifest.json finish the'
          f' run, or start a new one with --fork_from={run.path}'
          ' --workdir=ANOTHER; --mode=report reads it as it is'
      )
  if opened.harness != run.seed.sha256:
    raise ValueError(
        f'workdir {run.path} was begun with the seed harness'
        f' {opened.harness[:12]}, which is now {run.seed.sha256[:12]}: undo the'
        ' change, or start anew in another --workdir'
    )


def train_seed(run: opening.Training) -> records.Arm:
  """Train the base policy under the seed harness; warn if it starts badly.

  Raises:
    ValueError: If training fails.
  """
  job = arms.job(
      run,
      folder=_FOLDER,
      harness=run.seed.sha256,
      changes=arms.changes(
          run, run.config.seed, run.config.evolve.first_updates
      ),
      label='v0: the seed harness from the base policy',
  )
  arm = arms.train_one(run, job, stages.FIRST, 'the seed harness did not train')
  if line := first_steps.warning(run.path / _FOLDER) if run.primary else '':
    run.say(line)
  return arm


def train(run: opening.Run) -> records.Train:
  """Train the base policy under the seed harness, or copy the forked version.

  Raises:
    ValueError: If training fails.
  """
  folder, fields = _FOLDER, {}
  if run.fork is not None:
    if copies.writes(run.path):
      run.fork.copy(run.path)
    arm = run.fork.version
    last = pathlib.PurePath(arm.checkpoint).name
    # This run sampled nothing for it, and pays for nothing.
    fields = dict(sampled_tokens=0, updates=0)
  else:
    arm = train_seed(run)
    last = arm_lib.checkpoint_of(folder, arm.updates).name
    found = recorded.findings(run, [folder], run.seed.sha256)
    suspect = any(finding.severity == 'critical' for finding in found)
    if pairs.is_wasted(run, arm, suspect=suspect):
      run.say(
          'the seed harness learns nothing: rounds start from the base policy'
      )
      end = run.states.begin(run.path / _BASE)
      fields = dict(checkpoint=_BASE, end=end)
  return recorder.made_from(
      records.Train,
      arm,
      **dict(
          version='v0',
          parent=None,
          folder=folder,
          checkpoint=f'{folder}/checkpoints/{last}',
          prompts=run.config.grpo.prompts,
          group_size=run.config.grpo.group_size,
      )
      | fields,
  )
