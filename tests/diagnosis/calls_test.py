"""Tests for reading tool calls from logs."""

import json
import time

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.diagnosis import calls
from tests.diagnosis import agents_made

_MADE = [
    ('grep', {'pattern': 'total'}, 'shop.py:3:    return price + tax'),
    (
        'edit',
        {'path': 'shop.py', 'old': 'price + tax', 'new': 'price - tax'},
        'The file is changed.',
    ),
    ('', {}, 'Error: the call is not JSON'),
    ('test', {}, '4 passed, 1 failed'),
    ('submit', {}, 'Thank you.'),
]


def _episode(*made):
  return [(calls.Call(*call),) for call in made]


def _row(*made):
  found = calls.table([_episode(*made)])
  return found.iloc[0].to_dict()


def _bash(command):
  return calls.Call('execute_bash', {'command': command})


class ReadTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('text', agents_made.as_text(_MADE)),
      ('messages', agents_made.as_messages(_MADE)),
      # Messages as they come out of a Parquet table.
      (
          'array',
          np.array(
              [
                  message
                  | {'tool_calls': np.array(message.get('tool_calls', []))}
                  for message in agents_made.as_messages(_MADE)
              ]
          ),
      ),
  )
  def test_same_calls_in_every_form(self, value):
    turns = calls.read(value)
    self.assertLen(turns, 5)
    self.assertEqual(
        [(c.name, c.arguments, c.reply) for turn in turns for c in turn], _MADE
    )
    self.assertEqual(
        [c.kind for turn in turns for c in turn],
        ['look', 'edit', 'malformed', 'test', 'submit'],
    )

  def test_arguments_as_text_and_of_other_calls(self):
    for arguments in ('{"pattern": "x"}', {'pattern': 'x', 'path': None}):
      call = {'function': {'name': 'grep', 'arguments': arguments}}
      message = {'role': 'assistant', 'tool_calls': [call]}
      ((found,),) = calls.read([message])
      self.assertEqual(found.arguments, {'pattern': 'x'})

  def test_several_calls_and_answers_of_one_turn(self):
    call = (
        '<tool_call>{"name": "read", "arguments": {"path": "%s"}}</tool_call>'
    )
    answer = '<tool_response>%s</tool_response>'
    text = f'{call % "a"}{call % "b"}{answer % 1}\n{answer % 2}\nso it is 3'
    first, last = calls.read(text)
    self.assertEqual([c.reply for c in first], ['1', '2'])
    self.assertEmpty(last)

  @parameterized.parameters(
      '<tool_call>{"name": ',
      '<tool_call>[1]</tool_call>',
      '<tool_call>{"name": "x", "arguments": "{"}</tool_call>',
      '<tool_call>' + '[' * 5000 + '</tool_call>',
  )
  def test_malformed(self, text):
    ((call,),) = calls.read(text)
    self.assertEqual((call.kind, call.ok), ('malformed', False))

  @parameterized.parameters(
      (None,), (3.0,), ('',), ([],), (['x'],), ({'a': 1},)
  )
  def test_no_calls(self, value):
    self.assertEmpty([c for turn in calls.read(value) for c in turn])

  def test_evidence(self):
    made = json.dumps({'name': 'git', 'arguments': {'command': 'show'}})
    turns = calls.of_turns(
        [f'<tool_call>{made}</tool_call>', 'done'],
        ['fatal: no such commit', ''],
        [False, True],
    )
    self.assertEqual([len(turn) for turn in turns], [1, 0])
    self.assertEqual((turns[0][0].kind, turns[0][0].ok), ('history', False))


class KindTest(parameterized.TestCase):

  def test_of_a_command_repeated_up_to_the_limit(self):
    begun = time.process_time()
    for command, kind in (
        ('git status ', 'look'), ('sed -n 1p f ', 'look'), ('ls -la ', 'look')
    ):  # fmt: skip
      self.assertEqual(_bash(command * 8_000).kind, kind)
    self.assertLess(time.process_time() - begun, 20)  # Minutes without bounds.

  @parameterized.parameters(
      ('cd /repo && git log -p -3', 'history'),
      ('git show HEAD~1', 'history'),
      ('git diff', 'look'),
      ('git status; ls', 'look'),
      ('sed -i "s/a/b/" shop.py', 'edit'),
      ('sed -n 3,9p shop.py', 'look'),
      ('python -m pytest -q 2>&1 | tail -5', 'test'),
      ('cat > shop.py <<EOF', 'edit'),
      ('cat shop.py 2>/dev/null', 'look'),
      ('python run.py', 'other'),
  )
  def test_of_a_command(self, command, kind):
    self.assertEqual(_bash(command).kind, kind)

  @parameterized.parameters(
      ('git show abc123 | git apply', True),
      ('git log -p -1 > a.patch && patch -p1 < a.patch', True),
      ('git checkout abc123 -- shop.py', True),
      ('perl -pi -e s/a/b/ shop.py', True),
      ('git log --all 2>/dev/null', False),
      ('git show abc123', False),
  )
  def test_commands_that_change_files(self, command, changes):
    self.assertEqual(_bash(command).edits, changes)

  @parameterized.parameters(
      ('str_replace_editor', {'command': 'view', 'path': 'a'}, 'look'),
      ('str_replace_editor', {'command': 'create', 'path': 'a'}, 'edit'),
      ('finish', {}, 'submit'),
      ('run_tests', {}, 'test'),
      ('archive', {'entry': '3'}, 'other'),
      ('git', {'command': 'log'}, 'history'),
      ('git', {'command': 'diff'}, 'look'),
  )
  def test_of_a_tool(self, name, arguments, kind):
    self.assertEqual(calls.Call(name, arguments).kind, kind)

  @parameterized.parameters(
      ('recall', 'f3a91c2 (origin/main) Fix area\nab12cd3 Start', 'history'),
      ('search_notes', 'commit 04b3f1ce9d\nAuthor: A', 'history'),
      ('read', '12: 1234567 is a number\n1234567 passed', 'look'),
      ('lookup', 'defaced words', 'other'),
      ('edit', 'f3a91c2 Fix area', 'edit'),
  )
  def test_of_a_reply(self, name, reply, kind):
    self.assertEqual(calls.Call(name, {}, reply).kind, kind)

  @parameterized.parameters(
      ('tests/test_shop.py', True),
      ('conftest.py', True),
      ('shop/test_bench/a.py', False),
      ('shop/latest.py', False),
  )
  def test_tests(self, path, touched):
    call = calls.Call('edit', {'path': path, 'new': 'x'})
    self.assertEqual(call.touches_tests, touched)


class TableTest(parameterized.TestCase):

  def test_columns(self):
    row = _row(*_MADE)
    self.assertEqual(
        {
            name: row[name]
            for name in ('n_turns', 'n_calls', 'calls_failed', 'visible_passed')
        },
        {'n_turns': 5, 'n_calls': 5, 'calls_failed': 0.2, 'visible_passed': 0},
    )
    for name in ('edited', 'looked', 'tested', 'submitted'):
      self.assertEqual(row[name], 1, name)
    for name in ('history', 'tests_touched', 'copied', 'repeated'):
      self.assertEqual(row[name], 0, name)

  @parameterized.parameters(
      ('def f(x):\n  ret\n... and 433 letters more', 1.0),
      ('x' * 500 + '<response clipped>', 1.0),
      ('[output truncated: 90 lines left]', 1.0),
      # Code that is shown whole.
      ('text = truncated(text)\n' + '  return text\n' * 20, 0.0),
      ('1 more line', 0.0),
  )
  def test_replies_that_say_that_they_are_cut(self, reply, share):
    row = _row(('read', {'path': 'a.py'}, reply))
    self.assertEqual(row['replies_cut'], share)

  def test_nothing_is_said_without_a_tool_for_it(self):
    found = calls.table([_episode(('search', {'q': 'x'}, 'y'))])
    self.assertTrue({'edited', 'submitted', 'tested'}.isdisjoint(found))
    self.assertEmpty(calls.table([calls.read('so <4>')]).columns)

  def test_a_test_after_an_edit_is_no_repetition(self):
    edit = ('edit', {'path': 'a.py', 'new': 'x = 11111'}, '')
    test = ('test', {}, '')
    self.assertEqual(_row(edit, test, test, test)['repeated'], 0.5)
    other = ('edit', {'path': 'a.py', 'new': 'y'}, '')
    self.assertEqual(_row(test, edit, test, other, test)['repeated'], 0)
    # Repetitions of the same edit count as one.
    self.assertEqual(_row(edit, edit, edit, edit)['repeated'], 0.75)

  def test_copied(self):
    edit = (
        'edit',
        {'path': 'a.py', 'old': 'sum + tax', 'new': 'sum - tax'},
        'ok',
    )
    shown = '@@ -1 +1 @@\n-    sum + tax\n+    sum - tax'
    # The lines that a patch adds were not in the source, under any tool's name.
    for tool in ('archive', 'git', 'search_notes', 'read'):
      arguments = {'command': 'show'}
      made = [calls.Call(tool, arguments, shown), calls.Call(*edit)]
      self.assertEqual(calls.copied_from(made), tool)
      self.assertEqual(calls.copied_from(made[::-1]), '')
    # Reading the source showed the line, too.
    look = calls.Call('read', {'path': 'b.py'}, '7\tsum - tax')
    self.assertEqual(calls.copied_from([look, *made]), '')
    # A patch of the agent's own edits leaks nothing.
    again = calls.Call('edit', {'path': 'c.py', 'new': 'sum - tax'}, 'ok')
    diff = calls.Call('git', {'command': 'diff'}, shown)
    self.assertEqual(calls.copied_from([made[1], diff, again]), '')


if __name__ == '__main__':
  absltest.main()
