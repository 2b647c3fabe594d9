"""Expressions are read by a grammar, never evaluated."""

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.math import expressions

N = lambda text: ['number', text]
S = lambda name: ['symbol', name]


class ParseTest(parameterized.TestCase):

  @parameterized.parameters(
      ('-x^2', ['-', ['^', S('x'), N('2')]]),
      ('2^-x', ['^', N('2'), ['-', S('x')]]),
      ('x**2', ['^', S('x'), N('2')]),
      ('2x', ['*', N('2'), S('x')]),
      ('xy', ['*', S('x'), S('y')]),
      ('1/2x', ['*', ['/', N('1'), N('2')], S('x')]),
      ('2(x+1)', ['*', N('2'), ['+', S('x'), N('1')]]),
      ('x-1-2', ['+', ['+', S('x'), ['-', N('1')]], ['-', N('2')]]),
      (r'\frac{x}{2}', ['/', S('x'), N('2')]),
      (r'2\sqrt{3}', ['*', N('2'), ['call', 'sqrt', N('3')]]),
      ('sqrt 3', ['call', 'sqrt', N('3')]),
      (r'\sqrt[3]{x}', ['^', S('x'), ['/', N('1'), N('3')]]),
      (r'\frac{\pi}{2}', ['/', S('pi'), N('2')]),
      ('x^{2}', ['^', S('x'), N('2')]),
      ('2^x y', ['*', ['^', N('2'), S('x')], S('y')]),
  )
  def test_tree(self, text, tree):
    self.assertEqual(expressions.parse(text), tree)

  @parameterized.parameters(
      '',
      ' ',
      '1 2',
      'x 2',
      '(x',
      'x)',
      '(x]',
      '()',
      'x+',
      '*x',
      'x^',
      '^2',
      'x=1',
      'x,y',
      'x;y',
      'x.y',
      'x_1',
      '__import__("os")',
      'x if y else z',
      'lambda: x',
      'import os',
      'mother-in-law',
      'os.system',
      'x\x00',
      '"x"',
      'x' * 3,
      '9^9^9',
      '2^(3^4)',
      '2^(101)',
      '2^{1000000}',
      'x^(2*500)',
      '2^exp(9)',
      r'\sqrt[9^9]{x}',
      r'\sqrt[1000]{x}',
      '9' * 101 + 'x',
      '(' * 31 + 'x' + ')' * 31,
      '(' * 100_000,
      '-' * 201 + 'x',
      '+'.join('x' * 150),
      'sqrt ' * 100 + 'x',
      r'\frac' * 40,
      'x^' * 60 + 'x',
      r'\infty',
      'x!',
      '\u202ex',
      '1e999999',
  )
  def test_refuses(self, text):
    with self.assertRaises(expressions.ExpressionError):
      expressions.parse(text)


if __name__ == '__main__':
  absltest.main()
