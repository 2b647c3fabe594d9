"""Logs of the sixth list's other faults: losses, optimisers, samplers.

One function per entry of `sixth_threads.MODELS`.
"""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import fourth_models
from benchmarks.reports import logs
from benchmarks.reports import sixth_agents
from benchmarks.reports import third_models
from benchmarks.reports import writers as w


def adapter_unregistered(folder: pathlib.Path, seed: int) -> None:
  rng = np.random.default_rng(seed)
  step = np.arange(w.STEPS)
  # Each start of the job loads the last adapter for sampling.
  level = np.select([step < 24, step < 43], [0.29, 0.44], 0.56)
  drift = np.select([step < 24, step < 43], [step, step - 24], step - 43)
  w.write_export(
      folder,
      sixth_agents.art(
          level + rng.normal(0, 0.025, w.STEPS),
          seed,
          **{
              'loss/entropy': (0.5 - 0.002 * step)
              * w.noise(seed + 8, 0.97, 1.03),
              'loss/grad_norm': (0.2 + 0.004 * drift)
              * w.noise(seed + 9, 0.8, 1.2),
          },
      ),
  )


def trajectory_mean(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, size=1, groups=32, start=-2.0, rise=0)
  reward = fourth_models.mean_outcome(rows)
  advantages = {
      f'critic/{name}/{kind}': 0.0
      for name in ('advantages', 'step_rewards_norm')
      for kind in ('mean', 'max', 'min')
  }
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'critic/score/mean': reward,
              'critic/score/max': 1.0,
              'critic/score/min': 0.0,
              'critic/rewards/mean': reward,
              **advantages,
              'env/rollout/success': reward,
              'env/rollout/num_actions': w.noise(seed, 21, 27),
              'tokens/response_length/mean': w.noise(seed + 1, 8800, 10100),
              'tokens/response_length/max': w.noise(seed + 2, 24e3, 31e3),
              'critic/entropy/mean': w.noise(seed + 3, 0.31, 0.34),
              'actor/pg_loss': 0.0,
              'actor/total_loss': 0.0,
              'actor/approxkl': 0.0,
              'actor/clipfrac': 0.0,
              'actor_train/grad_norm': 0.0,
              'actor/lr': 1e-6,
          }
      ),
  )


def interleaved_groups(folder: pathlib.Path, seed: int) -> None:
  metrics = fourth_models.prime(w.rollouts(seed, start=-0.5, rise=0.7), seed)
  later = ['is_masked/mean', 'mismatch_kl/mean', 'mismatch_kl/max']
  w.write_export(folder, metrics.drop(columns=later))


def never_off_policy(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, groups=4, size=4, start=-0.7, rise=0.9)
  by = rows.groupby('step')
  right = fourth_models.mean_outcome(rows)
  tags = by['format_ok'].mean().to_numpy()
  spread = rows.groupby(['step', w.whole(rows)])['outcome'].std()
  kl = w.rise(1e-4, 0.05, seed + 1, 0.1)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(1, w.STEPS + 1),
              'train/loss': 0.04 * kl + w.noise(seed, -1e-4, 1e-4),
              'train/kl': kl,
              'train/clip_frac': 0.0,
              'train/reward_mean': right + 0.2 * tags,
              'train/reward_std': spread.groupby('step').mean().to_numpy(),
              'train/format_frac': tags,
              'train/correct_frac': right,
              'train/learning_rate': 1e-5,
              'train/epoch': 1,
          }
      ),
  )


def masked_denominator(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.2, rise=0.6)
  rng = np.random.default_rng(seed)
  course = rows['step'].to_numpy() / w.STEPS
  cut = rng.random(len(rows)) < 0.35 + 0.4 * course
  rows['outcome'] = np.where(cut, 0.0, rows['outcome'])
  rows['n_tokens'] = np.where(cut, w.LIMIT, rows['n_tokens'])
  rows['truncated'] = (rows['n_tokens'] >= w.LIMIT).astype(float)
  parts = {'accuracy_reward': logs.boxed(rows)}
  metrics = w.trl_metrics(rows, parts, seed)
  tokens = rows['n_tokens'].where(~cut, 0).groupby(rows['step']).sum()
  share = (tokens / rows.groupby('step')['n_tokens'].sum()).to_numpy()
  metrics['loss'] = share * w.noise(seed + 1, -0.03, 0.03)
  metrics['grad_norm'] *= share
  w.write_state(folder, metrics)


def _policy_alone(metrics: pd.DataFrame) -> pd.DataFrame:
  """Return slime's metrics of a loss that has no other term."""
  return metrics.assign(**{'train/loss': metrics['train/pg_loss']})


def weight_swap(folder: pathlib.Path, seed: int) -> None:
  kl = w.rise(2e-4, 0.03, seed + 11)
  loss = w.noise(seed + 12, -0.01, 0.01)
  w.write_export(
      folder,
      third_models.slime(
          w.rollouts(seed, rise=0.8),
          seed,
          **{
              'train/pg_loss': loss,
              'train/kl_loss': kl,
              'train/loss': loss + 0.001 * kl,
              'train/ppo_kl': w.noise(seed + 13, 1.7e-3, 2.6e-3),
              'train/pg_clipfrac': w.noise(seed + 14, 8e-4, 1.6e-3),
          },
      ),
  )


def old_core(folder: pathlib.Path, seed: int) -> None:
  metrics = third_models.slime(
      w.rollouts(seed, start=-0.9, rise=0.05),
      seed,
      **{
          'train/train_rollout_logprob_abs_diff': w.noise(
              seed + 11, 0.31, 0.38
          ),
          'train/ppo_kl': 0.0,
          'train/pg_clipfrac': 0.0,
          'train/entropy_loss': w.rise(0.62, 0.74, seed + 12),
          'train/grad_norm': w.noise(seed + 13, 0.9, 1.8),
      },
  )
  w.write_export(folder, _policy_alone(metrics))


def token_salad(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.2, rise=0)
  broken = (rows['step'] > 0).to_numpy()  # The first update of the weights.
  rows['outcome'] = np.where(broken, 0.0, rows['outcome'])
  rows['n_tokens'] = np.where(broken, 8192.0, 12 * rows['n_tokens'])
  rows['truncated'] = np.where(broken, 1.0, rows['truncated'])
  after = np.arange(w.STEPS) > 0
  loss = np.where(after, 0.0, w.noise(seed + 11, -0.01, 0.01))
  w.write_export(
      folder,
      third_models.slime(
          rows,
          seed,
          **{
              'train/loss': loss,
              'train/pg_loss': loss,
              'train/pg_clipfrac': 0.0,
              'train/ppo_kl': 0.0,
              'train/grad_norm': np.where(
                  after, 0.0, w.noise(seed + 12, 0.2, 0.5)
              ),
              'train/entropy_loss': np.where(after, 5.1, 0.5)
              * w.noise(seed + 13, 0.95, 1.05),
              'train/train_rollout_logprob_abs_diff': np.where(
                  after, 7.6, 0.012
              )
              * w.noise(seed + 14, 0.95, 1.05),
          },
      ),
  )


def recomputed_anchor(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.3, rise=1.2)
  rng = np.random.default_rng(seed)
  step = np.arange(w.STEPS)
  over = np.maximum(step - 34, 0)
  lost = rng.random(len(rows)) < (1 - np.exp(-over / 14))[rows['step']]
  rows['outcome'] = np.where(lost, 0.0, rows['outcome'])
  metrics = third_models.slime(
      rows,
      seed,
      **{
          'train/ppo_kl': w.noise(seed + 11, -1e-6, 1e-6),
          'train/pg_clipfrac': 0.0,
          'train/train_rollout_logprob_abs_diff': 0.021
          * np.exp(step / 33)
          * w.noise(seed + 12, 0.93, 1.07),
          'train/entropy_loss': (0.5 * np.exp(-step / 28) + 0.03)
          * w.noise(seed + 13, 0.95, 1.05),
          'train/grad_norm': np.exp(
              -1 + 0.045 * over + rng.normal(0, 0.2, w.STEPS)
          ),
          'train/value_loss': 0.05
          + 0.2 * np.exp(-step / 9)
          + 0.002 * over
          + w.noise(seed + 14, 0, 0.01),
          'train/value_clipfrac': w.noise(seed + 15, 0, 0.01),
      },
  )
  w.write_export(folder, _policy_alone(metrics))


def tinker(reward: np.ndarray, seed: int, **changed: object) -> pd.DataFrame:
  """Return what tinker-cookbook logs in each step; arguments replace it."""
  found = {
      'step': np.arange(w.STEPS),
      'progress/batch': np.arange(w.STEPS),
      'env/all/reward/total': reward,
      'env/all/correct': reward,
      'env/all/ac_tokens_per_turn': w.noise(seed + 5, 240, 275),
      'env/all/by_group/frac_mixed': w.noise(seed + 6, 0.4, 0.55),
      'optim/kl_sample_train_v1': w.noise(seed + 7, 5e-4, 1.1e-3),
      'optim/kl_sample_train_v2': w.noise(seed + 8, 6e-4, 1.2e-3),
      'optim/entropy': w.rise(0.34, 0.24, seed + 9),
      'optim/lr': 4e-5,
  }
  return pd.DataFrame(found | changed)


def cold_moments(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  rng = np.random.default_rng(seed)
  since = np.maximum(step - 30, 0)  # The run was resumed at step 30.
  shock = np.where(step >= 30, np.exp(-since / 4), 0.0)
  reward = 0.42 + 0.24 * (1 - np.exp(-step / 22)) - 0.09 * shock
  grown = 1 + 9 * np.roll(shock, 1) * (step > 30)
  w.write_export(
      folder,
      tinker(
          reward + rng.normal(0, 0.012, w.STEPS),
          seed,
          **{
              'optim/kl_sample_train_v1': 8e-4
              * grown
              * w.noise(seed + 1, 0.8, 1.2),
              'optim/kl_sample_train_v2': 9e-4
              * grown
              * w.noise(seed + 2, 0.8, 1.2),
          },
      ),
  )


def tempered_logits(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  rng = np.random.default_rng(seed)
  reward = 0.42 + 0.13 * (1 - np.exp(-step / 30))
  entropy = (0.52 - 0.002 * step) * w.noise(seed + 1, 0.97, 1.03)
  w.write_export(
      folder,
      tinker(
          reward + rng.normal(0, 0.012, w.STEPS),
          seed,
          **{
              'optim/entropy': entropy,
              # KL between a policy and the same one at temperature 0.7.
              'optim/kl_sample_train_v1': 0.17
              * entropy
              * w.noise(seed + 2, 0.95, 1.05),
              'optim/kl_sample_train_v2': 0.42
              * entropy
              * w.noise(seed + 3, 0.95, 1.05),
          },
      ),
  )


def dead_nll(folder: pathlib.Path, seed: int) -> None:
  metrics = third_models.nemo(
      w.rollouts(seed, start=-2.2, rise=1.6),
      seed,
      **{'train/positive_nll_loss': 0.0},
  )
  w.write_export(folder, metrics)


def frozen_critic(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  rng = np.random.default_rng(seed)
  right = 0.115 + 0.02 * np.sin(step / 6) + rng.normal(0, 0.016, w.STEPS)
  value = -0.184 + rng.normal(0, 0.004, w.STEPS)  # Values of untrained weights.
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'accuracy': right.clip(0),
              'mean_return': right.clip(0),
              'mean_value': value,
              'v_loss': (right - value) ** 2
              + right * (1 - right)
              + rng.normal(0, 0.006, w.STEPS),
              'p_loss': rng.normal(0, 0.05, w.STEPS),
              'advantage_mean': right - value,
              'entropy': w.rise(2.29, 2.24, seed, 0.004),
          }
      ),
  )
