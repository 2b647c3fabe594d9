"""A TPU v5e 4x4 would hold the 0.6B and the 4B shape.

Train step, prefill and decode are compiled ahead of time by libtpu, which
needs no TPU but an environment of its own: EVOJAX_TPU_PYTHON names its Python
(test.sh sets it). Printed per program: HBM per chip and what its collectives
move. With -m long both shapes are compiled as for a TPU, which gives the
numbers in BUILD_NOTES.md; else the larger one, with little effort, which gives
programs that need more temporary memory.
"""

import collections
import json
import os
import pathlib
import subprocess

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from tests.tpu_aot import collectives

ROOT = pathlib.Path(__file__).parents[2]
HBM_GIB = 15.75  # Of the 16 of a v5e chip, what a program may use.
GIB, MIB = 2**30, 2**20
# For a sampled token: activations, and 37 MiB of logits to be sorted for top_p.
# Gathered weights would be hundreds.
DECODE_MIB = 64

HLO = """
%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%inner_body (p: (u32[], f32[8,4])) -> (u32[], f32[8,4]) {
  %g = bf16[16,4]{1,0:T(8,128)} all-gather(%x), metadata={op_name="f/layer"}
  ROOT %t = (u32[], f32[8,4]) tuple(%i, %y)
}

%inner_if (p: (u32[], f32[8,4])) -> pred[] {
  %limit = u32[]{:T(128)} constant(28)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%outer_body (p: (s32[], s32[])) -> (s32[], s32[]) {
  %w = (u32[], f32[8,4]) while(%t0), condition=%inner_if, body=%inner_body
  %s = (f32[8]{0}, f32[2,2]{1,0}) all-reduce-start(%m, %n), to_apply=%add
  ROOT %t = (s32[], s32[]) tuple(%i, %n)
}

%outer_if (p: (s32[], s32[])) -> pred[] {
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%fused (p: f32[4]) -> f32[8] {
  ROOT %g = (f32[4], f32[8]) all-gather-start(%p), dimensions={0}
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %f = f32[8] fusion(%p), kind=kCustom, calls=%fused
  %c = f32[4] conditional(%q, %p, %p), branch_computations={%left, %right}
  ROOT %w = (s32[], s32[]) while(%t1), condition=%outer_if, body=%outer_body
}
"""


class CollectivesTest(absltest.TestCase):

  def test_kinds_bytes_and_loops(self):
    find = {
        (c.kind, c.loops): (c.nbytes, c.times, c.source)
        for c in collectives.find(HLO)
    }
    self.assertEqual(
        find,
        {
            # The larger of operand and result: 8 * 4 bytes.
            ('all-gather', 0): (32, 1, ''),
            # 16 * 4 * 2 bytes, 28 times in every turn of a loop whose bound is
            # no constant.
            ('all-gather', 1): (128, 28, 'f/layer'),
            # Two results: (8 + 2 * 2) * 4 bytes.
            ('all-reduce', 1): (48, 1, ''),
        },
    )


def compile_all(shape, effort):
  """Return {program: what programs.py prints of it}; skip without libtpu."""
  python = os.environ.get('EVOJAX_TPU_PYTHON')
  if not python:
    pytest.skip('EVOJAX_TPU_PYTHON names no Python with jax[tpu]')
  probe = subprocess.run([python, '-c', 'import libtpu'], capture_output=True)
  if probe.returncode:
    pytest.skip(f'no libtpu in the environment of {python}')
  run = subprocess.run(
      [python, '-m', 'tests.tpu_aot.programs', shape],
      env=os.environ
      | {
          'JAX_PLATFORMS': 'cpu',
          'JAX_ENABLE_COMPILATION_CACHE': 'False',
          'JAX_DISABLE_MOST_OPTIMIZATIONS': 'False',
          'JAX_EXEC_TIME_OPTIMIZATION_EFFORT': str(effort),
          # There is no TPU to ask the metadata server about, or to lock: a
          # lock would outlive a killed test.
          'TPU_SKIP_MDS_QUERY': '1',
          'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
      },
      cwd=ROOT,
      capture_output=True,
      text=True,
      timeout=1800,
  )
  lines = [json.loads(l) for l in run.stdout.splitlines() if l[:1] == '{']
  if run.returncode or not lines:
    raise AssertionError(f'compiling failed:\n{run.stderr[-4000:]}')
  return {line['program']: line for line in lines}


class Fits(parameterized.TestCase):

  @pytest.fixture(autouse=True)
  def _terminal(self, capsys):
    self.capsys = capsys

  def check(self, shape, effort):
    programs = compile_all(shape, effort)
    self.assertEqual(list(programs), ['prefill', 'insert', 'decode', 'train'])
    with self.capsys.disabled():
      print(f'\nTPU v5e 4x4, {shape}, per chip:')
      for name, program in programs.items():
        self._print(name, program)
    for name, program in programs.items():
      with self.subTest(name):
        self.assertLess(hbm_gib(program), HBM_GIB)
    moved = sum(
        c['nbytes'] * c['times']
        for c in programs['decode']['collectives']
        if c['loops']
    )
    self.assertLess(moved / MIB, DECODE_MIB)

  def _print(self, name, program):
    print(
        f'  {name}: {hbm_gib(program):.2f} GiB HBM (arguments'
        f' {program["argument"] / GIB:.2f}, temporary'
        f' {program["temporary"] / GIB:.2f}), compiled in'
        f' {program["seconds"]:.0f} s'
    )
    total = collections.Counter()
    count = collections.Counter()
    for c in program['collectives']:
      total[c['kind'], c['loops']] += c['nbytes'] * c['times']
      count[c['kind'], c['loops']] += 1
    for (kind, loops), nbytes in sorted(total.items()):
      per = {'train': 'micro-batch', 'decode': 'token'}.get(name, 'turn')
      print(
          f'    {count[kind, loops]:3} {kind}: {nbytes / MIB:,.0f} MiB per'
          f' {per if loops else "run"}'
      )


@pytest.mark.tpu
@pytest.mark.slow
class CompileTest(Fits):

  def test_fits(self):
    self.check('4B', -1.0)


@pytest.mark.tpu
@pytest.mark.slow
@pytest.mark.long
class OptimisedTest(Fits):

  @parameterized.parameters('0.6B', '4B')
  def test_fits(self, shape):
    self.check(shape, 0.0)


def hbm_gib(program):
  """Arguments, results and temporaries; donated results share memory."""
  return (
      program['argument']
      + program['output']
      + program['temporary']
      - program['alias']
  ) / GIB


if __name__ == '__main__':
  absltest.main()
