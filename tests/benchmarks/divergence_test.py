"""Counts of frozen ledgers, and tests of domains that were worked by hand."""

import dataclasses
import pathlib
import shutil
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from benchmarks import divergence
from evojax.ledger import records

FROZEN = pathlib.Path(__file__).parents[1] / 'frozen'
MATH = FROZEN / 'tree_2026_11_21_math'
CODING = FROZEN / 'tree_2026_11_21_coding'


class CountsTest(absltest.TestCase):

  def test_cells(self):
    runs = [divergence.read(str(path)) for path in (MATH, CODING)]
    self.assertEqual([run.domain for run in runs], ['math', 'coding'])
    found = {
        (c.family, c.domain): c
        for c in divergence.cells(runs, divergence.factor)
    }
    # Three times the rate, raced twice in math, was kept the second time.
    rate = found['optim.learning_rate up', 'math']
    counts = rate.proposed, rate.backtested, rate.raced, rate.kept
    self.assertEqual(counts, (2, 2, 2, 1))
    # Exact interval of 1 / 2: (1 - p)^2 = 0.025 at the upper end of the rate
    # of failures, so the ends are 1 - sqrt(0.975) and sqrt(0.975).
    for end, wanted in zip(rate.rate, (0.01258, 0.98742), strict=True):
      self.assertAlmostEqual(end, wanted, places=4)
    # Effects of 5.46875 and 7.8125 points: half their difference, 1.171875, is
    # the standard error of their mean; t of 1 degree of freedom is 12.7062.
    for end, wanted in zip(
        rate.effect, (0.06640625, -0.082495, 0.215307), strict=True
    ):
      self.assertAlmostEqual(end, wanted, places=5)
    # One trial has the interval of the ledger.
    one = found['reward:format up', 'coding']
    self.assertEqual((one.raced, one.kept), (1, 0))
    self.assertAlmostEqual(one.rate[1], 0.975)
    self.assertAlmostEqual(one.effect[1], -0.03419189708628966)
    self.assertEqual(found['reward:format up', 'math'].proposed, 0)
    self.assertEqual(found['reward:format up', 'math'].rate, (0, 1))

  def test_trials_that_agree_are_not_known_better_than_each(self):
    run = divergence.read(str(MATH))
    same = dataclasses.replace(run, trials=run.trials[:1] * 4)
    (cell,) = divergence.cells([same], divergence.factor)
    _, low, high = cell.effect
    one = run.trials[0].verify
    self.assertAlmostEqual(high - low, (one.high - one.low) / 2)  # 1 / sqrt(4)

  def test_a_change_that_was_taken_back_is_not_kept(self):
    run = divergence.read(str(MATH))
    kept = run.families(divergence.factor, 'kept')
    self.assertEqual(kept, {'optim.learning_rate up'})
    dropped = records.Shadow(
        trial=1, round=1, look=1, harness='', checkpoint='', end='', folder='',
        differences=(), errors=(), decision='drop', reason='',
    )  # fmt: skip
    trials = [dataclasses.replace(t, shadow=dropped) for t in run.trials]
    run = dataclasses.replace(run, trials=tuple(trials))
    self.assertEmpty(run.families(divergence.factor, 'kept'))
    self.assertEqual(run.families(divergence.factor, 'raced'), kept)

  def test_a_run_that_has_not_ended_is_refused(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    shutil.copy(MATH / 'ledger.jsonl', folder)
    with self.assertRaisesRegex(ValueError, 'has not ended'):
      divergence.read(folder)

  def test_lines(self):
    runs = [divergence.read(str(path)) for path in (MATH, CODING)]
    lines = divergence.report(runs, 'class', 100)
    text = '\n'.join(lines)
    self.assertIn('2 runs: coding 1, math 1', text)
    row = next(line for line in lines if line.startswith('optimizer  math'))
    self.assertEqual(row.split()[2:7], ['2', '2', '2', '1', '1-99'])
    self.assertIn('no result has p below 1;', text)


class DifferTest(parameterized.TestCase):

  @parameterized.parameters(
      # There are 6 deals; aabb (the observed one) and bbaa are the most uneven.
      ('aabb', 'xx--', 1 / 3, 1 / 3, 1 / 3),
      ('aaabbb', 'xxx---', 2 / 20, 2 / 20, 2 / 20),
      ('aaaabbbb', 'xxxx----', 2 / 70, 2 / 70, 2 / 70),
      # Equal shares: every deal has at least this variance of 0.
      ('aabb', 'x-x-', 1.0, 1.0, 1 / 3),
      # One run of four: 1 of a kept it, or 1 of b; always the same variance.
      ('aabb', 'x---', 1.0, 1.0, 1.0),
      # Three domains: 6 of the 90 deals keep the pair together.
      ('aabbcc', 'xx----', 18 / 90, 18 / 90, 18 / 90),
  )
  def test_by_hand(self, labels, sets, p, each, least):
    sets = [{'x', 'y'} if s == 'x' else {'y'} for s in sets]
    test = divergence.differ(labels, sets, 1000)
    self.assertEqual(test.families, ('x', 'y'))
    self.assertAlmostEqual(test.p, p)
    self.assertAlmostEqual(test.each[0], each)
    self.assertEqual(test.each[1], 1.0)  # All runs have y.
    self.assertAlmostEqual(test.least, least)

  def test_many_families_raise_p(self):
    # x separates 4 from 4 runs; each other family is in one run of a.
    labels = 'aaaabbbb'
    sets = [{'x', f'z{i}'} if i < 4 else {f'z{i}'} for i in range(8)]
    test = divergence.differ(labels, sets, 1000)
    self.assertAlmostEqual(dict(zip(test.families, test.each))['x'], 2 / 70)
    self.assertEqual(dict(zip(test.families, test.each))['z0'], 1.0)

  def test_random_deals_are_close(self):
    labels = 'aaaabbbb'
    sets = [{'x'} if i in (0, 1, 2, 4) else set() for i in range(8)]
    exact = divergence.differ(labels, sets, 100).p
    # 3 of 4 against 1 of 4, or more: 2 (16 + 1) of 70 deals.
    self.assertAlmostEqual(exact, 34 / 70)
    random = divergence.differ(labels * 2, sets * 2, 2000)
    self.assertEqual(random.deals, 2000)
    # 6 of 8 runs against 2 of 8: 2 (784 + 64 + 1) of 12870 deals are so uneven.
    self.assertAlmostEqual(random.p, 1698 / 12870, delta=0.03)

  def test_nothing_to_compare(self):
    self.assertIsNone(divergence.differ('aab', [{'x'}] * 3, 10))
    self.assertIsNone(divergence.differ('aaa', [{'x'}, set(), set()], 10))
    self.assertIsNone(divergence.differ('ab', [set(), set()], 10))

  def test_what_cannot_be_told_is_said(self):
    few = divergence.differ('aabb', [{'x'}, {'x'}, set(), set()], 100)
    self.assertIn('cannot show', divergence.sentences('kept', few, 2)[-1])
    sets = [{'x'}] * 4 + [set()] * 4
    many = divergence.differ('aaaabbbb', sets, 100)
    self.assertIn('x: p = 0.0286', divergence.sentences('kept', many, 2)[1])
    self.assertIn('one domain', divergence.sentences('kept', many, 1)[0])


if __name__ == '__main__':
  absltest.main()
