from absl.testing import absltest

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
        'Nothing was kept: of 3 changes 2 were not shown to be better than the'
        ' incumbent, 1 was stopped by a replay of updates. A gain of 5.2 points'
        ' would have been seen with a probability of 80 % or more.',
    )

  def test_something_was_kept_or_nothing_tried(self):
    kept = samples.run(*samples.trial(0, 'v0', 'v1', 0.01))
    self.assertEqual(sealed.why_none(kept), '')
    self.assertEqual(sealed.why_none(samples.run()), '')


if __name__ == '__main__':
  absltest.main()
