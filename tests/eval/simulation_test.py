"""Simulated races: equal arms, better ones, and the interval over arms."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.eval import simulation

_RULES = simulation.Rules(
    candidates=2, entries=4, rounds=4, patience=2, horizon=3, level=0.2
)
_FEW = dict(runs=60, resamples=5, resampled_runs=20)


def _arms(means, pairs=3, error=0.001):
  means = np.array(means, np.float64)
  return simulation.Dealt(means, np.full(len(means), error), pairs)


class _Forced(simulation.Dealt):
  """Gives the best arms to the candidates and the worst to the incumbent."""

  def __call__(self, rng, spreads):
    worst, best = self.means[: self._pairs], self.means[-self._pairs :]
    own = np.tile(best, (len(spreads), 1))
    return own - worst, np.full(own.shape, 0.01)


class DealtTest(parameterized.TestCase):

  def test_no_arm_is_twice_in_a_round(self):
    # Every difference of two of these means identifies the two.
    arms = _arms([2.0**i for i in range(9)])
    for seed in range(20):
      d, _ = arms(np.random.default_rng(seed), [1.0, 1.0])
      self.assertEqual(d.shape, (2, 3))
      self.assertTrue(d.all())
      pairs = set()
      for i in range(3):
        # Bits of a - c and b - c: c is the lowest or highest of its three.
        found = [
            (a, b, c)
            for a in arms.means
            for b in arms.means
            for c in arms.means
            if a - c == d[0, i] and b - c == d[1, i]
        ]
        ((a, b, c),) = found
        pairs |= {a, b, c}
      self.assertLen(pairs, 9)

  def test_errors_of_a_pair_add_up(self):
    arms = simulation.Dealt(np.array([0.5, 0.5]), np.array([0.03, 0.04]), 1)
    _, errors = arms(np.random.default_rng(0), [1.0])
    np.testing.assert_allclose(errors, [[0.05]])

  def test_a_resample_repeats_arms_with_their_errors(self):
    arms = simulation.Dealt(np.arange(8.0), np.arange(8.0) / 100, 2)
    drawn = arms.resampled(np.random.default_rng(0))
    self.assertLen(drawn.means, 8)
    self.assertLess(len(set(drawn.means)), 8)
    np.testing.assert_array_equal(drawn.errors, drawn.means / 100)


class FalseKeepsTest(absltest.TestCase):

  def test_arms_that_are_all_the_same(self):
    found = simulation.false_keeps(_arms([0.5] * 12), _RULES, **_FEW)
    self.assertEqual((found.value, found.low), (0.0, 0.0))
    # 1 - 0.025^(1/60): with no event in 60 runs, a higher rate is excluded.
    self.assertAlmostEqual(found.high, 1 - 0.025 ** (1 / 60))

  def test_candidates_that_are_dealt_the_best_arms(self):
    means = [0.1, 0.11, 0.12, 0.5, 0.5, 0.5, 0.9, 0.91, 0.92]
    arms = _Forced(np.array(means), np.full(9, 0.01), 3)
    found = simulation.false_keeps(arms, _RULES, **_FEW)
    self.assertGreater(found.value, 0.9)
    self.assertGreater(found.low, _RULES.level)

  def test_dealt_at_random_the_same_arms_are_kept_within_the_bound(self):
    means = [0.1, 0.11, 0.12, 0.5, 0.5, 0.5, 0.9, 0.91, 0.92]
    found = simulation.false_keeps(_arms(means), _RULES, **_FEW)
    self.assertLess(found.value, _RULES.level)
    self.assertBetween(found.value, found.low, found.high)

  def test_the_order_of_arms_does_not_matter(self):
    rng = np.random.default_rng(1)
    means = rng.normal(0.5, 0.05, 12)
    rates = [
        simulation.false_keeps(_arms(m), _RULES, **_FEW)
        for m in (means, means[::-1], rng.permutation(means))
    ]
    self.assertEqual(rates[0], rates[1])
    self.assertEqual(rates[0], rates[2])

  def test_a_stop_is_heard_within_the_simulation(self):
    def stop():
      raise KeyboardInterrupt

    with self.assertRaises(KeyboardInterrupt):
      simulation.false_keeps(_arms([0.5] * 12), _RULES, beat=stop, **_FEW)


def _run(entries, draws=None, noise=1e-4, first=1, **rules):
  """A run of entries; the fields of rules differ from _RULES.

  Args:
    entries: Entries, or their effects.
    draws: The differences that each call of the draw adds to the effects,
      [[C, n], ...]; afterwards, or without any, there is only noise.
    noise: Standard deviation of the noise.
    first: Place of the first entry.
    **rules: Fields of the rules.
  """
  draws = iter(draws or [])

  def draw(rng, spreads):
    d = noise * rng.standard_normal((len(spreads), 4)) + next(draws, 0.0)
    return d, np.zeros_like(d)

  entries = [
      e if isinstance(e, simulation.Entry) else simulation.Entry(effect=e)
      for e in entries
  ]
  return simulation.simulate(
      np.random.default_rng(0),
      draw,
      entries,
      dataclasses.replace(_RULES, **rules),
      first,
  )


# Student's t is 2.943, and p .0302 with 3 degrees of freedom.
_D = [0.014, 0.024, 0.034, 0.004]


def _repair(effect):
  return simulation.Entry(effect=effect, repairs='critical')


class SimulateTest(parameterized.TestCase):

  def test_the_better_one_is_kept_and_ends_its_race(self):
    found = _run([-1.0, 1.0], rounds=1)
    self.assertEqual((found.kept, found.rounds), ([1], [1]))
    self.assertEqual((found.stayed, found.spent), ([1], 1))

  def test_places_are_filled_while_others_race_on(self):
    # Two enter; both are given up, and the next two enter.
    self.assertEqual(_run([-1.0, -1.0, -1.0, 1.0]).kept, [3])
    self.assertEqual(_run([-1.0, -1.0, -1.0, 1.0], rounds=1).kept, [])

  def test_nothing_is_kept_beside_a_shadow(self):
    # The best is kept in round 1. Its shadow takes a place for 3 rounds, in
    # whose last it leaves. The third candidate races in all of them: it may
    # have 2 rounds, and is lost; or 3, and is kept in the third.
    effects = [1.0, 0.5, 1.0, 0.5]
    for rules, kept, rounds in (
        (dict(patience=2), [0, 3], [1, 1]),
        (dict(patience=3), [0, 2], [1, 3]),
        (dict(horizon=0), [0, 2], [1, 1]),
    ):
      with self.subTest(**rules):
        found = _run(effects, rounds=4, **rules)
        self.assertEqual((found.kept, found.rounds), (kept, rounds))
    self.assertEqual(_run(effects, rounds=4, horizon=0).spent, 2)

  def test_a_change_is_taken_back_after_the_last_round(self):
    # It gains in its round and loses as much in each look at the shadow.
    lost = [[0.0], [-0.2], [-0.2]]
    found = _run([0.1], lost, rounds=1)
    self.assertEqual((found.kept, found.taken_back), ([0], [0]))
    self.assertEqual((found.stayed, found.spent), ([], 1))
    self.assertEqual(_run([0.1], lost, rounds=1, horizon=0).stayed, [0])

  def test_a_repair_races_alone_and_has_to_exclude_a_loss(self):
    # It neither gains nor loses, has one round, and gets no shadow.
    found = _run([_repair(0.0), 0.5, 1.0], rounds=2)
    self.assertEqual((found.kept, found.rounds), ([0, 2], [1, 1]))
    self.assertEqual(_run([_repair(-0.03)]).kept, [])
    self.assertEqual(_run([0.0]).kept, [])
    # One that appears later does not share the round in which it enters.
    found = _run([1.0, _repair(0.0)], rounds=1)
    self.assertEqual(found.kept, [0])

  def test_a_repair_bets_all_in_its_only_round(self):
    # It loses a point: not given up at its half, but a loss of 2 points is not
    # excluded either.
    d = np.array([[0.03, -0.03, -0.03, -0.01]])
    self.assertEqual(_run([_repair(0.0)], [d]).kept, [])
    self.assertEqual(_run([_repair(0.0)], [d]).spent, 1)

  def test_a_repair_that_the_chain_follows_trains_all_its_pairs(self):
    # Another candidate would be given up at half; a loss of 2 is excluded.
    d = np.array([[-0.006, -0.006, 0.0, 0.0]])
    self.assertEqual(_run([_repair(0.0)], [d], noise=0.0).kept, [0])

  def test_given_up_after_half_of_the_pairs(self):
    # The second half would have shown a gain of 10 points.
    d = np.array([[-0.1, -0.1, 0.3, 0.3]])
    self.assertEqual(_run([0.0], [d]).spent, 1)
    d = np.array([[0.3, 0.3, -0.1, -0.1]])
    self.assertEqual(_run([0.0], [d]).spent, 2)

  def test_pairs_that_are_skipped_do_not_count(self):
    # The first has p .030 at level .096, unless the spread of both counts. The
    # second is given up after pairs that are equal.
    d = np.array([_D, [-0.1, -0.1, 0.3, 0.3]])
    self.assertEqual(_run([0.0, 0.0], [d], noise=0.0, rounds=1).kept, [0])

  def test_no_candidate_is_dropped_where_pairs_vary_widely(self):
    # Beside the second, whose pairs vary by 13 points, 0.4 points do not yet
    # exclude a gain of 2; beside one that agrees, they do.
    for other, spent in (([-0.1, 0.1, -0.12, 0.12], 2), ([0.0] * 4, 1)):
      with self.subTest(other=other):
        d = np.array([[0.004] * 4, other])
        self.assertEqual(_run([0.0, 0.0], [d], noise=0.0).spent, spent)

  def test_others_end_with_a_change_that_is_taken_back(self):
    # The third, 1 point better, races in the round in which the first is taken
    # back.
    draws = [[[0.0], [0.0]], [[0.0]], [[-3.0]]]
    effects = [1.0, 0.5, 1.0]
    found = _run(effects, draws, rounds=2)
    self.assertEqual((found.kept, found.taken_back), ([0], [0]))

  def test_a_keep_counts_once_its_shadow_has_ended(self):
    # At the fourth place, p .030 is enough after a keep: .024 becomes .048.
    draws = [[[0.0]], [[0.0]], [_D]]
    common = dict(noise=0.0, horizon=1)
    effects = [1.0, 0.0]
    found = _run(effects, draws, candidates=1, rounds=3, first=3, **common)
    self.assertEqual(found.kept, [0, 1])
    # The third enters in the round of the only look, which is its last.
    draws = [[[0.0], [0.0]], [_D], [[0.0]]]
    found = _run([1.0, -1.0, 0.0], draws, rounds=2, first=2, **common)
    self.assertEqual((found.kept, found.spent), ([0], 2))

  def test_a_repair_of_a_warning_is_not_dropped_for_a_small_gain(self):
    # A gain of 2 points is unlikely after this round; a gain is not.
    d = np.array([[0.003, -0.001, 0.002, 0.0]])
    for repairs, spent in (('', 1), ('warning', 2)):
      with self.subTest(repairs=repairs):
        entry = simulation.Entry(repairs=repairs)
        found = _run([entry], [d, d - 1.0], noise=0.0)
        self.assertEqual((found.kept, found.spent), ([], spent))

  def test_perturbed_problems_can_refuse(self):
    rates = [
        np.mean([
            bool(simulation.simulate(
                np.random.default_rng(seed),
                lambda rng, spreads: (
                    0.001 * rng.standard_normal((len(spreads), 4)),
                    np.zeros((len(spreads), 4)),
                ),
                [simulation.Entry(effect=0.05)],
                dataclasses.replace(_RULES, rounds=1, perturbed=sd),
            ).kept)
            for seed in range(50)
        ])
        for sd in (1e-4, 0.5)
    ]
    self.assertEqual(rates[0], 1.0)
    self.assertLess(rates[1], 0.3)  # About GATE_LEVEL.

  def test_the_level_depends_on_the_place(self):
    # The levels of four places are .2 (12/25) / j = .096, .048, .032 and .024.
    d = np.array([_D])
    for first, kept in ((1, [0]), (3, [0]), (4, [])):
      with self.subTest(first=first):
        found = _run([0.0], [d], noise=0.0, first=first, rounds=1)
        self.assertEqual(found.kept, kept)
    # In a round that is not the last, p has to reach the p0 of .032, .006.
    found = _run([0.0], [d, d - 0.1], noise=0.0, first=3, rounds=2)
    self.assertEqual((found.kept, found.spent), ([], 2))

  def test_which_keeps_are_false(self):
    for effect, is_false in ((0.0, True), (1e-3, False), (-0.1, True)):
      self.assertEqual(simulation.Entry(effect=effect).is_false, is_false)
    self.assertFalse(_repair(-0.01).is_false)
    self.assertTrue(_repair(-0.02).is_false)
    self.assertFalse(_repair((0.1, -0.01, 0.0)).is_false)


if __name__ == '__main__':
  absltest.main()
