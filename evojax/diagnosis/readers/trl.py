"""Reads the files of TRL's GRPOTrainer: completions and the trainer's state.

ms-swift, which is built on TRL, writes completions.jsonl instead, with one line
of lists per step.

completions/completions_00012.parquet (log_completions=True) holds the newest
generation batch: prompt, completion, one column per reward function before its
weight, columns added by `log_extra`, and the advantage. trainer_state.json, in
each checkpoint or in output_dir, holds the logged metrics of every step, and
training_args.bin beside it the settings. The weights of the reward functions
come from the logged reward, which is linear in them, or else from the settings.
"""

from collections.abc import Mapping
import pathlib
from typing import Any

import numpy as np
import pandas as pd

from evojax.diagnosis import arguments
from evojax.diagnosis import form
from evojax.diagnosis import names
from evojax.diagnosis import readers
from evojax.diagnosis import restarts
from evojax.runtime import numerals

_FOLDER = 'completions'
_STATE = 'trainer_state.json'
_EVALUATION = ('eval_loss', 'eval_reward')
_SWIFT = 'completions.jsonl'
# Names in ms-swift's files -> TRL's.
_SWIFT_NAMES = {'messages': 'prompt', 'advantages': 'advantage'}
_SAME = 0.99  # Lengths within this factor are those of one limit.
_SUM = ' sum'  # No name of a reward function.
_OURS = ('step', 'prompt', 'completion', 'advantage', 'reward')


def fits(path: pathlib.Path) -> bool:
  return bool(
      (path / _STATE).is_file()
      or any(path.glob(f'checkpoint-*/{_STATE}'))
      or any((path / _FOLDER).glob('completions_*.parquet'))
  )


def read(
    path: pathlib.Path, columns: Mapping[str, str], settings: Mapping[str, Any]
) -> form.Run:
  """Read the output_dir of a trainer, during the run or after it."""
  notes: list[str] = []
  state = _state(path, notes)
  log = pd.DataFrame(
      [r for r in state.get('log_history') or () if isinstance(r, dict)]
  )
  files = _files(path / _FOLDER, notes)
  rows = readers.tables(files, readers.parquet_rows, notes)
  if not files and (path / _SWIFT).is_file():
    rows = _swift(path / _SWIFT, notes)
  elif not files:
    notes.append('no completions: train with log_completions=True')
  if 'step' in rows:  # TRL and ms-swift write steps as texts.
    rows['step'] = form.numeric(rows['step'])
    if not files:
      rows = restarts.rollouts(rows, notes, in_order=True)
  rows = _once(_trained(rows, log, notes))
  means = names.part_means(log)
  rewards = list(means)
  # Without a log of rewards, take every numeric column that is not TRL's own.
  functions = [name for name in rewards if name in rows] or [
      name
      for name in rows
      if name not in _OURS and pd.api.types.is_numeric_dtype(rows[name])
  ]
  saved = _arguments(path, notes)
  known = _settings(state, log)
  known |= arguments.of_trl(saved, known['total_steps'])
  known |= _weights(rows, log, means) or arguments.weights(
      saved, rewards or functions
  )
  known |= settings
  size = saved.get('num_generations')
  rows = _common(_grouped(rows, size), functions, known, columns, notes)
  steps = names.common(log, notes, trainer_known=True)
  return form.make(path, 'trl', rows, steps, known, notes)


def _files(folder: pathlib.Path, notes: list[str]) -> list[pathlib.Path]:
  """Return the files of completions in the order of their steps."""
  files = sorted(folder.glob('completions_*.parquet'))
  steps = [file.stem.rpartition('_')[2] for file in files]
  if not all(step.isdigit() for step in steps):
    return files
  return restarts.files(files, [int(step) for step in steps], notes)


def _saved(path: pathlib.Path, name: str) -> list[pathlib.Path]:
  """Return the files of a name that a trainer has saved, the newest first.

  Names of checkpoints contain their step. The files in output_dir are written
  when a training ends; if it was continued, they are older than checkpoints.
  """
  found = []
  for file in path.glob(f'checkpoint-*/{name}'):
    step = file.parent.name.partition('-')[2]
    found.append((int(step) if step.isdigit() else -1, False, file))
  if (path / name).is_file():
    found.append((_ended_at(path), True, path / name))
  return [file for *_, file in sorted(found, reverse=True)]


def _ended_at(path: pathlib.Path) -> float:
  """Return the step of the state in output_dir; infinity if it is unknown."""
  try:
    state = readers.json_file(path / _STATE)
  except (form.FormatError, OSError):
    return np.inf
  step = state.get('global_step') if isinstance(state, dict) else None
  known = isinstance(step, (int, float)) and np.isfinite(step)
  return float(step) if known else np.inf


def _arguments(path: pathlib.Path, notes: list[str]) -> dict[str, Any]:
  """Return the newest readable arguments of the trainer; {} if there are none.

  Another trainer's, such as those of supervised training in the same folder,
  are left out.
  """
  for file in _saved(path, arguments.FILE):
    try:
      found = arguments.load(file)
    except (ValueError, OSError) as error:
      notes.append(f'{file.name} cannot be read ({error})')
      continue
    if 'num_generations' in found:
      return found
  return {}


def _state(path: pathlib.Path, notes: list[str]) -> dict[str, Any]:
  """Return the newest readable state."""
  for file in _saved(path, _STATE):
    try:
      state = readers.json_file(file)
    except form.FormatError as error:
      notes.append(str(error))
      continue
    if isinstance(state, dict):
      if file.parent != path and (path / _STATE).is_file():
        notes.append(
            f'read {file.parent.name}/{_STATE}: that of the folder itself is'
            ' of an earlier step, or damaged'
        )
      return state
  notes.append(f'no {_STATE}: metrics of steps are not known')
  return {}


def _trained(
    rows: pd.DataFrame, log: pd.DataFrame, notes: list[str]
) -> pd.DataFrame:
  """Drop the rollouts of evaluations, whose files replace those of their step.

  TRL logs completions of an evaluation under the step before it.
  """
  scores = [c for c in log if str(c).startswith(_EVALUATION)]
  if not scores or 'step' not in log or 'step' not in rows:
    return rows
  steps = log.loc[log[scores].notna().any(axis=1), 'step']
  trained = ~rows['step'].isin(steps)
  if trained.all() or not trained.any():
    return rows
  what = numerals.counted(rows.loc[~trained, 'step'].nunique(), 'step')
  notes.append(f'left out {what} with the completions of an evaluation')
  return rows[trained].reset_index(drop=True)


def _once(rows: pd.DataFrame) -> pd.DataFrame:
  """Drop batches that were logged again because of several updates.

  Args:
    rows: Rollouts; their steps are numbers, so that they have an order.
  """
  if not len(rows) or not {'prompt', 'completion', 'step'} <= set(rows):
    return rows
  digest = (
      rows[['prompt', 'completion']].map(form.text_of).agg('\x00'.join, axis=1)
  )
  whole = {
      step: hash(tuple(texts)) for step, texts in digest.groupby(rows['step'])
  }
  kept, before = [], None
  for step, key in whole.items():
    if key != before:
      kept.append(step)
    before = key
  return rows[rows['step'].isin(kept)].reset_index(drop=True)


def _settings(state: Mapping[str, Any], log: pd.DataFrame) -> dict[str, Any]:
  found: dict[str, Any] = {'total_steps': state.get('max_steps') or None}
  if {'completions/max_length', 'completions/clipped_ratio'} <= set(log):
    # The limit is known if completions were cut: in all these steps, the
    # maximum length is the limit. A trainer that does not know the token that
    # ends a completion may count finished ones as cut, at other lengths.
    cut = form.numeric(log['completions/clipped_ratio'])
    length = form.numeric(log['completions/max_length'])
    length = length[cut > 0]
    if len(length) and (length >= _SAME * length.max()).mean() > 0.5:
      found['max_tokens'] = float(length.max())
  return found


def _swift(path: pathlib.Path, notes: list[str]) -> pd.DataFrame:
  """Return the rollouts in completions.jsonl under TRL's names."""
  found = []
  for line in readers.json_lines(path, notes):
    try:
      found.append(pd.DataFrame(line).rename(columns=_SWIFT_NAMES))
    except ValueError:
      notes.append(f'{path.name}: lists of a line differ in length')
  return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def _weights(
    rows: pd.DataFrame, log: pd.DataFrame, means: Mapping[str, str]
) -> dict[str, Any]:
  """Return the weights that reproduce the logged reward exactly, if any.

  If a function returns no reward for some completions, such as those of another
  task, its logged mean is over the others only. In this case, means over all
  completions are used, with 0 for a missing reward.
  """
  if not means or not {'reward', 'step'} <= set(log):
    return {}
  reward = form.numeric(log['reward'])
  logged = log[list(means.values())].apply(form.numeric)
  found = _linear(logged.set_axis(list(means), axis=1), reward)
  if found or not {*means, 'step'} <= set(rows):
    return found
  given = rows[list(means)].apply(form.numeric).fillna(0)
  by_step = given.groupby(form.numeric(rows['step'])).mean()
  table = by_step.reindex(form.numeric(log['step'])).set_axis(log.index)
  return _linear(table, reward)


def _linear(means: pd.DataFrame, reward: pd.Series) -> dict[str, Any]:
  """Return the weights of means by step that add up to the reward, if any."""
  # A part that is always 0 may have any weight.
  means = means.loc[:, (means.fillna(0) != 0).any()]
  parts = list(means)
  table = means.assign(**{_SUM: reward}).dropna()
  if not parts or len(table) < len(parts) + 2:
    return {}
  x, y = table[parts].to_numpy(), table[_SUM].to_numpy()
  weights, _, rank, _ = np.linalg.lstsq(x, y, rcond=None)
  if rank < len(parts) or np.abs(x @ weights - y).max() > 1e-3:
    return {}
  return {
      'weights': {
          name: round(float(weight), 3)
          for name, weight in zip(parts, weights, strict=True)
      }
  }


def _grouped(rows: pd.DataFrame, size: Any) -> pd.DataFrame:
  """Return rollouts with the numbers of their groups.

  The rollouts of a group are adjacent; a prompt may occur in two groups.

  Args:
    rows: Rollouts in the order in which they were logged.
    size: Rollouts of a group; if it is no number, the most common count of
      adjacent rollouts of a prompt, since the log of a group may be incomplete.
  """
  if not len(rows) or not {'prompt', 'step'} <= set(rows):
    return rows
  text = rows['prompt'].map(form.text_of)
  new = (text != text.shift()) | (rows['step'] != rows['step'].shift())
  run = new.cumsum()
  lengths = run.groupby(run).transform('size')
  if not isinstance(size, int) or size < 1:
    size = int(lengths[new].mode()[0])
  # Where groups are incomplete, it is unknown where one of two begins.
  place = (new.groupby(run).cumcount() // size).where(lengths % size == 0, 0)
  return rows.assign(group=run * 10**6 + place)


def _common(
    rows: pd.DataFrame,
    functions: list[str],
    known: Mapping[str, Any],
    columns: Mapping[str, str],
    notes: list[str],
) -> pd.DataFrame:
  """Return rollouts under common names."""
  if not len(rows):
    return rows
  rows = rows.copy()
  weights = known.get('weights') or dict.fromkeys(functions, 1.0)
  if functions and not known.get('weights'):
    notes.append('reward weights are not known: each is taken to be 1')
  if functions:
    rows['reward'] = sum(
        weights.get(name, 1.0)
        * form.numeric(rows[name]).fillna(0)
        for name in functions
    )
  for name in functions:
    rows[form.PART + name] = rows[name]
  taken = dict(columns)
  names.guess_outcome(rows, functions, taken, notes)
  names.guess_texts(rows, taken)
  return readers.renamed(rows, taken)
