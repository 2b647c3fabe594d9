"""The candidates that a plan expects in each round."""

from absl.testing import absltest
from absl.testing import parameterized

from configs import math as math_config
from evojax.training import stages


class CandidatesTest(parameterized.TestCase):

  @parameterized.parameters(
      # Half of the rounds are expected to pass before the first candidates,
      (6, 0.05, [0, 0, 0, 2, 2, 2]),
      (3, 0.0, [0, 2, 2]),
      # but at least one, since no round has told how fast the policy learns.
      (1, 0.05, [0]),
      (3, 1.0, [2, 2, 2]),
      (1, 1.0, [2]),
  )
  def test_wait_while_the_policy_learns_fast(self, rounds, settled, racing):
    config = math_config.get_config().unlock()
    config.evolve.update(dict(rounds=rounds, settled=settled))
    config.evolve.update(dict(candidates=2, entries=99, pairs=4))
    made = {
        stage.name: stage.expected
        for number in range(rounds)
        for stage in stages.of_round(config, number)
    }
    name = lambda n, what: stages.round_name(config, n, what)
    found = [made[name(n, 'candidates')] for n in range(rounds)]
    self.assertSequenceAlmostEqual(found, [2 * count for count in racing])
    # The first candidates are one more than there are places.
    first = [made[name(n, 'backtest')] for n in range(rounds)]
    waited = racing.count(0)
    self.assertEqual(first[:waited], [0] * waited)
    self.assertEqual(first[waited:][:1], [12] * (waited < rounds))


if __name__ == '__main__':
  absltest.main()
