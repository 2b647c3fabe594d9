"""Sealed scores, and the run in one sentence."""

import dataclasses

from evojax.ledger import history
from evojax.ledger import records
from evojax.report import numerals
from evojax.report import svg

_NAMES = {
    'base': 'base policy',
    'continued': 'evolved, continued',
    'evolved': 'evolved, from base',
}
_ORDER = (*_NAMES, 'seed', 'random', 'reference')


@dataclasses.dataclass(frozen=True)
class Score:
  """A policy on the sealed problems; all None where it was not run."""

  name: str
  value: records.Estimate | None
  strip: svg.Markup | None
  gain: records.Estimate | None  # Over the base policy.
  behind: records.Estimate | None  # The evolved policy's gain over this one.
  tokens: records.Tokens | None


def scores(final: records.Final | None) -> list[Score]:
  """Return the sealed scores of this run's policies and of compared runs."""
  if final is None:
    return []
  names = [*(n for n in _ORDER if n in final.scores), *final.scores]
  ends = [end for s in final.scores.values() if s for end in (s.low, s.high)]
  scale = svg.Scale.over(ends, pad=0.15, least=0.05)
  found = []
  for name in dict.fromkeys(names):
    value = final.scores[name]
    strip = None
    if value is not None:
      kind = 'kept' if name in ('continued', 'evolved') else 'other'
      strip = svg.strip(
          scale,
          [
              ('whisker', value.low, value.high, 'whisker'),
              ('dot', value.value, f'dot {kind}'),
          ],
          label=f'{name}: {numerals.share(value.value)}',
      )
    found.append(
        Score(
            name=_NAMES.get(name, name),
            value=value,
            strip=strip,
            gain=final.gains.get(name),
            behind=final.evolved_over.get(name),
            tokens=final.compute.get(name),
        )
    )
  return found


def _against(final: records.Final) -> str:
  """Return the scores of the compared runs that show what evolution gained."""
  others = [
      f'{numerals.share(other.value)} for {what}'
      for name, what in (
          ('seed', 'the seed harness, not evolved'),
          ('reference', 'the reference'),
      )
      if (other := final.scores.get(name))
  ]
  return f', against {" and ".join(others)}' if others else ''


def verdict(run: history.History) -> str:
  """Return the run in one sentence."""
  trials = run.trials
  so_far = f'{len(run.kept)} of {numerals.counted(len(trials), "change")} kept'
  if final := run.find(records.Final):
    base, evolved = final.scores['base'], final.scores['evolved']
    return (
        f'{so_far}; on sealed problems the final harness takes the base policy'
        f' from {numerals.share(base.value)} to {numerals.share(evolved.value)}'
        f' [{100 * evolved.low:.1f}, {100 * evolved.high:.1f}]'
        f'{_against(final)}.'
    )
  gained = numerals.points(run.levels.get(run.head, 0.0))
  on_dev = f'{gained} points on dev by the sum of their effects'
  if run.ended:
    return f'Ended ({run.ended}), not sealed: {so_far}, {on_dev}.'
  where = run.rows[-1].record.STEP
  if not trials:
    return f'Running: no trial yet; the last step on record is {where}.'
  return f'Running, last step {where}: {so_far}, {on_dev}.'
