import ast
import decimal
import functools
import math
import operator
import re

from absl.testing import absltest
from absl.testing import parameterized
from reasoning_gym.arithmetic import leg_counting

from configs import math as math_config
from evojax import domains
from evojax.domains import base
from evojax.domains import sourced
from evojax.domains import sources
from evojax.domains import splits
from evojax.domains.math import perturb

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
  """Exact value of + - * over numbers, by another parser."""

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
  """True if the answer of a problem is right."""
  answer = p.answer
  if p.family in ('chain_sum', 'decimal_chain_sum', 'products'):
    text = p.question.partition(': ')[2]
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
  if p.family == 'leg_counting':
    animals = re.findall(r'(\d+) ([a-z ]+)', p.question)
    return sum(int(n) * legs[name] for n, name in animals) == int(answer)
  raise AssertionError(p.family)


class DevProblemsTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.pairs = [(p, perturb.perturb(p)) for p in dev()]
    cls.changed = [(p, q) for p, q in cls.pairs if q is not None]
    cls.legs = dict(leg_counting.ANIMALS)
    cls.legs |= {f'{name}s': n for name, n in leg_counting.ANIMALS.items()}

  def test_answers_are_still_right(self):
    for before, after in self.changed:
      self.assertEqual(after.answer, before.answer)
      self.assertTrue(recomputed(before, self.legs), before.question)
      self.assertTrue(recomputed(after, self.legs), after.question)

  def test_most_problems_of_each_family_change(self):
    for family in {p.family for p in dev()} - {'fraction_simplification'}:
      changed = [q is not None for p, q in self.pairs if p.family == family]
      self.assertGreater(sum(changed) / len(changed), 0.6, family)
    unchanged = {p.family for p, q in self.pairs if q is None}
    self.assertNoCommonElements(unchanged, {'leg_counting', 'simple_equations'})

  def test_only_question_and_id_are_new(self):
    for before, after in self.changed:
      self.assertNotEqual(after.question, before.question)
      self.assertNotEqual(after.problem_id, before.problem_id)
      self.assertEqual(after.problem_id, splits.problem_id(after.question))
      for field in ('family', 'difficulty', 'metadata'):
        self.assertEqual(getattr(after, field), getattr(before, field))

  def test_the_same_numbers_and_as_long(self):
    for before, after in self.changed:
      self.assertCountEqual(
          re.findall(r'\d+(?:\.\d)?|[-+*]', after.question),
          re.findall(r'\d+(?:\.\d)?|[-+*]', before.question),
      )
      self.assertLen(after.question, len(before.question))

  def test_a_function_of_the_problem(self):
    for before, after in self.changed[:40]:
      self.assertEqual(perturb.perturb(before), after)

  def test_letters_are_many(self):
    letters = {
        q.question.split(' = ')[0]
        for p, q in self.changed
        if p.family == 'simple_equations'
    }
    self.assertGreater(len({re.findall('[a-z]+', s)[-1] for s in letters}), 8)


class PerturbTest(parameterized.TestCase):

  @parameterized.parameters(
      ('chain_sum', SUM, '3 + 9', '9 + 3'),
      ('chain_sum', SUM, '29 + 42 - 86', '42 + 29 - 86'),
      ('chain_sum', SUM, '9 - 4 - 7', '9 - 7 - 4'),
      ('chain_sum', SUM, '1 - 2 + 3 - 4', '3 - 4 + 1 - 2'),
      # Backwards, the sum of the positive terms is the same: they move on.
      ('chain_sum', SUM, '1 + 5 + 1 - 2', '5 + 1 + 1 - 2'),
      ('decimal_chain_sum', SUM, '0.6 + 2.5 - 1.4', '2.5 + 0.6 - 1.4'),
      ('products', PRODUCT, '8 * 0 * 3 * 9', '9 * 3 * 0 * 8'),
      ('gcd', GCD, '56, 47', '47, 56'),
      ('gcd', GCD, '5, 6, 7', '7, 6, 5'),
      (
          'leg_counting',
          LEGS,
          '3 lions, 1 sea slug, 4 wasps',
          '4 wasps, 1 sea slug, 3 lions',
      ),
  )
  def test_orders(self, family, template, before, after):
    changed = perturb.perturb(problem(template.format(before), family))
    self.assertEqual(changed.question, template.format(after))

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
      ('chain_sum', SUM.format('5 - 3')),
      ('chain_sum', SUM.format('4 + 4')),
      ('chain_sum', SUM.format('7 - 2 - 2')),
      ('chain_sum', SUM.format('-3 + 4')),  # 'minus three' is no 'three'.
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
    plain = perturb.perturb(problem(SUM.format('3 + 9'), 'chain_sum'))
    told = perturb.perturb(
        problem(SUM.format('3 + 9'), 'chain_sum', system_prompt='Think.')
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
    """A problem of a split whose other writing is of another one."""
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
