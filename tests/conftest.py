"""Test order and directories in several processes; minutes per suite.

test.sh runs the files of the suite in two processes (pytest-xdist), since most
tests keep one core busy or wait for a process that does.
"""

import collections
import gc
import os
import pathlib
import re
import shutil
import sys
import tempfile

from beartype import BeartypeConf
from beartype import BeartypeDecorPlace
from beartype import claw
import jaxtyping
import pytest

from tests import compiled

# Tests that take minutes, or an environment of 3 GB, run only on request.
ASKED_FOR = ('real_sglang', 'long')
ROOT = pathlib.Path(__file__).resolve().parents[1]


def check_types():
  """Check the annotations of the package at every call.

  jaxtyping checks the shapes of arrays and takes 10 times as long per call, so
  it checks only the modules with such annotations; beartype checks the others.
  """
  claw.beartype_package(
      'evojax',
      conf=BeartypeConf(
          claw_is_pep526=False,
          # jaxtyping's errors are TypeErrors, too.
          violation_type=TypeError,
          # As in jaxtyping: below decorators such as jax.custom_vjp.
          claw_decor_place_func=BeartypeDecorPlace.FIRST,
      ),
  )
  shaped = [
      '.'.join(file.relative_to(ROOT).with_suffix('').parts)
      for file in (ROOT / 'evojax').rglob('*.py')
      if 'from jaxtyping import' in file.read_text()
  ]
  jaxtyping.install_import_hook(shaped, 'beartype.beartype')


gc.disable()  # Until all test modules are imported, as they leave no garbage.
check_types()
os.environ.update(compiled.QUICKLY)  # Read when jax is imported.


class Failures:
  """Reports failures at once, since an interrupted suite prints no summary."""

  def __init__(self, config):
    self._plugins = config.pluginmanager

  def pytest_runtest_logreport(self, report):
    # Worker processes of a parallel run have no terminal.
    terminal = self._plugins.get_plugin('terminalreporter')
    if terminal and report.failed:
      terminal.write_line(f'\nFAILED {report.nodeid}')


def pytest_configure(config):
  """Give each worker its own directory for temporary files.

  Some tests check what a run has left there, and must not find files that
  another worker's test is using.
  """
  config.pluginmanager.register(Failures(config))
  worker = os.environ.get('PYTEST_XDIST_WORKER')
  if worker:
    folder = tempfile.mkdtemp(prefix=f'evojax-tests-{worker}-')
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    # Other users need access to the directories of their boxes.
    os.chmod(folder, 0o1777)
    os.environ['TMPDIR'] = tempfile.tempdir = folder


def pytest_collection_modifyitems(config, items):
  """Skip tests that run only on request; put files with slow tests first."""
  for mark in ASKED_FOR:
    if re.search(rf'\b{mark}\b', config.option.markexpr or ''):
      continue
    skip = pytest.mark.skip(reason=f'asked for by -m {mark}')
    for item in items:
      if item.get_closest_marker(mark):
        item.add_marker(skip)
  # So that no worker ends with a slow file.
  if 'PYTEST_XDIST_WORKER' in os.environ:
    slow = {item.path for item in items if item.get_closest_marker('slow')}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
  """Turn garbage collection on again: rarely, and without imported objects.

  Tracing creates many long-lived objects, which would be scanned in vain.
  """
  gc.freeze()
  gc.set_threshold(50_000)
  gc.enable()


def pytest_runtest_teardown():
  """Let no test end this process for a call that another one has abandoned.

  After such a call, `evojax.main.main` ends its process at once.
  """
  if preemption := sys.modules.get('evojax.runtime.preemption'):
    preemption._Program.at_once = False


def pytest_terminal_summary(terminalreporter):
  """Print setup, call and teardown times by folder; in tests/, by file."""
  seconds, tests = collections.Counter(), collections.defaultdict(set)
  for reports in terminalreporter.stats.values():
    for report in reports:
      # A subtest's time is included in its test's; warnings have none.
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
