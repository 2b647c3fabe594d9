"""Tests that findings and summaries say no more than the log shows."""

import dataclasses
import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd

from evojax.diagnosis import examine
from evojax.diagnosis import readers
from evojax.diagnosis.checks import learning
from tests.diagnosis import made
from tests.diagnosis import parts_made

_N = np.arange(parts_made.STEPS)


def _found(run):
  """Return name of the check -> finding."""
  return {f.check: f for f in examine.examine(run).findings}


def _metrics(drop=('gap',), **changed):
  return parts_made.metrics(drop=drop, **changed)


class ClaimsTest(parameterized.TestCase):

  @parameterized.parameters((True, '% are solved'), (False, None))
  def test_what_is_solved_is_said_if_it_is_known(self, known, said):
    entropy = 0.5 * np.exp(-_N / 5)
    run = _metrics(entropy=entropy)
    if known:
      rows = made.rollouts(rise=0).assign(completion='stuck')
      run = made.run(rows, entropy=entropy)
    text = _found(run)['entropy_collapse'].text
    self.assertEqual(said is not None, 'solved' in text, text)

  @parameterized.parameters(
      (np.zeros(40), 'all rewards are 0', 'temperature', ['reward_lost']),
      (
          np.linspace(0.3, 0.7, 40),
          'rewards differ between prompts',
          'wrong',
          ['dead_groups'],
      ),
  )
  def test_a_part_that_differs_without_a_weight(
      self, reward, said, unsaid, listed
  ):
    run = _metrics(reward=reward, dead=np.ones(40), spread=np.full(40, 0.3))
    found = learning.dead_groups(run)
    self.assertIn(said, found.text)
    self.assertNotIn(unsaid, found.change)
    both = {'reward_lost', 'dead_groups'}
    self.assertEqual([c for c in _found(run) if c in both], listed)

  @parameterized.parameters((1, '1 step is'), (2, '2 steps are'))
  def test_how_few_steps_there_are(self, steps, said):
    found = examine.examine(made.run(made.rollouts(steps=steps)))
    self.assertStartsWith(found.summary, f'{said} too few')

  @parameterized.parameters(
      (parts_made.noise(150, 196).round(), None),
      (np.full(40, 196.0), 'max_completion_length'),
      # The limit is raised twice.
      (np.repeat([64.0, 128.0, 256.0, 256.0], 10), 'max_completion_length'),
  )
  def test_completions_that_count_as_cut(self, longest, said):
    run = _metrics(truncated=parts_made.noise(0.95, 0.99), length_high=longest)
    found = _found(run)['truncation']
    self.assertEqual('not at one limit' in found.text, said is None)
    if said:
      self.assertStartsWith(found.change, said)
    else:
      self.assertIn('150 to 195', found.text)
      self.assertIn('if not, these completions are complete', found.change)
      self.assertStartsWith(found.change, 'the tokens that end a completion')

  @parameterized.parameters(
      ((196, 180, 190, 150), None),
      ((256, 256, 256, 250), 256.0),
      ((256, 256, 256, 180), 256.0),  # The mean of steps, of which some cut.
  )
  def test_a_limit_that_lengths_show(self, longest, limit):
    log = [
        {
            'step': step,
            'completions/max_length': longest[step % 4],
            'completions/clipped_ratio': 0.97,
        }
        for step in range(40)
    ]
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder)
      state = {'max_steps': 40, 'log_history': log}
      (path / 'trainer_state.json').write_text(json.dumps(state))
      run = readers.read(path)
    self.assertEqual(run.settings.get('max_tokens'), limit)

  @parameterized.parameters(
      (np.linspace(0.2, 0.6, 40), 'rises from 24% to 56%,'),
      # Both are 94%.
      (np.linspace(0.941, 0.945, 40), 'rises from 94.1% to 94.5%,'),
      (np.full(40, 0.95), 'is 95% at the end (95% at first),'),
  )
  def test_a_summary_says_what_is_known(self, solved, said):
    found = examine.examine(_metrics(outcome=solved))
    self.assertEqual(found.verdict, 'healthy', found.summary)
    self.assertStartsWith(found.summary, f'The solved share {said} and ')
    self.assertEndsWith(found.summary, 'checks found nothing wrong.')

  @parameterized.parameters(
      (np.linspace(0.3, 0.6, 8), 'healthy', 'evaluation rises from 32% to 60%'),
      ([0.3, 0.6, 0.2, 0.5, 0.3], 'cannot_tell', 'evaluation has risen: -'),
      ([0.3, 0.4, 0.5, 0.6], 'cannot_tell', 'because no outcome is logged'),
  )
  def test_a_summary_says_what_evaluations_show(self, scores, verdict, said):
    logged = np.full(40, np.nan)
    logged[: 5 * len(scores) : 5] = scores
    run = _metrics(eval_outcome=logged)
    found = examine.examine(run)
    self.assertEqual(found.verdict, verdict, found.summary)
    self.assertIn(said, found.summary)


class FiniteTest(parameterized.TestCase):

  @parameterized.parameters((40, 'warning'), (25, 'note'))
  def test_a_loss_that_ends_before_the_rollouts(self, steps, wanted):
    """Their rewards need not be among the metrics."""
    ends = np.where(_N < 25, 0.1, np.nan)
    table = pd.DataFrame({'step': _N, 'loss': ends, 'grad_norm': ends})
    run = dataclasses.replace(
        made.run(made.rollouts(steps=steps)), steps=table
    )
    self.assertEqual(_found(run)['not_finite'].severity, wanted)

  def test_numbers_beyond_those_of_a_trainer(self):
    huge = np.where(_N < 20, 0.1, 1e308)
    run = _metrics(loss=huge, grad_norm=huge, reward=huge)
    self.assertEqual(_found(run)['not_finite'].since, 20)

  @parameterized.parameters(
      (parts_made.noise(0.4, 0.6), 'use `where` instead of a product'),
      (0.5 * np.exp(np.maximum(_N - 15, 0) / 3), 'learning_rate'),
  )
  def test_what_ends_a_loss(self, norm, first):
    """A gradient that explodes does, or an operation."""
    ends = lambda values: np.where(_N < 25, values, np.nan)
    run = _metrics(loss=ends(0.1 + 0.001 * _N), grad_norm=ends(norm))
    change = _found(run)['not_finite'].change
    self.assertStartsWith(change, first)
    self.assertIn('learning_rate', change)

  @parameterized.parameters(
      ((9,), (9,), (), True),
      ((9, 17, 30), (9, 17, 30), (), True),
      ((9,), (9,), (9,), False),  # Nothing was logged.
      ((9,), (), (), False),  # A mean over no token, say.
      ((9, 12), (9,), (), False),
      ((39,), (39,), (), False),  # The last step is being written.
      (range(0, 40, 2), range(0, 40, 2), (), False),  # They are logged rarely.
  )
  def test_single_steps_without_a_number(self, loss, kl, norm, wanted):
    course = lambda holes: np.where(np.isin(_N, holes), np.nan, 0.01 + _N / 999)
    run = _metrics(
        loss=course(list(loss)),
        kl=course(list(kl)),
        grad_norm=course(list(norm)),
    )
    found = _found(run).get('not_finite')
    self.assertEqual(found is not None, wanted)
    if wanted:
      self.assertStartsWith(found.text, f'in {len(loss)} of 40 steps')
      self.assertEqual(found.since, 9)
      self.assertStartsWith(found.change, 'the mask of the KL')

  @parameterized.parameters(
      ((9, 30), (9, 30), (), True),
      ((9, 30), (9,), (), False),  # A metric that is logged without another.
      ((9,), (9,), (9,), False),  # Nothing was logged.
      (range(0, 40, 2), range(0, 40, 2), (), False),  # They are logged rarely.
  )
  def test_log_probs_of_the_sampler_that_are_no_number(
      self, gap, entropy, loss, wanted
  ):
    course = lambda holes: np.where(np.isin(_N, list(holes)), np.nan, 0.01)
    run = _metrics(
        drop=('clip',),
        gap=course(gap) * parts_made.NEAR,
        entropy=0.5 + course(entropy) * parts_made.NEAR,
        loss=course(loss) * parts_made.NEAR,
    )
    found = _found(run).get('not_finite')
    self.assertEqual(found is not None, wanted)
    if wanted:
      self.assertStartsWith(found.text, 'in 2 of 40 steps gap and entropy')
      self.assertEqual(found.since, 9)

  @parameterized.parameters(
      (0.25, None, 'what holds it there'),
      (1.0, None, 'difficulty'),  # It may be what is right.
      (0.25, 1.0, 'difficulty'),  # Outcomes are known, and differ.
  )
  def test_a_ceiling_of_the_reward(self, top, solved, said):
    rows = made.rollouts(rise=0)
    low = np.random.default_rng(0).random(len(rows)) < 0.01
    run = made.run(rows, reward=lambda e: np.where(low, 0.05, top))
    table = run.rollouts.drop(columns=[] if solved else ['outcome'])
    found = learning.dead_groups(dataclasses.replace(run, rollouts=table))
    self.assertIn(said, found.change)


class FallsTest(parameterized.TestCase):

  @parameterized.parameters(
      (np.where(_N < 25, 0.6, 0.2), True),
      (np.where(_N < 25, 0.4 + 0.01 * _N, 0.3), True),  # It rose before.
      (np.where(_N < 25, 0.6, np.where(_N < 26, 0.4, 0.2)), True),
      (np.where(_N < 25, 0.6 - 0.006 * _N, 0.1), False),  # It fell before.
      (np.where(_N < 25, 0.6 - 0.01 * _N, 0.0), True),  # Nothing is left.
      (np.interp(_N, (0, 20, 30, 39), (0.3, 0.7, 0.1, 0.1)), False),
      (0.1 + 0.5 / (1 + np.exp((_N - 22) / 3)), False),
      (np.linspace(0.6, 0.1, 40), False),
  )
  def test_a_fall_at_one_step_has_another_cause(self, course, wanted):
    course = course + parts_made.noise(-0.02, 0.02)
    # A reward that rises meanwhile would be the finding.
    flat = 0.4 + parts_made.noise(-0.02, 0.02)
    broke, lower = 'find out what happened', 'learning_rate'
    for check, change in (
        ('reward_falling', _found(_metrics(reward=course))),
        ('outcome_falling', _found(_metrics(outcome=course, reward=flat))),
    ):
      change = change[check].change
      self.assertStartsWith(change, broke if wanted else lower)
      self.assertIn(lower, change)
      self.assertIn('grader', change)


if __name__ == '__main__':
  absltest.main()
