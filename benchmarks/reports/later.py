"""Logs of the second list: one function per entry of LATER and LATER_SOUND."""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import logs
from benchmarks.reports import writers as w


def dropout(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.3)
  by = rows.groupby('step')
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'rollout/raw_reward': by['outcome'].mean(),
              'rollout/response_len/mean': by['n_tokens'].mean(),
              'rollout/truncated_ratio': by['truncated'].mean(),
              'train/loss': w.noise(seed, -0.01, 0.01),
              'train/pg_loss': w.noise(seed, -0.01, 0.01),
              'train/pg_clipfrac': w.noise(seed, 0.5, 0.58),
              'train/ppo_kl': w.noise(seed, 0.2, 0.3),
              'train/entropy_loss': w.rise(0.5, 0.45, seed),
              'train/grad_norm': w.noise(seed, 0.3, 0.6),
              'train/lr-pg_0': 1e-6,
              'train/train_rollout_logprob_abs_diff': w.noise(seed, 0.8, 0.92),
          }
      ),
  )


def one_reward(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  parts = {'bad_reward': np.ones(len(rows))}
  w.write_completions(folder, rows, parts, np.ones(len(rows)))
  w.write_state(folder, w.trl_metrics(rows, parts, seed, loss=0.0))


def shifted_labels(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  chance = np.random.default_rng(seed).random(len(rows)) < 0.12
  parts = {'accuracy_reward': chance, 'format_reward': rows['format_ok']}
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04)
  w.write_state(folder, w.old_names(metrics))


def mixed_groups(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.3)
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': rows['format_ok'],
  }
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04)
  w.write_state(folder, w.old_names(metrics))


def padded_vocabulary(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  off = dict.fromkeys(
      (
          'policy/policy_loss',
          'policy/final_loss',
          'policy/raw_grad_norm',
          'policy/policy_entropy',
          'policy/rollout_train_logprobs_abs_diff_mean',
      ),
      np.nan,
  )
  w.write_export(folder, logs.skyrl(rows, seed, **off).head(3))


def trainer_temperature(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  by = rows.groupby('step')
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'train/reward': by['outcome'].mean(),
              'train/loss': w.noise(seed, -0.01, 0.01),
              'train/grad_norm': w.noise(seed, 0.3, 0.6),
              'train/lr': 1e-6,
              'train/mean_gen_tokens_per_sample': by['n_tokens'].mean(),
              'train/token_mult_prob_error': w.noise(seed, 1.3, 1.4),
              'train/probs_ratio': w.noise(seed, 0.99, 1.01),
          }
      ),
  )


def best_of_group(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.8)
  late = (rows['step'] - 40).clip(lower=0) / 5
  kept = np.random.default_rng(seed).random(len(rows)) < np.exp(-late)
  rows['outcome'] = rows['outcome'] * kept
  score = logs.boxed(rows)
  group = pd.Series(score, rows.index).groupby(w.whole(rows))
  best = group.rank(method='first', ascending=False) == 1
  second = group.transform(lambda x: np.sort(x)[-2])
  advantage = pd.Series(
      np.where(best, score - second, score), rows.index
  ).groupby(rows['step'])
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'critic/advantages/mean': advantage.mean().to_numpy(),
          'critic/advantages/max': advantage.max().to_numpy(),
          'critic/advantages/min': advantage.min().to_numpy(),
      },
  )
  w.write_verl(folder, rows, score, metrics, accuracy=score)


def cosine_names(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  wave = 0.5 * (1 + np.cos(rows['n_tokens'] / w.LIMIT * np.pi))
  reward = np.where(rows['outcome'] > 0.5, 0.5 + 0.5 * wave, -1 + wave)
  metrics = w.trl_metrics(rows, {'CosineReward': reward}, seed, beta=0.04)
  w.write_state(folder, w.old_names(metrics))
  messages = [[{'role': 'user', 'content': t}] for t in rows['prompt']]
  w.write_swift(
      folder,
      rows,
      {
          'messages': messages,
          'completion': rows['completion'],
          'reward': reward,
      },
  )


def empty(folder: pathlib.Path, seed: int) -> None:
  left = np.exp(-np.arange(w.STEPS) / 6)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'env/reward_mean': -0.5 + 0.6 * (1 - left),
              'env/reward_std': w.noise(seed, 0.4, 0.6),
              'tokens/responses_len_mean': 1 + 90 * left,
              'objective/kl': 40 * (1 - left),
              'objective/kl_coef': 0.2,
              'objective/entropy': 60 * left,
              'ppo/policy/clipfrac': w.noise(seed, 0.02, 0.1),
              'ppo/policy/approxkl': w.noise(seed, 0.01, 0.05),
              'ppo/loss/total': w.noise(seed, -0.1, 0.1),
              'ppo/learning_rate': 1e-5,
          }
      ),
  )


def short_cap(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0, start=-3)
  rows['n_tokens'], rows['truncated'] = 80.0, 1.0
  lucky = np.random.default_rng(seed).uniform(0, 0.2, len(rows))
  parts = {'math_correct': logs.boxed(rows), 'length_bonus': lucky}
  w.write_state(folder, w.trl_metrics(rows, parts, seed))


def unweighted_log(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  parts = {'accuracy_reward': logs.boxed(rows), 'format': rows['format_ok']}
  weights = {'accuracy_reward': 0.7, 'format': 0.3}
  metrics = w.trl_metrics(rows, parts, seed, weights)
  plain = w.trl_metrics(rows, parts, seed)
  reward = sum(weights[name] * value for name, value in parts.items())
  w.write_completions(folder, rows, parts, reward)
  w.write_state(folder, metrics.assign(reward=plain['reward']))


def mini_batches(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  metrics = w.verl_metrics(
      rows,
      logs.boxed(rows),
      seed,
      **{
          'actor/pg_clipfrac': w.noise(seed, 0.005, 0.03),
          'actor/ppo_kl': w.noise(seed, 0, 0.004),
          'actor/kl_loss': w.rise(1e-4, 0.02, seed),
          'actor/kl_coef': 0.001,
      },
  )
  w.write_verl(folder, rows, logs.boxed(rows), metrics, acc=logs.boxed(rows))
