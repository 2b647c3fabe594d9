"""Each operator makes the kind of bug that it is named after."""

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.swe import operators

HEADER = 'LIMIT = 3\n\n\nclass C:\n\n  def f(self, a, b=2, *, sign=True):\n'


def made(body, operator):
  """Return the replacements that one operator makes."""
  text = HEADER + ''.join(f'    {line}\n' for line in body.split('\n'))
  return [
      (text[bug.start : bug.end], bug.new)
      for bug in operators.bugs('c.py', text)
      if bug.operator == operator
  ]


class OperatorsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('off_by_one', 'return a[1]', [('1', '2'), ('1', '0')]),
      ('off_by_one', 'return 0, True, "1"', [('0', '1')]),
      ('wrong_comparison', 'return a < b', [('<', '<=')]),
      (
          'wrong_comparison',
          'return 0 <= a < b',
          [('<=', '<'), ('<', '<=')],
      ),
      ('wrong_comparison', 'return a == b', []),
      ('inverted_condition', 'return a  not   in b', [('not   in', 'in')]),
      ('wrong_operator', 'return (a) + (\n b)', [('+', '-')]),
      ('inverted_condition', 'return a == b', [('==', '!=')]),
      ('inverted_condition', 'if not a: return b', [('not a', 'a')]),
      ('inverted_condition', 'return 1 if a else 2', [('a', 'not a')]),
      ('wrong_operator', 'return a + b', [('+', '-')]),
      ('wrong_operator', 'return a and b', [('and', 'or')]),
      (
          'wrong_operator',
          'return a * (b - 1)',
          [('*', '/'), ('-', '+')],
      ),
      ('swapped_operands', 'return a - b', [('a - b', 'b - a')]),
      ('swapped_operands', 'return a + b', []),
      ('dropped_call', 'return sorted(a)', [('sorted(a)', 'a')]),
      ('dropped_call', 'return a.strip()', [('a.strip()', 'a')]),
      (
          'wrong_default',
          'return a',
          [('2', '3'), ('2', '4'), ('True', 'False')],
      ),
      ('removed_return', 'return a + 1', [('return a + 1', 'a + 1')]),
      ('removed_return', 'return', []),
      (
          'boundary_slice',
          'return a[1:b]',
          [('1:b', '1 + 1:b'), ('1:b', ':b'), ('1:b', '1:b - 1'),
           ('1:b', '1:')],
      ),
      ('boundary_slice', 'return a[::2]', []),
      ('wrong_variable', 'return a', [('a', 'b')]),
      ('swapped_arguments', 'return max(a, b)',
       [('max(a, b)', 'max(b, a)')]),
      ('dropped_statement', 'a.sort()\nreturn a', [('a.sort()', 'pass')]),
      ('dropped_statement', '"""Text."""\nreturn a', []),
      ('wrong_assignment', 'a += b\nreturn a',
       [('a += b', 'a -= b'), ('a += b', 'a = b')]),
      ('lost_sign', 'return -a', [('-a', 'a')]),
      ('wrong_jump', 'for x in a: break',
       [('break', 'continue'), ('break', 'pass')]),
  )  # fmt: skip
  def test_changes(self, operator, body, expected):
    self.assertEqual(made(body, operator), expected)

  def test_there_are_enough(self):
    self.assertGreaterEqual(len(operators.OPERATORS), 10)

  def test_the_rest_stays_as_it_is(self):
    text = HEADER + "    x = 'ä€'; y = [ a<b ]  # Comment.\n    return x\n"
    for bug in operators.bugs('c.py', text):
      changed = bug.apply(text)
      self.assertNotEqual(changed, text)
      self.assertEqual(changed[: bug.start], text[: bug.start])
      self.assertTrue(changed.endswith(text[bug.end :]))
    found = [b for b in operators.bugs('c.py', text) if b.new == '<=']
    self.assertEqual(text[found[0].start : found[0].end], '<')

  def test_lines_may_end_in_a_carriage_return(self):
    for end in ('\n', '\r\n', '\r'):
      text = f'def f(a):{end}  b = 1{end}  return a + b{end}'
      texts = [bug.apply(text) for bug in operators.bugs('c.py', text)]
      self.assertIn(text.replace('+', '-'), texts)

  def test_a_text_comes_once_and_is_python(self):
    text = HEADER + '    return a[b:1] if a > b - 1 else -a\n'
    changed = [bug.apply(text) for bug in operators.bugs('c.py', text)]
    self.assertLen(set(changed), len(changed))
    self.assertGreater(len(changed), 10)
    for each in changed:
      compile(each, 'c.py', 'exec')

  def test_functions_have_names(self):
    text = HEADER + '    return a\n\n\ndef g(x):\n  return x + 1\n'
    names = {bug.function for bug in operators.bugs('c.py', text)}
    self.assertEqual(names, {'C.f', 'g'})


if __name__ == '__main__':
  absltest.main()
