"""Devices that jax should open and does not."""

from absl.testing import absltest
from absl.testing import parameterized
import jax

from evojax.runtime import devices
from tests.runtime import accelerators_test

VERSION = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 2021
GCC version:  gcc version 9.4.0 (Ubuntu 9.4.0-1ubuntu1~20.04.2)
"""


class OpenTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    jax.devices()  # Those of this process are open, and stay: the CPU.

  def test_a_gpu_that_jax_does_not_use(self):
    with accelerators_test.machine(GPU=2) as root:
      with self.assertRaisesRegex(
          ValueError,
          r'^this machine has 2 GPUs, and jax finds only the CPU \(.*cuda.*\):'
          r' see that `nvidia-smi` works and shows driver 525 or newer, and'
          r' start with `bash launch/local.sh`, .*; JAX_PLATFORMS=cpu uses the'
          r' CPU all the same$',
      ):
        devices.open_all()
      path = root / 'proc' / 'driver' / 'nvidia' / 'version'
      path.parent.mkdir(parents=True)
      path.write_text(VERSION)
      with self.assertRaisesRegex(ValueError, r'\(loaded is 470.57.02\), and'):
        devices.describe()

  def test_a_tpu_that_another_process_holds(self):
    real = jax.devices
    held = RuntimeError(
        "Backend 'tpu' failed to initialize: ABORTED: The TPU is already in\n"
        ' use by process with pid 7.'
    )
    answers = lambda *platform: real() if not platform else self.throw(held)
    with (
        accelerators_test.machine(TPU=4),
        absltest.mock.patch.object(jax, 'devices', answers),
        self.assertRaisesRegex(
            ValueError, r'has 4 TPU chips, .* in use by process with pid 7\): '
        ),
    ):
      devices.open_all()

  def throw(self, error):
    raise error

  @parameterized.parameters(
      dict(),
      dict(GPU=1, platforms='cpu'),
      dict(TPU=1, platforms='cpu'),
      dict(GPU=1, CUDA_VISIBLE_DEVICES=''),
  )
  def test_the_cpu_was_asked_for_or_is_all(self, **files):
    with accelerators_test.machine(**files):
      self.assertEqual(devices.open_all(), jax.devices())

  def test_what_jax_cannot_open_is_one_line(self):
    failed = RuntimeError("Unable to initialize backend 'cuda':\n no device.")
    patch = absltest.mock.patch.object
    with (
        accelerators_test.machine(GPU=1, platforms='cuda,cpu'),
        patch(jax, 'devices', side_effect=failed),
    ):
      with self.assertRaisesRegex(
          ValueError, "^Unable to .* 'cuda': no device; see .*; JAX_PLATFORMS=c"
      ):
        devices.open_all()
      # Another process may have ended; `peers` says which.
      with patch(jax.distributed, 'is_initialized', return_value=True):
        with self.assertRaises(RuntimeError):
          devices.open_all()


if __name__ == '__main__':
  absltest.main()
