"""How many changes a round looks for; the changes themselves are fake."""

import dataclasses
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections

from evojax.evolve import opening
from evojax.evolve.steps import field
from evojax.ledger import history as history_lib
from evojax.ledger import records
from tests.ledger import samples


def candidate(number, middle=0.0):
  """A backtested candidate that has not raced."""
  return history_lib.Trial(
      index=number,
      number=number,
      seconds={},
      backtest=samples.record(
          records.Backtest,
          trial=number,
          predicted=(middle - 0.01, middle + 0.01),
      ),
  )


class FillTest(parameterized.TestCase):

  def _fill(
      self,
      outcomes,
      *,
      entered=0,
      candidates=2,
      shadow=None,
      waiting=(),
      repairs_only=(),
      chance=0.9,
      number=0,
      wait='',
      least_chance=0.0,
  ):
    """Return the trials in a round's field, given `outcomes`.

    An outcome is a verdict, or the middle of the interval that a candidate's
    replay predicts.
    """
    self.trials, self.tried, self.idle = [*waiting], 0, []
    outcomes = iter(outcomes)

    def begin(run, number, trial, free, wait):
      self.assertEqual(
          field._is_for_repairs(run, trial, free, wait), trial in repairs_only
      )
      outcome = next(outcomes, None)
      if outcome is None:
        return False
      self.tried += 1
      found = dict(index=trial, number=trial, seconds={})
      if not isinstance(outcome, str):
        self.trials.append(candidate(trial, outcome))
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
            {'evolve': {'candidates': candidates, 'rounds': 6, 'pairs': 4}}
        ),
    )
    run.recorder.history.trials = self.trials
    begun = [samples.record(records.Diagnose, trial=t.number) for t in waiting]
    begun = [dataclasses.replace(row, round=-1) for row in begun]
    run.recorder.history.all.return_value = begun
    run.recorder.find.return_value.config = {'evolve': {'entries': 3}}
    diagnose = lambda run, number, trial: self.idle.append(trial)
    with (
        mock.patch.object(field, '_begin', begin),
        mock.patch.object(field, '_diagnose', diagnose),
        mock.patch.object(
            field.costs, 'payable', lambda *_, **__: float('inf')
        ),
        mock.patch.object(field.costs, 'pairs_of', lambda *_, **__: 4),
        mock.patch.object(
            field.standings, 'entered', lambda run: range(entered)
        ),
        mock.patch.object(field.shadow, 'current', lambda run: shadow),
        mock.patch.object(field.standings, 'chance', lambda *_: chance),
        mock.patch.object(field.learning, 'why_wait', lambda *_: wait),
        mock.patch.object(
            field.learning, 'least_chance', lambda *_: least_chance
        ),
    ):
      self.said = run.say
      found = field.fill(run, number)
    self.assertEqual(
        [q.trial for q in found.queue if q.enters],
        [t.number for t in found.racing],
    )
    self.queue = [q.trial for q in found.queue]
    self.hopeless = [q.trial for q in found.queue if q.hopeless]
    return [t.number for t in found.racing]

  @parameterized.parameters(
      # One more than there are places; the best two enter, the best first.
      ([0.0, 0.1, 0.2, 0.3], [2, 1], 3),
      ([0.2, 0.1, 0.0, 0.3], [0, 1], 3),
      # A refused change leaves its place to another,
      (['disqualified', 0.0, 'vetoed', 0.0, 0.1], [4, 1], 5),
      # but no round continues forever,
      (['vetoed'] * 9, [], 6),
      # and proposers may run out of proposals.
      ([0.0], [0], 1),
  )
  def test_tries(self, outcomes, expected, tried):
    self.assertEqual(self._fill(outcomes), expected)
    self.assertEqual(self.tried, tried)

  def test_no_more_than_were_promised(self):
    # The third entry is for a repair, and a third change is one, or none.
    found = self._fill([0.0] * 2, entered=1, repairs_only=(2,))
    self.assertEqual(found, [0])
    self.assertEqual(self.queue, [0, 1])
    self.assertEmpty(self.idle)
    self.assertEqual(self._fill([0.0] * 9, entered=3), [])
    # The training is diagnosed anyway.
    self.assertEqual(self.idle, [0])

  def test_a_shadow_has_a_place(self):
    shadow = samples.record(records.Shadow, trial=7)
    self.assertEqual(self._fill([0.0] * 9, shadow=shadow), [0])
    self.assertEqual(self.queue, [0, 1])
    (text,) = self.said.call_args.args
    self.assertStartsWith(
        text, 'round 0: 1 of 2 candidates enter: trial 0 predicted +0.0 points'
    )

  def test_what_waits_enters_before_what_is_predicted_to_gain_less(self):
    waiting = [candidate(0, 0.1)]
    self.assertEqual(self._fill([0.0, 0.2, 0.3], waiting=waiting), [2, 0])
    self.assertEqual(self.queue, [2, 0, 1])

  def test_what_could_hardly_be_proven_waits_unless_it_repairs_a_fault(self):
    self.assertEqual(self._fill([0.0, 0.1, 0.2], chance=0.1), [])
    self.assertEqual(self.queue, [2, 1, 0])
    repair = candidate(0)
    with mock.patch.object(
        field.ranking.repairs, 'repairs_fault', lambda trial: trial is repair
    ):
      found = self._fill([0.1, 0.2], waiting=[repair], chance=0.1)
    self.assertEqual(found, [0])

  def test_who_waits_for_the_policy_is_not_hopeless(self):
    found = self._fill([0.1, 0.2], least_chance=1.0, wait='it learns')
    self.assertEqual((found, self.hopeless), ([], []))

  def test_a_policy_that_learns_asks_for_a_larger_chance(self):
    for chance, expected in ((0.59, []), (0.6, [2, 1])):
      found = self._fill([0.0, 0.1, 0.2], chance=chance, least_chance=0.6)
      self.assertEqual(found, expected)

  def test_the_last_round_asks_for_a_larger_chance(self):
    for number, chance, expected in (
        (4, 0.4, [2, 1]), (5, 0.4, []), (5, 0.6, [2, 1])
    ):  # fmt: skip
      found = self._fill([0.0, 0.1, 0.2], chance=chance, number=number)
      self.assertEqual(found, expected)

  def test_beside_the_repair_of_a_critical_fault_nothing_is_tried(self):
    repair = candidate(0)
    with mock.patch.object(
        field.ranking, 'enters_alone', lambda trial: trial is repair
    ):
      self.assertEqual(self._fill([0.0, 0.1], waiting=[repair]), [0])
    # Each round tries one change.
    self.assertEqual(self.tried, 1)

  def test_who_could_hardly_be_proven_keeps_no_change_from_being_tried(self):
    hopeless = samples.record(records.Queued, trial=0, hopeless=True)
    waiting = [
        dataclasses.replace(candidate(n, 0.1), queued=hopeless)
        for n in range(3)
    ]
    self.assertEqual(self._fill([0.3, 0.4], waiting=waiting), [3, 0])
    self.assertEqual(self.tried, 1)

  def test_while_the_policy_learns_fast_nothing_enters(self):
    waiting = [candidate(0, 0.1)]
    self.assertEqual(self._fill([], waiting=waiting, wait='it learns'), [])
    self.assertEqual(self.queue, [0])
    self.assertEqual(self._fill([], waiting=waiting), [0])

  def test_what_waits_for_the_policy_keeps_no_repair_from_being_tried(self):
    waiting = [candidate(n, 0.1) for n in range(3)]
    # None of them may enter, so that a warning may be repaired, too.
    found = self._fill(['vetoed', 'vetoed'], waiting=waiting, wait='it learns')
    self.assertEqual(found, [])
    self.assertEqual(self.tried, 2)

  def test_if_enough_wait_only_a_critical_repair_is_looked_for(self):
    waiting = [candidate(n, 0.1) for n in range(3)]
    options = dict(waiting=waiting, repairs_only=(3,))
    self.assertEqual(self._fill([], **options), [0, 1])
    self.assertEqual(self._fill([0.3], **options), [3, 0])
    self.assertEqual(self.tried, 1)


class TokensTest(parameterized.TestCase):

  def _places(self, payable, others=0, entries=5, rounds=6):
    run = mock.Mock(
        spec=opening.Run,
        recorder=mock.Mock(),
        config=ml_collections.ConfigDict(
            {'evolve': {'candidates': 2, 'rounds': rounds, 'pairs': 4}}
        ),
    )
    run.recorder.find.return_value.config = {'evolve': {'entries': entries}}
    with (
        mock.patch.object(field.standings, 'entered', lambda run: ()),
        mock.patch.object(field.costs, 'payable', lambda run, n: payable),
        mock.patch.object(field, '_others', lambda run, n: others),
    ):
      return field.places(run, 1)

  @parameterized.parameters(
      # Harnesses that are paid for, those that train on, places.
      (float('inf'), 0, 2),
      (3.0, 0, 2),
      (2.9, 0, 1),
      # One candidate may race in three pairs in place of four.
      (1.5, 0, 1),
      (1.4, 0, 0),
      (4.0, 1, 1),
      (2.3, 1, 1),
      (2.2, 1, 0),
  )
  def test_as_many_as_the_tokens_pay_for(self, payable, others, places):
    self.assertEqual(self._places(payable, others), places)

  def test_no_more_than_were_promised(self):
    self.assertEqual(self._places(9.0, entries=1), 1)

  def test_after_the_last_round_none_enters(self):
    self.assertEqual(self._places(9.0, rounds=2), 2)
    self.assertEqual(self._places(9.0, rounds=1), 0)

  @parameterized.parameters(
      # Classes of the candidates that race on, of those that enter, and of the
      # change that a shadow lacks; harnesses; whether dev problems are asked.
      ([], [], None, 1, False),
      (['loss'], ['optimizer'], None, 3, False),
      (['loss'], ['exploration'], None, 3, True),
      (['length'], [], None, 2, True),
      ([], ['loss'], 'data', 3, True),
      ([], ['loss'], 'loss', 3, False),
  )
  def test_all_that_trains_is_paid(self, on, enters, kept, harnesses, dev):
    of = lambda name: history_lib.Trial(
        index=0,
        number=7,
        seconds={},
        design=samples.record(
            records.Design,
            delta=samples.record(records.Delta, intervention_class=name),
        ),
    )
    run = mock.Mock(spec=opening.Run, recorder=mock.Mock())
    run.recorder.history.trials = [of(kept)] if kept else []
    shadow = samples.record(records.Shadow, trial=7) if kept else None
    with (
        mock.patch.object(field, '_racing_on', lambda run: list(map(of, on))),
        mock.patch.object(field.shadow, 'current', lambda run: shadow),
        mock.patch.object(field.costs, 'pairs_of') as asked,
    ):
      for count, paid in ((0, False), (3, True)):
        asked.return_value = count
        found = field.is_paid(run, 1, list(map(of, enters)))
        self.assertEqual(found, paid)
        asked.assert_called_with(run, 1, harnesses=harnesses, dev=dev)


class ReserveTest(parameterized.TestCase):

  @parameterized.parameters(
      # Promised, entered, waiting, places: is the next for repairs alone?
      (5, 2, 0, 2, False),
      (5, 2, 2, 2, False),  # Two entries are left, and there is a spare one.
      (5, 2, 3, 2, True),
      (5, 3, 1, 1, False),
      (5, 3, 2, 1, True),
      (5, 4, 0, 1, True),  # The last entry.
      # Two changes are too few to keep one back.
      (2, 1, 0, 1, False),
      (2, 1, 1, 1, False),
      (2, 1, 2, 1, True),
  )
  def test_the_last_entry(self, promised, entered, waiting, free, expected):
    run = mock.Mock(spec=opening.Run, recorder=mock.Mock())
    config = {'evolve': {'entries': promised}}
    run.recorder.find.return_value.config = config
    run.recorder.history.trials = [candidate(n) for n in range(waiting)]
    with mock.patch.object(
        field.standings, 'entered', lambda _: range(entered)
    ):
      self.assertEqual(field._is_for_repairs(run, 9, free, ''), expected)


if __name__ == '__main__':
  absltest.main()
