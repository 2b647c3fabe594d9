from absl.testing import absltest

from evojax.ledger import history
from evojax.ledger import milestones
from evojax.ledger import records
from tests.ledger import samples


def arm(name, role, score, tokens):
  return samples.record(
      records.RacedArm,
      folder=f'arms/{name}',
      role=role,
      # Its dev problems were harder; that is no score of the policy.
      score=score / 2,
      outcome=(score - 0.1, score + 0.1),
      sampled_tokens=tokens,
  )


def race(number, *arms):
  return samples.record(records.Race, round=number, arms=arms)


def promote(version, *names):
  sources = [samples.record(records.Source, folder=f'arms/{n}') for n in names]
  return samples.record(
      records.Promote, version=version, sources=tuple(sources)
  )


# Version, its score, tokens and seconds until then:
RUN = (
    # v0: (0.4 + 0.6) / 2 = 0.5, 100 tokens, 1 s.
    samples.record(
        records.Train,
        version='v0',
        outcome=(0.1, 0.2, 0.4, 0.6),
        sampled_tokens=100,
    ),
    samples.record(records.Backtest, sampled_tokens=10),
    # The candidate is better, and is not the policy.
    race(
        0,
        arm('i0', 'incumbent', 0.5, 20),
        arm('i1', 'incumbent', 0.54, 20),
        arm('c0', 'candidate', 0.9, 30),
    ),
    # v1: 0.52, 180 tokens, 4 s.
    promote('v1', 'i0', 'i1'),
    # A round that was raced again after a kill counts once.
    race(1, arm('i2', 'incumbent', 0.7, 40)),
    race(1, arm('i2', 'incumbent', 0.7, 40)),
    # v2: 0.7, 220 tokens, 7 s.
    promote('v2', 'i2'),
)


class MilestonesTest(absltest.TestCase):

  def test_costs_until_a_score(self):
    run = history.History([samples.row(record, 1.0) for record in RUN])
    found = milestones.reached(run, (0.3, 0.5, 0.51, 0.6, 0.7, 0.8))
    numbers = [(m.score, m.version, m.tokens, m.device_seconds) for m in found]
    self.assertEqual(
        numbers,
        [
            (0.3, 'v0', 100, 1.0),
            (0.5, 'v0', 100, 1.0),
            (0.51, 'v1', 180, 4.0),
            (0.6, 'v2', 220, 7.0),
            (0.7, 'v2', 220, 7.0),
        ],
    )

  def test_a_run_that_learned_nothing(self):
    run = samples.run(samples.record(records.Train, version='v0'))
    self.assertEqual(milestones.reached(run), [])


if __name__ == '__main__':
  absltest.main()
