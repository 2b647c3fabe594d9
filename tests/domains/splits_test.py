"""Identity of problems, and the splits derived from it."""

import collections

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains import splits


class SplitsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('What is 2 + 3?', 'what  is\n2 + 3?', True),
      ('What is 2 + 3?', 'What is ２ + 3?\u00a0', True),  # NFKC
      ('What is 2 + 3?', 'What is 3 + 2?', False),
      ('What is 2 + 3?', 'What is 2 + 3', False),
      ('What is 1.0?', 'What is 1.00?', False),
  )
  def test_identity_is_that_of_the_normalised_text(self, a, b, same):
    self.assertEqual(splits.problem_id(a) == splits.problem_id(b), same)

  def test_known_values(self):
    # printf 'what is 2 + 3?' | sha256sum gives d1ecc9f06d04f509...
    # 0xd1ecc9f06d04f509 = 15126687282889028873, % 100 = 73 < 80: train.
    identity = splits.problem_id('What is 2 + 3?')
    self.assertEqual(identity, 'd1ecc9f06d04f509')
    self.assertEqual(splits.split_of(identity), 'train')

  @parameterized.parameters(
      (0, 'train'),
      (79, 'train'),
      (80, 'dev'),
      (89, 'dev'),
      (90, 'sealed'),
      (99, 'sealed'),
      (180, 'dev'),
  )
  def test_split_is_a_range_of_ids(self, number, split):
    self.assertEqual(splits.split_of(f'{number:016x}'), split)

  def test_shares(self):
    counts = collections.Counter(
        splits.split_of(splits.problem_id(str(i))) for i in range(10_000)
    )
    # Three standard deviations of a binomial: sqrt(10^4 * .1 * .9) = 30.
    for split, share in splits.SHARES.items():
      self.assertAlmostEqual(counts[split], 100 * share, delta=120)

  def test_lone_surrogate_has_an_identity(self):
    self.assertLen(splits.problem_id('\ud800'), 16)

  def test_unknown_split(self):
    with self.assertRaisesRegex(ValueError, "'test' is not one of"):
      splits.check('test')


if __name__ == '__main__':
  absltest.main()
