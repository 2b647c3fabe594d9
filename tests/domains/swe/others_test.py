"""Foreign tasks in the domain: sealed, unless they are trusted."""

import hashlib
import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax import domains
from evojax import records
from evojax.domains.swe import demonstrations
from evojax.domains.swe import grade
from evojax.domains.swe import others
from evojax.domains.swe import problems
from evojax.domains.swe import shipped
from evojax.domains.swe import trees
from tests.domains.swe import foreign_test
from tests.sandbox import attacks


def episode(state):
  return records.Episode(
      np.zeros(1, np.int32), np.zeros(1, np.float32), 'stop', 0, '', state=state
  )


def turn(text):
  return records.Episode(
      np.zeros(1, np.int32), np.zeros(1, np.float32), 'stop', 0, text
  )


@absltest.skipIf(attacks.missing('T0'), 'T0 does not hold here')
class SdistTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    package = shipped.load('measures')
    data = foreign_test.archive(
        [(f'm-1/{p}', d) for p, d in package.tree.items() if 'render' not in p]
    )
    path = pathlib.Path(folder, 'm-1.tar.gz')
    path.write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    cls.given = dict(path=str(path), sha256=sha256, candidates=3)
    cls.domain = domains.make('swe', sdists=[cls.given], max_turns=3, slots=2)

  def test_they_are_sealed_and_nothing_else(self):
    sealed = self.domain.source('sealed', 0)
    found = sealed.take(0, len(sealed))
    self.assertEqual({p.problem_id for p in found}, {*self.domain.others.tasks})
    for split in ('train', 'dev'):
      ids = {p.problem_id for p in self.domain.source(split, 0).take(0, 9)}
      self.assertEmpty(ids & {*self.domain.others.tasks})

  def test_an_episode_is_played_and_graded(self):
    (problem,) = self.domain.source('sealed', 0).take(0, 1)
    task = self.domain.task(problem.problem_id)
    path = next(
        p
        for p, d in task.tree.items()
        if not trees.is_test(p) and d != task.solution[p]
    )
    world = self.domain.environment(problem)
    tried = world.reply(turn(demonstrations.call('test')))
    self.assertRegex(tried.messages[0]['content'], r'\d+ passed, 0 failed')
    right, wrong = task.solution[path].decode(), task.tree[path].decode()
    world.reply(
        turn(demonstrations.call('edit', path=path, old=wrong, new=right))
    )
    state = world.close()
    states = [state, None, grade.Changes({path: b'x'}, 0).to_json()]
    grades = self.domain.grade_many([problem] * 3, [episode(s) for s in states])
    self.assertEqual([g.outcome for g in grades], [True, False, False])
    self.assertTrue(grades[0].columns['unseen'])
    self.assertEqual(grades[0].columns['difficulty'], problems.LEVELS)
    for e in self.domain.attempts(problem):
      self.assertIsInstance(e, records.Episode)

  def test_training_on_them_is_asked_for(self):
    task = next(iter(self.domain.others.tasks.values()))
    many = {
        hashlib.sha256(b'%d' % i).hexdigest()[:16]: task for i in range(300)
    }
    trusted = others.Others(many, True)
    splits = [set(trusted.of(s)) for s in ('train', 'dev', 'sealed')]
    self.assertLen(set.union(*splits), 300)
    self.assertEqual(sum(map(len, splits)), 300)
    with self.assertRaisesRegex(ValueError, "is in 'dev': name more"):
      others.Others({next(iter(splits[0])): task}, True).of('dev')


class JsonlTest(foreign_test.Rows):

  def test_rows_are_sealed_problems(self):
    path = self.folder / 'tasks.jsonl'
    path.write_text(json.dumps(self.row))
    checkouts = {'a/b': str(self.folder / 'checkout')}
    given = dict(path=str(path), checkouts=checkouts)
    domain = domains.make('swe', jsonl=given)
    (problem,) = domain.source('sealed', 0).take(0, 1)
    self.assertEqual(problem.family, 'a/b')
    self.assertIn(self.made.issue, problem.question)
    task = domain.task(problem.problem_id)
    self.assertTrue(task.foreign)
    self.assertIsNone(domain.others.container)
    template = dict(template='true {tree} {command}')
    domain = domains.make('swe', jsonl=given | dict(container=template))
    self.assertEqual(domain.others.container.template, template['template'])
    for wrong, said in (
        (dict(checkouts={}), "no folder for 'a/b'"),
        (dict(container={'image': 'x'}), 'container: .*it takes template'),
        (dict(rows=3), r"unknown=\['rows'\]"),
    ):
      with self.assertRaisesRegex(ValueError, said):
        domains.make('swe', jsonl=given | wrong)


class RefusedTest(parameterized.TestCase):

  @parameterized.parameters(
      (dict(trust_in_process=True), 'name some with jsonl or sdists'),
      (dict(sdists=[{'path': 'x'}]), r"missing=\['sha256'\]"),
      (dict(jsonl={'path': 'x'}), r"missing=\['checkouts'\]"),
  )
  def test_wrong_arguments(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      domains.make('swe', **kwargs)


if __name__ == '__main__':
  absltest.main()
