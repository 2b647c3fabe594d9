"""Reports of users: each has a log and known checks; sound runs are quiet."""

import collections
import importlib
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from benchmarks import diagnose_reports
from benchmarks.reports import eighth_threads
from benchmarks.reports import event_list
from benchmarks.reports import fifth_threads
from benchmarks.reports import fourth_threads
from benchmarks.reports import seventh_threads
from benchmarks.reports import sixth_threads
from benchmarks.reports import third_threads
from benchmarks.reports import threads
from evojax.diagnosis import checks
from evojax.diagnosis import examine
from evojax.diagnosis import findings
from evojax.diagnosis import readers


def examined(name):
  with tempfile.TemporaryDirectory() as folder:
    run = readers.read(diagnose_reports.write(name, pathlib.Path(folder)))
    return diagnose_reports.judge(name, examine.examine(run))


class ReportsTest(parameterized.TestCase):

  def test_every_report_names_known_checks(self):
    known = {check.__name__ for check in checks.ALL} | {'too_hard', 'too_easy'}
    for name, report in diagnose_reports.REPORTS.items():
      with self.subTest(name):
        self.assertLessEqual({*report.names, *report.symptoms}, known)

  def test_no_name_or_thread_occurs_twice(self):
    lists = [
        reports
        for modules in diagnose_reports.LISTS.values()
        for reports in modules.values()
    ]
    names = collections.Counter(name for part in lists for name in part)
    cited = collections.Counter(
        report.thread
        for part in lists
        for report in part.values()
        if report.thread
    )
    self.assertLen(diagnose_reports.REPORTS, len(names))
    self.assertEqual(max(names.values()), 1)
    self.assertEqual(max(cited.values()), 1)

  def test_every_report_has_a_log(self):
    for name in diagnose_reports.REPORTS:
      module = importlib.import_module(
          f'benchmarks.reports.{diagnose_reports._MODULES[name]}'
      )
      self.assertTrue(callable(getattr(module, name)), name)

  @parameterized.parameters(
      *threads.SOUND,
      *threads.LATER_SOUND,
      *third_threads.SOUND,
      *fourth_threads.SOUND,
      *fifth_threads.SOUND,
      *sixth_threads.SOUND,
      *seventh_threads.SOUND,
      *eighth_threads.SOUND,
      *event_list.SOUND,
  )
  def test_sound(self, name):
    self.assertEqual(examined(name), ('sound', []))

  @parameterized.parameters(
      'newlines',
      'kl_sign',
      'lora_sync',
      'dropout',
      'cosine_units',
      'plain_prompt',
      'boxed_in_tags',
      'long_box',
      'shaping_wins',
      'entropy_bonus',
      'gathered_elsewhere',
      'frozen_rollouts',
      'parser_missing',
      'stale_tasks',
      'lora_ignored',
      'eval_answers',
      'subset_redrawn',
      'frozen_critic',
      'one_group_steps',
      'tests_overwritten',
      'whole_length_logged',
      'engine_upgrade',
      'tag_not_written',
      'format_hacked',
      'stale_by_many',
      'router_mismatch',
      *event_list.EVENTS,
  )
  def test_named(self, name):
    self.assertEqual(examined(name), ('named', []))

  @parameterized.parameters(('length_paid', 60, 32), ('thanks_scored', 160, 4))
  def test_episodes_and_answers_are_read(self, name, steps, size):
    with tempfile.TemporaryDirectory() as folder:
      run = readers.read(diagnose_reports.write(name, pathlib.Path(folder)))
    self.assertLen(run.steps, steps)
    self.assertLen(run.rollouts, steps * size)
    for column in ('prompt', 'completion', 'reward'):
      self.assertFalse(run.rollouts[column].isna().any(), column)

  def test_another_step_does_not_name_what_began_half_way(self):
    report = event_list.EVENTS['rate_ends']
    for since, verdict in ((report.since, 'named'), (12, 'symptom')):
      found = findings.Finding(
          check='schedule_ends', severity='warning', text='', since=since
      )
      diagnosis = findings.Diagnosis((found,), (), (), 'findings', '')
      self.assertEqual(
          diagnose_reports.judge('rate_ends', diagnosis), (verdict, [])
      )

  def test_what_the_log_lacks_is_not_missed(self):
    self.assertEqual(examined('unparsed_gold'), ('cannot tell', []))


if __name__ == '__main__':
  absltest.main()
