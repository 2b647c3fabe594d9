"""Tests for what is printed: words, columns, and the log."""

import contextlib
import errno
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
from rich import table as table_lib

from evojax.runtime import output

SENTENCE = 'the quick brown fox jumps over the lazy dog ' * 4


class SayTest(parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_say(self, error):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      output.say(SENTENCE, error=error)
    written, other = (err, out) if error else (out, err)
    lines = written.getvalue().splitlines()
    self.assertEqual(' '.join(lines), SENTENCE.strip())
    self.assertLessEqual(max(map(len, lines)), 80)
    self.assertLess(len(lines), 4)
    self.assertEmpty(other.getvalue())


  def test_what_the_terminal_cannot_show_ends_no_run(self):
    code = "from evojax.runtime import output; output.say('1 \u2192 2')"
    done = subprocess.run(
        [sys.executable, '-c', code],
        env=os.environ | {'PYTHONIOENCODING': 'latin-1'},
        capture_output=True,
        check=True,
    )
    self.assertEqual(done.stdout, b'1 ? 2\n')


class LogTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder)
    self.out = self.enterContext(contextlib.redirect_stdout(io.StringIO()))
    with output.log_to(self.path):  # Takes what other tests have printed.
      pass
    (self.path / 'log.txt').unlink()

  def text(self):
    return (self.path / 'log.txt').read_text()

  def test_holds_what_is_printed_with_times(self):
    output.say('before the workdir')
    with output.log_to(self.path):
      output.say(SENTENCE)
      table = table_lib.Table('head', 'other', box=None)
      table.add_row('x' * 30, 'y' * 40)
      output.console().print(table)
      output.log('not printed')
      output.say('long for a terminal', logged='short')
    output.say('afterwards')
    lines = self.text().splitlines()
    self.assertRegex(lines[0], r'^\d{4}-\d\d-\d\d$')
    self.assertRegex(lines[1], r'^\d\d:\d\d:\d\d process \d+:')
    self.assertIn('before the workdir\n', self.text())
    self.assertIn(SENTENCE.strip(), re.sub(r'\n {9}', ' ', self.text()))
    self.assertIn(f'{"x" * 30}  {"y" * 40}', self.text())
    self.assertIn('not printed\n', self.text())
    self.assertNotIn('afterwards', self.text())
    self.assertIn(' short\n', self.text())
    self.assertNotIn('long for', self.text())
    self.assertNotIn('not printed', self.out.getvalue())
    self.assertIn('y' * 40, self.out.getvalue())
    ours = lines[lines.index(next(x for x in lines if 'before' in x)) :]
    self.assertLessEqual(max(map(len, ours)), 80)

  def test_goes_on_after_a_restart(self):
    for _ in range(2):
      with output.log_to(self.path):
        output.say('once more')
    self.assertEqual(self.text().count('once more'), 2)
    self.assertEqual(self.text().count(f'process {os.getpid()}'), 2)

  def test_says_what_ended_the_run(self):
    with self.assertRaises(ValueError):
      with output.log_to(self.path):
        raise ValueError('steps=-1: too few')
    self.assertIn(' ValueError: steps=-1: too few\n', self.text())

  def test_the_error_of_the_last_process(self):
    self.assertEqual(output.last_error(self.path), '')
    for message in ('short', f'{"long " * 30}end'):
      with self.assertRaises(ValueError):
        with output.log_to(self.path):
          raise ValueError(message)
      self.assertEqual(output.last_error(self.path), f'ValueError: {message}')
    with output.log_to(self.path):
      output.say('Errors: none')
    self.assertEqual(output.last_error(self.path), '')

  def test_a_full_disk_costs_no_run(self):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with output.log_to(self.path):
      with absltest.mock.patch.object(os, 'write', side_effect=full):
        output.say('lost')
      output.say('kept')
    with absltest.mock.patch.object(os, 'open', side_effect=full):
      with output.log_to(self.path):
        output.say('not even a file')
    self.assertIn('kept', self.text())
    self.assertNotIn('lost', self.text())
    self.assertIn('lost\nkept\nnot even a file\n', self.out.getvalue())


if __name__ == '__main__':
  absltest.main()
