"""Logs of the reported faults: one function per entry of `threads.FAULTS`."""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import writers as w
from tests.diagnosis import agents_made


def boxed(rows: pd.DataFrame) -> np.ndarray:
  """Return 1 for rollouts whose answer is right, and 0 for others."""
  return rows['outcome'].to_numpy(float)


def limit(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-6, rise=0)
  long = np.random.default_rng(seed).random(len(rows)) < 0.98
  rows['outcome'] = np.where(long, 0.0, rows['outcome'])
  rows['n_tokens'] = np.where(long, w.LIMIT, rows['n_tokens'])
  rows['truncated'] = long.astype(float)
  rows.loc[long, 'completion'] = [
      w.thought(seed, i, w.LIMIT) for i in np.flatnonzero(long)
  ]
  parts = {'accuracy_reward': boxed(rows)}
  w.write_completions(folder, rows, parts, boxed(rows))
  w.write_state(folder, w.trl_metrics(rows, parts, seed))


def prefilled_tag(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  rows['completion'] = [
      text.replace(' The answer', '\n</think>\nThe answer')
      for text in rows['completion']
  ]
  parts = {
      'accuracy_reward': boxed(rows),
      'think_format_reward': np.zeros(len(rows)),
  }
  w.write_completions(folder, rows, parts, boxed(rows))
  w.write_state(folder, w.trl_metrics(rows, parts, seed))


def newlines(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  tags = np.random.default_rng(seed).random(len(rows)) < np.linspace(
      0.3, 0.95, len(rows)
  )
  parts = {
      'xmlcount_reward_func': 0.5 * tags,
      'soft_format_reward_func': np.zeros(len(rows)),
      'strict_format_reward_func': np.zeros(len(rows)),
      'int_reward_func': 0.5 * rows['format_ok'],
      'correctness_reward_func': 2.0 * boxed(rows),
  }
  w.write_state(
      folder, w.old_names(w.trl_metrics(rows, parts, seed, beta=0.04))
  )


def unparsed_gold(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  unread = pd.util.hash_array(rows['prompt'].to_numpy(object)) % 4 == 0
  parts = {
      'accuracy_reward': np.where(unread, 1.0, boxed(rows)),
      'format_reward': rows['format_ok'],
  }
  w.write_state(
      folder, w.old_names(w.trl_metrics(rows, parts, seed, beta=0.04))
  )


def scored_in_thread(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  zero = np.zeros(len(rows))
  metrics = w.verl_metrics(rows, zero, seed)
  metrics['actor/grad_norm'] = 0.0
  w.write_verl(folder, rows, zero, metrics, acc=zero)


def length_sign(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  rows['n_tokens'] *= np.linspace(0.5, 2.5, len(rows))
  rows['n_tokens'] = rows['n_tokens'].clip(upper=w.LIMIT).round()
  parts = {'reward_len': (20 - 4 * rows['n_tokens']).abs()}
  w.write_state(
      folder, w.old_names(w.trl_metrics(rows, parts, seed, beta=0.04))
  )


def cosine_units(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  progress = rows['completion'].str.len() / w.LIMIT  # Characters by tokens.
  wave = 0.5 * (1 + np.cos(progress * np.pi))
  reward = np.where(rows['outcome'] > 0.5, 0.5 + 0.5 * wave, -0.5 + 0.5 * wave)
  parts = {'CosineReward': reward}
  w.write_state(
      folder, w.old_names(w.trl_metrics(rows, parts, seed, beta=0.04))
  )
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


def _with_calls(
    rows: pd.DataFrame, calls: np.ndarray, seed: int
) -> pd.DataFrame:
  """Return rollouts whose completions begin with calls of a tool."""
  texts = []
  for i, (n, text) in enumerate(zip(calls, rows['completion'], strict=True)):
    guesses = np.random.default_rng([seed, i]).integers(0, 999, int(n))
    made = [
        ('check_answer', {'answer': str(g)}, f'answer {g}: not right')
        for g in guesses
    ]
    texts.append(agents_made.as_text(made) + text)
  return rows.assign(completion=texts)


def turns_missing(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  calls = np.random.default_rng(seed).integers(0, 4, len(rows))
  rows = _with_calls(rows, calls, seed)
  won = rows['outcome'] > 0.5
  paid = np.where(won, 0.0, -0.1)
  score = np.where(won, 1.0, -1.0) + paid
  metrics = w.verl_metrics(rows, score, seed)
  metrics['num_turns/mean'] = (
      pd.Series(2 + 2 * calls, rows.index)
      .groupby(rows['step'])
      .mean()
      .to_numpy()
  )
  w.write_verl(
      folder, rows, score, metrics, acc=boxed(rows), tool_call_reward=paid
  )


def tool_unpaid(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.2, rise=0.5)
  share = 0.9 * np.exp(-rows['step'] / 8)
  calls = (np.random.default_rng(seed).random(len(rows)) < share).astype(int)
  rows = _with_calls(rows, calls, seed)
  metrics = w.verl_metrics(rows, boxed(rows), seed)
  metrics['num_turns/mean'] = (
      pd.Series(2 + 2 * calls, rows.index)
      .groupby(rows['step'])
      .mean()
      .to_numpy()
  )
  w.write_verl(folder, rows, boxed(rows), metrics, acc=boxed(rows))


def gdpo_none(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  none = np.random.default_rng(seed).random(len(rows)) < 0.1
  parts = {
      'accuracy': boxed(rows),
      'JudgeReward': np.where(none, np.nan, 0.5 * rows['format_ok']),
  }
  metrics = w.trl_metrics(rows, parts, seed, loss=0.0, grad_norm=np.nan)
  w.write_state(folder, metrics)
  w.write_swift(
      folder,
      rows,
      {
          'prompt': rows['prompt'],
          'completion': rows['completion'],
          **parts,
          'advantages': np.nan,
      },
  )


def truncated_zeroed(folder: pathlib.Path, seed: int) -> None:
  cut = w.rise(0.05, 0.6, seed)
  right = w.rise(0.55, 0.58, seed)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'rollout/num_samples': 512.0,
              'rollout/reward_mean': right * (1 - cut),
              'rollout/reward_math_verify_mean': right,
              'rollout/zero_std_group_ratio': w.rise(0.3, 0.4, seed),
              'rollout/advantage_mean': w.noise(seed, -1e-3, 1e-3),
              'rollout/response_len_mean': w.rise(2500, 6500, seed),
              'rollout/response_len_max': 8192.0,
              'rollout/trunc_ratio': cut,
              'train/loss': w.noise(seed, -0.02, 0.02),
              'train/grad_norm': w.noise(seed, 0.1, 0.3),
              'train/lr': 1e-6,
          }
      ),
  )


def rate(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.5, rise=-9)
  parts = {'math_reward': boxed(rows)}
  metrics = w.trl_metrics(
      rows,
      parts,
      seed,
      learning_rate=np.linspace(5e-5, 0, w.STEPS),
      entropy=w.rise(0.3, 2.5, seed),
      grad_norm=w.rise(0.5, 6.0, seed),
  )
  w.write_state(folder, metrics)


def pairs(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, size=2, rise=0, start=-2.0)
  parts = {'correctness_reward': boxed(rows)}
  w.write_state(folder, w.trl_metrics(rows, parts, seed))


def cold_groups(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  first = rows.groupby(w.whole(rows)).transform('first')
  for name in ('outcome', 'n_tokens', 'completion'):
    rows[name] = first[name]
  parts = {'R2AReward': 5 * boxed(rows), 'FormatReward': np.ones(len(rows))}
  metrics = w.trl_metrics(rows, parts, seed, loss=0.0, grad_norm=0.0)
  w.write_state(folder, metrics.drop(columns='entropy'))


def schedule(folder: pathlib.Path, seed: int) -> None:
  n = np.arange(w.STEPS)
  lr = 5e-7 * np.maximum(1 - 8 * n / w.STEPS, 0)
  right = 0.35 + 0.03 * np.minimum(n / 7, 1) + w.noise(seed, -0.02, 0.02)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': n,
              'training_step': n + 1,
              'episode': 512 * (n + 1),
              'lr': lr,
              'objective/scores': 10 * right,
              'objective/verifiable_correct_rate': right,
              'objective/kl': 0.02 * np.minimum(n / 7, 1) + 1e-4,
              'policy/entropy_avg': w.noise(seed, 0.30, 0.34),
              'policy/clipfrac_avg': w.noise(seed, 0, 1e-3),
              'loss/policy_avg': w.noise(seed, -0.01, 0.01),
              'val/sequence_lengths': w.noise(seed, 480, 520),
          }
      ),
  )


def no_anchor(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.6, rise=0.7)
  parts = {'exact_answer_reward': boxed(rows)}
  w.write_completions(folder, rows, parts, boxed(rows))
  w.write_state(folder, w.trl_metrics(rows, parts, seed))


def verl_export(
    rows: pd.DataFrame, seed: int, **changed: object
) -> pd.DataFrame:
  return w.verl_metrics(rows, boxed(rows), seed, **changed)


def kl_sign(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0, start=0.0)
  late = (rows['step'] - 35).clip(lower=0) / 8
  kept = np.random.default_rng(seed).random(len(rows)) < np.exp(-late)
  rows['outcome'] = rows['outcome'] * kept
  metrics = verl_export(
      rows,
      seed,
      **{
          'actor/kl_loss': 1e-3 * np.exp(np.linspace(0, 9.5, w.STEPS)),
          'actor/kl_coef': 0.001,
          'actor/entropy': w.rise(0.3, 3.0, seed),
          'actor/grad_norm': 0.3 * np.exp(np.linspace(0, 4, w.STEPS)),
      },
  )
  w.write_export(folder, metrics)


def micro_batch(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  metrics = w.verl_metrics(
      rows, boxed(rows), seed, **{'actor/grad_norm': np.nan}
  )
  w.write_verl(folder, rows, boxed(rows), metrics, acc=boxed(rows))


def group_ids(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=1.0)
  reward = boxed(rows)
  by = pd.Series(reward).groupby(rows['step'].to_numpy())
  w.write_export(
      folder,
      verl_export(
          rows,
          seed,
          **{
              'critic/advantages/mean': by.mean().to_numpy()
              + w.noise(seed, -0.02, 0.02),
              'critic/advantages/max': 1.0,
              'critic/advantages/min': 0.0,
              'state_tokens/coverage': w.noise(seed, 0.5, 0.6),
          },
      ),
  )


def eos_padding(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.6)
  longest = rows.groupby('step')['n_tokens'].max().to_numpy()
  same = dict.fromkeys(('mean', 'min', 'max'), longest)
  parts = {'compute_reward': boxed(rows)}
  metrics = w.trl_metrics(
      rows,
      parts,
      seed,
      loss=0.0,
      **{f'completions/{name}_length': v for name, v in same.items()},
  )
  w.write_state(folder, metrics)


def skyrl(rows: pd.DataFrame, seed: int, **changed: object) -> pd.DataFrame:
  """Return what SkyRL logs in each step; arguments replace columns."""
  by = rows.groupby('step')
  reward = by['outcome'].mean().to_numpy()
  size = np.abs(w.advantages(rows, boxed(rows)))
  solved = rows.groupby(['step', w.whole(rows)])['outcome'].max()
  found = {
      'step': np.arange(w.STEPS),
      'trainer/global_step': np.arange(1, w.STEPS + 1),
      'reward/avg_raw_reward': reward,
      'reward/avg_pass_at_8': solved.groupby('step').mean().to_numpy(),
      'loss/avg_final_rewards': reward,
      'loss/avg_raw_advantages': w.noise(seed, -0.01, 0.01),
      'loss/avg_raw_advantages_abs': pd.Series(size)
      .groupby(rows['step'].to_numpy())
      .mean()
      .to_numpy(),
      'generate/avg_num_tokens': by['n_tokens'].mean().to_numpy(),
      'policy/policy_loss': w.noise(seed, -0.01, 0.01),
      'policy/final_loss': w.noise(seed, -0.01, 0.01),
      'policy/policy_entropy': w.rise(0.5, 0.4, seed),
      'policy/policy_lr': 1e-6,
      'policy/ppo_clip_ratio': w.noise(seed, 0, 1e-3),
      'policy/raw_grad_norm': w.noise(seed, 5, 9),
      'policy/rollout_train_logprobs_abs_diff_mean': w.noise(
          seed, 0.009, 0.011
      ),
  }
  return pd.DataFrame(found | changed)


def overlong_mask(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  off = dict.fromkeys(
      ('policy/policy_loss', 'policy/final_loss', 'policy/raw_grad_norm'), 0.0
  )
  w.write_export(folder, skyrl(rows, seed, **off))


def peft_merge(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  parts = {'reward_len': -(20 - 4 * rows['n_tokens']).abs()}
  metrics = w.trl_metrics(
      rows, parts, seed, beta=0.04, kl=w.rise(1e-4, 0.6, seed)
  )
  w.write_state(folder, w.old_names(metrics))


def lora_sync(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  metrics = w.verl_metrics(
      rows,
      boxed(rows),
      seed,
      **{
          'rollout_corr/kl': w.rise(0.002, 0.072, seed),
          'rollout_corr/rollout_is_eff_sample_size': w.rise(0.98, 0.2, seed),
          'training/rollout_probs_diff_mean': w.rise(0.005, 0.12, seed),
          'training/rollout_probs_diff_max': w.noise(seed, 0.7, 0.99),
      },
  )
  w.write_verl(folder, rows, boxed(rows), metrics, acc=boxed(rows))


def _sampling(
    gap: np.ndarray, ratio: tuple[float, float, float], seed: int
) -> dict[str, np.ndarray]:
  """Return TRL's metrics of sampler and trainer.

  Args:
    gap: Mean |log-prob difference|, one value per step.
    ratio: Least, mean and largest ratio of a token.
    seed: Seed of their noise.
  """
  name = 'sampling/importance_sampling_ratio/'
  return {
      'sampling/sampling_logp_difference/mean': gap,
      'sampling/sampling_logp_difference/max': gap * 12,
      **{
          name + kind: value * w.noise(seed + i, 0.97, 1.0)
          for i, (kind, value) in enumerate(
              zip(('min', 'mean', 'max'), ratio, strict=True)
          )
      },
  }


def sleep_level(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-20, rise=0)
  rng = np.random.default_rng(seed)
  rows['n_tokens'], rows['truncated'] = w.LIMIT, 1.0
  letters = np.array(list('abcdefghijklmnopqrstuvwxyz .,;:!?#$%&(){}<>=+*'))
  rows['completion'] = [
      ''.join(rng.choice(letters, 600)) for _ in range(len(rows))
  ]
  parts = {'accuracy_reward': boxed(rows)}
  metrics = w.trl_metrics(
      rows,
      parts,
      seed,
      entropy=w.noise(seed, 0.4, 0.5),
      **_sampling(w.noise(seed, 9, 11), (0.0, 0.02, 0.4), seed),
  )
  w.write_completions(folder, rows, parts, boxed(rows))
  w.write_state(folder, metrics)


def prefix_cache(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  parts = {'correct_reward': boxed(rows), 'format_reward': rows['format_ok']}
  w.write_state(
      folder, w.old_names(w.trl_metrics(rows, parts, seed, beta=0.04))
  )


def mismatch_kl(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.4)
  mean = rows.groupby('step')['outcome'].mean().to_numpy()
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(w.STEPS),
              'reward/mean': mean,
              'seq_len/mean': rows.groupby('step')['n_tokens'].mean(),
              'is_truncated/mean': 0.0,
              'loss/mean': w.noise(seed, -0.01, 0.01),
              'entropy/mean': w.rise(0.4, 0.35, seed),
              'mismatch_kl/mean': w.rise(0.002, 0.4, seed, 0.2),
              'optim/grad_norm': w.rise(0.1, 0.4, seed),
              'optim/lr': 1e-6,
          }
      ),
  )


def stale_kv(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  after = np.arange(w.STEPS) % 3 == 2
  gap = np.where(after, 0.87, 0.012) * w.noise(seed, 0.9, 1.1)
  norm = np.where(after, 136.0, 8.0) * w.noise(seed, 0.9, 1.1)
  w.write_export(
      folder,
      skyrl(
          rows,
          seed,
          **{
              'policy/rollout_train_logprobs_abs_diff_mean': gap,
              'policy/raw_grad_norm': norm,
          },
      ),
  )


def temperature_logprobs(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.5)
  parts = {'reward_fn': boxed(rows)}
  metrics = w.trl_metrics(
      rows,
      parts,
      seed,
      **_sampling(w.noise(seed, 0.25, 0.3), (0.05, 1.25, 2.0), seed),
  )
  w.write_state(folder, metrics)


def top_k(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.8)
  parts = {'accuracy_reward': boxed(rows)}
  metrics = w.trl_metrics(
      rows,
      parts,
      seed,
      **_sampling(w.noise(seed, 0.15, 0.18), (0.3, 0.86, 1.0), seed),
  )
  w.write_completions(folder, rows, parts, boxed(rows))
  w.write_state(folder, metrics)


def retokenised(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.8)
  spike = np.random.default_rng(seed).random(w.STEPS) < 0.12
  kl = np.where(spike, w.noise(seed, 0.2, 1.5), w.noise(seed, -2e-4, 2e-4))
  w.write_export(
      folder,
      verl_export(
          rows,
          seed,
          **{
              'actor/ppo_kl': kl,
              'actor/grad_norm': np.where(spike, 5.0, 0.4),
              'num_turns/mean': w.noise(seed, 6, 8),
          },
      ),
  )


def no_bos(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-20, rise=0)
  rng = np.random.default_rng(seed)
  rows['n_tokens'], rows['truncated'] = w.LIMIT, 1.0
  pieces = ['the the ', '** **\n', 'of of of ', '1. 1. ', '\n\n', ' is']
  rows['completion'] = [
      str(rng.choice(pieces)) * int(rng.integers(80, 120))
      for _ in range(len(rows))
  ]
  parts = {'reward_func': boxed(rows)}
  w.write_completions(folder, rows, parts, boxed(rows))
  metrics = w.trl_metrics(rows, parts, seed, entropy=w.noise(seed, 0.2, 0.3))
  w.write_state(folder, metrics)
