"""Scores and differences of pairs with hand-worked values."""

import dataclasses
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
import ml_collections
import numpy as np
import pandas as pd

from evojax.domains import base
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.ledger import records
from evojax.training import setup as setup_lib
from tests.ledger import samples


def write(folder, split, step, outcomes, graded=True):
  """Write evidence of one step with outcomes [P, G]."""
  outcomes = np.asarray(outcomes, bool)
  group, _ = np.indices(outcomes.shape).reshape(2, -1)
  path = folder / 'evidence' / split / f'step_{step:06d}.parquet'
  path.parent.mkdir(parents=True, exist_ok=True)
  rows = {'group': group, 'outcome': outcomes.ravel()}
  rows['graded'] = np.broadcast_to(graded, outcomes.shape).ravel()
  pd.DataFrame(rows).to_parquet(path)


class PairsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    evolve = {'pairs': 3, 'problems': 10, 'samples': 2}
    self.run_ = mock.Mock(
        spec=opening.Run,
        scorer=mock.Mock(),
        recorder=mock.Mock(),
        harnesses=mock.Mock(),
        path=self.root,
        config=ml_collections.ConfigDict(
            {'seed': 4, 'evolve': evolve, 'grpo': {'prompts': 2}}
        ),
        setup=mock.Mock(
            spec=setup_lib.Setup,
            domain=mock.Mock(spec=base.Domain, surface_fields=()),
        ),
    )

  def _arm(self, role, pair, trial=None, steps=(), status='done'):
    folder = f'arms/r000-{role}{trial}-{pair}'
    for step, outcomes in enumerate(steps):
      write(self.root / folder, 'train', step, outcomes)
    return samples.record(
        records.RacedArm,
        folder=folder,
        role=role,
        pair=pair,
        trial=trial,
        status=status,
        updates=4,
        dev=pairs.dev_folder(0, folder),
    )

  def test_whose_dev_problems_are_asked(self):
    arm = self._arm('candidate', 1, 2)
    domain, judge = self.run_.setup.domain, mock.Mock(spec=base.Domain)
    # The tools and turns are those of the harness that trained the arm.
    self.run_.harnesses.judge = {arm.harness: judge}.get
    for fields, asked in (((), None), (('scrubbed',), judge)):
      domain.surface_fields = fields
      wanted = pairs.on_dev(self.run_, 2, 1, arm)
      self.assertIs(wanted.domain, asked)
      self.assertEqual(wanted.first, (2 * 3 + 1) * 10)

  def test_the_second_half_counts(self):
    arm = self._arm(
        'incumbent',
        0,
        steps=([[1, 1], [1, 1]], [[0, 0], [0, 0]], [[1, 0], [1, 1]]),
    )
    # The last two of three updates.
    np.testing.assert_array_equal(
        pairs.own_scores(self.run_, arm), [[0, 0], [0.5, 1]]
    )

  def test_groups_that_replace_dropped_ones_do_not_count(self):
    steps = [[[1, 1], [0, 0], [0, 0]]] * 2
    arm = self._arm('candidate', 0, 5, steps=steps)
    np.testing.assert_array_equal(pairs.own_scores(self.run_, arm), [[1, 0]])

  def test_groups_that_were_not_graded(self):
    folder = 'arms/r000-candidate5-0'
    for step in range(2):
      graded = np.array([[1, 0], [0, 0]], bool)
      write(self.root / folder, 'train', step, [[1, 1], [1, 1]], graded)
    arm = self._arm('candidate', 0, 5)
    np.testing.assert_array_equal(
        pairs.own_scores(self.run_, arm), [[1, np.nan]]
    )

  def test_the_evidence_of_an_arm_is_read_once(self):
    arm = self._arm('incumbent', 0, steps=[[[1, 1], [1, 0]]] * 4)
    read = pairs.store.problem_scores
    with mock.patch.object(pairs.store, 'problem_scores') as asked:
      asked.side_effect = read
      for _ in range(2):
        pairs.is_wasted(self.run_, arm, suspect=False)
        pairs.own_scores(self.run_, arm)
      self.assertEqual(asked.call_count, 4)
      # Another arm in the same folder, such as that of a run begun anew.
      other = self._arm('incumbent', 0, steps=[[[0, 0], [0, 1]]] * 4)
      other = dataclasses.replace(other, end='another')
      scores = pairs.own_scores(self.run_, other, whole=True)
    np.testing.assert_array_equal(scores, [[0, 0.5]] * 4)

  def test_an_arm_that_ruins_its_policy_is_wasted(self):
    self.run_.config.grpo.prompts = 8
    good, bad = [[1, 1]] * 6 + [[1, 0]] * 2, [[0, 0]] * 7 + [[1, 0]]
    ruined = self._arm('incumbent', 0, steps=(good, good, bad, bad))
    rises = self._arm('incumbent', 1, steps=(bad, bad, good, good))
    wasted = lambda arm: pairs.is_wasted(self.run_, arm, suspect=False)
    self.assertEqual((wasted(ruined), wasted(rises)), (True, False))
    # Equal ends do not prove harm.
    level = self._arm('incumbent', 2, steps=(good, bad, good, good))
    self.assertFalse(wasted(level))

  def test_a_first_update_that_was_lucky_is_no_measure(self):
    # All of its 12 groups solve everything, and 40 of 48 later ones do.
    self.run_.config.grpo.prompts = 12
    lucky, usual = [[1, 1]] * 12, [[1, 1]] * 10 + [[0, 0]] * 2
    arm = self._arm('incumbent', 0, steps=[lucky] + [usual] * 7)
    self.assertFalse(pairs.is_wasted(self.run_, arm, suspect=False))
    # Pooled, the variance is 6.67 / 58, the error .338 x sqrt(1/48 + 1/12) =
    # .109. Three of them are more than the fall of .167, and less than .5.
    half = [[1, 1]] * 6 + [[0, 0]] * 6
    arm = self._arm('incumbent', 1, steps=[lucky] + [half] * 7)
    self.assertTrue(pairs.is_wasted(self.run_, arm, suspect=False))

  def test_only_the_incumbent_is_suspect(self):
    finding = samples.record(records.Finding, severity='critical')
    self.run_.recorder.find.return_value = samples.record(
        records.Diagnose, findings=(finding,)
    )
    level = [[[1, 1], [0, 0]]] * 4
    left_out = {}
    for pair, role in enumerate(('incumbent', 'candidate', 'shadow')):
      arm = self._arm(role, pair, steps=level)
      arm = dataclasses.replace(arm, outcome=(0.5, 0.5, 0.49, 0.49))
      left_out[role] = pairs.is_left_out(self.run_, 'v1', role, arm)
    self.assertEqual(
        left_out, {'incumbent': True, 'candidate': False, 'shadow': False}
    )

  def test_a_suspect_has_to_learn(self):
    wasted = lambda outcome: pairs.is_wasted(
        self.run_,
        samples.record(records.Arm, outcome=outcome),
        suspect=True,
    )
    self.assertTrue(wasted((0.3, 0.3, 0.29, 0.29)))
    self.assertFalse(wasted((0.3, 0.3, 0.31, 0.31)))

  def test_difference_of_a_pair(self):
    ahead, behind = np.array([1.0, 0, 1, 1]), np.array([0.0, 0, 1, 1])
    found, error = pairs.difference(ahead, behind, shared=True)
    self.assertEqual(found, 0.25)
    self.assertAlmostEqual(error, 0.25)  # sd of 1, 0, 0, 0 is 1/2.
    _, error = pairs.difference(ahead, behind, shared=False)
    self.assertAlmostEqual(error**2, (1 / 4 + 1 / 3) / 4)
    # Only problems that both have a score of count.
    nan = np.nan
    ahead, behind = np.array([1, nan, 1, 0.0]), np.array([0, 1, 1, nan])
    found, error = pairs.difference(ahead, behind, shared=True)
    self.assertEqual((found, error), (0.5, 0.5))
    # 2/3 - 2/3; both have a variance of 1/3 over three problems.
    found, error = pairs.difference(ahead, behind, shared=False)
    self.assertEqual(found, 0)
    self.assertAlmostEqual(error**2, 2 / 9)

  def test_pairs_of_which_both_ended(self):
    solved, failed = [[[1, 1]], [[1, 1], [1, 0]]], [[[0, 0]], [[0, 1], [0, 0]]]
    arms = [
        self._arm('incumbent', 0, steps=failed),
        self._arm('incumbent', 1, steps=failed, status='crash'),
        self._arm('incumbent', 2, steps=failed),
        self._arm('candidate', 0, 5, steps=solved),
        self._arm('candidate', 1, 5, steps=solved),
        self._arm('candidate', 2, 6, steps=solved),
        self._arm('shadow', 2, 4, steps=solved),
    ]
    ask = lambda role, trial: pairs.differences(
        self.run_, 0, arms, 'rollouts', role, trial
    )
    # (1 + 1/2) / 2 - (1/2 + 0) / 2, equal at both problems.
    self.assertEqual(ask('candidate', 5), ([0.5], [0.0]))
    self.assertEqual(ask('candidate', 6), ([0.5], [0.0]))
    # All updates count: 1, 1, 1/2 against 0, 1/2, 0.
    (found,), (error,) = ask('shadow', 4)
    self.assertAlmostEqual(found, 2 / 3)
    self.assertAlmostEqual(error**2, (1 / 12) / 3)  # Variance of 1, 1/2, 1/2.

  def test_pairs_with_refills_are_compared_on_the_same_problems(self):
    easy, hard = [1, 1], [0, 0]
    arms = [
        self._arm('incumbent', 0, steps=[[easy, hard]] * 2),
        self._arm('candidate', 0, 5, steps=[[easy, hard, hard, hard]] * 2),
    ]
    found = pairs.differences(self.run_, 0, arms, 'rollouts', 'candidate', 5)
    self.assertEqual(found, ([0.0], [0.0]))

  def test_a_pair_without_two_graded_problems_does_not_count(self):
    nan = np.nan
    few = np.array([1, nan, nan, 0.0]), np.array([0, 1, nan, nan])
    self.assertTrue(np.isnan(pairs.difference(*few, shared=True)).all())
    none = np.full(3, nan), np.zeros(3)
    self.assertTrue(np.isnan(pairs.difference(*none, shared=False)).all())
    self.run_.scorer.scores.side_effect = lambda wanted: (
        np.array([1.0, nan] if wanted.first == 70 else [1.0, 1.0])
    )
    arms = [
        self._arm('incumbent', 0),
        self._arm('incumbent', 1),
        self._arm('candidate', 0, 5),
        self._arm('candidate', 1, 5),
    ]
    found = pairs.differences(self.run_, 2, arms, 'dev', 'candidate', 5)
    self.assertEqual(found, ([0.0], [0.0]))

  def test_an_arm_that_collapsed_has_a_score(self):
    good, bad = [[1, 1], [1, 0]], [[0, 0], [1, 0]]
    arms = [
        self._arm('incumbent', 0, steps=[good] * 4),
        self._arm('candidate', 0, 5, steps=[good, bad], status='collapse'),
    ]
    find = lambda by: pairs.differences(self.run_, 0, arms, by, 'candidate', 5)
    self.assertEqual(find('rollouts')[0], [0.25 - 0.75])
    # The checkpoint of its last update, which would be scored, is missing.
    self.assertEqual(find('dev'), ([], []))

  def test_dev_problems_are_those_of_the_pair(self):
    asked = []

    def scores(wanted):
      asked.append(wanted)
      return np.array([0.0, 1.0])

    self.run_.scorer.scores.side_effect = scores
    arms = [
        self._arm('incumbent', 1),
        self._arm('candidate', 1, 5),
    ]
    pairs.differences(self.run_, 2, arms, 'dev', 'candidate', 5)
    self.assertEqual([wanted.first for wanted in asked], [70, 70])  # 2 * 3 + 1.
    self.assertEqual({wanted.seed for wanted in asked}, {4})
    asked.clear()
    # Each arm has the tools and turns of its own harness.
    arms[1] = dataclasses.replace(arms[1], harness='more turns')
    domains = [mock.Mock(spec=base.Domain) for _ in range(4)]
    harnesses = [arm.harness for arm in arms[::-1]]
    self.run_.harnesses.judge = dict(zip(harnesses, domains[:2])).get
    pairs.differences(
        self.run_,
        2,
        arms,
        'rollouts',
        'candidate',
        5,
        perturbed=dict(zip(domains[:2], domains[2:])).get,
    )
    self.assertEqual([wanted.domain for wanted in asked], domains[2:])
    self.assertEndsWith(str(asked[0].folder), '-perturbed')


if __name__ == '__main__':
  absltest.main()
