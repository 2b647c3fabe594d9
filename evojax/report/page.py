"""The page of a run, `report.html`: everything it did and why, in one file.

It is written repeatedly during the run (`Live`), and at its end.
"""

import base64
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
import contextlib
import datetime
import functools
import hashlib
import inspect
import os
import pathlib
import time
from typing import Any

from absl import logging
import jinja2

from evojax import config as config_lib
from evojax.harness import run as run_lib
from evojax.ledger import budget
from evojax.ledger import calibration
from evojax.ledger import history
from evojax.ledger import milestones
from evojax.ledger import parting
from evojax.ledger import records
from evojax.report import charts
from evojax.report import curves
from evojax.report import diffs
from evojax.report import lineage
from evojax.report import measures
from evojax.report import rollouts
from evojax.report import sealed
from evojax.report import state
from evojax.report import svg
from evojax.report import training
from evojax.report import trials
from evojax.runtime import durable
from evojax.runtime import goodput
from evojax.runtime import numerals
from evojax.runtime import output
from evojax.runtime import pace
from evojax.runtime import run_files
from evojax.runtime import workdir as workdir_lib

# Number of versions with rollouts and flips: with hundreds, the page would be
# too large to open. The lineage comes first, then the newest.
MAX_READABLE = 40
_EVERY_SECONDS = 5.0  # Minimum time between two pages of a running run.
_TEMPLATES = pathlib.Path(__file__).with_name('templates')


def _layers(
    diagnoses: list[records.Diagnose],
) -> dict[str, list[tuple[records.Measure, svg.Chart]]]:
  """Return layer -> its newest measures, each drawn over all diagnoses."""
  tables = [
      # Named by round, since a diagnosis without a proposal has no trial.
      (f'{row.version}, round {row.round}', {m.name: m for m in row.measures})
      for row in diagnoses
  ]
  layers = {name: [] for name in run_lib.LAYERS}
  # Units and limits of the latest diagnosis are used, since they are current.
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
  # The sort is stable, so the newest come first in both parts.
  trained.sort(key=lambda name: name not in run.lineage)
  return set(trained[:MAX_READABLE])


def _hash_source(text: str) -> str:
  """Return the content policy expression that allows one inline script."""
  digest = hashlib.sha256(text.encode()).digest()
  return f"'sha256-{base64.b64encode(digest).decode()}'"


@functools.cache  # Compiling the templates takes longer than a page.
def environment() -> jinja2.Environment:
  """Return an environment of templates that escape all their text."""
  made = jinja2.Environment(
      loader=jinja2.FileSystemLoader(_TEMPLATES),
      autoescape=True,
      trim_blocks=True,
      lstrip_blocks=True,
      # Only plain strings: the results of macros are markup.
      finalize=lambda value: (
          svg.visible(value) if type(value) is str else value
      ),
  )
  made.filters |= dict(inspect.getmembers(numerals, inspect.isfunction))
  made.filters |= {
      'path': svg.path,
      'percent': svg.length,
      'value_text': diffs.value_text,
      'level': charts.drawn_level,
      'meaning': measures.meaning,
      'statistic': measures.statistic,
  }
  return made


def _lines(
    path: pathlib.Path, run: history.History, arm: str
) -> list[curves.Line]:
  """Return the trainings whose curves are drawn, if they logged any metrics.

  Args:
    path: The run's directory.
    run: Its history.
    arm: Folder of the arm in training, or ''.
  """
  kept = [path / folder for folder in run.policy_arms]
  rows, last = curves.joined(kept)
  found = [curves.Line('trained on through the search', 'lineage', rows)]
  retrained = path / run_files.ARMS / 'final'
  rows = curves.read(retrained)
  found.append(curves.Line('last harness, from the base policy', 'final', rows))
  if arm and path / arm != retrained:
    rows, _ = curves.joined([path / arm], last)
    found.append(curves.Line(f'{arm}, going on', 'now', rows))
  return [line for line in found if line.rows]


def _gamed(path: pathlib.Path, run: history.History) -> rollouts.Gamed:
  """Return what the reward of the last diagnosed version paid for."""
  diagnosis = run.find(records.Diagnose)
  folders = {version.version: version.folder for version in run.versions}
  if diagnosis is None or diagnosis.version not in folders:
    return rollouts.Gamed()
  folder = folders[diagnosis.version]
  arms = {arm.folder: arm.dev for race in run.races for arm in race.arms}
  return rollouts.gamed(path, folder, arms.get(folder, ''))


def _goodput(
    path: pathlib.Path, run: history.History, kind: str
) -> Mapping[str, float]:
  """Return the result of `goodput.of_evolving`; {} for a stopped run."""
  if kind == 'running':
    return goodput.of_evolving(path, run.wall_seconds, time.time())
  summary = state.read_json(path / run_files.SUMMARY, {})
  return summary.get('time', {}) if kind == 'finished' else {}


def _findings(
    diagnoses: list[records.Diagnose],
) -> list[tuple[records.Finding, str]]:
  """Return the findings, each once, with the versions that have it."""
  found: dict[records.Finding, dict[str, None]] = {}
  for row in diagnoses:
    for finding in row.findings:
      found.setdefault(finding, {})[row.version] = None
  return [(finding, ', '.join(of)) for finding, of in found.items()]


def _context(
    path: pathlib.Path,
    run: history.History,
    running: bool,
    partings: Sequence[parting.Parting] = (),
) -> dict[str, Any]:
  """Return all variables of the template."""
  opened = run.find(records.Open)
  config = config_lib.flatten(opened.config) if opened else {}
  where = state.of_history(path, run, config, running)
  lines = _lines(path, run, where.arm)
  layers = _layers(run.all(records.Diagnose))
  loud = lambda m: m.level != 'ok'
  scale = charts.effects_scale(run.trials)
  readable = _readable(run)
  seed = run.base.harness if run.base else opened.harness if opened else ''
  last = run.versions[-1].harness if run.versions else seed
  verdicts: dict[str, float] = defaultdict(float)
  for trial in run.trials:
    verdicts[trial.kind] += trial.device_seconds
  expected = lambda trial: trial.expected
  backtested = lambda trial: trial.backtested
  final = run.find(records.Final)
  return {
      'run': run,
      'config': config,
      'name': state.title(path, config),
      'state': where,
      'verdict': sealed.verdict(run, where.kind == 'running'),
      'scores': sealed.scores(run, path),
      'regret': final and sealed.regret(final),
      'called': sealed.names_of(run) | sealed.names_of_compared(path),
      'milestones': milestones.reached(run),
      'evolved_name': 'Evolved' if run.kept else 'Raced',
      'keep_sentence': sealed.KEEP,
      'not_run_sentence': sealed.NOT_RUN,
      'forked': opened.forked if opened else '',
      'lineage': lineage.chart(run) if run.trials else None,
      'training': charts.training(run),
      'lines': lines,
      'curves': curves.curves(lines),
      'time_groups': curves.time_groups(lines[0].rows if lines else ()),
      'time_shares': curves.time_shares(lines[0].rows if lines else ()),
      'alerts': [d for each in layers.values() for d in each if loud(d[0])],
      'quiet': {
          name: [drawn for drawn in each if not loud(drawn[0])]
          for name, each in layers.items()
      },
      'gamed': _gamed(path, run),
      'findings': _findings(run.all(records.Diagnose)),
      'diagnosed': [row.version for row in run.all(records.Diagnose)],
      'sections': [
          trials.section(
              path,
              trial,
              scale,
              config,
              readable=trial.name in readable,
              tokens=run.tokens_by_trial[trial.number],
              unchecked=run.unchecked(trial),
          )
          for trial in run.trials
      ],
      'scale': scale,
      'shown': len(readable),
      'base_sample': rollouts.sample(path, run.base.folder if run.base else ''),
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
      'goodput': _goodput(path, run, where.kind),
      'dollars_per_hour': config.get('evolve.dollars_per_device_hour'),
      'points': budget.promoted_points(run.rows),
      'per_point': budget.per_point(run.rows),
      'cost_groups': charts.cost_groups(run),
      'cost_chart': charts.costs(run),
      'verdicts': verdicts,
      'partings': partings,
      'evolved': (
          diffs.compare(path, seed, last, config) if last != seed else None
      ),
  }


def render(
    template: str, context: Mapping[str, Any], next_seconds: float = 0.0
) -> str:
  """Return a page as one HTML file; see `build`.

  Args:
    template: Name of its template, which extends base.html.
    context: Variables of the template.
    next_seconds: Seconds until the next page of a running run; 0 if it ended.
  """
  script, style = (
      (_TEMPLATES / name).read_text() for name in ('page.js', 'page.css')
  )
  return (
      environment()
      .get_template(template)
      .render(
          **context,
          written=datetime.datetime.now(datetime.UTC),
          next_seconds=next_seconds,
          script=script,
          style=style,
          script_source=_hash_source(script),
      )
  )


def build(
    workdir: str | os.PathLike[str],
    *,
    running: bool | None = None,
    next_seconds: float = _EVERY_SECONDS,
    partings: Sequence[parting.Parting] = (),
) -> pathlib.Path:
  """Write the page of a run that evolves or trains, at any moment of it.

  The page is a single file that needs no network. Its content policy allows one
  script, by hash. Prompts and completions are shown as text.

  Args:
    workdir: Directory with a ledger or metrics; evidence and harnesses are
      optional.
    running: Whether a process works on the run; None: determine this.
    next_seconds: Seconds until the next page of a running run.
    partings: Where other runs first differ from this one, if it evolves.

  Returns:
    The path <workdir>/report.html; after an error, the old file is unchanged.

  Raises:
    ValueError: If there is neither a ledger with a whole row nor metrics.
    durable.DiskError: If the page cannot be written.
  """
  path = pathlib.Path(workdir)
  if not path.is_dir():
    raise ValueError(
        f'there is no directory {workdir}; pass the --workdir of a run'
    )
  if running is None:
    running = workdir_lib.in_use(path)
  if (path / run_files.LEDGER).exists():
    template = 'page.html'
    context = _context(path, history.read(path), running, partings)
  elif (path / run_files.METRICS).exists():
    template = 'training.html'
    context = training.context(path, running)
  else:
    raise ValueError(
        f'{workdir} holds no ledger.jsonl, which a run that evolves writes, and'
        ' no metrics.jsonl, which a training writes; pass the --workdir of such'
        ' a run'
    )
  if context['state'].kind == 'stopped':
    context['error'] = output.last_error(path)
  text = render(template, context, next_seconds)
  target = path / run_files.REPORT
  # Written atomically, since the run and --mode=report may both write it.
  own = path / f'.report-{os.getpid()}.html'
  durable.write_atomic(own, text.encode())
  os.replace(own, target)
  return target


class Live(contextlib.AbstractContextManager):
  """Keeps the page of a run up to date during the run.

  After an error that ends the run, the page says 'stopped'. If a page cannot be
  built, the run continues.
  """

  def __init__(
      self,
      workdir: str | os.PathLike[str],
      clock: Callable[[], float] = time.monotonic,
  ):
    self._path, self._clock = pathlib.Path(workdir), clock
    # A run that is stopped right after its start leaves the page unchanged.
    self._pace = pace.Pace(_EVERY_SECONDS, clock)
    self._built = False

  def update(self) -> None:
    """Build the page if it is due; called at every step of a run."""
    if not self._pace.is_due():
      return
    start = self._clock()
    self._build(running=True)
    self._pace.took(self._clock() - start)

  def finish(self) -> pathlib.Path | None:
    """Build the page of the finished run; return its path, or None."""
    return self._build(running=False)

  def __exit__(self, kind, *_) -> None:
    if kind is not None and self._built:
      self._build(running=False)

  def _build(self, running: bool) -> pathlib.Path | None:
    try:
      self._built = True
      return build(self._path, running=running, next_seconds=self._pace.wait)
    except Exception as error:  # A bug in the page must not end a training.
      logging.warning(f'no page of {self._path}: {error!r}')
      return None
