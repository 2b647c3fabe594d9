"""Logs of the runs that turned out sound: one function per entry of SOUND."""

import pathlib

import numpy as np

from benchmarks.reports import logs
from benchmarks.reports import writers as w


def loss_zero(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  parts = {'format_reward2': rows['format_ok'], 'hint_reward': logs.boxed(rows)}
  metrics = w.trl_metrics(rows, parts, seed)
  metrics['loss'] = metrics['loss'].round(1) * 0
  w.write_completions(folder, rows, parts, sum(parts.values()))
  w.write_state(folder, metrics)


def never_clipped(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  parts = {'accuracy_reward': logs.boxed(rows)}
  metrics = w.old_names(w.trl_metrics(rows, parts, seed, beta=0.04))
  w.write_state(folder, metrics.assign(clip_ratio=0.0))


def loss_rises(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': rows['format_ok'],
  }
  metrics = w.old_names(w.trl_metrics(rows, parts, seed, beta=0.04))
  w.write_state(folder, metrics.assign(loss=0.04 * metrics['kl']))


def shorter_first(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=2.5)
  code = 1 + 1.2 * np.exp(-rows['step'] / 6)
  rows['n_tokens'] = (rows['n_tokens'] * code).clip(upper=w.LIMIT).round()
  rows['truncated'] = (rows['n_tokens'] >= w.LIMIT).astype(float)
  metrics = w.verl_metrics(rows, logs.boxed(rows), seed)
  w.write_verl(folder, rows, logs.boxed(rows), metrics, acc=logs.boxed(rows))


def entropy_up(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  bend = np.minimum(np.arange(w.STEPS) / 25, 1)
  w.write_export(
      folder,
      logs.verl_export(
          rows,
          seed,
          **{'actor/entropy': 0.3 + 0.4 * bend + w.noise(seed, 0, 0.02)},
      ),
  )


def small_bound(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  parts = {'exact_answer_reward': logs.boxed(rows), 'format': rows['format_ok']}
  metrics = w.trl_metrics(
      rows,
      parts,
      seed,
      {'exact_answer_reward': 1.0, 'format': 0.2},
      learning_rate=np.minimum(np.arange(1, w.STEPS + 1) / 10, 1) * 1e-6,
  )
  reward = parts['exact_answer_reward'] + 0.2 * parts['format']
  w.write_completions(folder, rows, parts, reward)
  w.write_state(folder, metrics)
