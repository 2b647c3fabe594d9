import ast
import decimal
import fractions
import functools
import importlib.resources
import math
import operator
import re

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from reasoning_gym.arithmetic import leg_counting

from configs import math as math_config
from evojax import domains
from evojax import records
from evojax.domains import base
from evojax.domains import sourced
from evojax.domains import sources
from evojax.domains import splits
from evojax.domains.math import perturb
from evojax.models import tokenizer as tokenizer_lib

SUM = 'State the final answer to the following arithmetic problem: {} ='
PRODUCT = (
    'Solve the following multiplication: {}. Give only the result as your final'
    ' answer.'
)
GCD = (
    'Find the Greatest Common Divisor (GCD) of these numbers: {}. Give only the'
    ' GCD as your final answer.'
)
LEGS = (
    'Your task is to count how many legs there are in total when given a list'
    ' of animals.\n\nNow, how many legs are there in total if you have {}?'
)
FRACTION = (
    'Simplify the fraction {} to its lowest terms. Give only the simplified'
    ' fraction as your final answer.'
)


def problem(question, family, answer='0', system_prompt=''):
  messages = ({'role': 'user', 'content': question},)
  return sources.make_problem(messages, answer, family, system_prompt)


@functools.cache
def dev():
  kwargs = math_config.get_config().domain.kwargs.to_dict()
  return domains.make('math', **kwargs).source('dev', 3).take(0, 200)


def value(expression, unknowns=None):
  """Return the exact value of + - * over numbers, by another parser."""

  def of(node):
    match node:
      case ast.BinOp(left, op, right):
        act = {
            ast.Add: operator.add,
            ast.Sub: operator.sub,
            ast.Mult: operator.mul,
        }[type(op)]
        return act(of(left), of(right))
      case ast.UnaryOp(ast.USub(), operand):
        return -of(operand)
      case ast.Constant():
        return decimal.Decimal(ast.get_source_segment(expression, node))
      case ast.Name(name):
        return unknowns[name]
    raise AssertionError(ast.dump(node))

  return of(ast.parse(expression, mode='eval').body)


def recomputed(p, legs):
  """Return whether the answer of a problem is right."""
  answer = p.answer
  if p.family in ('chain_sum', 'decimal_chain_sum', 'products'):
    text = p.question.partition(': ')[2]
    if p.metadata['expression'] not in text:
      return False
    text = text.removesuffix(' =').partition('. Give')[0]
    return value(text) == decimal.Decimal(answer)
  if p.family == 'gcd':
    return math.gcd(*map(int, re.findall(r'\d+', p.question))) == int(answer)
  if p.family == 'simple_equations':
    asked, equation = p.question.split(': ')
    (unknown,) = set(re.findall('[a-z]+', equation))
    if unknown not in asked.split():
      return False
    left, right = equation.split(' = ')
    return value(left, {unknown: decimal.Decimal(answer)}) == value(right)
  if p.family == 'fraction_simplification':
    (asked,) = re.findall(r'\d+/\d+', p.question)
    lowest = fractions.Fraction(asked)
    return answer == f'{lowest.numerator}/{lowest.denominator}'
  if p.family == 'leg_counting':
    animals = re.findall(r'(\d+) ([a-z ]+)', p.question)
    return sum(int(n) * legs[name] for n, name in animals) == int(answer)
  raise AssertionError(p.family)


def _completion(text):
  none = np.zeros(0)
  return records.Episode(none, none, 'stop', 0, text)


class DevProblemsTest(absltest.TestCase):
  """Changes of the problems of all shipped families."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.changed = [(p, perturb.perturb(p)) for p in dev()]
    cls.legs = dict(leg_counting.ANIMALS)
    cls.legs |= {f'{name}s': n for name, n in leg_counting.ANIMALS.items()}

  def test_answers_are_right_and_accepted(self):
    domain = domains.make('math')
    for before, after in self.changed:
      self.assertTrue(recomputed(before, self.legs), before.question)
      self.assertTrue(recomputed(after, self.legs), after.question)
      for answer in {before.answer, after.answer}:
        said = f'<answer>{answer}</answer>'
        graded = domain.grade(after, _completion(said))
        self.assertEqual(graded.outcome, answer == after.answer)

  def test_every_problem_changes_and_most_have_another_answer(self):
    other = [before.answer != after.answer for before, after in self.changed]
    self.assertGreater(sum(other) / len(other), 0.8)
    for family in {before.family for before, _ in self.changed}:
      mine = [o for o, (p, _) in zip(other, self.changed) if p.family == family]
      self.assertGreater(sum(mine) / len(mine), 0.5, family)

  def test_question_and_id_are_new(self):
    for before, after in self.changed:
      self.assertNotEqual(after.question, before.question)
      self.assertEqual(after.problem_id, splits.problem_id(after.question))
      for field in ('family', 'difficulty'):
        self.assertEqual(getattr(after, field), getattr(before, field))

  def test_numbers_drawn_again_stay_in_the_split(self):
    for before in dev()[:60]:
      for question, answer, _ in perturb._numbers(before):
        name = splits.problem_id(question)
        self.assertEqual(splits.split_of(name), 'dev')
        self.assertNotEqual(answer, before.answer)

  def test_an_aside_now_and_then(self):
    asides = [p.question.startswith(perturb.ASIDES) for _, p in self.changed]
    self.assertBetween(sum(asides) / len(asides), 0.1, 0.3)

  def test_prompts_fit(self):
    config = math_config.get_config()
    shipped = importlib.resources.files('evojax.domains.math') / 'base_policy'
    tokenizer = tokenizer_lib.Tokenizer(shipped)
    lengths = [len(tokenizer.render(q.messages)) for _, q in self.changed]
    self.assertLessEqual(max(lengths), config.data.max_prompt_tokens)

  def test_a_function_of_the_problem(self):
    for before, after in self.changed[:40]:
      self.assertEqual(perturb.perturb(before), after)


class PerturbTest(parameterized.TestCase):

  @parameterized.parameters(
      ('chain_sum', SUM, '3 + 9', '12', '9 + 3', '12'),
      ('chain_sum', SUM, '5 - 3', '2', '3 - 5', '-2'),
      # 86 + 42 - 29: the signs keep their places.
      ('chain_sum', SUM, '29 + 42 - 86', '-15', '86 + 42 - 29', '99'),
      ('chain_sum', SUM, '1 - 2 + 3 - 4', '-2', '4 - 3 + 2 - 1', '2'),
      # Reversed, it would be the same, so the terms move on by one.
      ('chain_sum', SUM, '1 - 5 + 1', '-3', '5 - 1 + 1', '5'),
      (
          'decimal_chain_sum',
          SUM,
          '0.6 + 2.5 - 1.4',
          '1.7',
          '1.4 + 2.5 - 0.6',
          '3.3',
      ),
      ('products', PRODUCT, '8 * 0 * 3 * 9', '0', '9 * 3 * 0 * 8', '0'),
      ('gcd', GCD, '56, 47', '1', '47, 56', '1'),
      ('gcd', GCD, '4, 6, 8', '2', '8, 6, 4', '2'),
      (
          'leg_counting',
          LEGS,
          '3 lions, 1 sea slug, 4 wasps',
          '36',
          '4 wasps, 1 sea slug, 3 lions',
          '36',
      ),
  )
  def test_operands_of_a_data_set_are_swapped(
      self, family, template, before, answer, after, wanted
  ):
    given = problem(template.format(before), family, answer)
    changed = perturb.perturb(given)
    self.assertEqual(changed.question, template.format(after))
    self.assertEqual(changed.answer, wanted)

  def test_a_sum_that_is_read_otherwise_stays(self):
    # A data set whose answer is not the plain sum, e.g. the sum modulo 10.
    self.assertIsNone(
        perturb.perturb(problem(SUM.format('8 + 9'), 'chain_sum', '7'))
    )

  @parameterized.parameters(
      'Find the value of {0} in the equation: {0} - 17 = 18',
      'Determine the value of {0} that satisfies: 63*{0} = 252',
      'Solve for {0}: 1 - 2*{0} = -17',
  )
  def test_unknowns(self, template):
    for old in 'aeox':
      question = template.format(old)
      new = perturb.perturb(problem(question, 'simple_equations')).question
      letter = re.search(r'([a-z]) =|([a-z]) -', new)
      letter = letter[1] or letter[2]
      self.assertNotEqual(letter, old)
      self.assertEqual(new, template.format(letter))

  @parameterized.parameters(
      ('chain_sum', SUM.format('4 + 4')),
      # 'minus three' is not the word 'three'.
      ('chain_sum', SUM.format('-3 + 4')),
      ('chain_sum', 'Compute -3 + 4 ='),
      ('chain_sum', SUM.format('3 + 4 * 5')),
      ('chain_sum', SUM.format('3 + 4') + ' 7'),
      ('products', PRODUCT.format('6 * 6')),
      ('products', PRODUCT.format('6 * 7 + 1')),
      ('gcd', GCD.format('12, 12')),
      ('gcd', GCD.format('12')),
      ('leg_counting', LEGS.format('3 lions')),
      ('leg_counting', LEGS.format('3 lions, some wasps')),
      ('simple_equations', 'Solve for x: y + 2 = 3'),
      ('simple_equations', 'Solve for x: x + y = 3'),
      ('simple_equations', 'Solve for x and y: x + y = 3'),
      ('fraction_simplification', FRACTION.format('12/16')),
      ('gsm8k', SUM.format('3 + 9')),
  )
  def test_none(self, family, question):
    self.assertIsNone(perturb.perturb(problem(question, family)))

  def test_system_message_stays_and_is_no_part_of_the_id(self):
    plain, told = (
        perturb.perturb(
            problem(GCD.format('6, 9'), 'gcd', '3', system_prompt=prompt)
        )
        for prompt in ('', 'Think.')
    )
    self.assertEqual(told.problem_id, plain.problem_id)
    self.assertEqual(
        told.messages,
        ({'role': 'system', 'content': 'Think.'}, *plain.messages),
    )


class DomainTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.domain = domains.make('math', families='gcd:0')
    self.assertIsInstance(self.domain, base.Domain)

  def _pair(self, first, second):
    """Return a problem whose changed form belongs to another split."""
    for a in range(2, 60):
      for b in range(2, a):
        one = problem(GCD.format(f'{a}, {b}'), 'gcd')
        two = problem(GCD.format(f'{b}, {a}'), 'gcd')
        if (
            splits.split_of(one.problem_id) == first
            and splits.split_of(two.problem_id) == second
        ):
          return one, two
    raise AssertionError('no such pair')

  def test_no_problem_becomes_a_sealed_one(self):
    for first, second, becomes in (
        ('dev', 'sealed', False),
        ('dev', 'dev', True),
        ('dev', 'train', True),
        ('sealed', 'sealed', True),
    ):
      one, two = self._pair(first, second)
      self.assertEqual(self.domain.perturb(one), two if becomes else None)

  def test_sealed_data_stays_closed(self):
    one, two = self._pair('dev', 'dev')
    other = problem('What is 1?', 'other')
    data = {'train': (other,), 'dev': (one,), 'sealed': (two,)}
    domain = type(self.domain)(sourced.Problems(data=data), 'tag')
    self.assertIsNone(domain.perturb(one))
    domain = type(self.domain)(
        sourced.Problems(data=data | {'sealed': (other,)}), 'tag'
    )
    self.assertEqual(domain.perturb(one), two)


if __name__ == '__main__':
  absltest.main()
