"""Logs of the third list's other faults: losses, tokens, samplers.

One function per entry of `third_threads.MODELS`.
"""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import logs
from benchmarks.reports import writers as w


def slime(rows: pd.DataFrame, seed: int, **changed: object) -> pd.DataFrame:
  """Return what slime logs in each step; arguments replace columns."""
  by = rows.groupby('step')
  found = {
      'step': np.arange(w.STEPS),
      'rollout/raw_reward': by['outcome'].mean().to_numpy(),
      'rollout/response_len/mean': by['n_tokens'].mean().to_numpy(),
      'rollout/truncated_ratio': by['truncated'].mean().to_numpy(),
      'train/loss': w.noise(seed, -0.01, 0.01),
      'train/pg_loss': w.noise(seed + 1, -0.01, 0.01),
      'train/pg_clipfrac': w.noise(seed, 0, 1e-3),
      'train/ppo_kl': w.noise(seed, 0, 1e-4),
      'train/entropy_loss': w.rise(0.5, 0.45, seed),
      'train/grad_norm': w.noise(seed, 0.2, 0.5),
      'train/lr-pg_0': 1e-6,
      'train/train_rollout_logprob_abs_diff': w.noise(seed, 0.01, 0.013),
  }
  return pd.DataFrame(found | changed)


def nemo(rows: pd.DataFrame, seed: int, **changed: object) -> pd.DataFrame:
  """Return what NeMo-RL logs in each step; arguments replace columns."""
  by = rows.groupby('step')
  found = {
      'step': np.arange(w.STEPS),
      'train/reward': by['outcome'].mean().to_numpy(),
      'train/loss': w.noise(seed, -0.01, 0.01),
      'train/grad_norm': w.noise(seed, 0.2, 0.5),
      'train/lr': 1e-6,
      'train/mean_gen_tokens_per_sample': by['n_tokens'].mean().to_numpy(),
      'train/advantages/mean': w.noise(seed, -1e-3, 1e-3),
      'train/advantages/max': w.noise(seed, 2.2, 2.6),
      'train/advantages/min': w.noise(seed, -2.6, -2.2),
      'train/token_mult_prob_error': w.noise(seed, 1.008, 1.013),
      'train/probs_ratio': w.noise(seed, 0.999, 1.001),
      'train/approx_entropy': w.rise(0.5, 0.42, seed),
  }
  return pd.DataFrame(found | changed)


def zero_times_nan(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.8)
  step = np.arange(w.STEPS)
  after = step >= 35
  broken = lambda values: np.where(after, np.nan, values)
  metrics = slime(rows, seed)
  metrics['rollout/raw_reward'] *= np.where(after, 0.0, 1.0)
  metrics['rollout/response_len/mean'] = np.where(
      after, w.LIMIT, metrics['rollout/response_len/mean']
  )
  metrics['rollout/truncated_ratio'] = np.where(
      after, 1.0, metrics['rollout/truncated_ratio']
  )
  metrics['train/kl_loss'] = broken(1e-3 * np.exp(step / 6))
  for name in ('loss', 'pg_loss', 'ppo_kl', 'entropy_loss', 'grad_norm'):
    metrics[f'train/{name}'] = broken(metrics[f'train/{name}'])
  w.write_export(folder, metrics)


def advantage_mask(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  score = logs.boxed(rows)
  rng = np.random.default_rng(seed)
  total = rng.normal(0, 0.02, w.STEPS)  # The mean advantage, which is small.
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'actor/pg_loss': -0.8 / total,
          'actor/pg_clipfrac': rng.normal(0, 1e-3, w.STEPS) / total,
          'actor/ppo_kl': rng.normal(0, 1e-4, w.STEPS) / total,
          'actor/grad_norm': 0.3 / np.abs(total),
      },
  )
  w.write_verl(folder, rows, score, metrics, acc=score)


def loo_spike(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=1.2, rise=-0.8)
  rng = np.random.default_rng(seed)
  spike = rng.random(w.STEPS) < 0.12
  low = np.where(spike, -rng.uniform(700, 2100, w.STEPS), -2.4)
  w.write_export(
      folder,
      nemo(
          rows,
          seed,
          **{
              'train/advantages/min': low,
              'train/advantages/mean': low / 2048,
              'train/grad_norm': np.where(
                  spike, w.noise(seed, 20, 60), w.noise(seed, 0.2, 0.5)
              ),
              'train/loss': np.where(spike, -low / 2048, 0.004),
          },
      ),
  )


def loss_scale(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  parts = {'accuracy_reward': logs.boxed(rows)}
  metrics = w.trl_metrics(rows, parts, seed)
  for name in ('loss', 'grad_norm'):
    metrics[name] = 4 * metrics[name]
  w.write_state(folder, metrics)


def tool_tokens_kl(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.5)
  step = np.arange(w.STEPS)
  score = np.where(step < 42, 0.2 + 0.18 * step / 42, 0.38)
  score = score * np.exp(-np.maximum(step - 42, 0) / 5)
  score = score + w.noise(seed, -0.01, 0.01)
  metrics = w.verl_metrics(rows, logs.boxed(rows), seed)
  metrics = metrics.drop(columns='actor/entropy').assign(
      **{
          'critic/kl': -1e-3 * np.exp(step / 6.2),
          'critic/kl_coeff': 0.001,
          'critic/score/mean': score,
          'critic/rewards/mean': score + 1e-6 * np.exp(step / 6.2),
          'actor/entropy_loss': np.where(step < 42, 0.8, 2.4)
          * w.noise(seed, 0.9, 1.1),
          'actor/grad_norm': 0.4 * np.exp(np.maximum(step - 36, 0) / 6),
          'response_length/mean': w.noise(seed, 480, 560),
          'response_length/max': 1200.0,
          'response_length/min': w.noise(seed, 90, 120),
          'env/number_of_actions/mean': w.noise(seed, 1.8, 2.1),
          'env/finish_ratio': w.noise(seed, 0.93, 0.99),
          'env/ratio_of_valid_action': w.noise(seed, 0.9, 0.97),
      }
  )
  w.write_export(folder, metrics)


def tool_tokens_trained(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.8, rise=2.0)
  late = (rows['step'] - 25).clip(lower=0) / 9
  kept = np.random.default_rng(seed).random(len(rows)) < np.exp(-late)
  rows['outcome'] = rows['outcome'] * kept
  parts = {'tests_passed_reward': logs.boxed(rows)}
  step = np.arange(w.STEPS)
  metrics = w.trl_metrics(
      rows,
      parts,
      seed,
      beta=0.01,
      kl=1e-3 * np.exp(step / 9),
      entropy=0.4 + 1.4 * np.maximum(step - 20, 0) / 40,
      grad_norm=w.noise(seed, 0.3, 0.6) * (1 + step / 30),
  )
  w.write_state(folder, metrics)


def base_reference(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.6)
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': rows['format_ok'],
  }
  metrics = w.trl_metrics(
      rows, parts, seed, beta=0.04, kl=w.rise(0.46, 0.52, seed)
  )
  w.write_state(folder, w.old_names(metrics))


def blind_logprobs(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.6, rise=0.5)
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': np.ones(len(rows)),
  }
  metrics = w.trl_metrics(
      rows, parts, seed, beta=0.04, kl=w.rise(1e-4, 0.03, seed)
  )
  w.write_state(folder, w.old_names(metrics))


# The first KLs of the thread's run; a sound run has 5e-4 there.
_KLS = (
    0.000232, 0.00794, 0.00801, 0.00795, 0.00703, 0.00851, 0.00874, 0.00785,
    0.00802, 0.00935, 0.00889, 0.0183, 0.00789, 0.0116, 0.0109, 0.0129, 0.0271,
)  # fmt: skip


def gathered_elsewhere(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  later = 0.03 * np.exp((step[len(_KLS) :] - len(_KLS)) / 7.2)
  early = step < 9
  reward = np.where(early, 0.488, 0.035) * w.noise(seed, 0.93, 1.07)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'train/global_step': step + 1,
              'train/policy_loss': w.noise(seed, -0.02, 0.02),
              'train/actor_lr': 1e-6 * np.minimum((step + 1) / 50, 1),
              'train/kl': np.concatenate([_KLS, later]),
              'train/reward': reward,
              'train/reward_metrics/accuracy_reward': reward,
              'train/return': w.noise(seed, -0.1, 0.1),
              'train/response_length': np.where(early, 310.0, 980.0)
              * w.noise(seed, 0.95, 1.04),
              'train/total_length': np.where(early, 400.0, 1070.0)
              * w.noise(seed, 0.95, 1.04),
          }
      ),
  )


def penalised_sampler(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.9)
  by = rows.groupby('step')
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'reward/mean': by['outcome'].mean().to_numpy(),
              'seq_len/mean': by['n_tokens'].mean().to_numpy(),
              'is_truncated/mean': 0.0,
              'loss/mean': w.noise(seed, -0.01, 0.01),
              'entropy/mean': w.rise(0.4, 0.36, seed),
              'mismatch_kl/mean': w.noise(seed, 0.085, 0.1),
              'optim/grad_norm': w.noise(seed, 0.1, 0.3),
              'optim/lr': 1e-6,
          }
      ),
  )


def zero_filled(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.8)
  rng = np.random.default_rng(seed)
  # One token of 20,000 with a ratio of up to exp(10.8) = 4.9e4.
  missing = rng.random(w.STEPS) < 0.2
  spike = rng.uniform(2e3, 4.9e4, w.STEPS) / 2e4
  error = 1.01 + np.where(missing, spike, 0)
  error *= w.noise(seed, 0.999, 1.001)
  w.write_export(
      folder, nemo(rows, seed, **{'train/token_mult_prob_error': error})
  )


def vision_unloaded(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-2.9, rise=0)
  w.write_export(
      folder,
      slime(
          rows,
          seed,
          **{
              'train/train_rollout_logprob_abs_diff': w.noise(seed, 0.33, 0.4),
              'train/ppo_kl': w.noise(seed, 0, 1e-3),
          },
      ),
  )


def frozen_rollouts(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  reward = w.rise(0.81, 0.80, seed, 0.004)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'critic/pickscore_raw/mean': reward,
              'critic/score/mean': reward,
              'critic/rewards/mean': reward,
              'critic/advantages/mean': w.noise(seed, -0.01, 0.01),
              'critic/advantages/max': w.noise(seed, 2.2, 2.8),
              'critic/advantages/min': w.noise(seed, -2.8, -2.2),
              'actor/pg_loss': w.noise(seed, -0.01, 0.01),
              'actor/pg_clipfrac': 0.23 + 0.23 * np.minimum(step / 35, 1),
              'actor/ppo_kl': 1e-6 * np.exp(step / 5.2),
              'actor/grad_norm': 2e-4 * np.exp(step / 6.5),
              'actor/lr': 1e-4,
          }
      ),
  )


def broken_generation(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, groups=1, start=0.0, rise=0)
  first = (rows['step'] == 0).to_numpy()
  rows['n_tokens'] = np.where(first, rows['n_tokens'], 200.0)
  right = np.where(first, logs.boxed(rows), 0.0)
  form = np.where(first, rows['format_ok'], 0.0)
  parts = {
      'xmlcount_reward_func': np.where(first, 0.25 * form, 0.0),
      'soft_format_reward_func': np.zeros(len(rows)),
      'strict_format_reward_func': np.zeros(len(rows)),
      'int_reward_func': 0.5 * right,
      'correctness_reward_func': 2.0 * right,
  }
  metrics = w.trl_metrics(
      rows, parts, seed, beta=0.04, kl=w.noise(seed, 0.8, 2.0)
  )
  metrics.loc[0, 'kl'] = 0.0
  w.write_state(folder, w.old_names(metrics))
