"""Meshes over slices; what is sharded is in tests/multi_device."""

import types
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from evojax.runtime import sharding


def devices(*slices):
  return [
      types.SimpleNamespace(id=i, slice_index=index)
      for i, index in enumerate(slices)
  ]


class SlicesTest(parameterized.TestCase):

  def parts(self, found, count):
    return [[d.id for d in part] for part in sharding._slices(found, count)]

  def test_devices_stay_in_their_slice(self):
    found = devices(1, 0, 1, 0)  # In whatever order they are listed.
    self.assertEqual(self.parts(found, 2), [[1, 3], [0, 2]])

  def test_others_are_divided_in_their_order(self):
    self.assertEqual(self.parts(devices(0, 0, 0, 0), 2), [[0, 1], [2, 3]])
    self.assertEqual(self.parts(devices(0, 0), 1), [[0, 1]])

  @parameterized.parameters(
      ((0, 0, 1, 1), dict(slice=1, data=4), 'set --config.mesh.slice=2'),
      ((0, 0, 1, 1, 2, 2), dict(slice=2, data=3), 'config.mesh.slice=3'),
      ((0, 0, 0, 1), dict(slice=2, data=2), 'slices of one size'),
      ((0, 0, 0), dict(slice=2, data=-1), 'slice=2, which does not make 3'),
  )
  def test_refused(self, slices, sizes, said):
    sizes = dict(fsdp=1, tensor=1) | sizes
    with self.assertRaisesRegex(ValueError, said):
      sharding.make_mesh(**sizes, devices=devices(*slices))


class GatherTest(absltest.TestCase):

  def test_data_of_many_sizes_need_few_programs(self):
    sent = []

    def stack(x):  # As if the other process had the same.
      sent.append(x.shape)
      return np.stack([x, x])

    with (
        mock.patch.object(jax, 'process_count', lambda: 2),
        mock.patch.object(sharding, '_stack', stack),
    ):
      for size in range(2_000):
        data = bytes([size % 256]) * size
        self.assertEqual(sharding.all_gather(data), [data, data])
    self.assertLess(len(set(sent)), 15)


if __name__ == '__main__':
  absltest.main()
