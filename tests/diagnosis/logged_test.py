"""Checks of lengths, ratios, calls and steps without a signal, as logged."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd

from evojax.diagnosis import causes
from evojax.diagnosis import examine
from evojax.diagnosis import form
from evojax.diagnosis import names
from evojax.diagnosis.checks import agents
from evojax.diagnosis.checks import learning
from evojax.diagnosis.checks import lengths
from evojax.diagnosis.checks import optimiser
from evojax.diagnosis.checks import sampler
from tests.diagnosis import parts_made

_N = np.arange(parts_made.STEPS)
_NEAR = parts_made.NEAR


class IdleStepsTest(parameterized.TestCase):

  @parameterized.parameters('grad_norm', 'loss')
  def test_steps_of_one_group(self, name):
    found = optimiser.idle_steps(parts_made.one_group(name=name))
    share = found.numbers[0].value
    self.assertBetween(share, 0.35, 0.65)
    times = int(found.change.split()[0])
    self.assertLess(share**times, 0.05)
    self.assertGreater(share ** (times - 1), 0.05)

  @parameterized.parameters(
      {'share': 0.1},
      {'share': 0.0, 'every': 0.5, 'name': 'loss'},  # Losses that are rounded.
      {'share': 0.4, 'every': 0.5},
      {'share': 1.0},
      {'share': 0.0},
  )
  def test_other_steps(self, **changed):
    self.assertIsNone(optimiser.idle_steps(parts_made.one_group(**changed)))

  def test_a_reward_that_is_constant(self):
    norm = np.where(_N % 2, 0.0, 1.0)
    run = parts_made.metrics(reward=np.full(40, 0.5), grad_norm=norm)
    self.assertIsNone(optimiser.idle_steps(run))

  def test_what_is_solved_in_the_end(self):
    late = _N >= 22
    reward = np.where(late, 1.0, parts_made.noise(0.2, 0.8))
    norm = np.where(late, 0.0, 1.0)
    run = parts_made.metrics(reward=reward, grad_norm=norm)
    self.assertIsNone(optimiser.idle_steps(run))


class DeadTest(parameterized.TestCase):

  def _found(self, dead, right, **changed):
    mean = np.full(40, right)
    run = parts_made.metrics(
        drop=('gap', 'part_format', *changed.pop('drop', ())),
        dead=np.full(40, dead),
        part_correct=mean,
        outcome=mean,
        **changed,
    )
    found = examine.examine(run).findings
    return {f.check: f for f in found}['dead_groups']

  @parameterized.parameters(
      (0.6, 0.9, 'at least 83% of these all rollouts are right', 'harder'),
      (0.6, 0.1, 'at least 83% of these no rollout is right', 'easier'),
      (0.6, 0.5, '', ''),
      (0.6, 0.0, '', ''),  # Or the grader accepts nothing.
  )
  def test_whether_dead_groups_are_right(self, dead, right, said, change):
    found = self._found(dead, right)
    self.assertIn(said, found.text)
    self.assertIn(change, found.change)
    if not said:
      self.assertNotIn('rollout', found.text)
    refused = causes.CAUSES['refused'].text
    listed = [cause.text for cause in found.causes]
    self.assertEqual(refused in listed, change != 'harder')

  def test_a_gradient_of_the_penalty_alone(self):
    dead = np.where(_N % 4 == 0, 1.0, 0.6)
    norm = parts_made.noise(0.1, 0.2)
    for changed, wanted in (
        ({}, True),
        ({'kl': np.zeros(40)}, False),
        ({'grad_norm': np.where(_N % 4 == 0, 0.0, norm)}, False),
        ({'dead': np.full(40, 0.7)}, False),
    ):
      run = parts_made.metrics(**({'dead': dead, 'grad_norm': norm} | changed))
      found = learning.dead_groups(run)
      self.assertEqual('KL penalty alone' in found.change, wanted, changed)

  def test_a_reward_that_nothing_gets(self):
    zero = np.zeros(40)
    found = self._found(1.0, 0.0, reward=zero, spread=zero, grad_norm=zero)
    self.assertIn('never sampled', found.change)
    listed = [cause.text for cause in found.causes]
    self.assertNotIn(causes.CAUSES['alike'].text, listed)


class RatioTest(parameterized.TestCase):

  @parameterized.parameters(
      (0.94 * _NEAR, 'warning'),
      (1.06 * _NEAR, 'warning'),
      (0.6 * _NEAR, 'critical'),
      (1.0 * _NEAR, None),
      (np.where(_N < 8, 1.0, 0.9) * _NEAR, None),  # Not from the start.
      (np.full(40, 1.0), None),
  )
  def test_a_mean_that_is_not_one(self, ratio, severity):
    found = sampler.ratio_off(parts_made.metrics(ratio=ratio))
    self.assertEqual(found and found.severity, severity)
    if found:
      self.assertIn('after the temperature', found.change)

  def test_a_gap_tells_more(self):
    run = parts_made.gap(ratio=0.6 * _NEAR)
    self.assertIsNone(sampler.ratio_off(run))

  def test_names_of_pipeline_rl(self):
    log = pd.DataFrame({'step': [1], 'rl/ratio_new_old': 0.9, 'rl/reward': 0.5})
    self.assertEqual(names.common(log)['ratio'].tolist(), [0.9])


class TokensTest(parameterized.TestCase):

  @parameterized.parameters(
      (dict(), 'critical'),
      (dict(loss=0.02 * _NEAR), 'warning'),
      (dict(gap_high=0.6 * _NEAR), None),
      (dict(gap_high=np.where(_N % 7 == 3, 4.0, 0.6)), None),  # Rounding.
      (dict(gap_high=np.where(_N == 20, 15.0, 0.6)), None),
      (dict(gap_high=np.where(_N < 20, 15.0, 0.6)), None),
      (dict(gap_high=np.where(_N % 7 == 3, 15.0, 6.0)), None),
      # Whole completions differ, which `logprob_gap` finds.
      (dict(gap=np.where(_N % 7 == 3, 0.8, 0.01)), None),
  )
  def test_tokens_that_were_not_sampled(self, changed, severity):
    hit = _N % 7 == 3
    course = dict(
        gap_high=np.where(hit, 15.0, 0.6), loss=np.where(hit, 1.5, 0.03)
    )
    found = sampler.unsampled_tokens(parts_made.gap(**(course | changed)))
    self.assertEqual(found and found.severity, severity)
    if found:
      self.assertEqual(found.since, 3)
      self.assertEqual('the loss is' in found.text, severity == 'critical')

  def test_names_of_trl(self):
    log = pd.DataFrame(
        {'step': [1], 'sampling/sampling_logp_difference/max': 12.0}
    )
    self.assertEqual(names.common(log)['gap_high'].tolist(), [12.0])


class LengthTest(parameterized.TestCase):

  @parameterized.parameters(
      ({}, True),
      ({'length': np.full(40, 1.0)}, False),  # A class, or a number.
      ({'length': np.full(40, 203.0) + (_N == 3)}, False),
      ({'truncated': np.full(40, 1.0)}, False),
      ({'truncated': np.full(40, 0.0)}, True),
  )
  def test_one_length_in_all_steps(self, changed, wanted):
    run = parts_made.metrics(**({'length': np.full(40, 203.0)} | changed))
    found = lengths.fixed_length(run)
    self.assertEqual(found is not None, wanted)
    if found:
      self.assertIn('that of the prompt', found.change)
      run = dataclasses.replace(run, settings={'max_tokens': 203.0})
      self.assertIsNone(lengths.fixed_length(run))

  def test_that_completions_may_be_cut(self):
    run = parts_made.metrics(
        drop=('gap', 'truncated'), length=np.full(40, 203.0)
    )
    self.assertIn('max_completion_length', lengths.fixed_length(run).change)

  @parameterized.parameters(
      (dict(), 'hold further turns:'),
      (dict(more='and so on, by one and two, as ever'), 'none ends by itself'),
      (dict(more='It is so, and 2 + 2 = 4. So:\n'), 'none ends by itself'),
      (dict(spread=60), None),  # The policy ends them.
      (dict(end='.'), None),  # They are of a fixed form.
      (dict(end=' }'), None),
      (dict(limit=99), None),  # They are short.
      (dict(logged=True), None),  # How many are cut is known.
  )
  def test_completions_that_never_end(self, changed, said):
    found = lengths.fixed_length(parts_made.endless(**changed))
    self.assertEqual(found is not None, said is not None)
    if found:
      self.assertIn(said, found.text)
      self.assertIn('min_length', found.change)

  def test_few_steps(self):
    run = parts_made.metrics(length=np.where(_N < 15, 203.0, np.nan))
    with self.assertRaises(form.NotLogged):
      lengths.fixed_length(run)

  @parameterized.parameters(
      (0.5, 0.5, 'prompt and completion'),
      (0.4, 0.5, 'prompt and completion'),
      (0.0, 1.4, 'for each character'),
      (0.0, 0.5, None),
      (0.0, 0.98, None),
  )
  def test_lengths_that_completions_do_not_have(self, prompts, per, said):
    found = lengths.other_length(parts_made.counted(prompts, per))
    self.assertEqual(found is not None, said is not None)
    if found:
      self.assertIn(said, found.text)

  def test_letters_of_several_bytes(self):
    run = parts_made.counted(0.0, 1.4)
    other = run.rollouts['completion'].str.replace('x', '\u4e2d')
    run.rollouts['completion'] = other
    self.assertIsNone(lengths.other_length(run))

  def test_lengths_of_rollouts(self):
    run = parts_made.counted(0.5)
    run.rollouts['n_tokens'] = 9.0
    with self.assertRaises(form.NotLogged):
      lengths.other_length(run)


class CallsTest(parameterized.TestCase):

  @parameterized.parameters(
      (1.0, 3.0, -0.2, True),
      (1.0, 5.0, -0.2, True),
      (2.0, 2.4, -0.2, False),  # Not by half.
      (3.0, 1.0, 0.0, False),
      (2.0, 2.0, 0.0, False),
      (1.0, 3.0, 3.0, False),  # More is solved.
      (0.0, 0.4, -0.2, False),  # Hardly any.
  )
  def test_calls_that_grow_without_gain(self, start, end, rise, wanted):
    run = parts_made.calls(start, end, rise)
    found = agents.calls_grow(run)
    self.assertEqual(found is not None, wanted)
    if found:
      self.assertEqual(found.severity, 'note')

  def test_a_score_of_an_evaluation_that_rises(self):
    run = parts_made.calls(1.0, 3.0, -0.2)
    run.steps['eval_outcome'] = 0.3 + 0.005 * _N
    self.assertIsNone(agents.calls_grow(run))


if __name__ == '__main__':
  absltest.main()
