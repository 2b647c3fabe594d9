"""Statistics of a backtest with hand-worked values."""

import math
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.evolve import backtest
from evojax.evolve import opening
from evojax.evolve.steps import backtest as step
from evojax.harness import delta as delta_lib
from evojax.harness import surface
from evojax.ledger import records
from evojax.training import update

SURFACE = surface.recipe()


def rewarded(**changes):
  """Return three groups of two: mixed, unsolved but shaped apart, solved."""
  values = dict(
      rewards=np.array([[1, 0], [0.5, 0], [1, 1]], np.float32),
      advantages=np.array([[1, -1], [1, -1], [0, 0]], np.float32),
      kept=np.ones(3, bool),
      outcome=np.array([[1, 0], [0, 0], [1, 1]], bool),
      graded=np.ones((3, 2), bool),
      n_tokens=np.full((3, 2), 4.0),
      parts={
          'outcome': np.array([[1, 0], [0, 0], [1, 1]], np.float32),
          'shape': np.array([[0, 0], [1, 0], [0, 0]], np.float32),
          'same': np.ones((3, 2), np.float32),
      },
      weights={'outcome': 1.0, 'shape': 0.5, 'same': 0.0},
  )
  return backtest.Rewarded(**values | changes)


class CompareTest(parameterized.TestCase):

  def compare(self, **changes):
    return backtest.compare(rewarded(), rewarded(**changes))

  def test_by_hand(self):
    found = self.compare()
    self.assertAlmostEqual(found['alive_by_outcome'], 1 / 3)
    self.assertAlmostEqual(found['alive_by_shaping'], 1 / 3)
    # 2 of 4 units of absolute advantage are on the unsolved group.
    self.assertAlmostEqual(found['phantom_advantage'], 0.5)
    self.assertEqual(found['sign_agreement'], 1.0)
    self.assertEqual(found['kept_groups'], 1.0)
    # a = 2 (1, -1, 1, -1, 0, 0), b = 2 (.5, -.5, 0, 0, 0, 0).
    self.assertAlmostEqual(found['gradient_cosine'], math.sqrt(0.5))
    self.assertEqual(found['constant_parts'], 0)  # 'same' has no weight.
    # Every completion is as long as any other.
    self.assertEqual(found['length_correlation'], backtest.NOT_IDENTIFIABLE)

  def test_dropped_groups_have_no_say(self):
    found = self.compare(kept=np.array([True, False, True]))
    self.assertEqual(found['phantom_advantage'], 0.0)
    self.assertAlmostEqual(found['gradient_cosine'], 1.0)
    self.assertAlmostEqual(found['kept_groups'], 2 / 3)
    self.assertEqual(found['phantom_advantage_before'], 0.5)

  def test_what_was_not_graded_has_no_say(self):
    """As if the groups were smaller: one loses its second member here."""
    graded = np.array([[1, 0], [1, 1], [1, 1]], bool)
    found = self.compare(
        graded=graded,
        advantages=np.array([[0, 0], [1, -1], [0, 0]], np.float32),
        parts={'outcome': np.array([[1, 9], [1, 1], [1, 1]], np.float32)},
    )
    self.assertEqual(found['alive_by_outcome'], 0.0)
    self.assertAlmostEqual(found['alive_by_shaping'], 1 / 3)
    self.assertEqual(found['sign_agreement'], backtest.NOT_IDENTIFIABLE)
    self.assertEqual(found['constant_parts'], 1)

  def test_rewards_against_the_outcome(self):
    turned = np.array([[-1, 1], [0, 0], [0, 0]], np.float32)
    found = self.compare(advantages=turned)
    self.assertEqual(found['sign_agreement'], 0.0)
    self.assertAlmostEqual(found['gradient_cosine'], -1.0)

  def test_nothing_to_compare_is_no_number(self):
    nobody = np.zeros((3, 2), bool)
    found = self.compare(
        outcome=nobody, advantages=np.zeros((3, 2), np.float32)
    )
    for name in ('sign_agreement', 'gradient_cosine'):
      self.assertEqual(found[name], backtest.NOT_IDENTIFIABLE)

  def test_a_constant_part_with_a_weight(self):
    found = self.compare(weights={'outcome': 1.0, 'shape': 0.5, 'same': 0.1})
    self.assertEqual(found['constant_parts'], 1)


class ScanTest(parameterized.TestCase):

  def test_a_part_that_shapes_dead_groups_is_never_harmless(self):
    # Normalised per group, any weight takes half of all advantage.
    self.assertEqual(
        backtest.scan(rewarded(), 'shape', SURFACE), {'harmless_weight': 0.0}
    )

  def test_advantages_are_those_of_the_estimator(self):
    # Centred rewards keep their size: a weight w takes w / (1 + w) of all
    # advantage, which is less than HARMLESS up to w = .05 / .95.
    centred = rewarded(estimator='group_mean')
    found = backtest.scan(centred, 'shape', SURFACE)['harmless_weight']
    step = 2.0 / (backtest.SCANNED - 1)
    most = backtest.HARMLESS / (1 - backtest.HARMLESS)
    self.assertAlmostEqual(found, math.floor(most / step) * step)
    self.assertGreater(found, 0)

  @parameterized.parameters((0.5, 2.0), (-0.5, -2.0))
  def test_a_part_within_mixed_groups_is_harmless(self, weight, expected):
    parts = rewarded().parts | {
        'shape': np.array([[1, 0], [0, 0], [0, 0]], np.float32)
    }
    after = rewarded(
        parts={k: parts[k] for k in ('outcome', 'shape')},
        weights={'outcome': 1.0, 'shape': weight},
    )
    self.assertEqual(
        backtest.scan(after, 'shape', SURFACE), {'harmless_weight': expected}
    )

  def test_a_part_that_is_gone(self):
    self.assertEqual(backtest.scan(rewarded(), 'gone', SURFACE), {})


class StepTest(absltest.TestCase):

  def test_a_replay_that_diverges_is_a_crash_and_does_not_end_the_run(self):
    run, version, design, delta = (
        absltest.mock.NonCallableMock(spec=kind)
        for kind in (
            opening.Run, records.Version, records.Design, delta_lib.Delta
        )
    )  # fmt: skip
    run.path, version.folder, design.trial = pathlib.Path('/nowhere'), 'v0', 3

    def diverge(*args):
      args[-1].append(120)  # The parent's policy was scored before.
      raise update.NonFiniteError('step 7: loss=nan')

    with absltest.mock.patch.multiple(
        step,
        recorded=absltest.mock.DEFAULT,
        arm_lib=absltest.mock.DEFAULT,
        _key=lambda *_: 'key',
        _backtest=diverge,
    ):
      found = step.backtest(run, version, design, delta)
    self.assertEqual((found.trial, found.crash), (3, 'step 7: loss=nan'))
    self.assertEqual((found.statistics, found.predicted), ({}, None))
    self.assertEqual(found.sampled_tokens, 120)


if __name__ == '__main__':
  absltest.main()
