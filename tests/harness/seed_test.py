"""The seed harnesses: hand-worked diagnostics, and omissions when blind."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from configs import coding as coding_config
from configs import math as math_config
from configs import swe as swe_config
from evojax import domains
from evojax.domains.coding import grade as coding_grade
from evojax.domains.math import grade
from evojax.domains.swe import evidence
from evojax.domains.swe import tools
from evojax.evidence import schema
from evojax.evolve import diagnose
from evojax.harness import admit
from evojax.harness import run
from evojax.harness import spec
from evojax.harness import surface
from tests.harness import recorded


def _read(domain, name):
  return spec.read(f'{domains.load(domain).__path__[0]}/{name}')


SEED, BLIND = (_read('math', n) for n in ('seed_harness', 'seed_blind'))
CODING, CODING_BLIND = (
    _read('coding', name) for name in ('seed_harness', 'seed_blind')
)

SWE, SWE_BLIND = (_read('swe', n) for n in ('seed_harness', 'seed_blind'))


class SeedTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.functions = run.Functions(SEED)
    cls.blind = run.Functions(BLIND)

  @parameterized.parameters(
      (SEED, math_config),
      (BLIND, math_config),
      (CODING, coding_config),
      (CODING_BLIND, coding_config),
      (SWE, swe_config),
      (SWE_BLIND, swe_config),
  )
  def test_is_admitted(self, harness, config):
    self.assertEqual(
        admit.check(harness, config.get_config(), surface.recipe(), None), []
    )

  def test_domains_share_what_is_not_their_own(self):
    self.assertEqual(CODING_BLIND, BLIND)
    self.assertEqual(SWE_BLIND, BLIND)
    own = {'diagnostics/difficulty.py', 'diagnostics/programs.py'}
    self.assertEqual(set(CODING.files) - set(SEED.files), own)
    for name, source in SEED.files.items():
      self.assertEqual(CODING.files[name], source)
    # A blind run must discover this by itself.
    for source in CODING_BLIND.files.values():
      self.assertNotIn('visible', source)

  def test_blind_differs_in_diagnostics_only(self):
    self.assertEqual(BLIND.overlay, SEED.overlay)
    self.assertEqual(BLIND.files['reward.py'], SEED.files['reward.py'])
    measured = set()
    view = recorded.view()
    for name in self.blind.diagnostics:
      measured |= set(self.blind.measure(name, view))
      meta = self.blind.meta(name)
      self.assertEqual((meta['WARN'], meta['CRITICAL']), ({}, {}))
    self.assertEqual(
        measured,
        {'outcome', 'reward_mean', 'n_tokens', 'mean_logprob', 'action_0'},
    )

  def test_score(self):
    view = recorded.view(
        prompts=3,
        outcome=[[1, 0, 0], [0, 0, 0], [1, 1, 1]],
        valid=[[1, 1, 0], [1, 1, 1], [1, 1, 1]],
    )
    # (1/2 + 0 + 1) / 3 solved; 2 of 3 groups by at least one.
    found = self.functions.measure('score', view)
    self.assertAlmostEqual(found['outcome'], 0.5)
    self.assertAlmostEqual(found['pass_at_g'], 2 / 3)
    self.assertAlmostEqual(found['headroom'], 2 / 3 - 0.5)

  def test_groups(self):
    view = recorded.view(
        prompts=5,
        outcome=[[1, 0, 0], [0, 0, 0], [1, 1, 1], [1, 0, 1], [0, 0, 1]],
        reward=[
            [1, 0, 0],  # Alive by outcome.
            [0.5, 0, 0],  # Alive by shaping.
            [1, 1, 1],  # Dead.
            [1, 1, 1],  # Dead, though the outcome differs.
            [0, 0, 9],  # One valid completion that counts twice: dead.
        ],
        valid=[[1] * 3] * 4 + [[1, 1, 0]],
    )
    found = self.functions.measure('groups', view)
    self.assertAlmostEqual(found['dead_group_ratio'], 3 / 5)
    self.assertAlmostEqual(found['alive_by_outcome'], 1 / 5)
    self.assertAlmostEqual(found['alive_by_shaping'], 1 / 5)

  def test_agents(self):
    code = tools.ACTIONS
    acts = [
        ['grep', 'edit', 'test', 'submit'],
        ['test', 'test', 'test', 'test'],
        ['edit', 'submit'],
        ['git', 'git', 'none'],
    ]
    ok = [[True] * len(a) for a in acts]
    ok[3][2] = False
    ok[2][0] = False
    view = recorded.view(
        prompts=2,
        group_size=2,
        columns=evidence.COLUMNS,
        n_turns=[[4, 4], [2, 3]],
        outcome=[[1, 0], [0, 0]],
        first_edit_turn=[[1, -1], [0, -1]],
        searched_before_edit=[[1, 0], [0, 0]],
        tested_after_edit=[[1, 1], [0, 0]],
        read_history=[[0, 0], [0, 1]],
        submitted=[[1, 0], [1, 0]],
        tests_touched=[[0, 2], [0, 0]],
        max_turns=[[7, 7], [7, 7]],
        lists=dict(
            actions=[[code[name] for name in a] for a in acts],
            arguments=[[0] * len(a) for a in acts],
            action_ok=ok,
        ),
    )
    functions = run.Functions(SWE)
    found = functions.measure('agents', view)
    self.assertAlmostEqual(found['edits'], 0.5)
    self.assertAlmostEqual(found['searches_first'], 0.5)
    self.assertAlmostEqual(found['tests_its_edit'], 0.5)
    self.assertAlmostEqual(found['reads_history'], 0.25)
    self.assertAlmostEqual(found['touches_tests'], 0.25)
    self.assertAlmostEqual(found['failed_calls'], 2 / 13)
    self.assertAlmostEqual(found['failed_edits'], 1 / 2)
    # Three of the tests, and consecutive git calls, of 3 + 3 + 1 + 2 later
    # calls.
    self.assertAlmostEqual(found['repeated_calls'], 4 / 9)
    self.assertEqual(
        functions.measure('turns', view),
        # (13 / 4 - 2) / (7 - 2), and fewer than five turns.
        {
            'turns': 13 / 4,
            'turns_used': 1 / 4,
            'idle_turns': 0.0,
            'turns_of_solved': 4.0,
        },
    )

  def test_solution_diversity(self):
    """Only pairs of episodes that edit count, in groups that nobody solves."""
    a, b, c = (evidence.mask([f'pkg/{name}.py']) for name in 'abc')
    self.assertLen({a, b, c}, 3)
    self.assertEqual(evidence.mask(['pkg/a.py', 'pkg/b.py']), a | b)
    measure = functools.partial(run.Functions(SWE).measure, 'agents')
    given = dict(
        prompts=3,
        columns=evidence.COLUMNS,
        outcome=[[0, 0, 0], [0, 0, 0], [0, 1, 0]],
        difficulty=[[1] * 3] * 3,
        valid=[[1, 1, 1], [1, 1, 1], [1, 1, 1]],
    )
    view = recorded.view(
        files_mask=[[a, a | b, 0], [a, b, c], [a, a, a]], **given
    )
    # Jaccard: 1/2 in the first group's pair, 0 in the three of the second.
    self.assertAlmostEqual(
        measure(view)['solution_diversity'], 1 - (1 / 2) / 4
    )
    view = recorded.view(files_mask=[[a, 0, 0], [0, 0, 0], [a, b, c]], **given)
    self.assertNotIn('solution_diversity', measure(view))
    # Where the issue names the function, all have to edit the same file.
    given['difficulty'] = [[0] * 3] * 3
    view = recorded.view(files_mask=[[a, a, 0]] * 3, **given)
    self.assertNotIn('solution_diversity', measure(view))

  @parameterized.parameters(
      ('edits', 0.59, 'warn'),
      ('edits', 0.61, 'ok'),
      ('tests_its_edit', 0.49, 'warn'),
      ('tests_its_edit', 0.51, 'ok'),
      ('failed_edits', 0.16, 'warn'),
      ('failed_edits', 0.14, 'ok'),
      ('failed_calls', 0.31, 'warn'),
      ('failed_calls', 0.29, 'ok'),
      ('solution_diversity', 0.14, 'warn'),
      ('solution_diversity', 0.16, 'ok'),
      ('repeated_calls', 0.41, 'critical'),
      ('repeated_calls', 0.21, 'warn'),
      ('repeated_calls', 0.19, 'ok'),
      ('reads_history', 0.61, 'critical'),
      ('reads_history', 0.31, 'warn'),
      ('reads_history', 0.29, 'ok'),
      ('touches_tests', 0.31, 'critical'),
      ('touches_tests', 0.06, 'warn'),
      ('touches_tests', 0.04, 'ok'),
      ('searches_first', 0.0, 'ok'),
      ('submits', 0.0, 'ok'),
  )
  def test_levels_of_agents(self, name, value, level):
    meta = run.Functions(SWE).meta('agents')
    (graded,) = diagnose.graded(meta, {name: value})
    self.assertEqual(graded.level, level)
    tabled = {'edits', 'tests_its_edit', 'failed_edits', 'failed_calls'}
    tabled |= {'solution_diversity', *meta['CRITICAL']}
    self.assertEqual(set(meta['WARN']), tabled)

  @parameterized.parameters(
      # EvoTrainer's: 5 and 50 turns, at a limit of 100.
      (100, 4.9, 'turns_used', 'critical'),
      (100, 5.1, 'turns_used', 'ok'),
      (100, 50.0, 'idle_turns', 'warn'),
      (100, 49.0, 'idle_turns', 'ok'),
      # A limit of 6 leaves room for a careful repair.
      (6, 2.1, 'turns_used', 'critical'),
      (6, 2.2, 'turns_used', 'ok'),
      (6, 5.0, 'idle_turns', 'ok'),
      (6, 5.6, 'idle_turns', 'warn'),
      (5, 5.0, 'idle_turns', ''),
      (2, 2.0, 'turns_used', ''),
  )
  def test_levels_of_turns(self, limit, mean, name, level):
    """Thresholds scale with the limit of turns."""
    functions = run.Functions(SWE)
    few = int(mean)
    more = round((mean - few) * 10)  # Of ten episodes.
    view = recorded.view(
        prompts=1,
        group_size=10,
        columns=evidence.COLUMNS,
        n_turns=[[few + 1] * more + [few] * (10 - more)],
        max_turns=[[limit] * 10],
    )
    found = functions.measure('turns', view)
    self.assertAlmostEqual(found['turns'], mean)
    levels = {
        m.name: m.level
        for m in diagnose.graded(functions.meta('turns'), found)
    }
    self.assertEqual(levels.get(name, ''), level)

  def test_a_blind_run_has_none_of_it(self):
    columns = schema.declare(evidence.COLUMNS, (), blind=True)
    shown = {c.name for c in columns if 'diagnostic' in c.readers}
    self.assertTrue(shown.isdisjoint({'files_mask', 'tested_after_edit'}))
    for source in SWE_BLIND.files.values():
      for name in ('files_mask', 'max_turns', 'tested', 'history'):
        self.assertNotIn(name, source)

  def test_dead_is_below_a_thousandth(self):
    # std of (0, 0, 3 s) is sqrt(2) s.
    for s, dead in ((0.0006, 1.0), (0.0008, 0.0)):
      view = recorded.view(prompts=1, reward=[[0, 0, 3 * s]])
      found = self.functions.measure('groups', view)
      self.assertEqual(found['dead_group_ratio'], dead)

  def test_reward(self):
    view = recorded.view(reward=[[0, 3, 0], [1, 1, 1]])
    found = self.functions.measure('reward', view)
    self.assertAlmostEqual(found['reward_mean'], 1.0)
    self.assertAlmostEqual(found['reward_spread'], np.sqrt(2) / 2, places=6)

  def test_behaviour(self):
    view = recorded.view(
        outcome=[[1, 0, 0], [0, 0, 1]],
        truncated=[[0, 1, 0], [0, 0, 0]],
        format_ok=[[1, 0, 1], [0, 1, 0]],
        mean_logprob=[[-1, -2, -3], [0, 0, 0]],
        n_tokens=[[2, 4, 6], [8, 10, 12]],
        reward=[[1, 2, 3], [4, 5, 6]],
        sampler_trainer_logprob_gap=[[1, np.nan, 3], [np.nan] * 3],
    )
    measure = self.functions.measure
    form = measure('format', view)
    self.assertAlmostEqual(form['truncated'], 1 / 6)
    # Three completions lack an answer in the format, and one of them is solved.
    self.assertAlmostEqual(form['format_failures'], 2 / 6)
    # Those of unsolved problems: -2, -3, 0 and 0.
    self.assertEqual(
        measure('sampling', view), {'mean_logprob': -1.25, 'logprob_gap': 2.0}
    )
    self.assertEqual(
        measure('length', view),
        {'n_tokens': 7.0, 'n_tokens_solved': 7.0, 'n_tokens_unsolved': 7.0},
    )
    corr = measure('length_gaming', view)['length_reward_corr']
    self.assertAlmostEqual(corr, 1.0)

  def test_modes(self):
    codes = grade.MATH_MODE
    direct, steps = codes['direct'], codes['steps']
    view = recorded.view(
        mode=[[direct, direct, steps], [steps, steps, steps]],
        outcome=[[1, 0, 1], [1, 1, 0]],
    )
    found = self.functions.measure('modes', view)
    self.assertAlmostEqual(found['share_direct'], 2 / 6)
    self.assertAlmostEqual(found['outcome_direct'], 1 / 2)
    self.assertAlmostEqual(found['outcome_steps'], 3 / 4)
    self.assertEqual(found['share_ramble'], 0.0)
    self.assertNotIn('outcome_ramble', found)

  def coding(self, name, **given):
    view = recorded.view(columns=coding_grade.COLUMNS, **given)
    return run.Functions(CODING).measure(name, view)

  def test_difficulty(self):
    found = self.coding(
        'difficulty',
        difficulty=[[0, 0, 0], [2, 2, 2]],
        outcome=[[1, 0, 1], [0, 1, 1]],
        valid=[[1, 1, 1], [1, 1, 0]],
    )
    self.assertEqual(set(found), {'outcome_level_0', 'outcome_level_2'})
    self.assertAlmostEqual(found['outcome_level_0'], 2 / 3, places=6)
    self.assertAlmostEqual(found['outcome_level_2'], 1 / 2)

  def test_programs(self):
    shown = dict(
        format_ok=[[1, 1, 1, 1], [1, 0, 1, 1]],
        compiles=[[1, 0, 1, 1], [1, 0, 1, 1]],
        crashed=[[1, 0, 0, 0], [0, 0, 0, 1]],
        timeouts=[[0, 0, 2, 0], [0, 0, 0, 0]],
        visible_passed=[[0, 0, 0, 1], [1, 0, 1, 1]],
        outcome=[[0, 0, 0, 1], [0, 0, 0, 0]],
        valid=[[1, 1, 1, 1], [1, 1, 1, 0]],
    )
    # Six valid ones have a program; the last one of all does not count.
    self.assertEqual(
        self.coding('programs', group_size=4, **shown),
        {
            'not_python': 1 / 6,
            'crashed': 1 / 6,
            'out_of_time': 1 / 6,
            'visible_only': 2 / 6,
        },
    )

  def test_total_where_nothing_can_be_said(self):
    """Dev evidence has no reward; a step may lack valid completions."""
    nan = np.full((2, 3), np.nan)
    empty = recorded.view(valid=np.zeros((2, 3)))
    dev = recorded.view(
        reward=nan, advantage=nan, sampler_trainer_logprob_gap=nan
    )
    for functions in (self.functions, self.blind):
      for name in functions.diagnostics:
        self.assertEqual(functions.measure(name, empty), {}, name)
        functions.measure(name, dev)
    for name in ('difficulty', 'programs'):
      self.assertEqual(self.coding(name, valid=np.zeros((2, 3))), {})
    self.assertEqual(self.functions.measure('groups', dev), {})
    self.assertEqual(self.functions.measure('length_gaming', dev), {})

  def test_thresholds(self):
    """The thresholds of EvoTrainer (arXiv:2606.03108) for warnings."""
    warn, critical = {}, {}
    for name in self.functions.diagnostics:
      meta = self.functions.meta(name)
      warn.update(meta['WARN'])
      critical.update(meta['CRITICAL'])
    self.assertEqual(
        warn,
        {
            'dead_group_ratio': ('>', 0.30),
            'reward_spread': ('<', 0.05),
            'mean_logprob': ('>', -0.1),
            'length_reward_corr': ('>', 0.3),
            'truncated': ('>', 0.15),
            'format_failures': ('>', 0.30),
        },
    )
    self.assertEqual(
        critical,
        {'dead_group_ratio': ('>', 0.50), 'mean_logprob': ('>', -0.05)},
    )


if __name__ == '__main__':
  absltest.main()
