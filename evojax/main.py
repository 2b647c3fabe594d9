"""Command line of evojax: flags, devices, dispatch on --mode.

    python -m evojax.main --config=configs/math.py [--mode=...] [--workdir=...]

The config says what is computed and can be overridden field by field
(--config.grpo.group_size=8); flags say where and how this process runs.
"""

from collections.abc import Callable
import importlib
import itertools
import os
import pathlib
import re
import runpy
import sys
from typing import Any
import warnings

from absl import app
from absl import flags
from absl import logging
import jax
from ml_collections import config_flags

from evojax import config as config_lib
from evojax.sandbox import box
from evojax.sandbox import probe

_CONFIG = config_flags.DEFINE_config_file('config', None, 'File[:variant].')
_MODE = flags.DEFINE_enum(
    'mode',
    'evolve',
    [
        'evolve',
        'train',
        'eval',
        'warmstart',
        'plan',
        'inspect',
        'report',
        'check',
        'serve',
        'arm',
    ],
    'evolve: the meta-loop. train: GRPO alone. eval: score a policy. warmstart:'
    ' make the base policy. plan: cost of a run, before it is paid. inspect:'
    ' read rollouts. report: rebuild the page of a workdir. check: what would'
    ' be refused of a harness, a domain, a reward. serve: the policy behind'
    ' the HTTP contract of SGLang. arm: train one arm of a run that evolves.',
)
_WORKDIR = flags.DEFINE_string(
    'workdir',
    None,
    'Directory of the run; default: runs/<config.name>, with --mode=eval'
    ' runs/<config.name>-eval.',
)
_FORK_FROM = flags.DEFINE_string(
    'fork_from',
    '',
    'Workdir whose newest checkpoint a new workdir starts from.',
)
_FORK_VERSION = flags.DEFINE_string(
    'fork_version',
    '',
    'evolve, with --fork_from: version to start from; empty: the newest.',
)
_COMPARE = flags.DEFINE_list(
    'compare',
    [],
    'evolve: workdirs of finished runs whose policies are scored on the same'
    ' sealed problems.',
)
_EXECUTOR = flags.DEFINE_enum(
    'executor',
    'inprocess',
    ['inprocess', 'local'],
    'evolve: where arms are trained. inprocess: one after the other in this'
    ' process. local: in processes of --mode=arm on this machine, which share'
    ' its devices; the ledger is the same.',
)
_WORKERS = flags.DEFINE_integer(
    'workers',
    0,
    'evolve, with --executor=local: arms that are trained at a time.',
    lower_bound=0,
)
_JOB = flags.DEFINE_string(
    'job', '', 'arm: the job.json of the arm; its result is beside it.'
)
_PARENT = flags.DEFINE_integer(
    'parent',
    0,
    'arm: process whose end is to end this one, as SIGTERM does; 0: none.',
    lower_bound=0,
)
_HARNESSES = flags.DEFINE_list(
    'harnesses', [], 'check: directories of harnesses.'
)
_PORT = flags.DEFINE_integer(
    'port',
    30_000,
    'serve: to listen on; 0: a free one, which is printed.',
    lower_bound=0,
    upper_bound=65_535,
)
_HOST = flags.DEFINE_string(
    'host', '127.0.0.1', 'serve: address to listen on; 0.0.0.0: all of them.'
)
_DISTRIBUTED = flags.DEFINE_bool(
    'distributed', False, 'Join the other hosts; TPU pods need no address.'
)
_COORDINATOR = flags.DEFINE_string(
    'coordinator', None, 'host:port of process 0, with --distributed.'
)
_PROCESSES = flags.DEFINE_integer('processes', None, 'Number of processes.')
_PROCESS = flags.DEFINE_integer('process', None, 'Index of this process.')
_CACHE = flags.DEFINE_string(
    'compilation_cache',
    '~/.cache/evojax/xla',
    'Directory of compiled programs, kept between runs; empty: none.',
)
_ALLOW_WEAK = flags.DEFINE_bool(
    'allow_weak_sandbox',
    False,
    'Run untrusted code even where nothing but its resources can be limited:'
    ' it could read your files and use the network.',
)
_DEBUG = flags.DEFINE_bool('debug', False, 'Show tracebacks of user errors.')
_PROBLEM = flags.DEFINE_string(
    'problem', '', 'inspect: id, the head of one, or index of a problem.'
)
_SPLIT = flags.DEFINE_string('split', 'dev', 'inspect: train, dev or sealed.')
_FLIPS = flags.DEFINE_bool('flips', False, 'inspect: only changed outcomes.')
_TOKENS = flags.DEFINE_bool(
    'tokens', False, 'inspect: token by token, with log-prob and advantage.'
)
_RUNS = flags.DEFINE_list(
    'runs', [], 'inspect: further workdirs to set beside --workdir.'
)
_LIMIT = flags.DEFINE_integer(
    'limit', 20, 'inspect: rows of a table, at most.', lower_bound=1
)

# A user can mend these; any other error is our bug and shows its traceback.
_USER_ERRORS = (
    ValueError,
    OSError,
    FloatingPointError,
    box.InfraError,
    probe.WeakSandboxError,
)
_NO_CONFIG = '--config is missing: e.g. --config=configs/math.py'


def main(argv: list[str]) -> int | None:
  """Run one mode; user errors become one line and exit code 2."""
  del argv  # `parse_flags` leaves none.
  try:
    return _dispatch()
  except _USER_ERRORS as error:
    if _DEBUG.value:
      raise
    print(f'error: {error}', file=sys.stderr)
    return 2


def parse_flags(argv: list[str]) -> list[str]:
  """Parse the command line; a wrong one becomes one line and exit code 2.

  config_flags alone would answer an unknown field or variant with a traceback.
  """
  try:
    fields = _check_config(argv)
    try:
      rest = flags.FLAGS(argv)[1:]
    except flags.IllegalFlagValueError as error:
      name = re.match(r'flag --config\.([\w.]+)=', str(error))
      if name is None or name[1] not in fields:
        raise
      raise ValueError(
          f'{error}; it takes a value like {fields[name[1]]!r}'
      ) from error
    if rest:
      raise ValueError(f'unknown arguments {rest}: flags begin with --')
  except (flags.Error, ValueError) as error:
    if '--debug' in argv:
      raise
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)
  return argv[:1]


def _check_config(argv: list[str]) -> dict[str, Any]:
  """Load the config of a command line; return its fields by dotted name.

  Raises:
    ValueError: If there is no such file or variant, or if an override names no
      field of it.
  """
  path, names = None, []
  for argument, following in itertools.pairwise([*argv[1:], '']):
    if match := re.fullmatch(r'--?config(?:=(.*))?', argument):
      path = following if match[1] is None else match[1]
    elif match := re.match(r'--?(?:no)?config\.([\w.]+)', argument):
      names.append(match[1])
  if path is None:
    if names:
      raise ValueError(_NO_CONFIG)
    return {}
  file, colon, variant = path.partition(':')
  if not os.path.isfile(file):
    raise ValueError(f'--config={path}: there is no file {file!r}')
  get_config = runpy.run_path(file).get('get_config')
  if not callable(get_config):
    raise ValueError(f'--config={path}: {file} has no function get_config')
  config = get_config(variant) if colon else get_config()
  for name in names:
    config_lib.check_field(config, name)
  return config_lib.flatten(config)


def _dispatch() -> int | None:
  """Prepare jax and hand over to the mode."""
  config = _CONFIG.value
  if config is None and _MODE.value != 'arm':
    raise ValueError(_NO_CONFIG)
  if _MODE.value != 'evolve' and _EXECUTOR.value != 'inprocess':
    raise ValueError(
        f'--executor={_EXECUTOR.value} places the arms of --mode=evolve, and'
        f' this is --mode={_MODE.value}: leave the flag out'
    )
  if _ALLOW_WEAK.value:
    probe.tier(True)
  # An evaluation must not write into the evidence of the run that it scores.
  suffix = '-eval' if _MODE.value == 'eval' else ''
  workdir = _WORKDIR.value
  if workdir is None and config is not None:
    workdir = os.path.join('runs', config.name + suffix)
  if _DISTRIBUTED.value:
    jax.distributed.initialize(
        coordinator_address=_COORDINATOR.value,
        num_processes=_PROCESSES.value,
        process_id=_PROCESS.value,
    )
  if _CACHE.value:
    jax.config.update(
        'jax_compilation_cache_dir', os.path.expanduser(_CACHE.value)
    )
  module, run = MODES[_MODE.value]
  code = run(importlib.import_module(f'evojax.{module}'), config, workdir)
  return code if isinstance(code, int) else None  # Others return results.


def _inspect(inspection: Any, config: Any, workdir: str) -> Any:
  from evojax import domains
  from evojax.models import policy

  decode = None
  if config.model.path:
    decode = policy.token_decoder(domains.policy_path(config.model.path))
  return inspection.run(
      [workdir, *_RUNS.value],
      problem=_PROBLEM.value,
      split=_SPLIT.value,
      flips=_FLIPS.value,
      tokens=_TOKENS.value,
      limit=_LIMIT.value,
      decode=decode,
  )


def _evolve(evolve: Any, config: Any, workdir: str) -> Any:
  return evolve.run(
      config,
      workdir,
      compare=_COMPARE.value,
      fork_from=_FORK_FROM.value,
      fork_version=_FORK_VERSION.value,
      executor=_EXECUTOR.value,
      workers=_WORKERS.value,
  )


# Mode -> its module and how that is called: (module, config, workdir) -> exit
# code or anything else. Modules are imported on use: reading evidence needs no
# decoder, and planning no trainer.
MODES: dict[str, tuple[str, Callable[[Any, Any, str], Any]]] = {
    'evolve': ('modes.evolve', _evolve),
    'train': (
        'training.loop',
        lambda m, c, w: m.run(c, w, fork_from=_FORK_FROM.value),
    ),
    'eval': ('modes.evaluate', lambda m, c, w: m.run(c, w)),
    'warmstart': ('modes.warmstart', lambda m, c, w: m.run(c, w)),
    'plan': ('modes.plan', lambda m, c, w: m.show(m.plan(c))),
    'inspect': ('modes.inspection', _inspect),
    'report': (
        'report.page',
        lambda m, c, w: print(f'page: {m.build(pathlib.Path(w))}'),
    ),
    'check': ('modes.check', lambda m, c, w: m.run(c, _HARNESSES.value)),
    'serve': (
        'modes.serve',
        lambda m, c, w: m.run(c, _PORT.value, _HOST.value),
    ),
    'arm': ('modes.arm', lambda m, c, w: m.run(_JOB.value, _PARENT.value)),
}


def _hush_orbax() -> None:
  """Leave a failed save to the one error that `checkpoint` raises for it.

  Otherwise Orbax logs a traceback per thread, asyncio logs each failed task
  whose result nobody read, and each unfinished write complains that its event
  loop is gone.
  """
  logging.get_absl_handler().addFilter(
      lambda record: _DEBUG.value
      or record.levelno < logging.converter.STANDARD_ERROR
      or not ('orbax' in record.pathname or record.name == 'asyncio')
  )
  hook = sys.unraisablehook

  def unraisable(event):
    if _DEBUG.value or str(event.exc_value) != 'Event loop is closed':
      hook(event)

  sys.unraisablehook = unraisable
  # Coroutines that a failure kept from starting complain in the same way.
  warnings.filterwarnings('ignore', 'coroutine .* was never awaited')


if __name__ == '__main__':
  logging.set_verbosity(logging.WARNING)
  _hush_orbax()
  app.run(main, flags_parser=parse_flags)
