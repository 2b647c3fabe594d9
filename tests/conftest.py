"""Minutes per suite, printed before pytest's own summary line."""

import collections
import pathlib


def pytest_terminal_summary(terminalreporter):
  """Adds up setup, call and teardown by folder; in tests/ itself by file."""
  seconds, tests = collections.Counter(), collections.defaultdict(set)
  for reports in terminalreporter.stats.values():
    for report in reports:
      # A subtest's time is part of its test's; warnings have none.
      if not hasattr(report, 'duration') or hasattr(report, 'context'):
        continue
      file = pathlib.PurePath(report.nodeid.split('::')[0])
      suite = file if file.parent.name == 'tests' else file.parent
      seconds[suite] += report.duration
      tests[suite].add(report.nodeid)
  if not seconds:
    return
  terminalreporter.section('minutes per suite')
  for suite, total in seconds.most_common():
    terminalreporter.line(
        f'{total / 60:6.2f} min  {len(tests[suite]):5} tests  {suite}'
    )
