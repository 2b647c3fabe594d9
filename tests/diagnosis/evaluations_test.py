"""Checks of scores of evaluations: falls, several that part, and always 0."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.diagnosis import examine
from evojax.diagnosis import form
from evojax.diagnosis import meanings
from evojax.diagnosis.checks import evaluations
from tests.diagnosis import parts_made

_N = np.arange(parts_made.STEPS)
_EIGHT = np.where(_N % 5 == 0, 1.0, np.nan)  # Eight evaluations.
_NOISE = parts_made.noise(-0.006, 0.006)


def _score(course, name='evaluation_val/acc'):
  return {name: (course + _NOISE) * _EIGHT}


class NamesTest(parameterized.TestCase):

  @parameterized.parameters(
      ('val-core/healthbench/gold_judge/mean@1', True),
      ('eval/general_exact_match', True),
      ('eval_rewards/correct/mean', True),
      ('test/accuracy', True),
      ('val/pass@1', True),
      ('val/pass@8', False),  # It falls where a policy gets certain.
      ('val-core/aime/acc/best@8/mean', False),
      ('eval/safety_violations', False),
      ('eval/format_reward', False),
      ('eval_reward_std', False),
      ('eval/loss', False),
      ('eval/runtime', False),
      ('train/accuracy', False),
  )
  def test_which_metrics_are_scores(self, name, expected):
    self.assertEqual(meanings.is_evaluation(name), expected)


class FallingTest(parameterized.TestCase):

  @parameterized.parameters(
      (0.71 - 0.0034 * _N, 0, 'warning'),  # From the start.
      (0.5 + 0.3 * np.exp(-(((_N - 15) / 10) ** 2)), 15, 'warning'),
      (np.where(_N > 20, 0.1, 0.5), 5, 'critical'),
      (0.5 + 0.003 * _N, None, None),
      (0.5 - 0.0005 * _N, None, None),  # Less than a tenth of it.
      (0.5 + 0 * _N, None, None),
  )
  def test_a_score(self, course, since, severity):
    run = parts_made.metrics(**_score(course, 'eval_outcome'))
    found = evaluations.eval_falling(run)
    if severity is None:
      self.assertIsNone(found)
    else:
      self.assertEqual(found.severity, severity)
      self.assertBetween(found.since, since, since + 10)

  def test_a_term_of_the_loss_that_is_a_sum(self):
    course = _score(0.71 - 0.0034 * _N, 'eval_outcome')
    run = parts_made.metrics(**course, grad_norm=parts_made.noise(2000, 4000))
    self.assertIn('sum where', evaluations.eval_falling(run).change)
    usual = parts_made.metrics(**course)
    self.assertNotIn('sum where', evaluations.eval_falling(usual).change)

  def test_three_evaluations_tell_nothing(self):
    few = np.where(_N % 15 == 0, 0.9 - 0.02 * _N, np.nan)
    with self.assertRaises(form.NotLogged):
      evaluations.eval_falling(parts_made.metrics(eval_outcome=few))

  def test_flat_scores_with_noise(self):
    rng = np.random.default_rng(0)
    for _ in range(60):
      course = np.clip(rng.normal(0.4, 0.05, parts_made.STEPS), 0, 1)
      run = parts_made.metrics(eval_outcome=course * _EIGHT)
      self.assertIsNone(evaluations.eval_falling(run))

  def test_the_summary_does_not_doubt_a_fall(self):
    course = np.where(_N % 5 == 0, 0.62 - 0.0012 * _N, np.nan)
    run = parts_made.metrics(
        drop=('gap', 'part_correct'), eval_outcome=course
    )
    found = examine.examine(run)
    self.assertIn('evaluation has fallen', found.summary)


class SeveralTest(parameterized.TestCase):

  @parameterized.parameters(
      (0.3 + 0.005 * _N, 0.5 - 0.005 * _N, True),
      (0.3 + 0.005 * _N, 0.5 + 0.002 * _N, False),
      (0.3 - 0.005 * _N, 0.5 - 0.005 * _N, False),  # Both fall.
      (0.3 + 0 * _N, 0.5 - 0.005 * _N, False),
  )
  def test_two_judges(self, one, other, part):
    run = parts_made.metrics(
        **_score(one, 'evaluation_val/judge'),
        **_score(other, 'evaluation_val/gold_judge'),
    )
    found = evaluations.evals_part(run)
    self.assertEqual(found is not None, part)
    if part:
      self.assertStartsWith(found.text, 'val/gold_judge falls')

  def test_one_score_does_not_part(self):
    with self.assertRaises(form.NotLogged):
      evaluations.evals_part(parts_made.metrics(**_score(0.3 + 0 * _N)))


class ZeroTest(parameterized.TestCase):

  @parameterized.parameters(
      (0.0, 0.4, True),
      (0.0, 0.01, False),  # Training solves nothing, either.
      (0.02, 0.4, False),
  )
  def test_a_score_that_is_always_0(self, score, solved, wanted):
    run = parts_made.metrics(
        **{'evaluation_val/exact_match': score * _EIGHT},
        outcome=np.full(parts_made.STEPS, solved),
    )
    self.assertEqual(evaluations.eval_zero(run) is not None, wanted)

  @parameterized.parameters((0.004, True), (0.0, False))
  def test_rewards_that_rise_without_a_known_outcome(self, slope, wanted):
    run = parts_made.metrics(
        drop=('gap', 'part_correct'),
        **{'evaluation_val/accuracy': 0 * _EIGHT},
        reward=0.4 + slope * _N + 4 * _NOISE,
    )
    found = evaluations.eval_zero(run)
    self.assertEqual(found is not None, wanted)
    if wanted:
      self.assertIn('rises from 0.4 to 0.56', found.text)


class JumpTest(parameterized.TestCase):

  @parameterized.parameters(
      (np.where(_N < 20, 0.68, 0.6), 0 * _N, True),
      (np.where(_N < 20, 0.6, 0.68), 0 * _N, True),
      # Training changes as much: other data, or another policy.
      (np.where(_N < 20, 0.68, 0.6), np.where(_N < 20, 0.08, 0), False),
      (0.5 + 0.01 * _N, 0 * _N, False),
      (np.where(_N == 20, 0.4, 0.68), 0 * _N, False),  # It comes back.
  )
  def test_between_two_evaluations(self, course, training, wanted):
    run = parts_made.metrics(
        **_score(course, 'eval_outcome'), outcome=0.5 + training + 0 * _N
    )
    found = evaluations.eval_jumps(run)
    self.assertEqual(found is not None, wanted)
    if wanted:
      self.assertEqual(found.since, 20)

  @parameterized.parameters(0.0, 0.4)
  def test_constant_scores_do_not_jump(self, score):
    for training in (0.5 - 0.002 * _N, 0.5 + 0.002 * _N):
      run = parts_made.metrics(eval_outcome=score * _EIGHT, outcome=training)
      self.assertIsNone(evaluations.eval_jumps(run))

  def test_noise_hardly_ever_jumps(self):
    rng = np.random.default_rng(0)
    found = [
        evaluations.eval_jumps(
            parts_made.metrics(
                eval_outcome=rng.normal(0.5, 0.03, parts_made.STEPS) * _EIGHT
            )
        )
        for _ in range(100)
    ]
    self.assertLessEqual(sum(f is not None for f in found), 1)


class AfterTest(parameterized.TestCase):

  @parameterized.parameters(
      (1, -0.3, True),
      (1, 0.3, False),  # It is higher.
      (4, -0.3, False),  # Some other steps are lower.
      (1, -0.03, False),
  )
  def test_a_reward(self, place, change, wanted):
    noise = parts_made.noise(-0.03, 0.03, 7)
    reward = 0.5 + np.where(_N % 5 == place, change, 0.0) + noise
    run = parts_made.metrics(**_score(0.5 + 0 * _N), reward=reward)
    found = evaluations.after_evaluations(run)
    self.assertEqual(found is not None, wanted)
    if wanted:
      self.assertEqual(found.since, 1)

  def test_rewards_of_0_are_not_lower(self):
    run = parts_made.metrics(**_score(0.5 + 0 * _N), reward=0.0 * _N)
    self.assertIsNone(evaluations.after_evaluations(run))

  def test_evaluations_of_every_step_tell_nothing(self):
    run = parts_made.metrics(**{'evaluation_val/acc': 0.5 + 0 * _N})
    with self.assertRaises(form.NotLogged):
      evaluations.after_evaluations(run)


if __name__ == '__main__':
  absltest.main()
