"""The service samples the policy, and nobody's jobs disturb another's."""

import collections
import dataclasses
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from evojax import records
from evojax.models import decoder
from evojax.rollout import local_service
from evojax.rollout import prefix
from evojax.rollout import sampling
from evojax.rollout import scheduler
from evojax.rollout import service
from evojax.rollout import slots
from evojax.runtime import sharding
from tests import forward
from tests.rollout import engine_test

CFG, EOS = engine_test.CFG, engine_test.EOS
CHUNK = 4


class Answer:
  """Collects the chunks of a job."""

  def __init__(self):
    self.chunks = []
    self.ended = threading.Event()

  def __call__(self, chunk):
    assert not self.ended.is_set(), 'a chunk after the last one'
    self.chunks.append(chunk)
    if chunk.finish:
      self.ended.set()

  def wait(self):
    assert self.ended.wait(60), 'the job did not end'
    return self

  @property
  def tokens(self):
    return [t.token for c in self.chunks for t in c.tokens]

  @property
  def logprobs(self):
    return [t.logprob for c in self.chunks for t in c.tokens]

  @property
  def top(self):
    return [t.top for c in self.chunks for t in c.tokens]

  @property
  def finish(self):
    return self.chunks[-1].finish

  @property
  def versions(self):
    return [c.version for c in self.chunks for _ in c.tokens]


def job(rid, prompt, seed=0, start=None, top=0, **params):
  options = dict(max_tokens=12)
  return service.Job(
      str(rid),
      tuple(prompt),
      records.SamplingParams(**(options | params)),
      seed,
      logprob_start=start,
      top_logprobs=top,
  )


def prompts(count):
  """Return prompts of 1 to 20 tokens, up to five chunks; many begin alike."""
  rng = np.random.default_rng(1)
  common = rng.integers(2, 40, 20).tolist()
  return [
      common[: i % 11] + rng.integers(2, 40, 1 + i % 7).tolist()
      for i in range(count)
  ]


class LocalServiceTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    params = decoder.init(CFG, jax.random.key(0))
    cls.params = dict(params, embed=params['embed'] * 20)
    other = decoder.init(CFG, jax.random.key(1))
    cls.weights = {
        'first': cls.params,
        'second': dict(other, embed=other['embed'] * 20),
    }
    cls.service = cls.make()

  @classmethod
  def tearDownClass(cls):
    cls.service.close(5.0)
    super().tearDownClass()

  @classmethod
  def make(cls, **kwargs):
    shapes = dict(
        max_prompt_tokens=32,  # All of the context, if nothing is sampled.
        max_tokens=12,
        context_tokens=32,
        decode_slots=8,
        prefill_rows=3,
        prefill_chunk=CHUNK,
        prefix_chunks=16,
    )
    options = dict(max_waiting=200, refill_every=4)
    shapes |= {k: v for k, v in kwargs.items() if k in shapes}
    options |= {k: v for k, v in kwargs.items() if k in options}

    def load(path):
      if path not in cls.weights:
        raise ValueError(f'{path}: no such weights')
      return cls.weights[path]

    return local_service.LocalService(
        slots.Slots(
            CFG,
            slots.Shapes(**shapes),
            eos_ids=(EOS,),
            limits=sampling.Limits(),
        ),
        decode_text=engine_test.text_of,
        load=load,
        path='first',
        version='0',
        **options,
    )

  def ask(self, jobs, made=None):
    answers = [Answer() for _ in jobs]
    (made or self.service).submit(jobs, answers)
    return [a.wait() for a in answers]

  def logits(self, prompt, tokens, params=None):
    """float32 [n, V] after the prompt, by the full forward pass."""
    row = [*prompt, *tokens]
    return np.asarray(forward.logits(CFG, params or self.params, row))

  def logprobs(self, prompt, tokens, temperature=1.0, params=None):
    logits = self.logits(prompt, tokens, params)[len(prompt) - 1 : -1]
    return np.asarray(jax.nn.log_softmax(logits / temperature))

  def assert_same(self, a, b):
    self.assertEqual(a.tokens, b.tokens)
    self.assertEqual(a.logprobs, b.logprobs)
    self.assertEqual(a.finish, b.finish)

  @parameterized.parameters(1.0, 0.7)
  def test_logprobs_equal_the_full_forward(self, temperature):
    asked = prompts(25)
    answers = self.ask(
        [job(i, p, i, temperature=temperature) for i, p in enumerate(asked)]
    )
    for p, a in zip(asked, answers):
      want = self.logprobs(p, a.tokens, temperature)
      np.testing.assert_allclose(
          a.logprobs, want[np.arange(len(a.tokens)), a.tokens], atol=1e-5
      )
      self.assertIn(a.finish.reason, ('stop', 'length'))
      self.assertEqual(a.finish.reason == 'length', len(a.tokens) == 12)

  def test_what_is_cached_changes_no_bit(self):
    made = self.make()
    asked = prompts(30)
    jobs = [job(i, p, i) for i, p in enumerate(asked)]
    fresh = [self.ask([j], made)[0] for j in jobs if made.flush()]
    self.assertEqual(sum(a.chunks[0].cached_tokens for a in fresh), 0)
    together = self.ask(jobs, made)
    again = self.ask(jobs[::-1], made)[::-1]
    cached = sum(a.chunks[0].cached_tokens for a in (*together, *again))
    self.assertGreater(cached, 50)
    self.assertEqual(made.stats().cached_tokens, cached)
    for a, b, c in zip(fresh, together, again):
      self.assert_same(a, b)
      self.assert_same(a, c)
    made.close(1.0)

  def test_same_prompt_is_found_but_for_its_last_chunk(self):
    made = self.make(prefill_rows=1)
    prompt = list(range(2, 12))  # Ten tokens: two chunks and two more.
    cached = lambda tokens: (
        self.ask([job(0, tokens)], made)[0].chunks[0].cached_tokens
    )
    self.assertEqual(cached(prompt), 0)
    self.assertEqual(cached(prompt), 10)  # The row has it all.
    self.assertEqual(cached([39, 38]), 0)
    self.assertEqual(cached(prompt), 8)
    # Its last chunk holds the token whose logits are wanted.
    self.assertEqual(cached(prompt[:8]), 4)
    made.close(1.0)

  def test_neighbours_with_penalties_change_no_bit(self):
    asked = prompts(12)
    plain = self.ask([job(i, p, i) for i, p in enumerate(asked)])
    mixed = self.ask(
        [job(i, p, i) for i, p in enumerate(asked)]
        + [
            job('f', [3], frequency_penalty=1.0, top=5),
            job('b', [4], logit_bias=((7, 3.0),), top_k=3),
        ]
    )
    for a, b in zip(plain, mixed):
      self.assert_same(a, b)

  def test_penalties_and_bias(self):
    """Greedy, step by step, against the definition in NumPy."""
    prompt = [6, 2, 11]
    options = dict(
        frequency_penalty=2.0,
        presence_penalty=3.0,
        repetition_penalty=1.5,
        logit_bias=((9, 4.0), (12, -5.0)),
        min_tokens=9,
        temperature=0.0,
        stop_token_ids=(30, 31),
    )
    (a,) = self.ask([job(0, prompt, **options)])
    (plain,) = self.ask([job(1, prompt, temperature=0.0)])
    self.assertNotEqual(a.tokens, plain.tokens)
    for t, token in enumerate(a.tokens):
      logits = self.logits(prompt, a.tokens[:t])[-1].astype(np.float64)
      counts = np.bincount(a.tokens[:t], minlength=40)
      seen = counts > 0
      repeated = np.where(logits > 0, logits / 1.5, logits * 1.5)
      logits = np.where(seen, repeated, logits) - 2.0 * counts - 3.0 * seen
      logits[9] += 4.0
      logits[12] -= 5.0
      if t < 9:
        logits[[EOS, 30, 31]] = -1e30
      self.assertEqual(token, logits.argmax())
      want = logits[token] - np.log(np.exp(logits - logits.max()).sum())
      self.assertAlmostEqual(a.logprobs[t], want - logits.max(), places=4)

  def test_stop_token(self):
    (plain,) = self.ask([job(0, [5, 6, 7], 3, ignore_eos=True)])
    stop = plain.tokens[4]
    at = plain.tokens.index(stop)
    (cut,) = self.ask(
        [job(0, [5, 6, 7], 3, ignore_eos=True, stop_token_ids=(stop,))]
    )
    self.assertEqual(cut.tokens, plain.tokens[: at + 1])
    self.assertEqual(cut.finish, service.Finish('stop', matched=stop))

  def test_stop_string_over_two_tokens(self):
    (plain,) = self.ask([job(0, [9, 9], 2, ignore_eos=True)])
    text = engine_test.text_of(plain.tokens)
    stop = text[4:6]
    (cut,) = self.ask([job(0, [9, 9], 2, ignore_eos=True, stop=('~', stop))])
    self.assertEqual(cut.tokens, plain.tokens[: text.find(stop) + 2])
    self.assertEqual(cut.finish, service.Finish('stop', matched=stop))

  def test_top_logprobs(self):
    (a,) = self.ask([job(0, [4, 8], top=3, temperature=0.8)])
    want = self.logprobs([4, 8], a.tokens, 0.8)
    for t, pairs in enumerate(a.top):
      order = np.argsort(-want[t])[:3]
      self.assertEqual([token for token, _ in pairs], order.tolist())
      np.testing.assert_allclose(
          [x for _, x in pairs], want[t][order], atol=1e-5
      )

  @parameterized.parameters(0, 3, 9)
  def test_logprobs_of_the_prompt(self, start):
    prompt = list(range(3, 14))
    self.ask([job('before', prompt)])  # Its chunks are cached.
    (a,) = self.ask([job(0, prompt, start=start, top=2)])
    scored = a.chunks[0].prompt
    self.assertEqual([t.token for t in scored], prompt[start:])
    want = np.asarray(jax.nn.log_softmax(self.logits(prompt, [])))
    for t, token in enumerate(scored, start):
      if not t:
        self.assertIsNone(token.logprob)
        continue
      self.assertAlmostEqual(token.logprob, want[t - 1, token.token], places=4)
      self.assertEqual(token.top[0][0], want[t - 1].argmax())
    self.assertEqual(a.chunks[0].cached_tokens, 0)

  @parameterized.parameters(1, 11, 31, 32)  # 32 tokens are the context.
  def test_prompts_are_scored_without_a_sample(self, count):
    prompt = [3 + 7 * i % 31 for i in range(count)]
    (a,) = self.ask([job(0, prompt, start=0, top=2, max_tokens=0)])
    self.assertEqual((a.tokens, a.finish), ([], service.Finish('length')))
    (chunk,) = a.chunks
    want = np.asarray(jax.nn.log_softmax(self.logits(prompt, [])))
    self.assertEqual([t.token for t in chunk.prompt], prompt)
    self.assertIsNone(chunk.prompt[0].logprob)
    for t, token in enumerate(chunk.prompt[1:], 1):
      self.assertAlmostEqual(token.logprob, want[t - 1, token.token], places=4)
      self.assertEqual(token.top[0][0], want[t - 1].argmax())
    if count < 32:
      (b,) = self.ask([job(0, prompt, start=0, top=2, max_tokens=1)])
      self.assertEqual(chunk.prompt, b.chunks[0].prompt)

  def test_jobs_that_sample_nothing_disturb_nobody(self):
    jobs = [job(k, p, k, ignore_eos=True) for k, p in enumerate(prompts(12))]
    alone = self.ask(jobs)
    others = [
        job(f'{start} {k}', [2 + k, *p], start=start, max_tokens=0)
        for k, p in enumerate(prompts(30))
        for start in (None, 0)
    ]
    mixed = [j for group in zip(jobs, *[iter(others)] * 5) for j in group]
    answers = self.ask(mixed)
    for a, b in zip(alone, answers[::6], strict=True):
      self.assert_same(a, b)
    self.assertEqual(sum(len(a.tokens) == 0 for a in answers), 60)
    # They leave their prompts to others.
    prompt = [9, 8, 7, 6, 5, 4, 3, 2, 9]
    self.ask([job(0, prompt, max_tokens=0)])
    (a,) = self.ask([job(0, [*prompt, 5])])
    self.assertEqual(a.chunks[0].cached_tokens, 8)

  def test_jobs_that_sample_nothing_hold_up_no_sample(self):
    made = self.make(refill_every=1)
    ended = []

    def listen(name):
      return lambda chunk: chunk.finish and ended.append(name)

    made.pause('in_place')
    made.submit([job('sampled', [3], ignore_eos=True)], [listen('sampled')])
    names = [f'scored {k}' for k in range(190)]
    # A chunk each, and no two alike.
    jobs = [
        job(name, [2 + k // 30, 2 + k % 30, 7], max_tokens=0)
        for k, name in enumerate(names)
    ]
    made.submit(jobs, [listen(name) for name in names])
    made.resume()
    made.close(30.0)
    self.assertCountEqual(ended, ['sampled', *names])
    # 12 tokens, before each of which 4 chunks of 3 rows are prefilled.
    self.assertLess(ended.index('sampled'), 185)

  @parameterized.parameters('retract', 'in_place')
  def test_a_pause_changes_no_sample(self, mode):
    made = self.make(refill_every=1)
    asked = prompts(14)
    jobs = [
        job(i, p, i, ignore_eos=True, presence_penalty=0.5)
        for i, p in enumerate(asked)
    ]
    want = self.ask(jobs, made)
    answers = [Answer() for _ in jobs]
    made.submit(jobs, answers)
    while not any(a.chunks for a in answers):
      time.sleep(0.001)
    made.pause(mode)
    self.assertTrue(made.paused)
    held = [len(a.tokens) for a in answers]
    self.assertLess(sum(held), 14 * 12)
    self.assertFalse(made.flush())
    time.sleep(0.05)
    self.assertEqual([len(a.tokens) for a in answers], held)
    if mode == 'retract':
      self.assertEqual(made.stats().running, 0)
    made.resume()
    for a, b in zip(want, answers):
      b.wait()
      self.assertEqual(a.tokens, b.tokens)
      np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
    made.close(1.0)

  def test_pause_with_abort_ends_all(self):
    made = self.make(refill_every=1)
    answers = [Answer() for _ in range(20)]
    made.submit([job(i, [3, 4], i) for i in range(20)], answers)
    made.pause('abort')
    for a in answers:
      self.assertTrue(a.ended.is_set())
    self.assertIn('abort', {a.finish.reason for a in answers})
    later = Answer()
    made.submit([job('later', [3])], [later])
    time.sleep(0.05)
    self.assertFalse(later.ended.is_set())
    made.resume()
    later.wait()
    made.close(1.0)

  @parameterized.parameters('in_place', 'retract')
  def test_weights_change_in_the_middle(self, mode):
    made = self.make(refill_every=1)
    jobs = [job(i, [3, 4, 5, 6, 7], i, ignore_eos=True) for i in range(3)]
    before = self.ask(jobs, made)
    answers = [Answer() for _ in jobs]
    made.submit(jobs, answers)
    while not any(a.chunks for a in answers):
      time.sleep(0.001)
    made.pause(mode)
    running = made.update_weights('second', '1', abort_all=False, flush=True)
    self.assertEqual(running, 3 if mode == 'in_place' else 0)
    made.resume()
    for old, new in zip(before, answers):
      new.wait()
      self.assertLen(new.tokens, 12)
      cut = new.versions.index('1')
      self.assertGreater(cut, 0)
      self.assertEqual(new.versions, ['0'] * cut + ['1'] * (12 - cut))
      self.assertEqual(new.tokens[:cut], old.tokens[:cut])
      if mode == 'retract':  # What follows is sampled by the new weights alone.
        want = self.logprobs(
            jobs[0].prompt_tokens, new.tokens, params=self.weights['second']
        )
        np.testing.assert_allclose(
            new.logprobs[cut:],
            want[np.arange(12), new.tokens][cut:],
            atol=1e-5,
        )
    (changed,) = self.ask([jobs[0]], made)
    self.assertNotEqual(changed.tokens, before[0].tokens)
    if mode == 'in_place':  # Nothing was prefilled with the new weights.
      self.assertEqual(changed.chunks[0].cached_tokens, 0)
    made.update_weights('first', '2', abort_all=False, flush=True)
    (back,) = self.ask([jobs[0]], made)
    self.assert_same(back, before[0])
    with self.assertRaisesRegex(ValueError, 'third: no such weights'):
      made.update_weights('third', '3', abort_all=False, flush=True)
    self.assertEqual(made.version, '2')
    self.ask([jobs[0]], made)
    made.close(1.0)

  def test_many_of_one_caller_do_not_hold_up_another(self):
    made = self.make()
    answers = [Answer() for _ in range(120)]
    made.submit(
        [job(i, [2 + i % 30], i, ignore_eos=True) for i in range(120)], answers
    )
    (single,) = self.ask([job('single', [5, 6])], made)
    waiting = sum(not a.ended.is_set() for a in answers)
    self.assertGreater(waiting, 60)
    for a in answers:
      a.wait()
    self.assertIsNotNone(single.finish)
    made.close(1.0)

  def test_many_requests_of_one_caller_do_not_hold_up_another(self):
    made = self.make()
    made.pause('in_place')
    answers = [Answer() for _ in range(60)]
    of = lambda caller, j: dataclasses.replace(j, caller=caller)
    for i, a in enumerate(answers):  # One by one, as our own client asks.
      made.submit([of('a', job(i, [2 + i % 30], i, ignore_eos=True))], [a])
    single = Answer()
    made.submit([of('b', job('b', [5, 6], max_tokens=1))], [single])
    made.resume()
    single.wait()
    # It was the second to get one of the eight slots.
    self.assertGreater(sum(not a.ended.is_set() for a in answers), 40)
    for a in answers:
      self.assertLen(a.wait().tokens, 12)
    made.close(1.0)

  def test_callers_take_turns(self):
    turns = scheduler._Turns()
    entry = lambda caller, rid: scheduler.Entry(
        dataclasses.replace(job(rid, [3]), caller=caller), lambda *_: None
    )
    for rid in range(3):
      turns.add([entry('a', f'a{rid}')])
    turns.add([entry('b', 'b0')])
    turns.add([entry('', 'x0'), entry('', 'x1')])  # Nobody's: its own group.
    turns.add([entry('', 'y0')])
    turns.add([entry('b', 'b1')])
    self.assertEqual(
        [turns.pop(next(turns.heads())).job.rid for _ in range(len(turns))],
        ['a0', 'b0', 'x0', 'y0', 'a1', 'b1', 'x1', 'a2'],
    )

  def in_order(self, order, j, answer):
    """A listener that notes whose chunks come when."""

    def listen(chunk):
      order.append(j.rid)
      answer(chunk)

    return listen

  def test_many_long_prompts_hold_up_no_short_one(self):
    made = self.make(
        prefill_chunk=2,
        max_prompt_tokens=71,
        context_tokens=72,
        refill_every=1,
    )
    jobs = [job(f'long{i}', [3 + i] * 60, i, max_tokens=3) for i in range(4)]
    jobs.append(job('short', [7, 8], 9, max_tokens=3))
    alone = [self.ask([j], made)[0] for j in jobs if made.flush()]
    self.assertTrue(made.flush())
    made.pause('in_place')
    order, answers = [], [Answer() for _ in jobs]
    for j, answer in zip(jobs, answers):  # Each of a caller of its own.
      made.submit([j], [self.in_order(order, j, answer)])
    made.resume()
    for a in answers:
      a.wait()
    begun = order.index('long0')
    self.assertEqual(set(order[:begun]), {'short'})
    self.assertNotIn('short', order[begun:])
    for a, b in zip(alone, answers):
      self.assert_same(a, b)
    made.close(1.0)

  def test_a_long_prompt_holds_up_no_short_one(self):
    made = self.make(
        prefill_chunk=2,
        max_prompt_tokens=71,
        context_tokens=72,
        refill_every=1,
    )
    long = [3 + i % 30 for i in range(60)]  # 30 chunks, four a step.
    jobs = [
        job('long', long, 1, max_tokens=3),
        *(job(i, [4 + i, 5], i, max_tokens=3) for i in range(4)),
        job('scored', [6, 7], 2, start=0, max_tokens=3),
    ]
    alone = [self.ask([j], made)[0] for j in jobs if made.flush()]
    self.assertTrue(made.flush())
    made.pause('in_place')
    order = []
    answers = [Answer() for _ in jobs]
    listeners = [self.in_order(order, j, a) for j, a in zip(jobs, answers)]
    made.submit(jobs, listeners)
    made.resume()
    for a in answers:
      a.wait()
    # The others, two of three rows at a time, have ended before it begins.
    begun = order.index('long')
    self.assertEqual(set(order[:begun]), {j.rid for j in jobs[1:]})
    self.assertEqual(set(order[begun:]), {'long'})
    for a, b in zip(alone, answers):
      self.assert_same(a, b)
    self.assertEqual(alone[-1].chunks[0].prompt, answers[-1].chunks[0].prompt)
    made.close(1.0)

  def test_abort_of_a_prompt_that_is_being_prefilled(self):
    held = self.service._slots
    schedule = scheduler.Scheduler(
        held,
        decode_text=engine_test.text_of,
        refill_every=4,
        jobs_may_come=True,
    )
    jobs = [job(i, [3 + i] * 20, i, max_tokens=2) for i in range(3)]
    want = self.ask(jobs)
    self.ask([job(i, [30 + i] * 20) for i in range(3)])  # In the same rows.
    self.assertTrue(self.service.flush())
    ended = {}

    def listen(entry, progress):
      if progress.finish:
        tokens = entry.tokens.tolist()
        ended[entry.job.rid] = progress.finish.reason, tokens

    entries = [scheduler.Entry(j, listen) for j in jobs]
    with sharding.use(held.mesh):
      schedule.waiting.add(entries)
      with mock.patch.object(scheduler, '_CHUNKS_PER_BURST', 4):
        schedule.step()  # Three rows; of five chunks each, four are done.
      self.assertEqual((schedule.live, schedule.queued), (0, 3))
      schedule.abort(entries[1])
      self.assertEqual(ended, {'1': ('abort', [])})
      self.assertEqual(schedule.queued, 2)
      # Its row is no prompt's: who asks for the same one begins anew.
      schedule.waiting.add([scheduler.Entry(jobs[1], listen)])
      while schedule.busy:
        schedule.step()
    self.assertEqual(
        ended,
        {str(i): (a.finish.reason, a.tokens) for i, a in enumerate(want)},
    )

  def test_chunks_of_one_block_have_places_of_their_own(self):
    tree = prefix.PrefixTree(4, CHUNK)
    tree.insert([range(100, 113)])  # Fills three of four places.
    asked = [range(13), range(50, 63)]  # Three chunks each.
    new = tree.insert(asked)
    places = [place for *_, place in new]
    self.assertLen(set(places), len(places))
    # The first takes the free place and two old ones, the second what is left.
    self.assertEqual([n[:2] for n in new], [(0, 0), (0, 1), (0, 2), (1, 0)])
    for number, tokens in enumerate(asked):
      self.assertEqual(
          tree.match(tokens), [place for n, _, place in new if n == number]
      )
    self.assertLen(tree, 4 * CHUNK)

  def test_empty_slots_wait_for_many_prompts_but_not_for_one(self):
    made = self.make(prefill_rows=4, refill_every=1, prefix_chunks=0)
    most = made._schedule._most_chunks
    seen = []
    made._schedule._most_chunks = lambda: seen.append(most()) or seen[-1]
    long = [[3 + i] * 20 for i in range(8)]  # Five chunks each.
    self.ask([job(0, long[0])], made)
    self.assertEqual(set(seen), {4})
    seen.clear()
    self.ask([job(i, p) for i, p in enumerate(long)], made)
    self.assertContainsSubset({4, 16}, seen)
    made.close(1.0)

  def test_everything_is_compiled_before_the_first_job(self):
    made = self.make()
    made.warm_up()
    empty = {'slots': 8}
    stats = dataclasses.asdict(made.stats())
    self.assertEqual({k: v for k, v in stats.items() if v}, empty)
    before = made._slots.programs
    # extend, score, load, store, decode; inserts of 4, 8, 16 and 32 tokens;
    # what is fetched, with and without the most probable tokens.
    self.assertEqual(before, 5 + 4 + 2)
    compiled = []
    log = lambda name, *_, **__: compiled.append(name)
    jax.monitoring.register_event_duration_secs_listener(log)
    try:
      for _ in range(2):
        for n in range(1, 21):
          self.ask([job(n, [2 + n] * n)], made)
        self.ask([job(i, p, i) for i, p in enumerate(prompts(20))], made)
        self.ask([job(0, [3] * 9, start=0, top=2)], made)
        self.ask([job(0, [3] * 32, start=0, max_tokens=0)], made)
        self.ask([job(0, [3], top=2, top_p=0.5, presence_penalty=1.0)], made)
        made.pause('retract')
        made.resume()
        made.flush()
    finally:
      jax.monitoring.unregister_event_duration_listener(log)
    self.assertEqual(made._slots.programs, before)
    self.assertEmpty([name for name in compiled if 'compile' in name])
    self.assertGreater(made.stats().cached_tokens, 0)
    made.close(1.0)

  def test_what_an_ended_neighbour_asked_for_is_done_no_more(self):
    calls = collections.Counter()

    def counted(module, name):
      function = getattr(module, name)

      def count(*args):
        jax.debug.callback(lambda: calls.update([name]))
        return function(*args)

      return mock.patch.object(module, name, count)

    with (
        counted(sampling, '_adjust'),
        counted(sampling, 'best'),
        counted(sampling, '_filter'),
    ):
      made = self.make()
      made.warm_up()
    plain = job('plain', [5, 6, 7], 4, ignore_eos=True)
    (want,) = self.ask([plain], made)
    for name, neighbour in (
        ('_filter', job('n', [3], top_p=0.5, max_tokens=3)),
        ('_filter', job('n', [3], top_k=2, max_tokens=3)),
        ('_filter', job('n', [3], min_p=0.1, max_tokens=3)),
        ('_adjust', job('n', [3], repetition_penalty=2.0, max_tokens=3)),
        ('_adjust', job('n', [3], min_tokens=9, max_tokens=3)),
        ('_adjust', job('n', [3], logit_bias=((7, 1.0),), max_tokens=3)),
        ('best', job('n', [3], top=3, max_tokens=3)),
    ):
      with self.subTest(name, params=neighbour.params):
        jax.effects_barrier()
        calls.clear()
        beside, _ = self.ask([plain, neighbour], made)  # In the second slot.
        jax.effects_barrier()
        self.assertEqual(calls[name], 3)
        calls.clear()
        (after,) = self.ask([plain], made)
        jax.effects_barrier()
        self.assertEmpty(calls)
        self.assert_same(beside, want)
        self.assert_same(after, want)
    made.close(1.0)

  def test_abort_of_waiting_and_running(self):
    made = self.make(refill_every=1)
    answers = [Answer() for _ in range(16)]
    made.submit(
        [job(i, [3, 4], i, ignore_eos=True) for i in range(16)], answers
    )
    while not answers[0].chunks:
      time.sleep(0.001)
    self.assertTrue(made.abort('0', 'gone'))
    self.assertTrue(made.abort('15'))
    self.assertFalse(made.abort('nobody'))
    self.assertEqual(answers[0].wait().finish.reason, 'abort')
    self.assertEqual(answers[0].finish.message, 'gone')
    self.assertEqual(answers[15].wait().tokens, [])
    want = self.ask([job('x', [3, 4], 0, ignore_eos=True)], made)[0]
    self.assertEqual(answers[0].tokens, want.tokens[: len(answers[0].tokens)])
    for a in answers[1:15]:
      self.assertLen(a.wait().tokens, 12)
    stats = made.stats()
    self.assertEqual((stats.running, stats.waiting), (0, 0))
    self.assertEqual((stats.finished, stats.aborted), (15, 2))
    made.close(1.0)

  def test_the_queue_is_bounded_and_a_batch_is_taken_whole_or_not(self):
    made = self.make(max_waiting=4)
    made.pause('in_place')
    answers = [Answer() for _ in range(10)]
    made.submit([job(i, [3], i) for i in range(10)], answers)
    with self.assertRaisesRegex(service.QueueFullError, 'holds 12'):
      made.submit([job(f'b{i}', [3]) for i in range(3)], [Answer()] * 3)
    with self.assertRaisesRegex(ValueError, 'send several'):
      made.submit([job(f'b{i}', [3]) for i in range(13)], [Answer()] * 13)
    made.submit([job(f'b{i}', [3]) for i in range(2)], [Answer(), Answer()])
    made.resume()
    for a in answers:
      a.wait()
    self.assertEqual(made.stats().refused, 3)
    made.close(1.0)

  @parameterized.parameters(
      (dict(prompt=[]), 'the prompt is empty'),
      (dict(prompt=[40]), 'token 40 of the prompt is outside the vocabulary'),
      (dict(prompt=[-1]), 'token -1'),
      (dict(prompt=[2] * 21), 'a prompt of 21 tokens .* context of 32'),
      (dict(prompt=[2], max_tokens=13), 'max_new_tokens=13'),
      (dict(prompt=[2], max_tokens=-1), 'max_new_tokens=-1'),
      (dict(prompt=[2] * 33, max_tokens=0), 'the prompt has 33 tokens'),
      (dict(prompt=[2], stop_token_ids=(40,)), 'token 40 of stop_token_ids'),
      (dict(prompt=[2], stop_token_ids=(3,) * 9), 'stop_token_ids has 9'),
      (dict(prompt=[2], logit_bias=((41, 1.0),)), 'token 41'),
      (dict(prompt=[2], top=21), 'top_logprobs=21'),
      (dict(prompt=[2], start=1), 'logprob_start_len=1'),
  )
  def test_what_does_not_fit_is_refused(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      self.service.submit([job('bad', **kwargs)], [Answer()])
    self.ask([job('bad', [3])])  # And the name is free.

  def test_names_are_unique(self):
    with self.assertRaisesRegex(ValueError, "rid='a' is in use"):
      self.service.submit([job('a', [3])] * 2, [Answer()] * 2)

  def test_memory_is_given_back_and_taken_again(self):
    made = self.make()
    (want,) = self.ask([job(0, [3, 4])], made)
    with self.assertRaisesRegex(ValueError, 'choose among'):
      made.release_memory(['cache'])
    made.release_memory(['weights', 'kv_cache'])
    answer = Answer()
    made.submit([job(1, [3, 4])], [answer])
    with self.assertRaisesRegex(ValueError, 'jobs are running'):
      made.release_memory(['weights'])
    made.restore_memory(['weights'])
    made.restore_memory(['kv_cache'])
    answer.wait()
    self.assertEqual(answer.tokens, want.tokens)
    # Weights come back from where they last came, not from the first place.
    made.update_weights('second', '1', abort_all=False, flush=True)
    (want,) = self.ask([job(2, [3, 4])], made)
    self.assertNotEqual(answer.tokens, want.tokens)
    made.release_memory(['weights'])
    made.restore_memory(['weights', 'kv_cache'])
    (again,) = self.ask([job(3, [3, 4])], made)
    self.assertEqual(again.tokens, want.tokens)
    made.close(1.0)

  def test_close_lets_running_jobs_finish(self):
    made = self.make()
    answers = [Answer() for _ in range(9)]
    made.submit([job(i, [3], i) for i in range(9)], answers)
    made.close(30.0)
    for a in answers:
      self.assertIn(a.finish.reason, ('stop', 'length'))
    with self.assertRaises((service.QueueFullError, RuntimeError)):
      made.submit([job('late', [3])], [Answer()])

  def test_close_aborts_what_takes_too_long(self):
    made = self.make()
    made.pause('in_place')
    answer = Answer()
    made.submit([job(0, [3])], [answer])
    made.close(0.01)
    self.assertEqual(answer.finish.reason, 'abort')

  def test_a_dead_thread_leaves_nobody_waiting(self):
    made = self.make()
    answer = Answer()

    def broken(*_):
      raise MemoryError('no more')

    made._slots.decode = broken
    made.submit([job(0, [3])], [answer])
    answer.wait()
    self.assertEqual(answer.finish.reason, 'abort')
    self.assertIn('no more', answer.finish.message)
    with self.assertRaisesRegex(service.ServiceFailedError, 'no more'):
      made.submit([job(1, [3])], [Answer()])
    self.assertFalse(made.alive)
    made.close(1.0)

  def test_a_command_that_fails_leaves_nobody_waiting(self):
    made = self.make()

    def broken(_):
      raise RuntimeError('no room for them')

    made._slots.install = broken
    made.pause('in_place')
    answers = [Answer(), Answer()]

    def fails(_):  # One listener's error is not the others'.
      answers[0].ended.set()
      raise ValueError('a bad listener')

    made.submit([job(i, [3]) for i in range(2)], [fails, answers[1]])
    with made._lock:  # The thread sees both commands, or the first alone.
      behind = made._leave(lambda: 'done')
      update = threading.Thread(target=self._update, args=(made,), daemon=True)
      update.start()
    self.assertEqual(behind.result(60), 'done')
    update.join(60)
    self.assertFalse(update.is_alive(), 'update_weights did not return')
    for a in answers:
      a.wait()
    self.assertIn('no room', answers[1].finish.message)
    self.assertFalse(made.alive)
    for call in (made.resume, made.flush, made.warm_up):
      with self.assertRaisesRegex(service.ServiceFailedError, 'no room'):
        call()
    made.close(1.0)
    made.close(1.0)

  def _update(self, made):
    with self.assertRaisesRegex(service.ServiceFailedError, 'no room'):
      made.update_weights('second', '1', abort_all=False, flush=True)

  @parameterized.parameters(False, True)
  def test_commands_behind_the_last_are_answered(self, fails):
    made = self.make()

    def broken():
      raise RuntimeError('no more')

    with made._lock:
      if fails:
        made._leave(broken)
      else:
        made._leave(None)
      behind = [made._leave(lambda: 'done') for _ in range(2)]
    for answer in behind:
      with self.assertRaises(service.ServiceFailedError):
        answer.result(60)
    with self.assertRaises(service.ServiceFailedError):
      made.pause('abort')
    self.assertFalse(made.abort('nobody'))
    self.assertEqual(made.abort_all(), 0)
    made.close(1.0)


if __name__ == '__main__':
  absltest.main()
