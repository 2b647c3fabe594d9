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
            {'evolve': {'candidates': candidates, 'tokens': 0}}
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
    self.assertEqual(self._fill(['races'] * 9, entered=3), [])

  def test_a_shadow_has_a_place(self):
    self.assertEqual(self._fill(['races'] * 9, shadow=object()), [0])


class TokensTest(parameterized.TestCase):

  def _places(self, tokens, shadow=None, scored_by='rollouts', raced=True):
    """Return the places after 1,000 tokens; an arm takes 80, and 40 for dev."""
    evolve = dict(candidates=2, tokens=tokens, updates=8, pairs=4)
    evolve |= dict(problems=8, samples=2)
    grpo = dict(prompts=2, group_size=2)
    rollout = dict(max_tokens=64, token_limit=16)
    arm = samples.record(records.RacedArm, sampled_tokens=80, updates=8)
    race = samples.record(
        records.Race, arms=(arm,) * 12, scored_by=scored_by, standings=()
    )
    run = mock.Mock(
        spec=opening.Run,
        recorder=mock.Mock(),
        config=ml_collections.ConfigDict(
            {'evolve': evolve, 'grpo': grpo, 'rollout': rollout}
        ),
    )
    # The replay of an earlier trial, and one from this round.
    trials = [
        history_lib.Trial(
            index=n,
            number=n,
            seconds={},
            backtest=samples.record(records.Backtest, sampled_tokens=100),
            verify=samples.record(records.Verify),
        )
        for n in (0, 1)
    ]
    history = mock.Mock(
        races=[race] * raced, trials=trials, trained_tokens=900, base=arm
    )
    diagnosed = [mock.Mock(trial=n, round=n) for n in (0, 1)]
    history.all.return_value = diagnosed
    run.recorder.history = history
    run.recorder.find.return_value.config = {'evolve': {'entries': 5}}
    with (
        mock.patch.object(field.standings, 'entered', lambda run: ()),
        mock.patch.object(field.shadow, 'current', lambda run: shadow),
    ):
      return field.places(run, 1)

  @parameterized.parameters(
      (0, 2),  # No limit.
      (1000 + 4 * 120 * 3, 2),
      (1000 + 4 * 120 * 3 - 1, 1),
      # The incumbent trains alone, and needs no dev scores.
      (1000 + 4 * 120, 0),
      (1000 + 4 * 80, 0),
      (1000 + 4 * 80 - 1, None),
  )
  def test_as_many_as_the_tokens_pay_for(self, tokens, expected):
    self.assertEqual(self._places(tokens), expected)

  def test_what_else_is_paid(self):
    enough = 1000 + 4 * 120 * 2  # Its arms are compared with the incumbent's.
    self.assertEqual(self._places(enough, shadow=object()), 0)
    self.assertIsNone(self._places(enough - 1, shadow=object()))
    # Tokens that 12 arms sampled for dev problems.
    spent = 1000 + 12 * 40
    self.assertEqual(self._places(spent + 320, scored_by='dev'), 0)
    self.assertIsNone(self._places(spent + 319, scored_by='dev'))

  def test_completions_may_become_longer(self):
    arm = 8 * 32 * 4  # 8 updates of 4 completions with half of 64 tokens.
    self.assertEqual(self._places(1000 + 4 * arm, raced=False), 0)
    self.assertIsNone(self._places(1000 + 4 * arm - 1, raced=False))


if __name__ == '__main__':
  absltest.main()
