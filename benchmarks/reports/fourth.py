"""Logs of the fourth list's runs with faults in graders and environments.

One function per entry of `fourth_threads.TEXTS`.
"""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import logs
from benchmarks.reports import third_models
from benchmarks.reports import writers as w


def unpaid(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
  """Return what rllm logs, on top of verl, if no rollout is ever paid."""
  zero = np.zeros(len(rows))
  groups = rows.groupby('step')['group'].nunique().to_numpy()
  return w.verl_metrics(
      rows,
      zero,
      seed,
      **{
          'actor/grad_norm': 0.0,
          'actor/pg_loss': 0.0,
          'actor/entropy': w.noise(seed, 0.45, 0.5),
          'batch/solve_none': groups,
          'batch/solve_all': 0,
          'batch/solve_partial': 0,
      },
  )


def no_think_marker(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0).assign(outcome=0.0, truncated=0.0)
  metrics = third_models.slime(
      rows,
      seed,
      **{
          'rollout/zero_std/count_0': 8,
          'rollout/repetition_frac': 0.0,
          'train/loss': 0.0,
          'train/pg_loss': 0.0,
          'train/grad_norm': 0.0,
          'train/entropy_loss': w.noise(seed, 0.45, 0.5),
      },
  )
  w.write_export(folder, metrics)


def dropped_action(folder: pathlib.Path, seed: int) -> None:
  w.write_export(folder, unpaid(w.rollouts(seed, rise=0), seed))


def plural_column(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, size=4, rise=0)
  rng = np.random.default_rng(seed)
  rows['n_tokens'], rows['truncated'] = 80.0, 1.0  # No completion ends.
  characters = rng.normal(205, 22, len(rows))
  parts = {'hackable_reward': np.minimum(characters / 200, 1)}
  w.write_state(folder, w.trl_metrics(rows, parts, seed).head(40))


def empty_matches(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.3, rise=10)
  rows['n_tokens'] *= np.linspace(0.6, 0.7, len(rows))
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': np.ones(len(rows)),
  }
  metrics = w.trl_metrics(
      rows, parts, seed, beta=0.04, kl=w.rise(1e-4, 0.2, seed)
  )
  w.write_state(folder, w.old_names(metrics))


def parser_missing(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  parts = {'correct_answer_reward_func': np.zeros(len(rows))}
  metrics = w.trl_metrics(rows, parts, seed, loss=0.0, grad_norm=0.0)
  # The second function has weight 0, and its values are logged.
  metrics['rewards/format_reward_func/mean'] = w.noise(seed, 0.86, 0.94)
  metrics['rewards/format_reward_func/std'] = w.noise(seed, 0.25, 0.3)
  metrics['entropy'] = w.noise(seed, 0.45, 0.5)
  step = metrics.pop('step')
  w.write_export(folder, metrics.add_prefix('train/').assign(step=step))


def short_failures(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  left = 1 / (1 + np.exp((step - 22) / 3))  # Share of what was before.
  solved = rng.random(len(rows)) < 0.037 + 0.68 * left
  rows['outcome'] = solved.astype(float)
  length = (4 + 190 * left) * rng.uniform(0.7, 1.3, len(rows))
  rows['n_tokens'], rows['truncated'] = length.round().clip(1), 0.0
  shaped = np.where(solved, 1.0, 0.3 * (1 - rows['n_tokens'] / w.LIMIT))
  at = np.arange(w.STEPS)
  accuracy = 0.037 + 0.678 / (1 + np.exp((at - 22) / 3))
  metrics = w.verl_metrics(
      rows,
      shaped,
      seed,
      **{
          'actor/entropy': w.rise(0.3, 0.08, seed),
          'actor/lr': 1e-5,
          'val-core/openai/gsm8k/acc/mean@1': np.where(
              at % 10 == 0, accuracy, np.nan
          ),
      },
  )
  w.write_export(folder, metrics)


def dead_sandbox(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-1.0, rise=0.8)
  rng = np.random.default_rng(seed)
  calls = rng.integers(1, 3, len(rows))
  dead = rng.random(len(rows)) < 0.617
  texts = []
  for i, text in enumerate(rows['completion']):
    a, b = rng.integers(2, 99, 2)
    answer = 'UnknownError' if dead[i] else str(a * b)
    block = f'```python\nprint({a} * {b})\n```\n```output\n{answer}\n```\n'
    texts.append(block * calls[i] + text)
  rows['completion'] = texts
  score = np.where(logs.boxed(rows) > 0.5, 1.0, -1.0)
  w.write_verl(folder, rows, score, w.verl_metrics(rows, score, seed))


def env_crash(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  rng = np.random.default_rng(seed)
  broken = rows['step'].to_numpy() >= 35
  kept = ~broken | (rng.random(len(rows)) < 0.12)
  rows['outcome'] = rows['outcome'] * kept
  after = np.arange(w.STEPS) >= 35
  own = w.noise(seed, 420, 470)
  w.write_export(
      folder,
      third_models.nemo(
          rows,
          seed,
          **{
              'train/mean_gen_tokens_per_sample': own,
              'train/mean_total_tokens_per_sample': own
              + np.where(after, 300, w.noise(seed + 1, 1900, 2300)),
              'train/avg_turns_per_sample': w.noise(seed, 4.6, 5.2),
          },
      ),
  )


def timeouts_fail(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.6, rise=0.8)
  cut = np.random.default_rng(seed).random(len(rows)) < 0.43
  rows['outcome'] = rows['outcome'] * ~cut
  metrics = w.verl_metrics(
      rows,
      logs.boxed(rows),
      seed,
      **{
          'batch/env_done': 1.0,
          'batch/max_turns_exceeded': 0.0,
          'batch/error': 0.0,
          'traj/steps_mean': w.noise(seed, 13, 16),
      },
  )
  w.write_export(folder, metrics)


def first_of_group(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  first = (np.arange(len(rows)) % 8 == 0).astype(float)
  rng = np.random.default_rng(seed)
  rows['n_tokens'] = np.where(
      first, rows['n_tokens'], rng.choice([1.0, w.LIMIT], len(rows))
  )
  parts = {
      'accuracy_reward': logs.boxed(rows) * first,
      'format_reward': rows['format_ok'] * first,
  }
  metrics = w.trl_metrics(
      rows, parts, seed, beta=0.04, kl=w.rise(1e-4, 0.02, seed)
  )
  w.write_state(folder, w.old_names(metrics))


def val_scores(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  score = np.where(logs.boxed(rows) > 0.5, 1.0, -1.0)
  step = np.arange(w.STEPS)
  right = 0.22 + 0.14 * step / w.STEPS + w.noise(seed, -0.01, 0.01)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'val-core/math500/reward/mean@1': np.where(
              step % 10 == 0, 2 * right - 1, np.nan
          )
      },
  )
  w.write_export(folder, metrics)


def second_eos(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  rng = np.random.default_rng(seed)
  known = rng.random(len(rows)) < 0.03  # They end with the token it knows.
  parts = {'accuracy_reward': logs.boxed(rows)}
  lengths = rows['n_tokens'].where(known).groupby(rows['step'])
  metrics = w.trl_metrics(
      rows.assign(truncated=(~known).astype(float)),
      parts,
      seed,
      **{
          f'completions/{kind}_terminated_length': found.fillna(0).to_numpy()
          for kind, found in (
              ('mean', lengths.mean()),
              ('min', lengths.min()),
              ('max', lengths.max()),
          )
      },
  )
  w.write_completions(folder, rows, parts, logs.boxed(rows))
  w.write_state(folder, metrics)
