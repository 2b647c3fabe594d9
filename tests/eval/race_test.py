import dataclasses
import math

from absl.testing import absltest
from absl.testing import parameterized

from evojax.eval import paired
from evojax.eval import race

_NONE = [0.0] * 4
_UP = [0.01, 0.03]  # p = 1/2 - atan(2) / pi.
_P = 0.5 - math.atan(2) / math.pi


def _standing(mean=0.0, rounds=1, e_value=1.0, index=1):
  return race.Standing(
      index=index,
      rounds=rounds,
      e_value=e_value,
      differences=(mean, mean),
      errors=(0.0, 0.0),
  )


class LevelTest(parameterized.TestCase):

  @parameterized.parameters(
      # 1 + 1/2 + 1/3 + 1/4 + 1/5 = 137 / 60.
      (1, 0, 0.2 * 60 / 137),
      (4, 0, 0.05 * 60 / 137),
      (4, 2, 0.15 * 60 / 137),
  )
  def test_hand_worked(self, index, kept, expected):
    self.assertAlmostEqual(race.alpha_of(index, 5, kept, 0.2), expected)

  def test_all_candidates_together_have_the_level(self):
    levels = [race.alpha_of(j, 7, 0, 0.2) for j in range(1, 8)]
    self.assertAlmostEqual(sum(levels), 0.2)
    # Even if all earlier ones were kept, no candidate is kept without evidence.
    for j in range(1, 8):
      self.assertLess(race.alpha_of(j, 7, j - 1, 0.2), 0.2)

  @parameterized.parameters(0, 6)
  def test_more_than_promised(self, index):
    with self.assertRaisesRegex(ValueError, f'candidate {index} of 5'):
      race.alpha_of(index, 5, 0, 0.2)


class HalfTest(parameterized.TestCase):

  @parameterized.parameters((3, 2), (4, 2), (5, 3), (8, 4))
  def test_first_half(self, pairs, expected):
    self.assertEqual(paired.first_half(pairs), expected)

  @parameterized.named_parameters(
      # Mean 0.01, standard error 0.02 / sqrt(2) = 0.0141: 0.01 + 0.84 x 0.0141
      # = 0.0219 is above 0.02; 0.008 + 0.0119 = 0.0199 is not.
      ('above', (0.01, 0.01), 0.0, 0.02, True),
      ('below', (0.008, 0.008), 0.0, 0.02, False),
      # The noise of the problems counts where it is larger.
      ('noisy', (0.008, 0.008), 0.03, 0.02, True),
      # The candidate's own spread counts as well: standard error 0.02.
      ('wild', (0.024, -0.016), 0.0, 0.0, True),
      ('steady', (0.004, 0.004), 0.0, 0.0, False),
      # 8 pairs give more certainty than 2.
      ('many', (0.01,) * 8, 0.0, 0.02, False),
      # 0.006 + 0.84 x 0.004 is less than 0.02; a repair need not gain as much.
      ('small', (0.006, 0.006), 0.0057, 0.0, False),
      ('repair', (0.006, 0.006), 0.0057, 0.0, True, 0.0),
      ('harmful', (-0.006, -0.006), 0.0057, 0.0, False, 0.0),
      # One pair has no spread: its sign decides.
      ('one', (0.001,), 0.0, 0.0, True),
      ('none', (), 0.0, 0.02, False),
  )
  def test_is_hopeful(
      self, differences, error, spread, expected, worth=race.WORTH
  ):
    errors = [error] * len(differences)
    found = race.is_hopeful(differences, errors, spread, worth)
    self.assertEqual(found, expected)


class RoundTest(parameterized.TestCase):

  def test_e_values_multiply_over_rounds(self):
    alpha = 0.01
    one = race.after_round(
        race.Standing(index=1),
        _UP,
        [0.0, 0.0],
        spread=0.0,
        alpha=alpha,
        last=False,
    )
    first = 100 * paired.threshold(100.0) / _P
    self.assertAlmostEqual(one.e_value, first)
    two = race.after_round(
        one, _UP, [0.0, 0.0], spread=0.0, alpha=alpha, last=False
    )
    target = 100 / first
    second = target * paired.threshold(target) / _P
    self.assertAlmostEqual(two.e_value, first * second)
    self.assertEqual((two.rounds, two.differences), (2, (*_UP, *_UP)))
    self.assertAlmostEqual(two.mean, 0.02)

  @parameterized.parameters((0.99, True), (1.01, False))
  def test_last_round_bets_all(self, part, passes):
    # p <= e alpha, with e = 10.
    before = _standing(e_value=10.0)
    alpha = _P / 10 / part
    after = race.after_round(
        before, _UP, [0.0, 0.0], spread=0.0, alpha=alpha, last=True
    )
    self.assertAlmostEqual(after.e_value, 1 / alpha if passes else 0.0)
    self.assertEqual(
        race.passed({'a': after}, {'a': 1 / alpha}), ['a'] if passes else []
    )

  def test_no_round_after_the_last(self):
    with self.assertRaisesRegex(ValueError, 'candidate 1 has bet all'):
      race.after_round(
          _standing(e_value=0.0),
          _UP,
          [0.0, 0.0],
          spread=0.0,
          alpha=0.1,
          last=True,
      )

  def test_not_steadier_than_the_round(self):
    of = lambda spread: race.after_round(
        race.Standing(index=1),
        _UP,
        [0.0, 0.0],
        spread=spread,
        alpha=1e-6,
        last=False,
    ).e_value
    # The pairs have 0.0141. With 0.0283, t is 1 and p is 1/4; below its target
    # an e-value goes as 1 / p.
    self.assertEqual(of(0.01), of(0.0))
    self.assertAlmostEqual(of(0.08**0.5 / 10) / of(0.0), _P / 0.25)

  def test_margin(self):
    same = lambda d, margin: race.after_round(
        race.Standing(index=1, margin=margin),
        d,
        _NONE,
        spread=0.0,
        alpha=0.05,
        last=False,
    ).e_value
    level = [0.004, -0.006, 0.001, 0.002]
    self.assertLess(same(level, 0.0), 1)
    self.assertAlmostEqual(same(level, 0.02), 20.0)  # A loss is ruled out.
    moved = [d + 0.02 for d in level]
    self.assertAlmostEqual(same(moved, 0.0), 20.0)

  def test_great_gain_does_not_hide_that_nothing_is_lost(self):
    # The pairs of math_brevity_paid, seed 105.
    pairs, errors = [0.138, 0.0078, 0.0, -0.0052], [0.019, 0.011, 0.006, 0.006]
    of = lambda d, margin: race.after_round(
        race.Standing(index=1, margin=margin),
        d,
        errors,
        spread=0.0,
        alpha=0.0876,
        last=True,
    ).e_value
    self.assertAlmostEqual(of(pairs, 0.02), 1 / 0.0876)
    self.assertEqual(of(pairs, 0.0), 0.0)  # A gain is not shown.
    self.assertEqual(of([0.138, -0.03, -0.04, -0.02], 0.02), 0.0)
    self.assertEqual(race.counted([0.2, 0.04, -0.3], 0.02), (0.05, 0.04, -0.3))
    self.assertEqual(race.counted([0.2, 0.04, -0.3], 0.0), (0.2, 0.04, -0.3))

  def test_a_repair_with_few_problems_by_hand(self):
    # swe_turns_short, seed 302: gains of 23, 35 and 27 points on 24 problems,
    # whose errors are 7.3 points. Cut at 5 points, they exclude no loss of 2:
    # (0.05 + 0.02) / (0.0725 / sqrt(3)) = 1.67 has p = 0.12 with 2 degrees of
    # freedom. Cut at two errors, 0.145, it is 3.94 with p = 0.029.
    pairs, errors = [0.2292, 0.3542, 0.2708], [0.0672, 0.0766, 0.0736]
    of = lambda d: race.after_round(
        race.Standing(index=1, margin=0.02),
        d,
        errors,
        spread=0.0,
        alpha=0.0876,
        last=True,
    ).e_value
    self.assertAlmostEqual(race.cap_of(errors), 0.14511, places=4)
    self.assertAlmostEqual(of(pairs), 1 / 0.0876)
    # Gains of 2 and less are within the noise.
    self.assertEqual(of([0.02, 0.01, 0.0]), 0.0)
    self.assertEqual(race.cap_of([0.01, 0.02]), race.CAP)

  @parameterized.parameters(
      # In points; with 4 pairs a later one may gain 2.5 more than an earlier.
      ((14.0, 1.0, 0.0, -1.0), True),
      ((1.0, 1.0, 1.0, 1.0), True),
      ((0.5, 2.0, -0.1, 2.4), True),
      ((0.5, 2.0, -0.1, 2.5), False),
      ((0.0, 2.6, -5.0, -9.0), False),
      # Pairs that all gain, by at most 5 points, may come in any order.
      ((0.3, 2.6, 1.8, 3.9), True),
      ((0.0, 5.0, 0.0, 5.0), True),
      ((0.0, 5.1, 0.0, 5.0), False),
      ((-0.1, 2.6, 1.8, 3.9), False),
      ((0.0, 0.8, 2.5), True),
      ((0.0, 0.8, 2.6), False),
      # With 3 pairs a later one may gain 1.25 points more, with 2 none.
      ((5.0, 1.0, 2.2), True),
      ((5.0, 1.0, 2.3), False),
      ((2.0, 1.9), True),
      ((2.0, 2.1), False),
  )
  def test_is_steady(self, points, expected):
    self.assertEqual(race.is_steady([p / 100 for p in points]), expected)

  def test_a_repair_whose_gains_rise_has_to_show_a_gain(self):
    of = lambda points, margin=0.02: race.after_round(
        race.Standing(index=1, margin=margin),
        [p / 100 for p in points],
        _NONE,
        spread=0.0,
        alpha=0.0876,
        last=True,
    ).e_value
    # Mean 2.75, standard error 1.11: t is 4.28 (p .012) against a loss of 2
    # points and 0.68 (p .27) against a gain of 2. The largest rise is 5.2.
    self.assertAlmostEqual(of([5, 4, 2, 0]), 1 / 0.0876)
    self.assertEqual(of([-0.1, 4, 2, 5.1]), 0.0)
    # Mean 13, standard error 1.29: t is 8.5 against a gain of 2 points.
    self.assertAlmostEqual(of([10, 16, 12, 14]), 1 / 0.0876)
    # No other candidate needs it: t is 2.48 (p .045) against no gain.
    self.assertAlmostEqual(of([0, 4, 2, 5], 0.0), 1 / 0.0876)

  def test_passed_best_first(self):
    standings = {
        'low': _standing(0.01, e_value=20.0),
        'high': _standing(0.03, e_value=12.0, index=2),
        'not': _standing(0.09, e_value=9.9, index=3),
    }
    thresholds = {'low': 20.0, 'high': 10.0, 'not': 10.0}
    self.assertEqual(race.passed(standings, thresholds), ['high', 'low'])

  def test_a_target_that_is_reached_exactly_is_passed(self):
    # 1 / alpha times alpha is 1 - 1e-16 for the seventh of 10 candidates, and
    # for the third of 4 after two were kept.
    for index, most, kept in ((7, 10, 0), (3, 4, 2)):
      alpha = race.alpha_of(index, most, kept, 0.2)
      self.assertLess(1 / alpha * alpha, 1.0)
      after = race.after_round(
          race.Standing(index=index),
          [0.05, 0.05],
          [0.0, 0.0],
          spread=0.0,
          alpha=alpha,
          last=True,
      )
      passed = race.passed({'a': after}, {'a': 1 / alpha})
      self.assertEqual(passed, ['a'], after.e_value)


class SortOutTest(parameterized.TestCase):

  def _statuses(self, means, rounds=1, **kwargs):
    standings = {name: _standing(mean, rounds) for name, mean in means.items()}
    found = race.sort_out(standings, **{'rounds': 3, 'spread': 0.05} | kwargs)
    return {name: verdict.status for name, verdict in found.items()}

  def test_worse_half_is_dropped(self):
    means = dict(a=0.01, b=0.03, c=0.02, d=0.04, e=0.005)
    found = self._statuses(means)
    go_on = {name for name, status in found.items() if status == 'go_on'}
    self.assertEqual(go_on, {'d', 'b', 'c'})
    self.assertEqual(self._statuses(dict(a=0.01)), {'a': 'go_on'})

  def test_nobody_goes_on(self):
    self.assertEqual(
        self._statuses(dict(a=0.0, b=-0.01), spread=0.02),
        dict(a='drop', b='drop'),
    )
    self.assertEqual(self._statuses(dict(a=0.05), rounds=3), dict(a='drop'))

  @parameterized.parameters(
      (dict(), 'no gain is shown'),
      (dict(margin=0.02), 'a loss of 2 points is not excluded'),
      (dict(margin=0.02, steady=False), 'had to show a gain of 2 points'),
  )
  def test_what_has_bet_all_ends(self, of, why):
    standing = dataclasses.replace(_standing(0.05, e_value=0.0), **of)
    found = race.sort_out({'a': standing}, rounds=3, spread=0.05)
    self.assertEqual(found['a'].status, 'drop')
    self.assertIn(why, found['a'].reason)

  def test_kept_ends_the_race_of_all(self):
    found = self._statuses(dict(a=0.05, b=0.04), kept='b')
    self.assertEqual(found, dict(a='drop', b='keep'))

  def test_waiting_candidates_are_not_dropped_for_being_worse(self):
    means = dict(a=0.05, b=0.04, c=0.03, d=-0.01)
    found = self._statuses(means, waiting=['d'])
    self.assertEqual(found['d'], 'go_on')
    self.assertEqual(
        self._statuses(means, rounds=3, waiting=['d'])['d'], 'drop'
    )


class ChecksTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('real', [0.05, 0.06, 0.04, 0.05], 'holds'),
      ('smaller_but_real', [0.03, 0.04, 0.03, 0.035], 'holds'),
      ('wording', [0.0, 0.002, -0.001, 0.001], 'fails'),
      ('vague', [0.09, -0.03, 0.08, -0.02], 'open'),
      # Clearly above 0, but most of the gain is missing.
      ('mostly_wording', [0.01, 0.011, 0.012, 0.01], 'fails'),
  )
  def test_gate(self, perturbed, expected):
    found = race.gate([0.05, 0.06, 0.04, 0.05], perturbed, _NONE)
    self.assertEqual(found.status, expected, found.reason)

  def test_gate_has_an_error_of_its_own(self):
    # The pairs agree, but each is known only to 0.05.
    agree = [0.03, 0.031, 0.03, 0.029]
    self.assertEqual(race.gate(agree, agree, _NONE).status, 'holds')
    self.assertEqual(race.gate(agree, agree, [0.05] * 4).status, 'open')

  def test_gate_cuts_the_gains_of_a_repair(self):
    # Mean 6.1, standard error 5.1 (lower bound -2.3 at level 0.1); with gains
    # cut at 5 mean 2, standard error 1.29 (-0.1): a loss of 2 is excluded.
    found = [0.212, 0.03, -0.01, 0.01]
    plain = [0.146, 0.029, -0.01, 0.005]
    repair = race.gate(plain, found, _NONE, margin=0.02)
    self.assertEqual(repair.status, 'holds')
    self.assertAlmostEqual(repair.perturbed.value, 0.0605)
    self.assertIn(
        'perturbed +6.0 points [-2.3, +14.4], +2.0 points [-0.1, +4.1] with'
        ' gains cut at 5',
        repair.reason,
    )
    self.assertEqual(race.gate(plain, found, _NONE).status, 'open')
    lost = race.gate(plain, [0.2, -0.05, 0.03, -0.02], _NONE, margin=0.02)
    self.assertEqual(lost.status, 'open')
    self.assertEndsWith(lost.reason, 'may be a loss of 2')

  def test_gate_of_a_repair_with_large_gains_and_few_problems(self):
    # Mean 30, error 8 / sqrt(3): t of 2 degrees of freedom is 1.89. So the
    # lower bound is +21.3, but -3.7 with gains cut at 5.
    large = [0.29, 0.3, 0.31]
    found = race.gate(large, large, [0.08] * 3, margin=0.02)
    self.assertIn('[-3.7, +13.7] with gains cut at 5', found.reason)
    self.assertEqual(found.status, 'holds')

  def test_gate_of_a_repair_excludes_a_loss(self):
    small = [0.004, -0.003, 0.005, -0.002]
    of = lambda margin: race.gate(small, small, _NONE, margin=margin).status
    self.assertEqual((of(0.0), of(0.02)), ('open', 'holds'))
    lost = [d - 0.03 for d in small]
    self.assertNotEqual(
        race.gate(small, lost, _NONE, margin=0.02).status, 'holds'
    )

  @parameterized.parameters(
      # Lower bound: mean - t_{.9, 3} 0.01 / 2 with t = 1.6377 for the spread of
      # (-1, -1, 1, 1) * 0.00866, whose standard deviation is 0.01.
      (0.0, True, 'keep'),
      (-0.0118, True, 'keep'),  # -0.0118 - 0.0082 = -0.0200 + 0.0000.
      (-0.0119, True, 'drop'),
      # Level 0.1 / 3: t_{.9667, 3} = 2.7629 needs 0.0138.
      (-0.0135, False, 'go_on'),
      (-0.0142, False, 'drop'),
      (0.05, False, 'go_on'),
  )
  def test_horizon(self, mean, last, expected):
    d = [mean + sign * 0.0086602 for sign in (-1, -1, 1, 1)]
    verdict = race.horizon(d, _NONE, looks=3, last=last)
    self.assertEqual(verdict.status, expected, verdict.reason)

  @parameterized.parameters(
      ((-0.17, -0.05), True), ((-0.1, 0.001), False), (None, False)
  )
  def test_veto(self, predicted, expected):
    self.assertEqual(race.vetoed(predicted), expected)


if __name__ == '__main__':
  absltest.main()
