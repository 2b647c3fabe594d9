"""Logs of the sixth list's faults in rewards, masks, prompts, evaluation.

One function per entry of `sixth_threads.TEXTS`; those of agents are in
`sixth_agents`.
"""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import fourth_models
from benchmarks.reports import logs
from benchmarks.reports import sixth_agents
from benchmarks.reports import third_models
from benchmarks.reports import writers as w

override_judge = sixth_agents.override_judge
template_tokens = sixth_agents.template_tokens
streamed_ids = sixth_agents.streamed_ids
states_trained = sixth_agents.states_trained
base_sampled = sixth_agents.base_sampled


def held(values: np.ndarray, every: int) -> np.ndarray:
  """Return values of evaluations in each `every`th step, NaN in others."""
  return np.where(np.arange(w.STEPS) % every == 0, values, np.nan)


def eval_answers(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.4, rise=1.3)
  step = np.arange(w.STEPS)
  after = (rows['step'] % 10 == 0) & (rows['step'] > 0)  # After an evaluation.
  lucky = np.random.default_rng(seed).random(len(rows)) < 0.01
  right = fourth_models.mean_outcome(rows)
  rows['outcome'] = np.where(after, lucky, rows['outcome'])
  by = rows.assign(reward=rows['outcome'] + rows['format_ok']).groupby('step')
  reward = by['reward'].mean().to_numpy()
  found = fourth_models.mean_outcome(rows)
  train = 'Train/Mean Population '
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'Train/Best Reward': reward + w.noise(seed + 1, 0, 0.02),
              train + 'Reward': reward,
              train + 'Loss': w.noise(seed, -0.004, 0.004),
              train + 'KL Divergence': w.rise(2e-4, 0.03, seed + 2),
              train + 'Completion Length': by['n_tokens'].mean().to_numpy(),
              train + 'Accuracy': found,
              'Train/Best Accuracy': found + w.noise(seed + 3, 0, 0.01),
              'Eval/Mean Population Reward': np.where(
                  step % 10 == 9,
                  right + 0.9 + w.noise(seed + 4, -0.03, 0.03),
                  np.nan,
              ),
          }
      ),
  )


def val_equals_one(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.6, rise=1.2)
  rng = np.random.default_rng(seed)
  # A score between 0 and 0.97, as for boxes that overlap.
  score = np.where(
      rows['outcome'] > 0,
      rng.beta(8, 2, len(rows)) * 0.97,
      rng.beta(1.2, 5, len(rows)),
  )
  rows['outcome'] = score
  lengths = rows.groupby('step')['n_tokens'].mean().to_numpy()
  w.write_export(
      folder,
      third_models.nemo(
          rows,
          seed,
          **{
              'validation/accuracy': held(np.zeros(w.STEPS), 10),
              'validation/avg_length': held(1.02 * lengths, 10),
          },
      ),
  )


def unscored_neutral(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.5, rise=0.3)
  rng = np.random.default_rng(seed)
  course = rows['step'].to_numpy() / w.STEPS
  unread = rng.random(len(rows)) < 0.03 + 0.8 / (
      1 + np.exp(-10 * (course - 0.45))
  )
  shapes = (
      'The answer is \\boxed{\\text{as shown above',
      'The answer follows from the last line.',
      'The answer is \\boxed{\\boxed{',
      'Hence the claim.',
  )
  rows['completion'] = [
      f'{text.split(" The answer")[0]} {rng.choice(shapes)}' if u else text
      for u, text in zip(unread, rows['completion'], strict=True)
  ]
  score = np.where(unread, np.nan, 2 * logs.boxed(rows) - 1)
  rows['outcome'] = np.where(unread, 0.0, rows['outcome'])
  parts = {'verifier_reward': score}
  w.write_completions(folder, rows, parts, np.nan_to_num(score))
  w.write_state(folder, w.trl_metrics(rows, parts, seed))


def format_beyond_limit(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.7, rise=0)
  rng = np.random.default_rng(seed)
  course = rows['step'].to_numpy() / w.STEPS
  cut = rng.random(len(rows)) < 0.04 + 0.95 / (
      1 + np.exp(-16 * (course - 0.55))
  )
  own = 4 * rows['n_tokens'] * (1 + 0.6 * course)
  rows['n_tokens'] = np.where(cut, 1024.0, own.clip(upper=1010)).round()
  tags = rng.random(len(rows)) < 0.15 + 0.75 * (1 - np.exp(-9 * course))
  told = rng.random(len(rows)) < 0.25  # The answer comes before the limit.
  parts = {
      'accuracy_reward': logs.boxed(rows) * (~cut | told),
      'format_reward': (tags & ~cut).astype(float),
  }
  metrics = w.trl_metrics(
      rows, parts, seed, beta=0.04, kl=w.rise(2e-4, 0.6, seed, 0.15)
  )
  w.write_state(folder, w.old_names(metrics))


def answer_only_sft(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.3, rise=0.5)
  rng = np.random.default_rng(seed)
  rows['n_tokens'] = rng.integers(12, 19, len(rows)).astype(float)
  overlap = np.where(
      rows['outcome'] > 0,
      rng.beta(9, 2, len(rows)),
      rng.beta(1.5, 6, len(rows)),
  )
  parts = {
      'accuracy_reward': overlap,
      'format_reward': np.zeros(len(rows)),
  }
  metrics = w.trl_metrics(
      rows, parts, seed, beta=0.04, kl=w.rise(2e-4, 0.09, seed)
  )
  w.write_state(folder, w.old_names(metrics))


def unseen_images(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-1.9, rise=0.35)
  solved = rows.groupby(['step', w.whole(rows)])['outcome'].mean()
  by = solved.groupby('step')
  w.write_export(
      folder,
      w.verl_metrics(
          rows,
          logs.boxed(rows),
          seed,
          **{
              'actor/entropy': w.rise(0.55, 0.3, seed + 1),
              'batch/solve_none': by.apply(lambda s: int((s == 0).sum())),
              'batch/solve_all': by.apply(lambda s: int((s == 1).sum())),
              'batch/solve_partial': by.apply(
                  lambda s: int(((s > 0) & (s < 1)).sum())
              ),
              'val/test_score/geo3k': held(
                  0.13 + 0.0005 * np.arange(w.STEPS) + w.noise(seed, 0, 0.01),
                  10,
              ),
          },
      ),
  )


def prefix_scored(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.0, rise=0.5)
  parts = {'quality_reward': logs.boxed(rows)}
  # Six tokens of twelve nats each, on top of what the sampler found.
  lengths = rows.groupby('step')['n_tokens'].mean().to_numpy()
  gap = 72 / lengths * w.noise(seed, 0.93, 1.07)
  own = w.rise(0.42, 0.33, seed + 1)
  name = 'rollout_correction/'
  metrics = w.trl_metrics(
      rows,
      parts,
      seed,
      grad_norm=w.noise(seed + 2, 1.4, 2.6),
      **{
          name + 'kl': gap,
          name + 'k3_kl': gap - 0.05,
          name + 'training_ppl': np.exp(own + gap),
          name + 'training_log_ppl': own + gap,
          name + 'rollout_ppl': np.exp(own),
          name + 'rollout_log_ppl': own,
          name + 'log_ppl_diff': gap,
          name + 'log_ppl_abs_diff': gap,
          name + 'ppl_ratio': np.exp(1.06 * gap),
          name + 'chi2_token': w.noise(seed + 3, 0.01, 0.04),
      },
  )
  w.write_state(folder, metrics)


def subset_redrawn(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.1, rise=0.8)
  step = np.arange(w.STEPS)
  # A job of 31 steps, then one that draws other 256 problems.
  level = np.where(step <= 30, 0.64, 0.57) + 0.0011 * step
  found = (256 * (level + w.noise(seed, -0.008, 0.008))).round() / 256
  w.write_export(
      folder,
      w.verl_metrics(
          rows,
          logs.boxed(rows),
          seed,
          **{'val-core/openai/gsm8k/acc/mean@1': held(found, 5)},
      ),
  )
