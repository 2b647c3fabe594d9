"""Tests for the checks: each finds its fault, and none in a clean run."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.diagnosis import checks
from evojax.diagnosis import examine
from evojax.diagnosis import form
from evojax.diagnosis import replays
from evojax.diagnosis.checks import agents
from evojax.diagnosis.checks import blame
from evojax.diagnosis.checks import data
from evojax.diagnosis.checks import graders
from evojax.diagnosis.checks import learning
from evojax.diagnosis.checks import optimiser
from evojax.diagnosis.checks import reward
from tests.diagnosis import agents_made
from tests.diagnosis import faults_made
from tests.diagnosis import made

_FINDS = {
    'dead_groups': ('too_hard', 'too_easy', 'dead_groups'),
}


class FaultsTest(parameterized.TestCase):

  @parameterized.parameters(*faults_made.FAULTS)
  def test_fault_is_named(self, name):
    make, wanted = faults_made.FAULTS[name]
    run = make()
    found = examine.examine(run)
    names = [f.check for f in found.findings]
    self.assertTrue(set(wanted) & set(names), f'{wanted} not in {names}')
    for finding in found.findings:
      self.assertContainsSubset(finding.rows, run.rollouts.index)
    if any(f.severity != 'note' for f in found.findings):
      self.assertEqual(found.verdict, 'findings')

  def test_every_check_has_a_fault(self):
    wanted = {w for _, names in faults_made.FAULTS.values() for w in names}
    wanted |= {w for f in agents_made.FAULTS.values() for w in f.finds}
    for check in checks.ALL:
      names = _FINDS.get(check.__name__, (check.__name__,))
      self.assertTrue(wanted & set(names), check.__name__)

  def test_clean_runs_raise_few_alarms(self):
    """Flat, slow and fast runs: at most one of 24 has a false alarm."""
    wrong = []
    for seed in range(24):
      run = made.run(made.rollouts(seed, rise=float(seed % 4)), seed)
      found = examine.examine(run)
      if found.findings:
        wrong.append((seed, [f.check for f in found.findings]))
      if seed % 4 == 3:
        self.assertEqual(found.verdict, 'healthy', found.summary)
    self.assertLessEqual(len(wrong), 1, wrong)

  def test_numbers_that_several_checks_need_are_read_once(self):
    run = made.run(made.rollouts())
    read = graders.final_numbers
    with absltest.mock.patch.object(graders, 'final_numbers') as asked:
      asked.side_effect = read
      for checked in (run, run, dataclasses.replace(run)):
        examine.examine(checked)
    # Each of the two runs needs them for its late rollouts, for its solved
    # ones, and for those with a reference.
    self.assertEqual(asked.call_count, 6)

  def test_since_is_near_the_step(self):
    make, _ = faults_made.FAULTS['gap']
    (gap,) = [
        f for f in examine.examine(make()).findings if f.check == 'logprob_gap'
    ]
    self.assertEqual(gap.since, 26)

  def _examined(self, **changed):
    run = made.run(made.rollouts(rise=0.8), **changed)
    return {f.check: f for f in examine.examine(run).findings}

  def test_the_learning_rate_of_a_policy_that_hardly_moves(self):
    # 0.005 is usual; late in a sound run an update moves less.
    for descent, times in ((2e-5, 200.0), (1.3e-4, 40.0), (1e-9, 1000.0)):
      found = self._examined(descent=np.full(40, descent))['hardly_moves']
      (remedy,) = found.remedies
      self.assertEqual((remedy.setting, remedy.times), ('learning_rate', times))
      self.assertEqual(found.severity, 'critical')
    late = np.where(np.arange(40) < 20, 2e-3, 1e-5)
    self.assertNotIn('hardly_moves', self._examined(descent=late))
    self.assertNotIn('hardly_moves', self._examined(descent=np.full(40, 9e-4)))

  def test_what_keeps_a_policy_from_moving_is_the_cause(self):
    clipped = dict(settings={'max_grad_norm': 1e-3})
    found = self._examined(**clipped)
    self.assertEqual(found['gradient_clipped'].severity, 'warning')
    found = self._examined(**clipped, descent=np.full(40, 1e-5))
    self.assertEqual(found['gradient_clipped'].severity, 'critical')
    self.assertNotIn('hardly_moves', found)

  @parameterized.parameters(
      (lambda e: e['outcome'] < 0.5, 'get no advantage'),
      (lambda e: np.sign(e['advantage']), 'all advantages are positive'),
      # Only what is better than its group: a recipe, not a fault.
      (lambda e: e['advantage'] > 0, None),
      (lambda e: 0.1 + e['outcome'], None),
      (lambda e: np.arange(len(e)) % 2, None),
      (lambda e: 1 - 0.97 * e['outcome'], 'hardly any advantage'),
      (lambda e: 1 - 0.9 * e['outcome'], None),
      (lambda e: 0.95 ** (np.arange(len(e)) % 8), None),
  )
  def test_credit(self, function, wanted):
    found = examine.examine(faults_made.credited(function)).findings
    texts = [f.text for f in found if f.check == 'credit']
    self.assertLen(texts, 1 if wanted else 0)
    if wanted:
      self.assertIn(wanted, texts[0])

  def test_credit_that_turns_the_sign(self):
    run = faults_made.credited(lambda e: -np.ones(len(e)))
    (found,) = [
        f for f in examine.examine(run).findings if f.check == 'inverted_sign'
    ]
    self.assertEqual(found.remedies[0].setting, 'credit_code')
    make, _ = faults_made.FAULTS['inverted']  # There the reward is inverted.
    (found,) = [
        f
        for f in examine.examine(make()).findings
        if f.check == 'inverted_sign'
    ]
    self.assertNotIn('credit_code', [r.setting for r in found.remedies])

  def test_unreadable_answers_of_several_problems_are_shown(self):
    (make,) = (m for m, w in faults_made.FAULTS.values() if 'unreadable' in w)
    run = make()
    (found,) = [
        f for f in examine.examine(run).findings if f.check == 'unreadable'
    ]
    shown = run.rollouts.loc[list(found.rows)]
    self.assertLen(shown, 6)
    self.assertEqual(shown['group'].nunique(), 6)

  @parameterized.parameters(
      ('constant', 'constant_part', ('weight', 'bonus')),
      ('overlong', 'overlong_early', ('reward_code', '')),
  )
  def test_a_part_at_fault_has_a_remedy(self, name, check, remedy):
    make, _ = faults_made.FAULTS[name]
    (found,) = [f for f in examine.examine(make()).findings if f.check == check]
    self.assertIn(remedy, [(r.setting, r.part) for r in found.remedies])

  @parameterized.parameters(
      (0.0, '<{}>', None),
      (0.05, '<{}>', None),
      (0.3, '<{}>', 'warning'),
      (0.8, '<{}>', 'critical', True),
      (0.8, '<{}.5>', 'critical', True),
      # Without a key, problems may have several right answers.
      (0.8, '<{}>', 'warning'),
      # An expression may have many right forms, a text none that is a number.
      (0.8, '<3 * {}>', None),
      (0.8, '<7-{}>', None),
      (0.8, 'n = {}\nprint(n)', None),
      (
          0.8,
          '<{} is what I say after having thought about it for so long>',
          None,
      ),
  )
  def test_answers_that_differ(self, share, form_of, severity, known=False):
    run = faults_made.other_answers(share, form_of, known)
    found = examine.examine(run).findings
    severities = [f.severity for f in found if f.check == 'answers_differ']
    self.assertEqual(severities, [severity] if severity else [])

  def test_loss_that_drops_what_has_an_advantage(self):
    run = made.run(made.rollouts(rise=0.8), grad_norm=np.zeros(40))
    for config, wanted in (
        ({}, []),
        ({'grpo.tis_cap': 0.5}, ['grpo.tis_cap']),
        ({'grpo.tis_cap': 0.0, 'grpo.reject': 'token'}, ['grpo.reject']),
    ):
      changed = dataclasses.replace(run, config=config)
      (found,) = [
          f
          for f in examine.examine(changed).findings
          if f.check == 'gradient_zero'
      ]
      self.assertEqual([r.setting for r in found.remedies], wanted)

  def test_texts_that_become_endless(self):
    for start, wanted in ((0.05, 'learning_rate'), (0.6, 'max_tokens')):
      found = examine.examine(faults_made.endless(start)).findings
      (cut,) = [f for f in found if f.check == 'truncation']
      self.assertEqual(cut.remedies[0].setting, wanted)

  @parameterized.parameters(
      (0, 'max_tokens'), (64, 'max_tokens'), (40, 'token_limit')
  )
  def test_the_limit_that_cuts_is_the_one_to_raise(self, own, wanted):
    config = {'rollout.max_tokens': 64, 'rollout.token_limit': own}
    run = dataclasses.replace(
        faults_made.endless(0.6), format='evojax', config=config
    )
    found = examine.examine(run).findings
    (cut,) = [f for f in found if f.check == 'truncation']
    self.assertStartsWith(cut.change, f'rollout.{wanted} ')

  def test_reward_that_is_silent_is_the_cause(self):
    run = made.run(
        made.rollouts(),
        reward=lambda e: 0 * e['outcome'],
        grad_norm=np.zeros(40),
    )
    found = examine.examine(run).findings
    self.assertEqual(
        [f.check for f in found if f.severity == 'critical'], ['silent']
    )

  def test_outcome_whose_weight_is_0_is_the_cause(self):
    # A fine is all that counts, and few pay it.
    rows = made.rollouts(rise=-2.0)
    fined = np.random.default_rng(0).random(len(rows)) < 0.04
    run = made.run(
        rows.assign(part_format=-fined.astype(float)),
        reward=lambda e: e['part_format'],
        settings={'weights': {'correct': 0.0, 'format': 1.0}},
    )
    first, *rest = examine.examine(run).findings
    self.assertEqual((first.check, first.severity), ('silent', 'critical'))
    self.assertIn('reward_weights of correct: it is 0', first.change)
    remedy = first.remedies[0]
    self.assertEqual(
        (remedy.setting, remedy.part, remedy.value), ('weight', 'correct', 1.0)
    )
    names = [f.check for f in rest]
    self.assertIn('outcome_falling', names)
    self.assertNotIn('dead_groups', names)
    (hidden,) = [f for f in rest if f.check == 'hidden_goal']
    self.assertEqual(hidden.remedies[0], remedy)

  @parameterized.parameters((3.0, 'warning'), (30.0, 'critical'))
  def test_noise_that_drowns_the_outcome(self, weight, severity):
    rows = made.rollouts(rise=0.0)
    noise = np.random.default_rng(0).random(len(rows))
    run = made.run(
        rows.assign(part_format=noise),
        reward=lambda e: e['part_correct'] + weight * e['part_format'],
        settings={'weights': {'correct': 1.0, 'format': weight}},
    )
    found = examine.examine(run).findings
    (named,) = [f for f in found if f.check == 'outweighed']
    self.assertEqual(named.severity, severity)
    self.assertNotIn('hidden_goal', [f.check for f in found])

  def test_filter_that_starves_explains_steps_without_a_gradient(self):
    rows = made.rollouts()
    rows = rows.assign(kept=(rows['step'] < 4).astype(float))
    norm = np.where(np.arange(40) < 4, 1.0, 0.0)
    found = examine.examine(made.run(rows, grad_norm=norm)).findings
    severe = [f.check for f in found if f.severity == 'critical']
    self.assertEqual(severe, ['filter_starves'])

  def test_no_format_is_learned_where_solutions_are_not_paid(self):
    rows = made.rollouts(rise=0.0)
    rng = np.random.default_rng(0)
    bad = (rows['outcome'] < 0.5) & (rng.random(len(rows)) < 0.6)
    rows = rows.assign(format_ok=(~bad).astype(float), part_format=0.0)
    names = lambda **kwargs: [
        f.check for f in examine.examine(made.run(rows, **kwargs)).findings
    ]
    self.assertIn('format_bottleneck', names())
    found = names(reward=lambda e: 1 - e['outcome'])
    self.assertIn('inverted_sign', found)
    self.assertNotIn('format_bottleneck', found)

  def test_what_is_paid_wrong_is_said_instead_of_not_learning(self):
    rows = made.rollouts(rise=0, groups=40, start=-4)
    run = made.run(rows, reward=lambda e: e['part_format'] - e['outcome'])
    found = [f.check for f in examine.examine(run).findings]
    self.assertIn('inverted_sign', found)
    self.assertNotIn('not_learning', found)  # As in faults_made's 'stuck'.

  def test_unusual_setting_is_the_cause_of_a_critical_fault(self):
    warned = self._examined(settings={'learning_rate': 0.9})
    self.assertEqual(warned['unusual_setting'].severity, 'warning')
    found = self._examined(
        settings={'learning_rate': 0.9}, grad_norm=np.zeros(40)
    )
    self.assertEqual(list(found)[:2], ['unusual_setting', 'gradient_zero'])
    self.assertEqual(found['unusual_setting'].severity, 'critical')

  @parameterized.parameters(
      (0, 'evojax', False), (1, 'evojax', True), (1, 'trl', False),
      (2, 'trl', True),
  )  # fmt: skip
  def test_a_template_within_a_template(self, times, format_, found):
    run = faults_made.templated(times, format=format_)
    self.assertEqual(data.template_twice(run) is not None, found)

  def test_what_counts_as_solved_though_its_tests_fail(self):
    rows = made.rollouts()
    sound = rows.assign(failing=1 - rows['outcome'])
    found = [f.check for f in examine.examine(made.run(sound)).findings]
    self.assertEqual(found, [])
    # The grader looks at something else than its tests.
    failing = np.random.default_rng(0).random(len(rows)) < 0.5
    run = made.run(rows.assign(failing=failing.astype(float)))
    found = {f.check: f for f in examine.examine(run).findings}
    self.assertEqual(found['grader_open'].severity, 'critical')
    self.assertIn('fail tests of the grader count', found['grader_open'].text)

  @parameterized.parameters(
      ('{:,}', False), ('{}.00', False), ('${:,}.', False), ('{}7', True)
  )
  def test_a_number_may_be_written_in_many_ways(self, written, wrong):
    rows = made.rollouts()
    right = 1_234_000 + rows['reference'].astype(int)
    said = right.where(rows['outcome'] > 0.5, right + 1)
    rows['reference'] = right.astype(str)
    rows['completion'] = [f'So it is {written.format(n)}' for n in said]
    found = [f.check for f in examine.examine(made.run(rows)).findings]
    self.assertEqual('grader_open' in found, wrong)

  def test_what_explains_a_critical_fault_is_critical(self):
    agents = dict(n_turns=4.0, n_calls=4.0, repeated=0.0, looked=1.0)
    unsolved = dict.fromkeys(('outcome', 'part_correct', 'part_format'), 0.0)
    rows = made.rollouts().assign(**unsolved, **agents)
    for share, wanted in ((0.1, 'too_hard'), (0.7, 'replies_cut')):
      run = made.run(
          rows.assign(replies_cut=share), reward=lambda e: e['part_correct']
      )
      found = [(f.check, f.severity) for f in examine.examine(run).findings]
      self.assertEqual(found, [(wanted, 'critical')])

  @parameterized.parameters(
      (0.1, ['too_hard'], False),
      # A completion that is cut may have become right.
      (0.4, ['truncation', 'too_hard'], False),
      (0.4, ['truncation'], True),  # It is a warning where problems are solved.
  )
  def test_a_limit_that_makes_problems_too_hard(self, share, wanted, solved):
    rows = made.rollouts() if solved else made.rollouts(start=-9)
    cut = np.random.default_rng(0).random(len(rows)) < share
    run = made.run(
        rows.assign(truncated=cut.astype(float)),
        reward=lambda e: e['part_correct'],
    )
    found = examine.examine(run).findings
    self.assertEqual([f.check for f in found], wanted)
    severity = 'warning' if solved else 'critical'
    self.assertEqual({f.severity for f in found}, {severity})

  @parameterized.parameters(
      (0.5, 0, 'warning'),
      (4, 0, 'critical'),
      (0.5, 4, 'warning'),  # The part that outweighs is not the length.
  )
  def test_length_that_outweighs_the_outcome(self, length, format_, wanted):
    run = faults_made.length_paid(length, format_)
    found = {f.check: f for f in examine.examine(run).findings}
    self.assertEqual(found['length_gaming'].severity, wanted)

  def test_a_symptom_that_is_explained_blames_no_unusual_setting(self):
    rows = made.rollouts(start=-9)
    twice = rows.assign(prompt='<|im_start|><|im_start|>' + rows['prompt'])
    severities = []
    for made_of in (rows, twice):
      run = made.run(
          made_of,
          reward=lambda e: e['part_correct'],
          settings={'learning_rate': 0.9},
      )
      found = examine.examine(run).findings
      severities.append({f.check: f.severity for f in found})
    plain, marked = severities
    self.assertEqual(plain['too_hard'], 'critical')
    self.assertEqual(plain['unusual_setting'], 'critical')
    # Nobody can read the prompts, whatever the learning rate.
    self.assertEqual(marked['template_twice'], 'critical')
    self.assertEqual(marked['unusual_setting'], 'warning')
    self.assertNotIn('too_hard', marked)

  def test_decay_that_outweighs_the_gradient_is_critical(self):
    for decay, wanted in ((9.0, 'warning'), (10.0, 'critical')):
      run = dataclasses.replace(
          made.run(made.rollouts()), config={'optim.weight_decay': decay}
      )
      (found,) = examine.examine(run).findings
      self.assertEqual(found.check, 'unusual_setting')
      self.assertEqual(found.severity, wanted)

  def test_what_is_not_solved_because_it_cannot_be_read(self):
    found = examine.examine(faults_made.unreadable()).findings
    self.assertEqual(found[0].check, 'unreadable')
    self.assertEqual(found[0].remedies[0].setting, 'grader')
    hot = faults_made.unreadable(settings={'temperature': 3.0})
    names = [f.check for f in examine.examine(hot).findings]
    self.assertContainsSubset(['temperature'], names)
    self.assertNoCommonElements(
        ['unreadable', 'too_hard', 'format_bottleneck'], names
    )

  def test_constants_that_pass(self):
    for share, wanted in ((0.0, False), (0.1, False), (0.5, True)):
      found = examine.examine(faults_made.programs(share)).findings
      texts = [f.text for f in found if f.check == 'grader_open']
      self.assertEqual(bool(texts), wanted, texts)
    self.assertIn('never reads its input', texts[0])

  def test_few_special_cases_are_no_fault(self):
    for share, severity in ((0.05, None), (0.3, 'warning'), (0.9, 'critical')):
      run = faults_made.special_cases(share)
      found = {f.check: f for f in examine.examine(run).findings}
      self.assertEqual('hard_coded' in found, severity is not None, share)
      if severity:
        self.assertEqual(found['hard_coded'].severity, severity)
        self.assertEqual(found['hard_coded'].remedies[0].setting, 'grader')

  def test_cut_completions_say_nothing_about_length(self):
    rows = made.rollouts(rise=0.8)
    rows['truncated'] = rows['outcome'] < 0.5
    rows['n_tokens'] = np.where(rows['truncated'], made.LIMIT, 30.0)
    found = examine.examine(made.run(rows)).findings
    self.assertNotIn('length_decides', [f.check for f in found])

  @parameterized.parameters(
      (-0.3, None), (-2.5, 'warning'), (-4.0, 'critical'), (1.6, None)
  )
  def test_part_against_the_outcome(self, weight, severity):
    # Right answers are longer.
    rows = made.rollouts(rise=0.8)
    rows['part_length'] = rows['n_tokens'] / made.LIMIT
    weights = {'correct': 1.0, 'length': weight}
    pays = lambda e: e['part_correct'] + weight * e['part_length']
    run = made.run(rows, reward=pays, settings={'weights': weights})
    found = {f.check: f for f in examine.examine(run).findings}
    outweighed = found.get('outweighed')
    self.assertEqual(outweighed and outweighed.severity, severity)

  def test_a_part_comes_before_what_it_pays_for(self):
    rows = made.rollouts(rise=0.0)
    share = 0.1 + 0.6 * rows['step'] / rows['step'].max()
    brief = np.random.default_rng(0).random(len(rows)) < share
    rows['part_brief'] = brief.astype(float)
    pays = lambda e: e['part_correct'] + 3 * e['part_brief']
    weights = {'correct': 1.0, 'brief': 3.0}
    run = made.run(rows, reward=pays, settings={'weights': weights})
    found = examine.examine(run).findings
    self.assertEqual(
        [(f.check, f.severity) for f in found],
        [('outweighed', 'critical'), ('reward_hacking', 'critical')],
    )

  def test_what_misleads_is_blamed_before_the_learning_rate(self):
    rows = made.rollouts(rise=-2.0, start=1.0)
    rows['part_length'] = rows['n_tokens'] / made.LIMIT
    pays = lambda e: e['part_correct'] - 4 * e['part_length']
    weights = {'correct': 1.0, 'length': -4.0}
    run = made.run(rows, reward=pays, settings={'weights': weights})
    falling = learning.outcome_falling(run)
    self.assertEqual(
        [r.setting for r in falling.remedies[:2]], ['weight', 'learning_rate']
    )

  def test_share_of_the_data(self):
    ten = ('sums:0-3', 'gcd:0', 'words:0-4')  # Kinds of problems.
    more = (*ten, 'pairs:0-10')  # 21 kinds.
    for everything, asked, severity in (
        (ten, ('gcd:0',), 'warning'),
        (ten, ('sums:0-1',), 'note'),
        (ten, ('sums:1', 'other:0'), 'warning'),
        (ten, ('words:0-4', 'gcd:0'), 'note'),
        (more, ('gcd:0', 'sums:0'), 'warning'),
        (more, ('gcd:0',), 'critical'),
    ):
      config = {
          'data.families': asked,
          'domain.kwargs.families': everything,
      }
      run = dataclasses.replace(made.run(made.rollouts()), config=config)
      (found,) = examine.examine(run).findings
      self.assertEqual(
          (found.check, found.severity), ('part_of_the_data', severity)
      )

  def test_too_short(self):
    found = examine.examine(made.run(made.rollouts(steps=4)))
    self.assertEqual(found.verdict, 'too_short')
    self.assertIn('not_learning', [u.check for u in found.unknown])

  def test_what_is_not_logged_is_said(self):
    rows = made.rollouts()[['step', 'group', 'prompt', 'completion']]
    empty = form.pd.DataFrame()
    run = form.make(made.pathlib.Path('x'), 'trl', rows, empty, {})
    found = examine.examine(run)
    self.assertEqual(found.verdict, 'cannot_tell')
    self.assertEmpty(found.findings)
    why = {u.check: u.why for u in found.unknown}
    self.assertEqual(why['entropy_collapse'], 'entropy is not logged')
    self.assertIn('outcome', why['not_learning'])

  def test_one_rollout_or_none_is_no_crash(self):
    rows = made.rollouts()
    for table in (rows[:1], rows[:0], rows[rows['step'] == 0]):
      run = form.make(
          made.pathlib.Path('x'), 'trl', table, form.pd.DataFrame(), {}
      )
      self.assertNotEqual(examine.examine(run).verdict, 'healthy')

  def test_numbers_that_are_none_are_no_crash(self):
    rows = made.rollouts()
    rows.loc[::3, 'outcome'] = np.nan
    rows['reward'] = np.inf
    rows['advantage'] = 'much'
    run = form.make(
        made.pathlib.Path('x'),
        'trl',
        rows,
        made.metrics(rows, entropy=np.full(40, np.nan), loss=['a'] * 40),
        {},
    )
    found = examine.examine(run)
    self.assertNotIn('reward', run.rollouts)
    self.assertNotEmpty(found.unknown)


class BlindTest(parameterized.TestCase):
  """Checks for what settings that were written blindly showed."""

  @parameterized.parameters(
      # A right rollout earns 1. A share of the wrong ones earns `paid`, the
      # others 0: if `paid` is 1, that is the share of pairs that are even.
      (0.99, 0.9, None),
      (1.0, 0.1, None),
      (1.0, 0.4, 'warning'),
      (1.0, 0.9, 'critical'),
      (1.2, 0.9, 'critical'),
  )
  def test_wrong_rollouts_that_are_paid_as_much(self, paid, share, severity):
    def pays(rows):
      lucky = np.random.default_rng(0).random(len(rows)) < share
      return np.maximum(rows['outcome'], paid * lucky)

    found = reward.wrong_paid(made.run(made.rollouts(rise=0.8), reward=pays))
    self.assertEqual(found and found.severity, severity)
    if found:
      self.assertAlmostEqual(found.numbers[0].value, share, delta=0.05)

  def test_wrong_rollouts_are_shown(self):
    run = faults_made.saturated()
    shown = run.rollouts.loc[list(reward.wrong_paid(run).rows)]
    self.assertTrue((shown['outcome'] < 0.5).all())
    self.assertTrue((shown['reward'] == 1).all())

  @parameterized.parameters(
      # Nothing would pay for what is solved without the part.
      ({'correct': 1.0}, [('reward_code', '')]),
      (
          {'correct': 1.0, 'format': 0.5},
          [('reward_code', ''), ('weight', 'correct'), ('weight', 'format')],
      ),
  )
  def test_reward_code_is_to_blame_if_no_part_is_the_outcome(
      self, weights, wanted
  ):
    found = blame.remedies(faults_made.saturated(weights))
    self.assertEqual([(r.setting, r.part) for r in found], wanted)

  @parameterized.parameters((1.0, 'note'), (1e4, 'note'), (1e8, 'warning'))
  def test_a_constant_part_does_harm_if_it_is_huge(self, size, severity):
    run = made.run(made.rollouts().assign(part_bonus=size))
    self.assertEqual(reward.constant_part(run).severity, severity)

  @parameterized.parameters(
      (0.0, None), (0.02, None), (0.15, 'warning'), (0.4, 'critical')
  )
  def test_verdicts_that_differ(self, lost, severity):
    found = graders.verdicts_differ(faults_made.two_verdicts(lost))
    self.assertEqual(found and found.severity, severity)

  def test_two_verdicts_of_one_text_by_hand(self):
    # In each group three equal texts, one of them unsolved, beside others: of
    # the 3 pairs 2 differ. Of two equal ones that nobody solves none counts.
    rows = made.rollouts(steps=25, groups=1, size=8)
    rows['completion'] = list('aaabbcde') * 25
    rows['outcome'] = [1.0, 0, 1, 0, 0, 1, 1, 1] * 25
    found = graders.verdicts_differ(made.run(rows, drop=('reference',)))
    self.assertAlmostEqual(found.numbers[0].value, 2 / 3)
    shown = rows['completion'][list(found.rows)]
    self.assertEqual(set(shown), {'a'})
    # A text that the limit cut there is another answer.
    cut = rows.assign(truncated=1.0 - rows['outcome'])
    self.assertIsNone(graders.verdicts_differ(made.run(cut)))
    # So is one under another reference.
    other = rows.assign(reference=rows['outcome'].astype(str))
    self.assertIsNone(graders.verdicts_differ(made.run(other)))

  @parameterized.parameters(
      (lambda n: n < 25, 'or more'),
      (lambda n: n > 22, 'or less'),
      (lambda n: n < 29, ''),  # It drops hardly any.
      (lambda n: (n < 25) ^ (n.index % 640 < 8), ''),
      (lambda n: n.index % 16 < 8, ''),
  )
  def test_filters_by_length(self, function, wanted):
    found = learning.filter_by_length(faults_made.chosen(function))
    self.assertEqual(found is not None, bool(wanted))
    if found:
      self.assertIn(wanted, found.text)

  def test_a_filter_of_what_the_limit_may_cut(self):
    run = faults_made.chosen(lambda n: n < 25)
    settings = {**run.settings, 'max_tokens': 30}
    run = dataclasses.replace(run, settings=settings)
    self.assertIsNone(learning.filter_by_length(run))

  @parameterized.parameters((0.0, False), (0.1, False), (0.9, True))
  def test_programs_that_crash_and_count(self, share, wanted):
    rows = made.rollouts()
    rng = np.random.default_rng(0)
    crashed = rng.random(len(rows)) < 0.03
    counts = rng.random(len(rows)) < share
    rows.loc[crashed, 'outcome'] = counts[crashed].astype(float)
    run = made.run(rows.assign(crashed=crashed), drop=('format_ok',))
    found = graders.grader_open(run)
    self.assertEqual(found is not None, wanted)
    if found:
      self.assertIn('whose program ended in an error', found.text)

  @parameterized.parameters((10, True), (3, True), (2, False), (1, False))
  def test_problems_of_the_step_before(self, often, wanted):
    found = data.repeated_steps(faults_made.loops(often))
    self.assertEqual(found is not None, wanted)

  def test_a_second_pass_repeats_no_problems(self):
    run = faults_made.loops(10)
    run.rollouts['text_id'] = 1  # All steps train on the same rollouts.
    with self.assertRaisesRegex(form.NotLogged, 'with several problems'):
      data.repeated_steps(run)

  @parameterized.parameters(
      (0.1, None), (0.5, 'warning'), (0.95, 'critical')
  )
  def test_tokens_that_are_left_out(self, share, severity):
    run = made.run(made.rollouts(rise=0.8), left_out=np.full(40, share))
    run = dataclasses.replace(run, config={'grpo.tis_cap': 1.0})
    found = optimiser.left_out(run)
    self.assertEqual(found and found.severity, severity)
    if found:
      (remedy,) = found.remedies
      self.assertEqual((remedy.setting, remedy.value), ('grpo.tis_cap', 0.0))

  def test_few_rollouts(self):
    for groups, size, wanted in (
        (2, 2, ['grpo.prompts', 'grpo.group_size']),
        (1, 8, ['grpo.prompts']),
        (8, 2, None),  # 16 rollouts.
        (3, 5, None),  # Mostly more than two have a signal.
    ):
      run = made.run(made.rollouts(groups=groups, size=size, rise=0.8))
      found = learning.few_rollouts(run)
      settings = found and [r.setting for r in found.remedies]
      self.assertEqual(settings, wanted, (groups, size))

  def test_prompts_with_one_rollout_have_no_groups(self):
    # A prompt comes twice in a step now and then.
    rows = made.rollouts(groups=4, size=1, problems=20)
    run = made.run(rows, drop=('group',))
    self.assertGreater(run.rollouts.groupby('group').size().max(), 1)
    with self.assertRaisesRegex(form.NotLogged, 'no group'):
      learning.few_rollouts(run)

  @parameterized.parameters(
      # Shares of episodes that edit, and of those that solve without it.
      (0.7, 1.0, True),
      (0.7, 0.5, True),
      (0.7, 0.05, False),
      (0.7, 0.0, False),
      # Where few edit, the problems may not ask for it.
      (0.1, 1.0, False),
  )
  def test_solved_without_a_change(self, edits, lucky, wanted):
    rng = np.random.default_rng(0)
    rows = made.rollouts(start=1.0, rise=0.5)
    rows['edited'] = (rng.random(len(rows)) < edits).astype(float)
    fails = (rows['edited'] < 0.5) & (rng.random(len(rows)) > lucky)
    rows.loc[fails, 'outcome'] = 0.0
    rows = rows.drop(columns='reference')
    found = graders.grader_open(made.run(rows, drop=('format_ok',)))
    self.assertEqual(found is not None, wanted)
    # An edit may leave a file as it was.
    changed = made.run(rows.assign(changed=1.0), drop=('format_ok',))
    self.assertIsNone(graders.grader_open(changed))

  @parameterized.parameters(
      # All end by the limit, and none is solved: no others to compare with.
      (1.0, 1.0, -9, True),
      (0.9, 1.0, -9, True),
      (0.6, 1.0, -9, False),
      (1.0, 1.0, -1, False),  # A quarter is solved at the limit.
      (1.0, 0.2, -9, False),  # Most have not even looked at a file.
  )
  def test_a_limit_of_turns_that_ends_all(self, share, looked, start, wanted):
    rng = np.random.default_rng(0)
    rows = made.rollouts(start=start, rise=0.0)
    chosen = lambda p: (rng.random(len(rows)) < p).astype(float)
    rows = rows.assign(
        n_turns=2.0,
        edited=0.0,
        out_of_turns=chosen(share),
        looked=chosen(looked),
    )
    found = [f.check for f in examine.examine(made.run(rows)).findings]
    self.assertEqual('turn_limit' in found, wanted, found)
    if wanted:
      self.assertNoCommonElements(found, ('gives_up', 'too_hard'))

  @parameterized.parameters((0.2, False), (0.5, True))
  def test_replies_of_tools_that_are_cut(self, cut, wanted):
    found = agents.replies_cut(faults_made.replies(cut))
    self.assertEqual(found is not None, wanted)

  def test_turns_that_are_cut(self):
    for share, wanted in ((0.05, None), (0.3, 'warning'), (0.6, 'critical')):
      found = agents.turns_cut(faults_made.cut_turns(share))
      self.assertEqual(getattr(found, 'severity', None), wanted)
    self.assertEqual(found.change, 'the limit of tokens of a turn 20 -> 40')
    run = dataclasses.replace(faults_made.cut_turns(0.6), settings={})
    with self.assertRaisesRegex(form.NotLogged, '--set turn_tokens='):
      agents.turns_cut(run)

  @parameterized.parameters((0.1, True), (0.4, True), (0.6, False), (1, False))
  def test_turns_that_get_no_credit(self, credited, wanted):
    found = agents.turns_ignored(faults_made.episodes(credited))
    self.assertEqual(found is not None, wanted)

  @parameterized.parameters(
      # Characters that are left out, and of what share of the prompts.
      (0, 0, 1.0, None),  # They end with a word, as all others have.
      (0, -30, 1.0, 'end'),
      (30, 0, 1.0, 'begin'),
      (0, -30, 0.5, 'end'),
      (0, -30, 0.1, None),
  )
  def test_prompts_that_are_cut(self, first, last, share, side):
    found = data.prompt_cut(faults_made.questions(first, last, share))
    self.assertEqual(found is not None, side is not None)
    if found:
      self.assertRegex(found.text, f'{side} within a word')

  @parameterized.parameters(
      # A limit in characters, the end of all prompts, and whether problems of
      # which it is cut are solved as others are.
      (600, ' Box the answer.', False, True),
      (600, ' Box the answer.', True, False),  # They are another family.
      (5000, ' Box the answer.', False, False),  # None is as long.
      # Long ones are of another data set, in which they are of one length.
      (None, ' Box the answer.', False, False),
  )
  def test_prompts_that_are_cut_between_words(self, limit, end, solved, wanted):
    rows = made.rollouts()
    number = rows['prompt'].str.extract(r'(\d+)')[0].astype(int)
    words = [f'w{n}' for n in range(999)]
    draw = np.random.default_rng(0).choice
    asked = [
        f'{n} of {" ".join(draw(words, 6 * (n % 40)))}?{end}'
        for n in range(500)
    ]
    if limit is None:
      cut = [a if len(a) < 600 else f'{a[:600]} Name a word.' for a in asked]
    else:
      cut = [a[:limit].rpartition(' ')[0] if a[limit:] else a for a in asked]
    rows['prompt'] = np.array(cut, object)[number]
    lost = ~rows['prompt'].str.endswith(end) & (not solved)
    rows['outcome'] = rows['outcome'].where(~lost, 0.0)
    found = data.prompt_cut(made.run(rows.drop(columns='reference')))
    self.assertEqual(found is not None, wanted)
    if wanted:
      self.assertIn('lack the end that all others have', found.text)
      shown = rows['prompt'][list(found.rows)]
      self.assertFalse(shown.str.contains('Box').any())

  def test_words_that_are_broken_by_hand(self):
    texts = ['the letters of', 'one of the letters', 'two let', 'a wxyz', '7']
    # 'of' and 'letters' are whole words elsewhere, 'wxyz' begins a word that
    # one text has alone, and only 'let' begins one that two texts have.
    again = ['some letters here.', 'letters, and wxyzab there.']
    self.assertEqual(
        data._broken([*texts, *again]),
        [False, False, True, False, False, False, False],
    )

  def test_small_groups_are_often_dead(self):
    # With log-odds of deviation 1.5, 64 % of pairs are dead; of groups of 8,
    # a third are.
    pays = lambda e: e['outcome']
    for start, wanted in ((0.0, False), (-6.0, True)):
      rows = made.rollouts(groups=20, size=2, rise=0.2, start=start)
      found = learning.dead_groups(made.run(rows, reward=pays))
      self.assertEqual(found is not None, wanted, start)


class ReplaysTest(absltest.TestCase):

  def test_advantages(self):
    # Mean .5, deviation sqrt(1/3) = .57735.
    found = replays.advantages(np.array([[1.0, 0.0, 1.0, 0.0]]))
    np.testing.assert_allclose(found[0, :2], [0.866, -0.866], atol=1e-3)

  def test_tilted_weights_are_at_the_kl(self):
    a = np.array([[1.0, 0.0, -1.0, 0.5], [0.0, 0.0, 0.0, 0.0]])
    w = replays.tilted(a, 0.1)
    np.testing.assert_allclose(w.sum(1), 1)
    self.assertAlmostEqual(float((w[0] * np.log(4 * w[0])).sum()), 0.1, 4)
    np.testing.assert_array_equal(w[1], 0.25)

  def test_a_part_that_pays_for_the_wrong_is_to_go(self):
    rows = made.rollouts()
    rows['part_format'] = 1.0 - rows['outcome']
    pays = lambda e: e['part_correct'] + 0.8 * e['part_format']
    weights = {'correct': 1.0, 'format': 0.8}
    run = made.run(rows, reward=pays, settings={'weights': weights})
    part, replay = replays.best_weight(run)
    self.assertEqual(part, 'format')
    self.assertGreaterEqual(replay.gain.low, 0)

  def test_a_negative_weight_goes_to_zero(self):
    rows = made.rollouts()
    rows['part_format'] = rows['outcome'].where(rows.index % 9 > 0, 1.0)
    pays = lambda e: e['part_correct'] - 0.8 * e['part_format']
    weights = {'correct': 1.0, 'format': -0.8}
    run = made.run(rows, reward=pays, settings={'weights': weights})
    _, replay = replays.best_weight(run)
    self.assertEndsWith(replay.change, ' -0.8 -> 0')

  def test_nothing_where_the_weights_do_not_explain_the_reward(self):
    run = made.run(made.rollouts(), settings={'weights': {'correct': 9.0}})
    self.assertEqual(replays.best_weight(run)[0], '')


if __name__ == '__main__':
  absltest.main()
