"""The GRPO loop, for every domain.

    sample -> grade -> reward -> advantages -> update -> weights -> log, save

The stages of a step are methods of `trainer.Trainer`. This module opens the
workdir, repeats the steps, evaluates, saves, and handles signals.
"""

from collections.abc import Callable, Iterator
import contextlib
import os
import pathlib
import shutil
from typing import Any

import jax
import ml_collections

from evojax import config as config_lib
from evojax.eval import evaluate as evaluate_lib
from evojax.eval import report as report_lib
from evojax.eval import sealed as sealed_lib
from evojax.evidence import store
from evojax.models import policy as policy_lib
from evojax.rollout import fleet
from evojax.runtime import checkpoint as checkpoint_lib
from evojax.runtime import config_checks
from evojax.runtime import decisions
from evojax.runtime import devices
from evojax.runtime import durable
from evojax.runtime import goodput
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import mirror
from evojax.runtime import numerals
from evojax.runtime import output
from evojax.runtime import preemption
from evojax.runtime import progress as progress_lib
from evojax.runtime import run_files
from evojax.runtime import sharding
from evojax.runtime import workdir as workdir_lib
from evojax.training import agreement
from evojax.training import engines
from evojax.training import first_steps
from evojax.training import meshes
from evojax.training import setup as setup_lib
from evojax.training import stages
from evojax.training import trainer as trainer_lib


def run(
    config: ml_collections.ConfigDict,
    workdir: str,
    *,
    fork_from: str = '',
    watch: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
  """Train a policy; the same call on the same workdir continues it.

  Args:
    config: The config of a file in configs/, with overrides applied.
    workdir: The run's directory, created if needed.
    fork_from: Workdir of another run. A new workdir starts from its newest
      checkpoint; one that has checkpoints no longer needs it.
    watch: Called by process 0 before each step, and after the last one.

  Returns:
    The summary, which is also stored in workdir/summary.json.

  Raises:
    ValueError: If the config, the model, the domain or the workdir is invalid,
      or if a function of the harness or a server fails in the run.
    update.NonFiniteError: If training diverged.
    fleet.FleetError: If no server was usable for too long; the finished steps
      are saved.
    collect.GradingError: If the grader of a step or a score does not work.
    preemption.Preempted: After SIGINT or SIGTERM, with the state saved.
  """
  primary = sharding.is_primary()
  # Checked again once the lock is held; this early check precedes slow work.
  if primary:
    workdir_lib.check(workdir, config, 'train')
  # In a store, each process has a copy of the workdir and fills its own.
  fills = primary or mirror.of(workdir)
  own = pathlib.Path(workdir).expanduser() / run_files.CHECKPOINTS
  forks = fork_from and fills and not own.exists()
  newest = _checkpoint_of(fork_from) if forks else None
  setup = setup_lib.prepare(config)
  with (
      workdir_lib.open_workdir(
          workdir, config, mode='train', primary=primary
      ) as directory,
      preemption.stop_flag() as asked,
  ):
    if newest is not None:
      _fork(newest, directory.path)
    output.say(devices.describe())
    meshes.open_run(setup, begins=not directory.resumed)
    with engines.stopped(asked):
      trainer = trainer_lib.Trainer(
          setup,
          directory.path,
          metrics_lib.Phases(),
          stopping=lambda: bool(asked),
      )
    with contextlib.closing(trainer):
      return _run(trainer, directory, asked, watch)


def _checkpoint_of(fork_from: str) -> pathlib.Path:
  """Return the newest checkpoint of another run.

  Raises:
    ValueError: If there is none.
  """
  source = pathlib.Path(fork_from).expanduser()
  found = checkpoint_lib.steps_in(source / run_files.CHECKPOINTS)
  if not found:
    raise ValueError(
        f'--fork_from={source} holds no checkpoint; name the workdir of a run'
        ' that has saved one, or leave the flag out to start with the policy of'
        ' config.model.path'
    )
  newest = found[max(found)]
  mirror.fetch(newest)
  return newest


def _fork(newest: pathlib.Path, target: pathlib.Path) -> None:
  """Copy another run's checkpoint durably, unless the workdir has any."""
  if (target / run_files.CHECKPOINTS).exists():
    return
  temporary = target / 'checkpoints.tmp'
  shutil.rmtree(temporary, ignore_errors=True)
  durable.copy_tree(newest, temporary / newest.name)
  durable.sync_directory(temporary)
  os.replace(temporary, target / run_files.CHECKPOINTS)
  durable.sync_directory(target)


def _run(
    trainer: trainer_lib.Trainer,
    directory: workdir_lib.Workdir,
    asked: list[int],
    watch: Callable[[], None],
) -> dict[str, Any]:
  """Train and evaluate in an opened workdir; return the summary."""
  config, path, phases = trainer.config, directory.path, trainer.phases
  directory.record_start(
      chat_template=trainer.setup.policy.tokenizer.template,
      mesh=dict(trainer.mesh.shape),
      problems=agreement.problems(trainer.setup),
  )
  evaluations: dict[int, evaluate_lib.EvalResult] = {}
  primary = sharding.is_primary()
  say = output.say if primary else lambda _: None
  completions = config.eval.problems * config.eval.samples
  odd = config_checks.unusual(config)
  with (
      output.log_to(path) if primary else contextlib.nullcontext(),
      open_metrics(trainer, config.name) as write,
      progress_lib.Progress(
          stages.of_training(config), every=config.log.every, shown=primary
      ) as progress,
  ):
    for line in odd:
      say(f'warning: {line}')

    def evaluate() -> None:
      if trainer.step not in evaluations:
        with progress.scoring(completions):
          result = trainer.evaluate(trainer.step, path if primary else None)
        evaluations[trainer.step] = result
        write(trainer.step, result.metrics())
        score = numerals.share(result.avg_at_k.value)
        say(f'step {trainer.step}: dev Avg@{config.eval.samples} {score}')

    def stop_if_asked() -> None:
      # The signal reaches hosts at different times, but all must save together.
      if not sharding.in_any_process(bool(asked)):
        return
      with phases('checkpoint'):
        trainer.save()
        trainer.checkpointer.wait()
      saved = f'{trainer.saved_step} steps are saved in {path}'
      say(preemption.line(asked, saved))
      raise preemption.Preempted(asked)

    def before_step() -> None:
      stop_if_asked()
      directory.keep()
      if primary:
        watch()

    def report(log: dict[str, float]) -> None:
      with phases('log'):
        write(trainer.step, log | phases.row())
        progress.update(trainer.step, log)

    def after_step() -> None:
      if trainer.step == min(first_steps.STEPS, config.steps):
        if line := first_steps.warning(path) if primary else '':
          # Such a setting can make problems only seem too hard.
          say(f'{line}; but first see to {", ".join(odd)}' if odd else line)
      # Evaluate before the checkpoint is saved, so that after a kill in between
      # the evaluation is repeated.
      if due_for_score():
        evaluate()

    def due_for_score() -> bool:
      every = config.eval.every
      return bool(every) and trainer.step % every == 0

    def is_scored() -> bool:
      steps = lambda: trainer.step in store.list_steps(path, 'dev')
      return decisions.decide(steps)

    try:
      for line in _first_lines(trainer, directory):
        say(line)
      # The last process may have ended before it evaluated this step.
      if not trainer.step or (due_for_score() and not is_scored()):
        evaluate()
      loop(
          trainer,
          before_step=before_step,
          report=report,
          after_step=after_step,
      )
      before_step()
      progress.close()
      evaluate()
      return _finish(trainer, evaluations)
    except (fleet.FleetError, preemption.Interrupted):
      # After a signal the servers may have ended, too. Then this is not an
      # error: save and end.
      stop_if_asked()
      raise


def _first_lines(
    trainer: trainer_lib.Trainer, directory: workdir_lib.Workdir
) -> list[str]:
  """Return the lines to print before the first step of a training."""
  steps = trainer.config.steps
  if not trainer.step:
    curves = f'curves: tensorboard --logdir={directory.path}'
    return [curves] if trainer.config.log.tensorboard else []
  lines = [f'continuing from step {trainer.step}']
  if trainer.step >= steps and not directory.resumed:
    lines.append(
        f'nothing is trained: config.steps={steps} includes the'
        f' {trainer.step} steps of --fork_from; raise it'
    )
  return lines


@contextlib.contextmanager
def open_metrics(
    trainer: trainer_lib.Trainer, name: str
) -> Iterator[Callable[..., None]]:
  """Open the metrics of a trainer.

  Args:
    trainer: The trainer; rows of later steps than its own are dropped.
    name: Name of the run in W&B.

  Yields:
    A function (step, metrics) that writes a row; it does nothing except in
    process 0.
  """
  if not sharding.is_primary():
    yield lambda *_: None
    return
  c = trainer.config
  sinks = {k: c.log[k] for k in ('tensorboard', 'wandb', 'wandb_project')}
  sinks |= dict(name=name, config=config_lib.to_mapping(c))
  with metrics_lib.MetricWriter(
      trainer.workdir, step=trainer.step, **sinks
  ) as writer:
    yield writer.write


def loop(
    trainer: trainer_lib.Trainer,
    *,
    before_step: Callable[[], None],
    report: Callable[[dict[str, float]], None],
    after_step: Callable[[], None] = lambda: None,
) -> None:
  """Train the remaining steps, and save each checkpoint that is due.

  Args:
    trainer: The trainer, at any step.
    before_step: Called before each step. It may raise to stop the training.
    report: Called with the metrics of each step, even if servers or a signal
      ended the run between its update and its end.
    after_step: Called after each step, before its checkpoint.
  """
  config = trainer.config

  def finish(log: dict[str, float]) -> None:
    if clock is not None:
      log |= clock.finish(trainer.step, log['step_seconds'])
    report(log)

  with (
      goodput.open_clock(trainer.workdir, sharding.is_primary()) as clock,
      _profiler(config, trainer.workdir) as profile,
  ):
    while trainer.step < config.steps:
      before_step()
      # An implicit transfer of an array to the device is a bug, because every
      # step would wait for it.
      with (
          profile(trainer.step),
          jax.transfer_guard('disallow'),
          _saved_at_the_end(trainer),
      ):
        try:
          log = trainer.train_step()
        except engines.ERRORS:
          if trainer.finished:
            with jax.transfer_guard('allow'):
              finish(trainer.finished)
          raise
      finish(log)
      with _saved_at_the_end(trainer):  # An evaluation may lose its servers.
        after_step()
      if trainer.checkpointer.due(trainer.step) or trainer.step == config.steps:
        with trainer.phases('checkpoint'):
          trainer.save()


@contextlib.contextmanager
def _saved_at_the_end(trainer: trainer_lib.Trainer) -> Iterator[None]:
  """Save the finished steps if servers, a grader or a signal end the run."""
  try:
    yield
  except engines.ERRORS:
    with jax.transfer_guard('allow'):
      trainer.save()
    raise


@contextlib.contextmanager
def _profiler(
    config: ml_collections.ConfigDict, path: pathlib.Path
) -> Iterator[Callable[[int], contextlib.AbstractContextManager[None]]]:
  """Profile the steps of the window in config.log.

  Yields:
    A function that takes a step's number, counted from 0, and returns a context
    for the step. The trace ends with the window, the training, or an error.
  """
  first = config.log.profile_start
  window = range(first, first + config.log.profile_steps) if first >= 0 else ()
  with contextlib.ExitStack() as trace:

    @contextlib.contextmanager
    def record(step: int) -> Iterator[None]:
      nonlocal tracing
      # A run that resumes within the window records the rest of it.
      if step in window and not tracing:
        jax.profiler.start_trace(str(path / 'profile'))
        trace.callback(jax.profiler.stop_trace)
        tracing = True
      yield
      if step + 1 not in window:
        trace.close()

    tracing = False
    yield record


def _finish(
    trainer: trainer_lib.Trainer,
    evaluations: dict[int, evaluate_lib.EvalResult],
) -> dict[str, Any]:
  """Compare the trained policy with its base, export it, and summarise."""
  config, path, setup = trainer.config, trainer.workdir, trainer.setup
  primary = sharding.is_primary()

  def install_base():
    trainer.engine.update_weights(setup.base_params(trainer.mesh), 0)

  reports = {}
  if trainer.step and config.eval.sealed:
    with trainer.phases('eval'):
      reports['sealed'] = sealed_lib.score(
          setup.scorer(trainer.engine),
          install_base=install_base,
          install_trained=trainer.install,
          workdir=path,
          seed=config.seed,
          problems=config.eval.problems,
          samples=config.eval.samples,
          step=trainer.step,
          primary=primary,
      )
  elif trainer.step:
    if 0 not in evaluations:  # A resumed process has not scored the base.
      install_base()
      evaluations[0] = trainer.evaluate(0, None)
    reports['dev'] = report_lib.report_gain(
        evaluations[0], evaluations[trainer.step]
    )
  with trainer.phases('export'):
    policy_lib.export(
        setup.policy,
        trainer.learner.params,
        path / run_files.POLICY,
        config.model.param_dtype,
    )
  summary = dict(
      name=config.name,
      steps=trainer.step,
      config_sha256=config_lib.sha256(config),
      scores=evaluations[trainer.step].metrics(),
      policy=mirror.shown(str(path / run_files.POLICY)),
      compilations=trainer.compilations(),
      time_shares=trainer.phases.shares(),
      gain=reports,
  )
  if primary:
    durable.write_json(path / run_files.SUMMARY, summary)
    console = output.console()
    for report in reports.values():
      report_lib.print_gain(report, console)
    output.say(f'time: {trainer.phases.summary()}')
    output.say(f'compiled programs: {summary["compilations"]}')
    output.say(f'policy: {path / run_files.POLICY} (Hugging Face format)')
  return summary
