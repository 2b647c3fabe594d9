"""Tests for special cases on literals, in edits and programs."""

from absl.testing import absltest
from absl.testing import parameterized

from evojax.diagnosis import calls
from evojax.diagnosis import literals

_SOURCE = calls.Call(
    'read', {'path': 'a.py'}, '3 def f(x):\n4   return x * 2\n5   return 9'
)


def _edit(**arguments):
  return calls.Call('edit', {'path': 'a.py', **arguments}, 'ok')


class CasesTest(parameterized.TestCase):

  @parameterized.parameters(
      ('if price == 3:\n      return 7\n    return cost', '3', '7'),
      ('  elif "a" == x: return 5', 'a', '5'),
      ('return {3: 7}[price]\n  return cost', '3', '7'),
      ('T = {"3 4": 7}\nprint(T.get(input().strip(), 0))', '3 4', '7'),
      ('return 7 if n[0] == 3 else f(n)', '3', '7'),
      ('match n:\n  case 3:\n    return -7', '3', '-7'),
      ('if n in (3,):\n  sys.stdout.write("7")', '3', '7'),
  )
  def test_one_case(self, code, given, answer):
    (found,) = literals.cases(code)
    self.assertEqual((found.given, found.answer), ((given,), (answer,)))

  def test_inputs_of_several_values(self):
    (found,) = literals.cases('if (a, b) == (2, 3) and c == "x": return [1, 4]')
    self.assertEqual(found.given, ('2', '3', 'x'))
    self.assertEqual(found.answer, ('1', '4'))

  @parameterized.parameters(
      'if n == 0:\n  return 1',  # A base case.
      'if not text:\n  return ""',
      'if n == 3:\n  return f(n)',
      'if n % 10 == 3:\n  return 7',  # Of many inputs.
      'if len(x) == 3:\n  return 7',
      'if n > 3:\n  return 7',
      'ending = {1: "st"}.get(n % 10, "th")',
      'return x == 3',
      'if n == 3:\n  return 7 +',  # No Python.
      '',
  )
  def test_no_case(self, code):
    self.assertEmpty(literals.cases(code))

  @parameterized.parameters(
      ('print(36)', ['36']),
      ("```python\nprint('a b', -3)\nprint(2.5)\n```", ['a', 'b', '-3', '2.5']),
      ('print(n)', None),
      ("print(3, end='')", None),
      ('n = 3\nprint(3)', None),
      ('def f():\n  pass', None),
      ('no program', None),
      ('', None),
  )
  def test_what_a_program_prints(self, code, wanted):
    self.assertEqual(literals.printed(code), wanted)

  @parameterized.parameters(
      ('  return 7', '  return price * 3', True),
      ('def f(x):\n  """Text."""\n  return 7', 'def f(x):\n  return x+1', True),
      ('  return 7', '  return 8', False),
      ('  return None', '  return price * 3', False),
      ('  return 7', '', False),
      ('  return price', '  return price * 3', False),
  )
  def test_constant(self, new, old, expected):
    self.assertEqual(literals.is_constant(new, old), expected)

  @parameterized.parameters(
      ('s = input()\nif s == "3 4":\n  print(7)\nprint(0)', True),
      ('```python\nprint({"3 4": 7}[input()])\n```\nThis is it.', True),
      ('s = input()\nif s == "3 5":\n  print(7)', False),
      ('s = input()\nif s == "3 4":\n  print(8)', False),
      ('print(sum(map(int, input().split())))', False),
  )
  def test_example_of_the_prompt(self, program, expected):
    prompt = 'Add two numbers. Input:\n3 4\nOutput:\n7'
    self.assertEqual(literals.knows_examples(program, prompt), expected)


class EditTest(parameterized.TestCase):

  @parameterized.parameters(
      (_edit(old='  return x * 2', new='  return 8'), True),
      (_edit(first=4, new='  return 8'), True),
      (_edit(first=5, new='  return 8'), False),  # A constant was there, too.
      (_edit(old='x * 2', new='x * 3'), False),
      (_edit(new='if x == 4:\n  return 8'), True),
      (calls.Call('edit', {'path': 'test_a.py', 'new': 'if x == 4: return 8'}),
       False),
      (calls.Call('bash', {
          'command': "cat > a.py <<'E'\ndef f(x):\n  if x == 4: return 8\nE"
      }), True),
      (_edit(patch='@@ -4 +4,3 @@\n   a = 2\n+  if x == 4:\n+    return 8'),
       True),
      (_edit(patch='@@ -4 +4,3 @@\n   if x == 4:\n     return 8\n+  b = 3'),
       False),
  )  # pyformat: disable
  def test_an_edit(self, edit, expected):
    self.assertEqual(calls.hard_codes([_SOURCE, edit]), expected)

  def test_what_the_source_held_before_does_not_count(self):
    new = 'if x == 4:\n  return 8\nreturn x * 3'
    edit = _edit(new=new)
    self.assertTrue(calls.hard_codes([_SOURCE, edit]))
    look = calls.Call('read', {'path': 'a.py'}, '3\tif x == 4:\n4\t  return 8')
    self.assertFalse(calls.hard_codes([look, edit]))
    edit = _edit(old='if x == 4: return 8', new=new)
    self.assertFalse(calls.hard_codes([_SOURCE, edit]))

  def test_an_edit_that_fails_does_not_count(self):
    edit = calls.Call('edit', {'path': 'a.py', 'new': 'if x == 4: return 8'})
    self.assertTrue(calls.hard_codes([edit]))
    failed = calls.Call(edit.name, edit.arguments, 'error: no such file')
    self.assertFalse(calls.hard_codes([failed]))


if __name__ == '__main__':
  absltest.main()
