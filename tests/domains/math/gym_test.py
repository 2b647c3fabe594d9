"""Every data set of reasoning-gym is a family, or is refused with a reason."""

import dataclasses
import random
import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from reasoning_gym import factory

from evojax import records
from evojax.domains import sources
from evojax.domains.math import domain as domain_lib
from evojax.domains.math import generators
from evojax.domains.math import gym
from evojax.domains.math import problems
from evojax.domains.math import scoring
from evojax.sandbox import box as box_lib
from evojax.sandbox import limits as limits_lib

_MATH = domain_lib.make(families='gcd')


def _problem(family, index):
  entry = sources.Entry(family, 0, 1.0)
  _, build = problems.CATALOGUE.draft(entry, 0, index, '')
  return build()


def _grades(pairs):
  """Return grades of (problem, answer) pairs."""
  asked, answers = zip(*pairs)
  episodes = [
      records.Episode(
          tokens=np.zeros(3, np.int32),
          logprobs=np.zeros(3, np.float32),
          finish_reason='stop',
          policy_version=0,
          text=f'<answer>{answer}</answer>',
      )
      for answer in answers
  ]
  return _MATH.grade_many(asked, episodes)


def _settled(pairs):
  """Grade pairs again if the load of the machine kept the box from it."""
  for _ in range(5):
    grades = _grades(pairs)
    if all(grade.graded for grade in grades):
      break
  return grades


class GymTest(parameterized.TestCase):

  def test_every_data_set_is_a_family_or_left_out(self):
    self.assertEqual(
        set(factory.DATASETS), {*generators.FAMILIES, *gym.LEFT_OUT}
    )
    self.assertEmpty(set(generators.FAMILIES) & set(gym.LEFT_OUT))
    self.assertEmpty(set(generators.LARGE) & set(gym.SCORED))

  @parameterized.parameters(*gym.LEFT_OUT.items())
  def test_the_reason_is_named(self, family, reason):
    with self.assertRaisesRegex(
        ValueError, f"'{family}' cannot be a family: {reason}"
    ):
      domain_lib.make(families=family)

  def test_references_are_right_and_other_answers_are_not(self):
    drawn = {f: [_problem(f, i) for i in range(3)] for f in gym.SCORED}
    pairs = []
    for first, second, other in drawn.values():
      pairs += [(first, first.answer), (second, second.answer)]
      # The answer of another problem, unless it also answers this one.
      same = other.answer.strip().casefold() == first.answer.strip().casefold()
      pairs.append((first, 'nothing' if same else other.answer))
    for (problem, answer), grade in zip(pairs, _settled(pairs), strict=True):
      with self.subTest(problem.family, answer=answer):
        self.assertEqual(grade.outcome, answer == problem.answer, grade)
        self.assertBetween(grade.partial, 0.0, 1.0)
        self.assertEqual(grade.partial == 1.0, grade.outcome)
        self.assertIn(grade.status, ('ok', 'unparsable'))

  @parameterized.parameters(
      # Answers that the library's scorer accepts.
      ('complex_arithmetic', 'nan'),
      ('complex_arithmetic', 'nan + nani'),
      ('game_of_life_halting', 'anything'),
      ('letter_jumble', '{answer} and more'),
      ('spell_backward', '{answer}{answer}'),
      ('puzzle24', '4*6'),
      ('number_sorting', '{rounded}'),
      ('countdown', '({sum})*(x-x)+{ones}'),
      ('puzzle24', '({sum})*(x-x)+{ones}'),
      # Code that the scorer would execute.
      ('binary_matrix', '[entry["answer"]]'),
      ('n_queens', '[entry["answer"]]'),
      ('spiral_matrix', '[entry["answer"]]'),
      ('string_insertion', '[entry["answer"]]'),
      ('countdown', '__import__("os").write(1, b"1.0")'),
      ('countdown', 'S("1").func(1)'),
      ('simple_integration', 'Integral(x, x)'),
      # Answers that would take unlimited time or memory.
      ('countdown', '9**9**9**9'),
      ('polynomial_multiplication', '(' * 9000),
      ('sudoku', '[' * 20_000),
      ('ab', 'x' * 20_001),
  )
  def test_hostile_answers(self, family, text):
    problem = _problem(family, 1)
    numbers = problem.metadata['numbers'] if '{sum}' in text else ()
    target = problem.metadata.get('target', 24)
    values = re.findall(r'-?\d+\.?\d*', problem.answer)
    text = text.format(
        answer=problem.answer,
        ones='+'.join(['x/x'] * target),
        target=target,
        sum='+'.join(map(str, numbers)),
        rounded=[str(round(float(value))) for value in values],
    )
    (grade,) = _settled([(problem, text)])
    self.assertFalse(grade.outcome, grade)
    self.assertLess(grade.partial, 1.0)
    self.assertTrue(grade.graded, grade)

  @parameterized.parameters(
      ('8*3+2/4', [8, 4, 2, 3], False),  # 24.5.
      ('2.5*8 + 4*1', [2, 5, 8, 4, 1], False),
      ('8*3**(2/4)', [8, 4, 2, 3], False),
      ('( 8 / 2 ) * ( 3 + 3 )', [8, 2, 3, 3], True),
      ('-8*-3 + 2 - 2', [8, 3, 2, 2], True),
      ('8/(3-8/3)', [3, 3, 8, 8], True),  # 24 in spite of the thirds.
  )
  def test_arithmetic_is_exact(self, answer, numbers, right):
    problem = dataclasses.replace(
        _problem('puzzle24', 1),
        answer='+'.join(map(str, numbers)),  # Only its numbers are compared.
        metadata={'answer_form': scoring.FORM, 'numbers': numbers},
    )
    (grade,) = _settled([(problem, answer)])
    self.assertEqual(grade.outcome, right, grade)

  def test_partial_credit_is_the_score_of_the_library(self):
    problem = _problem('tower_of_hanoi', 0)
    grades = _grades(
        [
            (problem, problem.answer),
            (problem, problem.answer.rpartition('\n')[0]),
            (problem, problem.answer),
        ]
    )
    self.assertEqual([g.partial for g in grades], [1.0, 0.05, 1.0])
    self.assertEqual([g.outcome for g in grades], [True, False, True])
    # Equal answers are scored once.
    self.assertEqual(grades[2].seconds, 0.0)
    self.assertGreater(grades[0].seconds, 0.0)

  def test_other_families_are_graded_by_value_beside_them(self):
    pairs = [
        (_problem('gcd', 0), '0'),
        (_problem('countdown', 0), _problem('countdown', 0).answer),
        (_problem('gcd', 0), _problem('gcd', 0).answer),
        (_problem('ab', 0), ''),
    ]
    grades = _grades(pairs)
    self.assertEqual([g.outcome for g in grades], [False, True, True, False])
    self.assertEqual(
        [g.sandbox_tier != '' for g in grades], [False, True, False, False]
    )
    self.assertEqual(grades[3].status, 'no_answer')

  @parameterized.parameters(
      (limits_lib.Result('infra_error', 'T0'), 'infra_error'),
      (limits_lib.Result('timeout', 'T0', contended=True), 'infra_error'),
      (limits_lib.Result('timeout', 'T0'), 'timeout'),
      (limits_lib.Result('ok', 'T0', b'2.0'), 'unparsable'),
      (limits_lib.Result('ok', 'T0', b'NaN'), 'unparsable'),
      (limits_lib.Result('ok', 'T0', b'true'), 'unparsable'),
      (limits_lib.Result('ok', 'T0', b'[' * 1000), 'unparsable'),
      (limits_lib.Result('ok', 'T0', b'1.0'), 'ok'),
  )
  def test_what_comes_out_of_the_box_is_read_strictly(self, result, status):
    box = mock.Mock(spec=box_lib.Box, slots=1)
    box.run.return_value = result
    with mock.patch.object(scoring, '_open_box', return_value=box):
      (grade,) = _grades([(_problem('ab', 0), 'A')])
    self.assertEqual(grade.status, status)
    self.assertEqual(grade.outcome, status == 'ok')
    self.assertEqual(grade.graded, status != 'infra_error')

  @parameterized.parameters('list_functions', 'pool_matrix')
  def test_random_numbers_of_others_stay_as_they_are(self, family):
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    generators.generate(family, 0, 0, 0)
    self.assertEqual((random.random(), np.random.random()), expected)

  @parameterized.parameters(
      'acre', 'ab', 'n_queens', 'quantum_lock', 'string_synthesis'
  )
  def test_capacities_are_those_measured(self, family):
    self.assertEqual(
        problems.capacity(family, 0), problems.measure_capacity(family, 0)
    )

  @parameterized.parameters(*gym.SCORED)
  def test_references_are_right_before_they_leave_the_library(self, family):
    dataset = generators._dataset(family, 0)
    for index in range(4 if family == 'knight_swap' else 15):
      if problem := _problem(family, index):
        entry = {'answer': problem.answer, 'metadata': problem.metadata}
        self.assertEqual(dataset.score_answer(problem.answer, entry), 1.0)


if __name__ == '__main__':
  absltest.main()
