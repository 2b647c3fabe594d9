"""Pure functions attack the box."""

import dataclasses
import os
import pathlib
import pickle
import shutil
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.sandbox import box
from tests.sandbox import attacks
from tests.sandbox import program_attacks
from tests.sandbox import pure_attacks
from tests.sandbox import pure_entry

_ENTRY = dict(
    entry=box.Entry(
        pure_entry.__file__, [str(pathlib.Path(np.__file__).parent.parent)]
    )
)
_GOT = np.full(8, 7.0).tobytes()
_CONTROL = """
import numpy as np
def f(x):
  y = np.argsort(np.cumsum(np.exp(x) - x.mean()))
  return np.where(y > 3, np.clip(x, 1.0, 2.0), np.median(y))
"""


def control(range_, one):
  """Check benign use: sorting, sums, means, choices."""
  result = range_.call(one, _CONTROL)
  # y = 0..7, whose median is 3.5; zeros are clipped to 1.
  expected = np.array([3.5] * 4 + [1.0] * 4).tobytes()
  assert (result.status, result.stdout) == ('ok', expected), result


def got(result):
  return result.stdout == _GOT


class PureAttacksTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if missing := attacks.missing('T0'):
      raise cls.skipTest(cls, missing)
    cls._range = attacks.Range('pure', control, **_ENTRY)
    cls.addClassCleanup(cls._range.close)

  @parameterized.named_parameters(attacks.named(pure_attacks.ATTACKS))
  def test(self, attack):
    if attack.succeeded is None:
      attack = dataclasses.replace(attack, succeeded=got)
    self._range.check(attack)

  @parameterized.parameters(*pure_attacks.STATE)
  def test_a_call_knows_nothing_of_the_one_before(self, name):
    first, second = pure_attacks.STATE[name]
    with self._box() as one:
      # In a single process, it would succeed.
      together = one.run(f'{first}\n-----\n{second}', bytes(64))
      self.assertEqual(together.stdout, _GOT, together)
      self.assertEqual(one.run(first, bytes(64)).status, 'ok')
      self.assertEqual(one.run(second, bytes(64)).stdout, bytes(64))

  @parameterized.parameters(*pure_attacks.PARENT)
  def test_the_parent_is_not_there(self, name):
    answer_key = 42
    # With a list in it; otherwise a collection may stop tracking the dict.
    holder = {'answer_key': answer_key, 'others': []}
    source = pure_attacks.PARENT[name]
    # In this process, it would succeed.
    self.assertEqual(pure_entry.call(source, bytes(64)), _GOT)
    with self._box() as one:
      self.assertEqual(one.run(source, bytes(64)).stdout, bytes(64))
    del holder

  @parameterized.parameters(
      'os.pwrite(0, x.tobytes(), 0)',
      'os.pwrite(0, bytes(80), 64)',
  )
  def test_what_it_is_given_stays_as_it_is(self, what):
    """Also for the next call in the same process."""
    source = f'import os\ndef f(x):\n  {what}\n  return x'
    with self._box() as one:
      result = one.run(source, bytes(64))
    self.assertEqual((result.status, result.stdout), ('error', b''), result)

  def test_what_it_changes_is_its_own(self):
    source = 'def f(x):\n  x[:] = 7.0\n  return x'
    data = bytearray(64)
    self.assertEqual(pure_entry.call(source, data), _GOT)
    self.assertEqual(bytes(data), _GOT)
    data = bytearray(64)
    with self._box() as one:
      result = one.run(source, data)
    self.assertEqual(result.status, 'error')
    self.assertIn('read-only', result.message)
    self.assertEqual(bytes(data), bytes(64))

  def test_an_answer_is_bytes(self):
    """A reader does not run code, as unpickling would."""
    folder = tempfile.mkdtemp()
    self.addCleanup(shutil.rmtree, folder)
    source = (
        'import os, pickle\n'
        'class P:\n'
        f'  def __reduce__(self): return os.mkdir, ({folder + "/GOT"!r},)\n'
        'P.__module__ = "__main__"\n'
        'def f(x): return pickle.dumps(P())'
    )
    with self._box() as one:
      result = one.run(source, bytes(64))
      self.assertEqual(result.status, 'ok', result)
    self.assertEmpty(os.listdir(folder))
    pickle.loads(result.stdout)
    self.assertLen(os.listdir(folder), 1)

  def _box(self):
    return box.Box('pure', tier='T0', limits=attacks.LIMITS, **_ENTRY)


class SuiteTest(absltest.TestCase):

  def test_there_are_enough(self):
    self.assertGreaterEqual(len(pure_attacks.ATTACKS), 60)

  def test_it_is_not_the_programs_suite(self):
    names = {a.source for a in program_attacks.ATTACKS}
    self.assertEmpty(names & {a.source for a in pure_attacks.ATTACKS})


if __name__ == '__main__':
  absltest.main()
