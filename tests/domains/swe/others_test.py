"""Foreign tasks in the domain: sealed, unless they are trusted."""

import hashlib
import io
import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from rich import console as console_lib

from evojax import domains
from evojax import records
from evojax.domains.swe import demonstrations
from evojax.domains.swe import grade
from evojax.domains.swe import others
from evojax.domains.swe import problems
from evojax.domains.swe import shipped
from evojax.domains.swe import trees
from evojax.eval import report
from tests.domains.swe import foreign_test
from tests.eval import report_test
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

  def test_they_are_sealed_beside_the_shipped_ones(self):
    sealed = self.domain.source('sealed', 0)
    found = sealed.take(0, len(sealed))
    theirs = {*self.domain.others.tasks}
    ours = domains.make('swe').source('sealed', 0)
    self.assertEqual(
        {p.problem_id for p in found},
        theirs | {p.problem_id for p in ours.take(0, len(ours))},
    )
    for p in found:
      third_party = p.family == 'third_party_package'
      self.assertEqual(third_party, p.problem_id in theirs)
      self.assertEqual(p.difficulty == problems.LEVELS, third_party)
    for split in ('train', 'dev'):
      ids = {p.problem_id for p in self.domain.source(split, 0).take(0, 9)}
      self.assertEmpty(ids & {*self.domain.others.tasks})

  def third_party(self):
    """The first of them in the order of the sealed problems."""
    sealed = self.domain.source('sealed', 0)
    theirs = self.domain.others.tasks
    found = sealed.take(0, len(sealed))
    return next(p for p in found if p.problem_id in theirs)

  def test_an_evaluation_has_a_row_for_them(self):
    sealed = self.domain.source('sealed', 0)
    chosen = [self.third_party(), *sealed.take(0, 9)]
    chosen = list({p.problem_id: p for p in chosen}.values())
    theirs = self.domain.others.tasks
    right = np.array([p.problem_id in theirs for p in chosen])[:, None]
    families = tuple(p.family for p in chosen)
    result = report_test.made(right, right, 0, families=families)
    console = console_lib.Console(file=io.StringIO(), width=120)
    report.print_scores(result, console)
    rows = console.file.getvalue().splitlines()
    (row,) = [r.split() for r in rows if r.startswith('third_party_package')]
    self.assertEqual(row[1:], [str(right.sum()), '100.0', '%'])

  def test_an_episode_is_played_and_graded(self):
    problem = self.third_party()
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
    # Replies are awaited for longer than tests in the container may take.
    limits, longest = domain.limits, domain.others.container.most_seconds
    self.assertGreater(limits.reply_seconds, longest)
    self.assertGreater(limits.episode_seconds, limits.reply_seconds)
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
