from absl.testing import absltest

from evojax.ledger import records
from evojax.report import lineage
from tests.ledger import samples


def _round(number, trial, *shadow):
  """Return the round of one candidate, and the resulting version."""
  standing = samples.record(records.Standing, trial=trial)
  yield samples.record(records.Race, round=number, standings=(standing,))
  yield from shadow
  yield samples.record(
      records.Promote,
      version=f'v{number + 1}',
      parent=f'v{number}',
      round=number,
  )


def _run():
  """Return a run: v1 is kept, v2 trains on, v3 undoes the change."""
  return samples.run(
      samples.record(records.Train, version='v0'),
      *_round(0, 0),
      *samples.trial(0, 'v0', 'v1', 0.04),
      *_round(1, 1),
      *samples.trial(1, 'v1', '', -0.01),
      *_round(
          2,
          2,
          samples.record(
              records.Shadow, trial=0, round=2, look=2, decision='drop'
          ),
      ),
      *samples.trial(2, 'v2', '', 0.01),
  )


class LineageTest(absltest.TestCase):

  def test_a_change_taken_back_takes_its_effect_with_it(self):
    run = _run()
    self.assertEqual(run.lineage, ['v0', 'v1', 'v2', 'v3'])
    levels = [round(run.levels[name], 6) for name in run.lineage]
    self.assertEqual(levels, [0.0, 0.04, 0.04, 0.0])
    self.assertAlmostEqual(run.levels['trial 2'], 0.05)

  def test_the_trunk_has_no_gap(self):
    # Versions that only trained on are part of the trunk; so is the step down.
    tree = lineage.chart(_run())
    trunk = [mark.points for mark in tree.marks if mark.class_ == 'trunk']
    # Segments as (x, y) and (x, y), as fractions of the chart.
    steps = {tuple((round(x, 6), round(y, 6)) for x, y in s) for s in trunk}
    place = lambda x, y: (round(tree.x(x), 6), round(1 - tree.y(y), 6))
    self.assertEqual(
        steps,
        {
            (place(-1.0, 0.0), place(0.0, 0.0)),  # v0
            (place(0.0, 0.0), place(0.0, 0.04)),  # The change of v1.
            (place(0.0, 0.04), place(1.5, 0.04)),  # v1
            (place(1.5, 0.04), place(2.5, 0.04)),  # v2
            (place(2.5, 0.04), place(2.5, 0.0)),  # It is undone.
        },
    )

  def test_the_end_of_an_interval_below_the_chart_is_written(self):
    run = samples.run(
        samples.record(records.Train, version='v0'),
        *samples.trial(0, 'v0', '', -0.03, low=-0.43, high=0.37),
        *samples.trial(1, 'v0', '', 0.02, low=-0.04, high=0.08),
    )
    tree = lineage.chart(run)
    cut = [mark for mark in tree.marks if mark.text.startswith('▾')]
    self.assertEqual([mark.text for mark in cut], ['▾ −43.0'])
    self.assertAlmostEqual(cut[0].points[0][0], tree.x(0.0))


if __name__ == '__main__':
  absltest.main()
