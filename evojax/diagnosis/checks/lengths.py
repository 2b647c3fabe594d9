"""Checks of lengths: what a reward makes of them, and what a limit does."""

import numpy as np
import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
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
_CUT, _LEFT = 0.1, 0.34  # Share cut at first, and what is left of it later.
_SHORTER = 0.2  # Fall of the length, relative to it.


def reward_by_length(run: form.Run) -> findings.Finding | None:
  """Detect a reward that is a function of the length, and least in its middle.

  A reward for a wanted length, or for keeping a limit, only has a maximum.
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
  """Return masks of what is solved and not, or of both sides of a gap."""
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
  """Return the length at which the reward dips; None if it is no such function.

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
      severity='note',  # What was cut may have been wrong at any length.
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


CHECKS = (reward_by_length, limit_shortens)
