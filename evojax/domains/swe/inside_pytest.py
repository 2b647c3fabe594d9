"""The entry of the box for third-party tests: pytest itself.

It is like `inside`, but pytest is loaded before any code of the tree. It still
runs beside the code that it tests, which can change it, so its verdicts are
less trustworthy than values that are compared outside.
"""

import contextlib
import json
import os
import runpy
import signal
import sys
import types

_HERE = os.path.dirname(os.path.abspath(__file__))
inside = types.SimpleNamespace(
    **runpy.run_path(os.path.join(_HERE, 'inside.py'))
)
# pytest reads no configuration except these options.
_OPTIONS = (
    '-q', '-p', 'no:cacheprovider', '-c', os.devnull, '--rootdir=.',
    '--tb=short', '-x', '--override-ini=python_files=test_*.py *_test.py',
)  # fmt: skip
_MOST_LETTERS = 100_000


def warm():
  """Import pytest, once per workspace."""
  import _pytest.assertion.rewrite
  import _pytest.cacheprovider
  import _pytest.junitxml
  import pytest

  del pytest, _pytest  # Only loaded, for all runs.


def call(source, data):
  """Run an operation; see `inside.call`."""
  arguments = json.loads(bytes(data) or b'{}')
  return OPERATIONS[source](**arguments) or b''


class _Recorder:
  """Chooses the tests to run, and collects their outcomes."""

  def __init__(self, only=''):
    self.only = only  # A part of the names of the tests to run.
    self.outcomes = {}
    self.reasons = {}

  def pytest_collection_modifyitems(self, items):
    # Not by -k, which takes an expression and knows no names with a folder.
    items[:] = [item for item in items if self.only in item.nodeid]

  def pytest_runtest_logreport(self, report):
    # A test that is expected to fail counts neither as passed nor as failed.
    strange = hasattr(report, 'wasxfail') or report.skipped
    if strange:
      self.outcomes[report.nodeid] = 'other'
    elif report.failed:
      self.outcomes[report.nodeid] = 'failed'
      self.reasons[report.nodeid] = _reason(report)
    elif report.when == 'call':
      self.outcomes.setdefault(report.nodeid, 'passed')


def _reason(report):
  """Return the line of a failed test and its message, in a few lines."""
  lines = report.longreprtext.split('\n')
  told = [line[1:].strip() for line in lines if line[:1] in ('>', 'E')]
  return '\n'.join(told[:6])[:600] or lines[-1][:200]


def survey(candidates, seconds):
  """Report the outcomes of tests on changed trees, see `inside.survey`.

  Args:
    candidates: [path, text] pairs.
    seconds: CPU seconds per candidate, since a bug may loop forever.
  """

  def work(writer):
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # Ends the process.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    recorder = _Recorder()
    _run([], recorder, stop=False)
    found = {**recorder.outcomes}
    found |= {f'{name}!': said for name, said in recorder.reasons.items()}
    for name, said in found.items():
      os.write(writer, f'{json.dumps([name, json.dumps(said)])}\n'.encode())

  with inside._quiet() as out:
    # A second clock, of wall time, for a candidate that sleeps.
    inside.each(candidates, 10 * seconds, out, work)


def outcomes(names=()):
  """Report the outcomes of tests, all if none are named, line by line."""
  recorder, wanted = _Recorder(), set(names)
  with inside._quiet() as out:
    try:
      _run([*_files(names)], recorder, stop=False)
    finally:
      for name, outcome in recorder.outcomes.items():
        # A name may be cut at its first blank, see `grade`.
        if not wanted or wanted & {name, name.partition(' ')[0]}:
          line = json.dumps([name, json.dumps(outcome)])
          os.write(out, f'{line}\n'.encode())


def visible(seconds, only=''):
  """Run the tests in the tree, and return a report; see `inside.visible`."""
  del seconds  # The box's own limit ends slow tests.
  recorder = _Recorder(only)
  report = os.path.join(os.environ['TMPDIR'], 'report')
  with inside._quiet() as out:
    with open(report, 'w') as file:
      with contextlib.redirect_stdout(file):
        _run([], recorder, stop=True)
    said = list(recorder.outcomes.values())
    with open(report, errors='replace') as file:
      text = file.read(_MOST_LETTERS)
    first = f'{said.count("passed")} passed, {said.count("failed")} failed\n'
    os.write(out, (first + text).encode(errors='replace'))


def _files(names):
  """Return the files of the named tests."""
  return sorted({name.partition('::')[0] for name in names})


def _run(arguments, recorder, stop):
  import pytest

  sys.path.insert(0, os.getcwd())
  for folder in ('src', 'lib'):  # Possible folders of packages.
    if os.path.isdir(folder):
      sys.path.insert(0, os.path.abspath(folder))
  options = [option for option in _OPTIONS if stop or option != '-x']
  return pytest.main([*options, *arguments], plugins=[recorder])


OPERATIONS = {
    'pytest': outcomes,
    'survey': survey,
    'visible': visible,
    'tool': inside.tool,
}
