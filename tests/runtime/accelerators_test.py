"""Accelerators: counted by files of devices, and divided among processes."""

import contextlib
import os
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import jax

from evojax.runtime import accelerators

MESH = dict(slice=1, data=1, fsdp=1, tensor=1)


@contextlib.contextmanager
def machine(*, GPU=0, TPU=0, platforms='', **variables):
  """Let this machine have device files of accelerators; yield its root."""
  rest = {
      k: v
      for k, v in os.environ.items()
      if not k.startswith(('CUDA_', 'TPU_', 'XLA_', 'JAX_', 'ALLOW_'))
  }
  before = jax.config.jax_platforms
  with (
      tempfile.TemporaryDirectory() as folder,
      absltest.mock.patch.dict(os.environ, rest | variables, clear=True),
      absltest.mock.patch.object(
          accelerators, '_ROOT', pathlib.Path(folder)
      ) as root,
  ):
    (root / 'dev' / 'vfio').mkdir(parents=True)
    (root / 'dev' / 'accel').mkdir()  # GPU drivers make it, too.
    for name in ('nvidiactl', 'nvidia-uvm', 'vfio/vfio'):
      (root / 'dev' / name).touch()
    for i in range(GPU):
      (root / 'dev' / f'nvidia{i}').touch()
    for i in range(TPU):
      (root / 'dev' / f'accel{i}').touch()
    jax.config.update('jax_platforms', platforms)
    try:
      yield root
    finally:
      jax.config.update('jax_platforms', before)


def add_vfio(root, group, vendor):
  """Add a device of the driver VFIO."""
  (root / 'dev' / 'vfio' / str(group)).touch()
  path = root / f'sys/kernel/iommu_groups/{group}/devices/0000:00:05.0'
  path.mkdir(parents=True)
  (path / 'vendor').write_text(f'{vendor}\n')


class FindTest(parameterized.TestCase):

  @parameterized.parameters(
      ({}, None),
      (dict(GPU=2), '2 GPUs'),
      (dict(GPU=1), '1 GPU'),
      (dict(TPU=4), '4 TPU chips'),
      (dict(GPU=2, platforms='cpu'), None),
      (dict(GPU=2, platforms='cuda,cpu'), '2 GPUs'),
      (dict(TPU=4, platforms='tpu,cpu'), '4 TPU chips'),
      (dict(GPU=2, TPU=4, platforms='cuda'), '2 GPUs'),
      (dict(GPU=4, CUDA_VISIBLE_DEVICES='2,3'), '2 GPUs'),
      (dict(GPU=4, CUDA_VISIBLE_DEVICES='2,-1,3'), '1 GPU'),
      (dict(GPU=4, CUDA_VISIBLE_DEVICES=''), None),
      (dict(CUDA_VISIBLE_DEVICES='0'), None),
      (dict(TPU=4, TPU_VISIBLE_CHIPS='1'), '1 TPU chip'),
  )
  def test_what_jax_should_find(self, files, expected):
    with machine(**files):
      found = accelerators.find()
      self.assertEqual(found and found.text, expected)

  def test_only_groups_of_google_are_tpus(self):
    with machine() as root:
      for group in (0, 1, 10):
        add_vfio(root, group, '0x1ae0')
      add_vfio(root, 7, '0x15b3')
      self.assertEqual(accelerators.find().text, '3 TPU chips')

  def test_one_file_stands_for_the_gpus_of_wsl(self):
    with machine() as root:
      # Every WSL 2 has it, also beside a GPU of another vendor.
      (root / 'dev' / 'dxg').touch()
      self.assertIsNone(accelerators.find())
      library = root / 'usr' / 'lib' / 'wsl' / 'lib' / 'libcuda.so.1'
      library.parent.mkdir(parents=True)
      library.touch()
      self.assertEqual(accelerators.find().text, '1 GPU')


class DivideTest(parameterized.TestCase):

  @parameterized.parameters(
      (dict(GPU=4), 4, {}, ['0', '1', '2', '3']),
      (dict(GPU=8), 3, {}, ['0,1', '2,3', '4,5']),
      (dict(GPU=7), 2, {}, ['0,1', '2,3']),
      (dict(GPU=6), 2, dict(data=3), ['0,1,2', '3,4,5']),
      (dict(GPU=8), 2, dict(fsdp=3, data=-1), ['0,1,2', '3,4,5']),
      (dict(GPU=4), 2, dict(fsdp=2), ['0,1', '2,3']),
      (dict(GPU=8, CUDA_VISIBLE_DEVICES='4,6'), 2, {}, ['4', '6']),
  )
  def test_each_gets_gpus_of_its_own(self, files, workers, mesh, expected):
    with machine(**files):
      shares = accelerators.divide(workers, [MESH | mesh], beside=False)
    found = [share.variables for share in shares]
    self.assertEqual(found, [{'CUDA_VISIBLE_DEVICES': x} for x in expected])
    self.assertEqual(
        [share.devices for share in shares],
        [len(x.split(',')) for x in expected],
    )

  @parameterized.parameters(
      (4, ['0', '1', '2', '3'], '1,1,1'),
      (3, ['0', '1', '2'], '1,1,1'),
      (2, ['0,1', '2,3'], '1,2,1'),
  )
  def test_each_gets_chips_of_its_own(self, workers, chips, bounds):
    with machine(TPU=4):
      shares = accelerators.divide(workers, [MESH], beside=False)
    found = [share.variables for share in shares]
    self.assertEqual([v['TPU_VISIBLE_CHIPS'] for v in found], chips)
    for variables in found:
      self.assertEqual(variables['TPU_CHIPS_PER_PROCESS_BOUNDS'], bounds)
      self.assertEqual(variables['TPU_PROCESS_BOUNDS'], '1,1,1')

  def test_this_process_gets_a_share_if_it_has_devices(self):
    with machine(GPU=3):
      shares = accelerators.divide(2, [MESH], beside=True)
      self.assertLen(shares, 3)
      accelerators.take(shares[0])
      self.assertEqual(accelerators.find().ids, ('0',))

  @parameterized.parameters(
      (dict(), 8, False),
      (dict(GPU=1, platforms='cpu'), 8, True),
      (dict(GPU=1), 1, False),
      (dict(TPU=8), 1, False),
      (dict(GPU=1, XLA_CLIENT_MEM_FRACTION='0.33'), 2, True),
      (dict(GPU=1, XLA_CLIENT_MEM_FRACTION='0.5'), 2, False),
      (dict(GPU=1, XLA_PYTHON_CLIENT_MEM_FRACTION='0.5'), 1, True),
      (dict(GPU=1, XLA_PYTHON_CLIENT_PREALLOCATE='false'), 4, True),
  )
  def test_all_use_the_same(self, files, workers, beside):
    with machine(**files):
      self.assertEmpty(accelerators.divide(workers, [MESH], beside=beside))

  @parameterized.parameters(
      (
          dict(GPU=1),
          2,
          False,
          {},
          '^--executor=local --workers=2: each of 2 processes needs 1 GPU of'
          ' its own, since it takes 75% of their memory, and this machine has 1'
          ' GPU: use --workers=1, or set XLA_CLIENT_MEM_FRACTION=0.5 so that'
          ' they share all GPUs, or use --executor=inprocess or ray$',
      ),
      (
          dict(GPU=1, XLA_CLIENT_MEM_FRACTION='0.92'),
          2,
          True,
          {},
          r'each of 3 processes \(with this one\) needs .* takes 92% .*has 1'
          r' GPU: set XLA_CLIENT_MEM_FRACTION=0.33 ',
      ),
      (dict(GPU=4), 4, True, {}, 'each of 5 .*: use --workers=3, or set'),
      (dict(GPU=4), 3, False, dict(data=2), '2 GPUs of.*--workers=2,'),
      (
          dict(TPU=1),
          1,
          True,
          {},
          'needs 1 TPU chip of its own, since beside others, one can hold 1 or'
          ' 2 whole chips, and this machine has 1 TPU chip: use --ex',
      ),
      (dict(TPU=8), 2, False, dict(fsdp=4), '4 TPU .* has 8 TPU chips: use'),
  )
  def test_too_few(self, files, workers, beside, mesh, message):
    with machine(**files):
      with self.assertRaisesRegex(ValueError, message):
        accelerators.divide(workers, [MESH | mesh], beside=beside)


if __name__ == '__main__':
  absltest.main()
