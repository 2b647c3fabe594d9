"""The page of a run, `report.html`: everything it did and why, in one file."""

import base64
from collections import defaultdict
import functools
import hashlib
import inspect
import os
import pathlib
from typing import Any

import jinja2

from evojax import config as config_lib
from evojax.harness import run as run_lib
from evojax.ledger import budget
from evojax.ledger import calibration
from evojax.ledger import history
from evojax.ledger import records
from evojax.report import charts
from evojax.report import diffs
from evojax.report import lineage
from evojax.report import numerals
from evojax.report import rollouts
from evojax.report import sealed
from evojax.report import svg
from evojax.report import trials
from evojax.runtime import workdir as workdir_lib

# Versions whose rollouts and flips are on the page: a run of hundreds would
# make it too large to open. The lineage first, then the newest.
MAX_READABLE = 40
_TEMPLATES = pathlib.Path(__file__).with_name('templates')


def _layers(
    diagnoses: list[records.Diagnose],
) -> dict[str, list[tuple[records.Measure, svg.Chart]]]:
  """Return layer -> its newest measures, each drawn over all diagnoses."""
  tables = [
      (f'{row.version}, trial {row.trial}', {m.name: m for m in row.measures})
      for row in diagnoses
  ]
  layers = {name: [] for name in run_lib.LAYERS}
  # A later diagnosis wins: it has the current unit and limits.
  for name, newest in {n: m for _, t in tables for n, m in t.items()}.items():
    series = [(where, table.get(name)) for where, table in tables]
    while series[-1][1] is None:
      series.pop()
    drawn = newest, charts.measure(series)
    layers.setdefault(newest.layer, []).append(drawn)
  return layers


def _readable(run: history.History) -> set[str]:
  """Return the names of the trials whose rollouts are shown."""
  trained = [t.name for t in reversed(run.trials) if t.arms]
  # The sort is stable: the newest come first in both parts.
  trained.sort(key=lambda name: name not in run.lineage)
  return set(trained[:MAX_READABLE])


def _hash_source(text: str) -> str:
  """Return the policy expression that lets one inline script run alone."""
  digest = hashlib.sha256(text.encode()).digest()
  return f"'sha256-{base64.b64encode(digest).decode()}'"


@functools.cache  # Compiling the templates takes longer than a page.
def environment() -> jinja2.Environment:
  """Return templates that escape all text they are given."""
  made = jinja2.Environment(
      loader=jinja2.FileSystemLoader(_TEMPLATES),
      autoescape=True,
      trim_blocks=True,
      lstrip_blocks=True,
      # Plain text only: the results of macros are markup.
      finalize=lambda value: (
          svg.visible(value) if type(value) is str else value
      ),
  )
  made.filters |= dict(inspect.getmembers(numerals, inspect.isfunction))
  made.filters |= {'path': svg.path, 'value_text': diffs.value_text}
  return made


def _context(path: pathlib.Path, run: history.History) -> dict[str, Any]:
  """Return all that the template shows."""
  opened = run.find(records.Open)
  config = config_lib.flatten(opened.config) if opened else {}
  scale = charts.effects_scale(run.trials)
  readable = _readable(run)
  seed = run.base.harness if run.base else opened.harness if opened else ''
  last = next(
      (t.design.harness for t in run.kept if t.name == run.head and t.design),
      seed,
  )
  verdicts: dict[str, float] = defaultdict(float)
  for trial in run.trials:
    verdicts[trial.kind] += trial.device_seconds
  diagnoses = run.all(records.Diagnose)
  expected = lambda trial: trial.expected
  backtested = lambda trial: trial.backtested
  return {
      'run': run,
      'config': config,
      'name': str(config.get('name') or path.resolve().name),
      'verdict': sealed.verdict(run),
      'scores': sealed.scores(run.find(records.Final)),
      'forked': opened.forked if opened else '',
      'lineage': lineage.chart(run) if run.trials else None,
      'training': charts.training(run),
      'layers': _layers(diagnoses),
      'diagnosed': [row.version for row in diagnoses],
      'sections': [
          trials.section(path, trial, scale, config, trial.name in readable)
          for trial in run.trials
      ],
      'scale': scale,
      'shown': len(readable),
      'base_sample': rollouts.sample(path, run.base.folder if run.base else ''),
      'retrained': [
          (arm.folder, chart)
          for arm in run.all(records.Retrain)
          if (chart := charts.retrained(arm))
      ],
      'predictions': [
          (
              name,
              charts.scatter(run.trials, predict),
              calibration.row('all', run.trials, predict),
          )
          for name, predict in (
              ('Hypotheses', expected),
              ('Backtests', backtested),
          )
      ],
      'calibration': [
          (name, calibration.by(run.trials, key, expected))
          for name, key in (
              ('class', lambda trial: trial.intervention_class or 'none'),
              ('proposer', lambda trial: trial.proposer or 'none'),
          )
      ],
      'spent': budget.spent(run.rows),
      'dollars_per_hour': config.get('evolve.dollars_per_device_hour'),
      'points': budget.promoted_points(run.rows),
      'per_point': budget.per_point(run.rows),
      'cost_groups': charts.cost_groups(run),
      'cost_chart': charts.costs(run),
      'verdicts': verdicts,
      'evolved': (
          diffs.compare(path, seed, last, config) if last != seed else None
      ),
  }


def build(workdir: str | os.PathLike[str]) -> pathlib.Path:
  """Write the page of a run, at any moment of it.

  The page is one file: no network, no other file, one script that its content
  policy names by hash. Prompts and completions are shown as text.

  Args:
    workdir: Directory with a ledger; evidence and harnesses as far as they are
      there.

  Returns:
    <workdir>/report.html, complete or, after an error, as it was before.

  Raises:
    ValueError: If there is no ledger, or no whole row in it.
    workdir.DiskError: If the page cannot be written.
  """
  path = pathlib.Path(workdir)
  script, style = (
      (_TEMPLATES / name).read_text() for name in ('page.js', 'page.css')
  )
  text = (
      environment()
      .get_template('page.html')
      .render(
          **_context(path, history.read(path)),
          script=script,
          style=style,
          script_source=_hash_source(script),
      )
  )
  target = path / 'report.html'
  workdir_lib.write_atomic(target, text.encode())
  return target
