"""Metrics and files as the trainers of the reports write them.

Every log starts from `tests.diagnosis.made.rollouts`, the rollouts of a policy
that learns. TRL logged other names until April 2025, and rollouts as files only
later; logs of older threads have the metrics of that time alone.
"""

from collections.abc import Mapping, Sequence
import json
import pathlib
from typing import Any

import numpy as np
import pandas as pd

from tests.diagnosis import made

STEPS = 60
LIMIT = 256.0
_WORDS = (
    'so we first take the sum of both terms then check each step again and'
    ' multiply by two since half of it was given let us see what is left'
).split()
# TRL's names before version 0.17.
_OLD = {
    'completions/mean_length': 'completion_length',
    'loss': 'loss',
    'grad_norm': 'grad_norm',
    'learning_rate': 'learning_rate',
    'reward': 'reward',
    'reward_std': 'reward_std',
    'kl': 'kl',
    'step': 'step',
}
Parts = Mapping[str, Any]


def rollouts(
    seed: int, size: int = 8, steps: int = STEPS, **options: Any
) -> pd.DataFrame:
  """Return rollouts whose tokens are about 40 to 200.

  Args:
    seed: Seed of all random numbers.
    size: Rollouts of a group.
    steps: Steps of the run.
    **options: See `made.rollouts`.
  """
  rows = made.rollouts(seed, steps, size=size, **options)
  rows['n_tokens'] = (4 * rows['n_tokens']).clip(upper=LIMIT)
  rows['truncated'] = (rows['n_tokens'] >= LIMIT).astype(float)
  number = rows['prompt'].str.extract(r'(\d+)')[0]
  rows['prompt'] = 'What is ' + number + ' plus 100? Box the answer.'
  found = rows['completion'].str.extract(r'<(\d+)>')[0]
  rows['said'] = found  # The answer that it ends with.
  rows['completion'] = completions(rows, seed)
  return rows


def completions(rows: pd.DataFrame, seed: int) -> list[str]:
  """Return texts of about `n_tokens` words that end with what is `said`."""
  return [
      f'{thought(seed, i, tokens)} The answer is \\boxed{{{said}}}.'
      for i, (tokens, said) in enumerate(
          zip(rows['n_tokens'], rows['said'], strict=True)
      )
  ]


def thought(seed: int, row: int, tokens: float) -> str:
  """Return a text of about as many words as tokens."""
  rng = np.random.default_rng([seed, row])
  return ' '.join(rng.choice(_WORDS, max(int(tokens) - 8, 1)))


def whole(rows: pd.DataFrame) -> pd.Series:
  """Return a number per group of the whole run."""
  return rows.groupby(['step', 'group']).ngroup()


def advantages(rows: pd.DataFrame, reward: Any) -> np.ndarray:
  """Return GRPO's advantages of rewards within groups."""
  by = pd.Series(np.asarray(reward, float), rows.index).groupby(whole(rows))
  return (
      (reward - by.transform('mean')) / (by.transform('std') + 1e-4)
  ).fillna(0)


def frame(steps: int, groups: int, size: int) -> pd.DataFrame:
  """Return the steps and groups of a run's rollouts, one row each."""
  number = np.arange(steps * groups * size)
  return pd.DataFrame(
      {
          'step': number // (groups * size),
          'group': number // size % groups,
          'truncated': 0.0,
      }
  )


def logistic(step: np.ndarray, middle: float, width: float) -> np.ndarray:
  """Return a share that goes from 0 to 1 around a step."""
  return 1 / (1 + np.exp(-(step - middle) / width))


def noise(seed: int, low: float, high: float, n: int = STEPS) -> np.ndarray:
  """Return random numbers of a range, one per step."""
  return np.random.default_rng([seed, 7]).uniform(low, high, n)


def rise(
    start: float, end: float, seed: int, spread: float = 0.05, n: int = STEPS
) -> np.ndarray:
  """Return a line with relative noise, one value per step."""
  line = np.linspace(start, end, n)
  return line * (1 + noise(seed, -spread, spread, n))


def wander(seed: int, n: int, scale: float, memory: float = 0.8) -> np.ndarray:
  """Return noise whose values resemble the one before, with mean about 0."""
  steps = np.random.default_rng([seed, 11]).normal(size=n)
  found = np.zeros(n)
  for i in range(1, n):
    found[i] = memory * found[i - 1] + steps[i]
  return scale * np.sqrt(1 - memory**2) * found


def trl_metrics(
    rows: pd.DataFrame,
    parts: Parts,
    seed: int,
    weights: Mapping[str, float] | None = None,
    **changed: Any,
) -> pd.DataFrame:
  """Return what TRL logs in each step.

  Args:
    rows: Rollouts.
    parts: Name of a reward function -> its value for each rollout.
    seed: Seed of what is not computed from the rollouts.
    weights: Name -> weight; 1 by default.
    **changed: Columns that replace others; `beta` adds the KL and its loss.
  """
  weights = weights or {}
  table = rows.assign(
      reward=sum(
          weights.get(n, 1.0) * np.nan_to_num(v) for n, v in parts.items()
      )
  )
  table['advantage'] = advantages(rows, table['reward'])
  table['weighted'] = table['advantage'] * table['n_tokens']
  group = table.groupby(['step', whole(rows)])['reward']
  spread = group.std().fillna(0)
  by = table.groupby('step')
  alive = (spread > 1e-9).groupby('step').mean().to_numpy()
  n = by.ngroups
  found = {
      'step': np.arange(1, n + 1),
      'loss': -(by['weighted'].sum() / by['n_tokens'].sum()).to_numpy(),
      'grad_norm': np.sqrt(alive) * noise(seed, 0.2, 0.5, n),
      'learning_rate': np.linspace(1e-6, 0, n),
      'num_tokens': by['n_tokens'].sum().cumsum().to_numpy(),
      'completions/mean_length': by['n_tokens'].mean().to_numpy(),
      'completions/min_length': by['n_tokens'].min().to_numpy(),
      'completions/max_length': by['n_tokens'].max().to_numpy(),
      'completions/clipped_ratio': by['truncated'].mean().to_numpy(),
      'reward': by['reward'].mean().to_numpy(),
      'reward_std': spread.groupby('step').mean().to_numpy(),
      'frac_reward_zero_std': 1 - alive,
      'entropy': rise(0.5, 0.35, seed, n=n),
      'clip_ratio/low_mean': np.zeros(n),
      'clip_ratio/high_mean': np.zeros(n),
      'clip_ratio/region_mean': np.zeros(n),
  }
  for name, value in parts.items():
    each = pd.Series(np.asarray(value, float), rows.index).groupby(rows['step'])
    found[f'rewards/{name}/mean'] = each.mean().to_numpy()
    found[f'rewards/{name}/std'] = each.std().to_numpy()
  beta = changed.pop('beta', 0.0)
  if beta:
    found['kl'] = changed.pop('kl', rise(1e-4, 0.08, seed, n=n))
    found['loss'] = found['loss'] + beta * found['kl']
  return pd.DataFrame(found | changed)


def old_names(metrics: pd.DataFrame) -> pd.DataFrame:
  """Return the metrics under TRL's names of early 2025."""
  parts = {
      name: name.removesuffix('/mean')
      for name in metrics
      if name.startswith('rewards/') and name.endswith('/mean')
  }
  names = {n: old for n, old in (_OLD | parts).items() if n in metrics}
  return metrics[list(names)].rename(columns=names)


def write_state(folder: pathlib.Path, metrics: pd.DataFrame) -> None:
  """Write trainer_state.json of the last checkpoint."""
  write_history(folder, metrics.to_dict('records'))


def write_history(folder: pathlib.Path, history: Sequence[Parts]) -> None:
  """Write trainer_state.json of the last checkpoint from what was logged."""
  last = int(history[-1]['step'])
  target = folder / f'checkpoint-{last}'
  target.mkdir(parents=True)
  state = {'max_steps': last, 'log_history': history}
  (target / 'trainer_state.json').write_text(json.dumps(state))


def write_completions(
    folder: pathlib.Path, rows: pd.DataFrame, parts: Parts, reward: Any
) -> None:
  """Write the rollouts as TRL does: one Parquet file per step."""
  table = pd.DataFrame(
      {
          'step': rows['step'] + 1,
          'prompt': [[{'role': 'user', 'content': t}] for t in rows['prompt']],
          'completion': [
              [{'role': 'assistant', 'content': t}] for t in rows['completion']
          ],
          **{name: np.asarray(value, float) for name, value in parts.items()},
          'advantage': advantages(rows, reward),
      }
  )
  (folder / 'completions').mkdir(parents=True)
  for step, batch in table.groupby('step'):
    batch.to_parquet(folder / 'completions' / f'completions_{step:05}.parquet')


def write_swift(
    folder: pathlib.Path, rows: pd.DataFrame, columns: Mapping[str, Any]
) -> None:
  """Write completions.jsonl of ms-swift: a line of lists per step."""
  table = pd.DataFrame(
      {'step': (rows['step'] + 1).astype(str), **columns}, rows.index
  )
  lines = [
      json.dumps(batch.to_dict('list'))
      for _, batch in table.groupby(rows['step'])
  ]
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'completions.jsonl').write_text('\n'.join(lines))


def verl_metrics(
    rows: pd.DataFrame, score: Any, seed: int, **changed: Any
) -> pd.DataFrame:
  """Return what verl logs in each step; arguments replace columns."""
  table = rows.assign(score=score, advantage=advantages(rows, score))
  table['weighted'] = table['advantage'] * table['n_tokens']
  by = table.groupby('step')
  mean = (by['weighted'].sum() / by['n_tokens'].sum()).to_numpy()
  n = by.ngroups
  found = {
      'step': np.arange(1, n + 1),
      'actor/entropy': rise(0.5, 0.35, seed, n=n),
      'actor/pg_loss': -mean,
      'actor/pg_clipfrac': noise(seed, 0, 0.002, n),
      'actor/ppo_kl': noise(seed, -1e-4, 1e-4, n),
      'actor/grad_norm': noise(seed, 0.2, 0.5, n),
      'actor/lr': np.full(n, 1e-6),
      'critic/score/mean': by['score'].mean().to_numpy(),
      'critic/rewards/mean': by['score'].mean().to_numpy(),
      'critic/advantages/mean': mean,
      'critic/advantages/max': by['advantage'].max().to_numpy(),
      'critic/advantages/min': by['advantage'].min().to_numpy(),
      'response_length/mean': by['n_tokens'].mean().to_numpy(),
      'response_length/max': by['n_tokens'].max().to_numpy(),
      'response_length/min': by['n_tokens'].min().to_numpy(),
      'response_length/clip_ratio': by['truncated'].mean().to_numpy(),
      'prompt_length/clip_ratio': np.zeros(n),
  }
  return pd.DataFrame(found | changed)


def write_verl(
    folder: pathlib.Path,
    rows: pd.DataFrame,
    score: Any,
    metrics: pd.DataFrame,
    **extra: Any,
) -> None:
  """Write the rollouts and the metrics of verl's file logger."""
  table = pd.DataFrame(
      {
          'input': rows['prompt'],
          'output': rows['completion'],
          'gts': rows['reference'],
          'score': score,
          'step': rows['step'] + 1,
          **extra,
      }
  )
  (folder / 'rollouts').mkdir(parents=True)
  for step, batch in table.groupby('step'):
    _lines(folder / 'rollouts' / f'{step}.jsonl', batch.to_dict('records'))
  logged = [
      {'step': row.pop('step'), 'data': row}
      for row in metrics.to_dict('records')
  ]
  _lines(folder / 'metrics.jsonl', logged)


def write_export(folder: pathlib.Path, metrics: pd.DataFrame) -> None:
  """Write the history of a W&B run as CSV."""
  folder.mkdir(parents=True)
  metrics.rename(columns={'step': '_step'}).to_csv(
      folder / 'history.csv', index=False
  )


def _lines(path: pathlib.Path, values: Sequence[Any]) -> None:
  path.write_text('\n'.join(map(json.dumps, values)))


def write_prime(
    folder: pathlib.Path,
    rows: pd.DataFrame,
    parts: Parts,
    metrics: pd.DataFrame,
) -> None:
  """Write the episodes of single turns as prime-rl does, and the metrics."""
  reward = sum(np.asarray(v, float) for v in parts.values())
  by = pd.Series(reward, rows.index).groupby(whole(rows))
  table = rows.assign(
      number=whole(rows), advantage=reward - by.transform('mean')
  )
  rng = np.random.default_rng(len(rows))
  for step, batch in table.groupby('step'):
    place = folder / 'rollouts' / f'step_{step}' / 'train' / 'effective'
    place.mkdir(parents=True)
    lines = []
    for i, row in batch.iterrows():
      n = int(row['n_tokens'])
      user = {'role': 'user', 'content': row['prompt']}
      said = {'role': 'assistant', 'content': row['completion']}
      trace = {
          'nodes': [
              {'message': user, 'sampled': False},
              {
                  'message': said,
                  'sampled': True,
                  'logprobs': (-rng.exponential(0.35, n)).round(4).tolist(),
                  'advantages': [round(row['advantage'], 4)] * n,
              },
          ],
          'rewards': {
              name: {'score': float(value[i]), 'weight': 1.0}
              for name, value in parts.items()
          },
          'errors': [],
          'stop_condition': 'max_tokens' if row['truncated'] else 'stop',
      }
      data = {'prompt': row['prompt'], 'answer': row['reference']}
      lines.append(
          {
              'task': {'key': str(row['number']), 'data': data},
              'group': {'id': str(row['number'])},
              'traces': [trace],
          }
      )
    _lines(place / 'traces.jsonl', lines)
  _lines(folder / 'metrics.jsonl', metrics.to_dict('records'))


def write_answers(
    folder: pathlib.Path, rows: pd.DataFrame, reward: Any, metrics: pd.DataFrame
) -> None:
  """Write printed answers with their rewards, and a table of the steps."""
  folder.mkdir(parents=True)
  table = rows[['step', 'prompt', 'completion']].assign(
      reward=np.asarray(reward, float).round(4)
  )
  _lines(folder / 'answers.jsonl', table.to_dict('records'))
  metrics.to_csv(folder / 'losses.csv', index=False)
