"""Tests for how diagnoses of recorded logs are judged."""

import contextlib
import dataclasses
import io
import json
import pathlib
import re
import shutil
import tempfile
from unittest import mock

from absl.testing import absltest

from benchmarks import diagnose_judge
from benchmarks import diagnose_llm
from benchmarks import diagnose_logs
from evojax.diagnosis import checks
from evojax.diagnosis import readers
from tests.diagnosis import agents_made
from tests.domains import judges

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

  def test_splits_share_no_setting(self):
    splits = [dataclasses.asdict(s) for s in diagnose_logs.SPLITS.values()]
    for name in splits[0]:
      self.assertLen({split[name] for split in splits}, len(splits), name)
    for split in splits:  # A step holds whole groups.
      self.assertEqual(split['batch'] % split['group_size'], 0)

  def test_a_training_has_the_settings_of_its_split_and_fault(self):
    sound = diagnose_logs.trainer_options('clean-3-fresh')
    split = diagnose_logs.SPLITS['fresh']
    self.assertEqual(sound['learning_rate'], split.learning_rate)
    self.assertEqual(sound['num_generations'], split.group_size)
    self.assertEqual(sound['max_steps'], split.steps)
    cut = diagnose_logs.trainer_options('truncation-fresh')
    # The fault's value overrides that of the split.
    self.assertEqual(sound | {'max_completion_length': 4}, cut)

  def test_seeds_of_agents_are_of_one_split(self):
    logs = diagnose_logs.agent_logs().values()
    seeds = [
        {log.seed for log in logs if log.split == split}
        for split in diagnose_logs.SPLITS
    ]
    self.assertLen(set().union(*seeds), sum(map(len, seeds)))
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

  def _model(self, answer, **options):
    server = judges.Server(answer)
    self.addCleanup(server.close)
    folder = self.enterContext(tempfile.TemporaryDirectory())
    options = dict(cache=pathlib.Path(folder), retries=1) | options
    return server, diagnose_llm.LanguageModel(
        url=server.url, model='judge-8b', **options
    )

  def test_a_language_model_reads_the_same_logs(self):
    said = {
        'findings': [
            {'check': 'truncation', 'severity': 'critical', 'text': 'cut'},
            {'check': 'warmup', 'severity': 'note', 'text': 'short'},
            {'check': 'bad_taste', 'text': 'no such check'},
            'warmup',
        ],
        'unknown': [{'check': 'kl_strong', 'why': 'kl is not logged'}],
    }
    text = f'Is it {{this}}? {{"a": 1}}\n```json\n{json.dumps(said)}\n```'
    server, model = self._model(lambda *_: text, tokens=4500)
    run = readers.read(_DATA / 'trl')
    self.assertEqual(model(run), ({'truncation'}, 1))
    (asked,) = [body['messages'][0]['content'] for body in server.bodies]
    _, logs, _ = re.split(r'^---\w{16}---$', asked, flags=re.MULTILINE)
    self.assertIn('reward by step: ', logs)
    self.assertIn('truncation: Detect ', asked)
    shown = [json.loads(x) for x in logs.splitlines() if x.startswith('{')]
    self.assertNotEmpty(shown)
    self.assertContainsSubset(
        {row['completion'] for row in shown}, set(run.rollouts['completion'])
    )
    self.assertLess(len(logs), 3 * 4500)
    # Nothing is asked twice; another budget is another question.
    self.assertEqual(model(run), ({'truncation'}, 1))
    self.assertLen(server.bodies, 1)
    dataclasses.replace(model, tokens=5000)(run)
    self.assertLen(server.bodies, 2)

  def test_replies_of_a_language_model(self):
    self.assertEqual(diagnose_llm.parse('no idea'), (set(), 0))
    self.assertEqual(diagnose_llm.parse('{"findings": 3}'), (set(), 0))
    run = readers.read(_DATA / 'trl')
    # Busy once, then an answer.
    server, model = self._model(
        lambda prompt, n: 503 if n == 1 else '{"findings": []}'
    )
    with mock.patch.object(diagnose_llm, '_WAIT_S', 0.01):
      self.assertEqual(model(run), (set(), 0))
    self.assertLen(server.bodies, 2)
    server, model = self._model(lambda *_: 401)
    with self.assertRaisesRegex(diagnose_llm.ServerError, '401.*--llm_url'):
      model(run)
    self.assertLen(server.bodies, 1)
    self.assertEmpty(list(model.cache.iterdir()))

  def test_a_row_of_the_table(self):
    said = '{"findings": [{"check": "truncation", "severity": "warning"}]}'
    _, model = self._model(lambda *_: said)
    with tempfile.TemporaryDirectory() as folder:
      target = pathlib.Path(folder, 'trl', 'clean-0-tuning')
      shutil.copytree(_DATA / 'trl', target)
      (target / 'training_args.json').write_text('{}')
      with contextlib.redirect_stdout(io.StringIO()) as printed:
        diagnose_judge.judge(pathlib.Path(folder), 'tuning', False, model)
    (row,) = [
        line
        for line in printed.getvalue().splitlines()
        if line.startswith('language model judge-8b, trl')
    ]
    self.assertEqual(row.split()[4:9], ['1', '1', '0/0', '0/1', '1/1'])

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
