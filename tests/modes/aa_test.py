"""--mode=aa: equal arms, their files, and what is said of them."""

import json
import math
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.eval import paired
from evojax.eval import simulation
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.ledger import records
from evojax.modes import aa
from evojax.modes import policies
from evojax.modes import runs
from evojax.runtime import workdir as workdir_lib
from evojax.stats import intervals
from evojax.training import arm as arm_lib
from tests import tiny
from tests.ledger import samples

# A round of two groups of three arms.
SMALL = dict(
    evolve__pairs=3,
    evolve__updates=2,
    evolve__first_updates=1,
)


def _few(test):
  """Simulate little: the numbers that a test needs are not those of a rate."""
  few = dict(ROUNDS=1, RUNS=40, RESAMPLES=4, RESAMPLED_RUNS=10)
  test.enterContext(mock.patch.multiple(aa, **few))


class RunTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.path = pathlib.Path(folder) / 'aa'

  def setUp(self):
    super().setUp()
    _few(self)

  def run_it(self, **overrides):
    config = tiny.evolving(**SMALL | overrides)
    with mock.patch.object(opening.output, 'say') as say:
      found = aa.run(config, str(self.path))
    return found, [call.args[0] for call in say.call_args_list]

  def test_equal_arms_from_start_to_end(self):
    trained = []
    whole = arm_lib._train  # pylint: disable=protected-access

    def train(job, *rest):
      trained.append(job.folder)
      if job.folder == 'arms/aa-004' and trained.count(job.folder) < 2:
        raise KeyboardInterrupt  # As if the process were killed.
      return whole(job, *rest)

    with mock.patch.object(arm_lib, '_train', train):
      with self.assertRaises(KeyboardInterrupt):
        self.run_it()
      self.assertLen(trained, 6)  # v0, and 0 to 4.
      self.assertFalse((self.path / 'aa.json').exists())
      row = runs.read(self.path, self.path.parent)
      self.assertEqual(row['state'], 'stopped after 4 equal arms')

      found, said = self.run_it()
      # Arms that had ended are not trained again.
      expected = [f'arms/aa-{i:03d}' for i in (4, 5)]
      self.assertEqual(trained[6:], expected)
      again, _ = self.run_it()
      self.assertLen(trained, 8)
    self.assertEqual(again, found)

    stored = json.loads((self.path / 'aa.json').read_text())
    self.assertEqual(stored, found)
    for line in stored['text']:
      self.assertIn(line, said)
    arms = [arm_lib.result(self.path / a['folder']) for a in stored['arms']]
    self.assertLen(arms, 6)
    # One state and one harness; another seed for each.
    self.assertLen({(a.start, a.harness) for a in arms}, 1)
    first = arm_lib.result(self.path / 'arms/v0')
    self.assertEqual(arms[0].start, first.end)
    self.assertLen({a.seed for a in arms}, 6)
    for arm, row in zip(arms, stored['arms'], strict=True):
      # Only the second half of the updates counts, here one of two.
      self.assertAlmostEqual(row['score'], arm.outcome[1])
    # Checkpoints are deleted: no later step reads them.
    self.assertEmpty(list(self.path.glob('arms/aa-*/checkpoints')))

    row = runs.read(self.path, self.path.parent)
    self.assertEqual((row['mode'], row['state']), ('aa', 'finished'))
    with self.assertRaisesRegex(ValueError, 'leave no policy'):
      policies.of_run(tiny.evolving(**SMALL), str(self.path))
    with self.assertRaisesRegex(workdir_lib.WorkdirError, 'evolve.updates'):
      self.run_it(evolve__updates=4)

    (self.path / 'config.json').unlink()
    self.assertEqual(workdir_lib.owner(self.path), 'aa')


class ConfigTest(parameterized.TestCase):

  @parameterized.parameters(
      ('rounds', 0, 'config.evolve.rounds=0: set it to 1'),
      ('device_seconds', 60.0, 'config.evolve.device_seconds=60 would limit'),
      ('dollars', 2.5, 'config.evolve.dollars=2.5 would limit nothing'),
      ('tokens', 500, 'config.evolve.tokens=500 would limit nothing'),
  )
  def test_what_does_not_apply_is_refused_first(self, field, value, message):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / 'aa'
      with self.assertRaisesRegex(ValueError, message):
        aa.run(tiny.evolving(**{f'evolve__{field}': value}), str(path))
      self.assertFalse(path.exists())


class MeasureTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    _few(self)
    options = SMALL | dict(evolve__entries=4, evolve__false_discovery_rate=0.1)
    self.run_ = mock.Mock(
        spec=opening.Training,
        config=tiny.evolving(**options),
        seed=mock.Mock(sha256='a' * 64),
    )

  def measure(self, scores, status='done'):
    """Measure arms, given the solved shares of the groups of each."""
    statuses = [status] + ['done'] * (len(scores) - 1)
    arms = [
        samples.record(
            records.Arm, folder=f'arms/aa-{i:03d}', seed=i, status=s, why='x'
        )
        for i, s in enumerate(statuses)
    ]
    own = {a.folder: np.array(g) for a, g in zip(arms, scores, strict=True)}
    with mock.patch.object(
        pairs, 'own_scores', lambda run, arm: own[arm.folder]
    ):
      return aa.measure(self.run_, arms)

  def test_equal_scores_are_never_kept(self):
    found = self.measure([[0.4, 0.6]] * 8)
    self.assertEqual(found['rate']['value'], 0)
    self.assertEqual(found['spread'], 0)
    self.assertIsNone(found['detectable']['effect'])
    self.assertIn('score the same', found['text'][-1])

  def test_hand_worked_spread_and_detectable(self):
    # Means .45 and .55, four of each: squares of 8 x .05^2 over 7.
    found = self.measure([[0.4, 0.5], [0.5, 0.6]] * 4)
    self.assertAlmostEqual(found['spread'], 0.05 * math.sqrt(8 / 7))
    # The standard deviation of [.4, .5] is .1 / sqrt(2).
    np.testing.assert_allclose([a['error'] for a in found['arms']], 0.05)
    # 1 + 1/2 + 1/3 + 1/4 = 25/12; two variances add up in a pair.
    expected = paired.detectable(
        0.1 * math.sqrt(4 / 7),
        pairs=3,
        alpha=0.1 * 12 / 25,
        rounds=2,
        worth=0.02,
    )
    self.assertAlmostEqual(found['detectable']['effect'], expected)
    self.assertEqual(found['bound'], 0.1)
    self.assertEqual(found['races']['rounds'], 2)  # Of patience 3, rounds 2.

  @parameterized.parameters('crash', 'train_budget_overrun')
  def test_an_arm_that_failed_is_left_out_and_counted(self, status):
    found = self.measure([[0.4, 0.5], [0.5, 0.6]] * 4, status)
    self.assertLen(found['arms'], 7)
    self.assertStartsWith(found['text'][0], '7 equal arms (of 8; the others')

  def test_too_few_arms(self):
    message = '5 of 6 equal arms .* needs 6: arms/aa-000: crash x'
    with self.assertRaisesRegex(ValueError, message):
      self.measure([[0.4, 0.5]] * 6, 'crash')
    # One group that was graded has no standard error.
    with self.assertRaisesRegex(ValueError, '0 of 6 equal arms'):
      self.measure([[0.4]] * 6)

  @parameterized.parameters(
      (0.3, 0.2, 0.4, 'above the bound'),
      (0.1, 0.05, 0.2, 'inside of the interval'),
      (0.02, 0.0, 0.05, 'within the bound'),
  )
  def test_verdict(self, value, low, high, message):
    rate = intervals.Interval(value, low, high)
    with mock.patch.object(simulation, 'false_keeps', return_value=rate):
      found = self.measure([[0.4, 0.5]] * 6)
    self.assertIn(message, found['text'][1])
    self.assertIn(f'{value:.1%} [{low:.1%}, {high:.1%}]', found['text'][1])


if __name__ == '__main__':
  absltest.main()
