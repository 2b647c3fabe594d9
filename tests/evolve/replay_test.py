"""Replays of recorded rollouts at other parameters than the sampler's."""

import math
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

import evojax
from evojax import config as config_lib
from evojax.episodes import collect
from evojax.evolve import recorded
from evojax.evolve import replay
from evojax.runtime import metrics
from evojax.runtime import sharding
from evojax.training import learner as learner_lib
from evojax.training import reward_pipeline
from evojax.training import setup as setup_lib
from tests import tiny


class ReplayTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = cls.enterClassContext(tempfile.TemporaryDirectory())
    policy = tiny.make_policy(pathlib.Path(root, 'policy'))
    cls.config = tiny.make_config(policy, steps=2, eval__sealed=False)
    cls.path = pathlib.Path(root, 'run')
    evojax.run(cls.config, str(cls.path))

  def _setup(self, **fields):
    fields = {f'grpo.{name}': value for name, value in fields.items()}
    config = config_lib.with_fields(self.config, fields)
    return replay.weighted(setup_lib.prepare(config))

  def _learn(self, setup, change=None, updates=1):
    """The metrics of an update on the first step's rollouts."""
    mesh = sharding.make_mesh(data=1, fsdp=1, tensor=1)
    learner = learner_lib.Learner(setup, mesh, metrics.Phases())
    rows = recorded.load_rows([(self.path, 0)])
    if change is not None:
      rows['sampler_logprobs'] = np.array(
          [x + np.float32(change) for x in rows['sampler_logprobs']] + [None],
          object,
      )[:-1]
    for _ in range(updates):
      batch = collect.RolloutBatch.recorded(rows)
      found, _ = learner.learn(reward_pipeline.RewardPipeline(setup)(batch))
    return found

  def test_tokens_are_weighted_by_what_was_recorded(self):
    setup = self._setup()
    # The base policy sampled them: all weights are exp(0).
    same = self._learn(setup)
    self.assertAlmostEqual(same['tis_weight'], 1.0, places=4)
    # If each token had been sampled 1.5 times less likely, it counts 1.5 times;
    # 3 times less, and it counts as often as the cap allows.
    for change, weight in ((math.log(1.5), 1.5), (math.log(3), 2.0)):
      found = self._learn(setup, -change)
      self.assertAlmostEqual(found['tis_weight'], weight, places=4)
      ratio = found['grad_norm'] / same['grad_norm']
      self.assertAlmostEqual(ratio, weight, places=3)
    # At other parameters than the recorded ones, weights differ by themselves.
    later = self._learn(setup, updates=2)
    self.assertGreater(abs(later['tis_weight'] - 1.0), 1e-3)

  def test_a_harness_with_weights_of_its_own_keeps_them(self):
    found = self._learn(self._setup(tis_cap=1.25), -math.log(1.5))
    self.assertAlmostEqual(found['tis_weight'], 1.25, places=4)

  @parameterized.parameters((0, [0]), (1, [0, 1]))
  def test_groups_that_a_filter_drops_are_replaced(self, rounds, wanted):
    setup = self._setup(refill_rounds=rounds, keep='outcome_variance')
    rewards = reward_pipeline.RewardPipeline(setup)
    # A random policy solves nothing, so no group is kept.
    batch = replay.refilled(setup, rewards, self.path, [0, 1])
    self.assertEqual(batch.kept.tolist(), [False] * 2 * len(wanted))
    self.assertEqual(np.unique(batch.rollouts.rows['step']).tolist(), wanted)

  def test_no_more_than_needed(self):
    # All rewards of a group differ, so that all groups are kept.
    setup = self._setup(refill_rounds=1, keep='reward_variance')
    rewards = reward_pipeline.RewardPipeline(setup)
    batch = replay.refilled(setup, rewards, self.path, [0, 1])
    self.assertEqual(np.unique(batch.rollouts.rows['step']).tolist(), [0])

  def test_every_version_has_problems_of_its_own(self):
    seeds = {
        replay.problems_seed(seed, arm)
        for seed in (0, 1)
        for arm in ('v0', 'r000-incumbent-3')
    }
    self.assertLen(seeds, 4)
    again = replay.problems_seed(0, 'v0')
    self.assertEqual(again, replay.problems_seed(0, 'v0'))
    self.assertLess(max(seeds), 2**32)

  @parameterized.parameters((False, 0.25), (True, 0.0))
  def test_no_difference_is_no_effect_of_zero(self, equal, bound):
    # Up to 3 of 12 scores may differ if 12 do not.
    found = replay.compared(np.zeros((2, 6)), equal)
    self.assertEqual((found.effect.low, found.effect.high), (-bound, bound))
    self.assertEqual((found.equal, found.silent), (equal, not equal))

  def test_a_difference_is_an_effect(self):
    gains = np.zeros((2, 6))
    gains[1, 0] = 0.5
    found = replay.compared(gains, False)
    self.assertFalse(found.silent)
    self.assertAlmostEqual(found.effect.value, 0.5 / 12)
    self.assertGreater(found.effect.high, found.effect.value)


if __name__ == '__main__':
  absltest.main()
