"""The math grader agrees with mathematics, and with another library's tests."""

import json
import pathlib
import time

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.math import grade
from tests.domains.math import references

_DATA = json.loads(
    pathlib.Path(__file__).with_name('agreement.json').read_text()
)
# Answers designed to make a comparison slow or large.
_HOSTILE = (
    '(((9^99)^99)^99)^99',
    '9^{9^{9^9}}',
    'x^{x^{x^{x^{x^x}}}}',
    '((99!)!)!',
    '9999999!',
    'x!' * 300,
    r'\binom{10^{15}}{10^7}',
    r'e^{e^{e^{e^e}}}',
    r'\exp(10^{18})',
    r'\sin(9^{20})',
    r'\sqrt[9999999]{x}',
    r'(10^{400})^{400}',
    r'10^{10000}+\sqrt2',
    '(x+y+z+a+b)^{999}',
    'x(' * 400 + 'x' + ')' * 400,
    '+'.join(['x^{99}'] * 160),
    '*'.join(['(x+1)'] * 160),
    '(' * 30 + 'x' + ')^9' * 30,
    r'\sqrt{' * 28 + 'x' + '}' * 28,
    '(1,' * 30 + '1' + ')' * 30,
    ','.join(map(str, range(250))),
    r'\{' + ','.join(['x'] * 480) + r'\}',
    r'1\pm' * 150 + '1',
    r'\frac' * 190,
    r'\vec' * 230,
    '-' * 990 + '1',
    'x' + "'" * 900,
    r'\tan' * 240 + 'x',
    'f(' * 28 + 'x^{9}' + ')' * 28,
    '(2^{x})^{' * 28 + 'x' + '}' * 28,
    r'\begin{pmatrix}' + '1&' * 400 + r'1\end{pmatrix}',
    '1' + ' ' * 990 + '2',
    r'\textbf{' * 100 + '1' + '}' * 100,
    r'\text{' * 160 + '}' * 160,
    r'\cup'.join(f'({n},{n + 2})' for n in range(110)),
    r'\setminus'.join([r'\mathbb{R}'] * 50),
    ' or '.join(['x>1'] * 120),
    ' and '.join(f'x>{n}' for n in range(90)),
    r'\{' * 60 + '1' + r'\}' * 60,
    r'\{x|' * 60 + 'x>1' + r'\}' * 60,
    r'\sum_{n}' * 90 + 'n',
    r'\frac{d}{dx}' * 60 + 'x',
    r'{' * 60 + 'x' + r'\over 2}' * 60,
    '$' * 999,
    r'1\frac12' * 90,
    '1,000' * 190,
    '1 000' * 190,
    r'[2^{16000},\infty)\cup\{1\}',
    r'[\sqrt{2^{-16000}},\infty)\cup\{-1\}',
)


def _is_right(reference: str, answer: str) -> bool:
  return grade.compare(reference, answer) == 'right'


class AgreementTest(parameterized.TestCase):

  def test_the_tests_of_math_verify(self):
    pairs = _DATA['math_verify']
    missed = [p for p in pairs if _is_right(*p[:2]) != p[2]]
    self.assertLessEqual(len(missed), 0.1 * len(pairs), missed)
    # The only differences are right answers in forms that are refused here.
    self.assertEqual([p for p in missed if not p[2]], [])

  @parameterized.parameters(*map(tuple, _DATA['right']))
  def test_right(self, reference, answer):
    self.assertEqual(grade.compare(reference, answer), 'right')

  @parameterized.parameters(*map(tuple, _DATA['wrong']))
  def test_wrong(self, reference, answer):
    self.assertNotEqual(grade.compare(reference, answer), 'right')

  def test_pairs_in_either_order(self):
    for name in ('equal', 'different'):
      verdicts = {
          (a, b): _is_right(a, b)
          for pair in _DATA[name]
          for a, b in (pair, pair[::-1])
      }
      expected = name == 'equal'
      self.assertEqual([p for p, v in verdicts.items() if v != expected], [])

  def test_references_of_public_shapes(self):
    times = []
    for reference, right, wrong in references.make(6000):
      begin = time.thread_time()
      accepts = [_is_right(reference, a) for a in (reference, right, wrong)]
      times.append(time.thread_time() - begin)
      self.assertEqual(accepts, [True, True, False], (reference, right, wrong))
    # Three comparisons each; the first also parses the reference.
    self.assertLess(sorted(times)[len(times) * 99 // 100], 0.06)

  def test_hostile_answers_are_bounded(self):
    for reference in ('x^2+1', r'\frac{\pi}{2}', '(1,2)', r'\{1,2,3\}', '42'):
      for answer in _HOSTILE:
        begin = time.thread_time()
        self.assertFalse(_is_right(reference, answer), answer)
        self.assertLess(time.thread_time() - begin, 2.0, answer)

  def test_any_text_may_be_a_reference(self):
    for text in (*_HOSTILE, r'\frac{1}{0}', '(', r'\begin{x}', '1/0', ''):
      if len(text) <= grade.MAX_ANSWER_CHARS and text.strip():
        self.assertTrue(_is_right(text, text), text)


if __name__ == '__main__':
  absltest.main()
