"""The tier is determined by attacks that fail, not by claims."""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.sandbox import limits as limits_lib
from evojax.sandbox import probe


class ChooseTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    probe._find.cache_clear()
    self.addCleanup(probe._find.cache_clear)

  def _choose(self, held, **arguments):
    faults = lambda tier: [] if tier in held else [f'{tier} is broken']
    with mock.patch.object(probe, 'faults', faults):
      return probe.choose(**arguments)

  @parameterized.parameters(
      (('T0', 'T1'), 'T0', ()),
      (('T0',), 'T0', ()),
      (('T1',), 'T1', ('T0',)),
  )
  def test_the_strongest_that_holds(self, held, tier, refused):
    report = self._choose(held)
    self.assertEqual(report.tier, tier)
    self.assertSequenceEqual(tuple(report.faults), refused)
    for other in refused:
      self.assertIn(f'{other} does not hold: {other} is broken', str(report))

  def test_nothing_holds(self):
    with self.assertRaisesRegex(
        probe.WeakSandboxError,
        r'(?s)T0 is broken.*T1 is broken.*--allow_weak_sandbox',
    ):
      self._choose(())

  def test_the_weak_tier_is_loud(self):
    report = self._choose((), allow_weak=True)
    self.assertEqual(report.tier, 'T2')
    self.assertIn('LIMITS RESOURCES ONLY', str(report))

  def test_the_tier_of_a_process(self):
    """The answer at the start of a process holds for all later callers."""
    self.enterContext(mock.patch.dict(probe._said))
    with mock.patch.object(probe, 'faults', lambda tier: ['broken']):
      with self.assertRaises(probe.WeakSandboxError):
        probe.tier()
      self.assertEqual(probe.tier(allow_weak=True), 'T2')
      self.assertEqual(probe.tier(), 'T2')
      with self.assertRaises(probe.WeakSandboxError):
        probe.tier(allow_weak=False)
      with self.assertRaises(probe.WeakSandboxError):
        probe.tier()

  def test_it_is_found_out_once(self):
    with mock.patch.object(probe, 'faults', return_value=[]) as faults:
      probe.choose()
      probe.choose(allow_weak=True)
    faults.assert_called_once_with('T0')


class FaultsTest(absltest.TestCase):

  def test_every_attack_gets_through_where_nothing_is_shut(self):
    """Otherwise its failure elsewhere would prove nothing."""
    open_to_all = dict(limits_lib.TIERS, T2=frozenset(('clock',)))
    with mock.patch.object(limits_lib, 'TIERS', open_to_all):
      found = probe.faults('T2')
    self.assertLen(found, len(probe._ATTACKS), found)

  def test_a_tier_in_which_programs_fail_does_not_hold(self):
    """Broken imports would stop every attack."""
    controls = (('imports', 'import nothing', b'', b''),)
    with mock.patch.object(probe, '_CONTROLS', controls):
      self.assertRegex(
          probe.faults('T2')[0], 'imports: error ModuleNotFoundError'
      )

  def test_a_layer_that_is_missing_is_noticed(self):
    """T0 fails without any one of the layers that its attacks target."""
    if probe.faults('T0'):
      self.skipTest('T0 does not hold here')
    all_but_files = ('namespaces', 'landlock', 'seccomp', 'uid')
    for missing, attacks in (
        (('landlock', 'root'), 'reads_a_key changes_a_file'),
        (('quota',), 'fills_the_disk fills_a_hidden_folder'
         ' fills_files_without_names'),
        (('landlock', 'seccomp'), 'daemonises asks_a_device'
         ' asks_about_the_parent'),
        (all_but_files, 'opens_tcp kills_the_parent signals_from_a_command'
         ' opens_an_abstract_socket'),
        (('environment',), 'reads_the_environment'),
    ):  # fmt: skip
      with self.subTest(missing):
        weak = limits_lib.TIERS['T0'] - frozenset(missing)
        tiers = dict(limits_lib.TIERS, T0=weak)
        with mock.patch.object(limits_lib, 'TIERS', tiers):
          found = probe.faults('T0')
        for attack in attacks.split():
          self.assertIn(f'an attack got through: {attack}', found)


if __name__ == '__main__':
  absltest.main()
