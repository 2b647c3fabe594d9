import json
import pathlib
import tempfile

from absl.testing import absltest

from evojax.report import calibration
from evojax.report import diffs
from evojax.report import history
from evojax.report import lineage
from evojax.report import numerals
from evojax.report import svg
from tests.report import synthetic


def _trial(number, parent, version, effect=None, **fields):
  """A trial with a verdict; `fields` belong to verify."""
  status = 'keep' if version else 'discard'
  verify = {'version': version, 'status': status, 'effect': effect} | fields
  rows = {
      'hypothesize': {'version': parent, 'expected': [0.0, 0.02]},
      'design': {'delta': {'klass': 'clip'}},
      'verify': verify,
  }
  return history.Trial(number, number, rows, {})


class HistoryTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    root = tempfile.TemporaryDirectory()
    self.addCleanup(root.cleanup)
    self.workdir = pathlib.Path(root.name)

  def _history(self, *trials, head):
    """A run of v0 and these trials."""
    rows = [{'step': 'train', 'version': 'v0'}]
    for trial in trials:
      for step, data in trial.rows.items():
        rows.append({'step': step, 'trial': trial.number} | data)
    rows.append({'step': 'accumulate', 'head': head})
    return history.History(rows, [{}] * len(rows), 0, '')

  def test_lineage_of_a_tree(self):
    # v0 - v1 - v2 and v0 - v3: training goes on from v2.
    run = self._history(
        _trial(0, 'v0', 'v1', 0.02),
        _trial(1, 'v1', '', -0.01),
        _trial(2, 'v1', 'v2', 0.03),
        _trial(3, 'v0', 'v3', 0.01),
        head='v2',
    )
    self.assertEqual(run.lineage, ['v0', 'v1', 'v2'])
    level = lineage.levels(run)
    self.assertAlmostEqual(level['v2'], 0.05)  # 0.02 + 0.03.
    self.assertAlmostEqual(level['trial 1'], 0.01)  # 0.02 - 0.01.
    self.assertAlmostEqual(level['v3'], 0.01)
    self.assertEqual(run.parents['v3'], 'v0')

  def test_a_parent_that_nobody_knows_is_the_base(self):
    # Also one that only comes later: there must be no cycle.
    run = self._history(
        _trial(0, 'v2', 'v1', 0.02), _trial(1, 'v1', 'v2', 0.01), head='v2'
    )
    self.assertEqual(run.lineage, ['v0', 'v1', 'v2'])

  def test_signs_against_the_base_rate(self):
    predict = lambda trial: trial.expected  # [0, 0.02]: upwards.
    trials = [
        _trial(0, 'v0', '', 0.03, low=0.01, high=0.05),  # Right.
        _trial(1, 'v0', '', -0.03, low=-0.05, high=-0.01),  # Wrong.
        _trial(2, 'v0', '', -0.02, low=-0.03, high=-0.01),  # Wrong.
        _trial(3, 'v0', '', 0.01, low=-0.01, high=0.03),  # Undecided.
        _trial(4, 'v0', ''),  # Crashed.
    ]
    found = calibration.signs(trials, predict)
    # Always guessing "down" is right in two of the three that are decided.
    self.assertEqual(found, calibration.Signs(decided=3, right=1, base=2))
    row = calibration.row('all', trials, predict)
    self.assertEqual((row.judged, row.covered), (4, 1))  # 0.01 in [0, 0.02].
    self.assertAlmostEqual(row.predicted, 0.01)
    self.assertAlmostEqual(row.realised, -0.0025)  # (3 - 3 - 2 + 1) / 4.

  def test_a_prediction_of_zero_has_no_sign(self):
    trials = [
        _trial(0, 'v0', '', 0.03, low=0.01, high=0.05),
        _trial(1, 'v0', '', -0.03, low=-0.05, high=-0.01),
    ]
    found = calibration.signs(trials, lambda trial: (0.0, 0.0))
    self.assertEqual(found.right, 0)

  def test_by_class(self):
    trials = [_trial(i, 'v0', '', 0.01) for i in range(3)]
    trials[1].rows['design']['delta']['klass'] = 'loss'
    klass = lambda trial: trial.delta['klass']
    rows = calibration.by(trials, klass, lambda trial: trial.expected)
    self.assertEqual(
        [(r.name, r.trials) for r in rows], [('clip', 2), ('loss', 1)]
    )

  def test_numbers_that_are_none(self):
    for value in (None, True, 'x', [1], float('nan'), float('inf')):
      self.assertIsNone(history.number(value))
    self.assertEqual(history.number(2), 2.0)
    for value in (None, [1], [1, None], 'ab', {'low': 1}):
      self.assertIsNone(history.interval(value))

  def test_diff_of_two_harnesses(self):
    before = synthetic.write_harness(
        self.workdir, {'a.x': 1, 'a.y': 2}, {'reward.py': 'one\ntwo\n'}
    )
    after = synthetic.write_harness(
        self.workdir,
        {'a.x': 1, 'a.y': 3, 'a.z': 1e-4},
        {'reward.py': 'one\n2\n', 'keep.py': 'new\n'},
    )
    found = diffs.compare(self.workdir, before, after, {'a.z': 0.5})
    self.assertEqual(
        found.overlay, [('a.y', '2', '3'), ('a.z', '0.5 (config)', '1e-4')]
    )
    lines = {name: [line for _, line in d] for name, d in found.files}
    self.assertEqual(lines['keep.py'], ['@@ -0,0 +1 @@', '+new'])
    self.assertEqual(
        lines['reward.py'], ['@@ -1,2 +1,2 @@', ' one', '-two', '+2']
    )
    classes = [c for c, _ in dict(found.files)['reward.py']]
    self.assertEqual(classes, ['hunk', '', 'cut', 'add'])

  def test_diff_reads_harnesses_alone(self):
    name = synthetic.write_harness(self.workdir, {}, {'reward.py': 'one\n'})
    secret = self.workdir / 'secret.py'
    secret.write_text('secret')
    (self.workdir / 'harness' / name / 'link.py').symlink_to(secret)
    files = diffs.read(self.workdir, name)
    self.assertCountEqual(files, ['overlay.json', 'reward.py'])
    for wrong in ('..', '../harness', 'f' * 64, ''):
      self.assertIsNone(diffs.read(self.workdir, wrong))
    found = diffs.compare(self.workdir, name, 'f' * 64, {})
    self.assertIn('not in the workdir', found.note)

  def test_change_in_words(self):
    for change, expected in (
        (['a.x', 1e-4, 3e-4], 'a.x 1e-4 → 3e-4'),
        (['a.x', None, 0.25], 'a.x 0.25'),
        (['a.x', 0.25, None], 'a.x removed'),
        (['a.x', ['p', 'q'], []], 'a.x ["p", "q"] → []'),
        (['keep.py', None, 'source added'], 'keep.py added'),
        (['keep.py', 'abc', 'source changed'], 'keep.py changed'),
    ):
      self.assertEqual(diffs.change_text({'changes': [change]}), expected)
    self.assertEqual(diffs.change_text({'factor': 'clip'}), 'clip')

  def test_numerals(self):
    self.assertEqual(numerals.points(-0.0123), '−1.2')
    self.assertEqual(numerals.points(-0.0001), '0.0')
    self.assertEqual(numerals.points(None), '–')
    self.assertEqual(numerals.between((-0.01, 0.02)), '[−1.0, +2.0]')
    self.assertEqual(numerals.short(-0.05123), '−0.0512')
    self.assertEqual(numerals.short(12.0), '12')
    self.assertEqual(numerals.duration(89.0), '89 s')
    self.assertEqual(numerals.duration(5400.0), '1.5 h')
    self.assertEqual(numerals.tokens(3_170_000.0), '3.17 M')

  def test_element_escapes(self):
    found = svg.element('text', '<&"', svg.element('b', 'x'), class_='a"b')
    self.assertEqual(
        found, '<text class="a&quot;b">&lt;&amp;&quot;<b>x</b></text>'
    )
    self.assertEqual(svg.visible('a\x00\u202eb\n'), 'a\\x00\\u202eb\n')

  def test_scale(self):
    scale = svg.Scale(-0.5, 2.5)
    self.assertEqual(scale(1.0), 0.5)
    self.assertEqual(scale.ticks(3), [0.0, 1.0, 2.0])
    flat = svg.Scale.over([0.3, 0.3], least=0.1)
    self.assertLess(flat.low, 0.251)
    self.assertGreater(flat.high, 0.349)
    for values in ([], [0.0], [1e9, -1e9], [1e-12, 2e-12]):
      self.assertLess(svg.Scale.over(values).low, svg.Scale.over(values).high)
      self.assertNotEmpty(svg.Scale.over(values).ticks(4))

  def test_strip_marks_what_lies_outside(self):
    scale = svg.Scale(-1.0, 1.0)
    found = svg.strip(scale, [('dot', -3.0, 'dot')], label='far')
    self.assertIn('◂', found)
    self.assertNotIn('circle', found)
    found = svg.strip(scale, [('dot', 0.0, 'dot')], label='near')
    self.assertIn('cx="50%"', found)

  def test_ledger_rows_are_json(self):
    workdir = synthetic.write(self.workdir / 'run', trials=1, evidence=False)
    run = history.read(workdir)
    lines = (workdir / 'ledger.jsonl').read_text().splitlines()
    self.assertEqual(
        list(run.rows), [json.loads(line)['payload'] for line in lines]
    )
    self.assertEqual(run.dropped, 0)
    self.assertEqual(run.ended, 'trials')
    self.assertEqual(run.head, 'v1')


if __name__ == '__main__':
  absltest.main()
