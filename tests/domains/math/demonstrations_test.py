import collections
import fractions
import re

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.domains import base
from evojax.domains import splits
from evojax.domains.math import demonstrations
from evojax.domains.math import domain
from evojax.domains.math import generators
from evojax.domains.math import grade
from evojax.domains.math import problems

_LEVELS = problems.CATALOGUE.select(demonstrations.FAMILIES)


def _draw(source, seed, step, count):
  return base.Demonstrations(demonstrations.demonstrate).batch(
      source, seed, step, count
  )


def _source(split: str = 'train'):
  return domain.make(families=demonstrations.FAMILIES).source(split, 0)


def _value(expression: str) -> fractions.Fraction:
  """Return the exact value of digits, + - * / % and decimal points."""
  exact = re.sub(r'\d+(\.\d+)?', r"F('\g<0>')", expression)
  return eval(exact, {'F': fractions.Fraction, '__builtins__': {}})


class StepsTest(parameterized.TestCase):

  @parameterized.parameters(
      (
          'chain_sum',
          {'expression': '12 + 45 - 70'},
          '12+45=50+7=57 57-70=-20+7=-13',
      ),
      ('chain_sum', {'expression': '57 + 68'}, '57+68=110+15=125'),
      ('chain_sum', {'expression': '3 - 8 - 9'}, '3-8=-5 -5-9=-14'),
      ('chain_sum', {'expression': '50 - 2'}, '50-2=48'),
      ('chain_sum', {'expression': '41 - 47'}, '41-47=-6'),
      ('decimal_chain_sum', {'expression': '1.2 - 1.2'}, '1.2-1.2=0.0'),
      (
          'decimal_chain_sum',
          {'expression': '4.1 - 8.7 + 0.9'},
          '4.1-8.7=-4-0.6=-4.6 -4.6+0.9=-4+0.3=-3.7',
      ),
      ('products', {'expression': '8 * 8 * 6'}, '8*8=64 64*6=360+24=384'),
      (
          'products',
          {'expression': '73 * 15'},
          '73*10=700+30=730 73*5=350+15=365 730+365=1095',
      ),
      ('products', {'expression': '7 * 0'}, '7*0=0'),
      (
          'leg_counting',
          {'animals': {'spider': 2, 'human': 3, 'snake': 1}},
          '2*8=16 3*2=6 16+6=10+12=22 1*0=0 22+0=20+2=22',
      ),
      (
          'simple_equations',
          {'equation': '3*h + 9 = 36'},
          '36-9=30-3=27 27/3=9',
      ),
      ('simple_equations', {'equation': '3*h - 9 = -3'}, '-3+9=6 6/3=2'),
      (
          'simple_equations',
          {'equation': '5 - 8*e = -51'},
          '5+51=50+6=56 56/8=7',
      ),
      ('simple_equations', {'equation': '20 - e = 4'}, '20-4=16'),
      ('simple_equations', {'equation': 'x + 9 = 33'}, '33-9=30-6=24'),
      ('simple_equations', {'equation': 'x = 4'}, '4=4'),
      ('gcd', {'numbers': [18, 48]}, '48%18=12 18%12=6 12%6=0'),
      ('gcd', {'numbers': [5, 7]}, '7%5=2 5%2=1'),
      (
          'fraction_simplification',
          {'numerator': 168, 'denominator': 63},
          '168/63=56/21=8/3',
      ),
      (
          'fraction_simplification',
          {'numerator': 3, 'denominator': 7},
          '3/7=3/7',
      ),
  )
  def test_by_hand(self, family, metadata, expected):
    lines, _ = demonstrations.steps(family, metadata)
    self.assertEqual(' '.join(lines), expected)

  @parameterized.parameters(*((e.family, e.level) for e in _LEVELS))
  def test_work_is_true_and_leads_to_the_graded_answer(self, family, level):
    form = generators.FORMS.get(family, 'value')
    for index in range(300):
      question, answer, metadata = generators.generate(family, level, 3, index)
      lines, result = demonstrations.steps(family, metadata)
      for line in lines:
        values = {_value(side) for side in line.split('=')}
        self.assertLen(values, 1, f'{line} in {question}')
      self.assertIn(result.split('/')[0], lines[-1])
      self.assertEqual(grade.compare(answer, result, form), 'right', question)

  def test_unknown_family_is_refused(self):
    with self.assertRaisesRegex(ValueError, "'calendar'.*worked solution"):
      demonstrations.steps('calendar', {})


class BatchTest(absltest.TestCase):

  def test_is_a_function_of_the_step(self):
    source = _source()
    first = _draw(source, 0, 3, 40)
    self.assertEqual(first, _draw(_source(), 0, 3, 40))
    self.assertNotEqual(first, _draw(source, 1, 3, 40))
    prompts = {d.messages[0]['content'] for d in first}
    later = _draw(source, 0, 4, 40)
    self.assertLess(len(prompts & {d.messages[0]['content'] for d in later}), 5)

  def test_only_train_problems_are_taught(self):
    for demonstration in _draw(_source(), 0, 0, 500):
      text = '\n'.join(m['content'] for m in demonstration.messages)
      self.assertEqual(splits.split_of(splits.problem_id(text)), 'train')

  def test_behaviours_and_what_the_grader_says_of_them(self):
    source = _source()
    count = 4000
    taught = _draw(source, 0, 0, count)
    modes = collections.defaultdict(list)
    for problem, shown in zip(source.take(0, count), taught, strict=True):
      judged = grade.grade(
          problem.answer,
          shown.completion,
          'tag',
          not shown.ends,
          problem.metadata['answer_form'],
      )
      modes[judged.columns['mode']].append(judged)
    share = demonstrations.BEHAVIOURS
    names = {
        'steps_tag': 'steps',
        'steps_plain': 'steps_unformatted',
        'direct_tag': 'direct',
        'direct_plain': 'direct_unformatted',
        'ramble': 'ramble',
    }
    right = {}
    for behaviour, mode in names.items():
      grades = modes[grade.MATH_MODE[mode]]
      # The binomial standard deviation for 4000 samples is at most 0.8 points.
      self.assertAlmostEqual(len(grades) / count, share[behaviour], delta=0.03)
      right[behaviour] = np.mean([g.outcome for g in grades])
    self.assertEqual(right['steps_tag'], 1.0)
    self.assertEqual(right['steps_plain'], 0.0)
    self.assertEqual(right['direct_plain'], 0.0)
    self.assertEqual(right['ramble'], 0.0)
    # A guess with a changed leading digit may keep its value (0 -> 00).
    self.assertAlmostEqual(
        right['direct_tag'], 1 - demonstrations.DIRECT_ERROR, delta=0.06
    )

  def test_a_ramble_has_no_end_and_outlasts_the_limit(self):
    rambles = [d for d in _draw(_source(), 0, 0, 400) if not d.ends]
    self.assertNotEmpty(rambles)
    for demonstration in rambles:
      self.assertLen(re.findall(r'[.?] ', demonstration.completion), 95)
      self.assertNotRegex(demonstration.completion, r'\d|answer is')


if __name__ == '__main__':
  absltest.main()
