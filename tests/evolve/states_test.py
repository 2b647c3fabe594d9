"""The mean of arms, compared with NumPy's."""

import pathlib
import tempfile

from absl.testing import absltest
import jax
import jax.numpy as jnp
import numpy as np

from evojax.evolve import states
from evojax.runtime import checkpoint
from evojax.runtime import metrics
from evojax.runtime import sharding
from evojax.training import fingerprint
from evojax.training import learner
from evojax.training import setup as setup_lib
from tests import tiny


class StatesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    policy = tiny.make_policy(self.root / 'policy')
    self.setup = setup_lib.prepare(tiny.make_config(policy))
    self.mesh = sharding.make_mesh(data=1, fsdp=1, tensor=1)
    self.states = states.States(self.setup, self.mesh)

  def _arm(self, name, seed):
    """Write the checkpoint of an arm with random numbers; return its state."""
    rng = np.random.default_rng(seed)
    drawn = lambda x: (
        jnp.asarray(rng.normal(size=x.shape), x.dtype)
        if jnp.issubdtype(x.dtype, jnp.floating)
        else jnp.full_like(x, 7)  # Updates before every arm.
    )
    empty = self.states._empty(self.setup.policy)
    state = jax.tree.map(drawn, empty)
    tree = learner.checkpoint_tree(state, jax.random.key(seed), seed, 7)
    folder = self.root / name / 'checkpoints'
    checkpointer = checkpoint.Checkpointer(folder, every=1, keep=1)
    checkpointer.save(7, tree, {})
    checkpointer.wait()
    return folder / 'step_000007', tree['learner']

  def _merge(self, arms, weights, target, start=None, rate=1.0):
    return self.states.merge(
        [path for path, _ in arms],
        weights,
        target,
        start=start[0] if start else self.root / 'unused',
        outer_learning_rate=rate,
    )

  def test_mean_of_parameters_and_moments(self):
    arms = [self._arm(f'arm{i}', i) for i in range(3)]
    target = self.root / 'merged/checkpoints/step_000007'
    weights = [0.5, 0.25, 0.25]
    end = self._merge(arms, weights, target)
    shape = learner.abstract_state(self.states._empty(self.setup.policy))
    found = checkpoint.restore(target, shape)['learner']
    leaves = zip(
        jax.tree.leaves(found),
        *(jax.tree.leaves(state) for _, state in arms),
        strict=True,
    )
    for mean, *each in leaves:
      if np.issubdtype(mean.dtype, np.floating):
        wanted = sum(w * np.asarray(x) for w, x in zip(weights, each))
        np.testing.assert_allclose(mean, wanted, rtol=1e-6, atol=1e-6)
      else:
        np.testing.assert_array_equal(mean, each[0])
    self.assertEqual(end, fingerprint.of(found))
    # The same again, as after a kill before its row was written.
    again = self._merge(arms, weights, target)
    self.assertEqual(again, end)

  def test_the_mean_of_one_arm_twice_is_that_arm(self):
    arm = self._arm('arm', 3)
    target = self.root / 'merged/checkpoints/step_000007'
    end = self._merge([arm, arm], [0.5, 0.5], target)
    self.assertEqual(end, fingerprint.of(arm[1]))

  def test_an_outer_step(self):
    start, *arms = [self._arm(f'arm{i}', i) for i in range(3)]
    target = self.root / 'merged/checkpoints/step_000007'
    self._merge(arms, [0.5, 0.5], target, start=start, rate=3.0)
    shape = learner.abstract_state(self.states._empty(self.setup.policy))
    found = checkpoint.restore(target, shape)['learner']

    def check(part, outer_step):
      for new, old, *each in zip(
          jax.tree.leaves(part(found)),
          jax.tree.leaves(part(start[1])),
          *(jax.tree.leaves(part(state)) for _, state in arms),
          strict=True,
      ):
        old, mean = np.asarray(old), np.mean(each, axis=0)
        wanted = outer_step(old, mean)
        np.testing.assert_allclose(new, wanted, rtol=1e-5, atol=1e-5)

    check(lambda s: s['params'], lambda old, mean: 3 * mean - 2 * old)
    # The sum of the arms' averages, as if a single arm had trained throughout.
    check(lambda s: s['moments'].mu, lambda old, mean: mean)
    check(lambda s: s['moments'].nu, lambda old, mean: mean)

  def test_a_mean_of_many_arms_needs_the_memory_of_two(self):
    arms = [self._arm(f'arm{i}', i) for i in range(4)]
    live = lambda: sum(x.nbytes for x in jax.live_arrays())
    one = sum(x.nbytes for x in jax.tree.leaves(arms[0][1]))
    before, seen, restore = live(), [], checkpoint.restore

    def restored(*args):
      found = restore(*args)
      seen.append((live() - before) / one)
      return found

    with absltest.mock.patch.object(checkpoint, 'restore', restored):
      self._merge(arms, [0.25] * 4, self.root / 'm/checkpoints/step_000007')
    self.assertLen(seen, 4)
    self.assertLess(max(seen), 2.1)

  def test_the_state_of_a_new_run(self):
    target = self.root / 'versions/base/checkpoints/step_000000'
    end = self.states.begin(target)
    new = learner.Learner(self.setup, self.mesh, metrics.Phases())
    self.assertEqual(new.fingerprint(), end)
    other = self._arm('arm', 0)[0]
    new.start_from(other)
    self.assertNotEqual(new.fingerprint(), end)
    new.start_from(target)
    self.assertEqual(new.fingerprint(), end)
    # The same again, as after a kill before its row was written.
    self.assertEqual(self.states.begin(target), end)

  def test_training_goes_on_from_a_mean(self):
    arms = [self._arm(f'arm{i}', i) for i in range(2)]
    target = self.root / 'merged/checkpoints/step_000007'
    end = self._merge(arms, [0.5, 0.5], target)
    one = learner.Learner(self.setup, self.mesh, metrics.Phases())
    one.start_from(target)
    self.assertEqual(one.fingerprint(), end)


if __name__ == '__main__':
  absltest.main()
