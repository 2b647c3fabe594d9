import pathlib
import tempfile

from absl.testing import absltest

from evojax.ledger import history
from evojax.ledger import records
from tests.ledger import samples
from tests.report import synthetic


class HistoryTest(absltest.TestCase):

  def _run(self, *found):
    """A run of v0 and what follows: trials, and (version, its parent)."""
    rows = [samples.record(records.Train, version='v0')]
    for each in found:
      if isinstance(each, list):
        rows += each
        continue
      version, parent = each
      made = dict(version=version, parent=parent)
      rows.append(samples.record(records.Promote, **made))
    return samples.run(*rows)

  def test_lineage_of_rounds(self):
    # v1 is what a round left of v0's harness; v2 changes it, and v3 goes on.
    run = self._run(
        samples.trial(0, 'v0', '', -0.01),
        ('v1', 'v0'),
        samples.trial(1, 'v0', 'v2', 0.03),
        ('v2', 'v1'),
        ('v3', 'v2'),
    )
    self.assertEqual(run.head, 'v3')
    self.assertEqual(run.lineage, ['v0', 'v1', 'v2', 'v3'])
    self.assertAlmostEqual(run.levels['v1'], 0.0)
    self.assertAlmostEqual(run.levels['v3'], 0.03)
    self.assertAlmostEqual(run.levels['trial 0'], -0.01)
    self.assertEqual(run.parents['trial 0'], 'v0')
    self.assertEqual([t.name for t in run.kept], ['v2'])

  def test_the_arms_of_a_version_have_one_harness(self):
    arms = [
        samples.record(records.RacedArm, folder=f'arms/{name}', harness=harness)
        for name, harness in zip(('i0', 'i1', 'c2', 'c3'), 'aabb')
    ]
    sources = [
        samples.record(records.Source, folder=arm.folder, weight=1.0)
        for arm in arms
    ]
    made = lambda name, folder, *of: samples.record(
        records.Promote,
        version=name,
        folder=f'arms/{folder}',
        sources=tuple(of),
    )
    run = samples.run(
        samples.record(records.Train, version='v0', folder='arms/v0'),
        samples.record(records.Race, round=0, arms=tuple(arms)),
        # The kept candidate continues arms of the incumbent.
        made('v1', 'c3', *sources),
        # A kept diagnostic trains nothing.
        made('v2', 'c3'),
        made('v3', 'i1', *sources[:2]),
    )
    of = lambda name: run.arms_of(run.version(name))
    self.assertEqual(of('v0'), ['arms/v0'])
    self.assertEqual(of('v1'), ['arms/c2', 'arms/c3'])
    self.assertEqual(of('v2'), ['arms/c2', 'arms/c3'])
    self.assertEqual(of('v3'), ['arms/i0', 'arms/i1'])

  def test_the_arms_that_a_version_continues(self):
    def before(name, checkpoint='arms/v0/checkpoints/step_000008'):
      arm = lambda name, harness: samples.record(
          records.RacedArm, folder=f'arms/{name}', harness=harness
      )
      made = lambda name, parent, folder, harness: samples.record(
          records.Promote,
          version=name,
          parent=parent,
          folder=f'arms/{folder}',
          harness=harness,
          sources=(
              samples.record(
                  records.Source, folder=f'arms/{folder}', weight=1.0
              ),
          ),
      )
      run = samples.run(
          samples.record(
              records.Train,
              version='v0',
              parent=None,
              folder='arms/v0',
              harness='a',
              checkpoint=checkpoint,
          ),
          samples.record(
              records.Race,
              arms=(arm('r0', 'a'), arm('r1', 'a'), arm('r2', 'b')),
          ),
          made('v1', 'v0', 'r0', 'a'),
          made('v2', 'v1', 'r1', 'a'),
          made('v3', 'v2', 'r2', 'b'),
          # A kept diagnostic trains nothing, and changes the harness.
          made('v4', 'v2', 'r1', 'c'),
      )
      return run.arms_before(run.version(name))

    self.assertEqual(before('v0'), [])
    self.assertEqual(before('v1'), ['arms/v0'])
    self.assertEqual(before('v2'), ['arms/r0'])
    self.assertEqual(before('v3'), [])  # They had another harness.
    self.assertEqual(before('v4'), ['arms/r0'])
    # Its training was left out: rounds start from the untrained policy.
    self.assertEqual(before('v1', 'versions/base/checkpoints/step_0'), [])

  def test_a_parent_that_nobody_knows_is_the_base(self):
    # Also one that only comes later: there must be no cycle.
    run = self._run(('v1', 'v2'), ('v2', 'v1'))
    self.assertEqual(run.lineage, ['v0', 'v1', 'v2'])

  def test_tokens_of_a_version_0_that_was_left_out(self):
    def uses(checkpoint):
      train = samples.record(
          records.Train,
          folder='arms/v0',
          checkpoint=checkpoint,
          sampled_tokens=70,
      )
      promote = samples.record(records.Promote, sampled_tokens=30)
      run = samples.run(train, promote)
      found = run.tokens_by_use
      return run.policy_tokens, found['policy'], found['incumbents']

    found = uses('arms/v0/checkpoints/step_000008')
    self.assertEqual(found, (100, 70, 0))
    # Rounds start from the untrained policy.
    found = uses('versions/base/checkpoints/step_000000')
    self.assertEqual(found, (30, 0, 70))

  def test_a_round_that_taught_nothing_is_no_training(self):
    arm = samples.record(
        records.RacedArm, folder='arms/r0', role='incumbent', sampled_tokens=9
    )
    empty = samples.record(
        records.Promote, version='v1', folder='arms/r0', sources=(), round=0
    )
    run = samples.run(samples.record(records.Race, arms=(arm,)), empty)
    self.assertEqual(run.policy_arms, [])
    self.assertEqual(run.tokens_by_use['policy'], 0)
    self.assertEqual(run.tokens_by_use['incumbents'], 9)

  def test_how_far_a_trial_got(self):
    proposal = samples.record(records.Hypothesize, trial=0, proposer='rules')
    refused = records.Admit(trial=0, reasons=('constant',))
    place = records.Queued(
        trial=0, predicted=None, enters=False, reason='hopeless'
    )
    waits = samples.record(records.Race, queue=(place,))
    for found, status, kind in (
        ([proposal], 'running', 'running'),
        ([proposal, refused], 'refused', 'failed'),
        ([proposal, waits], 'not raced', 'waiting'),
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

  def test_diagnoses_while_a_trial_was_raced(self):
    diagnosis = lambda trial: samples.record(records.Diagnose, trial=trial)
    of = lambda kind, n: samples.record(kind, trial=n)
    begins = lambda n: [
        diagnosis(n),
        of(records.Design, n),
        of(records.Backtest, n),
    ]
    run = samples.run(
        *begins(0),
        *begins(1),
        diagnosis(2),
        of(records.Verify, 0),
        diagnosis(3)
    )
    later = [[d.trial for d in trial.later] for trial in run.trials]
    self.assertEqual(later, [[1, 2], [2, 3]])

  def test_the_later_of_two_rows_counts_and_both_cost(self):
    first, second = (
        samples.record(records.Verify, trial=0, status=status)
        for status in ('crash', 'discard')
    )
    run = history.History([samples.row(first, 2.0), samples.row(second, 3.0)])
    (trial,) = run.trials
    self.assertEqual(trial.status, 'discard')
    self.assertEqual(dict(trial.seconds), {'verify': 5.0})

  def test_rounds_that_ask_dev_problems_are_counted(self):
    run = samples.run(
        samples.record(records.Race, round=0, scored_by='dev'),
        samples.record(records.Race, round=1, scored_by='rollouts'),
    )
    self.assertEqual(run.dev_draws, 1)

  def test_a_candidate_has_its_own_arms_and_those_beside_it(self):
    arm = lambda trial, folder, tokens: samples.record(
        records.RacedArm,
        role='incumbent' if trial is None else 'candidate',
        trial=trial,
        folder=folder,
        sampled_tokens=tokens,
    )
    standing = lambda trial: samples.record(records.Standing, trial=trial)
    first = samples.record(
        records.Race,
        round=0,
        arms=(arm(None, 'i', 10), arm(0, 'a', 20), arm(1, 'b', 30)),
        standings=(standing(0), standing(1)),
    )
    second = samples.record(
        records.Race,
        round=1,
        arms=(arm(None, 'j', 1), arm(1, 'c', 2)),
        standings=(standing(1),),
    )
    proposals = [
        samples.record(records.Hypothesize, trial=n, proposer='rules')
        for n in range(2)
    ]
    rows = [samples.row(r, 0.0) for r in proposals]
    rows += [samples.row(first, 8.0), samples.row(second, 3.0)]
    zero, one = history.History(rows).trials
    self.assertEqual([a.folder for a in zero.role('candidate')], ['a'])
    self.assertEqual([a.folder for a in one.arms], ['j', 'c'])
    # Half of the first round, and all of the second.
    self.assertEqual(dict(zero.seconds)['race'], 4.0)
    self.assertEqual(dict(one.seconds)['race'], 7.0)
    run = history.History(rows)
    self.assertEqual(run.tokens_by_trial, {0: 20, 1: 32})
    self.assertEqual(run.trained_tokens, 63)

  def test_a_horizon_that_was_not_checked(self):
    kept = samples.trial(0, 'v0', 'v1', 0.03)

    def of(*rows, horizon=3):
      config = {'evolve': {'horizon': horizon}}
      run = samples.run(samples.record(records.Open, config=config), *rows)
      return run.unchecked(run.trials[0])

    shadow = lambda decision: samples.record(
        records.Shadow, trial=0, decision=decision, reason='tokens'
    )
    self.assertEqual(of(*kept, shadow('keep')), '')
    self.assertEqual(of(*kept, shadow('drop')), '')
    self.assertEqual(of(*kept, shadow('unchecked')), 'tokens')
    self.assertIn('still', of(*kept, shadow('go_on')))
    self.assertIn('could not catch up', of(*kept))
    self.assertEqual(of(*kept, horizon=0), 'evolve.horizon is 0')
    # A change that was not kept, or trains nothing, has no horizon.
    self.assertEqual(of(*samples.trial(0, 'v0', '', 0.03)), '')
    self.assertEqual(of(*samples.trial(0, 'v0', 'v1')), '')

  def test_read(self):
    with tempfile.TemporaryDirectory() as folder:
      workdir = pathlib.Path(folder)
      synthetic.write(workdir, trials=1, evidence=False)
      run = history.read(workdir)
      self.assertEqual((run.dropped, run.ended), (0, 'rounds'))
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
