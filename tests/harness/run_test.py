"""Functions in the worker: only arrays come out, and failures have a status."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
import types
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.harness import calls
from evojax.harness import run
from evojax.harness import spec
from evojax.harness import worker
from evojax.sandbox import limits
from evojax.sandbox import probe
from tests.harness import recorded

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GOOD = "def parts(e):\n  return {'outcome': e.outcome * 1.0}\n"


def functions(limit_seconds=10.0, **files):
  """Return functions: keep='...' is keep.py, d_x=... diagnostics/x.py."""
  sources = {'reward.py': GOOD}
  for name, text in files.items():
    folder = {'d_': 'diagnostics/', 'b_': 'backtests/'}.get(name[:2], '')
    stem = name[2:] if folder else name
    sources[f'{folder}{stem}.py'] = textwrap.dedent(text)
  return run.Functions(spec.Harness({}, sources), limit_seconds=limit_seconds)


def returning(expression, before=''):
  """Return a reward whose part x is an expression."""
  return f'import numpy as np\n{before}\ndef parts(e):\n  return {expression}\n'


def is_running(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  status = pathlib.Path(f'/proc/{pid}/status')
  return not status.exists() or 'State:\tZ' not in status.read_text()


class CallTest(parameterized.TestCase):

  def test_parts_by_hand(self):
    view = recorded.view(
        n_tokens=[[16, 32, 64], [8, 0, 4]],
        outcome=[[1, 0, 1], [0, 1, 1]],
        valid=[[1, 1, 1], [1, 1, 0]],
    )
    f = functions(
        reward=returning(
            "{'used': e.n_tokens / e.max_tokens, 'solved': e.outcome,"
            " 'one': np.ones((2, 3), int)}"
        )
    )
    parts = f.parts(view)
    self.assertEqual(list(parts), ['used', 'solved', 'one'])
    for part in parts.values():
      self.assertEqual(part.dtype, np.float32)
    # Shares of 64 tokens; 0 where not valid.
    np.testing.assert_array_equal(
        parts['used'], [[0.25, 0.5, 1], [0.125, 0, 0]]
    )
    np.testing.assert_array_equal(parts['solved'], [[1, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(parts['one'], [[1, 1, 1], [1, 1, 0]])

  def test_no_place_means_anything(self):
    size = dict(prompts=4, group_size=6)
    view = recorded.view(**size)
    f = functions(
        reward=returning(
            "{'place': np.arange(24).reshape(4, 6), 'tokens': e.n_tokens}"
        ),
        keep="""
        def keep(e, s):
          return e.outcome.cumsum(1) == 1, {'first': e.n_tokens[0, 0]}
        """,
    )
    parts = f.parts(view)
    np.testing.assert_array_equal(parts['tokens'], view.n_tokens)
    place = parts['place'].astype(int)
    self.assertCountEqual(place.ravel(), range(24))
    # Whole groups are reordered, and completions within each of them.
    self.assertEqual(np.ptp(place // 6, 1).tolist(), [0, 0, 0, 0])
    self.assertNotEqual((place // 6)[:, 0].tolist(), [0, 1, 2, 3])
    for group in place % 6:
      self.assertNotEqual(group.tolist(), list(range(6)))
    # The order follows from the content, so a resumed run has the same.
    np.testing.assert_array_equal(f.parts(view)['place'], place)
    other = recorded.view(n_tokens=np.arange(24), **size)
    self.assertTrue((f.parts(other)['place'] != place).any())
    self.assertFalse(
        (f.keep(view, {})[0] == (view.outcome.cumsum(1) == 1)).all()
    )

  def test_two_views_stay_beside_each_other(self):
    before = recorded.view(prompts=4, group_size=6, reward=np.arange(24))
    after = recorded.view(
        prompts=4, group_size=6, reward=np.arange(24) + 1, n_tokens=np.ones(24)
    )
    f = functions(
        b_x='def predict(a, b):\n'
        "  return {'low': (b.reward - a.reward).min()}\n"
    )
    self.assertEqual(f.predict('x', before, after), {'low': 1.0})

  def test_keep_carries_its_state(self):
    f = functions(keep="""
        import numpy as np
        def init():
          return {'seen': np.zeros(()), 'keep': np.arange(2)}
        def keep(e, state):
          keep.calls = getattr(keep, 'calls', 0) + 1
          seen = state['seen'] + keep.calls
          return e.outcome, {'seen': seen, 'keep': state['keep'] * 2}
        """)
    view = recorded.view(outcome=[[1, 0, 1], [0, 1, 1]])
    state = f.init()
    self.assertEqual(state['seen'].dtype, np.float32)
    for step in (1, 2, 3):
      mask, state = f.keep(view, state)
      # Only the state persists: every call is the first of its process.
      self.assertEqual(state['seen'], step)
      np.testing.assert_array_equal(state['keep'], [0, 2**step])
      np.testing.assert_array_equal(mask, view.outcome)
      self.assertEqual(mask.dtype, np.bool_)

  def test_keep_without_init(self):
    f = functions(keep='def keep(e, s):\n  return e.outcome, s\n')
    self.assertEqual(f.init(), {})
    self.assertEqual(f.keep(recorded.view(), {})[1], {})
    # A variable is not a function.
    f = functions(
        keep='def keep(e, s):\n  init = s\n  return e.outcome, init\n'
    )
    self.assertEqual(f.init(), {})

  def test_what_a_source_defines(self):
    source = 'def keep(e, s):\n  def init(): pass\n  return e.init, s\n'
    self.assertTrue(calls.defines(source, 'keep'))
    self.assertFalse(calls.defines(source, 'init'))
    self.assertFalse(calls.defines('def init(:\n', 'init'))
    self.assertTrue(calls.defines('def init(): pass\n', 'init'))

  @parameterized.parameters(
      ("{'x': e[f'n_{name}'].sum() for name in ('tokens',)}", True),
      ("{'x': e['n_' + name].sum() for name in ('tokens',)}", True),
      ("{'x': e['n_tokens'].sum()}", False),
      ("{'x': _of({'n_tokens': e.n_tokens}, 'n_', 'tokens')}", False),
  )
  def test_columns_by_computed_names(self, returned, any_column):
    source = (
        'def _of(x, a, b):\n  return x[a + b].sum()\n'
        f'def measure(e, /):\n  return {returned}\n'
    )
    self.assertEqual(calls.reads_all(calls.names(source)), any_column)
    view = recorded.view(n_tokens=[[1, 2, 3], [4, 5, 6]])
    self.assertEqual(functions(d_x=source).measure('x', view), {'x': 21.0})

  def test_weight_has_one_value_a_turn(self):
    view = recorded.view(n_turns=[[1, 2, 1], [3, 1, 1]])
    f = functions(
        weight='import numpy as np\n'
        'def weight(e):\n'
        '  return e.n_tokens[..., None] * 10 + np.arange(3)\n'
    )
    weight = f.weight(view)
    tokens = view.n_tokens[..., None]
    np.testing.assert_array_equal(weight, tokens * 10 + np.arange(3))
    self.assertEqual(weight.dtype, np.float32)
    self.assertIsNone(functions().weight(view))

  def test_measure_and_predict(self):
    f = functions(
        d_text="""
        LAYER = 'behaviour'
        UNIT = 'characters'
        WARN = {'longest': ('>', 3), 'code': ('<', -1.5)}
        def measure(e):
          lengths = [len(text) for text in e.completion.ravel()]
          return {'longest': max(lengths), 'code': e.codes['mode']['ramble']}
        """,
        b_gain="""
        def predict(before, after):
          return {'gain': (after.outcome.mean() - before.outcome.mean())}
        """,
    )
    words = [['a', 'häß', '日本'], ['', 'x y z', '😀']]
    # 'x y z' has 5 characters; ramble is code 4 of grade.MATH_MODE.
    self.assertEqual(
        f.measure('text', recorded.view(completion=words)),
        {'longest': 5.0, 'code': 4.0},
    )
    before = recorded.view(outcome=[[1, 0, 0], [0, 0, 0]])
    after = recorded.view(outcome=[[1, 1, 1], [0, 1, 0]])
    self.assertAlmostEqual(f.predict('gain', before, after)['gain'], 0.5)
    self.assertEqual(
        f.meta('text'),
        {
            'LAYER': 'behaviour',
            'UNIT': 'characters',
            'WARN': {'longest': ('>', 3), 'code': ('<', -1.5)},
            'CRITICAL': {},
            'CALLS_FOR': (),
        },
    )
    self.assertEqual((f.diagnostics, f.backtests), (('text',), ('gain',)))
    self.assertTrue(f.has('reward') and f.has('diagnostic:text'))
    self.assertFalse(f.has('keep') or f.has('diagnostic:gain'))

  def test_same_inputs_same_bits(self):
    source = returning(
        "{'x': np.tanh(e.mean_logprob) @ W, 'y': np.float32(len(S)) + 0 * W}",
        'S = sorted({"b", "a", "c"}, key=hash)\n'
        'W = np.exp(np.arange(256.0).reshape(16, 16) / 99) * len(S[0])\n',
    )
    view = recorded.view(prompts=16, group_size=16)
    answers = []
    for _ in range(2):
      f = functions(reward=source)
      answers += [f.parts(view), f.parts(view)]
    for other in answers[1:]:
      for name in answers[0]:
        self.assertEqual(answers[0][name].tobytes(), other[name].tobytes())

  def test_order_of_a_set_is_the_same_in_every_process(self):
    source = "def measure(e):\n  return {'x': float(hash('text') % 10**9)}\n"
    found = set()
    for _ in range(2):
      f = functions(d_x=source)
      found.add(f.measure('x', recorded.view())['x'])
    self.assertLen(found, 1)

  def test_evidence_has_no_place_in_a_set(self):
    f = functions(d_x="def measure(e):\n  return {'x': len({e})}\n")
    with self.assertRaisesRegex(run.FunctionError, 'unhashable'):
      f.measure('x', recorded.view())

  def test_many_at_once(self):
    opened = [
        functions(reward=returning(f"{{'x': e.valid * {i}.0}}"))
        for i in range(3)
    ]
    view = recorded.view()
    for _ in range(2):
      for i, f in enumerate(opened):
        self.assertEqual(f.parts(view)['x'][0, 0], i)

  def test_all_diagnostics_in_one_request(self):
    f = functions(
        d_a="def measure(e):\n  return {'x': e.n_tokens.sum()}\n",
        d_b="def measure(e):\n  return {'x': 1 / 0}\n",
        d_c="def measure(e):\n  return {'x': [1.0]}\n",
    )
    view = recorded.view(n_tokens=[[1, 2, 3], [4, 5, 6]])
    with absltest.mock.patch.object(
        calls, 'run', side_effect=calls.run
    ) as sent:
      found = f.measure_all(view)
    sent.assert_called_once()
    self.assertEqual(found['a'], {'x': 21.0})
    self.assertEqual(found['b'].status, 'crash')
    self.assertEqual(found['c'].status, 'wrong_shape')

  def test_a_diagnostic_that_ends_the_process_ends_no_other(self):
    f = functions(
        d_a="def measure(e):\n  return {'x': 1}\n",
        d_b='import os\ndef measure(e):\n  os._exit(3)\n',
    )
    found = f.measure_all(recorded.view())
    self.assertEqual(found['a'], {'x': 1.0})
    self.assertIn('exit code 3', str(found['b']))


class AccessTest(parameterized.TestCase):

  SEES = """
      import numpy as np
      def measure(e):
        names = ('outcome', 'seed', 'problem_id', 'reward', 'part_a', 'prompt')
        return {n: float(hasattr(e, n) and n in e.columns) for n in names}
      """

  def test_diagnostics_see_what_is_open_to_them(self):
    view = recorded.view(parts=('a',))
    f = functions(d_x=self.SEES)
    seen = f.measure('x', view)
    self.assertEqual(
        seen,
        # The identity of a problem is closed only to rewards.
        dict(outcome=1, seed=1, problem_id=1, reward=1, part_a=1, prompt=1),
    )

  @parameterized.parameters(
      'seed',
      'problem_id',
      'split',
      'family',
      'reward',
      'advantage',
      'part_a',
      'completion',
      'prompt',
      'tokens',
      'grade_seconds',
      'step',
      'nonsense',
  )
  def test_rewards_and_filters_do_not(self, name):
    """Not even from a view that is open to diagnostics."""
    view = recorded.view(parts=('a',), reader='diagnostic')
    f = functions(
        reward=f'def parts(e):\n  return {{"x": e.{name}}}\n',
        keep=f'def keep(e, s):\n  return getattr(e, "{name}"), s\n',
        weight=f'def weight(e):\n  return e.__dict__["{name}"]\n',
        d_x=self.SEES,
    )
    f.measure('x', view)  # The worker now holds the columns.
    for call in (
        lambda: f.parts(view),
        lambda: f.keep(view, {}),
        lambda: f.weight(view),
    ):
      with self.assertRaisesRegex(run.FunctionError, name) as caught:
        call()
      self.assertEqual(caught.exception.status, 'crash')

  def test_the_message_says_what_is_open(self):
    f = functions(reward=returning("{'x': e.seed}"))
    with self.assertRaisesRegex(
        run.FunctionError,
        r"reward.py: crash: line 4: AttributeError: evidence has no 'seed' for"
        r' a reward; it may read n_tokens, .*outcome',
    ):
      f.parts(recorded.view())

  @parameterized.parameters(
      'e.outcome[0] = True',
      'e.outcome.flags.writeable = True',
      'e.outcome = 0',
      'del e.outcome',
      'e.new = 0',
  )
  def test_evidence_is_read_only(self, statement):
    f = functions(
        d_x=f'def measure(e):\n  e.outcome\n  {statement}\n  return {{}}\n'
    )
    with self.assertRaises(run.FunctionError):
      f.measure('x', recorded.view())

  def test_the_shape_of_a_column_carries_nothing_to_the_next_call(self):
    source = (
        'def measure(e):\n'
        "  found = {'x': float(len(e.outcome))}\n"
        '  e.outcome.shape = (e.outcome.size,)\n'
        '  return found\n'
    )
    path, view = 'diagnostics/x.py', recorded.view(prompts=2, group_size=4)
    call = calls.Call(path, 'measure', [view])
    limit = calls.limits(10.0)
    for answer in calls.exchange({path: source}, [call] * 2, limit):
      self.assertEqual(answer['x'], 2)

  @parameterized.parameters(
      ('SEEN = []', 'SEEN.append(1)'),
      ('SEEN = [[0]]', 'SEEN[0][0] = 1'),
      ('SEEN = {1}', 'SEEN.add(1)'),
      ('SEEN = {}', "SEEN['a'] = 1"),
      ('SEEN = np.zeros(3)', 'SEEN[0] = 7.0'),
      ('', "e.codes['grade_status']['new'] = 9"),
      ('', "e.codes['new'] = {}"),
  )
  def test_a_module_is_constant(self, constant, statement):
    # Otherwise one part of a reward could change another.
    f = functions(d_x=f"""
        import numpy as np
        {constant}
        def measure(e):
          {statement}
          return {{}}
        """)
    with self.assertRaisesRegex(run.FunctionError, 'line 5'):
      f.measure('x', recorded.view())

  @parameterized.parameters(
      ("{f'n{i}': 1.0 for i in range(1000)}", 'too_large', '1000 names'),
      ("{'n' + 'x' * 9999: 1.0}", 'wrong_type', "the name 'nxxx.* 64 at most"),
      ("{'\u043eutcome': 1.0}", 'wrong_type', 'letters of ASCII'),
  )
  def test_names(self, answer, status, message):
    f = functions(d_x=f'def measure(e):\n  return {answer}\n')
    with self.assertRaisesRegex(run.FunctionError, message) as caught:
      f.measure('x', recorded.view())
    self.assertEqual(caught.exception.status, status)

  def test_a_name_that_python_folds(self):
    f = functions(d_x="def measure(\uff45):\n  return {'x': e.max_tokens}\n")
    self.assertEqual(f.measure('x', recorded.view()), {'x': 64.0})

  def test_no_secret_and_no_file(self):
    with absltest.mock.patch.dict(
        os.environ, {'HF_TOKEN': 'x', 'PYTHONPATH': 'y'}
    ):
      f = functions(
          d_environment="""
          import os
          def measure(e):
            return {name: 1.0 for name in os.environ}
          """,
          d_file="""
          def measure(e):
            with open('/tmp/evojax_run_test', 'w') as file:
              file.write('x')
            return {}
          """,
          d_evojax='import evojax\ndef measure(e):\n  return {}\n',
      )
      names = f.measure('environment', recorded.view())
      self.assertNotIn('HF_TOKEN', names)
      self.assertNotIn('PYTHONPATH', names)
      self.assertLess(len(names), 12)
      with self.assertRaisesRegex(
          run.FunctionError, 'line 3: (Permission|OS)Error'
      ):
        f.measure('file', recorded.view())
      pathlib.Path('/tmp/evojax_run_test').unlink(missing_ok=True)

  def test_a_column_is_sent_once_and_only_where_it_is_named(self):
    view = recorded.view(prompts=8, group_size=8)
    files = {
        'diagnostics/a.py': (
            'def measure(e):\n  return {"x": e.outcome[0, 0]}\n'
        ),
        'diagnostics/b.py': (
            'def measure(e):\n  return {"x": e.outcome[0, 0] + e.n_tokens[0]}\n'
        ),
    }
    sent = calls.request(
        files,
        [
            calls.Call('diagnostics/a.py', 'measure', [view]),
            calls.Call('diagnostics/b.py', 'measure', [view]),
        ],
    )
    self.assertEqual(sent.count(view.outcome.tobytes()), 1)
    self.assertEqual(sent.count(view.n_tokens.tobytes()), 1)
    self.assertNotIn(view.mean_logprob.tobytes(), sent)
    a = calls.request(
        files, [calls.Call('diagnostics/a.py', 'measure', [view])]
    )
    self.assertNotIn(view.n_tokens.tobytes(), a)


class ContractTest(absltest.TestCase):
  """A failure outside of a function's control is not its fault."""

  def _run(self, *results):
    box = absltest.mock.Mock()
    box.run.side_effect = [limits.Result(tier='T0', **r) for r in results]
    with absltest.mock.patch.object(calls, 'box', return_value=box):
      try:
        return functions().parts(recorded.view())
      finally:
        calls_ = box.run.call_args_list
        self.walls = [c.kwargs['limits'].wall_seconds for c in calls_]

  def test_a_box_that_fails_is_no_function_error(self):
    with self.assertRaisesRegex(run.InfraError, 'no zygote.*same command'):
      self._run(dict(status='infra_error', message='no zygote'))

  def test_late_on_a_busy_machine_is_tried_with_more_time(self):
    late = dict(status='timeout', contended=True, message='2 s; was busy')
    with self.assertRaisesRegex(
        run.FunctionError, 'reward.py: busy: .* in 4 tries; .*again'
    ) as caught:
      self._run(late, late, late, late)
    # Seconds of wall time for 10 s of CPU time.
    self.assertEqual(self.walls, [30, 120, 480, 1920])
    self.assertTrue(run.is_busy(str(caught.exception)))
    self.assertFalse(caught.exception.alone)
    # The CPU time decides, however late the function ends.
    with self.assertRaises(run.FunctionError) as caught:
      self._run(late, late, dict(status='cpu_limit'))
    self.assertEqual(caught.exception.status, 'hang')
    self.assertFalse(run.is_busy(str(caught.exception)))
    # A function that sleeps is ended at the first attempt.
    with self.assertRaises(run.FunctionError) as caught:
      self._run(dict(status='timeout', message='30 s; nobody else ran'))
    self.assertEqual(caught.exception.status, 'hang')
    self.assertEqual(self.walls, [30])

  def test_bytes_that_are_no_answer(self):
    good = worker.pack(
        {'answers': [{'status': '', 'message': '', 'arrays': {'x': 0}}]},
        [np.ones((2, 3))],
    )
    self.assertEqual(self._run(dict(status='ok', stdout=good))['x'][0, 0], 1)
    text = worker.pack(
        {'answers': [{'status': '', 'message': '', 'arrays': {'x': 0}}]},
        [np.array([['a'] * 3] * 2)],
    )
    lie = good.replace(b'[2, 3]', b'[2, 9]')
    huge = good.replace(b'[2, 3]', b'[2' + b'0' * 30 + b', 3]')
    kind = good.replace(b'<f8', b'({8')
    flat = good.replace(b'"<f8"', b'8    ')
    name = good.replace(b'"x": 0', b'"(": 0')
    deep = b'[' * 100_000
    deep = len(deep).to_bytes(8, 'little') + deep
    for data in (
        b'',
        b'hello',
        good[:-1],
        good + b'x' * 16,
        text,
        lie,
        huge,
        kind,
        flat,
        name,
        deep,
        b'\xff' * 64,
        worker.pack({'answers': []}, []),
        worker.pack({'answers': [{'status': 'fine', 'message': ''}]}, []),
        worker.pack({'answers': [{'status': '', 'arrays': {'x': 5}}]}, []),
    ):
      with self.assertRaises(run.FunctionError) as caught:
        self._run(dict(status='ok', stdout=data))
      self.assertEqual(caught.exception.status, 'crash')

  def test_truths_are_one_or_zero(self):
    forged = np.array([[0, 2], [1, 255]], np.uint8).view(bool)
    for given, expected in (
        (forged, [[0, 1], [1, 1]]),
        (forged[0, 1], 1),
        (forged[:0], np.zeros((0, 2))),
    ):
      _, (found,) = worker.unpack(worker.pack({}, [given]))
      np.testing.assert_array_equal(found.view(np.uint8), expected)
      self.assertFalse(found.flags.writeable)


class TierTest(parameterized.TestCase):

  @parameterized.parameters(('T0', 10), ('T1', 11), ('T2', 12))
  def test_every_tier_gives_the_same_bits(self, tier, number):
    """Including T2, if the user is allowed to use it."""
    if tier != 'T2' and probe.faults(tier):
      self.skipTest(f'{tier} does not hold here')
    view = recorded.view(prompts=8, group_size=8)
    source = returning("{'x': np.exp(e.mean_logprob) * e.outcome}")
    with absltest.mock.patch.object(probe, 'tier', return_value=tier):
      (found,) = calls.exchange(
          {'reward.py': source},
          [calls.Call('reward.py', 'parts', [view])],
          calls.limits(10.0),
          number,
      )
    self.assertEqual(calls.box(number).tier, tier)
    calls.box(number).close()
    self.assertEqual(
        found['x'].tobytes(),
        functions(reward=source).parts(view)['x'].tobytes(),
    )


class FailureTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('raises', "{'x': 1 / 0}", 'crash', 'line 4: ZeroDivisionError'),
      ('name', "{'x': missing}", 'crash', "line 4: NameError: name 'missing'"),
      ('exit', 'exit_()', 'crash', 'SystemExit: 3'),
      ('hard exit', 'leave()', 'crash', 'the process ended: exit code 7'),
      ('signal', 'die()', 'crash', '(SIGSEGV|signal 11|Error)'),
      ('recursion', 'deep()', 'crash', 'RecursionError'),
      ('no dict', '[1]', 'wrong_type', 'parts returned list, not a dict'),
      ('nothing', '{}', 'wrong_type', 'parts returned no part'),
      ('name no text', '{1: e.valid}', 'wrong_type', 'returned the name 1'),
      ('text', "{'x': np.array([['a'] * 3] * 2)}", 'wrong_type', 'dtype <U1'),
      ('object', "{'x': np.array([[None] * 3] * 2)}", 'wrong_type', 'object'),
      ('complex', "{'x': e.valid * 1j}", 'wrong_type', 'complex128'),
      ('ragged', "{'x': [[1, 2, 3], [4]]}", 'wrong_type', 'x is no array'),
      (
          'scalar',
          "{'x': 1.0}",
          'wrong_shape',
          r'x has shape \(\), not \(2, 3\)',
      ),
      ('flat', "{'x': e.valid.ravel()}", 'wrong_shape', r'shape \(6,\)'),
      ('broadcast', "{'x': np.ones((2, 1))}", 'wrong_shape', r'\(2, 1\)'),
      ('swapped', "{'x': e.valid.T}", 'wrong_shape', r'\(3, 2\)'),
      ('nan', "{'x': e.valid * np.nan}", 'non_finite', r'x is nan at \[0, 0\]'),
      ('inf', "{'x': e.valid / 0.0}", 'non_finite', 'and 5 other places'),
      ('beyond float32', "{'x': e.valid * 1e39}", 'non_finite', 'x is inf'),
      ('huge', "{'x': np.zeros(10**8)}", 'too_large', '800000000 bytes'),
      ('memory', "{'x': np.ones(10**11)}", 'crash', 'MemoryError'),
      ('memory hog', 'hog()', 'crash', 'MemoryError'),
      ('pipe', 'scribble()', 'crash', '(answer cannot be read)'),
      ('hang', 'spin()', 'hang', 'no answer within 1 s'),
      ('sleep', 'sleep()', 'hang', 'no answer within 1 s'),
      ('fork', 'fork()', 'crash', 'PermissionError|Resource temporarily'),
  )
  def test_is_a_status_and_the_next_call_works(
      self, expression, status, message
  ):
    before = textwrap.dedent("""\
        import os, signal, sys, time
        def exit_(): sys.exit(3)
        def leave(): os._exit(7)
        def die(): os.kill(os.getpid(), signal.SIGSEGV)
        def deep(): return deep()
        def hog():
          kept = []
          while True: kept.append(bytearray(1 << 24))
        def scribble():
          for fd in range(1, 9):
            try: os.write(fd, b'\\x05\\0\\0\\0hello' * 9)
            except OSError: pass
          return {}
        def spin():
          while True: pass
        def sleep(): time.sleep(100)
        def fork(): os.fork() or time.sleep(100)
        """)
    # One line above `def parts`, so that line numbers match those of the cases.
    source = (
        f'import numpy as np\n\ndef parts(e):\n  return {expression}\n{before}'
    )
    view = recorded.view()
    f = functions(
        1.0 if status == 'hang' else 10.0,
        reward=source,
        d_x="def measure(e):\n  return {'x': 2}\n",
    )
    self.assertEqual(f.measure('x', view), {'x': 2.0})
    with self.assertRaisesRegex(run.FunctionError, message) as caught:
      f.parts(view)
    self.assertEqual(caught.exception.status, status)
    self.assertIn(caught.exception.status, run.STATUSES)
    self.assertEqual(caught.exception.function, 'reward.py')
    self.assertNotIn('\n', str(caught.exception))
    self.assertEqual(f.measure('x', view), {'x': 2.0})

  @parameterized.named_parameters(
      ('syntax', 'def parts(e:\n  pass\n', 'crash', 'line 1: SyntaxError'),
      ('none', 'x = 1\n', 'wrong_type', 'there is no function parts'),
      ('no function', 'parts = 1\n', 'wrong_type', 'no function parts'),
      (
          'at import',
          'x = 1\nraise ValueError("a\\nb")\n',
          'crash',
          'line 2: ValueError: a b',
      ),
  )
  def test_a_source_that_cannot_be_loaded(self, source, status, message):
    f = functions(reward=source)
    with self.assertRaisesRegex(run.FunctionError, message) as caught:
      f.parts(recorded.view())
    self.assertEqual(caught.exception.status, status)

  def test_prints_do_not_reach_the_answer(self):
    source = (
        'import os, sys\n'
        'def measure(e):\n'
        "  print('x' * 100000)\n"
        "  print('y' * 100000, file=sys.stderr, flush=True)\n"
        '  sys.stdin.read()\n'
        "  return {'x': 1}\n"
    )
    f = functions(d_x=source)
    for _ in range(3):
      self.assertEqual(f.measure('x', recorded.view()), {'x': 1.0})

  @parameterized.named_parameters(
      ('no tuple', 'return e.outcome', 'wrong_type', 'keep returns'),
      ('numbers', 'return e.outcome * 1, {}', 'wrong_type', 'int64, not bool'),
      ('groups', 'return e.outcome[:, 0], {}', 'wrong_shape', r'\(2,\)'),
      ('state', 'return e.outcome, [1]', 'wrong_type', 'not a dict'),
      (
          'nan',
          "return e.outcome, {'a': float('nan')}",
          'non_finite',
          'a is nan',
      ),
      (
          'large',
          "return e.outcome, {'a': [0.0] * 1025}",
          'too_large',
          'takes 4101 bytes with its names; at most 4096',
      ),
  )
  def test_keep(self, body, status, message):
    f = functions(keep=f'def keep(e, s):\n  {body}\n')
    with self.assertRaisesRegex(run.FunctionError, message) as caught:
      f.keep(recorded.view(), {})
    self.assertEqual(caught.exception.status, status)

  def test_numbers(self):
    f = functions(
        d_x="def measure(e):\n  return {'x': float('nan')}\n",
        d_y="def measure(e):\n  return {'x': [1.0]}\n",
        d_z="def measure(e):\n  return {'x': 'one'}\n",
    )
    for name, status in (
        ('x', 'non_finite'),
        ('y', 'wrong_shape'),
        ('z', 'wrong_type'),
    ):
      with self.assertRaises(run.FunctionError) as caught:
        f.measure(name, recorded.view())
      self.assertEqual(caught.exception.status, status)

  @parameterized.named_parameters(
      ('no layer', "UNIT = 'x'\n", 'LAYER=None is not one of'),
      ('layer', "LAYER = 'x'\nUNIT = 'x'\n", "LAYER='x' is not one of"),
      ('unit', "LAYER = 'score'\n", 'UNIT=None is not text'),
      (
          'bound',
          "LAYER = 'score'\nUNIT = 'x'\nWARN = {'x': 0.3}\n",
          "WARN={'x': 0.3} is not",
      ),
      ('computed', "LAYER = str('score')\nUNIT = 'x'\n", 'line 1: LAYER is'),
      ('no key', "UNIT = 'x'\nUNIT = {[]: 1}\n", 'line 2: UNIT is not a li'),
      ('no member', 'WARN = {{}}\n', 'line 1: WARN is not a literal con'),
      ('digits', f'UNIT = 0x{"f" * 5000}\n', r'a number is larger than 2\*'),
      ('syntax', 'LAYER = \n', 'line 1: '),
  )
  def test_meta(self, source, message):
    f = functions(d_x=source)
    with self.assertRaisesRegex(run.FunctionError, message):
      f.meta('x')

  def test_meta_with_annotations(self):
    f = functions(d_x="LAYER: str = 'score'\nUNIT: str = 'x'\nWARN: dict\n")
    self.assertEqual(
        f.meta('x'),
        dict(LAYER='score', UNIT='x', WARN={}, CRITICAL={}, CALLS_FOR=()),
    )

  def test_a_view_that_lacks_a_column_leaves_the_worker_in_step(self):
    class Broken:
      columns, codes, max_tokens = ('outcome', 'truncated'), {}, 8
      valid = np.ones((2, 3), bool)
      outcome = np.ones((2, 3), bool)

    f = functions(
        d_x="def measure(e):\n  return {'x': e.outcome[0] @ e.truncated[0]}\n",
        d_y="def measure(e):\n  return {'y': float(e.outcome.sum())}\n",
    )
    broken = Broken()
    with self.assertRaises(AttributeError):
      f.measure('x', broken)
    self.assertEqual(f.measure('y', broken), {'y': 6.0})

  def test_unknown_names(self):
    f = functions()
    for call in (
        lambda: f.measure('x', recorded.view()),
        lambda: f.keep(recorded.view(), {}),
    ):
      with self.assertRaisesRegex(
          ValueError, 'has no (diag|keep).*it has reward'
      ):
        call()


class ProcessTest(parameterized.TestCase):

  def test_a_run_that_is_killed_leaves_nothing(self):
    code = textwrap.dedent(f"""
        from evojax.harness import calls, run, spec
        from tests.harness import recorded
        run.Functions(spec.Harness({{}}, {{'reward.py': {GOOD!r}}})).parts(
            recorded.view()
        )
        print(calls.box(0)._all[0]._process.pid, flush=True)
        import time; time.sleep(100)
        """)
    parent = subprocess.Popen(
        [sys.executable, '-c', code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
    )
    parent.stdout.readline()  # The tier.
    pid = int(parent.stdout.readline())
    self.assertTrue(is_running(pid))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < deadline:
      time.sleep(0.05)
    self.assertFalse(is_running(pid))

  def test_namespace_is_not_needed(self):
    """Any object with the attributes of a view suffices."""
    view = types.SimpleNamespace(
        valid=np.ones((1, 2), bool),
        outcome=np.array([[True, False]]),
        columns=('outcome',),
        codes={},
        max_tokens=4,
    )
    f = functions()
    np.testing.assert_array_equal(f.parts(view)['outcome'], [[1, 0]])


class BusyTest(absltest.TestCase):
  """Competition of twelve other processes for a core changes no verdict."""

  def setUp(self):
    super().setUp()
    if not hasattr(os, 'sched_setaffinity'):
      self.skipTest('this system binds no process to a core')
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # Children inherit it.
    self.addCleanup(os.sched_setaffinity, 0, cores)
    box = calls._box(0)
    self.addCleanup(box.close)
    box.start()
    self.enter_context(mock.patch.object(calls, 'box', return_value=box))
    self.tried = self.enter_context(
        mock.patch.object(box, 'run', side_effect=box.run)
    )
    spin = [sys.executable, '-c', 'while True: pass']
    for _ in range(12):
      # In its own session like the box, since Linux shares cores by session.
      process = subprocess.Popen(spin, start_new_session=True)
      self.addCleanup(process.wait)
      self.addCleanup(process.kill)

  def test_a_hog_ends_at_its_cpu_time(self):
    source = returning('spin()', 'def spin():\n  while True: pass\n')
    with self.assertRaisesRegex(
        run.FunctionError, 'no answer within'
    ) as caught:
      functions(0.2, reward=source).parts(recorded.view())
    self.assertEqual(caught.exception.status, 'hang')
    self.assertGreater(self.tried.call_count, 1)

  def test_a_sleeper_ends_at_once(self):
    source = returning('sleep(100)', 'from time import sleep\n')
    with self.assertRaises(run.FunctionError) as caught:
      functions(0.2, reward=source).parts(recorded.view())
    self.assertEqual(caught.exception.status, 'hang')
    self.assertEqual(self.tried.call_count, 1)


class AnswerTest(parameterized.TestCase):
  """The box may return anything."""

  def _exchange(self, answer):
    data = worker.pack({'answers': [answer]}, [])
    with mock.patch.object(
        calls,
        'run',
        return_value=limits.Result('ok', 'T0', stdout=data),
    ):
      return calls.exchange(
          {'diagnostics/x.py': ''},
          [calls.Call('diagnostics/x.py', 'measure')],
          calls.limits(1.0),
      )

  @parameterized.parameters(
      {'status': '', 'arrays': []},
      {'status': '', 'arrays': 7},
      {'status': '', 'arrays': {'x': 0}},
      {'status': 'fine', 'message': ''},
      {},
  )
  def test_no_answer(self, **answer):
    (found,) = self._exchange(answer)
    self.assertEqual(found.status, 'crash')

  def test_a_message_can_be_printed(self):
    (found,) = self._exchange({'status': 'crash', 'message': 'a\ud800b'})
    self.assertEqual(found.message, r'a\ud800b')


if __name__ == '__main__':
  absltest.main()
