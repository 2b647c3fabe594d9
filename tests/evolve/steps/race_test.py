"""Changes of the sampling are neither replayed nor compared by rollouts."""

import dataclasses
import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections

from evojax import config as config_lib
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import stream
from evojax.evolve.steps import backtest
from evojax.evolve.steps import race
from evojax.harness import delta as delta_lib
from evojax.harness import surface
from evojax.ledger import history as history_lib
from evojax.ledger import records
from tests import tiny
from tests.ledger import samples

SAMPLED_OTHERWISE = (
    ('rollout.token_limit', 16),
    ('rollout.temperature', 1.2),
    ('data.families', ('gcd:0',)),
)


def changed(path, value):
  """Return the delta of the seed harness with another value."""
  config = tiny.evolving()
  parent = opening.seed_harness(config)
  values = config_lib.flatten(config)
  after = parent.with_overlay({path: value})
  return delta_lib.diff(parent, after, surface.recipe(), values)


def trial(delta):
  design = samples.record(
      records.Design,
      delta=samples.record(
          records.Delta, intervention_class=delta.intervention_class
      ),
  )
  return history_lib.Trial(index=0, number=0, seconds={}, design=design)


class SampledOtherwiseTest(parameterized.TestCase):

  @parameterized.parameters(
      *((path, value, False) for path, value in SAMPLED_OTHERWISE),
      ('optim.learning_rate', 1e-3, True),
  )
  def test_rollouts_that_are_not_comparable(self, path, value, alike):
    self.assertEqual(pairs.is_alike(trial(changed(path, value))), alike)

  def _backtest(self, delta, effect):
    """The numbers of a backtest whose replay is replaced by a function."""
    run = mock.Mock(spec=opening.Run, path=pathlib.Path('run'))
    version = mock.Mock(spec=records.Version, folder='v0', harness='aa')
    design = mock.Mock(spec=records.Design, harness='bb')
    with (
        mock.patch.object(backtest, 'rewarded', return_value=(None, None)),
        mock.patch.object(backtest, '_own_statistics', return_value={}),
        mock.patch.object(
            backtest.statistics_lib, 'compare', return_value={'kept_groups': 1}
        ),
        mock.patch.object(backtest.replay, 'effect', effect),
    ):
      return backtest._backtest(run, version, design, delta, [0], [])

  @parameterized.parameters(*SAMPLED_OTHERWISE)
  def test_no_replay(self, path, value):
    effect = mock.Mock()
    found = self._backtest(changed(path, value), effect)
    effect.assert_not_called()
    self.assertIsNone(found['predicted'])
    self.assertEqual(found['statistics']['replayed_effect'], 'not identifiable')
    self.assertEqual(found['statistics']['kept_groups'], 1)

  def test_what_trains_nothing_is_not_replayed(self):
    delta = dataclasses.replace(
        changed('optim.learning_rate', 1e-3),
        factor='diagnostic:own',
        intervention_class='diagnostics',
    )
    effect = mock.Mock()
    found = self._backtest(delta, effect)
    effect.assert_not_called()
    self.assertIsNone(found['predicted'])

  @parameterized.parameters((True, None), (False, [-0.01, 0.03]))
  def test_a_replay_that_changes_no_sample_predicts_nothing(
      self, silent, predicted
  ):
    gain = samples.record(records.Estimate, value=0.01, low=-0.01, high=0.03)
    replayed = backtest.replay.Replayed(
        effect=gain, equal=False, silent=silent
    )
    delta = changed('optim.learning_rate', 1e-3)
    found = self._backtest(delta, lambda *_: replayed)
    self.assertEqual(found['predicted'], predicted)

  @parameterized.parameters(True, False)
  def test_its_arms_are_not_stopped_by_their_rollouts(self, alike):
    run = mock.Mock(
        spec=opening.Run,
        recorder=mock.Mock(),
        config=ml_collections.ConfigDict(
            {'evolve': {'updates': 4, 'rounds': 2}}
        ),
    )
    run.recorder.find.return_value.forked = ''
    state = race._State('checkpoint', 'start')
    entrant = race._Entrant(
        role='candidate',
        trial=0,
        name='t000',
        harness='aa',
        alike=alike,
        starts={0: state, 1: state},
        reserve=stream.Reserve(seed=0, first=12, of_pair=8),
    )
    arm = samples.record(records.Arm, start='start')
    outcomes = ((0.1, 0.2), (0.1, 0.3))
    with (
        mock.patch.object(race.arms, 'job') as job,
        mock.patch.object(race.arms, 'changes'),
        mock.patch.object(race.arms, 'seed_of'),
        mock.patch.object(race.arms, 'train_all', return_value=[arm] * 2),
    ):
      race._train(run, 0, [entrant], [0, 1], 'candidates', outcomes)
    given = [call.kwargs['incumbents'] for call in job.call_args_list]
    self.assertEqual(given, [outcomes if alike else ()] * 2)
    # Pairs follow each other in the stream of problems.
    given = [call.kwargs['problems'] for call in job.call_args_list]
    self.assertEqual(given, [(0, 12), (0, 20)])

  def test_all_arms_of_its_round_are_scored_on_dev_problems(self):
    """Also those of a comparable candidate, and of the incumbent."""
    fields = [
        (trial(changed('optim.learning_rate', 1e-3)),),
        (
            trial(changed('optim.learning_rate', 1e-3)),
            trial(changed('rollout.token_limit', 16)),
        ),
    ]
    run = mock.Mock(spec=opening.Run, recorder=mock.Mock())
    run.recorder.history.trials = []
    run.config = ml_collections.ConfigDict(
        {'evolve': {'policy': 'chain', 'pairs': 3}}
    )
    asked, paid = [], []

    def pairs_of(run, number, harnesses, *, dev):
      paid.append((harnesses, dev))
      return 0

    def train_on(run, number, entrants, followed, scored_by, count):
      asked.append((scored_by, count))
      raise InterruptedError

    version = samples.record(records.Train)
    for field in fields:
      with (
          mock.patch.object(race.standings, 'announce'),
          mock.patch.object(race, '_rebased', return_value='aa'),
          mock.patch.object(
              race.stream, 'reserve', return_value=stream.Reserve(0, 0, 1)
          ),
          mock.patch.object(race, '_train_on', train_on),
          mock.patch.object(race.costs, 'pairs_of', pairs_of),
          self.assertRaises(InterruptedError),
      ):
        race.race(run, version, 0, field, (), None)
    # A round that has candidates has the fewest pairs that can be judged.
    self.assertEqual(asked, [('rollouts', 3), ('dev', 3)])
    self.assertEqual(paid, [(2, False), (3, True)])


if __name__ == '__main__':
  absltest.main()
