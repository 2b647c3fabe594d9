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
import re

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from configs import coding as coding_config
from configs import math as math_config
from tests.aot import fits

LIBTPU = fits.Compiler('EVOJAX_TPU_PYTHON', 'libtpu')
# Variant -> what its docstring says, libtpu's name, and GiB of a chip that
# programs may use.
SLICES = {
    'qwen3_0p6b': ('TPU v5e 4x4', 'v5e:4x4', 15.75),
    'qwen3_8b': ('TPU v5p-16 (2x2x2, 8 chips)', 'v5p:2x2x2', 95),
    'qwen3_32b': ('TPU v5p-64 (2x4x4, 32 chips)', 'v5p:2x4x4', 95),
}


def compile_all(name, variant, topology, *changes, effort=-1.0):
  """Return ({program: what is printed of it}, what is printed last), or skip.

  Args:
    name: Name of a config.
    variant: Its variant, one of SLICES.
    topology: libtpu's name of a slice.
    *changes: Values of config fields, such as 'mesh.slice=2'.
    effort: jax_exec_time_optimization_effort; jax's default is 0.
  """
  config = f'{name}:{variant}'
  return LIBTPU.compile(config, variant, topology, *changes, effort=effort)


class SlicesOfVariants(fits.Fits):

  def check(self, name, variant, effort=-1.0):
    module = importlib.import_module(f'configs.{name}')
    config = module.get_config(variant)
    named, topology, hbm_gib = SLICES[variant]
    self.assertRegex(module.__doc__, f'\n{variant} .* {re.escape(named)}\n')
    programs, last = compile_all(name, variant, topology, effort=effort)
    self.check_programs(config, programs)
    self.check_memory(f'{name}:{variant} on {named}', programs, last, hbm_gib)
    self.check_decode(config, programs)


@pytest.mark.tpu
@pytest.mark.slow
class CompileTest(SlicesOfVariants):

  def test_fits(self):
    self.check('math', 'qwen3_0p6b')


@pytest.mark.tpu
@pytest.mark.slow
@pytest.mark.long
class EveryVariantTest(SlicesOfVariants):

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

  def test_a_bonus_for_entropy_fits(self):
    _, topology, hbm_gib = SLICES['qwen3_0p6b']
    programs, last = compile_all(
        'math', 'qwen3_0p6b', topology, 'grpo.entropy_coef=0.01'
    )
    self.check_memory('with grpo.entropy_coef', programs, last, hbm_gib)

  def test_a_mean_of_arms_fits(self):
    _, topology, hbm_gib = SLICES['qwen3_0p6b']
    programs, last = compile_all(
        'math', 'qwen3_0p6b', topology, 'evolve.policy="mean"'
    )
    self.check_memory('with evolve.policy', programs, last, hbm_gib)
    mean = programs['mean']
    self.assertEmpty(mean['collectives'])
    self.assertBetween(last['bounds']['mean'] / mean['temporary'], 0.999, 1.15)

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
class SlicesTest(fits.Fits):

  def test_a_small_run(self):
    programs, last = LIBTPU.compile('slices', effort=-1.0)
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
      programs: From `Compiler.compile`.
      last: From `Compiler.compile`.
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
