"""Logs of the fourth list's other faults: losses, optimisers, samplers.

One function per entry of `fourth_threads.MODELS`.
"""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import logs
from benchmarks.reports import third_models
from benchmarks.reports import writers as w


def mean_outcome(rows: pd.DataFrame) -> np.ndarray:
  """Return the share of right answers, one value per step."""
  return rows.groupby('step')['outcome'].mean().to_numpy()


def areal(rows: pd.DataFrame, seed: int, **changed: object) -> pd.DataFrame:
  """Return what AReaL logs in each step; arguments replace columns."""
  by = rows.groupby('step')
  update = 'ppo_actor/update/'
  found = {
      'step': np.arange(w.STEPS),
      'ppo_actor/task_reward/avg': mean_outcome(rows),
      'ppo_actor/seq_len/avg': by['n_tokens'].mean().to_numpy() + 90,
      'ppo_actor/no_eos_ratios/avg': by['truncated'].mean().to_numpy(),
      update + 'actor_loss/avg': w.noise(seed, -0.01, 0.01),
      update + 'approx_kl/avg': w.noise(seed, 0.003, 0.006),
      update + 'clip_ratio/avg': w.noise(seed, 0.002, 0.006),
      update + 'importance_weight/avg': w.noise(seed, 0.999, 1.001),
      update + 'entropy/avg': w.rise(0.35, 0.25, seed),
      update + 'grad_norm': w.noise(seed, 0.2, 0.5),
      update + 'lr': 6e-6,
  }
  return pd.DataFrame(found | changed)


def first_baseline(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=1.6)
  first = rows.groupby(w.whole(rows))['outcome'].transform('first')
  advantage = (rows['outcome'] - first).groupby(rows['step'])
  by = rows.groupby('step')
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'rl/reward': mean_outcome(rows),
              'rl/advantage': advantage.mean().to_numpy(),
              'rl/max_advantage': advantage.max().to_numpy(),
              'rl/min_advantage': advantage.min().to_numpy(),
              'rl/loss': -advantage.mean().to_numpy(),
              'rl/entropy': w.rise(0.4, 0.3, seed),
              'rl/kl_new_old': w.noise(seed, 1e-4, 4e-4),
              'rl/ratio_new_old': w.noise(seed, 0.998, 1.002),
              'stats/grad_norm': w.noise(seed, 0.1, 0.3),
              'stats/lr': 1e-6,
              'actor/output_tokens_mean': by['n_tokens'].mean().to_numpy(),
          }
      ),
  )


def forced_end(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=1.2)
  step = np.arange(w.STEPS)
  after = step >= 52
  spiky = (step > 30) & (np.random.default_rng(seed).random(w.STEPS) < 0.25)
  lost = lambda value: np.where(after, np.nan, value)
  end = lambda value, last: np.where(after, last, value)
  answer = mean_outcome(rows)
  kl = 1e-3 * np.exp(step / 14)
  metrics = w.verl_metrics(rows, logs.boxed(rows), seed)
  metrics = metrics.drop(columns='actor/entropy').assign(
      **{
          'actor/entropy_loss': lost(w.rise(0.6, 0.3, seed)),
          'actor/kl_loss': lost(kl * np.where(spiky, 6, 1)),
          'actor/kl_coef': 0.001,
          'actor/pg_loss': lost(metrics['actor/pg_loss']),
          'actor/pg_clipfrac': end(w.noise(seed, 0.001, 0.004), 0.0),
          'actor/ppo_kl': lost(w.noise(seed, 0, 1e-3)),
          'actor/grad_norm': lost(
              w.noise(seed, 0.3, 0.6) * np.where(spiky, 25, 1)
          ),
          'critic/answer_score/mean': end(answer, 0.0),
          'critic/format_score/mean': end(w.rise(0.6, 0.9, seed), 0.0),
          'critic/score/mean': end(answer, -1.0),
          'critic/rewards/mean': end(answer, -1.0),
          'turns/mean': end(w.noise(seed, 1.9, 2.3), 0.0),
          'response_length/mean': end(w.noise(seed, 520, 600), 257.0),
          'response_length/max': end(w.noise(seed, 1400, 1800), 257.0),
          'response_length/min': end(w.noise(seed, 120, 160), 257.0),
          'response_length/clip_ratio': end(0.01, 1.0),
          **{
              f'critic/advantages/{kind}': end(
                  metrics[f'critic/advantages/{kind}'], 0.0
              )
              for kind in ('mean', 'max', 'min')
          },
      }
  )
  w.write_export(folder, metrics)


def prime(rows: pd.DataFrame, seed: int, **changed: object) -> pd.DataFrame:
  """Return what prime-rl logs in each step; arguments replace columns."""
  by = rows.groupby('step')
  found = {
      'step': np.arange(w.STEPS),
      'reward/mean': mean_outcome(rows),
      'seq_len/mean': by['n_tokens'].mean().to_numpy(),
      'is_truncated/mean': by['truncated'].mean().to_numpy(),
      'loss/mean': w.noise(seed, -0.01, 0.01),
      'entropy/mean': w.rise(0.4, 0.33, seed),
      'mismatch_kl/mean': w.noise(seed, 0.002, 0.004),
      'mismatch_kl/max': w.noise(seed, 2, 6),
      'is_masked/mean': w.noise(seed, 0.001, 0.003),
      'optim/grad_norm': w.noise(seed, 0.1, 0.3),
      'optim/lr': 1e-5,
  }
  return pd.DataFrame(found | changed)


def stale_infinite(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  after = np.arange(w.STEPS) >= 25
  late = (rows['step'] >= 26).to_numpy()  # Generated with broken weights.
  rows['outcome'] = np.where(late, 0.0, rows['outcome'])
  rows['n_tokens'] = np.where(late, w.LIMIT, rows['n_tokens'])
  rows['truncated'] = np.where(late, 1.0, rows['truncated'])
  metrics = prime(rows, seed)
  for name in metrics:
    if name.startswith(('loss', 'entropy', 'mismatch', 'optim/grad')):
      metrics[name] = np.where(after, np.nan, metrics[name])
  w.write_export(folder, metrics)


def masked_nan(folder: pathlib.Path, seed: int) -> None:
  hit = np.random.default_rng(seed).random(w.STEPS) < 0.08
  hit[17] = True
  kl = w.rise(1e-4, 0.03, seed)
  w.write_export(
      folder,
      logs.skyrl(
          w.rollouts(seed),
          seed,
          **{
              'policy/policy_kl': np.where(hit, np.nan, kl),
              'policy/final_loss': np.where(
                  hit, np.nan, w.noise(seed, -0.01, 0.01)
              ),
              'policy/raw_grad_norm': w.noise(seed, 1.1, 1.9),
          },
      ),
  )


def moved_reference(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  since = np.where(step < 30, step, step - 30)
  penalty = (2e-5 + 6e-4 * since) * w.noise(seed, 0.93, 1.07)
  w.write_export(
      folder,
      third_models.nemo(
          w.rollouts(seed), seed, **{'train/kl_penalty': penalty}
      ),
  )


def zero_gradient(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, groups=4, size=4, rise=0)
  table = rows.assign(advantage=w.advantages(rows, logs.boxed(rows)))
  by = table.groupby('step')
  spread = rows.groupby(['step', 'group'])['outcome'].std()
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS) + 1,
              'train_loss': -by['advantage'].mean().to_numpy()
              + w.noise(seed, -0.02, 0.02),
              'train_total_rewards_mean': mean_outcome(rows),
              'train_total_rewards_std': by['outcome'].std().to_numpy(),
              'train_grouped_rewards_mean': mean_outcome(rows),
              'train_grouped_rewards_std': spread.groupby('step')
              .mean()
              .to_numpy(),
              'train_kl': 0.0,
              'train_average_generated_tokens': by['n_tokens']
              .mean()
              .to_numpy(),
              'learning_rate': 1e-5,
          }
      ),
  )


def master_rate(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  rows = w.rollouts(seed, rise=0)
  divergence = 0.208 * np.exp(
      0.5 * np.random.default_rng(seed).normal(size=w.STEPS) - 0.125
  )
  update = 'ppo_actor/update/'
  reward = 0.73 - 0.18 * np.exp(-step / 2) + w.noise(seed, -0.04, 0.04)
  w.write_export(
      folder,
      areal(
          rows,
          seed,
          **{
              'ppo_actor/task_reward/avg': reward,
              update + 'approx_kl/avg': divergence,
              update + 'clip_ratio/avg': 0.3 * divergence,
              update + 'grad_norm': w.noise(seed, 0.8, 2.5),
              update + 'lr': 1.7e-5,
          },
      ),
  )


def unclipped_stale(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  grown = np.exp(np.log(30) * np.minimum(step / 45, 1))
  fall = np.maximum(step - 30, 0) / 30
  reward = 0.7 + 0.22 * (1 - np.exp(-step / 8)) - 0.5 * fall**2
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'progress/batch': step,
              'env/all/reward/total': reward + w.noise(seed, -0.02, 0.02),
              'env/all/ac_tokens_per_turn': w.noise(seed, 190, 220),
              'env/all/by_group/frac_all_good': w.rise(0.3, 0.5, seed),
              'env/all/by_group/frac_mixed': w.rise(0.6, 0.4, seed),
              'optim/kl_sample_train_v1': 8e-4
              * grown
              * w.noise(seed, 0.85, 1.15),
              'optim/kl_sample_train_v2': 9e-4
              * grown
              * w.noise(seed + 1, 0.85, 1.15),
              'optim/entropy': 0.3 * np.exp(-step / 16) + 0.015,
              'optim/lr': 4e-5,
              'async/staleness_mean': np.minimum(step, 2.49),
              'test/env/all/reward/total': np.where(
                  step % 10 == 0, reward, np.nan
              ),
          }
      ),
  )


def staleness_restart(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  over = np.maximum(step - 25, 0)
  age = 1.8 + 0.3 * over + w.noise(seed, -0.1, 0.1)
  update = 'ppo_actor/update/'
  w.write_export(
      folder,
      areal(
          w.rollouts(seed, rise=1.2),
          seed,
          **{
              update + 'version_stats/sample_staleness_avg': age,
              update + 'version_stats/sample_staleness_max': np.ceil(age) + 1,
              update + 'behave_kl/avg': 0.002 * age * w.noise(seed, 0.9, 1.1),
              update + 'behave_imp_weight/avg': w.noise(seed, 0.99, 1.01),
          },
      ),
  )


def wrong_prompts(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  late = np.maximum(step - 48, 0)
  rows = w.rollouts(seed, rise=1.0)
  kept = np.random.default_rng(seed).random(len(rows)) < np.exp(
      -late[rows['step']] / 3
  )
  rows['outcome'] = rows['outcome'] * kept
  gap = 0.02 + 0.0012 * step + 0.03 * late
  by = rows.groupby('step')
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'scores': 10 * mean_outcome(rows),
              'objective/verifiable_reward': 10 * mean_outcome(rows),
              'objective/verifiable_correct_rate': mean_outcome(rows),
              'loss/policy_avg': w.noise(seed, -0.01, 0.01),
              'policy/clipfrac_avg': w.noise(seed, 0, 1e-3),
              'val/ratio': w.noise(seed, 0.999, 1.001),
              'val/sequence_lengths': by['n_tokens'].mean().to_numpy()
              * (1 + 0.15 * late),
              'val/stop_rate': 1 - 0.04 * late,
              'debug/vllm_vs_local_logprob_diff_mean': gap
              * w.noise(seed, 0.95, 1.05),
              'debug/vllm_vs_local_logprob_diff_max': 14
              * w.noise(seed, 0.8, 1.2),
              'debug/vllm_local_reverse_kl': 0.1 * gap,
              'optim/grad_norm': w.noise(seed, 0.1, 0.2) * (1 + 0.3 * late),
              'lr': 1e-6,
          }
      ),
  )


def stale_tasks(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  rows = w.rollouts(seed, start=0.4, rise=0.2)
  left = np.exp(-np.maximum(rows['step'] - 6, 0) / 7)
  rows['outcome'] *= np.random.default_rng(seed).random(len(rows)) < left
  gap = np.where(step == 0, 0.012, 0.25 + 0.02 * step)
  w.write_export(
      folder,
      logs.skyrl(
          rows,
          seed,
          **{
              'policy/rollout_train_logprobs_abs_diff_mean': gap
              * w.noise(seed, 0.8, 1.2),
              'policy/ppo_clip_ratio': w.noise(seed, 0.02, 0.08),
              'policy/policy_entropy': 0.4 + 0.05 * step,
              'policy/raw_grad_norm': w.noise(seed, 6, 60),
          },
      ),
  )


# Pieces of the vocabulary, as in the thread's broken completions.
_PIECES = (
    'движ база önceki 下载 れる ทั้ง الكلمة _REFER gyors اپنے 해서 ifier ýhton'
    ' kombin přes 鉴 Trên עברית पर yazı [],\n );\n ΤοTo ssid'
).split(' ')


def garbled_wake(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, size=4, start=0.2, rise=0)
  rng = np.random.default_rng(seed)
  broken = (rows['step'] > 0) & (rng.random(len(rows)) < 0.62)
  rows['outcome'] = np.where(broken, 0.0, rows['outcome'])
  rows.loc[broken, 'completion'] = [
      ' '.join(rng.choice(_PIECES, int(n)))
      for n in rows.loc[broken, 'n_tokens']
  ]
  score = logs.boxed(rows)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'actor/entropy': np.where(np.arange(w.STEPS) < 1, 0.45, 3.1)
          * w.noise(seed, 0.95, 1.05),
          'actor/grad_norm': np.where(np.arange(w.STEPS) < 1, 0.3, 2.5)
          * w.noise(seed, 0.8, 1.2),
      },
  )
  w.write_verl(folder, rows, score, metrics)


def fused_kernels(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  rng = np.random.default_rng(seed)
  grown = np.exp(step / 5 + 0.8 * rng.normal(size=w.STEPS))
  w.write_export(
      folder,
      third_models.nemo(
          w.rollouts(seed, start=0.0, rise=0.5),
          seed,
          **{
              'train/token_mult_prob_error': 1.012 + 0.03 * grown,
              'train/grad_norm': w.noise(seed, 0.2, 0.5) * (1 + step / 30),
          },
      ),
  )


def colliding_ids(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  rows = w.rollouts(seed, start=0.0, rise=0.3)
  rng = np.random.default_rng(seed)
  late = np.maximum(rows['step'].to_numpy() - 18, 0)
  lost = rng.random(len(rows)) > np.exp(-late / 6)
  rows['outcome'] = np.where(lost, 0.0, rows['outcome'])
  rows['n_tokens'] = np.where(lost, w.LIMIT, rows['n_tokens'])
  rows['truncated'] = (rows['n_tokens'] >= w.LIMIT).astype(float)
  solved = rows.groupby(['step', 'group'])['outcome'].mean()
  share = lambda found: found.groupby('step').sum().to_numpy()
  after = np.maximum(step - 16, 0)
  metrics = w.verl_metrics(
      rows,
      logs.boxed(rows),
      seed,
      **{
          'actor/entropy': (0.4 + 0.22 * after) * w.noise(seed, 0.95, 1.05),
          'actor/grad_norm': w.noise(seed, 0.3, 0.5) * (1 + 0.15 * after),
          'batch/solve_none': share(solved == 0),
          'batch/solve_all': share(solved == 1),
          'batch/solve_partial': share((solved > 0) & (solved < 1)),
      },
  )
  w.write_export(folder, metrics)


def length_bias(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.4, rise=1.2)
  course = rows['step'].to_numpy() / w.STEPS
  rows['n_tokens'] *= 1 - 0.68 / (1 + np.exp(-10 * (course - 0.45)))
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': np.maximum(rows['format_ok'], course > 0.4),
  }
  metrics = w.trl_metrics(
      rows, parts, seed, beta=0.04, kl=w.rise(1e-4, 0.15, seed)
  )
  w.write_state(folder, w.old_names(metrics))


def summed_ratio(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=1.4)
  by = rows.groupby('step')
  rng = np.random.default_rng(seed)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'actor/pg_loss': rng.normal(0, 160, w.STEPS),
              'actor/total_loss': rng.normal(0, 160, w.STEPS),
              'actor/ppo_ratio_clipfrac': w.noise(seed, 0.05, 0.15),
              'actor/approxkl': w.noise(seed, 1e-4, 4e-4),
              'actor/grad_norm': w.noise(seed, 60, 180),
              'actor/lr': 1e-6,
              'critic/score/mean': mean_outcome(rows),
              'critic/rewards/mean': mean_outcome(rows),
              'critic/advantages/mean': w.noise(seed, -0.01, 0.01),
              'tokens/response_length/mean': by['n_tokens'].mean().to_numpy(),
              'tokens/response_length/max': by['n_tokens'].max().to_numpy(),
          }
      ),
  )
