"""The page of a diagnosis: one file that needs no network."""

import math
import pathlib
from typing import Any

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import show
from evojax.report import curves
from evojax.report import page as page_lib
from evojax.report import svg
from evojax.runtime import durable
from evojax.runtime import numerals

# Common name -> the metric under which the page of a run draws it.
_DRAWN = {
    'reward': 'reward',
    'outcome': 'outcome',
    'entropy': 'entropy',
    'kl': 'ref_kl',
    'grad_norm': 'grad_norm',
    'descent': 'descent',
    'clip': 'clip_low',
    'length': 'n_tokens',
    'truncated': 'truncated',
    'dead': 'dead_groups',
    'learning_rate': 'learning_rate',
    'gap': 'gap',
}


def write(
    path: pathlib.Path, run: form.Run, diagnosis: findings.Diagnosis
) -> None:
  """Write the page atomically.

  Prompts and completions are shown as text; their control characters are
  visible.
  """
  shown = [
      {
          'it': each,
          'p': show.p_value(each.p),
          'curves': [
              _curve(name, steps, values, each.since)
              for name, steps, values in each.curves
              if len(steps) > 1
          ],
          'rollouts': [show.rollout(run, row) for row in each.rows],
      }
      for each in diagnosis.findings
  ]
  context = {
      'name': f'Diagnosis of {run.path.name or run.path}',
      'state': {'kind': ''},
      'verdict': diagnosis.summary,
      'run': run,
      'diagnosis': diagnosis,
      'findings': shown,
      'unknown': show.by_reason(diagnosis.unknown, lambda each: each.why),
      'curves': curves.curves([curves.Line('this run', 'lineage', _rows(run))]),
      'settings': findings.plain_mapping(run.settings),
      'columns': {**form.STEP, **form.ROLLOUT},
  }
  text = page_lib.render('diagnosis.html', context)
  durable.write_atomic(path, text.encode())


def _rows(run: form.Run) -> list[dict[str, Any]]:
  """Return the logged metrics of each step in the form of a run's page."""
  rows: dict[int, dict[str, Any]] = {}
  for name, metric in _DRAWN.items():
    try:
      steps, values = run.series(name)
    except form.NotLogged:
      continue
    for step, value in zip(steps, values, strict=True):
      rows.setdefault(int(step), {'step': int(step)})[metric] = float(value)
  return [rows[step] for step in sorted(rows)]


def _curve(
    name: str,
    steps: Any,
    values: Any,
    since: int | None,
) -> curves.Curve:
  """Draw a series, and mark the step from which something is wrong."""
  points = [
      (float(x), float(y))
      for x, y in zip(steps, values, strict=True)
      if math.isfinite(y)
  ]
  found = [y for _, y in points]
  y = svg.Scale.over(found, least=1e-6 if any(found) else 1)
  if min(found) >= 0:  # Most quantities cannot be negative.
    y = svg.Scale(max(y.low, 0), y.high)
  chart = svg.Chart(
      svg.Scale(points[0][0], max(points[-1][0], points[0][0] + 1)),
      y,
      height=110,
      label=f'{name} by step',
      class_='small',
  )
  chart.y_axis((tick, numerals.short(tick)) for tick in chart.y.ticks(3))
  whole = [tick for tick in chart.x.ticks(4) if tick == round(tick)]
  chart.x_axis((tick, numerals.short(tick)) for tick in whole)
  chart.add('line', 'lineage bold', *points)
  doc = 'by step'
  if since is not None:
    ends = (since, chart.y.low), (since, chart.y.high)
    chart.add('segment', 'limit critical', *ends)
    doc += f'; the mark is step {since}'
  return curves.Curve(name, numerals.short(points[-1][1]), chart, doc)
