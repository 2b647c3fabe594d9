"""Command line of evojax: flags, devices, dispatch on --mode.

    python -m evojax.main --config=configs/math.py [--mode=...] [--workdir=...]

The config says what is computed and can be overridden field by field
(--config.grpo.group_size=8); flags say where and how this process runs.
"""
import os
import pathlib
import sys

from absl import app
from absl import flags
from absl import logging
import jax
from ml_collections import config_flags

_CONFIG = config_flags.DEFINE_config_file('config', None, 'File[:variant].')
_MODE = flags.DEFINE_enum(
    'mode',
    'train',
    ['train', 'eval', 'warmstart', 'plan', 'inspect'],
    'train: GRPO. eval: score a policy. warmstart: make the base policy. plan:'
    ' cost of a run, before it is paid. inspect: read rollouts.',
)
_WORKDIR = flags.DEFINE_string(
    'workdir', None, 'Directory of the run; default: runs/<config.name>.'
)
_FORK_FROM = flags.DEFINE_string(
    'fork_from', '', 'Workdir whose newest checkpoint a new workdir starts from.'
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

# What a user can mend; anything else is our bug and shows its traceback.
_USER_ERRORS = (ValueError, OSError, FloatingPointError)


def main(argv: list[str]) -> int | None:
  """Runs one mode; user errors become one line and exit code 2."""
  if len(argv) > 1:
    raise app.UsageError(f'unknown arguments {argv[1:]}: flags begin with --')
  try:
    return _dispatch()
  except _USER_ERRORS as error:
    if _DEBUG.value:
      raise
    print(f'error: {error}', file=sys.stderr)
    return 2


def _dispatch() -> int | None:
  """Prepares jax and hands over to the mode."""
  config = _CONFIG.value
  if config is None:
    raise ValueError('--config is missing: e.g. --config=configs/math.py')
  workdir = _WORKDIR.value or os.path.join('runs', config.name)
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
  # Imported per mode: reading evidence needs no decoder, planning no trainer.
  if _MODE.value == 'train':
    from evojax import train

    train.run(config, workdir, fork_from=_FORK_FROM.value)
  elif _MODE.value == 'eval':
    from evojax import train

    train.evaluate(config, workdir)
  elif _MODE.value == 'warmstart':
    from evojax import warmstart

    warmstart.run(config, workdir)
  elif _MODE.value == 'plan':
    from evojax import plan

    plan.show(plan.plan(config))
  elif _MODE.value == 'inspect':
    from evojax import inspect
    from evojax.models import policy

    return inspect.run(
        [workdir, *_RUNS.value],
        problem=_PROBLEM.value,
        split=_SPLIT.value,
        flips=_FLIPS.value,
        tokens=_TOKENS.value,
        decode=policy.token_decoder(config.model.path),
    )
  return None


if __name__ == '__main__':
  logging.set_verbosity(logging.WARNING)
  app.run(main)
