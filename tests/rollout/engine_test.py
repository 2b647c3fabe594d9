"""The engine samples the policy, and a sample does not know its neighbours."""

import dataclasses
import re
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from evojax import records
from evojax.models import cache as cache_lib
from evojax.models import decoder
from evojax.rollout import engine
from evojax.rollout import scheduler
from evojax.rollout import slots
from evojax.runtime import preemption
from tests import forward

EOS = 1
CFG = forward.CFG


def text_of(tokens):
  """Token 3 is 'd', token 4 'e', ...: one character each."""
  return ''.join(chr(ord('a') + t) for t in tokens if t != EOS)


def new_engine(cfg=CFG, *, refill_every=4, **shapes):
  """An engine without weights."""
  options = dict(
      max_prompt_tokens=8, max_tokens=12, decode_slots=8, prefill_rows=3
  )
  return engine.Engine(
      cfg,
      slots.Shapes(**(options | shapes)),
      eos_ids=(EOS,),
      decode_text=text_of,
      refill_every=refill_every,
  )


def make_engine(params, **kwargs):
  made = new_engine(**kwargs)
  made.update_weights(params, 5)
  return made


def request(prompt, problem=0, sample=0, seed=0, **params):
  options = dict(max_tokens=12)
  return records.Request(
      tuple(prompt),
      seed,
      problem,
      sample,
      records.SamplingParams(**(options | params)),
  )


def many(count, **params):
  """Requests of several prompts and lengths, in groups of three."""
  rng = np.random.default_rng(0)
  prompts = [rng.integers(2, 40, 2 + i % 6).tolist() for i in range(count)]
  return [
      request(prompts[i // 3], i // 3, i % 3, max_tokens=3 + i % 10, **params)
      for i in range(count)
  ]


class EngineTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    params = decoder.init(CFG, jax.random.key(0))
    # Sharper than a random model, so that greedy and filters mean something.
    cls.params = dict(params, embed=params['embed'] * 20)
    cls.engine = make_engine(cls.params)

  def assert_same(self, a, b):
    np.testing.assert_array_equal(a.tokens, b.tokens)
    np.testing.assert_array_equal(a.logprobs, b.logprobs)
    self.assertEqual(a.finish_reason, b.finish_reason)

  def logprobs(self, prompt, tokens, temperature=1.0):
    """Log-probs by the full forward pass."""
    row = [*prompt, *tokens]
    logits = forward.logits(CFG, self.params, row)[len(prompt) - 1 : -1]
    return np.asarray(jax.nn.log_softmax(logits / temperature))

  @parameterized.parameters(1.0, 0.7, 1.6)
  def test_logprobs_equal_the_full_forward(self, temperature):
    for r, c in zip(
        many(21), self.engine.generate(many(21, temperature=temperature))
    ):
      want = self.logprobs(r.prompt_tokens, c.tokens, temperature)
      np.testing.assert_allclose(
          c.logprobs, want[np.arange(len(c.tokens)), c.tokens], atol=1e-5
      )

  def test_a_sample_is_bit_equal_in_any_company_and_order(self):
    requests = many(30)
    together = self.engine.generate(requests)
    reversed_ = self.engine.generate(requests[::-1])[::-1]
    for i, r in enumerate(requests):
      self.assert_same(together[i], reversed_[i])
      if i % 7 == 0:
        self.assert_same(together[i], self.engine.generate([r])[0])

  def test_slots_and_refills_change_no_token(self):
    requests = many(30)
    want = self.engine.generate(requests)
    other = make_engine(
        self.params, decode_slots=32, prefill_rows=16, refill_every=0
    )
    for a, b in zip(want, other.generate(requests)):
      np.testing.assert_array_equal(a.tokens, b.tokens)
      np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)

  def segments(self, made):
    """Spy on the decode steps of an engine's segments."""
    steps, decode = [], made.slots.decode
    made.slots.decode = lambda halted, count: (
        steps.append(count) or decode(halted, count)
    )
    return steps

  def test_the_length_of_segments_changes_no_sample(self):
    requests = [
        request([2 + i] * (500 + i), i, max_tokens=18 + 6 * i, ignore_eos=True)
        for i in range(6)
    ]
    # A cache of several blocks: the steps of a segment decide which are read.
    options = dict(max_prompt_tokens=512, max_tokens=48, decode_slots=4)
    self.assertEqual(cache_lib.key_block(512 + 48), 128)
    found, counts = [], []
    for seconds in (1e9, 0.0):
      made = make_engine(self.params, refill_every=0, **options)
      steps = self.segments(made)
      with mock.patch.object(scheduler, '_SEGMENT_SECONDS', seconds):
        found.append(made.generate(requests))
      counts.append(steps)
    self.assertEqual(max(counts[0]), 48)
    self.assertEqual(set(counts[1]), {1})
    # Free slots are refilled only once all rows have ended: 4, then 2 rows.
    self.assertLen(counts[1], (36 - 1) + (48 - 1))
    for one, other in zip(*found, strict=True):
      self.assert_same(one, other)

  def test_a_segment_ends_within_half_a_second(self):
    made = make_engine(self.params, max_tokens=100)
    steps, decode = self.segments(made), made.slots.decode

    def slow(halted, count):
      time.sleep(0.02 * count)
      decode(halted, count)

    made.slots.decode = slow
    asked = [request((2, 3), max_tokens=100, ignore_eos=True)]
    made.generate(asked * 2)
    # Nothing is known before the first segment.
    self.assertEqual(steps[0], 1)
    # 0.5 s are 25 steps, fewer on a busy machine.
    self.assertBetween(max(steps), 2, 25)

  def test_who_is_asked_to_stop_does_and_starts_afresh(self):
    asked, engine = [], make_engine(self.params)
    want = engine.generate(many(30))
    engine.stopping = lambda: asked.append(0) or len(asked) == 4
    with self.assertRaises(preemption.Interrupted):
      engine.generate(many(30))
    self.assertLen(asked, 4)
    for a, b in zip(want, engine.generate(many(30)), strict=True):
      self.assert_same(a, b)

  def prefills(self, made):
    """Spy on an engine's chunks ('p'), decode calls ('d') and polls ('.')."""
    found, slots_ = [], made.slots
    advance, decode = slots_.advance, slots_.decode
    slots_.advance = lambda: found.append('p') or advance()
    slots_.decode = lambda *args: found.append('d') or decode(*args)
    made.stopping = lambda: found.append('.')
    return found

  @parameterized.parameters(0, 4)
  def test_a_stop_is_asked_for_between_chunks_and_changes_no_sample(self, n):
    # Many more prompts than rows: almost every chunk fills a slot.
    requests = [request([2 + i, 3], i, max_tokens=9) for i in range(24)]
    found, calls = [], []
    for seconds in (1e9, 0.0):
      made = make_engine(
          self.params, refill_every=n, decode_slots=16, prefill_rows=2
      )
      made.generate(requests)  # Compiles, and measures a chunk.
      calls.append(self.prefills(made))
      with (
          mock.patch.object(scheduler, '_SEGMENT_SECONDS', seconds),
          # The same segments, whatever their time.
          mock.patch.object(scheduler.Scheduler, '_segment', lambda _: 4),
      ):
        found.append(made.generate(requests))
    whole, polled = map(''.join, calls)
    self.assertIn('pppppppp', whole)  # 16 slots in one step.
    self.assertNotIn('pp', polled)
    self.assertEqual(polled.replace('.', ''), whole.replace('.', ''))
    for one, other in zip(*found, strict=True):
      self.assert_same(one, other)

  def test_a_refill_is_left_within_half_a_second(self):
    made = make_engine(self.params, decode_slots=40, prefill_rows=1)
    calls, advance = self.prefills(made), made.slots.advance
    made.slots.advance = lambda: time.sleep(0.05) or advance()
    requests = [request([2 + i, 3], i, max_tokens=3) for i in range(30)]
    made.generate(requests)
    # 0.5 s are 10 chunks, fewer on a busy machine.
    most = max(map(len, re.findall('p+', ''.join(calls))))
    self.assertBetween(most, 2, 10)

  def test_sampling_follows_the_distribution(self):
    # First token of 4,000 samples against softmax(logits / T), chi-squared
    # with the rare tokens pooled: 99.9 % quantile at <= 15 degrees is < 38.
    prompt, t = [5, 9, 3], 1.5
    requests = [
        request(prompt, 7, i, max_tokens=1, temperature=t) for i in range(4000)
    ]
    first = [c.tokens[0] for c in self.engine.generate(requests)]
    p = np.exp(self.logprobs(prompt, [0], t)[0]) * 4000
    n = np.bincount(first, minlength=40)
    common = p >= 20
    p = np.append(p[common], p[~common].sum())
    n = np.append(n[common], n[~common].sum())
    self.assertLess(((n - p) ** 2 / np.maximum(p, 1)).sum(), 20 + 2 * len(p))

  def test_seed_problem_and_sample_each_change_the_draw(self):
    base = dict(problem=3, sample=2, seed=9, temperature=3.0)
    runs = [request([4, 5], **base)] + [
        request([4, 5], **{**base, name: base[name] + 1})
        for name in ('problem', 'sample', 'seed')
    ]
    texts = {c.text for c in self.engine.generate(runs)}
    self.assertLen(texts, 4)

  def test_greedy_takes_the_most_probable_token(self):
    (c,) = self.engine.generate([request([7, 8, 9], temperature=0.0)])
    scores = self.logprobs([7, 8, 9], c.tokens)
    np.testing.assert_array_equal(c.tokens, scores.argmax(-1))
    np.testing.assert_allclose(c.logprobs, scores.max(-1), atol=1e-5)

  @parameterized.parameters(
      (dict(top_k=3),), (dict(top_p=0.5),), (dict(min_p=0.3),)
  )
  def test_filters_bound_the_support(self, filters):
    prompt = [6, 2, 11]
    requests = [
        request(prompt, 1, i, max_tokens=1, temperature=2.0, **filters)
        for i in range(300)
    ]
    seen = {int(c.tokens[0]) for c in self.engine.generate(requests)}
    p = np.exp(self.logprobs(prompt, [0], 2.0)[0])
    order = np.argsort(-p)
    if 'top_k' in filters:
      allowed = set(order[:3].tolist())
    elif 'top_p' in filters:
      allowed = set(
          order[: np.searchsorted(np.cumsum(p[order]), 0.5) + 1].tolist()
      )
    else:
      allowed = set(np.flatnonzero(p >= 0.3 * p.max()).tolist())
    self.assertEqual(seen, allowed)

  def test_one_row_with_a_filter_leaves_its_neighbours_alone(self):
    plain = self.engine.generate(many(6))
    mixed = self.engine.generate(many(6) + [request([3], 50, 0, top_k=2)])
    for a, b in zip(plain, mixed):
      self.assert_same(a, b)

  def test_eos_ends_and_ignore_eos_does_not(self):
    # With the logit of EOS raised, every sequence ends early.
    params = dict(self.params, embed=self.params['embed'].at[EOS].mul(3.0))
    made = make_engine(params)
    ended = made.generate([request([4, 2], 0, i) for i in range(40)])
    stopped = [c for c in ended if c.finish_reason == 'stop']
    self.assertNotEmpty(stopped)
    for c in ended:
      self.assertEqual((c.tokens == EOS).sum(), c.finish_reason == 'stop')
      if c.finish_reason == 'stop':
        self.assertEqual(c.tokens[-1], EOS)
    long = made.generate(
        [request([4, 2], 0, i, ignore_eos=True) for i in range(40)]
    )
    for a, b in zip(ended, long):
      self.assertLen(b.tokens, 12)
      self.assertEqual(b.finish_reason, 'length')
      np.testing.assert_array_equal(a.tokens, b.tokens[: len(a.tokens)])

  def test_stop_strings_cut_tokens_and_text(self):
    plain = self.engine.generate([request([9, 9], 2, i) for i in range(12)])
    stop = plain[3].text[4:6]
    cut = self.engine.generate(
        [request([9, 9], 2, i, stop=(stop, '~~')) for i in range(12)]
    )
    for a, b in zip(plain, cut):
      at = a.text.find(stop)
      if at < 0:
        self.assert_same(a, b)
        self.assertEqual(a.text, b.text)
        continue
      self.assertEqual(b.text, a.text[:at])
      self.assertEqual(b.finish_reason, 'stop')
      # The token that completes the stop string is sampled, hence kept.
      np.testing.assert_array_equal(b.tokens, a.tokens[: at + 2])
      np.testing.assert_array_equal(b.logprobs, a.logprobs[: at + 2])

  def test_new_weights_take_effect_and_old_ones_return_the_old_samples(self):
    made = make_engine(self.params)
    before = made.generate(many(9))
    other = decoder.init(CFG, jax.random.key(1))
    made.update_weights(dict(other, embed=other['embed'] * 20), 6)
    changed = made.generate(many(9))
    self.assertTrue(all(c.policy_version == 6 for c in changed))
    self.assertNotEqual([c.text for c in before], [c.text for c in changed])
    made.update_weights(self.params, 7)
    for a, b in zip(before, made.generate(many(9))):
      self.assert_same(a, b)

  def test_three_programs_whatever_is_asked(self):
    made = make_engine(self.params)
    made.generate(many(30))
    made.generate(many(2, temperature=0.5, top_k=4))
    made.generate(many(5, stop=('zz',)))
    made.update_weights(jax.tree.map(jnp.copy, self.params), 9)
    made.generate(many(7, min_p=0.2, ignore_eos=True))
    self.assertEqual(made.compilations(), 3)

  def test_a_second_turn_finds_its_prefix_in_the_cache(self):
    shapes = dict(max_prompt_tokens=32, prefill_chunk=4, prefix_chunks=32)
    made = make_engine(self.params, **shapes)
    cached, assign = {}, made.slots.assign

    def count(prompts, chunks, scored):
      cached.update((prompt, len(chunks[r])) for r, prompt in prompts.items())
      assign(prompts, chunks, scored)

    def next_turn(r, episode, observation):
      tokens = (*r.prompt_tokens, *episode.tokens.tolist(), *observation)
      # A turn has random numbers of its own.
      return dataclasses.replace(r, prompt_tokens=tokens, sample=r.sample + 9)

    rng = np.random.default_rng(3)
    first = [
        request(rng.integers(2, 40, 9).tolist(), i, sample)
        for i in range(3)
        for sample in range(2)
    ]
    with mock.patch.object(made.slots, 'assign', count):
      episodes = made.generate(first)
      second = [next_turn(r, e, (7, 8, 9)) for r, e in zip(first, episodes)]
      answers = made.generate(second)
      third = next_turn(second[0], answers[0], ())
      third = dataclasses.replace(third, prompt_tokens=third.prompt_tokens[:32])
      made.generate([third])
    for r in first:
      self.assertEqual(cached[r.prompt_tokens], 0)
    for r in second:  # Two whole chunks of nine tokens.
      self.assertEqual(cached[r.prompt_tokens], 2)
    # The second turn prefilled what the first one sampled.
    whole = (len(second[0].prompt_tokens) - 1) // 4
    self.assertGreater(whole, 2)
    self.assertEqual(cached[third.prompt_tokens], whole)
    for r, answer in zip(second, answers):
      want = self.logprobs(r.prompt_tokens, answer.tokens)
      np.testing.assert_allclose(
          answer.logprobs,
          want[np.arange(len(answer.tokens)), answer.tokens],
          atol=1e-5,
      )
    # The same bits alone with an empty cache, and in company without a cache.
    alone = make_engine(self.params, **shapes)
    for r, answer in zip(second, answers):
      alone.update_weights(self.params, 6)  # Empties the cache.
      self.assert_same(alone.generate([r])[0], answer)
    plain = make_engine(self.params, **(shapes | dict(prefix_chunks=0)))
    for a, b in zip(plain.generate(second[::-1])[::-1], answers):
      self.assert_same(a, b)
    # prefill, decode, load, store; inserts of 4, 8, 16 and 32 tokens at most.
    self.assertLessEqual(made.compilations(), 4 + 4)

  def test_new_weights_empty_the_prefix_cache(self):
    made = make_engine(self.params, prefill_chunk=2, prefix_chunks=16)
    r = request(range(2, 9), 1)
    (before,) = made.generate([r])
    other = decoder.init(CFG, jax.random.key(1))
    made.update_weights(dict(other, embed=other['embed'] * 20), 6)
    (changed,) = made.generate([r])
    fresh = make_engine(dict(other, embed=other['embed'] * 20), prefill_chunk=2)
    self.assert_same(changed, fresh.generate([r])[0])
    self.assertNotEqual(before.text, changed.text)

  def test_an_error_leaves_nothing_behind(self):
    made = make_engine(self.params)
    want = made.generate(many(20))
    decode, calls = made.slots.decode, []

    def broken(*args):
      calls.append(args)
      if len(calls) == 2:
        raise MemoryError('no more')
      decode(*args)

    with mock.patch.object(made.slots, 'decode', broken):
      with self.assertRaisesRegex(MemoryError, 'no more'):
        made.generate(many(20))
    for a, b in zip(want, made.generate(many(20))):
      self.assert_same(a, b)

  @parameterized.parameters(
      (dict(prompt=range(2, 12)), 'max_prompt_tokens is 8'),
      (dict(prompt=[]), 'prompt of 0 tokens'),
      (dict(prompt=[2], max_tokens=13), 'max_tokens=13'),
      (dict(prompt=[2], max_tokens=0), 'max_tokens=0'),
  )
  def test_what_does_not_fit_is_refused(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      self.engine.generate([request(**kwargs)])
    self.engine.generate([request([2, 3])])  # And the engine still works.

  @parameterized.parameters(
      ('min_tokens', 2, '0'),
      ('stop_token_ids', (3,), r'\(\)'),
      ('logit_bias', ((3, 1.0),), r'\(\)'),
      ('frequency_penalty', 0.5, '0.0'),
      ('presence_penalty', 0.5, '0.0'),
      ('repetition_penalty', 1.5, '1.0'),
  )
  def test_what_is_not_compiled_for_training_is_refused(
      self, field, value, neutral
  ):
    # Field and value, then the remedy.
    message = rf'SamplingParams\.{field}=.*leave it at {neutral}.*mode=serve'
    with self.assertRaisesRegex(ValueError, message):
      self.engine.generate([request([2], **{field: value})])
    self.engine.generate([request([2, 3])])  # And the engine still works.

  def test_no_weights(self):
    made = new_engine(CFG)
    with self.assertRaisesRegex(ValueError, 'update_weights'):
      made.generate([request([2])])

  def test_no_requests(self):
    self.assertEqual(self.engine.generate([]), [])

  def test_bfloat16_cache_follows_the_compute_dtype(self):
    cfg = dataclasses.replace(CFG, compute_dtype='bfloat16')
    made = new_engine(cfg)
    made.update_weights(self.params, 0)
    (c,) = made.generate([request([2, 3, 4])])
    self.assertEqual(c.logprobs.dtype, np.float32)
    self.assertTrue(np.isfinite(c.logprobs).all())


if __name__ == '__main__':
  absltest.main()
