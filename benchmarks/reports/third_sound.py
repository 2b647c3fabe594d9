"""Logs of the third list's sound runs: one function per entry of its SOUND."""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import logs
from benchmarks.reports import writers as w


def norm_above_bound(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  score = logs.boxed(rows)
  metrics = w.verl_metrics(
      rows, score, seed, **{'actor/grad_norm': w.noise(seed, 0.8, 2.6)}
  )
  w.write_verl(folder, rows, score, metrics, acc=score)


def mean_zero(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  score = logs.boxed(rows)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'critic/advantages/mean': w.noise(seed, -1e-7, 1e-7),
          'actor/pg_loss': w.noise(seed, -1e-4, 1e-4),
      },
  )
  w.write_verl(folder, rows, score, metrics, acc=score)


def kl_off(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  by = rows.groupby('step')
  events = 20 * by['outcome'].mean().to_numpy()
  form = 5 * by['format_ok'].mean().to_numpy()
  entropy = np.full(w.STEPS, np.nan)
  entropy[0] = 0
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(1, w.STEPS + 1),
              'train/loss': w.noise(seed, -0.28, 0.02),
              'train/reward': events + form,
              'train/reward_std': w.noise(seed, 6, 9),
              'train/completions/mean_length': by['n_tokens'].mean(),
              'train/completions/clipped_ratio': by['truncated'].mean(),
              'train/kl': np.nan,
              'train/entropy': entropy,
              'train/rewards/format_reward/mean': form,
              'train/rewards/format_reward/std': w.noise(seed, 1.5, 2),
              'train/rewards/sorted_events_reward/mean': events,
              'train/rewards/sorted_events_reward/std': w.noise(seed, 7, 9),
          }
      ),
  )


def label_accuracy(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  metrics = w.verl_metrics(rows, logs.boxed(rows), seed)
  small = lambda n: w.noise(seed + n, -0.01, 0.01)
  course = np.arange(w.STEPS) / w.STEPS
  w.write_export(
      folder,
      metrics.assign(
          **{
              'ttrl/majority_ratio': 0.38 + 0.3 * course + small(1),
              'ttrl/label_accuracy': 0.42 + 0.02 * course + small(2),
              'ttrl/reward_accuracy': 0.92 - 0.2 * course + small(3),
              'ttrl/ground_truth_ratio': 0.17 + 0.16 * course + small(4),
              'ttrl/pass@64': 0.62 + 0.05 * course + small(5),
          }
      ),
  )


def characters(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  parts = {'ad_format': logs.boxed(rows)}
  w.write_state(folder, w.trl_metrics(rows, parts, seed, beta=0.04))
  w.write_swift(
      folder,
      rows,
      {
          'prompt': rows['prompt'],
          'completion': rows['completion'],
          **parts,
          'advantages': w.advantages(rows, logs.boxed(rows)),
      },
  )


def kl_once(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  by = rows.groupby('step')
  reward = by['outcome'].mean().to_numpy()
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'train/global_step': np.arange(1, w.STEPS + 1),
              'train/policy_loss': w.noise(seed, -0.01, 0.01),
              'train/actor_lr': 1e-6,
              'train/kl': w.rise(1e-4, 0.04, seed),
              'train/ppo_kl': w.noise(seed, -1e-4, 1e-4),
              'train/ppo_clip_ratio': w.noise(seed, 0, 2e-3),
              'train/reward': reward,
              'train/return': w.noise(seed, -1e-3, 1e-3),
              'train/response_length': by['n_tokens'].mean().to_numpy(),
              'train/total_length': by['n_tokens'].mean().to_numpy() + 90,
              'train/response_clip_ratio': by['truncated'].mean().to_numpy(),
          }
      ),
  )


def token_mean(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': rows['format_ok'],
  }
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04)
  w.write_completions(folder, rows, parts, sum(parts.values()))
  w.write_state(folder, metrics)
