"""Order and directories of a suite in several processes; minutes per suite.

test.sh runs the files of the suite in two processes (pytest-xdist): most tests
keep one core busy, or wait for a process that does.
"""

import collections
import os
import pathlib
import shutil
import tempfile


def pytest_configure(config):
  """Gives a worker a directory of its own for temporary files.

  Some tests look for what a run has left there, and must not find what another
  worker's test is using.
  """
  worker = os.environ.get('PYTEST_XDIST_WORKER')
  if worker:
    folder = tempfile.mkdtemp(prefix=f'evojax-tests-{worker}-')
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    # Other users must get through to the directories of their boxes.
    os.chmod(folder, 0o1777)
    os.environ['TMPDIR'] = tempfile.tempdir = folder


def pytest_collection_modifyitems(items):
  """Puts files with slow tests first, so that no worker ends with one."""
  if 'PYTEST_XDIST_WORKER' in os.environ:
    slow = {item.path for item in items if item.get_closest_marker('slow')}
    items.sort(key=lambda item: item.path not in slow)


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
