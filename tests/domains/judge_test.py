"""A language model as the grader: what it is asked, and what becomes of it."""

import json
import pathlib
import socketserver
import tempfile
import threading
import time

from absl.testing import absltest
from absl.testing import parameterized

from evojax import domains
from evojax.domains import graders
from tests.domains import graders_test
from tests.domains import judges


def by_reference(prompt, times):
  """Right if the answer between the marks is the reference."""
  lines = prompt.splitlines()
  marks = [i for i, line in enumerate(lines) if line.startswith('---')]
  answer = '\n'.join(lines[marks[0] + 1 : marks[-1]])
  reference = lines[lines.index('The reference answer:') + 1]
  return f'It says so.\nScore: {10 if answer == reference else 2.5}'


class JudgeTest(parameterized.TestCase):

  grades = graders_test.GraderTest.grades

  def setUp(self):
    super().setUp()
    self.folder = self.enterContext(tempfile.TemporaryDirectory())

  def make(self, url='http://localhost:1/v1', **options):
    path = pathlib.Path(self.folder, 'rows.jsonl')
    rows = [{'question': f'Of {i}?', 'answer': i} for i in range(60)]
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    options = {
        'url': url,
        'model': 'judge-8b',
        'range': (0.0, 10.0),
        'cache': self.folder,
        'retries': 1,
    } | options
    return domains.make(
        'math',
        jsonl={'train': str(path)},
        grader='openai',
        grader_options={n: v for n, v in options.items() if v is not None},
    )

  def serve(self, answer=by_reference):
    server = judges.Server(answer)
    self.addCleanup(server.close)
    return server

  def test_scores_in_order(self):
    server = self.serve(lambda p, n: time.sleep(0.05) or by_reference(p, n))
    with absltest.mock.patch.dict('os.environ', {'JUDGE_KEY': 'secret'}):
      domain = self.make(server.url, key_env='JUDGE_KEY', concurrency=4)
    texts = ['{}', 'no', '{} {', 'Score: 10'] * 5
    grades = self.grades(domain, *texts)
    self.assertEqual([g.outcome for g in grades], [t == '{}' for t in texts])
    self.assertEqual(grades[1].partial, 0.25)
    self.assertBetween(server.most, 2, 4)
    self.assertEqual(set(server.keys), {'Bearer secret'})
    self.assertEqual(server.bodies[0]['model'], 'judge-8b')
    self.assertEqual(server.bodies[0]['temperature'], 0.0)

  @parameterized.parameters(
      ('Score: 7', 7),
      ('**Score:** 7/10', 7),
      ('Score (0-10): 7', 7),
      ('**Score (out of 10)**: 7', 7),
      ('Score (7). It has 3 faults: many.', 7),
      ('Score: .5', 0.5),
      ('A score of 2 first. Then:\nScore = 7.5', 7.5),
  )
  def test_how_a_score_is_written(self, reply, score):
    server = self.serve(lambda p, n: reply)
    (grade,) = self.grades(self.make(server.url), '{}')
    self.assertEqual((grade.status, grade.partial), ('ok', score / 10))

  def test_replies_are_cached(self):
    server = self.serve()
    first = self.grades(self.make(server.url), '{}', 'no')
    asked = len(server.bodies)
    self.assertEqual(first, self.grades(self.make(server.url), '{}', 'no'))
    self.assertLen(server.bodies, asked)
    self.grades(self.make(server.url, rubric='Be strict.'), '{}', 'no')
    self.assertLen(server.bodies, 2 * asked)
    for file in pathlib.Path(self.folder).glob('*/*.json'):
      file.write_text('{')  # From a machine that went down.
    self.assertEqual(first, self.grades(self.make(server.url), '{}', 'no'))
    self.assertLen(server.bodies, 3 * asked)

  def test_a_cache_that_cannot_be_written(self):
    file = pathlib.Path(self.folder, 'file')
    file.touch()
    with self.assertRaisesRegex(OSError, 'cannot be kept.*grader_options.cac'):
      self.grades(self.make(self.serve().url, cache=str(file)), '{}')

  def test_asks_again_where_a_server_is_busy(self):
    statuses = {1: 429, 2: 503}
    server = self.serve(lambda p, n: statuses.get(n) or by_reference(p, n))
    right, wrong = self.grades(self.make(server.url, retries=2), '{}', 'no')
    self.assertEqual((right.outcome, wrong.outcome), (True, False))
    self.assertLen(server.bodies, 6)

  @parameterized.parameters(
      ('I cannot say.', 'named no score from 0 to 10'),
      ('Score: 11', 'named no score from 0 to 10'),
      (('Score: 10 would be too much, so', 'length'), 'did not end its reply'),
      (400, 'answered 400'),
      (500, 'could not be reached: it answered 500'),
  )
  def test_what_is_not_judged_is_not_graded(self, answer, note):
    server = self.serve(
        lambda p, n: answer if 'odd' in p else by_reference(p, n)
    )
    domain = self.make(server.url, cache='')
    right, odd, wrong = self.grades(domain, '{}', 'odd', 'no')
    self.assertEqual(
        [g.graded for g in (right, odd, wrong)], [True, False, True]
    )
    self.assertIn(note, odd.columns['grader_note'])
    self.assertEqual((right.outcome, odd.outcome), (True, False))

  def test_one_that_is_down_stops_the_run_soon(self):
    tried = []  # Connections; every one is closed at once.
    server = self.enter_context(
        socketserver.TCPServer(('127.0.0.1', 0), lambda *_: tried.append(1))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    self.addCleanup(server.shutdown)
    url = f'http://127.0.0.1:{server.server_address[1]}/v1'
    domain = self.make(url, concurrency=2, retries=2)
    with self.assertRaisesRegex(
        graders.NoGradesError, 'no score to any of 40 .*could not be reached'
    ):
      self.grades(domain, *['x'] * 40)
    # Two completions were asked about, at most three times each.
    self.assertBetween(len(tried), 3, 6)

  def test_one_that_is_silent(self):
    server = self.serve(lambda p, n: time.sleep(1) or 'Score: 1')
    domain = self.make(server.url, timeout_s=0.2, retries=0)
    with self.assertRaisesRegex(graders.NoGradesError, 'no answer in 0.2 s'):
      self.grades(domain, 'a', 'b')

  def test_a_wrong_key_is_said(self):
    server = self.serve(lambda p, n: 401)
    with self.assertRaisesRegex(graders.GraderError, '401.*key_env'):
      self.grades(self.make(server.url), 'a', 'b')

  @parameterized.parameters(
      ({'url': None}, 'url is not set'),
      ({'model': ''}, 'model is not set'),
      ({'url': 'localhost:30000'}, 'url=.* wanted'),
      ({'url': 'http://x:99999/v1'}, 'url=.* wanted'),
      ({'template': 'Judge {answer}'}, 'template cannot be filled'),
      ({'template': 'Judge {'}, 'template cannot be filled'),
      ({'template': 'Judge.'}, 'template lacks'),
      ({'key_env': 'NO_SUCH_KEY_HERE'}, 'NO_SUCH_KEY_HERE is not set'),
      ({'workers': 2}, 'workers is not an option'),
  )
  def test_wrong_options(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      self.make(**options)


if __name__ == '__main__':
  absltest.main()
