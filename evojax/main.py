"""The command line of evojax.

    python -m evojax.main --config=configs/math.py [--mode=...] [--workdir=...]

The config says what is computed. evojax/config.py lists its fields, and each is
also a flag: --config.grpo.group_size=8. All other flags say where and how this
process runs.
"""

import gc

from evojax.runtime import preemption

if __name__ == '__main__':
  # Imports take seconds, during which Ctrl-C has to work, too.
  preemption.listen()
  # Imports leave no garbage; collecting would take a quarter of their time.
  gc.disable()

from collections.abc import Callable, Iterator
import contextlib
import functools
import importlib
import itertools
import os
import pathlib
import re
import runpy
import sys
import traceback
from typing import Any

from evojax.runtime import environment

if __name__ == '__main__':
  environment.require('absl', 'jax', 'ml_collections')

from absl import app
from absl import flags
from absl import logging
import jax
from ml_collections import config_flags

from evojax import config as config_lib
from evojax.runtime import config_checks
from evojax.runtime import mirror
from evojax.runtime import orbax_noise
from evojax.runtime import output
from evojax.runtime import peers
from evojax.runtime import plugins
from evojax.runtime import saved_config
from evojax.runtime import sharding
from evojax.runtime import storage
from evojax.runtime import stored_names
from evojax.sandbox import box
from evojax.sandbox import probe

FLAGS = flags.FLAGS


def _values(*names: str) -> dict[str, Any]:
  """Return flags by name, for a mode that takes them by keyword."""
  return {name: FLAGS[name].value for name in names}


def _inspect(inspection: Any, config: Any, workdir: str) -> Any:
  from evojax import domains
  from evojax.models import policy

  decode = None
  if config.model.path:
    decode = policy.token_decoder(
        domains.policy_path(config.model.path, policy.WITHOUT_WEIGHTS)
    )
  given = _values('problem', 'split', 'flips', 'tokens', 'limit')
  return inspection.run([workdir, *FLAGS.runs], decode=decode, **given)


def _evolve(evolve: Any, config: Any, workdir: str) -> Any:
  options = _values('compare', 'fork_from', 'fork_version', *_PLACEMENT)
  return evolve.run(config, workdir, **options)


def _report(page: Any, config: Any, workdir: str) -> None:
  del config  # The workdir holds the config of its run.
  from evojax.ledger import parting

  partings = [parting.find(workdir, other) for other in FLAGS.runs]
  built = page.build(pathlib.Path(workdir), partings=partings)
  mirror.put(built)
  for found in partings:
    output.say(str(found))
  output.say(f'page: {built}')


def _diagnose(diagnosis: Any, config: Any, workdir: str) -> int:
  del config
  found = diagnosis.diagnose(pathlib.Path(workdir), 'evojax')
  for name in diagnosis.FILES:
    mirror.put(pathlib.Path(workdir, name))
  return diagnosis.exit_code(found)


def _sweep(sweep: Any, config: Any, workdir: str) -> Any:
  names = 'compilation_cache', 'allow_weak_sandbox'
  given = sweep.CommandLine(
      _text(sys.argv, 'config'),
      config_flags.get_override_values(FLAGS['config']),
      [FLAGS[n].serialize() for n in names if FLAGS[n].present],
  )
  options = _values('sweep', 'dry_run', *_PLACEMENT)
  return sweep.run(config, workdir, given=given, **options)


_PLACEMENT = ('executor', 'workers', 'arm_resources', 'arm_hosts')
_SERVE = ('port', 'host', 'workdir', 'hosts', 'weights_root', 'insecure')
# Mode -> its module, and a function that runs it: (module, config, workdir) ->
# exit code or anything else. Modules are imported on use, because reading
# evidence needs no decoder, and planning no trainer.
MODES: dict[str, tuple[str, Callable[[Any, Any, str], Any]]] = {
    'evolve': ('modes.evolve', _evolve),
    'aa': (
        'modes.aa',
        lambda m, c, w: m.run(c, w, **_values(*_PLACEMENT)),
    ),
    'train': (
        'modes.train',
        lambda m, c, w: m.run(c, w, **_values('fork_from')),
    ),
    'eval': ('modes.evaluate', lambda m, c, w: m.run(c, w)),
    'warmstart': ('modes.warmstart', lambda m, c, w: m.run(c, w)),
    'plan': (
        'modes.plan_table',
        lambda m, c, w: m.run(c, **_values('mesh_auto', 'workers')),
    ),
    'inspect': ('modes.inspection', _inspect),
    'report': ('report.page', _report),
    'runs': (
        'modes.runs',
        lambda m, c, w: m.run(
            FLAGS.workdir or 'runs', **_values('sort', 'only', 'format')
        ),
    ),
    'diagnose': ('diagnosis.run', _diagnose),
    'check': (
        'modes.check',
        lambda m, c, w: m.run(c, FLAGS.harnesses, FLAGS.workdir),
    ),
    'serve': (
        'modes.serve',
        lambda m, c, w: m.run(c, **_values(*_SERVE)),
    ),
    'sweep': ('modes.sweep', _sweep),
    'arm': ('modes.arm', lambda m, c, w: m.run(FLAGS.job)),
}

# Modes that need no --config: they find what they need in a job or a workdir.
_TOLD = 'arm', 'runs', 'report', 'diagnose'
# Modes whose --workdir may be in an object store, see runtime/mirror.py.
_STORED = tuple(
    'evolve train aa eval report diagnose inspect runs sweep'.split()
)
# The modes among these in which several processes may work together, see
# --distributed.
_STORED_TOGETHER = 'evolve', 'train'

_CONFIG = config_flags.DEFINE_config_file(
    'config',
    None,
    'File[:variant]; default: the config of the run in --workdir.',
)
flags.DEFINE_enum(
    'mode',
    'evolve',
    list(MODES),
    'evolve: run the meta-loop. train: run GRPO alone. eval: score a policy.'
    ' warmstart: train the base policy on demonstrations. plan: print the cost'
    ' of a run. inspect: show rollouts. report: rebuild the page of a workdir.'
    ' diagnose: find faults in the training of a workdir. runs: list and'
    ' compare the runs below --workdir. check: test a harness, a domain or a'
    " reward. serve: serve the policy behind SGLang's HTTP API. arm: train one"
    ' arm of a run of evolve. aa: measure how often a race keeps one of equal'
    ' arms. sweep: run one config under the settings and seeds of a file.',
)
flags.DEFINE_enum(
    'executor',
    'inprocess',
    ['inprocess', 'local', 'ray', 'slurm'],
    'evolve, aa: where arms are trained. inprocess: one after the other in this'
    ' process. local: in processes of --mode=arm on this machine; if there are'
    ' enough GPUs or TPU chips, each has its own. ray: in such processes on the'
    ' machines of a Ray cluster.'
    ' The ledger is the same in all cases. sweep: where its runs are trained,'
    ' each in its own process; slurm: write a script for sbatch.',
)
flags.DEFINE_integer(
    'port',
    30_000,
    'serve: port to listen on; 0: a free port, which is printed.',
    lower_bound=0,
    upper_bound=65_535,
)
flags.DEFINE_enum(
    'format',
    'table',
    ['table', 'csv', 'json', 'html'],
    'runs: format of the list. csv and json hold all fields, for spreadsheets'
    ' and scripts; html is a page whose links work from the directory of the'
    ' runs.',
)
flags.DEFINE_integer(
    'limit', 20, 'inspect: maximum rows of a table.', lower_bound=1
)
flags.DEFINE_integer(
    'processes', None, 'With --distributed: number of processes.'
)
flags.DEFINE_integer(
    'process', None, 'With --distributed: index of this process.'
)
flags.DEFINE_integer(
    'collective_seconds',
    3600,
    'Seconds after which a run on several devices ends if no process of it'
    ' makes progress, in a collective or anywhere else; 0: never. It must be'
    ' more than the time of an update; a compilation may take an hour in any'
    ' case.',
    lower_bound=0,
)
# The other flags: name, default, meaning. A flag has the type of its default,
# or is a string if that is None; numbers are not negative.
# fmt: off
_FLAGS = (
    ('workdir', None,
     'Directory of the run; default: runs/<config.name>, for eval and aa with'
     ' -eval or -aa behind it; sweep: runs/<name of its file>; runs: runs. With'
     ' eval and serve a finished run, whose policy is scored or served. It may'
     ' be in an object store: gs://BUCKET/x or s3://BUCKET/x.'),
    ('fork_from', '', 'Workdir from whose newest checkpoint, or with evolve'
     ' from whose version, a new workdir starts.'),
    ('fork_version', '',
     'evolve, with --fork_from: version to start from; empty: the newest.'),
    ('compare', [],
     'evolve: workdirs of finished runs whose policies are scored on the same'
     ' sealed problems.'),
    ('workers', 0,
     'evolve, aa, sweep, with an --executor other than inprocess: arms or runs'
     ' at a time. plan: print the cost of evolve with this many workers.'),
    ('arm_resources', [],
     'With --executor=ray: resources of each arm of evolve or run of sweep on'
     ' its machine, such as CPU=4,TPU=8; default for an arm: as many devices as'
     ' this process has. A sweep needs them.'),
    ('arm_hosts', '', 'With --executor=ray: machines of each arm of evolve or'
     ' run of sweep: a number, or a whole TPU slice such as v5p:2x2x2; empty:'
     ' one machine.'),
    ('sweep', '', 'sweep: file with the settings and seeds, such as'
     ' configs/sweeps/reference.py.'),
    ('dry_run', False, 'sweep: print the commands of the runs that are not'
     ' finished, and end.'),
    ('job', '', 'arm: path or URL of the job of the arm; the result is written'
     ' beside it.'),
    ('mesh_auto', False,
     "plan, also as --config.mesh.auto: find a mesh with as many devices as the"
     " config's on which the run fits."),
    ('default_config', None, 'For scripts: the --config of a new run.'),
    ('parent', 0,
     'Process id: when that process ends, this one ends as after SIGTERM; 0:'
     ' none.'),
    ('harnesses', [], 'check: directories of harnesses.'),
    ('host', '127.0.0.1', 'serve: address to listen on; 0.0.0.0: all'
     ' addresses.'),
    ('hosts', [], "serve: names of this server in clients' URLs, in addition to"
     " its addresses and the machine's own name; '*': any."),
    ('weights_root', [], 'serve: directories below which clients may name new'
     ' weights; default: ./runs and config.rollout.weights_dir.'),
    ('insecure', False, 'serve: listen on a public --host without a key.'),
    ('distributed', False, 'Train in several processes, of which this is one;'
     ' TPU pods need no --coordinator.'),
    ('coordinator', None, 'With --distributed: host:port of process 0.'),
    ('compilation_cache', '~/.cache/evojax/xla',
     'Directory for compiled programs, which later runs use; empty: none.'),
    ('allow_weak_sandbox', False,
     'Run untrusted code even if this machine can only limit its resources:'
     ' the code could read your files and use the network.'),
    ('debug', False, 'Show tracebacks of user errors.'),
    ('problem', '', 'inspect: id of a problem, the beginning of its id, or its'
     ' index.'),
    ('split', '', 'inspect: train, dev or sealed; default: a split that has'
     ' rollouts.'),
    ('flips', False, 'inspect: show only problems or samples whose outcome'
     ' changed.'),
    ('tokens', False, 'inspect: show each token with mask, log-prob, reward and'
     ' advantage.'),
    ('sort', 'name',
     'runs: field to sort by, such as score or config.grpo.group_size; -score:'
     ' the largest first.'),
    ('only', [], 'runs: conditions, such as mode=train,score>0.5.'),
    ('runs', [], 'inspect, report: other workdirs to compare with --workdir.'
     ' report shows the first row at which the ledgers differ.'),
)
# fmt: on
_DEFINE = {
    bool: flags.DEFINE_bool,
    list: flags.DEFINE_list,
    int: functools.partial(flags.DEFINE_integer, lower_bound=0),
}
for _name, _default, _meaning in _FLAGS:
  _define = _DEFINE.get(type(_default), flags.DEFINE_string)
  _define(_name, _default, _meaning)

# Errors that a user can correct. Any other error is a bug of evojax and shows
# its traceback.
_USER_ERRORS = (
    ValueError,
    OSError,
    FloatingPointError,
    box.InfraError,
    probe.WeakSandboxError,
)
# Modes -> the flags that only they read.
_FLAGS_OF = {
    'evolve aa sweep': 'executor arm_resources arm_hosts',
    'evolve aa sweep plan': 'workers',
    'evolve train': 'fork_from',
    'aa arm check eval evolve train': 'collective_seconds',
    'evolve': 'fork_version compare',
    'sweep': 'sweep dry_run',
    'arm': 'job',
    'check': 'harnesses',
    'inspect': 'problem split flips tokens limit',
    'inspect report': 'runs',
    'runs': 'sort only format',
    'serve': 'port host hosts weights_root insecure',
}
_MESH_AUTO = r'--?config\.mesh\.auto(=[Tt]rue)?'


def main(argv: list[str]) -> int | None:
  """Run one mode, and end together with the other processes of the run."""
  del argv  # `parse_flags` leaves none.
  try:
    status = _run()
  except SystemExit as end:
    _leave(end.code if isinstance(end.code, int) else 1)
    raise
  except BaseException as error:
    peers.report_failure(error)
    raise
  _leave(status or 0)
  return status


def _leave(status: int) -> None:
  peers.leave(status)
  preemption.leave(status)


def _run() -> int | None:
  """Run one mode; user errors become one line and exit code 2."""
  try:
    return _dispatch()
  except ModuleNotFoundError as error:
    if not FLAGS.debug and error.name and error.name.split('.')[0] != 'evojax':
      environment.require(error.name)
    raise
  except _USER_ERRORS as error:
    if FLAGS.debug:
      raise
    peers.blame()
    output.say(f'error: {plugins.located(error)}', error=True)
    return 2


def parse_flags(argv: list[str]) -> list[str]:
  """Parse the command line; a wrong one becomes one line and exit code 2.

  config_flags alone would answer an unknown field or variant with a traceback.
  """
  # A run keeps its config, so --config.mesh.auto becomes a flag.
  argv[:] = ['--mesh_auto' if re.fullmatch(_MESH_AUTO, a) else a for a in argv]
  argv[:] = _config_first(argv)  # config_flags reads sys.argv itself.
  try:
    argv[:] = _with_saved_config(argv)
    fields = _check_config(argv)
    try:
      rest = FLAGS(argv)[1:]
    except flags.IllegalFlagValueError as error:
      name = re.match(r'flag --config\.([\w.]+)=', str(error))
      if name is None or name[1] not in fields:
        raise
      like = repr(fields[name[1]])
      raise ValueError(f'{error}; it takes a value like {like}') from error
    if rest:
      raise ValueError(f'unknown arguments {rest}: flags begin with --')
  except (flags.Error, ValueError, OSError) as error:
    if '--debug' in argv:
      raise
    output.say(f'error: {error}', error=True)
    sys.exit(2)
  return argv[:1]


def _config_first(argv: list[str]) -> list[str]:
  """Return a command line with --config before its fields, in any order."""
  for i, argument in enumerate(argv):
    if match := re.fullmatch(r'--?config(=.*)?', argument):
      end = i + (1 if match[1] else 2)
      return [argv[0], *argv[i:end], *argv[1:i], *argv[end:]]
  return argv


def _with_saved_config(argv: list[str]) -> list[str]:
  """Add the config of its --workdir to a command line that names none.

  A new run gets --default_config; a mode that needs no config gets none.
  """
  workdir, mode = _text(argv, 'workdir'), _text(argv, 'mode')
  chosen = _text(argv, 'default_config')
  argv = [a for a in argv if not a.startswith('--default_config=')]
  if _text(argv, 'config') is not None or (workdir and mode in _TOLD):
    return argv
  if workdir:
    chosen = saved_config.argument(workdir, mode) or chosen
  return [argv[0], f'--config={chosen}', *argv[1:]] if chosen else argv


def _text(argv: list[str], flag: str) -> str | None:
  """Return the last value of a flag on a command line."""
  text = None
  for argument, following in itertools.pairwise([*argv[1:], '']):
    if match := re.fullmatch(rf'--?{flag}(?:=(.*))?', argument):
      text = following if match[1] is None else match[1]
  return text


def _check_config(argv: list[str]) -> dict[str, Any]:
  """Load the config of a command line; return its fields by dotted name.

  Raises:
    ValueError: If there is no such file, variant or field.
  """
  path = _text(argv, 'config')
  names = re.findall(r'\0--?(?:no)?config\.([\w.]+)', '\0'.join(argv))
  if path is None:
    if names:
      raise ValueError(saved_config.missing(_text(argv, 'workdir')))
    return {}
  file, colon, variant = path.partition(':')
  if not os.path.isfile(file):
    raise ValueError(f'--config={path}: there is no file {file!r}')
  config = _load_config(path, file, (variant,) if colon else ())
  config_checks.check_names(config)
  for name in names:
    config_lib.check_field(config, name)
  return config_lib.flatten(config)


def _load_config(path: str, file: str, variant: tuple[str, ...]) -> Any:
  """Return the config that a file makes.

  Raises:
    ValueError: If it makes none. The file is the user's program, so for an
      error of any kind in it the message names the line.
  """
  try:
    get_config = runpy.run_path(file).get('get_config')
    if not callable(get_config):
      raise ValueError(f'--config={path}: {file} has no function get_config')
    return get_config(*variant)
  except Exception as error:  # pylint: disable=broad-except
    if isinstance(error, SyntaxError):
      where, what = f'{error.filename}:{error.lineno}', error.msg
    else:
      frames = traceback.extract_tb(error.__traceback__)
      mine = [f for f in frames if f.filename == file]
      # Errors of ours, such as an unknown variant, say what is wrong already.
      if isinstance(error, ValueError) and frames[-1] not in mine:
        raise
      last = mine[-1] if mine else frames[-1]
      where, what = f'{last.filename}:{last.lineno}', str(error)
    name = type(error).__name__
    raise ValueError(f'--config={path}: {where}: {name}: {what}') from error


def _dispatch() -> int | None:
  """Prepare jax and hand over to the mode."""
  config, mode, workdir = _CONFIG.value, FLAGS.mode, FLAGS.workdir
  told = mode in _TOLD and (workdir or mode in ('arm', 'runs'))
  if config is None and not told:
    if mode in _TOLD:
      raise ValueError(f'--mode={mode} needs a run: its --workdir or --config')
    raise ValueError(saved_config.missing(workdir))
  _check_flags(mode)
  if FLAGS.mesh_auto and mode != 'plan':
    raise ValueError(
        f'--config.mesh.auto with --mode={mode}: a run takes the mesh of its'
        ' config; let --mode=plan find one, and pass the flags that it prints'
    )
  if FLAGS.parent:
    preemption.follow(FLAGS.parent)
  if FLAGS.allow_weak_sandbox:
    probe.tier(allow_weak=True)
  # These two write their own evidence, apart from that of the run.
  suffix = f'-{mode}' if mode in ('eval', 'aa') else ''
  if mode == 'sweep' and workdir is None:
    workdir = os.path.join('runs', pathlib.Path(FLAGS.sweep).stem)
  if workdir is None and config is not None:
    workdir = os.path.join('runs', config.name + suffix)
  _check_stored(mode, _stored(workdir))
  peers.set_limit(FLAGS.collective_seconds)
  if FLAGS.distributed:
    peers.join(FLAGS.coordinator, FLAGS.processes, FLAGS.process)
  if cache := FLAGS.compilation_cache:
    jax.config.update('jax_compilation_cache_dir', os.path.expanduser(cache))
  module, run = MODES[mode]
  imported = importlib.import_module(f'evojax.{module}')
  gc.freeze()  # Imported modules stay, and are never searched again.
  gc.enable()
  with _on_this_machine(mode, workdir) as path:
    code = run(imported, config, path)
  return code if isinstance(code, int) else None  # Others return results.


def _check_flags(mode: str) -> None:
  """Raise ValueError if a flag is given that nothing would read."""
  changed = lambda name: FLAGS[name].value != FLAGS[name].default
  for names, flags_ in _FLAGS_OF.items():
    modes, wrong = names.split(), [*filter(changed, flags_.split())]
    if wrong and mode not in modes:
      raise ValueError(
          f'--{wrong[0]}={FLAGS[wrong[0]].value} is for'
          f' --mode={" or ".join(modes)}, and this is --mode={mode}: leave the'
          ' flag out'
      )
  beside = mode == 'plan' or FLAGS.executor != 'inprocess'
  for names, given, needed in (
      ('coordinator processes process', FLAGS.distributed, '--distributed'),
      ('arm_resources arm_hosts', FLAGS.executor == 'ray', '--executor=ray'),
      ('workers', beside, '--executor=local or ray, or slurm for a sweep'),
  ):
    for name in [] if given else filter(changed, names.split()):
      raise ValueError(f'--{name}={FLAGS[name].value} needs {needed}')


def _stored(workdir: str | None) -> list[str]:
  """Return the workdir and the other runs that flags name, if in a store."""
  named = [workdir, FLAGS.workdir, FLAGS.fork_from, *FLAGS.compare, *FLAGS.runs]
  return [path for path in named if path and storage.is_remote(path)]


def _check_stored(mode: str, stored: list[str]) -> None:
  """Raise ValueError if the mode or a flag needs a local directory."""
  refused = ''
  if mode not in _STORED:
    refused = f'--mode={mode}; in a store work --mode={", ".join(_STORED)}'
  elif FLAGS.distributed and mode not in _STORED_TOGETHER:
    refused = (
        f'--mode={mode} --distributed; in a store several processes work'
        f' together in --mode={", ".join(_STORED_TOGETHER)}'
    )
  if stored and refused:
    raise ValueError(
        f'{stored[0]} is no directory on this machine, which is needed by'
        f' {refused}. Name one on a shared file system, such as NFS or'
        ' Filestore; a mounted bucket renames no directories and has no locks'
    )


@contextlib.contextmanager
def _on_this_machine(mode: str, workdir: str | None) -> Iterator[str | None]:
  """Yield the workdir; one in an object store is a copy, see `mirror`.

  Other runs that flags name are copied as well. Processes other than 0 copy
  only what they read.
  """
  if not _stored(workdir):
    yield workdir and os.path.expanduser(workdir)
    return
  with contextlib.ExitStack() as stack:
    wanted = lambda name: sharding.is_primary() or stored_names.is_for_all(name)
    open_ = lambda path: path and stack.enter_context(
        mirror.opened(path, wanted)
    )
    if mode in ('runs', 'sweep'):
      # The table of runs shows no evidence, which is most of what they wrote.
      light = lambda name: 'evidence' not in name.split('/')
      FLAGS.workdir = stack.enter_context(
          mirror.opened_below(workdir or FLAGS.workdir, light)
      )
      yield FLAGS.workdir
      return
    FLAGS.fork_from = open_(FLAGS.fork_from)
    FLAGS.compare = [open_(path) for path in FLAGS.compare]
    FLAGS.runs = [open_(path) for path in FLAGS.runs]
    yield open_(workdir)


if __name__ == '__main__':
  logging.set_verbosity(logging.WARNING)
  orbax_noise.hush(lambda: FLAGS.debug)
  app.run(main, flags_parser=parse_flags)
