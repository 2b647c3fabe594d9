"""The conditions under which a kept change gets a shadow."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections

from evojax.evolve import opening
from evojax.evolve import recorder as recorder_lib
from evojax.evolve import skills
from evojax.evolve.steps import shadow
from evojax.ledger import budget
from evojax.ledger import chain
from evojax.ledger import history as history_lib
from evojax.ledger import records
from tests.ledger import samples


def trials(number, mends):
  """The trials of a run, of which one may repair a fault."""
  change = ('reward.weights.length', -2.0, 0.0)
  remedy = records.Remedy(setting='weight', part='length', value=0.0)
  finding = samples.record(
      records.Finding, severity='warning', remedies=(remedy,)
  )
  delta = samples.record(records.Delta, changes=(change,))
  return [
      history_lib.Trial(
          index=n,
          number=n,
          seconds={},
          diagnose=samples.record(
              records.Diagnose, findings=(finding,) if found else ()
          ),
          design=samples.record(records.Design, delta=delta),
      )
      for n, found in ((number, mends), (number + 1, not mends))
  ]


class NeededTest(parameterized.TestCase):

  @parameterized.parameters(
      # The incumbent's arms rose by 6 points, which makes 18 in 3 rounds.
      ((0.30, 0.32), (0.34, 0.36), 0.17, 3, True, True),
      ((0.30, 0.32), (0.34, 0.36), 0.19, 3, True, False),
      ((0.30, 0.32), (0.34, 0.36), 0.17, 0, True, False),  # No horizon.
      ((0.30, 0.28), (0.26, 0.24), 0.01, 3, True, False),  # It does harm.
      # The line through these rises by 4.8 points, and by up to 24.6: Student's
      # t with 2 degrees of freedom is 2.92.
      ((0.30, 0.38), (0.30, 0.38), 0.15, 3, True, False),
      ((0.30, 0.38), (0.30, 0.38), 0.15, 3, False, True),
      ((0.30, 0.38), (0.30, 0.38), 0.95, 3, False, False),
  )
  def test_only_where_it_could_catch_up(
      self, first, last, low, looks, mends, needed
  ):
    arms = tuple(
        samples.record(
            records.RacedArm,
            role='incumbent',
            trial=None,
            pair=pair,
            status='done',
            outcome=outcome,
        )
        for pair, outcome in enumerate((first, last))
    )
    race = samples.record(records.Race, arms=arms, standings=())
    verdict = samples.record(records.Verify, low=low, trial=3)
    run = mock.Mock(
        spec=opening.Run,
        config=ml_collections.ConfigDict({'evolve': {'horizon': looks}}),
        recorder=mock.Mock(),
    )
    run.recorder.history.trials = trials(3, mends)
    self.assertEqual(shadow.is_needed(run, race, verdict), needed)

  @parameterized.parameters(
      # The shadow rises by 2 points a round.
      (0.10, 3, 'keep'),
      (0.01, 3, 'go_on'),
      # Behind by 3 points, and not sure of it: lost at the last look only. The
      # run's last round is not the last look.
      (-0.03, 3, 'go_on'),
      (-0.03, 1, 'drop'),
  )
  def test_decisions(self, ahead, horizon, decision):
    arms = tuple(
        samples.record(
            records.RacedArm,
            folder=f'arms/{pair}',
            role='shadow',
            trial=3,
            pair=pair,
            status='done',
            outcome=(0.30 + 0.01 * pair,) * 2,
        )
        for pair in range(3)
    )
    race = samples.record(records.Race, round=1, arms=arms, standings=())
    before = samples.record(records.Shadow, trial=3, look=0)
    evolve = dict(horizon=horizon, rounds=2, policy='chain')
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    evidence = skills.Evidence('run', 3, 'math', '0' * 64, 0.05, 0.02, 0.08)
    scale = {'optim.learning_rate': ('scale', 3.0)}
    skill = skills.Skill('slow_learning', 'Why.', scale, '', '', (evidence,))
    file = skills.write(path / 'skills', skill)
    rows = {
        records.Open: samples.record(records.Open, config={'name': 'run'}),
        records.Accumulate: samples.record(
            records.Accumulate, skill=skill.sha256
        ),
    }
    run = mock.Mock(
        spec=opening.Run,
        config=ml_collections.ConfigDict({'name': 'run 2', 'evolve': evolve}),
        path=path,
        recorder=mock.Mock(find=lambda kind, **_: rows[kind]),
    )
    run.recorder.history.trials = trials(3, True)
    state = mock.Mock(checkpoint='', end='', arm=arms[-1])
    # The former harness minus the policy.
    wide = 0.05 if ahead < 0 else 0.001
    found = ([-ahead, -ahead - wide, -ahead + wide], [0.001] * 3)
    with (
        mock.patch.object(shadow.pairs, 'differences', return_value=found),
        mock.patch.object(shadow.promote, 'trained_on', return_value=arms),
        mock.patch.object(shadow.promote, 'state_of', return_value=state),
    ):
      looked = shadow.look(run, before, race)
    self.assertEqual(looked.decision, decision)
    self.assertEqual('out of reach' in looked.reason, decision == 'keep')
    # A change that is taken back leaves no skill.
    self.assertEqual(file.exists(), decision != 'drop')


class PaidTest(parameterized.TestCase):

  def _run(self, *rows):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    recorder = recorder_lib.Recorder(
        chain.Ledger(pathlib.Path(folder, 'ledger.jsonl')),
        budget.Budget(),
        lambda: None,
        lambda: None,
    )
    for row in rows:
      recorder.append(row)
    return mock.Mock(spec=opening.Run, recorder=recorder)

  @parameterized.parameters((2.0, True), (1.9, False))
  def test_the_incumbent_and_the_shadow_are_paid_for(self, payable, trains):
    going = samples.record(records.Shadow, trial=3, look=1, decision='go_on')
    run = self._run(going)
    with mock.patch.object(shadow.costs, 'payable', return_value=payable):
      found = shadow.paid(run, 7)
      self.assertEqual(found is not None, trains)
      # A process that continues the round finds the same.
      self.assertEqual(shadow.paid(run, 7), found)
    last = run.recorder.find(records.Shadow)
    self.assertEqual(last.decision, 'go_on' if trains else 'unchecked')
    self.assertLen(run.recorder.rows, 1 if trains else 2)
    if not trains:
      self.assertIn('evolve.tokens', last.reason)
      self.assertIn('horizon not checked', run.say.call_args.args[0])

  def test_without_a_shadow_nothing_is_left(self):
    for rows in ((), (samples.record(records.Shadow, decision='keep'),)):
      run = self._run(*rows)
      shadow.leave(run, 'the run ended')
      self.assertLen(run.recorder.rows, len(rows))


if __name__ == '__main__':
  absltest.main()
