"""Simulated races: equal arms, better ones, and the interval over arms."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.eval import simulation

_RULES = simulation.Rules(candidates=2, entries=4, rounds=2, level=0.2)
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


class SimulateTest(parameterized.TestCase):

  def _run(self, effects, noise=1e-3, **rules):
    def draw(rng, spreads):
      d = noise * rng.standard_normal((len(spreads), 4))
      return d, np.zeros_like(d)

    rules = dict(candidates=2, rounds=3, level=0.2) | rules
    ones = [1.0] * len(effects)
    return simulation.simulate(
        np.random.default_rng(0), draw, effects, ones, **rules
    )

  def test_the_better_one_is_kept_and_ends_its_race(self):
    found = self._run([-1.0, 1.0, -1.0, -1.0])
    self.assertEqual((found.kept, found.rounds), ([1], [1]))
    self.assertEqual(found.spent, 2)  # One round of each of two races.

  def test_every_race_may_keep_one(self):
    found = self._run([1.0, 2.0, 1.0])
    # The best of the first race, and the only one of the second.
    self.assertEqual(found.kept, [1, 2])

  def test_a_race_has_no_more_rounds_than_promised(self):
    effects = [0.02] * 4  # Promising, but never sufficient.
    one = self._run(effects, noise=0.03, rounds=1, level=1e-9)
    more = self._run(effects, noise=0.03, rounds=3, level=1e-9)
    self.assertEqual((one.kept, one.spent), ([], 2))
    self.assertEqual(more.kept, [])
    self.assertBetween(more.spent, 3, 6)


class ExactIntervalTest(parameterized.TestCase):

  @parameterized.parameters(
      # 1 - 0.025^(1/10), and Clopper and Pearson's table for 5 of 10.
      (0, 10, 0.0, 0.3085),
      (5, 10, 0.1871, 0.8129),
      (10, 10, 0.6915, 1.0),
  )
  def test_known_values(self, count, of, low, high):
    found = simulation.exact_interval(count, of)
    np.testing.assert_allclose(found, (low, high), atol=5e-5)


if __name__ == '__main__':
  absltest.main()
