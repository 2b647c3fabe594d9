"""--mode=eval: score a policy without training it."""

import os
from typing import Any

import ml_collections

from evojax.eval import evaluate as evaluate_lib
from evojax.eval import report as report_lib
from evojax.models import policy as policy_lib
from evojax.modes import policies
from evojax.runtime import devices
from evojax.runtime import durable
from evojax.runtime import mirror
from evojax.runtime import output
from evojax.runtime import run_files
from evojax.runtime import sharding
from evojax.runtime import workdir as workdir_lib
from evojax.training import agreement
from evojax.training import engines
from evojax.training import meshes
from evojax.training import setup as setup_lib


def run(config: ml_collections.ConfigDict, workdir: str) -> dict[str, Any]:
  """Score the policy at config.model.path, or that of a finished run.

  Args:
    config: The config; its eval.split, eval.problems and eval.samples choose
      the problems.
    workdir: Directory for the evidence and eval.json. If it holds a run, that
      run's policy is scored, and the files go to <workdir>-policy-eval beside
      it, so that the run's own evidence stays as it is.

  Returns:
    The content of eval.json.

  Raises:
    ValueError: If anything is wrong with the config, see
      `training.setup.prepare`, or if the run has not ended.
  """
  if trained := policies.of_run(config, workdir):
    own = os.path.abspath(os.path.expanduser(workdir))  # Also of '.'.
    beside = mirror.shown(f'{own}-policy-eval')
    with mirror.opened(beside) as path:
      return _run(trained, path)
  return _run(config, workdir)


def _run(config: ml_collections.ConfigDict, workdir: str) -> dict[str, Any]:
  """Score the policy at config.model.path."""
  setup = setup_lib.prepare(config, trains=False)
  primary = sharding.is_primary()
  with workdir_lib.open_workdir(
      workdir, config, mode='eval', primary=primary
  ) as directory:
    path = directory.path
    output.say(devices.describe())
    output.say(f'policy: {config.model.path}; scores go to {path}')
    mesh = meshes.open_run(setup, trains=False)
    dtype = config.model.param_dtype
    with engines.open_sampler(config, setup.policy, mesh, path) as engine:
      params = policy_lib.load_params(setup.policy, mesh, param_dtype=dtype)
      engine.update_weights(params, 0)
      del params  # The engine may hold a copy of its own.
      directory.record_start(
          chat_template=setup.policy.tokenizer.template,
          mesh=dict(mesh.shape),
          # The other splits have no influence on the scores.
          problems=agreement.problems(setup, [config.eval.split]),
      )
      result = evaluate_lib.evaluate(
          setup.scorer(engine, version='seed'),
          split=config.eval.split,
          seed=config.seed,
          problems=config.eval.problems,
          samples=config.eval.samples,
          workdir=path if primary else None,
          # The policy is not being trained, so nothing can be fitted to the
          # split.
          allow_sealed=True,
      )
    summary = dict(policy=str(setup.policy.path), metrics=result.metrics())
    if primary:
      durable.write_json(path / run_files.EVAL, summary)
      report_lib.print_scores(result, output.console())
  return summary
