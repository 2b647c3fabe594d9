import pathlib
import tempfile

from absl.testing import absltest
import numpy as np

from evojax.evidence import store
from evojax.report import page
from evojax.report import rollouts
from tests.report import synthetic


def _write(arm, outcome, *, split='dev', problems=('a', 'b'), **changes):
  """Write rows with the given outcomes [P, G]."""
  outcome = np.array(outcome, bool)
  count, size = outcome.size, outcome.shape[1]
  none = [np.zeros(0, np.int32)] * count
  rows = {
      'problem_id': [p for p in problems for _ in range(size)],
      'family': ['sums'] * count,
      'group': np.arange(count) // size,
      'sample': np.arange(count) % size,
      'version': ['v0'] * count,
      'policy_version': np.zeros(count, np.int32),
      'seed': np.zeros(count, np.int64),
      'n_tokens': np.full(count, 3),
      'n_turns': np.ones(count, np.int32),
      'truncated': np.zeros(count, bool),
      'finish_reason': np.zeros(count, np.int32),
      'mean_logprob': np.full(count, -0.5, np.float32),
      'actions': none,
      'arguments': none,
      'action_ok': [np.zeros(0, bool)] * count,
      'outcome': outcome.ravel(),
      'partial': outcome.ravel().astype(np.float32),
      'grade_status': np.zeros(count, np.int32),
      'graded': np.ones(count, bool),
      'sandbox_tier': np.zeros(count, np.int32),
      'grade_seconds': np.zeros(count, np.float32),
      'mode': np.ones(count, np.int32),
      'prompt_tokens': none,
      'tokens': none,
      'sampler_logprobs': [np.zeros(0, np.float32)] * count,
      'prompt': [f'question {i // size}' for i in range(count)],
      'completion': [f'{arm.name} {i}' for i in range(count)],
  }
  return store.write_step(arm, split, 4, rows | changes, synthetic.COLUMNS)


class RolloutsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    root = tempfile.TemporaryDirectory()
    self.addCleanup(root.cleanup)
    self.workdir = pathlib.Path(root.name)

  def test_flips(self):
    # control a 110, b 000; child a 100, b 011: a loses its sample 1, b gains
    # two. Both solve a0 alone; neither solves a2, b0.
    _write(self.workdir / 'control', [[1, 1, 0], [0, 0, 0]])
    _write(self.workdir / 'child', [[1, 0, 0], [0, 1, 1]])
    _write(self.workdir / 'other', [[1, 1, 1], [0, 0, 0]])
    found = rollouts.flips(self.workdir, 'control', 'child', 'other')
    self.assertEqual(found.counts, rollouts.Counts(1, 1, 2, 2))
    # The two controls differ only in a2.
    self.assertEqual(found.noise, rollouts.Counts(2, 0, 1, 3))
    # One sample per problem.
    self.assertEqual(
        [(old.completion, new.completion) for old, new in found.gained],
        [('control 4', 'child 4')],
    )
    self.assertEqual(
        [(old.completion, new.completion) for old, new in found.lost],
        [('control 1', 'child 1')],
    )
    self.assertEqual(found.lost[0][1].codes['mode'], 'steps')

  def test_flips_match_problem_and_sample(self):
    _write(self.workdir / 'control', [[1, 0], [0, 0]])
    _write(self.workdir / 'child', [[0, 0], [0, 1]], problems=('c', 'b'))
    found = rollouts.flips(self.workdir, 'control', 'child')
    self.assertEqual(found.counts, rollouts.Counts(0, 0, 1, 1))  # b alone.
    self.assertIsNone(found.noise)

  def test_flips_of_problems_that_moved_most_come_first(self):
    names = tuple('abcde')
    control = [[0, 0, 0]] * 5
    child = [[1, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0], [1, 0, 0]]
    _write(self.workdir / 'control', control, problems=names)
    _write(self.workdir / 'child', child, problems=names)
    found = rollouts.flips(self.workdir, 'control', 'child')
    ids = [new.row['problem_id'] for _, new in found.gained]
    self.assertEqual(ids, ['b', 'd', 'a'])

  def test_sample_takes_one_of_each_kind(self):
    _write(
        self.workdir / 'arm',
        [[1, 1, 1, 0], [0, 0, 0, 0]],
        split='train',
        truncated=np.arange(8) == 6,
        advantage=np.array([0.1, 0.2, 0.3, -0.9, 0, 0, 0, 0]),
        reward=np.zeros(8),
    )
    found = rollouts.sample(self.workdir, 'arm')
    self.assertEqual(found.source, 'arm/evidence/train/step_000004.parquet')
    why = [r.why for r in found.rollouts]
    self.assertEqual(
        why,
        ['largest |advantage|'] + ['right'] * 2 + ['wrong'] * 2 + ['truncated'],
    )
    self.assertEqual(found.rollouts[0].completion, 'arm 3')
    self.assertEqual(found.rollouts[-1].completion, 'arm 6')
    texts = [r.completion for r in found.rollouts]
    self.assertLen(set(texts), 6)
    again = rollouts.sample(self.workdir, 'arm')
    self.assertEqual([r.completion for r in again.rollouts], texts)

  def test_long_text_is_cut_and_counted(self):
    long = 'x' * (rollouts.MAX_CHARS + 7)
    _write(self.workdir / 'arm', [[1], [0]], completion=[long, 'short'])
    found = rollouts.sample(self.workdir, 'arm')
    cut = {r.completion[:1]: (len(r.completion), r.cut) for r in found.rollouts}
    self.assertEqual(cut, {'x': (rollouts.MAX_CHARS, 7), 's': (5, 0)})

  def test_turns_of_an_episode(self):
    long = 'x' * rollouts.MAX_CHARS
    _write(
        self.workdir / 'arm',
        [[1], [0]],
        actions=[[0, 0], []],
        action_ok=[[False, True], []],
        turn_texts=[['<b>', long], []],
        observations=[['seen', ''], []],
    )
    found = rollouts.sample(self.workdir, 'arm')
    turns = {len(r.turns): r.turns for r in found.rollouts}
    self.assertEqual(set(turns), {0, 2})
    first, last = turns[2]
    self.assertEqual(
        (first.text, first.observation, first.ok), ('<b>', 'seen', False)
    )
    self.assertLen(last.text, rollouts.MAX_CHARS // 2)
    macro = page.environment().get_template('parts.html').module.sampled_text
    shown = str(macro(next(r for r in found.rollouts if r.turns)))
    self.assertIn('&lt;b&gt;', shown)
    self.assertIn('<pre class="observation">seen</pre>', shown)

  def test_nothing_to_read(self):
    self.assertIn('no dev evidence', rollouts.sample(self.workdir, 'arm').note)
    found = rollouts.flips(self.workdir, 'control', 'child')
    self.assertIn('no train evidence in control', found.note)

  def test_damaged_file(self):
    path = _write(self.workdir / 'arm', [[1], [0]])
    path.write_bytes(path.read_bytes()[:100])
    found = rollouts.sample(self.workdir, 'arm')
    self.assertIn('step_000004.parquet cannot be read', found.note)
    self.assertEmpty(found.rollouts)

  def test_arm_outside_the_workdir(self):
    inner = self.workdir / 'run'
    inner.mkdir()
    _write(self.workdir / 'arm', [[1], [0]])
    for name in ('../arm', str(self.workdir / 'arm')):
      self.assertIn('no dev evidence', rollouts.sample(inner, name).note)


if __name__ == '__main__':
  absltest.main()
