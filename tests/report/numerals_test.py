from absl.testing import absltest

from evojax.report import numerals


class NumeralsTest(absltest.TestCase):

  def test_numerals(self):
    self.assertEqual(numerals.points(-0.0123), '−1.2')
    self.assertEqual(numerals.points(-0.0001), '0.0')
    self.assertEqual(numerals.points(None), '–')
    self.assertEqual(numerals.between((-0.01, 0.02)), '[−1.0, +2.0]')
    self.assertEqual(numerals.short(-0.05123), '−0.0512')
    self.assertEqual(numerals.short(12.0), '12')
    self.assertEqual(numerals.short(9.5e-8), '9.5e−8')
    self.assertEqual(numerals.short(-1.25e-13), '−1.25e−13')
    self.assertEqual(numerals.duration(89.0), '89 s')
    self.assertEqual(numerals.duration(5400.0), '1.5 h')
    self.assertEqual(numerals.tokens(3_170_000.0), '3.17 M')


if __name__ == '__main__':
  absltest.main()
