"""Programs attack the box."""

from absl.testing import absltest
from absl.testing import parameterized

from evojax.sandbox import box
from tests.sandbox import attacks
from tests.sandbox import program_attacks


class ProgramAttacksTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if missing := attacks.missing('T0'):
      raise cls.skipTest(cls, missing)
    cls._range = attacks.Range('program', program_attacks.control)
    cls.addClassCleanup(cls._range.close)

  @parameterized.named_parameters(attacks.named(program_attacks.ATTACKS))
  def test(self, attack):
    self._range.check(attack)


class StateTest(parameterized.TestCase):

  @parameterized.product(name=[*program_attacks.STATE], tier=('T0', 'T1'))
  def test_a_run_knows_nothing_of_the_one_before(self, name, tier):
    if missing := attacks.missing(tier):
      self.skipTest(missing)
    second = program_attacks.STATE[name]
    # Long, so that it is stored where long strings are.
    first = f'said = "said {program_attacks.WORD}"  {"#" * 2000}\n'
    with box.Box(tier=tier, limits=attacks.LIMITS, attempts=1) as one:
      # In a single process, it would succeed.
      together = one.run(first + second)
      self.assertTrue(attacks.got(together), together)
      self.assertEqual(one.run(first).status, 'ok')
      alone = one.run(second)
      self.assertEqual((alone.status, alone.stdout), ('ok', b''), alone)


class SuiteTest(absltest.TestCase):

  def test_there_are_enough(self):
    self.assertGreaterEqual(len(program_attacks.ATTACKS), 40)


if __name__ == '__main__':
  absltest.main()
