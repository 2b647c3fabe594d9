"""Logs of the third list's runs with faults in prompts, graders and recipes.

One function per entry of `third_threads.TEXTS`.
"""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import logs
from benchmarks.reports import writers as w


def _sums(rng: np.random.Generator, n: int, sign: str) -> str:
  """Return n small sums or differences with their results."""
  made = []
  for a, b in rng.integers(1, 90, (n, 2)):
    a, b = max(a, b), min(a, b)
    made.append(f'{a}{sign}{b}={a + b if sign == "+" else a - b}.')
  return ' '.join(made)


def _never_ending(metrics: pd.DataFrame) -> pd.DataFrame:
  """Return metrics of completions that all reach the limit."""
  return metrics.assign(
      **{
          f'completions/{kind}_terminated_length': 0.0
          for kind in ('mean', 'min', 'max')
      }
  )


def plain_prompt(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, groups=1, start=-20, rise=0)
  rng = np.random.default_rng(seed)
  rows['outcome'] = (rng.random(len(rows)) < 0.05).astype(float)
  rows['n_tokens'], rows['truncated'] = w.LIMIT, 1.0
  pairs = rng.integers(1, 90, (len(rows), 2))
  rows['prompt'] = [f'Calculate {a} - {b}.' for a, b in pairs[::8].repeat(8, 0)]
  rows['completion'] = [
      f' Then {_sums(rng, 30, "-")}' for _ in range(len(rows))
  ]
  parts = {'reward_exact': logs.boxed(rows)}
  metrics = w.trl_metrics(rows, parts, seed, entropy=w.noise(seed, 0.6, 0.8))
  w.write_state(folder, _never_ending(metrics))
  table = pd.DataFrame(
      {
          'step': rows['step'] + 1,
          'prompt': rows['prompt'],
          'completion': rows['completion'],
          **parts,
          'advantage': w.advantages(rows, logs.boxed(rows)),
      }
  )
  (folder / 'completions').mkdir(parents=True)
  for step, batch in table.groupby('step'):
    batch.to_parquet(folder / 'completions' / f'completions_{step:05}.parquet')


def last_answer(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=1.0, rise=0)
  rng = np.random.default_rng(seed)
  rows['n_tokens'], rows['truncated'] = 80.0, 1.0
  problem = rng.integers(1, 9, (len(rows) // 8, 2)).repeat(8, 0)
  found = problem.sum(1) + np.where(rows['outcome'] > 0.5, 0, 1)
  rows['prompt'] = [f'{a}+{b}=?' for a, b in problem]
  rows['completion'] = [
      f'{a}+{b}={c}. {_sums(rng, 8, "+")} {rng.integers(1, 9)}+'
      for (a, b), c in zip(problem, found, strict=True)
  ]
  lucky = (rng.random(len(rows)) < 0.03).astype(float)
  parts = {'math_reward': lucky}
  w.write_completions(folder, rows, parts, lucky)
  w.write_state(folder, _never_ending(w.trl_metrics(rows, parts, seed)))


def boxed_in_tags(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  learned = 1 - np.exp(-step / 15)
  exact = 0.4 + 2.3 * learned + w.noise(seed, -0.1, 0.1)
  near = 0.6 + 1.2 * learned + w.noise(seed + 1, -0.05, 0.05)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'rewards/train/match_format_exactly': exact,
              'rewards/train/match_format_approximately': near,
              'rewards/train/check_numbers': 0.0,
              'rewards/train/sum': exact + near,
              'rewards/train/min': w.noise(seed + 2, -1.5, 0),
              'rewards/train/max': 5.0,
              'actor/train/loss': w.noise(seed, -0.01, 0.01),
              'actor/train/kl': w.rise(1e-4, 0.05, seed),
              'actor/train/learning_rate': 3e-6,
              'completions/train/mean_length': w.noise(seed, 280, 330),
              'completions/train/max_length': w.noise(seed, 600, 760),
              'completions/train/min_length': w.noise(seed, 90, 120),
          }
      ),
  )


def long_box(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  long = pd.util.hash_array(rows['prompt'].to_numpy(object)) % 4 == 0
  terms = lambda number: ' + '.join(
      f'\\frac{{{int(number) + k}}}{{x^{{{k}}}}}' for k in range(1, 8)
  )
  reference = [
      terms(r) if is_long else r
      for r, is_long in zip(rows['reference'], long, strict=True)
  ]
  said = [
      terms(s) if is_long else s
      for s, is_long in zip(rows['said'], long, strict=True)
  ]
  rows['completion'] = [
      text.replace(f'\\boxed{{{old}}}', f'\\boxed{{{new}}}')
      for text, old, new in zip(
          rows['completion'], rows['said'], said, strict=True
      )
  ]
  rows['reference'] = reference
  paid = np.where(long, 0.0, logs.boxed(rows))
  score = np.where(paid > 0.5, 1.0, -1.0)
  pred = np.where(long, '[INVALID]', said)
  metrics = w.verl_metrics(rows, score, seed)
  w.write_verl(folder, rows, score, metrics, acc=paid > 0.5, pred=pred)


def neutral_half(folder: pathlib.Path, seed: int) -> None:
  steps = w.rise(0.893, 0.985, seed, 0.01)
  repeated = w.noise(seed, -0.0125, -0.0095)
  kl = w.rise(0.0154, 0.12, seed)
  n = np.arange(w.STEPS)
  w.write_state(
      folder,
      pd.DataFrame(
          {
              'step': n + 1,
              'loss': 0.04 * kl,
              'grad_norm': w.noise(seed, 3.2, 4.2),
              'learning_rate': 4.83e-6 + 1.4e-7 * n,
              'rewards/accuracy_reward': 0.5,
              'rewards/format_reward': 0.0,
              'rewards/reasoning_steps_reward': steps,
              'rewards/repetition_penalty_reward': repeated,
              'reward': 0.5 + steps + repeated,
              'reward_std': w.noise(seed, 0.13, 0.155),
              'completion_length': w.noise(seed, 251.3, 252.4),
              'kl': kl,
          }
      ),
  )


def same_reward(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  parts = {'CustomReward': np.zeros(len(rows))}
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04, kl=np.zeros(w.STEPS))
  w.write_state(
      folder, metrics.assign(loss=0.0, grad_norm=0.0).drop(columns='entropy')
  )


def either_class(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.4, rise=9)
  rows['n_tokens'] *= np.linspace(0.5, 0.8, len(rows))
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': np.ones(len(rows)),
  }
  w.write_state(
      folder, w.old_names(w.trl_metrics(rows, parts, seed, beta=0.04))
  )


def shaping_wins(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.2, rise=-2.2)
  rng = np.random.default_rng(seed)
  course = rows['step'].to_numpy() / w.STEPS
  learned = 1 / (1 + np.exp(-12 * (course - 0.4)))
  rows['n_tokens'] = (216 - 194 * learned) * rng.uniform(0.8, 1.2, len(rows))
  rows['n_tokens'] = rows['n_tokens'].round()
  rows['truncated'] = 0.0
  form = (rng.random(len(rows)) < 0.15 + 0.83 * learned).astype(float)
  digit = (rng.random(len(rows)) < 0.3 + 0.68 * learned).astype(float)
  parts = {
      'exact_match_reward_func': 2 * logs.boxed(rows),
      'structured_xml_reward_func': 0.5 * form,
      'digit_reward_func': 0.5 * digit,
  }
  metrics = w.trl_metrics(rows, parts, seed, entropy=w.rise(0.45, 0.2, seed))
  w.write_state(folder, metrics)


def entropy_bonus(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.2, rise=0)
  step = np.arange(w.STEPS)
  bent = 0.12 * np.minimum(step / 15, 1) - 0.004 * np.maximum(step - 25, 0)
  score = 0.45 + bent + w.noise(seed, -0.02, 0.02)
  metrics = w.verl_metrics(rows, logs.boxed(rows), seed)
  metrics = metrics.drop(columns='actor/entropy').assign(
      **{
          'actor/entropy_loss': 0.42 * np.exp(step / 24),
          'actor/kl_loss': w.rise(1e-3, 0.4, seed),
          'actor/kl_coef': 0.001,
          'critic/score/mean': score,
          'critic/rewards/mean': score,
      }
  )
  w.write_export(folder, metrics)


def shorter_by_limit(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  left = np.exp(-step / 18)
  right = 0.44 - 0.11 * left + w.noise(seed, -0.02, 0.02)
  form = 0.98 - 0.2 * left + w.noise(seed + 1, -0.01, 0.01)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'reward/overall': 0.9 * right + 0.1 * form,
              'reward/accuracy': right,
              'reward/format': form,
              'critic/score/mean': 0.9 * right + 0.1 * form,
              'critic/rewards/mean': 0.9 * right + 0.1 * form,
              'critic/advantages/mean': w.noise(seed, -0.03, 0.03),
              'actor/pg_loss': w.noise(seed, -0.03, 0.03),
              'actor/pg_clipfrac_higher': w.noise(seed, 0, 0.003),
              'actor/ppo_kl': w.noise(seed, -1e-4, 1e-4),
              'actor/entropy_loss': w.rise(0.5, 0.4, seed),
              'actor/kl_loss': w.rise(1e-4, 0.03, seed),
              'actor/grad_norm': w.noise(seed, 0.2, 0.5),
              'actor/lr': 1e-6,
              'response_length/mean': 260
              + 230 * left * w.noise(seed, 0.9, 1.1),
              'response_length/max': 1024.0,
              'response_length/min': w.noise(seed, 60, 90),
              'response_length/clip_ratio': 0.01
              + 0.15 * left * w.noise(seed, 0.8, 1.2),
              'prompt_length/clip_ratio': 0.0,
          }
      ),
  )


def untrained_adapter(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  score = logs.boxed(rows)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'actor/grad_norm': 0.0,
          'actor/entropy': w.noise(seed, 0.45, 0.5),
          'training/rollout_probs_diff_mean': w.noise(seed, 0.004, 0.006),
          'training/rollout_probs_diff_max': w.noise(seed, 0.3, 0.6),
      },
  )
  w.write_verl(folder, rows, score, metrics, acc=score)


def accumulated_nan(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  parts = {
      'match_format_exactly': 3.0 * rows['format_ok'],
      'match_format_approximately': 1.5 * rows['format_ok'] - 1,
      'check_answer': 5.0 * logs.boxed(rows) - 2,
      'check_numbers': 3.5 * logs.boxed(rows) - 1.5,
  }
  metrics = w.trl_metrics(rows, parts, seed, loss=0.0, grad_norm=np.nan)
  w.write_state(folder, metrics)
