"""A candidate that does not fit into memory is refused before it trains."""

from absl.testing import absltest

from evojax.evolve.steps import admit
from evojax.runtime import sharding
from evojax.training import memory as memory_lib
from tests import tiny
from tests.modes import plan_test


class TooLargeTest(absltest.TestCase):

  def arm(self, **overrides):
    return memory_lib.Run(
        tiny.make_config('unused', **overrides),
        plan_test.policy(),
        sharding.make_mesh(data=1, fsdp=1, tensor=1),
    )

  def test_a_reference_policy_must_fit(self):
    arm = self.arm(grpo__kl_coef=0.01)
    need = memory_lib.peak(arm)
    self.assertEmpty(admit.too_large(arm, need))
    (reason,) = admit.too_large(arm, need - 1)
    self.assertStartsWith(reason, admit.SIZE_BLOCKED)
    self.assertIn('grpo.kl_coef', reason)
    # The memory of the device is not known.
    self.assertEmpty(admit.too_large(arm, None))

  def test_without_one_an_arm_is_as_large_as_the_run(self):
    self.assertEmpty(admit.too_large(self.arm(), 1))


if __name__ == '__main__':
  absltest.main()
