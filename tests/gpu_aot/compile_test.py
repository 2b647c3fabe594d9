"""The shipped configs fit NVIDIA GPUs, in runs that the documentation names.

All programs of a run are compiled ahead of time by XLA for GPUs, which needs no
GPU but an environment of its own: EVOJAX_CUDA_PYTHON names its Python. This
makes one, of 5.3 GB, and compiles for about ten minutes:

    export EVOJAX_CUDA_PYTHON="$(python launch/environment.py cuda13 cuda13)"
    bash test.sh tests/gpu_aot -m long

Printed per program: memory per GPU and what its collectives move. Without a GPU
nothing is tuned: kernels take Triton's default tiles and sorts are slower, so a
program for a GPU that is there may need some other memory.
"""

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from evojax.runtime import devices
from tests.aot import fits
from tests.aot import programs as programs_lib

CUDA = fits.Compiler('EVOJAX_CUDA_PYTHON', 'jax_cuda13_plugin')
# As in docs/gpu_nodes.md.
NODE = {'mesh.fsdp': 8, 'mesh.tensor': 1}
SLOTS = {'rollout.decode_slots': 32}
# Name of a test -> config and variant, shape of the policy, number of GPUs, and
# values of other fields.
RUNS = {
    # launch/reference_run.sh, whose mesh takes all GPUs that are here.
    'reference_0p6b': ('gsm8k:default', 'qwen3_0p6b', 1, {}),
    'reference_1p7b': ('gsm8k:default', 'qwen3_1p7b', 1, {}),
    'reference_8b': ('gsm8k:default', 'qwen3_8b', 8, {}),
    # Programs of coding are those of math.
    'math_0p6b': ('math:qwen3_0p6b', 'qwen3_0p6b', 8, NODE),
    'math_8b': ('math:qwen3_8b', 'qwen3_8b', 8, NODE),
    'swe_0p6b': ('swe:qwen3_0p6b', 'qwen3_0p6b', 8, NODE),
    # With 64 slots, as for TPUs of 95 GiB, hardly any memory would be left.
    'swe_8b': ('swe:qwen3_8b', 'qwen3_8b', 8, NODE | SLOTS),
}


@pytest.mark.slow
@pytest.mark.long
class CompileTest(fits.Fits):

  @parameterized.parameters(*RUNS)
  def test_fits(self, name):
    named, shape, count, changes = RUNS[name]
    config = programs_lib.shipped_config(named, changes)
    changes = [f'{path}={value}' for path, value in changes.items()]
    programs, last = CUDA.compile(named, shape, f'h100:{count}', *changes)
    self.check_programs(config, programs)
    memory = devices.DEVICES['NVIDIA H100'].memory_bytes / fits.GIB
    title = f'{named} with {shape} on {count} x H100'
    self.check_memory(title, programs, last, memory)
    self.check_decode(config, programs)
    # No program that runs many times copies what it writes to.
    cache = last['resident']['rollout cache']
    self.assertLess(programs['decode']['temporary'], cache / 4)
    # The update of the parameters is not gathered.
    gathered = [
        c['nbytes']
        for c in programs['update']['collectives']
        if c['kind'] == 'all-gather' and not c['loops']
    ]
    self.assertLess(sum(gathered), last['resident']['parameters'] / 4)


if __name__ == '__main__':
  absltest.main()
