"""--mode=arm: train one arm in a process of its own, JSON in and JSON out.

    python -m evojax.main --mode=arm --job=WORKDIR/arms/NAME/job.json

The result is written to arm.json beside the job file and printed as the last
line of the output. After SIGINT or SIGTERM the process saves and exits with a
code of `preemption.STATUSES`; the same command then continues the arm.
"""

import json
import pathlib

from evojax import config as config_lib
from evojax.ledger import rows as rows_lib
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import output
from evojax.runtime import preemption
from evojax.runtime import progress as progress_lib
from evojax.training import arm as arm_lib
from evojax.training import engines
from evojax.training import meshes
from evojax.training import setup as setup_lib


def run(job_file: str) -> None:
  """Train the arm of a job file.

  Args:
    job_file: Path of a job.json, whose text is from `ArmJob.to_json`.

  Raises:
    ValueError: If the file is missing or wrong, or if another process is
      training the arm.
    Preempted: After SIGINT or SIGTERM, with everything saved.
  """
  if not job_file:
    raise ValueError('--mode=arm needs --job=FILE, the job.json of an arm')
  job = arm_lib.read_job(pathlib.Path(job_file))
  config = config_lib.from_mapping(job.config)
  with preemption.stop_flag() as asked:

    def stop_if_asked() -> None:
      preemption.note()
      if asked:
        output.say(preemption.line(asked, f'{job.folder} is saved'))
        raise preemption.Preempted(asked)

    setup = setup_lib.prepare(config)
    mesh = meshes.open_mesh(config, setup.policy)
    meshes.accept(config, setup.policy, mesh)
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
