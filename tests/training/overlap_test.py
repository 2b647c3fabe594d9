"""Sampling a step ahead: what is trained on, and that a resume is exact."""

import dataclasses
import json
import pathlib
import shutil
import tempfile
import threading
import types
from unittest import mock

from absl.testing import absltest
import numpy as np

from evojax import config as config_lib
from evojax import records
from evojax.episodes import collect
from evojax.evidence import store
from evojax.rl import filters
from evojax.rollout import client as client_lib
from evojax.rollout import fleet
from evojax.runtime import config_checks
from evojax.runtime import metrics
from evojax.training import loop as training_loop
from evojax.training import setup as setup_lib
from evojax.training import trainer as trainer_lib
from evojax.training import update
from tests import tiny
from tests.rollout import fake_sglang as fake


def _ungraded(found):
  """Return grades as if the grader had failed for all of them."""
  return {
      b: (
          dataclasses.replace(
              grade, outcome=False, partial=0.0, status='infra_error'
          ),
          seconds,
      )
      for b, (grade, seconds) in found.items()
  }


class OverlapTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.policy = tiny.make_policy(cls.folder / 'policy')

  def config(self, **overrides):
    options = dict(
        steps=4,
        rollout__queue_depth=1,
        rollout__max_staleness=1,
        grpo__tis_cap=2.0,
        # Replaced groups are drawn from the same stream of problems.
        grpo__keep='reward_variance',
        grpo__refill_rounds=1,
    )
    return tiny.make_config(self.policy, **(options | overrides))

  def trainer(self, name, config=None, **options):
    trainer = trainer_lib.Trainer(
        setup_lib.prepare(config or self.config()),
        self.folder / name,
        metrics.Phases(),
        **options,
    )
    self.addCleanup(trainer.close)
    return trainer

  def train(self, trainer, until):
    """Rows of metrics without times."""
    rows = []
    while trainer.step < until:
      row = trainer.train_step()
      rows.append({k: v for k, v in row.items() if 'second' not in k})
      if trainer.checkpointer.due(trainer.step):
        trainer.save()
    trainer.checkpointer.wait()
    return rows

  def test_resume_is_exact(self):
    whole = self.trainer('whole')
    expected = self.train(whole, 4)
    self.assertEqual([row['staleness'] for row in expected], [0, 1, 1, 1])
    first = self.trainer('killed')
    head = self.train(first, 3)  # A step beyond its checkpoint.
    first.finish_prefetch()
    again = self.trainer('killed')
    self.assertEqual(again.step, 2)
    self.assertEqual(head[:2] + self.train(again, 4), expected)
    self.assertEqual(again.learner.fingerprint(), whole.learner.fingerprint())
    self.assertEqual(again.cursor, whole.cursor)

  def test_refills_leave_the_problems_of_later_updates_alone(self):
    def all_but_one(rewards, outcomes, valid):
      return np.ones_like(valid) & (np.arange(len(valid)) > 0)[:, None]

    def positions(name, until=4, **changes):
      config = self.config(**changes)
      trainer = self.trainer(name, config, problems=(3, 10))
      taken, take = [], trainer.source.take
      prompts = config.grpo.prompts

      def follow(first, count):
        taken.append((first, count))
        return take(first, count)

      with (
          mock.patch.object(trainer.source, 'take', follow),
          mock.patch.dict(filters.KEEP, reward_variance=all_but_one),
      ):
        self.train(trainer, until)
      trainer.finish_prefetch()
      own = [first for first, _ in taken if first < 10 + 4 * prompts]
      refills = [place for place in taken if place[0] >= 10 + 4 * prompts]
      return trainer, own, refills

    _, expected, none = positions('plain', grpo__refill_rounds=0)
    self.assertEqual((expected, none), ([10, 12, 14, 16], []))
    for depth in (0, 1):
      name = f'refills-{depth}'
      whole, own, refills = positions(name, rollout__queue_depth=depth)
      self.assertEqual(own, expected)
      # They follow the problems of all updates, and each other.
      self.assertEqual(refills, [(18, 1), (19, 1), (20, 1), (21, 1)])
      self.assertEqual(whole.cursor, 22)
      # A killed run goes on with the same problems.
      name = f'killed-{depth}'
      positions(name, until=3, rollout__queue_depth=depth)
      again, own, _ = positions(name, rollout__queue_depth=depth)
      # A prefetched update asked for its problems during the restore.
      self.assertEqual(own, [14, 16][depth:])
      self.assertEqual(again.cursor, whole.cursor)
      self.assertEqual(
          again.learner.fingerprint(), whole.learner.fingerprint()
      )

  def test_next_step_is_sampled_with_the_weights_before(self):
    trainer = self.trainer('before')
    trainer.train_step()
    draw, completions = trainer.prefetched
    self.assertEqual({c.policy_version for c in completions}, {0})
    # Those weights, bit for bit, though the update took their buffers over.
    fresh = self.trainer('fresh')
    expected = fresh.engine.generate(draw.requests)
    for completion, other in zip(completions, expected):
      np.testing.assert_array_equal(completion.tokens, other.tokens)
      np.testing.assert_array_equal(completion.logprobs, other.logprobs)

  def test_the_update_runs_while_the_next_step_is_sampled(self):
    trainer = self.trainer('beside', self.config(grpo__refill_rounds=0))
    learned, sampled = threading.Event(), []
    generate, learn = trainer.engine.generate, trainer.learner.learn

    def slow_generate(requests):
      if trainer.prefetching or sampled:  # Not the first step's own.
        self.assertTrue(learned.wait(60))
      sampled.append(len(requests))
      return generate(requests)

    def learn_and_say(batch):
      self.assertIsNotNone(trainer.prefetching)
      self.assertLen(sampled, 1)
      found = learn(batch)
      learned.set()
      return found

    with (
        mock.patch.object(trainer.engine, 'generate', slow_generate),
        mock.patch.object(trainer.learner, 'learn', learn_and_say),
    ):
      trainer.train_step()
    self.assertEqual(sampled, [8, 8])

  def test_a_step_that_servers_failed_can_be_saved_and_repeated(self):
    config = tiny.make_config(
        self.policy,
        steps=4,
        grpo__keep='reward_variance',
        grpo__refill_rounds=1,
    )
    whole = self.trainer('no-failure', config)
    self.train(whole, 4)
    trainer = self.trainer('failure', config)
    self.train(trainer, 3)
    cursor = trainer.cursor
    failed = mock.Mock(side_effect=fleet.FleetError('none of the servers'))
    with (
        mock.patch.object(trainer.engine, 'generate', failed),
        self.assertRaises(fleet.FleetError),
    ):
      trainer.train_step()
    self.assertEqual((trainer.step, trainer.cursor), (3, cursor))
    trainer.save()
    trainer.checkpointer.wait()
    again = self.trainer('failure', config)
    self.train(again, 4)
    self.assertEqual(again.learner.fingerprint(), whole.learner.fingerprint())
    self.assertEqual(again.cursor, whole.cursor)

  def test_a_step_whose_next_one_servers_failed_is_done(self):
    trainer = self.trainer('ahead', self.config(grpo__refill_rounds=0))
    self.train(trainer, 2)
    cursor = trainer.cursor
    failed = mock.Mock(side_effect=fleet.FleetError('none of the servers'))
    with (
        mock.patch.object(trainer.engine, 'finish', failed),
        self.assertRaises(fleet.FleetError),
    ):
      trainer.train_step()
    # The row of the step that is done is not lost.
    self.assertGreater(trainer.finished['grad_norm'], 0)
    self.assertGreater(trainer.finished['tokens_per_second'], 0)
    # Problems of the step after are drawn again.
    self.assertEqual((trainer.step, trainer.prefetched), (3, None))
    self.assertEqual(trainer.cursor, cursor)
    trainer.install()
    self.assertEqual(trainer.train_step()['staleness'], 0)

  def test_an_update_that_is_not_finite_is_told_before_a_failed_engine(self):
    trainer = self.trainer('diverged', self.config())
    self.train(trainer, 1)
    diverged = mock.Mock(side_effect=update.NonFiniteError('loss=nan'))
    failed = mock.Mock(side_effect=fleet.FleetError('none of the servers'))
    with (
        mock.patch.object(trainer.learner, 'learn', diverged),
        mock.patch.object(trainer.engine, 'finish', failed),
        self.assertRaises(update.NonFiniteError),  # After it, nothing is saved.
    ):
      trainer.train_step()
    failed.assert_called_once()

  def test_a_problem_that_cannot_be_graded_stops_no_refill(self):
    config = self.config(grpo__prompts=2, rollout__queue_depth=0)
    trainer = self.trainer('ungraded', config)

    def first_alone(rewards, outcomes, valid):
      return np.ones_like(valid) & (np.arange(len(valid)) < 1)[:, None]

    grade, asked = collect._grade, []

    def broken(domain, problems, *args):
      asked.append(len(problems))
      found = grade(domain, problems, *args)
      return _ungraded(found) if len(problems) == 1 else found

    with (
        mock.patch.dict(filters.KEEP, reward_variance=first_alone),
        mock.patch.object(collect, '_grade', broken),
    ):
      row = trainer.train_step()
    self.assertEqual(asked, [2, 1])
    self.assertEqual(row['not_graded'], config.grpo.group_size)

  def test_a_grader_that_fails_loses_no_steps(self):
    config = self.config(rollout__queue_depth=0, checkpoint__every=10)
    trainer = self.trainer('no-grader', config)
    rows = []
    loop = lambda: training_loop.loop(
        trainer, before_step=lambda: None, report=rows.append
    )
    grade = collect._grade

    def fails_later(*args):
      found = grade(*args)
      return _ungraded(found) if trainer.step == 2 else found

    with (
        mock.patch.object(collect, '_grade', fails_later),
        self.assertRaises(collect.GradingError),
    ):
      loop()
    self.assertLen(rows, 2)
    trainer.checkpointer.wait()
    self.assertEqual(self.trainer('no-grader', config).step, 2)

  def test_a_step_is_reported_if_servers_fail_after_its_update(self):
    trainer = self.trainer('reported', self.config(grpo__refill_rounds=0))
    rows = []
    failed = mock.Mock(side_effect=fleet.FleetError('none of the servers'))
    with (
        mock.patch.object(trainer.engine, 'finish', failed),
        self.assertRaises(fleet.FleetError),
    ):
      training_loop.loop(
          trainer, before_step=lambda: None, report=rows.append
      )
    self.assertEqual(trainer.step, 1)
    (row,) = rows
    self.assertIn('loss', row)
    self.assertIn('goodput', row)

  def test_a_fork_samples_its_own_problems(self):
    first = self.trainer('source')
    self.train(first, 2)
    self.assertIsNotNone(first.prefetched)
    for name, changes in (
        ('same', {}),
        ('seed', dict(seed=99)),
        ('shape', dict(grpo__prompts=4, grpo__group_size=2)),
        ('colder', dict(rollout__temperature=0.5)),
    ):
      shutil.copytree(
          self.folder / 'source/checkpoints', self.folder / name / 'checkpoints'
      )
      fork = self.trainer(name, self.config(**changes))
      self.assertEqual(fork.step, 2)
      if not changes:
        self.assertIsNotNone(fork.prefetched)
        continue
      self.assertIsNone(fork.prefetched)
      # None is left out, none comes twice.
      before = first.cursor - len(first.prefetched[0].problems)
      self.assertEqual(fork.cursor, before)
      row = fork.train_step()
      self.assertEqual(row['staleness'], 0)
      rows = store.read(self.folder / name, 'train', [2])
      gap = rows['sampler_trainer_logprob_gap'].dropna()
      self.assertLess(gap.abs().max(), 1e-3)

  def test_what_a_resumed_run_may_change_changes_nothing(self):
    first = self.trainer('free')
    self.train(first, 2)
    again = self.trainer('free', self.config(log__every=3, steps=9))
    self.assertEqual(again.step, 2)
    # Resampled, they would be of other weights than in a run without a stop.
    self.assertIsNotNone(again.prefetched)
    self.assertEqual(again.cursor, first.cursor)

  def test_last_step_samples_nothing_ahead(self):
    trainer = self.trainer('last')
    self.train(trainer, 4)
    self.assertIsNone(trainer.prefetched)

  def test_completions_survive_a_checkpoint(self):
    rng = np.random.default_rng(0)
    decode = lambda tokens: 'x'.join(map(str, tokens)) + '\0'
    tokenizer = types.SimpleNamespace(decode=decode, decode_all=decode)
    completions, requests = [], []
    for n, reason, version, stop, spans in (
        (3, 'stop', 4, ('x',), ()),
        (1, 'length', 2, (), ()),
        (5, 'abort', 2, (), ((2, 2), (3, 5))),
    ):
      tokens = rng.integers(0, 9, n).astype(np.int32)
      text = str(tokens[0]) if stop else decode(tokens)
      completions.append(
          records.Episode(
              tokens,
              rng.normal(size=n).astype(np.float32),
              reason,
              version,
              text,
              spans,
          )
      )
      params = records.SamplingParams(max_tokens=5, stop=stop)
      requests.append(records.Request((1,), 0, 0, 0, params))
    # An environment answered its only turn, and says nothing at the end.
    turn = records.Turn(3, text=completions[0].text, action=1, ok=False)
    completions.append(
        dataclasses.replace(completions[0], turns=(turn,), state={})
    )
    requests.append(requests[0])
    found = trainer_lib._unpack(
        json.loads(json.dumps(trainer_lib._pack(completions))),
        requests,
        tokenizer,
    )
    for a, b in zip(completions, found, strict=True):
      for name, value in vars(a).items():
        np.testing.assert_array_equal(value, getattr(b, name), name)
        self.assertEqual(type(value), type(getattr(b, name)))

  def test_stale_rollouts_are_sampled_again(self):
    config = tiny.make_config(self.policy)  # max_staleness = 0.
    trainer = self.trainer('stale', config)
    trainer.train_step()
    generate = trainer.engine.generate
    calls = []

    def lag(requests):
      calls.append(len(requests))
      completions = generate(requests)
      if len(calls) == 1:  # Three come from the version before.
        for i in (0, 3, 4):
          completions[i] = records.Episode(
              **{**vars(completions[i]), 'policy_version': 0}
          )
      return completions

    with mock.patch.object(trainer.engine, 'generate', lag):
      row = trainer.train_step()
    self.assertEqual(calls, [8, 3])
    self.assertEqual(row['refused_stale'], 3)
    self.assertEqual(row['staleness'], 0)

  def test_every_row_tells_its_staleness(self):
    trainer = self.trainer('mixed', self.config(grpo__refill_rounds=0))
    self.train(trainer, 1)
    asked, episodes = trainer.prefetched
    for i in (0, 3, 4):  # One server of several had the newest weights.
      episodes[i] = dataclasses.replace(episodes[i], policy_version=1)
    trainer.prefetched = asked, episodes
    (second,) = self.train(trainer, 2)
    rows = store.read(self.folder / 'mixed', 'train')
    self.assertEqual(
        rows['staleness'].tolist(), [0.0] * 8 + [0, 1, 1, 0, 0, 1, 1, 1]
    )
    # That of the batch is in the metrics.
    self.assertEqual(second['staleness'], rows['staleness'].max())

  def test_too_far_from_the_sampler_is_rejected(self):
    # Rollouts of the version before are young enough to be trained on, but a
    # large update has moved the policy away from all of them.
    config = self.config(
        optim__learning_rate=0.3,
        grpo__reject='geometric',
        grpo__reject_low=0.99,
        grpo__reject_high=1.01,
        grpo__refill_rounds=0,
        grpo__keep='all',
    )
    trainer = self.trainer('rejected', config)
    first, second = self.train(trainer, 2)
    for name in ('rejected', 'rejected_groups', 'refused_stale'):
      self.assertEqual(first[name], 0, name)
    self.assertEqual(first['tokens'], first['sampled_tokens'])
    self.assertEqual(second['staleness'], 1)
    self.assertEqual(second['refused_stale'], 0)
    self.assertEqual(second['rejected'], 8)
    self.assertEqual(second['rejected_groups'], 2)
    self.assertEqual(second['rejected_tokens'], 1)
    self.assertEqual((second['loss'], second['grad_norm']), (0, 0))
    self.assertGreater(second['sampler_kl'], 0.01)
    # Their advantages were computed before they were rejected.
    rows = store.read(self.folder / 'rejected', 'train', [1])
    self.assertTrue(rows['kept'].all())
    self.assertGreater(rows['advantage'].abs().max(), 0.1)
    gaps = rows['sampler_trainer_logprob_gap']
    self.assertGreater(gaps.min(), 0.005)
    # Bounds are traced: others compile nothing.
    compiled = trainer.compilations()
    trainer.config.grpo.reject_low = trainer.config.grpo.tis_floor = 0.0
    trainer.config.grpo.reject_high = trainer.config.grpo.tis_cap = 1e6
    third = self.train(trainer, 3)[0]
    self.assertEqual((third['rejected'], third['staleness']), (0, 1))
    self.assertEqual(trainer.compilations(), compiled)


class ConfigTest(absltest.TestCase):

  def refuse(self, message, **overrides):
    with self.assertRaisesRegex(config_lib.ConfigError, message):
      config_checks.validate(tiny.make_config('package:math', **overrides))

  def test_conflicts(self):
    self.refuse(r'rollout.kind=.vllm.: choose one', rollout__kind='vllm')
    self.refuse('needs servers.*--config.rollout.urls', rollout__kind='sglang')
    for url in ('localhost:30000', 'http://host:1/generate', 'http://', 3):
      self.refuse(
          'rollout.urls has .*wanted',
          rollout__kind='sglang',
          rollout__urls=(url,),
      )
    twice = ('http://host:1',) * 2
    self.refuse('a server twice', rollout__kind='sglang', rollout__urls=twice)
    self.refuse("kind is 'engine'", rollout__urls=('http://host:1',))
    self.refuse("kind is 'engine'", rollout__weights_dir='/mnt')
    self.refuse("kind is 'engine'", rollout__weights_transport='tensors')
    self.refuse("kind is 'engine'", rollout__urls_file='/mnt')
    self.refuse(
        "urls and rollout.urls_file='/mnt' both name",
        rollout__kind='sglang',
        rollout__urls=('http://localhost:1',),
        rollout__urls_file='/mnt',
    )
    options = dict(rollout__kind='sglang', rollout__urls_file='/none')
    config = tiny.make_config('package:math', **options)
    with self.assertRaisesRegex(ValueError, "urls_file='/none' cannot be read"):
      setup_lib.prepare(config)
    self.refuse(
        'max_staleness=0 refuses', rollout__queue_depth=1, grpo__tis_cap=2.0
    )
    self.refuse(
        'queue_depth=1 .*tis_cap=2',
        rollout__queue_depth=1,
        rollout__max_staleness=1,
    )
    self.refuse('max_staleness=2 .*tis_cap=2', rollout__max_staleness=2)
    self.refuse(
        'max_staleness=2 .*tis_cap=2', rollout__max_staleness=2, grpo__veto=1e-4
    )
    config_checks.validate(
        tiny.make_config(
            'package:math',
            rollout__queue_depth=1,
            rollout__max_staleness=1,
            grpo__reject='sequence',
        )
    )
    self.refuse('queue_depth=2', rollout__queue_depth=2)
    self.refuse(
        'in bfloat16 .*tis_cap=2',
        rollout__kind='sglang',
        rollout__urls=('http://host:1',),
        model__param_dtype='bfloat16',
    )
    config_checks.validate(
        tiny.make_config(
            'package:math',
            rollout__kind='sglang',
            rollout__urls=('http://host:1', 'https://host.example:2/'),
        )
    )


class ProcessesTest(absltest.TestCase):
  """Other processes learn from process 0 what it learns of servers."""

  def test_completions_and_errors_travel(self):
    with tempfile.TemporaryDirectory() as folder:
      server = fake.Server('http://one:1')
      first = client_lib.SGLangEngine(
          [server.url],
          fake.model(),
          weights_folder=folder,
          timeout_seconds=1.0,
          transport=fake.transport([server]),
      )
      self.addCleanup(first.close)
      first.update_weights(0.5, 3)
      sent = []
      with mock.patch(
          'evojax.runtime.sharding.broadcast', lambda x: (sent.append(x), x)[1]
      ):
        asked = [
            records.Request((5, 6), 1, 2, k, records.SamplingParams(9))
            for k in range(4)
        ]
        expected = first.generate(asked)
        server.up = False
        with self.assertRaisesRegex(OSError, 'none of the 1 servers'):
          first.generate(asked)
      with (
          mock.patch('evojax.runtime.sharding.is_primary', return_value=False),
          mock.patch('evojax.runtime.sharding.broadcast', lambda x: x),
      ):
        other = client_lib.SGLangEngine(
            [server.url], fake.model(), weights_folder=folder
        )
      self.assertEmpty(other.servers())
      other.policy_version = 3
      # The other process offers arrays of the shapes that it will be sent.
      for answer in sent:
        with mock.patch('evojax.runtime.sharding.broadcast') as broadcast:
          broadcast.side_effect = lambda mine, answer=answer: (
              [
                  self.assertEqual(a.shape, b.shape)
                  for a, b in zip(
                      mine[0].values(), answer[0].values(), strict=True
                  )
              ],
              answer,
          )[1]
          if answer[1].any():
            with self.assertRaisesRegex(
                OSError, 'process 0 failed: FleetError: none of the 1'
            ):
              other.generate(asked)
          else:
            found = other.generate(asked)
      for a, b in zip(expected, found, strict=True):
        for name, value in vars(a).items():
          np.testing.assert_array_equal(value, getattr(b, name), name)


if __name__ == '__main__':
  absltest.main()
