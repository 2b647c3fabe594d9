"""T1 holds with every version of Landlock that a kernel may have."""

import os

from absl.testing import absltest
from absl.testing import parameterized

from evojax.sandbox import landlock
from tests.sandbox import attacks
from tests.sandbox import older_kernels

_VERSIONS = range(1, min(6, landlock.version()) + 1)
# Attacks stopped by Landlock from a version on, and by seccomp before it.
_OF_VERSIONS = {
    'truncate from a weaker tier': landlock.TRUNCATES,
    'signal to another process': landlock.SIGNALS,
}


@absltest.skipIf(attacks.missing('T1'), 'T1 does not hold here')
class OlderKernelsTest(parameterized.TestCase):

  @parameterized.parameters(*_VERSIONS)
  def test_nothing_gets_past_it(self, version):
    self.assertEqual(older_kernels.through(version), [])

  def test_old_rules_leave_open_what_an_old_kernel_does(self):
    """Otherwise these tests would not distinguish the versions."""
    for version in (1, 6):
      found = older_kernels.through(version, ('seccomp',))
      for name, first in _OF_VERSIONS.items():
        self.assertEqual(name in found, version < first, (version, name))

  @parameterized.parameters('root', 'nobody')
  @absltest.skipIf(os.geteuid() != 0, 'only root can become another user')
  def test_other_users(self, user):
    """Root uses one user per slot if all users may read the interpreter."""
    source = (
        'from tests.sandbox import attacks, older_kernels\n'
        'from evojax.sandbox import box\n'
        'print(box.Box(tier="T1").own_user)\n'
        'for version in (1, 5):\n'
        '  print(older_kernels.through(version))\n'
    )
    said = attacks.run_elsewhere(self, source, 0 if user == 'root' else 65534)
    self.assertEqual(said, f'{user == "root"}\n[]\n[]\n')


if __name__ == '__main__':
  absltest.main()
