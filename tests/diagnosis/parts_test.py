"""Tests for the checks of what lies between sampler, reward and loss."""

import dataclasses
import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd

from evojax.diagnosis import examine
from evojax.diagnosis import form
from evojax.diagnosis import meanings
from evojax.diagnosis import names
from evojax.diagnosis import readers
from evojax.diagnosis import show
from evojax.diagnosis import words
from evojax.diagnosis.checks import behaviour
from evojax.diagnosis.checks import learning
from evojax.diagnosis.checks import optimiser
from evojax.diagnosis.checks import sampler
from tests.diagnosis import made
from tests.diagnosis import parts_made

_N = np.arange(parts_made.STEPS)

_ALONE = {'weights': {'correct': 1.0}}


def _found(run):
  """Return name of the check -> finding."""
  return {f.check: f for f in examine.examine(run).findings}


def _spiky(every: int, low: float, high: float) -> np.ndarray:
  return np.where(_N % every == every - 1, high, low)


class PartsTest(parameterized.TestCase):

  def test_sound_metrics_raise_no_alarm(self):
    """Runs of which only metrics are logged, with and without a KL penalty."""
    wrong = []
    for seed in range(16):
      changed = dict(kl_coef=np.full(40, 0.04)) if seed % 2 else {}
      size = parts_made.noise(0.6, 0.8, seed)
      run = parts_made.metrics(
          seed,
          advantage_mean=parts_made.noise(-0.1, 0.1, seed),
          advantage_low=-2.5 + size,
          advantage_size=size,
          length_low=parts_made.noise(3, 9, seed).round(),
          length_high=parts_made.noise(40, 63, seed).round(),
          kl_update=parts_made.noise(-1e-3, 1e-3, seed),
          spread=parts_made.noise(0.3, 0.5, seed),
          **changed,
      )
      found = _found(run)
      if found:
        wrong.append((seed, {c: f.text for c, f in found.items()}))
    self.assertEmpty(wrong)

  @parameterized.parameters(
      # The gap in each step, and a word of the advice.
      (np.linspace(0.002, 0.3, 40), 'LoRA'),
      (np.full(40, 0.3), 'after the temperature'),
      (np.where(_N < 20, 0.3, 0.35), 'after the temperature'),
      (_spiky(4, 0.01, 0.8), 'prefix cache'),
      (np.full(40, 7.0), 'after sleep'),
      (np.full(40, 0.01), None),
      (np.linspace(0.001, 0.02, 40), None),
      (np.where(_N == 20, 0.3, 0.01), None),  # One odd step.
  )
  def test_the_course_of_the_gap_tells_its_cause(self, gap, said):
    found = _found(parts_made.gap(gap=gap * parts_made.noise(0.95, 1.05)))
    names_ = {'logprob_gap', 'other_weights'} & set(found)
    self.assertLen(names_, 1 if said else 0)
    if said:
      self.assertIn(said, found[names_.pop()].change)

  @parameterized.parameters((1.0, 0.85, True), (1.8, 1.1, False))
  def test_a_sampler_that_truncates(self, high, mean, wanted):
    run = parts_made.gap(
        gap=parts_made.noise(0.16, 0.2),
        ratio_high=np.full(40, high),
        ratio=np.full(40, mean),
    )
    change = _found(run)['logprob_gap'].change
    self.assertEqual('top_k' in change, wanted, change)

  @parameterized.parameters(
      ({}, 'after the temperature'),
      ({'top_p': 1.0, 'top_k': 0.0}, 'after the temperature'),
      ({'top_p': 0.9}, 'turn off top_p 0.9,'),
      ({'top_k': 20.0, 'min_p': 0.1}, 'turn off top_k 20, min_p 0.1,'),
  )
  def test_a_gap_by_a_known_filter_of_the_sampler(self, settings, said):
    for gap in (np.full(40, 0.3), np.linspace(0.002, 0.3, 40)):
      run = parts_made.gap(gap=gap * parts_made.noise(0.95, 1.05))
      found = _found(dataclasses.replace(run, settings=settings))
      change = found['logprob_gap'].change
      if 'top' in said or gap[0] == gap[-1]:
        self.assertIn(said, change)
      # It grows from nothing, so the weights may be old as well.
      self.assertEqual('LoRA' in change, gap[0] < gap[-1], change)

  @parameterized.parameters(
      ({'top_p': 1.0, 'top_k': 0.0, 'repetition_penalty': 1.0}, None),
      ({'top_p': 0.95}, 'note'),
      ({'top_p': 0.5}, 'warning'),
      ({'top_k': 1.0}, 'warning'),
      ({'repetition_penalty': 1.3}, 'warning'),
  )
  def test_a_sampler_that_filters(self, settings, severity):
    run = dataclasses.replace(parts_made.flat(), settings=settings)
    got = _found(run).get('filtered_sampling')
    self.assertEqual(got and got.severity, severity)
    if severity == 'note':
      self.assertEqual(got.change, 'top_p off (1)')
    # Training by evojax cannot filter.
    own = dataclasses.replace(run, config={'rollout.top_p': 0.5})
    self.assertIsNone(sampler.filtered_sampling(own))

  @parameterized.parameters(
      ({}, True),
      ({'kl': np.linspace(1e-4, 0.1, 40)}, False),
      ({'kl': np.full(40, 0.6)}, False),
      ({'length': np.linspace(80, 120, 40)}, False),
      ({'reward': np.linspace(0.4, 0.6, 40)}, False),
  )
  def test_rollouts_of_an_older_policy(self, changed, wanted):
    found = _found(parts_made.stale(**changed))
    self.assertEqual('stale_sampler' in found, wanted, found)
    # Log-probs that agree rule it out.
    run = parts_made.stale(gap=np.full(40, 0.01), **changed)
    steps = run.steps.assign(gap=0.01)
    run = form.make(run.path, 'trl', pd.DataFrame(), steps, {})
    self.assertNotIn('stale_sampler', _found(run))

  @parameterized.parameters(
      (_spiky(8, 2e-4, 0.6), True),
      (_spiky(8, 2e-4, 0.05), False),
      (np.where(_N == 7, 0.6, 2e-4), False),
      (np.linspace(0, 0.6, 40), False),  # It rises, which is no jump.
      (np.where(_N > 20, 0.6, 2e-4), False),
  )
  def test_updates_apart_from_the_others(self, kl, wanted):
    found = _found(parts_made.metrics(kl_update=kl))
    self.assertEqual('kl_jumps' in found, wanted, found)

  @parameterized.parameters(
      (0.005, 0.5, np.linspace(0.5, 0.2, 40), True),
      (0.005, 0.5, np.linspace(0.2, 0.5, 40), True),
      (0.005, 0.5, np.full(40, 0.5), False),  # The sampler may be stuck.
      (0.0005, 0.03, np.linspace(0.5, 0.2, 40), False),  # Still small.
      (0.2, 0.5, np.linspace(0.5, 0.2, 40), False),  # Far from the start.
  )
  def test_updates_that_part_from_their_rollouts(self, low, high, reward, is_):
    kl = np.geomspace(low, high, 40) * parts_made.NEAR
    reward = reward * parts_made.NEAR
    found = _found(parts_made.metrics(kl_update=kl, reward=reward))
    self.assertEqual('off_policy' in found, is_, found)

  def test_a_gap_that_grows_while_the_reward_moves(self):
    gap = np.linspace(0.01, 0.4, 40)
    for reward, engines in ((0.5, False), (np.linspace(0.5, 0.1, 40), True)):
      run = parts_made.gap(gap=gap * parts_made.NEAR)
      steps = run.steps.assign(reward=reward * parts_made.NEAR)
      run = form.make(run.path, 'trl', pd.DataFrame(), steps, {})
      change = _found(run)['logprob_gap'].change
      self.assertEqual('routing replay' in change, engines, change)
      self.assertIn('every update reach it', change)

  def test_a_ratio_of_policies(self):
    for name in ('loss/importance_ratio', 'policy/ratio_mean'):
      self.assertEqual(meanings.of(name), 'ratio', name)
    for name in ('train/ratio', 'sample_ratio', 'policy/fraction'):
      self.assertEqual(meanings.of(name), '', name)

  @parameterized.parameters(
      (1 - _N / 40, None),
      (0.5 + 0.5 * np.cos(np.pi * _N / 40), None),
      (np.minimum(1, (39 - _N) / 8), None),
      (np.full(40, 1.0), None),
      (np.maximum(1 - _N / 30, 0), 'warning'),
      (np.maximum(1 - _N / 10, 0), 'critical'),
  )
  def test_schedules(self, course, severity):
    found = _found(parts_made.rates(1e-5 * course)).get('schedule_ends')
    self.assertEqual(found and found.severity, severity)

  @parameterized.parameters(
      (0.0, 0.4, True), (-1.5, 0.0, False), (-1.0, 0.4, False), (0, 0.0, False)
  )
  def test_advantages_that_are_rewards(self, low, mean, wanted):
    found = _found(parts_made.advantages(low, mean))
    self.assertEqual('no_baseline' in found, wanted)

  def test_advantages_by_their_size(self):
    for share, wanted in ((1.0, True), (0.2, False)):
      mean = parts_made.noise(0.3, 0.5)
      run = parts_made.metrics(advantage_mean=mean * share, advantage_size=mean)
      self.assertEqual('no_baseline' in _found(run), wanted)

  def test_lengths_that_are_all_the_same(self):
    longest = parts_made.noise(40, 63).round()
    cases = (
        (longest, longest, True),
        (longest - 3, longest, False),
        (np.full(40, 2.0), np.full(40, 2.0), False),  # One letter and an end.
    )
    for low, high, wanted in cases:
      found = _found(parts_made.lengths(low, high))
      self.assertEqual('padded_lengths' in found, wanted)

  @parameterized.parameters(
      (np.linspace(0.6, 0.1, 40), True),
      (np.linspace(0.6, 0.55, 40), False),
      (np.linspace(0.1, 0.6, 40), False),
      (np.linspace(-1, -3, 40), True),
  )
  def test_a_reward_that_falls(self, reward, wanted):
    noisy = reward + parts_made.noise(-0.01, 0.01)
    found = _found(parts_made.metrics(reward=noisy))
    self.assertEqual('reward_falling' in found, wanted, found)
    # If the solved share is known, it counts instead of the reward.
    known = parts_made.metrics(reward=noisy, outcome=np.linspace(0.3, 0.6, 40))
    self.assertNotIn('reward_falling', _found(known))

  def test_a_reward_that_falls_as_completions_are_cut(self):
    cut = np.linspace(0.05, 0.7, 40) + parts_made.noise(0, 0.02)
    for reward, wanted in ((0.6 * (1 - cut), True), (0.6 + 0.1 * cut, False)):
      found = _found(parts_made.metrics(truncated=cut, reward=reward))
      text = found['truncation'].text
      self.assertEqual('the reward falls' in text, wanted, text)
      self.assertNotIn('reward_falling', found)

  def test_a_reward_of_the_length(self):
    length = parts_made.noise(40, 90)
    for reward, wanted in (
        (length / 64, 'longer'),
        (-3 * length, 'shorter'),
        (length / 64 + parts_made.noise(0, 0.5, 9), None),
    ):
      found = _found(parts_made.metrics(reward=reward, length=length))
      self.assertEqual('length_alone' in found, wanted is not None)
      if wanted:
        self.assertStartsWith(found['length_alone'].text, wanted)

  def test_parts_that_nobody_gets(self):
    rows = made.rollouts().assign(part_style=0.0)
    (found,) = _found(made.run(rows)).values()
    self.assertEqual((found.check, found.severity), ('never_paid', 'note'))
    closed = rows.assign(completion=rows['completion'] + ' </think> 1')
    found = _found(made.run(closed))['never_paid']
    self.assertEqual(found.severity, 'warning')
    self.assertIn('<think>', found.change)
    both = closed.assign(completion='<think> ' + closed['completion'])
    self.assertEqual(_found(made.run(both))['never_paid'].severity, 'note')
    off = {'weights': {'correct': 1.0, 'format': 0.2, 'style': 0.0}}
    self.assertNotIn('never_paid', _found(made.run(rows, settings=off)))
    some = rows.assign(part_style=(np.arange(len(rows)) == 5).astype(float))
    self.assertNotIn('never_paid', _found(made.run(some)))
    # Metrics alone tell it, too.
    run = parts_made.metrics(part_style=np.zeros(40))
    self.assertIn('never_paid', _found(run))

  @parameterized.parameters(
      (-0.1, 0.0, True),
      (0.0, 0.5, False),  # The outcome in other units.
      (-1.0, 1.0, False),
      (0.2, 0.2, False),  # Constant, which is another finding.
  )
  def test_parts_that_repeat_the_outcome(self, unsolved, solved, wanted):
    found = _found(parts_made.repeated(unsolved, solved))
    self.assertEqual('redundant_part' in found, wanted)

  def test_the_only_part_is_the_outcome_in_any_units(self):
    rows = made.rollouts()
    part = np.where(rows['outcome'] > 0.5, 7.0, -3.0)
    rows = rows.assign(part_correct=part).drop(columns='part_format')
    run = made.run(rows, reward=lambda e: e['part_correct'], settings=_ALONE)
    self.assertEmpty(_found(run))

  @parameterized.parameters((0, 'BOS'), (25, 'learning_rate'))
  def test_texts_that_repeat_a_phrase(self, first, said):
    found = _found(parts_made.looping(first))['loops']
    self.assertIn(said, found.change)

  @parameterized.parameters((1.0, True), (30.0, False), (90.0, False))
  def test_completions_that_shrink(self, end, wanted):
    run = parts_made.metrics(length=parts_made.shrinking(end))
    self.assertEqual('shrinks' in _found(run), wanted)
    # Short answers are fine where they are right.
    right = np.full(40, 0.97)
    run = parts_made.metrics(length=parts_made.shrinking(end), outcome=right)
    self.assertNotIn('shrinks', _found(run))

  @parameterized.parameters(
      (30.0, -0.4, True),
      (30.0, 0.4, False),
      (60.0, -0.4, False),
  )
  def test_completions_that_shrink_while_less_is_solved(
      self, end, change, wanted
  ):
    rng = np.random.default_rng(0)
    solved = np.linspace(0.5, 0.5 + change, 40) + rng.normal(0, 0.02, 40)
    run = parts_made.metrics(length=parts_made.shrinking(end), outcome=solved)
    found = _found(run)
    self.assertEqual('shrinks' in found, wanted)
    if wanted:
      self.assertEndsWith(found['shrinks'].text, ', and less is solved')

  @parameterized.parameters((-0.3, True), (0.0, False), (0.3, False))
  def test_completions_that_shrink_after_a_rise(self, change, wanted):
    """No line through all of the course falls."""
    rng = np.random.default_rng(0)
    course = np.interp(np.arange(40), [0, 20, 39], [0.2, 0.5, 0.5 + change])
    solved = course + rng.normal(0, 0.02, 40)
    length = np.where(np.arange(40) < 20, 100.0, 20.0) + rng.normal(0, 2, 40)
    run = parts_made.metrics(length=length, outcome=solved)
    found = _found(run).get('shrinks')
    self.assertEqual(found is not None, wanted)
    if found:
      self.assertEndsWith(found.text, ', and less is solved')
      self.assertEqual(found.since, 20)

  @parameterized.parameters((True, 'tokens'), (False, 'characters'))
  def test_the_unit_of_lengths(self, counted, said):
    rows = made.rollouts(rise=0, start=-2)
    late = rows['step'] > 15
    rows['completion'] = np.where(late, 'so', rows['completion'] * 30)
    rows['n_tokens'] = np.where(late, 1.0, 90.0)
    run = made.run(rows, drop=() if counted else ('n_tokens',))
    found = behaviour.shrinks(run)
    self.assertEndsWith(found.text, said)
    texts = run.rollouts['completion'][list(found.rows)]
    self.assertEqual(set(texts), {'so'})

  @parameterized.parameters((1.0, True), (0.0, False))
  def test_one_reward_for_all(self, value, wanted):
    run = made.run(made.rollouts(), reward=lambda e: value + 0 * e['outcome'])
    rows = run.rollouts.drop(columns='outcome')
    found = learning.dead_groups(dataclasses.replace(run, rollouts=rows))
    self.assertEqual('for each completion' in found.change, wanted)

  def test_texts_that_hardly_repeat_a_phrase(self):
    self.assertNotIn('loops', _found(parts_made.looping(0, share=0.3)))
    rows = made.rollouts().assign(completion='1 1 1 1 1 1')  # A short text.
    self.assertNotIn('loops', _found(made.run(rows)))

  @parameterized.parameters((1.0, True), (0.97, True), (0.5, False), (0, False))
  def test_right_answers_that_are_refused(self, share, wanted):
    found = _found(parts_made.refused(share))
    self.assertEqual('right_refused' in found, wanted, found)
    if wanted:
      self.assertNotIn('too_hard', found)

  def test_right_answers_that_are_refused_at_first(self):
    rows = made.rollouts()
    kept = rows['step'] >= 20  # The policy has learned the form of answers.
    rows['outcome'] = rows['part_correct'] = rows['outcome'] * kept
    run = made.run(rows, drop=('format_ok',))
    self.assertNotIn('right_refused', _found(run))

  def test_right_answers_that_cannot_be_read(self):
    rows = parts_made.refused(1.0).rollouts
    unread = made.run(rows.assign(format_ok=0.0))
    self.assertNotIn('right_refused', _found(unread))
    self.assertIn('right_refused', _found(made.run(rows.assign(format_ok=1.0))))

  @parameterized.parameters(
      (1.5, 0.0, 0.0, 'warning'),
      (1.5, 0.0, 3.0, 'note'),
      (1.5, 0.8, 0.0, None),
      (0.1, 0.0, 0.0, None),
      (1.5, 1.5, 0.0, None),
  )
  def test_calls_that_are_unlearned(self, start, end, rise, severity):
    found = _found(parts_made.calls(start, end, rise)).get('calls_unlearned')
    self.assertEqual(found and found.severity, severity)

  def test_a_gradient_that_is_never_finite(self):
    run = made.run(made.rollouts(), grad_norm=np.full(40, np.nan))
    self.assertEqual(run.never_finite, ('grad_norm',))
    self.assertIn('mini-batch', _found(run)['not_finite'].change)
    short = made.run(made.rollouts(steps=3), loss=np.full(3, np.nan))
    self.assertIn('not_finite', _found(short))
    rows = made.rollouts()
    rows['part_judge'] = np.where(np.arange(len(rows)) % 9, 0.5, np.nan)
    run = made.run(rows, loss=np.full(40, np.nan))
    change = _found(run)['not_finite'].change
    self.assertIn('missing: judge in 11% of them', change)
    # A part without values is no fault while the loss is finite.
    self.assertNotIn('not_finite', _found(made.run(rows)))

  @parameterized.parameters(
      (parts_made.noise(0.2, 0.5), 0.0, True),
      (parts_made.noise(0.3, 0.301), 0.0, False),  # May be one text.
      (parts_made.noise(0.2, 0.5), 1.0, False),
  )
  def test_a_mean_that_cancels_the_reward(self, reward, high, wanted):
    run = parts_made.metrics(
        reward=reward,
        advantage_low=np.zeros(40),
        advantage_high=np.full(40, high),
        grad_norm=np.zeros(40),
    )
    found = _found(run)['gradient_zero']
    self.assertEqual('so are all advantages' in found.text, wanted)
    self.assertEqual('turns of one episode' in found.change, wanted)

  @parameterized.parameters(
      (-0.1, 0.1, True),
      (0.1, 0.1, False),
      # The values come closer.
      (np.linspace(-0.2, 0.1, 40), 0.1, False),
      # Returns vary more than the values are off.
      (0.0, parts_made.noise(0.0, 0.2), False),
  )
  def test_a_critic(self, value, returns, wanted):
    near = parts_made.noise(-0.01, 0.01)
    run = parts_made.metrics(value=value + near, **{'return': returns + near})
    found = optimiser.critic_untrained(run)
    self.assertEqual(found is not None, wanted)

  @parameterized.parameters((0.0, True), (0.3, False))
  def test_the_variance_that_a_critic_explains(self, share, wanted):
    # At first it explains nothing in any run.
    explained = np.where(_N < 10, -0.5, share) + parts_made.noise(-0.02, 0.02)
    run = parts_made.metrics(explained=explained)
    found = optimiser.critic_untrained(run)
    self.assertEqual(found is not None, wanted)

  def test_a_gradient_of_zero_although_advantages_differ(self):
    none = dict(grad_norm=np.zeros(40))
    found = _found(parts_made.metrics(advantage_size=np.full(40, 0.7), **none))
    self.assertIn('overlong', found['gradient_zero'].change)
    found = _found(parts_made.metrics(advantage_size=np.zeros(40), **none))
    self.assertNotIn('overlong', found['gradient_zero'].change)
    for dead, wanted in ((0.1, True), (1.0, False)):
      found = _found(parts_made.metrics(dead=np.full(40, dead), **none))
      said = found.get('gradient_zero') or found['dead_groups']
      self.assertEqual('overlong' in said.change, wanted)
    # Advantages of other steps say nothing.
    half = np.where(_N % 4 == 0, 0.7, 0.0)
    norm = np.where(_N % 4 == 0, 1.0, 0.0)
    found = _found(parts_made.metrics(advantage_size=half, grad_norm=norm))
    self.assertNotIn('overlong', found['gradient_zero'].change)

  @parameterized.parameters(
      (1.0, 0.4, 'raise temperature'),
      (0.7, 0.4, 'raise num_generations'),
      (0.7, 0.05, 'difficulty'),
      (1.0, 0.0, 'reward_funcs'),  # All the same: nothing, or a constant.
  )
  def test_why_groups_are_dead_by_metrics(self, dead, right, said):
    mean = np.full(40, right)
    run = parts_made.metrics(
        drop=('gap', 'part_format'),
        dead=np.full(40, dead),
        part_correct=mean,
        spread=np.sqrt(mean * (1 - mean)),
    )
    self.assertStartsWith(
        _found(run)['dead_groups'].change.replace('the ', ''), said
    )

  @parameterized.parameters(
      ({'kl_coef': np.full(40, 0.001)}, 'not subtracted'), ({}, 'learning_rate')
  )
  def test_a_penalised_kl_that_explodes(self, changed, said):
    kl = 1e-3 * np.exp(np.linspace(0, 9.5, 40))
    found = _found(parts_made.metrics(kl=kl, **changed))['kl_explosion']
    self.assertIn(said, found.change)


class LoggedTest(parameterized.TestCase):

  @parameterized.parameters(
      ('trl', ['gap'], 'vllm_importance_sampling_correction'),
      ('trl', ['prompt', 'reference'], 'log_completions=True'),
      ('verl', ['prompt', 'completion'], 'rollout_data_dir'),
      # Completions hold no number of tokens, with the option or without it.
      ('trl', ['n_tokens'], 'log_extra'),
      ('verl', ['n_tokens'], None),
      ('verl', ['group', 'advantage'], None),
      ('verl', ['format_ok'], 'that compute_score returns'),
      # Completions may be logged, and no column of them say what is solved.
      ('trl', ['outcome'], '--columns=outcome=NAME'),
      ('verl', ['outcome'], '--columns=outcome=NAME'),
      ('verl', [], None),
      ('table', ['gap'], None),
  )
  def test_how_to_log_what_is_missing(self, format_, missing, said):
    options = words.how_to_log(format_, missing)
    if said is None:
      self.assertEmpty(options)
    else:  # Each option is given once.
      self.assertEqual('; '.join(options).count(said), 1)

  def test_one_line_for_what_the_user_can_do_nothing_about(self):
    run = dataclasses.replace(parts_made.metrics(), format='trl')
    diagnosis = examine.examine(run)
    lines = [
        line
        for line in show.lines(run, diagnosis)
        if line.startswith('  cannot tell: ')
    ]
    (without,) = [line for line in lines if '(not logged: ' in line]
    self.assertIn('tests_time_out', without)
    self.assertRegex(without, r'not logged: .*\btimed_out\b')
    # An option of the trainer would log what this check needs.
    self.assertNotIn('constant_part', without)
    said = '\n'.join(lines)
    self.assertIn('log_completions=True', said)
    for each in diagnosis.unknown:
      self.assertIn(each.check, said)

  def test_a_run_says_what_it_misses(self):
    run = made.run(made.rollouts(), drop=('prompt', 'reference'))
    for ask, missing in (
        (lambda: run.rows('reward', 'prompt'), ('prompt',)),
        (lambda: run.series('n_turns'), ('n_turns',)),
        (lambda: run.setting('max_turns'), ()),
    ):
      with self.subTest(missing):
        with self.assertRaises(form.NotLogged) as caught:
          ask()
        self.assertEqual(caught.exception.names, missing)

  def test_checks_say_how_to_log_what_they_miss(self):
    """Also where their own words do not hold the name of a column."""
    found = examine.examine(parts_made.metrics())
    why = {u.check: u.why for u in found.unknown}
    self.assertIn('log_completions=True', why['constant_part'])
    # The mean reward of the steps is logged.
    self.assertStartsWith(why['reward_hacking'], 'rollouts are not logged')
    self.assertIn('eval_strategy', why['train_eval_gap'])
    self.assertNotIn('log_completions', why['gradient_clipped'])

  def test_names_of_trainers(self):
    log = pd.DataFrame(
        {
            '_step': [1, 2],
            'policy/raw_grad_norm': [8.0, 9.0],
            'policy/rollout_train_logprobs_abs_diff_mean': [0.01, 0.87],
            'rollout/trunc_ratio': [0.1, 0.2],
            'train/pg_clipfrac': [0.5, 0.6],
            'train/ppo_kl': [0.2, 0.3],
            'train/rewards/style/mean': [0.5, 0.6],
            'train/rewards/style/std': [0.1, 0.2],
            'rewards/accuracy_reward': [0.0, 1.0],
            'eval_rewards/style/mean': [0.0, 0.0],
        }
    )
    found = names.common(log)
    self.assertSequenceEqual(found['grad_norm'].tolist(), [8.0, 9.0])
    self.assertSequenceEqual(found['gap'].tolist(), [0.01, 0.87])
    self.assertSequenceEqual(found['truncated'].tolist(), [0.1, 0.2])
    self.assertSequenceEqual(found['clip'].tolist(), [0.5, 0.6])
    slime = {'_step': [1], 'train/train_rollout_logprob_abs_diff': [0.86]}
    self.assertEqual(names.common(pd.DataFrame(slime))['gap'][0], 0.86)
    nemo = pd.DataFrame(
        {'_step': [1, 2], 'train/token_mult_prob_error': [1, 2]}
    )
    gap = names.common(nemo)['gap']
    np.testing.assert_allclose(gap, [0.0, np.log(2)])
    self.assertSequenceEqual(found['part_style'].tolist(), [0.5, 0.6])
    self.assertSequenceEqual(found['spread'].tolist(), [0.1, 0.2])
    self.assertSequenceEqual(found['outcome'].tolist(), [0.0, 1.0])

  def test_completions_of_ms_swift(self):
    folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    (folder / 'checkpoint-2').mkdir()
    history = [
        {'step': s, 'loss': 0.0, 'rewards/Right': r, 'reward': 2 * r}
        for s, r in enumerate((0.5, 0.25, 0.75), 1)
    ]
    (folder / 'checkpoint-2' / 'trainer_state.json').write_text(
        json.dumps({'max_steps': 3, 'log_history': history})
    )
    lines = [
        {
            'step': [str(step)] * 4,
            'messages': [[{'role': 'user', 'content': f'Problem {step}?'}]] * 4,
            'completion': ['a', 'b', 'c', 'd'],
            'Right': [1.0, 0.0, None, 1.0],
            'advantages': [1.0, -1.0, 0.0, 1.0],
        }
        for step in (1, 2)
    ]
    text = '\n'.join(map(json.dumps, lines)) + '\n{"step": ["3"], "a": []}\n'
    (folder / 'completions.jsonl').write_text(text)
    run = readers.read(folder)
    self.assertEqual(run.format, 'trl')
    self.assertLen(run.rollouts, 8)
    self.assertEqual(run.rollouts['group'].nunique(), 2)
    self.assertEqual(run.settings['weights'], {'Right': 2.0})
    self.assertSequenceEqual(run.rollouts['reward'][:4].tolist(), [2, 0, 0, 2])
    self.assertIn('differ in length', ' '.join(run.notes))


if __name__ == '__main__':
  absltest.main()
