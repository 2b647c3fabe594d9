"""Sources are parsed within limits, and can be printed again."""

import ast

from absl.testing import absltest
from absl.testing import parameterized

from evojax.harness import syntax


class ParseTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('digits', f'\nX = 0x{"f" * 5000}', r'line 2: a number is larger'),
      ('nodes', 'x = [' + '1,' * 4000 + ']', r'line 1: 4\d+ syntax nodes, mo'),
      ('depth', f'x = {"-" * 9000}1', 'line 1: an expression is too deep to'),
      ('a name', f'import a{".a" * 999}', 'line 1: a name of 1999 characters,'),
      ('no break', "\nX = 'a\u00a0b'", r'line 2: a text holds U\+00A0, whi'),
      ('escape', r"X = '\x1b[2J'", r'line 1: a text holds U\+001B'),
      ('surrogate', r"X = '\ud800'", r'line 1: a text holds U\+D800'),
  )
  def test_refuses(self, source, message):
    """Otherwise the source could be read but not compared."""
    with self.assertRaisesRegex(syntax.SourceError, f'^keep.py {message}'):
      syntax.fingerprint('keep.py', source)

  def test_what_cannot_be_written_down_again(self):
    error = ValueError('Unable to avoid backslash')
    with absltest.mock.patch.object(ast, 'unparse', side_effect=error):
      with self.assertRaisesRegex(
          syntax.SourceError, '^keep.py line 2: Unable .*; give what stands in'
      ):
        syntax.parse('keep.py', "X = 1\nY = f'{X}'\n")
      with self.assertRaises(syntax.SourceError):
        syntax.fingerprint('keep.py', 'X = 12\n')

  def test_texts_that_print(self):
    source = '"""Doc\x1b."""\nX = "h\u00e4\u00df\\n\\t"\n# \u2028\n'
    self.assertNotEmpty(syntax.fingerprint('keep.py', source))


if __name__ == '__main__':
  absltest.main()
