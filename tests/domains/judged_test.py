"""A judge's score beside a domain's own grades."""

import contextlib
import dataclasses
import pathlib
import signal
import tempfile
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections
import numpy as np

from evojax import domains
from evojax import records
from evojax.domains import graders
from evojax.domains import judged
from evojax.evidence import schema
from evojax.evidence import store
from evojax.evolve.propose import changes
from evojax.evolve.propose import library
from evojax.runtime import checkpoint
from evojax.runtime import preemption
from evojax.training import loop
from evojax.training import settings
from tests import tiny
from tests.domains import judges
from tests.domains.coding import graded
from tests.eval import fakes
from tests.evolve import propose_test


def marked(prompt):
  """Return what stands between the marks."""
  lines = prompt.splitlines()
  first, last = [i for i, line in enumerate(lines) if line.startswith('---')]
  return '\n'.join(lines[first + 1 : last])


def by_length(prompt, times):
  """One point for each letter."""
  return f'Score: {min(len(marked(prompt)), 10)}'


def parts(e):
  return {'judge': e.judge}


class JudgedTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.enterContext(tempfile.TemporaryDirectory())

  def serve(self, answer=by_length):
    server = judges.Server(answer)
    self.addCleanup(server.close)
    return server

  def options(self, url='http://localhost:1/v1', **more):
    return {'url': url, 'model': 'm', 'cache': self.folder, 'retries': 0} | more

  def wrap(self, domain, *args, **kwargs):
    return judged.wrap(domain, self.options(*args, **kwargs))

  def test_scores_are_a_column_and_grades_stay(self):
    server = self.serve()
    math = domains.make('math', families='chain_sum:0')
    domain = self.wrap(math, server.url)
    problems = domain.source('train', 0).take(0, 3)
    right = f'<answer>{problems[0].answer}</answer>'
    episodes = [graded.completion(text) for text in (right, 'four', '')]
    for _ in range(2):  # The second time from the cache.
      grades = domain.grade_many(problems, episodes)
      scores = [g.columns['judge'] for g in grades]
      self.assertEqual(scores, [1.0, 0.4, 0.0])
      plain = math.grade_many(problems, episodes)
      for found, own in zip(grades, plain, strict=True):
        self.assertEqual(
            (found.outcome, found.status), (own.outcome, own.status)
        )
        self.assertEqual(own.columns.items() - found.columns.items(), set())
      self.assertLen(server.bodies, 3)
    # Requests are sent side by side: the server has them in any order.
    prompts = [body['messages'][0]['content'] for body in server.bodies]
    (asked,) = [p for p in prompts if problems[0].question in p]
    # The judge is not told what the right answer is.
    self.assertNotIn('reference', asked.replace(right, ''))
    declared = {c.name: c for c in schema.declare(domain.columns)}
    self.assertEqual(declared['judge'].readers, schema.READERS)
    # All else is the domain's.
    self.assertEqual(domain.answer_format, math.answer_format)
    self.assertEqual(domain.perturbs, math.perturbs)
    self.assertEqual(domain.perturb(problems[0]), math.perturb(problems[0]))
    self.assertEqual(domain.audit.columns, domain.columns)

  def test_the_judge_reads_a_whole_episode(self):
    turns = (
        records.Turn(1, 1, text='look', observation='a file'),
        records.Turn(1, text='direct 4'),
    )
    episode = records.Episode(
        np.zeros(3, np.int32), np.zeros(3, np.float32), 'stop', 0, 'direct 4',
        turns=turns,
    )  # fmt: skip
    server = self.serve(lambda prompt, times: 'Score: 7')
    domain = self.wrap(fakes.Domain(), server.url, range=(5.0, 9.0))
    (grade,) = domain.grade_many([fakes.make_problem('2 + 2')], [episode])
    self.assertEqual(grade.columns['judge'], 0.5)
    (body,) = server.bodies
    self.assertEqual(
        marked(body['messages'][0]['content']),
        '[turn 1]\nlook\n[answer]\na file\n[turn 2]\ndirect 4',
    )

  def test_it_reads_the_work_in_a_repository(self):
    server = self.serve(
        lambda prompt, times: f'Score: {10 * ("origin/main" not in prompt)}'
    )
    swe = domains.make('swe', families='off_by_one:0')
    domain = self.wrap(swe, server.url)
    problem = domain.source('train', 0).take(0, 1)[0]
    careful, *_, copying, _, _ = swe.attempts(problem)
    for _ in range(2):  # The second time from the cache.
      grades = domain.grade_many([problem] * 2, [careful, copying])
      self.assertEqual([g.columns['judge'] for g in grades], [1.0, 0.0])
      # Both repair the fault; the judge decides nothing.
      self.assertTrue(all(g.outcome for g in grades))
      self.assertTrue(all(g.columns['f2p_passed'] == 1 for g in grades))
    self.assertLen(server.bodies, 2)
    self.assertEqual(domain.levels, swe.levels)
    self.assertIn('domain.kwargs.max_turns', [
        field.path for field in domain.surface_fields
    ])  # fmt: skip

  def test_what_is_not_judged_is_not_graded(self):
    server = self.serve(
        lambda p, n: 'I do not know.' if 'odd' in p else by_length(p, n)
    )
    domain = self.wrap(fakes.Domain(), server.url)
    # A domain whose grader never fails has a status for it now.
    codes = schema.codes_of(domain.columns, 'grade_status')
    self.assertIn(records.INFRA_ERROR, codes)
    self.assertLen(set(codes.values()), len(codes))
    problems = [fakes.make_problem(text) for text in ('a', 'odd')]
    completions = [graded.completion('direct 4')] * 2
    kept, lost = domain.grade_many(problems, completions)
    self.assertEqual((kept.graded, lost.graded), (True, False))
    with self.assertRaisesRegex(
        graders.NoGradesError, 'domain.judge gave no score to any of 1 '
    ):
      domain.grade_many(problems[1:], completions[1:])

  def test_what_could_not_be_graded_is_not_judged(self):
    server = self.serve()
    fake = fakes.Domain()
    domain = self.wrap(fake, server.url)
    problems = [fakes.make_problem(text) for text in ('a', 'b')]
    completions = [graded.completion('direct 4')] * 2
    first, second = fake.grade_many(problems, completions)
    lost = dataclasses.replace(second, status=records.INFRA_ERROR)
    for grades, asked in (([first, lost], 1), ([lost, lost], 1)):
      with mock.patch.object(fake, 'grade_many', return_value=grades):
        found = domain.grade_many(problems, completions)
      self.assertEqual(
          [grade.status for grade in found], [grade.status for grade in grades]
      )
      self.assertEqual(found[1].columns['judge'], 0.0)
      self.assertLen(server.bodies, asked)

  @parameterized.parameters(
      ({'url': ''}, 'domain.judge.url is not set'),
      ({'url': 'localhost'}, 'domain.judge.url=.* wanted'),
      ({'range': (1, 1)}, r'domain.judge.range=\(1, 1\)'),
      ({'template': 'no'}, 'domain.judge.template lacks'),
      ({'temperature': 1}, 'domain.judge.temperature is not an option'),
  )
  def test_wrong_options(self, options, message):
    with self.assertRaisesRegex(ValueError, message):
      self.wrap(fakes.Domain(), **options)

  def test_one_judge_alone(self):
    domain = self.wrap(fakes.Domain())
    with self.assertRaisesRegex(ValueError, "has a column 'judge' already"):
      self.wrap(domain)

  def test_none_by_default(self):
    config = tiny.make_config('nowhere')
    self.assertNotIsInstance(settings.make_domain(config), judged.Judged)

  def test_a_run_is_paid_by_the_judge(self):
    server = self.serve(lambda prompt, times: f'Score: {len(prompt) % 11}')
    policy = tiny.make_policy(pathlib.Path(self.folder, 'policy'))
    config = tiny.make_config(
        policy,
        domain__judge=ml_collections.ConfigDict(self.options(server.url)),
        reward__parts='tests.domains.judged_test.parts',
        reward__weights=ml_collections.ConfigDict({'judge': 2.0}),
        steps=1,
    )
    workdir = pathlib.Path(self.folder, 'run')
    loop.run(config, str(workdir))
    read = store.read_numbers(workdir, 'train', 0, 'judge', 'reward')
    scores, rewards = map(np.asarray, read)
    np.testing.assert_allclose(rewards, 2 * scores, rtol=1e-6)
    self.assertGreater(len(set(scores.ravel())), 1)

  def test_a_judge_that_hangs_does_not_hold_up_a_stop(self):
    hangs, asked = threading.Event(), []
    self.addCleanup(hangs.set)

    def answer(prompt, times):
      if answers.acquire(blocking=False):
        return f'Score: {len(prompt) % 11}'
      if not asked:
        stopped.append(time.monotonic())
        asked.append(signal.SIGTERM)
      hangs.wait()
      return 503

    # One score before the first step, two steps, and a part of the third.
    answers, stopped = threading.Semaphore(4 * 2 + 2 * 8 + 5), []
    server = self.serve(answer)
    policy = tiny.make_policy(pathlib.Path(self.folder, 'policy'))
    config = tiny.make_config(
        policy,
        domain__judge=ml_collections.ConfigDict(
            self.options(server.url, cache='')
        ),
        reward__parts='tests.domains.judged_test.parts',
        reward__weights=ml_collections.ConfigDict({'judge': 2.0}),
        steps=4,
        checkpoint__every=100,
    )
    workdir = pathlib.Path(self.folder, 'run')
    flag = lambda: contextlib.nullcontext(asked)
    with mock.patch.object(preemption, 'stop_flag', flag):
      with self.assertRaises(preemption.Preempted):
        loop.run(config, str(workdir))
    # 0.5 s until it is noticed, and slack for the checkpoint.
    self.assertLess(time.monotonic() - stopped[0], 10)
    self.assertEqual(list(checkpoint.steps_in(workdir / 'checkpoints')), [2])

  def test_an_intervention_pays_it_where_there_is_one(self):
    entry = library.ENTRIES['judged_work']
    context = propose_test.context(entry.triggers)
    self.assertIsNone(entry.apply(context))
    judge = {'domain.judge.url': 'http://localhost:1/v1'}
    with_one = dataclasses.replace(context, config={**context.config, **judge})
    after = entry.apply(with_one)
    path = changes.give_weight('judge', 0.1).path
    self.assertEqual(after.overlay[path], 0.1)


if __name__ == '__main__':
  absltest.main()
