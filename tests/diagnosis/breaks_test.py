"""Checks of what breaks in mid-run, and of what only looks like it."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.diagnosis import examine
from evojax.diagnosis import form
from evojax.diagnosis.checks import breaks
from evojax.diagnosis.checks import graders
from evojax.diagnosis.checks import refusals
from evojax.stats import trends
from tests.diagnosis import breaks_made
from tests.diagnosis import made
from tests.diagnosis import parts_made

_AT = breaks_made.AT


class GraderTest(parameterized.TestCase):

  @parameterized.parameters(1.0, 0.5)
  def test_one_that_fails_from_a_step_on(self, share):
    run = breaks_made.refused(share)
    found = refusals.right_refused(run)
    self.assertEqual(found.since, _AT)
    shown = run.rollouts.loc[list(found.rows)]
    self.assertTrue((shown['outcome'] == 0).all())
    self.assertTrue((shown['step'] >= _AT).all())
    checks = [f.check for f in examine.examine(run).findings]
    self.assertNotIn('outcome_falling', checks)  # It only says the same.

  def test_one_that_refuses_answers_without_a_mark(self):
    run = breaks_made.refused(1.0, marked=False)
    self.assertIsNone(refusals.right_refused(run))

  def test_a_sound_one(self):
    self.assertIsNone(refusals.right_refused(breaks_made.refused(0.0)))

  def test_one_that_opens_late_is_judged_by_what_it_does_from_then_on(self):
    rows = made.rollouts()
    late = rows['step'] >= 34
    run = made.run(rows.assign(outcome=rows['outcome'].where(~late, 1.0)))
    found = graders.grader_open(run)
    self.assertEqual((found.since, found.numbers[0].value), (34, 1.0))


class KeysTest(absltest.TestCase):

  def test_other_keys_from_a_step_on(self):
    found = breaks.keys_change(breaks_made.other_keys(1.0))
    self.assertEqual((found.since, found.severity), (_AT, 'critical'))

  def test_a_few_corrected_keys_are_no_break(self):
    self.assertIsNone(breaks.keys_change(breaks_made.other_keys(0.25)))

  def test_a_prompt_that_stands_for_several_problems(self):
    rows = made.rollouts(problems=60).assign(prompt='What is in the picture?')
    self.assertIsNone(breaks.keys_change(made.run(rows)))

  def test_problems_that_come_once_cannot_tell(self):
    with self.assertRaisesRegex(form.NotLogged, 'came before'):
      breaks.keys_change(made.run(made.rollouts(problems=10**6)))


class PartTest(parameterized.TestCase):

  def test_a_judge_that_fails(self):
    make, _ = breaks_made.FAULTS['judge_fails']
    found = breaks.part_stops(make())
    self.assertEqual(found.since, _AT)
    self.assertIn('judge is 0 for all', found.text)

  @parameterized.named_parameters(
      ('is_learned', lambda step, u: np.where(step < _AT, u < 0.5, 1.0)),
      ('is_a_fine_no_more', lambda step, u: -np.where(step < _AT, u < 0.5, 0)),
      (
          'is_unlearned',
          lambda step, u: (u < np.maximum(1 - step / _AT, 0)).astype(float),
      ),
      # A fifth of the steps have none of 64 by chance.
      ('is_rarely_given', lambda step, u: (u < 0.025).astype(float)),
      ('goes_on', lambda step, u: u),
      ('never_varies', lambda step, u: 0.0 * u),
      ('stops_in_the_last_steps', lambda step, u: np.where(step < 38, u, 0)),
  )
  def test_nothing_is_wrong_with_a_part_that(self, function):
    self.assertIsNone(breaks.part_stops(breaks_made.judged(function)))


class ProblemsTest(parameterized.TestCase):

  def test_fewer_from_a_step_on(self):
    make, _ = breaks_made.FAULTS['fewer_problems']
    found = breaks.fewer_problems(make())
    self.assertEqual(found.since, _AT)
    self.assertIn('2 different problems instead of 8', found.text)

  @parameterized.named_parameters(
      ('more', lambda step: 2 if step < _AT else 8),
      ('equal', lambda step: 8),
      ('ever_fewer', lambda step: max(8 - step // 5, 1)),
      ('few_in_one_step', lambda step: 1 if step == _AT else 8),
  )
  def test_quiet(self, count):
    self.assertIsNone(breaks.fewer_problems(breaks_made.drawn(count)))


class SamplesTest(absltest.TestCase):

  def test_one_text_in_spite_of_the_entropy(self):
    found = breaks.same_samples(breaks_made.alike(0.5))
    self.assertEqual((found.since, found.severity), (_AT, 'critical'))

  def test_a_certain_policy_writes_one_text(self):
    self.assertIsNone(breaks.same_samples(breaks_made.alike(0.02)))

  def test_different_texts(self):
    self.assertIsNone(breaks.same_samples(breaks_made.alike(0.5, start=40)))


class DepartureTest(parameterized.TestCase):

  @parameterized.parameters(8, 20, 30)
  def test_the_index_from_which_it_rises(self, at):
    y = np.maximum(np.arange(40) - at, 0) * 0.5
    y += np.random.default_rng(0).normal(0, 0.1, 40)
    self.assertAlmostEqual(trends.departure(y), at, delta=2)

  def test_a_flat_series_departs_at_its_end(self):
    self.assertEqual(trends.departure(np.zeros(20)), 20)


class EntropyTest(parameterized.TestCase):

  @parameterized.parameters(
      (np.where(np.arange(40) < _AT, 0.42, 0.33), 'warning'),
      (np.where(np.arange(40) < _AT, 0.33, 0.42), 'warning'),
      (np.where(np.arange(40) < _AT, 0.45, 0.05), 'warning'),
      (np.where(np.arange(40) < _AT, 0.42, 0.40), None),  # Noise of a step.
      (np.linspace(0.6, 0.2, 40), None),
      (np.where(np.arange(40) == _AT, 0.2, 0.42), None),  # It comes back.
      (0.4 * np.exp(np.maximum(np.arange(40) - 25, 0) / 4), None),
  )
  def test_a_jump(self, course, severity):
    near = np.random.default_rng(0).uniform(0.98, 1.02, 40)
    run = made.run(made.rollouts(), entropy=course * near)
    found = breaks.entropy_jumps(run)
    if severity is None:
      self.assertIsNone(found)
    else:
      self.assertEqual((found.severity, found.since), (severity, _AT))


class ScoreTest(parameterized.TestCase):

  @parameterized.parameters(
      (np.repeat([0.3, 0.45, 0.6], [16, 16, 8]), 'warning', 16),
      (np.where(np.arange(40) < 20, 0.3, 0.45), 'note', 20),
      (np.where(np.arange(40) < 20, 0.45, 0.3), None, None),  # A fall.
      (np.linspace(0.3, 0.6, 40), None, None),
      (0.3 + 0.3 / (1 + np.exp(20 - np.arange(40.0))), None, None),  # Learns.
      (np.where(np.arange(40) == 20, 0.6, 0.3), None, None),  # It comes back.
      (np.zeros(40), None, None),
  )
  def test_a_jump(self, course, severity, since):
    near = np.random.default_rng(0).normal(0, 0.01, 40) * course.any()
    found = breaks.score_jumps(parts_made.metrics(outcome=course + near))
    if severity is None:
      self.assertIsNone(found)
    else:
      self.assertEqual((found.severity, found.since), (severity, since))

  def test_swings_hardly_ever_jump_twice(self):
    rng = np.random.default_rng(0)
    twice = 0
    for _ in range(100):
      y = rng.normal(0, 0.03, 120)
      for i in range(1, 120):  # Neighbours correlate by .8.
        y[i] = 0.8 * y[i - 1] + 0.6 * y[i]
      twice += len(breaks._jumps(0.4 + y)) > 1
    self.assertLessEqual(twice, 1)


class CopiesTest(parameterized.TestCase):

  def test_favourite_texts_are_no_copies(self):
    rows = breaks_made.copied(2).rollouts
    # Three of eight rollouts are one text, and five are another.
    first = rows.groupby('group')['completion'].transform('first')
    last = rows.groupby('group')['completion'].transform('last')
    place = np.arange(len(rows)) % 8
    rows['completion'] = first.where(place < 3, last)
    run = made.run(rows, entropy=np.full(40, 0.5))
    self.assertIsNone(breaks.same_samples(run))

  @parameterized.parameters((2, 'each text comes 2 times'), (1, None))
  def test_processes_with_one_seed(self, times, said):
    found = breaks.same_samples(breaks_made.copied(times))
    if said is None:
      self.assertIsNone(found)
    else:
      self.assertIn(said, found.text)
      self.assertIn('seeds', found.change)


if __name__ == '__main__':
  absltest.main()
