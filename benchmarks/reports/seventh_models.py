"""Logs of the seventh list's other faults: losses, KL terms, samplers.

One function per entry of `seventh_threads.MODELS`.
"""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import writers as w


def refined_off_policy(folder: pathlib.Path, seed: int) -> None:
  steps, limit = 80, 4096
  rng = np.random.default_rng(seed)
  rows = w.frame(steps, 16, 8)
  step = rows['step'].to_numpy()
  gone = w.logistic(step, 44, 6)
  hard = 1.5 * rng.normal(size=16 * steps)[w.whole(rows)]
  p = (1 / (1 + np.exp(0.35 - 0.012 * step - hard))) * (1 - 0.9 * gone)
  right = rng.random(len(rows)) < p
  length = rng.lognormal(6.6, 0.45, len(rows))
  rambles = rng.random(len(rows)) < 0.7 * gone
  rows['n_tokens'] = np.where(rambles, limit, length.clip(max=limit)).round()
  rows['truncated'] = (rows['n_tokens'] >= limit).astype(float)
  grown = np.exp(np.minimum(np.arange(steps), 64) / 17)
  metrics = w.verl_metrics(
      rows,
      right.astype(float),
      seed,
      **{
          'actor/entropy': (0.24 + 0.055 * (grown - 1))
          * w.noise(seed + 1, 0.94, 1.06, steps),
          'actor/kl_loss': (8e-4 + 0.03 * (grown - 1))
          * w.noise(seed + 2, 0.9, 1.1, steps),
          'actor/kl_coef': 0.001,
          'actor/pg_clipfrac': 4e-4
          * grown**0.5
          * w.noise(seed + 3, 0.7, 1.3, steps),
          'actor/grad_norm': 0.16
          * grown**0.7
          * w.noise(seed + 4, 0.8, 1.25, steps),
      },
  )
  w.write_export(folder, metrics)


def unclipped_gradient(folder: pathlib.Path, seed: int) -> None:
  steps = 132
  rng = np.random.default_rng(seed)
  step = np.arange(1, steps + 1)
  after = step >= 90
  kept = lambda value: np.where(after, 0.0, value)
  names = (
      'r1_accuracy_reward_func',
      'r1_int_reward_func',
      'r1_strict_format_reward_func',
      'r1_soft_format_reward_func',
      'r1_count_xml',
  )
  # A step has one group of 4 completions.
  shares = {
      name: rng.binomial(4, p, steps) / 4
      for name, p in zip(names, (0.22, 0.35, 0.0, 0.0, 0.3), strict=True)
  }
  total = (
      2 * shares[names[0]] + 0.5 * shares[names[1]] + 0.4 * shares[names[4]]
  )
  spread = rng.uniform(0.1, 0.8, steps) * (total > 0)
  kl = np.exp(step / 28) * 2e-3 * rng.lognormal(0, 0.5, steps)
  found = {
      'step': step,
      'train_loss': np.where(
          after, np.nan, 0.1 * kl + rng.normal(0, 0.02, steps)
      ),
      'train_total_rewards_mean': kept(total),
      'train_total_rewards_std': kept(spread),
      'train_grouped_rewards_mean': kept(total),
      'train_grouped_rewards_std': kept(spread),
      'train_kl': np.where(after, np.nan, kl),
      'train_average_generated_tokens': np.where(
          after, rng.uniform(494, 498, steps), rng.uniform(150, 380, steps)
      ),
      'learning_rate': 1e-5,
  }
  for name, share in shares.items():
    found[f'train_{name}_mean'] = kept(share)
    found[f'train_{name}_std'] = kept(np.sqrt(share * (1 - share)))
  w.write_export(folder, pd.DataFrame(found))


def k1_in_loss(folder: pathlib.Path, seed: int) -> None:
  steps = 110
  step = np.arange(steps)
  right = 0.31 + 0.24 * (1 - np.exp(-step / 45)) + w.wander(seed, steps, 0.015)
  kl = 0.02 * np.exp(step / 16).clip(max=600)
  kl = kl + w.noise(seed, -0.01, 0.01, steps)
  beta = 0.03
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step + 1,
              'episode': 3968 * (step + 1),
              'objective/kl': kl,
              'objective/kl2': 0.006 * kl,
              'objective/kl3': 0.005 * kl + 1e-4,
              'objective/scores': 10 * right,
              'objective/scores_mean': 10 * right,
              'objective/reward_std': w.noise(seed + 1, 2.9, 3.5, steps),
              'objective/rlhf_reward': 10 * right - beta * kl,
              'objective/non_score_reward': -beta * kl,
              'objective/verifiable_correct_rate': right,
              'loss/policy_avg': w.noise(seed + 2, -0.01, 0.01, steps),
              'policy/approxkl_avg': w.noise(seed + 3, 1e-4, 9e-4, steps),
              'policy/clipfrac_avg': w.noise(seed + 4, 1e-3, 6e-3, steps),
              'val/ratio': w.noise(seed + 5, 0.999, 1.001, steps),
              'val/ratio_var': w.noise(seed + 6, 0, 1e-5, steps),
              'val/sequence_lengths': 390
              + 1.9 * step
              + w.wander(seed + 7, steps, 11),
              'val/num_stop_token_ids': w.noise(seed + 8, 0.985, 0.998, steps),
              'lr': 5e-7,
          }
      ),
  )


def two_node_zero(folder: pathlib.Path, seed: int) -> None:
  steps = 70
  rng = np.random.default_rng(seed)
  reward = 0.69 + rng.normal(0, 0.035, steps)
  longest = rng.choice([7000, 7100, 8700, 9900, 15001], steps) + 0.0
  metrics = pd.DataFrame(
      {
          'step': np.arange(1, steps + 1),
          'loss': rng.choice([0.0, -0.0], steps),
          'grad_norm': 0.0,
          'learning_rate': np.minimum(3.7e-8 * np.arange(1, steps + 1), 1e-6),
          'reward': reward,
          'reward_std': rng.uniform(0.11, 0.165, steps),
          'frac_reward_zero_std': rng.integers(24, 37, steps) / 64,
          'rewards/PointwiseRMAccuracyORM/mean': reward,
          'rewards/PointwiseRMAccuracyORM/std': rng.uniform(0.35, 0.42, steps),
          'completions/mean_length': rng.uniform(2290, 2460, steps),
          'completions/min_length': rng.integers(840, 1130, steps) + 0.0,
          'completions/max_length': longest,
          'completions/clipped_ratio': rng.integers(52, 74, steps) / 128,
          'kl': 0.0,
          'clip_ratio/low_mean': 0.0,
          'clip_ratio/low_min': 0.0,
          'clip_ratio/high_mean': 0.0,
          'clip_ratio/high_max': 0.0,
          'clip_ratio/region_mean': 0.0,
      }
  )
  w.write_state(folder, metrics)


def kl_of_dead_groups(folder: pathlib.Path, seed: int) -> None:
  steps = 150
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  groups = 4 * steps
  kind = rng.random(groups)
  p = np.select([kind < 0.62, kind < 0.78], [0.998, 0.004], 0.6)
  right = rng.random(len(rows)) < p[w.whole(rows)]
  rows['n_tokens'] = rng.lognormal(5.3, 0.35, len(rows)).round()
  kl = (0.016 + w.wander(seed, steps, 0.003, 0.9)).clip(2e-3)
  metrics = w.trl_metrics(
      rows,
      {'accuracy_reward': right.astype(float)},
      seed,
      beta=0.05,
      kl=kl,
      entropy=0.3 + w.wander(seed + 1, steps, 0.012),
  )
  pull = 1.6 * kl * rng.uniform(0.85, 1.15, steps)
  metrics['grad_norm'] = np.hypot(metrics['grad_norm'], pull)
  w.write_state(folder, metrics)


def slime(reward: np.ndarray, seed: int, **changed: object) -> pd.DataFrame:
  """Return what slime logs in each step; arguments replace columns."""
  n = len(reward)
  loss = w.noise(seed + 1, -0.01, 0.01, n)
  found = {
      'step': np.arange(n),
      'rollout/raw_reward': reward,
      'rollout/rewards': w.noise(seed, -1e-7, 1e-7, n),
      'rollout/returns': w.noise(seed, -1e-7, 1e-7, n),
      'rollout/advantages': w.noise(seed, -1e-7, 1e-7, n),
      'rollout/response_len/mean': 820 + w.wander(seed + 2, n, 25),
      'rollout/truncated_ratio': w.noise(seed + 3, 0.0, 0.02, n),
      'rollout/repetition_frac': 0.0,
      'train/loss': loss,
      'train/pg_loss': loss,
      'train/pg_clipfrac': w.noise(seed + 4, 0, 8e-4, n),
      'train/ppo_kl': w.noise(seed + 5, -1e-4, 1e-4, n),
      'train/entropy_loss': 0.4 + w.wander(seed + 6, n, 0.015),
      'train/grad_norm': w.noise(seed + 7, 0.2, 0.5, n),
      'train/lr-pg_0': 1e-6,
  }
  return pd.DataFrame(found | changed)


def raw_logprobs(folder: pathlib.Path, seed: int) -> None:
  steps = 100
  step = np.arange(steps)
  reward = 0.36 + 0.2 * (1 - np.exp(-step / 40)) + w.wander(seed, steps, 0.02)
  applied = -0.245 + w.wander(seed + 8, steps, 0.008)
  w.write_export(
      folder,
      slime(
          reward,
          seed,
          **{
              'rollout/log_probs': applied,
              # Without the temperature of 0.8.
              'rollout/rollout_log_probs': applied - 0.061,
              'train/train_rollout_logprob_abs_diff': w.noise(
                  seed + 9, 0.083, 0.097, steps
              ),
          },
      ),
  )


def engine_upgrade(folder: pathlib.Path, seed: int) -> None:
  steps = 220
  step = np.arange(steps)
  course = 1 - np.exp(-step / 80)
  reward = 0.38 + 0.1 * course + w.wander(seed, steps, 0.018)
  entropy = 0.42 - 0.16 * course + w.wander(seed + 1, steps, 0.012)
  ratio = 0.944 - 0.03 * course + w.wander(seed + 2, steps, 0.006)
  apart = 0.011 + 0.009 * course
  tokens = 640 + 130 * course + w.wander(seed + 3, steps, 18)
  new = -entropy * 0.92
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'rl/reward': reward,
              'rl/max_reward': 1.0,
              'rl/min_reward': 0.0,
              'rl/advantage': w.noise(seed + 4, -0.01, 0.01, steps),
              'rl/max_advantage': w.noise(seed + 5, 0.8, 0.95, steps),
              'rl/min_advantage': w.noise(seed + 6, -0.95, -0.8, steps),
              'rl/loss': w.noise(seed + 7, -0.02, 0.02, steps),
              'rl/entropy': entropy,
              'rl/old_logprobs': new + np.log(1 / ratio),
              'rl/new_logprobs': new,
              'rl/kl_new_old': apart * w.noise(seed + 8, 0.85, 1.15, steps),
              'rl/ratio_new_old': ratio,
              'rl/clamp_log_ratio_new_old_indicator': (0.06 + 0.05 * course)
              * w.noise(seed + 9, 0.85, 1.15, steps),
              'rl/ess': 0.9 - 0.05 * course + w.wander(seed + 10, steps, 0.01),
              'rl/kl': w.rise(1e-4, 0.02, seed, 0.1, steps),
              'rl/kl_coef': 0.0,
              'stats/grad_norm': w.noise(seed + 11, 0.08, 0.25, steps),
              'stats/lr': 1e-6,
              'stats/lag': np.minimum(step, 8) + 0.0,
              'actor/output_tokens_mean': tokens,
          }
      ),
  )


def kl_coef_ignored(folder: pathlib.Path, seed: int) -> None:
  steps = 90
  step = np.arange(steps)
  reward = 0.41 + 0.21 * (1 - np.exp(-step / 35)) + w.wander(seed, steps, 0.02)
  applied = -0.27 + 5e-4 * step + w.wander(seed + 8, steps, 0.008)
  kl = w.rise(1e-5, 0.11, seed + 9, 0.08, steps)
  w.write_export(
      folder,
      slime(
          reward,
          seed,
          **{
              'rollout/log_probs': applied,
              'rollout/ref_log_probs': applied - kl,
              'rollout/rollout_log_probs': applied
              + w.noise(seed + 10, -0.001, 0.001, steps),
              'rollout/kl': kl,
              'train/train_rollout_logprob_abs_diff': w.noise(
                  seed + 11, 0.011, 0.014, steps
              ),
          },
      ),
  )
