"""Systems of `benchmarks.faults` that train without a diagnosis.

    python -m benchmarks.faults --tokens=5e5 \\
        --system=seed='python -m benchmarks.searchers.live seed' \\
        --system=reference='python -m benchmarks.searchers.live reference' \\
        --system=pbt='python -m benchmarks.searchers.live pbt PYTHON'

seed       further training under the job's recipe
reference  the base policy again, under the values of the domain's reference
           config; only task, policy and seed come from the job
optuna, asha, bohb, pbt
           searchers over the surface, see `searching`; PYTHON is that of their
           environment, see `rivals`

All train until the tokens are spent. The first two use no measurements: they
show what a user can do without a search. Only the evaluator scores their
policies.
"""

from collections.abc import Mapping
import contextlib
import importlib
import json
import pathlib
import sys
from typing import Any

import ml_collections

from benchmarks.searchers import rivals
from evojax import config as config_lib
from evojax import domains
from evojax.harness import run as run_lib
from evojax.harness import spec
from evojax.models import policy as policy_lib
from evojax.runtime import metrics as metrics_lib
from evojax.training import reward_parts
from evojax.training import setup as setup_lib
from evojax.training import trainer as trainer_lib
from evojax.training import update as update_lib

# Training cannot continue after these; the last good update's state is kept.
ENDS = (
    run_lib.FunctionError,
    reward_parts.RewardError,
    update_lib.NonFiniteError,
)
# The sections of a job's config that describe the task, not the recipe.
_TASK = ('domain', 'model', 'mesh', 'seed')
STEPS = 10**6  # More than any budget; a warm-up must not exceed it.


def domain_of(config: ml_collections.ConfigDict) -> str:
  """Return the domain whose base policy a job trains.

  Raises:
    ValueError: If neither the job's domain nor its policy is a shipped one.
  """
  _, _, shipped = config.model.path.partition('package:')
  for name in (config.domain.name, shipped):
    if name in domains.DOMAINS:
      return name
  raise ValueError(
      f'{config.domain.name=}, {config.model.path=}: neither is of'
      f' {tuple(domains.DOMAINS)}, so that no reference is known'
  )


def reference(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Return the reference recipe for the task of a job."""
  module = importlib.import_module(f'configs.{domain_of(config)}')
  task = {name: config[name] for name in _TASK}
  task['data.max_prompt_tokens'] = config.data.max_prompt_tokens
  return config_lib.with_fields(module.get_config('reference'), task)


def recipe(
    config: ml_collections.ConfigDict,
    harness: spec.Harness,
    seed: int,
    folder: pathlib.Path,
) -> ml_collections.ConfigDict:
  """Return the config for a training under a harness, written to a folder."""
  return config_lib.with_fields(
      config,
      {
          'seed': seed,
          'steps': STEPS,
          'eval.sealed': False,  # Scoring is left to the caller.
          'harness.path': str(spec.write(harness, folder / 'harness')),
      },
  )


def spend(trainer: trainer_lib.Trainer, tokens: int) -> int:
  """Train until the tokens are spent; return how many were sampled.

  Training ends before an update that would exceed the remaining tokens,
  assuming that it samples as much as the largest so far.
  """
  spent = most = 0
  while spent + most < tokens:
    try:
      sampled = int(trainer.train_step()['sampled_tokens'])
    except ENDS as error:
      print(f'ended after {trainer.step} updates: {error}', flush=True)
      break
    spent, most = spent + sampled, max(most, sampled)
  return spent


def train(
    config: ml_collections.ConfigDict, folder: pathlib.Path, tokens: int
) -> tuple[int, dict[str, Any]]:
  """Train until the tokens are spent; export the policy to folder/policy.

  Args:
    config: Config of the run; its number of steps is ignored.
    folder: Receives evidence and policy.
    tokens: Tokens that may be sampled.

  Returns:
    Tokens sampled, and the config's values under its harness, by path.
  """
  # Scoring is left to the evaluator.
  changes = {'steps': STEPS, 'eval.sealed': False}
  setup = setup_lib.prepare(config_lib.with_fields(config, changes))
  with contextlib.closing(
      trainer_lib.Trainer(setup, folder, metrics_lib.Phases())
  ) as trainer:
    spent = spend(trainer, tokens)
    policy_lib.export(
        setup.policy,
        trainer.learner.params,
        folder / 'policy',
        config.model.param_dtype,
    )
  return spent, config_lib.flatten(setup.config)


def solve(
    system: str, job: Mapping[str, Any], python: str = ''
) -> dict[str, Any]:
  """Return a system's answer to a job; see `benchmarks.faults.jobs`.

  Raises:
    ValueError: If there is no such system.
  """
  if system in rivals.LIVE and python:
    # `searching` imports this module.
    from benchmarks.searchers import searching

    return searching.solve(system, python, job)
  if system not in ('seed', 'reference'):
    raise ValueError(
        f'{system=}: choose one of {("seed", "reference")}, or with the Python'
        f' of their environment one of {tuple(rivals.LIVE)}'
    )
  config = config_lib.from_mapping(
      json.loads(pathlib.Path(job['config']).read_text())
  )
  if system == 'reference':
    config = reference(config)
  folder = pathlib.Path(job['workdir'])
  spent, values = train(config, folder, job['tokens'])
  return dict(
      # The reference recipe is known to be sound: it repairs, but names
      # nothing.
      status='repaired' if system == 'reference' else 'nothing',
      causes=[],
      tokens=spent,
      since=None,
      policy=str(folder / 'policy'),
      values=values,
  )


def main(system: str, *rest: str) -> None:
  """Answer a job; the arguments are SYSTEM [PYTHON] JOB."""
  *python, path = rest
  job = json.loads(pathlib.Path(path).read_text())
  answer = solve(system, job, *python)
  pathlib.Path(job['answer']).write_text(json.dumps(answer))


if __name__ == '__main__':
  main(*sys.argv[1:])
