"""The whole loop on a tiny policy: what is logged, kept and exported is what
trained."""

import contextlib
import dataclasses
import io
import json
import math
import os
import pathlib
import shutil
import signal
import tempfile
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np
import safetensors.numpy

import evojax
from evojax import domains
from evojax.domains import base
from evojax.evidence import schema
from evojax.evidence import store
from evojax.harness import library
from evojax.harness import spec
from evojax.models import flops
from evojax.models import hf
from evojax.modes import evaluate as evaluate_mode
from evojax.rollout import engine as engine_lib
from evojax.runtime import devices
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import preemption
from evojax.runtime import workdir as workdir_lib
from evojax.training import loop
from evojax.training import reward_parts
from evojax.training import setup as setup_lib
from evojax.training import trainer as trainer_lib
from evojax.training import update as update_lib
from tests import tiny

P, G = 2, 4
GAP = 'sampler_trainer_logprob_gap'


def metric_rows(workdir):
  """step -> all metrics of the step."""
  rows = {}
  for line in (workdir / 'metrics.jsonl').read_text().splitlines():
    row = json.loads(line)
    rows.setdefault(row['step'], {}).update(row)
  return rows


def weights(workdir):
  return (workdir / 'policy/model.safetensors').read_bytes()


def leaves(tree):
  return [np.asarray(x) for x in jax.tree.leaves(tree)]


class TrainTestCase(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.policy = tiny.make_policy(cls.root / 'policy')

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.workdir = pathlib.Path(folder, 'run')

  def make_config(self, **overrides):
    return tiny.make_config(self.policy, **overrides)

  def make_trainer(self, **overrides):
    setup = setup_lib.prepare(self.make_config(**overrides))
    self.workdir.mkdir(exist_ok=True)
    trainer = trainer_lib.Trainer(setup, self.workdir, metrics_lib.Phases())
    self.addCleanup(trainer.checkpointer.wait)
    return trainer


class EndToEndTest(TrainTestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.done = cls.root / 'run'
    cls.config = tiny.make_config(
        cls.policy, log__tensorboard=True, log__profile_start=1
    )
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      cls.summary = evojax.run(cls.config, str(cls.done))
    cls.printed = ' '.join(printed.getvalue().split())
    cls.metrics = metric_rows(cls.done)

  def test_a_run_that_solves_nothing_says_so_once(self):
    said = 'no signal: in the first 2 steps 0.0% of the completions are solved'
    self.assertEqual(self.printed.count(said), 1)
    self.assertNotIn('diagnosis', self.printed)  # It took seconds.

  def test_an_unusual_value_is_said_first_and_beside_its_effect(self):
    value = 'optim.learning_rate=0.01 (1e-07 to 0.003 is usual)'
    before, _, _ = self.printed.partition('step 0:')
    self.assertIn(f'warning: {value}', before)
    self.assertIn(f'; but first see to {value}', self.printed)
    log = ' '.join((self.done / 'log.txt').read_text().split())
    self.assertIn(f'warning: {value}', log)

  def test_evidence_is_complete(self):
    columns = schema.declare(domains.make('math').columns, ('brief', 'sure'))
    for step in (0, 1):
      rows = store.read(self.done, 'train', [step])
      self.assertEqual(list(rows), [c.name for c in columns])
      self.assertLen(rows, P * G)
      self.assertFalse(rows.isna().any().any())
      self.assertEqual(set(rows['policy_version']), {step})
      np.testing.assert_array_equal(rows['group'], np.repeat([0, 1], G))
      np.testing.assert_array_equal(rows['sample'], [0, 1, 2, 3] * P)
      for tokens, logprobs, count in zip(
          rows['tokens'], rows['sampler_logprobs'], rows['n_tokens']
      ):
        self.assertLen(tokens, count)
        self.assertLen(logprobs, count)
    # Another step samples with another seed.
    self.assertLen(set(store.read(self.done, 'train')['seed']), 2)

  def test_page(self):
    text = (self.done / 'report.html').read_text()
    self.assertIn('data-state="finished"', text)
    self.assertIn('step 2 of 2', text)
    for wanted in (
        'gradient norm',
        'part sure',
        '<h3>Step 1</h3>',
        '>update <b',
    ):
      self.assertIn(wanted, text)

  def test_logged_is_what_trained(self):
    for step in (0, 1):
      rows, logged = (
          store.read(self.done, 'train', [step]),
          self.metrics[step + 1],
      )
      rewards = np.asarray(rows['reward'], np.float64).reshape(P, G)
      # The weights of tiny.make_config.
      np.testing.assert_allclose(
          rows['reward'],
          2 * rows['part_sure'] + 0.5 * rows['part_brief'],
          rtol=1e-6,
      )
      self.assertAlmostEqual(logged['reward'], rewards.mean(), places=5)
      for part in ('part_sure', 'part_brief'):
        self.assertAlmostEqual(logged[part], rows[part].mean(), places=5)
      # Group-normalised, by the sample's standard deviation.
      centred = rewards - rewards.mean(1, keepdims=True)
      expected = centred / rewards.std(1, ddof=1, keepdims=True)
      np.testing.assert_allclose(
          rows['advantage'], expected.reshape(-1), atol=1e-4
      )
      self.assertAlmostEqual(
          logged['reward_std_in_group'], rewards.std(1).mean(), places=5
      )
      gaps = np.average(rows[GAP], weights=rows['n_tokens'])
      self.assertAlmostEqual(logged['gap'], gaps, places=9)
      self.assertLess(logged['gap_max'], 1e-5)
      self.assertEqual(logged['sampled_tokens'], rows['n_tokens'].sum())
      self.assertEqual(logged['groups'], P)
      self.assertEqual(logged['staleness'], 0)
      self.assertTrue(np.isfinite(logged['loss']))
      self.assertGreater(logged['grad_norm'], 0.1)
      self.assertEqual(logged['learning_rate'], 0.01)
      self.assertGreater(logged['seconds/update'], 0)

  def test_the_update_got_the_stored_advantages(self):
    trainer = self.make_trainer()
    with absltest.mock.patch.object(
        update_lib,
        'make_batch',
        wraps=update_lib.make_batch,
    ) as make_batch:
      trainer.train_step()
    (call,) = make_batch.call_args_list
    prompts, episodes, advantages, included = call.args
    rows = store.read(self.workdir, 'train')
    for given, column in (
        (prompts, 'prompt_tokens'),
        ([e.tokens for e in episodes], 'tokens'),
        ([e.logprobs for e in episodes], 'sampler_logprobs'),
    ):
      self.assertLen(given, P * G)
      for a, b in zip(given, rows[column]):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(advantages.reshape(-1), rows['advantage'])
    self.assertTrue(included.all())

  def test_mfu_is_of_the_tokens_that_train(self):
    trainer = self.make_trainer()
    peak = devices.Device('tested', 1e9, 1e9, 10**9, 'cpu')
    with absltest.mock.patch.object(devices, 'peaks', return_value=peak):
      logged = trainer.train_step()
    rows = store.read(self.workdir, 'train')
    prompts = np.array([len(p) for p in rows['prompt_tokens']])
    once = flops.model(
        trainer.setup.policy.cfg,
        prompts.reshape(P, G)[:, 0],
        rows['n_tokens'].to_numpy().reshape(P, G),
    )
    # On policy: a forward pass, and a backward pass worth two.
    seconds = trainer.phases.seconds['update']
    self.assertAlmostEqual(logged['mfu'], 3 * once / seconds / 1e9)
    # Nobody knows the peak of this CPU, unless the config gives it.
    self.assertNotIn('mfu', self.metrics[2])
    trainer.config.log.peak_flops = 1e9
    before = trainer.phases.seconds['update']
    given = trainer.train_step()['mfu']
    rows = store.read(self.workdir, 'train', [trainer.step - 1])
    once = flops.model(
        trainer.setup.policy.cfg,
        np.array([len(p) for p in rows['prompt_tokens']]).reshape(P, G)[:, 0],
        rows['n_tokens'].to_numpy().reshape(P, G),
    )
    seconds = trainer.phases.seconds['update'] - before
    self.assertAlmostEqual(given, 3 * once / seconds / 1e9)

  def test_goodput(self):
    for step in (1, 2):
      self.assertBetween(self.metrics[step]['goodput'], 0.01, 1)
      self.assertEqual(self.metrics[step]['restarts'], 0)
    self.assertTrue((self.done / 'times.jsonl').is_file())

  def test_workdir(self):
    checkpoint = self.done / 'checkpoints/step_000002'
    self.assertTrue((checkpoint / 'SHA256SUMS').is_file())
    self.assertEqual(
        json.loads((self.done / 'summary.json').read_text()), self.summary
    )
    self.assertEqual(self.summary['steps'], 2)
    self.assertEqual(
        self.summary['scores']['dev/n_tokens'], self.metrics[2]['dev/n_tokens']
    )
    self.assertEqual(
        self.summary['gain']['sealed'],
        json.loads((self.done / 'sealed.json').read_text()),
    )
    self.assertEqual(list(self.metrics), [0, 1, 2])
    # Prefill, insert and decode of the engine, and the update.
    self.assertEqual(self.summary['compilations'], 4)
    self.assertAlmostEqual(sum(self.summary['time_shares'].values()), 1)
    self.assertNotEmpty(list((self.done / 'tensorboard').iterdir()))
    self.assertLen(list((self.done / 'profile').rglob('*.xplane.pb')), 1)
    starts = json.loads((self.done / 'manifest.json').read_text())
    self.assertLen(starts, 1)
    saved = json.loads((self.done / 'config.json').read_text())
    self.assertEqual(saved['hash'], self.summary['config_sha256'])

  def test_exported_policy_is_the_trained_one(self):
    exported = self.done / 'policy'
    self.assertEqual(
        hf.check_directory(exported), hf.check_directory(self.policy)
    )
    self.assertNotEqual(
        weights(self.done), (self.policy / 'model.safetensors').read_bytes()
    )
    # --mode=eval of the directory samples what the trained weights in memory
    # did, token for token.
    scored = evaluate_mode.run(
        tiny.make_config(exported, eval__split='sealed'), str(self.workdir)
    )
    ours = store.read(self.workdir, 'sealed')
    theirs = store.read(self.done, 'sealed', [2])
    changing = ['step', 'policy_version', 'grade_seconds']
    self.assertTrue(
        ours.drop(columns=changing).equals(theirs.drop(columns=changing))
    )
    self.assertEqual(
        scored, json.loads((self.workdir / 'eval.json').read_text())
    )
    self.assertEqual(
        scored['metrics']['sealed/n_tokens'], ours['n_tokens'].mean()
    )
    # The base policy sampled something else, from the same problems.
    base = store.read(self.done, 'sealed', [0])
    self.assertEqual(list(base['problem_id']), list(ours['problem_id']))
    self.assertFalse(base['completion'].equals(ours['completion']))

  def test_evidence_ahead_of_the_checkpoint_goes(self):
    # As a killed process leaves it: two steps and an evaluation too far.
    shutil.copytree(self.done, self.workdir)
    evidence = self.workdir / 'evidence'
    for split, source, target in (
        ('train', 1, 2),
        ('train', 1, 3),
        ('dev', 2, 3),
    ):
      shutil.copy(
          evidence / split / f'step_{source:06}.parquet',
          evidence / split / f'step_{target:06}.parquet',
      )
    trainer = self.make_trainer()
    self.assertEqual(trainer.step, 2)
    # Only once a step is made: a start that is stopped changes nothing.
    self.assertEqual(store.list_steps(self.workdir, 'train'), [0, 1, 2, 3])
    trainer.train_step()
    self.assertEqual(store.list_steps(self.workdir, 'train'), [0, 1, 2])
    self.assertEqual(store.list_steps(self.workdir, 'dev'), [0, 2])
    # Without a checkpoint the run starts again.
    shutil.rmtree(self.workdir / 'checkpoints')
    trainer = self.make_trainer()
    self.assertEqual(trainer.step, 0)
    trainer.train_step()
    self.assertEqual(store.list_steps(self.workdir, 'train'), [0])
    self.assertEqual(store.list_steps(self.workdir, 'dev'), [0])
    self.assertEqual(store.list_steps(self.workdir, 'sealed'), [0, 2])

  def test_a_signal_within_a_rollout_or_a_score_changes_nothing(self):
    config = self.make_config(eval__every=1)
    work, points = engine_lib._Stream.work, []

    def run(name, at=None):
      """Run; a signal comes when the engine decodes a segment."""
      asked, points[:] = [], []

      def counted(stream):
        points.append(stream)
        if len(points) == at:
          asked.append(signal.SIGTERM)
        return work(stream)

      flag = lambda: contextlib.nullcontext(asked)
      with (
          mock.patch.object(engine_lib._Stream, 'work', counted),
          mock.patch.object(preemption, 'stop_flag', flag),
      ):
        evojax.run(config, str(self.root / name))
      return len(points)

    count = run('whole')
    rows = metric_rows(self.root / 'whole')
    for at in (1, *(count * i // 4 for i in range(1, 4))):
      name = f'signal-{at}'
      with self.assertRaises(preemption.Preempted):
        run(name, at)
      # It comes too late for a stream that is empty then.
      self.assertBetween(len(points), at, at + 1)
      run(name)
      self.assertEqual(weights(self.root / name), weights(self.root / 'whole'))
      found = metric_rows(self.root / name)
      for step, row in rows.items():
        for key in ('loss', 'reward', 'dev/avg_at_k'):
          self.assertEqual(found[step].get(key), row.get(key), (at, step, key))

  def test_a_signal_within_a_slow_reward_changes_nothing(self):
    config = self.make_config()
    evojax.run(config, str(self.root / 'undisturbed'))
    calls = []

    def slow(view):
      calls.append(view)
      if len(calls) == 3:  # In the second step.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
      return tiny.parts(view)

    name = 'slow-reward'
    began = time.monotonic()
    with mock.patch.object(reward_parts, 'load_parts', lambda *_: slow):
      with self.assertRaises(preemption.Preempted):
        evojax.run(config, str(self.root / name))
    self.assertLess(time.monotonic() - began, 30)
    self.assertLen(calls, 3)
    self.assertEqual(preemption.seconds_left(), math.inf)
    evojax.run(config, str(self.root / name))
    self.assertEqual(sorted(metric_rows(self.root / name)), [0, 1, 2])
    self.assertEqual(
        weights(self.root / name), weights(self.root / 'undisturbed')
    )

  def test_a_checkpoint_that_would_come_too_late_is_not_begun(self):
    trainer = self.make_trainer()
    trainer.train_step()
    out = io.StringIO()
    with (
        mock.patch.object(preemption, 'seconds_left', lambda: 0.0),
        contextlib.redirect_stdout(out),
    ):
      trainer.save()
    self.assertEqual(trainer.checkpointer.steps(), [])
    self.assertRegex(
        ' '.join(out.getvalue().split()),
        r'no checkpoint of step 1: \d\.\d GB take about \d+ s, and 0 of the'
        r' 25 s after SIGTERM are left\. 0 steps are saved$',
    )
    trainer.save()  # Without a signal.
    trainer.checkpointer.wait()
    self.assertEqual(trainer.checkpointer.steps(), [1])

  def test_a_checkpoint_that_takes_longer_than_expected_is_told(self):
    trainer = self.make_trainer()
    trainer.train_step()
    wait, out = trainer.checkpointer.wait, io.StringIO()
    waited = []

    def slow():
      if not waited:  # The first call only waits for an earlier checkpoint.
        waited.append(wait())
        return
      time.sleep(0.5)  # As on a slow disk.
      wait()

    with (
        mock.patch.object(preemption, 'seconds_left', lambda: 0.2),
        mock.patch.object(trainer, '_too_late', lambda tree: ''),
        mock.patch.object(trainer.checkpointer, 'wait', slow),
        contextlib.redirect_stderr(out),
    ):
      trainer.save()
    self.assertRegex(
        ' '.join(out.getvalue().split()),
        r'25 s after SIGTERM the checkpoint of step 1 is not complete yet\. If'
        r' the machine goes away now, 0 steps are saved$',
    )
    self.assertEqual(trainer.checkpointer.steps(), [1])

  def test_another_seed_is_another_run(self):
    trainer = self.make_trainer(seed=1)
    trainer.train_step()
    ours = store.read(self.workdir, 'train')
    theirs = store.read(self.done, 'train', [0])
    self.assertEmpty(set(ours['problem_id']) & set(theirs['problem_id']))
    self.assertEmpty(set(ours['seed']) & set(theirs['seed']))


class LossTest(TrainTestCase):

  def test_a_training_that_loses_points_is_diagnosed(self):
    evaluate = trainer_lib.Trainer.evaluate

    def falls(trainer, step, *args):
      result = evaluate(trainer, step, *args)
      solved = np.full_like(result.outcomes, step == 0)
      return dataclasses.replace(result, outcomes=solved)

    config = self.make_config(
        steps=1, eval__sealed=False, eval__problems=8
    )
    printed = io.StringIO()
    with (
        mock.patch.object(trainer_lib.Trainer, 'evaluate', falls),
        contextlib.redirect_stdout(printed),
    ):
      evojax.run(config, str(self.workdir))
    self.assertIn('diagnosis:\n1 warning ', printed.getvalue())
    self.assertTrue((self.workdir / 'diagnosis.json').exists())


class DynamicSamplingTest(TrainTestCase):

  def test_dropped_groups_are_replaced(self):
    summary = evojax.run(
        self.make_config(
            seed=5,
            grpo__keep='reward_variance',
            grpo__refill_rounds=4,
            reward__weights={'coarse': 1.0},
            eval__sealed=False,
        ),
        str(self.workdir),
    )
    rows = store.read(self.workdir, 'train')
    logged = metric_rows(self.workdir)
    for step in (0, 1):
      step_rows = rows[rows['step'] == step]
      groups = step_rows.groupby('group')
      alive = groups['reward'].nunique() > 1
      self.assertEqual(list(alive.index), list(range(len(alive))))
      self.assertEqual(list(groups['kept'].first()), list(alive))
      self.assertGreater(len(alive), P)  # There was something to replace,
      self.assertEqual(alive.sum(), P)  # and it was.
      self.assertEqual(logged[step + 1]['groups'], len(alive))
      self.assertEqual(logged[step + 1]['groups_kept'], P)
      self.assertAlmostEqual(
          logged[step + 1]['dead_groups'], 1 - P / len(alive)
      )
      # Each round is a rollout with a seed of its own, as large as needed.
      rounds = step_rows.groupby('seed', sort=False)
      missing = P
      for _, members in rounds:
        self.assertLen(members, missing * G)
        missing -= members['kept'].sum() // G
      self.assertEqual(missing, 0)
      # The reward logged is of everything that was sampled.
      self.assertAlmostEqual(
          logged[step + 1]['reward'], step_rows['reward'].mean(), places=5
      )
      self.assertEqual(
          logged[step + 1]['tokens'],  # Of what entered the update.
          step_rows['n_tokens'][step_rows['kept']].sum(),
      )
    # The update fills its column for the rows it used.
    self.assertTrue((rows[GAP].notna() == rows['kept']).all())
    # No problem was skipped, none was taken twice.
    problems = domains.make(
        'math', families=('chain_sum:0', 'products:0')
    ).source('train', 5)
    asked = rows['problem_id'][rows['sample'] == 0]
    self.assertEqual(
        list(asked), [p.problem_id for p in problems.take(0, len(asked))]
    )
    # Without sealed problems, the gain is that on dev.
    self.assertEqual(list(summary['gain']), ['dev'])

  def test_nothing_kept_is_a_step_that_changes_nothing(self):
    trainer = self.make_trainer(
        reward__weights={'outcome': 1.0}, grpo__keep='outcome_variance'
    )
    before = leaves(trainer.learner.state['params'])
    metrics = trainer.train_step()
    self.assertEqual(metrics['groups_kept'], 0)
    self.assertEqual(metrics['dead_groups'], 1)
    self.assertEqual(metrics['grad_norm'], 0)
    self.assertTrue(np.isnan(metrics['entropy']))  # Not 0: not measured.
    for a, b in zip(before, leaves(trainer.learner.state['params'])):
      np.testing.assert_array_equal(a, b)
    rows = store.read(self.workdir, 'train')
    self.assertTrue(rows[GAP].isna().all())
    self.assertFalse(rows['kept'].any())


class AlgorithmTest(TrainTestCase):

  def test_epochs_and_minibatches(self):
    trainer = self.make_trainer(
        grpo__epochs=2, grpo__minibatches=2, optim__learning_rate=0.05
    )
    metrics = trainer.train_step()
    # 2 passes of 2 optimizer updates; later ones are off policy.
    self.assertEqual(int(trainer.learner.state['step']), 4)
    self.assertEqual(int(trainer.learner.state['moments'].count), 4)
    self.assertGreater(metrics['approx_kl'], 1e-4)
    self.assertGreater(metrics['clip_high'] + metrics['clip_low'], 0)
    self.assertEqual(metrics['tokens'], metrics['sampled_tokens'] / 2)
    rows = store.read(self.workdir, 'train')
    self.assertFalse(rows[GAP].isna().any())
    # The version is that of the weights that sampled.
    self.assertLess(rows[GAP].max(), 1e-5)
    # Weights move once per step in the engine's count of versions.
    self.assertEqual(trainer.engine.policy_version, 1)
    self.assertEqual(trainer.step, 1)

  def test_an_update_of_nothing_is_not_part_of_the_means(self):
    trainer = self.make_trainer(
        grpo__minibatches=2,
        grpo__keep='reward_variance',
        reward__weights={'coarse': 1.0},
        seed=5,
    )
    while (metrics := trainer.train_step())['groups_kept'] != 1:
      self.assertLess(trainer.step, 20)
    self.assertAlmostEqual(metrics['ratio'], 1.0, places=5)

  def test_kl_to_the_reference(self):
    trainer = self.make_trainer(grpo__kl_coef=0.5)
    base = leaves(trainer.learner.reference)
    first, second = trainer.train_step(), trainer.train_step()
    self.assertAlmostEqual(first['ref_kl'], 0, places=6)
    self.assertGreater(second['ref_kl'], 1e-5)
    for a, b in zip(base, leaves(trainer.learner.reference)):
      np.testing.assert_array_equal(a, b)
    moved = [
        np.abs(a - b).max()
        for a, b in zip(base, leaves(trainer.learner.state['params']))
    ]
    self.assertGreater(max(moved), 1e-3)
    # The loss has the term: it differs from the same step without.
    self.assertGreater(abs(second['loss']), 1e-5)

  def test_entropy_is_paid_or_fined(self):
    after = {}
    for coefficient in (-0.5, 0.0, 0.5):
      trainer = self.make_trainer(grpo__entropy_coef=coefficient)
      first, second = trainer.train_step(), trainer.train_step()
      after[coefficient] = second['entropy'] - first['entropy']
    self.assertLess(after[-0.5], after[0.0])
    self.assertLess(after[0.0], after[0.5])

  def test_token_limit_is_of_training_alone(self):
    trainer = self.make_trainer(rollout__token_limit=5)
    compiled = trainer.engine.compilations()
    step = trainer.roll_out()
    rows = step.rollouts.rows
    self.assertEqual(max(rows['n_tokens']), 5)
    # The reward 'brief' is 1 - n / limit: 0 for a completion that was cut.
    cut = np.array(rows['n_tokens']).reshape(step.rewards.shape) == 5
    np.testing.assert_allclose(step.parts['brief'][cut], 0, atol=1e-7)
    trainer.evaluate(0, trainer.workdir)
    longest = store.read(trainer.workdir, 'dev', [0])['n_tokens'].max()
    self.assertGreater(longest, 5)
    self.assertLessEqual(trainer.engine.compilations() - compiled, 3)

  def test_importance_weights(self):
    trainer = self.make_trainer(
        grpo__tis_cap=2.0, grpo__tis_mode='sequence_mask', grpo__veto=1e-4
    )
    metrics = trainer.train_step()
    # Sampler and trainer agree, so every weight is 1.
    for name in ('tis_weight', 'tis_sample_size', 'tis_ratio_max'):
      self.assertAlmostEqual(metrics[name], 1, places=4)
    for name in ('tis_masked', 'tis_masked_sequences', 'rejected'):
      self.assertEqual(metrics[name], 0)
    self.assertAlmostEqual(metrics['sampler_kl'], 0, places=6)

  def test_lora_trains_adapters_and_exports_whole_weights(self):
    config = self.make_config(
        model__lora_rank=2, checkpoint__every=1, eval__sealed=False
    )
    evojax.run(config, str(self.workdir))
    meta = json.loads(
        (self.workdir / 'checkpoints/step_000002/meta.json').read_text()
    )
    saved = [p for p in meta['leaves'] if p.startswith('learner/params')]
    self.assertNotEmpty(saved)
    for path in saved:
      self.assertIn('_lora_', path)
    self.assertFalse([p for p in meta['leaves'] if 'frozen' in p])
    before = safetensors.numpy.load_file(self.policy / 'model.safetensors')
    after = safetensors.numpy.load_file(
        self.workdir / 'policy/model.safetensors'
    )
    self.assertEqual(set(before), set(after))
    for name in before:
      same = np.array_equal(before[name], after[name])
      self.assertEqual(same, '_proj' not in name, name)
      # B A of rank 2.
      if not same:
        change = after[name] - before[name]
        self.assertEqual(np.linalg.matrix_rank(change, tol=1e-5), 2, name)

  def test_another_filter_begins_with_a_state_of_its_own(self):
    first = self.make_trainer()
    first.train_step()
    first.save()
    first.checkpointer.wait()
    source = library.source('keep/ema_outcome_spread.py')
    harness = spec.Harness(overlay={}, files={'keep.py': source})
    path = spec.write(harness, self.workdir / 'harness')
    fork = self.make_trainer(harness__path=str(path))
    self.assertEqual(fork.step, 1)
    fork.train_step()
    fork.save()
    fork.checkpointer.wait()
    self.assertEqual(fork.rewards.keep_state['steps'], 1)
    again = self.make_trainer(harness__path=str(path))
    self.assertEqual(again.rewards.keep_state, fork.rewards.keep_state)

  def test_lines_are_rarer_than_rows_of_metrics(self):
    config = self.make_config(steps=3, log__every=2, eval__sealed=False)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      evojax.run(config, str(self.workdir))
    lines = printed.getvalue()
    shown = [n for n in (1, 2, 3) if f'step {n}/3' in lines]
    self.assertEqual(shown, [2, 3])  # The last step always has a line.
    rows = metric_rows(self.workdir)
    self.assertEqual([n for n in rows if 'loss' in rows[n]], [1, 2, 3])

  def test_a_longer_run_continues_a_shorter_one(self):
    # Frozen weights come from the base, adapters from the checkpoint; `steps`
    # may change, as the learning rate is constant.
    lora = dict(model__lora_rank=2, eval__sealed=False)
    straight = self.workdir.with_name('straight')
    evojax.run(self.make_config(**lora), str(straight))
    evojax.run(self.make_config(steps=1, **lora), str(self.workdir))
    summary = evojax.run(self.make_config(**lora), str(self.workdir))
    self.assertEqual(weights(self.workdir), weights(straight))
    # The base was scored again: its score is part of the summary.
    gain = summary['gain']['dev']
    self.assertEqual(gain['before']['step'], 0)
    self.assertEqual(gain['after']['step'], 2)

  def test_a_fork_without_steps_of_its_own_says_so(self):
    first = self.make_trainer()
    first.train_step()
    first.save()
    first.checkpointer.wait()
    said = []
    for steps in (1, 2):
      with contextlib.redirect_stdout(io.StringIO()) as printed:
        loop.run(
            self.make_config(steps=steps, eval__sealed=False),
            str(self.workdir.with_name(f'fork{steps}')),
            fork_from=str(self.workdir),
        )
      said.append('nothing is trained: config.steps' in printed.getvalue())
    self.assertEqual(said, [True, False])
    # The same command continues a fork, even if its source is gone.
    gone = str(self.workdir.with_name('gone'))
    config = self.make_config(steps=2, eval__sealed=False)
    path = self.workdir.with_name('fork2')
    trained = weights(path)
    loop.run(config, str(path), fork_from=gone)
    self.assertEqual(weights(path), trained)
    with self.assertRaisesRegex(ValueError, 'gone holds no checkpoint'):
      loop.run(config, str(path.with_name('new')), fork_from=gone)

  @parameterized.named_parameters(
      ('packed', dict(grpo__layout='packed')),
      ('micro-batches', dict(grpo__micro_groups=2)),
      ('scan and remat', dict(model__scan_layers=True, model__remat='full')),
      ('chunked log-probs', dict(model__logprob_chunk=8)),
  )
  def test_layout_changes_nothing(self, overrides):
    # Adam divides by the root of the second moment, which near 0 turns
    # rounding into a whole step. Not with eps = 1.
    plain, other = dict(optim__eps=1.0), dict(optim__eps=1.0, **overrides)
    trainer = self.make_trainer(**other)
    found = trainer.train_step()
    if 'grpo__layout' in overrides:
      self.assertEqual(trainer.learner.algorithm.layout, 'packed')
    self.workdir = self.workdir.with_name('plain')
    reference = self.make_trainer(**plain)
    wanted = reference.train_step()
    for name in ('reward', 'loss', 'grad_norm', 'entropy', 'gap', 'tokens'):
      np.testing.assert_allclose(
          found[name], wanted[name], rtol=1e-4, atol=1e-6, err_msg=name
      )
    if not overrides.get('model__scan_layers'):
      for a, b in zip(
          leaves(trainer.learner.state['params']),
          leaves(reference.learner.state['params']),
      ):
        np.testing.assert_allclose(a, b, atol=1e-6)


class PrepareTest(TrainTestCase):

  @parameterized.parameters('train', 'dev', 'sealed')
  def test_long_prompts_of_every_split_are_found_before_the_run(self, split):
    domain = domains.make('math', families=('chain_sum:0',))

    class Domain(base.Domain):
      """One long problem, at the end of what the run will ask."""

      name = domain.name
      columns, reward_parts = domain.columns, domain.reward_parts
      grade = domain.grade

      def source(self, wanted, seed):
        source = domain.source(wanted, seed)

        def take(cursor, count):
          problems = source.take(cursor, count)
          if wanted == split:
            text = 'What is ' + '1 + ' * 40 + '1?'
            long = ({'role': 'user', 'content': text},)
            last = domain.source(split, 9).take(0, 1)[0]
            problems[-1] = type(last)(
                last.problem_id, 'long_sum', long, last.answer
            )
          return problems

        made = absltest.mock.MagicMock(take=take)
        made.__len__.return_value = len(source)
        return made

    with absltest.mock.patch.object(domains, 'make', return_value=Domain()):
      with self.assertRaisesRegex(ValueError, "family 'long_sum'.* set --conf"):
        setup_lib.prepare(self.make_config())
      if split == 'sealed':
        setup_lib.prepare(self.make_config(eval__sealed=False))

  def test_only_evaluations_filter_what_they_sample(self):
    config = self.make_config(rollout__top_k=1)
    with self.assertRaisesRegex(ValueError, 'train with top_p=1'):
      setup_lib.prepare(config)
    evaluate_mode.run(config, str(self.workdir))
    rows = store.read(self.workdir, 'dev')
    self.assertEqual(set(rows.groupby('group')['sample'].count()), {2})
    self.assertEqual(set(rows.groupby('group')['completion'].nunique()), {1})

  def test_evaluation_of_a_workdir_in_use(self):
    config = self.make_config()
    with workdir_lib.open_workdir(self.workdir, config, mode='eval'):
      with self.assertRaisesRegex(workdir_lib.WorkdirError, 'in use'):
        evaluate_mode.run(config, str(self.workdir))

  def test_no_steps_exports_the_base_policy(self):
    summary = evojax.run(self.make_config(steps=0), str(self.workdir))
    self.assertEqual(
        weights(self.workdir), (self.policy / 'model.safetensors').read_bytes()
    )
    self.assertEqual(summary['gain'], {})
    self.assertEqual(summary['steps'], 0)
    self.assertFalse((self.workdir / 'sealed.json').exists())


if __name__ == '__main__':
  absltest.main()
