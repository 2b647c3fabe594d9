"""Logs of the seventh list's sound runs.

One function per entry of `seventh_threads.SOUND`.
"""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import writers as w


def loss_by_length(folder: pathlib.Path, seed: int) -> None:
  steps = 70
  step = np.arange(steps)
  reward = 0.52 + 0.2 * (1 - np.exp(-step / 30)) + w.wander(seed, steps, 0.025)
  length = 240 + 35 * step / steps + w.wander(seed + 1, steps, 12)
  loss = -0.01 + w.wander(seed + 2, steps, 0.045, 0.1)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step + 1,
              'train/loss_avg': loss,
              'train/loss_max': loss + w.noise(seed + 3, 0.02, 0.09, steps),
              'train/kl_loss_avg': w.rise(1e-4, 0.05, seed + 4, 0.1, steps),
              'train/kl_loss_max': w.rise(1e-3, 0.09, seed + 5, 0.1, steps),
              'train/learning_rate': 1e-6,
              'train/grad_norm': w.noise(seed + 6, 0.5, 1.4, steps),
              'train/reward_mean': reward,
              'train/reward_std': np.sqrt(reward * (1 - reward)),
              'train/reward_max': 1.0,
              'train/reward_min': 0.0,
              'rollout/completion_length_mean': length,
              'rollout/completion_length_max': length + 290,
              'rollout/advantage_mean': w.noise(seed + 7, -0.06, 0.06, steps),
              'rollout/advantage_std': w.noise(seed + 8, 0.8, 0.95, steps),
          }
      ),
  )


def accuracy_band(folder: pathlib.Path, seed: int) -> None:
  rows = w.frame(300, 6, 4)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  # A reward between 0 and 1: how well an order of images is met.
  level = 0.745 + 0.045 * (1 - np.exp(-step / 130))
  rows['n_tokens'] = rng.lognormal(4.6, 0.2, len(rows)).round()
  parts = {
      'accuracy_reward': rng.beta(9 * level, 9 * (1 - level)),
      'format_reward': (rng.random(len(rows)) < 0.997).astype(float),
  }
  kl = 0.002 + 0.05 * (1 - np.exp(-np.arange(300) / 90))
  kl = kl * w.noise(seed + 1, 0.92, 1.08, 300)
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04, kl=kl)
  w.write_state(folder, w.old_names(metrics))


def ppo_baseline(folder: pathlib.Path, seed: int) -> None:
  steps = 200
  step = np.arange(steps)
  course = 1 - np.exp(-step / 70)
  reward = -0.7 + 2.0 * course + w.wander(seed, steps, 0.07)
  kl = 0.002 + 0.085 * course + w.wander(seed + 1, steps, 0.003)
  length = 205 + 75 * course + w.wander(seed + 2, steps, 5)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'train/policy_loss': w.noise(seed + 3, -0.05, 0.0, steps),
              'train/critic_loss': 0.05
              + 0.3 * np.exp(-step / 10)
              + w.noise(seed + 4, 0, 0.02, steps),
              'train/values': reward * (1 - np.exp(-step / 8))
              + w.wander(seed + 5, steps, 0.05),
              'train/reward': reward,
              'train/return': reward - 0.01 * kl * length,
              'train/kl': kl,
              'train/response_length': length,
              'train/total_length': length + 182,
              'train/actor_lr': 5e-7 * (1 - step / steps),
              'train/critic_lr': 9e-6 * (1 - step / steps),
          }
      ),
  )


def base_writes_format(folder: pathlib.Path, seed: int) -> None:
  rows = w.frame(260, 3, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  tags = rng.random(len(rows)) < 0.35 + 0.62 * (1 - np.exp(-step / 22))
  right = rng.random(len(rows)) < 0.3 + 0.3 * (1 - np.exp(-step / 80))
  rows['n_tokens'] = rng.lognormal(
      5.55 - 0.1 * (1 - np.exp(-step / 60)), 0.35
  ).round()
  parts = {
      'accuracy_reward': right.astype(float),
      'format_reward': tags.astype(float),
  }
  kl = w.rise(2e-4, 0.06, seed, 0.1, 260)
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04, kl=kl)
  w.write_state(folder, w.old_names(metrics))


def looks_again(folder: pathlib.Path, seed: int) -> None:
  rows = w.frame(180, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  level = 0.45 + 0.33 * (1 - np.exp(-step / 45))
  rows['n_tokens'] = rng.lognormal(4.72, 0.22, len(rows)).round()
  # The overlap of boxes pays if it is above one half.
  met = rng.random(len(rows)) < level
  parts = {
      'accuracy_reward': met.astype(float),
      'format_reward': (
          rng.random(len(rows)) < 0.8 + 0.19 * (1 - np.exp(-step / 10))
      ).astype(float),
  }
  kl = w.rise(2e-4, 0.09, seed, 0.1, 180)
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04, kl=kl)
  w.write_state(folder, w.old_names(metrics))


def passing_kl_spikes(folder: pathlib.Path, seed: int) -> None:
  steps = 150
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  right = rng.random(len(rows)) < 0.4 + 0.25 * (1 - np.exp(-step / 60))
  rows['n_tokens'] = rng.lognormal(5.0, 0.3, len(rows)).round()
  parts = {
      'accuracy_reward': right.astype(float),
      'format_reward': (
          rng.random(len(rows)) < 0.5 + 0.48 * (1 - np.exp(-step / 12))
      ).astype(float),
  }
  kl = w.rise(3e-4, 0.07, seed, 0.1, steps)
  kl[[6, 31, 88]] = (94.0, 11.5, 3.2)  # A single token of a completion.
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04, kl=kl)
  metrics.loc[[6, 31, 88], 'grad_norm'] *= np.array((38.0, 9.0, 4.0))
  w.write_state(folder, w.old_names(metrics))


def second_update(folder: pathlib.Path, seed: int) -> None:
  steps = 112  # Two updates for each batch of rollouts.
  rows = w.frame(steps // 2, 1, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  hard = rng.normal(size=steps // 2)[step]
  share = 1 / (1 + np.exp(0.6 - 0.03 * step - 1.1 * hard))
  # The share of unit tests that a program passes.
  passed = rng.beta(2.5 * share + 0.1, 2.5 * (1 - share) + 0.1).round(2)
  rows['n_tokens'] = rng.lognormal(6.05, 0.3, len(rows)).round()
  fresh = w.trl_metrics(rows, {'code_reward_func': passed}, seed)
  fresh = fresh.to_dict('records')
  history = []
  for i in range(steps):
    again = i % 2
    low = float(rng.uniform(0.008, 0.015)) if again else 0.0
    history.append(
        ({} if again else fresh[i // 2])
        | {
            'step': i + 1,
            'loss': float(rng.normal(-0.02 * again, 0.06)),
            'grad_norm': float(rng.uniform(0.11, 0.155)),
            'learning_rate': 1e-5 * (1 - i / steps),
            'entropy': float(rng.normal(0.39, 0.02)),
            'clip_ratio/low_mean': low,
            'clip_ratio/high_mean': 0.0,
            'clip_ratio/region_mean': low,
        }
    )
  w.write_history(folder, history)


def hits_rise(folder: pathlib.Path, seed: int) -> None:
  steps = 240
  rows = w.frame(steps, 8, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  known = rng.normal(size=8 * steps)[w.whole(rows)]
  p = 1 / (1 + np.exp(3.4 - 0.0012 * step - 1.3 * known))
  hit = rng.random(len(rows)) < p
  # A wrong item costs more, the nearer it is to the top.
  rank = np.arange(len(rows)) % 8
  loss = -1 / np.log2(rank + 2)
  found = pd.Series(hit).groupby(w.whole(rows)).transform('any').to_numpy()
  ranked = np.where(hit, 0.0, loss / 4.0) * found
  rows['n_tokens'] = 4.0
  parts = {'rule_reward': hit.astype(float), 'ndcg_rule_reward': ranked}
  kl = w.rise(1e-4, 0.02, seed, 0.15, steps)
  metrics = w.old_names(w.trl_metrics(rows, parts, seed, beta=0.001, kl=kl))
  course = 1 - np.exp(-np.arange(steps) / 110)
  measured = np.arange(steps) % 20 == 19
  for k, low, gain in ((5, 0.071, 0.016), (10, 0.098, 0.02)):
    for name, scale in (('HR', 1.0), ('NDCG', 0.66)):
      value = scale * (low + gain * course)
      value = value + w.noise(seed + k, -0.0015, 0.0015, steps)
      metrics[f'{name}@{k}'] = np.where(measured, value, np.nan)
  metrics['categorical_diversity'] = 1.0
  metrics['token_diversity'] = 0.31 + w.wander(seed + 1, steps, 0.02)
  history = [
      {name: value for name, value in row.items() if value == value}
      for row in metrics.to_dict('records')
  ]
  w.write_history(folder, history)
