"""The client of SGLang servers, against servers that misbehave."""

import asyncio
import concurrent.futures
import http.server
import json
import os
import pathlib
import tempfile
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import httpx2
import ml_dtypes
import numpy as np

from evojax import records
from evojax.rollout import answers
from evojax.rollout import client as client_lib
from evojax.rollout import connections
from evojax.rollout import fleet as fleet_lib
from evojax.rollout import probes
from evojax.rollout import roster as roster_lib
from evojax.rollout import servers as servers_lib
from evojax.rollout import transfer
from evojax.rollout import weights as weights_lib
from evojax.runtime import descriptors
from evojax.runtime import environment
from evojax.runtime import preemption
from tests.rollout import fake_sglang as fake

WEIGHT = 0.5


def requests(
    count: int, *, max_tokens: int = 12, **params
) -> list[records.Request]:
  params = records.SamplingParams(max_tokens=max_tokens, **params)
  return [
      records.Request(
          (5, 6, 7), seed=11, problem_key=1, sample=k, params=params
      )
      for k in range(count)
  ]


def expected(request: records.Request, weight: float = WEIGHT) -> list[int]:
  """Tokens that any server must sample for a request."""
  return fake.sample(
      weight,
      request.prompt_tokens,
      seed=answers.seed_of(request),
      count=request.params.max_tokens,
      temperature=request.params.temperature,
      ignore_eos=request.params.ignore_eos,
  )[0]


def _keep_weight(server, body, update=fake.Server._update):
  """Pretends to take weights."""
  weight = server.weight
  answer = update(server, body)
  server.weight = weight
  return answer


class ClientTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory())
    )
    self.servers = [fake.Server(f'http://server{i}:30000') for i in range(2)]

  def connect(self, *, weights: bool = True, model=None, **options):
    options = {'concurrency': 4, 'timeout_seconds': 3.0} | options
    engine = client_lib.SGLangEngine(
        [server.url for server in self.servers],
        model or fake.model(),
        weights_folder=self.folder / 'weights',
        transport=fake.transport(self.servers),
        **options,
    )
    self.addCleanup(engine.close)
    if weights:
      engine.update_weights(WEIGHT, 7)
    return engine

  def check(self, completions, asked, weight=WEIGHT):
    self.assertLen(completions, len(asked))
    for completion, request in zip(completions, asked):
      self.assertEqual(completion.tokens.tolist(), expected(request, weight))
      (row,) = fake.score(
          weight,
          [(request.prompt_tokens, completion.tokens.tolist())],
          [request.params.temperature],
      )
      np.testing.assert_allclose(completion.logprobs, row, atol=1e-6)


class SamplingTest(ClientTestCase):

  def test_samples(self):
    asked = requests(40)
    completions = self.connect().generate(asked)
    self.check(completions, asked)
    for completion in completions:
      self.assertEqual(completion.policy_version, 7)
      self.assertEqual(completion.version_spans, ())
      self.assertEqual(
          completion.text, ' '.join(map(str, completion.tokens.tolist()))
      )
      ended = completion.tokens[-1] == fake.EOS
      self.assertEqual(completion.finish_reason, 'stop' if ended else 'length')
    # Both kinds occur, and all samples of the group differ.
    self.assertLen({c.finish_reason for c in completions}, 2)
    self.assertLen({tuple(c.tokens) for c in completions}, 40)

  def test_both_servers_work_and_none_is_asked_too_much(self):
    engine = self.connect(concurrency=3)
    for server in self.servers:
      server.most = 0
    engine.generate(requests(30))
    shares = [len(server.asked) for server in self.servers]
    self.assertEqual(sum(shares), 30)
    self.assertGreater(min(shares), 10)
    self.assertEqual([server.most for server in self.servers], [3, 3])

  def test_no_more_requests_than_files_may_be_open(self):
    few = mock.patch.object(descriptors, 'raise_limit', return_value=6)
    self.enter_context(few)
    with self.assertLogs(level='WARNING') as logs:
      engine = self.connect(concurrency=4)
    self.assertRegex(logs.output[0], 'at most 3 requests .* 2 servers take 8')
    for server in self.servers:
      server.most = 0
    asked = requests(30)
    self.check(engine.generate(asked), asked)
    self.assertLessEqual(max(server.most for server in self.servers), 3)

  def test_what_is_asked(self):
    (request,) = requests(
        1,
        temperature=0.7,
        stop=('x',),
        min_tokens=2,
        stop_token_ids=(9,),
        logit_bias=((4, 1.5),),
    )
    self.connect().generate([request])
    (body,) = self.servers[0].asked + self.servers[1].asked
    self.assertEqual(body['input_ids'], [5, 6, 7])
    self.assertEqual(
        body['sampling_params'],
        {
            'n': 1,
            'max_new_tokens': 12,
            'temperature': 0.7,
            'top_p': 1.0,
            'top_k': -1,
            'min_p': 0.0,
            'ignore_eos': False,
            'sampling_seed': answers.seed_of(request),
            'stop': ['x'],
            'stop_token_ids': [fake.EOS, 9],
            'min_new_tokens': 2,
            'logit_bias': {'4': 1.5},
        },
    )

  def test_seeds(self):
    base = dict(prompt_tokens=(1,), params=records.SamplingParams())
    seeds = [
        answers.seed_of(
            records.Request(seed=s, problem_key=p, sample=k, **base), n
        )
        for s in (0, 2**32 - 1)
        for p in (0, 2**32 - 1)
        for k in range(8)
        for n in (0, 3)
    ]
    self.assertLen(set(seeds), len(seeds))
    self.assertBetween(min(seeds), 0, 2**31 - 1)
    self.assertBetween(max(seeds), 2**30, 2**31 - 1)  # All bits are used.

  def test_stop_string_is_cut_off(self):
    (request,) = requests(1, ignore_eos=True)
    text = ' '.join(map(str, expected(request)))
    stop = text[9:11]
    (request,) = requests(1, ignore_eos=True, stop=(stop,))
    (completion,) = self.connect().generate([request])
    self.assertEqual(completion.text, text[: text.find(stop)])

  def test_before_weights(self):
    with self.assertRaisesRegex(ValueError, 'before update_weights'):
      self.connect(weights=False).generate(requests(1))

  def test_request_that_does_not_fit(self):
    engine = self.connect()
    with self.assertRaisesRegex(ValueError, 'max_tokens=65 is outside 1..64'):
      engine.generate(requests(1, max_tokens=65))
    long = records.Request((1,) * 17, 0, 0, 0, records.SamplingParams())
    with self.assertRaisesRegex(ValueError, 'prompt of 17 .* is 16'):
      engine.generate([long])

  def test_no_request(self):
    self.assertEqual(self.connect().generate([]), [])


class RosterTest(ClientTestCase):
  """Servers that join and leave as a file of URLs changes."""

  def setUp(self):
    super().setUp()
    self.enter_context(mock.patch.object(fleet_lib, '_LOOK_SECONDS', 0.02))
    self.file = self.folder / 'servers'
    self.names(self.servers[0])

  def names(self, *servers, comment=''):
    lines = [f'# {comment}', *(f'{server.url}/  # up' for server in servers)]
    self.file.write_text('\n'.join(lines))

  def connect(self, **options):
    options = {'concurrency': 2, 'timeout_seconds': 3.0} | options
    engine = client_lib.SGLangEngine(
        (),
        options.pop('model', fake.model()),
        urls_file=self.file,
        weights_folder=self.folder / 'weights',
        transport=fake.transport(self.servers),
        **options,
    )
    self.addCleanup(engine.close)
    engine.update_weights(WEIGHT, 7)
    return engine

  def wait(self, holds):
    deadline = time.monotonic() + 10
    while not holds():
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.005)

  def test_newcomer_gets_weights_is_compared_and_samples(self):
    first, new = self.servers
    engine, asked = self.connect(), requests(200)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      future = pool.submit(engine.generate, asked)
      self.names(first, new)
      self.check(future.result(), asked)
    (update,) = new.updates
    self.assertEqual(update['weight_version'], first.version)
    self.assertNotEmpty(new.asked)
    self.assertEqual(new.most, 2)
    self.assertLen(new.asked + first.asked, 200)  # Nothing is asked twice.

  def test_one_that_leaves_has_its_work_sent_elsewhere(self):
    first, second = self.servers
    self.names(first, second)
    engine, asked = self.connect(), requests(40)
    second.silent = 1000  # It takes requests and does not answer.
    with mock.patch.object(fake.Server, 'handle', _endless(fake.Server.handle)):
      with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(engine.generate, asked)
        self.wait(lambda: len(second.asked) == 2)
        self.names(first)
        self.check(future.result(), asked)
    self.assertLen(engine.servers(), 1)
    self.assertEqual(engine.metrics()['fleet/resent'], 2)
    self.assertLen(first.asked, 40)

  def test_all_are_replaced_within_a_rollout(self):
    first, second = self.servers
    engine, asked = self.connect(timeout_seconds=20.0), requests(40)
    first.dies_at = 5
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      future = pool.submit(engine.generate, asked)
      self.wait(lambda: not first.up)
      self.names(second)
      self.check(future.result(), asked)
    self.assertGreater(len(second.asked), 35 - 2)

  def test_newcomer_that_does_not_fit_is_left_out(self):
    first, new = self.servers
    engine, asked = self.connect(), requests(20)
    new.tokens_off = 1
    with self.assertLogs('absl', 'WARNING') as logs:
      self.names(first, new)
      self.wait(lambda: len(engine.servers()) == 2)
      self.wait(lambda: engine.servers()[1].refused)
      self.check(engine.generate(asked), asked)
    self.assertRegex('\n'.join(logs.output), 'left out until .*tokenizer')
    self.assertEmpty(new.asked)
    new.tokens_off = 0
    self.names(first, new, comment='another try')
    self.wait(lambda: engine.servers()[1].trusted)
    self.check(engine.generate(asked), asked)
    self.assertNotEmpty(new.asked)

  def test_newcomer_with_other_log_probs_never_samples(self):
    first, new = self.servers
    engine, asked = self.connect(), requests(20, temperature=0.6)
    new.unscaled = True
    self.names(first, new)
    self.wait(lambda: len(engine.servers()) == 2 and engine.servers()[1].up)
    self.check(engine.generate(asked), asked)
    engine.update_weights(WEIGHT, 8)
    self.check(engine.generate(asked), asked)
    self.wait(lambda: engine.servers()[1].refused)
    self.assertEmpty(new.asked)

  @parameterized.parameters('', 'server1:30000', 'http://server1:30000/v1')
  def test_wrong_file_at_the_start(self, text):
    self.file.write_text(text)
    with self.assertRaisesRegex(ValueError, 'http://HOST:PORT'):
      self.connect()
    self.file.unlink()
    with self.assertRaisesRegex(ValueError, 'urls_file=.*cannot be read'):
      self.connect()

  @parameterized.parameters('htt', None)
  def test_file_that_is_broken_in_mid_run_changes_nothing(self, text):
    engine, asked = self.connect(), requests(5)
    with self.assertLogs('absl', 'WARNING') as logs:
      if text is None:
        self.file.unlink()
      else:
        self.file.write_text(text)
      self.wait(lambda: logs.output)
      time.sleep(0.2)
    self.assertLen(logs.output, 1)
    self.assertIn('its servers stay', logs.output[0])
    self.check(engine.generate(asked), asked)

  def test_a_fault_of_the_file_that_comes_back_is_told_again(self):
    text, roster = self.file.read_text(), roster_lib.Roster(self.file)
    roster.read()
    for _ in range(2):
      self.file.write_text('htt')
      self.assertIsNone(roster.changed())  # It may be half-written.
      with self.assertRaisesRegex(ValueError, "'htt'.*: its servers stay"):
        roster.changed()
      self.assertIsNone(roster.changed())
      self.file.write_text(text)
      self.assertIsNone(roster.changed())

  @parameterized.parameters(
      (('float32', 'bfloat16'), ''),
      (('bfloat16', 'bfloat16'), 'bfloat16'),
      (('auto', 'bfloat16'), ''),
  )
  def test_dtype_of_exports_is_that_of_the_servers(self, dtypes, wanted):
    self.names(*self.servers)
    for server, dtype in zip(self.servers, dtypes, strict=True):
      server.info = server.info | {'dtype': dtype}
    self.connect()
    (version,) = (self.folder / 'weights').iterdir()
    self.assertEqual((version / 'dtype').read_text(), wanted)


def _endless(handle):
  """Servers that are silent stay so for a minute, and not in an error."""

  def wrapped(server, path, body, key):
    if path == '/generate' and server.silent:
      server.asked.append(body)
      return None
    return handle(server, path, body, key)

  return wrapped


class TroubleTest(ClientTestCase):
  """Failures of servers that a run survives."""

  def test_server_that_dies_costs_what_it_was_sampling(self):
    engine = self.connect(concurrency=16)
    self.servers[0].dies_at = 5
    asked = requests(40)
    with self.assertLogs(level='WARNING') as logs:
      self.check(engine.generate(asked), asked)
    self.assertFalse(self.servers[0].up)
    # One line for the server, none for each request.
    (line,) = [x for x in logs.output if 'server0' in x]
    self.assertRegex(line, r'is lost: ReadError .*are sent again: \d')
    # The fifth request broke; what else was under way was refused.
    self.assertBetween(engine.metrics()['fleet/resent'], 2, 16)
    self.assertEqual(engine.metrics()['fleet/servers_up'], 1)

  def test_server_that_comes_back_gets_the_weights_and_work(self):
    engine = self.connect()
    self.servers[0].dies_at = 1
    engine.generate(requests(20))
    engine.update_weights(0.25, 8)  # Without it.
    self.servers[0].restart()
    deadline = time.monotonic() + 10
    while engine.metrics()['fleet/servers_up'] < 2:
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.05)
    self.assertEqual(self.servers[0].weight, 0.25)
    before = len(self.servers[0].asked)
    asked = requests(20)
    self.check(engine.generate(asked), asked, 0.25)
    self.assertGreater(len(self.servers[0].asked), before)

  def test_server_restarted_unseen_is_not_believed(self):
    engine = self.connect()
    self.servers[1].restart()  # Between two requests.
    asked = requests(20)
    completions = engine.generate(asked)
    self.check(completions, asked)  # None of weight -9.
    self.assertEqual({c.policy_version for c in completions}, {7})

  def test_busy_server(self):
    engine = self.connect()
    self.servers[0].busy = self.servers[1].busy = 6
    asked = requests(10)
    self.check(engine.generate(asked), asked)
    self.assertEqual(engine.metrics()['fleet/servers_up'], 2)

  def test_server_that_has_failed_is_not_busy(self):
    self.enter_context(mock.patch.object(fleet_lib, '_WATCH_SECONDS', 0.2))
    engine = self.connect()

    def fail(path, body, key, handle=self.servers[0].handle):
      if path in ('/health', '/generate'):
        return 503, {}, {'error': 'the server is failed'}
      return handle(path, body, key)

    self.servers[0].handle = fail
    asked = requests(10)
    with self.assertLogs(level='WARNING') as logs:
      self.check(engine.generate(asked), asked)
      deadline = time.monotonic() + 10
      while engine.metrics()['fleet/servers_up'] > 1:
        self.assertLess(time.monotonic(), deadline)
        time.sleep(0.05)
    (line,) = [x for x in logs.output if 'is lost' in x]
    self.assertRegex(line, 'server0:30000/health answered 503 .*is failed')

  def test_busy_for_too_long(self):
    engine = self.connect(timeout_seconds=1.0)
    for server in self.servers:
      server.busy = 10**6
    with self.assertRaisesRegex(fleet_lib.FleetError, '503: .*queue full'):
      engine.generate(requests(1))

  @parameterized.parameters(408, 429, 500, 502, 503)
  def test_server_error_is_retried(self, status):
    engine = self.connect()
    failed = []

    def fail_once(path, body, key, handle=self.servers[0].handle):
      if path == '/generate' and not failed:
        failed.append(body)
        return status, {}, {'error': 'out of luck'}
      return handle(path, body, key)

    self.servers[0].handle = fail_once
    asked = requests(10)
    self.check(engine.generate(asked), asked)
    self.assertLen(failed, 1)

  def test_request_that_breaks_every_server(self):
    engine = self.connect()
    for server in self.servers:
      server.spoil = lambda answer: 1 / 0

    def fail(path, body, key, handle=self.servers[0].handle):
      if path == '/generate':
        return 500, {}, {'error': 'out of luck'}
      return handle(path, body, key)

    for server in self.servers:
      server.handle = fail
    with self.assertRaisesRegex(fleet_lib.FleetError, '8 times.*out of luck'):
      engine.generate(requests(1))

  def test_request_that_is_sent_again_has_another_name(self):
    engine = self.connect()
    for server in self.servers:
      server.silent = 2
    asked = requests(6)
    self.check(engine.generate(asked), asked)
    self.assertEqual(engine.metrics()['fleet/resent'], 4)

  def test_completion_that_ended_as_it_was_aborted(self):
    engine = self.connect()
    asked = requests(30)
    (ends,) = {  # The first that ends early, and where.
        (i, len(c.tokens))
        for i, c in enumerate(engine.generate(asked))
        if c.finish_reason == 'stop'
    } & {
        min(
            (i, len(expected(r)))
            for i, r in enumerate(asked)
            if expected(r)[-1] == fake.EOS
        )
    }
    for server in self.servers:
      server.aborts = [ends[1]]
    (completion,) = engine.generate([asked[ends[0]]])
    self.assertEqual(completion.tokens.tolist(), expected(asked[ends[0]]))
    self.assertEqual(completion.finish_reason, 'stop')

  def test_stop_string_across_the_seam_of_an_abort(self):
    engine = self.connect()
    (request,) = requests(1, ignore_eos=True)
    tokens = expected(request)
    for server in self.servers:
      server.aborts = [2]
    # The tokens behind the seam have another seed: look at them first.
    (first,) = engine.generate([request])
    stop = ' '.join(map(str, first.tokens[1:3].tolist()))
    self.assertEqual(first.tokens[:2].tolist(), tokens[:2])
    for server in self.servers:
      server.aborts = [2]
    (request,) = requests(1, ignore_eos=True, stop=(stop,))
    (completion,) = engine.generate([request])
    self.assertEqual(completion.tokens.tolist(), first.tokens[:3].tolist())
    self.assertLen(completion.logprobs, 3)
    self.assertEqual(completion.finish_reason, 'stop')
    self.assertEqual(completion.text, f'{first.tokens[0]} ')

  def test_special_token_is_a_stop_string_of_what_was_aborted(self):
    engine = self.connect(model=fake.model(decode=lambda ids: ''))
    (request,) = requests(1, ignore_eos=True)
    tokens = expected(request)
    stop = ' '.join(map(str, tokens[:2]))
    for server in self.servers:
      server.aborts = [3]
    (completion,) = engine.generate(
        requests(1, ignore_eos=True, stop=(stop,))
    )
    self.assertEqual(completion.tokens.tolist(), tokens[:2])
    self.assertEqual(completion.finish_reason, 'stop')

  def test_aborted_completion_goes_on(self):
    engine = self.connect()
    for server in self.servers:
      server.aborts = [3, 0, 2]
    asked = requests(6, ignore_eos=True)
    completions = engine.generate(asked)
    self.assertEqual(engine.metrics()['fleet/resumed'], 6)
    bodies = self.servers[0].asked + self.servers[1].asked
    self.assertLen(bodies, 12)  # 6 and 6 again.
    by_start = sorted(len(body['input_ids']) for body in bodies)
    # 3 or 2 tokens of 4 are kept, of 2 none was sampled.
    self.assertEqual(by_start, [3] * 8 + [5, 5, 6, 6])
    for body in bodies:
      self.assertEqual(
          body['sampling_params']['max_new_tokens'],
          12 - (len(body['input_ids']) - 3),
      )
    for completion, request in zip(completions, asked):
      self.assertLen(completion.tokens, 12)
      self.assertEqual(completion.finish_reason, 'length')
      self.assertEqual(completion.version_spans, ())  # All of version 7.
      (row,) = fake.score(
          WEIGHT, [(request.prompt_tokens, completion.tokens.tolist())], [1.0]
      )
      np.testing.assert_allclose(completion.logprobs, row, atol=1e-6)
    # A resumed one draws other random numbers than at its start.
    seeds = [body['sampling_params']['sampling_seed'] for body in bodies]
    self.assertLen(set(seeds), 10)

  def test_versions_of_a_completion_that_spans_an_update(self):
    engine = self.connect()
    engine.update_weights(0.25, 8)
    names = list(engine._versions)

    def span(answer):
      n = answer['meta_info']['completion_tokens']
      answer['meta_info']['weight_versions'] = [
          {'version': names[0], 'start': 0, 'end': 4},
          {'version': names[1], 'start': 4, 'end': n},
      ]
      return answer

    for server in self.servers:
      server.spoil = span
    (completion,) = engine.generate(requests(1, ignore_eos=True))
    self.assertEqual(completion.version_spans, ((7, 4), (8, 12)))
    self.assertEqual(completion.policy_version, 7)

  def test_all_dead(self):
    engine = self.connect(timeout_seconds=1.0)
    for server in self.servers:
      server.up = False
    start = time.monotonic()
    with self.assertRaisesRegex(
        fleet_lib.FleetError,
        r'(?s)none of the 2 servers.*server0:30000: .*server1:30000: .*Start',
    ):
      engine.generate(requests(4))
    self.assertBetween(time.monotonic() - start, 0.9, 4.0)

  def test_all_dead_and_asked_to_stop(self):
    engine = self.connect(timeout_seconds=60.0, stopping=lambda: True)
    for server in self.servers:
      server.up = False
    start = time.monotonic()
    with self.assertRaises(fleet_lib.FleetError):
      engine.update_weights(WEIGHT, 8)
    self.assertLess(time.monotonic() - start, 10.0)

  def test_asked_to_stop_while_servers_sample(self):
    asked = []
    engine = self.connect(timeout_seconds=60.0, stopping=lambda: bool(asked))
    ended = []

    async def hangs(*given, **options):
      asked.append('once a request was sent')
      try:
        await asyncio.sleep(60)
      finally:
        ended.append(given)

    with mock.patch.object(fleet_lib.Fleet, 'generate', hangs):
      with self.assertRaises(preemption.Interrupted):
        engine.generate(requests(4))
    self.assertLen(ended, 4)
    asked.clear()
    self.check(engine.generate(requests(4)), requests(4))

  def test_none_up_at_the_start(self):
    for server in self.servers:
      server.up = False
    with self.assertRaisesRegex(fleet_lib.FleetError, 'connection refused'):
      self.connect(timeout_seconds=1.0)

  def test_remedy_of_a_server_that_never_comes_up(self):
    answer = 421, {}, {'error': 'start it with --hosts=NAME,...'}
    with mock.patch.object(fake.Server, 'handle', return_value=answer):
      with self.assertRaisesRegex(
          fleet_lib.FleetError, r'server0:30000/health answered 421 .*--hosts='
      ):
        self.connect(timeout_seconds=1.0)

  def test_late_server_waits_until_it_was_compared(self):
    late = self.servers[0]
    late.up, late.unscaled = False, True
    engine = self.connect()
    late.restart()
    while not engine.servers()[0].up:
      time.sleep(0.01)
    asked = requests(20, temperature=0.6)
    self.check(engine.generate(asked), asked)
    self.assertEmpty(late.asked)
    with self.assertRaisesRegex(answers.DisagreementError, 'server0.*at temp'):
      engine.update_weights(WEIGHT, 8)
    late.unscaled = False
    engine.update_weights(WEIGHT, 9)
    engine.generate(asked)
    self.assertNotEmpty(late.asked)

  def test_late_server_with_another_tokenizer(self):
    late = self.servers[0]
    late.up = False
    engine = self.connect()
    late.tokens_off = 1
    late.restart()
    with self.assertRaisesRegex(answers.DisagreementError, 'another tokenizer'):
      while True:
        engine.generate(requests(2))

  def test_one_up_at_the_start_is_enough(self):
    self.servers[0].up = False
    asked = requests(5)
    self.check(self.connect().generate(asked), asked)

  def test_server_that_does_not_tell_its_version(self):
    for server in self.servers:
      server.version = None
    asked = requests(5)
    completions = self.connect().generate(asked)
    self.check(completions, asked)
    self.assertEqual(completions[0].policy_version, 7)

  def test_wait_for_all_of_them_to_come_back(self):
    engine = self.connect()
    for server in self.servers:
      server.up = False
    asked = requests(6)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      future = pool.submit(engine.generate, asked)
      time.sleep(0.5)
      self.servers[1].restart()
      self.check(future.result(), asked)


class DisagreementTest(ClientTestCase):
  """Errors stop a run and name the server, field, value and remedy."""

  @parameterized.named_parameters(
      (
          'count',
          lambda m: m.update(completion_tokens=m['completion_tokens'] + 1),
          r'completion_tokens=13, wanted 0 to 12',
      ),
      (
          'short',
          lambda m: m.update(output_token_logprobs=[[-1.0, 3, None]] * 11),
          r"output_token_logprobs='11 entries', wanted 12",
      ),
      (
          'cut',
          lambda m: m.update(completion_tokens=11),
          r'completion_tokens=11, wanted 12 tokens .*context',
      ),
      (
          'nan',
          lambda m: m['output_token_logprobs'][-2].__setitem__(0, float('nan')),
          r'output_token_logprobs\[-2\]=\[nan, .* wanted a finite',
      ),
      (
          'positive',
          lambda m: m['output_token_logprobs'][-2].__setitem__(0, 0.5),
          r'wanted a log-prob <= 0',
      ),
      (
          'null',
          lambda m: m['output_token_logprobs'][-1].__setitem__(0, None),
          r'wanted a finite log-prob',
      ),
      (
          'vocabulary',
          lambda m: m['output_token_logprobs'][-1].__setitem__(1, fake.VOCAB),
          r'wanted a token of 0 to 39: it serves another model',
      ),
      (
          'prompt',
          lambda m: m.update(prompt_tokens=4),
          r'prompt_tokens=4, wanted 3: .*input_ids',
      ),
      (
          'twice',
          lambda m: m.update(id='of another'),
          r"meta_info.id='of another', wanted \w+: the answer of another",
      ),
      (
          'reason',
          lambda m: m.update(finish_reason=None),
          r'finish_reason=None, wanted a type of',
      ),
      (
          'empty',
          lambda m: m.update(completion_tokens=0),
          r'completion_tokens=0, wanted 12 tokens',
      ),
      (
          'end',
          lambda m: m['output_token_logprobs'][-5].__setitem__(1, fake.EOS),
          r'wanted to end at its first token of \[0\]',
      ),
      (
          'other_end',
          lambda m: m.update(finish_reason={'type': 'stop', 'matched': 17}),
          r'another tokenizer or generation_config',
      ),
      (
          'spans',
          lambda m: m.update(
              weight_versions=[{'version': 'a', 'start': 1, 'end': 12}]
          ),
          r'weight_versions=.*wanted spans that cover tokens 0 to 12',
      ),
  )
  def test_answer(self, spoil, message):
    engine = self.connect()
    # One that does not end by itself.
    asked = next(r for r in requests(40) if fake.EOS not in expected(r))

    def spoiled(answer):
      spoil(answer['meta_info'])
      return answer

    for server in self.servers:
      server.spoil = spoiled
    message = r'http://server\d:30000/generate .*' + message
    with self.assertRaisesRegex(answers.DisagreementError, message):
      engine.generate([asked])

  def test_answer_that_is_no_answer(self):
    engine = self.connect()
    for server in self.servers:
      server.spoil = lambda answer: ['hello']
    with self.assertRaisesRegex(answers.DisagreementError, 'hello.*meta_info'):
      engine.generate(requests(1))

  def test_other_weights_all_the_time(self):
    engine = self.connect()

    def other(answer):
      answer['meta_info']['weight_version'] = 'of another run'
      return answer

    for server in self.servers:
      server.spoil = other
    with self.assertRaisesRegex(
        answers.DisagreementError, "'of another run'.*another run"
    ):
      engine.generate(requests(30))

  def test_weights_that_did_not_arrive(self):
    engine = self.connect()
    with mock.patch.object(fake.Server, '_update', _keep_weight):
      with self.assertRaisesRegex(
          answers.DisagreementError,
          r'server\d:30000 and this run differ by .* of version 8: .*weights',
      ):
        engine.update_weights(0.25, 8)

  def test_bfloat16_is_no_other_weights(self):
    self.servers[1].dtype = ml_dtypes.bfloat16
    with self.assertRaisesRegex(
        answers.DisagreementError,
        r'server1:30000 and this run differ by 0\.00\d+ nats .* as bfloat16'
        r' does from float32, .*nothing .*--config.grpo.tis_cap=2, .*float32',
    ):
      self.connect()
    with self.assertLogs(level='WARNING') as logs:
      engine = self.connect(model=fake.model(corrected=True))
    self.assertRegex('\n'.join(logs.output), r'server1:30000 .*update corr')
    self.assertBetween(engine.metrics()['sync/logprob_gap'], 1e-4, 0.02)
    # More than rounding is refused: other weights do not hide behind it.
    with mock.patch.object(fake.Server, '_update', _keep_weight):
      with self.assertRaisesRegex(
          answers.DisagreementError, 'bfloat16 would explain 0.*other weights'
      ):
        engine.update_weights(0.45, 8)

  def test_weights_that_somebody_exchanged_without_a_name(self):
    engine = self.connect()
    asked = requests(8)
    engine.generate(asked)
    self.servers[1].weight += 0.01
    with self.assertRaisesRegex(
        answers.DisagreementError,
        r"server1:30000 reads .*version='000007-.* by 0.0\d+ nats .*somebody",
    ):
      engine.generate(asked)

  def test_weights_that_are_refused(self):
    engine = self.connect()
    export = mock.Mock(side_effect=lambda weight, path, dtype: path.mkdir())
    engine.model = fake.model(export=export)
    with self.assertRaisesRegex(
        answers.DisagreementError, r'server\d:30000/update_.*400: .*no .*weight'
    ):
      engine.update_weights(0.25, 8)

  def test_answer_without_the_version_that_the_server_tells(self):
    engine = self.connect()

    def drop(answer):
      del answer['meta_info']['weight_version']
      return answer

    for server in self.servers:
      server.spoil = drop
    with self.assertRaisesRegex(
        answers.DisagreementError, 'no meta_info.weight_version, but'
    ):
      engine.generate(requests(1))

  def test_temperature(self):
    self.servers[1].unscaled = True
    with self.assertRaisesRegex(
        answers.DisagreementError,
        r'server1:30000 reports log-probs of softmax\(logits\) at temperature'
        r' 0.6',
    ):
      self.connect()

  def test_tokenizer(self):
    model = fake.model(encode=lambda text: [1] * len(text))
    with self.assertRaisesRegex(answers.DisagreementError, 'another tokenizer'):
      self.connect(model=model)

  def test_no_way_to_take_weights(self):
    self.servers[0].missing = ('/update_weights_from_disk',)
    with self.assertRaisesRegex(
        answers.DisagreementError, 'server0:30000 has no /update_weights'
    ):
      self.connect()

  def test_not_sglang(self):
    self.servers[0].missing = ('/model_info', '/get_model_info')
    self.servers[1].up = False
    with self.assertRaisesRegex(answers.DisagreementError, 'neither'):
      self.connect()

  def test_old_names(self):
    for server in self.servers:
      server.missing = ('/model_info', '/server_info')
    self.connect().generate(requests(3))

  @parameterized.parameters(
      'vocab_size', 'max_total_num_tokens', 'context_length'
  )
  def test_model_info(self, field):
    self.servers[0].info[field] = 41
    with self.assertRaisesRegex(
        answers.DisagreementError, f'server0:30000 has {field}=41, .* needs'
    ):
      self.connect()

  def test_a_server_for_the_whole_context_of_an_episode_is_large_enough(self):
    # A prompt of 16 tokens and a turn of 64 never occur together.
    for server in self.servers:
      server.info['context_length'] = 70
    model = fake.model(context_tokens=70)
    self.connect(model=model).generate(requests(2))
    with self.assertRaisesRegex(answers.DisagreementError, 'run needs 71'):
      self.connect(model=fake.model(context_tokens=71))

  def test_key(self):
    self.servers[0].key = self.servers[1].key = 'secret'
    with self.assertRaisesRegex(
        answers.DisagreementError, 'refused the key.*api_key_env'
    ):
      self.connect(api_key='guess')
    self.connect(api_key='secret').generate(requests(2))

  def test_key_from_the_environment(self):
    self.assertEqual(environment.read_key('', 'f'), '')
    with mock.patch.dict(os.environ, {'SOME_KEY': 'secret'}):
      self.assertEqual(environment.read_key('SOME_KEY', 'f'), 'secret')
    with self.assertRaisesRegex(ValueError, "f='SOME_KEY'.*not set"):
      environment.read_key('SOME_KEY', 'f')


class WeightsTest(ClientTestCase):

  def test_two_versions_stay(self):
    engine = self.connect()
    for version in range(8, 12):
      engine.update_weights(version / 10, version)
    left = sorted(path.name[:6] for path in (self.folder / 'weights').iterdir())
    self.assertEqual(left, ['000010', '000011'])
    metrics = engine.metrics()
    for name in ('export', 'transfer', 'check'):
      self.assertGreater(metrics[f'sync/{name}_seconds'], 0)
    engine.close()
    self.assertEmpty(list((self.folder / 'weights').iterdir()))

  def test_what_a_killed_run_left(self):
    folder = self.folder / 'weights'
    for name in ('000003-dead', '.new-000004-dead'):
      (folder / name).mkdir(parents=True)
      (folder / name / 'weight.json').write_text('0.1')
    engine = self.connect()
    self.assertLen(list(folder.iterdir()), 1)
    engine.update_weights(0.25, 8)

  def test_half_written_is_not_there(self):
    folder = weights_lib.WeightFolder(self.folder)
    folder.prepare()
    folder.unfinished('a').mkdir()
    (folder.unfinished('a') / 'half').write_text('x')
    self.assertFalse(folder.path_of('a').exists())
    folder.prepare()  # After an error.
    folder.unfinished('a').mkdir()
    folder.commit('a')
    self.assertEqual([p.name for p in self.folder.iterdir()], ['a'])
    self.assertEmpty(list(folder.path_of('a').iterdir()))

  def test_weights_stay_while_a_server_takes_them(self):
    engine = self.connect()
    slow, handle = self.servers[1], self.servers[1].handle
    slow.up = False
    engine.generate(requests(8))  # It is found dead.
    seen = []

    def late(path, body, key):
      if path != '/update_weights_from_disk' or body is None:
        return handle(path, body, key)
      if not seen:  # While it loads, three versions come and go.
        seen.append(body['model_path'])
        others.result()
        seen.append(os.path.isdir(body['model_path']))
      return handle(path, body, key)

    slow.handle = late

    def update():
      while not seen:
        time.sleep(0.01)
      for version in (8, 9, 10):
        # Not in the client's loop, which `late` holds up.
        self.assertTrue(os.path.isdir(seen[0]))
        folder = engine._folder
        name = f'{version:06d}-other'
        folder.prepare()
        fake.export(version / 10, folder.unfinished(name), '')
        folder.commit(name)
        servers = engine.servers()
        folder.remove_old(
            {s.weights for s in servers} | {s.taking for s in servers}
        )

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      others = pool.submit(update)
      slow.restart()
      while len(seen) < 2:
        time.sleep(0.01)
    self.assertTrue(seen[1])

  def test_refusal_of_weights_that_are_old_by_now_is_no_end(self):
    engine = self.connect()
    back, handle = self.servers[1], self.servers[1].handle
    back.up = False
    engine.generate(requests(8))
    refused = []

    def refuse_the_first(path, body, key):
      if path == '/update_weights_from_disk' and body and not refused:
        refused.append(body['weight_version'])
        # Newer ones were installed meanwhile, and these removed.
        fleet = engine._fleet
        path = engine._folder.path_of(fleet.weights.version)
        fleet.weights = servers_lib.Weights(fleet.weights.version, str(path))
        return 400, {}, {'success': False, 'message': 'no such directory'}
      return handle(path, body, key)

    back.handle = refuse_the_first
    back.restart()
    while not back.updates or not engine.servers()[1].up:
      time.sleep(0.01)
    self.assertLen(refused, 1)
    asked = requests(8)
    self.check(engine.generate(asked), asked)

  def test_version_in_the_request(self):
    engine = self.connect()
    engine.update_weights(0.25, 8)
    for server in self.servers:
      first, second = server.updates
      self.assertNotEqual(first['weight_version'], second['weight_version'])
      self.assertEndsWith(second['model_path'], second['weight_version'])
      self.assertTrue(second['flush_cache'])

  def assertEndsWith(self, text, end):
    self.assertTrue(text.endswith(end), (text, end))


class TensorsTest(ClientTestCase):
  """Weights that are sent to servers in the bodies of requests."""

  def setUp(self):
    super().setUp()
    # Each tensor is sent in a request of its own.
    self.enter_context(mock.patch.object(transfer, '_REQUEST_BYTES', 4))

  def connect(self, **options):
    return super().connect(weights_transport='tensors', **options)

  def test_they_arrive(self):
    self.servers[1].info['tp_size'] = 3
    engine = self.connect()
    asked = requests(20)
    self.check(engine.generate(asked), asked)
    engine.update_weights(0.25, 8)
    self.check(engine.generate(asked), asked, 0.25)
    for server, ranks in zip(self.servers, (1, 3)):
      self.assertIsNone(server.received)
      self.assertLen(server.updates, 4)
      first, last = server.updates[-2:]
      self.assertNotIn('weight_version', first)
      self.assertEqual(last['weight_version'], server.version)
      self.assertEqual(
          [first['flush_cache'], last['flush_cache']], [False, True]
      )
      payloads = last['serialized_named_tensors']
      self.assertEqual(payloads, payloads[:1] * ranks)

  def test_server_that_dies_within_an_update_gets_all_of_it(self):
    engine = self.connect()
    server = self.servers[0]
    server.fails_at = 4
    engine.update_weights(0.25, 8)
    self.assertFalse(server.up)
    # It kept the process, with an update that is open, and half of the weights.
    server.up = True
    asked = requests(20)
    deadline = time.monotonic() + 10
    while engine.metrics()['fleet/servers_up'] < 2:
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.05)
    self.check(engine.generate(asked), asked, 0.25)
    self.assertNotEmpty(server.asked)
    self.assertEqual(server.weight, 0.25)
    self.assertLen(server.updates, 6)

  def test_server_that_is_revived_within_an_update(self):
    engine = self.connect()
    server, handle = self.servers[0], self.servers[0].handle
    # The second tensor takes as long as a probe of the server.
    body = transfer._body
    slow = lambda *args: (time.sleep(0.3), body(*args))[1]
    self.enter_context(mock.patch.object(transfer, '_body', slow))

    def lost(path, body, key):
      if path == '/update_weights_from_tensor' and len(server.updates) == 2:
        fleet = engine._fleet
        # It hung for a while, and answers again.
        fleet._lost(fleet.servers[0], 'no answer')
      return handle(path, body, key)

    server.handle = lost
    engine.update_weights(0.25, 8)
    while not engine.servers()[0].up:
      time.sleep(0.01)
    self.assertLen(server.updates, 4)
    self.assertIsNone(server.received)
    asked = requests(8)
    self.check(engine.generate(asked), asked, 0.25)

  def test_update_that_a_dead_trainer_left_open(self):
    self.servers[0].received = {'first': 3.0}
    asked = requests(8)
    self.check(self.connect().generate(asked), asked)

  def test_server_that_cannot(self):
    self.servers[0].missing = ('/update_weights_from_tensor',)
    with self.assertRaisesRegex(
        answers.DisagreementError,
        'server0:30000 has no /update_weights_from_tensor .*transport=folder',
    ):
      self.connect()

  def test_replicas(self):
    self.servers[1].info['dp_size'] = 2
    with self.assertRaisesRegex(
        answers.DisagreementError, 'server1:30000 has dp_size=2; .*one server'
    ):
      self.connect()

  def test_no_directory(self):
    engine = self.connect()
    engine.model = fake.model(export=lambda weight, path, dtype: path.mkdir())
    with self.assertRaisesRegex(
        answers.DisagreementError, r'cannot be read: .*no \*.safetensors in'
    ):
      engine.update_weights(0.25, 8)


class NetworkTest(parameterized.TestCase):
  """Over real sockets."""

  def serve(self, server: fake.Server, hook=None) -> str:
    """Serves a fake server on this machine; hook(handler) may interfere."""

    class Handler(http.server.BaseHTTPRequestHandler):
      protocol_version = 'HTTP/1.1'
      wbufsize = -1  # Headers and body in one packet.

      def answer(self):
        length = int(self.headers.get('Content-Length') or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        if hook is not None and hook(self, body):
          return
        key = self.headers.get('Authorization', '')
        status, headers, value = server.handle(self.path, body, key)
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in (*headers.items(), ('Content-Length', len(data))):
          self.send_header(name, str(text))
        self.end_headers()
        self.wfile.write(data)

      do_GET = do_POST = answer

      def log_message(self, *_):
        pass

    web = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    web.daemon_threads = True
    thread = threading.Thread(target=web.serve_forever, args=(0.05,))
    thread.start()
    self.addCleanup(thread.join)
    self.addCleanup(web.server_close)
    self.addCleanup(web.shutdown)
    return f'http://127.0.0.1:{web.server_port}'

  def connect(self, *urls: str, **options):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    engine = client_lib.SGLangEngine(
        urls, fake.model(), weights_folder=folder, concurrency=4, **options
    )
    self.addCleanup(engine.close)
    engine.update_weights(WEIGHT, 1)
    return engine

  def check(self, engine, count):
    asked = requests(count)
    for completion, request in zip(engine.generate(asked), asked):
      self.assertEqual(completion.tokens.tolist(), expected(request))

  def test_server_that_breaks_off_within_its_answer(self):
    broken = []

    def hook(handler, body):
      if handler.path != '/generate' or body.get('input_ids', [0])[0] != 5:
        return False
      if len(broken) < 2:
        broken.append(body['rid'])
        handler.send_response(200)
        handler.send_header('Content-Length', '1000')
        handler.end_headers()
        handler.wfile.write(b'{"meta_info": {"id"')
        handler.close_connection = True
        return True
      return False

    bad, good = fake.Server('bad'), fake.Server('good')
    engine = self.connect(self.serve(bad, hook), self.serve(good))
    self.check(engine, 24)
    self.assertNotEmpty(broken)
    self.assertGreaterEqual(engine.metrics()['fleet/resent'], len(broken))

  def test_server_that_is_too_slow(self):
    aborted, asleep = [], threading.Event()
    self.addCleanup(asleep.set)

    def hook(handler, body):
      if handler.path == '/abort_request' and body:
        aborted.append(body['rid'])
      if handler.path == '/generate' and body.get('input_ids', [0])[0] == 5:
        asleep.wait(20)
        handler.close_connection = True
        return True
      return False

    slow, quick = fake.Server('slow'), fake.Server('quick')
    engine = self.connect(
        self.serve(slow, hook), self.serve(quick), timeout_seconds=1.0
    )
    self.check(engine, 12)
    self.assertNotEmpty(aborted)

  @parameterized.parameters(1, 2)
  def test_server_that_hangs_keeps_its_connections(self, count):
    # As a process that gets SIGSTOP does, until it gets SIGCONT.
    goes_on, hung = threading.Event(), []
    goes_on.set()
    self.addCleanup(goes_on.set)

    def hook(handler, body):
      if handler.path == '/generate' and body.get('input_ids', [0])[0] == 5:
        if not hung:
          hung.append(body['rid'])
          goes_on.clear()
      goes_on.wait(20)
      return False

    self.enter_context(mock.patch.object(probes, 'SECONDS', 0.3))
    for module, name in (
        (fleet_lib, '_WATCH_SECONDS'),
        (connections, '_CONNECT_SECONDS'),
    ):
      self.enter_context(mock.patch.object(module, name, 0.3))
    urls = [self.serve(fake.Server('hangs'), hook)]
    urls += [self.serve(fake.Server('other'))] * (count - 1)
    engine = self.connect(*urls, timeout_seconds=60.0)
    timer = threading.Timer(3.0, goes_on.set)
    if count == 1:  # Nothing else helps.
      timer.start()
    self.addCleanup(timer.cancel)
    with self.assertLogs(level='WARNING') as logs:
      self.check(engine, 8)
    # Once, or more often where the machine is too busy to answer in time.
    self.assertNotEmpty([x for x in logs.output if 'no answer to /model_' in x])

  def test_many_requests(self):
    self.check(self.connect(self.serve(fake.Server('one'))), 200)


class RestTest(parameterized.TestCase):

  @parameterized.parameters(
      ('7', 7.0),
      ('0', 0.05),
      ('1e9', 30.0),
      ('nan', 0.1),
      ('Wed, 21 Oct 2026 07:28:00 GMT', 0.1),
  )
  def test_a_busy_server_is_asked_again_after(self, asked, seconds):
    answer = httpx2.Response(503, headers={'Retry-After': asked})
    self.assertEqual(servers_lib.retry_after(answer), seconds)


if __name__ == '__main__':
  absltest.main()
