"""Hidden tests judge final trees, and nothing else earns an outcome."""

import dataclasses
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.swe import grade
from evojax.domains.swe import problems
from evojax.domains.swe import workspaces
from evojax.sandbox import limits
from evojax.sandbox import repository
from tests.sandbox import attacks

LIMITS = dataclasses.replace(
    repository.LIMITS, wall_seconds=20.0, memory_bytes=256 << 20
)
# Code that an agent may put beside or into the module with the bug. It would
# run before any test, if it ran at all.
_FORGE = """
import json, os, sys
guesses = ['null', 'true', 'false', '0', '1', '""', '["l", []]']
names = []
frame = sys._getframe()
while frame:
  for value in frame.f_locals.values():
    if isinstance(value, dict):
      names += [k for k in value if isinstance(k, str)]
  frame = frame.f_back
for name in names:
  for number in range(6):
    for guess in guesses:
      line = json.dumps([f'{name}#{number}', guess]).encode() + b'\\n'
      for descriptor in range(16):
        try:
          os.write(descriptor, line)
        except OSError:
          pass
"""
_EVERYTHING_EQUALS = """
class Anything(int):
  __eq__ = lambda self, other: True
  __hash__ = int.__hash__
  def __getattr__(self, name): return self
  __call__ = __getitem__ = lambda self, *a, **k: self
import sys
for name, value in list(sys._getframe().f_globals.items()):
  if callable(value): sys._getframe().f_globals[name] = Anything()
"""
_REPLACE_THE_CHECK = """
import sys
frame = sys._getframe()
while frame:
  for scope in (frame.f_globals, frame.f_locals):
    if '_check' in scope:
      scope['_check'] = lambda name, thunk: None
  frame = frame.f_back
"""
APPENDED = {
    'exits': 'import os\nos._exit(0)\n',
    'exits at the end': 'import atexit, os\natexit.register(os._exit, 0)\n',
    'raises': 'raise SystemExit(0)\n',
    'forges reports': _FORGE,
    'is equal to everything': _EVERYTHING_EQUALS,
    'replaces the check': _REPLACE_THE_CHECK,
    'replaces json': 'import json\njson.dumps = lambda *a, **k: "true"\n',
    'no signals': (
        'import signal\nsignal.setitimer = lambda *a: None\n'
        'signal.signal(signal.SIGPROF, signal.SIG_IGN)\n'
    ),
    'writes tests': (
        'open("tests.py", "w").write("x")\nimport os\n'
        'os.makedirs("tests", exist_ok=True)\n'
        'open("tests/test_x.py", "w").write("def test_x(): pass")\n'
    ),
}
_PASS = b'import pytest\ncollect_ignore_glob = ["*"]\n'
BESIDE = {
    'conftest.py': _PASS,
    'tests/conftest.py': _PASS,
    'pytest.ini': b'[pytest]\naddopts = --collect-only\n',
    'setup.cfg': b'[tool:pytest]\naddopts = --collect-only\n',
    'tox.ini': b'[pytest]\naddopts = --collect-only\n',
    'pyproject.toml': b'[tool.pytest.ini_options]\naddopts = "--co"\n',
    'sitecustomize.py': b'import os\nos._exit(0)\n',
    'usercustomize.py': b'import os\nos._exit(0)\n',
    'a.pth': b'import os; os._exit(0)\n',
    'json.py': b'dumps = lambda *a: "true"\n',
    'builtins.py': b'all = lambda *a: True\n',
    'pytest.py': b'raises = None\n',
    '_pytest/__init__.py': b'',
    'tests/__init__.py': b'import os\nos._exit(0)\n',
    '.git/hooks/post-checkout': b'#!/bin/sh\nexit 0\n',
    'evil/test_all.py': b'def test_all(): pass\n',
}


@absltest.skipIf(attacks.missing('T0'), 'T0 does not hold here')
class GradeTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    pool = workspaces.Pool('T0', 1, limits=LIMITS)
    cls.addClassCleanup(pool.close)
    cls.box = cls.enterClassContext(pool.lend())
    cls.task = problems.build(problems.entries('train')[0])
    (cls.path,) = (
        p for p, d in cls.task.tree.items()
        if not p.startswith('tests/') and d != cls.task.solution[p]
    )  # fmt: skip

  def grade(self, changes):
    tree = {**self.task.tree, **changes}
    files = {
        p: d if isinstance(d, repository.File) else repository.File(d)
        for p, d in tree.items()
        if d is not None
    }
    return grade.grade(self.task, files, self.box)

  def test_the_reference_patch(self):
    report = self.grade({self.path: self.task.solution[self.path]})
    self.assertTrue(report.outcome)
    self.assertEqual((report.f2p_passed, report.p2p_passed), (1.0, 1.0))
    self.assertEqual((report.files_edited, report.tests_touched), (1, 0))
    self.assertEqual((report.status, report.trust), ('ok', 'outside'))
    self.assertEqual((report.tier, report.failed), ('T0', ()))

  def test_nothing_done(self):
    report = self.grade({})
    self.assertEqual((report.outcome, report.status), (False, 'no_edit'))
    self.assertEqual((report.f2p_passed, report.p2p_passed), (0.0, 1.0))

  def test_another_change(self):
    text = self.task.tree[self.path] + b'\n# A comment.\n'
    report = self.grade({self.path: text})
    self.assertEqual((report.outcome, report.status), (False, 'ok'))
    self.assertEqual((report.f2p_passed, report.p2p_passed), (0.0, 1.0))
    self.assertEqual(report.failed, self.task.fail_to_pass)

  def test_a_repair_that_breaks_something_else(self):
    other = next(
        p for p in self.task.tree
        if p != self.path and p.startswith(self.task.repo)
        and not p.endswith('__init__.py')
    )  # fmt: skip
    right = {self.path: self.task.solution[self.path]}
    report = self.grade({**right, other: b'1 / 0\n'})
    self.assertFalse(report.outcome)
    self.assertLess(report.p2p_passed, 1.0)
    self.assertEqual(report.files_edited, 2)

  def test_a_repair_in_a_new_module_counts(self):
    moved = f'{self.task.repo}/moved.py'
    name = self.path.rpartition('/')[2].removesuffix('.py')
    changes = {
        moved: self.task.solution[self.path],
        self.path: f'from {self.task.repo}.moved import *\n'.encode(),
    }
    report = self.grade(changes)
    self.assertTrue(report.outcome, (name, report))
    self.assertEqual(report.files_edited, 2)

  @parameterized.parameters(
      b'def broken(:\n',
      None,
      b'while True: pass\n',
      b'x = []\nwhile True: x.append(bytearray(1 << 26))\n',
  )
  def test_a_module_that_cannot_be_used(self, text):
    report = self.grade({self.path: text})
    self.assertFalse(report.outcome)
    self.assertEqual(report.f2p_passed, 0.0)

  @parameterized.parameters(
      (b'import time\ntime.sleep(1000)\n', ('timeout',)),
      (b'import signal\nsignal.setitimer(2, 0)\nwhile True: pass\n',
       ('cpu_limit', 'timeout', 'infra_error')),  # On a busy machine.
  )  # fmt: skip
  def test_what_takes_too_long_has_a_status(self, text, statuses):
    with mock.patch.object(grade, '_SECONDS', 0.6):
      report = self.grade({self.path: text})
    self.assertFalse(report.outcome)
    self.assertIn(report.status, statuses)

  @parameterized.parameters(*APPENDED)
  def test_what_runs_beside_the_tests_gains_nothing(self, name):
    text = self.task.tree[self.path] + APPENDED[name].encode()
    report = self.grade({self.path: text})
    self.assertFalse(report.outcome, report)
    self.assertLess(report.f2p_passed, 1.0)

  @parameterized.parameters(*BESIDE)
  def test_what_lies_beside_the_source_does_nothing(self, path):
    beside = {path: BESIDE[path]}
    right = {self.path: self.task.solution[self.path]}
    self.assertTrue(self.grade({**right, **beside}).outcome)
    wrong = {self.path: self.task.tree[self.path] + b'\n'}
    report = self.grade({**wrong, **beside})
    self.assertFalse(report.outcome)
    self.assertEqual((report.f2p_passed, report.p2p_passed), (0.0, 1.0))
    self.assertEqual(report.files_edited, 1)
    self.assertEqual(report.tests_touched, 0 if '.git/' in path else 1)

  def test_tests_that_are_changed_or_deleted_are_counted(self):
    tests = sorted(p for p in self.task.tree if p.startswith('tests/'))
    changes = {tests[0]: b'def test_a(): pass\n', tests[1]: None}
    report = self.grade({self.path: self.task.solution[self.path], **changes})
    self.assertTrue(report.outcome)
    self.assertEqual(report.tests_touched, 2)
    report = self.grade(changes)
    self.assertEqual((report.status, report.tests_touched), ('no_edit', 2))

  def test_links_are_not_followed(self):
    link = repository.File(b'/usr/lib/os-release', link=True)
    report = self.grade({self.path: link, 'more': link})
    self.assertEqual((report.outcome, report.tests_touched), (False, 2))

  def test_a_tree_without_room(self):
    many = {f'{n}.txt': b'x' * (1 << 20) for n in range(150)}
    report = self.grade(many)
    self.assertEqual((report.outcome, report.status), (False, 'bad_tree'))
    self.assertTrue(
        self.grade({self.path: self.task.solution[self.path]}).outcome
    )

  def test_a_box_that_fails_is_no_grade(self):
    files = {p: repository.File(d) for p, d in self.task.solution.items()}
    with workspaces.Pool('T0', 1) as pool, pool.lend() as box:
      box.write({'a': b''})
      box._box._all[0]._process.kill()
      box._box._all[0]._process.wait()
      report = grade.grade(self.task, files, box)
    self.assertEqual((report.outcome, report.status), (False, 'infra_error'))

  def test_late_because_of_others_is_tried_again(self):
    call, results = self.box.call, []
    late = limits.Result('timeout', 'T0', contended=True)

    def busy(*args, **kwargs):
      return results.pop() if results else call(*args, **kwargs)

    for found, expected in (
        ([late] * 2, (True, 'ok')),
        ([late] * 3, (False, 'infra_error')),
        ([dataclasses.replace(late, contended=False)], (False, 'timeout')),
    ):
      results[:] = found
      with mock.patch.object(self.box, 'call', busy):
        report = self.grade({self.path: self.task.solution[self.path]})
      self.assertEqual((report.outcome, report.status), expected)
      self.assertEmpty(results)


if __name__ == '__main__':
  absltest.main()
