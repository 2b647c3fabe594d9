"""Tests of the reward pipeline on rollouts of several turns."""

import tempfile

from absl.testing import absltest
import ml_collections
import numpy as np

from configs import math as math_config
from evojax import records
from evojax.episodes import collect
from evojax.evidence import schema
from evojax.evidence import store
from evojax.training import reward_parts
from evojax.training import reward_pipeline
from evojax.training import setup as setup_lib
from tests.eval import fakes

COLUMNS = schema.declare(fakes.Domain.columns, ('outcome',))
TURNS = (1, 3, 2, 1)


class Functions:
  """A harness whose turn a weighs 10^-a."""

  def has(self, name):
    return name == 'weight'

  def weight(self, view):
    turns = int(np.where(view.valid, view.n_turns, 0).max())
    weights = np.float32(10.0) ** -np.arange(turns, dtype=np.float32)
    return np.broadcast_to(weights, (*view.valid.shape, turns))


def make_setup(functions=None):
  config = math_config.get_config().unlock()
  config.reward.weights = ml_collections.ConfigDict({'outcome': 1.0})
  config.grpo.advantage, config.grpo.keep = 'group_mean', 'all'
  setup = object.__new__(setup_lib.Setup)  # Without a policy.
  vars(setup).update(
      config=config,
      columns=COLUMNS,
      parts=fakes.Domain().reward_parts,
      reader='reward',
      functions=functions,
  )
  return setup


def rollouts(status='ok'):
  """Two groups of two; the first of each group is right."""
  problems = [fakes.make_problem('a'), fakes.make_problem('b')]
  episodes = [
      records.Episode(
          np.arange(2 * n, dtype=np.int32),
          np.zeros(2 * n, np.float32),
          'stop',
          0,
          'direct 4' if i % 2 == 0 else 'steps 3',
          turns=(records.Turn(1, 1),) * n,
      )
      for i, n in enumerate(TURNS)
  ]
  asked = records.RequestBatch(problems, [(1,), (2,)], seed=0)
  batch = collect.rollout_batch(fakes.Domain(), COLUMNS, asked, episodes)
  batch.rows['graded'] = np.array([True, status == 'ok', True, True])
  return batch


class RewardPipelineTest(absltest.TestCase):

  def test_every_turn_has_its_episodes_advantage(self):
    batch = reward_pipeline.RewardPipeline(make_setup())(rollouts())
    # Outcomes 1, 0 in each group: +-1/2, as often as an episode has turns.
    expected = [
        [[0.5, 0, 0], [-0.5, -0.5, -0.5]],
        [[0.5, 0.5, 0], [-0.5, 0, 0]],
    ]
    np.testing.assert_array_equal(batch.advantages, expected)
    np.testing.assert_array_equal(
        batch.episode_advantages, [[0.5, -0.5], [0.5, -0.5]]
    )

  def test_a_harness_weighs_turns(self):
    batch = reward_pipeline.RewardPipeline(make_setup(Functions()))(rollouts())
    expected = [
        [[0.5, 0, 0], [-0.5, -0.05, -0.005]],
        [[0.5, 0.05, 0], [-0.5, 0, 0]],
    ]
    np.testing.assert_allclose(batch.advantages, expected, rtol=1e-6)
    columns = batch.columns
    self.assertEqual([len(a) for a in columns['turn_advantages']], [0, 3, 2, 0])
    np.testing.assert_allclose(
        columns['advantage'], [0.5, -0.185, 0.275, -0.5], rtol=1e-6
    )

  def test_credit_beyond_float32(self):
    functions = Functions()
    functions.weight = lambda view: np.full((2, 2, 3), 3e38, np.float32)
    setup = make_setup(functions)
    setup.config.grpo.advantage = 'leave_one_out'  # They are 1 and -1.
    setup.config.reward.weights.outcome = 2.0
    with self.assertRaisesRegex(
        reward_parts.RewardError, r'weight.py returns up to 3e\+38'
    ):
      reward_pipeline.RewardPipeline(setup)(rollouts())

  def test_the_longest_episode_was_not_graded(self):
    """Its turns are there, without a share in the update."""
    batch = reward_pipeline.RewardPipeline(make_setup(Functions()))(
        rollouts('lost')
    )
    self.assertEqual(batch.advantages.shape, (2, 2, 3))
    np.testing.assert_array_equal(batch.advantages[0], 0)
    self.assertFalse(batch.included[0, 1])
    self.assertTrue(np.isnan(batch.columns['advantage'][1]))

  def test_evidence_gives_the_same_advantages_again(self):
    pipeline = reward_pipeline.RewardPipeline(make_setup(Functions()))
    batch = pipeline(rollouts())
    rows = batch.rollouts.rows
    rows.update(batch.columns)
    folder = self.enterContext(tempfile.TemporaryDirectory())
    store.write_step(folder, 'train', 0, rows, COLUMNS)
    frame = store.read(folder, 'train').sample(frac=1, random_state=0)
    columns = {name: frame[name].to_numpy() for name in frame.columns}
    again = collect.RolloutBatch.recorded(columns)
    np.testing.assert_array_equal(pipeline(again).advantages, batch.advantages)
    for one, other in zip(batch.rollouts.episodes, again.episodes, strict=True):
      np.testing.assert_array_equal(one.tokens, other.tokens)
      np.testing.assert_array_equal(one.loss_mask, other.loss_mask)

  def test_rounds_of_unequal_turns_are_joined(self):
    pipeline = reward_pipeline.RewardPipeline(make_setup())
    long, short = rollouts(), rollouts()
    short.rows['n_turns'] = np.ones(4, np.int32)
    joined = reward_pipeline.join([pipeline(short), pipeline(long)])
    self.assertEqual(joined.advantages.shape, (4, 2, 3))
    np.testing.assert_array_equal(joined.advantages[:2, :, 1:], 0)
    self.assertEqual(
        joined.rollouts.rows['group'].tolist(), [0, 0, 1, 1, 2, 2, 3, 3]
    )
    self.assertLen(joined.rollouts.episodes, 8)


if __name__ == '__main__':
  absltest.main()
