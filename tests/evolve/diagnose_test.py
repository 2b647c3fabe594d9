"""Tests for the diagnosis of a version."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections
import numpy as np

from evojax import domains
from evojax.diagnosis import rules
from evojax.evidence import schema
from evojax.evidence import store
from evojax.evidence import views
from evojax.evolve import diagnose
from evojax.evolve import opening
from evojax.evolve import recorded as recorded_lib
from evojax.harness import run
from evojax.harness import spec
from evojax.ledger import records
from evojax.ledger import rows as rows_lib
from tests.evidence import store_test
from tests.harness import recorded
from tests.ledger import samples

COLUMNS = schema.declare((schema.with_codes('grade_status', {'ok': 0}),))
# Those of a domain whose agents test their edits.
AGENTS = (
    schema.with_codes('grade_status', {'ok': 0, 'no_answer': 3}),
    schema.Column('tested_after_edit', 'bool', blind=False),
)

GROUPS = """
LAYER = 'signal'
UNIT = 'fraction'
WARN = {'dead_group_ratio': ('>', 0.30), 'spread': ('<', 0.05)}
CRITICAL = {'dead_group_ratio': ('>', 0.50)}


def measure(e):
  rate = e.outcome.mean(1)
  return {
      'dead_group_ratio': float(((rate == 0) | (rate == 1)).mean()),
      'outcome': float(rate.mean()),
      'spread': 0.01,
  }
"""
CRASH = GROUPS.replace('e.outcome', 'e.nonsense')
NOT_FINITE = GROUPS.replace('0.01', 'float("nan")')


def view(outcome):
  """Return evidence with outcomes [P, G]."""
  prompts, group_size = np.shape(outcome)
  group, sample = np.indices((prompts, group_size)).reshape(2, -1)
  rows = {
      'group': group,
      'sample': sample,
      'outcome': np.asarray(outcome, bool).reshape(-1),
      'graded': np.ones(prompts * group_size, bool),
  }
  return views.View(
      rows,
      COLUMNS,
      prompts=prompts,
      group_size=group_size,
      max_tokens=8,
      reader='diagnostic',
  )


# Two of four groups are dead; 5 of 8 completions solved.
HALF_DEAD = [[1, 1], [0, 0], [1, 0], [1, 1]]


def measure(
    sources,
    outcome=HALF_DEAD,
    history=None,
    curve=(),
    reward=(),
    effort=None,
    recent=None,
):
  files = {f'diagnostics/{name}.py': text for name, text in sources.items()}
  functions = run.Functions(spec.Harness({}, files), limit_seconds=5.0)
  return diagnose.measure(
      functions,
      view(outcome),
      history or samples.run(),
      curve,
      reward,
      effort,
      recent,
  )


def by_name(measures):
  found = {m.name: m for m in measures}
  assert len(found) == len(measures), 'a name twice'
  return found


def verdict(trial, status, effect=None, low=None, high=None, version=''):
  return samples.record(
      records.Verify,
      trial=trial,
      version=version,
      status=status,
      effect=effect,
      low=low,
      high=high,
  )


def designed(trial, intervention_class):
  delta = samples.record(records.Delta, intervention_class=intervention_class)
  return samples.record(records.Design, trial=trial, delta=delta)


class DiagnosticsTest(absltest.TestCase):

  def test_values_and_levels(self):
    found = by_name(measure({'groups': GROUPS}))
    dead = found['dead_group_ratio']  # 3 of 4 groups: critical above 1/2.
    self.assertEqual((dead.value, dead.level), (0.75, 'critical'))
    self.assertEqual((dead.warn, dead.critical), (('>', 0.3), ('>', 0.5)))
    self.assertEqual((dead.layer, dead.unit), ('signal', 'fraction'))
    self.assertEqual(found['spread'].level, 'warn')  # 0.01 < 0.05.
    self.assertEqual(found['outcome'].level, 'ok')  # No threshold.

  def test_alerts_say_what_they_call_for(self):
    calling = GROUPS.replace('UNIT', "CALLS_FOR = ('reward',)\nUNIT")
    for source, classes in ((GROUPS, ()), (calling, ('reward',))):
      measures = measure({'groups': source})
      dead = by_name(measures)['dead_group_ratio']
      self.assertEqual(dead.calls_for, classes)

  def test_a_threshold_itself_is_no_alert(self):
    self.assertEqual(
        by_name(measure({'groups': GROUPS}, [[1, 1], [1, 0]]))[
            'dead_group_ratio'
        ].level,
        'warn',  # 1/2 is not > 1/2, but > 0.3.
    )

  def test_a_failed_diagnostic_is_a_status_and_no_number(self):
    for source, status in ((CRASH, 'crash'), (NOT_FINITE, 'non_finite')):
      with self.subTest(status):
        measures = measure({'broken': source, 'groups': GROUPS})
        failed = by_name(measures)['broken']
        self.assertEqual((failed.level, failed.status), ('failed', status))
        self.assertIsNone(failed.value)
        self.assertNotIn('broken', diagnose.alerts(measures))
        # The other statistic is not affected.
        self.assertEqual(by_name(measures)['dead_group_ratio'].value, 0.75)

  def test_a_diagnostic_takes_no_name_of_another(self):
    falling = np.linspace(0.6, 0.2, 20).tolist()
    lies = {
        'x': 'outcome_falling',  # The name of a rule.
        'a': 'outcome_rise',  # A rule reads this name.
        'b': 'outcome',  # A shipped diagnostic measures this name.
    }
    seed = spec.read(domains.load('math').__path__[0] + '/seed_harness')
    harness = seed
    for name, lie in lies.items():
      harness = harness.with_file(
          f'diagnostics/{name}.py',
          "LAYER = 'score'\nUNIT = ''\n\n\ndef measure(e):\n"
          f'  return {{{lie!r}: 0.0}}\n',
      )
    evidence = recorded.view(prompts=4, group_size=6)
    honest = diagnose.measure(
        run.Functions(seed), evidence, samples.run(), falling
    )
    found = diagnose.measure(
        run.Functions(harness), evidence, samples.run(), falling
    )
    failed = [m for m in found if m.level == 'failed']
    self.assertEqual([m.name for m in failed], ['a', 'b', 'x'])
    self.assertEqual({m.status for m in failed}, {'name_taken'})
    self.assertEqual([m for m in found if m not in failed], honest)
    self.assertIn('outcome_falling', diagnose.alerts(found))

  def test_no_rule_speaks_without_its_measures(self):
    # The failed diagnostic has a name that the rules read.
    found = by_name(measure({'outcome': CRASH}, curve=[0.3] * 10))
    self.assertEqual(found['outcome'].level, 'failed')
    self.assertNotIn('too_easy', found)
    self.assertNotIn('slow_learning', found)

  def test_json_round_trip(self):
    for found in measure({'groups': GROUPS, 'broken': CRASH}):
      stored = samples.record(records.Diagnose, measures=(found,))
      text = json.dumps(rows_lib.to_json(stored), allow_nan=False)
      again = rows_lib.from_json(records.Diagnose, json.loads(text))
      self.assertEqual(again.measures, (found,))


class LearningCurveTest(parameterized.TestCase):

  # Noise with a standard deviation of .05, the error of 12 x 8 rollouts.
  NOISE = np.random.default_rng(0).normal(0, 0.05, 30)

  @parameterized.named_parameters(
      ('plateau', 0.4 + NOISE, 0.5, True),
      # 1 point in 30 updates is within the error.
      ('hardly', np.linspace(0.4, 0.41, 30) + NOISE, 0.5, True),
      # The rise is beyond doubt, although 3/4 of what was unsolved is left.
      ('rising', np.linspace(0.3, 0.47, 30) + NOISE, 0.5, False),
      # It falls, which is not slow.
      ('falling', np.linspace(0.6, 0.4, 30) + NOISE, 0.5, False),
      # Little is left unsolved, so slow learning is not a failure.
      ('at_the_top', 0.95 + NOISE / 10, 0.95, False),
  )
  def test_slow_learning(self, curve, solved, fires):
    count = round(solved * 20)
    outcome = [[1] * count + [0] * (20 - count)]
    measures = measure({'groups': GROUPS}, outcome, curve=list(curve))
    self.assertEqual('slow_learning' in diagnose.alerts(measures), fires)

  def test_slow_learning_is_judged_by_all_recent_updates(self):
    # 14 points in two rounds; the 7 of the last one are within its error.
    curve = np.linspace(0.35, 0.49, 60) + 2 * np.tile(self.NOISE, 2)
    alone = measure({'g': GROUPS}, curve=list(curve[30:]))
    self.assertIn('slow_learning', diagnose.alerts(alone))
    both = measure({'g': GROUPS}, curve=list(curve[30:]), recent=list(curve))
    self.assertNotIn('slow_learning', diagnose.alerts(both))
    named = lambda found: by_name(found)['outcome_rise'].value
    self.assertEqual(named(both), named(alone))

  def test_falling_needs_more_than_noise(self):
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.05, 30)
    flat = measure({'g': GROUPS}, curve=(0.5 + noise).tolist())
    self.assertNotIn('outcome_falling', diagnose.alerts(flat))
    falls = (0.6 - 0.01 * np.arange(30) + noise).tolist()
    self.assertIn(
        'outcome_falling', diagnose.alerts(measure({'g': GROUPS}, curve=falls))
    )


class HistoryTest(absltest.TestCase):

  def test_version_layer(self):
    expect = lambda trial, low, high: samples.record(
        records.Hypothesize,
        trial=trial,
        proposer='rules',
        expected=(low, high),
    )
    history = samples.run(
        expect(0, 0.0, 0.1),
        designed(0, 'optimizer'),
        verdict(0, 'keep', 0.02, 0.01, 0.03),
        expect(1, 0.0, 0.02),
        designed(1, 'reward'),
        verdict(1, 'discard', -0.03, -0.05, -0.01),
        expect(2, 0.0, 0.04),
        designed(2, 'reward'),
        verdict(2, 'crash'),
        expect(3, 0.0, 0.04),  # Not judged yet.
        designed(3, 'loss'),
    )
    found = by_name(diagnose.version_measures(history))
    self.assertEqual(found['failures_in_row'].value, 2.0)
    self.assertEqual(found['failures_in_row'].level, 'ok')
    # ((.02 - .05) + (-.03 - .01)) / 2; the crash has no effect.
    self.assertAlmostEqual(found['calibration'].value, -0.035)
    self.assertEqual(found['sign_agreement'].value, 0.5)
    self.assertEqual(found['tried_reward'].value, 2.0)
    self.assertNotIn('tried_loss', found)

  def test_what_was_not_judged_did_not_fail(self):
    history = samples.run(
        *(verdict(i, 'superseded') for i in range(3)),
        verdict(3, 'machine_busy'),
        verdict(4, 'discard', 0.0, -0.1, 0.1),
    )
    found = by_name(diagnose.version_measures(history))
    self.assertEqual(found['failures_in_row'].value, 1.0)

  def test_three_failures_in_a_row_warn_and_are_never_critical(self):
    history = samples.run(
        *(verdict(i, 'discard', 0.0, -0.1, 0.1) for i in range(9))
    )
    failures = by_name(diagnose.version_measures(history))['failures_in_row']
    self.assertEqual(failures.level, 'warn')
    self.assertIsNone(failures.critical)

  def test_format_bottleneck_is_a_share_of_what_is_unsolved(self):
    # 3 of 8 are unsolved: .2 / .375 = 53 % of these for lack of the format.
    for failures, share, fires in (
        (0.2, 0.2 / 0.375, True),
        (0.1, 0.1 / 0.375, False),
    ):
      source = GROUPS.replace(
          "'spread': 0.01", f"'format_failures': {failures}"
      )
      source = source.replace("'spread'", "'other'")
      measures = measure({'g': source})
      found = by_name(measures)['format_bottleneck']
      self.assertAlmostEqual(found.value, share)
      self.assertEqual(found.name in diagnose.alerts(measures), fires)

  def test_a_number_beyond_its_limit_says_why_it_is_no_alert(self):
    found = by_name(measure({'groups': GROUPS}))
    # 5 of 8 are solved, and 3 of 4 groups are dead.
    held, fires = found['too_hard'], found['too_easy']
    self.assertEqual((held.level, held.beyond), ('ok', 'warn'))
    self.assertEqual(
        held.status, 'It alerts only below 40% solved, and 62.5% is solved.'
    )
    self.assertEqual((fires.level, fires.beyond), ('warn', 'warn'))
    self.assertEqual(fires.status, '')
    # Every rule with a condition has a sentence for when it does not hold.
    for name, rule in rules.RULES.items():
      plain = rule.when is rules.Rule.when
      self.assertEqual(rule.otherwise == '', plain, name)

  def test_a_collapse_lasts_until_it_is_clearly_over(self):
    source = GROUPS.replace("'spread': 0.01", "'mean_logprob': -0.11")
    self.assertIn('mean_logprob', source)
    collapsed = samples.run(
        samples.record(records.Diagnose, alerts=('exploration_collapse',))
    )
    # Only the last diagnosis counts.
    over = samples.run(
        samples.record(records.Diagnose, alerts=('exploration_collapse',)),
        samples.record(records.Diagnose, alerts=()),
    )
    for history, level in (
        (collapsed, 'warn'),
        (over, 'ok'),
        (samples.run(), 'ok'),
    ):
      found = by_name(measure({'groups': source}, history=history))
      self.assertEqual(found['exploration_collapse'].level, level)

  def test_reward_hacking_is_reward_up_and_outcome_flat(self):
    flat, up = [0.5] * 5, [0.5, 0.55, 0.6, 0.65, 0.7]
    found = lambda outcome, reward: by_name(
        measure({'g': GROUPS}, curve=outcome, reward=reward)
    )
    hacked = found(flat, up)['reward_hacking']
    self.assertEqual((hacked.level, hacked.beyond), ('warn', 'warn'))
    self.assertAlmostEqual(hacked.value, 0.2)  # 0.7 - 0.5.
    # The outcome rose as well.
    self.assertEqual(found(up, up)['reward_hacking'].level, 'ok')
    # The mean rose, but this may be noise.
    noisy = [0.5, 0.9, 0.3, 1.0, 0.6]
    self.assertGreater(found(flat, noisy)['reward_hacking'].value, 0.05)
    self.assertEqual(found(flat, noisy)['reward_hacking'].level, 'ok')
    # The reward was not recorded.
    self.assertNotIn('reward_hacking', found(flat, ()))


class RecordedTest(absltest.TestCase):
  """What is read of an arm's evidence besides its views."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
        self.enterContext(tempfile.TemporaryDirectory())
    )
    self.columns = schema.declare(AGENTS, ('outcome',))
    # Tests fall from 3 to 0 of 4 episodes, turns from 6 to 3; the fourth
    # episode of each step was not graded.
    for step in range(4):
      rows = store_test.make_rows(prompts=1, group_size=5)
      rows['step'] = np.full(5, step)
      rows['graded'] = np.array([True] * 4 + [False])
      rows['family'] = ['a', 'a', 'b', 'b', 'b']
      rows['outcome'] = np.array([True, step > 1, False, False, True])
      rows['tested_after_edit'] = np.array([i < 3 - step for i in range(5)])
      rows['n_turns'] = np.array([6 - step] * 4 + [99], np.int32)
      store.write_step(self.folder, 'train', step, rows, self.columns)

  def test_arms_in_a_row_are_read_as_one(self):
    later = shutil.copytree(self.folder, self.folder / 'later')
    rows = recorded_lib.load_rows(
        [(self.folder, 2), (self.folder, 3), (later, 0), (later, 1)]
    )
    np.testing.assert_array_equal(rows['group'], np.repeat(range(4), 5))
    np.testing.assert_array_equal(rows['step'], np.repeat([2, 3, 0, 1], 5))
    self.assertLen(recorded_lib.rewards([self.folder, later]), 8)
    # 3, 2, 1, 0 of 4 episodes, twice: the sum of products with -3.5, ..., 3.5
    # is -2.5, that of their squares 42.
    effort = recorded_lib.effort([self.folder, later], self.columns)
    self.assertAlmostEqual(effort['tested_rise'], 7 * -2.5 / 42)

  def test_how_much_of_its_arms_a_diagnosis_reads(self):
    run = mock.Mock(spec=opening.Run, path=self.folder.parent)
    run.config = ml_collections.ConfigDict({'grpo': {'prompts': 0}})
    run.harnesses = run.setup = mock.Mock()
    later = shutil.copytree(self.folder, self.folder / 'later')
    folders = [self.folder.name, f'{self.folder.name}/later']
    seen = mock.Mock(spec=views.View)
    # A third of eight steps, as far as they have at most 120 groups in all, and
    # at least a third of the last arm's four.
    for prompts, expected in ((12, [2, 3]), (60, [2, 3]), (120, [3])):
      run.config.grpo.prompts = prompts
      with (
          mock.patch.object(recorded_lib, 'load_rows') as asked,
          mock.patch.object(recorded_lib, 'view_of', return_value=seen),
          mock.patch.object(recorded_lib.collect, 'columns'),
      ):
        recorded_lib.view(run, folders, 'h')
      asked.assert_called_once_with([(later, step) for step in expected])

  def test_solved_by_family(self):
    self.assertEqual(
        recorded_lib.solved_by_family(self.folder), {'a': 6 / 8, 'b': 0.0}
    )

  def test_effort_makes_laziness(self):
    effort = recorded_lib.effort([self.folder], self.columns)
    self.assertAlmostEqual(effort['tested_rise'], -0.75)
    self.assertAlmostEqual(effort['turns_rise'], -3.0)
    lazy = lambda curve: by_name(
        measure({'g': GROUPS}, curve=curve, effort=effort)
    )['laziness']
    self.assertEqual(lazy([0.3] * 4).level, 'critical')
    self.assertEqual(lazy([0.3, 0.4, 0.5, 0.6]).level, 'ok')

  def test_a_blind_run_and_other_domains_see_no_effort(self):
    blind = schema.declare(AGENTS, (), blind=True)
    for columns in (blind, COLUMNS):
      self.assertEqual(recorded_lib.effort([self.folder], columns), {})
    self.assertNotIn('laziness', by_name(measure({'g': GROUPS}, curve=[0.3])))


class AlertsTest(absltest.TestCase):

  def test_worst_first(self):
    base = records.Measure('a', 'score', '', 1.0, None, None, 'warn')
    measures = [
        dataclasses.replace(base, name='z', layer='behaviour'),
        dataclasses.replace(base, name='b', layer='signal'),
        dataclasses.replace(base, name='c', layer='signal', level='critical'),
        dataclasses.replace(base, name='d', level='ok'),
        dataclasses.replace(base, name='e', level='failed', value=None),
        base,
    ]
    self.assertEqual(diagnose.alerts(measures), ['c', 'a', 'b', 'z'])


class ImportTest(absltest.TestCase):

  def test_decisions_load_no_jax(self):
    code = (
        'import sys, evojax.evolve.diagnose, evojax.evolve.skills\n'
        'from evojax.evolve.propose import human, random_changes, rules\n'
        "sys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, '-c', code], check=True)


if __name__ == '__main__':
  absltest.main()
