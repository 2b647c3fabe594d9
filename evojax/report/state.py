"""The state of a run: running, stopped or finished, and its progress."""

from collections.abc import Mapping
import dataclasses
import json
import math
import pathlib
from typing import Any

from evojax.ledger import history
from evojax.report import curves
from evojax.runtime import run_files

# Folder of an arm -> config field of its steps; others have evolve.updates.
_STEPS = {'arms/v0': 'evolve.first_updates', 'arms/final': 'steps'}
# Reasons for the end of an evolving run after which nothing is left to do.
_DONE = (
    *('rounds', 'tokens', history.FAULT),
    # Reasons that older versions of evojax wrote.
    *('trials', 'nothing to propose', 'no wealth left'),
)


@dataclasses.dataclass(frozen=True)
class State:
  """The first line of a page."""

  kind: str  # 'running', 'stopped' or 'finished'.
  where: str  # 'step 12 of 30'.
  arm: str = ''  # Folder of the arm in training, for a run that evolves.


def read_json(path: pathlib.Path, default: Any) -> Any:
  """Return the JSON value of a file; `default` if it has another type."""
  try:
    found = json.loads(path.read_bytes())
  except (OSError, ValueError):
    return default
  return found if isinstance(found, type(default)) else default


def title(path: pathlib.Path, config: Mapping[str, Any]) -> str:
  """Return the title of a page, unique where runs share a config's name."""
  folder = path.resolve().name
  name = str(config.get('name') or folder)
  return name if name == folder else f'{folder} ({name})'


def goes_on(path: pathlib.Path) -> bool:
  """Return whether a finished run was continued, so its policy is outdated.

  A run can be continued after config.steps or evolve.rounds was raised. Until
  it ends again, its policy and summary are those of the previous end.
  """
  summary = read_json(path / run_files.SUMMARY, {})
  if summary and (path / run_files.LEDGER).exists():
    return not history.read(path).ended
  config = read_json(path / run_files.CONFIG, {}).get('config', {})
  return summary.get('steps', math.inf) < config.get('steps', 0)


def of_training(
    steps: int, done: int, summary: Mapping[str, Any], running: bool
) -> State:
  """Return the state of a training.

  Args:
    steps: Steps of its config.
    done: The last step with metrics.
    summary: Its summary.json, or {}.
    running: Whether a process works on it.
  """
  where = f'step {done} of {steps}'
  # A summary of fewer steps was written before config.steps was raised.
  if summary.get('steps', -1) >= steps:
    return State('finished', where)
  return State('running' if running else 'stopped', where)


def of_history(
    path: pathlib.Path,
    run: history.History,
    config: Mapping[str, Any],
    running: bool,
) -> State:
  """Return the state of a run that evolves.

  Args:
    path: The run's directory.
    run: Its history.
    config: Flat config.
    running: Whether a process works on it.
  """
  done, rounds = len(run.races), config.get('evolve.rounds')
  where = f'{done} rounds'
  if rounds:
    # A shadow may train on after the last round.
    more = max(done - rounds, 0)
    where = f'{done - more} of {rounds} rounds'
    where += f' and {more} for a shadow' if more else ''
  if run.ended:
    kind = 'finished' if run.ended in _DONE else 'stopped'
    # Runs of an older evojax end with their last trial.
    whole = run.ended in ('rounds', 'trials')
    why = '' if whole else f'; ended: {run.ended}'
    return State(kind, where + why)
  arm = _current(path)
  if arm:
    rows = curves.read(path / arm)
    name = _STEPS.get(arm, 'evolve.updates')
    steps = f' of {config[name]}' if name in config else ''
    where += f', {arm} at step {rows[-1]["step"] if rows else 0}{steps}'
  elif run.rows:
    where += f', last row: {run.rows[-1].record.STEP}'
  return State('running' if running else 'stopped', where, arm)


def _current(path: pathlib.Path) -> str:
  """Return the folder of the newest arm that has not ended."""
  found = [
      (metrics.stat().st_mtime_ns, metrics.parent)
      for metrics in path.glob(f'{run_files.ARMS}/*/{run_files.METRICS}')
      if not (metrics.parent / run_files.ARM).exists()
  ]
  return max(found)[1].relative_to(path).as_posix() if found else ''
