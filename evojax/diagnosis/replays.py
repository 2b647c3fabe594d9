"""Replays: the effect of another reward weight, predicted from rollouts.

Rewards are linear in their weights, so advantages under another weight are
known without new rollouts. An update moves the policy towards the rollouts of
high advantage: rollouts of a group are weighted by exp(A / eta), with eta such
that the weights are at a KL divergence of STEP_KL from equal ones
(self-normalised importance sampling of the tilted policy; relative entropy
policy search, Peters et al. 2010). The replayed gain is the difference of the
solved share between the new and the old advantages, at equal KL. It is computed
from the rollouts alone and ignores how far the policy generalises. It therefore
gives the direction and size of one small step, and is not reported if its
interval contains 0.
"""

import dataclasses

import numpy as np
import pandas as pd

from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.stats import intervals

STEP_KL = 0.1  # Nats per completion.
_MOST_GROUPS = 600


@dataclasses.dataclass(frozen=True)
class Replay:
  """A change of one weight, with its predicted effect."""

  change: str = ''
  text: str = ''
  gain: intervals.Interval | None = None  # Change of the solved share.


def advantages(rewards: np.ndarray) -> np.ndarray:
  """Return group-relative advantages [P, G]: centred and scaled.

  A group with equal rewards has advantage 0 everywhere.
  """
  centred = rewards - rewards.mean(1, keepdims=True)
  return centred / (rewards.std(1, ddof=1, keepdims=True) + 1e-6)


def tilted(a: np.ndarray, kl: float = STEP_KL) -> np.ndarray:
  """Return weights [P, G] of exp(A / eta) at a given KL from equal weights.

  Groups with equal advantages keep equal weights; eta is found by bisection.
  """
  low, high = np.zeros(len(a)), np.full(len(a), 50.0)
  count = a.shape[1]
  for _ in range(40):
    middle = (low + high) / 2
    w = _softmax(a * middle[:, None])
    divergence = (w * np.log(np.maximum(w * count, 1e-12))).sum(1)
    low = np.where(divergence < kl, middle, low)
    high = np.where(divergence < kl, high, middle)
  dead = np.ptp(a, axis=1) < 1e-9
  return np.where(dead[:, None], 1 / count, _softmax(a * low[:, None]))


def _softmax(x: np.ndarray) -> np.ndarray:
  e = np.exp(x - x.max(1, keepdims=True))
  return e / e.sum(1, keepdims=True)


def _even_groups(
    rows: pd.DataFrame, columns: list[str]
) -> dict[str, np.ndarray]:
  """Return columns as [P, G], for the groups of the most common size."""
  size = rows.groupby('group')['group'].transform('size')
  rows = rows[size == size.mode()[0]].sort_values('group', kind='stable')
  g = int(size.mode()[0])
  stride = max(1, len(rows) // g // _MOST_GROUPS)
  return {c: rows[c].to_numpy().reshape(-1, g)[::stride] for c in columns}


def best_weight(run: form.Run) -> tuple[str, Replay]:
  """Return the change of one weight with the largest predicted gain.

  Returns:
    The part and its replay; ('', Replay()) if weights or parts are not known or
    do not reproduce the logged reward, or if no change certainly has a gain.
  """
  weights = run.settings.get('weights') or {}
  parts = [p for p in run.parts if p in weights]
  if len(parts) < 2 or 'outcome' not in run.rollouts:
    return '', Replay()
  columns = [form.PART + p for p in parts]
  rows = run.rollouts.dropna(subset=['reward', 'outcome', 'group', *columns])
  if not len(rows):
    return '', Replay()
  e = _even_groups(rows, ['reward', 'outcome', *columns])
  p, g = e['reward'].shape
  total = sum(weights[n] * e[form.PART + n] for n in parts)
  if g < 2 or p < 8 or not np.allclose(total, e['reward'], atol=1e-3):
    return '', Replay()
  old = (tilted(advantages(total)) * e['outcome']).sum(1)
  best, name = Replay(), ''
  for part in parts:
    if np.allclose(e[form.PART + part], e['outcome']):
      continue
    for factor in (0.0, 0.2, 0.5):
      weight = weights[part] * factor + 0.0  # Avoids -0.
      changed = total + (weight - weights[part]) * e[form.PART + part]
      new = (tilted(advantages(changed)) * e['outcome']).sum(1)
      gain = intervals.bootstrap(p, lambda i, d=new - old: float(d[i].mean()))
      if gain.low > 0 and (
          best.gain is None or gain.value > best.gain.value + 1e-3
      ):
        name, best = part, Replay(
            f'{words.word(run.format, "weight", part)}'
            f' {weights[part]:g} -> {weight:g}',
            f'replayed: {100 * gain.value:+.1f} points'
            f' [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]'
            f' per {STEP_KL:g} nats',
            gain,
        )
  return name, best
