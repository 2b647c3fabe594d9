"""Opening a run that evolves: checks first, then the workdir, then devices."""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import pathlib

import jax
import ml_collections

from evojax import config as config_lib
from evojax import domains
from evojax import records as step_records
from evojax.evolve import compared as compared_lib
from evojax.evolve import executor as executor_lib
from evojax.evolve import fork as fork_lib
from evojax.evolve import harnesses as harnesses_lib
from evojax.evolve import propose as propose_lib
from evojax.evolve import recorder as recorder_lib
from evojax.evolve import scoring
from evojax.evolve import skills as skills_lib
from evojax.evolve import states as states_lib
from evojax.harness import admit
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.ledger import budget as budget_lib
from evojax.ledger import chain
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.report import page
from evojax.runtime import accelerators
from evojax.runtime import commands
from evojax.runtime import devices
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import output
from evojax.runtime import preemption
from evojax.runtime import progress as progress_lib
from evojax.runtime import run_files
from evojax.runtime import sharding
from evojax.runtime import workdir as workdir_lib
from evojax.sandbox import probe
from evojax.training import agreement
from evojax.training import engines
from evojax.training import meshes
from evojax.training import reward_parts
from evojax.training import setup as setup_lib
from evojax.training import stages


@dataclasses.dataclass(frozen=True)
class Options:
  """Command-line options besides config and workdir."""

  compare: Sequence[str] = ()  # Workdirs of finished runs.
  fork_from: str = ''  # Workdir of another run that evolved, or ''.
  fork_version: str = ''  # Name of its version to start from; '' is the newest.
  placement: executor_lib.Placement = executor_lib.Placement()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
  """The parts of an opened run that training its arms needs."""

  path: pathlib.Path
  setup: setup_lib.Setup  # Domain and policy, opened once; no harness.
  seed: spec.Harness  # The harness that the run starts from.
  phases: metrics_lib.Phases
  progress: progress_lib.Progress
  executor: executor_lib.Executor

  @property
  def config(self) -> ml_collections.ConfigDict:
    """The run's config without any overlay."""
    return self.setup.config

  @property
  def primary(self) -> bool:
    """True if this process writes files."""
    return sharding.is_primary()

  def say(self, text: str) -> None:
    """Print a line in process 0 only."""
    if self.primary:
      output.say(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Training):
  """The parts of an opened run that evolves; each step uses some of them."""

  fork: fork_lib.Fork | None  # A version of another run to start from.
  compared: Sequence[compared_lib.Compared]
  recorder: recorder_lib.Recorder
  harnesses: harnesses_lib.Harnesses
  states: states_lib.States
  scorer: scoring.Scorer

  @property
  def inbox(self) -> pathlib.Path:
    """The folder in which the user leaves changes and vetoes."""
    return self.path / run_files.INBOX


def seed_harness(config: ml_collections.ConfigDict) -> spec.Harness:
  """Return the harness that a run starts from: its own, or the domain's.

  A domain without a seed harness gets one with the domain's reward, the weights
  of the config and no diagnostics; its policy is diagnosed by learning curves
  and by the checks of `evojax-diagnose`.

  Raises:
    ValueError: If the named harness does not exist.
  """
  name = config.evolve.seed_harness
  folder = domains.folder(config.domain.name) / name
  if config.harness.path or folder.is_dir():
    return spec.read(config.harness.path or folder)
  if name != 'seed_harness':
    raise ValueError(
        f'config.evolve.seed_harness={name!r}: the domain'
        f' {config.domain.name!r} has no directory {folder}; make one, or name'
        ' a harness by --config.harness.path'
    )
  weights = config.reward.weights.to_dict()
  return spec.Harness(
      {surface_lib.WEIGHTS + part: value for part, value in weights.items()}, {}
  )


def check(config: ml_collections.ConfigDict, options: Options) -> tuple[
    setup_lib.Setup,
    spec.Harness,
    fork_lib.Fork | None,
    list[compared_lib.Compared],
]:
  """Check everything that needs neither the workdir nor a device.

  Args:
    config: Config of the run, with evolve.rounds > 0.
    options: Command-line options.

  Returns:
    The run's setup without its harness, the harness that the run starts from,
    the version that it forks (or None), and the runs that it is compared with.

  Raises:
    ValueError: If config, domain, model, harness or a flag is wrong.
    WeakSandboxError: If the box cannot hold untrusted code on this machine.
  """
  options.placement.check(config.rollout.kind)
  options.placement.divide(config.mesh.to_dict())
  skills_lib.check_directories(config.evolve.skills)
  fork = None
  if options.fork_from:
    source = pathlib.Path(options.fork_from).expanduser()
    fork = fork_lib.open_fork(source, options.fork_version)
  base = config_lib.with_fields(config, {'harness.path': ''})
  try:
    setup = setup_lib.prepare(base)
  except reward_parts.RewardError:
    # The weights may name parts that only the harness has. If its overlay has
    # weights, they replace those of the config, which then need no check.
    if not any(map(surface_lib.is_weight, seed_harness(config).overlay)):
      raise
    base = config_lib.with_fields(base, {'reward.weights': {'outcome': 1.0}})
    setup = setup_lib.prepare(base)
  e = config.evolve
  setup_lib.check_problems(
      setup, {'train': config.grpo.prompts, 'dev': e.problems}
  )
  compared = compared_lib.open_all(options.compare, setup)
  seed = seed_harness(config)
  reasons = admit.check(seed, base, setup.surface, setup.synthetic)
  if reasons:
    raise ValueError('the seed harness:' + ''.join(f'\n  {r}' for r in reasons))
  propose_lib.load(config.evolve.proposer)
  probe.tier()  # Raises if the box is too weak: proposed code runs in it.
  return setup, seed, fork, compared


@dataclasses.dataclass(frozen=True)
class Place:
  """A locked workdir, with the mesh and the sampler of the run."""

  directory: workdir_lib.Workdir
  mesh: jax.sharding.Mesh
  engine: step_records.RolloutEngine
  asked: list[int]  # Signals received that ask the run to stop.
  shares: Sequence[accelerators.Share]  # Devices of each worker.

  def preempt(self, saved: str) -> None:
    """Raise Preempted after a signal, in all processes at the same step.

    Args:
      saved: What is saved; printed for the sender of the signal.
    """
    if not sharding.in_any_process(bool(self.asked)):
      return
    if sharding.is_primary():
      output.say(preemption.line(self.asked, saved))
    raise preemption.Preempted(self.asked)


@contextlib.contextmanager
def open_place(
    setup: setup_lib.Setup,
    config: ml_collections.ConfigDict,
    workdir: str,
    mode: str,
    placement: executor_lib.Placement,
) -> Iterator[Place]:
  """Yield a locked workdir with a sampler; printed lines go to its log.

  Args:
    setup: The checked setup of the run.
    config: Config of the run, as saved in the workdir.
    workdir: The run's directory.
    mode: The mode that owns the workdir.
    placement: Flags that have passed `check`.
  """
  primary = sharding.is_primary()
  with (
      workdir_lib.open_workdir(
          workdir, config, mode=mode, primary=primary
      ) as directory,
      preemption.stop_flag() as asked,
      engines.stopped(asked),
      contextlib.ExitStack() as stack,
  ):
    shares = placement.divide(setup.config.mesh.to_dict())
    if shares:
      accelerators.take(shares[0])
    output.say(devices.describe())
    mesh = meshes.open_run(setup, begins=not directory.resumed)
    directory.record_start(
        chat_template=setup.policy.tokenizer.template,
        mesh=dict(mesh.shape),
        problems=agreement.problems(setup),
    )
    if primary:
      stack.enter_context(output.log_to(directory.path))
    engine = stack.enter_context(
        engines.open_sampler(
            setup.config,
            setup.policy,
            mesh,
            directory.path,
            stopping=lambda: bool(asked),
        )
    )
    place = Place(directory, mesh, engine, asked, shares[1:])
    try:
      yield place
    except preemption.Interrupted:
      place.preempt(f'what was finished in {directory.path} is saved')
      raise


def _has_forked(path: pathlib.Path) -> bool:
  """Return whether a workdir has its first version, and so needs no source."""
  try:
    return history_lib.read(path).base is not None
  except ValueError:  # No row yet, or damage that the recorder reports.
    return False


@contextlib.contextmanager
def open_run(
    config: ml_collections.ConfigDict, workdir: str, options: Options
) -> Iterator[Run]:
  """Yield the parts of a run, new or continued.

  Args:
    config: Config of the run, with evolve.rounds > 0.
    workdir: The run's directory.
    options: Command-line options.

  Raises:
    ValueError: If config, domain, model, harness, workdir or a flag is wrong.
    Preempted: After SIGINT or SIGTERM, with everything saved.
  """
  primary = sharding.is_primary()
  if primary:  # Checked early, before slow work, and again under the lock.
    workdir_lib.check(workdir, config, 'evolve')
  if _has_forked(pathlib.Path(workdir).expanduser()):
    options = dataclasses.replace(options, fork_from='')
  setup, seed, fork, compared = check(config, options)
  base, tier = setup.config, probe.tier()
  with (
      open_place(
          setup, config, workdir, 'evolve', options.placement
      ) as place,
      contextlib.ExitStack() as stack,
  ):
    path = place.directory.path
    ledger = path / run_files.LEDGER
    # Printed before the current arm saves a checkpoint, if there is time.
    saved = (
        f'the rows of {ledger} are saved, and an arm goes on from its newest'
        ' checkpoint'
    )
    e = base.evolve
    live = stack.enter_context(page.Live(path))

    def before_step() -> None:
      place.preempt(saved)
      if primary and recorder.rows:
        live.update()

    meter = commands.Meter()
    recorder = recorder_lib.Recorder(
        chain.Ledger(ledger, tier) if primary else None,
        budget_lib.Budget(
            e.device_seconds, e.dollars, e.dollars_per_device_hour
        ),
        before_step,
        place.directory.keep,
        meter,
    )
    if primary and not recorder.rows and config.log.tensorboard:
      output.say(f'curves: tensorboard --logdir={path}')
    phases = metrics_lib.Phases()
    progress = stack.enter_context(
        progress_lib.Progress(
            stages.of_evolution(
                base, len(compared), len(recorder.history.races)
            ),
            every=max(1, e.updates // 3),
            shown=primary,
        )
    )
    states = states_lib.States(setup, place.mesh)
    in_process = executor_lib.InProcess(
        setup, place.engine, phases, recorder.stop_if_asked, progress
    )
    # Arms that run elsewhere have ended by then, since the stack closes them
    # first.
    stack.push(lambda error, *_: error is not None and recorder.keep_cost())
    yield Run(
        path=path,
        setup=setup,
        seed=seed,
        fork=fork,
        compared=compared,
        phases=phases,
        progress=progress,
        recorder=recorder,
        harnesses=harnesses_lib.Harnesses(path / run_files.HARNESSES, setup),
        states=states,
        scorer=scoring.Scorer(
            states=states,
            engine=place.engine,
            phases=phases,
            progress=progress,
            stop_if_asked=recorder.stop_if_asked,
            may_open_sealed=lambda: recorder.find(records.Seal) is not None,
        ),
        executor=stack.enter_context(
            executor_lib.open_executor(
                options.placement, in_process, meter, place.shares
            )
        ),
    )
