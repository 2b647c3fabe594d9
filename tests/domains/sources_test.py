"""Data sets in epochs."""

from absl.testing import absltest

from evojax.domains import sources
from evojax.domains import splits


def _members(numbers):
  return [
      sources.make_problem(({'role': 'user', 'content': f'q{i}'},), str(i), 'f')
      for i in numbers
  ]


def _finite(count, split='train', seed=0):
  return sources.FiniteSource(_members(range(count)), split, seed)


class FiniteSourceTest(absltest.TestCase):

  def test_each_epoch_is_a_permutation_of_its_own(self):
    source = _finite(20)
    epochs = [
        [p.answer for p in source.take(20 * epoch, 20)] for epoch in range(3)
    ]
    for epoch in epochs:
      self.assertCountEqual(epoch, map(str, range(20)))
    self.assertLen({tuple(epoch) for epoch in epochs}, 3)

  def test_any_position_without_those_before(self):
    stream = _finite(20).take(0, 20) + _finite(20).take(20, 20)
    for cursor, count in ((3, 5), (15, 5), (20, 7), (39, 1)):
      self.assertEqual(
          _finite(20).take(cursor, count), stream[cursor : cursor + count]
      )

  def test_crossing_an_epoch_repeats_nothing(self):
    source = _finite(20)
    for cursor in range(12, 20):
      taken = source.take(cursor, 16)
      self.assertLen({p.problem_id for p in taken}, 16)
      self.assertEqual(taken, _finite(20).take(cursor, 16))
      self.assertEqual(taken[: 20 - cursor], source.take(cursor, 20 - cursor))

  def test_seeds_and_splits_differ(self):
    orders = {
        tuple(p.answer for p in _finite(20, split, seed).take(0, 20))
        for split in splits.SHARES
        for seed in (0, 1)
    }
    self.assertLen(orders, 6)

  def test_more_than_there_are(self):
    with self.assertRaisesRegex(ValueError, "'train' has 20 problems, 21 were"):
      _finite(20).take(0, 21)
    self.assertLen(_finite(20), 20)


if __name__ == '__main__':
  absltest.main()
