"""Tests as text, and what counts as the right output."""

import dataclasses
import json

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.coding import suite

_TESTS = suite.Suite(
    (
        suite.Case('3\n1 2 3\n', '6\n', True),
        suite.Case('', 'é "x"\n\\', False),
    ),
    tolerance=1e-6,
    function='solve',
    seconds=1.5,
)


def _changed(**changes):
  return json.dumps({**json.loads(suite.encode(_TESTS)), **changes})


class EncodeTest(parameterized.TestCase):

  def test_round_trip(self):
    self.assertEqual(suite.decode(suite.encode(_TESTS)), _TESTS)
    plain = suite.Suite((suite.Case('', '', False),))
    self.assertEqual(suite.decode(suite.encode(plain)), plain)

  def test_every_field_is_kept(self):
    # A field that encode forgets would come back as its default.
    for field in dataclasses.fields(suite.Suite):
      self.assertNotEqual(getattr(_TESTS, field.name), field.default)

  @parameterized.parameters(
      ('6', 'not int'),
      ('[', 'not JSON'),
      ('[' * 100_000, 'not JSON'),
      ('{}', r"fields \['cases', 'function', 'seconds', 'tolerance'\], not"),
      (_changed(extra=1), "not .*'extra'"),
      (_changed(cases=[]), 'at least one case'),
      (_changed(cases={}), 'at least one case'),
      (_changed(cases=[['', '', True], 'x']), 'case 1 must be'),
      (_changed(cases=[['', '']]), 'case 0 must be'),
      (_changed(cases=[['', '', 1]]), 'case 0 must be'),
      (_changed(cases=[['', 6, True]]), 'case 0 must be'),
      (_changed(tolerance=-1), 'tolerance=-1 must'),
      (_changed(tolerance=True), 'tolerance=True must'),
      (_changed(seconds=0), 'seconds=0 must'),
      (_changed(seconds=float('nan')), 'seconds=nan must'),
      (_changed(seconds=float('inf')), 'seconds=inf must'),
      (_changed(function='a b'), "function='a b' must"),
      (_changed(function='class'), "function='class' must"),
      (_changed(function='\uff41dd'), 'function=.* must'),  # A wide a.
      (_changed(function=None), 'function=None must'),
  )
  def test_refuses(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      suite.decode(text)


class PassesTest(parameterized.TestCase):

  @parameterized.parameters(
      ('6\n', b'6\n', True),
      ('6\n', b'  6', True),
      ('1 2\n3\n', b'1\n2 3\r\n', True),
      ('', b'\n', True),
      ('6\n', b'', False),
      ('6\n', b'6 6', False),
      ('6 7\n', b'6\n', False),
      ('6\n', b'06', False),
      ('6\n', b'6.0', False),
      ('yes', b'Yes', False),
      ('1 2', b'12', False),
      ('6', b'6\0', False),
      ('6', b'\xff6', False),
      ('6', '６'.encode(), False),  # A full-width digit.
      ('é', 'é'.encode(), True),
  )
  def test_exact(self, expected, printed, right):
    self.assertEqual(suite.passes(_case(expected), printed, 0.0), right)

  @parameterized.parameters(
      ('0.5', b'0.5000001', True),  # 1e-7 off.
      ('0.5', b'0.50001', False),
      ('0.5', b'.5', True),
      ('0.5', b'5e-1', True),
      ('1000000', b'1000000.9', True),  # 0.9 <= 1e-6 * 1e6.
      ('1000000', b'1000001.1', False),
      ('1000000', b'1000001', False),  # Two whole numbers.
      ('1e6', b'1000001', True),
      ('7 0.5', b'7 0.5000001', True),
      ('a 0.5', b'a 0.5000001', True),
      ('a 0.5', b'b 0.5', False),
      ('0.5', b'nan', False),
      ('1e999', b'2e999', False),  # Both are read as infinity.
      ('1e999', b'5', False),
      ('5', b'1e999', False),
      ('1000', b'1_000', False),
      ('0.5', '٠.5'.encode(), False),  # An Arabic zero.
      ('nan', b'nan', True),  # Equal as tokens.
  )
  def test_tolerance(self, expected, printed, right):
    self.assertEqual(suite.passes(_case(expected), printed, 1e-6), right)

  def test_a_long_number_takes_no_time(self):
    printed = b'1' * 10**6 + b'x'
    self.assertFalse(suite.passes(_case('0.5'), printed, 1e-6))


class ReturnsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('[1, 2]', b'[1,2]', True),
      ('{"a": [1]}', b'{"a":[1]}', True),
      ('2', b'2.0', True),
      ('0.5', b'0.5000001', True),
      ('true', b'1', False),
      ('1', b'true', False),
      ('null', b'0', False),
      ('"1"', b'1', False),
      ('[1, 2]', b'[1]', False),
      ('[1, 2]', b'[2, 1]', False),
      ('{"a": 1}', b'{"b": 1}', False),
      ('6', b'', False),
      ('6', b'6 6', False),
      ('6', b'\xff', False),
      ('6', b'NaN', False),
      ('6', b'[' * 100_000, False),
      ('0.5', b'1' + b'0' * 400, False),  # No float is so large.
  )
  def test_values(self, expected, printed, right):
    self.assertEqual(suite.returns(_case(expected), printed, 1e-6), right)

  @parameterized.parameters(
      # Equal as floats: 2**53 and its successor, and so on.
      ('9007199254740993', b'9007199254740992', False),
      ('1000000000000000001', b'1e18', False),
      ('9007199254740993', b'9007199254740993', True),
      ('2', b'2.0', True),
      ('0.5', b'0.5000001', False),
  )
  def test_exact(self, expected, printed, right):
    self.assertEqual(suite.returns(_case(expected), printed, 0.0), right)

  def test_whole_numbers_have_no_tolerance(self):
    self.assertFalse(suite.returns(_case('5000000'), b'5000001', 1e-6))


def _case(expected):
  return suite.Case('', expected, False)


if __name__ == '__main__':
  absltest.main()
