"""Possible causes of symptoms: which are shown, and in which order."""

from absl.testing import absltest
import numpy as np

from evojax.diagnosis import causes
from evojax.diagnosis import checks
from evojax.diagnosis import examine
from evojax.diagnosis import findings
from evojax.diagnosis import show
from tests.diagnosis import made
from tests.diagnosis import parts_made


def _finding(check, severity='critical'):
  return findings.Finding(check=check, severity=severity, text='x')


def _attached(*names, quiet=(), format_='trl'):
  """The causes of the last of some findings."""
  found = causes.attach([_finding(name) for name in names], quiet, format_)
  return found[-1].causes


class ListsTest(absltest.TestCase):

  def test_every_name_is_a_check(self):
    # `dead_groups` also finds these two.
    known = {check.__name__ for check in checks.ALL} | {'too_hard', 'too_easy'}
    entries = causes.CAUSES.values()
    used = {name for e in entries for name in (*e.found_by, *e.unlikely_by)}
    self.assertEmpty(used - known)
    self.assertEmpty(set(causes.SYMPTOMS) - known)

  def test_every_check_has_causes_or_names_its_own(self):
    known = {check.__name__ for check in checks.ALL} | {'too_hard', 'too_easy'}
    self.assertEqual(known, set(causes.SYMPTOMS) | causes.NAMED)
    self.assertNoCommonElements(causes.SYMPTOMS, causes.NAMED)

  def test_every_cause_belongs_to_a_symptom(self):
    listed = [name for names in causes.SYMPTOMS.values() for name in names]
    self.assertEqual(set(listed), set(causes.CAUSES))
    for symptom, names in causes.SYMPTOMS.items():
      self.assertLen(set(names), len(names), symptom)


class AttachTest(absltest.TestCase):

  def test_what_another_check_found_comes_first(self):
    found = _attached('reward_hacking', 'reward_falling')
    self.assertEqual(found[0].found_by, 'reward_hacking')
    self.assertEqual(found[0].look, 'see finding 1')
    self.assertNotIn('see finding', found[1].look)

  def test_what_another_check_would_have_found_comes_last(self):
    stale = causes.CAUSES['old_weights'].text
    texts = lambda quiet: [
        c.text for c in _attached('reward_falling', quiet=quiet)
    ]
    self.assertLess(texts(()).index(stale), 3)
    found = _attached('reward_falling', quiet=('logprob_gap',))
    self.assertIn(stale, [c.text for c in found if c.unlikely_by])
    likely = [bool(c.unlikely_by) for c in found]
    self.assertEqual(likely, sorted(likely))
    self.assertCountEqual(texts(()), texts(('logprob_gap',)))

  def test_a_finding_is_no_cause_of_itself(self):
    for cause in _attached('truncation'):
      self.assertEqual(cause.found_by, '')

  def test_runs_of_evojax_have_no_causes_in_a_trainer(self):
    texts = {c.text for c in _attached('too_hard', format_='evojax')}
    self.assertIn(causes.CAUSES['refused'].text, texts)
    # The user's data may have answers of other problems.
    self.assertIn(causes.CAUSES['order'].text, texts)
    self.assertNotIn(causes.CAUSES['old_weights'].text, texts)
    foreign = {c.text for c in _attached('too_hard')}
    self.assertIn(causes.CAUSES['old_weights'].text, foreign)

  def test_findings_that_name_their_cause_and_notes_have_none(self):
    self.assertEmpty(_attached('warmup'))
    note = _finding('reward_falling', severity='note')
    self.assertEmpty(causes.attach([note], (), 'trl')[0].causes)

  def test_a_policy_that_is_its_own_reference(self):
    run = parts_made.flat(kl=np.zeros(parts_made.STEPS), learning_rate=1e-5)
    found = {f.check: f for f in examine.examine(run).findings}['kl_zero']
    wanted = [causes.CAUSES[n] for n in ('own_reference', 'frozen', 'no_kl')]
    self.assertEqual([c.text for c in found.causes], [c.text for c in wanted])
    # A finding that agrees with a cause comes first.
    both = _attached('kl_restarts', 'reward_falling')
    self.assertEqual(both[0].text, causes.CAUSES['restarted'].text)
    self.assertEqual(both[0].look, 'see finding 1')

  def test_a_finding_contradicts_none_of_its_causes(self):
    n = np.arange(parts_made.STEPS)
    hole = np.where(n == 9, np.nan, 0.01)
    older = 1.8 + 0.3 * np.maximum(n - 15, 0)
    for check, names, changed in (
        ('not_finite', ('large_steps',), dict(loss=hole, kl=hole)),
        ('stale_sampler', ('small_steps', 'frozen'), dict(staleness=older)),
    ):
      found = examine.examine(parts_made.metrics(**changed)).findings
      finding = {f.check: f for f in found}[check]
      self.assertNotEmpty(finding.causes)
      texts = {c.text for c in finding.causes}
      self.assertNoCommonElements(
          texts, [causes.CAUSES[name].text for name in names]
      )


class ShownTest(absltest.TestCase):

  def test_a_terminal_shows_the_first_three(self):
    finding = causes.attach([_finding('reward_falling')], (), 'trl')[0]
    self.assertEqual(show.likely(finding), list(finding.causes[:3]))

  def test_what_is_found_hides_nothing(self):
    both = [_finding('reward_hacking'), _finding('reward_falling')]
    finding = causes.attach(both, (), 'trl')[1]
    self.assertEqual([c.look for c in show.likely(finding)][0], 'see finding 1')
    self.assertLen(show.likely(finding), 3)

  def test_what_is_unlikely_is_left_to_the_page(self):
    quiet = ('logprob_gap', 'narrow_data')
    finding = causes.attach([_finding('not_learning')], quiet, 'trl')[0]
    shown = show.likely(finding)
    self.assertLen(shown, 3)
    self.assertFalse(any(c.unlikely_by for c in shown))

  def test_examine_attaches_them_and_lines_print_them(self):
    run = made.run(made.rollouts(start=-20.0))
    found = examine.examine(run)
    place = [f.check for f in found.findings].index('not_learning')
    first = show.likely(found.findings[place])[0]
    line = f'  may be    {first.text} ({first.look})'
    self.assertIn(line, show.lines(run, found))
    saved = show.to_json(run, found)['findings'][place]['causes']
    self.assertIn(first.text, [cause['text'] for cause in saved])


if __name__ == '__main__':
  absltest.main()
