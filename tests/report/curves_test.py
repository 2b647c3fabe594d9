"""Curves from the metrics of a training run."""

import json
import pathlib
import tempfile

from absl.testing import absltest

from evojax.report import curves


def write(folder, rows) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  text = ''.join(json.dumps(row) + '\n' for row in rows)
  (folder / 'metrics.jsonl').write_text(text)


def _lines(rows) -> list[curves.Line]:
  return [curves.Line('a', 'lineage', rows)]


class CurvesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

  def test_rows_of_a_step_are_one_and_what_is_torn_is_left_out(self):
    write(self.root, [dict(step=1, reward=0.5), dict(step=2, reward=0.6)])
    with (self.root / 'metrics.jsonl').open('a') as file:
      file.write('{"step": 2, "dev/avg_at_k": 0.4}\n[1]\n{"step": 3, "rew')
    self.assertEqual(
        curves.read(self.root),
        [
            {'step': 1, 'reward': 0.5},
            {'step': 2, 'reward': 0.6, 'dev/avg_at_k': 0.4},
        ],
    )
    self.assertEqual(curves.read(self.root / 'absent'), [])

  def test_arms_go_on_from_each_other(self):
    write(self.root / 'v0', [dict(step=1), dict(step=2)])
    write(self.root / 'v1', [dict(step=1), dict(step=2)])
    folders = [self.root / 'v0', self.root / 'absent', self.root / 'v1']
    rows, last = curves.joined(folders)
    self.assertEqual([row['step'] for row in rows], [1, 2, 3, 4])
    self.assertEqual(last, 4)

  def test_one_chart_for_each_number_that_is_there(self):
    rows = [
        dict(
            step=step,
            reward=step / 4,
            outcome=0.5,
            approx_kl=0.0,
            grad_norm=None,  # Not finite.
            clip_low=0.01,
            clip_high=0.02 * step,
            tis_masked=0.25,
            rejected_tokens=step / 8,
            learning_rate=1e-4,
            staleness=0,
            part_outcome=0.5,
            part_format=1.0,
            note='text',
        )
        for step in (1, 2, 3)
    ]
    found = {curve.name: curve for curve in curves.curves(_lines(rows))}
    # A constant metric is not shown, unless a value of 0 is informative.
    self.assertEqual(
        list(found),
        [
            'reward',
            'solved',
            'part format',
            'part outcome',
            'KL of the update',
            'clip fraction',
            'bounded weights',
            'rejected',
        ],
    )
    self.assertEqual(found['bounded weights'].last, '25.0 %')
    self.assertEqual(found['reward'].last, '0.75')
    self.assertEqual(found['clip fraction'].last, '7.0 %')  # Both bounds.
    rows[1]['learning_rate'] = 5e-5
    found = [curve.name for curve in curves.curves(_lines(rows))]
    self.assertIn('learning rate', found)

  def test_a_long_training_is_drawn_by_means(self):
    rows = [dict(step=step, reward=step % 2) for step in range(1, 10_001)]
    (curve,) = curves.curves(_lines(rows))
    thin = next(m for m in curve.chart.marks if 'thin' in m.class_)
    self.assertLessEqual(len(thin.points), 300)
    self.assertLess(abs(float(curve.last) - 0.5), 0.1)

  def test_dev_scores_lie_on_the_solved_share(self):
    score = {'dev/avg_at_k': 0.4, 'dev/avg_at_k_low': 0.3}
    rows = [
        score | {'step': 0, 'dev/avg_at_k_high': 0.5},
        dict(step=1, outcome=0.45),
        dict(step=2, outcome=0.55),
    ]
    (curve,) = curves.curves(_lines(rows))
    kinds = [mark.kind for mark in curve.chart.marks if 'rule' != mark.class_]
    self.assertEqual(kinds.count('dot'), 1)
    self.assertIn('whisker', [mark.class_ for mark in curve.chart.marks])

  def test_the_axis_of_a_share_ends_at_100_percent(self):
    rows = [dict(step=1, goodput=0.97), dict(step=2, goodput=1.0)]
    (curve,) = curves.curves(_lines(rows))
    self.assertEqual(curve.chart.y.high, 1)

  def test_time(self):
    rows = [
        {'step': 1, 'seconds/rollout': 1.0, 'seconds/other': 3.0},
        {'step': 2, 'seconds/rollout': 2.0, 'seconds/update': 2.0},
        {'step': 3, 'seconds/sync': 1.0, 'seconds/new_phase': 1.0},
    ]
    groups = {name: seconds for name, seconds, _ in curves.time_groups(rows)}
    self.assertEqual(groups['sampling'], 4.0)
    self.assertEqual(groups['update'], 2.0)
    self.assertEqual(groups['start, evidence, checkpoints'], 4.0)
    chart = curves.time_shares(rows)
    columns = [m for m in chart.marks if m.kind == 'column']
    self.assertLen(columns, 6)
    # The columns of a step extend from the bottom to the top.
    self.assertAlmostEqual(columns[1].points[0][1], 0.0)
    self.assertIsNone(curves.time_shares(rows[:1]))


if __name__ == '__main__':
  absltest.main()
