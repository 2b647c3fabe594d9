"""Users' own graders: their arguments, and the use of their scores."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax import domains
from evojax import records
from evojax.domains import graders
from evojax.episodes import collect
from evojax.evidence import schema
from evojax.evidence import views

_OWN = 'tests.domains.own_graders'
ROOT = pathlib.Path(__file__).resolve().parents[2]


def episode(text):
  tokens = np.arange(len(text) + 1, dtype=np.int32)
  logprobs = np.zeros(len(tokens), np.float32)
  return records.Episode(tokens, logprobs, 'stop', 0, text)


class GraderTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.enterContext(tempfile.TemporaryDirectory())

  def make(self, name, rows=(), fields=(), **options):
    """Return a math domain of 60 problems, answers '1,000' .. as in GSM8K."""
    path = pathlib.Path(self.folder, 'rows.jsonl')
    rows = rows or [
        {'question': f'Of {i}?', 'answer': f'{i}/1 is {i}.\n#### 1,{i:03}'}
        for i in range(60)
    ]
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    options = {'workers': 1, 'timeout_s': 20.0} | options
    domain = domains.make(
        'math',
        jsonl={'train': str(path), **dict(fields)},
        grader=name if '.' in name else f'{_OWN}.{name}',
        grader_options=options,
    )
    return domain

  def grades(self, domain, *texts, problems=()):
    """Return grades of texts, in which {} stands for the problem's answer."""
    source = domain.source('train', 0)
    problems = problems or source.take(0, len(texts))
    return domain.grade_many(
        problems,
        [episode(t.replace('{}', p.answer)) for t, p in zip(texts, problems)],
    )

  # ------------------------------------------------------------- signatures

  def test_gsm8k_of_verl(self):
    domain = self.make('gsm8k')
    right, wrong, none = self.grades(domain, 'So\n#### {}', '#### 7', '{}')
    self.assertEqual((right.outcome, right.partial, right.status), (1, 1, 'ok'))
    self.assertEqual((wrong.outcome, wrong.partial, wrong.status), (0, 0, 'ok'))
    self.assertFalse(none.outcome)  # Strict mode: the mark is missing.

  def test_arguments_of_the_config(self):
    options = {'method': 'flexible', 'format_score': 0.25}
    domain = self.make('gsm8k', kwargs=options)
    right, wrong = self.grades(domain, 'It is {}', '3 or 4')
    self.assertEqual((right.outcome, right.partial), (True, 1))
    self.assertEqual((wrong.outcome, wrong.partial), (False, 0.25))

  def test_verl_gets_what_its_trainer_gives(self):
    rows = [
        {
            'question': f'Q{i}',
            'answer': f'{i}',
            'tag': 'my/data',
            'level': 3,
            'extra_info': {'index': i, 'share': 0.50},
        }
        for i in range(60)
    ]
    columns = {'acc': 'bool', 'pred': 'string', 'seen': 'string'}
    domain = self.make('compute_score', rows, columns=columns)
    (grade,) = self.grades(domain, '{}')
    self.assertIs(grade.columns['acc'], True)
    source, truth, info = json.loads(grade.columns['seen'])
    self.assertEqual((source, truth), ('my/data', grade.columns['pred']))
    expected = {'index': int(truth), 'share': 0.5, 'level': 3}
    self.assertEqual(info, info | expected | {'question': f'Q{truth}'})

  def test_references_that_are_objects(self):
    rows = [
        {
            'data_source': 'countdown',
            'prompt': [{'role': 'user', 'content': f'Make {i}.'}],
            'reward_model': {'ground_truth': {'target': i, 'numbers': [i, 1]}},
        }
        for i in range(2, 62)
    ]
    domain = self.make('countdown', rows)
    problems = domain.source('train', 0).take(0, 2)
    texts = [p.question.strip('Make .') + '*1' for p in problems]
    right, wrong = self.grades(domain, texts[0], '1', problems=problems)
    self.assertEqual((right.outcome, wrong.outcome), (True, False))
    self.assertEqual((right.status, wrong.status), ('ok', 'ok'))

  def test_a_text_of_another_name(self):
    right, wrong = self.grades(self.make('model_output_score'), '{}', '3')
    self.assertEqual((right.outcome, wrong.outcome), (True, False))

  def test_accuracy_reward_of_trl(self):
    rows = [
        {
            'messages': [{'role': 'user', 'content': f'Of {i}?'}],
            'solution': f'x_{i}' if i else ' ',
        }
        for i in range(1, 60)
    ]
    domain = self.make(
        'accuracy_reward',
        rows,
        {'answer_field': 'solution'},
        columns={'answer_parsed': 'string'},
    )
    right, wrong = self.grades(domain, r'\boxed{{}}', '{}')
    self.assertEqual((right.outcome, wrong.outcome), (True, False))
    self.assertRegex(right.columns['answer_parsed'], r"\['x_\d+'\]")

  @parameterized.parameters('of_texts', 'later', 'gsm8k')
  def test_order_and_workers(self, name):
    domain = self.make(name, workers=2)
    texts = ['{}', 'no', '', '{}', 'no'] * 9
    if name == 'gsm8k':
      texts = [f'#### {t}' for t in texts]
    grades = self.grades(domain, *texts)
    self.assertEqual([g.outcome for g in grades], ['{}' in t for t in texts])

  def test_conversational_rows(self):
    rows = [
        {
            'messages': [
                {'role': 'system', 'content': 'Be brief.'},
                {'role': 'user', 'content': f'Of {i}?'},
            ],
            'answer': i,
            'difficulty': i,
        }
        for i in range(60)
    ]
    right, wrong = self.grades(self.make('of_messages', rows), '{}', 'x')
    self.assertEqual((right.outcome, wrong.outcome), (True, False))

  def test_a_function_of_messages_beside_questions(self):
    rows = [{'question': f'Of {i}?', 'solution': i} for i in range(60)]
    fields = {'answer_field': 'solution'}
    domain = self.make('accuracy_reward', rows, fields)
    right, wrong = self.grades(domain, r'\boxed{{}}', 'x')
    self.assertEqual((right.outcome, wrong.outcome), (True, False))

  def test_a_class(self):
    domain = self.make('Within', kwargs={'tolerance': 2})
    (problem,) = domain.source('train', 0).take(0, 1)
    near = str(int(problem.answer) + 1)
    right, wrong = self.grades(domain, near, '7', problems=[problem] * 2)
    self.assertEqual((right.outcome, wrong.outcome), (True, False))

  # ------------------------------------------------------------------ scores

  def test_range_and_threshold(self):
    domain = self.make('hostile', range=(-2.0, 2.0), threshold=1.0)
    two, right, wrong = self.grades(domain, 'two', '{}', 'no')
    self.assertEqual((two.outcome, two.partial), (True, 1.0))
    self.assertEqual((right.outcome, right.partial), (True, 0.75))
    self.assertEqual((wrong.outcome, wrong.partial), (False, 0.5))

  def test_no_score_is_not_graded(self):
    grades = self.grades(self.make('hostile'), 'none', 'nan', '{}', 'no')
    self.assertEqual([g.graded for g in grades], [False, False, True, True])
    self.assertEqual([g.outcome for g in grades], [False, False, True, False])
    self.assertIn('returned None', grades[0].columns['grader_note'])
    self.assertIn('returned nan', grades[1].columns['grader_note'])

  @parameterized.parameters(
      ('hostile', 'two', r'returned 2 for a completion of .* in \[0, 1\].*ran'),
      ('hostile', 'text', "returned '1.0' for a completion, not a number"),
      ('returns_text', 'x', "returned 'right' for a completion, not a number"),
      ('returns_one', 'x', 'returned 1 scores for 2 completions'),
  )
  def test_what_is_no_score_stops_the_run(self, name, text, message):
    with self.assertRaisesRegex(graders.GraderError, message):
      self.grades(self.make(name), text, text)

  @parameterized.parameters('hostile', 'hostile_list')
  def test_hostile_texts(self, name):
    domain = self.make(name, workers=2, timeout_s=1.0, memory_gb=2.0)
    texts = '{} raise no exit {} die sleep regex memory {}'.split()
    grades = self.grades(domain, *texts)
    self.assertEqual(
        [g.status for g in grades],
        'ok error ok error ok crash timeout timeout crash ok'.split(),
    )
    self.assertEqual([g.outcome for g in grades], [t == '{}' for t in texts])
    self.assertTrue(all(g.graded for g in grades))
    self.assertIn('ValueError: not a n', grades[1].columns['grader_note'])

  def test_texts_that_are_all_to_blame(self):
    domain = self.make('Within', kwargs={'tolerance': 0})
    grades = self.grades(domain, '', 'x')  # float raises for both.
    self.assertEqual([g.status for g in grades], ['error'] * 2)
    self.assertTrue(all(g.graded and not g.outcome for g in grades))

  def test_surrogates_and_long_texts(self):
    texts = '\ud800', 'a' * 3_000_000, '\0', '{}'
    grades = self.grades(self.make('of_texts'), *texts)
    self.assertEqual([g.outcome for g in grades], [False] * 3 + [True])

  # ----------------------------------------------------------------- refusals

  @parameterized.parameters(
      ('no_such_module.f', "no module 'no_such_module'; it is looked up"),
      (f'{_OWN}.nothing', 'has no function nothing'),
      (f'{_OWN}.not_callable', 'has no function not_callable'),
      ('my/module.f', "is neither 'openai' nor the dotted path"),
      (f'{_OWN}.neither', "takes .'text'.; a grader has the signature of verl"),
      (f'{_OWN}.needs_more', r"needs the arguments .*'tests'"),
      (f'{_OWN}.accuracy_reward', "asks for .'solution'., and not all rows"),
      (f'{_OWN}.of_messages', "asks for .'difficulty'.,.* have .'answer'"),
  )
  def test_what_cannot_be_used_is_one_line(self, path, message):
    with self.assertRaisesRegex(graders.GraderError, message) as caught:
      self.grades(self.make(path), 'x', 'x')
    self.assertNotIn('\n', str(caught.exception))

  def test_a_column_that_only_kwargs_ask_for(self):
    with self.assertRaisesRegex(
        graders.NoGradesError, "KeyError: 'solution'; the rows .*'answer'"
    ):
      self.grades(self.make('key_error'), 'x', 'x')

  @parameterized.parameters(
      (
          {'worker': 2},
          'worker is not an option; there are range, threshold, .*workers',
      ),
      ({'workers': -1}, 'workers=-1 must be a whole number'),
      ({'timeout_s': 'x'}, "timeout_s='x' must be a number"),
      ({'range': (1, 0)}, 'range=.* lowest and'),
      ({'threshold': 2.0}, 'threshold=2.0 must be a score above 0, up to 1'),
      ({'columns': {'acc': 'int'}}, 'columns=.*types are'),
      ({'columns': {'Acc': 'bool'}}, "column 'Acc'"),
      ({'kwargs': 3}, 'kwargs=3'),
  )
  def test_wrong_options(self, options, message):
    with self.assertRaisesRegex(graders.GraderError, message):
      self.make('gsm8k', **options)

  @parameterized.parameters('mode', 'outcome', 'grader_note')
  def test_columns_of_taken_names(self, name):
    with self.assertRaises(graders.GraderError):
      _ = self.make('gsm8k', columns={name: 'string'}).columns

  def test_generated_problems_have_no_grader_of_the_users_own(self):
    with self.assertRaisesRegex(ValueError, 'judges the problems of a data'):
      domains.make('math', grader='a.b')

  # ----------------------------------------------------------------- evidence

  def test_only_reports_read_its_own_columns(self):
    domain = self.make('compute_score', columns={'seen': 'string'})
    declared = {c.name: c for c in schema.declare(domain.columns)}
    self.assertEqual(declared['seen'].readers, ('report',))
    self.assertEqual(declared['grader_note'].readers, ('report',))
    self.assertEqual(declared['grade_status'].codes, graders.GRADE_STATUS)
    (grade,) = self.grades(domain, '<answer>{}</answer>')
    own = {c.name for c in domain.columns} - {'grade_status'}
    self.assertEqual(set(grade.columns), own)
    self.assertTrue(grade.columns['format_ok'])

  def test_no_reward_sees_an_answer(self):
    secrets = [f'secret{i}' for i in range(60)]
    rows = [
        {'question': f'Of {i}?', 'answer': s, 'hint': s}
        for i, s in enumerate(secrets)
    ]
    columns = {'seen': 'string'}
    domain = self.make('compute_score', rows, columns=columns)
    problems = domain.source('train', 0).take(0, 2)
    texts = problems[0].answer, 'one', 'two', 'three'
    declared = schema.declare(domain.columns)
    asked = records.RequestBatch(problems, [(0,)] * 2, 0)
    rows = collect.rollout_batch(
        domain, declared, asked, [episode(text) for text in texts]
    ).rows
    self.assertEqual(list(rows['outcome']), [True, False, False, False])
    self.assertIn('secret', rows['seen'][1])  # It is only on disk.
    for reader in ('reward', 'filter', 'diagnostic'):
      view = collect.view(rows, declared, 64, reader)
      # A policy that writes an answer reveals it; the other groups do not.
      shown = {name: np.asarray(view[name])[1:] for name in view.columns}
      self.assertNotIn('secret', str(shown))
      self.assertIn('outcome', shown)
      for name in ('seen', 'grader_note', 'answer', 'hint', 'row'):
        with self.assertRaises(views.EvidenceAccessError):
          _ = view[name]

  # ---------------------------------------------------------------- processes

  def test_the_function_is_not_imported_here(self):
    sys.modules.pop(_OWN, None)
    texts = [f'{self.folder}:{i}' for i in range(8)]
    self.grades(self.make('process', workers=2), *texts)
    self.assertNotIn(_OWN, sys.modules)
    files = [p.name for p in pathlib.Path(self.folder).glob('*-*')]
    self.assertLen({name.split('-')[1] for name in files}, 8)
    processes = {int(name.split('-')[0]) for name in files}
    self.assertLen(processes, 2)
    self.assertNotIn(os.getpid(), processes)

  @parameterized.parameters(signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
  def test_leaves_no_orphan(self, number):
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.domains import graders_test
test = graders_test.GraderTest('test_a_class')
test.folder = {self.folder!r}
domain = test.make('process', workers=2)
test.grades(domain, *[f'{self.folder}:{{i}}' for i in range(4)])
test.grades(test.make('hostile', workers=2), 'sleep', 'regex')
"""
    child = subprocess.Popen(
        [sys.executable, '-c', script], stderr=subprocess.DEVNULL
    )
    self.addCleanup(child.kill)
    deadline = time.monotonic() + 120
    # Two workers of each pool; those of the second pool are busy with calls.
    while len(children := _children(child.pid)) < 4:
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.05)
    time.sleep(1)
    child.send_signal(number)
    child.wait(120)  # On a busy machine an exit may take long.
    deadline = time.monotonic() + 5
    while any(map(_lives, children)) and time.monotonic() < deadline:
      time.sleep(0.05)
    self.assertEmpty([c for c in children if _lives(c)])


def _children(process):
  found = subprocess.run(
      ['ps', '-o', 'pid=', '--ppid', str(process)],
      capture_output=True,
      text=True,
      check=False,
  ).stdout.split()
  return [int(pid) for pid in found]


def _lives(process):
  try:
    state = pathlib.Path(f'/proc/{process}/stat').read_text().split()[2]
  except OSError:
    return False
  return state != 'Z'


if __name__ == '__main__':
  absltest.main()
