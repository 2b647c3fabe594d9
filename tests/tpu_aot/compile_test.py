"""The shipped configs for TPU slices fit the slices that they name.

All programs of a run are compiled ahead of time by libtpu, which needs no TPU
but an environment of its own: EVOJAX_TPU_PYTHON names its Python (test.sh sets
it). Printed per program: HBM per chip and what its collectives move. It is
compiled with little effort, which gives programs that need more temporary
memory. -m long compiles every variant, and the smallest with jax's default
effort, too; else one is compiled.
"""

import collections
import importlib
import json
import os
import pathlib
import re
import subprocess
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from configs import coding as coding_config
from configs import math as math_config
from tests.tpu_aot import collectives

ROOT = pathlib.Path(__file__).parents[2]
GIB, MIB = 2**30, 2**20
# Variant -> what its docstring says, libtpu's name, and GiB of a chip that
# programs may use.
SLICES = {
    'qwen3_0p6b': ('TPU v5e 4x4', 'v5e:4x4', 15.75),
    'qwen3_8b': ('TPU v5p-16 (2x2x2, 8 chips)', 'v5p:2x2x2', 95),
    'qwen3_32b': ('TPU v5p-64 (2x4x4, 32 chips)', 'v5p:2x4x4', 95),
}
# For a sampled token of a slot: activations, and 0.6 MiB of logits to be sorted
# for top_p. Gathered weights would be hundreds.
DECODE_MIB = 1

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


# A transfer between slices, as libtpu compiles it.
CROSSING = """
ENTRY %main (p: f32[4]) -> f32[4] {
  %a = f32[4] all-reduce(%p), replica_groups={{0,1}}, to_apply=%add
  %s = (f32[8,4]{1,0:T(8,128)}, u32[], token[]) send(%a, %t), frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_transfer_type="ALL_REDUCE"}
  ROOT %r = (f32[8,4], u32[], token[]) recv(%t), frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
}
"""  # noqa: E501


class CollectivesTest(absltest.TestCase):

  def test_what_crosses_slices(self):
    found = [(c.kind, c.nbytes, c.crosses) for c in collectives.find(CROSSING)]
    self.assertEqual(
        found, [('all-reduce', 16, False), ('all-reduce', 128, True)]
    )

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


def compile_all(*what, effort=-1.0):
  """Return ({program: what is printed of it}, what is printed last), or skip.

  Args:
    *what: Arguments of `programs.py`.
    effort: jax_exec_time_optimization_effort; jax's default is 0.
  """
  python = os.environ.get('EVOJAX_TPU_PYTHON')
  if not python:
    pytest.skip('EVOJAX_TPU_PYTHON names no Python with jax[tpu]')
  probe = subprocess.run([python, '-c', 'import libtpu'], capture_output=True)
  if probe.returncode:
    pytest.skip(f'no libtpu in the environment of {python}')
  module = [python, '-m', 'tests.tpu_aot.programs']
  with tempfile.TemporaryDirectory() as folder:
    run = subprocess.run(
        [*module, *what],
        env=os.environ
        | {
            'JAX_PLATFORMS': 'cpu',
            'JAX_ENABLE_COMPILATION_CACHE': 'False',
            'JAX_DISABLE_MOST_OPTIMIZATIONS': 'False',
            'JAX_EXEC_TIME_OPTIMIZATION_EFFORT': str(effort),
            # `programs.py` reads the memory of each program from this folder.
            'XLA_FLAGS': f'--xla_dump_to={folder}/dump',
            # There is no TPU to ask the metadata server about, or to lock: a
            # lock would outlive a killed test.
            'TPU_SKIP_MDS_QUERY': '1',
            'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3600,
    )
  lines = [json.loads(l) for l in run.stdout.splitlines() if l[:1] == '{']
  if run.returncode or not lines:
    raise AssertionError(f'compiling failed:\n{run.stderr[-4000:]}')
  last = lines.pop()
  return {line['program']: line for line in lines}, last


class Fits(parameterized.TestCase):

  @pytest.fixture(autouse=True)
  def _terminal(self, capsys):
    self.capsys = capsys

  def check(self, name, variant, effort=-1.0):
    module = importlib.import_module(f'configs.{name}')
    config = module.get_config(variant)
    named, topology, hbm_gib = SLICES[variant]
    self.assertRegex(module.__doc__, f'\n{variant} .* {re.escape(named)}\n')
    programs, last = compile_all(name, variant, topology, effort=effort)
    copies = ['load', 'store'] if config.rollout.turn_tokens else []
    self.assertEqual(
        [*programs],
        ['update', 'weights', 'prefill', 'insert', 'decode', *copies],
    )
    self.check_memory(f'{name}:{variant} on {named}', programs, last, hbm_gib)
    moved = sum(
        c['nbytes'] * c['times']
        for c in programs['decode']['collectives']
        if c['loops']
    )
    self.assertLess(moved / MIB, DECODE_MIB * config.rollout.decode_slots)

  def check_memory(self, title, programs, last, hbm_gib):
    """Check what `programs.py` printed, and the plan, against HBM."""
    resident, bounds = last['resident'], last['bounds']
    kept = sum(resident.values())
    peak = kept + max(p['temporary'] for p in programs.values())
    planned = kept + max(bounds.values())
    with self.capsys.disabled():
      print(
          f'\n{title}, GiB per chip: {peak / GIB:.2f} of {hbm_gib}, planned'
          f' {planned / GIB:.2f}, resident {kept / GIB:.2f}'
      )
      for each, program in programs.items():
        self._print(each, program, bounds[each])
    self.assertLess(peak / GIB, 0.95 * hbm_gib)
    # The plan is never below the compiler, and not far above.
    self.assertBetween(planned / peak, 1, 1.15)

  def _print(self, name, program, bound):
    print(
        f'  {name}: arguments {program["argument"] / GIB:.2f}, temporary'
        f' {program["temporary"] / GIB:.3f}, planned {bound / GIB:.3f};'
        f' compiled in {program["seconds"]:.0f} s'
    )
    total = collections.Counter()
    count = collections.Counter()
    for c in program['collectives']:
      total[c['kind'], c['loops']] += c['nbytes'] * c['times']
      count[c['kind'], c['loops']] += 1
    for (kind, loops), nbytes in sorted(total.items()):
      per = {'update': 'micro-batch', 'decode': 'token'}.get(name, 'turn')
      print(
          f'    {count[kind, loops]:3} {kind}: {nbytes / MIB:,.0f} MiB per'
          f' {per if loops else "run"}'
      )


@pytest.mark.tpu
@pytest.mark.slow
class CompileTest(Fits):

  def test_fits(self):
    self.check('math', 'qwen3_0p6b')


@pytest.mark.tpu
@pytest.mark.slow
@pytest.mark.long
class EveryVariantTest(Fits):

  # The programs of coding are those of math.
  @parameterized.parameters(
      ('math', 'qwen3_8b'),
      ('math', 'qwen3_32b'),
      ('swe', 'qwen3_0p6b'),
      ('swe', 'qwen3_8b'),
      ('swe', 'qwen3_32b'),
  )
  def test_fits(self, name, variant):
    self.check(name, variant)

  @parameterized.parameters('math', 'swe')
  def test_fits_at_the_default_effort(self, name):
    self.check(name, 'qwen3_0p6b', effort=0.0)

  def test_a_reference_policy_fits(self):
    """A candidate of --mode=evolve may add it, with a program that scores."""
    _, topology, hbm_gib = SLICES['qwen3_0p6b']
    programs, last = compile_all(
        'math', 'qwen3_0p6b', topology, 'grpo.kl_coef=0.01'
    )
    self.assertEqual([*programs][0], 'score')
    self.assertIn('reference policy', last['resident'])
    self.check_memory('with grpo.kl_coef', programs, last, hbm_gib)

  @parameterized.parameters(*SLICES)
  def test_coding_has_the_shapes_of_math(self, variant):
    for module in math_config, coding_config:
      named, *_ = SLICES[variant]
      docs = rf'\n{variant} .* {re.escape(named)}\n'
      self.assertRegex(module.__doc__, docs)
    one, other = (m.get_config(variant) for m in (math_config, coding_config))
    for group in ('data', 'grpo', 'mesh', 'model', 'rollout'):
      self.assertEqual(one[group], other[group])


@pytest.mark.tpu
@pytest.mark.slow
@pytest.mark.long
class SlicesTest(Fits):

  def test_a_small_run(self):
    programs, last = compile_all('slices')
    self.check_crossing(programs, last, slots=16, vocab=4096)
    kept = sum(last['resident'].values())
    temporary = {name: p['temporary'] for name, p in programs.items()}
    # So small that the parts that no plan counts show.
    self.assertBetween(
        (kept + max(last['bounds'].values()))
        / (kept + max(temporary.values())),
        1,
        1.5,
    )

  def test_the_documented_job(self):
    """The job of launch/jobset.sh and docs/tpu_slices.md."""
    _, topology, hbm_gib = SLICES['qwen3_8b']
    programs, last = compile_all('math', 'qwen3_8b', topology, 'mesh.slice=2')
    self.check_memory('two slices', programs, last, hbm_gib)
    self.check_crossing(programs, last, slots=64, vocab=151_936, chips=16)

  def check_crossing(self, programs, last, slots, vocab, chips=8):
    """Check what docs/tpu_slices.md says of the network between slices.

    Args:
      programs: From `compile_all`.
      last: From `compile_all`.
      slots: Decode slots of the run.
      vocab: Entries of the vocabulary.
      chips: Of all slices.
    """
    crossing = {
        name: [c for c in program['collectives'] if c['crosses']]
        for name, program in programs.items()
    }
    # The gradients, once per update: not per micro-batch, nor per layer.
    kinds = collections.Counter()
    for c in crossing['update']:
      self.assertEqual(c['loops'], 0, c)
      kinds[c['kind']] += c['nbytes'] * c['times']
    # Beside them two sums, of 512 bytes each: the norm and the metrics.
    self.assertBetween(
        kinds['all-reduce'],
        last['gradients'],
        1.001 * last['gradients'] + 2 * 512,
    )
    # Two numbers per episode: the gap, and whether it was rejected.
    self.assertLess(kinds['all-gather'], 1024)
    self.assertEqual(kinds.keys(), {'all-reduce', 'all-gather'})
    # No weight, no key, no value and no token.
    for name in ('weights', 'prefill', 'insert'):
      self.assertEmpty(crossing[name], name)
    # Where requests have top_p or top_k, logits are sorted, which spreads the
    # slots of a chip over both slices: there and back. All else is small.
    logits = 4 * vocab * slots // chips
    sorts = [c for c in crossing['decode'] if c['conditional']]
    self.assertLessEqual(sum(c['nbytes'] for c in sorts), 3 * logits + 1024)
    always = [c for c in crossing['decode'] if not c['conditional']]
    # In every step, and once per call.
    for each, most in ((True, 2048), (False, 512)):
      sizes = [c['nbytes'] for c in always if bool(c['loops']) == each]
      self.assertLessEqual(sum(sizes), most, always)


if __name__ == '__main__':
  absltest.main()
