"""Diagnoses of faults that users of other trainers reported.

    python -m benchmarks.diagnose_reports --logs=DIR [--list=third]
        [--only=NAME] [--verbose]

Writes synthetic logs of the runs in `benchmarks.reports.threads`,
`third_threads`, `fourth_threads`, `fifth_threads`, `sixth_threads`,
`seventh_threads` and `eighth_threads`, and of the faults that begin half-way in
`event_list`, and prints which of them evojax-diagnose names.
A report is named if a finding of `Report.names` says `Report.says`, its cause
or the setting to change, and the right step if it has one; otherwise it counts
as a symptom if a finding is one of its consequences. Each other finding is a
false alarm, and so is each finding on a sound run.
"""

import argparse
import importlib
import pathlib
import shutil

from benchmarks.reports import eighth_threads
from benchmarks.reports import event_list
from benchmarks.reports import fifth_threads
from benchmarks.reports import fourth_threads
from benchmarks.reports import seventh_threads
from benchmarks.reports import sixth_threads
from benchmarks.reports import third_threads
from benchmarks.reports import threads
from evojax.diagnosis import examine
from evojax.diagnosis import findings
from evojax.diagnosis import readers
from evojax.diagnosis import show

# List -> module with the logs of its entries -> these entries.
LISTS = {
    'first': {'logs': threads.FAULTS, 'sound': threads.SOUND},
    'later': {'later': threads.LATER | threads.LATER_SOUND},
    'third': {
        'third': third_threads.TEXTS,
        'third_models': third_threads.MODELS,
        'third_sound': third_threads.SOUND,
    },
    'fourth': {
        'fourth': fourth_threads.TEXTS,
        'fourth_models': fourth_threads.MODELS,
        'fourth_sound': fourth_threads.SOUND,
    },
    'fifth': {
        'fifth': fifth_threads.TEXTS,
        'fifth_models': fifth_threads.MODELS,
        'fifth_sound': fifth_threads.SOUND,
    },
    'sixth': {
        'sixth': sixth_threads.TEXTS,
        'sixth_models': sixth_threads.MODELS,
        'sixth_sound': sixth_threads.SOUND,
    },
    'seventh': {
        'seventh': seventh_threads.TEXTS,
        'seventh_models': seventh_threads.MODELS,
        'seventh_sound': seventh_threads.SOUND,
    },
    'eighth': {
        'eighth': eighth_threads.TEXTS,
        'eighth_models': eighth_threads.MODELS,
        'eighth_sound': eighth_threads.SOUND,
    },
    'events': {'events': event_list.EVENTS | event_list.SOUND},
}
_MODULES = {
    name: module
    for modules in LISTS.values()
    for module, reports in modules.items()
    for name in reports
}
REPORTS = {
    name: report
    for modules in LISTS.values()
    for reports in modules.values()
    for name, report in reports.items()
}


def write(name: str, folder: pathlib.Path) -> pathlib.Path:
  """Write the log of a report, unless it exists, and return its folder."""
  target = folder / name
  if not target.is_dir():
    module = importlib.import_module(f'benchmarks.reports.{_MODULES[name]}')
    part = folder / f'.{name}'
    shutil.rmtree(part, ignore_errors=True)
    getattr(module, name)(part, 1000 + sum(map(ord, name)))
    part.rename(target)
  return target


def judge(name: str, found: findings.Diagnosis) -> tuple[str, list[str]]:
  """Return the verdict on a report, and the findings that are false alarms."""
  loud = [f.check for f in found.findings if f.severity != 'note']
  report = REPORTS[name]
  if not report.cause:
    return ('false alarm' if loud else 'sound'), loud
  named = [
      f
      for f in found.findings
      if f.check in report.names
      and report.says in f'{f.text}; {f.change}'
      and report.since in (None, f.since)
  ]
  known = {*report.names, *report.symptoms}
  wrong = [c for c in loud if c not in known]
  if named:
    return 'named', wrong
  if known & set(loud):
    return 'symptom', wrong
  return ('cannot tell' if report.unlogged else 'missed'), wrong


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--logs', type=pathlib.Path, required=True)
  parser.add_argument('--only', default='', help='part of the names')
  parser.add_argument('--list', choices=LISTS, default='first')
  parser.add_argument('--verbose', action='store_true')
  given = parser.parse_args()
  given.logs.mkdir(parents=True, exist_ok=True)
  counts: dict[str, int] = {}
  alarms = 0
  for name, report in REPORTS.items():
    if given.only not in name or _MODULES[name] not in LISTS[given.list]:
      continue
    run = readers.read(write(name, given.logs))
    found = examine.examine(run)
    verdict, wrong = judge(name, found)
    counts[verdict] = counts.get(verdict, 0) + 1
    alarms += len(wrong)
    print(f'{verdict:<12} {name:<21} {report.thread}', *wrong, flush=True)
    if given.verbose:
      print('  seen:', report.seen, '| cause:', report.cause)
      print('\n'.join('    ' + line for line in show.lines(run, found)))
  print(counts, f'false alarms: {alarms}')


if __name__ == '__main__':
  main()
