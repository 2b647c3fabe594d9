"""Minutes per suite, printed before pytest's own summary line."""
import collections
import pathlib


def pytest_terminal_summary(terminalreporter):
  """Adds up setup, call and teardown of every test, by folder of tests/."""
  seconds, tests = collections.Counter(), collections.Counter()
  for reports in terminalreporter.stats.values():
    for report in reports:
      if getattr(report, 'when', None) is None:
        continue
      parts = pathlib.PurePath(report.nodeid.split('::')[0]).parts
      suite = '/'.join(parts[:-1])
      seconds[suite] += report.duration
      tests[suite] += report.when == 'call'
  if not seconds:
    return
  terminalreporter.section('minutes per suite')
  for suite, total in seconds.most_common():
    terminalreporter.line(
        f'{total / 60:6.2f} min  {tests[suite]:5} tests  {suite}'
    )
