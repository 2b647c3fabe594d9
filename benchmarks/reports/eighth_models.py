"""Logs of the eighth list's other faults: engines, staleness, critics.

One function per entry of `eighth_threads.MODELS`.
"""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import writers as w


def never_synced(folder: pathlib.Path, seed: int) -> None:
  steps = 120
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  hard = 1.5 * rng.normal(size=4 * steps)[w.whole(rows)]
  right = rng.random(len(rows)) < 1 / (1 + np.exp(0.7 - hard))
  rows['n_tokens'] = rng.lognormal(5.4, 0.35, len(rows)).round()
  gap = (0.011 + 0.14 * (np.arange(steps) / steps) ** 1.3) * w.noise(
      seed, 0.92, 1.08, steps
  )
  ratio = 'sampling/importance_sampling_ratio/'
  sampler = {
      'sampling/sampling_logp_difference/mean': gap,
      'sampling/sampling_logp_difference/max': 24
      * gap
      * w.noise(seed + 1, 0.7, 1.1, steps),
      ratio + 'min': np.exp(-9 * gap) * w.noise(seed + 2, 0.9, 1, steps),
      ratio + 'mean': 1 - 0.5 * gap * w.noise(seed + 3, 0.8, 1.2, steps),
      ratio + 'max': np.minimum(
          np.exp(9 * gap) * w.noise(seed + 4, 1, 1.1, steps), 3
      ),
  }
  metrics = w.trl_metrics(
      rows,
      {'env_reward': right.astype(float)},
      seed,
      entropy=0.42
      - 0.1 * np.arange(steps) / steps
      + w.wander(seed, steps, 0.01),
      learning_rate=1e-5,
      **sampler,
  )
  w.write_state(folder, metrics)


def router_mismatch(folder: pathlib.Path, seed: int) -> None:
  steps, limit = 110, 8192
  rows = w.frame(steps, 16, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  at = np.arange(steps)
  gone = w.logistic(at, 84, 4)
  hard = 1.5 * rng.normal(size=16 * steps)[w.whole(rows)]
  p = (1 - 0.88 * gone[step]) / (
      1 + np.exp(0.2 - 0.9 * (1 - np.exp(-step / 35)) - hard)
  )
  right = rng.random(len(rows)) < p
  rambles = rng.random(len(rows)) < 0.45 * gone[step]
  length = rng.lognormal(7.5, 0.45, len(rows)).clip(max=limit)
  rows['n_tokens'] = np.where(rambles, limit, length).round()
  rows['truncated'] = (rows['n_tokens'] >= limit).astype(float)
  apart = 0.019 + 0.016 * at / steps + 0.16 * gone
  metrics = w.verl_metrics(
      rows,
      right.astype(float),
      seed,
      **{
          'actor/entropy': (0.29 + 1.1 * gone)
          * w.noise(seed + 1, 0.92, 1.08, steps),
          'actor/grad_norm': (0.11 + 0.12 * at / steps + 7 * gone)
          * w.noise(seed + 2, 0.75, 1.3, steps),
          'actor/pg_clipfrac': (0.002 + 0.02 * gone)
          * w.noise(seed + 3, 0.7, 1.3, steps),
          'actor/ppo_kl': (0.0006 + 0.02 * gone)
          * w.noise(seed + 4, 0.6, 1.4, steps),
          'training/rollout_probs_diff_mean': apart
          * w.noise(seed + 5, 0.93, 1.07, steps),
          'training/rollout_probs_diff_std': 2.4
          * apart
          * w.noise(seed + 6, 0.9, 1.1, steps),
          'training/rollout_probs_diff_max': w.noise(
              seed + 7, 0.93, 1.0, steps
          ),
          'training/rollout_actor_probs_pearson_corr': 0.985
          - 0.01 * at / steps
          - 0.2 * gone,
          'val-core/aime24/acc/mean@32': np.where(
              at % 10 == 9,
              (0.22 + 0.16 * (1 - np.exp(-at / 40))) * (1 - 0.9 * gone)
              + w.noise(seed + 8, -0.01, 0.01, steps),
              np.nan,
          ),
      },
  )
  w.write_export(folder, metrics)


def tokens_again(folder: pathlib.Path, seed: int) -> None:
  steps = 140
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  hard = 1.3 * rng.normal(size=4 * steps)[w.whole(rows)]
  right = rng.random(len(rows)) < 1 / (
      1 + np.exp(0.8 - 1.1 * (1 - np.exp(-step / 60)) - hard)
  )
  rows['n_tokens'] = rng.lognormal(5.0, 0.3, len(rows)).round()
  hit = rng.random(steps) < 0.13
  ratio = 'sampling/importance_sampling_ratio/'
  metrics = w.trl_metrics(
      rows,
      {'answer_reward': right.astype(float)},
      seed,
      entropy=0.37 + w.wander(seed, steps, 0.015),
      learning_rate=1e-6,
      **{
          'sampling/sampling_logp_difference/mean': w.noise(
              seed + 1, 0.011, 0.014, steps
          )
          + hit * rng.uniform(0.004, 0.02, steps),
          'sampling/sampling_logp_difference/max': np.where(
              hit, rng.uniform(11, 24, steps), rng.uniform(0.35, 0.95, steps)
          ),
          ratio + 'min': np.where(
              hit, rng.uniform(0, 1e-4, steps), rng.uniform(0.2, 0.6, steps)
          ),
          ratio + 'mean': np.where(
              hit,
              rng.uniform(0.86, 0.97, steps),
              rng.uniform(0.99, 1.01, steps),
          ),
          ratio + 'max': np.where(
              hit, rng.uniform(2.2, 3, steps), rng.uniform(1.3, 2.1, steps)
          ),
          'tools/call_frequency': 1.3 + w.wander(seed + 2, steps, 0.08),
          'tools/failure_frequency': w.noise(seed + 3, 0.01, 0.05, steps),
      },
  )
  spike = hit * rng.choice([-1, 1], steps) * rng.lognormal(0.2, 0.5, steps)
  metrics['loss'] += spike
  metrics['grad_norm'] *= 1 + 5 * np.abs(spike)
  w.write_state(folder, metrics)


def critic_blind(folder: pathlib.Path, seed: int) -> None:
  steps, limit = 100, 4096
  rows = w.frame(steps, 16, 4)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  at = np.arange(steps)
  hard = 1.6 * rng.normal(size=16 * steps)[w.whole(rows)]
  right = rng.random(len(rows)) < 1 / (1 + np.exp(-0.05 - 0.0012 * step - hard))
  length = rng.lognormal(7.6, 0.5, len(rows))
  rows['truncated'] = (length >= limit).astype(float)
  rows['n_tokens'] = length.clip(max=limit).round()
  score = (right & (length < limit)).astype(float)
  fades = np.exp(-at / 6)
  middle = 0.47 - 0.3 * fades + w.wander(seed, steps, 0.006)
  width = 0.012 + 0.5 * fades
  mean = pd.Series(score).groupby(step).mean().to_numpy()
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'actor/pg_loss': w.noise(seed + 1, -0.01, 0.01, steps),
          'actor/entropy': 0.55
          - 0.04 * at / steps
          + w.wander(seed + 10, steps, 0.01),
          'critic/values/mean': middle,
          'critic/values/max': middle
          + width * w.noise(seed + 2, 0.9, 1.2, steps),
          'critic/values/min': middle
          - width * w.noise(seed + 3, 0.9, 1.2, steps),
          'critic/returns/mean': mean,
          'critic/returns/max': 1.0,
          'critic/returns/min': 0.0,
          'critic/vf_loss': 0.125
          + 0.2 * fades
          + w.noise(seed + 4, -0.006, 0.006, steps),
          'critic/vf_clipfrac': 0.1 * fades,
          'critic/vpred_mean': middle,
          'critic/vf_explained_var': -0.012
          - 0.5 * fades
          + w.noise(seed + 5, -0.02, 0.012, steps),
          'critic/grad_norm': (1.1 + 9 * fades)
          * w.noise(seed + 6, 0.7, 1.3, steps),
          'critic/lr': 1e-5,
          'critic/advantages/mean': w.noise(seed + 7, -1e-6, 1e-6, steps),
          'critic/advantages/max': w.noise(seed + 8, 1.2, 1.9, steps),
          'critic/advantages/min': w.noise(seed + 9, -1.9, -1.2, steps),
      },
  )
  w.write_export(folder, metrics)


def top_p_logprobs(folder: pathlib.Path, seed: int) -> None:
  steps = 100
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  hard = 1.4 * rng.normal(size=4 * steps)[w.whole(rows)]
  right = rng.random(len(rows)) < 1 / (
      1 + np.exp(0.6 - 0.8 * (1 - np.exp(-step / 50)) - hard)
  )
  tags = rng.random(len(rows)) < 0.6 + 0.39 * (1 - np.exp(-step / 12))
  rows['n_tokens'] = rng.lognormal(5.5, 0.3, len(rows)).round()
  apart = 0.074 + w.wander(seed, steps, 0.004)  # For the mean log-prob.
  trained = 0.31 + w.wander(seed + 1, steps, 0.01)
  name = 'rollout_correction/'
  metrics = w.trl_metrics(
      rows,
      {
          'MathAccuracy': right.astype(float),
          'Format': tags.astype(float),
      },
      seed,
      beta=0.001,
      **{
          name + 'kl': apart,
          name + 'k3_kl': apart * w.noise(seed + 2, 0.95, 1.0, steps),
          name + 'training_ppl': np.exp(trained),
          name + 'rollout_ppl': np.exp(trained - apart),
          name + 'training_log_ppl': trained,
          name + 'rollout_log_ppl': trained - apart,
          name + 'log_ppl_diff': apart,
          name + 'log_ppl_abs_diff': apart,
          name + 'ppl_ratio': np.exp(apart),
          name + 'chi2_token': w.noise(seed + 3, -0.09, -0.05, steps),
          name + 'is_weight_mean': np.exp(-apart)
          + w.noise(seed + 4, -0.005, 0.005, steps),
          name + 'ess': 0.962 + w.wander(seed + 5, steps, 0.004),
          name + 'clipped_frac': w.noise(seed + 6, 0, 1e-3, steps),
      },
  )
  w.write_state(folder, metrics.drop(columns='entropy'))


def scaled_logprobs(folder: pathlib.Path, seed: int) -> None:
  steps = 40
  step = np.arange(steps)
  reward = 0.33 + 0.06 * (1 - np.exp(-step / 20)) + w.wander(seed, steps, 0.025)
  ratio = 1.21 + w.wander(seed + 1, steps, 0.012)
  length = 590 + w.wander(seed + 2, steps, 18)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'reward/reward': reward,
              'reward/advantage': w.noise(seed + 3, -1e-3, 1e-3, steps),
              'rollout/sequence_length': length,
              'rollout/completion_length': length - 130,
              'rollout/is_truncated': w.noise(seed + 4, 0.01, 0.05, steps),
              'batch/solve_none': w.noise(seed + 5, 0.2, 0.3, steps),
              'batch/solve_all': w.noise(seed + 6, 0.05, 0.12, steps),
              'batch/effective_batch_size': w.noise(seed + 7, 0.6, 0.72, steps),
              'loss/loss': w.noise(seed + 8, -0.02, 0.02, steps),
              'loss/importance_ratio': ratio,
              'loss/clipped_ratio': 0.19 + w.wander(seed + 9, steps, 0.01),
              'loss/entropy': 0.37
              - 0.001 * step
              + w.wander(seed + 11, steps, 0.01),
              'optim/grad_norm': w.noise(seed + 10, 0.1, 0.3, steps),
              'optim/lr': 1e-6,
          }
      ),
  )


def stale_by_many(folder: pathlib.Path, seed: int) -> None:
  steps = 400
  rows = w.frame(steps, 8, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  at = np.arange(steps)
  moved = np.minimum(at / 256, 1)  # Up to 256 updates are between the two.
  gone = w.logistic(at, 318, 14)
  hard = 1.5 * rng.normal(size=8 * steps)[w.whole(rows)]
  p = (1 - 0.7 * gone[step]) / (
      1 + np.exp(0.5 - 0.6 * (1 - np.exp(-step / 90)) - hard)
  )
  right = rng.random(len(rows)) < p
  rows['n_tokens'] = rng.lognormal(6.7, 0.4, len(rows)).round()
  metrics = w.verl_metrics(
      rows,
      right.astype(float),
      seed,
      **{
          'actor/pg_clipfrac': (0.0008 + 0.022 * moved + 0.06 * gone)
          * w.noise(seed + 1, 0.75, 1.3, steps),
          'actor/pg_clipfrac_lower': (1e-5 + 6e-4 * moved + 0.004 * gone)
          * w.noise(seed + 2, 0.6, 1.4, steps),
          'actor/ppo_kl': (0.0004 + 0.028 * moved + 0.12 * gone)
          * w.noise(seed + 3, 0.7, 1.3, steps),
          'actor/entropy': (0.4 - 0.1 * moved + 0.8 * gone)
          * w.noise(seed + 4, 0.94, 1.06, steps),
          'actor/grad_norm': (0.2 + 0.3 * moved + 3 * gone)
          * w.noise(seed + 5, 0.7, 1.4, steps),
          'val-core/math500/acc/mean@1': np.where(
              at % 25 == 24,
              (0.61 + 0.06 * (1 - np.exp(-at / 90))) * (1 - 0.6 * gone)
              + w.noise(seed + 6, -0.01, 0.01, steps),
              np.nan,
          ),
      },
  )
  w.write_export(folder, metrics)


def stale_negatives(folder: pathlib.Path, seed: int) -> None:
  steps = 160
  step = np.arange(steps)
  rng = np.random.default_rng(seed)
  gone = w.logistic(step, 92, 6)
  reward = (0.35 + 0.17 * (1 - np.exp(-step / 35))) * (1 - 0.93 * gone)
  before = w.logistic(step, 70, 9)  # Ratios explode before the reward falls.
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'reward/mean': (reward + w.wander(seed, steps, 0.018)).clip(0),
              'rollout/response_length': 640
              + 900 * gone
              + w.wander(seed + 1, steps, 20),
              'rollout/staleness_mean': np.minimum(step, 6)
              + w.noise(seed + 2, -0.4, 0.4, steps),
              'rollout/staleness_max': np.minimum(step, 9) + 0.0,
              'policy/loss': rng.normal(0, 0.02 + 0.5 * before, steps),
              'policy/ratio_mean': 1 + before * rng.lognormal(-2.2, 0.7, steps),
              'policy/ratio_max': 2.2
              + rng.uniform(0, 1.5, steps)
              + before * rng.lognormal(4.5, 1.1, steps),
              'policy/ratio_min': 0.2 * (1 - before) + 1e-6,
              'policy/clip_frac': (0.012 + 0.13 * before)
              * w.noise(seed + 3, 0.7, 1.3, steps),
              'policy/approx_kl': (0.004 + 0.5 * before)
              * w.noise(seed + 4, 0.6, 1.4, steps),
              'policy/entropy': (0.36 + 2.6 * gone)
              * w.noise(seed + 5, 0.93, 1.07, steps),
              'policy/grad_norm': (0.25 + 11 * before * (1 - 0.6 * gone))
              * w.noise(seed + 6, 0.6, 1.5, steps),
              'policy/lr': 1e-6,
          }
      ),
  )
