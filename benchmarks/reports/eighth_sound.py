"""Logs of the eighth list's sound runs.

One function per entry of `eighth_threads.SOUND`.
"""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import writers as w


def loss_is_kl(folder: pathlib.Path, seed: int) -> None:
  steps = 300
  rows = w.frame(steps, 8, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  course = 1 - np.exp(-step / 60)
  hard = rng.normal(size=8 * steps)[w.whole(rows)]
  right = rng.random(len(rows)) < 1 / (1 + np.exp(1.0 - 2.6 * course - hard))
  tags = rng.random(len(rows)) < 0.15 + 0.84 * (1 - np.exp(-step / 18))
  rows['n_tokens'] = rng.lognormal(4.6 - 0.15 * course, 0.2).round()
  parts = {
      'accuracy_reward': right.astype(float),
      'format_reward': tags.astype(float),
  }
  kl = 0.34 * (1 - np.exp(-np.arange(steps) / 110))
  kl = 4e-4 + kl * w.noise(seed + 1, 0.9, 1.1, steps)
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04, kl=kl)
  # One update per batch and a mean per completion: the policy term is 0.
  metrics['loss'] = 0.04 * kl
  w.write_state(folder, w.old_names(metrics))


def first_update_zero(folder: pathlib.Path, seed: int) -> None:
  batches, updates = 60, 4
  steps = batches * updates
  rng = np.random.default_rng(seed)
  batch, inner = np.arange(steps) // updates, np.arange(steps) % updates
  course = 1 - np.exp(-batch / 25)
  reward = np.repeat(
      0.3 + 0.45 * course[::updates] + w.wander(seed, batches, 0.06), updates
  )
  moved = inner * rng.uniform(0.7, 1.3, steps)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(steps),
              'epoch': inner,
              'loss': np.where(
                  inner == 0,
                  rng.normal(0, 2e-8, steps),
                  -0.004 * moved + rng.normal(0, 0.002, steps),
              ),
              'reward_mean': reward,
              'reward_std': np.sqrt(reward * (1 - reward)),
              'ratio_mean': 1 + 4e-4 * moved * rng.normal(0, 1, steps),
              'clip_frac': 0.003 * moved,
              'grad_norm': rng.uniform(0.4, 0.9, steps),
              'completion_length': 180 + np.repeat(
                  w.wander(seed + 1, batches, 9), updates
              ),
              'lr': 1e-6,
          }
      ),
  )


def ratio_is_one(folder: pathlib.Path, seed: int) -> None:
  steps = 350
  step = np.arange(steps)
  course = 1 - np.exp(-step / 130)
  reward = -0.9 + 1.6 * course + w.wander(seed, steps, 0.22, 0.5)
  kl = 0.06 * course * w.noise(seed + 1, 0.85, 1.15, steps)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step + 1,
              'policy_loss': 0.02 * kl + w.noise(seed + 2, -0.01, 0.01, steps),
              'reward': reward,
              'kl': kl,
              'advantages_mean': w.noise(seed + 3, -1e-7, 1e-7, steps),
              'advantages_std': w.noise(seed + 4, 0.86, 0.94, steps),
              'ratio_mean': 1 + w.noise(seed + 5, -2e-6, 2e-6, steps),
              'ratio_std': w.noise(seed + 6, 1e-4, 6e-4, steps),
              'clip_ratio': 0.0,
              'avg_response_len': 410
              + 90 * course
              + w.wander(seed + 7, steps, 25),
              'learning_rate': 8e-8 * (1 + np.cos(np.pi * step / steps)) / 2
              + 8e-9,
          }
      ),
  )


def cryptograms(folder: pathlib.Path, seed: int) -> None:
  steps = 400
  rows = w.frame(steps, 4, 9)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  course = w.logistic(step, 150, 45)
  words = rng.integers(1, 4, 4 * steps)[w.whole(rows)]
  share = 0.25 + 0.73 * course - 0.06 * (words - 1) * (1 - 0.7 * course)
  rows['n_tokens'] = (
      60 + 55 * words * (0.5 + 0.5 * course) + rng.normal(0, 9, len(rows))
  ).round()
  parts = {
      'format_reward': (
          rng.random(len(rows)) < 0.5 + 0.49 * (1 - np.exp(-step / 15))
      ).astype(float),
      # How near the decoded message is to the right one.
      'decoding_reward': rng.beta(12 * share, 12 * (1 - share)).round(3),
      'correctness_reward': (rng.random(len(rows)) < share**2.2).astype(float),
  }
  kl = 0.16 * w.logistic(np.arange(steps), 150, 60)
  kl = kl * w.noise(seed + 1, 0.9, 1.1, steps)
  metrics = w.trl_metrics(rows, parts, seed, beta=0.01, kl=kl)
  w.write_state(folder, w.old_names(metrics))


def less_verbose(folder: pathlib.Path, seed: int) -> None:
  steps, limit = 93, 1500
  rows = w.frame(steps, 32, 4)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  at = np.arange(steps)
  rises = 1 - np.exp(-step / 8)
  hard = 1.5 * rng.normal(size=32 * steps)[w.whole(rows)]
  right = rng.random(len(rows)) < 1 / (1 + np.exp(0.9 - 1.5 * rises - hard))
  # A few responses go on after their answer until the limit.
  verbose = rng.random(len(rows)) < 0.015 + 0.11 * np.exp(-step / 30)
  length = rng.lognormal(5.75, 0.4, len(rows)).clip(max=limit)
  rows['n_tokens'] = np.where(verbose, limit, length).round()
  rows['truncated'] = (rows['n_tokens'] >= limit).astype(float)
  metrics = w.verl_metrics(
      rows,
      right.astype(float),
      seed,
      **{
          'actor/entropy': 0.24
          + 0.3 * np.exp(-at / 12)
          + w.wander(seed, steps, 0.008),
          'val-core/math500/acc/mean@1': np.where(
              at % 10 == 9,
              0.6
              - 0.12 * np.exp(-at / 9)
              + w.noise(seed + 1, -0.008, 0.008, steps),
              np.nan,
          ),
      },
  )
  w.write_export(folder, metrics)


def math_on_two(folder: pathlib.Path, seed: int) -> None:
  steps = 200
  step = np.arange(steps)
  course = 1 - np.exp(-step / 75)
  reward = 0.05 + 0.25 * course + w.wander(seed, steps, 0.028, 0.3)
  reward = reward.clip(0.005)
  tags = 0.2 + 0.7 * (1 - np.exp(-step / 30)) + w.wander(seed + 1, steps, 0.03)
  length = 560 - 190 * course + w.wander(seed + 2, steps, 20)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'train/reward_mean': reward,
              'train/reward_std': np.sqrt(reward * (1 - reward)),
              'train/format_reward': tags.clip(0, 1),
              'train/answer_reward': reward,
              'train/loss': w.noise(seed + 3, -0.02, 0.02, steps),
              'train/grad_norm': w.noise(seed + 4, 0.2, 0.7, steps),
              'train/entropy': 0.75
              - 0.4 * course
              + w.wander(seed + 5, steps, 0.02),
              'train/clip_fraction': w.noise(seed + 6, 0, 4e-3, steps),
              'train/response_length': length,
              'train/lr': 1e-5,
              'eval/accuracy': np.where(
                  step % 10 == 9,
                  0.06
                  + 0.205 * course
                  + w.noise(seed + 7, -0.008, 0.008, steps),
                  np.nan,
              ),
          }
      ),
  )


def two_functions(folder: pathlib.Path, seed: int) -> None:
  steps = 64
  rows = w.frame(steps, 2, 25)  # A group for each of the two tasks.
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  task = rows['group'].to_numpy()
  course = w.logistic(step, 22 + 9 * task, 5)
  # The share of tests that pass; -1 for what does not run or is forbidden.
  fails = rng.random(len(rows)) < 0.55 - 0.53 * course
  passed = rng.beta(0.6 + 9 * course, 1.1 - 0.9 * course).round(3)
  rows['n_tokens'] = rng.lognormal(4.6 - 0.4 * course, 0.35).round()
  parts = {'reward_func': np.where(fails, -1.0, passed)}
  w.write_state(
      folder,
      w.trl_metrics(
          rows,
          parts,
          seed,
          entropy=0.62
          - 0.35 * w.logistic(np.arange(steps), 26, 8)
          + w.wander(seed, steps, 0.015),
          learning_rate=8e-6,
      ),
  )


def thinks_in_target(folder: pathlib.Path, seed: int) -> None:
  steps = 120
  step = np.arange(steps)
  language = w.logistic(step, 34, 8) + w.wander(seed, steps, 0.015)
  answer = 0.74 + 0.12 * (1 - np.exp(-step / 50)) - 0.1 * np.exp(
      -(((step - 32) / 14) ** 2)
  )
  answer = answer + w.wander(seed + 1, steps, 0.018)
  thinks = 0.55 + 0.43 * (1 - np.exp(-step / 14))
  thinks = thinks + w.wander(seed + 9, steps, 0.01)
  rewards = {
      'MathReward': answer.clip(0, 1),
      'ThinkingReward': thinks.clip(0, 1),
      'LanguageReward': language.clip(0, 1),
  }
  length = 520 - 60 * language + w.wander(seed + 2, steps, 14)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              **{
                  f'reward/evaluate_response/avg_{name}_reward': value
                  for name, value in rewards.items()
              },
              'reward/evaluate_response/avg_total_reward': sum(rewards.values())
              / 3,
              'reward/evaluate_response/std_total_reward': w.noise(
                  seed + 3, 0.12, 0.24, steps
              ),
              'episode/avg_response_tokens': length,
              'grpo_loss/kl_divergence_mean': w.rise(
                  1e-4, 0.05, seed + 4, 0.1, steps
              ),
              'grpo_loss/policy_gradient_loss': w.noise(
                  seed + 5, -0.02, 0.02, steps
              ),
              'grpo_loss/total_loss': w.noise(seed + 5, -0.02, 0.02, steps),
              'grpo_loss/advantage_mean': w.noise(seed + 6, -1e-3, 1e-3, steps),
              'buffer/sample/avg_sampled_policy_age': w.noise(
                  seed + 7, 0.6, 1.0, steps
              ),
              'rl_trainer/learning_rate': 1e-5,
              'rl_trainer/avg_grad_norm': w.noise(seed + 8, 0.2, 0.6, steps),
          }
      ),
  )
