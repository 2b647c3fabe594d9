"""Tool calls in policies' texts, well formed or not."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax import records
from evojax.domains import environments

OPEN, CLOSE = environments.OPEN, environments.CLOSE


def turn(text):
  return records.Episode(
      np.zeros(1, np.int32), np.zeros(1, np.float32), 'stop', 0, text
  )


def environment():
  def add(arguments):
    return environments.Answer(str(arguments['a'] + 1), argument=4)

  def submit(arguments):
    return environments.Answer('', ends=True)

  tools = {'add': add, 'submit': submit}
  return environments.ToolEnvironment(
      tools, {'none': 0, 'add': 1, 'submit': 2}, close=lambda: 'state'
  )


class ReadCallTest(parameterized.TestCase):

  @parameterized.parameters(
      '{"name": "add", "arguments": {"a": 1}}',
      '\n{"arguments": {"a": 1}, "name": "add"}\n',
      '{"name": "add", "arguments": {"a": 1}, "id": 7}',
  )
  def test_reads_a_call_and_leaves_the_words_around_it(self, body):
    text = f'I add.\n{OPEN}{body}{CLOSE} Done.'
    want = environments.Call('add', {'a': 1})
    self.assertEqual(environments.read_call(text), want)

  def test_arguments_may_be_left_out(self):
    text = OPEN + '{"name": "submit"}' + CLOSE
    self.assertEqual(
        environments.read_call(text), environments.Call('submit', {})
    )

  @parameterized.parameters('', 'The answer is 4.', '{"name": "add"}')
  def test_no_call(self, text):
    self.assertIsNone(environments.read_call(text))

  @parameterized.parameters(
      (OPEN + '{"name": "add"}', 'not closed'),
      ('{"name": "add"}' + CLOSE, 'without <tool_call>'),
      (OPEN + 'add(1)' + CLOSE, 'not JSON'),
      (OPEN + '[' * 100_000 + CLOSE, 'not JSON'),
      (OPEN + '9' * 10_000 + CLOSE, 'not JSON'),
      (OPEN + '"add"' + CLOSE, 'must be an object'),
      (OPEN + '{"arguments": {}}' + CLOSE, 'no "name"'),
      (OPEN + '{"name": ["add"]}' + CLOSE, 'no "name"'),
      (OPEN + '{"name": "add", "arguments": [1]}' + CLOSE, '"arguments"'),
      (2 * (OPEN + '{"name": "add"}' + CLOSE), 'more than one'),
      (OPEN + OPEN + '{"name": "add"}' + CLOSE, 'more than one'),
  )
  def test_says_what_is_wrong(self, text, message):
    with self.assertRaisesRegex(environments.CallError, message):
      environments.read_call(text)


class ToolEnvironmentTest(absltest.TestCase):

  def test_a_call_is_answered(self):
    text = OPEN + '{"name": "add", "arguments": {"a": 1}}' + CLOSE
    reply = environment().reply(turn(text))
    self.assertEqual(reply.messages, ({'role': 'tool', 'content': '2'},))
    self.assertEqual((reply.action, reply.argument, reply.ok), (1, 4, True))

  def test_a_wrong_call_is_told_and_goes_on(self):
    for text in (OPEN + '{}' + CLOSE, OPEN + '{"name": "sub"}' + CLOSE):
      reply = environment().reply(turn(text))
      self.assertStartsWith(reply.messages[0]['content'], 'error: ')
      self.assertEqual((reply.action, reply.ok), (0, False))
    self.assertIn('add, submit', reply.messages[0]['content'])

  def test_words_and_a_last_call_end_it(self):
    reply = environment().reply(turn('It is 4.'))
    self.assertEqual((reply.messages, reply.action, reply.ok), ((), 0, True))
    text = OPEN + '{"name": "submit"}' + CLOSE
    reply = environment().reply(turn(text))
    self.assertEqual((reply.messages, reply.action, reply.ok), ((), 2, True))

  def test_close_returns_the_state(self):
    self.assertEqual(environment().close(), 'state')


if __name__ == '__main__':
  absltest.main()
