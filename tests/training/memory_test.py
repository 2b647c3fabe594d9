"""The memory of shipped configs, compared with what libtpu reserved for them.

tests/tpu_aot compiles them, which takes minutes; here are its results.
"""

import dataclasses
import importlib
import pathlib
import re

from absl.testing import absltest
from absl.testing import parameterized
import jax

from evojax import domains
from evojax.models import policy as policy_lib
from evojax.models import tokenizer as tokenizer_lib
from evojax.runtime import config_checks
from evojax.runtime import devices
from evojax.runtime import sharding
from evojax.training import memory
from tests import tiny
from tests.tpu_aot import programs

# Bytes per chip of the temporaries of an update, the largest program, compiled
# with little effort for the topology of tests/tpu_aot (2026-11-25).
RESERVED = (
    ('math', 'qwen3_0p6b', {}, 2_814_050_816),
    ('math', 'qwen3_0p6b', {'grpo.kl_coef': 0.01}, 2_814_050_816),
    (  # As much as fits: 14.5 of 15.75 GiB.
        'math',
        'qwen3_0p6b',
        {'grpo.group_size': 12, 'grpo.micro_groups': 16},
        15_065_170_432,
    ),
    ('math', 'qwen3_8b', {}, 38_584_041_952),
    ('math', 'qwen3_8b', {'mesh.slice': 2}, 24_952_160_800),
    ('swe', 'qwen3_0p6b', {}, 2_290_827_776),
    ('swe', 'qwen3_8b', {}, 26_852_753_888),
)


def shipped(name, variant, changes):
  """A shipped config on the mesh that it names, without devices."""
  config = importlib.import_module(f'configs.{name}').get_config(variant)
  with config.unlocked():
    config.update_from_flattened_dict(changes)
  computed = {field: config.model[field] for field in policy_lib.COMPUTED}
  policy = policy_lib.Policy(
      pathlib.Path('unused'),
      dataclasses.replace(programs.SHAPES[variant], **computed),
      tokenizer_lib.Tokenizer(domains.policy_path('package:math')),
  )
  sizes = tuple(config.mesh[axis] for axis in sharding.MESH_AXES)
  mesh = jax.sharding.AbstractMesh(sizes, sharding.MESH_AXES)
  return memory.Run(config, policy, mesh)


class ShippedTest(parameterized.TestCase):

  @parameterized.parameters(*RESERVED)
  def test_the_plan_is_within_15_percent(self, name, variant, changes, size):
    run = shipped(name, variant, changes)
    bounds = dict(memory.bounds(run))
    self.assertEqual(max(bounds, key=bounds.get), 'update')
    kept = sum(memory.resident(run).values())
    self.assertBetween((kept + bounds['update']) / (kept + size), 1, 1.15)
    # The same without the resident bytes, which hide an error.
    self.assertBetween(bounds['update'] / size, 1, 1.25)


class DocumentedTest(absltest.TestCase):

  def test_the_commands_for_gpu_nodes_fit_eight_h100(self):
    text = (tiny.ROOT / 'docs/gpu_nodes.md').read_text()
    blocks = re.findall(r'```\n(.*?)```', text, re.DOTALL)
    flag = re.compile(r'--config\.mesh\.(\w+)=(\d+)')
    meshes = [dict(flag.findall(block)) for block in blocks[:2]]
    (variant,) = re.findall(r'--config=configs/math\.py:(\w+)', blocks[0])
    # The second command, for two nodes, leaves out what it has in common.
    for sizes in (meshes[0], meshes[0] | meshes[1]):
      changes = {f'mesh.{axis}': int(size) for axis, size in sizes.items()}
      run = shipped('math', variant, changes)
      with self.subTest(**run.mesh.shape):
        self.assertEqual(run.mesh.shape['fsdp'], 8)
        config_checks.check_mesh(run.config, run.mesh.shape)
        limit = devices.DEVICES['NVIDIA H100'].memory_bytes
        self.assertLessEqual(memory.peak(run), 0.95 * limit)


if __name__ == '__main__':
  absltest.main()
