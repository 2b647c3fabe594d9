import dataclasses
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax import records
from evojax.episodes import rows
from evojax.evidence import schema
from evojax.evidence import store
from evojax.evidence import views

COLUMNS = schema.declare(
    (
        schema.with_codes(
            'grade_status', {'ok': 0, 'no_answer': 5, 'infra_error': 6}
        ),
        schema.Column('mode', 'int32', codes={'direct': 2, 'steps': 1}),
        schema.Column('margin', 'float32', nullable=True),
    ),
    parts=('outcome',),
)
PROBLEMS = [
    records.Problem(
        problem_id=f'{p:016x}',
        family='sums',
        messages=(
            {'role': 'system', 'content': 'Be brief.'},
            {'role': 'user', 'content': f'{p} + 1 = ?'},
        ),
        answer=str(p + 1),
    )
    for p in (10, 11)
]
# Rows 0-2 belong to problem 10, rows 3-5 to problem 11.
COMPLETIONS = [
    records.Episode(
        tokens=np.arange(length, dtype=np.int32) + 100 * b,
        logprobs=-np.arange(length, dtype=np.float32),
        finish_reason=reason,
        policy_version=7,
        text=f'text {b}',
    )
    for b, (length, reason) in enumerate(
        [
            (3, 'stop'),
            (4, 'length'),
            (1, 'stop'),
            (0, 'abort'),
            (2, 'length'),
            (5, 'stop'),
        ]
    )
]  # pyformat: disable
GRADES = [
    records.Grade(
        outcome=b in (0, 2),
        partial=b / 10,
        status={3: 'no_answer', 4: 'infra_error'}.get(b, 'ok'),
        sandbox_tier='T1' if b == 1 else '',
        columns={'mode': 2 - b // 3} | ({'margin': 0.5} if b == 1 else {}),
    )
    for b in range(6)
]


def _rows(**changes):
  arguments = dict(
      problems=PROBLEMS,
      episodes=COMPLETIONS,
      grades=GRADES,
      columns=COLUMNS,
      step=12,
      split='dev',
      seed=2**40,
      version='seed',
      prompts=[(1, 2, 3), (4, 5)],
      grade_seconds=np.arange(6, dtype=np.float32) / 8,
  )
  arguments |= changes
  asked = records.RequestBatch(
      *(arguments.pop(name) for name in ('problems', 'prompts', 'seed'))
  )
  return rows.from_rollouts(asked, **arguments)


class FromRolloutsTest(parameterized.TestCase):

  def test_read_back_from_disk(self):
    with tempfile.TemporaryDirectory() as workdir:
      store.write_step(workdir, 'dev', 12, _rows(), COLUMNS)
      frame = store.read(workdir, 'dev')
    expected = {
        'problem_id': ['000000000000000a'] * 3 + ['000000000000000b'] * 3,
        'family': ['sums'] * 6,
        'group': [0, 0, 0, 1, 1, 1],
        'sample': [0, 1, 2, 0, 1, 2],
        'version': ['seed'] * 6,
        'policy_version': [7] * 6,
        'step': [12] * 6,
        'split': ['dev'] * 6,
        'seed': [2**40] * 6,
        'n_tokens': [3, 4, 1, 0, 2, 5],
        'n_turns': [1] * 6,
        'truncated': [False, True, False, False, True, False],
        'finish_reason': [0, 1, 0, 2, 1, 0],
        # -(0 + 1 + 2) / 3, -6/4, 0, none, -1/2, -10/5.
        'mean_logprob': [-1, -1.5, 0, 0, -0.5, -2],
        'outcome': [True, False, True, False, False, False],
        'graded': [True, True, True, True, False, True],
        'sandbox_tier': [0, 2, 0, 0, 0, 0],
        'partial': [0.0, 0.1, 0.2, 0.3, 0.4, 0.5],
        'grade_status': [0, 0, 0, 5, 6, 0],
        'grade_seconds': [0, 0.125, 0.25, 0.375, 0.5, 0.625],
        'prompt': ['10 + 1 = ?'] * 3 + ['11 + 1 = ?'] * 3,
        'completion': [f'text {b}' for b in range(6)],
        'mode': [2, 2, 2, 1, 1, 1],
    }
    for name, values in expected.items():
      if isinstance(values[0], float):
        np.testing.assert_allclose(frame[name], values, rtol=1e-6)
      else:
        self.assertEqual(frame[name].tolist(), values, name)
    self.assertEqual(
        [len(x) for x in frame['prompt_tokens']], [3, 3, 3, 2, 2, 2]
    )
    for b in range(6):
      np.testing.assert_array_equal(frame['tokens'][b], COMPLETIONS[b].tokens)
      np.testing.assert_array_equal(
          frame['sampler_logprobs'][b], COMPLETIONS[b].logprobs
      )
      for name in rows.TURN_COLUMNS:  # n_tokens has all the information.
        self.assertEmpty(frame[name][b], name)
    # Filled by later stages, or by only some grades.
    for name in ('reward', 'advantage', 'kept', 'part_outcome'):
      self.assertTrue(frame[name].isna().all(), name)
    self.assertEqual(frame['margin'].isna().tolist(), [1, 0, 1, 1, 1, 1])
    filled = {
        *expected,
        'margin',
        'prompt_tokens',
        'tokens',
        *rows.TURN_COLUMNS,
    }
    later = {c.name for c in COLUMNS if c.stage in ('reward', 'update')}
    self.assertEqual(
        {c.name for c in COLUMNS} - filled - later,
        {'sampler_logprobs'},
    )

  def test_a_view_sees_groups(self):
    view = views.View(_rows(), COLUMNS, prompts=2, group_size=3, max_tokens=8)
    # The row that could not be graded is left out.
    np.testing.assert_array_equal(view.valid, [[1, 1, 1], [1, 0, 1]])
    np.testing.assert_array_equal(view.n_tokens, [[3, 4, 1], [0, 0, 5]])
    np.testing.assert_array_equal(view.mode, [[2, 2, 2], [1, 0, 1]])
    self.assertEqual(view.actions.shape, (2, 3, 0))

  def test_status_outside_the_table(self):
    grades = [dataclasses.replace(GRADES[0], status='odd'), *GRADES[1:]]
    with self.assertRaisesRegex(ValueError, "'odd'.*with_codes"):
      _rows(grades=grades)

  def test_domain_without_statuses(self):
    columns = [c for c in COLUMNS if c.name != 'grade_status']
    core = next(c for c in schema.CORE if c.name == 'grade_status')
    with self.assertRaisesRegex(ValueError, 'with_codes'):
      _rows(columns=[*columns, core])

  @parameterized.parameters(
      ({}, r"missing=\['mode'\]"), ({'mode': 1, 'x': 2}, r"unknown=\['x'\]")
  )
  def test_grade_that_does_not_fill_the_columns(self, filled, message):
    grades = [*GRADES[:5], dataclasses.replace(GRADES[5], columns=filled)]
    with self.assertRaisesRegex(ValueError, message):
      _rows(grades=grades)

  def test_turns_are_written_and_read_back(self):
    turns = (
        (records.Turn(2, 1, action=3, argument=1), records.Turn(1, action=0)),
        (records.Turn(1, 2), records.Turn(2, 0), records.Turn(0, 1)),
        (records.Turn(4, action=2, ok=False),),
        (),
        (records.Turn(1, 1),) * 3,
        (),
    )
    episodes = [
        dataclasses.replace(
            c,
            tokens=np.arange(max(n, 4), dtype=np.int32),
            logprobs=-np.arange(max(n, 4), dtype=np.float32),
            turns=t,
        )
        for c, t, n in zip(COMPLETIONS, turns, (4, 6, 4, 4, 6, 4), strict=True)
    ]
    with tempfile.TemporaryDirectory() as workdir:
      found = _rows(episodes=episodes)
      store.write_step(workdir, 'dev', 12, found, COLUMNS)
      frame = store.read(workdir, 'dev')
    self.assertEqual(frame['n_turns'].tolist(), [2, 3, 1, 1, 3, 1])
    # Sampled tokens: 2 + 1, 1 + 2 + 0, 4, 4, 3, 4.
    self.assertEqual(frame['n_tokens'].tolist(), [3, 3, 4, 4, 3, 4])
    # -(0 + 1 + 3) / 3: the token at 2 was observed.
    self.assertAlmostEqual(frame['mean_logprob'][0], -4 / 3, places=6)
    lists = {
        'turn_tokens': [[2, 1], [1, 2, 0], [4], [], [1, 1, 1], []],
        'observation_tokens': [[1, 0], [2, 0, 1], [0], [], [1, 1, 1], []],
        'actions': [[3, 0], [], [2], [], [], []],
        'arguments': [[1, 0], [], [0], [], [], []],
        'action_ok': [[True, True], [], [False], [], [], []],
    }
    for name, expected in lists.items():
      self.assertEqual([list(x) for x in frame[name]], expected, name)
    columns = {name: frame[name].to_numpy() for name in frame.columns}
    for one, other in zip(episodes, rows.to_episodes(columns), strict=True):
      for name in ('tokens', 'logprobs', 'loss_mask', 'turn_of_token'):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
      self.assertEqual(one.finish_reason, other.finish_reason)
      for a, b in zip(one.turns, other.turns, strict=True):
        self.assertEqual((a.sampled, a.observed), (b.sampled, b.observed))
        self.assertEqual((a.action, a.ok), (b.action, b.ok))

  def test_evidence_from_before_turns_is_of_one_turn(self):
    found = _rows()
    old = {n: v for n, v in found.items() if n not in rows.TURN_COLUMNS[:2]}
    for one, other in zip(COMPLETIONS, rows.to_episodes(old), strict=True):
      np.testing.assert_array_equal(one.tokens, other.tokens)
      self.assertLen(other.turns, 1)
      self.assertTrue(other.loss_mask.all())

  def test_an_action_for_some_turns_only(self):
    episodes = [
        dataclasses.replace(
            COMPLETIONS[0],
            turns=(records.Turn(1, 1, action=3), records.Turn(1)),
        ),
        *COMPLETIONS[1:],
    ]
    with self.assertRaisesRegex(ValueError, '1 actions for 2 turns'):
      _rows(episodes=episodes)

  def test_turns_that_do_not_cover_the_tokens(self):
    with self.assertRaisesRegex(ValueError, 'cover 2 tokens, not all 3'):
      dataclasses.replace(COMPLETIONS[0], turns=(records.Turn(1, 1),))

  @parameterized.parameters(
      dict(episodes=COMPLETIONS[:5]),
      dict(grades=GRADES[:5]),
      dict(prompts=[(1,)]),
      dict(grade_seconds=[0.0]),
  )
  def test_lengths_that_do_not_fit(self, **changes):
    with self.assertRaisesRegex(ValueError, 'as many prompts as problems'):
      _rows(**changes)


if __name__ == '__main__':
  absltest.main()
