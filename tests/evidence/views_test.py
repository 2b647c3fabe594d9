"""Tests for the evidence that functions may see."""

import copy

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.evidence import schema
from evojax.evidence import views

COLUMNS = schema.declare(
    (
        schema.with_codes('grade_status', {'ok': 0, 'no_answer': 1}),
        schema.Column('share', 'float32', nullable=True),
    )
)


def make_rows():
  """Return rows with P=2, G=3, shuffled; group 1 has no sample 1."""
  return {
      'group': [1, 0, 0, 1, 0],
      'sample': np.array([2, 1, 0, 0, 2]),
      'graded': [True] * 5,
      'outcome': [True, False, True, False, True],
      'n_tokens': [12, 1, 10, 20, 2],
      'actions': [[5], [], [1, 2, 3], [4, 4], []],
      'action_ok': [[True], [], [True, False, True], [True, True], []],
      'share': [0.5, None, 0.25, 1.0, 0.0],
      'problem_id': ['b', 'a', 'a', 'b', 'a'],
      'finish_reason': [0, 1, 0, 0, 1],
      'sampler_logprobs': [[-1.0], [], [-0.5, -0.25], [-2.0], [-3.0]],
  }


def make_view(reader='reward', rows=None, **kwargs):
  return views.View(
      make_rows() if rows is None else rows,
      COLUMNS,
      prompts=2,
      group_size=3,
      max_tokens=32,
      reader=reader,
      **kwargs,
  )


class ArrangementTest(absltest.TestCase):

  def test_what_could_not_be_graded_is_not_valid(self):
    rows = make_rows() | {'graded': [True, True, False, True, True]}
    for valid in (None, [True] * 5):
      e = make_view(rows=rows, valid=valid)
      np.testing.assert_array_equal(
          e.valid, [[False, True, True], [True, False, True]]
      )
      self.assertFalse(e.outcome[0, 0])

  def test_rows_land_at_group_and_sample(self):
    e = make_view()
    np.testing.assert_array_equal(
        e.n_tokens, np.array([[10, 1, 2], [20, 0, 12]], np.int32)
    )
    self.assertEqual(e.n_tokens.dtype, np.int32)
    np.testing.assert_array_equal(
        e.outcome, [[True, False, True], [False, False, True]]
    )
    np.testing.assert_array_equal(
        e.valid, [[True, True, True], [True, False, True]]
    )
    self.assertEqual(e.max_tokens, 32)

  def test_lists_are_padded_to_the_longest(self):
    e = make_view()
    np.testing.assert_array_equal(
        e.actions,
        [
            [[1, 2, 3], [-1, -1, -1], [-1, -1, -1]],
            [[4, 4, -1], [-1, -1, -1], [5, -1, -1]],
        ],
    )
    self.assertEqual(e.actions.dtype, np.int32)
    self.assertEqual(e.action_ok[0, 0].tolist(), [True, False, True])
    self.assertEqual(e.action_ok[1, 2].tolist(), [True, False, False])

  def test_no_action_anywhere(self):
    rows = make_rows() | {'actions': [[]] * 5}
    self.assertEqual(make_view(rows=rows).actions.shape, (2, 3, 0))

  def test_null_number_is_nan(self):
    np.testing.assert_array_equal(
        make_view().share,
        np.array([[0.25, np.nan, 0], [1, 0, 0.5]], np.float32),
    )

  def test_invalid_rows_show_nothing(self):
    e = make_view(valid=[False, True, True, True, True])
    self.assertFalse(e.valid[1, 2])
    self.assertEqual(e.n_tokens[1, 2], 0)
    self.assertEqual(e.actions[1, 2].tolist(), [-1, -1, -1])
    self.assertFalse(e.outcome[1, 2])

  def test_order_of_rows_does_not_matter(self):
    order = [3, 1, 4, 0, 2]
    rows = {
        name: [values[i] for i in order] for name, values in make_rows().items()
    }
    one, other = make_view('diagnostic'), make_view('diagnostic', rows)
    for name in ('outcome', 'actions', 'share', 'problem_id', 'n_tokens'):
      np.testing.assert_array_equal(getattr(one, name), getattr(other, name))

  def test_row_outside_is_refused(self):
    rows = make_rows() | {'sample': [2, 1, 0, 3, 2]}
    with self.assertRaisesRegex(ValueError, 'row 3 has group=1 sample=3'):
      make_view(rows=rows)
    rows = make_rows() | {'group': [1, 0, 0, -1, 0]}
    with self.assertRaisesRegex(ValueError, 'group=-1'):
      make_view(rows=rows)

  def test_two_rows_in_one_place_are_refused(self):
    rows = make_rows() | {'sample': [0, 1, 0, 0, 2]}
    with self.assertRaisesRegex(ValueError, r'\[group, sample\] = \[1, 0\]'):
      make_view(rows=rows)


class AccessTest(parameterized.TestCase):

  @parameterized.product(
      reader=('reward', 'filter'),
      name=('problem_id', 'seed', 'split', 'grade_seconds', 'reward', 'tokens'),
  )
  def test_closed_columns(self, reader, name):
    with self.assertRaisesRegex(
        views.EvidenceAccessError,
        f"'{name}' is closed to {reader}s; a {reader} may read n_tokens",
    ):
      getattr(make_view(reader), name)

  def test_unknown_column(self):
    with self.assertRaisesRegex(
        views.EvidenceAccessError, "'lenght' is not a column"
    ):
      _ = make_view().lenght

  def test_the_error_lists_exactly_what_is_open(self):
    with self.assertRaises(views.EvidenceAccessError) as caught:
      _ = make_view().problem_id
    listed = str(caught.exception).rpartition('may read ')[2].split(', ')
    self.assertEqual(listed, [c.name for c in COLUMNS if 'reward' in c.readers])
    self.assertContainsSubset(listed, dir(make_view()))

  def test_diagnostics_see_ids_and_tokens(self):
    e = make_view('diagnostic')
    self.assertEqual(e.problem_id.tolist(), [['a', 'a', 'a'], ['b', '', 'b']])
    np.testing.assert_array_equal(e.sampler_logprobs[0, 0], [-0.5, -0.25])
    # Not filled yet.
    self.assertTrue(np.isnan(e.reward[e.valid]).all())

  def test_unknown_reader(self):
    with self.assertRaisesRegex(ValueError, "reader='rewards'"):
      make_view('rewards')

  def test_codes_of_open_columns_only(self):
    e = make_view()
    truncated = e.finish_reason == e.codes['finish_reason']['length']
    np.testing.assert_array_equal(
        truncated, [[False, True, True], [False, False, False]]
    )
    self.assertCountEqual(e.codes, ['finish_reason', 'grade_status'])
    with self.assertRaises(TypeError):
      e.codes['finish_reason']['length'] = 0

  def test_arrays_are_read_only_and_detached(self):
    rows = make_rows() | {'n_tokens': np.array([12, 1, 10, 20, 2], np.int32)}
    e = make_view(rows=rows)
    for array in (e.n_tokens, e.actions, e.valid):
      with self.assertRaises(ValueError):
        array[...] = 0
    rows['n_tokens'][:] = 7
    self.assertEqual(e.n_tokens[0, 0], 10)

  def test_copies_keep_the_rules(self):
    e = make_view()
    self.assertEqual(copy.copy(e).n_tokens[0, 0], 10)
    with self.assertRaises(views.EvidenceAccessError):
      _ = copy.copy(e).problem_id


if __name__ == '__main__':
  absltest.main()
