"""Curves of a training by step, one small chart for each number."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import math
import os
import pathlib
import statistics
from typing import Any

from evojax.evidence import schema
from evojax.report import svg
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import numerals

_MOST_POINTS = 300  # Points of a line; with more steps, each is a mean of some.
_COLUMNS = 60  # Columns of the chart of time shares.
_SMOOTH = 20  # The running mean covers a 20th of a line, at least 5 points.
_DEV = 'dev/avg_at_k'
_SECONDS = 'seconds/'


@dataclasses.dataclass(frozen=True)
class Line:
  """One training, or several that continue each other."""

  name: str
  class_: str
  # Metrics of each step; 'step' counts over the whole line.
  rows: Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Curve:
  """One number over the steps."""

  name: str
  last: str  # Its newest value.
  chart: svg.Chart
  doc: str


@dataclasses.dataclass(frozen=True)
class _Number:
  """A quantity to draw: the sum of some metrics."""

  name: str
  doc: str
  metrics: tuple[str, ...]
  _: dataclasses.KW_ONLY
  share: bool = False  # Written in percent.
  varies: bool = False  # Left out if it never changes.

  def of(self, row: Mapping[str, Any]) -> float | None:
    """Return the value of a step; None if the step lacks it."""
    found = [row.get(name) for name in self.metrics]
    found = [v for v in found if isinstance(v, (int, float))]
    return math.fsum(found) if found else None

  def text(self, value: float) -> str:
    return numerals.share(value) if self.share else numerals.short(value)


_CLIPPED = ('clip_low', 'clip_high', 'clip_dual')
_NUMBERS = (
    _Number('reward', 'mean of the rollouts of a step', ('reward',)),
    _Number(
        'solved',
        'share of the rollouts of a step',
        ('outcome',),
        share=True,
    ),
    _Number(
        'KL of the update',
        'nats per token, from the policy that sampled to the updated one; 0'
        ' where a batch gives one update',
        ('approx_kl',),
    ),
    _Number('KL to the reference', 'nats per token', ('ref_kl',)),
    _Number('entropy', 'nats per token', ('entropy',)),
    _Number('gradient norm', 'before it is clipped', ('grad_norm',)),
    _Number(
        'descent', 'fall of the loss by an update, to first order', ('descent',)
    ),
    _Number(
        'clip fraction',
        'share of tokens whose gradient the clip bounds removed; 0 where a'
        ' batch gives one update',
        _CLIPPED,
        share=True,
    ),
    _Number('length', 'mean tokens of a completion', ('n_tokens',)),
    _Number(
        'truncated',
        'share of completions cut by the limit',
        ('truncated',),
        share=True,
    ),
    _Number(
        'dead groups',
        'share of groups with equal rewards, which teach nothing',
        ('dead_groups',),
        share=True,
    ),
    _Number('groups in the update', 'per step', ('groups_kept',), varies=True),
    _Number('learning rate', 'of a step', ('learning_rate',), varies=True),
    _Number(
        'sampler-trainer gap',
        'mean difference of log-probs, nats per token; large where sampler and'
        ' trainer do not agree',
        ('gap',),
    ),
    _Number(
        'KL from the sampler',
        'nats per token, of the trainer at the start of a step',
        ('sampler_kl',),
    ),
    _Number(
        'bounded weights',
        'share of tokens whose importance weight was truncated or masked',
        ('tis_truncated', 'tis_masked'),
        share=True,
    ),
    _Number(
        'effective sample size',
        'of the tokens under their importance weights, as a share',
        ('tis_sample_size',),
        share=True,
    ),
    _Number(
        'rejected',
        'share of tokens that lie too far from the sampler for the update',
        ('rejected_tokens',),
        share=True,
    ),
    _Number('staleness', 'steps behind', ('staleness',), varies=True),
    _Number('tokens per second', 'sampled', ('tokens_per_second',)),
    _Number(
        'MFU',
        'model FLOPs of scores and updates, over the peak of the devices',
        ('mfu',),
        share=True,
    ),
    _Number(
        'goodput',
        'share of the wall time so far that useful steps took',
        ('goodput',),
        share=True,
    ),
    _Number(
        'lost to restarts',
        'seconds, repeated steps included',
        ('lost_seconds',),
        varies=True,
    ),
)
# Class -> (name, phases) of the time of a step; the last entry takes the rest.
_PHASES = {
    'hue-1': ('sampling', ('rollout', 'sync')),
    'hue-2': ('update', ('update',)),
    'hue-3': ('grading and reward', ('grade', 'reward')),
    'hue-4': ('evaluation', ('eval',)),
    'hue-5': ('start, evidence, checkpoints', ()),
}


def read(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """Return the metrics of a training by step, as far as they can be read."""
  found: dict[int, dict[str, Any]] = {}
  try:
    rows = metrics_lib.read(pathlib.Path(folder))
  except OSError:
    return []
  for row in rows:
    with contextlib.suppress(ValueError, TypeError, KeyError):
      found.setdefault(int(row['step']), {}).update(row)
  return [found[step] for step in sorted(found)]


def joined(
    folders: Sequence[str | os.PathLike[str]], start: int = 0
) -> tuple[list[dict[str, Any]], int]:
  """Return the metrics of successive trainings, and the last step."""
  rows = []
  for folder in folders:
    own = read(folder)
    rows += [row | {'step': start + row['step']} for row in own]
    start += max((row['step'] for row in own), default=0)
  return rows, start


def _chunks(values: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
  """Yield at most `most` chunks of consecutive values, of similar sizes."""
  size = max(1, -(-len(values) // most))
  for start in range(0, len(values), size):
    yield values[start : start + size]


def _points(number: _Number, line: Line) -> list[tuple[float, float]]:
  """Return (step, value); with many steps, each value is a mean of some."""
  there = [(row['step'], number.of(row)) for row in line.rows]
  there = [point for point in there if point[1] is not None]
  return [
      tuple(map(statistics.fmean, zip(*chunk, strict=True)))
      for chunk in _chunks(there, _MOST_POINTS)
  ]


def smooth(values: Sequence[float]) -> list[float]:
  """Return the centred running mean; its window is shorter at the ends."""
  half = max(5, len(values) // _SMOOTH) // 2
  return [
      statistics.fmean(values[max(i - half, 0) : i + half + 1])
      for i in range(len(values))
  ]


def _dev_scores(line: Line) -> list[tuple[int, float, float, float]]:
  """Return (step, score, low, high) of the evaluations of a line."""
  names = _DEV, f'{_DEV}_low', f'{_DEV}_high'
  found = [(row['step'], *map(row.get, names)) for row in line.rows]
  return [point for point in found if None not in point]


def _curve(number: _Number, lines: Sequence[Line]) -> Curve | None:
  """Draw one quantity for all lines; None if there is nothing to see."""
  drawn = [(line, _points(number, line)) for line in lines]
  dev = number.metrics == ('outcome',)
  scores = [(line, _dev_scores(line) if dev else []) for line in lines]
  values = [value for _, points in drawn for _, value in points]
  if not values or (number.varies and min(values) == max(values)):
    return None
  ends = [e for _, found in scores for _, *three in found for e in three]
  steps = [step for _, points in drawn for step, _ in points]
  steps += [point[0] for _, found in scores for point in found]
  y = svg.Scale.over(
      values + ends, least=0.02 if number.share else 0 if any(values) else 1
  )
  if min(values + ends) >= 0:  # Most quantities cannot be negative.
    y = svg.Scale(max(y.low, 0), y.high)
  if number.share and max(values + ends) <= 1:
    y = svg.Scale(y.low, min(y.high, 1))
  chart = svg.Chart(
      svg.Scale(min(steps), max(max(steps), min(steps) + 1)),
      y,
      height=110,
      label=f'{number.name} by step',
      class_='small',
  )
  form = (lambda v: f'{100 * v:.3g} %') if number.share else numerals.short
  chart.y_axis((tick, form(tick)) for tick in chart.y.ticks(3))
  whole = [tick for tick in chart.x.ticks(4) if tick == round(tick)]
  chart.x_axis((tick, numerals.short(tick)) for tick in whole)
  for line, points in drawn:
    if not points:
      continue
    x, y = zip(*points, strict=True)
    title = f'{line.name}: {number.text(y[0])} to {number.text(y[-1])}'
    if len(points) == 1:
      chart.add('dot', f'dot {line.class_}', points[0], title=title)
      continue
    chart.add('line', f'{line.class_} thin', *points)
    mean = zip(x, smooth(y), strict=True)
    chart.add('line', f'{line.class_} bold', *mean, title=title)
  for line, found in scores:
    for step, value, low, high in found:
      title = f'{line.name}, dev at step {step}: {numerals.share(value)}'
      chart.add('segment', 'whisker', (step, low), (step, high))
      chart.add('dot', 'dot other', (step, value), title=title)
  doc = number.doc
  if ends:
    doc += '; dots: dev problems, with 95 % intervals'
  last = number.text([points for _, points in drawn if points][-1][-1][1])
  return Curve(number.name, last, chart, doc)


def curves(lines: Sequence[Line]) -> list[Curve]:
  """Return the charts of all quantities that any of the trainings logged."""
  names = {name for line in lines for row in line.rows for name in row}
  parts = sorted(n for n in names if n.startswith(schema.PART_PREFIX))
  numbers = list(_NUMBERS)
  if len(parts) > 1:  # A single part equals the reward.
    numbers[2:2] = [
        _Number(
            f'part {name.removeprefix(schema.PART_PREFIX)}',
            'of the reward, before its weight',
            (name,),
        )
        for name in parts
    ]
  found = (_curve(number, lines) for number in numbers)
  return [curve for curve in found if curve]


def _seconds(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Return the total seconds of rows by class of phase."""
  known = {n: class_ for class_, (_, ns) in _PHASES.items() for n in ns}
  found = dict.fromkeys(_PHASES, 0.0)
  for row in rows:
    for name, value in row.items():
      if name.startswith(_SECONDS) and isinstance(value, (int, float)):
        phase = name.removeprefix(_SECONDS)
        found[known.get(phase, list(_PHASES)[-1])] += value
  return found


def time_groups(
    rows: Sequence[Mapping[str, Any]],
) -> list[tuple[str, float, str]]:
  """Return (name, seconds, class) of the phases of a training."""
  return [
      (_PHASES[class_][0], seconds, class_)
      for class_, seconds in _seconds(rows).items()
  ]


def time_shares(rows: Sequence[Mapping[str, Any]]) -> svg.Chart | None:
  """Draw the share of time of each phase, by step."""
  rows = [row for row in rows if any(n.startswith(_SECONDS) for n in row)]
  if len(rows) < 2:
    return None
  # A row holds the time since the one before it.
  edges = [rows[0]['step'] - 1]
  chart = svg.Chart(
      svg.Scale(edges[0], rows[-1]['step']),
      svg.Scale(0, 1),
      height=110,
      label='Share of time by step',
      class_='bars',
  )
  chart.y_axis((tick, f'{100 * tick:.0f} %') for tick in (0, 0.5, 1))
  whole = [tick for tick in chart.x.ticks(5) if tick == round(tick)]
  chart.x_axis((tick, numerals.short(tick)) for tick in whole)
  for chunk in _chunks(rows, _COLUMNS):
    seconds = _seconds(chunk)
    total, low = math.fsum(seconds.values()) or 1.0, 0.0
    left, right = edges[-1], chunk[-1]['step']
    for class_, value in seconds.items():
      share = value / total
      if share > 0:
        title = f'{_PHASES[class_][0]} to step {right}: {numerals.share(share)}'
        corners = (left, low + share), (right, low)
        chart.add('column', class_, *corners, title=title)
      low += share
    edges.append(right)
  return chart
