from absl.testing import absltest

from evojax.ledger import records
from evojax.report import charts
from tests.ledger import samples


def _arm(role, trial, pair, level, start, updates=3):
  folder = f'arms/{role}-{trial}-{pair}'
  return samples.record(
      records.RacedArm,
      folder=folder,
      role=role,
      trial=trial,
      pair=pair,
      outcome=(level,) * updates,
      start=start,
      end=f'end of {folder}',
  )


def _round(number, arms, trials, won, left):
  """Return a round of arms; `won` join the policy, trial `left` ends here."""
  standings = [samples.record(records.Standing, trial=t) for t in trials]
  yield samples.record(
      records.Race,
      round=number,
      start=arms[0].start,
      arms=tuple(arms),
      standings=tuple(standings),
  )
  yield samples.record(
      records.Promote,
      version=f'v{number + 1}',
      parent=f'v{number}',
      round=number,
      sources=tuple(
          samples.record(records.Source, folder=arm.folder) for arm in won
      ),
  )
  yield from samples.trial(left, 'v0', '', -0.01)


def _means(number, trials, left):
  """Return a round whose arms all start from one state."""
  start = f'state {number}'
  arms = [
      _arm('incumbent', None, 10 * number + k, 0.5, start) for k in range(2)
  ]
  own = [_arm('candidate', t, 10 * number, 0.4 + t / 10, start) for t in trials]
  return _round(number, arms + own, trials, arms, left)


def _chain(number, trial):
  """Return a round whose pairs each start where the incumbent's last arm
  ended."""
  first = _arm('incumbent', None, 0, 0.5, 'state')
  second = _arm('incumbent', None, 1, 0.7, first.end)
  own = [
      _arm('candidate', trial, 0, 0.4, 'state'),
      _arm('candidate', trial, 1, 0.6, first.end),
  ]
  arms = [first, second, *own]
  return _round(number, arms, [trial], [first, second], trial)


def _marks(chart, updates):
  """Return the places of crosses and dots, in updates, with titles."""
  at = lambda mark: round(mark.points[0][0] * updates)
  crosses = [m for m in chart.marks if m.text == '×']
  dots = [m for m in chart.marks if m.kind == 'dot']
  trial = lambda m: m.title.partition(' of ')[2].split(',')[0]
  return (
      [(at(m), trial(m)) for m in crosses],
      [(at(m), m.title) for m in dots],
  )


class RaceTest(absltest.TestCase):
  base = samples.record(records.Train, version='v0', outcome=(0.2, 0.3, 0.4))

  def test_versions_and_drops_are_marked(self):
    # Trial 0 leaves after the first of two rounds, trial 1 after the second.
    later = samples.trial(1, 'v0', '', -0.01)[:2]  # Proposed before the race.
    run = samples.run(
        self.base, *later, *_means(0, (0, 1), 0), *_means(1, (1,), 1)
    )
    chart = charts.training(run)
    crosses, dots = _marks(chart, 9)
    self.assertEqual(crosses, [(6, 'trial 0'), (9, 'trial 1')])
    self.assertEqual(
        dots,
        [
            (3, 'v0: seed harness'),
            (6, 'v1: 2 arms of the incumbent'),
            (9, 'v2: 2 arms of the incumbent'),
        ],
    )
    names = [m.text for m in chart.marks if m.text.startswith('v')]
    self.assertEqual(names, ['v0', 'v1', 'v2'])

  def test_arms_of_a_chain_follow_each_other(self):
    chart = charts.training(samples.run(self.base, *_chain(0, 0)))
    crosses, dots = _marks(chart, 9)
    self.assertEqual(crosses, [(9, 'trial 0')])
    self.assertEqual([at for at, _ in dots], [3, 9])
    lines = {
        (m.class_, m.title.split(',')[-1]): [round(x * 9) for x, _ in m.points]
        for m in chart.marks
        if m.kind == 'line' and 'arms/' in m.title
    }
    spans = {title: (x[0], x[-1]) for (_, title), x in lines.items()}
    self.assertEqual(
        spans,
        {
            'arms/incumbent-None-0': (4, 6),
            'arms/incumbent-None-1': (7, 9),
            'arms/candidate-0-0': (4, 6),
            'arms/candidate-0-1': (7, 9),
        },
    )
    bold = [
        [round(x * 9) for x, _ in m.points]
        for m in chart.marks
        if m.kind == 'line' and 'bold' in m.class_ and 'round 0' in m.title
    ]
    # The incumbent's arms are one line, the candidate's are two.
    self.assertCountEqual(bold, [[4, 5, 6, 7, 8, 9], [4, 5, 6], [7, 8, 9]])


if __name__ == '__main__':
  absltest.main()
