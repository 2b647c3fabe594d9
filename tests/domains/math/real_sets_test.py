"""Unions, intersections and differences of intervals."""

import fractions

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.math import real_sets

_interval = real_sets.interval
_LESS = lambda held: held[0] and not any(held[1:])


class RealSetsTest(parameterized.TestCase):

  @parameterized.parameters(
      # Closed ends join; open ones exclude their number.
      (any, ((0, 1, '[]'), (1, 2, '(]')), ((0, 2, '[]'),)),
      (any, ((0, 1, '[)'), (1, 2, '(]')), ((0, 1, '[)'), (1, 2, '(]'))),
      (any, ((1, 3, '()'), (0, 2, '()')), ((0, 3, '()'),)),
      (all, ((0, 2, '[]'), (2, 3, '[]')), ((2, 2, '[]'),)),
      (all, ((0, 2, '[)'), (2, 3, '[]')), ()),
      (all, ((0, 2, '[)'), (1, 3, '(]')), ((1, 2, '()'),)),
      (_LESS, ((0, 2, '[]'), (1, 1, '[]')), ((0, 1, '[)'), (1, 2, '(]'))),
      (_LESS, ((0, 2, '[]'), (0, 2, '()')), ((0, 0, '[]'), (2, 2, '[]'))),
  )
  def test_hand_worked(self, keeps, sets, expected):
    cuts = real_sets.combine(keeps, [_interval(*each) for each in sets])
    self.assertEqual(cuts, sum((_interval(*each) for each in expected), ()))

  def test_empty(self):
    self.assertEqual(_interval(1, 1, '[)'), ())
    self.assertEqual(_interval(2, 1), ())
    self.assertEqual(real_sets.combine(any, [(), ()]), ())

  def test_infinite_ends_compare_with_fractions(self):
    half = fractions.Fraction(1, 2)
    below = _interval(-real_sets.INFINITY, half, '()')
    above = _interval(half, real_sets.INFINITY, '[)')
    self.assertEqual(real_sets.combine(any, [above, below]), real_sets.REALS)
    self.assertEqual(real_sets.combine(all, [above, below]), ())


if __name__ == '__main__':
  absltest.main()
