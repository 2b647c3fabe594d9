"""Near-misses and hostile completions: each gets the right Grade."""

import time

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.math import grade
from evojax.evidence import schema

# CPU time does not depend on other load; quadratic work takes minutes.
_QUADRATIC_CPU_S = 20

_RIGHT = (
    # reference, answer
    ('42', '42'),
    ('42', ' 42 '),
    ('42', '42.'),
    ('42', '42.0'),
    ('42', '+42'),
    ('42', '$42$'),
    ('42', r'\$42'),
    ('42', '**42**'),
    ('42', 'x = 42'),
    ('42', '[42]'),
    ('[42]', '42'),
    ('12', r'3 \cdot 4 = 12'),
    ('12', 'x = 3 * 4 = 12'),
    ('12', '$f(2) = 3(2 + 2) = 12$'),
    ('12', '12 = 12.0'),
    ('4', '8/2 = 4'),
    ('1000', '10^3 = 1,000'),
    ('50%', '1/2 = 50%'),
    ('-1/2', r'\frac{1}{-2}'),
    (r'\frac{1}{-2}', '-0.5'),
    (r'101_2', r'101_{\text{two}}'),
    (r'101_\text{two}', '101_2'),
    (r'x<2 \text{ or } x>3', r'(-\infty,2)\cup(3,\infty)'),
    ('42', '042'),
    ('42', '\uff14\uff12'),
    ('42', '\u200e42'),
    ('-42', '\u221242'),
    ('-42', '- 42'),
    ('1234', '1,234'),
    ('1,234', '1234'),
    ('1234', r'1{,}234'),
    ('1000', '1e3'),
    ('1500', r'1.5 \times 10^3'),
    ('3/4', '0.75'),
    ('3/4', '6/8'),
    ('3/4', r'\frac{3}{4}'),
    ('3/4', '.75'),
    ('3/4', r'$\dfrac{3}{4}$'),
    ('3/4', '75%'),
    ('3/4', '\u00be'),
    ('0.75', '3/4'),
    ('7.140', '7.14'),
    ('8.0', '8'),
    ('3/2', '1 1/2'),
    ('5/2', '2\u00bd'),
    ('50%', '50'),
    ('50%', '0.5'),
    ('50', '50%'),
    ('50%', '50.0 %'),
    (r'90^\circ', '90'),
    ('90', '90\u00b0'),
    ('\u22480.333', '1/3'),
    ('\u22480.333', '0.33349'),
    ('\u22480.333', '0.333'),
    ('x^2-1', '(x-1)(x+1)'),
    ('x^2-1', 'x\u00b2 - 1'),
    ('y = 2x+1', '2x+1'),
    (r'2\sqrt{3}', r'\sqrt{12}'),
    (r'\frac{\pi}{2}', r'0.5\pi'),
    ('mother-in-law', 'Mother-in-law.'),
    ('Friday', 'friday'),
    ('(1, 2)', '(1,2)'),
    ('00:34:28', '00:34:28'),
    ('True', 'true'),
    ('A', 'a'),
    (r'\text{Friday}', 'Friday'),
)
_NOT_RIGHT = (
    # reference, answer, verdict
    ('42', '43', 'wrong'),
    ('42', '-42', 'wrong'),
    ('42', '420', 'wrong'),
    ('42', '4.2', 'wrong'),
    ('42', '42.0001', 'wrong'),
    ('42', '42e1', 'wrong'),
    ('3.5', '3.54', 'wrong'),
    ('0.333', '1/3', 'wrong'),
    ('3/4', '4/3', 'wrong'),
    ('1/3', '0.3333333333333333', 'wrong'),
    ('50%', '0.5%', 'wrong'),
    ('50%', '5000%', 'wrong'),
    ('50', '0.5', 'wrong'),
    ('\u22480.333', '0.334', 'wrong'),
    ('\u22480.333', '0.3', 'wrong'),
    ('52', '5\u00b2', 'unparsable'),
    ('102', '10\u2082', 'unparsable'),
    ('21/2', '2\u00bd', 'wrong'),
    # More than one value.
    ('1', '1 2 3', 'unparsable'),
    ('3', '1 2 3', 'unparsable'),
    ('5', '5 or 6', 'unparsable'),
    ('5', '5, 6', 'unparsable'),
    ('5', '5 5', 'unparsable'),
    ('5', '$5$ or $6$', 'unparsable'),
    ('5', '5\n6', 'unparsable'),
    ('5', '5/6/7', 'unparsable'),
    ('5', 'x = 5 or x = 6', 'unparsable'),
    ('25', '2x = 5', 'unparsable'),
    ('12', '\u202e21', 'unparsable'),
    ('5', '\u00b15', 'unparsable'),
    # A calculation, or the problem itself.
    ('4', '8/2', 'wrong_form'),
    ('4', '2*2 = 8/2', 'wrong_form'),
    ('12', r'3 \cdot 5 = 12', 'unparsable'),  # The work must be right.
    ('12', 'x = 3*5 = 12', 'unparsable'),
    ('12', '11 = 12', 'unparsable'),
    ('12', '12 = 3*4', 'unparsable'),
    ('12', '3*4 = 12 = 5', 'unparsable'),
    ('12', '2x = 24 = 12', 'unparsable'),
    ('12', '2x = 12', 'unparsable'),
    ('12', '3*4 = 12 or 5', 'unparsable'),
    ('12', '5, 3*4 = 12', 'unparsable'),
    ('12', '3*4 = ', 'unparsable'),
    ('12', ' = 12', 'unparsable'),
    ('12', '(((9^99)^99)^99)^99 = 12', 'unparsable'),
    ('1/2', r'\frac{1}{-2}', 'wrong'),
    ('1', r'\frac{-1}{-1}', 'unparsable'),
    ('4', r'\frac{8}{2}', 'wrong_form'),
    ('4', '2+2', 'unparsable'),
    ('8', '2^3', 'unparsable'),
    ('8', '2*4', 'unparsable'),
    ('6', '3!', 'unparsable'),
    ('4', '5 - 1', 'unparsable'),
    ('3', r'\sqrt{9}', 'unparsable'),
    # Units and words.
    ('5', '5 cm', 'unparsable'),
    ('5', '5 apples', 'unparsable'),
    ('5', r'5\text{ cm}', 'unparsable'),
    ('5', 'five', 'unparsable'),
    ('5000', '5 thousand', 'unparsable'),
    ('5', '5th', 'unparsable'),
    # No number at all.
    ('0', 'nan', 'unparsable'),
    ('0', 'inf', 'unparsable'),
    ('0', '0/0', 'unparsable'),
    ('1', '1/0', 'unparsable'),
    ('0', '', 'unparsable'),
    ('0', '-', 'unparsable'),
    ('1', 'True', 'unparsable'),
    ('0', 'None', 'unparsable'),
    ('3', '\u0663', 'unparsable'),
    ('16', '0x10', 'unparsable'),
    ('1000', '1_000', 'unparsable'),
    ('123', '1,23', 'wrong'),
    ('12', '12,0', 'unparsable'),  # 12 and 0.
    ('3.5', '(3,5)', 'unparsable'),
    ('1/3', '0.333...', 'unparsable'),
    ('5', '5\x00', 'unparsable'),
    ('5', '5\ud800', 'unparsable'),
    # Too large to be an answer.
    ('1', '1e999999', 'unparsable'),
    ('1', '9**9**9', 'unparsable'),
    ('1', '9' * 5000, 'too_long'),
    ('1', '1' + '0' * 999 + '1', 'too_long'),
    # Expressions.
    ('x^2', 'x^3', 'wrong'),
    ('x^2', '9^9^9', 'timeout'),
    ('x', '(' * 900, 'unparsable'),
    ('x+1', '(' * 900, 'unparsable'),
    ('x+1', '__import__("os")', 'unparsable'),
    ('x+1', '1/0', 'unparsable'),
    ('x+1', r'\sin(y=3x)', 'unparsable'),
    ('x+1', r'\frac{2<2}{7}', 'unparsable'),
    ('x+1', r'3>=\pm5', 'wrong'),
    (r'[0,1]\cup\{i^2\}', r'[0,1]\cup\{-1, i\}', 'wrong'),
    (r'[0,1]\cup\{i^2\}', r'\begin{cases}1&2\end{cases}\cup\{3\}', 'wrong'),
    ('x+1', 'x, 1', 'wrong'),
    ('x+1', 'x+1 or x+2', 'wrong'),
    ('x+1', 'os.system("ls")', 'unparsable'),
    # Text.
    ('no', 'on', 'wrong'),
    ('Yes', 'Yes or No', 'wrong'),
    ('Friday', 'Friday, Monday', 'wrong'),
    ('(1, 2)', '(2, 1)', 'wrong'),
    ('mother-in-law', 'mother in law', 'wrong'),
    ('A', 'AB', 'wrong'),
    ('00:34:28', '34:28', 'wrong'),
)
_FORMS = (
    # form, reference, answer, verdict
    ('lowest', '2/3', '2/3', 'right'),
    ('lowest', '2/3', r'\frac23', 'right'),
    ('lowest', '2/3', '4/6', 'wrong_form'),
    ('lowest', '2/3', '3/2', 'wrong'),
    ('lowest', '1/2', '0.5', 'wrong_form'),
    ('lowest', '1/2', '2/4 = 1/2', 'right'),
    ('lowest', '-1/2', '1/-2', 'wrong_form'),
    ('lowest', '1/2', '50%', 'wrong_form'),
    ('lowest', '3/2', '1 1/2', 'wrong_form'),
    ('lowest', '1/1', '1', 'right'),
    ('lowest', '1/1', '1/1', 'right'),
    ('lowest', '1/1', '7/7', 'wrong_form'),
    ('lowest', r'$\dfrac{242}{311}$', '242/311', 'right'),
    ('text', '1e2', '1E2', 'right'),
    ('text', '1e2', '100', 'wrong'),
    ('text', '20', '20.0', 'wrong'),
    ('text', '0x5b993', '0X5B993', 'right'),
    ('text', '2 \u00d7 2 \u00d7 5', r'$2\times 2 \times 5$', 'right'),
    ('text', '2 \u00d7 2 \u00d7 5', '2*2*5', 'right'),
    ('text', '2 \u00d7 2 \u00d7 5', '20', 'wrong'),
    ('text', '2 \u00d7 2 \u00d7 5', '2 \u00d7 5 \u00d7 2', 'wrong'),
)


class CompareTest(parameterized.TestCase):

  @parameterized.parameters(*_RIGHT)
  def test_right(self, reference, answer):
    self.assertEqual(grade.compare(reference, answer), 'right')

  @parameterized.parameters(*_NOT_RIGHT)
  def test_not_right(self, reference, answer, verdict):
    self.assertEqual(grade.compare(reference, answer), verdict)

  @parameterized.parameters(*_FORMS)
  def test_forms(self, form, reference, answer, verdict):
    self.assertEqual(grade.compare(reference, answer, form), verdict)

  def test_a_late_comparison_is_a_status(self):
    heavy = '(((9^99)^99)^99)^99'
    self.assertEqual(grade.compare('x+1', heavy), 'timeout')
    self.assertEqual(grade.compare('x+1', '1+x'), 'right')


class ExtractTest(parameterized.TestCase):

  @parameterized.parameters(
      ('tag', '<answer>42</answer>', '42'),
      ('tag', 'a <answer>1</answer> b <answer> 42\n</answer> c', ' 42\n'),
      ('tag', '<answer>42</answer> <answer>43', '42'),
      ('tag', '<answer>42</answer></answer>', '42'),
      ('tag', '<answer><answer>42</answer>', '42'),
      ('tag', '<answer>42', None),
      ('tag', '42</answer>', None),
      ('tag', '</answer>42<answer>', None),
      ('tag', '<answer> \n </answer>', None),
      ('tag', '<ANSWER>42</ANSWER>', None),
      ('tag', '<answer>42</answer', None),
      ('tag', r'\boxed{42}', None),
      ('boxed', r'so \boxed{42}.', '42'),
      ('boxed', r'\boxed{1}, no, \boxed{42}', '42'),
      ('boxed', r'\boxed{\frac{1}{2}}', r'\frac{1}{2}'),
      ('boxed', r'\boxed{\{1\}}', r'\{1\}'),
      ('boxed', r'\boxed{\boxed{42}}', '42'),
      ('boxed', r'\boxed{42} \boxed{43', '42'),
      ('boxed', r'{\boxed{42}', '42'),
      ('boxed', r'}} \boxed{42}', '42'),
      ('boxed', r'\boxed {42}', '42'),
      ('boxed', r'\boxed{}', None),
      ('boxed', r'\boxed 42', None),
      ('boxed', 'boxed{42}', None),
      ('hash', 'work\n#### 42\n', '42'),
      ('hash', '#### 1\n#### 42', '42'),
      ('hash', '#### 42 apples', '42 apples'),
      ('hash', '####', None),
      ('hash', '### 42', None),
      ('hash', '####\n42', None),
      ('last_number', 'It is 1, 2 or 42.', '42'),
      ('last_number', 'x = -4.5', '-4.5'),
      ('last_number', '10-3', '3'),
      ('last_number', 'costs $1,234.50!', '$1,234.50'),
      ('last_number', 'about 3/4', '3/4'),
      ('last_number', '1e5', '1e5'),
      ('last_number', 'x1 and y2', None),
      ('last_number', 'none', None),
  )
  def test_last_complete_answer(self, answer_format, text, answer):
    found = grade.extract(text, answer_format)
    self.assertEqual(found and found.answer, answer)

  def test_start_is_where_the_markup_begins(self):
    for answer_format, text in (
        ('tag', 'ab <answer>4</answer>'),
        ('boxed', r'ab \boxed{4}'),
        ('hash', 'ab #### 4'),
        ('last_number', 'ab 4'),
    ):
      self.assertEqual(grade.extract(text, answer_format).start, 3)

  def test_unknown_format(self):
    with self.assertRaisesRegex(ValueError, "'xml' is not one of"):
      grade.extract('', 'xml')


class ModeTest(parameterized.TestCase):

  @parameterized.parameters(
      # The warm start teaches these forms.
      ('12+45=57\n57-7=50\n<answer>50</answer>', False, 'steps'),
      ('12+45=57\n57-7=50\nThe answer is 50.', False, 'steps_unformatted'),
      ('<answer>50</answer>', False, 'direct'),
      ('The answer is 50.', False, 'direct_unformatted'),
      ('The answer is -3/4.', False, 'direct_unformatted'),
      ('Let me think about this. Hmm, wait.', True, 'ramble'),
      # Larger models write these forms.
      ('So the final answer is <answer>50</answer>', False, 'direct'),
      ('<think>\n\n</think>\n\n<answer>50</answer>', False, 'direct'),
      (
          (
              '<think>First add twelve and forty-five, giving'
              ' fifty-seven.</think><answer>50</answer>'
          ),
          False,
          'steps',
      ),
      (
          'We take 7 away from 57, which leaves us with the number 50.',
          False,
          'steps_unformatted',
      ),
      ('Friday', False, 'direct_unformatted'),
      ('', False, 'ramble'),
      ('1+1=2 so', True, 'ramble'),
      # Cut after a complete answer: the answer counts.
      ('1+1=2 <answer>2</answer> and', True, 'steps'),
  )
  def test_mode(self, text, truncated, mode):
    found = grade.extract(text, 'tag')
    self.assertEqual(grade.classify(text, found, truncated), mode)


class GradeTest(parameterized.TestCase):

  def test_a_solved_problem(self):
    result = grade.grade('50', '57-7=50\n<answer>50</answer>', 'tag')
    self.assertIs(result.outcome, True)
    self.assertEqual(result.partial, 1.0)
    self.assertEqual(result.status, 'ok')
    self.assertEqual(
        result.columns,
        {
            'format_ok': True,
            'answer_chars': 2,
            'mode': grade.MATH_MODE['steps'],
        },
    )

  def test_the_right_value_without_the_format_is_no_answer(self):
    result = grade.grade('50', 'The answer is 50.', 'tag')
    self.assertEqual(
        (result.outcome, result.status, result.columns['format_ok']),
        (False, 'no_answer', False),
    )

  @parameterized.parameters(*grade.ANSWER_FORMATS)
  def test_any_text_gets_a_grade_quickly(self, answer_format):
    names = {column.name for column in grade.COLUMNS} - {'grade_status'}
    pieces = (
        '',
        '\x00',
        '\ud800',
        '\u202e',
        '{',
        '}',
        '\\',
        '<',
        '\\boxed{',
        '<answer>',
        '</answer>',
        '####',
        '9',
        '1,',
        '-',
        '$1',
        '^',
        '9**9**9',
        '\\frac',
        '(',
        '1e999999',
        '\U0001d7d9',
        '\n',
        '#',
        ' ',
        '/1',
        '.',
    )
    marks = {
        'tag': ('<answer>', '</answer>'),
        'boxed': ('\\boxed{', '}'),
        'hash': ('#### ', ''),
        'last_number': ('', ''),
    }
    left, right = marks[answer_format]
    for reference in ('7', 'x+1', 'Friday'):
      for piece in pieces:
        for text in (
            piece,
            piece * 100_000,
            left + piece + right,
            left + piece * 300 + right,
            piece * 1000 + left + '7' + right,
        ):
          begin = time.process_time()
          result = grade.grade(reference, text, answer_format)
          seconds = time.process_time() - begin
          self.assertLess(seconds, _QUADRATIC_CPU_S, (reference, piece))
          self.assertIn(result.status, grade.GRADE_STATUS)
          self.assertIs(type(result.outcome), bool)
          self.assertEqual(set(result.columns), names)

  def test_ten_megabytes(self):
    begin = time.process_time()
    text = '{<answer>' * (10**7 // 9) + r'<answer>42</answer>\boxed{42}'
    self.assertTrue(grade.grade('42', text, 'tag').outcome)
    self.assertTrue(grade.grade('42', text, 'boxed').outcome)
    self.assertLess(time.process_time() - begin, _QUADRATIC_CPU_S)

  def test_only_the_tail_of_an_endless_text_is_read(self):
    text = '<answer>42</answer>' + ' ' * (grade.MAX_TEXT_CHARS - 19)
    self.assertTrue(grade.grade('42', text, 'tag').outcome)
    self.assertEqual(grade.grade('42', text + ' ', 'tag').status, 'no_answer')

  def test_braces_nested_100000_deep(self):
    text = '{' * 10**5 + r'\boxed{42}' + '}' * 10**5
    self.assertTrue(grade.grade('42', text[-150_000:], 'boxed').outcome)

  def test_columns_are_declared_and_join_the_core(self):
    columns = {c.name: c for c in schema.declare(grade.COLUMNS)}
    self.assertEqual(columns['grade_status'].codes, grade.GRADE_STATUS)
    self.assertEqual(columns['mode'].codes, grade.MATH_MODE)
    for name in ('format_ok', 'answer_chars', 'mode'):
      self.assertIn('reward', columns[name].readers)


if __name__ == '__main__':
  absltest.main()
