"""Right and wrong outputs in each mode of comparison."""

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.coding import comparison

Comparison = comparison.Comparison


class PassesTest(parameterized.TestCase):

  @parameterized.parameters(
      # (expected, printed, right by tokens, by decimals, exactly)
      ('6\n', b'6\n', True, True, True),
      ('6\n', b'6\n\n', True, True, True),
      ('6\r\n7', b'6\n7\n', True, True, True),
      ('6\n', b'  6', True, True, False),
      ('6\n', b'6 \n', True, True, False),
      ('1 2\n3\n', b'1 2 \n3 \r\n', True, True, False),
      ('1 2\n3\n', b'1\n2 3\r\n', True, False, False),
      ('1\n2', b'1\n\n2', True, False, False),
      ('a b', b'a  b', True, False, False),
      ('1 2', b'1  2', True, True, False),
      ('', b'', True, True, True),
      ('', b'\n', True, True, True),
      ('', b' \n', True, True, False),
      ('6\n', b'', False, False, False),
      ('6\n', b'6 6', False, False, False),
      ('6 7\n', b'6\n', False, False, False),
      ('6\n', b'06', False, True, False),
      ('6\n', b'6.0', False, True, False),
      ('1 2.50', b'1.0 2.5', False, True, False),
      ('1000', b'1e3', False, True, False),
      ('1000', b'1_000', False, True, False),  # Python's Decimal accepts it.
      ('0.3', b'0.30000000000000004', False, False, False),
      ('10000000000000001', b'10000000000000000', False, False, False),
      ('a 1', b'a 1.0', False, False, False),
      ('yes', b'Yes', False, False, False),
      ('1 2', b'12', False, False, False),
      ('1 2', b'2 1', False, False, False),
      ('6', b'6\0', False, False, False),
      ('6', b'\xff6', False, False, False),
      ('6', 'é'.encode(), False, False, False),
      ('é', 'é'.encode(), True, True, True),
      ('nan', b'nan', True, True, True),
      ('nan', b'NaN', False, False, False),
      ('1', b'sNaN', False, False, False),
      ('1', b'1e99999999999999999999', False, False, False),
      ('1e999999999999', b'1e999999999998', False, False, False),
  )
  def test_modes(self, expected, printed, *right):
    for mode, each in zip(('tokens', 'decimals', 'exact'), right, strict=True):
      found = comparison.passes(expected, printed, Comparison(mode))
      self.assertEqual(found, each, mode)

  @parameterized.parameters(
      ('0.5', b'0.5000001', True),  # Differs by 1e-7.
      ('0.5', b'0.50001', False),
      ('0.5', b'.5', True),
      ('0.5', b'5e-1', True),
      ('1000000', b'1000000.9', True),  # 0.9 <= 1e-6 * 1e6.
      ('1000000', b'1000001.1', False),
      ('1000000', b'1000001', False),  # Whole numbers must be equal.
      ('1e6', b'1000001', True),
      ('7 0.5', b'7 0.5000001', True),
      ('a 0.5', b'a 0.5000001', True),
      ('a 0.5', b'b 0.5', False),
      ('0.5', b'nan', False),
      ('1e999', b'5', False),
      ('5', b'1e999', False),
      ('0.5', '٠.5'.encode(), False),  # An Arabic zero.
      ('nan', b'nan', True),  # Equal as text.
  )
  def test_tolerance(self, expected, printed, right):
    for mode in ('tokens', 'decimals'):
      rule = Comparison(mode, absolute=1e-6, relative=1e-6)
      if mode == 'decimals' and '٠'.encode() in printed:
        continue  # Python's Decimal accepts it as a number.
      self.assertEqual(comparison.passes(expected, printed, rule), right, mode)

  @parameterized.parameters(
      # An error of 0.5 in 1000.5, and one of 0.5 in 0.25.
      ({'absolute': 1.0}, True, True),
      ({'relative': 1e-3}, True, False),
      ({'absolute': 0.1}, False, False),
      ({'relative': 3.0}, True, True),
  )
  def test_kinds_of_tolerance(self, fields, large, small):
    rule = Comparison(**fields)
    self.assertEqual(comparison.passes('1000.5', b'1001', rule), large)
    self.assertEqual(comparison.passes('0.25', b'0.75', rule), small)
    for expected, result, right in (
        ('1000.5', b'1001', large),
        ('[0.25]', b'[0.75]', small),
    ):
      self.assertEqual(comparison.returns(expected, result, rule), right)

  def test_infinity_is_near_to_nothing(self):
    rule = Comparison(absolute=1e-6)
    self.assertFalse(comparison.passes('1e999', b'2e999', rule))

  @parameterized.parameters('tokens', 'decimals')
  def test_a_long_number_takes_no_time(self, mode):
    rule = Comparison(mode, absolute=1e-6)
    for end in (b'x', b'', b'.5'):
      self.assertFalse(comparison.passes('0.5', b'1' * 10**6 + end, rule))


class ReturnsTest(parameterized.TestCase):

  @parameterized.parameters(
      # (expected, result, right as in Python, exactly)
      ('[1, 2]', b'[1,2]', True, True),
      ('{"a": [1]}', b'{"a":[1]}', True, True),
      ('2', b'2.0', True, False),
      ('true', b'1', True, False),
      ('[0]', b'[false]', True, False),
      ('null', b'0', False, False),
      ('null', b'null', True, True),
      ('"1"', b'1', False, False),
      ('[1, 2]', b'[1]', False, False),
      ('[1, 2]', b'[2, 1]', False, False),
      ('{"a": 1}', b'{"b": 1}', False, False),
      ('6', b'', False, False),
      ('6', b'6 6', False, False),
      ('6', b'\xff', False, False),
      ('6', b'NaN', False, False),
      ('6', b'[' * 100_000, False, False),
      # Equal as floats: 2**53 and its successor, and similar pairs.
      ('9007199254740993', b'9007199254740992', False, False),
      ('1000000000000000001', b'1e18', False, False),
      ('9007199254740993', b'9007199254740993', True, True),
      ('0.5', b'0.5000001', False, False),
      # Longer than the digits that Python parses by default.
      ('1' * 5000, b'1' * 5000, True, True),
      ('1' * 5000, b'1' * 4999 + b'2', False, False),
      ('1' * 5000, b'1.0', False, False),
      ('[3]', b'3', False, False),
      ('[' * 900 + ']' * 900, b'[' * 900 + b']' * 900, True, True),
      ('[' * 900 + ']' * 900, b'[' * 899 + b'0' + b']' * 899, False, False),
      ('[[1], [2]]', b'[[1], [3]]', False, False),
      ('{"a": [1]}', b'{"a": [2]}', False, False),
  )
  def test_values(self, expected, result, right, exactly):
    for mode, each in (('decimals', right), ('exact', exactly)):
      found = comparison.returns(expected, result, Comparison(mode))
      self.assertEqual(found, each, mode)

  @parameterized.parameters(
      ('0.5', b'0.5000001', True),
      ('[0.5, "a"]', b'[0.5000001, "a"]', True),
      ('0.5', b'0.50001', False),
      ('5000000', b'5000001', False),  # Integers have no tolerance.
      ('0.9999999', b'true', False),
      ('0.5', b'1' + b'0' * 400, False),  # Too large for a float.
  )
  def test_tolerance(self, expected, result, right):
    rule = Comparison(absolute=1e-6, relative=1e-6)
    self.assertEqual(comparison.returns(expected, result, rule), right)

  @parameterized.parameters(
      ('[3]', b'3', True),
      ('[3]', b'[3]', True),
      ('[[1, 2]]', b'[1, 2]', True),
      ('[3]', b'[[3]]', False),
      ('[3]', b'4', False),
      ('[null]', b'null', True),
      ('[{"1": 2}]', b'{"1": 2}', True),
  )
  def test_wrapped(self, expected, result, right):
    rule = Comparison(wrapped=True)
    self.assertEqual(comparison.returns(expected, result, rule), right)


if __name__ == '__main__':
  absltest.main()
