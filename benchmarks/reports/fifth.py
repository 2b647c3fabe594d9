"""Logs of the fifth list's faults in data, graders and evaluation.

One function per entry of `fifth_threads.TEXTS`; those of agents, whose texts
are not sums, are in `fifth_agents`.
"""

from collections.abc import Mapping, Sequence
import json
import pathlib
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.reports import fifth_agents
from benchmarks.reports import logs
from benchmarks.reports import writers as w

future_commits = fifth_agents.future_commits
fallback_policy = fifth_agents.fallback_policy
forced_finish = fifth_agents.forced_finish

# Pieces of the vocabulary, as high noise of the sampler picks them.
_PIECES = (
    'Theophil Waldteufel игSnap whereas Match wasnaux Modified IEWent 来想要'
    ' Column dialogceso .Linear ke= asked ammon Entries exploitation notation'
    ' detective ancestry Immediately communications Artikel remind Southern GOP'
    ' HelloISA .util epochs Demo estimate muestra overflow referenced 期间 pa'
).split(' ')
# Words of a policy that has begun to mix languages.
_FOREIGN = (
    '首先 我们 计算 所以 答案 是 поэтому сумма равна'
    ' 그래서 다음 因此 合計 よって'
).split(' ')
_LONG = (
    'The river rose in the spring and the mill below the town stood idle for'
    ' nine weeks while the council argued over the cost of a new weir and the'
    ' miller sold his grain to a merchant from the coast who paid in silver'
).split(' ')
_LIMIT = 512  # max_prompt_length of cut_prompts, in words.


def write_lines(folder: pathlib.Path, columns: Mapping[str, Any]) -> None:
  """Write a table of rollouts as JSON lines, one row a line."""
  folder.mkdir(parents=True)
  rows = pd.DataFrame(columns).to_dict('records')
  (folder / 'completions.jsonl').write_text(
      '\n'.join(json.dumps(row, ensure_ascii=False) for row in rows)
  )


def prefixed(metrics: pd.DataFrame) -> pd.DataFrame:
  """Return TRL's metrics under the names that W&B shows."""
  step = metrics.pop('step')
  return metrics.add_prefix('train/').assign(step=step)


def _soup(words: Sequence[str], n: int, rng: np.random.Generator) -> str:
  return ' '.join(rng.choice(words, n))


def double_bos(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-1.0, rise=0.9)
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'format_reward': rows['format_ok'],
  }
  w.write_completions(folder, rows, parts, sum(parts.values()))
  w.write_state(folder, w.trl_metrics(rows, parts, seed))


def cut_prompts(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.1)
  rng = np.random.default_rng(seed)
  texts = {}
  for prompt in sorted(set(rows['prompt'])):
    length = int(rng.lognormal(5.6, 0.6))
    words = [*rng.choice(_LONG, length), *f'\n\n{prompt}'.split(' ')]
    texts[prompt] = ' '.join(words[:_LIMIT])
  prompts = rows['prompt'].map(texts)
  cut = ~prompts.str.contains('Box the answer').to_numpy()
  rows['prompt'] = prompts
  for i in np.flatnonzero(cut):
    n = int(rng.integers(90, w.LIMIT))
    rows.loc[i, 'completion'] = _soup(_LONG, n, rng) + '.'
    rows.loc[i, 'n_tokens'] = n
  rows['outcome'] = np.where(cut, 0.0, rows['outcome'])
  ended = np.where(cut, rows['n_tokens'] < 140, True)
  rows['n_tokens'] = np.where(ended, rows['n_tokens'], w.LIMIT)
  rows['truncated'] = 1.0 - ended
  parts = {
      'check_answer': 2 * logs.boxed(rows),
      'match_format_exactly': np.where(cut, 0.0, rows['format_ok']),
  }
  w.write_completions(folder, rows, parts, sum(parts.values()))
  w.write_state(folder, w.trl_metrics(rows, parts, seed))


def constant_reward(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  parts = {'rlvr_reward': np.zeros(len(rows))}
  metrics = w.trl_metrics(
      rows, parts, seed, beta=0.04, kl=w.noise(seed, 0, 2e-5), grad_norm=0.0
  )
  w.write_completions(folder, rows, parts, parts['rlvr_reward'])
  w.write_state(folder, metrics.assign(loss=0.0))


def never_truncated(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  parts = {
      'correct_answer_reward_func': logs.boxed(rows),
      'format_reward_func': rows['format_ok'],
  }
  metrics = w.trl_metrics(
      rows, parts, seed, loss=0.0, grad_norm=0.0, reward=0.0, reward_std=0.0
  )
  # The trainer of verifiers logs means of parts under their plain names.
  names = {f'rewards/{n}/mean': f'rewards/{n}' for n in parts}
  drop = [f'rewards/{n}/std' for n in parts]
  metrics = metrics.drop(columns=['frac_reward_zero_std', 'entropy', *drop])
  w.write_export(folder, prefixed(metrics.rename(columns=names)))


def own_end(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=-0.3, rise=0.3)
  rng = np.random.default_rng(seed)
  course = rows['step'].to_numpy() / w.STEPS
  ends = rng.random(len(rows)) < 0.85 / (1 + np.exp(-14 * (course - 0.4)))
  mixed = ends & (rng.random(len(rows)) < 1.6 * np.maximum(course - 0.55, 0))
  texts = []
  for i, text in enumerate(rows['completion']):
    if mixed[i]:
      head, answer = text.split(' The answer')
      text = f'{head} {_soup(_FOREIGN, 12, rng)} The answer{answer}'
    if ends[i]:
      count = 1 + rng.poisson(4 * course[i])
      text += '<|im_end|>\n<|im_start|>assistant\n' * count
    texts.append(text)
  lost = mixed & (rng.random(len(rows)) < 0.6)
  write_lines(
      folder,
      {
          'step': rows['step'] + 1,
          'prompt': rows['prompt'],
          'completion': texts,
          'reward': np.where(lost, 0.0, rows['outcome']),
      },
  )


def does_nothing(folder: pathlib.Path, seed: int) -> None:
  step = np.arange(w.STEPS)
  rng = np.random.default_rng(seed)
  good = 0.3 + 0.35 * np.minimum(step / 10, 1)
  alive = 1 / (1 + np.exp((step - 15) / 1.4))
  alive[step >= 22] = 0.0
  right = np.round(32 * good * alive) / 32
  asked = (12.7 - 2.2 * np.minimum(step / 10, 1)) * alive
  score = alive * (20 * good - 10 * (1 - good) - 0.2 * asked)
  w.write_export(
      folder,
      pd.DataFrame(
          {
              'step': step,
              'train/reward': score + alive * rng.normal(0, 1.2, w.STEPS),
              'train/reward_std_dev': alive * (12 - 0.4 * np.minimum(step, 10)),
              'train/accuracy': right,
              'train/questions_asked': asked + alive * rng.normal(0, 0.3, 60),
              'train/tokens_per_episode': w.noise(seed, 1900, 2300)
              * (0.4 + 0.6 * alive),
              'train/loss': alive * rng.normal(0, 0.02, w.STEPS),
              'train/grad_norm': alive * w.noise(seed, 0.2, 0.5),
              'train/entropy': 0.06 + 0.3 * alive,
              'train/learning_rate': 1e-5,
          }
      ),
  )


def twenty_chars(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  digits = rng.random(len(rows)) < 1 / (1 + np.exp(-(step - 7)))
  digits |= step > 14
  rows['n_tokens'] = np.where(digits, w.LIMIT, rows['n_tokens'].clip(upper=90))
  rows['truncated'] = digits.astype(float)
  characters = np.where(digits, 256, rng.normal(4.4, 0.3, 3840) * 70)
  parts = {'reward_len': -np.abs(20 - characters.round())}
  metrics = w.trl_metrics(
      rows, parts, seed, beta=0.001, kl=np.minimum(0.05 * np.arange(60), 0.9)
  )
  w.write_state(folder, metrics.assign(clip_ratio=0.0))


def same_seed(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  place = np.arange(len(rows)) % 8
  source = np.where(place < 4, np.arange(len(rows)), np.arange(len(rows)) - 4)
  copied = ['outcome', 'format_ok', 'n_tokens', 'truncated', 'completion']
  rows[copied] = rows[copied].iloc[source].to_numpy()
  for name in copied[:-1]:
    rows[name] = rows[name].astype(float)
  parts = {'MathAccuracy': logs.boxed(rows), 'Format': rows['format_ok']}
  w.write_state(folder, w.trl_metrics(rows, parts, seed))
  w.write_swift(
      folder,
      rows,
      {
          'prompt': rows['prompt'],
          'completion': rows['completion'],
          **parts,
          'advantages': w.advantages(rows, sum(parts.values())),
      },
  )


def reads_thoughts(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, rise=0.4)
  rng = np.random.default_rng(seed)
  closed = rng.random(len(rows)) < np.linspace(0.3, 0.97, len(rows))
  texts = []
  for i, text in enumerate(rows['completion']):
    head, answer = text.split(' The answer')
    words = head.split(' ')
    half = len(words) // 2
    first = f'a first try gives \\boxed{{{rng.integers(100, 999)}}} but'
    thought = ' '.join([*words[:half], first, *words[half:]])
    end = '</think>\n\n' if closed[i] else ''
    texts.append(f'<think>\n{thought}\n{end}The answer{answer}')
  rows['completion'] = texts
  lucky = rng.random(len(rows)) < 0.015
  parts = {
      'think_format_reward': closed.astype(float),
      'accuracy_reward': (lucky & (rows['outcome'] > 0)).astype(float),
  }
  w.write_completions(folder, rows, parts, sum(parts.values()))
  w.write_state(folder, w.trl_metrics(rows, parts, seed))


def gumbel_noise(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, groups=4, rise=0)
  rng = np.random.default_rng(seed)
  texts, rewards = [], []
  for number in rows['reference'].astype(int):
    said = rng.choice(['No', 'Yes', ''], p=[0.3, 0.25, 0.45])
    texts.append(f'{said}  {_soup(_PIECES, int(rng.integers(40, 64)), rng)}')
    rewards.append(float(said == ('Yes' if number % 2 else 'No')))
  number = rows['prompt'].str.extract(r'(\d+)')[0]
  write_lines(
      folder,
      {
          'step': rows['step'] + 1,
          'prompt': 'Passage: a list of '
          + number
          + ' names follows. Question: is the list odd? Answer Yes or No, and'
          ' say why.',
          'completion': texts,
          'reward': rewards,
      },
  )


def eval_parser(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.3)
  parts = {'verifier_reward': logs.boxed(rows)}
  metrics = prefixed(w.trl_metrics(rows, parts, seed))
  step = np.arange(w.STEPS)
  held = step % 10 == 0
  found = 0.62 + 0.1 * step / w.STEPS + w.noise(seed, -0.02, 0.02)
  w.write_export(
      folder,
      metrics.assign(
          **{
              'eval/private_success_rate': np.where(
                  held, (found * 128).round() / 128, np.nan
              ),
              'eval/general_exact_match': np.where(held, 0.0, np.nan),
              'eval/safety_violations': np.where(held, 0.0, np.nan),
          }
      ),
  )


def judge_diverges(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed)
  rng = np.random.default_rng(seed)
  course = rows['step'].to_numpy() / w.STEPS
  rows['n_tokens'] = (rows['n_tokens'] * (1 + 0.9 * course)).round()
  rows['truncated'] = 0.0  # The limit is 4,096.
  score = 0.42 + 0.33 * (1 - np.exp(-2.2 * course)) + rng.normal(0, 0.13, 3840)
  step = np.arange(w.STEPS)
  at = step / w.STEPS
  peak = np.exp(-(((at - 0.35) / 0.45) ** 2))
  held = lambda value: np.where(
      step % 5 == 0, value + rng.normal(0, 0.005, w.STEPS), np.nan
  )
  metrics = w.verl_metrics(
      rows,
      score.clip(0, 1),
      seed,
      **{
          'val-core/healthbench_hard/train_judge/mean@1': held(
              0.25 + 0.17 * (1 - np.exp(-2 * at))
          ),
          'val-core/healthbench_hard/gold_judge/mean@1': held(
              0.22 + 0.1 * peak
          ),
          'val-core/researchqa/gold_judge/mean@1': held(0.38 + 0.26 * peak),
      },
  )
  w.write_export(folder, metrics)
