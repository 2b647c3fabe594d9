"""How many changes a round looks for; what they are is made up."""

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
    """Numbers in the field of a first round; `outcomes` of what it tries."""
    self.trials, self.rows, self.tried = [], [], 0
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
    with (
        mock.patch.object(field, '_begin', begin),
        mock.patch.object(
            field.standings, 'entered', lambda run: range(entered)
        ),
        mock.patch.object(field.shadow, 'current', lambda run: shadow),
    ):
      return [t.number for t in field.fill(run, 0)]

  @parameterized.parameters(
      (['races'] * 9, [0, 1], 2),
      # A change that is refused leaves its place to another,
      (['disqualified', 'races', 'vetoed', 'races'], [1, 3], 4),
      # but no round waits for ever,
      (['vetoed'] * 9, [], 6),
      # and proposers may have nothing more to say.
      (['races'], [0], 1),
  )
  def test_tries(self, outcomes, expected, tried):
    self.assertEqual(self._fill(outcomes), expected)
    self.assertEqual(self.tried, tried)

  def test_no_more_than_were_promised(self):
    self.assertEqual(self._fill(['races'] * 9, entered=2), [0])
    self.assertEqual(self._fill(['races'] * 9, entered=3), [])

  def test_a_shadow_has_a_place(self):
    self.assertEqual(self._fill(['races'] * 9, shadow=object()), [0])


if __name__ == '__main__':
  absltest.main()
