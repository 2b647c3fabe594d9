"""Synthetic runs in which something breaks at a step, or only seems to."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from evojax.diagnosis import form
from tests.diagnosis import made

AT = 20  # The step of the break, of 40 that count from 0.


def refused(share: float, marked: bool = True) -> form.Run:
  """Return a run whose right answers count as wrong from a step on.

  Args:
    share: Share of them.
    marked: Whether answers are marked from there on, as they were before.
  """
  rows = made.rollouts(rise=1.0)
  said = rows['completion'].str.extract(r'<(\d+)>')[0]
  late = rows['step'] >= AT
  boxed = 'so \\boxed{' + said + '}.'
  rows['completion'] = boxed.where(marked | ~late, 'so ' + said + '.')
  lost = late & (np.random.default_rng(1).random(len(rows)) < share)
  for name in ('outcome', 'part_correct'):
    rows[name] = rows[name].where(~lost, 0.0)
  return made.run(rows, drop=('format_ok', 'part_format'))


def other_keys(share: float) -> form.Run:
  """Return a run in which a share of the problems get other keys at a step."""
  rows = made.rollouts(problems=60)
  chosen = (rows['step'] >= AT) & (rows['group'] < 8 * share)
  other = (rows['reference'].astype(int) + 7).astype(str)
  rows['reference'] = rows['reference'].where(~chosen, other)
  return made.run(rows)


def judged(function: Callable[..., np.ndarray]) -> form.Run:
  """Return a run with a part of steps and of random numbers in [0, 1)."""
  rows = made.rollouts()
  noise = np.random.default_rng(0).random(len(rows))
  rows['part_judge'] = function(rows['step'].to_numpy(), noise)
  return made.run(rows)


def drawn(count: Callable[[int], int]) -> form.Run:
  """Return a run whose steps have as many problems as a function says."""
  rows = made.rollouts()
  kept = rows['group'] % rows['step'].map(count)
  rows['prompt'] = rows['step'].astype(str) + ' ' + kept.astype(str) + '?'
  return made.run(rows)


def alike(entropy: float, start: int = AT) -> form.Run:
  """Return a run whose groups are one text from a step on."""
  rows = made.rollouts()
  first = rows.groupby(['step', 'group'])['completion'].transform('first')
  late = rows['step'] >= start
  rows['completion'] = rows['completion'].where(~late, first)
  return made.run(rows, entropy=np.full(40, entropy))


def drifted(
    share: float, start: int = AT, texts: tuple[str, ...] = ('所以答案是',)
) -> form.Run:
  """Return a run with a share of completions in other scripts from a step on.

  Args:
    share: The share.
    start: The step.
    texts: What stands in these completions, one after the other.
  """
  rows = made.rollouts()
  chosen = (rows['step'] >= start) & (
      np.random.default_rng(2).random(len(rows)) < share
  )
  said = pd.Series(np.resize(texts, len(rows)), rows.index)
  rows['completion'] = rows['completion'].where(
      ~chosen, said + rows['completion']
  )
  return made.run(rows)


def translated(
    home: str = 'nous avons donc une somme et les parts sont dans le total',
    other: str = 'so we have the sum, which is that of the parts, and it is so',
    asked: str = 'Combien de pommes sont dans les paniers, et pour qui ?',
    program: str = '',
) -> form.Run:
  """Return a run whose thoughts are in another language from a step on.

  Args:
    home: The thoughts before.
    other: The thoughts from there on.
    asked: What the prompts ask for; they name tags, which are English.
    program: What follows the thoughts.
  """
  rows = made.rollouts()
  rows['prompt'] += f' {asked} <think>...</think> <answer>...</answer>'
  said = pd.Series(np.where(rows['step'] >= AT, other, home), rows.index)
  said = '<think>' + said + '</think>\n<answer>' + rows['completion']
  rows['completion'] = said + '</answer>' + program
  return made.run(rows)


def spoken(share: np.ndarray) -> form.Run:
  """Return a run whose completions go on after their turn, by step."""
  rows = made.rollouts()
  chosen = np.random.default_rng(3).random(len(rows)) < share[rows['step']]
  more = rows['completion'] + '<|im_end|>\n<|im_start|>assistant\n'
  rows['completion'] = rows['completion'].where(~chosen, more)
  return made.run(rows)


def copied(times: int) -> form.Run:
  """Return a run in whose groups each text comes several times."""
  rows = made.rollouts()
  place = np.arange(len(rows)) % 8
  source = np.arange(len(rows)) - place + place % (8 // times)
  for name in ('completion', 'outcome', 'format_ok'):
    rows[name] = rows[name].to_numpy()[source]
  return made.run(rows, entropy=np.full(40, 0.5))


def constant(paid: float, share: float = 1.0) -> form.Run:
  """Return a run that ends with one action for every problem.

  Args:
    paid: Its reward; others earn 0.3 on average.
    share: Share of the late completions that are this action.
  """
  rows = made.rollouts(rise=0)
  late = rows['step'] >= AT
  late &= np.random.default_rng(4).random(len(rows)) < share
  number = rows['prompt'].str.extract(r'(\d+)')[0]
  rows['completion'] = rows['completion'].where(
      ~late, '{"act": "accept", "id": "case-' + number + '"}'
  )
  rows['prompt'] = 'Open: case-' + number
  reward = np.where(late, paid, 0.6 * rows['outcome'])
  return made.run(
      rows.drop(columns=['outcome', 'part_correct']),
      reward=lambda e: reward,
  )


FAULTS = {
    'fallback': (lambda: constant(0.8), ('one_text',)),
    'own_turns': (
        lambda: spoken(np.linspace(0, 0.9, 40)),
        ('roles_written',),
    ),
    'one_seed': (lambda: copied(2), ('same_samples',)),
    'other_language': (lambda: drifted(0.6), ('other_language',)),
    'thoughts_in_english': (translated, ('other_language',)),
    'keys_change': (lambda: other_keys(1.0), ('keys_change',)),
    'judge_fails': (
        lambda: judged(lambda step, u: np.where(step < AT, u, 0.0)),
        ('part_stops',),
    ),
    'fewer_problems': (
        lambda: drawn(lambda step: 8 if step < AT else 2),
        ('fewer_problems',),
    ),
    'cold_server': (lambda: alike(0.5), ('same_samples',)),
}
