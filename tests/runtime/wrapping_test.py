"""Tests for lines: words, columns, commands."""

import shlex

from absl.testing import absltest
from absl.testing import parameterized

from evojax.runtime import wrapping


class WrapTest(parameterized.TestCase):

  @parameterized.parameters(
      ('', ['']),
      ('a\n\nb', ['a', '', 'b']),
      ('one two three four', ['one two', 'three', 'four']),
      # Whatever is below an indented line stays below it.
      ('  one two three', ['  one', '  two', '  three']),
      # A path is never broken, nor a word at its hyphen.
      ('see /a/long/path-of-words', ['see', '/a/long/path-of-words']),
      ('x  y', ['x  y']),
      # It would clear the screen, or turn what follows round.
      ('\x1b[2J\r\u202e', ['\\x1b[2J\\r\\u202e']),
      ('\ud83d', ['\\ud83d']),  # Half of an emoji, which UTF-8 cannot hold.
  )
  def test_lines(self, text, lines):
    self.assertEqual(wrapping.wrap(text, 8), lines)

  def test_a_command_can_be_copied(self):
    command = "  python -m evojax.main --config.evolve.skills='a b' --workdir=x"
    lines = wrapping.wrap(command, 40)
    self.assertEqual(
        lines,
        [
            '  python -m evojax.main \\',
            "    --config.evolve.skills='a b' \\",
            '    --workdir=x',
        ],
    )
    self.assertEqual(
        shlex.split(''.join(lines).replace('\\', ' ')),
        shlex.split(command),
    )


if __name__ == '__main__':
  absltest.main()
