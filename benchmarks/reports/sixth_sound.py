"""Logs of the sixth list's sound runs: one function per entry of its SOUND."""

import json
import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import fourth_models
from benchmarks.reports import logs
from benchmarks.reports import sixth
from benchmarks.reports import writers as w


def on_policy_kl(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.2, rise=1.1)
  w.write_export(
      folder,
      w.verl_metrics(
          rows,
          logs.boxed(rows),
          seed,
          **{'actor/ppo_kl': 0.0, 'actor/pg_clipfrac': 0.0},
      ),
  )


def val_above_train(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.4, rise=2.0)
  won = fourth_models.mean_outcome(rows)
  w.write_export(
      folder,
      w.verl_metrics(
          rows,
          10 * logs.boxed(rows),
          seed,
          **{
              'episode/success_rate': won,
              'episode/reward/mean': 10 * won,
              'episode/length/mean': 34 - 18 * won + w.noise(seed + 1, -1, 1),
              'episode/valid_action_ratio': w.rise(0.93, 0.99, seed + 2, 0.005),
              'val/success_rate': sixth.held(
                  (128 * np.minimum(won + w.noise(seed + 3, 0.015, 0.05), 1))
                  .round()
                  / 128,
                  5,
              ),
          },
      ),
  )


def score_not_reward(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.5, rise=1.4)
  step = np.arange(w.STEPS)
  score = fourth_models.mean_outcome(rows)
  lengths = rows.groupby('step')['n_tokens'].mean().to_numpy()
  kl = w.rise(1e-4, 0.03, seed + 1, 0.1)
  reward = score - 0.04 * kl * lengths
  values = score * (1 - np.exp(-step / 6)) + w.noise(seed + 2, -0.03, 0.03)
  w.write_export(
      folder,
      w.verl_metrics(
          rows,
          logs.boxed(rows),
          seed,
          **{
              'actor/pg_loss': w.noise(seed + 9, -0.02, 0.02),
              'critic/rewards/mean': reward,
              'critic/kl': kl,
              'critic/kl_coeff': 0.04,
              'critic/values/mean': values,
              'critic/returns/mean': reward + w.noise(seed + 3, -0.01, 0.01),
              'critic/vf_loss': 0.04 + 0.3 * np.exp(-step / 7),
              'critic/vf_explained_var': 0.45 * (1 - np.exp(-step / 10))
              + w.noise(seed + 4, -0.04, 0.04),
              'critic/grad_norm': w.noise(seed + 5, 3, 9),
              'critic/lr': 1e-5,
              'critic/advantages/mean': w.noise(seed + 6, -1e-6, 1e-6),
              'critic/advantages/max': w.noise(seed + 7, 3, 4.5),
              'critic/advantages/min': w.noise(seed + 8, -4.5, -3),
          },
      ),
  )


def loss_both_signs(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, groups=1, size=8, start=-0.4, rise=1.6)
  rng = np.random.default_rng(seed)
  reward = 2 * rows['outcome'] - 1 + 1.25 * rows['format_ok']
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'loss': rng.normal(0, 0.02, w.STEPS)
              + 0.04 * w.rise(1e-4, 0.06, seed),
              'reward': reward.groupby(rows['step']).mean().to_numpy(),
          }
      ),
  )


def reused_rollouts(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.5, rise=6.0)
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': rows['format_ok'],
  }
  fresh = w.old_names(w.trl_metrics(rows, parts, seed)).to_dict('records')
  rng = np.random.default_rng(seed)
  history = []
  for step in range(w.STEPS):
    age = step % 4  # Updates since these rollouts were generated.
    logged = {
        'step': step + 1,
        'loss': float(rng.normal(-0.004 * age, 0.004)),
        'grad_norm': float(rng.uniform(0.2, 0.5)),
        'learning_rate': 1e-6 * (1 - step / w.STEPS),
        'clip_ratio': float(rng.uniform(0.002, 0.006) * age),
    }
    history.append((fresh[step // 4] if age == 0 else {}) | logged)
  target = folder / f'checkpoint-{w.STEPS}'
  target.mkdir(parents=True)
  state = {'max_steps': w.STEPS, 'log_history': history}
  (target / 'trainer_state.json').write_text(json.dumps(state))


def negative_ppo_loss(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  rng = np.random.default_rng(seed)
  score = -2.1 + 1.5 * (1 - np.exp(-step / 25)) + rng.normal(0, 0.1, w.STEPS)
  policy = -0.03 + rng.normal(0, 0.012, w.STEPS)
  value = 0.25 * np.exp(-step / 12) + 0.06 + w.noise(seed + 1, 0, 0.01)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'rollout_scores/mean': score,
              'rollout_scores/std': w.noise(seed + 2, 0.9, 1.1),
              'rollout_scores/running_mean': pd.Series(score)
              .expanding()
              .mean(),
              'losses/total_loss': policy + value,
              'losses/policy_loss': policy,
              'losses/value_loss': value,
              'values/mean': score + w.noise(seed + 3, -0.15, 0.15),
              'returns/mean': score + w.noise(seed + 4, -0.05, 0.05),
              'policy/approx_kl': w.noise(seed + 5, 0.002, 0.008),
              'policy/clipfrac': w.noise(seed + 6, 0.01, 0.04),
              'policy/sqrt_kl': np.sqrt(w.rise(0.01, 1.9, seed + 7)),
              'kl_ctl_value': 0.1,
              'learning_rate_group_0': 5e-6,
          }
      ),
  )


def val_sampled(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.7, rise=0.7)
  step = np.arange(w.STEPS)
  rows['n_tokens'] *= np.linspace(1.1, 0.6, len(rows))
  rows['n_tokens'] = rows['n_tokens'].round()
  found = 0.795 + 0.0007 * step + w.noise(seed + 1, -0.014, 0.014)
  w.write_export(
      folder,
      w.verl_metrics(
          rows,
          logs.boxed(rows),
          seed,
          **{
              'val/test_score/math500': sixth.held(
                  (500 * found).round() / 500, 5
              )
          },
      ),
  )


def loss_from_zero(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.9, rise=0.6)
  step = np.arange(w.STEPS)
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': rows['format_ok'],
  }
  kl = 4e-4 + 0.09 / (1 + np.exp(-(step - 38) / 6))
  kl = kl * w.noise(seed + 1, 0.93, 1.07)
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04, kl=kl)
  w.write_state(folder, w.old_names(metrics.assign(loss=(0.04 * kl).round(4))))
