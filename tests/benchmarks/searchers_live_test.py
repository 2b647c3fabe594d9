"""Rivals in live training: their starting points and their ends."""

import json
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np
import safetensors.numpy

from benchmarks import json_lines
from benchmarks.faults import jobs
from benchmarks.faults import settings
from benchmarks.searchers import design
from benchmarks.searchers import live
from benchmarks.searchers import recording
from benchmarks.searchers import rivals
from benchmarks.searchers import searching
from benchmarks.searchers import tables
from benchmarks.searchers import versus
from configs import math as math_config
from evojax import config as config_lib
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.models import hf
from evojax.training import trainer as trainer_lib
from evojax.training import update as update_lib
from tests import tiny

# Python of the environment from benchmarks/searchers/requirements.txt.
RIVALS = os.environ.get('EVOJAX_RIVALS_PYTHON', '')


class ReferenceTest(absltest.TestCase):

  def _of(self, name):
    setting = settings.read(settings.FOLDER / name)
    config = config_lib.with_fields(
        settings.planted(setting), {'seed': 7, 'harness.path': 'planted'}
    )
    return setting, live.reference(config)

  def test_nothing_that_is_planted_stays(self):
    """Except for faults of the task, which no recipe changes."""
    known = config_lib.with_fields(
        math_config.get_config('reference'), {'seed': 7}
    )
    wanted = config_lib.flatten(known)
    for name in (
        'math_brevity_and_limit',
        'math_adam_epsilon',
        'math_kl_strong',
    ):
      with self.subTest(name):
        _, found = self._of(name)
        self.assertEqual(config_lib.flatten(found), wanted)

  def test_the_task_stays(self):
    setting, found = self._of('math_hard_only')
    own = settings.planted(setting).domain.kwargs.families
    self.assertEqual(found.domain.kwargs.families, own)
    self.assertEqual(found.data.families, ())
    # A grader that can be gamed is still the job's grader.
    _, found = self._of('coding_runs')
    self.assertEqual(found.domain.name, settings.TASK)
    self.assertEqual(found.model.path, 'package:coding')
    self.assertEqual(found.optim.learning_rate, 3e-4)

  def test_a_task_of_nobody_has_no_reference(self):
    config = config_lib.with_fields(
        math_config.get_config(),
        {'domain.name': 'task', 'model.path': '/somewhere'},
    )
    with self.assertRaisesRegex(ValueError, 'no reference is known'):
      live.reference(config)


class JobTestCase(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = pathlib.Path(folder.name)
    cls.policy = tiny.make_policy(cls.folder / 'policy')

  def _job(self, tokens, **overrides):
    folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
    config = tiny.make_config(self.policy, **overrides)
    (folder / 'config.json').write_text(config_lib.to_json(config))
    job = dict(
        config=str(folder / 'config.json'),
        workdir=str(folder / 'workdir'),
        answer=str(folder / 'answer.json'),
        tokens=tokens,
        seed=0,
    )
    (folder / 'job.json').write_text(json.dumps(job))
    return job, str(folder / 'job.json')

  def _weights(self, folder):
    return safetensors.numpy.load_file(folder / 'model.safetensors')


class SeedTest(JobTestCase):

  def test_trains_as_long_as_there_are_tokens(self):
    job, path = self._job(400, optim__warmup_steps=20_000)
    live.main('seed', path)
    found = jobs.read(pathlib.Path(job['answer']), job)
    self.assertEqual((found.status, found.causes), ('nothing', ()))
    # An update samples 8 completions of at most 12 tokens.
    self.assertBetween(found.tokens, 400 - 2 * 96, 400)
    rows = list((pathlib.Path(job['workdir']) / 'evidence').rglob('*.parquet'))
    self.assertNotEmpty(rows)
    hf.check_directory(found.policy)
    before, after = self._weights(self.policy), self._weights(found.policy)
    self.assertTrue(any(np.any(before[k] != after[k]) for k in before))
    self.assertEqual(found.values['optim.learning_rate'], 1e-2)

  def test_training_that_ends_leaves_the_last_good_policy(self):
    job, path = self._job(10**6)
    step = trainer_lib.Trainer.train_step

    def diverge(trainer):
      if trainer.step == 2:
        raise update_lib.NonFiniteError('loss=nan')
      return step(trainer)

    with mock.patch.object(trainer_lib.Trainer, 'train_step', diverge):
      live.main('seed', path)
    found = jobs.read(pathlib.Path(job['answer']), job)
    self.assertBetween(found.tokens, 2, 2 * 96)
    hf.check_directory(found.policy)

  def test_unknown_systems(self):
    _, path = self._job(100)
    with self.assertRaisesRegex(ValueError, "system='sed': choose one of"):
      live.main('sed', path)


class SpaceTest(parameterized.TestCase):

  @parameterized.parameters(
      'math_brevity_paid', 'coding_narrow_slice', 'coding_filter_unsolved'
  )
  def test_the_first_trial_is_the_recipe_of_the_job(self, name):
    setting = settings.read(settings.FOLDER / name)
    config, harness = settings.planted(setting), settings.harness(setting)
    dimensions, first = searching.space(config, harness)
    self.assertEqual([of['name'] for of in dimensions], list(first))
    found = searching.apply(first, config, harness)
    surface = surface_lib.recipe()
    wanted = config_lib.flatten(surface.apply(config, harness.overlay))
    values = config_lib.flatten(surface.apply(config, found.overlay))
    off = {k for k in values.keys() - wanted.keys() if not values[k]}
    self.assertEqual({k: values[k] for k in values.keys() - off}, wanted)
    self.assertEqual(found.files, harness.files)

  def test_what_is_planted_can_be_taken_out(self):
    setting = settings.read(settings.FOLDER / 'coding_filter_unsolved')
    config, harness = settings.planted(setting), settings.harness(setting)
    _, first = searching.space(config, harness)
    found = searching.apply({**first, 'file:keep.py': 0}, config, harness)
    self.assertNotIn('keep.py', found.files)
    setting = settings.read(settings.FOLDER / 'coding_narrow_slice')
    config, harness = settings.planted(setting), settings.harness(setting)
    _, first = searching.space(config, harness)
    found = searching.apply({**first, 'data.families:on': 0}, config, harness)
    self.assertEqual(found.overlay['data.families'], ())
    changed = {**first, 'optim.weight_decay:on': 1, 'optim.weight_decay': 0.01}
    found = searching.apply(changed, config, harness)
    self.assertEqual(found.overlay['optim.weight_decay'], 0.01)

  def test_values_beyond_the_surface_are_moved_to_it(self):
    setting = settings.read(settings.FOLDER / 'coding_rate_high')
    config, harness = settings.planted(setting), settings.harness(setting)
    dimensions, first = searching.space(config, harness)
    (rate,) = (d for d in dimensions if d['name'] == 'optim.learning_rate')
    self.assertEqual(
        (rate['low'], rate['high'], rate['log']), (1e-6, 3e-3, True)
    )
    self.assertEqual(first['optim.learning_rate'], 3e-3)
    surface_lib.recipe().check(searching.apply(first, config, harness).overlay)


class TrialsTest(JobTestCase):

  def test_trials_train_on_and_are_cloned(self):
    # A random policy solves nothing, but its answers differ in this part.
    harness = spec.Harness({'reward.weights.sure': 2.0}, {})
    path = spec.write(harness, self.folder / 'harness')
    job, _ = self._job(10**6, harness__path=str(path))
    trials = searching.Trials(job, 10**5, unit=1)
    _, first = searching.space(trials.config, trials.harness)
    train = lambda *given: trials.train(*given, first, 1)
    self.assertIsNotNone(train(0, None))
    fingerprint = lambda k: trials._arms[k].learner.fingerprint()
    one = fingerprint(0)
    spent = trials.tokens
    still = {**first, 'optim.learning_rate': 1e-6}
    trials.train(1, 0, still, 1)
    trials.train(2, None, still, 1)
    self.assertGreater(trials.tokens, spent)
    # A clone starts with the moments and the policy of another trial.
    distance = lambda a, b: sum(
        float(np.abs(np.asarray(x) - np.asarray(y)).sum())
        for x, y in zip(
            *(jax.tree.leaves(trials._arms[k].learner.params) for k in (a, b))
        )
    )
    self.assertLess(distance(0, 1), 0.01 * distance(0, 2))
    self.assertEqual(fingerprint(0), one)
    self.assertNotEqual(fingerprint(1), one)
    train(0, None)
    self.assertNotEqual(fingerprint(0), one)
    # Values that do not fit the run do not end the search.
    wrong = {**first, 'grpo.clip_low': 7.0}
    self.assertEqual(trials.train(3, None, wrong, 1), 0.0)
    trials._limit = trials.tokens
    self.assertIsNone(train(0, None))
    before = trials.tokens
    spent, values = trials.finish(before + 500)
    self.assertBetween(spent, before + 500 - 2 * 96, before + 500)
    self.assertEqual(values['grpo.prompts'], 2)
    hf.check_directory(pathlib.Path(job['workdir'], 'policy'))

  def test_eight_trials_of_full_length_take_the_tokens_of_the_search(self):
    job, _ = self._job(10**6)
    trials = searching.Trials(job, 48_000)
    _, first = searching.space(trials.config, trials.harness)
    sampled, step = [], trainer_lib.Trainer.train_step

    def recorded(trainer):
      metrics = step(trainer)
      sampled.append(int(metrics['sampled_tokens']))
      return metrics

    with mock.patch.object(trainer_lib.Trainer, 'train_step', recorded):
      trials.train(0, None, first, 1)
    # A third of a trial of full length takes a 24th: 2,000 tokens.
    self.assertLen(sampled, int(2000 / sampled[0]))
    self.assertGreater(len(sampled), 1)

  @absltest.skipUnless(RIVALS, 'EVOJAX_RIVALS_PYTHON names no environment')
  def test_searchers_of_the_other_environment(self):
    with mock.patch.object(searching, 'UNIT', 1):
      for rival in rivals.LIVE:
        with self.subTest(rival):
          job, path = self._job(12_000)
          live.main(rival, RIVALS, path)
          found = jobs.read(pathlib.Path(job['answer']), job)
          self.assertEqual(found.status, 'repaired')
          self.assertBetween(found.tokens, 9000, 12_000)
          hf.check_directory(found.policy)


class VersusTest(absltest.TestCase):

  def test_lines(self):
    row = lambda system, seed, true, setting='one': dict(
        system=system, setting=setting, seed=seed, true=true
    )
    rows = [row('evojax', s, 0.7 + 0.01 * s) for s in range(3)]
    rows += [row('seed', s, 0.5) for s in range(3)]
    rows += [row('pbt', 0, None), row('evojax', 0, 0.1, 'two')]
    text = versus.lines(rows)
    # 20, 21 and 22 points: 21 +- 4.303 / sqrt(3).
    self.assertEqual(
        text[:4],
        [
            'one:',
            '  evojax      71.0 (3 jobs)',
            '  seed        50.0 (3 jobs); evojax is +21.0 [+18.5, +23.5] in 3'
            ' pairs',
            '  pbt        left no policy in 1 jobs',
        ],
    )
    self.assertEqual(text[4:6], ['two:', '  evojax      10.0 (1 jobs)'])
    self.assertEqual(
        text[6:8], ['all settings:', '  evojax      55.8 (4 jobs)']
    )

  def test_systems(self):
    found = versus.systems('asha', 'PYTHON')
    self.assertEqual(
        list(found), ['evojax', 'reference', 'seed', 'asha', 'pbt']
    )
    self.assertEqual(found['asha'][-2:], ['asha', 'PYTHON'])
    self.assertLen(versus.systems('asha', ''), 3)


class RecordingTest(absltest.TestCase):

  def test_a_row_of_a_run_that_switches(self):
    """With the shipped policy and updates of 8 completions."""
    recipe = design.Design.recipe

    def small(self, number):
      config, harness = recipe(self, number)
      changes = {
          'grpo.prompts': 2,
          'grpo.group_size': 4,
          'rollout.decode_slots': 8,
          'rollout.prefill_rows': 8,
          'evolve.replay_problems': 4,
      }
      return config_lib.with_fields(config, changes), harness

    plan = recording.Plan(updates=4, every=2, problems=4, bits=2)
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    path = pathlib.Path(folder.name, 'rows.jsonl')
    setting = 'math_brevity_paid'
    with mock.patch.object(design.Design, 'recipe', small):
      runs = [recording.Run(setting, h, s) for s in (0, 1) for h in (0, 1)]
      runs.append(recording.Run(setting, 0, 1, (1, 2)))
      for run in runs:
        recording.record(run, plan, path)
    rows = json_lines.read(path)
    self.assertEqual([tables.key(row) for row in rows], [r.key for r in runs])
    for row in rows:
      self.assertEqual(row['updates'], [0, 2, 4])
      self.assertEqual([len(text) for text in row['solved']], [4] * 3)
      self.assertEqual(row['calls'][0], [])
      # All start with the shipped policy and are scored on the same problems.
      self.assertEqual(row['solved'][0], rows[0]['solved'][0])
      self.assertBetween(row['tokens'][2] - row['tokens'][1], 2 * 8, 1024)
    self.assertEqual(rows[0]['replayed'].keys(), {'0', '1'})
    # Until the switch, a run equals the one that does not switch.
    self.assertEqual(rows[4]['tokens'][:2], rows[2]['tokens'][:2])
    self.assertNotEqual(rows[4]['tokens'][2], rows[2]['tokens'][2])
    table = tables.tables(rows)[setting]
    self.assertEqual(table.share.shape, (2, 2, 3, 4))
    self.assertLen(tables.error_of_switches(table), 1)


if __name__ == '__main__':
  absltest.main()
