"""Reads a workdir of evojax, of --mode=train or evolve, finished or not."""

from collections.abc import Mapping, Sequence
import functools
import pathlib
from typing import Any

import numpy as np
import pandas as pd

from evojax import config as config_lib
from evojax.diagnosis import calls
from evojax.diagnosis import form
from evojax.diagnosis import readers
from evojax.diagnosis import words
from evojax.evidence import schema
from evojax.evidence import store
from evojax.evidence import turns as turns_lib
from evojax.ledger import history
from evojax.runtime import run_files

_METRICS = {
    'entropy': 'entropy',
    'kl': 'ref_kl',
    'grad_norm': 'grad_norm',
    'descent': 'descent',
    'learning_rate': 'learning_rate',
    'loss': 'loss',
}
# Columns of a domain that replace measures from the texts of turns.
_TURNS = {
    'history': 'read_history',
    'tests_touched': 'tests_touched',
    'submitted': 'submitted',
    'changed': 'files_edited',
}
_TESTS = ('f2p_passed', 'p2p_passed')  # Shares of tests that pass at the end.
_TIMES = ('timeouts', 'tests_passed')  # Numbers of a program's tests.
_CLIPPED = ('clip_low', 'clip_high', 'clip_dual')
_LEFT_OUT = ('tis_masked', 'rejected_tokens')
_SETTINGS = (
    'learning_rate',
    'warmup_steps',
    'temperature',
    'kl_coef',
    'entropy_coef',
    'max_tokens',
    'max_grad_norm',
    'max_turns',
    'turn_tokens',
)
_FIELDS = {name: words.word('evojax', name) for name in _SETTINGS} | {
    'clip_low': 'grpo.clip_low',
    'clip_high': 'grpo.clip_high',
}
_WEIGHTS = 'reward.weights.'


def fits(path: pathlib.Path) -> bool:
  return (path / run_files.MANIFEST).is_file() or (
      path / run_files.EVIDENCE / 'train'
  ).is_dir()


def read(
    path: pathlib.Path, columns: Mapping[str, str], settings: Mapping[str, Any]
) -> form.Run:
  """Read the training of a run, or of the policy under its newest harness."""
  notes: list[str] = []
  folders = _folders(path, notes)
  rollouts, steps = _tables(folders, notes)
  if len(folders) > 1:
    notes.append(f'read {len(folders)} arms that trained the policy, in order')
  rollouts = readers.renamed(rollouts, columns)
  config = _config(path, rollouts)
  known = _settings(config)
  if not (path / run_files.LEDGER).is_file():  # For example, a single arm.
    known['total_steps'] = config.get('steps')
  known |= settings
  return form.make(path, 'evojax', rollouts, steps, known, notes, config)


def read_arms(
    path: pathlib.Path,
    folders: Sequence[pathlib.Path],
    config: Mapping[str, Any],
) -> form.Run:
  """Read the training of arms, each of which continues the one before.

  Args:
    path: The workdir.
    folders: Folders of the arms.
    config: Dotted path -> value, including the harness's values.

  Returns:
    The run; its steps are numbered over all arms.
  """
  notes: list[str] = []
  tables = _tables(folders, notes)
  settings = _settings(config)
  return form.make(path, 'evojax', *tables, settings, notes, config)


def _tables(
    folders: Sequence[pathlib.Path], notes: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
  """Return rollouts and steps of arms, numbered over all arms from 1."""
  rows, metrics, before = [], [], 0
  for folder in folders:
    rollouts = _rollouts(folder, notes)
    steps = _metrics(folder, notes)
    # Evidence counts updates from 0, metrics from 1.
    for table, first, kept in ((rollouts, 1, rows), (steps, 0, metrics)):
      if len(table):
        kept.append(table.assign(step=table['step'] + before + first))
    before = max(
        [before, *(int(t[-1]['step'].max()) for t in (rows, metrics) if t)]
    )
  rollouts = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()
  steps = pd.concat(metrics, ignore_index=True) if metrics else pd.DataFrame()
  return rollouts, steps


def _folders(path: pathlib.Path, notes: list[str]) -> list[pathlib.Path]:
  """Return the folders of the training that led to the policy.

  In a run that evolves, only training under the newest harness counts, since
  faults of former harnesses have been repaired.
  """
  if not (path / run_files.LEDGER).is_file():
    return [path]
  run = history.read(path)
  if not run.versions:  # The first arm is in training.
    return sorted((path / run_files.ARMS).glob('*'))[:1]
  newest = run.versions[-1]
  found = run.trained_under(newest.harness) or [newest.folder]
  former = len(set(run.policy_arms).difference(found))
  if former:
    notes.append(
        f'not read: {former} of the arms that trained the policy, which had a'
        ' former harness; name a folder of arms/ to read one'
    )
  return [path / folder for folder in found if (path / folder).is_dir()]


def _rollouts(folder: pathlib.Path, notes: list[str]) -> pd.DataFrame:
  paths = [
      store.path_of(folder, 'train', step)
      for step in store.list_steps(folder, 'train')
  ]
  wanted = lambda name: (
      name in form.ROLLOUT
      or name.startswith(form.PART)
      or name in ('graded', 'version', 'sampler_trainer_logprob_gap')
      or name in (*turns_lib.COLUMNS, *_TURNS.values())
      or name in ('first_edit_turn', 'finish_reason')
      or name in ('turn_tokens', 'turn_advantages')
      or name in (*_TESTS, *_TIMES)
  )
  table = readers.tables(
      paths, lambda path: readers.parquet_rows(path, wanted), notes
  )
  if 'graded' in table:
    table = table[table['graded'].astype(bool)]
  table = table.rename(columns={'sampler_trainer_logprob_gap': 'gap'})
  if set(_TIMES) <= set(table):
    late = (table['timeouts'] > 0) & (table['tests_passed'] == 0)
    table = table.assign(timed_out=late.astype(float))
  if 'n_turns' not in table or not (table['n_turns'] > 1).any():
    return table
  return _with_turns(table)


def _with_turns(table: pd.DataFrame) -> pd.DataFrame:
  """Return episodes of several turns with measures of their calls."""
  table = table.reset_index(drop=True)
  shown, made = [], []
  for row in table[[c for c in turns_lib.COLUMNS if c in table]].to_dict(
      'records'
  ):
    turns = turns_lib.of(row, {})
    made.append(
        calls.of_turns(
            [t.text for t in turns],
            [t.observation for t in turns],
            [t.ok for t in turns],
        )
    )
    shown.append(
        '\n'.join(
            f'{t.text}\n<tool_response>{t.observation}</tool_response>'
            for t in turns
        )
    )
  found = calls.table(made).drop(columns=['n_turns'], errors='ignore')
  found['completion'] = np.where(shown, shown, table['completion'])
  for name, own in _TURNS.items():
    if own in table:
      found[name] = (table[own] > 0).astype(float)
  if set(_TESTS) <= set(table):
    failing = (table[list(_TESTS)] < 1).any(axis=1)
    found['failing'] = failing.astype(float)
  if 'turn_tokens' in table:
    found['longest_turn'] = [
        max(map(int, tokens), default=0) for tokens in table['turn_tokens']
    ]
  if 'turn_advantages' in table:
    found['turns_credited'] = [
        _credited(values) for values in table['turn_advantages']
    ]
  if 'first_edit_turn' in table:
    found['edited'] = (table['first_edit_turn'] >= 0).astype(float)
  for name, reason in (('out_of_turns', 'turns'), ('out_of_time', 'seconds')):
    if 'finish_reason' in table:
      code = schema.FINISH_REASON[reason]
      found[name] = (table['finish_reason'] == code).astype(float)
  return table.assign(**found)


def _credited(advantages: Any) -> float:
  """Return the share of turns whose advantage is not 0; NaN if all are 0."""
  # A missing list reads as None, or as NaN from a data frame.
  known = advantages if hasattr(advantages, '__len__') else ()
  there = np.abs(np.asarray(known, np.float64)) > 1e-9
  return float(there.mean()) if there.any() else np.nan


def _metrics(folder: pathlib.Path, notes: list[str]) -> pd.DataFrame:
  path = folder / run_files.METRICS
  if not path.is_file():
    return pd.DataFrame()
  table = pd.DataFrame(readers.json_lines(path, notes))
  if 'step' not in table:
    return pd.DataFrame()
  found = pd.DataFrame({'step': table['step']})
  for name, metric in _METRICS.items():
    if metric in table:
      found[name] = table[metric]
  if 'dev/avg_at_k' in table:
    found['eval_outcome'] = table['dev/avg_at_k']
  for name, metrics, total in (
      ('clip', _CLIPPED, functools.partial(pd.DataFrame.sum, min_count=1)),
      # One token may be both.
      ('left_out', _LEFT_OUT, pd.DataFrame.max),
  ):
    logged = [metric for metric in metrics if metric in table]
    if logged:
      numbers = table[logged].apply(form.numeric)
      found[name] = total(numbers, axis=1)
  return found


def _config(path: pathlib.Path, rollouts: pd.DataFrame) -> dict[str, Any]:
  """Return the values of the config, under the newest harness's overlay."""
  values: dict[str, Any] = {}
  if (path / run_files.CONFIG).is_file():
    saved = readers.json_file(path / run_files.CONFIG)
    if isinstance(saved, dict) and isinstance(saved.get('config'), dict):
      values = config_lib.flatten(saved['config'])
  if 'version' in rollouts and len(rollouts):
    # The name of a harness is a hash; anything else must not leave the folder.
    newest = pathlib.PurePath(str(rollouts['version'].iloc[-1])).name
    overlay = path / run_files.HARNESSES / newest / 'overlay.json'
    if overlay.is_file():
      values |= readers.json_file(overlay)
  return values


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
  """Return the values of the settings that checks use."""
  found = {name: config.get(field) for name, field in _FIELDS.items()}
  # Without a limit of its own, training has that of evaluations.
  found['max_tokens'] = found['max_tokens'] or config.get('rollout.max_tokens')
  found['weights'] = {
      name.removeprefix(_WEIGHTS): float(weight)
      for name, weight in config.items()
      if name.startswith(_WEIGHTS)
  }
  return found
