import dataclasses
import functools
import threading
import time
import types

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax import records
from evojax.episodes import collect
from evojax.runtime import preemption
from tests.eval import fakes


class RenderTest(absltest.TestCase):

  def test_too_long_prompt_names_problem_limit_and_remedy(self):
    problems = [fakes.make_problem('x' * n, 'long') for n in (8, 9, 12)]
    with self.assertRaisesRegex(
        ValueError,
        rf'{problems[1].problem_id}.*long.*has 9 tokens.*'
        r'data\.max_prompt_tokens=8\..*--config\.data\.max_prompt_tokens=12',
    ):
      collect.render(fakes.Tokenizer(), problems, 8)

  def test_longest_prompt_fits(self):
    problems = [fakes.make_problem('x' * 8), fakes.make_problem('ab')]
    prompts = collect.render(fakes.Tokenizer(), problems, 8)
    self.assertEqual(prompts, [(120,) * 8, (97, 98)])


class RequestsTest(parameterized.TestCase):

  def test_group_major(self):
    problems = [fakes.make_problem('a'), fakes.make_problem('b')]
    asked = collect.request_batch(
        fakes.Tokenizer(),
        problems,
        fakes.PARAMS,
        group_size=3,
        seed=5,
        max_prompt_tokens=8,
    )
    requests = asked.requests
    self.assertEqual(asked.prompts, [(97,), (98,)])
    self.assertEqual([r.sample for r in requests], [0, 1, 2, 0, 1, 2])
    self.assertEqual(
        [r.prompt_tokens for r in requests], [(97,)] * 3 + [(98,)] * 3
    )
    # SHA-256 of 'a' and 'b' begin with these.
    self.assertEqual(
        [r.problem_key for r in requests],
        [0xCA978112] * 3 + [0x3E23E816] * 3,
    )
    self.assertEqual(
        {(r.seed, r.params) for r in requests}, {(5, fakes.PARAMS)}
    )

  @parameterized.parameters('gsm8k-17', 'ab', '-23456789abcdef0', 'g' * 16)
  def test_id_that_is_no_hash(self, problem_id):
    problem = dataclasses.replace(
        fakes.make_problem('a'), problem_id=problem_id
    )
    with self.assertRaisesRegex(ValueError, f'{problem_id}.*16 hex digits'):
      collect.request_batch(
          fakes.Tokenizer(),
          [problem],
          fakes.PARAMS,
          group_size=1,
          seed=0,
          max_prompt_tokens=8,
      )


def _completions(texts):
  none = np.zeros(0)
  return [records.Episode(none, none, 'stop', 0, text) for text in texts]


class GradeTest(absltest.TestCase):

  def test_each_completion_meets_its_own_problem(self):
    class Domain(fakes.Domain):

      def grade(self, problem, completion):
        time.sleep(0.02 if completion.text == 'c' else 0)
        name = f'{problem.question} {completion.text}'
        return records.Grade(False, 0.0, name, {})

    grades, seconds = collect.grade(
        Domain(),
        [fakes.make_problem('p'), fakes.make_problem('q')],
        _completions('abcd'),
    )
    self.assertEqual([g.status for g in grades], ['p a', 'p b', 'q c', 'q d'])
    self.assertEqual(seconds.dtype, np.float32)
    self.assertEqual(seconds.argmax(), 2)
    self.assertGreaterEqual(seconds[2], 0.02)

  def test_many_at_once(self):
    """Each has its own problem; times are the domain's own, or shared."""

    class Domain(fakes.Domain):

      def grade(self, problem, completion):
        raise AssertionError('one by one')

      def grade_many(self, problems, completions):
        time.sleep(0.02)
        return [
            records.Grade(
                False,
                0.0,
                f'{problem.question} {completion.text}',
                {},
                seconds=2.0 if completion.text == 'c' else None,
            )
            for problem, completion in zip(problems, completions, strict=True)
        ]

    problems = [fakes.make_problem('p'), fakes.make_problem('q')]
    domain = Domain()
    grades, seconds = collect.grade(domain, problems, _completions('abcd'))
    self.assertEqual([g.status for g in grades], ['p a', 'p b', 'q c', 'q d'])
    self.assertEqual(seconds[2], 2)
    for i in (0, 1, 3):
      self.assertGreaterEqual(seconds[i], 0.005)
      self.assertEqual(seconds[i], seconds[0])
    domain.grade_many = lambda problems, completions: grades[:3]
    with self.assertRaisesRegex(ValueError, 'gave 3 grades for 4'):
      collect.grade(domain, problems, _completions('abcd'))

  def test_what_is_no_grade(self):
    domain, problems = fakes.Domain(), [fakes.make_problem('p')]
    for returned in (None, True, (True, 1.0)):
      domain.grade_many = lambda *_, given=returned: (x for x in (given,))
      with self.assertRaisesRegex(ValueError, r'a grade is .*records\.Grade\('):
        collect.grade(domain, problems, _completions('a'))
    # The tests check annotations; a domain of the user's own has no such check.
    accept = lambda *fields: records.Grade.__post_init__(
        types.SimpleNamespace(**dict(zip(('outcome', 'partial'), fields)))
    )
    for outcome in ('no', 0.4, None):
      with self.assertRaisesRegex(ValueError, f'outcome={outcome!r} must be'):
        accept(outcome, 0.0)
    for partial in (2.0, -0.1, float('nan')):
      with self.assertRaisesRegex(ValueError, f'partial={partial!r} must lie'):
        records.Grade(True, partial, 'ok', {})
    accept(np.bool_(True), np.float32(1) + np.float32(1e-7))

  def test_a_grader_that_does_not_work_stops_the_run(self):
    class Domain(fakes.Domain):

      def grade(self, problem, completion):
        status = 'ok' if completion.text == self.good else 'infra_error'
        return records.Grade(False, 0.0, status, {})

    domain, problems = Domain(), [fakes.make_problem('p')]
    domain.good = 'b'
    grades, _ = collect.grade(domain, problems, _completions('ab'))
    self.assertEqual([g.graded for g in grades], [False, True])
    domain.good = 'c'
    with self.assertRaisesRegex(collect.GradingError, 'none of 2 compl'):
      collect.grade(domain, problems, _completions('ab'))

  def test_a_run_that_is_to_stop_does_not_wait_for_a_grader(self):
    hangs = threading.Event()
    self.addCleanup(hangs.set)

    class Domain(fakes.Domain):

      def grade(self, problem, completion):
        if completion.text == 'b':
          hangs.wait()
        return records.Grade(False, 0.0, 'ok', {})

    grade = functools.partial(
        collect.grade, Domain(), [fakes.make_problem('p')]
    )
    with self.assertRaises(preemption.Interrupted):
      grade(_completions('ab'), stopping=lambda: True)
    grades, _ = grade(_completions('aa'), stopping=lambda: False)
    self.assertLen(grades, 2)

  def test_nothing(self):
    grades, seconds = collect.grade(fakes.Domain(), [], [])
    self.assertEqual((grades, seconds.shape), ([], (0,)))


if __name__ == '__main__':
  absltest.main()
