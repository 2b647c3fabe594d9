"""What a round costs, and what the rest of a run's tokens pays for."""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections

from evojax.evolve import costs
from evojax.evolve import opening
from evojax.ledger import history as history_lib
from evojax.ledger import records
from tests.ledger import samples

_SPENT = 40 + 12 * 80 + 100  # The base, a round of 12 arms, a replay before.
_PERTURBED = 2 * 4 * 40  # Both arms of 4 pairs on perturbed problems.


class CostsTest(parameterized.TestCase):

  def _run(
      self, tokens, *, scored_by='rollouts', raced=True, more=(), audits=()
  ):
    """Return a run before round 1; an arm takes 80 tokens, dev scores 40."""
    evolve = dict(tokens=tokens, updates=8, pairs=4, rounds=9)
    evolve |= dict(problems=8, samples=2)
    grpo = dict(prompts=2, group_size=2)
    rollout = dict(max_tokens=64, token_limit=16)
    arm = samples.record(records.RacedArm, sampled_tokens=80, updates=8)
    base = samples.record(records.Train, sampled_tokens=40, updates=8)
    race = samples.record(
        records.Race, round=0, arms=(arm,) * 12, scored_by=scored_by
    )
    run = mock.Mock(
        spec=opening.Run,
        recorder=mock.Mock(),
        config=ml_collections.ConfigDict(
            {'evolve': evolve, 'grpo': grpo, 'rollout': rollout}
        ),
    )
    trials = [
        history_lib.Trial(
            index=n,
            number=n,
            seconds={},
            diagnose=samples.record(records.Diagnose, trial=n, round=n),
            backtest=samples.record(records.Backtest, sampled_tokens=100),
        )
        for n in (0, 1)
    ]
    run.recorder.history = mock.Mock(
        races=[race] * raced + list(more),
        trials=trials,
        base=base,
    )
    self.promoted = [
        samples.record(records.Promote, harness='incumbent', round=n)
        for n in (0, 1)
    ]
    rows = {records.Promote: self.promoted, records.Audit: audits}
    run.recorder.history.all = rows.__getitem__
    return run

  def test_no_limit(self):
    run = self._run(0)
    self.assertEqual(costs.payable(run, 1), float('inf'))
    self.assertEqual(costs.payable_pairs(run, 1), 4)
    self.assertFalse(costs.is_last(run, 1, 2))
    self.assertTrue(costs.is_last(run, 8, 2))

  def test_harnesses_with_the_scores_of_the_round(self):
    run = self._run(_SPENT + _PERTURBED + 4 * 120 * 3)
    self.assertAlmostEqual(costs.payable(run, 1, dev=True), 3.0)
    self.assertAlmostEqual(costs.payable(run, 1), 4.5)
    # Tokens that 12 arms sampled for dev problems.
    left = _PERTURBED + 4 * 80
    run = self._run(_SPENT + 12 * 40 + left, scored_by='dev')
    self.assertAlmostEqual(costs.payable(run, 1), 1.0)
    # The 4 pairs of a candidate of round 0 met perturbed problems.
    audits = [
        samples.record(records.Audit, round=n, differences=(0.1,) * 4)
        for n in (0, 1)
    ]
    run = self._run(_SPENT + 8 * 40 + left, audits=audits)
    self.assertAlmostEqual(costs.payable(run, 1), 1.0)

  @parameterized.parameters((False, 80), (True, 120))
  def test_pairs_once_the_candidates_are_known(self, dev, arm):
    pair = 2 * arm + 2 * 40  # Both arms, and their perturbed scores.
    pairs = lambda left: costs.pairs_of(
        # The replays of this round count, too.
        self._run(_SPENT + 100 + left), 1, 2, dev=dev
    )
    self.assertEqual(pairs(4 * pair), 4)
    self.assertEqual(pairs(9 * pair), 4)
    self.assertEqual(pairs(4 * pair - 1), 3)
    self.assertEqual(pairs(3 * pair), 3)
    self.assertEqual(pairs(3 * pair - 1), 0)
    self.assertEqual(costs.pairs_of(self._run(0), 1, 2, dev=dev), 4)

  def test_a_replay(self):
    run = self._run(9999)
    run.config.evolve.replay_problems = 6
    # 6 x 2 completions by 4 policies; 4 arms have 8 updates of 2 x 2.
    self.assertEqual(costs.of_replay(run), 4 * 12 / (4 * 8 * 4))

  @parameterized.parameters((320, 4), (319, 3), (80, 1), (79, 0), (-5, 0))
  def test_the_incumbent_alone(self, left, pairs):
    self.assertEqual(costs.payable_pairs(self._run(_SPENT + left), 1), pairs)

  def test_a_candidate_that_lifts_a_limit_may_enter_again(self):
    race = lambda number, tokens, *standings: samples.record(
        records.Race,
        round=number,
        arms=(
            samples.record(
                records.RacedArm,
                harness='incumbent',
                sampled_tokens=tokens,
                updates=8,
            ),
        ),
        standings=standings,
    )
    # An arm took 320 tokens beside a candidate, then 80 alone.
    more = [race(1, 320, samples.record(records.Standing)), race(2, 80)]
    spent = _SPENT + 100 + 320 + 80
    run = self._run(spent + 4 * _PERTURBED + 4 * 320, more=more)
    self.assertAlmostEqual(costs.payable(run, 3), 1.0)
    # For the incumbent alone, only its arms of the last round count.
    run = self._run(spent + 4 * 80, more=more)
    self.assertEqual(costs.payable_pairs(run, 3), 4)

  def test_the_incumbent_alone_is_as_long_as_its_own_arms(self):
    long, short = (
        samples.record(
            records.RacedArm, harness=name, sampled_tokens=tokens, updates=8
        )
        for name, tokens in (('former', 160), ('incumbent', 40))
    )
    race = samples.record(
        records.Race, round=1, arms=(long, short), scored_by='rollouts'
    )
    # Besides what round 0 and its replay took, 100 for the replay of round 1.
    spent = _SPENT + 160 + 40 + 100
    run = self._run(spent + 120, more=[race])
    self.assertEqual(costs.payable_pairs(run, 2), 3)
    # A change that trains nothing, kept while the round looks for candidates.
    self.promoted += [
        samples.record(records.Promote, harness='measured', round=None),
        samples.record(records.Promote, harness='former', round=2),  # Its own.
    ]
    self.assertEqual(costs.payable_pairs(run, 2), 3)
    run = self._run(spent + 39, more=[race])
    self.assertEqual(costs.payable_pairs(run, 2), 0)

  def test_completions_may_become_longer(self):
    # By a tenth, after 8 updates of 200 tokens in all,
    for left, pairs in ((441, 2), (439, 1)):
      run = self._run(200 + left, raced=False)
      run.recorder.history.base = samples.record(
          records.Train, sampled_tokens=200, updates=8
      )
      run.config.rollout.token_limit = 0
      self.assertEqual(costs.payable_pairs(run, 0), pairs)
    # and more if a candidate lifts a limit.
    arm = 8 * 32 * 4  # 8 updates of 4 completions with half of 64 tokens.
    run = self._run(40 + 3 * arm, raced=False)
    self.assertEqual(costs.payable_pairs(run, 0), 3)

  def test_a_fork_has_no_arm_before_its_first_round(self):
    for tokens in (0, 4096):
      run = self._run(tokens, raced=False)
      run.recorder.history.base = samples.record(
          records.Train, sampled_tokens=0, updates=0
      )
      self.assertEqual(costs.payable_pairs(run, 0), 4)

  def test_the_last_round_of_candidates(self):
    # This round and the next, each with one candidate.
    enough = _SPENT + _PERTURBED + 4 * 120 * (2 + 2)
    self.assertFalse(costs.is_last(self._run(enough), 1, 1))
    self.assertTrue(costs.is_last(self._run(enough - 1), 1, 1))
    self.assertTrue(costs.is_last(self._run(enough), 1, 2))
    # Arms that are compared by their rollouts take 80 tokens instead of 120.
    enough = _SPENT + _PERTURBED + 4 * 80 * (2 + 2)
    self.assertFalse(costs.is_last(self._run(enough), 1, 1, dev=False))
    self.assertTrue(costs.is_last(self._run(enough - 1), 1, 1, dev=False))
    self.assertTrue(costs.is_last(self._run(enough), 1, 1))

  @parameterized.parameters(
      (4, 1, 2), (3.9, 1, 1), (9, 1, 4), (9, 3, 3), (0, 1, 1)
  )
  def test_the_rounds_left_to_race_in(self, harnesses, candidates, rounds):
    # A further round trains the incumbent and one candidate.
    run = self._run(_SPENT + _PERTURBED + round(4 * 120 * harnesses))
    self.assertEqual(costs.rounds_left(run, 1, candidates), rounds)
    # Round 7 of 9 is the last but one, whatever the tokens pay for.
    self.assertLessEqual(costs.rounds_left(run, 7, candidates), 2)
    self.assertEqual(costs.rounds_left(self._run(0), 1, candidates), 8)

  def test_the_rounds_own_row_changes_nothing(self):
    run = self._run(_SPENT + 4 * 120 * 4)
    arm = samples.record(records.RacedArm, sampled_tokens=9000, updates=8)
    row = samples.record(records.Race, round=1, arms=(arm,) * 8)
    after = self._run(_SPENT + 4 * 120 * 4, more=[row])
    self.assertEqual(costs.payable(run, 1), costs.payable(after, 1))
    self.assertLess(costs.payable(after, 2), 0)


if __name__ == '__main__':
  absltest.main()
