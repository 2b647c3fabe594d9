"""The verdicts on the candidates of a round with fake arms."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections

from evojax.eval import paired
from evojax.eval import perturb
from evojax.eval import race as race_lib
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import recorder
from evojax.evolve import repairs
from evojax.evolve.steps import admit
from evojax.evolve.steps import hypothesize
from evojax.evolve.steps import verify
from evojax.harness import delta as delta_lib
from evojax.ledger import budget
from evojax.ledger import chain
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.ledger import rows as rows_lib
from tests.eval import fakes
from tests.ledger import samples


def standing(trial, mean, e_value, threshold=20.0, rounds=1):
  return samples.record(
      records.Standing,
      trial=trial,
      index=trial + 1,
      rounds=rounds,
      differences=(mean - 0.01, mean, mean + 0.01),
      errors=(0.01,) * 3,
      pairs=3,
      effect=mean,
      standard_error=0.006,
      low=mean - 0.02,
      high=mean + 0.02,
      e_value=e_value,
      threshold=threshold,
  )


def gate(status, value=0.02):
  gain = paired.Gain(value, 0.01, 2, value - 0.02, value + 0.02)
  return race_lib.Gate(status, gain, 'what perturbed problems say')


class AfterRaceTest(parameterized.TestCase):

  def _verdicts(self, *standings, gates=None, alerts=(), number=0, **options):
    """Return status by trial, for a round of a run with three rounds."""
    own = options.get('own', 1)
    arms = [
        samples.record(
            records.RacedArm,
            role='incumbent' if trial is None else 'candidate',
            trial=trial,
            folder=f'arms/{trial}',
            status=options.get('failed', {}).get(trial, 'done'),
        )
        for trial in (
            *[None] * own,
            *[s.trial for s in standings] * options.get('raced', own),
        )
    ]
    race = records.Race(
        round=number,
        version='v1',
        start='s',
        scored_by=options.get('scored_by', 'rollouts'),
        arms=tuple(arms),
        standings=standings,
        queue=options.get('queue', ()),
    )
    field = [
        history_lib.Trial(index=s.trial, number=s.trial, seconds={},
                          races=(race,))
        for s in standings
    ]  # fmt: skip
    field += [
        history_lib.Trial(index=q.trial, number=q.trial, seconds={})
        for q in race.queue
        if not q.enters
    ]
    evolve = {'rounds': 3, 'patience': 2}
    run = mock.Mock(
        spec=opening.Run,
        recorder=mock.Mock(),
        config=ml_collections.ConfigDict({'evolve': evolve}),
    )
    run.recorder.history.versions = ['v0', 'v1']
    run.recorder.history.races = [race]
    own = lambda run, arm: set(alerts) if arm.role == 'candidate' else {'old'}
    asked = []

    def perturbed(run, race, trial, standing):
      asked.append(trial.number)
      if gates and gates[trial.number] == 'spent':
        raise verify._SpentError('the budget is spent')
      return gates and gate(gates[trial.number])

    payable, unscored = options.get('payable', [float('inf')] * 2)
    pays = lambda *_, dev=False: payable if dev else unscored
    with (
        mock.patch.object(verify.costs, 'payable', pays),
        mock.patch.object(verify, '_criticals', own),
        mock.patch.object(verify, '_perturbed', perturbed),
        mock.patch.object(
            repairs,
            'severity_of',
            lambda trial, before=None: options.get('severities', {}).get(
                trial.number, ''
            ),
        ),
    ):
      found = verify.after_race(run, race, field, options.get('shadow'))
    self.asked, self.found = asked, found
    return {number: verdict.status for number, verdict in found.items()}

  def test_what_was_given_up_is_not_kept(self):
    passed = standing(0, 0.05, 30.0)
    found = self._verdicts(passed, own=4, raced=2)
    self.assertEqual(found, {0: 'discard'})
    (why,) = self.found[0].reasons
    self.assertEqual(why, 'given up after 2 of 4 pairs')
    self.assertEqual(self.asked, [])
    # All four pairs were trained, although only three have a difference.
    self.assertEqual(self._verdicts(passed, own=4), {0: 'keep'})

  def test_the_best_that_passes_is_kept(self):
    found = self._verdicts(
        standing(0, 0.03, 25.0), standing(1, 0.05, 20.0), standing(2, 0.06, 3.0)
    )
    self.assertEqual(found, {0: 'superseded', 1: 'keep', 2: 'superseded'})
    kept = self.found[1]
    self.assertEqual((kept.version, kept.effect, kept.pairs), ('v2', 0.05, 3))
    evidence, unseen = kept.reasons
    self.assertEqual(evidence, 'e-value 20 >= 20')
    self.assertStartsWith(unseen, 'not scored by a second judge')
    self.assertEqual(self.found[0].version, '')

  def test_what_is_not_clear_races_on(self):
    self.assertEqual(self._verdicts(standing(0, 0.03, 5.0)), {})
    self.assertEqual(self.asked, [])  # Perturbed problems cost samples.

  def test_what_the_tokens_do_not_pay_for_ends(self):
    # This round's two harnesses, and two of a further round, without the dev
    # scores that rollouts do not need.
    of = lambda *payable, **options: self._verdicts(
        standing(0, 0.03, 5.0), payable=payable, **options
    )
    self.assertEqual(of(3.9, 4.0), {})
    self.assertEqual(of(3.9, 3.9), {0: 'discard'})
    self.assertIn('the last', self.found[0].reasons[0])
    self.assertEqual(of(3.9, 4.0, scored_by='dev'), {0: 'discard'})
    self.assertEqual(of(4.0, 4.0, scored_by='dev'), {})

  def test_what_has_no_hope_or_is_in_the_worse_half_is_dropped(self):
    # 0.01 + 0.84 x 0.01 / sqrt(3) is below 2 points.
    self.assertEqual(self._verdicts(standing(0, 0.01, 1.0)), {0: 'discard'})
    self.assertIn('2 points is unlikely', self.found[0].reasons[0])
    found = self._verdicts(standing(0, 0.02, 2.0), standing(1, 0.03, 4.0))
    self.assertEqual(found, {0: 'discard'})
    self.assertIn('worse half', self.found[0].reasons[0])

  @parameterized.parameters('warning', 'critical')
  def test_a_repair_is_not_dropped_for_a_small_gain(self, severity):
    found = self._verdicts(standing(0, 0.01, 1.0), severities={0: severity})
    self.assertEqual(found, {})
    found = self._verdicts(standing(0, -0.01, 1.0), severities={0: severity})
    self.assertEqual(found, {0: 'discard'})
    self.assertIn('a gain is unlikely', self.found[0].reasons[0])

  @parameterized.parameters(
      ('critical', 'e-value 20 >= 20 against a loss of 2 points'),
      ('warning', 'e-value 20 >= 20'),
  )
  def test_what_a_repair_has_shown(self, severity, reason):
    self._verdicts(standing(0, 0.01, 20.0), severities={0: severity})
    self.assertEqual(self.found[0].reasons[0], reason)

  def test_the_last_round_ends_all(self):
    found = self._verdicts(standing(0, 0.03, 5.0), number=2)
    self.assertEqual(found, {0: 'discard'})

  @parameterized.parameters(
      ('holds', {0: 'keep'}),
      ('fails', {0: 'discard'}),
      ('open', {}),  # More pairs may decide.
  )
  def test_perturbed_problems(self, status, wanted):
    found = self._verdicts(standing(0, 0.05, 20.0), gates={0: status})
    self.assertEqual(found, wanted)
    if 0 in self.found:
      self.assertEqual(self.found[0].perturbed_effect, 0.02)
      self.assertEqual(self.found[0].perturbed_error, 0.01)

  def test_nothing_is_kept_after_the_last_audit(self):
    found = self._verdicts(standing(0, 0.05, 20.0), gates={0: 'spent'})
    self.assertEqual(found, {0: 'unverified'})
    verdict = self.found[0]
    self.assertEqual((verdict.version, verdict.perturbed_effect), ('', None))
    self.assertIn('not verified: the budget', verdict.reasons[-1])
    trial = history_lib.Trial(index=0, number=0, seconds={}, verify=verdict)
    self.assertEqual(trial.kind, 'discard')
    self.assertNotIn(trial.status, history_lib.UNTRIED)

  def test_what_stays_open_is_not_kept(self):
    found = self._verdicts(standing(0, 0.05, 20.0), gates={0: 'open'}, number=2)
    self.assertEqual(found, {0: 'discard'})

  def test_the_next_best_where_the_best_fails(self):
    found = self._verdicts(
        standing(0, 0.03, 25.0),
        standing(1, 0.05, 20.0),
        gates={0: 'holds', 1: 'fails'},
    )
    self.assertEqual(found, {1: 'discard', 0: 'keep'})
    self.assertEqual(self.asked, [1, 0])

  def test_alerts_that_are_new(self):
    found = self._verdicts(standing(0, 0.05, 20.0), alerts=['old', 'collapse'])
    self.assertEqual(found, {0: 'discard'})
    self.assertEqual(self.found[0].alerts, ('collapse',))
    self.assertEqual(
        self._verdicts(standing(0, 0.05, 20.0), alerts=['old']), {0: 'keep'}
    )

  @parameterized.parameters(
      ('crash', 'crash'), ('futility', 'discard'), ('collapse', 'discard')
  )
  def test_an_arm_that_failed_decides(self, status, wanted):
    found = self._verdicts(standing(0, 0.05, 30.0), failed={0: status})
    self.assertEqual(found, {0: wanted})

  def test_too_few_pairs(self):
    found = self._verdicts(standing(0, 0.05, 1.0, threshold=None))
    self.assertEqual(found, {0: 'harness_abort'})

  def test_an_incumbent_that_is_taken_back(self):
    shadow = samples.record(records.Shadow, trial=9, decision='drop')
    found = self._verdicts(standing(0, 0.05, 30.0), shadow=shadow)
    self.assertEqual(found, {0: 'superseded'})

  def test_what_waits_ends_with_the_harness_that_it_changes(self):
    waits, enters = (
        samples.record(records.Queued, trial=n, enters=n == 0, reason='later')
        for n in (7, 0)
    )
    of = lambda *args, **options: self._verdicts(
        *args, queue=(enters, waits), **options
    )
    kept = standing(0, 0.05, 20.0)
    self.assertEqual(of(kept), {0: 'keep', 7: 'superseded'})
    self.assertIn('was replaced', self.found[7].reasons[0])
    back = samples.record(records.Shadow, trial=9, decision='drop')
    found = of(standing(0, 0.03, 1.0), shadow=back)
    self.assertEqual(found, {0: 'superseded', 7: 'superseded'})
    # As long as its harness trains on, and rounds are left, it waits.
    self.assertEqual(of(standing(0, 0.03, 1.0)), {})
    found = of(standing(0, 0.03, 1.0), number=2)
    self.assertEqual(found, {0: 'discard', 7: 'superseded'})
    (why,) = self.found[7].reasons
    self.assertEqual(why, 'it waited: later; then no round was left')

  def test_nothing_is_kept_beside_an_open_shadow(self):
    shadow = samples.record(records.Shadow, trial=9, decision='go_on')
    passed = standing(0, 0.05, 30.0)
    self.assertEqual(self._verdicts(passed, shadow=shadow), {})
    self.assertEqual(self.asked, [])
    # Being in the worse half does not drop it either.
    found = self._verdicts(passed, standing(1, 0.06, 3.0), shadow=shadow)
    self.assertEqual(found, {1: 'discard'})
    last = self._verdicts(passed, shadow=shadow, number=2)
    self.assertEqual(last, {0: 'superseded'})
    self.assertIn('still has a shadow', self.found[0].reasons[0])
    decided = samples.record(records.Shadow, trial=9, decision='keep')
    self.assertEqual(self._verdicts(passed, shadow=decided), {0: 'keep'})


class BeforeRaceTest(parameterized.TestCase):

  def _verdict(self, reasons=(), predicted=None, crash='', equal=0.0):
    run = mock.Mock(spec=opening.Run, recorder=mock.Mock())
    rows = {
        records.Admit: records.Admit(trial=3, reasons=tuple(reasons)),
        records.Backtest: samples.record(
            records.Backtest,
            trial=3,
            predicted=predicted,
            crash=crash,
            statistics={'equal_updates': equal},
        ),
    }
    run.recorder.find.side_effect = lambda step, trial: rows[step]
    mine = history_lib.Trial(
        index=3, number=3, seconds={}, backtest=rows[records.Backtest]
    )
    run.recorder.history.trials = [mine]
    version = mock.Mock(spec=records.Version)
    delta = mock.Mock(
        spec=delta_lib.Delta, trains=True, intervention_class='optimizer'
    )
    design = mock.Mock(spec=records.Design, trial=3)
    return verify.before_race(run, version, design, delta, 'v1')

  @parameterized.parameters(
      ('keep.py: busy: it needs more CPU time', 'machine_busy'),
      ('it fails on v1: busy', 'machine_busy'),
      ('keep.py: hang: no answer within 0.5 s', 'disqualified'),
      (f'{admit.SIZE_BLOCKED}a device needs 20 GiB', 'size_blocked'),
  )
  def test_load_is_no_verdict_on_a_change(self, reason, status):
    verdict = self._verdict([reason])
    self.assertEqual((verdict.status, verdict.reasons), (status, (reason,)))

  def test_a_replay_that_is_sure_of_a_loss_vetoes(self):
    self.assertIsNone(self._verdict(predicted=(-0.05, 0.01)))
    # Significant by itself, but not by the margin that replays need.
    self.assertIsNone(self._verdict(predicted=(-0.02, -0.001)))
    verdict = self._verdict(predicted=(-0.40, -0.30))
    self.assertEqual(verdict.status, 'vetoed')
    self.assertIn('-40.0 to -30.0 points', verdict.reasons[0])

  def test_a_change_that_changes_no_update_is_not_raced(self):
    verdict = self._verdict(predicted=(0.0, 0.0), equal=1.0)
    self.assertEqual(verdict.status, 'vetoed')
    self.assertIn('to the bit', verdict.reasons[0])
    self.assertIsNone(self._verdict(predicted=(0.0, 0.0)))

  def test_a_crash(self):
    self.assertEqual(self._verdict(crash='keep.py').status, 'preflight_crash')


class _Audited(fakes.Domain):
  """A domain with a stricter grader."""

  def __init__(self, strict):
    self.audit = strict

  audit = None


class _Changing(fakes.Domain):
  """A domain whose problems can be changed."""

  def perturb(self, problem):
    more = ' and more' * problem.question.endswith('1')
    return fakes.make_problem(f'new {problem.question}{more}')


class AuditTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.ledger = pathlib.Path(folder, 'ledger.jsonl')

  def _recorder(self):
    """Return the rows so far, as a process that continues the run does."""
    return recorder.Recorder(
        chain.Ledger(self.ledger),
        budget.Budget(device_seconds=1000.0),
        lambda: None,
        lambda: None,
    )

  def _asked(self, domain, trial=0, number=0, audits=8):
    """Return the domain that a passed candidate is scored on, or None."""
    config = {
        'evolve': {'pairs': 3, 'problems': 2, 'audits': audits},
        'data': {'max_prompt_tokens': 4},
        'seed': 0,
    }
    run = mock.Mock(
        spec=opening.Run,
        setup=mock.Mock(domain=domain),
        recorder=self._recorder(),
        config=ml_collections.ConfigDict(config),
    )
    # Each word is a token: 'new dev 0 3' has 4.
    run.setup.policy.tokenizer.render = lambda m: m[-1]['content'].split()
    race = records.Race(
        round=number,
        version='v1',
        start='s',
        scored_by='rollouts',
        arms=(),
        standings=(),
        queue=(),
    )
    trial = history_lib.Trial(index=0, number=trial, seconds={})
    found = ([0.04, 0.05, 0.06], [0.01] * 3)
    with mock.patch.object(pairs, 'differences', return_value=found) as asked:
      gate_ = verify._perturbed(run, race, trial, standing(0, 0.05, 20.0))
    if gate_ is None:
      asked.assert_not_called()
      return None
    self.assertEqual(gate_.status, 'holds')
    if not asked.called:
      return 'known'
    return asked.call_args.kwargs['perturbed'](domain.audit)

  def test_the_stricter_judge_on_changed_problems(self):
    strict = _Changing()
    asked = self._asked(_Audited(strict))
    texts = [p.question for p in asked.source('dev', 0).take(0, 2)]
    # The problem in between is too long for a prompt.
    self.assertEqual(texts, ['new dev 0 0', 'new dev 0 2'])
    self.assertEqual(asked.grade_many, strict.grade_many)

  def test_the_stricter_judge_alone(self):
    strict = fakes.Domain()
    self.assertIs(self._asked(_Audited(strict)), strict)

  def test_no_other_judge(self):
    self.assertIsNone(self._asked(fakes.Domain()))
    self.assertIsInstance(self._asked(_Changing()), perturb.Perturbed)

  def test_a_run_scores_a_limited_number_of_candidates(self):
    strict = fakes.Domain()
    ask = lambda *given: self._asked(_Audited(strict), *given, audits=2)
    self.assertIs(ask(0, 0), strict)
    # A process that was killed before the verdict does not score it again.
    self.assertEqual(ask(0, 0), 'known')
    self.assertIs(ask(0, 1), strict)  # Another round has other arms.
    with self.assertRaisesRegex(verify._SpentError, r'spent \(evolve.audits=2'):
      ask(1, 1)
    self.assertEqual(ask(0, 1), 'known')
    found = self._recorder().history.all(records.Audit)
    self.assertEqual([(a.trial, a.round) for a in found], [(0, 0), (0, 1)])
    self.assertEqual(found[0].differences, (0.04, 0.05, 0.06))
    # Where nothing is scored, nothing is spent.
    self.assertIsNone(self._asked(fakes.Domain(), 1, 1, audits=2))

  def test_proposers_do_not_see_it(self):
    verdict = samples.record(
        records.Verify,
        trial=3,
        status='discard',
        perturbed_effect=0.01,
        perturbed_error=0.02,
        reasons=('perturbed +1.0 points',),
    )
    audit = samples.record(records.Audit, trial=3)
    trial = history_lib.Trial(
        index=0, number=3, seconds={}, verify=verdict, audit=audit
    )
    shown = hypothesize.without_audit(trial)
    self.assertIsNone(shown.audit)
    racing = history_lib.Trial(index=0, number=3, seconds={}, audit=audit)
    self.assertIsNone(hypothesize.without_audit(racing).audit)
    self.assertNotIn(
        'perturbed', str(rows_lib.to_json(shown.verify)['reasons'])
    )
    self.assertIsNone(shown.verify.perturbed_effect)
    self.assertIsNone(shown.verify.perturbed_error)
    self.assertEqual(shown.status, 'discard')


class AtEndTest(absltest.TestCase):

  def test_who_has_none_gets_a_verdict(self):
    raced = standing(1, 0.04, 7.0)
    race = samples.record(records.Race, round=2, standings=(raced,))
    backtest = samples.record(records.Backtest)
    verdict = samples.record(records.Verify, trial=0)
    known = (
        dict(backtest=backtest, verify=verdict),
        dict(backtest=backtest, races=(race,)),
        dict(backtest=backtest),
        dict(),  # It was proposed, and nothing more.
    )
    trials = tuple(
        history_lib.Trial(index=n, number=n, seconds={}, **fields)
        for n, fields in enumerate(known)
    )
    run = mock.Mock(spec=opening.Run, recorder=mock.Mock())
    run.recorder.history.trials = trials
    found = verify.at_end(run, 'tokens')
    self.assertEqual(list(found), [1, 2])
    for verdict in found.values():
      self.assertEqual(verdict.status, 'superseded')
      self.assertEqual(verdict.reasons, ('no round was left: tokens',))
    self.assertEqual((found[1].effect, found[1].e_value), (0.04, 7.0))
    self.assertIsNone(found[2].effect)


if __name__ == '__main__':
  absltest.main()
