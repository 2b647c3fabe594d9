"""Each of two processes grades its share; both get the grades of one."""

import pathlib
import tempfile

from absl.testing import absltest

from tests import pairs

WORKER = pathlib.Path(__file__).with_name('grading_worker.py')


class GradingTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
    cls.results = pairs.compare(WORKER, root)

  def test_grades_of_one_process(self):
    for case, (expected, _) in self.results['one'].items():
      if case != 'raises':
        for name in ('first', 'second'):
          self.assertEqual(self.results[name][case][0], expected, case)

  def test_each_grades_its_share(self):
    """Whole groups: problems 0, 2 and 4, and problems 1 and 3."""
    for case, shares in (('good', (9, 6)), ('one problem', (2, 1))):
      asked = [self.results[name][case][1] for name in ('first', 'second')]
      self.assertEqual(tuple(map(len, asked)), shares)
      whole = self.results['one'][case][1]
      self.assertCountEqual(asked[0] + asked[1], whole)
    problems = {text[0] for _, text in self.results['second']['good'][1]}
    self.assertEqual(problems, {'1', '3'})

  def test_a_signal_to_one_stops_both(self):
    for name, results in self.results.items():
      self.assertEqual(results['stopped'][0], 'Interrupted: ', name)
    # All of its share, although the other still had much to do.
    self.assertLen(self.results['first']['stopped'][1], 9)

  def test_a_signal_in_the_reward_of_one_stops_both(self):
    for result in self.results.values():
      self.assertEqual(result['reward'][0], 7)
      self.assertEqual(result['reward stopped'][0], 'Interrupted')

  def test_a_function_that_fails_in_one_fails_in_both(self):
    failed = 'weight.py: hang: no answer hang False', 0.0
    for name, results in self.results.items():
      self.assertEqual(results['reward holds'][0], ('no error', 1.0), name)
      for case in ('reward fails', 'weight fails'):
        self.assertEqual(results[case][0], failed, name)

  def test_error_of_one_reaches_both(self):
    self.assertEqual(self.results['one']['raises'][0], 'Odd: first second')
    for name in ('first', 'second'):
      self.assertEqual(
          self.results[name]['raises'][0], 'RuntimeError: Odd: first second'
      )
      self.assertRegex(self.results[name]['all fail'][0], '^GradingError: ')
      self.assertIsInstance(self.results[name]['one host fails'][0], list)


if __name__ == '__main__':
  absltest.main()
