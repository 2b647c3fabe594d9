"""The packages that agents repair are complete, tested, with a history."""

import fnmatch
import os
import pathlib
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.swe import shipped
from evojax.domains.swe import suite
from evojax.domains.swe import trees
import setup

FOLDER = pathlib.Path(shipped.__file__).parent
NAMES = shipped.names()


class PackagesTest(parameterized.TestCase):

  def test_there_are_enough(self):
    self.assertGreaterEqual(len(NAMES), 10)
    self.assertContainsSubset(shipped.UNSEEN, NAMES)

  @parameterized.parameters(*NAMES)
  def test_a_package_is_small_and_readable(self, name):
    package = shipped.load(name)
    modules = [p for p in package.sources if not p.endswith('__init__.py')]
    lines = [package.tree[path].count(b'\n') for path in package.sources]
    self.assertBetween(len(modules), 2, 6)
    self.assertBetween(sum(lines), 60, 250)
    self.assertGreater(len(package.tests), 2)
    for path in modules:
      for name in trees.definitions(package.tree[path].decode()):
        self.assertIn('"""', package.tree[path].decode().split(name, 1)[1])

  @parameterized.parameters(*NAMES)
  def test_every_test_checks_several_things(self, name):
    package = shipped.load(name)
    tests = suite.parse({p: package.tree[p] for p in package.tests})
    self.assertGreaterEqual(len(tests.tests), 15)
    self.assertLen(set(tests.names), len(tests.tests))
    for test in tests.tests:
      self.assertGreaterEqual(len(test.checks), 1, test.name)

  def test_real_pytest_passes(self):
    """They are ordinary pytest tests, too."""
    folders = [FOLDER / 'packages' / name for name in NAMES]
    run = subprocess.run(
        [sys.executable, '-B', '-m', 'pytest', '-q', '-c', os.devnull,
         '-p', 'no:cacheprovider', *folders],
        env={
            **os.environ,
            'PYTHONPATH': os.pathsep.join(map(str, folders)),
            'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1',
        },
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    self.assertEqual(run.returncode, 0, run.stdout[-2000:])

  def test_the_wheel_has_all_of_it(self):
    patterns = setup.PACKAGE_DATA['evojax.domains.swe']
    for path in (FOLDER / 'packages').rglob('*'):
      if path.is_file() and path.suffix != '.pyc':
        relative = path.relative_to(FOLDER)
        self.assertTrue(
            # In setuptools, a star does not match a slash.
            any(
                len(pathlib.PurePath(p).parts) == len(relative.parts)
                and fnmatch.fnmatch(str(relative), p)
                for p in patterns
            ),
            relative,
        )

  def test_unknown(self):
    with self.assertRaisesRegex(ValueError, 'measures'):
      shipped.load('nonsense')


class HistoryTest(parameterized.TestCase):

  @parameterized.parameters(*NAMES)
  def test_it_ends_with_the_package(self, name):
    package = shipped.load(name)
    commits = package.commits(package.tree)
    self.assertGreaterEqual(len(commits), 4)
    self.assertEqual(dict(commits[-1].tree), dict(package.tree))
    dates = [commit.date for commit in commits]
    self.assertEqual(dates, sorted(dates))
    for commit in commits:
      for path, data in commit.tree.items():
        if path.endswith('.py'):
          compile(data, path, 'exec')

  def test_definitions_come_one_by_one(self):
    package = shipped.load('measures')
    first = package.commits(package.tree)[0].tree['measures/table.py'].decode()
    self.assertEqual(trees.definitions(first), ['find', 'same_kind'])
    self.assertIn('UNITS = {', first)
    self.assertNotIn('\n\n\n\n', first)

  def test_a_bug_has_been_there_from_the_beginning(self):
    package = shipped.load('measures')
    path = 'measures/table.py'
    tree = dict(package.tree)
    right, wrong = b"raise KeyError(f'no", b"pass  # KeyError(f'no"
    tree[path] = tree[path].replace(right, wrong)
    self.assertNotEqual(tree[path], package.tree[path])
    for commit in package.commits(tree):
      self.assertIn(wrong, commit.tree[path])
      self.assertNotIn(right, commit.tree[path])

  def test_tests_that_are_left_out_were_never_there(self):
    package = shipped.load('measures')
    tree = {p: d for p, d in package.tree.items() if p != 'tests/test_heat.py'}
    for commit in package.commits(tree):
      self.assertNotIn('tests/test_heat.py', commit.tree)


if __name__ == '__main__':
  absltest.main()
