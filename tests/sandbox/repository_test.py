"""Commands in a repository attack the box; the tree travels as bytes."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.sandbox import box
from evojax.sandbox import probe
from evojax.sandbox import repository
from evojax.sandbox import wire
from tests.sandbox import attacks
from tests.sandbox import repository_attacks


class RepositoryAttacksTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if missing := attacks.missing('T0'):
      raise cls.skipTest(cls, missing)
    cls._range = attacks.Range(
        'repository',
        repository_attacks.control,
        limits=repository_attacks.LIMITS,
    )
    cls.addClassCleanup(cls._range.close)

  @parameterized.named_parameters(attacks.named(repository_attacks.ATTACKS))
  def test(self, attack):
    if attack.name.startswith('git') and not shutil.which('git'):
      self.skipTest('there is no git')
    self._range.check(attack)


_ENTRY = wire.Entry(
    str(pathlib.Path(__file__).with_name('repository_entry.py'))
)


@absltest.skipIf(attacks.missing('T0'), 'T0 does not hold here')
class WorkspaceTest(parameterized.TestCase):

  @parameterized.parameters('T0', 'T1')
  def test_files_go_in_and_come_out(self, tier):
    files = {'a.py': b'print(open("b/c").read())', 'b/c': b'\0\xff\nx\r\n'}
    with self._workspace(tier) as w:
      w.write(files | {'run': b'#!/bin/sh\necho ran > d'}, ['run'])
      self.assertEqual(w.run(['./run']).status, 'ok')
      w.run(['ln', '-s', '/etc/passwd', 'link'])
      w.run(['mkfifo', 'pipe'])
      found = w.read()
      self.assertEqual(
          found,
          {n: repository.File(d) for n, d in files.items()}
          | {
              'run': repository.File(b'#!/bin/sh\necho ran > d', True),
              'd': repository.File(b'ran\n'),
              'link': repository.File(b'/etc/passwd', link=True),
          },
      )
      self.assertEqual(w.read('b'), {'c': repository.File(files['b/c'])})

  @parameterized.parameters('../a', '/etc/a', 'b/../../a', 'a\0')
  def test_paths_stay_in_the_tree(self, path):
    with self._workspace() as w:
      with self.assertRaisesRegex(ValueError, 'within the tree'):
        w.write({path: b''})
      with self.assertRaisesRegex(ValueError, 'within the tree'):
        w.read(path)

  def test_what_is_shut_is_read(self):
    with self._workspace('T0') as w:
      w.write({'a/b/c': b'1', 'd': b'2', 'run': b'3'}, ['run'])
      w.run(['chmod', '0', 'd', 'run', 'a/b/c', 'a/b', 'a'])
      self.assertEqual(
          {path: file.data for path, file in w.read().items()},
          {'a/b/c': b'1', 'd': b'2', 'run': b'3'},
      )

  def test_a_tree_that_cannot_be_read_is_its_makers_doing(self):
    deep = (
        'import os\n'
        'for _ in range(60):\n'
        '  os.mkdir("x" * 90)\n'
        '  os.chdir("x" * 90)\n'
    )
    with self._workspace('T0') as w:
      self.assertEqual(w.run([repository.PYTHON, '-c', deep]).status, 'ok')
      with self.assertRaisesRegex(
          repository.WorkspaceError, 'too long'
      ) as caught:
        w.read()
      self.assertFalse(caught.exception.infra)

  def test_a_crowd_is_no_excuse_and_a_busy_machine_is(self):
    limits = dataclasses.replace(
        attacks.LIMITS, wall_seconds=1.5, cpu_seconds=60.0
    )
    loop = 'while 1: pass'
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})  # Inherited by all below.
    strangers = []
    try:
      with self._workspace('T0') as w:
        busy = f'{repository.PYTHON} -S -c "{loop}" &'
        crowd = w.run(['sh', '-c', f'{busy * 6} wait'], limits=limits)
        for _ in range(4):
          strangers.append(subprocess.Popen([sys.executable, '-S', '-c', loop]))
        # The command itself only waits for its child.
        alone = w.run(['sh', '-c', f'{busy} wait'], limits=limits)
    finally:
      os.sched_setaffinity(0, before)
      for process in strangers:
        process.kill()
        process.wait()
    self.assertEqual((crowd.status, alone.status), ('timeout', 'timeout'))
    # Other processes may have had the core for the rest of the time.
    waited = crowd.message.partition('waited ')[2].partition(' ')[0]
    rest = crowd.wall_seconds - crowd.cpu_seconds
    self.assertLess(float(waited or 0.0), rest + 0.2, crowd)
    self.assertTrue(alone.contended, alone)

  def test_long_paths_of_long_letters(self):
    folders = '/'.join(['\u00e9' * 120] * 12)
    deep = (
        'import os\n'
        'for _ in range(12):\n'
        '  os.mkdir("\u00e9" * 120)\n'
        '  os.chdir("\u00e9" * 120)\n'
        'open("f", "w").write("x")'
    )
    with self._workspace() as w:
      self.assertEqual(w.run([repository.PYTHON, '-c', deep]).status, 'ok')
      self.assertEqual(w.read(), {f'{folders}/f': repository.File(b'x')})

  @absltest.skipIf(os.geteuid() != 0, 'the processes of others are counted')
  def test_who_is_not_counted_is_refused(self):
    with mock.patch.object(box.Box, '_has_own_user', return_value=False):
      with self.assertRaisesRegex(probe.WeakSandboxError, 'another user'):
        repository.Workspace(tier='T1')
      for arguments in (dict(tier='T0'), dict(tier='T1', allow_weak=True)):
        repository.Workspace(**arguments).close()
    with mock.patch.object(box.Box, '_has_own_user', return_value=True):
      repository.Workspace(tier='T1').close()

  def test_a_link_in_the_way_is_not_followed(self):
    with self._workspace() as w:
      w.run(['ln', '-s', 'elsewhere', 'a'])
      with self.assertRaisesRegex(repository.WorkspaceError, 'not written'):
        w.write({'a': b'x'})
      self.assertEqual(list(w.read()), ['a'])

  @parameterized.parameters(
      'ln -s ../home a',
      'ln -s /usr/share a',
      'mkdir b; ln -s ../../home b/c; ln -s b/c a',
      'mv /box/tree /box/home/t; ln -s home /box/tree; mkdir /box/home/a',
  )
  def test_a_folder_that_is_a_link_is_not_followed(self, command):
    with self._workspace() as w:
      self.assertEqual(w.run(['sh', '-c', command]).status, 'ok')
      with self.assertRaisesRegex(repository.WorkspaceError, 'not written'):
        w.write({'a/b': b'x'})
      with self.assertRaisesRegex(repository.WorkspaceError, 'not read'):
        w.read('a')
      found = w.run(['find', '/box/home', '-name', 'b'])
      self.assertEqual((found.status, found.stdout), ('ok', b''))

  def test_a_new_file_is_new(self):
    """This holds for everything that may exist in its place."""
    with self._workspace() as w:
      w.write({'a': b'1', 'shut/b': b'2', 'd': b'3'}, ['d'])
      w.run(['sh', '-c', 'ln a other; chmod 0 a; chmod 500 shut'])
      w.write({'a': b'#!/bin/sh\n', 'shut/b': b'4', 'd': b'5'}, ['a'])
      self.assertEqual(
          w.read(),
          {
              'a': repository.File(b'#!/bin/sh\n', True),
              'd': repository.File(b'5'),
              'other': repository.File(b'1'),
              'shut/b': repository.File(b'4'),
          },
      )

  def test_the_way_to_the_tree_is_opened(self):
    with self._workspace() as w:
      w.write({'a/b': b'1'})
      w.run(['chmod', '0', '/box/tree/a', '/box/tree', '/box'])
      self.assertEqual(w.read('a'), {'b': repository.File(b'1')})
      w.write({'a/c': b'2'})
      self.assertLen(w.read(), 2)

  def test_names_that_look_like_records(self):
    name = '{"path": "..", "size": 0, "kind": "file"}\n\udcff'
    with self._workspace() as w:
      made = w.run([repository.PYTHON, '-c', f'open({name!r}, "w").write("x")'])
      self.assertEqual(made.status, 'ok', made)
      self.assertEqual(w.read(), {name: repository.File(b'x')})

  def test_records_are_read_strictly(self):
    line = b'{"path": "a", "size": 1, "kind": "file", "executable": false}\n'
    good = line + b'x'
    self.assertEqual(repository.parse(good), {'a': repository.File(b'x')})
    for bad in (
        good + good,  # Twice.
        line,  # Cut off.
        good.replace(b'"a"', b'"../a"'),
        good.replace(b'1', b'-1'),
        good.replace(b'1', b'1e9'),
        good.replace(b'1', b'1e999'),
        good.replace(b'"a"', b'1'),
        b'[' * 8000 + b'\n',
        b'[]\n',
        b'x' * 100_000,
    ):
      with self.subTest(bad[:80]):
        with self.assertRaises((ValueError, KeyError, TypeError)):
          repository.parse(bad)

  def test_the_tree_stays_from_command_to_command(self):
    with self._workspace() as w:
      w.run(['sh', '-c', 'echo 1 > a; mkdir b; cd b; echo 2 > c'])
      result = w.run(['cat', 'c', '../a'], folder='b')
      self.assertEqual(result.stdout, b'2\n1\n')

  def test_a_lost_tree_is_said_to_be_lost(self):
    with self._workspace('T1', without=('landlock',), grace_seconds=2.0) as w:
      w.write({'a': b'x'})
      self.assertEqual(w.run(['sh', '-c', 'kill -9 $PPID']).status,
                       'infra_error')  # fmt: skip
      result = w.run(['cat', 'a'])
      self.assertEqual(result.status, 'infra_error')
      self.assertIn('the tree is lost', result.message)
      with self.assertRaises(repository.WorkspaceError):
        w.read()

  @parameterized.parameters('killed', 'closed')
  def test_a_tree_is_not_replaced_by_an_empty_one(self, how):
    with self._workspace() as w:
      w.write({'a': b'x'})
      if how == 'killed':
        w._box._all[0]._process.kill()
        w._box._all[0]._process.wait()
      else:
        w.close()
      result = w.run(['ls'])
      self.assertEqual(result.status, 'infra_error')
      self.assertIn('the tree is lost', result.message)
      with self.assertRaises(repository.WorkspaceError) as caught:
        w.read()
      self.assertTrue(caught.exception.infra)

  def test_exit_codes_and_missing_commands(self):
    with self._workspace() as w:
      self.assertEqual(w.run(['sh', '-c', 'exit 3']).exit_code, 3)
      missing = w.run(['no-such-command'])
      self.assertEqual((missing.status, missing.exit_code), ('error', 127))
      self.assertIn(b'no-such-command', missing.stderr)
      killed = w.run(['sh', '-c', 'kill -9 $$'])
      # Unlike a program, a command may send signals, so this is its own doing.
      self.assertEqual((killed.status, killed.exit_code), ('error', -9))

  def test_environment_and_input(self):
    with self._workspace(environment={'A': '1'}) as w:
      result = w.run(
          ['sh', '-c', 'cat; echo $A$B; cd && pwd'],
          b'in ',
          environment={'B': '2'},
      )
      self.assertEqual(result.stdout, b'in 12\n/box/home\n')
      self.assertNotIn('A', os.environ)

  @parameterized.parameters('T0', 'T1')
  def test_a_cleared_tree_is_as_good_as_new(self, tier):
    leave = (
        'mkdir -p a/b; echo x > a/b/c; chmod 0 a; echo y > $HOME/.gitconfig;'
        ' echo z > $TMPDIR/t; cd $HOME/..; echo > beside; rm -r image tree/..'
        ' 2> /dev/null; rm -rf image; mkdir image; echo > image/pytest.py;'
        ' (setsid sleep 9 &)'
    )
    look = 'cd $HOME/.. && find . -mindepth 1 -type l -o -mindepth 1 | sort'
    with self._workspace(tier) as w:
      before = w.run(['sh', '-c', look])
      self.assertIn(b'./image/pytest\n', before.stdout)
      w.run(['sh', '-c', leave])
      self.assertIn(b'./beside', w.run(['sh', '-c', look]).stdout)
      w.clear()
      self.assertEqual(w.run(['sh', '-c', look]).stdout, before.stdout)
      w.write({'a': b'1'})
      self.assertEqual(w.read(), {'a': repository.File(b'1')})

  def test_a_tree_without_a_folder_is_cleared(self):
    with self._workspace() as w:
      w.run(['sh', '-c', 'cd $HOME/..; rmdir tree; ln -s home tree'])
      w.clear()
      self.assertEqual(w.run(['pwd']).stdout, b'/box/tree\n')

  @parameterized.parameters('T0', 'T1')
  def test_an_entry_is_loaded_before_the_tree_has_a_say(self, tier):
    files = {
        'json.py': b'1 / 0',
        'usercustomize.py': b'1 / 0',
        'sitecustomize.py': b'1 / 0',
        'b/made': b'',
    }
    with self._workspace(tier, entry=_ENTRY) as w:
      w.write(files)
      result = w.call('open("new", "w").write("x")', b'abc', folder='b')
      self.assertEqual(result.status, 'ok', result)
      line, rest = result.stdout.split(b'\n')
      self.assertEqual(
          json.loads(line),
          {'loaded': True, 'ours': [], 'files': ['made'], 'custom': False},
      )
      self.assertEqual(rest, b'cba')
      self.assertIn('b/new', w.read())
      # The next call gets a fresh copy.
      again = w.call('assert not hasattr(sys, "mark"); sys.mark = 1')
      self.assertEqual(again.status, 'ok', again)
      again = w.call('assert not hasattr(sys, "mark")')
      self.assertEqual(again.status, 'ok', again)

  def test_there_is_no_call_without_an_entry(self):
    with self._workspace() as w:
      with self.assertRaisesRegex(ValueError, 'no entry'):
        w.call('')
    with self.assertRaisesRegex(ValueError, 'entry'):
      box.Box('program', tier='T0', entry=_ENTRY)

  def test_nothing_is_left(self):
    folder = tempfile.gettempdir()
    before = set(os.listdir(folder))
    for tier in ('T0', 'T1'):
      with self._workspace(tier) as w:
        w.run(['sh', '-c', 'mkdir -p a/b; chmod 0 a; (setsid sleep 9 &)'])
    left = {n for n in set(os.listdir(folder)) - before if 'evojax-box' in n}
    self.assertEmpty(left)

  def _workspace(self, tier='T0', **arguments):
    return repository.Workspace(
        tier=tier, limits=attacks.LIMITS, allow_weak=True, **arguments
    )


class SuiteTest(absltest.TestCase):

  def test_there_are_enough(self):
    self.assertGreaterEqual(len(repository_attacks.ATTACKS), 15)


if __name__ == '__main__':
  absltest.main()
