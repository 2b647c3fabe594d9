"""A plan's numbers are those of the run, worked out by hand."""

import contextlib
import dataclasses
import io
import math
import os
import pathlib
import tempfile
import types

from absl.testing import absltest
from absl.testing import parameterized
import jax

from benchmarks import random_qwen3
from configs import math as math_config
from evojax import domains
from evojax.ledger import budget
from evojax.models import decoder
from evojax.models import flops
from evojax.models import policy as policy_lib
from evojax.models import tokenizer as tokenizer_lib
from evojax.modes import plan
from evojax.modes import plan_devices
from evojax.modes import plan_meshes
from evojax.modes import plan_remedies
from evojax.modes import plan_table
from evojax.runtime import devices
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import sharding
from evojax.runtime import storage
from evojax.training import memory as memory_lib
from evojax.training import setup as setup_lib
from evojax.training import trainer as trainer_lib
from tests import objects
from tests import tiny
from tests.aot import programs as programs_lib

CFG = decoder.DecoderConfig(
    family='qwen3',
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    qk_norm=True,
)
# Per layer: qkv 16 * 2 * (2 + 2) * 8 = 1024, out 2 * 2 * 8 * 16 = 512,
# gate_up 16 * 2 * 24 = 768, down 24 * 16 = 384, norms 16 + 16 + 8 + 8 = 48.
# Embedding 32 * 16 = 512, tied; final norm 16.
MATRICES = 1024 + 512 + 768 + 384
PARAMETERS = 2 * (MATRICES + 48) + 512 + 16


def policy(cfg=CFG):
  """An open policy without a directory."""
  tokenizer = tokenizer_lib.Tokenizer(domains.policy_path('package:math'))
  return policy_lib.Policy(pathlib.Path('unused'), cfg, tokenizer)


def config(**overrides):
  """P 4, G 3, Lp 5, Lc 7: two micro-batches of two groups."""
  options = dict(
      data__max_prompt_tokens=5,
      rollout__max_tokens=7,
      rollout__decode_slots=8,
      rollout__prefill_rows=2,
      grpo__prompts=4,
      grpo__group_size=3,
      grpo__micro_groups=2,
      steps=10,
      eval__every=4,
      eval__problems=6,
      eval__samples=2,
  )
  return tiny.make_config('unused', **(options | overrides))


def estimate(cfg=CFG, devices=None, **overrides):
  devices = jax.devices()[:1] if devices is None else devices
  return plan.estimate(config(**overrides), policy(cfg), devices)


def shown(made, **options):
  with contextlib.redirect_stdout(io.StringIO()) as out:
    plan_table.show(made, **options)
  return out.getvalue()


class NumbersTest(parameterized.TestCase):
  """One device, float32; the programs are compiled once for all tests."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.plan = estimate(mesh__data=-1)  # This takes the one device.

  def test_parameters(self):
    self.assertEqual(self.plan.parameters, PARAMETERS)
    self.assertEqual(self.plan.trained, PARAMETERS)

  def test_memory(self):
    self.assertEqual(
        self.plan.resident,
        {
            'parameters': 4 * PARAMETERS,
            # Two per parameter, and the count of steps.
            'optimizer moments': 2 * 4 * PARAMETERS + 4,
            # Layers, keys and values, rows, K, Lp + Lc, H.
            'rollout cache': 4 * 2 * 2 * 8 * 2 * 12 * 8,
            # Layers, keys and values, rows, K, Lp, H; and logits.
            'prefill rows': 4 * 2 * 2 * 2 * 2 * 5 * 8 + 4 * 2 * CFG.vocab_size,
        },
    )
    self.assertEqual(self.plan.gradients, 4 * PARAMETERS)
    self.assertTrue(self.plan.exact)
    # The sum of the gradients is alive while the update runs.
    self.assertGreater(self.plan.temporaries['update'], 4 * PARAMETERS)
    # The keys, values and logits of a layer's tokens, before they are stored.
    self.assertGreater(self.plan.temporaries['prefill'], 4 * 2 * CFG.vocab_size)
    self.assertGreater(self.plan.temporaries['decode'], 4 * 8 * CFG.vocab_size)
    self.assertEqual(
        self.plan.peak,
        sum(self.plan.resident.values()) + max(self.plan.temporaries.values()),
    )

  def test_tokens(self):
    # A step: 4 * 3 * 7 sampled, 4 * 5 of prompts. Evaluations: dev at 0, 4, 8
    # and 10, sealed twice; 6 * 2 * 7 and 6 * 5 each.
    self.assertEqual(
        self.plan.tokens,
        {
            'a step': (84, 20),
            'training': (840, 200),
            'evaluations': (6 * 84, 6 * 30),
            'the run': (840 + 504, 200 + 180),
        },
    )

  def test_flops(self):
    # 2 per multiply-add; scores and values: 4 per pair, head and width.
    def forward(tokens, pairs, logits):
      layers = 2 * (2 * MATRICES * tokens + 4 * 4 * 8 * pairs)
      return layers + 2 * 16 * 32 * logits

    self.assertEqual(flops.forward(CFG, 3, 5, 2), forward(3, 5, 2))
    expected = {
        # 4 prompts are two blocks of 2 x 5 tokens.
        'prefill': 10 * 2 * forward(10, 50, 2),
        # 12 sequences take the 8 slots twice; the prefill gives token 1 of 7.
        'decode': 10 * 2 * 6 * forward(8, 8 * 12, 8),
        # A group: 5 + 3 * 7 tokens; 5 * 5 pairs of the prompt, 21 * 12 more.
        'update': 3 * 10 * 4 * forward(26, 25 + 252, 21),
        'evaluation prefill': 6 * 3 * forward(10, 50, 2),
        'evaluation decode': 6 * 2 * 6 * forward(8, 8 * 12, 8),
    }
    self.assertEqual(
        {name: work.flops for name, work in self.plan.most.work.items()},
        expected,
    )

  def test_seconds(self):
    (here,) = self.plan.estimates
    self.assertEqual(here.device.platform, 'cpu')
    self.assertAlmostEqual(
        here.seconds['update'],
        self.plan.most.work['update'].flops
        / here.device.flops
        / plan_devices.UTILISATION['cpu']['update'],
    )
    self.assertIs(here.fit, plan_devices.Fit.ROOMY)

  def test_shown(self):
    text = shown(self.plan)
    self.assertIn('mesh slice=1 data=1 fsdp=1 tensor=1: 1 device\n', text)
    self.assertIn(f'parameters {PARAMETERS:,}', text)
    self.assertIn('temporaries as compiled', text)
    self.assertIn('3 x 40 groups x forward(26, 277, 21)', text)
    self.assertNotIn('DOES NOT FIT', text)
    self.assertNotIn('--mode=evolve', text)
    self.assertNotIn('--mode=train', text)
    self.assertIn('F MLP width, V vocabulary', ' '.join(text.split()))

  def test_what_the_meta_loop_costs(self):
    made = estimate(
        evolve__rounds=2,
        evolve__candidates=2,
        evolve__pairs=3,
        evolve__retrain=True,
        evolve__updates=30,
        evolve__first_updates=8,
        evolve__problems=5,
        evolve__samples=4,
        evolve__replay_problems=3,
        evolve__dollars_per_device_hour=36.0,
    )
    (here,) = made.known
    most = plan_table.evolution(made, here, True)
    # 3 arms of the incumbent and 6 of candidates, of 30 steps of 12 completions
    # of 7 tokens; 4 scores of 12 for each of 6 backtests, one of 20 for each
    # arm, and one for those of two harnesses on perturbed problems.
    round_ = (9 * 30 * 12 + 24 * 12 + 9 * 20 + 6 * 20) * 7
    self.assertEqual(most['v0'][:2], (1, 8 * 12 * 7))
    self.assertEqual(most['all rounds'][:2], (18, 2 * round_))
    self.assertEqual(most['  one of them'][:2], (9, round_))
    names = list(most)
    one = names.index('  one of them')
    self.assertEqual(names[one - 1], 'all rounds')
    self.assertEqual(most['retraining'][:2], (1, 10 * 12 * 7))
    self.assertEqual(most['sealed scores'][:2], (0, 3 * 12 * 7))
    self.assertEqual(
        most['the run'][:2],
        (20, 96 * 7 + 2 * round_ + 120 * 7 + 36 * 7),
    )
    text = ' '.join(shown(made).split())
    self.assertIn('--mode=train; --mode=evolve is planned in the last', text)
    expected = plan_table.evolution(made, here, False)
    # In both rounds 2 candidates, of whom 0.4 get their third arm.
    self.assertAlmostEqual(expected['all rounds'][0], 2 * (3 + 2 * 2.4))
    for name in expected:
      self.assertLessEqual(expected[name][2], most[name][2])
    # A slow grader grades every completion.
    graded = [arm.other for arm in made.most.arms[:3]]
    slow = plan.estimate(made.config, policy(), jax.devices()[:1], 1.0)
    for arm, other, count in zip(
        slow.most.arms, graded, (8 * 12, 12, 30 * 12), strict=False
    ):
      self.assertAlmostEqual(arm.other - other, count)
    text = shown(made)
    # Its parameters, float32, and programs that score with them.
    reference = dataclasses.replace(
        made.run, config=config(grpo__kl_coef=0.01)
    )
    self.assertIn('reference policy', memory_lib.resident(reference))
    self.assertIn(
        f'(grpo.kl_coef): {memory_lib.peak(reference) / 2**20:,.1f} MiB\n', text
    )
    self.assertNotIn('size_blocked', text)
    small = dataclasses.replace(
        here, memory_bytes=memory_lib.peak(reference) - 1
    )
    self.assertIn(
        'reference policy is refused: size_blocked',
        shown(dataclasses.replace(made, known=[small])),
    )
    seconds = most['the run'][2]
    self.assertIn(f'at most {seconds:,.0f}; $', text)
    self.assertIn(f'at most ${seconds / 100:,.2f}\n', text)
    self.assertLessEqual(max(map(len, text.splitlines())), 80)
    # Large numbers stay apart.
    parts = {'the run': (47.9, 1_553_366_778.0, 127_200.0)}
    with absltest.mock.patch.object(
        plan_table, 'evolution', return_value=parts
    ):
      text = shown(made)
    self.assertRegex(text, r'the run +47.9 \(47.9\) +1,553 M \(1,553 M')

  def test_completions_are_expected_to_have_their_mean_length(self):
    fields = dict(evolve__rounds=1, evolve__candidates=1, evolve__pairs=3)
    longest = estimate(plan__mean_tokens=0, **fields)
    (here,) = longest.known
    made = estimate(plan__mean_tokens=3, **fields)
    self.assertEqual(made.temporaries, longest.temporaries)
    found, most = (
        plan_table.evolution(made, here, most)['the run']
        for most in (False, True)
    )
    self.assertEqual(most, plan_table.evolution(longest, here, True)['the run'])
    expected = plan_table.evolution(longest, here, False)['the run']
    self.assertEqual(found[0], expected[0])
    self.assertAlmostEqual(found[1], expected[1] * 3 / 7)
    self.assertLess(found[2], expected[2])
    # The first token is sampled by the prefill.
    steps = [each.work['decode'].flops for each in (made.expected, made.most)]
    prompt = made.config.data.max_prompt_tokens
    context = lambda new: flops.forward(CFG, 1, prompt + new, 1)
    self.assertAlmostEqual(
        steps[0] / steps[1], 2 * context(3) / (6 * context(7))
    )
    self.assertIn('with completions of 3 tokens, as expected\n', shown(made))
    self.assertIn('--config.plan.mean_tokens=0: all', shown(longest))
    # A limit below the mean leaves no completion of that length.
    same = estimate(plan__mean_tokens=8, **fields)
    self.assertEqual(same.expected, same.most)
    self.assertNotIn('as expected\n', shown(same))
    self.assertIn('--config.plan.mean_tokens=8: all', shown(same))

  def test_training_may_have_a_limit_of_its_own(self):
    fields = dict(evolve__rounds=1, evolve__candidates=1, evolve__pairs=3)
    fields |= dict(rollout__token_limit=3, evolve__first_updates=8)
    made = estimate(**fields)
    (here,) = made.known
    # A step of 4 * 3 completions of 3 tokens; those of scores have 7.
    self.assertEqual(made.tokens['a step'], (36, 20))
    self.assertEqual(made.tokens['training'], (360, 200))
    self.assertEqual(made.tokens['evaluations'], (6 * 84, 6 * 30))
    free = estimate(**fields | dict(rollout__token_limit=0))
    work, whole = made.most.work, free.most.work
    self.assertAlmostEqual(work['decode'].flops / whole['decode'].flops, 2 / 6)
    self.assertEqual(work['evaluation decode'], whole['evaluation decode'])
    # Version 0 has the limit, but a candidate may lift it.
    most, without = (plan_table.evolution(p, here, True) for p in (made, free))
    self.assertEqual(most['v0'][1], 8 * 36)
    self.assertEqual(most['all rounds'], without['all rounds'])
    expected = plan_table.evolution(made, here, False)
    self.assertEqual(expected['v0'][1], 8 * 36)
    self.assertLess(expected['all rounds'][1], most['all rounds'][1] * 3 / 7)
    # No completion of training is expected to be longer.
    mean = estimate(**fields, plan__mean_tokens=5)
    found = plan_table.evolution(mean, here, False)
    self.assertEqual(found['v0'][1], 8 * 36)
    scored = plan_table.evolution(free, here, False)['sealed scores'][1]
    self.assertEqual(found['sealed scores'][1], scored * 5 / 7)

  def test_workers_share_the_arms_of_a_round(self):
    made = estimate(evolve__rounds=1, evolve__candidates=2, evolve__pairs=4)
    (here,) = made.known
    alone, three = (
        plan_table.evolution(made, here, True, workers) for workers in (1, 3)
    )
    # Candidates' arms: 2 of each of 4 pairs; the incumbent's form a chain.
    first = lambda each: each.stage.name.endswith(') candidates')
    (arm,) = filter(first, made.most.arms)
    self.assertEqual(arm.stage.arms, 4)
    saved = alone['the run'][2] - three['the run'][2]
    # Two stages of 4 arms: 3 workers train 3 of them, and then 1.
    self.assertAlmostEqual(saved, (8 - 2 * 2) * arm.seconds(here, 1))
    self.assertEqual(alone['the run'][:2], three['the run'][:2])
    # Their meshes are paid for while they train; that of the run all the time.
    price = budget.Budget(dollars_per_device_hour=36.0)
    trained = math.fsum(
        a.stage.arms * a.seconds(here, 1)
        for a in made.most.arms
        if a.stage.steps and not a.stage.replays
    )
    self.assertGreater(trained, 8 * arm.seconds(here, 1))
    spent = three['the run'][2] + trained
    text = plan_table.beside(made, here, 3, price)
    self.assertStartsWith(text, '3 workers, each on such a mesh')
    self.assertEndsWith(
        text, f'{spent:,.0f} device-seconds, ${spent / 100:,.2f}'
    )
    said = ' '.join(shown(made, workers=3).split())
    self.assertIn('3 workers, each on such a mesh beside that of the run', said)
    self.assertNotIn('on such a mesh', shown(made))


class BoundsTest(parameterized.TestCase):

  @parameterized.parameters(
      {},
      dict(
          scan_layers=True,
          family='gemma3_text',
          post_norms=True,
          sliding_window=16,
          sliding=(True, True, False, True),
      ),
  )
  def test_no_program_takes_more(self, **changes):
    cfg = dataclasses.replace(
        CFG,
        vocab_size=512,
        hidden_size=64,
        num_layers=4,
        head_dim=32,
        **changes,
    )
    options = dict(data__max_prompt_tokens=64, rollout__max_tokens=64)
    mesh = sharding.make_mesh(
        data=1, fsdp=1, tensor=1, devices=jax.devices()[:1]
    )
    run = memory_lib.Run(config(**options), policy(cfg), mesh)
    bounds = dict(memory_lib.bounds(run))
    with sharding.use(mesh):
      for name, size in memory_lib.compiled(run):
        self.assertLessEqual(size, bounds[name], name)
        # A bound of ten times as much would tell nothing.
        self.assertGreater(size, bounds[name] / 10, name)

  def test_a_mean_of_arms_takes_the_memory_of_a_float32_state(self):
    mean = dict(
        evolve__rounds=2, evolve__policy='mean', model__param_dtype='bfloat16'
    )
    made = estimate(mesh__data=1, **mean)  # Of the compiler.
    self.assertTrue(made.exact)
    # Parameters, two moments, and both step counts.
    size = 12 * PARAMETERS + 8
    self.assertAlmostEqual(made.temporaries['mean'], size, delta=size / 100)
    # Split over devices that are elsewhere, it is bounded.
    split = estimate(mesh__data=1, mesh__fsdp=2, **mean)
    self.assertAlmostEqual(split.temporaries['mean'], size / 2, delta=size / 20)
    for other in (mean | dict(evolve__policy='chain'), dict(evolve__rounds=0)):
      self.assertNotIn('mean', estimate(mesh__data=1, **other).temporaries)

  def test_every_device_gathers_the_rows_that_are_inserted(self):
    one, eight = (
        estimate(
            mesh__data=1,
            mesh__fsdp=n,
            data__max_prompt_tokens=4096,
            grpo__prompts=8,
            grpo__micro_groups=8,
            rollout__prefill_rows=8,
        ).temporaries['insert']
        for n in (2, 8)
    )
    self.assertAlmostEqual(one / eight, 1, delta=0.2)


class OptionsTest(parameterized.TestCase):
  """Options add lines. The 8 devices are elsewhere, so nothing compiles."""

  def estimate(self, cfg=CFG, **overrides):
    mesh = dict(
        mesh__data=1,
        mesh__fsdp=8,
        rollout__prefill_rows=8,
        grpo__prompts=16,
        grpo__micro_groups=8,
    )
    return estimate(cfg, **(mesh | overrides))

  def test_reference(self):
    made = self.estimate(grpo__kl_coef=0.1)
    self.assertEqual(
        made.resident['reference policy'], made.resident['parameters']
    )
    self.assertEqual(made.programs['score'], 1)
    work = made.most.work
    self.assertEqual(3 * work['score'].flops, work['update'].flops)
    self.assertNotIn('score', self.estimate().programs)

  def test_old_logprobs_and_epochs(self):
    made = self.estimate(grpo__epochs=3)
    work = made.most.work
    self.assertEqual(9 * work['score'].flops, work['update'].flops)

  def test_sampler_weights_in_another_dtype(self):
    cfg = dataclasses.replace(CFG, compute_dtype='bfloat16')
    made = self.estimate(cfg, model__compute_dtype='bfloat16')
    # Whole along fsdp, but for the table.
    whole = 2 * MATRICES + 512 // 8 + 2 * 48 + 16
    self.assertEqual(made.resident['sampler weights'], 2 * whole)
    self.assertEqual(self.estimate().resident['sampler weights'], 4 * whole)
    self.assertEqual(
        2 * made.resident['rollout cache'],
        self.estimate().resident['rollout cache'],
    )

  def test_episodes_of_several_turns(self):
    turns = dict(rollout__turn_tokens=4, rollout__prefill_chunk=4)
    made, plain = self.estimate(**turns), self.estimate()
    self.assertNotIn('prefix cache', plain.resident)
    c = config(**turns)
    context = c.data.max_prompt_tokens + c.rollout.max_tokens
    chunks = c.rollout.decode_slots * -(-context // 4)
    # As many keys and values of a token as in the decode slots.
    a_token = made.resident['rollout cache'] / c.rollout.decode_slots / context
    self.assertEqual(made.resident['prefix cache'], a_token * chunks * 4)
    self.assertEqual(made.programs['copy'], 2)
    self.assertGreater(made.programs['insert'], plain.programs['insert'])

  def test_adapters(self):
    cfg = dataclasses.replace(CFG, lora_rank=2)
    made = self.estimate(cfg, model__lora_rank=2)
    # Rank 2, per layer: qkv 16 + 64, out 32 + 16, gate_up 16 + 48,
    # down 24 + 16.
    self.assertEqual(made.trained, 2 * 2 * (80 + 48 + 64 + 40))
    self.assertEqual(made.parameters, PARAMETERS + made.trained)
    # No gradient of frozen weights: two passes instead of three.
    self.assertEqual(
        3 * made.most.work['update'].flops,
        2 * self.estimate().most.work['update'].flops,
    )

  def test_recomputed_work(self):
    cfg = dataclasses.replace(CFG, remat='full')
    made = self.estimate(cfg, model__logprob_chunk=8)
    self.assertEqual(
        3 * made.most.work['update'].flops,
        4 * self.estimate().most.work['update'].flops,
    )
    self.assertLess(
        made.temporaries['update'], self.estimate().temporaries['update']
    )

  def test_refill_rounds_sample_more(self):
    made = self.estimate(grpo__refill_rounds=2, grpo__keep='reward_variance')
    self.assertEqual(made.tokens['a step'], (3 * 16 * 3 * 7, 3 * 16 * 5))

  def test_servers_do_their_own_work(self):
    here = self.estimate()
    made = self.estimate(
        rollout__kind='sglang', rollout__urls=('http://one:30000',)
    )
    self.assertEqual(set(made.most.work), {'update'})
    self.assertEqual(made.most.work['update'], here.most.work['update'])
    self.assertEqual(set(made.temporaries), {'update'})
    self.assertEqual(made.programs, {'update': 1, 'set-up': 2})
    self.assertNotIn('rollout cache', made.resident)
    self.assertNotIn('sampler weights', made.resident)
    self.assertEqual(made.tokens, here.tokens)
    self.assertIn('left to the servers', shown(made))

  def test_sampling_beside_the_update_needs_weights_of_its_own(self):
    mesh = dict(mesh__data=1, mesh__fsdp=1, mesh__tensor=1)
    ahead = dict(
        rollout__queue_depth=1, rollout__max_staleness=1, grpo__tis_cap=2.0
    )
    cfg = dataclasses.replace(CFG, compute_dtype='float32')
    self.assertNotIn('sampler weights', self.estimate(cfg, **mesh).resident)
    made = self.estimate(cfg, **mesh, **ahead)
    self.assertEqual(made.resident['sampler weights'], 4 * PARAMETERS)

  def test_packed_layout_compiles_per_bucket_of_rows(self):
    # 8 groups of 3 are at most 24 rows, in buckets of 8.
    self.assertEqual(self.estimate(grpo__layout='packed').programs['update'], 3)


class MeshTest(parameterized.TestCase):

  def test_shards_of_a_mesh_that_is_elsewhere(self):
    made = estimate(
        mesh__data=1,
        mesh__fsdp=4,
        mesh__tensor=2,
        grpo__micro_groups=4,
        rollout__prefill_rows=4,
    )
    self.assertEqual(made.devices, 8)
    self.assertFalse(made.exact)
    # Projections are split 4 * 2 ways, the embedding too; norms not at all.
    shard = (2 * MATRICES + 512) // 8 + 2 * 48 + 16
    self.assertEqual(made.resident['parameters'], 4 * shard)
    # To sample, projections are split by tensor alone.
    shard = 2 * MATRICES // 2 + 512 // 8 + 2 * 48 + 16
    self.assertEqual(made.resident['sampler weights'], 4 * shard)
    self.assertEqual(
        made.resident['rollout cache'], 4 * 2 * 2 * (8 // 4) * 1 * 12 * 8
    )
    self.assertLen(made.estimates, len(devices.DEVICES))
    said = ' '.join(shown(made).split())
    self.assertIn('on TPUs at 40% of the peak in updates and prefills', said)
    self.assertIn('on GPUs at 28% of the peak in updates and prefills', said)

  def test_every_kind_of_device_has_the_memory_of_its_compiler(self):
    cfg = dataclasses.replace(CFG, scan_layers=True)
    made = estimate(
        cfg,
        mesh__fsdp=8,
        grpo__prompts=8,
        grpo__micro_groups=8,
        rollout__prefill_rows=8,
    )
    self.assertEqual(made.run.platform, '')
    peaks = {e.device.platform: e.peak for e in made.estimates}
    for platform, peak in peaks.items():
      run = dataclasses.replace(made.run, platform=platform)
      self.assertEqual(peak, memory_lib.peak(run))
    self.assertEqual(peaks.keys(), {'gpu', 'tpu'})
    self.assertNotEqual(peaks['gpu'], peaks['tpu'])
    self.assertEqual(made.peak, max(peaks.values()))

  def test_logits_are_split_by_every_axis(self):
    # 2^20 tokens: what is not in proportion to V does not show.
    cfg = dataclasses.replace(CFG, vocab_size=2**20)
    one, eight = (
        estimate(
            cfg,
            rollout__decode_slots=16,
            rollout__prefill_rows=8,
            grpo__prompts=8,
            grpo__micro_groups=8,
            grpo__kl_coef=0.1,
            **{f'mesh__{axis}': n for axis, n in mesh.items()},
        ).temporaries
        for mesh in (dict(data=1, fsdp=2), dict(data=2, fsdp=4, tensor=2))
    )
    for name in ('score', 'prefill', 'decode'):
      self.assertAlmostEqual(one[name] / eight[name], 8, delta=0.1)

  def test_a_mesh_that_does_not_split_the_policy(self):
    with self.assertRaisesRegex(ValueError, 'fsdp=3 does not divide the 16'):
      estimate(mesh__fsdp=3)

  def test_a_mesh_that_takes_the_rest_is_that_of_a_run(self):
    # Four rows do not split over eight devices, so a run takes another mesh.
    abstract = lambda devices, **sizes: jax.sharding.AbstractMesh(
        tuple(sizes[axis] for axis in sharding.MESH_AXES), sharding.MESH_AXES
    )
    v5e = types.SimpleNamespace(
        device_kind='TPU v5 lite', platform='tpu', memory_stats=dict
    )
    with absltest.mock.patch.object(sharding, 'make_mesh', abstract):
      made = estimate(
          dataclasses.replace(CFG, vocab_size=2**22),
          devices=[v5e] * 8,
          mesh__fsdp=-1,
          grpo__micro_groups=4,
          rollout__prefill_rows=4,
      )
    self.assertEqual(made.mesh, dict(slice=1, data=1, fsdp=4, tensor=2))

  def test_remedies_split_over_a_mesh_that_takes_the_rest(self):
    made = config(
        mesh__fsdp=-1,
        grpo__prompts=8,
        grpo__micro_groups=8,
        rollout__decode_slots=16,
        rollout__prefill_rows=8,
    )
    mesh = jax.sharding.AbstractMesh((1, 1, 8, 1), sharding.MESH_AXES)
    opened = policy(policy_lib.padded(CFG, -1, 1))  # As `open_policy` does.
    run = memory_lib.Run(made, opened, mesh, 'gpu')
    named = {n for each in plan_remedies.find(run) for n in each.fields}
    self.assertIn('rollout.decode_slots', named)  # 8 split over 8 devices,
    self.assertNotIn('rollout.prefill_rows', named)  # and 4 do not.

  def test_time_is_shared_by_the_devices(self):
    one, two = (
        estimate(
            mesh__data=1,
            mesh__fsdp=n,
            grpo__prompts=16,
            grpo__micro_groups=16,
            rollout__decode_slots=16,
            rollout__prefill_rows=16,
        )
        for n in (8, 16)
    )
    for a, b in zip(one.estimates, two.estimates, strict=True):
      self.assertAlmostEqual(a.seconds['update'], 2 * b.seconds['update'])

  def test_decoding_large_weights_is_bound_by_memory(self):
    large = dataclasses.replace(CFG, hidden_size=4096)
    made = estimate(
        large,
        mesh__fsdp=8,
        grpo__prompts=16,
        grpo__micro_groups=8,
        rollout__prefill_rows=8,
    )
    v5e = made.estimates[1]
    self.assertEqual(v5e.device.name, 'TPU v5e')
    steps = 10 * math.ceil(16 * 3 / 8) * 6
    # Whole along fsdp, but for the table: per layer qkv 4 * 2 * 8, out 2 * 2 *
    # 8, gate_up 2 * 24, down 24 times D, and norms.
    layer = 168 * 4096 + 2 * 4096 + 2 * 8
    read = 4 * (2 * layer + 4096 + 32 * 4096 // 8)
    read += 4 * 2 * 2 * 1 * 2 * 12 * 8  # The cache of one of 8 slots.
    self.assertAlmostEqual(
        v5e.seconds['decode'], steps * read / (0.819e12 * 0.5)
    )

  def test_too_large(self):
    cfg = dataclasses.replace(
        CFG,
        vocab_size=151_936,
        hidden_size=2560,
        intermediate_size=35_840,
        num_layers=12,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        remat='full',
    )
    made = estimate(cfg, mesh__fsdp=2, grpo__micro_groups=2)
    fits = {e.device.name: e.fit for e in made.estimates}
    # 12 layers of 2560 * (48 * 128 + 32 * 128 + 3 * 35840) and a table: 4.01e9
    # parameters, as Qwen3 4B. Halved, 12 bytes each: 22.4 GiB without gradients
    # and the sampler's copy.
    self.assertIs(fits['TPU v5e'], plan_devices.Fit.NO)
    self.assertIs(fits['H200'], plan_devices.Fit.ROOMY)
    # The moments are the largest part, but for gradients, as large as half of
    # them, within the update.
    self.assertLess(
        made.resident['optimizer moments'], made.temporaries['update']
    )
    # Every remedy was planned.
    v5e = devices.DEVICES['TPU v5 lite']
    remedies = made.remedies(v5e)
    self.assertLen(remedies, 3)
    for remedy in remedies:
      options = dict(mesh__fsdp=2, grpo__micro_groups=2)
      options |= {k.replace('.', '__'): v for k, v in remedy.fields.items()}
      computed = {
          name: options[f'model__{name}']
          for name in policy_lib.COMPUTED
          if f'model__{name}' in options
      }
      again = estimate(dataclasses.replace(cfg, **computed), **options)
      self.assertEqual(again.peak_on(v5e), remedy.peak)
      self.assertLess(remedy.peak, made.peak_on(v5e))
    text = shown(made)
    self.assertIn('DOES NOT FIT into 16,128.0 MiB\n      --config.', text)
    self.assertIn(f'{remedies[0]}: {remedies[0].peak / 2**20:,.1f} MiB', text)

  def test_a_mesh_that_fits_is_found(self):
    cfg = dataclasses.replace(CFG, vocab_size=2**22, hidden_size=512)
    replicas = dict(
        mesh__data=8,
        grpo__prompts=8,
        grpo__micro_groups=8,
        rollout__prefill_rows=8,
    )
    made = estimate(cfg, **replicas)
    (v5e,) = (e for e in made.estimates if e.device.name == 'TPU v5e')
    self.assertIs(v5e.fit, plan_devices.Fit.NO)
    best, *_ = made.remedies(v5e.device)
    self.assertLessEqual(best.peak, v5e.device.memory_bytes)
    self.assertEqual(math.prod(best.fields.values()), 8)
    self.assertIn(f'{best}: ', shown(made))


class AutoMeshTest(parameterized.TestCase):
  """`--config.mesh.auto`, by bounds."""

  def find(self, cfg=CFG, **overrides):
    options = dict(
        grpo__prompts=8, grpo__micro_groups=8, rollout__prefill_rows=8
    )
    made = config(**(options | overrides))
    return plan_meshes.find(made, policy(cfg), jax.devices()[:1])

  def test_other_faults_of_the_config_are_named_before_the_search(self):
    with self.assertRaisesRegex(ValueError, 'model.path is not set'):
      plan.plan(math_config.get_config('qwen3_8b'), mesh_auto=True)

  def test_the_least_split_one_that_fits(self):
    cfg = dataclasses.replace(CFG, vocab_size=2**22, hidden_size=512)
    # The count is that of the config, whose own shape does not matter.
    found = self.find(cfg, mesh__data=2, mesh__fsdp=2, mesh__tensor=2)
    self.assertEqual(found.devices, 8)
    v5e = devices.DEVICES['TPU v5 lite']
    mesh = found.of(v5e)
    self.assertEqual(math.prod(mesh.sizes.values()), 8)
    # The plan of that mesh says the same.
    axes = {f'mesh__{axis}': size for axis, size in mesh.sizes.items()}
    again = estimate(
        cfg,
        grpo__prompts=8,
        grpo__micro_groups=8,
        rollout__prefill_rows=8,
        **axes,
    )
    self.assertEqual(again.peak_on(v5e), mesh.peak(v5e))
    self.assertLess(mesh.peak(v5e), 0.95 * v5e.memory_bytes)
    for other in found.meshes[: found.meshes.index(mesh)]:
      self.assertGreater(other.peak(v5e), 0.95 * v5e.memory_bytes)
      split = lambda m: (m.sizes['tensor'], m.sizes['fsdp'])
      self.assertLess(split(other), split(mesh))
    # Larger devices need to split less.
    v5p = found.of(devices.DEVICES['TPU v5'])
    self.assertLess(split(v5p), split(mesh))
    self.assertEqual(found.chosen, mesh)
    *_, last = lines = found.lines()
    self.assertEqual(last, f'planned: {mesh}')
    (line,) = (each for each in lines if 'v5e' in each)
    self.assertIn(f' {mesh.peak(v5e) / 2**20:,.1f} MiB with data=', line)
    self.assertLessEqual(max(map(len, lines)), 80)

  def test_a_tight_mesh_is_found_and_called_so_by_both(self):
    v5e, v5p = (
        dataclasses.replace(devices.DEVICES[kind], memory_bytes=memory)
        for kind, memory in (('TPU v5 lite', 1000), ('TPU v5', 2000))
    )

    def find(*peaks, known=(v5e,)):
      """By the peaks of meshes with fsdp 1, 2, ..., of ever more parts."""
      return plan_meshes.Meshes(
          8,
          [
              plan_meshes.Mesh(dict(fsdp=n), dict(tpu=peak))
              for n, peak in enumerate(peaks, start=1)
          ],
          known,
      )

    def fsdp(*args, **kwargs):
      return find(*args, **kwargs).chosen.sizes['fsdp']

    self.assertEqual(fsdp(1001, 951, 950), 3)  # A roomy one is better,
    self.assertEqual(fsdp(1001, 990, 951), 2)  # or else the least split one.
    with self.assertRaisesRegex(ValueError, 'no mesh of 8 devices holds'):
      fsdp(1002, 1001)
    # So is a device on which there is a roomy one.
    self.assertEqual(fsdp(1700, 960, known=(v5e, v5p)), 1)
    for peak, words in ((950, 'fits in'), (951, 'fits tightly, with less')):
      found = find(1001, peak)
      tight = words != 'fits in'
      self.assertEqual(found.lines()[1].endswith(' fsdp=2, tight'), tight)
      estimate_ = plan_devices.Estimate(v5e, {}, {}, found.chosen.peak(v5e))
      self.assertEqual(estimate_.fit, found.chosen.fit(v5e))
      self.assertStartsWith(estimate_.fit.words, words)

  def test_the_shipped_mesh_of_an_h100_node(self):
    # tests/gpu_aot compiles it, and it needs 94 % of the memory.
    made = programs_lib.shipped_config(
        'math:qwen3_8b', {'mesh.fsdp': 8, 'mesh.tensor': 1, 'model.path': 'x'}
    )
    large = random_qwen3.without_weights(
        programs_lib.SHAPES['qwen3_8b'], made
    )
    found = plan_meshes.find(made, large, jax.devices()[:1])
    h100 = devices.DEVICES['NVIDIA H100']
    mesh = found.of(h100)
    self.assertEqual(mesh.sizes, dict(data=1, fsdp=8, tensor=1))
    (line,) = (each for each in found.lines() if each[2:8] == 'H100  ')
    self.assertEndsWith(line, 'fsdp=8 tensor=1, tight')

  def test_what_fits_nowhere(self):
    cfg = dataclasses.replace(CFG, vocab_size=2**26, hidden_size=1024)
    found = self.find(cfg, mesh__data=2)
    self.assertIsNone(found.of(devices.DEVICES['TPU v5 lite']))
    with self.assertRaisesRegex(
        ValueError, r'no mesh of 2 devices .* needs \d+\.\d GiB of each'
    ):
      found.lines()

  def test_devices_that_split_nothing(self):
    with self.assertRaisesRegex(ValueError, 'tensor=7'):
      self.find(mesh__data=7)

  def test_a_mesh_that_takes_what_is_here(self):
    found = self.find(mesh__data=-1)
    self.assertEqual(found.devices, 1)
    self.assertEqual(found.chosen.sizes, dict(data=1, fsdp=1, tensor=1))


class DirectoryTest(absltest.TestCase):

  def test_weights_are_not_needed(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    tiny.make_policy(folder)
    sizes = dict(rollout__prefill_rows=8, grpo__prompts=8, grpo__micro_groups=8)
    c = tiny.make_config(folder, mesh__data=8, **sizes)
    expected = plan.plan(c)
    (folder / 'model.safetensors').unlink()
    self.assertEqual(plan.plan(c).peak, expected.peak)
    with self.assertRaisesRegex(ValueError, 'has neither model.safetensors'):
      setup_lib.prepare(c)

  def test_weights_in_a_store_stay_there(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    variables = objects.make(root)
    self.enterContext(absltest.mock.patch.dict(os.environ, variables))
    here = tiny.make_policy(root / 'policy')
    there = storage.Store('objects://bucket/models/tiny')
    for file in here.iterdir():
      there.upload(file, file.name)
    # Another format of the weights, as many published models have.
    there.write('pytorch_model.bin', b'weights')
    with absltest.mock.patch.object(
        objects.ObjectStore,
        'get_file',
        autospec=True,
        side_effect=objects.ObjectStore.get_file,
    ) as download:
      made = plan.plan(tiny.make_config(there.url))
    read = {
        call.args[1].rpartition('/')[2] for call in download.call_args_list
    }
    self.assertContainsSubset({'config.json', 'tokenizer.json'}, read)
    weights = {'model.safetensors', 'pytorch_model.bin'}
    self.assertNoCommonElements(weights, read)
    self.assertEqual(made.peak, plan.plan(tiny.make_config(here)).peak)


class RunTest(parameterized.TestCase):

  def test_a_run_compiles_what_the_plan_says(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    c = tiny.make_config(tiny.make_policy(folder / 'policy'), grpo__kl_coef=0.1)
    programs = dict(plan.plan(c).programs)
    del programs['set-up']
    trainer = trainer_lib.Trainer(
        setup_lib.prepare(c), folder, metrics_lib.Phases()
    )
    for _ in range(2):
      trainer.train_step()
    self.assertEqual(trainer.compilations(), sum(programs.values()))


if __name__ == '__main__':
  absltest.main()
