"""How many changes a round looks for; the changes themselves are fake."""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections

from evojax.evolve import opening
from evojax.evolve.steps import field
from evojax.ledger import history as history_lib
from evojax.ledger import records
from tests.ledger import samples


class FillTest(parameterized.TestCase):

  def _fill(self, outcomes, *, entered=0, candidates=2, shadow=None):
    """Return the trials in a first round's field, given `outcomes`."""
    self.trials, self.rows, self.tried, self.idle = [], [], 0, []
    outcomes = iter(outcomes)

    def begin(run, number, trial):
      outcome = next(outcomes, None)
      if outcome is None:
        return False
      self.tried += 1
      found = dict(index=trial, number=trial, seconds={})
      if outcome == 'races':
        backtest = samples.record(records.Backtest, trial=trial)
        self.trials.append(history_lib.Trial(**found, backtest=backtest))
      else:
        verify = records.Verify(
            trial=trial, version='', status=outcome, reasons=()
        )
        self.trials.append(history_lib.Trial(**found, verify=verify))
      return True

    run = mock.Mock(
        spec=opening.Run,
        recorder=mock.Mock(),
        config=ml_collections.ConfigDict(
            {'evolve': {'candidates': candidates}}
        ),
    )
    run.recorder.history.trials = self.trials
    run.recorder.history.all.return_value = []
    run.recorder.find.return_value.config = {'evolve': {'entries': 3}}
    diagnose = lambda run, number, trial: self.idle.append(trial)
    with (
        mock.patch.object(field, '_begin', begin),
        mock.patch.object(field, '_diagnose', diagnose),
        mock.patch.object(field.costs, 'payable', lambda *_: float('inf')),
        mock.patch.object(
            field.standings, 'entered', lambda run: range(entered)
        ),
        mock.patch.object(field.shadow, 'current', lambda run: shadow),
    ):
      return [t.number for t in field.fill(run, 0)]

  @parameterized.parameters(
      (['races'] * 9, [0, 1], 2),
      # A refused change leaves its place to another,
      (['disqualified', 'races', 'vetoed', 'races'], [1, 3], 4),
      # but no round continues forever,
      (['vetoed'] * 9, [], 6),
      # and proposers may run out of proposals.
      (['races'], [0], 1),
  )
  def test_tries(self, outcomes, expected, tried):
    self.assertEqual(self._fill(outcomes), expected)
    self.assertEqual(self.tried, tried)

  def test_no_more_than_were_promised(self):
    self.assertEqual(self._fill(['races'] * 9, entered=2), [0])
    self.assertEmpty(self.idle)
    self.assertEqual(self._fill(['races'] * 9, entered=3), [])
    # The training is diagnosed anyway.
    self.assertEqual(self.idle, [0])

  def test_a_shadow_has_a_place(self):
    self.assertEqual(self._fill(['races'] * 9, shadow=object()), [0])


class TokensTest(parameterized.TestCase):

  def _places(self, payable, others=0, entries=5):
    run = mock.Mock(
        spec=opening.Run,
        recorder=mock.Mock(),
        config=ml_collections.ConfigDict({'evolve': {'candidates': 2}}),
    )
    run.recorder.find.return_value.config = {'evolve': {'entries': entries}}
    with (
        mock.patch.object(field.standings, 'entered', lambda run: ()),
        mock.patch.object(field.costs, 'payable', lambda run, n: payable),
        mock.patch.object(field, '_others', lambda run, n: others),
    ):
      return field.places(run, 1), field.is_payable(run, 1)

  @parameterized.parameters(
      # Harnesses that are paid for, those that train on, places.
      (float('inf'), 0, 2, True),
      (3.0, 0, 2, True),
      (2.9, 0, 1, True),
      (1.9, 0, 0, True),
      (0.1, 0, 0, False),
      (4.0, 1, 1, True),
      (2.9, 1, 0, True),
      (1.9, 1, 0, False),
  )
  def test_as_many_as_the_tokens_pay_for(self, payable, others, places, enough):
    self.assertEqual(self._places(payable, others), (places, enough))

  def test_no_more_than_were_promised(self):
    self.assertEqual(self._places(9.0, entries=1), (1, True))


class ReserveTest(parameterized.TestCase):

  @parameterized.parameters(
      # Promised, entered, new in this round: is the rest for repairs?
      (5, 3, 0, False),
      (5, 3, 1, True),
      (5, 4, 0, True),
      # Two changes are too few to keep one back.
      (2, 1, 0, False),
  )
  def test_the_last_entry(self, promised, entered, new, expected):
    run = mock.Mock(spec=opening.Run, recorder=mock.Mock())
    config = {'evolve': {'entries': promised}}
    run.recorder.find.return_value.config = config
    run.recorder.history.trials = [
        history_lib.Trial(
            index=n,
            number=n,
            seconds={},
            backtest=samples.record(records.Backtest, trial=n),
        )
        for n in range(new)
    ]
    with mock.patch.object(
        field.standings, 'entered', lambda _: range(entered)
    ):
      self.assertEqual(field._is_for_repairs(run, 9), expected)


if __name__ == '__main__':
  absltest.main()
