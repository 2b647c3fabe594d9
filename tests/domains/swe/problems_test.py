"""Problems have checked bugs, described by symptoms, in separate splits."""

import collections
import json
import re

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.swe import catalogue
from evojax.domains.swe import foreign
from evojax.domains.swe import grade
from evojax.domains.swe import issues
from evojax.domains.swe import operators
from evojax.domains.swe import problems
from evojax.domains.swe import shipped
from evojax.domains.swe import suite
from evojax.domains.swe import values
from evojax.domains.swe import workspaces
from evojax.sandbox import repository
from tests.sandbox import attacks

SPLITS = ('train', 'dev', 'sealed')


class SplitsTest(absltest.TestCase):

  def test_no_two_splits_share_a_key(self):
    keys = {s: {e.key for e in problems.entries(s)} for s in SPLITS}
    for one, other in (('train', 'dev'), ('train', 'sealed'),
                       ('dev', 'sealed')):  # fmt: skip
      self.assertEmpty(keys[one] & keys[other])
    self.assertGreater(len(keys['train']), 500)

  def test_there_are_enough_sealed_ones(self):
    sealed = problems.entries('sealed')
    unseen = [e for e in sealed if e.package in shipped.UNSEEN]
    self.assertGreaterEqual(len(sealed), 150)
    self.assertEqual(len(unseen) * 4, len(sealed))
    for split in ('train', 'dev'):
      packages = {e.package for e in problems.entries(split)}
      self.assertEmpty(packages & set(shipped.UNSEEN))
      self.assertGreater(len(problems.entries(split)), 100)

  def test_a_fault_in_one_split_is_the_text_of_no_other(self):
    texts = collections.Counter(
        (e.package, e.bug.apply(shipped.load(e.package).tree[
            e.bug.path].decode())) for e in catalogue.load()
    )  # fmt: skip
    self.assertEqual(max(texts.values()), 1)

  def test_many_operators_and_all_packages(self):
    found = catalogue.load()
    operators_used = collections.Counter(e.bug.operator for e in found)
    self.assertGreaterEqual(len(operators_used), 10)
    self.assertContainsSubset(operators_used, operators.OPERATORS)
    self.assertEqual({e.package for e in found}, set(shipped.names()))

  def test_only_demonstrations_have_more_than_two_bugs_of_a_kind(self):
    kinds = collections.defaultdict(list)
    for entry in catalogue.load():
      kinds[entry.key].append(entry)
    self.assertGreater(max(map(len, kinds.values())), 2)
    for found in kinds.values():
      others = [entry for entry in found if not entry.demonstrated]
      self.assertLessEqual(len(others), 2)

  def test_every_fourth_sealed_one_is_unseen(self):
    unseen = [e.package in shipped.UNSEEN for e in problems.entries('sealed')]
    self.assertEqual(unseen[:12], [False, False, False, True] * 3)

  def test_unknown_split(self):
    with self.assertRaisesRegex(ValueError, 'split'):
      problems.entries('test')


class TaskTest(parameterized.TestCase):

  def test_visible_tests_do_not_fail_unless_that_is_wanted(self):
    for entry in problems.entries('train')[:25]:
      task = problems.build(entry)
      visible = _visible(task)
      self.assertNotEmpty(visible)
      self.assertEmpty(visible & set(task.fail_to_pass), task.instance_id)
      self.assertNotEmpty(set(task.pass_to_pass) - visible)
      self.assertCountEqual(
          [*task.fail_to_pass, *task.pass_to_pass], task.suite.names
      )
      shown = _visible(problems.build(entry, 1)) & set(task.fail_to_pass)
      self.assertLen(shown, min(1, len(task.fail_to_pass) - 1))

  def test_what_an_issue_shows_is_not_all_that_fails(self):
    for entry in catalogue.load():
      self.assertGreaterEqual(len(entry.failing), 2)
      self.assertIn(entry.shown, entry.failing)

  def test_issues_tell_no_place(self):
    for entry in problems.entries('train')[:60]:
      task = problems.build(entry)
      for path in task.tree:
        self.assertNotIn(path, task.issue)
        module = path.rpartition('/')[2].removesuffix('.py')
        self.assertNotRegex(task.issue, rf'\b{re.escape(module)}\.\w+\(')
      self.assertLess(len(task.issue), 600)

  def test_the_patch_is_the_reference(self):
    task = problems.build(problems.entries('train')[5])
    changed = [p for p in task.tree if task.tree[p] != task.solution[p]
               and not p.startswith('tests/')]  # fmt: skip
    self.assertLen(changed, 1)
    self.assertEqual(task.patch.count('diff --git'), 1)
    self.assertIn(f'--- a/{changed[0]}', task.patch)
    self.assertIn('diff --git a/tests/', task.test_patch)

  def test_rows(self):
    task = problems.build(problems.entries('train')[5])
    row = json.loads(json.dumps(task.row()))
    self.assertEqual(foreign._row(row)['FAIL_TO_PASS'], task.fail_to_pass)
    self.assertLen(row['base_commit'], 40)


@absltest.skipIf(attacks.missing('T0'), 'T0 does not hold here')
class CatalogueTest(absltest.TestCase):

  def test_it_is_what_is_found_again(self):
    package = shipped.load('larder')
    tests = suite.parse({p: package.tree[p] for p in package.tests})
    path = 'larder/frequent.py'
    stored = [e for e in catalogue.load() if e.bug.path == path]
    found = catalogue.entries_of(package, 'T0', [path])
    self.assertGreater(len(found), 20)
    self.assertEqual(
        catalogue.encode(tests, found), catalogue.encode(tests, stored)
    )

  def test_some_of_every_package(self):
    """At least one test fails, one passes, and the reference repairs all."""
    chosen = [
        next(e for e in sorted(catalogue.load(), key=lambda e: e.identity)
             if e.package == name and name != 'larder')
        for name in shipped.names() if name != 'larder'
    ]  # fmt: skip
    with workspaces.Pool('T0', 1) as pool, pool.lend() as box:
      for entry in chosen:
        task = problems.build(entry)
        self.assertEmpty(foreign.check(task, box))
        files = {p: repository.File(d) for p, d in task.tree.items()}
        files[entry.bug.path] = repository.File(
            task.tree[entry.bug.path] + b'\n'
        )
        report = grade.grade(task, files, box)
        self.assertEqual(report.failed, task.fail_to_pass, entry)

  def test_a_changed_package_is_noticed(self):
    package = shipped.load('larder')
    other = shipped.Package('larder', {**package.tree, 'x': b''}, ())
    self.assertNotEqual(catalogue.digest(package), catalogue.digest(other))


class IssuesTest(parameterized.TestCase):

  @parameterized.parameters(
      (dict(call='m.f(1)', expected=2), 3, r'`f\(1\)`.*`3`.*`2`|`2`.*`3`'),
      (
          dict(call='m.f(1)', expected=2),
          values.Raised('TypeError', 'secret'),
          r'`f\(1\)`.*a TypeError|a TypeError.*`f\(1\)`',
      ),
      (
          dict(call='m.f(1)', expected='KeyError', raises=True),
          3,
          r'`f\(1\)`.*a KeyError.*`3`|`3`.*a KeyError|a KeyError.*`f\(1\)`',
      ),
  )
  def test_words(self, fields, found, pattern):
    check = suite.Check(**fields, modules=('m',))
    said = {issues.write(check, found, str(seed)) for seed in range(60)}
    self.assertGreaterEqual(len(said), 3)
    for text in said:
      self.assertRegex(text, pattern)
      self.assertNotIn('secret', text)

  def test_what_comes_before(self):
    check = suite.Check(
        'made.last()', 1, before='made = ring.Ring(3)', modules=('ring',)
    )
    text = issues.write(check, 2, 'seed')
    self.assertIn('```python\nmade = Ring(3)\n```\n\n', text)
    self.assertIn('`made.last()`', text)


def _visible(task):
  tests = {p: d for p, d in task.tree.items() if p in task.hidden}
  return set(suite.parse(tests).names)


if __name__ == '__main__':
  absltest.main()
