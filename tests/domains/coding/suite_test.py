"""Tests as text, and the comparison of outputs."""

import dataclasses
import json

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.coding import comparison
from evojax.domains.coding import suite

_TESTS = suite.Suite(
    (
        suite.Case('3\n1 2 3\n', '6\n', True),
        suite.Case('', 'é "x"\n\\', False),
    ),
    comparison=comparison.Comparison('decimals', 1e-6, 1e-9, True),
    function='solve',
    integer_keys=True,
    seconds=1.5,
)


def _changed(**changes):
  return json.dumps({**json.loads(suite.encode(_TESTS)), **changes})


def _compared(**changes):
  fields = dataclasses.asdict(_TESTS.comparison)
  return _changed(comparison={**fields, **changes})


class EncodeTest(parameterized.TestCase):

  def test_round_trip(self):
    self.assertEqual(suite.decode(suite.encode(_TESTS)), _TESTS)
    plain = suite.Suite((suite.Case('', '', False),))
    self.assertEqual(suite.decode(suite.encode(plain)), plain)

  def test_every_field_is_kept(self):
    # A field that encode omits would come back with its default.
    for field in dataclasses.fields(suite.Suite):
      self.assertNotEqual(getattr(_TESTS, field.name), field.default)

  @parameterized.parameters(
      ('6', 'not int'),
      ('[', 'not JSON'),
      ('[' * 100_000, 'not JSON'),
      ('{}', r"fields \['cases', 'comparison', 'function', .*\], not"),
      (_changed(extra=1), "not .*'extra'"),
      (_changed(cases=[]), 'at least one case'),
      (_changed(cases={}), 'at least one case'),
      (_changed(cases=[['', '', True], 'x']), 'case 1 must be'),
      (_changed(cases=[['', '']]), 'case 0 must be'),
      (_changed(cases=[['', '', 1]]), 'case 0 must be'),
      (_changed(cases=[['', 6, True]]), 'case 0 must be'),
      (_compared(absolute=-1.0), 'absolute=-1.0 must be a number >= 0'),
      (_compared(relative=float('nan')), 'relative=nan must be a number >= 0'),
      (_compared(mode='equal'), "comparison='equal' is not one of"),
      (_compared(mode='exact'), "comparison='exact' has no tolerance"),
      (_compared(relative=True), 'comparison={.* must be an object with these'),
      (_compared(absolute='1'), 'comparison={.* must be an object with these'),
      (_compared(mode=['exact']), 'comparison={.* must be an object with'),
      (_compared(wrapped=1), 'comparison={.* must be an object with these'),
      (_compared(more=1), 'comparison={.* must be an object with these'),
      (_changed(comparison=None), 'comparison=None must be an object'),
      (_changed(integer_keys=1), 'integer_keys must'),
      (_changed(seconds=0), 'seconds=0 must'),
      (_changed(seconds=float('nan')), 'seconds=nan must'),
      (_changed(seconds=float('inf')), 'seconds=inf must'),
      (_changed(function='a b'), "function='a b' must"),
      (_changed(function='class'), "function='class' must"),
      (_changed(function='\uff41dd'), 'function=.* must'),  # A full-width a.
      (_changed(function=None), 'function=None must'),
  )
  def test_refuses(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      suite.decode(text)


if __name__ == '__main__':
  absltest.main()
