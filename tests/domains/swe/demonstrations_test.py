"""Demonstrations for the base policy, with replies of the real tools."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from configs import swe as swe_config
from evojax import domains
from evojax.domains import environments
from evojax.domains.swe import demonstrations
from evojax.domains.swe import operators
from evojax.domains.swe import problems
from evojax.domains.swe import tools
from evojax.domains.swe import workspaces
from tests.sandbox import attacks

KWARGS = swe_config.get_config().domain.kwargs.to_dict()


class DemonstrationsTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if missing := attacks.missing('T0'):
      raise cls.skipTest(cls, missing)
    cls.domain = domains.make('swe', **KWARGS)
    cls.source = cls.domain.demonstrated(0)
    cls.addClassCleanup(workspaces.shared('demonstrations', 1).close)

  def shown(self, step=0, count=24):
    return self.domain.demonstrations.batch(self.source, 0, step, count)

  def test_a_batch_is_a_function_of_its_step(self):
    self.assertEqual(self.shown(0, 6), self.shown(0, 6))
    self.assertNotEqual(self.shown(0, 6), self.shown(1, 6))

  def test_every_behaviour_is_shown_in_the_limits(self):
    first, history = set(), set()
    for shown in self.shown(count=60):  # The rarest is drawn in 1 of 30.
      turns = [turn for turn, _ in shown.before] + [shown.completion]
      self.assertLessEqual(len(turns), self.domain.limits.turns)
      calls = [environments.read_call(turn) for turn in turns]
      first.add(tuple(c.name if c else '' for c in calls))
      for call, (_, answer) in zip(calls, shown.before, strict=False):
        self.assertEqual(answer['role'], 'tool')
        if call.arguments.get('command') == 'log':
          history.add('origin/main' in answer['content'])
    self.assertContainsSubset(
        {
            ('grep', 'read', 'edit', 'test', 'submit'),
            ('grep', 'edit', 'submit'),
            ('test',) * 6,
            ('git', 'git', 'edit', 'submit'),
            ('git', 'read', ''),
        },
        first,
    )
    self.assertEqual(history, {True, False})

  def test_the_last_read_shows_the_wrong_line(self):
    """The first shows the head of the function, wherever the bug is."""
    lines, heads, missing = KWARGS['read_lines'], 0, []
    entries = [e for e in problems.entries('train') if e.demonstrated]
    for entry in entries[::7]:
      place = demonstrations.place(entry.identity)
      turns = demonstrations.turns(entry.identity, 'careful', lines, 6)
      calls = [environments.read_call(turn) for turn in turns]
      reads = [c.arguments for c in calls if c.name == 'read']
      self.assertEqual(reads[0], dict(path=place.path, first=place.start))
      heads += len(reads) == 1
      self.assertEqual(calls[-1].name, 'submit')
      if not 0 <= place.line - reads[-1]['first'] < lines:
        missing.append(entry.identity)
    self.assertEmpty(missing)
    self.assertBetween(heads / len(entries[::7]), 0.5, 0.99)

  def test_the_words_of_an_issue_are_drawn_anew(self):
    problem = self.source.take(0, 1)[0]
    rng = np.random.default_rng(0)
    shown = [
        self.domain.demonstrations.demonstrate(problem, rng).messages[-1]
        for _ in range(6)
    ]
    self.assertGreater(len({message['content'] for message in shown}), 1)
    name = demonstrations.place(problem.problem_id).function
    for message in shown:  # What fails is said in every wording.
      self.assertIn(f'{name}(', message['content'])

  def test_answers_are_those_of_an_episode(self):
    problem = self.source.take(0, 1)[0]
    rng = np.random.default_rng(0)
    for _ in range(4):
      shown = self.domain.demonstrations.demonstrate(problem, rng)
      turns = [turn for turn, _ in shown.before]
      copied = demonstrations.call('git', command='show', ref='origin/main')
      domain = domains.make('swe', **KWARGS | {'scrubbed': copied not in turns})
      task = problems.build(problems.find(problem.problem_id))
      with workspaces.shared('demonstrations', 1).lend() as box:
        session = tools.Session(task, box, domain.settings)
        for turn, answer in shown.before:
          call = environments.read_call(turn)
          found = session.call(call.name, call.arguments).text
          self.assertEqual(found, answer['content'])


class PlaceTest(parameterized.TestCase):

  @parameterized.parameters(*operators.OPERATORS)
  def test_other_lines_repair_it(self, operator):
    entries = [
        e for e in problems.entries('train') if e.bug.operator == operator
    ]
    for entry in entries:
      task, place = problems.build(entry), demonstrations.place(entry.identity)
      lines = task.tree[place.path].decode().split('\n')
      self.assertIn(f'def {place.function}', lines[place.start - 1])
      lines[place.line - 1] = place.right
      right = task.solution[place.path].decode()
      self.assertEqual('\n'.join(lines), right)


if __name__ == '__main__':
  absltest.main()
