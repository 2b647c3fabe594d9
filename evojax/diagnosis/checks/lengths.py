"""Checks of lengths: how they are paid, limited and logged."""

import re

import numpy as np
import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.diagnosis.checks import shares
from evojax.stats import intervals
from evojax.stats import trends

_SURE = 0.01
_FEWEST = 200  # Rollouts of one branch.
_VALUES = 20  # Fewest different values of a continuous reward or length.
_BINS = 24
# Difference of the rewards of equally long completions, as a share of the range
# of rewards, that counts as none.
_FUNCTION = 0.02
_MOST = 0.9  # Share of the pairs of such completions.
# Rise or fall of the reward, as a share of its range, that is not noise.
_SWING = 0.3
_GAP = 0.1  # Gap between two branches, as a share of the range.
_CUT, _LEFT = 0.1, 0.34  # Initial share cut, and how much of it is left later.
_SHORTER = 0.2  # Fall of the length, relative to it.
_FORM = 32.0  # Tokens of a longer answer, which has no fixed form.
_SAME = 1e-6  # Difference of lengths that counts as none.
_OFTEN_CUT = 0.5  # Share cut from which a fixed length is that of the limit.
_NEARLY_ALL = 0.9  # Share of the steps.
_READ, _ENOUGH = 2000, 100  # Completions that are read, and the fewest.
# Difference between the 10 % shortest and longest completions, relative to the
# median.
_ALIKE_LONG = 0.2
_WRITTEN = 200.0  # Characters of a longer answer.
_CUT_OFF = 0.6  # Share that ends within a sentence.
# Ends of a sentence, of a line of code and of a marked answer.
_COMPLETE = re.compile(
    r'[\d.!?;)\]}>"\'`*%\u2026\u3002\uff01\uff1f\u201d\u00bb]$'
)
_LABEL = re.compile(r'(?:^|\s)([A-Z][a-z]+):')  # It begins a speaker's turn.
_FIT = 0.9  # Share of the variance of lengths that texts explain.
# Minimum ratio to the share that completions alone explain, and the factor by
# which a character of a prompt may count more or less than one of a completion.
_BETTER, _ALIKE = 1.5, 2.0
_ASCII = 0.95  # Share of characters that take no more than a token each.


def reward_by_length(run: form.Run) -> findings.Finding | None:
  """Detect a reward that is a function of the length, and least in its middle.

  A reward for a target length, or for keeping a limit, only has a maximum.
  """
  rows = run.rows('characters')
  names = [form.PART + part for part in run.parts] + ['reward']
  names = [name for name in names if name in rows]
  if not names:
    raise form.not_logged(['reward'])
  for name in names:
    table = rows.dropna(subset=[name])
    for branch in _branches(table, name):
      part = table[branch].sort_values('characters', kind='stable')
      least = _dip(part['characters'].to_numpy(), part[name].to_numpy())
      if least is None:
        continue
      what = name.removeprefix(form.PART)
      near = (part['characters'] - least).abs().sort_values(kind='stable')
      return findings.Finding(
          check='reward_by_length',
          severity='warning',
          text=f'{"the part " * (name != what)}{what} depends on the length'
          f' alone, is least at about {least:.0f} characters, and higher for'
          ' shorter and for longer completions',
          numbers=(findings.Number(name='characters', value=least),),
          rows=tuple(map(int, near.index[:6])),
          change=f'{words.word(run.format, "reward")}: are length and limit in'
          ' the same unit, tokens or characters? a cosine rises again beyond'
          ' its limit',
      )
  return None


def _branches(rows: pd.DataFrame, name: str) -> list[np.ndarray]:
  """Return masks of solved and unsolved rollouts, or of both sides of a gap."""
  if 'outcome' in rows:
    solved = rows['outcome'].to_numpy() > 0.5
    return [solved, ~solved]
  values = rows[name].to_numpy()
  order = np.sort(values)
  gaps = np.diff(order)
  if not len(gaps) or gaps.max() < _GAP * np.ptp(order):
    return [np.ones(len(values), bool)]
  above = values > order[int(gaps.argmax())]
  return [above, ~above]


def _dip(length: np.ndarray, reward: np.ndarray) -> float | None:
  """Return the length at which the reward dips; None without such a dip.

  Args:
    length: Characters, ascending.
    reward: Reward of each of these completions.
  """
  span = float(np.ptp(reward)) if len(reward) else 0.0
  if len(reward) < _FEWEST or span < 1e-6:
    return None
  if min(len(np.unique(reward)), len(np.unique(length))) < _VALUES:
    return None
  near = np.diff(length) <= np.median(np.diff(length)) + 1
  if np.quantile(np.abs(np.diff(reward))[near], _MOST) > _FUNCTION * span:
    return None
  means = np.array([part.mean() for part in np.array_split(reward, _BINS)])
  depth = np.minimum(
      np.maximum.accumulate(means) - means,
      np.maximum.accumulate(means[::-1])[::-1] - means,
  )
  if depth.max() < _SWING * span:
    return None
  return float(np.array_split(length, _BINS)[int(depth.argmax())].mean())


def limit_shortens(run: form.Run) -> findings.Finding | None:
  """Detect completions that get shorter until a limit cuts no more of them."""
  steps, length = run.course('length')
  _, cut = run.course('truncated')
  early = slice(max(len(cut) // 8, 2))
  late = slice(-max(len(cut) // 3, 4), None)
  first, last = float(cut[early].mean()), float(cut[late].mean())
  change = trends.change_point(length)
  if change.p > _SURE or first < _CUT or last > _LEFT * first:
    return None
  if length[late].mean() > (1 - _SHORTER) * length[early].mean():
    return None
  limit = run.settings.get('max_tokens')
  return findings.Finding(
      check='limit_shortens',
      severity='note',  # Cut completions may have been wrong at any length.
      text=f'completions get shorter, from {length[early].mean():.0f} to'
      f' {length[late].mean():.0f}, while {first:.0%} and then {last:.0%} of'
      ' them are cut: a cut completion earns nothing, so that the policy'
      ' learns to be short',
      since=int(steps[change.index]),
      p=change.p,
      change=f'{run.limit_name}'
      + (f' {limit:g} -> {2 * limit:g}' if limit else ' x 2')
      + ', if longer ones are wanted',
      curves=(('length', steps, length),),
  )


def fixed_length(run: form.Run) -> findings.Finding | None:
  """Detect a mean length that is one number in all steps, or hardly varies.

  If no length is logged, those of the completions on disk are used.
  """
  if 'length' not in run.steps and 'completion' in run.rollouts:
    return _never_end(run)
  steps, length = _logged(run)
  if np.ptp(length) > _SAME or length[0] <= _FORM:
    return None
  limit = run.settings.get('max_tokens')
  if limit and length[0] >= limit:
    return None
  if 'truncated' in run.steps and (
      float(run.steps['truncated'].mean()) > _OFTEN_CUT
  ):
    return None
  cut = '' if 'truncated' in run.steps else (
      '; or all completions are as long as their limit'
      f' ({run.limit_name}), which cuts them'
  )
  return findings.Finding(
      check='fixed_length',
      severity='warning',
      text=f'the mean length of completions is {length[0]:g} tokens in all'
      f' {len(length)} steps, while that of samples varies',
      numbers=(findings.Number(name='length', value=float(length[0])),),
      change='look up what is logged as the length: it may be that of the'
      ' prompt, or of a row with its padding (take the sum of the mask of the'
      f' completion instead){cut}',
      curves=(('length', steps, length),),
  )


def _never_end(run: form.Run) -> findings.Finding | None:
  """Find completions of nearly one length that end within a sentence.

  Completions of a fixed form are alike in length, too, but complete.
  """
  rows = run.late(run.rows('completion', 'characters'))
  rows = shares.thinned(rows, _READ)
  if len(rows) < _ENOUGH:
    raise form.too_few(len(rows), 'completion', _ENOUGH)
  if 'truncated' in {*run.rollouts, *run.steps} or run.has_turns:
    return None  # `truncation` reports limits.
  short, middle, long = np.quantile(rows['characters'], [0.1, 0.5, 0.9])
  if middle < _WRITTEN or long - short > _ALIKE_LONG * middle:
    return None
  texts = rows['completion'].str.rstrip()
  cut = intervals.mean((~texts.str.contains(_COMPLETE)).astype(float))
  if cut.low < _CUT_OFF:
    return None
  labels = set.intersection(
      *(set(_LABEL.findall(text)) for text in rows.get('prompt', ['']))
  )
  more = [bool(labels.intersection(_LABEL.findall(text))) for text in texts]
  turns = ''
  if np.mean(more) > 0.5:
    turns = f', and {np.mean(more):.0%} hold further turns'
  return findings.Finding(
      check='fixed_length',
      severity='critical' if turns else 'warning',
      text=f'completions are about equally long ({short:.0f} to {long:.0f}'
      f' characters), {cut.value:.0%} of them end within a sentence{turns}:'
      ' none ends by itself',
      numbers=(findings.number('end within a sentence', cut, 'share'),),
      rows=tuple(map(int, rows.index[-6:])),
      change='a minimum length (min_length, min_new_tokens) must be far below'
      ' the limit, and the token that ends a completion neither suppressed nor'
      f' unknown to the sampler; or {run.limit_name} x 2, if they are long',
  )


def _logged(run: form.Run) -> tuple[np.ndarray, np.ndarray]:
  """Return steps and mean lengths from the metrics, not from the rollouts.

  Raises:
    form.NotLogged: If fewer than twice `form.MIN_STEPS` steps have one.
  """
  if 'length' not in run.steps:
    raise form.not_logged(['length'])
  mean = run.steps.set_index('step')['length'].dropna()
  if len(mean) < 2 * form.MIN_STEPS:
    raise form.too_few(len(mean), 'step', 2 * form.MIN_STEPS, 'of length')
  return mean.index.to_numpy(), mean.to_numpy(np.float64)


def other_length(run: form.Run) -> findings.Finding | None:
  """Detect mean lengths that the completions on disk cannot have.

  They are larger than the number of characters, or are those of prompt and
  completion together. The latter vary with the lengths of prompts, and a
  character of a prompt counts about as much as one of a completion.
  """
  steps, length = _logged(run)
  rows = run.rows('characters')
  if 'n_tokens' in rows:
    raise form.NotLogged('rollouts have lengths of their own')
  by = rows.groupby('step')
  table = pd.DataFrame({'length': length}, index=steps)
  table['written'] = by['characters'].mean()
  if 'prompt' in rows:
    table['asked'] = rows['prompt'].str.len().groupby(rows['step']).mean()
  table = table.dropna()
  if len(table) < 2 * form.MIN_STEPS:
    raise form.too_few(
        len(table), 'step', 2 * form.MIN_STEPS, 'of length and completions'
    )
  per = table['length'].mean() / table['written'].mean()
  if _whole(table):
    said = 'those of prompt and completion together'
  elif (
      (table['length'] > table['written']).mean() >= _NEARLY_ALL
      and per > 1
      and _is_ascii(rows)
  ):
    said = f'{per:.2g} tokens for each character of the completions'
  else:
    return None
  return findings.Finding(
      check='other_length',
      severity='warning',
      text=f'the lengths of completions that are logged, {length.mean():.0f}'
      f' tokens on average, are {said}',
      numbers=(
          findings.Number(
              name='characters of a completion',
              value=float(table['written'].mean()),
          ),
      ),
      rows=tuple(map(int, rows.index[:6])),
      change='look up what is logged as the length: the tokens of a completion'
      ' begin after its prompt and end before the padding; check whether the'
      ' mask of the loss and the limit of tokens count the same tokens',
      curves=(('length', steps, length),),
  )


def _whole(table: pd.DataFrame) -> bool:
  """Return whether lengths are those of prompts and completions together."""
  if 'asked' not in table or min(map(np.ptp, table.to_numpy().T)) < 1:
    return False
  y = table['length'].to_numpy()
  ones = np.ones(len(table))

  def fit(*names: str) -> tuple[np.ndarray, float]:
    x = np.column_stack([ones, *(table[name] for name in names)])
    found = np.linalg.lstsq(x, y, rcond=None)[0]
    return found[1:], 1 - float(np.var(y - x @ found) / np.var(y))

  (written, asked), both = fit('written', 'asked')
  _, alone = fit('written')
  return bool(
      both > _FIT
      and both > _BETTER * alone
      and written > 0
      and written / _ALIKE < asked < _ALIKE * written
  )


def _is_ascii(rows: pd.DataFrame) -> bool:
  """Return whether nearly all characters of completions are ASCII."""
  if 'completion' not in rows:
    return False
  text = ''.join(rows['completion'].iloc[:: max(len(rows) // 100, 1)])
  return sum(map(str.isascii, text)) >= _ASCII * max(len(text), 1)


CHECKS = (reward_by_length, limit_shortens, fixed_length, other_length)
