"""The python tool of the math domain and its replies."""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax import domains
from evojax import records
from evojax.domains.math import python_tool
from evojax.sandbox import limits


def call(code):
  return python_tool.run({'code': code})


class PythonToolTest(parameterized.TestCase):

  @parameterized.parameters(
      ('print(6 * 7)', '42', True),
      ('x = 6 * 7', 'nothing was printed', True),
      ('print(1)\nprint(1 / 0)', '1\nerror: ZeroDivisionError', False),
      ('print(', 'error: SyntaxError', False),
      ('while True: pass', 'error: cpu limit', False),
      ('print("a" * 10**6)', 'a' * python_tool.MAX_LETTERS + '...', True),
      ('import socket; socket.create_connection(("1.1.1.1", 80))', 'error', 0),
      ('print("\ud800")', '?', True),
      ('import sys; sys.exit(3)', 'error: error', False),
  )
  def test_says_what_a_program_did(self, code, text, ok):
    answer = call(code)
    self.assertStartsWith(answer.text, text)
    self.assertEqual(answer.ok, bool(ok))
    self.assertFalse(answer.ends)

  @parameterized.parameters(
      {}, {'code': 3}, {'code': 'print(1)', 'also': 2}, {'code': 'x' * 10_001}
  )
  def test_wrong_arguments_are_told(self, **arguments):
    answer = python_tool.run(arguments)
    self.assertStartsWith(answer.text, 'error: the ')
    self.assertFalse(answer.ok)

  def test_a_box_that_fails_is_not_the_policys_fault(self):
    result = limits.Result('infra_error', 'T0', message='no memory')
    box = mock.Mock(limits=limits.Limits(), run=lambda *_, **__: result)
    with mock.patch.object(python_tool.shared, 'open_box', return_value=box):
      with self.assertRaisesRegex(python_tool.BoxError, 'no memory'):
        call('print(1)')

  def test_math_has_the_tool_where_it_is_asked_for(self):
    plain = domains.make('math')
    ready = domains.make('math', max_turns=3)
    tools = domains.make('math', max_turns=3, tools=('python',))
    self.assertEqual([d.limits.turns for d in (plain, ready, tools)], [1, 1, 3])
    paths = [[f.path for f in d.surface_fields] for d in (plain, ready, tools)]
    field = ['domain.kwargs.tools']
    self.assertEqual(paths, [[], field, field])
    (a,), (b,) = (d.source('train', 0).take(0, 1) for d in (plain, tools))
    self.assertEqual((a.tools, b.tools), ((), (python_tool.SCHEMA,)))
    self.assertEqual(a.problem_id, b.problem_id)
    self.assertEqual(tools.perturb(b).tools, b.tools)
    names = [c.name for c in tools.columns]
    self.assertIn('actions', names)
    self.assertNotIn('actions', [c.name for c in plain.columns])
    turn = records.Episode(
        tokens=np.zeros(3, np.int32),
        logprobs=np.zeros(3, np.float32),
        finish_reason='stop',
        policy_version=0,
        text='<tool_call>{"name": "python", "arguments": {"code":'
        ' "print(2**10)"}}</tool_call>',
    )
    reply = tools.environment(b).reply(turn)
    self.assertEqual(reply.messages, ({'role': 'tool', 'content': '1024'},))
    self.assertEqual((reply.action, reply.ok), (1, True))

  @parameterized.parameters(
      (dict(tools=('sql',), max_turns=2), 'a list of names from'),
      (dict(tools='python', max_turns=2), 'a list of names from'),
      (dict(tools=('python',)), 'take 2 turns'),
      (dict(max_turns=0), 'max_turns=0'),
  )
  def test_wrong_arguments_of_make(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      domains.make('math', **kwargs)


if __name__ == '__main__':
  absltest.main()
