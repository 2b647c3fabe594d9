"""The config of a run, read from its workdir, in the form of a config file.

    python -m evojax.main --config=evojax/runtime/saved_config.py:runs/math

`evojax.main` inserts this argument if --config is left out and --workdir holds
a run, so that the run's own config is used and can be overridden.
"""

import contextlib
import json
import os

import ml_collections

from evojax import config as config_lib
from evojax.runtime import config_changes
from evojax.runtime import run_files
from evojax.runtime import storage


def missing(workdir: str | None) -> str:
  """Return the error of a command without --config whose workdir has none."""
  error = '--config is missing: e.g. --config=configs/math.py, or '
  if workdir is None:
    return error + 'the --workdir of a run, whose config is taken'
  return (
      f'{error}another --workdir: {workdir} holds no run whose config could be'
      ' taken'
  )


def argument(workdir: str, mode: str | None = None) -> str | None:
  """Return the value of --config for the config of a run; None without a run.

  Args:
    workdir: The workdir of a run. To inspect, it may also be a folder of
      evidence in it, such as RUN/arms/NAME or RUN/rounds/NUMBER/NAME.
    mode: The value of --mode.

  Raises:
    OSError, ValueError: As `get_config`.
  """
  folders = [workdir]
  if mode == 'inspect':
    if not storage.is_remote(workdir):
      workdir = os.path.abspath(os.path.expanduser(workdir))
    above = (workdir.rstrip('/').rsplit('/', depth)[0] for depth in (2, 3))
    folders += filter(None, above)
  for folder in folders:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
      get_config(folder)
      return f'{__file__}:{folder}'
  return None


def get_config(workdir: str) -> ml_collections.ConfigDict:
  """Return the locked config of a run.

  Fields that are newer than the run get the values that preserve what it did.

  Args:
    workdir: The workdir of a run, on this machine or in an object store.

  Raises:
    FileNotFoundError, NotADirectoryError: If the directory holds no run.
    OSError: If the file cannot be read for another reason.
    ValueError: If it is not what evojax wrote.
  """
  path = os.path.join(os.path.expanduser(workdir), run_files.CONFIG)
  try:
    values = config_lib.frozen(json.loads(storage.read(path))['config'])
    config = config_lib.base()
    # Names in these groups are the run's own; the default's are not added.
    own = {f.path: {} for f in config_lib.FIELDS if isinstance(f.default, dict)}
    config.update_from_flattened_dict(own | config_changes.FORMERLY)
    config.update(ml_collections.ConfigDict(values))
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(
        f'{path} is not a config written by evojax ({error}): restore it, or'
        ' pass --config'
    ) from error
  return config.lock()
