"""Two processes play episodes: each has half of the environments."""

import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax import records
from tests import pairs
from tests.multi_device import episodes_worker

WORKER = pathlib.Path(episodes_worker.__file__)


class EpisodesTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
    cls.results = pairs.compare(WORKER, root)

  @parameterized.parameters(*episodes_worker.CASES)
  def test_episodes_and_grades_are_those_of_one_process(self, case):
    expected, _ = self.results['one'][case]
    # Groups 0, 2 and 4 of 5, and 1 and 3. Again: two of group 1, one of 4.
    shares = {'one': (18, 15), 'first': (10, 9), 'second': (8, 6)}
    for name, (environments, grades) in shares.items():
      found, (moves, graded) = self.results[name][case]
      self.assertEqual(found, expected, name)
      opened = sum(move > 0 for _, move in moves)
      self.assertEqual(opened, environments * (case != 'plain'), name)
      self.assertEqual(graded, grades, name)

  @parameterized.parameters((('one',), 3), (('first', 'second'), 3))
  def test_at_most_so_many_environments_are_open_in_all(self, names, most):
    moves = []
    for name in names:
      moves += self.results[name]['few are open'][1][0]
    opened = np.cumsum([move for _, move in sorted(moves)])
    self.assertEqual((opened.max(), opened[-1]), (most, 0))

  def test_what_happens_to_an_environment_reaches_all(self):
    for name, result in self.results.items():
      (seen, grades), _ = result['fails']
      errors = [error for *_, error, _ in seen]
      self.assertIn('RuntimeError: the world has ended', errors, name)
      self.assertIn('', errors, name)
      self.assertIn(records.INFRA_ERROR, [g.status for g in grades], name)
      (seen, _), _ = result['late']
      self.assertEqual({end for _, end, *_ in seen}, {'seconds'}, name)

  def test_an_error_of_one_is_raised_in_all(self):
    for name, result in self.results.items():
      self.assertStartsWith(result['mute'], 'TypeError: ', name)
      # One process alone need not send it.
      error = '' if name == 'one' else (
          "ValueError: domain 'echo': what `close` of an environment gives"
          ' must be picklable if the run has several processes: cannot pickle'
          " '_thread.lock' object"
      )
      self.assertEqual(result['open'], error, name)


if __name__ == '__main__':
  absltest.main()
