"""Data sets in epochs, and the splits that they are divided into."""

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


class DivideTest(absltest.TestCase):

  def test_everything_by_hash(self):
    divided = sources.divide({'train': _members(range(500))})
    for split, members in divided.items():
      self.assertNotEmpty(members)
      for problem in members:
        self.assertEqual(splits.split_of(problem.problem_id), split)
    self.assertEqual(sum(map(len, divided.values())), 500)

  def test_given_splits_are_kept_whole_and_the_rest_is_carved(self):
    divided = sources.divide(
        {
            'train': _members(range(500)),
            'sealed': _members(range(500, 520)),
        }
    )
    self.assertEqual(divided['sealed'], tuple(_members(range(500, 520))))
    self.assertEqual(len(divided['train']) + len(divided['dev']), 500)
    for problem in divided['dev']:
      self.assertEqual(splits.split_of(problem.problem_id), 'dev')

  def test_a_leak_is_refused_with_the_count(self):
    with self.assertRaisesRegex(
        ValueError, "3 problems of 'sealed' are also in 'train', e.g. 'q7'"
    ):
      sources.divide(
          {'train': _members(range(10)), 'sealed': _members(range(7, 20))}
      )

  def test_an_empty_split_is_refused(self):
    with self.assertRaisesRegex(ValueError, "'dev' is empty: 1 problems"):
      # q0 goes to train by its hash.
      sources.divide({'train': _members([0])})

  def test_train_may_be_what_is_empty(self):
    members = [
        p
        for p in _members(range(100))
        if splits.split_of(p.problem_id) == 'dev'
    ]
    with self.assertRaisesRegex(ValueError, "'train' is empty: .* 80 % go th"):
      sources.divide({'train': members})


class FilledTest(absltest.TestCase):

  def test_fields_left_empty_are_not_given(self):
    self.assertEqual(
        sources.filled(jsonl={'train': 'x', 'dev': ''}, tfds=None),
        {'jsonl': {'train': 'x'}, 'tfds': {}},
    )


if __name__ == '__main__':
  absltest.main()
