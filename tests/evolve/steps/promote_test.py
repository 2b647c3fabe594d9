"""The choice of the arms of a chain that become the policy."""

from unittest import mock

from absl.testing import absltest
import ml_collections
import numpy as np

from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve.steps import promote
from evojax.ledger import records
from tests.ledger import samples


class TrainedOnTest(absltest.TestCase):

  def _arm(self, role, pair, start, end, trial=None):
    return samples.record(
        records.RacedArm,
        folder=f'arms/{role}-{pair}',
        role=role,
        trial=trial,
        pair=pair,
        start=start,
        end=end,
        status='done',
    )

  def _trained_on(self, arms, solved, role='incumbent', trial=None, wasted=()):
    """Write arms; `solved` is the share of 64 groups by folder, else 0.5."""
    run = mock.Mock(
        spec=opening.Run,
        config=ml_collections.ConfigDict({'evolve': {'policy': 'chain'}}),
    )

    def scores(run, arm):
      share = solved.get(arm.folder.removeprefix('arms/'), 0.5)
      return (np.arange(64) < 64 * share).astype(float)

    race = samples.record(records.Race, arms=tuple(arms), standings=())
    name = lambda arm: arm.folder.removeprefix('arms/')
    left_out = lambda run, version, role, arm: name(arm) in wasted
    with (
        mock.patch.object(pairs, 'own_scores', scores),
        mock.patch.object(pairs, 'is_left_out', left_out),
    ):
      found = promote.trained_on(run, race, role, trial)
    return [name(arm) for arm in found]

  def setUp(self):
    super().setUp()
    ends = 'abcde'
    self.chain = [
        self._arm('incumbent', i, ends[i], ends[i + 1]) for i in range(4)
    ]

  def test_the_last_and_what_it_continues(self):
    every = [f'incumbent-{i}' for i in range(4)]
    self.assertEqual(self._trained_on(self.chain, {}), every)
    # A slightly lower end is noise.
    solved = {'incumbent-1': 0.6}
    self.assertEqual(self._trained_on(self.chain, solved), every)

  def test_back_to_an_arm_that_solved_clearly_more(self):
    solved = {'incumbent-1': 0.9, 'incumbent-0': 0.2}
    self.assertEqual(
        self._trained_on(self.chain, solved), ['incumbent-0', 'incumbent-1']
    )

  def test_arms_that_were_left_out(self):
    arms = list(self.chain)
    # The third pair started where the second started.
    arms[1] = self._arm('incumbent', 1, 'b', 'x')
    arms[2] = self._arm('incumbent', 2, 'b', 'd')
    self.assertEqual(
        self._trained_on(arms, {}),
        ['incumbent-0', 'incumbent-2', 'incumbent-3'],
    )

  def test_an_arm_that_taught_nothing_is_no_end(self):
    every = [f'incumbent-{i}' for i in range(4)]
    of = lambda *wasted: self._trained_on(self.chain, {}, wasted=wasted)
    self.assertEqual(of('incumbent-3'), every[:3])
    self.assertEqual(of('incumbent-3', 'incumbent-2'), every[:2])
    self.assertEqual(of(*every), every)

  def test_a_round_that_taught_nothing_leaves_the_policy_as_it_was(self):
    arms = [self._arm('incumbent', i, 'a', f'x{i}') for i in range(3)]
    race = samples.record(records.Race, round=4, version='v2', arms=tuple(arms))
    version = samples.record(
        records.Train, version='v2', end='a', checkpoint='arms/b/checkpoints/7'
    )
    run = mock.Mock(
        spec=opening.Run,
        recorder=mock.Mock(),
        config=ml_collections.ConfigDict({'evolve': {'policy': 'chain'}}),
    )
    run.recorder.history.versions = [version] * 3
    run.recorder.find.return_value = None
    scores = lambda run, arm: np.ones(64)
    with (
        mock.patch.object(pairs, 'own_scores', scores),
        mock.patch.object(pairs, 'is_wasted', return_value=True),
    ):
      found = promote.advance(run, version, race, None, None)
    self.assertEqual((found.start, found.end), ('a', 'a'))
    self.assertEqual(found.checkpoint, version.checkpoint)
    self.assertEqual((found.sampled_tokens, found.sources), (0, ()))
    # Its rollouts are diagnosed, though no training continues them.
    self.assertEqual((found.version, found.folder), ('v3', arms[-1].folder))

  def test_a_candidate_goes_on_from_the_incumbents_arms(self):
    mine = [self._arm('candidate', i, 'abcd'[i], f'k{i}', 7) for i in range(4)]
    arms = self.chain + mine
    expected = ['incumbent-0', 'incumbent-1', 'incumbent-2', 'candidate-3']
    self.assertEqual(self._trained_on(arms, {}, 'candidate', 7), expected)
    # The incumbent does more and more harm, so the policy goes back to its
    # best.
    solved = {'candidate-0': 0.9}
    self.assertEqual(
        self._trained_on(arms, solved, 'candidate', 7), ['candidate-0']
    )

  def test_a_policy_that_does_not_move(self):
    arms = [self._arm('incumbent', i, 'a', 'a') for i in range(3)]
    self.assertLen(self._trained_on(arms, {}), 3)
    arms += [self._arm('candidate', i, 'a', 'a', 7) for i in range(3)]
    self.assertLen(self._trained_on(arms, {}), 3)

  def test_a_chain_that_followed_a_candidate(self):
    arms = [
        self._arm('candidate', i, 'abcd'[i], 'bcde'[i], 7) for i in range(4)
    ]
    arms += [self._arm('incumbent', i, 'abcd'[i], f'i{i}') for i in range(4)]
    # The second arm of the candidate fails: the incumbent goes back to its own.
    back = [*arms[:1], *arms[4:6]]
    back += [
        self._arm('incumbent', 2, 'i0', 'x'),
        self._arm('incumbent', 3, 'x', 'y'),
    ]
    every = [f'candidate-{i}' for i in range(4)]
    self.assertEqual(self._trained_on(arms, {}, 'candidate', 7), every)
    self.assertEqual(self._trained_on(arms, {}), ['incumbent-0'])
    own = ['incumbent-0', 'incumbent-2', 'incumbent-3']
    self.assertEqual(self._trained_on(back, {}), own)


if __name__ == '__main__':
  absltest.main()
