import pathlib
import tempfile

from absl.testing import absltest

from evojax.ledger import history
from evojax.ledger import records
from tests.ledger import samples
from tests.report import synthetic


class HistoryTest(absltest.TestCase):

  def _run(self, *trials, head):
    """A run of v0 and these trials."""
    return samples.run(
        samples.record(records.Train, version='v0'),
        *(record for trial in trials for record in trial),
        samples.record(records.Accumulate, trial=len(trials) - 1, head=head),
    )

  def test_lineage_of_a_tree(self):
    # v0 - v1 - v2 and v0 - v3: training goes on from v2.
    run = self._run(
        samples.trial(0, 'v0', 'v1', 0.02),
        samples.trial(1, 'v1', '', -0.01),
        samples.trial(2, 'v1', 'v2', 0.03),
        samples.trial(3, 'v0', 'v3', 0.01),
        head='v2',
    )
    self.assertEqual(run.lineage, ['v0', 'v1', 'v2'])
    self.assertAlmostEqual(run.levels['v2'], 0.05)  # 0.02 + 0.03.
    self.assertAlmostEqual(run.levels['trial 1'], 0.01)  # 0.02 - 0.01.
    self.assertAlmostEqual(run.levels['v3'], 0.01)
    self.assertEqual(run.parents['v3'], 'v0')
    self.assertEqual([t.name for t in run.kept], ['v1', 'v2', 'v3'])

  def test_a_parent_that_nobody_knows_is_the_base(self):
    # Also one that only comes later: there must be no cycle.
    run = self._run(
        samples.trial(0, 'v2', 'v1', 0.02),
        samples.trial(1, 'v1', 'v2', 0.01),
        head='v2',
    )
    self.assertEqual(run.lineage, ['v0', 'v1', 'v2'])

  def test_how_far_a_trial_got(self):
    proposal = samples.record(records.Hypothesize, trial=0, proposer='rules')
    refused = records.Admit(trial=0, reasons=('constant',))
    for found, status, kind in (
        ([proposal], 'running', 'running'),
        ([proposal, refused], 'refused', 'failed'),
        (samples.trial(0, 'v0', ''), 'discard', 'discard'),
        (samples.trial(0, 'v0', 'v1'), 'keep', 'keep'),
    ):
      (trial,) = samples.run(*found).trials
      self.assertEqual((trial.status, trial.kind), (status, kind))

  def test_nothing_proposed_is_no_trial(self):
    run = samples.run(
        samples.record(records.Diagnose, trial=0),
        records.Hypothesize(trial=0, version='v0'),
    )
    self.assertEmpty(run.trials)

  def test_the_later_of_two_rows_counts_and_both_cost(self):
    first, second = (
        samples.record(records.Verify, trial=0, status=status)
        for status in ('crash', 'discard')
    )
    run = history.History([samples.row(first, 2.0), samples.row(second, 3.0)])
    (trial,) = run.trials
    self.assertEqual(trial.status, 'discard')
    self.assertEqual(dict(trial.seconds), {'verify': 5.0})

  def test_dev_problems_are_drawn_for_trials_that_score(self):
    arm = lambda status: samples.record(records.TrialArm, status=status)
    run = samples.run(
        samples.record(records.Trial, arms=(arm('done'), arm('crash'))),
        samples.record(records.Trial, trial=1, arms=(arm('crash'),)),
        samples.record(records.Trial, trial=2),
    )
    self.assertEqual(run.dev_draws, 1)

  def test_tokens_of_controls_count_once(self):
    arm = lambda folder: samples.record(
        records.TrialArm, folder=folder, sampled_tokens=10
    )
    run = samples.run(
        samples.record(records.Train, sampled_tokens=1000),
        samples.record(records.Trial, arms=(arm('control'), arm('a'))),
        samples.record(records.Trial, trial=1, arms=(arm('control'), arm('b'))),
        samples.record(records.Retrain, sampled_tokens=500),
    )
    self.assertEqual(run.trained_tokens, 1530)

  def test_read(self):
    with tempfile.TemporaryDirectory() as folder:
      workdir = pathlib.Path(folder)
      synthetic.write(workdir, trials=1, evidence=False)
      run = history.read(workdir)
      self.assertEqual((run.dropped, run.ended), (0, 'trials'))
      self.assertEqual((run.head, len(run.rows)), ('v1', 14))
      with open(workdir / 'ledger.jsonl', 'ab') as file:
        file.write(b'{"hash":')
      self.assertEqual(history.read(workdir).dropped, 8)

  def test_a_row_that_is_no_record_is_named(self):
    with tempfile.TemporaryDirectory() as folder:
      workdir = pathlib.Path(folder)
      data = {'trial': 0, 'reasons': 'none'}
      synthetic.write_ledger(
          workdir / 'ledger.jsonl', [('admit', data, synthetic.measured(1.0))]
      )
      with self.assertRaisesRegex(
          ValueError, r"ledger\.jsonl: row 0 .* Admit\.reasons = 'none'"
      ):
        history.read(workdir)


if __name__ == '__main__':
  absltest.main()
