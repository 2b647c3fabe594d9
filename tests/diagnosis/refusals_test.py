"""Tests for checks of graders that refuse what is right."""

from absl.testing import absltest
from absl.testing import parameterized

from evojax.diagnosis import examine
from evojax.diagnosis.checks import refusals
from tests.diagnosis import faults_made
from tests.diagnosis import parts_made


class KeysTest(parameterized.TestCase):

  @parameterized.parameters(
      (0.0, False), (0.18, False), (0.35, True), (0.45, True), (0.8, False)
  )
  def test_wrong_keys(self, share, wanted):
    found = refusals.key_disagrees(faults_made.wrong_key(share))
    self.assertEqual(found is not None, wanted)
    if found:
      self.assertAlmostEqual(found.numbers[0].value, share, delta=0.08)

  def test_answers_that_are_not_read_say_nothing_about_the_key(self):
    run = faults_made.wrong_key(0.3)
    run.rollouts['format_ok'] = run.rollouts['outcome']
    self.assertIsNone(refusals.key_disagrees(run))

  def test_answers_of_a_part_of_a_group_say_nothing_about_the_key(self):
    # In every group two of eight rollouts give another answer.
    run = faults_made.wrong_key(0.3)
    rows = run.rollouts
    rows.loc[rows.index % 8 < 2, 'completion'] = 'so 0: <7>'
    self.assertIsNone(refusals.key_disagrees(run))


class FormsTest(parameterized.TestCase):

  def test_answers_of_a_form_that_is_refused(self):
    found = refusals.form_refused(faults_made.signed(15))
    self.assertIn('below 0', found.text)
    counted = faults_made.signed(15, refused=False)
    self.assertIsNone(refusals.form_refused(counted))
    # The policy may be wrong about so few.
    self.assertIsNone(refusals.form_refused(faults_made.signed(4)))
    # Nothing is known where groups do not agree.
    alone = faults_made.signed(15, agreed=False)
    self.assertIsNone(refusals.form_refused(alone))

  @parameterized.parameters(
      dict(share=0.0),
      dict(share=0.3, wanted=False),
      dict(share=0.0, seen=False, wanted=False),
      # These print the example that is shown.
      dict(share=0.0, text='print(7)', wanted=False),
  )
  def test_families_whose_programs_never_pass(self, wanted=True, **made_of):
    found = refusals.family_refused(faults_made.families(**made_of))
    self.assertEqual(found is not None, wanted)
    if found:
      self.assertIn('programs for kind 3 pass', found.text)


class PlainTest(parameterized.TestCase):

  @parameterized.parameters(
      ({}, True),
      (dict(numbered=False), True),
      (dict(line='{}'), True),
      (dict(share=0.02), False),
      (dict(paid=0.1), False),  # What counts is learned.
      # The reference is among others, or is a part of a longer one.
      (dict(line=f'It is one of {"these, " * 20} or {{}}'), False),
      (dict(line='It is: un{}'), False),
      (dict(asked=' Is it {}, or not?'), False),
      (dict(key='{}'), False),  # `right_refused` compares numbers.
      (dict(key='no {}'), False),
  )
  def test_last_lines_that_are_the_reference(self, changed, wanted):
    run = parts_made.unmarked(**changed)
    found = refusals.plain_refused(run)
    self.assertEqual(found is not None, wanted)
    if found:
      self.assertAlmostEqual(found.numbers[0].value, 0.4, delta=0.05)
      shown = run.rollouts.loc[list(found.rows)]
      self.assertTrue(shown['completion'].str.contains(r'\d').all())

  def test_it_explains_groups_without_a_signal(self):
    found = examine.examine(parts_made.unmarked()).findings
    names = [f.check for f in found]
    self.assertIn('plain_refused', names)
    self.assertNoCommonElements(names, ['too_hard', 'dead_groups'])


class TestsTest(parameterized.TestCase):

  @parameterized.parameters(
      dict(fails=0.0, wanted=False),
      dict(fails=0.3),
      # These print something else than what is shown.
      dict(fails=0.3, answer='print(1)', wanted=False),
      dict(fails=0.3, answer='print(7 * int(input()))', wanted=False),
      # With two examples, a program that prints one of them fails.
      dict(fails=0.3, examples=2, wanted=False),
  )
  def test_programs_that_print_what_is_shown(self, wanted=True, **made_of):
    found = refusals.shown_refused(faults_made.shown_test(**made_of))
    self.assertEqual(found is not None, wanted)
    if found:
      self.assertEqual(found.severity, 'critical')
      self.assertAlmostEqual(found.numbers[0].value, 0.3, delta=0.05)

  @parameterized.parameters(
      (0.05, None), (0.25, 'warning'), (0.6, 'critical')
  )
  def test_programs_that_run_out_of_time(self, share, wanted):
    found = refusals.tests_time_out(faults_made.late_programs(share))
    self.assertEqual(getattr(found, 'severity', None), wanted)


if __name__ == '__main__':
  absltest.main()
