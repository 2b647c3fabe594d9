"""Every level of every family gives gradable, deterministic problems."""

import fractions
import re

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.math import generators
from evojax.domains.math import grade
from evojax.domains.math import gym

_LEVELS = tuple(
    (f'{family}_{level}', family, level)
    for family, levels in generators.FAMILIES.items()
    for level in range(len(levels))
    if family not in gym.SCORED  # gym_test covers those.
)


class GeneratorsTest(parameterized.TestCase):

  @parameterized.named_parameters(*_LEVELS)
  def test_grader_judges_the_answer(self, family, level):
    form = generators.FORMS.get(family, 'value')
    for index in range(3):
      question, answer, _ = generators.generate(family, level, 0, index)
      self.assertTrue(question)
      self.assertEqual(grade.compare(answer, answer, form), 'right', answer)
      self.assertNotEqual(
          grade.compare(answer, answer + '1', form), 'right', answer
      )
      # Copying the problem must not solve it.
      for piece in (question, question.split(':')[-1].strip(' =?')):
        if piece != answer:
          self.assertNotEqual(
              grade.compare(answer, piece, form), 'right', piece
          )

  @parameterized.named_parameters(
      (f'{family}_{level}', family, level)
      for family, levels in generators.SMALL.items()
      for level in range(len(levels))
  )
  def test_small_problems_have_short_prompts_and_number_answers(
      self, family, level
  ):
    for index in range(50):
      question, answer, _ = generators.generate(family, level, 0, index)
      self.assertLessEqual(len(question), 220)
      self.assertRegex(answer, r'^-?[0-9]+(\.[0-9]|/[0-9]+)?$')

  @parameterized.parameters(
      'chain_sum', 'decimal_chain_sum', 'basic_arithmetic', 'products'
  )
  def test_references_are_right(self, family):
    # The library's own arithmetic is not always right.
    for level in range(len(generators.FAMILIES[family])):
      for index in range(60):
        _, answer, metadata = generators.generate(family, level, 0, index)
        exact = re.sub(r'[0-9.]+', r"F('\g<0>')", metadata['expression'])
        value = eval(exact, {'F': fractions.Fraction})  # pylint: disable=eval-used
        self.assertEqual(value, fractions.Fraction(answer), metadata)

  def test_there_are_enough_small_families_with_several_levels(self):
    self.assertGreaterEqual(len(generators.SMALL), 6)
    for family, levels in generators.SMALL.items():
      self.assertGreaterEqual(len(levels), 2, family)

  def test_forms_name_families_and_forms(self):
    self.assertLessEqual(set(generators.FORMS), set(generators.FAMILIES))
    self.assertLessEqual(set(generators.FORMS.values()), set(grade.FORMS))

  def test_seeds_are_independent_streams(self):
    # reasoning-gym's own seeds are shifts of one stream: seed 1 index 0 is
    # seed 0 index 1.
    questions = [
        {generators.generate('leg_counting', 2, seed, i)[0] for i in range(300)}
        for seed in (0, 1)
    ]
    self.assertEmpty(questions[0] & questions[1])

  def test_families_and_levels_do_not_share_their_numbers(self):
    numbers = [
        generators.generate('gcd', level, 0, 7)[2]['numbers']
        for level in range(3)
    ]
    numbers.append(generators.generate('lcm', 0, 0, 7)[2]['numbers'])
    self.assertLen({tuple(n) for n in numbers}, 4)


if __name__ == '__main__':
  absltest.main()
