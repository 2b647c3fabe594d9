"""Logs of the fifth list's sound runs: one function per entry of its SOUND."""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import fourth_models
from benchmarks.reports import logs
from benchmarks.reports import third_models
from benchmarks.reports import writers as w


def loss_after_400(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  late = np.maximum(step - 40, 0)
  rng = np.random.default_rng(seed)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'loss': 1e-4 * np.exp(late / 2.6) + rng.normal(0, 2e-5, w.STEPS),
              'average_reward': 2.4
              - 1.6 * np.exp(-step / 7)
              + rng.normal(0, 0.12, w.STEPS),
              'iteration': 1,
              'grpo_iter': 1,
          }
      ),
  )


def entropy_lower(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=1.6)
  score = logs.boxed(rows)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'actor/kl_loss': w.rise(2e-4, 0.02, seed),
          'actor/kl_coef': 0.001,
      },
  )
  metrics = metrics.drop(columns='actor/entropy')
  w.write_export(
      folder, metrics.assign(**{'actor/entropy_loss': w.rise(0.8, 0.42, seed)})
  )


def first_rate_zero(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  score = logs.boxed(rows)
  rate = 1e-6 * np.minimum(np.arange(w.STEPS) / 10, 1)
  metrics = w.verl_metrics(rows, score, seed, **{'actor/lr': rate})
  w.write_verl(folder, rows, score, metrics, acc=score)


def summed_norm(folder: pathlib.Path, seed: int) -> None:
  w.write_export(
      folder,
      third_models.nemo(
          w.rollouts(seed),
          seed,
          **{'train/grad_norm': 64 * w.noise(seed, 0.2, 0.5)},
      ),
  )


def seeds_vary(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, groups=4, size=5, rise=1.3)
  metrics = w.verl_metrics(
      rows,
      0.8 * logs.boxed(rows) + 0.2 * rows['format_ok'],
      seed,
      **{
          'reward/accuracy': rows.groupby('step')['outcome'].mean().to_numpy(),
          'reward/format': rows.groupby('step')['format_ok'].mean().to_numpy(),
          'actor/kl_loss': w.rise(2e-4, 0.03, seed),
          'actor/kl_coef': 0.01,
      },
  )
  w.write_export(
      folder, metrics.assign(**{'reward/overall': metrics['critic/score/mean']})
  )


def higher_than_paper(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.8, rise=1.4)
  step = np.arange(w.STEPS)
  w.write_export(
      folder,
      w.verl_metrics(
          rows,
          logs.boxed(rows),
          seed,
          **{
              'env/finish_ratio': w.rise(0.86, 0.99, seed, 0.01).clip(0, 1),
              'env/number_of_actions/mean': w.noise(seed, 1.9, 2.2),
              'env/number_of_valid_search': w.noise(seed, 0.95, 1.1),
              'env/ratio_of_valid_action': w.noise(seed, 0.9, 0.97),
              'val/test_score/nq': np.where(
                  step % 10 == 0, 0.3 + 0.0029 * step, np.nan
              ),
          },
      ),
  )


def pg_loss_up(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, groups=6, size=4, rise=0.9)
  right = rows.groupby('step')['outcome'].mean().to_numpy()
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'objective/scores': 10 * right,
              'objective/verifiable_correct_rate': right,
              'objective/kl': w.rise(1e-3, 0.4, seed),
              'objective/kl2': w.rise(1e-3, 0.35, seed),
              'objective/non_score_reward': -0.05 * w.rise(1e-3, 0.4, seed),
              'loss/policy_avg': np.linspace(-0.016, 0.004, w.STEPS)
              + w.noise(seed, -0.004, 0.004),
              'loss/value_avg': 0.6 * np.exp(-np.arange(w.STEPS) / 12) + 0.2,
              'policy/approxkl_avg': w.noise(seed, 4e-4, 9e-4),
              'policy/clipfrac_avg': w.noise(seed, 0.01, 0.03),
              'policy/entropy_avg': w.noise(seed, 0.3, 0.34),
              'val/ratio': w.noise(seed, 0.998, 1.002),
              'val/sequence_lengths': rows.groupby('step')['n_tokens']
              .mean()
              .to_numpy(),
              'val/num_stop_token_ids': w.noise(seed, 0.96, 1.0),
              'lr': np.linspace(3e-7, 1e-8, w.STEPS),
          }
      ),
  )


def ratio_recomputed(folder: pathlib.Path, seed: int) -> None:
  update = 'ppo_actor/update/'
  w.write_export(
      folder,
      fourth_models.areal(
          w.rollouts(seed, rise=1.5),
          seed,
          **{
              update + 'approx_kl/avg': w.noise(seed, -1e-6, 1e-6),
              update + 'clip_ratio/avg': 0.0,
              update + 'importance_weight/avg': w.noise(seed, 0.99999, 1.00001),
              update + 'behave_kl/avg': w.noise(seed, 8e-4, 1.4e-3),
              update + 'behave_imp_weight/avg': w.noise(seed, 0.998, 1.002),
          },
      ),
  )


def negative_kl(folder: pathlib.Path, seed: int) -> None:
  rng = np.random.default_rng(seed)
  step = np.arange(w.STEPS)
  score = 0.3 + 1.7 * (1 - np.exp(-step / 25)) + rng.normal(0, 0.12, w.STEPS)
  kl = 0.04 * step + rng.normal(0, 0.5, w.STEPS)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'objective/kl': kl,
              'objective/kl_coef': 0.05,
              'objective/entropy': w.noise(seed, 38, 44),
              'ppo/mean_scores': score,
              'ppo/std_scores': w.noise(seed, 0.9, 1.1),
              'ppo/mean_non_score_reward': -0.05 * np.abs(kl) / 30,
              'ppo/loss/policy': w.noise(seed, -0.03, -0.01),
              'ppo/loss/value': 0.3 * np.exp(-step / 15) + 0.08,
              'ppo/policy/approxkl': w.noise(seed, 0.004, 0.012),
              'ppo/policy/clipfrac': w.noise(seed, 0.03, 0.08),
              'ppo/policy/entropy': w.noise(seed, 1.2, 1.4),
              'ppo/returns/mean': 0.9 * score,
              'ppo/val/var_explained': 0.6 * (1 - np.exp(-step / 12)),
              'ppo/learning_rate': 1.4e-5,
              'tokens/responses_len_mean': w.noise(seed, 30, 34),
              'env/reward_mean': score,
              'env/reward_std': w.noise(seed, 0.9, 1.1),
          }
      ),
  )


def advantage_zero(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.2, rise=1.2)
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': rows['format_ok'],
  }
  kl = w.rise(2e-4, 0.11, seed)
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04, kl=kl)
  w.write_state(folder, w.old_names(metrics.assign(loss=0.04 * kl)))
