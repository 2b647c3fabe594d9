"""Search rules on synthetic tables for which the right answer is known."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from benchmarks.faults import settings
from benchmarks.searchers import design
from benchmarks.searchers import racing
from benchmarks.searchers import recording
from benchmarks.searchers import replays
from benchmarks.searchers import report
from benchmarks.searchers import rules
from benchmarks.searchers import tables

MARKS = list(range(0, 129, 16))
UPDATE = 2000  # Tokens.
CHANGES = racing.Changes([('reward',), ('optimizer',), ('loss',), ('filter',)])
# Python of the environment from benchmarks/searchers/requirements.txt.
RIVALS = os.environ.get('EVOJAX_RIVALS_PYTHON', '')


def rows(top, *, spread=0.01, called='reward', problems=64, samples=8):
  """Return rows of 16 harnesses, 3 seeds that rise from .3 to
  `top(harness)`."""
  rng = np.random.default_rng(0)
  easy = rng.uniform(-0.2, 0.2, problems)
  first = np.rint(samples * (0.3 + easy)).astype(int)
  made = []
  for harness in range(16):
    for seed in range(3):
      off = spread * rng.standard_normal()
      solved = [first]
      for mark in MARKS[1:]:
        mean = 0.3 + (top(harness) + off - 0.3) * (1 - np.exp(-mark / 20))
        chances = np.clip(mean + easy, 0, 1)
        solved.append(rng.binomial(samples, chances))
      made.append(
          dict(
              setting='made',
              harness=harness,
              seed=seed,
              switched=None,
              updates=MARKS,
              tokens=[UPDATE * mark for mark in MARKS],
              dev_tokens=[20.0] * len(MARKS),
              samples=samples,
              solved=[''.join(map(str, of)) for of in solved],
              calls=[[called]] * len(MARKS),
              critical=[[]] * len(MARKS),
              ended='',
          )
      )
  return made


def table(top, **options):
  return tables.tables(rows(top, **options))['made']


def better(harness):
  """Factor 0 is worth 40 points; the others have no effect."""
  return 0.7 if harness & 1 else 0.3


def world(of, tokens=10**9, key=0, **options):
  rng = np.random.default_rng([0, key])
  return tables.World(of, tokens, shift=rng, rng=rng, **options)


PLAN = replays.Plan(tokens=1.5e6, worlds=12, repeats=2, tuning=4)


def delivered(of, rule, changes=CHANGES, plan=PLAN):
  found = replays.replayed(of, plan, lambda w, rng: rule(w, rng, changes))
  return np.array(found['scores']), np.array(found['harnesses'])


class TablesTest(parameterized.TestCase):

  def test_a_table_is_what_was_recorded(self):
    made = rows(better)
    found = tables.tables(made)['made']
    self.assertEqual(found.share.shape, (16, 3, len(MARKS), 64))
    self.assertEqual(found.factors, 4)
    row = made[5 * 3 + 1]
    self.assertEqual(found.share[5, 1, 2, 7], int(row['solved'][2][7]) / 8)
    np.testing.assert_array_equal(found.tokens[5, 1], row['tokens'])

  def test_what_is_incomplete_waits(self):
    made = rows(better)
    self.assertEmpty(tables.tables(made[:-4]))  # Only 15 harnesses.
    # The third seed lacks a harness.
    without = [r for r in made if (r['harness'], r['seed']) != (3, 2)]
    self.assertEqual(tables.tables(without)['made'].share.shape[1], 2)

  def test_rows_that_do_not_fit(self):
    made = rows(better)
    made[3] = dict(made[3], updates=[0, 1], solved=made[3]['solved'][:2])
    with self.assertRaisesRegex(tables.TableError, 'marks'):
      tables.tables(made)

  def test_seeds_are_off_by_what_they_are(self):
    """The noise of the samples is removed from the deviations."""
    flat = lambda harness: 0.5
    steady = table(flat, spread=0.0)
    raw = steady.curves - steady.curves.mean(axis=1, keepdims=True)
    self.assertGreater(raw[..., 1:].std(), 0.01)
    self.assertLess(steady.off[..., 1:].std(), 0.3 * raw[..., 1:].std())
    wild = table(flat, spread=0.05)
    # Two of three degrees of freedom are left.
    late = wild.off[..., -1].std() * np.sqrt(3 / 2)
    self.assertBetween(late, 0.03, 0.07)


class WorldTest(parameterized.TestCase):

  def test_arms_have_the_recorded_mean_and_spread(self):
    of = table(better, spread=0.05)
    ends = [
        world(of, key=i)
        .train(tables.State(-1, 0.0, 0.3, 0.3, 0.3), 1, 128)
        .score
        for i in range(400)
    ]
    recorded = of.curves[1, :, -1]
    start = of.curves[1, :, 0].mean()
    self.assertAlmostEqual(
        np.mean(ends), 0.3 + recorded.mean() - start, delta=0.01
    )
    # Seeds differ, and three of them leave their mean uncertain.
    wanted = of.off[1, :, -1].std(ddof=1) * np.sqrt(1 + 1 / 3)
    self.assertAlmostEqual(np.std(ends) / wanted, 1, delta=0.15)

  def test_in_parts_as_in_one(self):
    w = world(table(better))
    luck = w.luck()
    whole = w.train(w.base, 3, 96, luck)
    state = w.base
    for _ in range(12):
      state = w.train(state, 3, 8, luck)
    self.assertAlmostEqual(state.score, whole.score)
    self.assertEqual(w.spent, 2 * 96 * UPDATE)

  def test_a_policy_goes_on_where_the_other_curve_is(self):
    rise = tables._Curve(
        np.array([0, 10, 20, 30]), np.array([0.3, 0.5, 0.6, 0.6])
    )
    self.assertAlmostEqual(rise.find(0.4), 5.0)
    self.assertAlmostEqual(rise.find(0.55), 15.0)
    self.assertEqual(rise.find(0.8), 20.0)  # It never gets that good.
    # It lost 10 points; the steepest rise is 2 points an update.
    self.assertAlmostEqual(rise.find(0.2), -5.0)
    self.assertAlmostEqual(rise(-5.0), 0.2)
    self.assertAlmostEqual(rise(99), 0.6)
    fall = tables._Curve(np.array([0, 10]), np.array([0.3, 0.1]))
    self.assertEqual(fall.find(0.2), 0.0)  # It never regains anything.
    flat = tables._Curve(np.array([0, 10]), np.array([0.3, 0.3 + 1e-16]))
    self.assertEqual(flat.find(0.2), 0.0)  # Not after 1e16 updates, either.

  def test_under_an_equal_harness_nothing_changes(self):
    w = world(table(lambda harness: 0.7, spread=0.0))
    halves = w.train(w.train(w.base, 0, 24), 2, 24)
    self.assertAlmostEqual(
        halves.score, w.train(w.base, 0, 48).score, delta=0.03
    )

  def test_a_harness_that_ruins_ruins_what_was_good(self):
    ruin = table(lambda harness: 0.05 if harness & 1 else 0.7, spread=0.0)
    w = world(ruin)
    good = w.train(w.base, 0, 96)
    self.assertGreater(good.score, 0.6)
    worse = w.train(good, 1, 64)
    self.assertLess(worse.score, good.score - 0.15)
    again = w.train(worse, 0, 64)
    self.assertGreater(again.score, worse.score + 0.1)

  def test_tokens(self):
    of = table(better)
    w = world(of, tokens=20 * UPDATE, problems=10, samples=5)
    state = w.train(w.base, 0, 16)
    w.score(state, w.problems())
    self.assertEqual(w.spent, 16 * UPDATE + 10 * 5 * 20)
    with self.assertRaises(tables.SpentError):
      w.train(state, 0, 8)
    self.assertEqual(w.spent, 16 * UPDATE + 1000)
    w.finish(state)  # 4 updates cost 8,000, and 7,000 are left.
    self.assertEqual(w.spent, 16 * UPDATE + 1000)
    w = world(of, tokens=99 * UPDATE)
    self.assertEqual(w.finish(w.base).at, 96)

  def test_scores_are_measured_and_not_known(self):
    w = world(table(better))
    state = w.train(w.base, 1, 64)
    scores = [w.score(state, w.problems()).mean() for _ in range(300)]
    self.assertAlmostEqual(np.mean(scores), state.score, delta=0.01)
    # About sqrt(.5 / 128), plus the differences between problems.
    self.assertBetween(np.std(scores), 0.03, 0.07)
    # A pair shares its problems, so their differences cancel.
    problems = w.problems(4000)
    first, second = (
        w.answers(state, state.late, problems, 8) for _ in range(2)
    )
    self.assertGreater(np.corrcoef(first, second)[0, 1], 0.2)

  def test_switches_are_predicted(self):
    of = table(better, spread=0.0)
    middle = MARKS[4]
    solved = ['2' * 64] * 4 + ['2' * 64, '3' * 64, '4' * 64, '5' * 64, '5' * 64]
    row = dict(updates=MARKS, switched=(1, middle), solved=solved, samples=8)
    of = dataclasses.replace(of, switches=[row])
    ((predicted, recorded),) = tables.error_of_switches(of)
    self.assertEqual(recorded, 5 / 8)
    self.assertAlmostEqual(predicted, 0.68, delta=0.04)


class RulesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('evojax', rules.evojax, 0.9, 0.62),
      ('shuffled', rules.shuffled, 0.5, 0.45),
      ('trials', rules.trials, 0.9, 0.62),
      ('greedy', rules.greedy, 0.6, 0.6),
  )
  def test_finds_what_is_clearly_better(self, rule, share, score):
    scores, harnesses = delivered(table(better), rule)
    self.assertGreaterEqual(np.mean(harnesses & 1), share)
    self.assertGreater(scores.mean(), score)
    plain, _ = delivered(table(better), rules.seed)
    self.assertAlmostEqual(plain.mean(), 0.3, delta=0.03)

  def test_random_search_finds_it_too(self):
    found = replays.searched(table(better), PLAN, rules.random_search)
    self.assertGreater(np.mean(found['scores']), 0.65)
    self.assertIn(found['most'], replays.MOST)

  def test_alerts_that_call_for_it_save_tokens(self):
    plan = dataclasses.replace(PLAN, tokens=5e5)
    own, _ = delivered(table(better), rules.evojax, plan=plan)
    other, _ = delivered(table(better), rules.shuffled, plan=plan)
    wrong, _ = delivered(
        table(better, called='filter'), rules.evojax, plan=plan
    )
    self.assertGreater(own.mean(), other.mean() + 0.05)
    self.assertGreater(own.mean(), wrong.mean() + 0.05)

  def test_nothing_is_kept_where_nothing_is_better(self):
    plan = dataclasses.replace(PLAN, worlds=40, repeats=1)
    _, harnesses = delivered(
        table(lambda harness: 0.6, spread=0.02), rules.evojax, plan=plan
    )
    # At most one run in five, the level, over 40 runs.
    self.assertLessEqual(np.mean(harnesses != tables.SEED), 0.35)

  def test_a_replay_that_is_sure_of_a_loss_vetoes(self):
    of = table(better)
    lost = {(harness, 0): (-0.2, -0.1) for harness in range(16)}
    of = dataclasses.replace(of, replayed=lost)
    _, harnesses = delivered(of, rules.evojax)
    self.assertFalse(np.any(harnesses & 1))

  def test_a_change_that_pays_for_a_while_only_is_taken_back(self):
    """It rises at once and then falls far below the seed.

    The seed must learn something; otherwise no shadow is trained.
    """
    made = rows(lambda harness: 0.45, spread=0.0)
    fall = [0.3, 0.6, 0.45, 0.2, 0.1, 0.05, 0.05, 0.05, 0.05]
    rng = np.random.default_rng(1)
    for row in made:
      if row['harness'] & 1:
        row['solved'][1:] = [
            ''.join(map(str, rng.binomial(8, p, 64))) for p in fall[1:]
        ]
    scores, harnesses = delivered(tables.tables(made)['made'], rules.evojax)
    self.assertLess(np.mean(harnesses & 1), 0.2)
    self.assertGreater(scores.mean(), 0.35)

  def test_arms_that_ruin_the_policy_are_left_out(self):
    ruins = table(lambda harness: 0.75 if harness & 1 else 0.05, spread=0.0)
    w = world(ruins)
    good = w.train(w.base, 1, 48)
    race = racing.Race(w, np.random.default_rng(0), CHANGES, range(4))
    # So many groups that chance has no effect.
    race._grpo = types.SimpleNamespace(prompts=1000, group_size=8)
    lucks = [w.luck() for _ in range(4)]
    starts, ends, left = race._chain(good, 0, lucks, suspect=False)
    self.assertEqual(starts, [good] * 4)
    self.assertLess(ends[0].score, good.score - 0.05)
    young = w.train(w.base, 1, 4)
    starts, ends, left = race._chain(young, 1, lucks, suspect=False)
    self.assertEqual(starts[1:], ends[:-1])
    self.assertEqual(left, ends[-1])

  def test_what_is_critical_is_put_right_first(self):
    """Nothing else races with it, which leaves more tokens."""
    of = table(better)
    each = lambda classes: [[classes] * len(MARKS)] * 16
    for critical, factors in (([], {0, 1}), (['reward'], {0})):
      calls = ['reward', 'optimizer']
      of = dataclasses.replace(of, calls=each(calls), critical=each(critical))
      race = racing.Race(world(of), np.random.default_rng(0), CHANGES, range(4))
      race._taught = [[0.3, 0.3]]  # It learns slowly.
      race._fill(2)
      self.assertEqual({c.factor for c in race._racing}, factors)

  def test_changes_that_repair_nothing_wait_while_the_policy_learns_fast(self):
    race = racing.Race(
        world(table(better)), np.random.default_rng(0), CHANGES, range(4)
    )
    for taught, entered in (
        ([], 0),
        ([[0.3, 0.5], [0.6, 0.8]], 0),
        ([[0.3, 0.5], [0.6, 0.6], [0.6, 0.6]], 2),
    ):
      race._taught = taught
      race._fill(2)
      self.assertLen(race._racing, entered)

  def test_the_last_entry_is_for_a_critical_repair(self):
    of = table(better)
    each = lambda classes: [[classes] * len(MARKS)] * 16
    for critical, before, entered in (
        (['reward'], 4, 1),
        ([], 4, 0),
        ([], 5, 0),
    ):
      of = dataclasses.replace(of, critical=each(critical))
      race = racing.Race(
          world(of), np.random.default_rng(0), CHANGES, range(4)
      )
      race._taught = [[0.3, 0.3]]
      self.assertEqual(race._e.entries, 5)
      race._entered = before
      race._fill(2)
      self.assertLen(race._racing, entered)

  @parameterized.parameters(
      ((), 1),
      ((0.1,), 1),  # It gained, but not for sure.
      ((-0.1,), 0),
      ((0.1, 0.1), 0),
  )
  def test_a_critical_repair_is_tried_again_at_most_once(self, gains, entered):
    of = table(better)
    each = [[['reward']] * len(MARKS)] * 16
    of = dataclasses.replace(of, critical=each)
    race = racing.Race(world(of), np.random.default_rng(0), CHANGES, range(4))
    race._tried = {0, 1, 2, 3}
    for gain in gains:
      repair = racing._Candidate(0, 1, 1, mends=True)
      standing = repair.standing
      repair.standing = dataclasses.replace(standing, differences=(gain,))
      race._repairs.append(repair)
    race._fill(2)
    self.assertLen(race._racing, entered)

  @parameterized.parameters(True, False)
  def test_the_chain_follows_a_critical_repair(self, helps):
    """And goes back to the incumbent's own arms if it does not help."""
    of = table(
        lambda harness: 0.7 if bool(harness & 1) == helps else 0.3, spread=0.0
    )
    race = racing.Race(world(of), np.random.default_rng(0), CHANGES, range(4))
    # So many groups that chance has no effect.
    race._grpo = types.SimpleNamespace(prompts=1000, group_size=8)
    repair = racing._Candidate(0, 1, 1, mends=True)
    self.assertTrue(repair.is_due)
    lucks = [race._world.luck() for _ in range(4)]
    first = race.policy
    starts, ends, (found, errors) = race._follow(
        repair, lucks, suspect=False, alike=True
    )
    self.assertEqual(starts[:2], [first, repair.ends[0]])
    self.assertEqual(len(found), len(errors))
    own = first, ends[0]
    if helps:
      # Arms that continue those of the repair are no part of the policy.
      self.assertIn(race.policy, own)
      self.assertEqual(starts[1:], repair.ends[:-1])
      self.assertEqual(repair.state, repair.ends[-1])
      self.assertGreater(min(found[:2]), 0.02)
    else:
      self.assertLen(found, 2)
      self.assertIn(starts[2], own)
      self.assertEqual(race.policy, ends[-1])

  @parameterized.parameters(4, 2)
  def test_what_was_stopped_after_half_its_pairs_is_not_kept(self, trained):
    of = table(lambda harness: 0.6)
    race = racing.Race(world(of), np.random.default_rng(0), CHANGES, range(4))
    race._taught.append([])
    candidate = racing._Candidate(0, 1, 1, mends=False)
    candidate.state = race.policy
    candidate.ends = [race.policy] * trained
    race._racing = [candidate]
    differences = [0.3, 0.31, 0.29, 0.3][:trained]
    found = {'0': (differences, [0.01] * trained)}
    race._decide(found, [race.policy] * 4)
    self.assertEqual((race.harness, race._racing), (int(trained == 4), []))

  @parameterized.parameters(
      # As in the meta-loop's own test: the line rises by 4.8 points in a round,
      # by up to 24.6, and 3 rounds are left, then one.
      (0.15, 3, True, False),
      (0.15, 3, False, True),
      (0.95, 3, False, False),
      (0.24, 1, False, True),
      (0.25, 1, False, False),
  )
  def test_a_shadow_follows_the_rule_of_the_meta_loop(
      self, ahead, rounds, mends, trains
  ):
    of = table(lambda harness: 0.6)
    race = racing.Race(world(of), np.random.default_rng(0), CHANGES, range(4))
    race._e = types.SimpleNamespace(horizon=rounds + 1)
    race._outcomes = lambda state: [0.30, 0.38]
    ends = [None] * 2
    self.assertEqual(race._is_needed(ends, ahead, rounds, mends), trains)
    # The same decides after each look, if nothing else does.
    race._difference = lambda *_, **__: (ahead, 0.0)
    race._shadow = racing._Shadow(0, race.policy, True, mends)
    status = 'go_on' if trains else 'keep'
    self.assertEqual(race._look(ends, ends, alike=True), status)

  def test_a_candidate_that_repairs_a_fault_is_marked(self):
    each = lambda classes: [[classes] * len(MARKS)] * 16
    for critical, mends in (([], {False}), (['reward'], {True})):
      of = dataclasses.replace(
          table(better), calls=each(['reward']), critical=each(critical)
      )
      race = racing.Race(world(of), np.random.default_rng(0), CHANGES, range(4))
      race._taught = [[0.3, 0.3]]
      race._fill(1)
      self.assertEqual({c.mends for c in race._racing}, mends)

  def test_a_searcher_that_is_fed_noise_does_not_win(self):
    """The searcher trusts its luckiest score, but the policy is what counts."""
    of = table(lambda harness: 0.6, spread=0.0)
    believed, true = [], []
    for key in range(20):
      w = world(of, tokens=1e6, key=key)
      search = tables.Trials(w, unit=8, most=9, part=1.0)
      rules.random_search(search, np.random.default_rng(key))
      score, state = search.best
      believed.append(score)
      true.append(state.score)
    self.assertGreater(np.mean(believed), np.mean(true) + 0.02)
    self.assertLess(np.max(true), 0.63)


class ReportTest(parameterized.TestCase):

  def test_interval(self):
    scores = np.array([[0.5, 0.5], [0.6, 0.6], [0.4, 0.4]])
    found = report.mean(scores, seeds=3)
    self.assertAlmostEqual(found.value, 0.5)
    self.assertAlmostEqual(found.error, 0.1 / np.sqrt(3))
    self.assertAlmostEqual(found.margin, 0.1 * 4.302653, places=5)
    self.assertAlmostEqual(
        found.both, np.hypot(found.margin, 1.96 * found.error)
    )
    # Replays within a world differ as much as worlds: seeds add no uncertainty.
    scores = np.array([[0.4, 0.6], [0.5, 0.5], [0.6, 0.4]])
    found = report.mean(scores, seeds=3)
    self.assertEqual((found.error, found.margin), (0.0, 0.0))

  def test_the_seed_alone_has_the_interval_of_its_seeds(self):
    """The interval is the classic t interval of three runs."""
    of = table(better, spread=0.05)
    plan = replays.Plan(tokens=UPDATE * 128, worlds=100, repeats=4)
    scores, _ = delivered(of, rules.seed, plan=plan)
    spread = of.off[0, :, -1].std(ddof=1)
    wanted = 4.302653 * spread * np.sqrt(1 / 3)
    margin = report.mean(scores, seeds=3).margin
    self.assertAlmostEqual(margin / wanted, 1, delta=0.3)

  def test_lines(self):
    of = table(better)
    plan = dataclasses.replace(PLAN, worlds=3, repeats=1, tuning=2)
    best = replays.best_known(of, plan)
    self.assertTrue(best[0] & 1)
    self.assertGreater(best[1], 0.66)
    found = {
        name: replays.replayed(
            of, plan, lambda w, rng, rule=rule: rule(w, rng, CHANGES)
        )
        for name, rule in rules.RULES.items()
    }
    lines = '\n'.join(report.lines(of, found, best, plan))
    for name in rules.RULES:
      self.assertIn(f'  {name}', lines)
    self.assertIn('regret', lines)
    # Harnesses that the seed never runs bring no gain.
    self.assertRegex(lines, r'seed +[23]\d\.\d .* factor 0 flipped in 0 %')

  def test_the_command_prints_a_table(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, 'rows.jsonl')
      made = [dict(row, setting='math') for row in rows(better)]
      path.write_text('\n'.join(map(json.dumps, made)))
      command = [sys.executable, '-m', 'benchmarks.searchers']
      command += [f'--rows={path}', '--worlds=2', '--repeats=1', '--tuning=1']
      command += ['--tokens=3e5', '--settings=math,coding']
      text = subprocess.run(
          command, check=True, capture_output=True, text=True
      ).stdout
    self.assertIn('math, 16 harnesses under 3 seeds: 2 replays', text)
    self.assertIn('random search', text)
    self.assertIn('coding: not all harnesses are recorded', text)


class RivalsTest(absltest.TestCase):

  def test_they_need_neither_evojax_nor_scipy(self):
    code = 'import sys, benchmarks.searchers.rivals\nprint(*sys.modules)'
    text = subprocess.run(
        [sys.executable, '-c', code], check=True, capture_output=True, text=True
    ).stdout
    found = {name.split('.')[0] for name in text.split()}
    self.assertEmpty(found & {'evojax', 'scipy', 'jax', 'absl'})

  @absltest.skipUnless(RIVALS, 'EVOJAX_RIVALS_PYTHON names no environment')
  def test_they_find_what_is_clearly_better(self):
    from benchmarks.searchers import rivals

    plan = dataclasses.replace(PLAN, worlds=3, repeats=1, tuning=1)
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, 'rows.jsonl')
      path.write_text('\n'.join(map(json.dumps, rows(better))))
      for name in rivals.RIVALS:
        found = report._of_rival(path, 'made', plan, name, RIVALS)
        with self.subTest(name):
          self.assertGreater(np.mean(found['scores']), 0.62)


class DesignTest(parameterized.TestCase):

  def _levels(self, found, number):
    """Return the levels of the six factors, from config and harness."""
    config, harness = found.recipe(number)
    value = lambda path, default=None: harness.overlay.get(path, default)
    if found.fault:
      first = 'length' not in config.reward.weights
    else:
      first = value('grpo.kl_coef') is not None
    return (
        first,
        value('optim.learning_rate') is not None,
        value('rollout.temperature') is not None,
        value('grpo.keep') is not None,
        value('grpo.aggregation') is not None,
        value('reward.weights.overlong', 0.0) > 0,
    )

  @parameterized.parameters('math_brevity_paid', 'math')
  def test_sixteen_harnesses_tell_six_factors_apart(self, name):
    found = design.read(name)
    levels = np.array([self._levels(found, i) for i in range(16)])
    self.assertFalse(levels[0].any())
    for k in range(4):  # The bits of the number.
      np.testing.assert_array_equal(levels[:, k], np.arange(16) >> k & 1)
    signs = 2 * levels - 1
    np.testing.assert_array_equal(signs.T @ signs, 16 * np.eye(6))

  def test_harness_0_is_what_is_planted_and_1_has_it_repaired(self):
    found = design.read('math_brevity_paid')
    config, harness = found.recipe(0)
    self.assertEqual(harness, settings.harness(found.fault))
    self.assertEqual(config.reward.weights.length, -2.0)
    config, harness = found.recipe(1)
    self.assertEqual(config.reward.weights.to_dict(), {'outcome': 1.0})
    self.assertNotIn('reward.weights.length', harness.overlay)
    self.assertEqual(found.changes.classes[0], ['reward'])
    self.assertFalse(found.changes.alike(2))
    self.assertTrue(found.changes.alike(3))

  @parameterized.parameters(
      ('coding_hot', 'another factor changes'),
      ('coding_filter_unsolved', 'plants a filter'),
      ('math_fails_open', 'leaky'),
      ('nonsense', 'no setting'),
  )
  def test_settings_without_a_table(self, name, message):
    with self.assertRaisesRegex(ValueError, message):
      design.read(name)

  def test_the_queue_continues(self):
    plan = recording.Plan(updates=64, every=16, problems=8, bits=2)
    runs = list(plan.queue(design.SETTINGS, 3))
    self.assertLen(runs, 4 * 4 * 3 + 4 * 3)
    self.assertLen({run.key for run in runs}, len(runs))
    self.assertEqual(runs[-1].switched, (1, 32))
    # As read from a file, in which tuples are lists.
    row = json.loads(json.dumps(dataclasses.asdict(runs[-1])))
    self.assertEqual(tables.key(row), runs[-1].key)
    self.assertEqual([run.seed for run in runs[:16]], [0] * 16)


if __name__ == '__main__':
  absltest.main()
