from absl.testing import absltest
from absl.testing import parameterized

from evojax.runtime import numerals


class NumeralsTest(parameterized.TestCase):

  def test_points(self):
    self.assertEqual(numerals.points(0.125), '+12.5')
    self.assertEqual(numerals.points(-0.0123), '−1.2')
    self.assertEqual(numerals.points(-0.0006), '−0.1')
    self.assertEqual(numerals.points(0.0123, '.1f'), '1.2')
    self.assertEqual(numerals.points(None), '–')

  def test_zero_has_no_sign(self):
    self.assertEqual(numerals.points(-0.0001), '0.0')
    self.assertEqual(numerals.points(1e-9), '0.0')

  def test_intervals(self):
    self.assertEqual(numerals.between((-0.01, 0.02)), '[−1.0, +2.0]')
    self.assertEqual(numerals.between(None), '')
    estimate = dict(value=0.4, low=0.3612, high=0.4724)
    self.assertEqual(numerals.interval(estimate), '[36.1, 47.2]')
    self.assertEqual(numerals.interval(estimate, '+.1f'), '[+36.1, +47.2]')

  def test_short(self):
    self.assertEqual(numerals.short(-0.05123), '−0.0512')
    self.assertEqual(numerals.short(12.0), '12')
    self.assertEqual(numerals.short(9.5e-8), '9.5e−8')
    self.assertEqual(numerals.short(-1.25e-13), '−1.25e−13')
    self.assertEqual(numerals.short(999.4), '999')
    self.assertEqual(numerals.short(-999.7), '−1000')

  @parameterized.parameters(
      (0.4, '0 s'),
      (59.4, '59 s'),
      (59.6, '1 min 00 s'),
      (185.0, '3 min 05 s'),
      (725.0, '12 min'),
      (3600.0, '1 h 00 min'),
      (7620.0, '2 h 07 min'),
  )
  def test_duration(self, seconds, text):
    self.assertEqual(numerals.duration(seconds), text)

  def test_tokens(self):
    self.assertEqual(numerals.tokens(3_170_000.0), '3.17 M')
    self.assertEqual(numerals.tokens(999_499), '999 k')
    self.assertEqual(numerals.tokens(999_800), '1 M')
    self.assertEqual(numerals.tokens(0), '0')


if __name__ == '__main__':
  absltest.main()
