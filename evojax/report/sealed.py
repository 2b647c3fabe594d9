"""What a run achieved: sealed scores, and the run in one sentence."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from evojax.report import history
from evojax.report import lineage
from evojax.report import numerals
from evojax.report import svg

_NAMES = {
    'base': 'base policy',
    'continued': 'evolved, continued',
    'evolved': 'evolved, from base',
}
_ORDER = (*_NAMES, 'seed', 'random', 'reference')


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A fraction with its 95 % interval."""

  value: float
  interval: tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Score:
  """A policy on the sealed problems; all None where it was not run."""

  name: str
  value: Estimate | None
  strip: svg.Markup | None
  gain: Estimate | None  # Over the base policy.
  behind: Estimate | None  # Of the evolved policy over this one.
  training: float | None  # Tokens sampled to train it ...
  total: float | None  # ... and in its whole run, search included.


def _part(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
  """A mapping inside a row, empty where there is none."""
  value = row.get(name)
  return value if isinstance(value, Mapping) else {}


def _estimate(row: Mapping[str, Any], name: str) -> Estimate | None:
  """{'value', 'low', 'high'} under a name, if it is there."""
  entry = _part(row, name)
  value = history.number(entry.get('value'))
  if value is None:
    return None
  ends = history.interval([entry.get('low'), entry.get('high')])
  return Estimate(value, ends)


def scores(final: Mapping[str, Any]) -> list[Score]:
  """Sealed scores of this run's policies and of those brought in."""
  listed = _part(final, 'scores')
  names = [*(n for n in _ORDER if n in listed), *listed]
  values = {name: _estimate(listed, name) for name in dict.fromkeys(names)}
  ends = [end for v in values.values() if v for end in v.interval or (v.value,)]
  scale = svg.Scale.over(ends, pad=0.15, least=0.05)
  found = []
  for name, value in values.items():
    strip = None
    if value is not None:
      marks: list[tuple] = []
      if value.interval:
        marks.append(('whisker', *value.interval, 'whisker'))
      ours = name in ('continued', 'evolved')
      marks.append(('dot', value.value, f'dot {"kept" if ours else "other"}'))
      label = f'{name}: {numerals.share(value.value)}'
      strip = svg.strip(scale, marks, label=label)
    tokens = _part(_part(final, 'compute'), name)
    found.append(
        Score(
            name=_NAMES.get(name, name),
            value=value,
            strip=strip,
            gain=_estimate(_part(final, 'gains'), name),
            behind=_estimate(_part(final, 'evolved_over'), name),
            training=history.number(tokens.get('training')),
            total=history.number(tokens.get('total')),
        )
    )
  return found


def _against(sealed: Mapping[str, Any]) -> str:
  """The compared runs that say what evolution was worth."""
  others = [
      f'{numerals.share(other.value)} for {what}'
      for name, what in (
          ('seed', 'the seed harness, not evolved'),
          ('reference', 'the reference'),
      )
      if (other := _estimate(sealed, name))
  ]
  return f', against {" and ".join(others)}' if others else ''


def verdict(run: history.History) -> str:
  """The run in one sentence."""
  trials = run.trials
  kept = sum(t.kind == 'keep' for t in trials)
  so_far = f'{kept} of {numerals.counted(len(trials), "change")} kept'
  sealed = _part(run.last('final'), 'scores')
  base, evolved = _estimate(sealed, 'base'), _estimate(sealed, 'evolved')
  if base is not None and evolved is not None:
    low, high = evolved.interval or (evolved.value, evolved.value)
    return (
        f'{so_far}; on sealed problems the final harness takes the base policy'
        f' from {numerals.share(base.value)} to {numerals.share(evolved.value)}'
        f' [{100 * low:.1f}, {100 * high:.1f}]{_against(sealed)}.'
    )
  gained = numerals.points(lineage.levels(run).get(run.head, 0.0))
  on_dev = f'{gained} points on dev by the sum of their effects'
  if run.ended:
    return f'Ended ({run.ended}), not sealed: {so_far}, {on_dev}.'
  where = run.rows[-1]['step']
  if not trials:
    return f'Running: no trial yet; the last step on record is {where}.'
  return f'Running, last step {where}: {so_far}, {on_dev}.'
