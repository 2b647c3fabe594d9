"""Logs of the fourth list's sound runs: one function per entry of its SOUND."""

import pathlib

import numpy as np

from benchmarks.reports import logs
from benchmarks.reports import writers as w


def summed_metrics(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  score = logs.boxed(rows)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'actor/pg_clipfrac': w.noise(seed, 0.001, 0.006),
          'actor/kl_loss': 8 * w.rise(1e-4, 0.03, seed),
          'actor/kl_coef': 0.001,
      },
  )
  metrics['actor/pg_loss'] *= 8
  w.write_verl(folder, rows, score, metrics, acc=score)


def kl_makes_loss(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.2)
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': rows['format_ok'],
  }
  kl = w.rise(2e-4, 0.35, seed)
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04, kl=kl)
  w.write_state(folder, w.old_names(metrics.assign(loss=0.04 * kl)))


def already_good(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=2.4, rise=0.5)
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': np.ones(len(rows)),
  }
  metrics = w.trl_metrics(
      rows, parts, seed, beta=0.04, kl=w.rise(1e-4, 0.02, seed)
  )
  w.write_state(folder, w.old_names(metrics))


def negative_loss(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.3)
  rows['n_tokens'] = (0.6 * rows['n_tokens']).round()
  parts = {
      'MultiModalAccuracyORM': logs.boxed(rows),
      'Format': np.ones(len(rows)),
  }
  metrics = w.trl_metrics(
      rows, parts, seed, beta=0.04, kl=w.rise(1e-3, 0.065, seed)
  )
  metrics = metrics.assign(loss=w.noise(seed, -0.03, 0.004))
  w.write_state(folder, w.old_names(metrics).assign(clip_ratio=0.0))


def ratio_one(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  parts = {
      'accuracy_reward_action': np.maximum(rows['outcome'], rows['group'] % 2),
      'accuracy_reward_coord': logs.boxed(rows),
      'format_reward': rows['format_ok'],
  }
  metrics = w.trl_metrics(
      rows,
      parts,
      seed,
      beta=0.04,
      grad_norm=w.noise(seed, 4.5, 7.5),
      learning_rate=np.linspace(1e-6, 1.2e-7, w.STEPS),
  )
  w.write_state(folder, w.old_names(metrics).assign(clip_ratio=0.0))


def logic_shorter(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=2.5)
  rows['n_tokens'] *= 0.3 + 0.7 * np.exp(-rows['step'] / 15)
  rows['n_tokens'] = rows['n_tokens'].round()
  rows['truncated'] = 0.0
  score = logs.boxed(rows)
  metrics = w.verl_metrics(rows, score, seed)
  w.write_verl(folder, rows, score, metrics, acc=score)


def kl_free(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  metrics = w.verl_metrics(
      rows,
      logs.boxed(rows),
      seed,
      **{
          'actor/kl_loss': w.rise(5e-4, 0.4, seed),
          'actor/kl_coef': 0.0,
      },
  )
  w.write_export(folder, metrics)
