import pathlib
import tempfile

from absl.testing import absltest

from evojax.ledger import records
from evojax.report import diffs
from tests.ledger import samples
from tests.report import synthetic


class DiffsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    root = tempfile.TemporaryDirectory()
    self.addCleanup(root.cleanup)
    self.workdir = pathlib.Path(root.name)

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
        (['a.x', 1e-4, 3e-4], 'a.x 1e−4 → 3e−4'),
        (['a.x', None, 0.25], 'a.x 0.25'),
        (['a.x', 0.25, None], 'a.x removed'),
        (['a.x', ('p', 'q'), ()], 'a.x ["p", "q"] → []'),
        (['keep.py', None, 'source added'], 'keep.py added'),
        (['keep.py', 'abc', 'source changed'], 'keep.py changed'),
    ):
      delta = samples.record(records.Delta, changes=(tuple(change),))
      self.assertEqual(diffs.change_text(delta), expected)
    delta = samples.record(records.Delta, factor='clip')
    self.assertEqual(diffs.change_text(delta), 'clip')
    self.assertEqual(diffs.change_text(None), '')


if __name__ == '__main__':
  absltest.main()
