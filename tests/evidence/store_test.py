"""Tests for the Parquet store."""

import errno
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd
from pyarrow import parquet

from evojax.evidence import schema
from evojax.evidence import store
from evojax.runtime import durable

COLUMNS = schema.declare(
    (schema.with_codes('grade_status', {'ok': 0, 'no_answer': 3}),),
    ('outcome',),
)


def make_rows(prompts=2, group_size=2, length=3, seed=0):
  """Return valid rows of one step, group-major."""
  rng = np.random.default_rng(seed)
  b = prompts * group_size
  lengths = rng.integers(1, length + 1, b)
  return {
      'problem_id': [f'{i // group_size:016x}' for i in range(b)],
      'family': ['chain_sum'] * b,
      'group': np.arange(b) // group_size,
      'sample': np.arange(b) % group_size,
      'version': ['seed'] * b,
      'policy_version': np.full(b, 4),
      'seed': np.full(b, 2**40),
      'n_tokens': lengths,
      'n_turns': np.ones(b, np.int32),
      'truncated': np.zeros(b, bool),
      'finish_reason': [0] * b,
      'mean_logprob': -rng.random(b),
      'actions': [np.arange(i % 3) for i in range(b)],
      'arguments': [[0] * (i % 3) for i in range(b)],
      'action_ok': [[True, False, True][: i % 3] for i in range(b)],
      'outcome': rng.random(b) < 0.5,
      'partial': rng.random(b),
      'grade_status': [3] * b,
      'graded': np.ones(b, bool),
      'sandbox_tier': [0] * b,
      'grade_seconds': rng.random(b),
      'reward': rng.random(b),
      'advantage': rng.standard_normal(b),
      'kept': [True] * b,
      'part_outcome': rng.random(b),
      'prompt_tokens': [[1, 2, 3]] * b,
      'tokens': [rng.integers(0, 512, n).astype(np.int32) for n in lengths],
      'sampler_logprobs': [-rng.random(n).astype(np.float32) for n in lengths],
      'prompt': ['What is 1 + 1?'] * b,
      'completion': ['2 ✓'] * b,
  }


class RoundTripTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.workdir = self.enterContext(tempfile.TemporaryDirectory())

  def test_pandas_reads_every_value_back(self):
    rows = make_rows(3, 4)
    path = store.write_step(self.workdir, 'train', 12, rows, COLUMNS)
    self.assertEqual(
        path.relative_to(self.workdir).as_posix(),
        'evidence/train/step_000012.parquet',
    )
    frame = pd.read_parquet(path)  # Without evojax, as promised.
    self.assertEqual(list(frame.columns), [c.name for c in COLUMNS])
    self.assertLen(frame, 12)
    for column in COLUMNS:
      if column.name in ('split', 'step'):
        continue
      got = frame[column.name]
      if column.name not in rows:
        # A list that was left out is empty rather than null.
        missing = got.map(len) == 0 if column.shape else got.isna()
        self.assertTrue(missing.all(), column.name)
        continue
      for one, other in zip(rows[column.name], got, strict=True):
        if column.shape:
          np.testing.assert_array_equal(np.asarray(one, other.dtype), other)
          if len(one):
            self.assertEqual(str(other.dtype), column.dtype)
        elif column.dtype == 'float32':
          self.assertEqual(np.float32(one), np.float32(other))
        else:
          self.assertEqual(one, other)
    self.assertEqual(frame['split'].unique().tolist(), ['train'])
    self.assertEqual(frame['step'].unique().tolist(), [12])
    self.assertEqual(frame['seed'].dtype, np.int64)
    self.assertEqual(frame['outcome'].dtype, bool)

  def test_numbers_are_those_that_pandas_reads(self):
    rows = make_rows(5, 5)
    rows['reward'] = np.where(np.arange(25) % 7 == 0, np.nan, rows['reward'])
    path = store.write_step(self.workdir, 'train', 1, rows, COLUMNS)
    frame = pd.read_parquet(path)
    names = ('group', 'outcome', 'reward', 'partial')
    found = store.read_numbers(self.workdir, 'train', 1, *names)
    for name, numbers in zip(names, found, strict=True):
      np.testing.assert_array_equal(numbers, frame[name], strict=True)

  def test_many_booleans_with_nulls(self):
    # More than 8 values, so that bits are packed across bytes.
    rows = make_rows(5, 5)
    kept = [None if i % 7 == 0 else i % 3 == 0 for i in range(25)]
    rows['kept'] = kept
    rows['truncated'] = [i % 3 == 1 for i in range(25)]
    store.write_step(self.workdir, 'train', 1, rows, COLUMNS)
    frame = store.read(self.workdir, 'train')
    self.assertEqual(
        [None if pd.isna(v) else bool(v) for v in frame['kept']], kept
    )
    self.assertEqual(frame['truncated'].tolist(), rows['truncated'])

  def test_nan_is_null_where_that_is_allowed(self):
    rows = make_rows(1, 3) | {'advantage': np.array([1.0, np.nan, -2.0])}
    path = store.write_step(self.workdir, 'train', 1, rows, COLUMNS)
    column = store._read_table(path, ['advantage'])['advantage']
    self.assertEqual(column.to_pylist(), [1.0, None, -2.0])

  def test_text_that_has_no_utf8_form_is_kept_readable(self):
    rows = make_rows(1, 1) | {'completion': ['a\ud800b\x00c']}
    store.write_step(self.workdir, 'train', 1, rows, COLUMNS)
    frame = store.read(self.workdir, 'train')
    self.assertEqual(frame['completion'].tolist(), ['a?b\x00c'])

  def test_equal_rows_make_equal_files(self):
    one = store.write_step(self.workdir, 'dev', 1, make_rows(), COLUMNS)
    first = one.read_bytes()
    store.write_step(self.workdir, 'dev', 1, make_rows(), COLUMNS)
    self.assertEqual(one.read_bytes(), first)

  def test_a_step_written_again_replaces_the_file(self):
    store.write_step(self.workdir, 'train', 1, make_rows(4, 4), COLUMNS)
    store.write_step(self.workdir, 'train', 1, make_rows(2, 2), COLUMNS)
    self.assertLen(store.read(self.workdir, 'train'), 4)
    self.assertLen(os.listdir(f'{self.workdir}/evidence/train'), 1)

  def test_fill_adds_a_later_stage_and_nothing_else(self):
    rows = make_rows(2, 2)
    store.write_step(self.workdir, 'train', 1, rows, COLUMNS)
    before = store.read(self.workdir, 'train')
    gap = np.array([0.5, np.nan, 0.25, 0.0])
    store.fill(self.workdir, 'train', 1, {'sampler_trainer_logprob_gap': gap})
    after = store.read(self.workdir, 'train')
    np.testing.assert_array_equal(after['sampler_trainer_logprob_gap'], gap)
    name = 'sampler_trainer_logprob_gap'
    pd.testing.assert_frame_equal(
        before.drop(columns=name), after.drop(columns=name)
    )

  def test_fill_never_changes_what_was_graded(self):
    store.write_step(self.workdir, 'train', 1, make_rows(), COLUMNS)
    for name in ('outcome', 'n_tokens', 'problem_id', 'nonsense'):
      with self.assertRaisesRegex(store.EvidenceError, f'{name!r} cannot be'):
        store.fill(self.workdir, 'train', 1, {name: [True] * 4})
    with self.assertRaisesRegex(store.EvidenceError, '3 values for 4 rows'):
      store.fill(self.workdir, 'train', 1, {'advantage': [0.0] * 3})


class ReadTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.workdir = self.enterContext(tempfile.TemporaryDirectory())

  def test_steps_in_order_whatever_else_lies_there(self):
    for step in (10, 2, 1000000):
      store.write_step(self.workdir, 'dev', step, make_rows(), COLUMNS)
    folder = pathlib.Path(self.workdir, 'evidence', 'dev')
    (folder / '.step_000003.parquet.tmp').write_bytes(b'PAR1')
    self.assertEqual(store.list_steps(self.workdir, 'dev'), [2, 10, 1000000])
    self.assertEqual(store.list_steps(self.workdir, 'train'), [])
    self.assertEqual(store.splits(self.workdir), ['dev'])
    frame = store.read(self.workdir, 'dev')
    self.assertEqual(frame['step'].tolist(), [2] * 4 + [10] * 4 + [10**6] * 4)

  def test_a_part_that_came_later_is_null_before(self):
    store.write_step(self.workdir, 'train', 1, make_rows(), COLUMNS)
    later = schema.declare(
        # The code table has grown as well.
        (schema.with_codes('grade_status', {'ok': 0, 'no_answer': 3, 'x': 4}),),
        ('outcome', 'brevity'),
    )
    rows = make_rows() | {'part_brevity': [0.5] * 4, 'grade_status': [4] * 4}
    store.write_step(self.workdir, 'train', 2, rows, later)
    frame = store.read(
        self.workdir, 'train', columns=['part_brevity', 'grade_status']
    )
    self.assertEqual(
        frame['part_brevity'].isna().tolist(), [True] * 4 + [False] * 4
    )
    self.assertEqual(frame['grade_status'].tolist(), [3] * 4 + [4] * 4)
    with self.assertRaisesRegex(store.EvidenceError, 'nonsense'):
      store.read(self.workdir, 'train', columns=['nonsense'])

  def test_discard_after_deletes_later_steps_only(self):
    for step in (1, 2, 3, 4):
      store.write_step(self.workdir, 'train', step, make_rows(), COLUMNS)
    self.assertEqual(store.discard_after(self.workdir, 'train', 2), [3, 4])
    self.assertEqual(store.list_steps(self.workdir, 'train'), [1, 2])
    self.assertEqual(store.discard_after(self.workdir, 'sealed', 0), [])

  def test_damaged_file_is_named(self):
    path = store.write_step(self.workdir, 'train', 1, make_rows(), COLUMNS)
    path.write_bytes(path.read_bytes()[:-9])
    with self.assertRaisesRegex(store.EvidenceError, f'{path} is damaged'):
      store.read(self.workdir, 'train')

  def test_a_damaged_number_is_not_read_as_another(self):
    path = store.write_step(self.workdir, 'train', 1, make_rows(), COLUMNS)
    data = path.read_bytes()
    with parquet.ParquetFile(path) as file:
      group = file.metadata.row_group(0)
    places = {
        group.column(i).path_in_schema: group.column(i)
        for i in range(group.num_columns)
    }
    found = places['n_tokens']
    end = found.data_page_offset + found.total_compressed_size
    for place in range(end - 8, end):  # The numbers are at the page's end.
      changed = bytearray(data)
      changed[place] ^= 1
      path.write_bytes(changed)
      with self.assertRaisesRegex(store.EvidenceError, f'{path} is damaged'):
        store.read_numbers(self.workdir, 'train', 1, 'n_tokens')


class ValidationTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('float_for_int', 'n_tokens', [1.0, 2.0, 3.0, 4.0], 'declared int32'),
      ('int_for_bool', 'outcome', [1, 0, 1, 0], 'declared bool'),
      ('bool_for_int', 'n_turns', [True] * 4, 'declared int32'),
      ('text_for_float', 'partial', ['1'] * 4, 'declared float32'),
      ('int_for_text', 'family', [1] * 4, 'declared string'),
      ('too_large', 'n_tokens', [2**31] * 4, '2147483648 beyond int32'),
      ('null', 'outcome', [True, None, True, True], 'row 1 has no value'),
      ('null_text', 'family', ['a', 'b', None, 'c'], 'None in row 2'),
      ('nan', 'partial', [0.0, 0.0, np.nan, 0.0], r'NaN \(value 2'),
      ('nan_in_list', 'sampler_logprobs', [[0.0], [np.nan], [], []], 'NaN'),
      ('unknown_code', 'grade_status', [0, 0, 1, 0], 'holds code 1'),
      ('unknown_core_code', 'finish_reason', [0, 7, 0, 0], 'holds code 7'),
      ('list_for_scalar', 'n_turns', [[1], [1], [1], [1]], r'shape \(4, 1\)'),
      ('ragged_for_scalar', 'n_turns', [[1], [1, 2], [1], [1]], 'ragged'),
      ('scalar_for_list', 'actions', [1, 1, 1, 1], 'row 0; it is declared a'),
      ('matrix_for_list', 'tokens', [np.zeros((1, 2), int)] * 4, r'\(1, 2\)'),
      ('float_in_list', 'tokens', [[1.5], [], [], []], 'declared int32'),
      ('other_step', 'step', [9, 9, 9, 9], r'holds \[9\]'),
      ('other_split', 'split', ['dev'] * 4, r"holds \['dev'\]"),
      ('two_alike', 'sample', [0, 0, 0, 1], 'same group and sample'),
      ('short', 'outcome', [True], r"\{'outcome': 1\}"),
      ('undeclared', 'surprise', [1] * 4, r"unknown=\['surprise'\]"),
  )
  def test_refuses(self, name, values, message):
    rows = make_rows() | {name: values}
    with self.assertRaisesRegex(store.EvidenceError, message):
      store.to_table('train', 1, rows, COLUMNS)

  def test_missing_columns_are_all_named(self):
    rows = make_rows()
    del rows['outcome'], rows['tokens'], rows['kept']  # kept is nullable.
    with self.assertRaisesRegex(
        store.EvidenceError, r"missing=\['outcome', 'tokens'\]"
    ):
      store.to_table('train', 1, rows, COLUMNS)

  def test_message_names_the_column(self):
    rows = make_rows() | {'partial': ['x'] * 4}
    with self.assertRaisesRegex(store.EvidenceError, "column 'partial' has"):
      store.to_table('train', 1, rows, COLUMNS)

  def test_nothing_is_written_when_refused(self):
    workdir = self.enterContext(tempfile.TemporaryDirectory())
    rows = make_rows() | {'outcome': [1] * 4}
    with self.assertRaises(store.EvidenceError):
      store.write_step(workdir, 'train', 1, rows, COLUMNS)
    self.assertEqual(store.list_steps(workdir, 'train'), [])


class DiskTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.workdir = self.enterContext(tempfile.TemporaryDirectory())
    self.path = store.write_step(self.workdir, 'train', 1, make_rows(), COLUMNS)

  def test_full_disk_keeps_the_old_file(self):
    before = self.path.read_bytes()
    write = os.write

    def full(fd, data):
      # Accepts 100 bytes, then is full, as a real disk would be.
      if len(data) > 100:
        return write(fd, data[:100])
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    rows = make_rows(4, 4)
    with absltest.mock.patch.object(os, 'write', full):
      with self.assertRaisesRegex(
          durable.DiskError, f'{self.path} .*bytes needed.*No space left'
      ) as caught:
        store.write_step(self.workdir, 'train', 1, rows, COLUMNS)
    self.assertEqual(caught.exception.errno, errno.ENOSPC)
    self.assertIn('run the same command again', str(caught.exception))
    self.assertEqual(self.path.read_bytes(), before)
    self.assertEqual(os.listdir(self.path.parent), [self.path.name])

  def test_a_real_limit_and_no_pandas_in_a_process_of_its_own(self):
    # RLIMIT_FSIZE makes the kernel refuse the write halfway (EFBIG).
    before = self.path.read_bytes()
    script = f"""
        import resource, sys
        sys.path[:0] = {sys.path!r}
        from evojax.evidence import store
        from evojax.runtime import durable
        store.read_numbers({self.workdir!r}, 'train', 1, 'n_tokens', 'outcome')
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
        try:
          store.fill({self.workdir!r}, 'train', 1, {{'reward': [1.0] * 4}})
        except durable.DiskError as error:
          print(error)
        assert 'pandas' not in sys.modules, 'training does not need it'
    """
    done = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
    )
    self.assertIn('File too large', done.stdout)
    self.assertEqual(self.path.read_bytes(), before)
    self.assertEqual(os.listdir(self.path.parent), [self.path.name])


if __name__ == '__main__':
  absltest.main()
