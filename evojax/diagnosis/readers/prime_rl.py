"""Reads the files of prime-rl's file monitor: episodes and metrics.

rollouts/step_12/train/effective/traces.jsonl holds one episode of verifiers per
line: its task, its group, and a trace per agent with messages, token ids,
log-probs, rewards with their weights, and errors. metrics.jsonl holds a line
per step. Rollouts are logged as `all` and `effective`; only the latter were
trained on. configs/ beside them, or one folder up, holds the settings.
"""

from collections.abc import Mapping
import pathlib
import re
from typing import Any

import numpy as np
import pandas as pd

from evojax.diagnosis import arguments
from evojax.diagnosis import form
from evojax.diagnosis import names
from evojax.diagnosis import readers
from evojax.diagnosis import restarts
from evojax.runtime import numerals

_FILES = 'rollouts/step_*/train/{}/traces.jsonl'
_CONFIGS = 'configs'
_STEP = re.compile(r'step_(\d+)')
# Column -> words in the name of the stop condition of an episode.
_ENDS = {
    'truncated': ('length', 'max_tokens', 'context', 'truncat'),
    'out_of_turns': ('max_turns',),
    'out_of_time': ('timeout',),
}


def _files(path: pathlib.Path) -> list[pathlib.Path]:
  for subset in ('effective', 'all'):
    found = list(path.glob(_FILES.format(subset)))
    if found:
      return sorted(found, key=_step)
  return []


def _step(file: pathlib.Path) -> int:
  return int(_STEP.search(str(file.parent))[1])


def fits(path: pathlib.Path) -> bool:
  return path.is_dir() and bool(_files(path))


def read(
    path: pathlib.Path, columns: Mapping[str, str], settings: Mapping[str, Any]
) -> form.Run:
  """Read the output_dir of an orchestrator."""
  notes: list[str] = []
  turns = [1]  # Per episode.

  def load(file: pathlib.Path) -> pd.DataFrame:
    found, odd = [], 0
    for episode in readers.json_lines(file, notes):
      try:
        found.append({'step': _step(file), **_row(episode)})
        turns.append(len(_sampled(episode)))
      except (AttributeError, IndexError, TypeError, ValueError):
        odd += 1  # A value has another type than verifiers gives it.
    if odd:
      where = f'{file.parts[-4]}/{file.name}'
      what = numerals.counted(odd, 'episode')
      notes.append(f'{where}: left out {what} of an unknown form')
    return pd.DataFrame(found)

  rows = readers.tables(_files(path), load, notes)
  log = [pd.DataFrame()]
  for file in sorted(path.glob('**/metrics.jsonl')):
    log.append(restarts.log(readers.json_lines(file, notes), notes))
  taken = dict(columns)
  if len(rows):
    parts = [c[len(form.PART) :] for c in rows if c.startswith(form.PART)]
    renamed = rows.rename(columns=lambda c: c.removeprefix(form.PART))
    names.guess_outcome(renamed, parts, taken, notes)
    if taken.get('outcome') in parts:
      taken['outcome'] = form.PART + taken['outcome']
    rows = readers.renamed(rows, taken)
  steps = names.common(
      pd.concat(log, ignore_index=True), notes, trainer_known=True
  )
  known = {**_settings(path, notes), **settings}
  if max(turns) > 1 and 'max_tokens' in known:  # Its limit applies to a turn.
    known['turn_tokens'] = known.pop('max_tokens')
  return form.make(path, 'prime-rl', rows, steps, known, notes)


def _settings(path: pathlib.Path, notes: list[str]) -> dict[str, Any]:
  """Return the settings that the run has written; {} if there are none."""
  path = path.resolve()
  for folder in (path, path.parent):
    try:
      configs = arguments.load_prime_rl(folder / _CONFIGS)
      found = arguments.of_prime_rl(configs)
    except (ValueError, OSError) as error:
      notes.append(f'{_CONFIGS}/ cannot be read ({error})')
      continue
    if found:
      return found
  return {}


def _sampled(episode: Mapping[str, Any]) -> list[Mapping[str, Any]]:
  """Return the messages of the policy in the first trace of an episode."""
  traces = episode.get('traces') or [{}]
  return [n for n in traces[0].get('nodes') or () if n.get('sampled')]


def _row(episode: Mapping[str, Any]) -> dict[str, Any]:
  """Return the rollout in the first trace of an episode."""
  data = (episode.get('task') or {}).get('data') or {}
  traces = episode.get('traces') or [{}]
  trace = traces[0]
  nodes = list(trace.get('nodes') or ())
  sampled = _sampled(episode)
  first = nodes.index(sampled[0]) if sampled else len(nodes)
  logprobs = [x for n in sampled for x in n.get('logprobs') or ()]
  credit = [x for n in sampled for x in n.get('advantages') or ()]
  row: dict[str, Any] = {
      'group': (episode.get('group') or {}).get('id')
      or (episode.get('task') or {}).get('key')
      or form.text_of(data.get('prompt')),
      'prompt': form.text_of(data.get('prompt')),
      'completion': [n.get('message') for n in nodes[first:]],
      'error': float(bool(episode.get('errors') or trace.get('errors'))),
  }
  for name in ('answer', 'reference', 'solution'):
    if data.get(name) is not None:
      row['reference'] = form.text_of(data[name])
      break
  if logprobs:
    row['n_tokens'] = float(len(logprobs))
    row['mean_logprob'] = float(np.mean(logprobs))
  if credit:
    row['advantage'] = float(np.mean(credit))
  if trace.get('stop_condition'):
    why = trace['stop_condition']
    for name, words in _ENDS.items():
      row[name] = float(any(word in why for word in words))
  total = 0.0
  for name, reward in (trace.get('rewards') or {}).items():
    if isinstance(reward, Mapping) and reward.get('score') is not None:
      row[form.PART + name] = reward['score']
      total += reward['score'] * reward.get('weight', 1.0)
      row['reward'] = total
  return row
