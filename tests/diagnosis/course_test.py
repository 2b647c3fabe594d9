"""Tests for checks of courses whose cause a straight line does not show."""

import dataclasses
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd

from evojax.diagnosis import examine
from evojax.diagnosis import readers
from evojax.diagnosis.checks import behaviour
from evojax.diagnosis.checks import falls
from evojax.diagnosis.checks import learning
from evojax.diagnosis.checks import optimiser
from evojax.diagnosis.checks import reward
from tests.diagnosis import faults_made
from tests.diagnosis import made


def _penalised(coefficient: float, by_token: bool):
  """Return a run with a KL penalty whose coefficient is not known.

  Args:
    coefficient: Its coefficient.
    by_token: Whether the policy loss is the mean over tokens, not rollouts.
  """
  rows = made.rollouts(rise=0)
  kl = np.random.default_rng(0).uniform(0, 0.01 / coefficient, 40)
  run = made.run(rows, kl=kl)
  rows, settings = run.rollouts, dict(run.settings)
  # Each completion has one more token than is known, which ends it.
  weights = rows['length'] + 1 if by_token else np.ones(len(rows))
  paid = (rows['advantage'] * weights).groupby(rows['step']).sum()
  loss = -paid / (rows['length'] + 1).groupby(rows['step']).sum()
  run.steps['loss'] = loss.to_numpy() + coefficient * kl
  del settings['kl_coef']
  return dataclasses.replace(run, settings=settings)


class CourseTest(parameterized.TestCase):

  @parameterized.parameters(
      (5.0, True, 'critical'),
      (5.0, False, 'critical'),
      (0.5, True, 'warning'),
      (0.15, True, None),
  )
  def test_kl_coefficient_by_the_loss(self, coefficient, by_token, severity):
    run = _penalised(coefficient, by_token)
    self.assertAlmostEqual(
        optimiser._slope_of_loss(run), coefficient, delta=0.05 * coefficient
    )
    found = optimiser.kl_strong(run)
    self.assertEqual(found and found.severity, severity)

  def test_a_loss_that_the_kl_does_not_explain(self):
    run = _penalised(5.0, True)
    run.steps['loss'] = np.random.default_rng(1).normal(0, 0.01, 40)
    self.assertIsNone(optimiser._slope_of_loss(run))
    # Without advantages, the loss of the tokens is not known.
    run = _penalised(0.5, True)
    del run.rollouts['advantage']
    self.assertIsNone(optimiser._slope_of_loss(run))

  @parameterized.parameters(
      # The share that is solved in the first of 40 steps of 64 rollouts, and
      # after it.
      (0.09, 0.0, True),
      (0.12, 0.003, True),
      (0.5, 0.0, True),
      (0.5, 0.2, True),
      (0.09, 0.09, False),
      (0.03, 0.02, False),
      (1 / 64, 0.0, False),  # One rollout, which may be chance.
      (0.0, 0.0, False),
  )
  def test_a_policy_that_one_update_ruins(self, start, after, wanted):
    rows = made.rollouts(rise=0)
    rng = np.random.default_rng(0)
    share = np.where(rows['step'] == 0, start, after)
    place = rng.permuted(np.tile(np.arange(64), (40, 1)), axis=1).ravel()
    solved = np.where(
        rows['step'] == 0, place < 64 * start, rng.random(len(rows)) < share
    )
    rows['outcome'] = rows['part_correct'] = solved.astype(float)
    # The texts are those of other outcomes.
    run = made.run(
        rows,
        reward=lambda e: e['part_correct'],
        drop=('reference', 'part_format'),
    )
    names = {f.check for f in examine.examine(run).findings}
    self.assertEqual('outcome_falling' in names, wanted, names)
    hard = not wanted and start < 0.05
    self.assertEqual('too_hard' in names, hard, names)

  @parameterized.parameters(
      # Shares solved in the first of 8 steps, and in each later one.
      ([1.0] * 11 + [7 / 8], [1.0] * 9 + [0.0] * 3),  # Easy problems by chance.
      ([1.0], [0.5]),  # With one group, nobody knows how much groups vary.
  )
  def test_a_first_step_that_does_well_by_chance(self, first, later):
    groups = len(first)
    rows = made.rollouts(steps=8, groups=groups, size=8)
    shares = np.array([first] + 7 * [later]).repeat(8, 1).reshape(-1)
    place = np.tile(np.arange(8), 8 * groups)
    rows['outcome'] = rows['part_correct'] = (place < 8 * shares).astype(float)
    run = made.run(rows, drop=('reference',))
    self.assertIsNone(learning._fell_at_once(run))

  @parameterized.parameters((0, False), (7, True))
  def test_easy_problems_in_the_first_step_of_swe(self, lost, wanted):
    # Solved episodes of each group of eight in a sound run. Its first problems
    # were easy: another policy solved 59 % of them, and 23 % of the later ones.
    # If nothing more is solved after the first step, it is a fall.
    solved = np.array([
        [3, 1, 5, 7, 5, 4, 3, 5, 4, 0, 0, 6],
        [0, 1, 0, 0, 0, 0, 0, 1, 0, 2, 1, 2],
        [3, 2, 2, 0, 1, 0, 5, 4, 0, 1, 0, 0],
        [0, 0, 0, 5, 3, 0, 3, 2, 0, 0, 1, 4],
        [4, 2, 0, 6, 2, 0, 3, 0, 0, 2, 0, 5],
        [0, 0, 0, 0, 3, 2, 0, 5, 0, 0, 1, 5],
        [0, 0, 5, 0, 6, 0, 1, 0, 0, 0, 0, 0],
        [1, 6, 0, 0, 4, 0, 0, 0, 0, 1, 0, 0],
    ])
    solved[8 - lost :] = 0
    rows = made.rollouts(steps=8, groups=12)
    outcome = np.arange(8) < solved[..., None]
    rows['outcome'] = rows['part_correct'] = outcome.ravel().astype(float)
    run = made.run(rows)
    self.assertEqual(learning.outcome_falling(run) is not None, wanted)

  def test_groups_with_a_solution_by_hand(self):
    # Two of two groups in the first step, none of six later: 2 of 8 are solved,
    # and the chance of two in two is 1 / 16.
    rows = made.rollouts(steps=4, groups=2, size=2)
    rows['group'] += 2 * rows['step']
    rows['outcome'] = (rows['step'] == 0) * (1.0 - rows.index % 2)
    p = learning._more_at_first(rows, rows['step'] == 0)
    self.assertAlmostEqual(p, 1 / 16)

  @parameterized.parameters(
      # Steps in which the reward nears its maximum, and by how much the
      # log-odds of a solution rise.
      (3.0, -0.5, True),
      (4.0, -0.5, True),
      (4.0, 0.5, False),
      (np.inf, -0.5, False),
  )
  def test_a_reward_that_is_soon_at_its_maximum(self, time, rise, wanted):
    rows = made.rollouts(rise=rise, groups=32)
    known = 1 - 0.8 * np.exp(-rows['step'] / time)
    rng = np.random.default_rng(0)
    rows['part_format'] = (rng.random(len(rows)) < known).astype(float)
    run = made.run(rows, reward=lambda e: e['part_correct'] + e['part_format'])
    found = reward.reward_hacking(run)
    self.assertEqual(found is not None, wanted)
    if found:
      self.assertLessEqual(found.since, 8)
      rise, solved = found.numbers
      self.assertGreater(rise.low, 0)
      self.assertLess(solved.low, 0)

  @parameterized.parameters(
      (0.0, 'is flat', 'warning'),
      (-0.5, 'falls', 'warning'),
      (0.5, None, None),
  )
  def test_means_alone_show_a_reward_that_rises_apart(self, rise, said, level):
    rng = np.random.default_rng(0)
    step = np.arange(100)
    solved = 0.4 + rise * step / 100 + rng.normal(0, 0.03, 100)
    form_ = 0.2 + 0.7 * step / 100
    log = pd.DataFrame(
        {
            '_step': step,
            'train/reward': solved + form_,
            'train/rewards/accuracy_reward/mean': solved.clip(0, 1),
            'train/rewards/format_reward/mean': form_,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
      log.to_csv(pathlib.Path(folder, 'history.csv'))
      run = readers.read(pathlib.Path(folder))
    found = {f.check: f for f in examine.examine(run).findings}
    # Their advice is that updates change no weights, or change too much.
    self.assertTrue({'not_learning', 'form_wins'}.isdisjoint(found))
    hacked = found.get('reward_hacking')
    self.assertEqual(hacked and hacked.severity, level)
    if said:
      self.assertIn(said, hacked.text)
      self.assertIn('format_reward', hacked.change)

  def test_a_reward_that_rises_where_hardly_more_can_be_solved(self):
    rows = made.rollouts(start=5.0, rise=0)
    known = 0.5 + rows['step'] / 100
    rng = np.random.default_rng(0)
    rows['part_format'] = (rng.random(len(rows)) < known).astype(float)
    run = made.run(rows, reward=lambda e: e['part_correct'] + e['part_format'])
    self.assertLess(run.rollouts.groupby('step')['outcome'].mean().min(), 1)
    self.assertEqual(reward.reward_hacking(run).severity, 'note')

  @parameterized.parameters(
      (lambda t: 0.2 + 0.01 * t.clip(0, 60) - 0.012 * (t - 60).clip(0)),
      (lambda t: np.where(t < 90, 0.1 + 0.6 * np.minimum(t, 40) / 40, 0.2)),
  )
  def test_a_fall_after_a_rise(self, course):
    rng = np.random.default_rng(0)
    values = course(np.arange(100)) + rng.normal(0, 0.05, 100)
    found = falls.from_peak(values)
    self.assertGreater(found.before - found.after, 0.3)
    self.assertBetween(found.index, 60, 95)
    run = made.run(made.rollouts(steps=100, rise=0))
    solved = rng.random(len(run.rollouts)) < course(
        run.rollouts['step'].to_numpy()
    )
    run.rollouts['outcome'] = solved.astype(float)
    self.assertIsNotNone(learning.outcome_falling(run))

  def test_no_fall_after_a_rise_that_lasts(self):
    t = np.arange(100)
    wrong = 0
    for seed in range(40):
      noise = np.random.default_rng(seed).normal(0, 0.08, 100)
      course = 0.3 + 0.4 * np.minimum(t / 40, 1) + noise
      wrong += falls.from_peak(course) is not None
    self.assertEqual(wrong, 0)

  def test_no_fall_of_a_reward_that_is_rarely_paid(self):
    wrong = 0
    for seed in range(60):
      rng = np.random.default_rng(seed)
      course = rng.binomial(64, 0.06 * rng.lognormal(0, 0.8, 240).clip(0, 8))
      wrong += falls.from_peak(course / 64) is not None
    self.assertLessEqual(wrong, 2)

  @parameterized.parameters(
      ('inverted', 'inverted_sign', behaviour.entropy_collapse),
      ('open_grader', 'grader_open', optimiser.gradient_zero),
  )
  def test_certainty_of_what_is_paid_is_no_fault_itself(
      self, name, cause, symptom
  ):
    run = faults_made.FAULTS[name][0]()
    step = np.arange(40)
    run.steps['entropy'] = 0.5 * np.exp(-step / 4)
    run.steps['grad_norm'] = np.where(step < 10, 1.0, 0.0)
    late = run.rollouts['step'] > 20
    run.rollouts.loc[late, 'outcome'] = float(name == 'open_grader')
    self.assertIsNotNone(symptom(run))
    names = {f.check for f in examine.examine(run).findings}
    self.assertIn(cause, names)
    self.assertNotIn(symptom.__name__, names)


if __name__ == '__main__':
  absltest.main()
