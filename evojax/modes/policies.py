"""The policy that a finished run left in its workdir."""

import pathlib

import ml_collections

from evojax import config as config_lib
from evojax.runtime import mirror
from evojax.runtime import run_files
from evojax.runtime import workdir as workdir_lib


def of_run(
    config: ml_collections.ConfigDict, workdir: str
) -> ml_collections.ConfigDict | None:
  """Return the config with model.path set to the policy of a finished run.

  Args:
    config: The config; its own model.path is replaced in a copy.
    workdir: Directory that may hold a run.

  Returns:
    The changed copy, or None if the directory holds no run, or only a run of
    --mode=eval, which trains nothing.

  Raises:
    ValueError: If the run leaves no policy, or has not ended.
  """
  path = pathlib.Path(workdir).expanduser()
  mode = workdir_lib.owner(path)
  if mode in ('', 'eval'):
    return None
  if mode == 'aa':
    raise ValueError(
        f'--workdir={workdir} holds the equal arms of --mode=aa, which leave no'
        ' policy: choose another --workdir'
    )
  policy = path / run_files.POLICY
  if not policy.is_dir():
    raise ValueError(
        f'--workdir={workdir} holds a run of --mode={mode} that has not ended,'
        f' so there is no {policy}: let it end, or leave --workdir out to take'
        f' config.model.path={config.model.path!r}'
    )
  return config_lib.with_fields(
      config, {'model.path': mirror.shown(str(policy))}
  )
