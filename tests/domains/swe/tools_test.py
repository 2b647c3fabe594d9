"""Every call gets a reply, whatever a model writes."""

import dataclasses
import shutil

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.swe import problems
from evojax.domains.swe import tools
from evojax.domains.swe import trees
from evojax.domains.swe import workspaces
from evojax.sandbox import repository
from tests.sandbox import attacks

TASK = problems.build(problems.entries('train')[0])
TREE = {
    'a.py': b'def f(x):\n  return x + 1\n\n\ndef g():\n  return f(1)\n',
    'b/c.txt': b'one\ntwo\nthree',
    'b/empty': b'',
    'binary.bin': b'\0\1',
    'latin.txt': b'\xe9\n',
    'tests/test_a.py': (
        b'import pytest\nimport a\n\n\n'
        b'def test_f():\n  assert a.f(1) == 2\n\n\n'
        b'def test_g():\n  assert a.g() == 3\n\n\n'
        b'def test_raises():\n  with pytest.raises(TypeError):\n    a.f(None)\n'
    ),
}
SMALL = dataclasses.replace(
    TASK, tree=TREE, history=lambda scrubbed: {}, repo='small'
)


class Tools(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if missing := attacks.missing('T0'):
      raise cls.skipTest(cls, missing)
    cls.pool = workspaces.Pool('T0', 2)  # A test may use two sessions.
    cls.addClassCleanup(cls.pool.close)

  def session(self, task=SMALL, **settings):
    self.box = self.enterContext(self.pool.lend())
    return tools.Session(task, self.box, tools.Settings(**settings))


class CallsTest(Tools):

  def test_ls(self):
    session = self.session()
    found = session.call('ls', {})
    self.assertEqual(found.text, 'a.py\nb/\nbinary.bin\nlatin.txt\ntests/')
    self.assertEqual((found.ok, found.action), (True, tools.ACTIONS['ls']))
    self.assertEqual(session.call('ls', {'path': 'b/'}).text, 'c.txt\nempty')

  def test_grep(self):
    session = self.session()
    found = session.call('grep', {'pattern': r'def \w\('}).text
    self.assertEqual(found, 'a.py:1:def f(x):\na.py:5:def g():')
    found = session.call('grep', {'pattern': 't', 'path': 'b'}).text
    self.assertEqual(found, 'b/c.txt:2:two\nb/c.txt:3:three')
    found = session.call('grep', {'pattern': 'nothing'})
    self.assertEqual((found.ok, found.text), (True, 'no line has nothing'))
    for path, said in (('c.txt', 'no file c.txt'), ('binary.bin', 'binary')):
      found = session.call('grep', {'pattern': 't', 'path': path})
      self.assertFalse(found.ok)
      self.assertIn(said, found.text)

  def test_read(self):
    session = self.session()
    self.assertEqual(
        session.call('read', {'path': 'b/c.txt'}).text, '1 one\n2 two\n3 three'
    )
    found = session.call('read', {'path': 'b/c.txt', 'first': 2, 'last': 9})
    self.assertEqual(found.text, '2 two\n3 three')
    self.assertEqual(found.argument, tools.ARGUMENTS['source'])
    found = session.call('read', {'path': 'b/empty'})
    self.assertEqual((found.ok, found.text), (True, 'the file is empty'))

  def test_edit_by_text(self):
    session = self.session()
    found = session.call('edit', {'path': 'a.py', 'old': '+ 1', 'new': '+ 2'})
    self.assertEqual(
        (found.ok, found.text), (True, 'a.py is changed at line 2')
    )
    session.call('edit', {'path': 'new/d.py', 'new': 'x = 1\n'})
    # A package often has an empty __init__.py.
    found = session.call('edit', {'path': 'b/empty', 'new': 'y = 1\n'})
    self.assertEqual(
        (found.ok, found.text), (True, 'b/empty is changed at line 1')
    )
    files = session.files()
    self.assertEqual(files['a.py'].data, TREE['a.py'].replace(b'+ 1', b'+ 2'))
    self.assertEqual(files['new/d.py'].data, b'x = 1\n')
    self.assertEqual(files['b/empty'].data, b'y = 1\n')

  def test_edit_by_lines(self):
    session = self.session()
    edit = lambda **a: session.call('edit', {'path': 'b/c.txt', **a}).ok
    read = lambda: session.files()['b/c.txt'].data
    self.assertTrue(edit(first=2, last=2, new='2'))
    self.assertEqual(read(), b'one\n2\nthree\n')
    self.assertTrue(edit(first=2, last=1, new='new\n'))  # Inserted.
    self.assertEqual(read(), b'one\nnew\n2\nthree\n')
    self.assertTrue(edit(first=1, last=3, new=''))
    self.assertEqual(read(), b'three\n')
    self.assertTrue(edit(first=1, new='last'))
    self.assertEqual(read(), b'last\n')
    self.assertTrue(edit(first=2, last=1, new='more'))  # Appended.
    self.assertFalse(edit(first=3, new='beyond'))
    self.assertFalse(edit(first=4, last=3, new='beyond'))
    self.assertEqual(read(), b'last\nmore\n')

  def test_test(self):
    session = self.session()
    found = session.call('test', {})
    self.assertTrue(found.ok)
    self.assertEqual(
        found.text,
        '2 passed, 1 failed\ntests/test_a.py::test_g FAILED\n'
        '  assert a.g() == 3\n  AssertionError: found 2',
    )
    session.call('edit', {'path': 'a.py', 'old': 'f(1)', 'new': 'f(2)'})
    self.assertEqual(session.call('test', {}).text, '3 passed, 0 failed')
    found = session.call('test', {'only': 'test_f'}).text
    self.assertEqual(found, '1 passed, 0 failed')

  def test_tests_of_the_agents_own(self):
    session = self.session()
    text = 'def test_more():\n  assert [1] in [[2]]\n'
    session.call('edit', {'path': 'test_more.py', 'new': text})
    self.assertIn(
        'test_more.py::test_more FAILED\n  assert [1] in [[2]]',
        session.call('test', {'only': 'more'}).text,
    )
    text = 'import nothing\n'
    session.call('edit', {'path': 'more_test.py', 'new': text})
    found = session.call('test', {'only': 'more_test'}).text
    self.assertIn("ModuleNotFoundError: No module named 'nothing'", found)

  def test_submit_ends_it(self):
    session = self.session()
    self.assertTrue(session.call('submit', {}).ok)
    self.assertTrue(session.submitted)
    with self.assertRaisesRegex(RuntimeError, 'handed in'):
      session.call('ls', {})

  def test_read_shows_a_window(self):
    session = self.session(read_lines=2)
    read = lambda **a: session.call('read', {'path': 'a.py', **a}).text
    self.assertEqual(read(), '1 def f(x):\n2   return x + 1\n... 4 lines more')
    self.assertEqual(read(first=5), '5 def g():\n6   return f(1)')
    self.assertLen(read(last=6).split('\n'), 6)

  def test_long_answers_are_cut(self):
    session = self.session(max_letters=20)
    found = session.call('read', {'path': 'a.py'}).text
    self.assertStartsWith(found, '1 def f(x):\n2   retu\n... and ')
    self.assertEndsWith(found, ' letters more')


class HostileTest(Tools):

  @parameterized.parameters(
      (None, {}, 'no tool None'),
      ('rm', {}, "no tool 'rm'"),
      ('_run', {}, "no tool '_run'"),
      (['ls'], {}, 'no tool'),
      ('x' * 10_000, {}, 'no tool'),
      ('ls', [], 'must be an object'),
      ('ls', None, 'must be an object'),
      ('read', {}, 'read needs path; it takes: path, [first], [last]'),
      ('read', {'file': 'a'}, "takes no 'file'"),
      ('read', {'path': 3}, 'path must be a text, not 3'),
      ('read', {'path': 'a.py', 'first': '1'}, 'first must be a whole number'),
      ('read', {'path': 'a.py', 'first': True}, 'first must be a whole number'),
      ('read', {'path': '\ud800'}, 'cannot be encoded in UTF-8'),
      ('read', {'path': '../home/.gitconfig'}, 'leads out of the repository'),
      ('read', {'path': 'b/../../x'}, 'leads out of the repository'),
      ('read', {'path': '/etc/passwd'}, 'leads out of the repository'),
      ('read', {'path': 'a\0b'}, 'leads out of the repository'),
      ('read', {'path': 'x' * 5000}, 'there is no file x'),
      ('read', {'path': '.git/config'}, '.git is not for this tool'),
      ('read', {'path': 'none.py'}, 'there is no file none.py'),
      ('read', {'path': 'b'}, 'b is a folder'),
      ('read', {'path': ''}, 'is a folder'),
      ('read', {'path': 'binary.bin'}, 'binary.bin is binary'),
      ('read', {'path': 'latin.txt'}, 'latin.txt is binary'),
      ('read', {'path': 'a.py', 'first': 0}, 'has lines 1 to 6'),
      ('read', {'path': 'a.py', 'first': 7}, 'has lines 1 to 6'),
      ('read', {'path': 'a.py', 'first': 3, 'last': 2}, 'has lines 1 to 6'),
      ('read', {'path': 'a.py', 'last': -(10**30)}, 'has lines 1 to 6'),
      ('ls', {'path': 'a.py'}, 'a.py is not a folder'),
      ('ls', {'path': '../'}, 'leads out of the repository'),
      ('grep', {'pattern': '('}, 'not a valid regex'),
      ('grep', {'pattern': 'x', 'path': '../..'}, 'leads out'),
      ('edit', {'path': 'a.py', 'new': 'x'}, 'say which text'),
      ('edit', {'path': 'a.py', 'old': 'zzz', 'new': 'x'}, 'not in a.py'),
      ('edit', {'path': 'a.py', 'old': 'return', 'new': 'x'}, '2 times'),
      ('edit', {'path': 'z.py', 'old': 'a', 'new': 'x'}, 'no file z.py'),
      ('edit', {'path': '../z', 'new': 'x'}, 'leads out of the repository'),
      ('edit', {'path': '.git/hooks/x', 'new': 'x'}, 'not for this tool'),
      ('edit', {'path': 'a.py/x', 'new': 'x'}, 'a.py'),
      ('edit', {'path': 'b', 'old': 'x', 'new': 'x'}, 'b is a folder'),
      ('edit', {'path': 'a.py', 'first': 9, 'new': ''}, 'has lines 1 to 6'),
      ('edit', {'path': 'a.py', 'first': 2, 'last': 0, 'new': ''}, 'has lines'),
      ('edit', {'path': 'a.py', 'last': 2, 'new': ''}, 'Name either'),
      ('edit', {'path': 'a.py', 'old': 'x', 'first': 1, 'new': ''}, 'either'),
      ('edit', {'path': 'y', 'new': 'x' * (2 << 20)}, 'too long'),
      ('git', {'command': 'push'}, 'git push is not available'),
      ('git', {'command': 'log --output=x'}, 'not available'),
      ('git', {'command': 'show', 'ref': '--output=x'}, 'names no commit'),
      ('git', {'command': 'show', 'ref': 'a b'}, 'names no commit'),
      ('git', {'command': 'diff', 'ref': 'HEAD'}, 'names no commit'),
      ('submit', {'now': 'yes'}, 'it takes nothing'),
  )
  def test_wrong_calls_are_told_what_is_wrong(self, name, arguments, said):
    session = self.session()
    found = session.call(name, arguments)
    self.assertIn(said, found.text)
    self.assertFalse(found.ok)
    self.assertLess(len(found.text), 5000)
    files = {p: f.data for p, f in session.files().items()}
    self.assertEqual(files, TREE)

  @parameterized.parameters(
      ('ln -s /etc/passwd k', 'read', {'path': 'k'}),
      ('ln -s /etc k', 'read', {'path': 'k/passwd'}),
      ('ln -s / k', 'ls', {'path': 'k'}),
      ('ln -s ../home k', 'edit', {'path': 'k/.gitconfig', 'new': 'x'}),
      ('ln -s / k', 'grep', {'pattern': 'root', 'path': 'k'}),
      ('ln -s ../home k', 'edit', {'path': 'k', 'old': 'x', 'new': 'x'}),
  )
  def test_links_are_not_followed(self, command, name, arguments):
    session = self.session()
    self.box.run(['sh', '-c', command])
    found = session.call(name, arguments)
    self.assertEqual((found.ok, 'k is a link' in found.text), (False, True))

  def test_large_files(self):
    session = self.session()
    self.box.run(['sh', '-c', 'truncate -s 5M large'])
    self.assertIn('too much', session.call('read', {'path': 'large'}).text)
    self.assertTrue(session.call('grep', {'pattern': 'def f'}).ok)

  def test_names_that_are_no_text(self):
    session = self.session()
    make = 'open(b"x\\xff.py", "w").write("def f(x)")'
    self.box.run([repository.PYTHON, '-c', make])
    for name, arguments in (('ls', {}), ('grep', {'pattern': 'def f'})):
      found = session.call(name, arguments)
      self.assertTrue(found.ok)
      found.text.encode()
      self.assertIn('x?.py', found.text)

  @parameterized.parameters(
      ('print("x" * 10**7)\n  import sys; sys.stderr.write("y" * 10**7)',
       '1 passed'),
      ('import subprocess; subprocess.Popen(["sleep", "1000"])', '1 passed'),
      ('import os; os._exit(0)', 'ended early'),
      ('import os; os.kill(os.getpid(), 9)', 'ended early'),
      ('bytearray(1 << 40)', 'MemoryError'),
      ('raise SystemExit(0)', 'SystemExit'),
      ('raise KeyboardInterrupt', 'KeyboardInterrupt'),
      ('raise ValueError("x" * 10**7)', 'ValueError: xxx'),
  )  # fmt: skip
  def test_tests_that_misbehave(self, body, said):
    session = self.session()
    self._check(session, body, said)

  @parameterized.parameters(
      ('while True: pass', 'LateError: too slow'),
      ('try:\n    for _ in iter(int, 1): pass\n'
       '  except BaseException:\n    pass\n'
       '  import signal; signal.setitimer(signal.ITIMER_PROF, 0)\n'
       '  while True: pass', 'had to be stopped'),
      ('import time; time.sleep(1000)', 'had to be stopped'),
      ('import sys; sys.setrecursionlimit(10**9)\n'
       '  def f(): f()\n  f()', 'stopped'),
  )  # fmt: skip
  def test_tests_without_end(self, body, said):
    session = self.session(test_seconds=0.4)
    self._check(session, body, said)

  def _check(self, session, body, said):
    text = f'def test_z():\n  {body}\n'
    session.call('edit', {'path': 'test_z.py', 'new': text})
    found = session.call('test', {'only': 'test_z'})
    self.assertIn(said, found.text)
    self.assertLess(len(found.text), 5000)
    self.assertTrue(session.call('ls', {}).ok)

  def test_patterns_without_end(self):
    session = self.session()
    session.call('edit', {'path': 'x', 'new': 'a' * 40})
    limits = dataclasses.replace(
        self.box.limits, cpu_seconds=0.3, wall_seconds=5.0
    )
    session._limits = lambda seconds: limits
    found = session.call('grep', {'pattern': '(a+)+b', 'path': 'x'})
    self.assertEqual(found.text, 'grep took too long and had to be stopped.')

  def test_a_tree_that_nobody_can_read(self):
    session = self.session()
    deep = (
        'import os\n'
        'for _ in range(60):\n'
        '  os.mkdir("x" * 90)\n'
        '  os.chdir("x" * 90)\n'
    )
    self.box.run([repository.PYTHON, '-c', deep])
    self.assertIsNone(session.files())

  def test_a_box_that_is_gone_is_no_answer(self):
    session = self.session()
    process = self.box._box._all[0]._process
    process.kill()
    process.wait()
    with self.assertRaises(tools.BoxError):
      session.call('ls', {})
    with self.assertRaises(tools.BoxError):
      session.files()


@absltest.skipIf(not shutil.which('git'), 'there is no git')
class GitTest(Tools):

  def test_a_scrubbed_history_does_not_tell(self):
    session = self.session(TASK, max_letters=10**6)
    log = session.call('git', {'command': 'log'})
    self.assertTrue(log.ok, log)
    self.assertEqual(log.argument, tools.ARGUMENTS['log'])
    self.assertNotIn('Fix ', log.text)
    self.assertNotIn('origin', log.text)
    fixed = self._added_by_the_fix()
    everything = self.box.run(
        ['git', 'log', '--all', '-p', '--reflog', '--format=%H']
    ).stdout.decode()
    self.assertIn('+def ', everything)
    self.assertNotIn(f'+{fixed}\n', everything)
    objects = self.box.run(['sh', '-c', (
        'git cat-file --batch-all-objects --batch-check'
        ' --unordered | cut -d" " -f1 | git cat-file --batch')])  # fmt: skip
    self.assertEqual(objects.status, 'ok')
    self.assertNotIn(f'{fixed}\n'.encode(), objects.stdout)

  def test_an_unscrubbed_history_tells(self):
    session = self.session(TASK, scrubbed=False, max_letters=10**6)
    log = session.call('git', {'command': 'log'}).text
    first = log.split('\n')[0]
    self.assertRegex(first, r'^\w{7} \(origin/main\) Fix ')
    shown = session.call('git', {'command': 'show', 'ref': first.split()[0]})
    self.assertIn(f'+{self._added_by_the_fix()}\n', f'{shown.text}\n')
    # The same commit is checked out as without the scrubbed branch.
    head = self.box.run(['git', 'rev-parse', 'HEAD']).stdout.decode().strip()
    self.assertEqual(head, TASK.base_commit)

  @parameterized.parameters(0, 1)
  def test_a_patch_has_as_much_context_as_is_asked_for(self, lines):
    session = self.session(TASK, scrubbed=False, patch_context=lines)
    arguments = {'command': 'show', 'ref': 'origin/main'}
    _, _, patch = session.call('git', arguments).text.partition('@@ ')
    same = [line for line in patch.split('\n')[1:] if line[0] == ' ']
    self.assertLen(same, 2 * lines)
    # Without context, the patch begins at the line that it changes.
    path = next(p for p, d in TASK.solution.items() if TASK.tree[p] != d)
    old, new = (t[path].split(b'\n') for t in (TASK.tree, TASK.solution))
    at = next(n for n, (a, b) in enumerate(zip(old, new), 1) if a != b)
    self.assertStartsWith(patch, f'-{at - lines}')
    session.call('edit', {'path': path, 'first': at, 'new': '# New'})
    diff = session.call('git', {'command': 'diff'}).text
    self.assertLen([n for n in diff.split('\n') if n[:1] == ' '], 2 * lines)

  @parameterized.parameters(True, False)
  def test_hidden_tests_are_in_no_history(self, scrubbed):
    self.session(TASK, scrubbed=scrubbed)
    shown = self.box.run(['git', 'log', '--all', '-p']).stdout.decode()
    names = {n.rpartition('::')[2] for n in TASK.suite.names}
    visible = b''.join(d for p, d in TASK.tree.items() if trees.is_test(p))
    hidden = {n for n in names if f'def {n}('.encode() not in visible}
    self.assertNotEmpty(hidden)
    self.assertContainsSubset(
        {n.rpartition('::')[2] for n in TASK.fail_to_pass}, hidden
    )
    for name in hidden:
      self.assertNotIn(f'def {name}(', shown)

  def test_changes_are_shown(self):
    session = self.session(TASK)
    found = session.call('git', {'command': 'diff'})
    self.assertEqual((found.ok, found.text), (True, 'Nothing has changed.'))
    new = {'path': 'README.md', 'first': 1, 'new': '# New'}
    session.call('edit', new)
    found = session.call('git', {'command': 'diff'}).text
    self.assertIn('+# New\n', found)
    found = session.call('git', {'command': 'diff', 'path': 'tests'}).text
    self.assertEqual(found, 'Nothing has changed.')
    found = session.call('git', {'command': 'show', 'ref': 'HEAD:README.md'})
    self.assertIn(f'# {TASK.repo}', found.text)
    found = session.call('git', {'command': 'show', 'ref': 'nonsense'})
    self.assertEqual((found.ok, 'nonsense' in found.text), (False, True))

  def _added_by_the_fix(self):
    lines = TASK.patch.split('\n')
    return next(n[1:] for n in lines if n[:1] == '+' and n[:2] != '++')


class SettingsTest(parameterized.TestCase):

  @parameterized.parameters(
      dict(tools=('ls', 'rm')),
      dict(tools=()),
      dict(read_lines=0),
      dict(patch_context=-1),
      dict(patch_context=True),
      dict(max_letters=0),
      dict(test_seconds=float('nan')),
      dict(read_lines=True),
  )
  def test_refused(self, **fields):
    with self.assertRaisesRegex(ValueError, next(iter(fields))):
      tools.Settings(**fields)

  def test_tools_can_be_taken_away(self):
    settings = tools.Settings(tools=('ls', 'submit'))
    names = [s['function']['name'] for s in tools.schemas(settings)]
    self.assertEqual(names, ['ls', 'submit'])

  def test_schemas(self):
    edit = tools.schemas(tools.Settings())[3]['function']
    self.assertEqual(edit['name'], 'edit')
    self.assertEqual(edit['parameters']['required'], ['path', 'new'])
    kinds = {k: p['type'] for k, p in edit['parameters']['properties'].items()}
    self.assertEqual((kinds['old'], kinds['first']), ('string', 'integer'))


if __name__ == '__main__':
  absltest.main()
