"""Git itself can read repositories that were made without it."""

import datetime
import pathlib
import shutil
import subprocess
import tempfile

from absl.testing import absltest

from evojax.domains.swe import history

DAY = datetime.date(2020, 2, 3)
FIRST = {'a.py': b'x = 1\n', 'b/c.py': b'', 'b.py': b'\0\xff', 'b/d/e': b'e'}
SECOND = {**FIRST, 'a.py': b'x = 2\n', 'new \xfc.txt'.encode().decode(): b'n'}
COMMITS = [
    history.Commit('First', DAY, FIRST),
    history.Commit('Second\n\nWith a reason.', DAY, SECOND),
    history.Commit('Repair', DAY, {**SECOND, 'a.py': b'x = 3\n'}),
]


@absltest.skipIf(not shutil.which('git'), 'there is no git')
class GitTest(absltest.TestCase):

  def test_git_finds_nothing_wrong(self):
    git = self._checked_out(COMMITS)
    self.assertEqual(git('fsck', '--strict', '--full'), '')
    self.assertEqual(git('status', '--short'), '')
    log = git('log', '--format=%s %ad', '--date=short').splitlines()
    self.assertEqual(
        log, ['Repair 2020-02-03', 'Second 2020-02-03', 'First 2020-02-03']
    )
    self.assertEqual(git('show', 'HEAD~2:a.py'), 'x = 1\n')
    self.assertIn('-x = 2\n+x = 3\n', git('show', 'HEAD'))

  def test_changes_are_seen(self):
    git = self._checked_out(COMMITS[:2])
    (self._folder / 'b' / 'c.py').write_text('y = 1\n')
    self.assertIn('+y = 1\n', git('diff'))
    self.assertEqual(git('status', '--short'), ' M b/c.py\n')

  def test_what_lies_ahead_is_on_the_other_branch(self):
    git = self._checked_out(COMMITS, ahead=1)
    self.assertEqual(git('log', '--format=%s'), 'Second\nFirst\n')
    self.assertIn('Repair', git('log', '--all', '--format=%s'))
    self.assertIn('+x = 3', git('show', 'origin/main'))

  def test_what_is_left_out_is_nowhere(self):
    git = self._checked_out(COMMITS[:2])
    objects = git('cat-file', '--batch-all-objects', '--batch-check')
    whole = history.make(COMMITS, ahead=1)
    self.assertNotIn(whole.ids[-1], objects)
    self.assertEqual(whole.head, history.make(COMMITS[:2]).head)

  def _checked_out(self, commits, ahead=0):
    self._folder = pathlib.Path(self.enter_context(
        tempfile.TemporaryDirectory()))  # fmt: skip
    made = history.make(commits, ahead)
    for path, data in {**commits[-1 - ahead].tree, **made.files}.items():
      file = self._folder / path
      file.parent.mkdir(parents=True, exist_ok=True)
      file.write_bytes(data)

    def git(*arguments):
      command = ['git', '-C', self._folder, *arguments]
      return subprocess.run(
          command, check=True, capture_output=True, text=True
      ).stdout

    return git


class HistoryTest(absltest.TestCase):

  def test_it_is_a_function_of_its_commits(self):
    once, again = (history.make(COMMITS, ahead=1) for _ in range(2))
    self.assertEqual(once, again)
    # Fixed forever, since data sets contain base commits.
    self.assertEqual(once.ids[0], 'b511cf2f54b6b2b8691f696b9a92eec22b582316')

  def test_something_must_be_left(self):
    for ahead in (-1, 3):
      with self.assertRaisesRegex(ValueError, 'ahead'):
        history.make(COMMITS, ahead)


if __name__ == '__main__':
  absltest.main()
