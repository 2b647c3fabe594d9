"""Numbers in all notations, and everything that is not a number."""

import fractions

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.math import literals

F = fractions.Fraction


class CanonicalTest(parameterized.TestCase):

  @parameterized.parameters(
      ('  $42$ ', '42'),
      ('$$42$$', '42'),
      (r'\(42\)', '42'),
      (r'\[ 42. \]', '42'),
      ('**$42$.**', '42'),
      ('`42`', '42'),
      ('42.', '42'),
      ('0.333...', '0.333...'),  # Might be 1/3: not cut to 0.333.
      ('$1$ or $2$', '1 or 2'),
      ('$28$ %', '28 %'),
      ('\u22125', '-5'),  # Minus sign.
      ('\u200f5\u200b', '5'),  # Right-to-left mark, zero-width space.
      ('\u202e12', '\u202e12'),  # Displayed as 21: kept, and refused.
      ('\uff11\uff12', '12'),  # Fullwidth digits.
      ('5\u00b2', '5^{2}'),  # NFKC alone says 52.
      ('x\u00b2\u00b3', 'x^{23}'),
      ('(x)^(2)+\u00b2', '(x)^(2)+^{2}'),
      ('10\u2082', '10_{2}'),  # Base 2; NFKC alone says 102.
      ('2\u00bd', '2 1/2'),  # NFKC alone says 21/2.
      (r'\left(\dfrac{1}{2}\right)', r'(\frac{1}{2})'),
      (r'1{,}234', '1234'),
      (r'(12\,345, 6)', '(12345, 6)'),
      (r'3{,}5', '3.5'),
      (r'x\,345', 'x 345'),
      (r'\textbf{\textit{42}}', '42'),
      (r'{\sqrt{3} \over 2}', r'\frac{\sqrt{3} }{ 2}'),
      ('ℝ', r'\mathbb{R}'),
      (r'3\times 5', '3* 5'),
      (r'90^\circ', '90'),
      (r'90^{\circ}', '90'),
      (r'50\%', '50%'),
      (r'\text{Friday}', 'Friday'),
      (r'\leftarrow', r'\leftarrow'),
      (r'\timestamp', r'\timestamp'),
  )
  def test_one_spelling(self, text, expected):
    self.assertEqual(literals.canonical(text), expected)


class ParseTest(parameterized.TestCase):

  @parameterized.parameters(
      ('42', 42),
      ('+42', 42),
      ('-42', -42),
      ('- 42', -42),
      ('007', 7),
      ('1,234', 1234),
      ('12,345,678', 12345678),
      ('1,234.50', F(2469, 2)),
      ('1 234 567.5', F(2469135, 2)),
      ('1,000.99$', F(100099, 100)),
      ('0.75', F(3, 4)),
      ('.75', F(3, 4)),
      ('-.5', F(-1, 2)),
      ('5.0', 5),
      ('$5', 5),
      ('-$5.25', F(-21, 4)),
      ('€5', 5),
      ('3/4', F(3, 4)),
      ('-3 / 4', F(-3, 4)),
      ('6/8', F(3, 4)),
      ('1,000/3', F(1000, 3)),
      (r'\frac{3}{4}', F(3, 4)),
      (r'\frac34', F(3, 4)),
      (r'\frac3{4}', F(3, 4)),
      (r'\frac{3}4', F(3, 4)),
      (r'-\frac{3}{4}', F(-3, 4)),
      (r'\frac{-3}{4}', F(-3, 4)),
      (r'\frac{3}{-4}', F(-3, 4)),
      ('3/-4', F(-3, 4)),
      ('[42]', 42),
      ('[(-3/4)]', F(-3, 4)),
      ('1 1/2', F(3, 2)),
      ('-1 1/2', F(-3, 2)),
      (r'1\frac{1}{2}', F(3, 2)),
      ('1e3', 1000),
      ('1.5E-3', F(3, 2000)),
      ('1.5 * 10^{3}', 1500),
      ('2*10^-2', F(1, 50)),
      ('2 x 10^5', 200000),
      ('9' * 1000, int('9' * 1000)),
  )
  def test_one_exact_number(self, text, expected):
    self.assertEqual(literals.parse(text).value, expected)

  @parameterized.parameters(
      '',
      '.',
      '-',
      '$',
      '%',
      '1 2',
      '1 2 3',
      '1, 2',
      '1,23',
      '1,2345',
      '12,34',
      ',123',
      '1..2',
      '1.2.3',
      '--5',
      '+-5',
      '5-',
      '1_000',
      '0x10',
      '1e',
      'e5',
      '1e999999',
      '1e99999',
      '1e401',
      '-1e-401',
      '1/0',
      '0/0',
      r'\frac{1}{0}',
      '1/2/3',
      '-1/-2',
      r'-\frac{-1}{2}',
      r'-\frac{1}{-2}',
      r'\frac{-1}{-2}',
      r'1\frac{1}{-2}',
      '1 1/-2',
      '[42)',
      '[4][2]',
      '[4, 2]',
      r'1\frac{-1}{2}',
      '1 5/3',
      '1 2/2',
      '1 1/0',
      '8/2.0',
      '4+4',
      '2*3',
      '10^3',
      '2^3',
      '3!',
      'nan',
      'inf',
      'Infinity',
      'x',
      'five',
      '5 cm',
      '5 or 6',
      '5 apples',
      '\u0663',
      '5%%',
      '\u00b2',
      '12\u202e',
      '5\x00',
      'True',
      '1,',
      '1 00',
      '0 000',
      '0,333',
      '3,5',
  )
  def test_anything_else_is_no_number(self, text):
    self.assertIsNone(literals.parse(text))

  def test_how_it_was_written(self):
    for text, percent, is_fraction, lowest, places in (
        ('50%', True, False, True, 0),
        ('7.140', False, False, True, 3),
        ('1.5e-3', False, False, True, 4),
        ('1.5e3', False, False, True, 0),
        ('3/4', False, True, True, 0),
        ('6/8', False, True, False, 0),
        ('1/-2', False, True, False, 0),
        ('4/1', False, True, True, 0),
        ('1 1/2', False, True, False, 0),
    ):
      number = literals.parse(text)
      self.assertEqual(
          (
              number.percent,
              number.is_fraction,
              number.in_lowest_terms,
              number.places,
          ),
          (percent, is_fraction, lowest, places),
          text,
      )


if __name__ == '__main__':
  absltest.main()
