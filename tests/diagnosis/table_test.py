"""Tests for the reader of plain tables, such as those of an own trainer."""

import gzip
import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd

from evojax.diagnosis import form
from evojax.diagnosis import readers
from evojax.diagnosis.checks import finite
from evojax.diagnosis.checks import reward

_COLUMNS = {
    'step': 'global_step',
    'group': 'uid',
    'prompt': 'ask',
    'completion': 'text',
    'reward': 'scores.total',
    'outcome': 'scores.inner.right',
}


def _rows(steps=range(6), size=4) -> list[dict]:
  """Return rollouts of two problems in each step; the first one is solved."""
  return [
      {
          'global_step': step,
          'uid': f'p{step}-{group}',
          'ask': f'what is {group} plus {step}?',
          'text': f'the answer is {k}',
          'scores': {'total': 1.5 - k, 'inner': {'right': k == 0}},
      }
      for step in steps
      for group in range(2)
      for k in range(size)
  ]


def _lines(rows: list[dict]) -> str:
  return ''.join(f'{json.dumps(row)}\n' for row in rows)


class TableTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory())
    )

  def _read(self, columns=None) -> form.Run:
    columns = _COLUMNS if columns is None else columns
    return readers.read(self.path, columns=columns)

  @parameterized.parameters('jsonl', 'json', 'jsonl.gz', 'json.gz', 'parquet')
  def test_nested_values(self, suffix):
    file = self.path / f'log.{suffix}'
    if suffix == 'parquet':
      pd.DataFrame(_rows()).to_parquet(file)
    else:
      text = _lines(_rows()) if 'jsonl' in suffix else json.dumps(_rows())
      packed = gzip.compress(text.encode())
      file.write_bytes(packed if suffix.endswith('gz') else text.encode())
    run = self._read()
    self.assertEqual((run.format, run.n_steps), ('table', 6))
    self.assertEqual(list(run.rollouts['reward'][:4]), [1.5, 0.5, -0.5, -1.5])
    self.assertEqual(list(run.rollouts['outcome'][:5]), [1, 0, 0, 0, 1])
    self.assertEqual(run.rollouts['group'].nunique(), 12)

  @parameterized.parameters(
      ((-1.0, 1.0), [0.0, 1.0]),
      ((0.0, 2.0), [0.0, 1.0]),
      ((-1.0, -1.0), [0.0]),
      ((0.25, 1.0), [0.25, 1.0]),
      ((0.0, 1.0, 2.0), None),
  )
  def test_outcomes_on_another_scale(self, values, wanted):
    rows = _rows()
    for i, row in enumerate(rows):
      row['right'] = values[i % len(values)]
    (self.path / 'log.jsonl').write_text(_lines(rows))
    run = self._read(_COLUMNS | {'outcome': 'right'})
    if wanted is None:
      self.assertNotIn('outcome', run.rollouts)
      self.assertIn('not used, since it has values from 0 to 2', run.notes[0])
    else:
      self.assertEqual(sorted(run.rollouts['outcome'].unique()), wanted)

  @parameterized.parameters(
      ((0.0, 1.0), [0.0, 1.0]), ((0.0, 0.5), None), ((0.1, 0.7, 1.0), None)
  )
  def test_a_reward_that_says_what_is_solved(self, values, wanted):
    rows = [
        {k: v for k, v in row.items() if k != 'scores'}
        | {'paid': values[i % len(values)]}
        for i, row in enumerate(_rows())
    ]
    (self.path / 'log.jsonl').write_text(_lines(rows))
    columns = {k: v for k, v in _COLUMNS.items() if k != 'outcome'}
    run = self._read(columns | {'reward': 'paid'})
    self.assertEqual(sorted(run.rollouts['reward'].unique()), sorted(values))
    if wanted is None:
      self.assertNotIn('outcome', run.rollouts)
    else:
      self.assertEqual(sorted(run.rollouts['outcome'].unique()), wanted)
      self.assertIn('is taken to say what is solved', str(run.notes))

  def test_a_step_that_is_no_whole_number(self):
    rows = [row | {'global_step': row['global_step'] / 4} for row in _rows()]
    (self.path / 'log.jsonl').write_text(_lines(rows))
    with self.assertRaisesRegex(form.FormatError, 'step 0.25, .*=step=NAME'):
      self._read()

  def test_an_index_is_a_column(self):
    table = pd.DataFrame(_rows()).drop(columns='scores')
    rows = table.set_index('global_step').assign(score=1.0)
    rows.to_parquet(self.path / 'log.parquet')
    run = self._read({**_COLUMNS, 'reward': 'score', 'outcome': 'score'})
    self.assertEqual(run.rollouts['step'].tolist(), list(rows.index))

  @parameterized.parameters((0, None), (6, 'warning'), (32, 'note'))
  def test_rollouts_without_a_reward(self, n, wanted):
    rows = _rows(range(12), 8)
    for i, row in enumerate(rows[96:]):
      row['scores']['total'] = [None, 1e400][i % 2] if i % 32 < n else 1.0 - i
    (self.path / 'log.jsonl').write_text(_lines(rows))
    try:
      found = finite.not_finite(self._read())
    except form.NotLogged:  # Nothing else that is judged is logged.
      found = None
    self.assertEqual(found and found.severity, wanted)
    if found:
      self.assertEqual(found.since, 6)
      self.assertAlmostEqual(found.numbers[0].value, n / 64)

  @parameterized.parameters(1.0, 2.0)
  def test_a_reward_is_no_second_truth_on_another_scale(self, scale):
    rows = [
        row | {'right': float(row['scores']['inner']['right'])}
        for row in _rows(range(12), 8)
    ]
    for row in rows:
      row['scores']['total'] = scale * row['right'] - (scale - 1)
    (self.path / 'log.jsonl').write_text(_lines(rows))
    run = self._read(_COLUMNS | {'outcome': 'right'})
    with self.assertRaisesRegex(form.NotLogged, 'apart from the reward'):
      reward.silent(run)
    rows[0]['scores']['total'] += 0.5
    (self.path / 'log.jsonl').write_text(_lines(rows))
    run = self._read(_COLUMNS | {'outcome': 'right'})
    self.assertIsNone(reward.silent(run))

  def test_nested_metrics_are_recognised(self):
    rows = [{'step': s, 'metrics': {'reward': 0.1 * s}} for s in range(9)]
    (self.path / 'log.jsonl').write_text(_lines(rows))
    steps = self._read({}).steps
    np.testing.assert_allclose(steps['reward'], 0.1 * np.arange(9))

  def test_many_keys_are_no_columns(self):
    rows = [{'step': s, 'seen': {f'p{s}': 1}, 'reward': 0} for s in range(200)]
    table = readers.unnested(pd.DataFrame(rows))
    self.assertEqual(list(table), ['step', 'seen', 'reward'])

  def test_compressed_csv_and_one_that_is_still_written(self):
    text = pd.DataFrame({'step': range(50), 'reward': 0.5}).to_csv()
    (self.path / 'a.csv.gz').write_bytes(gzip.compress(text.encode()))
    self.assertEqual(self._read({}).n_steps, 50)
    packed = gzip.compress(text.encode())[:-20]
    (self.path / 'b.csv.gz').write_bytes(packed)
    self.assertIn('b.csv.gz cannot be read', self._read({}).notes[0])

  def test_lines_that_are_still_written(self):
    packed = gzip.compress(_lines(_rows(range(600))).encode())
    (self.path / 'log.jsonl.gz').write_bytes(packed[: len(packed) // 2])
    run = self._read()
    self.assertGreater(run.n_steps, 100)
    self.assertIn('1 line without a JSON object', run.notes[0])

  def test_rollouts_are_not_taken_for_metrics(self):
    (self.path / 'log.jsonl').write_text(_lines(_rows()))
    with self.assertRaisesRegex(
        form.FormatError, r'several rows in a step.*prompt=NAME.*scores\.total'
    ):
      self._read({'reward': 'scores.total'})
    # A metric that is logged twice, and a text, are no rollouts.
    rows = [{'step': s // 2, 'reward': 1, 'note': 'a'} for s in range(20)]
    (self.path / 'log.jsonl').write_text(_lines(rows))
    self.assertEqual(self._read({}).n_steps, 10)

  def test_a_file_for_each_step(self):
    columns = {k: v for k, v in _COLUMNS.items() if k != 'step'}
    for step in (2, 10, 9):
      rows = [r | {'global_step': None} for r in _rows([step])]
      for row in rows:
        del row['global_step']
      (self.path / f'rollouts_step{step}.jsonl').write_text(_lines(rows))
    run = self._read(columns)
    self.assertEqual(list(run.rollouts['step'].unique()), [2, 9, 10])
    self.assertIn('numbers in the names of files', run.notes[0])
    # Two files of one step may be parts of any step.
    (self.path / 'other_step9.jsonl').write_text(_lines(rows))
    with self.assertRaisesRegex(form.FormatError, 'no step: .*--columns=step='):
      self._read(columns)

  def test_no_rows(self):
    (self.path / 'log.jsonl').write_text('')
    with self.assertRaisesRegex(form.FormatError, 'they have no rows'):
      self._read()

  def test_a_damaged_file_explains_a_missing_column(self):
    (self.path / 'log.parquet').write_bytes(b'PAR1')
    with self.assertRaisesRegex(form.FormatError, 'log.parquet cannot be read'):
      self._read()

  def test_steps_made_again_after_a_restart(self):
    # A run that was killed after step 5 went on at step 4, with other samples.
    text = _lines(_rows(range(6)) + _rows(range(4, 8), size=3))
    (self.path / 'log.jsonl').write_text(text)
    run = self._read()
    sizes = run.rollouts.groupby('step').size()
    self.assertEqual(list(sizes), [8, 8, 8, 8, 6, 6, 6, 6])
    self.assertIn('steps 4 to 5', run.notes[0])

  def test_steps_in_another_order_are_no_restart(self):
    # Ranks one after the other: from the first step, or on other problems.
    others = [r | {'uid': 'q', 'ask': '?'} for r in _rows(range(2, 6))]
    for other in (_rows(), others):
      (self.path / 'log.jsonl').write_text(_lines(_rows() + other))
      self.assertLen(self._read().rollouts, 48 + len(other))
      self.assertEmpty(self._read().notes)

  def test_numbers_in_a_column_with_a_missing_value(self):
    rows = _rows()
    for i, row in enumerate(rows):
      row['uid'] = 2**62 + i // 4
      row['right'] = {'answer': i // 4}
    # The prompt of the first tells its group, that of the last does not.
    for row in (rows[0], rows[-1]):
      row['uid'] = row['right']['answer'] = None
    rows[-1]['ask'] = 'of no group'
    (self.path / 'log.jsonl').write_text(_lines(rows))
    run = self._read(_COLUMNS | {'reference': 'right.answer'})
    sizes = run.rollouts.groupby('group').size().tolist()
    self.assertEqual(sizes, [4] * 11 + [3, 1])
    answers = run.rollouts['reference'].tolist()
    self.assertEqual(answers[:5], ['', '0', '0', '0', '1'])
    self.assertIn('2 of 48 rollouts have no group', str(run.notes))
    for row in rows:
      del row['ask']
    (self.path / 'log.jsonl').write_text(_lines(rows))
    run = self._read({k: v for k, v in _COLUMNS.items() if k != 'prompt'})
    self.assertLen(run.rollouts, 46)
    self.assertIn('have no group: they are left out', str(run.notes))

  def test_texts_of_a_csv_stay_as_they_are(self):
    said = ['', 'None', 'NA', 'null', '7', 'nan', '0012', '1.50']
    rows = pd.DataFrame(
        {
            'step': [s // 8 for s in range(16)],
            'group': ['', *[str(2**62 + i // 4) for i in range(1, 16)]],
            'prompt': [f'{i // 4}?' for i in range(16)],
            'completion': said * 2,
            'reference': ['None', '7'] * 8,
            'reward': [0.5, None] * 8,
        }
    )
    rows.to_csv(self.path / 'log.csv', index=False)
    run = self._read({})
    self.assertEqual(run.rollouts['completion'].tolist(), said * 2)
    self.assertEqual(run.rollouts['reference'].tolist(), ['None', '7'] * 8)
    self.assertEqual(run.rollouts['group'].nunique(), 4)
    self.assertEqual(run.rollouts['reward'].notna().sum(), 8)

  @parameterized.parameters('utf-8-sig', 'utf-16', 'latin-1')
  def test_encodings(self, encoding):
    rows = [row | {'ask': f'café {row["uid"]}'} for row in _rows()]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    text = '\n'.join(lines)
    (self.path / 'log.jsonl').write_bytes(text.encode(encoding))
    prompts = [self._read().rollouts['prompt'].tolist()]
    (self.path / 'log.jsonl').unlink()
    packed = gzip.compress(text.encode(encoding))
    (self.path / 'log.jsonl.gz').write_bytes(packed)
    prompts.append(self._read().rollouts['prompt'].tolist())
    (self.path / 'log.jsonl.gz').unlink()
    table = readers.unnested(pd.DataFrame(rows))
    table.to_csv(self.path / 'log.csv', index=False, encoding=encoding)
    prompts.append(self._read().rollouts['prompt'].tolist())
    letter = '\N{REPLACEMENT CHARACTER}' if encoding == 'latin-1' else 'é'
    wanted = [f'caf{letter} {row["uid"]}' for row in rows]
    self.assertEqual(prompts, [wanted] * 3)

  def test_another_separator_is_named(self):
    table = readers.unnested(pd.DataFrame(_rows()))
    table.to_csv(self.path / 'log.csv', index=False, sep=';')
    with self.assertRaisesRegex(form.FormatError, "separated by ';': write"):
      self._read()

  def test_several_runs_in_a_folder(self):
    for name in ('a', 'b'):
      (self.path / f'{name}.jsonl').write_text(_lines(_rows()))
    self.assertIn('2 files with the same steps', self._read().notes[0])

  def test_mini_batches_of_a_step(self):
    lines = [
        {'step': s, 'reward': k / 4, 'lr': 1e-3, 'completions/max_length': k}
        for s in range(9)
        for k in range(4)
    ]
    # Rows with other metrics in between are merged.
    others = [{'reward': 0.5}, {'entropy': 0.25}, {'reward': 1.0}]
    lines += [{'step': 9, **other} for other in others]
    (self.path / 'log.jsonl').write_text(_lines(lines))
    steps = self._read({}).steps
    self.assertEqual(steps['reward'].tolist(), [0.375] * 9 + [1.0])
    self.assertEqual(steps['length_high'].tolist()[:9], [3.0] * 9)
    self.assertEqual(steps['entropy'][9], 0.25)


if __name__ == '__main__':
  absltest.main()
