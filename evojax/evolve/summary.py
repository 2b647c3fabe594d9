"""The end of a run that evolves: exports, summary.json and printed tables."""

from collections.abc import Mapping
import dataclasses
import itertools
import textwrap
import time
from typing import Any

from rich import console as console_lib
from rich import markup
from rich import table as table_lib

from evojax.eval import report as report_lib
from evojax.evolve import opening
from evojax.evolve.steps import final as final_lib
from evojax.ledger import budget as budget_lib
from evojax.ledger import calibration
from evojax.ledger import history as history_lib
from evojax.ledger import milestones
from evojax.ledger import records
from evojax.report import page
from evojax.report import sealed as sealed_lib
from evojax.report import state
from evojax.runtime import decisions
from evojax.runtime import durable
from evojax.runtime import goodput
from evojax.runtime import mirror
from evojax.runtime import numerals
from evojax.runtime import output
from evojax.runtime import run_files


def finish(run: opening.Run, reason: str) -> dict[str, Any]:
  """Export the policies, and write summary.json and the page.

  Args:
    run: The run, in all processes.
    reason: Why the run ended: 'rounds', 'tokens', 'budget' or 'a fault outside
      the harness'.

  Returns:
    The summary, in all processes.
  """
  run.progress.close()
  versions = run.recorder.history.versions
  if versions:
    checkpoint = run.path / versions[-1].checkpoint
    run.states.export(checkpoint, run.path / run_files.POLICY)
  if retrained := run.recorder.find(records.Retrain):
    checkpoint = final_lib.retrained_checkpoint(run, retrained)
    run.states.export(checkpoint, run.path / 'policy_retrained')
  summary: dict[str, Any] = {}
  if run.primary:
    summary = _make(run, reason)
    # NaN is not JSON: other readers would refuse the file.
    durable.write_json(run.path / run_files.SUMMARY, summary)
    page.build(run.path)
    _show(summary)
  return decisions.decide(lambda: summary)


def _make(run: opening.Run, reason: str) -> dict[str, Any]:
  """Return the JSON values of summary.json."""
  history, rows = run.recorder.history, run.recorder.rows
  final = history.find(records.Final)
  found = dataclasses.asdict(final) if final else {}
  spent = budget_lib.spent(rows)
  before = state.read_json(run.path / run_files.SUMMARY, {})
  if before.get('ledger_head') == run.recorder.head:  # It had ended already.
    times = {name: before.get(name, {}) for name in ('time_shares', 'time')}
  else:
    wall = history.wall_seconds
    times = dict(
        time_shares=run.phases.shares(),
        time=goodput.of_evolving(run.path, wall, time.time()),
    )
  path_of = lambda name: mirror.shown(str(run.path / name))
  return dict(
      name=run.config.name,
      ended=reason,
      ledger_head=run.recorder.head,
      # T0 and T1 contain untrusted code; T2 only limits its resources.
      sandbox=sorted({row.sandbox or 'none' for row in rows}),
      trials=[_trial(history, t) for t in history.trials if t.verify],
      dev_draws=history.dev_draws,
      harness=found.get('harness'),
      version=found.get('version'),
      sealed={n: score or 'not run' for n, score in found['scores'].items()}
      if final
      else 'not run',
      nothing_kept=sealed_lib.why_none(history),
      names=sealed_lib.names_of(history)
      | sealed_lib.names_of_compared(run.path),
      gains=found.get('gains', {}),
      evolved_over=found.get('evolved_over', {}),
      compute=found.get('compute', {}),
      device_seconds=spent,
      reached=[dataclasses.asdict(m) for m in milestones.reached(history)],
      calibration={
          name: [
              dataclasses.asdict(row)
              for row in calibration.by(
                  history.trials, lambda t: t.intervention_class, predict
              )
          ]
          for name, predict in (
              ('hypotheses', lambda t: t.expected),
              ('backtests', lambda t: t.backtested),
          )
      },
      regret=sealed_lib.regret(final) if final else None,
      device_seconds_by_version=budget_lib.by_version(rows),
      device_seconds_per_point=budget_lib.per_point(rows),
      dollars=run.recorder.budget.cost(spent),
      policy=path_of('policy') if history.versions else None,
      report=path_of(run_files.REPORT),
      **times,
  )


def _trial(
    history: history_lib.History, trial: history_lib.Trial
) -> dict[str, Any]:
  """Return the entry of a trial in summary.json."""
  verdict = trial.verify
  return dict(
      trial=trial.number,
      version=trial.made,
      parent=trial.parent,
      trigger=trial.hypothesize.trigger,
      change=trial.delta.text,
      intervention_class=trial.intervention_class,
      expected=trial.expected,
      effect=trial.effect,
      low=verdict.low,
      high=verdict.high,
      minimum_detectable_effect=trial.mde,
      rounds=verdict.rounds,
      pairs=verdict.pairs,
      e_value=verdict.e_value,
      threshold=verdict.threshold,
      verdict=trial.status,
      horizon_unchecked=history.unchecked(trial),
      reasons=verdict.reasons,
      device_seconds=trial.device_seconds,
  )


def _show(summary: Mapping[str, Any]) -> None:
  """Print the tables."""
  console = output.console()
  if summary['trials']:
    _show_trials(summary, console)
  elif not summary['nothing_kept']:
    output.say('\nno change was tried to the end')
  if summary['nothing_kept']:
    output.say(summary['nothing_kept'])
  if isinstance(summary['sealed'], str):
    output.say(f'sealed scores: {summary["sealed"]} ({summary["ended"]})')
  else:
    _show_sealed(summary, console)
  ended = summary['ended']
  if ended == 'budget':
    ended += '; with a higher limit the same command continues'
  output.say(
      f'{summary["device_seconds"]:.0f} device-seconds,'
      f' {summary["dev_draws"]} sets of dev problems, ended: {ended}'
  )
  output.say(f'page: {summary["report"]}')


def _show_trials(
    summary: Mapping[str, Any], console: console_lib.Console
) -> None:
  table = table_lib.Table(box=None, pad_edge=False)
  for name in ('version', 'change', 'predicted', 'realised', 'verdict'):
    number = name in ('predicted', 'realised')
    table.add_column(
        name,
        justify='right' if number else 'left',
        no_wrap=name != 'change',
    )
  for t in summary['trials']:
    effect = '-'
    if t['effect'] is not None:
      effect = numerals.effect(t['effect'], (t['low'], t['high']))
    table.add_row(
        t['version'] or f'({t["parent"]})',
        markup.escape(textwrap.shorten(t['change'], 100, placeholder=' ...')),
        # A diagnostic changes no score, so that no effect is predicted.
        numerals.between(t['expected'])
        if t['intervention_class'] != history_lib.MEASUREMENT
        else '-',
        markup.escape(effect),
        t['verdict'],
    )
  output.say(
      '\nchanges that were tried; effects in points of the solved share of'
      ' fresh problems'
  )
  console.print(table)
  output.say(sealed_lib.KEEP)
  for t in summary['trials']:
    if t['horizon_unchecked']:
      why = t['horizon_unchecked']
      output.say(f'{t["version"]}: kept, horizon not checked because {why}')


def _show_sealed(
    summary: Mapping[str, Any], console: console_lib.Console
) -> None:
  tokens = 'tokens trained', 'tokens in all'
  headings = ('policy', 'sealed', 'interval', 'gain', *tokens)
  rows = []
  for name, score in summary['sealed'].items():
    compute = summary['compute'].get(name, {})
    if isinstance(score, str):
      rows.append((name, score))
      continue
    gain = summary['gains'].get(name)
    rows.append(
        (
            summary['names'].get(name, name),
            numerals.share(score['value']),
            numerals.interval(score),
            numerals.points(gain['value']) if gain else '',
            *(f'{compute[key]:,}' for key in ('training', 'total') if compute),
        )
    )
  columns = itertools.zip_longest(headings, *rows, fillvalue='')
  report_lib.print_table(console, *columns)
  if 'not run' in summary['sealed'].values():
    output.say(sealed_lib.NOT_RUN)
