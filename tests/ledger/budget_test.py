import math

from absl.testing import absltest
from absl.testing import parameterized

from evojax.ledger import budget as budget_lib
from evojax.ledger import records
from tests.ledger import samples


def _row(step, seconds, **fields):
  return samples.row(samples.record(step, **fields), seconds)


ROWS = (
    _row(records.Open, 0.0),
    _row(records.Train, 30.0, version='v0'),
    # The parent's name in a trial's row is not the version that the trial made.
    _row(records.Hypothesize, 0.0, trial=0, version='v0'),
    _row(records.Backtest, 60.0, trial=0),
    _row(
        records.Verify, 10.0, trial=0, version='v1', status='keep', effect=0.04
    ),
    _row(records.Backtest, 50.0, trial=1),
    _row(
        records.Verify,
        10.0,
        trial=1,
        version='v2',
        status='discard',
        effect=0.5,
    ),
    _row(records.Admit, 5.0, trial=2),
    _row(records.Verify, 5.0, trial=2, version='', status='keep', effect=None),
    _row(records.Final, 30.0, version='v3'),
)


class BudgetTest(parameterized.TestCase):

  def test_spent(self):
    self.assertEqual(budget_lib.spent(ROWS), 200.0)
    self.assertEqual(budget_lib.spent(()), 0.0)

  def test_by_version(self):
    self.assertEqual(
        budget_lib.by_version(ROWS),
        {'': 10.0, 'v0': 30.0, 'v1': 70.0, 'v2': 60.0, 'v3': 30.0},
    )

  def test_per_promoted_point(self):
    # One trained change kept, 4 points, for all 200 device-seconds.
    self.assertAlmostEqual(budget_lib.promoted_points(ROWS), 4.0)
    self.assertAlmostEqual(budget_lib.per_point(ROWS), 50.0)
    self.assertIsNone(budget_lib.per_point(ROWS[:4]))

  @parameterized.parameters(('go_on', 4.0), ('keep', 4.0), ('drop', 0.0))
  def test_a_change_that_its_shadow_judges(self, decision, points):
    look = _row(records.Shadow, 0.0, trial=0, decision=decision)
    self.assertAlmostEqual(budget_lib.promoted_points((*ROWS, look)), points)

  @parameterized.parameters(
      (dict(), math.inf, math.inf),
      (dict(device_seconds=250), 250.0, 50.0),
      (dict(device_seconds=200.0), 200.0, 0.0),
      (dict(device_seconds=1), 1.0, 0.0),
      # 1 dollar buys 1/10 of an hour, 360 device-seconds.
      (dict(dollars=1, dollars_per_device_hour=10), 360.0, 160.0),
      # The nearer limit holds.
      (
          dict(device_seconds=250, dollars=1, dollars_per_device_hour=20),
          180.0,
          0.0,
      ),
  )
  def test_limits(self, limits, limit, remaining):
    budget = budget_lib.Budget(**limits)
    self.assertAlmostEqual(budget.limit, limit)
    self.assertAlmostEqual(budget.remaining(ROWS), remaining)

  def test_cost(self):
    budget = budget_lib.Budget(dollars_per_device_hour=7.2)
    self.assertAlmostEqual(budget.cost(500.0), 1.0)
    self.assertEqual(budget_lib.Budget().cost(500.0), 0.0)

  @parameterized.parameters(
      (dict(device_seconds=-1), 'device_seconds=-1 must'),
      (dict(dollars=math.nan), 'dollars=nan must'),
      (dict(dollars=5), 'dollars=5 limits nothing'),
  )
  def test_refused(self, limits, message):
    with self.assertRaisesRegex(ValueError, message):
      budget_lib.Budget(**limits)


if __name__ == '__main__':
  absltest.main()
