"""The mesh of a run on more or fewer devices than its config names."""

import tempfile
import types

from absl.testing import absltest
from absl.testing import parameterized

from evojax.training import meshes
from evojax.training import settings
from tests import tiny


class FittingTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.policy = tiny.make_policy(
        cls.enterClassContext(tempfile.TemporaryDirectory()), kv_heads=2
    )

  def fitting(self, asked, count, in_slices=1, **overrides):
    """The mesh of a run whose batches split over 16 devices."""
    slices, data, fsdp, tensor = asked
    sizes = dict(
        rollout__decode_slots=16,
        rollout__prefill_rows=16,
        grpo__micro_groups=16,
        grpo__prompts=16,
        mesh__slice=slices,
        mesh__data=data,
        mesh__fsdp=fsdp,
        mesh__tensor=tensor,
    )
    config = tiny.make_config(self.policy, **sizes | overrides)
    policy = settings.open_policy(config)
    return tuple(meshes.fitting(config, policy, count, in_slices).values())

  @parameterized.named_parameters(
      ('as asked', (1, 2, 2, 2), 8, (1, 2, 2, 2)),
      ('fewer replicas first', (1, 4, 2, 1), 4, (1, 2, 2, 1)),
      ('a replica of another kind', (2, 2, 2, 1), 4, (2, 1, 2, 1)),
      ('then fsdp', (1, 1, 4, 2), 4, (1, 1, 2, 2)),
      ('fsdp to the end', (1, 1, 4, 2), 2, (1, 1, 1, 2)),
      ('then tensor', (1, 1, 4, 2), 1, (1, 1, 1, 1)),
      ('more replicas', (1, 1, 4, 2), 16, (1, 2, 4, 2)),
      ('one device no more', (1, 1, 1, 1), 8, (1, 8, 1, 1)),
      ('the rest', (1, -1, 2, 1), 8, (1, 4, 2, 1)),
      ('the rest is too few', (1, -1, 4, 2), 2, (1, 1, 1, 2)),
      ('slices that are gone', (2, 1, 4, 2), 8, (1, 1, 4, 2)),
  )
  def test_mesh(self, asked, count, expected):
    self.assertEqual(self.fitting(asked, count), expected)

  def test_devices_lie_in_slices(self):
    self.assertEqual(self.fitting((1, -1, 4, 1), 16, 2), (2, 2, 4, 1))
    devices = [types.SimpleNamespace(slice_index=i) for i in (0, 0, 1, 1)]
    self.assertEqual(meshes.slices_of(devices), 2)

  def test_a_batch_that_has_too_few_parts(self):
    """No batch has eight; tensor makes up for fsdp."""
    sizes = dict.fromkeys(('rollout__decode_slots', 'rollout__prefill_rows'), 4)
    sizes |= dict(grpo__micro_groups=4, grpo__group_size=3)
    found = self.fitting((1, 1, -1, 1), 8, **sizes)
    self.assertEqual(found, (1, 1, 4, 2))

  def test_fewer_parameters_per_device_matter_more_than_the_axis(self):
    """The 16 hidden features have no 32 parts, and 16 would be twice each."""
    names = 'rollout__decode_slots', 'rollout__prefill_rows', 'grpo__prompts'
    sizes = dict.fromkeys((*names, 'grpo__micro_groups'), 32)
    found = self.fitting((1, 1, -1, 1), 32, **sizes)
    self.assertEqual(found, (1, 1, 16, 2))

  def test_what_cannot_be_split_is_refused(self):
    with self.assertRaisesRegex(
        ValueError,
        r'config.mesh asks for data=1 fsdp=4 tensor=2, and there are 3 devices,'
        r' over which no mesh splits this run: start it on 2 or 8 devices.*With'
        r' data=1 fsdp=1 tensor=3, .*tensor=3 does not divide the 2 key/value',
    ):
      self.fitting((1, 1, 4, 2), 3)

  def test_slices_of_other_sizes(self):
    with self.assertRaisesRegex(ValueError, '9 devices cannot .* 2 slices'):
      self.fitting((1, 1, 4, 2), 9, 2)


if __name__ == '__main__':
  absltest.main()
