import dataclasses
import io
import json

from absl.testing import absltest
import numpy as np
from rich import console as console_lib

from evojax.eval import evaluate
from evojax.eval import report
from evojax.ledger import records
from tests.eval import fakes


def made(outcomes, modes, step, **changes):
  outcomes = np.array(outcomes, bool)
  problems = len(outcomes)
  values = dict(
      split='sealed',
      seed=7,
      step=step,
      policy_version=step,
      problem_ids=tuple(f'{p:016x}' for p in range(problems)),
      families=('[b]sums', 'gcd') * (problems // 2),
      outcomes=outcomes,
      graded=np.ones(outcomes.shape, bool),
      modes=np.array(modes, np.int32),
      mode_codes=fakes.MODES,
      avg_at_k=records.Estimate(float(outcomes.mean()), 0.1, 0.2, 0.612),
      pass_at_k={1: 0.25, 2: 0.5},
      n_tokens=31.25,
      truncated=0.04,
      seconds=1.5,
  )
  return evaluate.EvalResult(**(values | changes))


# sums: direct (0/16), then steps (12/16). gcd: steps, 4/16, then 8/16.
BEFORE = made([[0, 0], [1, 0]] * 4 + [[0, 0]] * 8, [[0, 0], [1, 1]] * 8, 0)
AFTER = made([[1, 1], [1, 0]] * 6 + [[0, 0], [1, 0]] * 2, [[1, 1]] * 16, 50)


class ReportTest(absltest.TestCase):

  def test_hand_worked(self):
    result = report.report_gain(BEFORE, AFTER)
    # 4/32 and 20/32.
    self.assertEqual(result['before']['value'], 0.125)
    self.assertEqual(result['after']['value'], 0.625)
    self.assertEqual(result['gain']['value'], 0.5)
    self.assertLess(result['gain']['low'], 0.5)
    self.assertGreater(result['gain']['high'], 0.5)
    # Shares of direct 1/2 -> 0 and steps 1/2 -> 1; accuracy of direct 0, of
    # steps 4/16 -> 20/32: shift 1/2 (1/4 + 5/8) / 2 = 7/32, within
    # 3/4 (5/8 - 1/4) = 9/32.
    self.assertAlmostEqual(result['mode_shift'], 7 / 32, places=15)
    self.assertAlmostEqual(result['within_mode'], 9 / 32, places=15)
    # 16 completions are too few; both modes have them.
    self.assertIsNone(result['oracle'])
    sums, gcd = result['families']
    self.assertEqual((sums['family'], gcd['family']), ('[b]sums', 'gcd'))
    self.assertEqual((gcd['before'], gcd['after']), (0.25, 0.5))
    self.assertEqual((gcd['mode_shift'], gcd['within_mode']), (0, 0.25))
    # Another mode in all problems: the whole gain is a shift.
    self.assertEqual((sums['mode_shift'], sums['within_mode']), (0.75, 0))
    self.assertEqual(sums['problems'], 8)

  def test_oracle_is_of_the_base_policy(self):
    twice = lambda x, step: made(
        np.tile(x.outcomes, (2, 1)), np.tile(x.modes, (2, 1)), step
    )
    result = report.report_gain(twice(BEFORE, 0), twice(AFTER, 1))
    self.assertEqual(
        result['oracle'], {'mode': 'steps', 'accuracy': 0.25, 'rollouts': 32}
    )

  def test_gain_is_paired(self):
    # Problems differ, the gain does not.
    outcomes = np.tile(np.arange(4) < np.array([[1], [3]]), (8, 1))
    modes = np.ones(outcomes.shape)
    before = made(outcomes, modes, 0)
    after = made(np.roll(outcomes, 1, axis=1) | outcomes, modes, 1)
    # So many of all problems may have gained anything from -1 to 1.
    others = 1 - 0.05 ** (1 / 16)
    ends = {'low': 0.25 - others * 1.25, 'high': 0.25 + others * 0.75}
    self.assertEqual(
        report.report_gain(before, after)['gain'],
        {'value': 0.25, 'standard_error': 0.0, **ends},
    )

  def test_survives_json(self):
    result = report.report_gain(BEFORE, AFTER)
    text = json.dumps(result, allow_nan=False)
    self.assertEqual(json.loads(text), result)

  def test_other_problems_are_refused(self):
    other = dataclasses.replace(
        AFTER, seed=8, problem_ids=AFTER.problem_ids[::-1]
    )
    with self.assertRaisesRegex(ValueError, 'seed=7 .*seed=8'):
      report.report_gain(BEFORE, other)

  def _print(self, result):
    out = io.StringIO()
    report.print_gain(result, console_lib.Console(file=out, width=80))
    return out.getvalue()

  def test_printed(self):
    text = self._print(report.report_gain(BEFORE, AFTER))
    for expected in (
        'sealed: 16 problems x 2 samples',
        '12.5 %',
        '[20.0, 61.2]',
        '+50.0',
        'mode shift +21.9 + within a mode +28.1 points',
        'no mode of the base policy has at least 20 completions',
        '50.0 % → 0.0 %',
        # An accuracy without data.
        '0.0 % → –',
        # It must not be read as markup.
        '[b]sums',
    ):
      self.assertIn(expected, text)
    self.assertLessEqual(max(map(len, text.splitlines())), 80)
    self.assertNotIn('…', text)

  def test_scores_of_one_policy(self):
    out = io.StringIO()
    console = console_lib.Console(file=out, width=80)
    report.print_scores(BEFORE, console)
    lines = [' '.join(line.split()) for line in out.getvalue().splitlines()]
    for expected in (
        'sealed: 16 problems x 2 samples, seed 7; 95 % intervals',
        'Avg@2 interval pass@2 tokens truncated',
        '12.5 % [20.0, 61.2] 50.0 % 31.2 4.0 %',
        'direct 50.0 % 0.0 %',
        'steps 50.0 % 25.0 %',
        '[b]sums 8 0.0 %',
        'gcd 8 25.0 %',
    ):
      self.assertIn(expected, lines)

  def test_printed_without_modes(self):
    none = dict(modes=None, mode_codes=None)
    result = report.report_gain(
        dataclasses.replace(BEFORE, **none), dataclasses.replace(AFTER, **none)
    )
    self.assertIsNone(result['mode_shift'])
    self.assertIsNone(result['families'][0]['within_mode'])
    text = self._print(result)
    self.assertNotIn('oracle', text)
    self.assertIn('+50.0', text)


if __name__ == '__main__':
  absltest.main()
