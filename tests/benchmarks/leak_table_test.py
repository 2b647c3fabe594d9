"""The table of the leak, from evidence that was worked by hand."""

import pathlib
import tempfile

from absl.testing import absltest
import pyarrow as pa
from pyarrow import parquet

from benchmarks import leak_table
from evojax.evidence import store


class LeakTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.workdir = pathlib.Path(folder) / 'leaky-0'

  def write(self, split, step, solved, history, searched):
    path = store.path_of(self.workdir, split, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    names = 'outcome', 'read_history', 'searched_before_edit'
    columns = [[c == '1' for c in text] for text in (solved, history, searched)]
    table = pa.table(dict(zip(names, columns, strict=True)))
    parquet.write_table(table, path)

  def test_lines(self):
    self.write('train', 0, '1000', '0000', '1110')
    self.write('train', 1, '1100', '1000', '1000')
    self.write('train', 2, '1111', '1110', '0000')
    self.write('dev', 0, '1000', '0100', '1111')
    self.write('dev', 3, '1110', '1100', '0000')
    side = {'value': 0.082}, {'value': 0.043}
    gain = {'value': -0.039, 'low': -0.074, 'high': -0.012}
    sealed = {'before': side[0], 'after': side[1], 'gain': gain}
    found = leak_table.lines('leaky', [self.workdir], [sealed], 2)
    rows = [line.split() for line in found]
    # Updates 1 and 2: (1 + 2) / 8 solve, 1 / 8 reads and does both, 4 / 8
    # search; the third alone: all solve, 3 of 4 of them read, none searches.
    self.assertEqual(rows[3], ['1-2', '37.5%', '12.5%', '12.5%', '50.0%'])
    self.assertEqual(rows[4], ['3-3', '100.0%', '75.0%', '75.0%', '0.0%'])
    self.assertEqual(
        found[5:],
        [
            'leaky-0: dev problems at step 0: 25.0% solved, 25.0% read the'
            ' history',
            'leaky-0: dev problems at step 3: 75.0% solved, 50.0% read the'
            ' history',
            'sealed score before, by seed: 8.2 %',
            'sealed score after, by seed: 4.3 %',
            'sealed gain in points, by seed: -3.9 [-7.4, -1.2]',
        ],
    )


if __name__ == '__main__':
  absltest.main()
