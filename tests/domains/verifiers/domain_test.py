"""Environments of the real library, turn by turn; skipped without it."""

import json
import signal
import sys
import threading

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest

from evojax import domains
from evojax import records
from evojax.domains import environments
from evojax.evidence import schema

vf = pytest.importorskip('verifiers', reason='the extra verifiers')


def _make(name, **kwargs):
  path = f'tests.domains.verifiers.envs:{name}'
  return domains.make('verifiers', environment=path, **kwargs)


def _first(domain):
  return domain.source('train', 0).take(0, 1)[0]


def _episode(*texts, **fields):
  """Return an episode with one token in each turn."""
  none = np.zeros(len(texts))
  turns = tuple(records.Turn(1, text=text) for text in texts)
  fields = {'finish_reason': 'stop', 'turns': turns} | fields
  return records.Episode(none, none, policy_version=0, text=texts[-1], **fields)


def _call(name, **arguments):
  call = json.dumps({'name': name, 'arguments': arguments})
  return f'I call.\n<tool_call>\n{call}\n</tool_call>'


def _play(domain, *texts):
  """Return the replies to turns, and the grade."""
  problem = _first(domain)
  world = domain.environment(problem)
  replies = [world.reply(_episode(text)) for text in texts]
  state = json.loads(json.dumps(world.close()))
  return replies, domain.grade(problem, _episode(*texts, state=state))


class SingleTurnTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.domain = _make('letters', threshold=0.5)

  def test_rows_are_problems(self):
    problem = _first(self.domain)
    system, user = problem.messages
    self.assertEqual(system, {'role': 'system', 'content': 'Say a.'})
    self.assertEqual(problem.answer, user['content'][0])
    self.assertEqual(problem.tools, ())
    self.assertEqual(self.domain.limits.turns, 1)

  def test_splits_are_disjoint_and_always_the_same(self):
    ids = [
        {p.problem_id for p in source.take(0, len(source))}
        for split in ('train', 'dev', 'sealed')
        for source in [self.domain.source(split, 3)]
    ]
    self.assertLen(set().union(*ids), sum(map(len, ids)))
    self.assertLen(ids[2], 42)  # From eval_dataset; two are also in dataset.
    self.assertLen(set().union(*ids), 240)
    again = _make('letters').source('train', 3).take(5, 7)
    self.assertEqual(again, self.domain.source('train', 3).take(5, 7))

  def test_the_rubric_grades(self):
    problem = _first(self.domain)
    texts = ('aaaa', 'ab', 'bbbb', '')
    grades = self.domain.grade_many([problem] * 4, list(map(_episode, texts)))
    self.assertEqual([g.partial for g in grades], [1.0, 0.5, 0.0, 0.0])
    self.assertEqual([g.outcome for g in grades], [True, True, False, False])
    self.assertEqual([g.status for g in grades], ['ok'] * 4)
    lengths = [g.columns['reward_length'] for g in grades]
    self.assertEqual(lengths, [4.0, 2.0, 4.0, 0.0])
    names = {c.name for c in schema.declare(self.domain.columns)}
    self.assertContainsSubset(grades[0].columns, names)
    self.assertNotIn('actions', {c.name for c in self.domain.columns})

  def test_signals_keep_their_handlers(self):
    # An environment installs its own handler, which would end a run unsaved.
    handler = lambda *_: None
    for number in (signal.SIGINT, signal.SIGTERM):
      before = signal.signal(number, handler)
      self.addCleanup(signal.signal, number, before)
    _make('letters')
    for number in (signal.SIGINT, signal.SIGTERM):
      self.assertIs(signal.getsignal(number), handler)

  @parameterized.parameters(
      ('grouped', 'compares completions with each other'),
      ('unpaid', 'no reward function with a weight'),
      ('nothing', 'is a int, which plays'),
      ('nothing', 'unexpected keyword', dict(arguments={'colour': 1})),
      ('letters', 'range=.* must be the lowest', dict(range=(1.0, 0.0))),
      ('letters', 'threshold=2 must be', dict(threshold=2)),
      ('letters', 'max_turns=-1 must be', dict(max_turns=-1)),
      ('letters', 'max_turns=True must be an int', dict(max_turns=True)),
      ('none_such', "'.*none_such' with .* is the name of an installed"),
  )
  def test_refuses(self, name, message, kwargs=()):
    with self.assertRaisesRegex(ValueError, message):
      _make(name, **dict(kwargs))

  def test_an_installed_package_by_its_name(self):
    module = type(sys)('an_environment')
    module.load_environment = __import__(
        'tests.domains.verifiers.envs', fromlist=['envs']
    ).letters
    with absltest.mock.patch.dict(sys.modules, an_environment=module):
      made = domains.make(
          'verifiers', environment='an-environment', arguments={'count': 90}
      )
      with self.assertRaisesRegex(ValueError, 'another-one'):
        domains.make('verifiers', environment='another-one')
    self.assertLen(made.source('sealed', 0), 42)

  def test_other_versions_of_the_library(self):
    other = type(sys)('verifiers')
    other.__version__ = '0.4.0'
    with absltest.mock.patch.dict(sys.modules, verifiers=other):
      with self.assertRaisesRegex(ValueError, '0.4.0 has no MultiTurnEnv'):
        _make('letters')


class MultiTurnTest(parameterized.TestCase):

  def test_the_environment_answers_and_ends(self):
    domain = _make('counting', max_turns=5, arguments={'max_turns': 4})
    self.assertEqual(domain.limits.turns, 4)
    replies, grade = _play(domain, '1a', 'b', 'c')
    told = [[m['content'] for m in r.messages] for r in replies]
    # The third turn meets the environment's own stop condition.
    self.assertEqual(told, [['1. Again!'], ['0. Again!'], []])
    self.assertEqual(replies[0].messages[0]['role'], 'user')
    self.assertIsNone(replies[0].action)
    self.assertAlmostEqual(grade.partial, 0.5 / 3)
    self.assertEqual(grade.columns['reward_num_turns'], 3)

  def test_turns_are_limited(self):
    domain = _make('counting', max_turns=2)
    self.assertEqual(domain.limits.turns, 2)
    replies, grade = _play(domain, '11', '2')
    self.assertEqual([len(r.messages) for r in replies], [1, 0])
    self.assertAlmostEqual(grade.partial, 2 / 3)
    unlimited = _make('counting', arguments={'max_turns': -1})
    self.assertEqual(unlimited.limits.turns, 10)

  def test_an_episode_without_a_state_is_played_again(self):
    domain = _make('counting')
    grade = domain.grade(_first(domain), _episode('1a', '22', 'c'))
    self.assertAlmostEqual(grade.partial, (0.5 + 1) / 3)

  @parameterized.parameters(
      ('setup', 'no sandbox'),
      ('prompt', 'changes the prompt'),
      ('reply', 'the sandbox is gone'),
      ('rewrites', 'only a conversation that grows'),
      ('asks', 'calls the model itself'),
  )
  def test_a_failure_is_no_grade(self, where, message):
    domain = _make('broken', arguments={'where': where})
    with self.assertRaisesRegex(Exception, message):
      _play(domain, '1')
    grade = domain.grade(_first(domain), _episode('1'))
    self.assertEqual((grade.status, grade.outcome), ('infra_error', False))
    self.assertRegex(grade.columns['grader_note'], message)
    grade = domain.grade(_first(domain), _episode('1', error='Error: gone'))
    self.assertEqual(grade.status, 'infra_error')

  @parameterized.parameters(
      ('judge', 'infra_error', 0.0), ('reward', 'error', 0.0), ('', 'ok', 1.0)
  )
  def test_a_reward_function_that_raises(self, where, status, partial):
    domain = _make('broken', arguments={'where': where})
    problem = _first(domain)
    grade = domain.grade(problem, _episode('x'))
    self.assertEqual((grade.status, grade.partial), (status, partial))
    self.assertEqual(bool(grade.columns['grader_note']), bool(where))
    self.assertEqual(domain.grade(problem, _episode('y')).status, 'ok')

  def test_a_late_answer_ends_the_episode(self):
    domain = _make('broken', arguments={'where': 'late'}, reply_seconds=0.2)
    (reply,), grade = _play(domain, '1')
    self.assertEqual((reply.messages, reply.ok), ((), False))
    self.assertEqual((grade.status, grade.partial), ('ok', 1.0))
    # Nothing is known of an episode that the loop abandoned.
    late = _episode('1', finish_reason='seconds')
    self.assertEqual(domain.grade(_first(domain), late).status, 'infra_error')

  def test_many_threads(self):
    domain = _make('counting')
    problems = domain.source('train', 0).take(0, 40)
    grades = domain.grade_many(problems, [_episode('1')] * 40)
    for grade in grades:
      self.assertAlmostEqual(grade.partial, 1 / 3)


class ToolTest(parameterized.TestCase):

  def test_tools_are_shown_and_coded(self):
    domain = _make('keys')
    tools = [tool['function'] for tool in _first(domain).tools]
    self.assertEqual([t['name'] for t in tools], ['press', 'wait', 'sleep'])
    self.assertIn('key', tools[0]['parameters']['properties'])
    codes = {c.name: c.codes for c in domain.columns}
    self.assertEqual(
        codes['actions'], {'none': 0, 'press': 1, 'wait': 2, 'sleep': 3}
    )

  def test_calls(self):
    replies, grade = _play(
        _make('keys'), _call('press', key='k'), _call('press', key='b'), 'done'
    )
    self.assertEqual(
        replies,
        [
            environments.Reply(({'role': 'tool', 'content': 'k'},), 1, 0, True),
            environments.Reply(({'role': 'tool', 'content': 'b'},), 1, 0, True),
            environments.Reply((), 0, 0, True),
        ],
    )
    self.assertEqual(grade.partial, 0.5)
    self.assertEqual(grade.columns['reward_press_calls'], 2)

  @parameterized.parameters(
      ('<tool_call>{', 'the call is not closed', 0),
      ('<tool_call>{</tool_call>', 'not JSON', 0),
      (_call('push'), "no tool 'push'; there are press, wait", 0),
      (_call('press', kay='k'), "unexpected keyword argument 'kay'", 1),
      (_call('press', key='z'), 'there is no z', 1),
  )
  def test_a_wrong_call_is_told_what_is_wrong(self, text, message, action):
    (reply, last), grade = _play(_make('keys'), text, 'done')
    (told,) = reply.messages
    self.assertRegex(told['content'], message)
    self.assertEqual(told['role'], 'tool')
    self.assertEqual((reply.action, reply.ok), (action, False))
    # The episode continued.
    self.assertEqual((last.messages, last.ok), ((), True))
    self.assertEqual((grade.status, grade.partial), ('ok', 0.0))

  def test_a_stateful_tool(self):
    domain = _make('counter', range=(-1.0, 3.0), threshold=2.0)
    properties = _first(domain).tools[0]['function']['parameters']['properties']
    self.assertEqual(list(properties), ['number'])
    replies, grade = _play(
        domain, _call('add', number=3), _call('add', number=-1), 'done'
    )
    self.assertEqual(replies[1].messages[0]['content'], '2')
    self.assertEqual((grade.outcome, grade.partial), (True, 0.75))
    with self.assertRaisesRegex(
        ValueError, r'reward 5; rewards lie in \[-1, 3\].*kwargs.range'
    ):
      _play(domain, _call('add', number=5), 'done')

  def test_a_tool_that_blocks_holds_up_nobody_for_long(self):
    domain = _make('keys', reply_seconds=0.3, episode_seconds=9)
    found = []

    def play(text):
      try:
        found.append(_play(domain, text)[0][0].ok)
      except RuntimeError as error:
        found.append(str(error))

    texts = (_call('sleep', seconds=9), _call('wait', seconds=0.1))
    threads = [threading.Thread(target=play, args=(t,)) for t in texts]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    self.assertTrue(any('held up' in str(f) for f in found), found)
    # The next one gets its own event loop.
    self.assertTrue(_play(domain, _call('press', key='k'))[0][0].ok)


if __name__ == '__main__':
  absltest.main()
