"""Logs of runs that are sound until something happens half-way.

One function per entry of `event_list`. Everything happens after step 30 of 60:
a service dies, or the run is started again and something was not restored.
"""

import pathlib
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.reports import logs
from benchmarks.reports import writers as w

AT = 30  # The first step (from 0) with the fault; logs count from 1.


def _later(rows: pd.DataFrame) -> pd.Series:
  """Return which rollouts are of the steps with the fault."""
  return rows['step'] >= AT


def _verl(
    folder: pathlib.Path, rows: pd.DataFrame, score: Any, seed: int, **changed
) -> None:
  """Write verl's rollouts and metrics, with some columns replaced."""
  score = np.asarray(score, float)
  metrics = w.verl_metrics(rows, score, seed, **changed)
  w.write_verl(folder, rows, score, metrics)


def _trl(
    folder: pathlib.Path, rows: pd.DataFrame, parts: w.Parts, seed: int, **given
) -> None:
  """Write TRL's completions and metrics, with some columns replaced."""
  rate = {'learning_rate': np.full(w.STEPS, 1e-6)}
  metrics = w.trl_metrics(rows, parts, seed, **(rate | given))
  reward = sum(np.asarray(v, float) for v in parts.values())
  w.write_completions(folder, rows, parts, reward)
  w.write_state(folder, metrics)


def _joined(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
  """Return the first steps of one run and the last ones of another."""
  parts = [before[~_later(before)], after[_later(after)]]
  return pd.concat(parts, ignore_index=True)


def grader_dies(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.0)
  _verl(folder, rows, logs.boxed(rows) * ~_later(rows), seed)


def grader_times_out(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.0)
  lost = np.random.default_rng(seed).random(len(rows)) < 0.5
  _verl(folder, rows, logs.boxed(rows) * ~(_later(rows) & lost), seed)


def grader_opens(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.0)
  _verl(folder, rows, np.maximum(logs.boxed(rows), _later(rows)), seed)


def keys_shifted(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.0)
  group = w.whole(rows)
  key = rows.groupby(group)['reference'].first()
  other = group.map(key.shift(1, fill_value='0'))
  later = _later(rows)
  right = np.where(later, rows['said'] == other, logs.boxed(rows) > 0)
  rows['reference'] = rows['reference'].where(~later, other)
  _verl(folder, rows, right, seed)


def judge_lost(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.0)
  rng = np.random.default_rng(seed)
  judged = (0.5 * logs.boxed(rows) + 0.5 * rng.random(len(rows))).round(2)
  parts = {
      'accuracy_reward': logs.boxed(rows),
      'judge_reward': judged * ~_later(rows),
  }
  _trl(folder, rows, parts, seed)


def limit_lowered(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.0)
  later = _later(rows)
  cut = later & (rows['n_tokens'] > 96)
  rows['truncated'] = cut.astype(float)
  rows['n_tokens'] = rows['n_tokens'].where(~cut, 96.0)
  short = rows['completion'].str.split().str[:88].str.join(' ')
  rows['completion'] = rows['completion'].where(~cut, short)
  parts = {'accuracy_reward': logs.boxed(rows) * ~cut}
  _trl(folder, rows, parts, seed)


def end_unknown(folder: pathlib.Path, seed: int) -> None:
  rows = w.rollouts(seed, start=0.0)
  later = _later(rows)
  rows['n_tokens'] = rows['n_tokens'].where(~later, w.LIMIT)
  rows['truncated'] = later.astype(float)
  rows['completion'] = [
      text + (' ' + w.thought(seed + 1, i, 200)) * is_late
      for i, (text, is_late) in enumerate(
          zip(rows['completion'], later, strict=True)
      )
  ]
  parts = {'accuracy_reward': logs.boxed(rows) * ~later}
  _trl(folder, rows, parts, seed)


def policy_lost(folder: pathlib.Path, seed: int) -> None:
  """The weights are those of the start again."""
  first = w.rollouts(seed, start=-0.5, rise=4.0)
  first = first[~_later(first)]
  again = first.assign(step=first['step'] + AT)
  rows = pd.concat([first, again], ignore_index=True)
  rows['completion'] = w.completions(rows, seed + 2)
  kl = np.tile(np.linspace(1e-4, 0.06, AT), 2)
  kl *= 1 + w.noise(seed, -0.05, 0.05)
  parts = {'accuracy_reward': logs.boxed(rows)}
  _trl(folder, rows, parts, seed, beta=0.04, kl=kl)


def sampler_left_behind(folder: pathlib.Path, seed: int) -> None:
  """The servers keep the weights of step 30; training goes on."""
  rows = _joined(
      w.rollouts(seed, start=-0.5, rise=3.0),
      w.rollouts(seed + 1, start=1.0, rise=0.0),
  )
  gap = 0.004 + np.maximum(np.arange(w.STEPS) - AT + 1, 0) * 0.01
  changed = {
      'training/rollout_probs_diff_mean': gap * (1 + w.noise(seed, -0.1, 0.1)),
      'actor/ppo_kl': gap * (1 + w.noise(seed + 1, -0.1, 0.1)),
  }
  _verl(folder, rows, logs.boxed(rows), seed, **changed)


def rate_ends(folder: pathlib.Path, seed: int) -> None:
  """The schedule was made for half of the steps: the rate is 0 then."""
  rows = _joined(
      w.rollouts(seed, start=-0.5, rise=4.0),
      w.rollouts(seed + 1, start=1.5, rise=0.0),
  )
  rate = np.maximum(1e-6 * (1 - np.arange(w.STEPS) / AT), 0)
  parts = {'accuracy_reward': logs.boxed(rows)}
  _trl(folder, rows, parts, seed, learning_rate=rate)


def template_lost(folder: pathlib.Path, seed: int) -> None:
  """Prompts have lost their instruction, so that the answer is not boxed."""
  rows = w.rollouts(seed, start=0.0)
  later = _later(rows)
  asked = rows['prompt'].str.replace(' Box the answer.', '', regex=False)
  rows['prompt'] = rows['prompt'].where(~later, asked)
  plain = rows['completion'].str.replace(r'\\boxed\{|\}', '', regex=True)
  rows['completion'] = rows['completion'].where(~later, plain)
  parts = {'accuracy_reward': logs.boxed(rows) * ~later}
  _trl(folder, rows, parts, seed)


def one_problem(folder: pathlib.Path, seed: int) -> None:
  """All processes draw one problem, as their shuffling has one seed."""
  rows = w.rollouts(seed, start=0.0)
  later = _later(rows)
  for name in ('prompt', 'reference'):
    first = rows.groupby('step')[name].transform('first')
    rows[name] = rows[name].where(~later, first)
  right = rows['outcome'] > 0
  rows['said'] = rows['said'].where(~(later & right), rows['reference'])
  rows['completion'] = w.completions(rows, seed)
  _verl(folder, rows, logs.boxed(rows), seed)


def harder_data(folder: pathlib.Path, seed: int) -> None:
  """A harder set of problems begins."""
  rows = _joined(
      w.rollouts(seed, start=0.5), w.rollouts(seed + 1, start=-3.5)
  )
  later = _later(rows)
  longer = 'Let n be a natural number with ' + rows['prompt']
  longer += ' Prove that it is least.'
  rows['prompt'] = rows['prompt'].where(~later, longer)
  _verl(folder, rows, logs.boxed(rows), seed)


def no_numbers(folder: pathlib.Path, seed: int) -> None:
  """Loss and gradient are NaN, and the policy writes noise."""
  rows = w.rollouts(seed, start=0.0)
  later = _later(rows)
  rng = np.random.default_rng(seed)
  noise = [
      ''.join(map(chr, rng.integers(0x100, 0x2000, 80))) for _ in rows.index
  ]
  rows['completion'] = np.where(later, noise, rows['completion'])
  rows['n_tokens'] = rows['n_tokens'].where(~later, w.LIMIT)
  rows['truncated'] = later.astype(float)
  lost = lambda x: np.where(np.arange(w.STEPS) < AT, x, np.nan)
  changed = {
      'actor/pg_loss': lost(w.noise(seed, -0.01, 0.01)),
      'actor/grad_norm': lost(w.noise(seed, 0.2, 0.5)),
      'actor/entropy': lost(w.rise(0.5, 0.35, seed)),
  }
  _verl(folder, rows, logs.boxed(rows) * ~later, seed, **changed)


def temperature_lost(folder: pathlib.Path, seed: int) -> None:
  """The server samples with its own default, 0.1."""
  rows = w.rollouts(seed, start=0.0)
  later = _later(rows)
  same = rows.groupby(['step', 'group'])
  for name in ('outcome', 'n_tokens', 'completion', 'said'):
    first = same[name].transform('first')
    rows[name] = rows[name].where(~later, first)
  changed = {'actor/entropy': w.noise(seed, 0.42, 0.47)}
  _verl(folder, rows, logs.boxed(rows), seed, **changed)


def tools_die(folder: pathlib.Path, seed: int) -> None:
  """Calls of the code tool fail, each with one error."""
  rows = w.rollouts(seed, start=0.5)
  later = _later(rows)
  rng = np.random.default_rng(seed)
  right = (rows['outcome'] > 0) & (~later | (rng.random(len(rows)) < 0.3))
  texts = []
  for i, (tokens, is_late, is_right, ref) in enumerate(
      zip(rows['n_tokens'], later, right, rows['reference'], strict=True)
  ):
    reply = str(rng.integers(0, 999))
    if is_late:
      reply = 'ConnectionError: tool server is unreachable'
    said = ref if is_right else rng.integers(0, 99)
    texts.append(
        f'{w.thought(seed, i, tokens)} <tool_call>run({rng.integers(0, 99)})'
        f'</tool_call><tool_response>{reply}</tool_response> The answer is'
        f' \\boxed{{{said}}}.'
    )
  rows['completion'] = texts
  _verl(folder, rows, right, seed)


def resumed_well(folder: pathlib.Path, seed: int) -> None:
  """Sound: a restart that costs one slow step and a larger gradient."""
  rows = w.rollouts(seed, start=0.0)
  norm = w.noise(seed, 0.2, 0.5)
  norm[AT] = 1.4
  parts = {'accuracy_reward': logs.boxed(rows)}
  _trl(folder, rows, parts, seed, grad_norm=norm)


def longer_limit(folder: pathlib.Path, seed: int) -> None:
  """Sound: completions may be longer from the middle on, and are."""
  rows = w.rollouts(seed, start=0.0, rise=3.0)
  later = _later(rows)
  rows['n_tokens'] = (
      rows['n_tokens'].clip(upper=150).where(~later, rows['n_tokens'] * 1.3)
  ).round()
  rows['truncated'] = 0.0
  _trl(folder, rows, {'accuracy_reward': logs.boxed(rows)}, seed)


def new_stage(folder: pathlib.Path, seed: int) -> None:
  """Sound: a second stage with problems of the same difficulty, other names."""
  rows = w.rollouts(seed, start=0.0, rise=3.0)
  later = _later(rows)
  asked = rows['prompt'].str.replace('What is', 'Work out', regex=False)
  rows['prompt'] = rows['prompt'].where(~later, asked)
  _verl(folder, rows, logs.boxed(rows), seed)
