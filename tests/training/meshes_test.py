"""The mesh of a run on more or fewer devices than its config names."""

import contextlib
import tempfile
import types

from absl.testing import absltest
from absl.testing import parameterized
import jax

from evojax.runtime import sharding
from evojax.training import memory
from evojax.training import meshes
from evojax.training import settings
from tests import tiny
from tests.runtime import accelerators_test

_AXES = 'slice', 'data', 'fsdp', 'tensor'


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

  def test_the_mesh_of_a_run_is_not_silently_on_the_cpu(self):
    jax.devices()  # Those of this process are open, and stay.
    config = tiny.make_config(self.policy)
    policy = settings.open_policy(config)
    with accelerators_test.machine(TPU=1):
      with self.assertRaisesRegex(ValueError, '1 TPU chip, and jax finds only'):
        meshes.open_mesh(config, policy)
      with self.assertRaisesRegex(ValueError, '1 TPU chip, and jax finds only'):
        sharding.make_mesh(data=1, fsdp=1, tensor=1)

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

  def on_mesh(self, asked, found, **overrides):
    """A run that asks for a mesh, on another one."""
    names = 'rollout__decode_slots', 'rollout__prefill_rows', 'grpo__prompts'
    sizes = dict.fromkeys((*names, 'grpo__micro_groups'), 8)
    sizes |= {f'mesh__{axis}': n for axis, n in zip(_AXES, asked, strict=True)}
    config = tiny.make_config(self.policy, **sizes | overrides)
    mesh = jax.sharding.AbstractMesh(found, _AXES)
    return memory.Run(config, settings.open_policy(config), mesh)

  def test_only_a_run_that_has_begun_takes_another_mesh(self):
    run = self.on_mesh((1, 1, 4, 2), (1, 1, 2, 2))
    self.assertEqual(
        meshes.refusal(run, None, begins=False, trains=True), ''
    )
    self.assertRegex(
        meshes.refusal(run, None, begins=True, trains=True),
        'config.mesh asks for data=1 fsdp=4 tensor=2, and there are 4 devices;'
        ' the nearest mesh for them is data=1 fsdp=2 tensor=2, .*: start on 8'
        ' devices, or add --config.mesh.fsdp=2$',
    )

  @parameterized.named_parameters(
      ('the default', (1, 1, 1, 1), (1, 4, 1, 1)),
      # -1 is no size that a config writes.
      ('the rest', (1, 1, -1, 1), (1, 1, 4, 2)),
  )
  def test_what_no_config_writes_is_taken_at_once(self, asked, found):
    run = self.on_mesh(asked, found)
    self.assertEqual(meshes.refusal(run, None, begins=True, trains=True), '')

  @parameterized.parameters(True, False)
  def test_a_mesh_with_too_little_memory(self, begins):
    run = self.on_mesh((1, 1, 4, 2), (1, 1, 1, 2))
    need = memory.peak(run)
    of = lambda limit, trains=True: meshes.refusal(
        run, limit, begins=begins, trains=trains
    )
    self.assertNotIn('has 0', of(need))
    self.assertRegex(
        of(need - 1),
        rf'data=1 fsdp=1 tensor=2, on which a device needs up to'
        rf' {need / 2**30:.2f} GiB .* and has {(need - 1) / 2**30:.2f} GiB:'
        ' start on 8 devices, or change values that --mode=plan'
        ' --config.mesh.fsdp=1 names. To start in spite .*=1$',
    )
    # To score a policy takes no gradients and no moments.
    samples = memory.peak(run, trains=False)
    kept = memory.resident(run)
    self.assertLess(samples, need - kept['optimizer moments'])
    self.assertGreater(samples, kept['parameters'] + kept['rollout cache'])
    self.assertNotIn('has 0', of(samples, trains=False))
    self.assertIn('has 0', of(samples - 1, trains=False))

  def test_the_memory_of_this_machine(self):
    one = jax.devices()[:1]
    small, large = (
        self.on_mesh((1, 1, 2, 1), (1, 1, 1, 1), rollout__decode_slots=slots)
        for slots in (8, 2**24)
    )
    for run, reason in ((small, ''), (large, 'a device needs up to')):
      mesh = meshes.open_mesh(run.config, run.policy, one)
      self.assertEqual(mesh.size, 1)
      with (
          self.assertRaisesRegex(ValueError, reason)
          if reason
          else contextlib.nullcontext()
      ):
        meshes.accept(run.config, run.policy, mesh)


if __name__ == '__main__':
  absltest.main()
