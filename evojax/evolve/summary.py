"""The end of a run that evolves: numbers for a file, a table for a reader."""

from collections.abc import Mapping
import textwrap
from typing import Any

from rich import console as console_lib
from rich import markup
from rich import table as table_lib

from evojax.eval import report as report_lib
from evojax.evolve import claims
from evojax.evolve import session as session_lib
from evojax.ledger import budget as budget_lib
from evojax.ledger import history as history_lib
from evojax.ledger import records

_LOG_WIDTH = 140


def make(session: session_lib.Session, reason: str) -> dict[str, Any]:
  """JSON values of summary.json.

  Args:
    session: The run, on process 0.
    reason: Why it ended: 'trials', 'budget', 'nothing to propose'.
  """
  rows = [records.parse(row) for row in session.rows]
  seconds = budget_lib.by_version(rows)
  trials = []
  for row in session.rows:
    verify = row['payload']
    if verify['step'] != 'verify':
      continue
    number = verify['trial']
    guess = session.find('hypothesize', trial=number)
    design = session.find('design', trial=number)
    ran = session.find('trial', trial=number)
    trials.append(
        dict(
            trial=number,
            version=verify['version'],
            parent=guess['version'],
            trigger=guess['trigger'],
            change=design['delta']['text'],
            klass=design['delta']['klass'],
            expected=guess['expected'],
            effect=verify['effect'],
            low=verify['low'],
            high=verify['high'],
            minimum_detectable_effect=ran and ran['mde'],
            alpha=verify['alpha'],
            p=verify['p'],
            verdict=verify['status'],
            reasons=verify['reasons'],
            device_seconds=sum(
                r['measured']['device_seconds']
                for r in session.rows
                if r['payload'].get('trial') == number
            ),
        )
    )
  final = session.find('final')
  return dict(
      name=session.config.name,
      ended=reason,
      ledger_head=session.head,
      # T0 and T1 hold untrusted code, T2 limits its resources only.
      sandbox=sorted(
          {r['payload'].get('sandbox', 'none') for r in session.rows}
      ),
      trials=trials,
      dev_draws=history_lib.History(rows).dev_draws,
      harness=final and final['harness'],
      version=final and final['version'],
      sealed=claims.summary_scores(final) if final else 'not run',
      gains=final['gains'] if final else {},
      evolved_over=final['evolved_over'] if final else {},
      compute=final['compute'] if final else {},
      device_seconds=budget_lib.spent(rows),
      device_seconds_by_version=seconds,
      device_seconds_per_point=budget_lib.per_point(rows),
      dollars=session.budget.cost(budget_lib.spent(rows)),
      policy=str(session.path / 'policy') if final else None,
      policy_continued=(
          str(session.path / 'policy_continued')
          if session.find('train')
          else None
      ),
      report=str(session.path / 'report.html'),
      time_shares=session.phases.shares(),
  )


def _span(low: float | None, high: float | None) -> str:
  if low is None or high is None:
    return ''
  return f'[{100 * low:+.1f}, {100 * high:+.1f}]'


def show(summary: Mapping[str, Any]) -> None:
  """Prints the tables."""
  console = console_lib.Console(highlight=False)
  if not console.is_terminal:  # A log has no width to keep to.
    console = console_lib.Console(highlight=False, width=_LOG_WIDTH)
  table = table_lib.Table(box=None, pad_edge=False)
  for name, justify in (
      ('version', 'left'),
      ('change', 'left'),
      ('predicted', 'right'),
      ('realised', 'right'),
      ('detectable', 'right'),
      ('verdict', 'left'),
      ('device-s', 'right'),
  ):
    table.add_column(name, justify=justify)
  for t in summary['trials']:
    effect = '-'
    if t['effect'] is not None:
      effect = f'{100 * t["effect"]:+.1f} {_span(t["low"], t["high"])}'
    mde = t['minimum_detectable_effect']
    table.add_row(
        t['version'] or f'({t["parent"]})',
        markup.escape(textwrap.shorten(t['change'], 60, placeholder=' ...')),
        _span(*t['expected']),
        markup.escape(effect),
        '-' if mde is None else f'{100 * mde:.1f}',
        t['verdict'],
        f'{t["device_seconds"]:.0f}',
    )
  console.print('\neffects in points of Avg@k on fresh dev problems')
  console.print(table)
  if isinstance(summary['sealed'], str):
    console.print(f'sealed scores: {summary["sealed"]} ({summary["ended"]})')
  else:
    _show_sealed(summary, console)
  print(
      f'{summary["device_seconds"]:.0f} device-seconds,'
      f' {summary["dev_draws"]} dev draws, ended: {summary["ended"]}'
  )
  print(f'page: {summary["report"]}')


def _show_sealed(
    summary: Mapping[str, Any], console: console_lib.Console
) -> None:
  table = report_lib.make_table(
      'policy', 'sealed', 'interval', 'gain', 'tokens trained', 'tokens in all'
  )
  names = dict(
      base='base',
      continued='evolved (continued)',
      evolved='evolved (from base)',
  )
  for name, score in summary['sealed'].items():
    compute = summary['compute'].get(name, {})
    if isinstance(score, str):
      table.add_row(name, score, '', '', '', '')
      continue
    gain = summary['gains'].get(name)
    table.add_row(
        names.get(name, name),
        report_lib.percent(score['value']),
        report_lib.interval(score),
        report_lib.points(gain['value']) if gain else '',
        f'{compute["training"]:,}' if compute else '',
        f'{compute["total"]:,}' if compute else '',
    )
  console.print(table)
