"""Synthetic runs of a policy that learns, with at most one fault."""

from collections.abc import Callable, Mapping
import pathlib
from typing import Any

import numpy as np
import pandas as pd

from evojax.diagnosis import form

LIMIT = 64.0
SETTINGS = {
    'learning_rate': 1e-4,
    'warmup_steps': 0,
    'total_steps': 40,
    'temperature': 1.0,
    'kl_coef': 0.0,
    'max_tokens': LIMIT,
    'max_grad_norm': 1.0,
    'weights': {'correct': 1.0, 'format': 0.2},
}
Rows = pd.DataFrame


def rollouts(
    seed: int = 0,
    steps: int = 40,
    groups: int = 8,
    size: int = 8,
    rise: float = 2.0,
    problems: int = 500,
    start: float = -0.8,
) -> Rows:
  """Return rollouts of a policy whose log-odds of solving rise by `rise`."""
  rng = np.random.default_rng(seed)
  difficulty = rng.normal(0, 1.5, problems)
  shape = steps, groups, size
  step, group, _ = np.indices(shape)
  problem = rng.integers(0, problems, (steps, groups))[..., None] + 0 * step
  logit = start + rise * step / steps - difficulty[problem]
  outcome = rng.random(shape) < 1 / (1 + np.exp(-logit))
  format_ok = outcome | (rng.random(shape) < 0.85)
  # Right answers are longer, so completions grow as the policy learns.
  tokens = np.clip(rng.normal(20 + 8 * outcome, 6), 3, 60).round()
  answer = 100 + problem
  found = np.where(outcome, answer, rng.integers(0, 99, shape))
  flat = {
      'step': step,
      'group': group,
      'outcome': outcome.astype(float),
      'format_ok': format_ok.astype(float),
      'n_tokens': tokens,
      'truncated': (tokens >= LIMIT).astype(float),
      'mean_logprob': rng.normal(-0.5, 0.1, shape),
      'part_correct': outcome.astype(float),
      'part_format': format_ok.astype(float),
  }
  rows = pd.DataFrame({name: x.ravel() for name, x in flat.items()})
  rows['prompt'] = [f'Problem {n}?' for n in problem.ravel()]
  rows['reference'] = [str(n) for n in answer.ravel()]
  words = rng.integers(0, 10**6, step.size)
  rows['completion'] = [
      f'so {w}: <{n}>' for w, n in zip(words, found.ravel(), strict=True)
  ]
  return rows


def metrics(rows: Rows, seed: int = 0, **changed: Any) -> Rows:
  """Return a trainer's log per step; arguments replace columns."""
  rng = np.random.default_rng([seed, 1])
  step = np.unique(rows['step'])
  n = len(step)
  table = {
      'step': step,
      'entropy': 0.5 - 0.2 * step / n + rng.normal(0, 0.02, n),
      'kl': 0.002 * step + rng.uniform(0, 1e-3, n),
      'clip': rng.uniform(0, 0.01, n),
      'grad_norm': rng.uniform(0.5, 2, n),
      'learning_rate': np.full(n, 1e-4),
      'loss': rng.normal(0, 0.01, n),
      'gap': rng.uniform(0, 0.01, n),
  }
  return pd.DataFrame(table | changed)


def run(
    rows: Rows,
    seed: int = 0,
    reward: Callable[[Rows], Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    **changed: Any,
) -> form.Run:
  """Return a run.

  Args:
    rows: Rollouts of the run.
    seed: Seed of the numbers that the trainer logs.
    reward: Reward of the rollouts; by default solved + 0.2 format.
    settings: Settings that differ from the defaults.
    drop: Columns of rollouts that are not logged.
    **changed: Columns of the steps that replace others.
  """
  usual = lambda e: e['part_correct'] + 0.2 * e['part_format']
  rows = rows.assign(reward=(reward or usual)(rows))
  key = [rows['step'], rows['group']]
  by = rows.groupby(key)['reward']
  spread = by.transform('std').fillna(0) + 1e-6
  rows['advantage'] = (rows['reward'] - by.transform('mean')) / spread
  return form.make(
      pathlib.Path('made'),
      'trl',
      rows.drop(columns=list(drop)),
      metrics(rows, seed, **changed),
      {**SETTINGS, **(settings or {})},
  )
