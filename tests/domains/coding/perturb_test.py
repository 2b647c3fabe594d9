"""Rewordings and new examples of the same problem."""

import dataclasses

from absl.testing import absltest

from evojax.domains import sources
from evojax.domains import splits
from evojax.domains.coding import comparison
from evojax.domains.coding import perturb
from evojax.domains.coding import problems
from evojax.domains.coding import programs
from evojax.domains.coding import suite
from evojax.domains.coding.families import FAMILIES
from evojax.domains.coding.families import level as level_lib


def _problems(split, count, **kwargs):
  return sources.ProceduralSource(
      problems.CATALOGUE, problems.CATALOGUE.select('all'), split, 0, **kwargs
  ).take(0, count)


class PerturbTest(absltest.TestCase):

  def test_other_words_and_example(self):
    changed = 0
    for before in _problems('dev', 90):
      after = perturb.reword(before)
      if after is None:
        continue
      changed += 1
      a, b = (suite.decode(p.answer) for p in (before, after))
      # The formerly visible test is now hidden.
      self.assertEqual(b.cases[1:-1], a.cases[1:])
      self.assertEqual(b.cases[-1], a.cases[0]._replace(visible=False))
      self.assertNotEqual(a.cases[0].stdin, b.cases[0].stdin)
      self.assertTrue(b.cases[0].visible)
      self.assertIn(b.cases[0].stdin, after.question)
      # Printing the new example fails as well.
      shown = b.cases[0].expected.encode()
      self.assertFalse(
          all(
              comparison.passes(c.expected, shown, b.comparison)
              for c in b.cases[1:]
          )
      )
      tasks = {p.question.partition('\nInput:')[0] for p in (before, after)}
      self.assertLen(tasks, 2)
      self.assertEqual(
          before.metadata['parameters'], after.metadata['parameters']
      )
    self.assertGreaterEqual(changed, 85)

  def test_another_constant(self):
    changed, wrong = 0, 0
    for before in _problems('dev', 90):
      after = perturb.change_constants(before)
      if after is None:
        continue
      changed += 1
      old, new = (p.metadata['parameters'] for p in (before, after))
      self.assertLen([k for k in old if old[k] != new[k]], 1)
      kind = FAMILIES[after.family][after.difficulty]
      tests = suite.decode(after.answer)
      self.assertIn(tests.cases[0].stdin, after.question)
      ours = kind.programs(new)['right']
      for case in tests.cases:
        self.assertEqual(programs.run(ours, case.stdin), case.expected)
      other = kind.programs(old)['right']
      wrong += any(
          programs.run(other, case.stdin) != case.expected
          for case in tests.cases
      )
    self.assertGreaterEqual(changed, 80)
    # The program for the old constant almost always fails.
    self.assertGreaterEqual(wrong / changed, 0.9)

  def test_most_problems_need_another_program(self):
    kinds = []
    for before in _problems('dev', 90):
      after = perturb.perturb(before)
      self.assertIsNotNone(after)
      kinds.append(
          before.metadata['parameters'] != after.metadata['parameters']
      )
    self.assertBetween(sum(kinds) / len(kinds), 0.45, 0.75)

  def test_the_words_are_those_of_other_problems(self):
    for before in _problems('dev', 45):
      after = perturb.perturb(before)
      if after is not None:
        kind = FAMILIES[after.family][after.difficulty]
        self.assertIn(
            after.question.partition('\nInput:')[0],
            [
                kind.ask(after.metadata['parameters'], wording)
                for wording in range(level_lib.WORDINGS)
            ],
        )

  def test_a_fresh_id_of_the_same_split(self):
    for split in splits.SHARES:
      members = _problems(split, 60)
      known = {p.problem_id for p in members}
      for problem in members:
        after = perturb.perturb(problem)
        if after is not None:
          self.assertNotIn(after.problem_id, known)
          self.assertEqual(splits.split_of(after.problem_id), split)

  def test_a_function_of_the_problem_alone(self):
    (problem,) = _problems('dev', 1, system_prompt='Code.')
    after = perturb.perturb(problem)
    self.assertEqual(after, perturb.perturb(dataclasses.replace(problem)))
    self.assertEqual(after.messages[0]['content'], 'Code.')

  def test_data_sets_have_no_other_words(self):
    (problem,) = _problems('dev', 1)
    self.assertIsNone(
        perturb.perturb(dataclasses.replace(problem, metadata={}))
    )


if __name__ == '__main__':
  absltest.main()
