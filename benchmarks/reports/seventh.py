"""Logs of the seventh list's faults in rewards, formats, agents, lengths.

How the list was drawn, each step written down before the next (2026-11-28):

1. Twelve queries, fixed before the first was run, each put to a search of issue
   threads and to one of web pages: GRPO reward not increasing; GRPO training
   collapse; reward increases but eval accuracy drops; KL divergence explodes
   GRPO; entropy collapse RL LLM; completion length keeps growing; GRPO loss 0
   grad norm 0; agent stops calling tools during RL training; training reward
   stuck at zero; nan loss PPO verl; vLLM logprob mismatch training; reward
   hacking in RL fine-tuning.
2. Results are taken in the order of their rank, at most 3 of a query and 1 of a
   repository and topic, if they are about RL post-training of language models,
   if the cause is found or convincingly given in what the search shows of them,
   and if the symptom could show in the log of such a trainer. Threads of
   earlier lists are left out, kinds of faults that they have are not.
3. These gave 19. Twelve more queries, fixed before they were run, were put to
   the search of threads, and the first result that qualifies of each was taken
   until there were 24: GRPO reward suddenly drops to zero KL becomes large;
   GRPO reward fluctuates instead of rising; RL training grad norm spikes
   entropy rises model outputs nonsense; response length explodes and clip ratio
   rises during RL; format reward always zero GRPO; model outputs exclamation
   marks after some RL steps; GRPO grad norm is zero but reward std is not zero;
   accuracy reward decreases while format reward increases. With the last of
   these there were 24; the four queries after it were not used.
4. Of 313 results 24 were kept; 28 are in an earlier list, 31 had been seen in
   another query, 47 are of the kind but without a cause, 181 are no bad run of
   RL on a language model, and 2 qualify but came after the 24th.
5. Sound runs: four queries for threads that say that all is well and for
   published curves (is it normal GRPO loss negative; is this training curve
   normal RL LLM; response length decreases is this expected GRPO; GRPO
   successful run training log reward curve) gave 3; the other 5 are those among
   the results above, in the order of the queries, whose logs can show it.
6. A log has the columns that its trainer wrote at the time, from its source
   where that could be had, and the course that the thread describes. What only
   the authors of a study measured, such as which completions cheat, is left
   out.
"""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import seventh_agents
from benchmarks.reports import writers as w

interaction_collapse = seventh_agents.interaction_collapse
control_token_spikes = seventh_agents.control_token_spikes
redundant_calls = seventh_agents.redundant_calls
tests_overwritten = seventh_agents.tests_overwritten
_NAMES = ('Tom', 'Ana', 'Li', 'Omar', 'Ruth', 'Ivan', 'Mia', 'Noor')
_THINGS = ('apples', 'cards', 'stamps', 'books', 'shells', 'coins', 'pens')


def one_group_steps(folder: pathlib.Path, seed: int) -> None:
  steps = 120
  rng = np.random.default_rng(seed)
  tasks = ('notepad_1', 'explorer_4', 'calc_2', 'clock_1', 'edge_3', 'vlc_2')
  first = np.array([0.05, 0.9, 0.15, 0.45, 0.97, 0.04])
  last = np.array([0.05, 0.93, 0.3, 0.7, 0.98, 0.04])
  task = np.arange(steps) % 6
  p = first[task] + (last - first)[task] * np.arange(steps) / steps
  won = rng.binomial(8, p)
  skipped = (won == 0) | (won == 8)
  spent = rng.uniform(210, 340, steps)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': np.arange(steps),
              'task_id': [tasks[t] for t in task],
              'reward_mean': won / 8,
              # The mean of -1 times advantages, up to rounding.
              'loss': np.where(skipped, 0.0, rng.normal(0, 2e-8, steps)),
              'skipped': skipped,
              'num_rollouts': np.where(skipped, np.nan, 8),
              'num_gradient_terms': np.where(skipped, np.nan, 8),
              'elapsed': spent.cumsum(),
              'step_time': spent,
          }
      ),
  )


def format_only_paid(folder: pathlib.Path, seed: int) -> None:
  rows = w.frame(80, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  learned = w.logistic(step, 22, 6)
  tags = rng.random(len(rows)) < 0.42 + 0.575 * learned
  right = rng.random(len(rows)) < 0.24 - 0.21 * learned
  long = rng.lognormal(4.85 - 1.15 * learned, 0.3)
  rows['n_tokens'] = np.minimum(long + 18, 320).round()
  asked = pd.util.hash_array((97 * step + rows['group']).to_numpy(np.int64))
  questions, texts = [], []
  for i, number in enumerate(asked):
    a, b, c = 3 + number % 40, 2 + number // 40 % 9, 3 + number // 360 % 11
    name, thing = _NAMES[number % 8], _THINGS[number % 7]
    questions.append(
        f'{name} has {a} {thing} and buys {b} boxes with {c} {thing} each. How'
        f' many {thing} does {name} have now? Think inside <think> tags and'
        ' give the answer inside <answer> tags.'
    )
    said = a + b * c if right[i] else int(rng.integers(4, 160))
    thought = w.thought(seed, i, rows['n_tokens'][i])
    texts.append(
        f'<think>\n{thought}\n</think>\n<answer>{said}</answer>'
        if tags[i]
        else f'{thought}. The answer is {said}.'
    )
  rows = rows.assign(prompt=questions, completion=texts)
  parts = {'format_reward': tags.astype(float)}
  w.write_completions(folder, rows, parts, parts['format_reward'])
  w.write_state(folder, w.trl_metrics(rows, parts, seed))


def cold_start_saturated(folder: pathlib.Path, seed: int) -> None:
  rows = w.frame(150, 8, 4)
  rng = np.random.default_rng(seed)
  whole = w.whole(rows).to_numpy()
  kind = rng.random(whole.max() + 1)
  p = np.select([kind < 0.6, kind < 0.85], [0.985, 0.7], 0.25)[whole]
  p = p + 0.05 * (1 - p) * rows['step'] / 150
  rows['n_tokens'] = rng.lognormal(5.2, 0.3, len(rows)).round()
  parts = {
      'accuracy_reward': (rng.random(len(rows)) < p).astype(float),
      'format_reward': (rng.random(len(rows)) < 0.993).astype(float),
  }
  metrics = w.trl_metrics(
      rows,
      parts,
      seed,
      entropy=0.19 + w.wander(seed, 150, 0.012),
      learning_rate=5e-6 * (1 - np.arange(150) / 150),
  )
  w.write_state(folder, metrics)


def between_groups_spread(folder: pathlib.Path, seed: int) -> None:
  rows = w.frame(90, 4, 8)
  rng = np.random.default_rng(seed)
  whole = w.whole(rows).to_numpy()
  groups = whole.max() + 1
  lengths = rng.uniform(380, 930, groups)
  graded = rng.choice([2.0, -8.0], groups)[whole]
  mixed = (rng.random(groups) < 0.05)[whole]
  graded = np.where(
      mixed & (rng.random(len(rows)) < 0.3), -6 - graded, graded
  )
  rows['n_tokens'] = (lengths[whole] + rng.normal(0, 35, len(rows))).round()
  full = np.full(len(rows), 2.0)
  metrics = w.trl_metrics(
      rows,
      {
          'if_rewrite_reward': graded,
          'json_format_reward': full,
          'think_response_format_reward': full,
          'language_ratio_reward': full,
          'length_penalty_reward': np.zeros(len(rows)),
      },
      seed,
      learning_rate=2e-6 * (1 - np.arange(90) / 270),
  )
  for kind in ('mean', 'min', 'max'):
    metrics[f'completions/{kind}_terminated_length'] = metrics[
        f'completions/{kind}_length'
    ]
  w.write_state(folder, metrics.drop(columns='entropy'))


def never_solved(folder: pathlib.Path, seed: int) -> None:
  steps = 150
  step = np.arange(steps)
  tags = 0.62 + 0.37 * (1 - np.exp(-step / 12))
  tags = (tags + w.wander(seed, steps, 0.012)).clip(0, 1)
  mixed = 1 - (tags**8 + (1 - tags) ** 8)
  length = 210 + 60 * np.exp(-step / 20) + w.wander(seed + 1, steps, 9)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'iteration': step,
              'rewards': tags,
              'reward_metrics/format_reward': tags,
              'reward_metrics/answer_reward': 0.0,
              'rewards_std': np.sqrt(tags * (1 - tags)),
              'rewards_is_std_zero': 1 - mixed,
              'zero_advantages_ratio': 1 - mixed,
              'non_stop_rate': w.noise(seed, 0, 0.01, steps),
              'response_lengths': length,
              'response_lengths/mean_length': length,
              'response_lengths/min_length': length - 70,
              'response_lengths/max_length': length + 130,
              'extra/mean_correct_response_length': 0.0,
              'extra/mean_incorrect_response_length': length,
              'policy_loss': w.noise(seed + 2, -0.003, 0.003, steps) * mixed,
              'kl_penalty': 0.0,
              'entropy': 0.31 + 0.2 * np.exp(-step / 25),
              'grad_norm': np.sqrt(mixed) * w.noise(seed + 3, 0.1, 0.3, steps),
              'loss': w.noise(seed + 2, -0.003, 0.003, steps) * mixed,
              'learning_rate': 1e-6,
              'eval/rewards': np.where(step % 25 == 0, tags, np.nan),
              'eval/reward_metrics/answer_reward': np.where(
                  step % 25 == 0, 0.0, np.nan
              ),
              'eval/reward_metrics/format_reward': np.where(
                  step % 25 == 0, tags, np.nan
              ),
          }
      ),
  )


def unexplored_proxy(folder: pathlib.Path, seed: int) -> None:
  rows = w.frame(40, 4, 4)
  rng = np.random.default_rng(seed)
  rows['n_tokens'] = rng.lognormal(4.1, 0.45, len(rows)).round()
  metrics = w.trl_metrics(
      rows,
      {'reward_proxy': np.zeros(len(rows))},
      seed,
      entropy=0.58 + w.wander(seed, 40, 0.03, 0.2),
      learning_rate=1e-5,
  )
  w.write_state(folder, metrics)


def reasoning_sign(folder: pathlib.Path, seed: int) -> None:
  steps, size = 150, 192
  rng = np.random.default_rng(seed)
  step = np.arange(steps)
  course = (1 - np.exp(-step / 60))[:, None]
  drawn = rng.normal(size=(steps, size))
  # The policy comes as close to the threshold of -0.4 as its spread allows.
  score = (-0.17 - 0.14 * course + (0.1 - 0.055 * course) * drawn).clip(-1, 0)
  away = rng.gamma(4, 0.42 - 0.1 * course, (steps, size))
  kept = (score > -0.4) & (away < 3)
  reward = np.where(kept, -0.2 * away / 3 + 0.3 * score / -0.4, -1.0)
  comfort = -0.06 + rng.normal(0, 0.02, (steps, size))
  group = reward.reshape(steps, -1, 12)
  advantage = (group - group.mean(-1, keepdims=True)) / (
      group.std(-1, keepdims=True) + 1e-6
  )
  loss = rng.normal(0, 0.004, steps)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step + 1,
              'train/loss_avg': loss,
              'train/loss_max': loss + 0.01,
              'train/kl_loss_avg': 0.0,
              'train/kl_loss_max': 0.0,
              'train/learning_rate': 2e-6,
              'train/grad_norm': w.noise(seed + 1, 0.3, 0.8, steps),
              'train/entropy': 0.9
              - 0.2 * course[:, 0]
              + w.wander(seed + 2, steps, 0.02),
              'train/reward_mean': reward.mean(1),
              'train/reward_std': reward.std(1),
              'train/reward_max': reward.max(1),
              'train/reward_min': reward.min(1),
              'rollout/completion_length_mean': 1.0,
              'rollout/completion_length_max': 1.0,
              'rollout/completion_length_min': 1.0,
              'rollout/advantage_mean': advantage.mean((1, 2)),
              'rollout/advantage_std': advantage.std((1, 2)),
              'rollout/advantage_max': advantage.max((1, 2)),
              'rollout/advantage_min': advantage.min((1, 2)),
              'train/traj_L2': away.mean(1),
              'train/comfort_reward': comfort.mean(1),
              'train/reasoning_score': score.mean(1),
              'train/reward': reward.mean(1),
          }
      ),
  )


def whole_match(folder: pathlib.Path, seed: int) -> None:
  rows = w.frame(200, 2, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  p = 0.48 + 0.42 * (1 - np.exp(-step / 55))
  rows['n_tokens'] = rng.normal(112 - 0.08 * step, 14).clip(40).round()
  parts = {
      'accuracy_reward': (rng.random(len(rows)) < p).astype(float),
      'format_reward': np.zeros(len(rows)),
  }
  kl = w.rise(2e-4, 0.07, seed, 0.2, 200)
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04, kl=kl)
  metrics['grad_norm'] *= 9
  w.write_state(folder, w.old_names(metrics))


def prompt_length_logged(folder: pathlib.Path, seed: int) -> None:
  rows = w.frame(120, 4, 4)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  p = 0.35 + 0.3 * (1 - np.exp(-step / 50))
  tags = rng.random(len(rows)) < 0.2 + 0.78 * (1 - np.exp(-step / 15))
  rows['n_tokens'] = 203.0
  parts = {
      'accuracy_reward': (rng.random(len(rows)) < p).astype(float),
      'format_reward': tags.astype(float),
  }
  kl = w.rise(2e-4, 0.11, seed, 0.15, 120)
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04, kl=kl)
  w.write_state(folder, w.old_names(metrics))


def format_added(folder: pathlib.Path, seed: int) -> None:
  steps = 100
  step = np.arange(steps)
  right = 0.34 + 0.14 * (1 - np.exp(-step / 40)) + w.wander(seed, steps, 0.02)
  tags = 0.5 + 0.42 * (1 - np.exp(-step / 15)) + w.wander(seed + 1, steps, 0.05)
  unsolved = 3300 * np.exp(w.wander(seed + 2, steps, 0.42, 0.85))
  unsolved = unsolved.clip(900, 8000)
  solved = 1050 + 2 * step + w.wander(seed + 3, steps, 60)
  mean = right * solved + (1 - right) * unsolved
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step + 1,
              'episode': 512 * (step + 1),
              'scores': 10 * right + tags,
              'val/format_scores': tags,
              'objective/verifiable_reward': 10 * right,
              'objective/verifiable_correct_rate': right,
              'val/sequence_lengths': mean,
              'val/sequence_lengths_min': w.noise(seed, 180, 320, steps),
              'val/sequence_lengths_max': 8192.0,
              'val/sequence_lengths_solved': solved,
              'val/sequence_lengths_unsolved': unsolved,
              'val/stop_rate': 1 - 0.3 * (unsolved / 8192) ** 2,
              'val/advantages_mean': w.noise(seed + 4, -1e-3, 1e-3, steps),
              'val/advantages_min': w.noise(seed + 5, -2.8, -2.2, steps),
              'val/advantages_max': w.noise(seed + 6, 2.3, 3.6, steps),
              'loss/policy_avg': w.noise(seed + 7, -0.02, 0.02, steps),
              'loss/kl_avg': 0.0,
              'policy/clipfrac_avg': w.noise(seed + 8, 0, 2e-3, steps),
              'val/ratio': w.noise(seed + 9, 0.999, 1.001, steps),
              'objective/kl_avg': w.rise(1e-4, 0.03, seed, 0.1, steps),
              'lr': 5e-7,
          }
      ),
  )


def whole_length_logged(folder: pathlib.Path, seed: int) -> None:
  rows = w.frame(50, 3, 8)
  rng = np.random.default_rng(seed)
  course = rows['step'].to_numpy() / 50
  whole = w.whole(rows).to_numpy()
  asked = rng.integers(260, 520, whole.max() + 1)  # Tokens of the prompts.
  written = rng.lognormal(4.75 + 0.2 * course, 0.3).round()
  hard = 1.4 * rng.normal(size=whole.max() + 1)[whole]
  right = rng.random(len(rows)) < 1 / (1 + np.exp(0.4 - 1.6 * course - hard))
  gold = 100 + 7 * whole % 800
  said = np.where(right, gold, rng.integers(100, 900, len(rows)))
  documents = [w.thought(seed + 1, g, n) for g, n in enumerate(asked)]
  rows['n_tokens'] = written + asked[whole]
  parts = {
      'MathAccuracy': right.astype(float),
      'Format': (rng.random(len(rows)) < 0.9).astype(float),
  }
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04)
  absent = ('completions/clipped_ratio', 'num_tokens', 'entropy')
  w.write_state(folder, metrics.drop(columns=list(absent)))
  w.write_swift(
      folder,
      rows,
      {
          'messages': [
              [
                  {
                      'role': 'user',
                      'content': f'{documents[g]}. Which number is meant? Box'
                      ' the answer.',
                  }
              ]
              for g in whole
          ],
          'completion': w.completions(
              rows.assign(n_tokens=written, said=said), seed
          ),
          **parts,
      },
  )


def other_cap_binds(folder: pathlib.Path, seed: int) -> None:
  cap = 768  # max_model_len; max_response_length is 1,024.
  rows = w.frame(45, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole = w.whole(rows).to_numpy()
  asked = rng.integers(120, 420, whole.max() + 1)[whole]
  wanted = rng.lognormal(5.75 + 0.006 * step, 0.55).round()
  cut = wanted > cap - asked
  rows['n_tokens'] = np.where(cut, cap - asked, wanted)
  p = np.clip(0.55 - 0.05 * (wanted - 300) / 100 + 0.004 * step, 0.05, 0.9)
  gold = 100 + 7 * whole % 800
  right = rng.random(len(rows)) < p
  said = np.where(right, gold, rng.integers(100, 900, len(rows)))
  full = w.completions(rows.assign(said=said), seed)
  rows['completion'] = [
      w.thought(seed, i, n + 8) if c else text
      for i, (c, n, text) in enumerate(
          zip(cut, rows['n_tokens'], full, strict=True)
      )
  ]
  documents = [w.thought(seed + 1, g, n) for g, n in enumerate(asked[::8])]
  rows['prompt'] = [
      f'{documents[g]}. Which number is meant? Box the answer.' for g in whole
  ]
  rows['reference'] = gold.astype(str)
  score = (right & ~cut).astype(float)
  metrics = w.verl_metrics(rows, score, seed)
  by = pd.Series(asked).groupby(step)
  metrics = metrics.assign(
      **{
          f'response_length_non_aborted/{kind}': metrics[
              f'response_length/{kind}'
          ]
          for kind in ('mean', 'max', 'min', 'clip_ratio')
      },
      **{
          'response/aborted_ratio': 0.0,
          'prompt_length/mean': by.mean().to_numpy(float),
          'prompt_length/max': by.max().to_numpy(float),
          'prompt_length/min': by.min().to_numpy(float),
      },
  )
  w.write_verl(folder, rows, score, metrics)
