"""Data sets: their distinct problems, and their division into splits."""

from absl.testing import absltest

from evojax.domains import datasets
from evojax.domains import sources
from evojax.domains import splits


def _members(numbers):
  return [
      sources.make_problem(({'role': 'user', 'content': f'q{i}'},), str(i), 'f')
      for i in numbers
  ]


class DivideTest(absltest.TestCase):

  def test_everything_by_hash(self):
    divided = datasets.divide({'train': _members(range(500))})
    for split, members in divided.items():
      self.assertNotEmpty(members)
      for problem in members:
        self.assertEqual(splits.split_of(problem.problem_id), split)
    self.assertEqual(sum(map(len, divided.values())), 500)

  def test_given_splits_are_kept_whole_and_the_rest_is_carved(self):
    divided = datasets.divide(
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
      datasets.divide(
          {'train': _members(range(10)), 'sealed': _members(range(7, 20))}
      )

  def test_an_empty_split_is_refused(self):
    with self.assertRaisesRegex(ValueError, "'dev' is empty: 1 problems"):
      # The hash of q0 puts it into train.
      datasets.divide({'train': _members([0])})

  def test_train_may_be_what_is_empty(self):
    members = [
        p
        for p in _members(range(100))
        if splits.split_of(p.problem_id) == 'dev'
    ]
    with self.assertRaisesRegex(ValueError, "'train' is empty: .* 80 % go th"):
      datasets.divide({'train': members})


class GivenTest(absltest.TestCase):

  def test_fields_left_empty_are_not_given(self):
    self.assertEqual(
        datasets.given(
            {'jsonl': {'train': 'x', 'dev': ''}, 'tfds': None, 'other': {}}
        ),
        {'jsonl': {'train': 'x'}},
    )

  def test_a_field_that_is_no_text_is_refused(self):
    with self.assertRaisesRegex(ValueError, r'jsonl\.train=3 must be text'):
      datasets.given({'jsonl': {'train': 3}})

  def test_skip_broken_is_true_or_false(self):
    for value in (True, False):
      fields = {'train': 'x', 'skip_broken': value}
      expected = {k: v for k, v in fields.items() if v}
      self.assertEqual(datasets.given({'jsonl': fields}), {'jsonl': expected})
    with self.assertRaisesRegex(ValueError, "skip_broken='yes' must be True"):
      datasets.given({'jsonl': {'train': 'x', 'skip_broken': 'yes'}})


class DistinctTest(absltest.TestCase):

  def _distinct(self, *rows, **kwargs):
    parse = lambda row: sources.make_problem(
        ({'role': 'user', 'content': row['q']},), row['a'], 'f'
    )
    placed = ((f'x:{i}', row) for i, row in enumerate(rows, 1))
    return datasets.distinct(placed, parse, 'x', **kwargs)

  def test_repetitions_are_kept_once(self):
    found = self._distinct(*({'q': q, 'a': '1'} for q in ('a', 'b', 'A')))
    self.assertEqual([p.question for p in found], ['a', 'b'])

  def test_two_answers_are_refused_with_their_place(self):
    with self.assertRaisesRegex(ValueError, "x:2: .*'1' and '2'; keep one"):
      self._distinct({'q': 'a', 'a': '1'}, {'q': 'A', 'a': '2'})

  def test_all_broken_rows_are_counted(self):
    rows = [ValueError('no'), {'q': 'a', 'a': '1'}, {'q': 'a', 'a': '2'}]
    message = r'^x:1: no \(2 broken rows; also x:3\)'
    with self.assertRaisesRegex(ValueError, f'{message}$'):
      self._distinct(*rows)
    with self.assertRaisesRegex(ValueError, f'{message}. Repair .*skip_broken'):
      self._distinct(*rows, skip_broken=False)
    with self.assertLogs(level='WARNING') as logs:
      self.assertLen(self._distinct(*rows, skip_broken=True), 1)
    self.assertIn('left out: x:1: no (2 broken rows', logs.output[0])

  def test_no_problem_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'x holds no problem'):
      self._distinct()


if __name__ == '__main__':
  absltest.main()
