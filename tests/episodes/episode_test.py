"""Episodes of several turns, on the engine in this process."""

import random
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from evojax import records
from evojax.domains import environments
from evojax.episodes import collect
from evojax.episodes import episode
from evojax.episodes import plays
from evojax.evidence import schema
from evojax.models import decoder
from evojax.rollout import engine as engine_lib
from evojax.rollout import slots
from evojax.runtime import decisions
from evojax.runtime import preemption
from tests import forward
from tests.episodes import echo


class Sampler:
  """Answers every request with one letter."""

  def generate(self, requests):
    tokens, zeros = np.full(1, 3, np.int32), np.zeros(1, np.float32)
    made = records.Episode(tokens, zeros, 'stop', 0, 'a')
    return [made] * len(requests)


class EpisodeTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    params = decoder.init(forward.CFG, jax.random.key(0))
    cls.params = dict(params, embed=params['embed'] * 20)
    cls.engine = cls.make_engine()

  @classmethod
  def make_engine(cls, **shapes):
    options = dict(
        max_prompt_tokens=echo.PROMPT + echo.TOKENS - 1,
        max_tokens=echo.TURN,
        context_tokens=echo.PROMPT + echo.TOKENS,
        decode_slots=5,
        prefill_rows=3,
        prefill_chunk=4,
        prefix_chunks=60,
    )
    made = engine_lib.Engine(
        forward.CFG,
        slots.Shapes(**(options | shapes)),
        eos_ids=(echo.EOS,),
        decode_text=echo.Tokenizer().decode,
        refill_every=2,
    )
    made.update_weights(cls.params, 5)
    return made

  def play(self, domain, asked=None, engine=None, only=None):
    player = episode.Player(engine or self.engine, echo.Tokenizer(), domain)
    return player.play(asked or echo.asked(), only)

  def assert_same(self, a, b):
    np.testing.assert_array_equal(a.tokens, b.tokens)
    np.testing.assert_array_equal(a.logprobs, b.logprobs)
    self.assertEqual(
        (a.finish_reason, a.turns, a.state, a.text),
        (b.finish_reason, b.turns, b.state, b.text),
    )

  def test_a_turn_carries_ids_and_masks_what_it_reads(self):
    asked = echo.asked()
    for request, e in zip(
        asked.requests, self.play(echo.Domain()), strict=True
    ):
      self.assertEqual(e.loss_mask.sum(), sum(t.sampled for t in e.turns))
      self.assertEqual([t.text for t in e.turns], e.state)
      at = 0
      for turn, after in zip(e.turns, [*e.turns[1:], None]):
        said = e.tokens[at : at + turn.sampled].tolist()
        self.assertEqual(turn.text, echo.Tokenizer().decode(said))
        self.assertLessEqual(turn.sampled, echo.TURN)
        at += turn.sampled
        seen = e.tokens[at : at + turn.observed].tolist()
        if after:
          want = [] if said[-1] == echo.EOS else [echo.EOS]
          want += [2, *echo.Tokenizer().encode(turn.text[:2] + 'x')]
          self.assertEqual(seen, want)
        else:
          self.assertEqual(seen, [])
        at += turn.observed
      self.assertLessEqual(len(e.tokens), request.params.max_tokens)
      self.assertTrue(all(t.action == 1 for t in e.turns))

  def test_logprobs_of_all_turns_equal_the_full_forward(self):
    asked = echo.asked()
    for request, e in zip(
        asked.requests, self.play(echo.Domain()), strict=True
    ):
      row = [*request.prompt_tokens, *e.tokens.tolist()]
      logits = forward.logits(forward.CFG, self.params, row)
      logits = logits[len(request.prompt_tokens) - 1 : -1]
      want = np.asarray(jax.nn.log_softmax(logits))
      want = want[np.arange(len(e.tokens)), e.tokens]
      np.testing.assert_allclose(
          e.logprobs[e.loss_mask], want[e.loss_mask], atol=1e-5
      )
      self.assertTrue((e.logprobs[~e.loss_mask] == 0).all())

  def test_the_order_of_answers_changes_no_bit(self):
    want = self.play(echo.Domain())
    for seed in range(3):
      rng = random.Random(seed)
      domain = echo.Domain(delay=lambda rng=rng: rng.random() * 0.03)
      for a, b in zip(want, self.play(domain), strict=True):
        self.assert_same(a, b)

  def test_company_and_rounds_change_no_bit(self):
    want = self.play(echo.Domain())
    for i in (0, 5, 11):
      self.assert_same(want[i], self.play(echo.Domain(), only=[i])[0])

    class Rounds:  # A sampler without a stream.
      generate = self.engine.generate

    for a, b in zip(want, self.play(echo.Domain(), engine=Rounds), strict=True):
      self.assert_same(a, b)

  def test_turns_of_an_episode_draw_other_random_numbers(self):
    # If an environment replies with nothing new, the context repeats. The same
    # context must not sample the same turn, or a group would consist of copies.
    first = self.play(echo.Domain(turns=1))
    several = self.play(echo.Domain())
    for a, b in zip(first, several, strict=True):
      np.testing.assert_array_equal(
          a.tokens[: b.turns[0].sampled], b.tokens[: b.turns[0].sampled]
      )
    request = echo.asked().requests[0]
    seeds = [
        plays.turn_request(request, (), turn, 9).seed for turn in range(50)
    ]
    self.assertEqual(seeds[0], request.seed)
    self.assertLen(set(seeds), 50)

  def test_prefixes_of_waiting_episodes_stay_in_the_cache(self):
    with_cache, without = self.make_engine(), self.make_engine(prefix_chunks=0)
    asked = echo.asked()
    found = self.play(echo.Domain(), asked, with_cache)
    for a, b in zip(
        found, self.play(echo.Domain(), asked, without), strict=True
    ):
      self.assert_same(a, b)
    self.assertGreater(len(with_cache._schedule.tree), 0)

  def test_an_error_closes_what_is_open(self):
    engine, calls = self.engine, []

    class Fails:  # Fails in the third round of turns.

      def generate(self, requests):
        calls.append(len(requests))
        if len(calls) == 3:
          raise RuntimeError('the sampler is gone')
        return engine.generate(requests)

    domain = echo.Domain(delay=lambda: 0.01)
    with self.assertRaisesRegex(RuntimeError, 'sampler is gone'):
      self.play(domain, engine=Fails())
    for _ in range(500):
      if domain.closed == domain.opened:
        break
      time.sleep(0.01)
    self.assertEqual((domain.opened, domain.closed), (12, 12))

  @parameterized.parameters(
      dict(limits={'turns': 2}, reason='turns', turns=2),
      dict(limits={'episode_seconds': 1e-9}, reason='seconds', turns=1),
      dict(limits={'turns': 99}, reason='length'),
      dict(limits={}, says='a' * 90, reason='length', turns=1),
  )
  def test_a_limit_ends_an_episode(self, limits, reason, turns=None, says=''):
    domain = echo.Domain(says=says, **limits)
    found = self.play(domain)
    self.assertIn(reason, {e.finish_reason for e in found})
    for e in found:
      # The environment may end an episode whose last turn was cut.
      self.assertIn(e.finish_reason, (reason, 'stop', 'length'))
      if turns and e.finish_reason == reason:
        self.assertLen(e.turns, turns)
      self.assertEqual(e.turns[-1].observed, 0)
      # The environment saw the last turn, though its reply is not used.
      self.assertEqual(e.state[-1], e.text)
    self.assertEqual(domain.closed, domain.opened)

  def hanging(self, *problems, method='reply'):
    """Return a domain whose environments hang for some problems."""
    domain, hangs = echo.Domain(reply_seconds=0.3), threading.Event()
    first = domain.environment

    def environment(problem):
      made = first(problem)
      if int(problem.problem_id[:8], 16) in problems:
        setattr(made, method, lambda *_: hangs.wait() and None)
      return made

    domain.environment = environment
    return domain, hangs

  def test_a_late_environment_ends_its_episode_and_no_other(self):
    domain, hangs = self.hanging(1)
    found = self.play(domain)
    hangs.set()
    for b, e in enumerate(found):
      self.assertEqual(e.finish_reason == 'seconds', b // 3 == 1)
      if b // 3 == 1:
        self.assertLen(e.turns, 1)
        self.assertIsNone(e.state)
    for _ in range(100):  # Replies that come too late close themselves.
      if domain.closed == domain.opened:
        break
      time.sleep(0.05)
    self.assertEqual(domain.closed, domain.opened)

  def test_a_late_environment_is_closed_once_if_a_process_is_gone(self):
    domain, hangs = self.hanging(0)
    gone = RuntimeError('gone')
    with (
        mock.patch.object(jax, 'process_count', lambda: 2),
        mock.patch.object(decisions, 'exchange', side_effect=gone),
        self.assertRaisesRegex(RuntimeError, 'gone'),
    ):
      asked = echo.asked(count=2)
      episode.Player(Sampler(), echo.Tokenizer(), domain).play(asked)
    self.assertEqual((domain.opened, domain.closed), (3, 0))
    hangs.set()
    for _ in range(100):
      if domain.closed == 3:
        break
      time.sleep(0.05)
    self.assertEqual(domain.closed, 3)

  def test_a_run_that_is_to_stop_waits_for_no_environment(self):
    domain, hangs = self.hanging(*range(6))
    domain.limits = environments.Limits(turns=4)  # A minute per reply.
    self.addCleanup(hangs.set)
    opened = lambda: domain.opened > 0
    with mock.patch.object(self.engine, 'stopping', opened):
      with self.assertRaises(preemption.Interrupted):
        self.play(domain)

  def test_environments_that_hang_leave_threads_for_the_others(self):
    domain, hangs = self.hanging(0, 1, 2)
    with mock.patch.object(episode, '_THREADS', 2):
      found = self.play(domain)
    hangs.set()
    ends = [e.finish_reason == 'seconds' for e in found]
    self.assertEqual(ends, [True] * 9 + [False] * 3)

  def test_environments_that_do_not_close_end_without_a_grade(self):
    want = self.play(echo.Domain())
    domain, hangs = self.hanging(0, 1, method='close')
    self.addCleanup(hangs.set)
    with mock.patch.object(episode, '_THREADS', 2):
      found = self.play(domain)
    for b, (a, e) in enumerate(zip(want, found, strict=True)):
      if b // 3 < 2:
        self.assertRegex(e.error, 'does not close within')
        self.assertIsNone(e.state)
        np.testing.assert_array_equal(a.tokens, e.tokens)
      else:
        self.assert_same(a, e)

  def test_a_failure_is_no_grade_and_ends_nothing_else(self):
    want = self.play(echo.Domain())
    fails = want[0].turns[0].text[:1]
    domain, asked = echo.Domain(fails=fails), echo.asked()
    found = self.play(domain, asked)
    self.assertEqual(found[0].error, 'RuntimeError: the world has ended')
    for a, b in zip(want, found, strict=True):
      if not b.error:
        self.assert_same(a, b)
    columns = schema.declare(domain.columns)
    rows = collect.rollout_batch(domain, columns, asked, found).rows
    self.assertEqual(rows['graded'].tolist(), [not e.error for e in found])
    self.assertEqual(domain.closed, domain.opened)

  @parameterized.parameters(
      (None,),
      (environments.Reply(({'role': 'tool', 'content': None},)),),
      (environments.Reply(({'content': 'no role'},)),),
  )
  def test_what_is_no_reply_is_a_failure(self, reply):
    with mock.patch.object(echo.Environment, 'reply', return_value=reply):
      found = self.play(echo.Domain(), only=[0])
    self.assertStartsWith(found[0].error, 'TypeError: it replied ')

  def test_at_most_so_many_environments_are_open(self):
    domain = echo.Domain(delay=lambda: 0.005, open=2)
    found = self.play(domain)
    self.assertLessEqual(domain.most, 2)
    for a, b in zip(self.play(echo.Domain()), found, strict=True):
      self.assert_same(a, b)

  def test_a_problem_without_an_environment_has_one_turn(self):
    asked = echo.asked(family='plain')
    domain = echo.Domain()
    domain.columns = echo.Domain.columns[:1]
    for a, b in zip(
        self.play(domain, asked),
        self.play(echo.Domain(turns=1), asked),
        strict=True,
    ):
      n = len(a.tokens)
      np.testing.assert_array_equal(a.tokens, b.tokens[:n])
      self.assertLen(a.turns, 1)

  def test_an_error_of_the_sampler_reaches_the_caller(self):
    # With several episodes, it would vary which of them meets the error first.
    asked = echo.asked(1, 1, max_tokens=echo.TOKENS + 30)
    with self.assertRaisesRegex(ValueError, 'prompt of 58 tokens'):
      self.play(echo.Domain(turns=99), asked)
    # The engine is unchanged.
    self.assertLen(self.play(echo.Domain()), 12)

  def test_episodes_are_rows_and_rows_are_episodes(self):
    asked, domain = echo.asked(), echo.Domain()
    found = self.play(domain)
    columns = schema.declare(domain.columns)
    rows = collect.rollout_batch(domain, columns, asked, found).rows
    for a, b in zip(
        found, collect.RolloutBatch.recorded(_arrays(rows)).episodes
    ):
      np.testing.assert_array_equal(a.tokens, b.tokens)
      self.assertEqual(
          (a.finish_reason, a.turns, a.text), (b.finish_reason, b.turns, b.text)
      )

  def test_begin_and_finish_are_play(self):
    asked = echo.asked()
    player = episode.Player(self.engine, echo.Tokenizer(), echo.Domain())
    for a, b in zip(
        self.play(echo.Domain()),
        player.finish(player.begin(asked)),
        strict=True,
    ):
      self.assert_same(a, b)


def _arrays(rows):
  return {
      name: values
      if isinstance(values, np.ndarray)
      else np.array([*values, None], object)[:-1]
      for name, values in rows.items()
  }


if __name__ == '__main__':
  absltest.main()
