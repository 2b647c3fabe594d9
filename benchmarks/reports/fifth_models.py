"""Logs of the fifth list's other faults: losses, optimisers, samplers.

One function per entry of `fifth_threads.MODELS`.
"""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import fourth_models
from benchmarks.reports import logs
from benchmarks.reports import third_models
from benchmarks.reports import writers as w


def sampling(gap: np.ndarray, seed: int) -> dict[str, np.ndarray]:
  """Return TRL's metrics of the sampler for a mean |log-prob difference|."""
  name = 'sampling/importance_sampling_ratio/'
  return {
      'sampling/sampling_logp_difference/mean': gap,
      'sampling/sampling_logp_difference/max': 30 * gap * w.noise(seed, 0.7, 1),
      name + 'min': np.exp(-9 * gap) * w.noise(seed, 0.9, 1),
      name + 'mean': 1 - 0.4 * gap * w.noise(seed, 0.8, 1.2),
      name + 'max': np.minimum(np.exp(9 * gap) * w.noise(seed, 1, 1.1), 3),
  }


def greedy_after_eval(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.1)
  rng = np.random.default_rng(seed)
  step = np.arange(w.STEPS)
  since = np.maximum(step - 19, 0)  # Evaluation at step 20.
  late = since[rows['step']]
  same = (late > 0) & (rng.random((w.STEPS, 8)) < 0.85)[
      rows['step'], rows['group']
  ]
  head = np.arange(len(rows)) // 8 * 8
  for name in ('outcome', 'n_tokens'):
    rows[name] = np.where(same, rows[name].iloc[head], rows[name])
  lost = (rng.random((w.STEPS, 8)) < 1 - np.exp(-since / 12)[:, None])[
      rows['step'], rows['group']
  ]
  rows['outcome'] = np.where(lost, 0.0, rows['outcome'])
  rows['n_tokens'] = np.where(lost, w.LIMIT, rows['n_tokens'])
  rows['truncated'] = (rows['n_tokens'] >= w.LIMIT).astype(float)
  after = since > 0
  fresh = 0.5 - 0.002 * step
  w.write_export(
      folder,
      w.verl_metrics(
          rows,
          logs.boxed(rows),
          seed,
          **{
              'actor/entropy': np.where(
                  after, 0.06 * np.exp(-since / 20), fresh
              )
              * w.noise(seed, 0.95, 1.05),
              'actor/kl_loss': (2e-4 + 3e-5 * step)
              * np.where(after, 1 + since**1.5, 1)
              * w.noise(seed, 0.9, 1.1),
              'actor/kl_coef': 0.001,
              'val-core/searchR1_nq/acc/mean@1': np.where(
                  (step + 1) % 20 == 0, 0.42 - 0.004 * since, np.nan
              ),
          },
      ),
  )


def merged_drift(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.0)
  step = np.arange(w.STEPS)
  parts = {'accuracy_reward': logs.boxed(rows)}
  # Adapters were merged and taken out 30 times before the restart.
  entropy = 0.44 - 0.001 * step - np.where(step >= 30, 0.085, 0)
  metrics = w.trl_metrics(
      rows,
      parts,
      seed,
      entropy=entropy * w.noise(seed, 0.98, 1.02),
      learning_rate=np.full(w.STEPS, 1e-5),
      **sampling(w.noise(seed, 0.010, 0.013), seed),
  )
  w.write_state(folder, metrics)


def step_advantages(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.9)
  metrics = logs.skyrl(
      rows,
      seed,
      **{
          'generate/avg_num_tokens': w.noise(seed, 620, 700),
          'generate/std_num_tokens': w.noise(seed, 300, 360),
          'policy/raw_grad_norm': w.noise(seed, 0.4, 1.6)
          * np.where(w.noise(seed + 1, 0, 1) > 0.9, 8, 1),
          'policy/policy_entropy': w.rise(0.4, 0.62, seed),
      },
  )
  # One of about six steps has advantages where its mask is 1.
  metrics['loss/avg_raw_advantages_abs'] *= 0.17 * w.noise(seed, 0.9, 1.1)
  w.write_export(folder, metrics)


def inflight_nan(folder: pathlib.Path, seed: int) -> None:
  hit = np.isin(np.arange(w.STEPS), (11, 47))
  holes = lambda low, high: np.where(hit, np.nan, w.noise(seed, low, high))
  w.write_export(
      folder,
      third_models.nemo(
          w.rollouts(seed),
          seed,
          **{
              'train/gen_kl_error': holes(6e-4, 9e-4),
              'train/policy_kl_error': holes(6e-4, 9e-4),
              'train/js_divergence_error': holes(1.5e-4, 2.4e-4),
              'train/token_mult_prob_error': holes(1.008, 1.013),
              'train/max_seq_mult_prob_error': holes(1.03, 1.2),
              'train/approx_entropy': np.where(
                  hit, np.nan, w.rise(0.5, 0.42, seed)
              ),
          },
      ),
  )


def long_warmup(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  step = np.arange(w.STEPS)
  by = rows.groupby('step')
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'actor/train/loss': w.noise(seed, -2e-3, 2e-3),
              'actor/train/learning_rate': 3e-6 * step / 15_000,
              'actor/train/kl': 2e-6 * w.noise(seed + 1, 0.5, 1.5),
              'global/train/rewards/overall': by['outcome'].mean().to_numpy()
              + 0.1 * by['format_ok'].mean().to_numpy(),
              'global/train/rewards/check_answer': by['outcome']
              .mean()
              .to_numpy(),
              'global/train/rewards/match_format': 0.1
              * by['format_ok'].mean().to_numpy(),
              'global/train/completions/mean_length': by['n_tokens']
              .mean()
              .to_numpy(),
              'global/train/completions/max_length': by['n_tokens']
              .max()
              .to_numpy(),
          }
      ),
  )


def aux_per_token(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  rows = w.rollouts(seed, start=0.4, rise=-0.9)
  rng = np.random.default_rng(seed)
  w.write_export(
      folder,
      w.verl_metrics(
          rows,
          logs.boxed(rows),
          seed,
          **{
              'actor/grad_norm': 3168 * np.exp(0.25 * rng.normal(size=60)),
              'actor/entropy': w.rise(0.4, 0.52, seed),
              'val-core/math500/acc/mean@1': np.where(
                  step % 10 == 0,
                  0.71 - 0.0023 * step + w.noise(seed, -0.006, 0.006),
                  np.nan,
              ),
          },
      ),
  )


def two_precisions(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=1.9, rise=0)
  rng = np.random.default_rng(seed)
  wave = 0.02 * np.sin(np.arange(w.STEPS) / 5) - 0.0005 * np.arange(w.STEPS)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'reward': 0.87 + wave + rng.normal(0, 0.02, w.STEPS),
              'kl_ref': w.rise(1e-3, 0.04, seed),
              'approx_kl': w.noise(seed, 4e-4, 9e-4),
              'clipfrac': w.noise(seed, 0.002, 0.01),
              'critic_loss': 0.02 + 0.1 * np.exp(-np.arange(60) / 8),
              'avg_response_len': rows.groupby('step')['n_tokens']
              .mean()
              .to_numpy(),
              'actor_lr': 3e-7,
              'critic_lr': 5e-7,
          }
      ),
  )


def top_p_ratio(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  rows = w.rollouts(seed, start=0.2, rise=0.6)
  rng = np.random.default_rng(seed)
  late = np.maximum(rows['step'].to_numpy() - 32, 0)
  rows['outcome'] *= rng.random(len(rows)) < np.exp(-late / 9)
  over = np.maximum(step - 25, 0)
  w.write_export(
      folder,
      fourth_models.prime(
          rows,
          seed,
          **{
              'mismatch_kl/mean': (0.034 + 0.0006 * step + 4e-4 * over**2)
              * w.noise(seed, 0.92, 1.08),
              'mismatch_kl/max': w.noise(seed, 4, 9),
              'is_masked/mean': (0.012 + 5e-4 * over) * w.noise(seed, 0.9, 1.1),
              'entropy/mean': 0.42 * np.exp(-step / 24) + 0.02,
              'optim/grad_norm': w.noise(seed, 0.1, 0.3) * (1 + 0.06 * over),
          },
      ),
  )


def cache_refit(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  age = step % 17  # A job has time for 17 updates of the weights.
  grown = lambda start, slope: (start + slope * age) * w.noise(seed, 0.97, 1.03)
  w.write_export(
      folder,
      third_models.nemo(
          w.rollouts(seed, rise=0.8),
          seed,
          **{
              'train/token_mult_prob_error': 1 + grown(0.012, 0.006),
              'train/gen_kl_error': grown(9e-4, 7e-4),
              'train/policy_kl_error': grown(9e-4, 6e-4),
              'train/js_divergence_error': grown(2e-4, 1.5e-4),
          },
      ),
  )


def lora_ignored(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  parts = {
      'check_answer': 2 * logs.boxed(rows),
      'match_format_exactly': rows['format_ok'],
  }
  gap = 0.011 + 0.0045 * np.arange(w.STEPS) * w.noise(seed, 0.94, 1.06)
  metrics = w.trl_metrics(
      rows, parts, seed, entropy=w.rise(0.5, 0.47, seed), **sampling(gap, seed)
  )
  w.write_state(folder, metrics)


def local_gradients(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, size=6, rise=0.5)
  by = rows.assign(
      advantage=w.advantages(rows, logs.boxed(rows)) * (1 + 1e-4)
  ).groupby('step')
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'reward': by['outcome'].mean().to_numpy(),
              'kl_ref': w.rise(1e-4, 0.015, seed),
              'advantages_std': by['advantage'].std().to_numpy(),
              'advantages_mean': w.noise(seed, -1e-8, 1e-8),
              'policy_loss': w.noise(seed, -0.01, 0.01),
              'avg_response_len': by['n_tokens'].mean().to_numpy(),
              'learning_rate': 3e-7,
          }
      ),
  )
