"""Foreign repositories: archives, JSON lines, pytest, containers."""

import dataclasses
import hashlib
import io
import json
import pathlib
import shlex
import shutil
import sys
import tarfile
import tempfile
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.swe import container
from evojax.domains.swe import foreign
from evojax.domains.swe import grade
from evojax.domains.swe import history
from evojax.domains.swe import problems
from evojax.domains.swe import sdist
from evojax.domains.swe import shipped
from evojax.domains.swe import tasks
from evojax.domains.swe import tools
from evojax.domains.swe import trees
from evojax.domains.swe import workspaces
from evojax.sandbox import repository
from tests.sandbox import attacks

# Reports every test as passed; runs in pytest's own process.
FORGE = b"""
import _pytest.runner, _pytest.reports
def forged(item, call):
  report = made(item, call)
  report.outcome, report.longrepr = 'passed', None
  return report
made = _pytest.reports.TestReport.from_item_and_call
_pytest.reports.TestReport.from_item_and_call = forged
"""
CONFTEST = b"""
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
  out = yield
  out.get_result().outcome = 'passed'
"""


def archive(files, links=(), mode='w:gz'):
  """Return a tar archive: pairs of names and contents, names and targets."""
  out = io.BytesIO()
  with tarfile.open(fileobj=out, mode=mode) as tar:
    for name, data in files:
      member = tarfile.TarInfo(name)
      member.size = len(data)
      tar.addfile(member, io.BytesIO(data))
    for name, target in links:
      member = tarfile.TarInfo(name)
      member.type, member.linkname = tarfile.SYMTYPE, target
      tar.addfile(member)
  return out.getvalue()


class Folder(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def stored(self, data):
    path = self.folder / 'a-1.0.tar.gz'
    path.write_bytes(data)
    return path, hashlib.sha256(data).hexdigest()


class SdistTest(Folder):

  def test_read(self):
    files = [('a-1.0/a.py', b'x = 1\n'), ('a-1.0/t/b', b'\xff'),
             ('a-1.0/a.egg-info/SOURCES.txt', b'')]  # fmt: skip
    path, sha256 = self.stored(archive(files, [('a-1.0/l', '/etc/passwd')]))
    expected = 'a-1.0', {'a.py': b'x = 1\n', 't/b': b'\xff'}
    self.assertEqual(sdist.read(path, sha256), expected)
    self.assertEqual(sdist.read(path, f'sha256:{sha256.upper()}'), expected)

  @parameterized.parameters(
      (archive([('a-1.0/../../b', b'')]), 'leads out'),
      (archive([('/a-1.0/b', b'')]), 'leads out'),
      (archive([('a/b', b''), ('a/./b', b'')]), 'in it twice'),
      (archive([('a/b', b''), ('c/d', b'')]), 'one folder'),
      (archive([('setup.py', b'')]), 'one folder'),
      (archive([]), 'one folder'),
      (b'no archive', 'not a tar archive'),
      (archive([('a/b', b'x' * 100_000)])[:60], 'not a tar archive'),
      (archive([('a/b', b'\0' * (70 << 20))]), 'more than'),
  )
  def test_refused(self, data, said):
    path, sha256 = self.stored(data)
    with self.assertRaisesRegex(ValueError, said):
      sdist.read(path, sha256)

  def test_links_are_no_way_out(self):
    links = [('a/k', '..'), ('a/etc', '/etc')]
    data = archive([('a/b', b'1')], links, mode='w')
    self.assertEqual(sdist.read_tar(data, 'x'), {'a/b': b'1'})

  def test_another_archive(self):
    path, sha256 = self.stored(archive([('a/b', b'')]))
    with self.assertRaisesRegex(ValueError, f'sha256:{sha256}, not 00'):
      sdist.read(path, '00')


class FromSdistTest(Folder):

  def test_tasks(self):
    if missing := attacks.missing('T0'):
      self.skipTest(missing)
    package = shipped.load('measures')
    files = {p: d for p, d in package.tree.items() if 'render' not in p}
    path, sha256 = self.stored(
        archive([(f'm-1/{p}', d) for p, d in files.items()])
    )
    found = foreign.from_sdist(path, sha256, 'T0', candidates=2)
    self.assertNotEmpty(found)
    task = found[0]
    self.assertEqual((task.repo, task.trust), ('m-1', tasks.IN_PROCESS))
    for test in task.fail_to_pass:
      self.assertNotIn(test.partition('::')[0], task.tree)
    with workspaces.Pool('T0', 1, entry=foreign.ENTRY) as pool:
      with pool.lend() as box:
        self.assertEmpty(foreign.check(task, box))
        self._attacks(task, box)
      with pool.lend() as box:
        session = tools.Session(task, box, tools.Settings())
        shown = session.call('test', {}).text
        self.assertRegex(shown, r'^[1-9]\d* passed, 0 failed\n')
        # Any part of a name, not an expression of pytest's -k.
        name = next(
            n for n in task.pass_to_pass if n.partition('::')[0] in task.tree
        )
        for only, count in ((name, 1), ('not a', 0)):
          shown = session.call('test', {'only': only}).text
          self.assertRegex(shown, rf'^{count} passed, 0 failed\n')
        log = session.call('git', {'command': 'log'}).text
        self.assertIn('Import m-1', log)
        self.assertNotIn('Fix', log)

  def _attacks(self, task, box):
    bug = next(p for p in task.tree if task.tree[p] != task.solution[p])
    beside = {
        'conftest.py': CONFTEST,
        'tests/conftest.py': CONFTEST,
        'pytest.ini': b'[pytest]\naddopts = -p evil --co\n',
        'setup.cfg': b'[tool:pytest]\naddopts = --co\n',
        'evil.py': FORGE,
        'evil-1.dist-info/METADATA': b'Name: evil\nVersion: 1\n',
        'evil-1.dist-info/entry_points.txt': b'[pytest11]\nevil = evil\n',
        'pytest.py': b'raise SystemExit(0)\n',
        '_pytest/runner.py': b'raise SystemExit(0)\n',
        'sitecustomize.py': FORGE,
        'tests/test_heat.py': b'def test_between(): pass\n',
        'tests/test_table.py': b'',
    }
    tree = {**task.tree, **beside, bug: task.tree[bug] + b'\n'}
    files = {p: repository.File(d) for p, d in tree.items()}
    report = grade.grade(task, files, box)
    self.assertEqual((report.outcome, report.f2p_passed), (False, 0.0))
    self.assertGreaterEqual(report.tests_touched, 10)
    # For this reason such a verdict is marked, and not used in training.
    files[bug] = repository.File(task.tree[bug] + FORGE)
    report = grade.grade(task, files, box)
    self.assertEqual((report.outcome, report.trust), (True, 'in_process'))

  def test_bugs_without_end_are_left_out(self):
    if missing := attacks.missing('T0'):
      self.skipTest(missing)
    test = b'def test_a():\n  import a\n  assert a.x == 1\n'
    with workspaces.Pool('T0', 1, entry=foreign.ENTRY) as pool:
      with pool.lend() as box:
        box.write({'a.py': b'x = 1\n', 'test_a.py': test})
        changed = [('a.py', 'while True: pass'), ('a.py', 'x = 2\n')]
        arguments = {'candidates': changed, 'seconds': 1.0}
        result = box.call('survey', json.dumps(arguments).encode())
        self.assertEqual(box.read('.')['a.py'].data, b'x = 1\n')
    self.assertEqual(result.status, 'ok', result)
    first, second, last = map(json.loads, result.stdout.splitlines())
    self.assertEqual(first, [1, ['test_a.py::test_a', '"failed"']])
    self.assertIn('assert 2 == 1', second[1][1])
    self.assertEqual(last, [1, 'done'])

  def test_without_tests(self):
    path, sha256 = self.stored(archive([('a/a.py', b'x = 1\n')]))
    with self.assertRaisesRegex(ValueError, '1 modules and 0 files of tests'):
      foreign.from_sdist(path, sha256, 'T0')

  def test_tests_that_need_what_is_not_there(self):
    if missing := attacks.missing('T0'):
      self.skipTest(missing)
    files = [('a/a.py', b'x = 1\n'), ('a/test_a.py', b'import scipy\n')]
    path, sha256 = self.stored(archive(files))
    with self.assertRaisesRegex(ValueError, 'none of its tests passes'):
      foreign.from_sdist(path, sha256, 'T0')


@absltest.skipIf(not shutil.which('git'), 'there is no git')
class Rows(Folder):
  """A row and the checkout it belongs to."""

  def setUp(self):
    super().setUp()
    if missing := attacks.missing('T0'):
      self.skipTest(missing)
    self.made = problems.build(problems.entries('train')[0])
    fixed = {
        p: self.made.solution[p] for p in self.made.tree
        if not trees.is_test(p)
    }  # fmt: skip
    day = foreign._RELEASED
    commits = [
        history.Commit('Begin', day, self.made.tree),
        history.Commit('Repair', day, {**self.made.tree, **fixed}),
    ]
    whole = history.make(commits)
    self.row = {**self.made.row(), 'base_commit': whole.ids[0], 'repo': 'a/b'}
    for path, data in {**commits[1].tree, **whole.files}.items():
      file = self.folder / 'checkout' / path
      file.parent.mkdir(parents=True, exist_ok=True)
      file.write_bytes(data)


class RowsTest(Rows):

  def test_from_row(self):
    lines = self.folder / 'tasks.jsonl'
    listed = {**self.row, 'FAIL_TO_PASS': list(self.made.fail_to_pass)}
    lines.write_text(f'{json.dumps(self.row)}\n\n{json.dumps(listed)}\n')
    row, same = foreign.read_rows(lines)
    self.assertEqual(row, same)
    with workspaces.Pool('T0', 1, entry=foreign.ENTRY) as pool:
      with pool.lend() as box:
        task = foreign.from_row(row, self.folder / 'checkout', box)
        self.assertEqual(task.tree, self.made.tree)
        self.assertEqual(task.patch, self.made.patch)
        self.assertEqual(task.test_patch, self.made.test_patch)
        self.assertEmpty(foreign.check(task, box))
        wrong = {**row, 'patch': row['patch'].replace('@@ -1', '@@ -9')
                 .replace('-', '-nothing')}  # fmt: skip
        with self.assertRaisesRegex(ValueError, 'patch does not fit'):
          foreign.from_row(wrong, self.folder / 'checkout', box)
      for scrubbed, said in ((True, 'Begin'), (False, 'Begin\nRepair')):
        with pool.lend() as box:
          settings = tools.Settings(scrubbed=scrubbed)
          session = tools.Session(task, box, settings)
          log = box.run(['git', 'log', '--all', '--format=%s']).stdout
          # They have the same date, so their order is open.
          self.assertCountEqual(log.decode().split(), said.split())
          diff = session.call('git', {'command': 'diff'})
          self.assertEqual((diff.ok, diff.text), (True, 'Nothing has changed.'))
    gone = {**row, 'base_commit': 'f' * 40}
    with self.assertRaisesRegex(ValueError, 'git ls-tree'):
      foreign.from_row(gone, self.folder / 'checkout', box)


@absltest.skipIf(not shutil.which('git'), 'there is no git')
class UnusualRowsTest(Folder):

  def setUp(self):
    super().setUp()
    if missing := attacks.missing('T0'):
      self.skipTest(missing)
    test = (
        b'import pathlib, pytest, a\n'
        b'text = pathlib.Path("data/f.cases").read_text()\n'
        b'@pytest.mark.parametrize("line", text.splitlines())\n'
        b'def test_f(line):\n  x, y = line.split()\n  assert a.f(x) == y\n'
        b'def test_g():\n  assert a.f("0") == "0"\n'
    )
    self.tree = {
        '.gitattributes': b'tests export-ignore\nversion.py export-subst\n',
        'a.py': b'f = str\n',
        'data/f.cases': b'3 3\n',
        'latin.txt': b'\xe9\r\n',
        'tests/__init__.py': b'',
        'tests/test_a.py': test,
        'version.py': b'ref = "$Format:%D$"\n',
    }
    fixed = {**self.tree, 'a.py': b'f = lambda x: x.lstrip("-")\n'}
    tested = {**self.tree, 'data/f.cases': b'-1 1\n-2 2\n'}
    made = history.make([history.Commit('Begin', foreign._RELEASED, self.tree)])
    for path, data in made.files.items():
      file = self.folder / path
      file.parent.mkdir(parents=True, exist_ok=True)
      file.write_bytes(data)
    self.row = {
        'instance_id': 'a__b-1', 'repo': 'a/b', 'base_commit': made.head,
        'problem_statement': 'Make it positive.',
        'patch': trees.patch(self.tree, fixed),
        'test_patch': trees.patch(self.tree, tested),
        # SWE-bench's names end at the first blank.
        'FAIL_TO_PASS': ('tests/test_a.py::test_f[-1',
                         'tests/test_a.py::test_f[-2'),
        'PASS_TO_PASS': ('tests/test_a.py::test_g',),
    }  # fmt: skip

  def test_a_row(self):
    with workspaces.Pool('T0', 1, entry=foreign.ENTRY) as pool:
      with pool.lend() as box:
        task = foreign.from_row(self.row, self.folder, box)
        self.assertEqual(task.tree, self.tree)
        self.assertEqual(task.patch, self.row['patch'])
        self.assertEqual(task.test_patch, self.row['test_patch'])
        self.assertEmpty(foreign.check(task, box))
        # A file of the test patch is part of the tests, whatever its name is.
        for path, data, outcome in (
            ('a.py', task.solution['a.py'], True),
            ('a.py', task.tree['a.py'] + b'f = int\n', False),
            ('data/f.cases', b'', False),
        ):
          files = {**task.tree, path: data}
          files = {p: repository.File(d) for p, d in files.items()}
          report = grade.grade(task, files, box)
          self.assertEqual(report.outcome, outcome, report)


class BrokenRowsTest(Folder):

  @parameterized.parameters(
      (dict(patch=None), 'patch=None must be a text'),
      (dict(FAIL_TO_PASS='[]'), 'FAIL_TO_PASS is empty'),
      (dict(FAIL_TO_PASS='x'), 'line 1'),
      (dict(PASS_TO_PASS=[1]), 'names of tests'),
      (dict(PASS_TO_PASS=['test_x (a.B)']), r"'test_x \(a.B\)', which is no"),
  )
  def test_broken_rows(self, fields, said):
    row = problems.build(problems.entries('train')[0]).row()
    path = self.folder / 'rows.jsonl'
    path.write_text(json.dumps({**row, **fields}))
    with self.assertRaisesRegex(ValueError, said):
      foreign.read_rows(path)
    path.write_text(json.dumps({k: 1 for k in list(row)[1:]}))
    with self.assertRaisesRegex(ValueError, 'instance_id'):
      foreign.read_rows(path)
    path.write_bytes(b'\n{"instance_id": "\xff"}\n')
    with self.assertRaisesRegex(ValueError, 'rows.jsonl, line 2: .*0xff'):
      foreign.read_rows(path)
    path.write_text('\n')
    with self.assertRaisesRegex(ValueError, 'rows.jsonl holds no row'):
      foreign.read_rows(path)


class ContainerTest(Folder):

  def test_tests_run_where_the_template_says(self):
    files = {
        'a.py': b'x = 1\n',
        'test_a.py': (
            b'import pytest, a\n\ndef test_x():\n  assert a.x == 1\n\n'
            b'class TestB:\n  @pytest.mark.parametrize("n", [1, 2])\n'
            b'  def test_y(self, n):\n'
            b'    print("where", n)\n    assert n == 1\n'
            b'@pytest.mark.skip\ndef test_z(): pass\n'
        ),
    }
    entered = self.folder / 'entered'
    word = shlex.quote(f'echo $0 > {entered}; cd "$1"; shift; exec "$@"')
    place = container.Container(
        f'sh -c {word} {{instance_id}} {{tree}} sh -c {{command}}',
        tests=f'{sys.executable} {container.Container.tests[7:]}',
    )
    found, status, text = place.run('task-7', files, ('test_a.py',))
    self.assertEqual(status, 'ok', text)
    self.assertEqual(
        found,
        {
            'test_a.py::test_x': True,
            'test_a.py::TestB::test_y[1]': True,
            'test_a.py::TestB::test_y[2]': False,
            'test_a.py::test_z': False,
        },
    )
    self.assertEqual(entered.read_text(), 'task-7\n')
    self.assertIn('where 2', text)

  def test_tests_that_take_too_long_are_killed_where_they_run(self):
    # The client leaves, as that of Docker does when it is killed; what it
    # started is in a session of its own.
    late = self.folder / 'late'
    place = container.Container(
        'setsid --wait sh -c {command} {tree}',
        seconds=0.5,
        tests=f'sleep 3; touch {late}; {{report}}',
    )
    start = time.monotonic()
    self.assertEqual(place.run('x', {})[:2], ({}, 'timeout'))
    self.assertLess(time.monotonic() - start, 2.9)
    time.sleep(start + 3.5 - time.monotonic())
    self.assertFalse(late.exists())

  def test_a_client_that_does_not_return_is_killed(self):
    place = container.Container(
        'sh -c "trap : TERM; sleep 30; sleep 30" {command} {tree}', seconds=1.0
    )
    with mock.patch.object(container, '_START', 0.2):
      start = time.monotonic()
      self.assertEqual(place.run('x', {})[1], 'timeout')
    self.assertLess(time.monotonic() - start, 20)

  @parameterized.parameters(
      b'',
      b'<a>',
      b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
      None,
  )
  def test_reports_that_are_none(self, data):
    report = self.folder / 'report.xml'
    if data is None:
      (self.folder / 'other').write_text('<a/>')
      report.symlink_to(self.folder / 'other')
    else:
      report.write_bytes(data)
    self.assertIsNone(container._outcomes(report))

  @parameterized.parameters(
      ('docker run {tree}', 'lacks {command}'),
      ('docker run {command}', 'lacks {tree}'),
      ('{tree} {command} {nonsense}', 'nonsense'),
      ('{tree} {command} "', 'quotation'),
  )
  def test_templates(self, template, said):
    with self.assertRaisesRegex(ValueError, said):
      container.Container(template)

  def test_the_tool_runs_the_files_that_are_named(self):
    if missing := attacks.missing('T0'):
      self.skipTest(missing)
    asked = []

    class Place(container.Container):

      def run(self, instance_id, files, paths=()):
        asked.append(paths)
        return {'tests/test_a.py::test_x': True}, 'ok', ''

    made = problems.build(problems.entries('train')[0])
    files = ('a.py', 'tests/test_a.py', 'tests/test_b.py', 'tests/help.py')
    task = dataclasses.replace(made, tree=dict.fromkeys(files, b''))
    place = Place('{tree} {command}')
    with repository.Workspace(tier='T0') as box:
      session = tools.Session(task, box, tools.Settings(), place)
      for only in ('', 'test_a.py', 'tests/test_b.py::test_x', 'test_x'):
        session.call('test', {'only': only})
    self.assertEqual(
        asked, [(), ('tests/test_a.py',), ('tests/test_b.py',), ()]
    )

  def test_a_grade(self):
    made = problems.build(problems.entries('train')[0])
    names = dict.fromkeys([*made.fail_to_pass, *made.pass_to_pass], True)
    asked = []

    class Place(container.Container):

      def run(self, instance_id, files, paths=()):
        asked.append((instance_id, files, paths))
        return names, 'ok', ''

    task = tasks.Task(**{**vars(made), 'trust': tasks.IN_PROCESS})
    place = Place('{tree} {command}')
    files = {p: repository.File(d) for p, d in task.solution.items()}
    with mock.patch.object(repository.Workspace, 'write') as write:
      with repository.Workspace(tier='T0') as box:
        report = grade.grade(task, files, box, place)
    write.assert_not_called()
    self.assertTrue(report.outcome)
    ((_, tree, paths),) = asked
    self.assertEqual(tree, task.solution)
    self.assertContainsSubset(paths, task.hidden)
    names[task.fail_to_pass[0]] = False
    self.assertFalse(grade.grade(task, files, box, place).outcome)


class PoolTest(absltest.TestCase):

  def test_a_workspace_is_used_again_and_empty(self):
    if missing := attacks.missing('T0'):
      self.skipTest(missing)
    with workspaces.Pool('T0', 1) as pool:
      with pool.lend() as first:
        first.write({'a': b'1'})
        first.run(['sh', '-c', 'echo x > $HOME/y'])
      with pool.lend() as second:
        self.assertIs(second, first)
        self.assertEmpty(second.read())
        self.assertEqual(second.run(['sh', '-c', 'ls $HOME']).stdout, b'')
        process = second._box._all[0]._process
        process.kill()
        process.wait()
      with pool.lend() as third:
        third.write({'a': b'1'})
        self.assertLen(third.read(), 1)
    with self.assertRaisesRegex(ValueError, 'size=0'):
      workspaces.Pool('T0', 0)


if __name__ == '__main__':
  absltest.main()
