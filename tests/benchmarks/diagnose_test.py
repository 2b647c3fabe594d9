"""Tests for how diagnoses of recorded logs are judged."""

import pathlib
import shutil
import tempfile

from absl.testing import absltest

from benchmarks import diagnose_judge
from benchmarks import diagnose_logs
from evojax.diagnosis import checks
from evojax.diagnosis import readers
from tests.diagnosis import agents_made

_DATA = pathlib.Path(__file__).parents[1] / 'diagnosis' / 'data'
# Findings of one check, or of rlwatch.
_OTHERS = {'too_hard', 'too_easy', 'gradient_spike'}


class DiagnoseTest(absltest.TestCase):

  def test_expected_names_are_names_of_checks(self):
    known = {check.__name__ for check in checks.ALL} | _OTHERS
    worlds = agents_made.FAULTS.values()
    for fault in (*diagnose_logs.FAULTS.values(), *worlds):
      self.assertContainsSubset(fault.finds + fault.may, known)

  def test_each_split_has_all_faults_and_clean_logs(self):
    jobs = diagnose_logs.jobs().values()
    for split in diagnose_logs.SPLITS:
      kinds = [kind for kind, of, _ in jobs if of == split]
      self.assertContainsSubset(set(diagnose_logs.FAULTS), kinds)
      self.assertEqual(kinds.count('clean'), diagnose_logs.CLEAN)
    seeds = [(kind, seed) for kind, _, seed in jobs]
    self.assertLen(set(seeds), len(seeds))

  def test_seeds_of_agents_are_of_one_split(self):
    logs = diagnose_logs.agent_logs().values()
    tuning, judging = (
        {log.seed for log in logs if log.split == split}
        for split in diagnose_logs.SPLITS
    )
    self.assertTrue(tuning.isdisjoint(judging))
    self.assertLen({log.format for log in logs}, 2)

  def test_score(self):
    run = readers.read(_DATA / 'trl')
    fault = diagnose_logs.FAULTS['warmup']
    runs = {'clean-0-tuning': (run, None), 'warmup-tuning': (run, fault)}
    apply = lambda _: ({'warmup', 'truncation'}, 3)
    logs, clean, named, right, alarms, unknown = diagnose_judge._score(
        runs, apply, False
    )
    self.assertEqual((logs, clean, named), ('2', '1', '1/1'))
    # One of four findings is the fault.
    self.assertEqual((right, alarms), ('1/4', '1/1'))
    self.assertEqual(unknown, '3.0 checks a log')

  def test_thresholds_of_the_literature(self):
    # A false alarm: the reward pays right answers, which are longer in this
    # log.
    run = readers.read(_DATA / 'trl')
    self.assertEqual(diagnose_judge.literature(run), ({'length_gaming'}, 0))

  def test_judge_reads_what_was_recorded(self):
    with tempfile.TemporaryDirectory() as folder:
      target = pathlib.Path(folder, 'trl', 'clean-0-tuning')
      shutil.copytree(_DATA / 'trl', target)
      (target / 'training_args.json').write_text(
          '{"learning_rate": 3e-4, "max_completion_length": 16, "beta": 0.0}'
      )
      diagnose_judge.judge(pathlib.Path(folder), 'tuning', False)


if __name__ == '__main__':
  absltest.main()
