"""Reads a workdir of evojax: of --mode=train or evolve, finished or not."""

from collections.abc import Mapping
import pathlib
from typing import Any

import pandas as pd

from evojax import config as config_lib
from evojax.diagnosis import form
from evojax.diagnosis import readers
from evojax.evidence import store
from evojax.ledger import history

_METRICS = {
    'entropy': 'entropy',
    'kl': 'ref_kl',
    'grad_norm': 'grad_norm',
    'learning_rate': 'learning_rate',
    'loss': 'loss',
}
_CLIPPED = ('clip_low', 'clip_high', 'clip_dual')
_FIELDS = {
    'learning_rate': 'optim.learning_rate',
    'warmup_steps': 'optim.warmup_steps',
    'temperature': 'rollout.temperature',
    'kl_coef': 'grpo.kl_coef',
    'max_tokens': 'rollout.max_tokens',
    'max_grad_norm': 'optim.max_grad_norm',
    'clip_low': 'grpo.clip_low',
    'clip_high': 'grpo.clip_high',
}
_WEIGHTS = 'reward.weights.'


def fits(path: pathlib.Path) -> bool:
  return (path / 'manifest.json').is_file() or (
      path / 'evidence' / 'train'
  ).is_dir()


def read(
    path: pathlib.Path, columns: Mapping[str, str], settings: Mapping[str, Any]
) -> form.Run:
  """Read the training of a run, or of the policy's arms one after the other."""
  notes: list[str] = []
  found = _folders(path)
  rows, metrics, before = [], [], 0
  for folder in found:
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
  if len(found) > 1:
    notes.append(f'{len(found)} arms that trained the policy, in their order')
  rollouts = readers.renamed(rollouts, columns)
  known = _settings(path, rollouts) | settings
  return form.make(path, 'evojax', rollouts, steps, known, notes)


def _folders(path: pathlib.Path) -> list[pathlib.Path]:
  """Return the folders whose training made the policy."""
  if (path / 'ledger.jsonl').is_file():
    folders = dict.fromkeys(v.folder for v in history.read(path).versions)
    return [path / folder for folder in folders if (path / folder).is_dir()]
  return [path]


def _rollouts(folder: pathlib.Path, notes: list[str]) -> pd.DataFrame:
  paths = [
      store.path_of(folder, 'train', step)
      for step in store.list_steps(folder, 'train')
  ]
  wanted = lambda name: (
      name in form.ROLLOUT
      or name.startswith(form.PART)
      or name in ('graded', 'version', 'sampler_trainer_logprob_gap')
  )
  table = readers.tables(
      paths, lambda path: readers.parquet_rows(path, wanted), notes
  )
  if 'graded' in table:
    table = table[table['graded'].astype(bool)]
  return table.rename(columns={'sampler_trainer_logprob_gap': 'gap'})


def _metrics(folder: pathlib.Path, notes: list[str]) -> pd.DataFrame:
  path = folder / 'metrics.jsonl'
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
  clipped = [name for name in _CLIPPED if name in table]
  if clipped:
    found['clip'] = (
        table[clipped]
        .apply(pd.to_numeric, errors='coerce')
        .sum(axis=1, min_count=1)
    )
  return found


def _settings(path: pathlib.Path, rollouts: pd.DataFrame) -> dict[str, Any]:
  """Return the settings of the config, under the newest harness's overlay."""
  values: dict[str, Any] = {}
  if (path / 'config.json').is_file():
    saved = readers.json_file(path / 'config.json')
    if isinstance(saved, dict) and isinstance(saved.get('config'), dict):
      values = config_lib.flatten(saved['config'])
  if 'version' in rollouts and len(rollouts):
    # A harness's name is a hash: nothing that leads out of the folder.
    newest = pathlib.PurePath(str(rollouts['version'].iloc[-1])).name
    overlay = path / 'harness' / newest / 'overlay.json'
    if overlay.is_file():
      values |= readers.json_file(overlay)
  found = {name: values.get(field) for name, field in _FIELDS.items()}
  if not (path / 'ledger.jsonl').is_file():  # An arm is no whole run.
    found['total_steps'] = values.get('steps')
  found['weights'] = {
      name.removeprefix(_WEIGHTS): float(weight)
      for name, weight in values.items()
      if name.startswith(_WEIGHTS)
  }
  return found
