"""Rows of benchmarks that go on after a kill."""

from concurrent import futures
import pathlib
import tempfile

from absl.testing import absltest

from benchmarks import json_lines


class JsonLinesTest(absltest.TestCase):

  def test_a_row_that_a_kill_cut_off_is_replaced(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, 'rows.jsonl')
    self.assertEqual(json_lines.read(path), [])
    # Lengths in bytes and in letters differ.
    path.write_text('# Größe\n{"seed": 0}\n{"seed": 1', encoding='utf-8')
    self.assertEqual(json_lines.read(path), [{'seed': 0}])
    json_lines.append(path, [{'seed': 1}, {'seed': 2}])
    text = '# Größe\n{"seed": 0}\n{"seed": 1}\n{"seed": 2}\n'
    self.assertEqual(path.read_text(encoding='utf-8'), text)
    self.assertEqual(json_lines.read(path), [{'seed': i} for i in range(3)])

  def test_a_last_row_without_a_newline_counts(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, 'rows.jsonl')
    path.write_text('{"seed": 0}')
    self.assertEqual(json_lines.read(path), [{'seed': 0}])
    json_lines.append(path, [{'seed': 1}])
    self.assertEqual(path.read_text(), '{"seed": 0}\n{"seed": 1}\n')

  def test_rows_of_several_writers_are_all_kept(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, 'rows.jsonl')

    def write(writer):
      for i in range(50):
        row = {'writer': writer, 'row': i, 'text': 'x' * 99}
        json_lines.append(path, [row])

    with futures.ThreadPoolExecutor(4) as pool:
      list(pool.map(write, range(4)))
    found = {(row['writer'], row['row']) for row in json_lines.read(path)}
    self.assertLen(found, 200)


if __name__ == '__main__':
  absltest.main()
