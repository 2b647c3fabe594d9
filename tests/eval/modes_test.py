from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.eval import modes
from evojax.evidence import schema

CODES = {'direct': 4, 'steps': 0, 'ramble': 9}


def _table(**counts):
  """Return modes and outcomes [1, n] from mode=(solved, not solved)."""
  codes, outcomes = [], []
  for name, (solved, failed) in counts.items():
    codes += [CODES[name]] * (solved + failed)
    outcomes += [True] * solved + [False] * failed
  return np.array([codes], np.int32), np.array([outcomes])


class DecomposeTest(parameterized.TestCase):

  def test_hand_worked(self):
    before = _table(direct=(1, 5), steps=(2, 2))  # Shares .6 .4, 1/6 and 1/2.
    after = _table(direct=(1, 1), steps=(6, 2))  # Shares .2 .8, 1/2 and 3/4.
    result = modes.decompose(*before, *after, CODES)
    self.assertAlmostEqual(result.shift + result.within, 0.4, places=15)
    direct, steps = result.modes
    self.assertEqual((direct.name, steps.name), ('direct', 'steps'))
    # direct: (.2 - .6) (1/6 + 1/2) / 2 = -.4/3; .4 (1/2 - 1/6) = .4/3.
    self.assertAlmostEqual(direct.shift, -0.4 / 3, places=15)
    self.assertAlmostEqual(direct.within, 0.4 / 3, places=15)
    # steps: (.8 - .4) (1/2 + 3/4) / 2 = .25; .6 (3/4 - 1/2) = .15.
    self.assertAlmostEqual(steps.shift, 0.25, places=15)
    self.assertAlmostEqual(steps.within, 0.15, places=15)
    self.assertAlmostEqual(result.shift, 0.25 - 0.4 / 3, places=15)
    self.assertAlmostEqual(result.within, 0.15 + 0.4 / 3, places=15)
    self.assertEqual(steps.accuracy_after, 0.75)
    self.assertEqual(steps.share_before, 0.4)

  def test_better_selection_alone_is_shift(self):
    before = _table(direct=(2, 6), steps=(3, 1))
    after = _table(direct=(1, 3), steps=(6, 2))
    result = modes.decompose(*before, *after, CODES)
    self.assertAlmostEqual(result.within, 0, places=15)
    self.assertAlmostEqual(result.shift, 7 / 12 - 5 / 12, places=15)

  def test_better_work_alone_is_within(self):
    before = _table(direct=(2, 6), steps=(3, 1))
    after = _table(direct=(4, 4), steps=(4, 0))
    result = modes.decompose(*before, *after, CODES)
    self.assertAlmostEqual(result.shift, 0, places=15)
    self.assertAlmostEqual(result.within, 3 / 12, places=15)

  @parameterized.parameters(False, True)
  def test_a_mode_of_one_side_counts_as_shift(self, reverse):
    before = _table(direct=(1, 3), ramble=(0, 4))
    after = _table(direct=(1, 3), steps=(3, 1))
    sides = (*after, *before) if reverse else (*before, *after)
    result = modes.decompose(*sides, CODES)
    sign = -1 if reverse else 1
    self.assertAlmostEqual(result.shift, sign * (4 / 8 - 1 / 8), places=15)
    self.assertAlmostEqual(result.within, 0, places=15)
    rows = {mode.name: mode for mode in result.modes}
    # An accuracy without data is not reported as a number.
    gone, new = rows['ramble'], rows['steps']
    if reverse:
      gone, new = new, gone
    self.assertIsNone(gone.accuracy_after)
    self.assertIsNone(new.accuracy_before)

  def test_modes_that_never_occur_are_left_out(self):
    table = _table(steps=(1, 1))
    result = modes.decompose(*table, *table, CODES)
    self.assertEqual([mode.name for mode in result.modes], ['steps'])

  def test_exact_whatever_the_numbers(self):
    rng = np.random.default_rng(0)
    for _ in range(50):
      sides = []
      for samples in (3, 8):
        weights = rng.dirichlet((0.5, 0.5, 0.5))
        code = rng.choice(list(CODES.values()), (6, samples), p=weights)
        sides += [code, rng.random((6, samples)) < rng.random()]
      result = modes.decompose(*sides, CODES)
      gain = sides[3].mean() - sides[1].mean()
      self.assertAlmostEqual(result.shift + result.within, gain, places=14)
      back = modes.decompose(*sides[2:], *sides[:2], CODES)
      self.assertAlmostEqual(back.shift, -result.shift, places=14)

  def test_unknown_code_is_refused(self):
    table = np.array([[0, 5]]), np.array([[True, False]])
    with self.assertRaisesRegex(ValueError, 'code 5 is not in the table'):
      modes.decompose(*table, *table, CODES)

  def test_shapes_that_differ_are_refused(self):
    codes, outcomes = _table(steps=(2, 2))
    # With type checks on, the annotation is refused first.
    with self.assertRaises((ValueError, TypeError)):
      modes.decompose(codes, outcomes.reshape(2, 2), codes, outcomes, CODES)


class OracleTest(absltest.TestCase):

  def test_best_mode_with_enough_completions(self):
    # ramble: 19 of 19, one too few; direct 5 of 25; steps 12 of 20.
    table = _table(ramble=(19, 0), direct=(5, 20), steps=(12, 8))
    self.assertEqual(
        modes.oracle(*table, CODES), modes.Oracle('steps', 0.6, 20)
    )
    self.assertEqual(
        modes.oracle(*table, CODES, min_rollouts=19),
        modes.Oracle('ramble', 1.0, 19),
    )

  def test_none_without_enough(self):
    table = _table(ramble=(19, 0), steps=(0, 19))
    self.assertIsNone(modes.oracle(*table, CODES))

  def test_a_mode_that_never_occurs_is_no_oracle(self):
    table = _table(steps=(0, 3))
    self.assertEqual(
        modes.oracle(*table, CODES, min_rollouts=0),
        modes.Oracle('steps', 0.0, 3),
    )


class CodesTest(absltest.TestCase):

  def test_found_by_name(self):
    columns = (
        schema.Column('format_ok', 'bool'),
        schema.Column('mode', 'int32', codes=CODES),
    )
    self.assertEqual(modes.codes_of(columns), CODES)

  def test_a_column_of_another_kind_is_not_taken_for_it(self):
    for column in (
        schema.Column('mode', 'int32'),
        schema.Column('mode', 'int32', codes=CODES, shape='A'),
        schema.Column('mode', 'int32', codes=CODES, nullable=True),
    ):
      self.assertIsNone(modes.codes_of((*schema.CORE, column)))


if __name__ == '__main__':
  absltest.main()
