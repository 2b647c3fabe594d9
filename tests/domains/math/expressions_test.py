"""Expressions are read by a grammar, never evaluated."""

import fractions

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.math import expressions

N = lambda value: ('number', fractions.Fraction(value))
S = lambda name: ('symbol', name)
X, Y = S('x'), S('y')


class ParseTest(parameterized.TestCase):

  @parameterized.parameters(
      ('-x^2', ('*', N(-1), ('^', X, N(2)))),
      ('2^-x', ('^', N(2), ('*', N(-1), X))),
      ('2^3^x', ('^', N(2), ('^', N(3), X))),
      ('x**2', ('^', X, N(2))),
      ('2x', ('*', N(2), X)),
      ('xy', ('*', X, Y)),
      ('1/2x', ('*', N(1), ('/', N(2)), X)),
      ('2(x+1)', ('*', N(2), ('+', X, N(1)))),
      ('x-1-2', ('+', X, ('*', N(-1), N(1)), ('*', N(-1), N(2)))),
      (r'\frac{x}{2}', ('*', X, ('/', N(2)))),
      (r'\frac43 x', ('*', ('*', N(4), ('/', N(3))), X)),
      (r'\sqrt{3}', ('^', N(3), ('/', N(2)))),
      (r'\sqrt3x', ('*', ('^', N(3), ('/', N(2))), X)),
      ('sqrt 12', ('^', N(12), ('/', N(2)))),  # No command of TeX.
      (r'\sqrt[3]{x}', ('^', X, ('/', N(3)))),
      ('x^{2}', ('^', X, N(2))),
      ('2^x y', ('*', ('^', N(2), X), Y)),
      (r'\sin 2x', ('call', 'sin', ('*', N(2), X))),
      (r'\sin x\cos y', ('*', ('call', 'sin', X), ('call', 'cos', Y))),
      (r'\sin x(y)', ('*', ('call', 'sin', X), Y)),
      (r'\sin^2 x', ('^', ('call', 'sin', X), N(2))),
      (r'\sin^{-1} x', ('call', 'arcsin', X)),
      (r'\log_2 x', ('call', 'log', X, N(2))),
      ('f(x+y)', ('call', 'apply', S('f'), ('+', X, Y))),
      ("f'(x)", ('call', 'apply', S("f'"), X)),
      ('g(2x)', ('call', 'apply', S('g'), ('*', N(2), X))),
      ('g(x+y)', ('*', S('g'), ('+', X, Y))),
      ("f'", S("f'")),
      ('2√12', ('*', N(2), ('^', N(12), ('/', N(2))))),
      (r'f^{\prime}', S("f'")),
      (r'T_{max}', S('T_max')),
      ('4210_{5}', S('4210_5')),
      (r'\Delta', S('Delta')),
      (r'\vec{a}', S('veca')),
      ('|x|', ('call', 'abs', X)),
      ('x!', ('call', 'factorial', X)),
      ('5 cm', ('*', N(5), S('c'), S('m'))),
      ('5 miles', ('*', N(5), S('miles'))),
      ('1, 2 and 3', ('list', N(1), N(2), N(3))),
      (r'x \pm 1', ('list', ('+', X, N(1)), ('+', X, ('*', N(-1), N(1))))),
      ('(1,2]', ('tuple', '(]', N(1), N(2))),
      ('x>y', ('relation', ('<',), Y, X)),
      (r'x\le y=2', ('relation', ('<=', '='), X, Y, N(2))),
      ('1:2:x', (':', N(1), N(2), X)),
      (
          r'\begin{pmatrix}1&x\\2&y\end{pmatrix}',
          ('matrix', None, ('tuple', '', N(1), X), ('tuple', '', N(2), Y)),
      ),
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
      '(x}',
      '()',
      'x+',
      '*x',
      'x^',
      '^2',
      'x=',
      'x,',
      'x<y>2',
      'x.y',
      '_1',
      '__import__("os")',
      'x if y else z',
      'lambda: x.y',
      'import os',
      'mother-in-law',
      'a square',
      '5 men beat 6',
      'os.system',
      'x\x00',
      '"x"',
      r'\end{x}',
      r'\begin{x}1\end{x}',
      r'\begin{pmatrix}1&',
      '(' * 21 + 'x' + ')' * 21,
      '(' * 100_000,
      'x(' * 300 + 'x' + ')' * 300,
      '+' * 1001 + 'x',
      'sqrt ' * 100 + 'x',
      r'\frac' * 40,
      'x^' * 60 + 'x',
      'x' + '!' * 41,
      '\u202ex',
  )
  def test_refuses(self, text):
    with self.assertRaises(expressions.ExpressionError):
      expressions.parse(text)


if __name__ == '__main__':
  absltest.main()
