"""The policy that a finished run left in its workdir."""

import json
import os
import pathlib

import ml_collections

from evojax import config as config_lib
from evojax.report import state
from evojax.runtime import mirror
from evojax.runtime import output
from evojax.runtime import run_files
from evojax.runtime import workdir as workdir_lib

# Fields on which the answers of a policy to a problem depend.
_OF_ANSWERS = 'domain.', 'data.', 'model.', 'rollout.'


def of_run(
    config: ml_collections.ConfigDict, workdir: str
) -> ml_collections.ConfigDict | None:
  """Return the config with model.path set to the policy of a finished run.

  If the config differs from the run's, so that the policy may get other
  problems or limits than in its training, one line names the fields.

  Args:
    config: The config; its own model.path is replaced in a copy.
    workdir: Directory that may hold a run.

  Returns:
    The changed copy, or None if the directory holds no run, or only a run of
    --mode=eval, which trains nothing.

  Raises:
    ValueError: If the run leaves no policy, or has not ended.
  """
  # Absolute, so that a policy has one path in the config, wherever it is
  # scored.
  path = pathlib.Path(os.path.abspath(os.path.expanduser(workdir)))
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
  if state.goes_on(path):
    raise ValueError(
        f'--workdir={workdir} holds a run of --mode={mode} that went on after'
        f' its end, and {policy} is older: let it end first, or name that'
        ' policy in --config.model.path, with another --workdir'
    )
  changed = workdir_lib.changes(path, config, mode)
  other = [n for n in changed if n.startswith(_OF_ANSWERS)]
  other = [n for n in other if n != 'model.path']
  if other:
    listed = ', '.join(f'{n}={json.dumps(changed[n][0])}' for n in other)
    output.say(
        f'note: the run had {listed}; leave --config out to take its config'
    )
  return config_lib.with_fields(
      config, {'model.path': mirror.shown(str(policy))}
  )
