"""Tests as data: the input of the box, and the meaning of passing."""

import json

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.swe import suite
from evojax.domains.swe import values

SOURCE = b"""
import pytest

from rings import ring


def made(count):
  return ring.Ring(count)


def test_last():
  found = made(3)
  assert found.last() == [4, (1.5, None)]
  found.push(2)
  assert found.empty() is False
  with pytest.raises(IndexError):
    found.last(3)


def test_quotient():
  assert ring.share(2, 3) == 2 / 3
"""


class ParseTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.suite = suite.parse({'tests/test_ring.py': SOURCE})

  def test_names_and_checks(self):
    last, quotient = self.suite.tests
    self.assertEqual(last.name, 'tests/test_ring.py::test_last')
    self.assertEqual(
        [(c.call, c.expected, c.raises, c.exact) for c in last.checks],
        [
            ('found.last()', [4, (1.5, None)], False, False),
            ('found.empty()', False, False, True),
            ('found.last(3)', 'IndexError', True, False),
        ],
    )
    helper = 'def made(count):\n    return ring.Ring(count)\n'
    before = last.checks[1].before
    self.assertEqual(before, f'{helper}found = made(3)\nfound.push(2)')
    self.assertEqual(quotient.checks[0].before, '')
    self.assertEqual(quotient.checks[0].expected, 2 / 3)

  def test_nothing_expected_goes_into_the_box(self):
    (program,) = self.suite.programs.values()
    for word in ('4, ', '1.5', 'IndexError', 'pytest', 'raises', 'False'):
      self.assertNotIn(word, program)
    # All checks look alike.
    self.assertEqual(program.count('_check('), 4)
    self.assertEqual(program.count('lambda: '), 4)

  @parameterized.parameters(
      'assert f(1)',
      'assert f(1) == g(2)',
      'assert f(1) < 2',
      'assert f(1) is 3',
      'assert f() == __import__("os").getpid()',
      'with pytest.raises(ValueError):\n    f(1)\n    g(2)',
      'with pytest.raises(ring.Error):\n    f(1)',
      'x = 1',
  )
  def test_other_forms_are_refused(self, statement):
    source = f'def test_a():\n  {statement}\n'
    with self.assertRaises(ValueError):
      suite.parse({'t.py': source.encode()})


class PassesTest(parameterized.TestCase):

  @parameterized.parameters(
      (3, 3.0, True),
      (True, 1, True),  # Equal, as with `==`.
      ([1], (1,), False),
      ({'a': (1,)}, {'a': (1,)}, True),
      ({'a': (1,)}, {'a': [1]}, False),
      ({1, 2}, {2, 1}, True),
      ('1', 1, False),
      (0.1 + 0.2, 0.3, False),
      (None, 0, False),
  )
  def test_equal(self, expected, found, passes):
    check = suite.Check('f()', expected)
    self.assertEqual(check.passes(_there_and_back(found)), passes)

  def test_is_is_exact(self):
    check = suite.Check('f()', True, exact=True)
    self.assertTrue(check.passes(_there_and_back(True)))
    for other in (1, 1.0, 'True', [True]):
      self.assertFalse(check.passes(_there_and_back(other)))

  def test_objects_that_equal_everything(self):
    class Equal:
      __eq__ = lambda self, other: True
      __hash__ = None

    class Number(int):
      __eq__ = lambda self, other: True
      __hash__ = int.__hash__

    for hostile in (Equal(), Number(4), [Equal()], {'a': Number(1)}):
      for expected in (3, [3], {'a': 3}, [Equal()], None):
        check = suite.Check('f()', expected)
        self.assertFalse(check.passes(_there_and_back(hostile)), expected)

  def test_exceptions(self):
    check = suite.Check('f()', 'LookupError', raises=True)
    for error, passes in (
        (KeyError('a'), True),
        (IndexError(), True),
        (ValueError('LookupError'), False),
        (type('LookupError', (ValueError,), {})(), False),
        # Only the first builtin class counts, so that one exception cannot
        # match all.
        (type('All', (ValueError, KeyError), {})(), False),
    ):
      found = values.decode(values.encode_error(error))
      self.assertEqual(check.passes(found), passes, error)
    self.assertFalse(check.passes('LookupError'))
    self.assertFalse(suite.Check('f()', 'KeyError').passes(found))

  def test_what_did_not_report_fails(self):
    tests = suite.parse({'t.py': b'def test_a():\n  assert f() is None\n'})
    self.assertEqual(tests.failures({}), {'t.py::test_a': [0]})
    self.assertEqual(tests.failures({'t.py::test_a#0': None}), {})
    self.assertEqual(tests.failures({'t.py::test_a#1': None}),
                     {'t.py::test_a': [0]})  # fmt: skip


class ReadTest(absltest.TestCase):

  def test_the_first_report_of_a_check_counts(self):
    lines = [json.dumps(['a#0', values.encode(n)]) for n in (1, 2)]
    self.assertEqual(suite.read('\n'.join(lines).encode()), {'a#0': 1})

  def test_junk_is_left_out(self):
    good = json.dumps(['a#0', '1'])
    for junk in ('', '{', '[1]', '["a#1", 5]', '["a#1", "["]', '\xff',
                 '["a#1", "[\\"d\\", [[[\\"l\\", []], 1]]]"]',
                 '["a#1", "[\\"f\\", \\"x\\"]"]', '[' * 100_000,
                 '["a#1", "' + '[' * 30_000 + '"]'):  # fmt: skip
      output = f'{junk}\n{good}\n{junk}'.encode('latin-1')
      self.assertEqual(suite.read(output), {'a#0': 1}, junk[:50])


class ValuesTest(parameterized.TestCase):

  def test_there_and_back(self):
    for value in (
        *(0, -1.5, 'a\n\u2028', b'\0', None, [[]], ((1,), [2])),
        *({(1, 2): {3}}, {'a': 1}, 1 << 70),
    ):
      found = _there_and_back(value)
      self.assertEqual(found, value)
      self.assertIs(type(found), type(value))

  def test_what_is_too_much_is_foreign(self):
    endless = []
    endless.append(endless)
    for value in (endless, 'x' * 30_000, [0] * 30_000, 10**5000, object()):
      self.assertIsInstance(_there_and_back(value), values.Foreign)

  def test_nan_and_infinity(self):
    self.assertEqual(_there_and_back(float('inf')), float('inf'))
    self.assertNotEqual(_there_and_back(float('nan')), float('nan'))


def _there_and_back(value):
  return values.decode(values.encode(value))


if __name__ == '__main__':
  absltest.main()
