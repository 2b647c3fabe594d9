import dataclasses
import itertools

from absl.testing import absltest

from evojax.ledger import history
from evojax.ledger import records
from evojax.report import sealed
from tests.ledger import samples


class WhyNoneTest(absltest.TestCase):

  def test_reasons_are_counted(self):
    raced = samples.record(
        records.Race,
        round=0,
        standings=(
            samples.record(records.Standing, trial=0, detectable=0.031),
            samples.record(records.Standing, trial=1, detectable=0.052),
        ),
    )
    run = samples.run(
        raced,
        *samples.trial(0, 'v0', '', -0.01),
        *samples.trial(1, 'v0', '', 0.01),
        *samples.trial(2, 'v0', '', status='vetoed'),
    )
    self.assertEqual(
        sealed.why_none(run),
        'Nothing was kept: of 3 changes, 2 were not shown to be better than the'
        ' incumbent; 1 was stopped by a replay of updates. In the 2 changes'
        ' that raced, a gain of 5.2 points would have been seen with a'
        ' probability of 80 % or more.',
    )

  def test_the_evidence_was_enough_but_something_else_was_not(self):
    run = samples.run(
        *samples.trial(0, 'v0', '', 0.04, e_value=11.4, threshold=11.4),
        *samples.trial(
            1, 'v0', '', 0.04, e_value=12.0, threshold=11.4, alerts=('x',)
        ),
        *samples.trial(2, 'v0', '', 0.04, e_value=11.3, threshold=11.4),
    )
    self.assertEqual(
        sealed.why_none(run),
        'Nothing was kept: of 3 changes, 1 was ahead, but not shown to be so on'
        ' perturbed problems; 1 was ahead, but raised a new critical alert; 1'
        ' was not shown to be better than the incumbent.',
    )

  def test_a_change_that_was_left_undecided(self):
    raced = samples.record(
        records.Race,
        standings=(
            samples.record(records.Standing, trial=0),
            samples.record(records.Standing, trial=1),
        ),
        queue=(
            samples.record(records.Queued, trial=2),
            samples.record(records.Queued, trial=3, hopeless=True),
        ),
    )
    given_up = dict(status='superseded', threshold=11.4)
    run = samples.run(
        raced,
        *samples.trial(0, 'v0', '', 0.01, e_value=2.0, **given_up),
        *samples.trial(1, 'v0', '', 0.04, e_value=12.0, **given_up),
        *samples.trial(2, 'v0', '', status='superseded'),
        *samples.trial(3, 'v0', '', status='superseded'),
    )
    self.assertEqual(
        sealed.why_none(run),
        'Nothing was kept: of 4 changes, 1 was still waiting for a race; 1 was'
        ' left waiting, because the predicted gain could hardly be proved; 1'
        ' was left undecided when another change was kept or taken back; 1 was'
        ' ahead while an earlier change was still compared with its shadow.',
    )

  def test_all_changes_ended_alike(self):
    one, two = (
        samples.run(*itertools.chain(
            *(samples.trial(i, 'v0', '', 0.01) for i in range(count))
        ))
        for count in (1, 2)
    )
    self.assertEqual(
        sealed.why_none(one),
        'Nothing was kept: the only change was not shown to be better than the'
        ' incumbent.',
    )
    self.assertEqual(
        sealed.why_none(two),
        'Nothing was kept: the 2 changes were not shown to be better than the'
        ' incumbent.',
    )

  def test_something_was_kept_or_nothing_tried(self):
    kept = samples.run(*samples.trial(0, 'v0', 'v1', 0.01))
    self.assertEqual(sealed.why_none(kept), '')
    self.assertEqual(sealed.why_none(samples.run()), '')
    ended = samples.run(samples.record(records.Final))
    self.assertEqual(
        sealed.why_none(ended),
        'Nothing was kept: no change was tried to the end.',
    )


class VerdictTest(absltest.TestCase):

  def test_a_fault_that_ends_a_run_comes_first(self):
    finding = records.Finding(
        check='unreadable',
        severity='critical',
        text='nothing can be read',
        remedies=(records.Remedy(setting='grader'),),
    )
    mild = dataclasses.replace(finding, severity='warning', text='mild')
    diagnosis = samples.record(
        records.Diagnose, round=0, findings=(mild, finding)
    )
    run = samples.run(diagnosis)
    fault = 'Ended at a fault that only you can repair: nothing can be read.'
    self.assertNotIn('Ended at', sealed.verdict(run, False))
    run = dataclasses.replace(run, ended=history.FAULT)
    self.assertStartsWith(
        sealed.verdict(run, False),
        f'Ended (a fault outside the harness) without sealed scores: {fault} To'
        ' change: grader. 0 of 0 changes kept',
    )
    score = records.Estimate(0.1, 0.01, 0.08, 0.12)
    final = samples.record(
        records.Final, scores={'base': score, 'evolved': score}
    )
    scored = samples.run(diagnosis, final)
    self.assertEqual(
        sealed.verdict(dataclasses.replace(scored, ended=history.FAULT), False),
        f'{fault} To change: grader. Nothing was raced; on sealed problems the'
        ' policy solves 10.0 % [8.0, 12.0].',
    )


class RegretTest(absltest.TestCase):

  def _final(self, **others):
    estimate = lambda v: records.Estimate(v, 0.05, v - 0.1, v + 0.1)
    scores = {'base': 0.3, 'evolved': 0.7} | others
    return samples.record(
        records.Final,
        scores={n: v and estimate(v) for n, v in scores.items()},
        evolved_over={n: estimate(0.7 - v) for n, v in scores.items() if v},
    )

  def test_the_best_of_the_compared(self):
    found = sealed.regret(self._final(seed=0.8, reference=0.75, random=None))
    self.assertEqual(found['best'], 'seed')
    for name, value in (('value', 0.1), ('low', 0.0), ('high', 0.2)):
      self.assertAlmostEqual(found[name], value)

  def test_the_evolved_policy_is_the_best(self):
    found = sealed.regret(self._final(seed=0.6))
    self.assertAlmostEqual(found['value'], -0.1)

  def test_nothing_was_compared(self):
    self.assertIsNone(sealed.regret(self._final(seed=None)))


if __name__ == '__main__':
  absltest.main()
