"""Derived evidence: only the intended values change."""

from absl.testing import absltest
import numpy as np

from evojax.harness import derive
from tests.harness import recorded

VALID = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], bool)
NAMES = ('outcome', 'n_tokens', 'finish_reason', 'actions', 'mean_logprob')


def table():
  view = recorded.view(
      prompts=3,
      n_tokens=np.arange(9).reshape(3, 3) + 10,
      valid=VALID,
  )
  return derive.table(view, NAMES)


class DeriveTest(absltest.TestCase):

  def test_table(self):
    t = table()
    np.testing.assert_array_equal(t.n_tokens, t.arrays['n_tokens'])
    with self.assertRaises(AttributeError):
      t.reward  # noqa: B018
    self.assertEqual(t.max_tokens, 64)

  def test_orders(self):
    t = table()
    moved = derive.in_order(t, np.array([2, 0, 1]))
    np.testing.assert_array_equal(moved.n_tokens, t.n_tokens[[2, 0, 1]])
    np.testing.assert_array_equal(moved.valid, VALID[[2, 0, 1]])
    inner = np.array([[2, 1, 0], [0, 1, 2], [1, 2, 0]])
    moved = derive.within(t, inner)
    np.testing.assert_array_equal(
        moved.n_tokens, [[0, 11, 10], [13, 14, 15], [17, 18, 0]]
    )
    self.assertEqual(moved.valid.tolist()[0], [False, True, True])
    np.testing.assert_array_equal(moved.actions[0], t.actions[0, ::-1])

  def test_others(self):
    t = table()
    stays = np.array([True, False, True])
    changed = derive.others(t, stays, np.array([0, 1]))
    np.testing.assert_array_equal(changed.valid, t.valid)
    np.testing.assert_array_equal(changed.n_tokens[[0, 2]], t.n_tokens[[0, 2]])
    np.testing.assert_array_equal(changed.n_tokens[1], [11, 11, 11])

  def test_padded(self):
    t = table()
    wider = derive.padded(t, np.array([1, 2]))
    self.assertEqual(wider.valid.shape, (4, 4))
    self.assertEqual(wider.valid.sum(), VALID.sum())
    np.testing.assert_array_equal(
        wider.n_tokens[:3, :3][VALID], t.n_tokens[VALID]
    )
    # 15 is the value at [1, 2]; all entries that do not count get it.
    self.assertEqual(set(wider.n_tokens[~wider.valid].tolist()), {15})

  def test_extremes(self):
    t = derive.table(recorded.view(prompts=3, n_tokens=VALID * 9), ['n_tokens'])
    a, b = derive.extremes(t, np.random.default_rng(0))
    self.assertCountEqual([t.n_tokens[tuple(a)], t.n_tokens[tuple(b)]], [0, 9])

  def test_scrambled(self):
    rng = np.random.default_rng(0)
    t = derive.scrambled(table(), 8, 6, rng)
    self.assertEqual(t.valid.shape, (8, 6))
    self.assertFalse(t.valid.all())
    self.assertTrue((t.valid.sum(1) >= 2).all())
    for name in NAMES[:3] + NAMES[4:]:
      self.assertGreater(len(np.unique(t.arrays[name])), 1, name)
    self.assertContainsSubset(
        np.unique(t.finish_reason).tolist(),
        t.codes['finish_reason'].values(),
    )
    # In some groups all completions have it, in others none.
    shares = t.outcome.mean(1)
    self.assertEqual((shares.min(), shares.max()), (0, 1))
    self.assertLessEqual(t.n_tokens.max(), 64)

  def test_some_groups_have_a_part_of_a_range(self):
    """Otherwise filters by a group's largest value would keep no group."""
    for seed in range(20):
      rng = np.random.default_rng(seed)
      t = derive.scrambled(table(), 12, 16, rng)
      self.assertLess(t.n_tokens.max(1).min(), 32)
      self.assertGreater(t.n_tokens.min(1).max(), 32)
      self.assertGreater(np.ptp(t.n_tokens, 1).max(), 48)
      self.assertGreater(np.ptp(t.n_tokens, 1).min(), 3)

  def test_thin_evidence(self):
    t = table()
    same = derive.collapsed(t)
    self.assertTrue((same.valid).all())
    np.testing.assert_array_equal(same.n_tokens[2], [17, 17, 17])
    np.testing.assert_array_equal(derive.alone(t, 1).valid.sum(1), [1, 1, 1])
    self.assertFalse(derive.alone(t, 0).valid.any())

  def test_resized(self):
    t = derive.resized(table(), 5, 4, np.random.default_rng(0))
    self.assertEqual(t.n_tokens.shape, (5, 4))
    self.assertTrue((t.n_tokens > 0).all())  # Only valid completions.


if __name__ == '__main__':
  absltest.main()
