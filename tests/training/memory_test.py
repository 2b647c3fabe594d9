"""The memory of shipped configs, compared with what their compilers reserved.

tests/tpu_aot and tests/gpu_aot compile them, which takes minutes; here are the
results.
"""

import re

from absl.testing import absltest
from absl.testing import parameterized
import jax

from benchmarks import random_qwen3
from evojax.runtime import config_checks
from evojax.runtime import devices
from evojax.runtime import sharding
from evojax.training import memory
from tests import tiny
from tests.aot import programs
from tests.gpu_aot import compile_test

# Bytes per chip of the temporaries of an update, the largest program, compiled
# with little effort for the topology of tests/tpu_aot (2026-11-25).
TPUS = (
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
# The same per H100, for the runs of tests/gpu_aot (2026-11-26).
H100S = {
    'reference_0p6b': 12_536_941_225,
    'reference_1p7b': 25_043_897_001,
    'reference_8b': 12_679_074_001,
    'math_0p6b': 2_771_366_057,
    'math_8b': 27_976_116_433,
    'swe_0p6b': 2_745_766_313,
    'swe_8b': 21_320_389_841,
}


def shipped(name, shape, changes, platform):
  """A shipped config on the mesh that it names, without devices.

  Args:
    name: 'math:qwen3_8b'.
    shape: The policy's, one of programs.SHAPES.
    changes: Values of config fields.
    platform: That of the devices; '': unknown.
  """
  config = programs.shipped_config(name, changes)
  policy = random_qwen3.without_weights(programs.SHAPES[shape], config)
  sizes = tuple(config.mesh[axis] for axis in sharding.MESH_AXES)
  mesh = jax.sharding.AbstractMesh(sizes, sharding.MESH_AXES)
  return memory.Run(config, policy, mesh, platform)


def on_gpus(name, platform='gpu'):
  """A run of tests/gpu_aot, without devices."""
  config, shape, count, changes = compile_test.RUNS[name]
  changes = {'mesh.fsdp': count} | changes  # A config may take all that exist.
  return shipped(config, shape, changes, platform)


class ShippedTest(parameterized.TestCase):

  @parameterized.parameters(*TPUS)
  def test_tpus(self, name, variant, changes, size):
    run = shipped(f'{name}:{variant}', variant, changes, 'tpu')
    self.check(run, size)

  @parameterized.parameters(*H100S.items())
  def test_gpus(self, name, size):
    self.check(on_gpus(name), size)

  def check(self, run, size):
    """Check that the plan is above, by at most 15 percent."""
    bounds = dict(memory.bounds(run))
    self.assertEqual(max(bounds, key=bounds.get), 'update')
    kept = sum(memory.resident(run).values())
    self.assertBetween((kept + bounds['update']) / (kept + size), 1, 1.15)
    # The same without the resident bytes, which hide an error.
    self.assertBetween(bounds['update'] / size, 1, 1.25)

  def test_the_recorded_runs_are_those_that_are_compiled(self):
    self.assertEqual(H100S.keys(), compile_test.RUNS.keys())

  def test_devices_of_an_unknown_kind(self):
    run = on_gpus('reference_8b', '')
    gpu, tpu = (dict(memory.bounds(run.on(name))) for name in ('gpu', 'tpu'))
    # Each compiler needs more than the other for some program.
    self.assertGreater(gpu['update'], tpu['update'])
    self.assertGreater(tpu['decode'], gpu['decode'])
    self.assertEqual(
        dict(memory.bounds(run)), {k: max(gpu[k], tpu[k]) for k in gpu}
    )
    self.assertEqual(run.on('tpu').on('gpu').platform, 'tpu')


class LoraTest(absltest.TestCase):

  def test_adapters_are_float32_as_in_a_run(self):
    changes = {'model.lora_rank': 2, 'model.param_dtype': 'bfloat16'}
    run = shipped('math:qwen3_0p6b', 'qwen3_0p6b', changes, 'tpu')
    for part, dtype in (('params', 'float32'), ('frozen', 'bfloat16')):
      with self.subTest(part):
        dtypes = {str(x.dtype) for x in jax.tree.leaves(run.state[part])}
        self.assertEqual(dtypes, {dtype})


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
      run = shipped(f'math:{variant}', variant, changes, 'gpu')
      with self.subTest(**run.mesh.shape):
        self.assertEqual(run.mesh.shape['fsdp'], 8)
        config_checks.check_mesh(run.config, run.mesh.shape)
        limit = devices.DEVICES['NVIDIA H100'].memory_bytes
        self.assertLessEqual(memory.peak(run), 0.95 * limit)


if __name__ == '__main__':
  absltest.main()
