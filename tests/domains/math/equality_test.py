"""Trees are compared part by part, and as functions within bounds."""

import threading

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.math import equality
from evojax.domains.math import expressions

# A number with about 10^8 digits: seconds of work, then gigabytes.
_HEAVY = '(((9^99)^99)^99)^99'


def _compare(a, b):
  return equality.compare(expressions.parse(a), expressions.parse(b))


class CompareTest(parameterized.TestCase):

  @parameterized.parameters(
      ('x+1', '1+x', 'right'),
      ('x^2-1', '(x-1)(x+1)', 'right'),
      (r'2\sqrt{3}', r'\sqrt{12}', 'right'),
      (r'\frac{\pi}{2}', '0.5 pi', 'right'),
      ('sin(x)^2 + cos(x)^2', '1', 'right'),
      ('ln(x)', 'log(x)', 'right'),
      ('x^2', 'x^3', 'wrong'),
      ('x', 'y', 'wrong'),
      ('(x+1)^2', 'x^2+1', 'wrong'),
      (r'\sqrt{x^2}', 'x', 'wrong'),  # Differs for negative x.
      (r'\sqrt{x^2}', 'abs(x)', 'right'),
      ('1.4142135623730951', r'\sqrt{2}', 'wrong'),  # 16 digits of it.
      ('1/(x-x)', '0', 'unparsable'),
      ('x/0', 'x/0', 'unparsable'),
      ('tan(pi/2)', '0', 'unparsable'),
      ('sin(pi)', '0', 'right'),
      ('10^{50}', '10^{50}+1', 'wrong'),  # Exact, so that nothing is rounded.
      (r'\sqrt{2}', r'10^{99}+\sqrt{2}-10^{99}', 'unparsable'),  # Rounded.
      (r'\lfloor n/2\rfloor', r'\lfloor (n+1)/2\rfloor', 'wrong'),
      (r'\lceil n/2\rceil', r'-\lfloor -n/2\rfloor', 'right'),
      ('f(x+1)', 'f(1+x)', 'right'),
      ('f(x)', 'f(2x)', 'wrong'),
      ('0^{-1}', '0', 'unparsable'),
  )
  def test_scalars(self, a, b, verdict):
    self.assertEqual(_compare(a, b), verdict)

  @parameterized.parameters(
      ('(1,2)', '(1.0, 4/2)', 'right'),
      ('(1,1500)', r'(1, 1.5 * 10^3)', 'right'),
      ('(1,2)', '(1, 1+1)', 'wrong'),  # A calculation.
      ('1/e', 'e^{-1}', 'right'),
      (r'\pi/64', r'2^{-6}\pi', 'wrong'),
      ('(1,2)', '(1,2]', 'wrong'),
      (r'\{1,2\}', '2, 1', 'right'),
      (r'\{1,2\}', r'\{1,1,2\}', 'right'),  # A set holds an element once.
      (r'\{1,2\}', '(1,2)', 'wrong'),
      (r'\{1\}', '1', 'right'),
      (r'1 \pm 2', '-1, 3', 'right'),
      ('x=1', '1', 'right'),
      ('x=1', 'y=1', 'wrong'),
      ('x=1', '1=x', 'right'),
      ('y=2x', 'x=y/2', 'right'),
      ('x+y=1', '2-2x=2y', 'right'),
      ('x+y=1', '1', 'wrong'),
      ('x<1', '-x>-1', 'right'),
      ('x<1', '-x<-1', 'wrong'),
      ('a<b', '2b>2a', 'right'),
      ('1<x<2', '(1,2)', 'right'),
      (r'x \geq 2', r'[2,\infty)', 'right'),
      (r'(0,1)\cup(2,3)', r'(2,3)\cup(0,1)', 'right'),
      ('2:3', '4:6', 'wrong'),
      (r'\begin{cases}x=1\\y=2\end{cases}', 'y=2, x=1', 'right'),
      (
          r'\begin{pmatrix}1&x\end{pmatrix}',
          r'\begin{bmatrix}1&x\\\end{bmatrix}',
          'right',
      ),
      (
          r'\begin{vmatrix}1&x\end{vmatrix}',
          r'\begin{bmatrix}1&x\end{bmatrix}',
          'wrong',
      ),
      ('x', '(1,2)', 'wrong'),
      ('x+(1,2)', 'x', 'unparsable'),
  )
  def test_parts(self, a, b, verdict):
    self.assertEqual(_compare(a, b), verdict)

  @parameterized.parameters(
      (r'2\sqrt{3}', r'\sqrt{12} = 2\sqrt{3}', 'right'),
      (r'2\sqrt{3}', r'x = \sqrt{4} * \sqrt{3} = 2\sqrt{3}', 'right'),
      (r'36\pi', r'V = \frac43 \pi r^3 = 36\pi', 'right'),
      (r'2\sqrt{3}', r'x = 5 = 2\sqrt{3}', 'unparsable'),
      (r'2\sqrt{3}', r'\sqrt{11} = 2\sqrt{3}', 'wrong'),
      ('x=2', 'x = 6/3 = 2', 'right'),
      ('x=2', 'y = 6/3 = 2', 'wrong'),
      ('x+1', 'x+2 = x+1', 'wrong'),
      ('x+y=1', '1 = 1', 'wrong'),
  )
  def test_an_answer_may_show_its_working(self, reference, answer, verdict):
    self.assertEqual(_compare(reference, answer), verdict)

  @parameterized.parameters(
      ('x<2 or x>3', 'x>3 or x<2', 'right'),
      ('x<2 or x>3', r'(-\infty,2)\cup(3,\infty)', 'right'),
      (r'(-\infty,2)\cup(3,\infty)', '2>x or 3<x', 'right'),
      (r'x\in(-\infty,2]\cup(3,\infty)', r'x\le2 or x>3', 'right'),
      (r'(-\infty,2)\cup(3,\infty)', r'x\le2 or x>3', 'wrong'),
      (r'(-\infty,2)\cup\{3\}', 'x<2 or x=3', 'right'),
      ('x<2 or x>3', 'x<2 and x>3', 'wrong'),
      ('x<2 or x>3', 'x<2, x>3', 'wrong'),  # Both at the same time.
      ('x<2 or x>3', 'y<2 or y>3', 'wrong'),
      ('x<2 or x>3', 'x<2 or y>3', 'wrong'),
      (r'(-\infty,2)\cup(3,\infty)', 'x<2 or y>3', 'wrong'),
      (r'y\in(-\infty,2)\cup(3,\infty)', 'x<2 or x>3', 'wrong'),
      ('x<2 or x>3', 'x<2', 'wrong'),
      ('x=2 or x=3', '3, 2', 'right'),
  )
  def test_or_between_inequalities_is_a_union(self, a, b, verdict):
    self.assertEqual(_compare(a, b), verdict)

  @parameterized.parameters(
      (r'101_2', r'101_{two}', 'right'),
      (r'101_{two}', '101_{2}', 'right'),
      (r'4210_ five ', '4210_5', 'right'),
      ('4210_5', '4210_{base 5}', 'right'),
      ('4210_5', '4210_{(base five)}', 'right'),
      ('4210_5', '4210_{seven}', 'wrong'),
      ('4210_{five}', '4210_6', 'wrong'),
      ('4210_{five}', '4210', 'wrong'),
      ('1011_{two}', '11', 'wrong'),  # Its value in another notation.
  )
  def test_bases(self, a, b, verdict):
    self.assertEqual(_compare(a, b), verdict)

  def test_what_is_beyond_the_bounds_is_not_worked_out(self):
    for text in (_HEAVY, 'exp(exp(exp(x^9)))', '99999999!', '9^9^9'):
      self.assertEqual(_compare(text, 'x'), 'timeout', text)
    self.assertEqual(_compare('x', 'x'), 'right')

  def test_threads_share_one_precision(self):
    verdicts = []

    def work():
      for n in range(2, 40):
        a = rf'\sqrt{{{n}}} \tan x'
        verdicts.append(_compare(a, rf'\frac{{{n} \tan x}}{{\sqrt{{{n}}}}}'))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    self.assertEqual(verdicts, ['right'] * 4 * 38)


if __name__ == '__main__':
  absltest.main()
