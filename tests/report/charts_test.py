from absl.testing import absltest

from evojax.ledger import records
from evojax.report import charts
from tests.ledger import samples


def _arm(role, trial, pair, level):
  return samples.record(
      records.RacedArm,
      folder=f'arms/{role}-{trial}-{pair}',
      role=role,
      trial=trial,
      pair=pair,
      outcome=(level,) * 3,
  )


def _rows(number, trials, left):
  """A round of the incumbent and some trials; `left` ends with it."""
  standings = [samples.record(records.Standing, trial=t) for t in trials]
  arms = [_arm('incumbent', None, 10 * number + k, 0.5) for k in range(2)]
  own = [_arm('candidate', t, 10 * number, 0.4 + t / 10) for t in trials]
  yield samples.record(
      records.Race,
      round=number,
      arms=(*arms, *own),
      standings=tuple(standings),
  )
  yield samples.record(
      records.Promote,
      version=f'v{number + 1}',
      parent=f'v{number}',
      round=number,
      sources=tuple(
          samples.record(records.Source, folder=arm.folder) for arm in arms
      ),
  )
  yield from samples.trial(left, 'v0', '', -0.01)


class RaceTest(absltest.TestCase):

  def test_versions_and_drops_are_marked(self):
    # Trial 0 leaves after the first of two rounds, trial 1 after the second.
    base = samples.record(records.Train, version='v0', outcome=(0.2, 0.3, 0.4))
    later = samples.trial(1, 'v0', '', -0.01)[:2]  # Proposed before the race.
    run = samples.run(base, *later, *_rows(0, (0, 1), 0), *_rows(1, (1,), 1))
    chart = charts.training(run)
    at = lambda mark: round(mark.points[0][0] * 9)  # Of 9 updates.
    crosses = [m for m in chart.marks if m.text == '×']
    self.assertEqual(
        [(at(m), m.title.partition(' of ')[2].split(',')[0]) for m in crosses],
        [(6, 'trial 0'), (9, 'trial 1')],
    )
    dots = [m for m in chart.marks if m.kind == 'dot']
    self.assertEqual(
        [(at(m), m.title) for m in dots],
        [
            (3, 'v0: seed harness'),
            (6, 'v1: 2 arms of the incumbent'),
            (9, 'v2: 2 arms of the incumbent'),
        ],
    )
    names = [m.text for m in chart.marks if m.text.startswith('v')]
    self.assertEqual(names, ['v0', 'v1', 'v2'])


if __name__ == '__main__':
  absltest.main()
