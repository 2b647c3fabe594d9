"""Where the ledgers of two runs part."""

import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from evojax.ledger import chain
from evojax.ledger import parting

ROWS = (
    ('open', {'seed': 3, 'jax': '0.10.2'}),
    ('race', {'round': 0, 'arms': [{'score': 0.5}, {'score': 0.25}]}),
    ('verify', {'round': 0, 'kept': False}),
)


class FindTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def write(self, name, rows, seconds=1.0, sandbox='T0'):
    folder = self.root / name
    folder.mkdir()
    ledger = chain.Ledger(folder / 'ledger.jsonl', sandbox)
    for step, data in rows:
      ledger.append(step, data, {'seconds': seconds})
    return folder

  def test_measurements_and_the_tier_of_the_box_may_differ(self):
    ours = self.write('a', ROWS)
    theirs = self.write('b', ROWS, seconds=2.0, sandbox='T1')
    found = parting.find(ours, theirs)
    self.assertEqual((found.rows, found.step, found.count), (3, '', 0))
    with mock.patch.dict(os.environ, HOME=str(self.root)):
      self.assertEqual(parting.find('~/a', '~/b').rows, 3)
    self.assertIn('all 3 rows that both have are equal', str(found))

  def test_the_first_row_and_its_fields(self):
    other = (
        ROWS[0],
        ('race', {'round': 0, 'arms': [{'score': 0.5}, {'score': 0.125}]}),
        ('verify', {'round': 0, 'kept': True}),
    )
    found = parting.find(self.write('a', ROWS), self.write('b', other))
    self.assertEqual((found.rows, found.step, found.round), (1, 'race', 0))
    self.assertEqual(found.fields, (('arms[1].score', '0.25', '0.125'),))
    self.assertEqual(
        str(found),
        f'parts from {self.root}/b at row 1 (race, round 0): arms[1].score is'
        ' 0.25 here and 0.125 there',
    )

  def test_another_step_lists_what_each_row_has(self):
    other = (*ROWS[:2], ('promote', {'round': 0, 'version': 'v1'}))
    found = parting.find(self.write('a', ROWS), self.write('b', other))
    self.assertEqual(
        found.fields,
        (
            ('kept', 'false', 'absent'),
            ('step', '"verify"', '"promote"'),
            ('version', 'absent', '"v1"'),
        ),
    )

  def test_a_run_that_goes_on_does_not_part(self):
    found = parting.find(self.write('a', ROWS), self.write('b', ROWS[:2]))
    self.assertEqual((found.rows, found.step), (2, ''))

  def test_a_random_salt_is_no_difference(self):
    def seal(salt, seed):
      final = ('final', {'problems': seed})
      return (*ROWS, ('seal', {'salt': salt, 'seed': seed}), final)

    first = self.write('a', seal('x', 1))
    found = parting.find(first, self.write('b', seal('y', 2)))
    self.assertEqual((found.rows, found.step, found.sealed), (3, '', True))
    self.assertIn('all 3 rows before the seal are equal', str(found))
    # With evolve.salt, the rows after it can be compared.
    found = parting.find(first, self.write('c', seal('x', 1)))
    self.assertEqual((found.rows, found.sealed), (5, False))
    # Another seed of the run is one.
    other = (('open', {'seed': 4, 'jax': '0.10.2'}), *ROWS[1:])
    found = parting.find(first, self.write('d', other))
    self.assertEqual((found.rows, found.step), (0, 'open'))

  def test_many_fields_are_counted_and_not_all_listed(self):
    rows = [
        [('open', {f'field{n:02}': n + k for n in range(20)})] for k in (0, 1)
    ]
    found = parting.find(self.write('a', rows[0]), self.write('b', rows[1]))
    self.assertLen(found.fields, parting.MOST_FIELDS)
    self.assertEqual(found.count, 20)
    self.assertIn('and 19 more fields', str(found))

  def test_a_directory_without_a_ledger_is_named(self):
    with self.assertRaisesRegex(ValueError, 'nowhere has no ledger'):
      parting.find(self.write('a', ROWS), self.root / 'nowhere')


if __name__ == '__main__':
  absltest.main()
