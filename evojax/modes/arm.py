"""--mode=arm: train one arm in a process of its own, JSON in and JSON out.

    python -m evojax.main --mode=arm --job=WORKDIR/arms/NAME/job.json

The result is written to arm.json beside the job file and printed as the last
line of the output. If the run is in an object store, the path of the job is a
URL, and the arm works on a copy of its folder, see `mirror.borrowed`. After
SIGINT or SIGTERM the process saves and exits with a code of
`preemption.STATUSES`; the same command then continues the arm.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import json
import pathlib

import jax

from evojax import config as config_lib
from evojax.ledger import rows as rows_lib
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import mirror
from evojax.runtime import output
from evojax.runtime import preemption
from evojax.runtime import progress as progress_lib
from evojax.runtime import sharding
from evojax.runtime import storage
from evojax.runtime import stored_names
from evojax.training import arm as arm_lib
from evojax.training import engines
from evojax.training import meshes
from evojax.training import setup as setup_lib


def run(job_file: str) -> None:
  """Train the arm of a job file.

  Args:
    job_file: Path or URL of a file with the text of `ArmJob.to_json`.

  Raises:
    ValueError: If the file is missing or wrong, or if another process is
      training the arm.
    Preempted: After SIGINT or SIGTERM, with everything saved.
  """
  if not job_file:
    raise ValueError('--mode=arm needs --job=FILE, the job.json of an arm')
  with _here(arm_lib.read_job(job_file)) as job:
    _train(job)


@contextlib.contextmanager
def _here(job: arm_lib.ArmJob) -> Iterator[arm_lib.ArmJob]:
  """Yield a job whose workdir is a directory of this machine."""
  if not storage.is_remote(job.workdir):
    yield job
    return
  wanted = lambda name: sharding.is_primary() or stored_names.is_for_all(name)
  with mirror.borrowed(
      job.workdir, job.folder, job.files, wanted, jax.process_count() > 1
  ) as copy:
    yield dataclasses.replace(job, workdir=str(copy))


def _train(job: arm_lib.ArmJob) -> None:
  """Train an arm, show its progress, and print its result."""
  config = config_lib.from_mapping(job.config)
  with preemption.stop_flag() as asked:

    def stop_if_asked() -> None:
      preemption.note()
      # The signal may reach one machine of an arm alone; all save together.
      if not sharding.in_any_process(bool(asked)):
        return
      if sharding.is_primary():
        # The state is saved after this message, if there is time;
        # `Trainer.save` reports it.
        state = f'{job.folder} goes on from its newest checkpoint'
        output.say(preemption.line(asked, state))
      raise preemption.Preempted(asked)

    setup = setup_lib.prepare(config, rendered=True)
    mesh = meshes.open_run(setup)
    workdir, stopping = pathlib.Path(job.workdir), lambda: bool(asked)
    with engines.open_sampler(
        config, setup.policy, mesh, workdir, stopping
    ) as engine:
      phases, stage = metrics_lib.Phases(), _stage(job)
      with progress_lib.Progress([stage]) as progress:
        try:
          arm = arm_lib.train(
              job, setup, engine, phases, stop_if_asked, progress.update
          )
        except preemption.Interrupted:
          stop_if_asked()
          raise
  print(json.dumps(rows_lib.to_json(arm), sort_keys=True))


def _stage(job: arm_lib.ArmJob) -> progress_lib.Stage:
  """Return the arm as the only stage of this process."""
  config = job.arm_config()
  return progress_lib.Stage(
      name=pathlib.PurePath(job.folder).name,
      steps=config.steps,
      prompts=config.grpo.prompts,
      group_size=config.grpo.group_size,
  )
