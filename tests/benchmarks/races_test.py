"""Simulated races follow the config, and agree with worked-out shares."""

import contextlib
import dataclasses
import functools
import io
import re

from absl import flags
from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized
import numpy as np
from scipy import stats

from benchmarks import races
from configs import math as math_config
from evojax.eval import simulation
from evojax.evolve import costs

_FEW = 10  # Runs of a row.


@functools.cache
def _printed() -> str:
  """What the benchmark prints with few runs."""
  out = io.StringIO()
  flags.FLAGS.mark_as_parsed()
  with flagsaver.flagsaver(races=_FEW), contextlib.redirect_stdout(out):
    races.main(None)
  return out.getvalue()


class RacesTest(parameterized.TestCase):

  def test_rules_are_those_of_the_config(self):
    e = math_config.get_config().evolve
    self.assertEqual(
        dataclasses.asdict(races.RULES),
        dict(
            candidates=e.candidates,
            entries=e.entries,
            rounds=e.rounds,
            patience=e.patience,
            horizon=e.horizon,
            level=e.false_discovery_rate,
            perturbed=None,
        ),
    )
    self.assertEqual((races.PAIRS, races.FEWEST), (e.pairs, costs.LEAST_PAIRS))
    # One entry is reserved for the repair of a critical fault.
    self.assertEqual(races.ORDINARY, e.entries - 1)

  def test_a_null_run_has_as_many_entries_as_one_may_have(self):
    e = math_config.get_config().evolve
    some = races.null_entries(2.0)
    every = races.null_entries(2.0, 'critical')
    self.assertEqual((len(some), len(every)), (e.entries - 1, e.entries))
    repairs = [i for i, entry in enumerate(every) if entry.margin]
    self.assertEqual(repairs, [0, e.entries - 1])
    for entry in some + every:
      self.assertTrue(entry.is_false)
      self.assertEqual(entry.spread, 2.0)

  @parameterized.parameters(4, 3)
  def test_repairs_that_may_collapse_keep_the_bound(self, pairs):
    # They would be better by 2.5 points if their arms did not collapse.
    draw = functools.partial(races.gaussian, pairs=pairs, lost=0.15, depth=0.3)
    runs = races.null_runs(draw, races.null_entries(2.0, 'critical'), 1000)
    kept = sum(bool(run.kept) for run in runs) / len(runs)
    self.assertLess(kept, races.RULES.level)

  @parameterized.parameters(1, 2, races.ORDINARY)
  def test_the_power_is_that_of_the_candidate_at_its_place(self, place):
    share = lambda effect: races.power(
        races.gaussian, effect, place, races.RULES, 30
    )
    np.testing.assert_array_equal(share(1.0), 1.0)
    np.testing.assert_array_equal(share(-1.0), 0.0)

  @parameterized.parameters(4, 3)
  def test_a_single_round_is_a_t_test(self, pairs):
    # A candidate that races alone, for one round at level .2 (60/137) / 2:
    # given up if a gain of 2 points is unlikely after half of its pairs, and
    # else kept if Student's t allows it.
    sd, effect, runs = 0.03, 0.04, 2000
    rules = dataclasses.replace(races.RULES, rounds=1)
    draw = functools.partial(races.gaussian, pairs=pairs, sigma=sd / 2**0.5)
    rng, entries = np.random.default_rng(0), [races.Entry(effect=effect)]
    kept = sum(
        bool(simulation.simulate(rng, draw, entries, rules, first=2).kept)
        for _ in range(runs)
    )
    d = np.random.default_rng(1).normal(effect, sd, (20_000, pairs))
    half = d[:, :2]
    error = half.std(axis=1, ddof=1) / 2**0.5
    hopeful = half.mean(axis=1) + 0.84 * error >= 0.02
    p = stats.ttest_1samp(d, 0, axis=1, alternative='greater').pvalue
    expected = np.mean(hopeful & (p <= 0.2 * 60 / 137 / 2))
    # Four standard errors of 2,000 runs.
    self.assertAlmostEqual(kept / runs, expected, delta=0.045)

  def test_equal_levels(self):
    # Five candidates at .2: e-values of 25, of 12.5 after a keep.
    level = lambda kept: races.equal_level(3, 5, kept, 0.2)
    self.assertAlmostEqual(level(0), 1 / 25)
    self.assertAlmostEqual(level(1), 1 / 12.5)

  def test_rows_of_the_tables(self):
    lines = _printed().splitlines()
    null = [line for line in lines if 'not taken back' in line]
    # 14 draws with 3 spreads; 5 with 2 for fewer pairs and repairs of
    # warnings, with 3 for repairs of critical faults.
    self.assertLen(null, 14 * 3 + 5 * 2 * 2 + 5 * 3 * 2)
    for line in null:
      kept, stayed = map(float, re.findall(r'(?:kept|back) ([01]\.\d+)', line))
      self.assertLessEqual(stayed, kept)
    # Ten points are found at once at this spread.
    row = next(
        line for line in lines if 'as shipped, 4 pairs, sd 1.5, place 1' in line
    )
    self.assertIn('level 0.088: 10 points 1.00/1.00/1.00', row)
    loses = [line for line in lines if 'loses 2 points, normal, sd 1 ' in line]
    self.assertLen(loses, 2)  # Rounds of four and of three pairs.


if __name__ == '__main__':
  absltest.main()
