"""T1 on kernels with an older Landlock: the attacks that pass there.

A box makes the rules of the version that `landlock.version` reports. A newer
kernel leaves open what these rules do not handle, just like an old one. Only
the standard library is needed, so that any interpreter can run this.
"""

from collections.abc import Collection
import dataclasses
from unittest import mock

from evojax.sandbox import landlock
from evojax.sandbox import probe
from tests.sandbox import attacks
from tests.sandbox import program_attacks
from tests.sandbox import repository_attacks

# Limits do not depend on the kernel; these layers do.
_LAYERS = {'landlock', 'seccomp'}


def through(version: int, without: Collection[str] = ()) -> list[str]:
  """Return the faults found by the probe, and the attacks that succeed.

  Args:
    version: The version of Landlock to simulate.
    without: Layers to leave out.

  Raises:
    AssertionError: If a benign program or command fails.
  """
  with mock.patch.object(landlock, 'version', return_value=version):
    found = [] if without else probe.faults('T1')
    for profile, module in (
        ('program', program_attacks),
        ('repository', repository_attacks),
    ):
      range_ = attacks.Range(profile, module.control, limits=module.LIMITS)
      try:
        for attack in module.ATTACKS:
          if _LAYERS & set(attack.layers) and not attack.name.startswith('git'):
            attack = dataclasses.replace(attack, tier='T1')
            if range_.run(attack, set(without))[0]:
              found.append(attack.name)
      finally:
        range_.close()
  return found
