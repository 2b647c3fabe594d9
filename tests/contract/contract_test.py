"""The contract that evojax needs of an SGLang server, held by three of them."""

import asyncio
import concurrent.futures
import contextlib
import json
import os
import pathlib
import tempfile
import threading
import time
import types as simple_types
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import httpx2
import jax
import numpy as np
import pytest

from evojax import config as config_lib
from evojax import domains
from evojax import records
from evojax.episodes import collect
from evojax.episodes import episode
from evojax.models import policy as policy_lib
from evojax.rollout import answers
from evojax.rollout import parity
from evojax.runtime import sharding
from evojax.training import engines
from evojax.training import loop as training_loop
from tests import talk
from tests import tiny
from tests.contract import servers

_PARITY = 1e-4  # Nats.
_LENGTH = 480  # Prompt and completion.
_TURNS = dict(max_tokens=120, turn_tokens=30)
# Bodies that other trainers send to /generate, without their input_ids.
TRAINERS = {
    'slime': {
        'sampling_params': {
            'temperature': 1.0,
            'top_p': 1.0,
            'top_k': -1,
            'max_new_tokens': 8,
            'stop': None,
            'stop_token_ids': None,
            'skip_special_tokens': False,
            'no_stop_trim': True,
            'spaces_between_special_tokens': False,
            'sampling_seed': 42,
        },
        'return_logprob': True,
    },
    'verl': {
        'sampling_params': {
            'n': 1,
            'max_new_tokens': 8,
            'presence_penalty': 0.0,
            'frequency_penalty': 0.0,
            'repetition_penalty': 1.0,
            'temperature': 1.0,
            'top_k': -1,
            'top_p': 1.0,
        },
        'return_logprob': True,
    },
    'AReaL': {
        'image_data': None,
        'sampling_params': {
            'top_p': 1.0,
            'top_k': 100_000_000,
            'max_new_tokens': 8,
            'temperature': 1.0,
            'stop_token_ids': [],
            'frequency_penalty': 0.0,
        },
        'return_logprob': True,
        'stream': False,
    },
}


class Contract(parameterized.TestCase):
  """The suite; `start` says which server it is about."""

  __test__ = False
  start = None
  updates_at_once = True  # Or when what runs is done, unless it is paused.
  survives_misfits = True  # Weights of another shape.
  transports = 'folder', 'tensors'  # By which it takes weights.
  page = 16  # Of its prefix cache, in tokens; 0 if it has none.
  fewest = 0  # Tokens that are sampled where none is asked for.
  _pace = None  # Seconds per token of eight samples at once.

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.url = cls.enterClassContext(cls.start()).url
    cls.enterClassContext(
        mock.patch.dict(os.environ, {servers.KEY_VARIABLE: servers.KEY})
    )
    cls.folder = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.config = tiny.make_config(
        servers.MODEL,
        steps=3,
        optim__learning_rate=1e-4,  # The policy is a trained one.
        eval__sealed=False,
        rollout__max_tokens=_LENGTH - 40,
        rollout__decode_slots=8,
        rollout__kind='sglang',
        rollout__urls=(cls.url,),
        rollout__api_key_env=servers.KEY_VARIABLE,
        rollout__timeout_seconds=120.0,  # Busy machines take long.
        rollout__concurrency=8,
    )
    cls.policy = policy_lib.open_policy(
        **cls.config.model.to_dict()
        | {'path': domains.policy_path(servers.MODEL)}
    )
    cls.mesh = sharding.make_mesh(data=1, fsdp=1, tensor=1)
    cls.params = policy_lib.load_params(
        cls.policy, cls.mesh, param_dtype='float32'
    )
    cls.score = staticmethod(
        parity.make_scorer(cls.policy.cfg, cls.mesh, rows=8, length=_LENGTH)
    )
    cls.prompt = tuple(
        cls.policy.tokenizer.render(
            [{'role': 'user', 'content': 'What is 31 + 4?'}]
        )
    )

  @contextlib.contextmanager
  def engine(self, *, weights=True, **rollout):
    fields = {f'rollout.{name}': value for name, value in rollout.items()}
    config = config_lib.with_fields(self.config, fields)
    with tempfile.TemporaryDirectory() as folder:
      with engines.open_sampler(
          config, self.policy, self.mesh, pathlib.Path(folder)
      ) as engine:
        if weights:
          engine.update_weights(self.params, 0)
        yield engine

  def requests(self, count, tokens, temperature=1.0):
    params = records.SamplingParams(
        max_tokens=tokens, temperature=temperature, ignore_eos=True
    )
    return [
        records.Request(self.prompt, 5, problem_key=3, sample=k, params=params)
        for k in range(count)
    ]

  def check_logprobs(self, completions, temperature=1.0, params=None):
    rows = self.score(
        self.params if params is None else params,
        [(self.prompt, c.tokens.tolist()) for c in completions],
        [temperature] * len(completions),
    )
    for completion, row in zip(completions, rows):
      np.testing.assert_allclose(completion.logprobs, row, atol=_PARITY, rtol=0)

  def long(self):
    """Tokens that keep the server busy, and when it is busy with them."""
    if type(self)._pace is None:

      async def run():
        async with self.http() as http:
          start = time.perf_counter()
          await asyncio.gather(
              *(http.post('/generate', json=self.body(60)) for _ in range(8))
          )
          return (time.perf_counter() - start) / 60

      # The first requests may compile programs.
      type(self)._pace = min(asyncio.run(run()) for _ in range(2))
    count = 120 if self._pace > 0.01 else 400
    return count, 0.3 * count * self._pace

  def http(self, key=servers.KEY):
    return httpx2.AsyncClient(
        base_url=self.url,
        headers={'Authorization': f'Bearer {key}'},
        timeout=120,
        trust_env=False,
    )

  def body(self, count, seed=0):
    return {
        'input_ids': list(self.prompt),
        'return_logprob': True,
        'sampling_params': {
            'max_new_tokens': count,
            'ignore_eos': True,
            'sampling_seed': seed,
        },
    }

  # ----------------------------------------------------------------- tests

  def test_logprobs_of_long_completions(self):
    # Over 50 tokens: there sglang-jax repeats itself and drops token ids.
    with self.engine() as engine:
      for temperature in (1.0, 0.7):
        completions = engine.generate(self.requests(4, 120, temperature))
        for completion in completions:
          self.assertLen(completion.tokens, 120)
          self.assertEqual(completion.finish_reason, 'length')
        self.check_logprobs(completions, temperature)

  def test_greedy_tokens_are_the_most_probable(self):
    with self.engine() as engine:
      (greedy,) = engine.generate(self.requests(1, 60, temperature=0.0))
    self.check_logprobs([greedy])
    local = engines.make_engine(
        tiny.make_config(servers.MODEL, rollout__max_tokens=60),
        self.policy,
        self.mesh,
    )
    local.update_weights(self.params, 0)
    (expected,) = local.generate(self.requests(1, 60, temperature=0.0))
    self.assertEqual(greedy.tokens.tolist(), expected.tokens.tolist())

  def test_completion_ends_at_its_first_end_token(self):
    with self.engine() as engine:
      asked = [
          records.Request(self.prompt, 5, 3, k, records.SamplingParams(100))
          for k in range(8)
      ]
      completions = engine.generate(asked)
      again = engine.generate(asked)
    self.check_logprobs(completions)
    ends = set(self.policy.tokenizer.eos_ids)
    self.assertIn('stop', {c.finish_reason for c in completions})
    for completion, other in zip(completions, again):
      self.assertEqual(
          completion.finish_reason == 'stop', completion.tokens[-1] in ends
      )
      self.assertEmpty(ends & set(completion.tokens[:-1].tolist()))
      # Equal seeds, equal samples.
      self.assertEqual(completion.tokens.tolist(), other.tokens.tolist())
    self.assertGreater(len({tuple(c.tokens) for c in completions}), 4)

  def test_prompt_is_scored_without_a_sample(self):
    # So do teachers of a distillation.
    completion = [5, 7, 11, 5, 3]
    body = self.body(0) | {'logprob_start_len': len(self.prompt) - 1}
    body['input_ids'] += completion

    async def ask():
      async with self.http() as http:
        return await http.post('/generate', json=body)

    with self.engine():
      response = asyncio.run(ask())
    self.assertEqual(response.status_code, 200, response.text)
    meta = response.json()['meta_info']
    self.assertEqual(meta['completion_tokens'], self.fewest)
    self.assertEqual(meta['finish_reason']['type'], 'length')
    scored = meta['input_token_logprobs'][-len(completion) :]
    self.assertEqual([token for _, token, *_ in scored], completion)
    self.check_logprobs(
        [
            simple_types.SimpleNamespace(
                tokens=np.array(completion),
                logprobs=np.array([logprob for logprob, *_ in scored]),
            )
        ]
    )

  @parameterized.parameters('folder', 'tensors')
  def test_weights_go_there_and_back(self, transport):
    if transport not in self.transports:
      with self.assertRaisesRegex(answers.DisagreementError, 'no /update_wei'):
        with self.engine(weights_transport=transport):
          pass
      return
    rng = np.random.default_rng(0)
    changed = jax.tree.map(
        lambda x: x + 0.02 * rng.normal(size=x.shape).astype(np.float32),
        self.params,
    )
    asked = self.requests(4, 40)
    with self.engine(weights_transport=transport) as engine:
      before = engine.generate(asked)
      engine.update_weights(changed, 1)
      after = engine.generate(asked)
      engine.update_weights(self.params, 2)
      back = engine.generate(asked)
    self.check_logprobs(before)
    self.check_logprobs(after, params=changed)
    self.assertNotEqual(
        [c.tokens.tolist() for c in before], [c.tokens.tolist() for c in after]
    )
    self.assertEqual(
        [c.tokens.tolist() for c in before], [c.tokens.tolist() for c in back]
    )
    for version, completions in enumerate((before, after, back)):
      self.assertEqual({c.policy_version for c in completions}, {version})

  def test_update_within_a_completion(self):
    count, busy = self.long()
    with self.engine() as engine:
      engine.update_weights(self.params, 1)
      asked = self.requests(6, count)
      with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(engine.generate, asked)
        time.sleep(busy / 2)
        engine.update_weights(self.params, 2)
        completions = future.result()
    # The same weights under another name: log-probs stay right, and every
    # token knows its version.
    self.check_logprobs(completions)
    for completion in completions:
      self.assertIn(completion.policy_version, (1, 2))
      if completion.version_spans:
        (first, change), (second, end) = completion.version_spans
        self.assertEqual((first, second), (1, 2))
        self.assertEqual(completion.policy_version, 1)
        self.assertBetween(change, 1, count - 1)
        self.assertEqual(end, count)
    mixed = any(c.version_spans for c in completions)
    self.assertEqual(mixed, self.updates_at_once)

  def test_update_within_a_pause(self):
    # So do trainers that update within completions, whatever the server.
    count, busy = self.long()
    update = {
        'model_path': str(domains.policy_path(servers.MODEL)),
        'weight_version': 'the same',
        'abort_all_requests': False,
        'flush_cache': True,
    }

    async def run(bodies):
      async with self.http() as http:
        running = [
            asyncio.create_task(http.post('/generate', json=body))
            for body in bodies
        ]
        await asyncio.sleep(busy)
        for path, body in (
            ('/pause_generation', {'mode': 'retract'}),
            ('/update_weights_from_disk', update),
            ('/continue_generation', {}),
        ):
          response = await http.post(path, json=body)
          self.assertEqual(response.status_code, 200, response.text)
        return [(await task).json() for task in running]

    bodies = [self.body(count, k) | {'rid': f'paused-{k}'} for k in range(6)]
    with self.engine():
      found = asyncio.run(run(bodies))
    parts = [
        answers.read(
            answer,
            body,
            url=self.url,
            vocab_size=self.policy.cfg.vocab_size,
            eos_ids=(),
        )
        for answer, body in zip(found, bodies)
    ]
    for part in parts:
      self.assertLen(part.spans, 2)
      (_, change), (version, end) = part.spans
      self.assertEqual((version, end), ('the same', count))
      self.assertBetween(change, 1, count - 1)
    self.check_logprobs(
        [
            simple_types.SimpleNamespace(
                tokens=np.array(part.tokens), logprobs=part.logprobs
            )
            for part in parts
        ]
    )

  def test_weights_that_do_not_fit(self):
    async def update(path):
      async with self.http() as http:
        return await http.post(
            '/update_weights_from_disk', json={'model_path': str(path)}
        )

    with self.engine() as engine:
      other = tiny.make_policy(self.folder / 'other')
      misfits = (other,) if self.survives_misfits else ()
      for path in (*misfits, self.folder / 'nowhere'):
        response = asyncio.run(update(path))
        self.assertEqual(response.status_code, 400)
        self.assertFalse(response.json()['success'])
      completions = engine.generate(self.requests(2, 20))
    self.check_logprobs(completions)  # The old ones serve on.

  def test_aborted_samples_are_finished(self):
    async def abort():
      async with self.http() as http:
        response = await http.post('/abort_request', json={'abort_all': True})
        self.assertEqual(response.status_code, 200)

    count, busy = self.long()
    with self.engine() as engine:
      asked = self.requests(12, count)  # More than run at once.
      with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(engine.generate, asked)
        # On a busy machine the first may come before the requests do.
        while not (engine.metrics()['fleet/resumed'] or future.done()):
          time.sleep(busy / 2)
          asyncio.run(abort())
        completions = future.result()
      self.assertGreater(engine.metrics()['fleet/resumed'], 0)
    for completion in completions:
      self.assertLen(completion.tokens, count)
      self.assertEqual(completion.finish_reason, 'length')
    self.check_logprobs(completions[:8])
    self.check_logprobs(completions[8:])

  @parameterized.parameters('abort', 'retract', 'in_place')
  def test_pause(self, mode):
    count, busy = self.long()

    async def run():
      async with self.http() as http:
        running = [
            asyncio.create_task(http.post('/generate', json=body))
            for body in (self.body(count, k) for k in range(10))
        ]
        await asyncio.sleep(busy)
        response = await http.post('/pause_generation', json={'mode': mode})
        self.assertEqual(response.status_code, 200)
        late = asyncio.create_task(http.post('/generate', json=self.body(5)))
        await asyncio.sleep(0.5)
        self.assertFalse(late.done())
        ended = [task.done() for task in running]
        response = await http.post('/continue_generation', json={})
        self.assertEqual(response.status_code, 200)
        metas = [(await task).json()['meta_info'] for task in running]
        return ended, metas, (await late).json()['meta_info']

    ended, metas, late = asyncio.run(run())
    self.assertEqual(late['completion_tokens'], 5)
    reasons = {meta['finish_reason']['type'] for meta in metas}
    if mode == 'abort':
      self.assertTrue(all(ended))
      self.assertEqual(reasons, {'abort'})
      self.assertLess(max(meta['completion_tokens'] for meta in metas), count)
    else:
      self.assertFalse(any(ended))
      self.assertEqual(reasons, {'length'})

  @parameterized.parameters(*TRAINERS)
  def test_body_of_another_trainer(self, name):
    async def ask():
      async with self.http() as http:
        body = {'input_ids': list(self.prompt), **TRAINERS[name]}
        return await http.post('/generate', json=body)

    response = asyncio.run(ask())
    self.assertEqual(response.status_code, 200, response.text)
    meta = response.json()['meta_info']
    # As they read it.
    tokens = [entry[1] for entry in meta['output_token_logprobs']]
    self.assertLen(tokens, meta['completion_tokens'])
    self.assertBetween(len(tokens), 1, 8)
    self.assertIn(meta['finish_reason']['type'], ('length', 'stop'))

  def test_wrong_key(self):
    async def ask(method, path, key):
      async with self.http(key) as http:
        return (await http.request(method, path)).status_code

    for method, path in (('GET', '/model_info'), ('POST', '/generate')):
      self.assertEqual(asyncio.run(ask(method, path, 'guess')), 401)
    self.assertEqual(asyncio.run(ask('GET', '/health', 'guess')), 200)
    with mock.patch.dict(os.environ, {servers.KEY_VARIABLE: 'guess'}):
      with self.assertRaisesRegex(answers.DisagreementError, 'api_key_env'):
        with self.engine(weights=False):
          pass

  def talk(self, engine, domain, count):
    """The episodes of a domain of several turns, and their request batch."""
    asked = collect.request_batch(
        self.policy.tokenizer,
        domain.source('train', 3).take(0, count),
        records.SamplingParams(max_tokens=120, turn_tokens=30),
        group_size=2,
        seed=3,
        max_prompt_tokens=40,
    )
    player = episode.Player(engine, self.policy.tokenizer, domain)
    return asked, player.play(asked)

  def test_episodes_of_several_turns(self):
    domain = talk.make(families=('chain_sum:0',))
    cached, read = [], answers.read

    def remember(answer, body, **options):
      found = answer['meta_info'].get('cached_tokens', 0)
      cached.append((tuple(body['input_ids']), found))
      return read(answer, body, **options)

    with self.engine(**_TURNS) as engine:
      with mock.patch.object(answers, 'read', remember):
        asked, episodes = self.talk(engine, domain, 4)
    self.assertGreater(max(len(e.turns) for e in episodes), 1)
    rows = [
        (request.prompt_tokens, e.tokens.tolist())
        for request, e in zip(asked.requests, episodes, strict=True)
    ]
    scored = self.score(self.params, rows, [1.0] * len(rows))
    for e, want in zip(episodes, scored, strict=True):
      gap = np.abs(e.logprobs - want[: len(e.tokens)])[e.loss_mask]
      self.assertLess(gap.max(), 10 * _PARITY)
      self.assertEqual([t.text for t in e.turns], e.state['heard'])
    # The prompt of a later turn begins with that of the turn before it, of
    # which the server knows all whole pages.
    hits = 0
    for prompt, found in cached if self.page else ():
      before = [
          len(other)
          for other, _ in cached
          if len(other) < len(prompt) and prompt[: len(other)] == other
      ]
      known = max(before, default=0) // self.page * self.page
      self.assertGreaterEqual(found, known)
      hits += known > 0
    self.assertEqual(hits > 0, self.page > 0)

  def test_weights_that_change_between_turns_are_marked(self):
    domain = talk.make(families=('chain_sum:0',))
    with self.engine(**_TURNS) as engine:

      class Environment(talk.Environment):

        def reply(self, turn):
          with once:
            if engine.policy_version == 0:
              engine.update_weights(params, 1)
          return super().reply(turn)

      params, once = self.params, threading.Lock()
      with mock.patch.object(talk, 'Environment', Environment):
        _, episodes = self.talk(engine, domain, 1)
    several = [e for e in episodes if len(e.turns) > 1]
    self.assertNotEmpty(several)
    for e in several:
      first = e.turns[0].sampled + e.turns[0].observed
      self.assertEqual(e.policy_version, 0)
      spans = ((0, first), (1, len(e.tokens)))
      self.assertIn(e.version_spans, (spans, ()))
    self.assertNotEmpty([e for e in several if e.version_spans])

  def test_training_with_several_turns(self):
    rows = self.train('turns', 'tests.talk', max_tokens=60, turn_tokens=16)
    for row in rows:
      self.assertLess(row['gap_max'], _PARITY)

  def train(self, name, domain='math', **rollout):
    """Rows of the metrics of three steps."""
    rollout = {'max_tokens': 24, **rollout}
    config = config_lib.with_fields(
        self.config,
        {
            'domain.name': domain,
            **{f'rollout.{name}': value for name, value in rollout.items()},
            'eval.problems': 2,
            'eval.samples': 1,
            'grpo.tis_cap': 2.0,
        },
    )
    workdir = self.folder / name
    summary = training_loop.run(config, str(workdir))
    self.assertEqual(summary['steps'], 3)
    lines = (workdir / 'metrics.jsonl').read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if 'gap' in row]
    self.assertLen(rows, 3)
    for row in rows:
      self.assertGreater(row['grad_norm'], 0)
      self.assertGreater(row['sync/transfer_seconds'], 0)
    return rows

  def test_training(self):
    for row in self.train('run'):
      self.assertEqual(row['staleness'], 0)
      self.assertLess(row['gap_max'], _PARITY)

  def test_training_while_the_next_step_is_sampled(self):
    rows = self.train('ahead', queue_depth=1, max_staleness=1)
    self.assertEqual([row['staleness'] for row in rows], [0, 1, 1])
    self.assertEqual([row['refused_stale'] for row in rows], [0, 0, 0])
    self.assertLess(rows[0]['gap_max'], _PARITY)
    # Sampled with the weights before: close, and not equal.
    for row in rows[1:]:
      self.assertBetween(row['gap_max'], 10 * _PARITY, 1.0)


@pytest.mark.slow
class EvojaxTest(Contract):
  """evojax's own service."""

  __test__ = True
  start = staticmethod(servers.evojax)


@pytest.mark.slow
@pytest.mark.real_sglang_jax
class SglangJaxTest(Contract):
  """sglang-jax, started by launch/sglang_jax.py."""

  __test__ = True
  start = staticmethod(servers.sglang_jax)
  transports = ('folder',)
  fewest = 1


@pytest.mark.slow
@pytest.mark.real_sglang
class SglangTest(Contract):
  """Mainline SGLang, started by launch/sglang_cpu.py."""

  __test__ = True
  page = 0  # launch/sglang_cpu.py says why.
  updates_at_once = False
  # It takes back what it loaded from the new directory, and dies:
  # https://github.com/sgl-project/sglang/pull/30749.
  survives_misfits = False
  start = staticmethod(servers.sglang)


if __name__ == '__main__':
  absltest.main()
