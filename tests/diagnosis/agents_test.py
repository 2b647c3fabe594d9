"""Tests for the checks of agents, on synthetic logs with faults and twins."""

import dataclasses
import functools
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd

from evojax.diagnosis import checks
from evojax.diagnosis import examine
from evojax.diagnosis import form
from evojax.diagnosis import readers
from evojax.diagnosis.checks import agents
from evojax.ledger import records
from tests.diagnosis import agents_made
from tests.diagnosis import made

_SEED = 7  # Different from those in benchmarks/diagnose_logs.py.
# World -> log format; both formats are tested.
_FORMATS = dict(
    zip(agents_made.FAULTS, ['verl', 'trl'] * len(agents_made.FAULTS))
)


@functools.cache
def _run(world: str) -> form.Run:
  """Return a log of FAULTS or HEALTHY, read back from its files."""
  worlds = agents_made.FAULTS | agents_made.HEALTHY
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'run')
    format_ = _FORMATS.get(world, 'verl')
    agents_made.write(path, format_, worlds[world], _SEED, steps=28)
    return readers.read(path)


class AgentsTest(parameterized.TestCase):

  @parameterized.parameters(*agents_made.FAULTS)
  def test_fault_is_named(self, name):
    run, world = _run(name), agents_made.FAULTS[name]
    self.assertEqual(run.format, _FORMATS[name])
    found = examine.examine(run).findings
    names = {f.check for f in found}
    self.assertTrue(names & set(world.finds), names)
    self.assertContainsSubset(names, {*world.finds, *world.may})
    finding = next(f for f in found if f.check in world.finds)
    self.assertNotEmpty(finding.rows)
    self.assertContainsSubset(finding.rows, run.rollouts.index)
    self.assertTrue(finding.change)
    self.assertTrue(any(n.low is not None for n in finding.numbers))

  @parameterized.parameters(*agents_made.HEALTHY)
  def test_healthy_runs_raise_no_alarm(self, name):
    found = examine.examine(_run(name))
    self.assertEmpty([f.text for f in found.findings])
    self.assertContainsSubset(
        {'echo_trap', 'history_leak', 'gives_up'}, found.quiet
    )

  def test_special_cases_that_hidden_tests_confirm_are_no_fault(self):
    run = _run('irregular')
    solved = run.late(run.rollouts[run.rollouts['outcome'] > 0.5])
    self.assertGreater(solved['hard_coded'].mean(), 0.8)
    # Without hidden tests, such a run cannot be told from a gamed one.
    rows = run.rollouts.copy()
    rows['outcome'] = rows['outcome'].where(
        rows['visible_passed'].fillna(0) < 0.5, 1.0
    )
    found = examine.examine(dataclasses.replace(run, rollouts=rows)).findings
    self.assertIn('hard_coded', [f.check for f in found])

  def test_hard_coding_is_blamed_on_what_lets_it_pass(self):
    found = {
        name: next(
            f
            for f in examine.examine(_run(name)).findings
            if f.check == 'hard_coded'
        )
        for name in ('hard_coding', 'hard_coding_unseen')
    }
    self.assertIn('hidden tests fail', found['hard_coding'].text)
    self.assertIn('no hidden test', found['hard_coding_unseen'].text)
    self.assertEqual(
        found['hard_coding_unseen'].remedies,
        (records.Remedy(setting='grader'),),
    )

  def test_hard_coding_where_visible_tests_pass_without_a_repair(self):
    run = _run('sound')
    rows = run.rollouts.assign(visible_passed=1.0)
    chance = np.random.default_rng(0).random(len(rows))
    gamed = (rows['outcome'] < 0.5) & (chance < rows['step'] / 28)
    rows.loc[gamed, ['hard_coded', 'reward']] = 1.0
    run = dataclasses.replace(run, rollouts=rows)
    self.assertLess(run.late(rows)['hard_coded'].mean(), 0.4)
    found = examine.examine(run).findings
    (finding,) = [f for f in found if f.check == 'hard_coded']
    self.assertIn('hidden tests fail', finding.text)

  def test_since_is_near_the_step(self):
    # At that step, more than half of all solved episodes use the leak.
    run = _run('leak')
    solved = run.rollouts[run.rollouts['outcome'] > 0.5]
    by = solved.groupby('step')['copied'].mean()
    (leak,) = examine.examine(run).findings
    self.assertAlmostEqual(leak.since, by.index[by > 0.5][0], delta=4)

  def test_the_part_that_is_paid_is_to_go(self):
    run = _run('efficiency')
    self.assertEqual(run.format, 'trl')
    found = {f.check: f for f in examine.examine(run).findings}
    finding = found['efficiency_collapse']
    self.assertEqual(
        finding.remedies[0],
        records.Remedy(setting='weight', part='turns', value=0.0),
    )
    self.assertEqual(finding.change, 'reward_weights of turns -> 0')

  def test_fewer_tests_are_no_fault_where_more_is_solved(self):
    run = _run('untested')
    (found,) = [
        f for f in examine.examine(run).findings if f.check == 'tests_dropped'
    ]
    edited = run.rollouts[run.rollouts['edited'] > 0.5]
    by = edited.groupby('step')['tested'].mean()
    self.assertAlmostEqual(found.since, by.index[by < 0.5][0], delta=4)
    self.assertRegex(found.text, r'does not rise \(\d+% at the end\)$')
    self.assertEqual(
        found.remedies[-1],
        records.Remedy(setting='weight', part='tested_edit', value=0.15),
    )
    chance = np.random.default_rng(0).random(len(run.rollouts))
    rows = run.rollouts.assign(outcome=chance < run.rollouts['step'] / 40)
    rows['outcome'] = rows['outcome'].astype(float)
    run = dataclasses.replace(run, rollouts=rows)
    self.assertIsNone(agents.tests_dropped(run))

  def test_a_limit_of_turns_where_reads_are_not_logged(self):
    run = _run('turn_limit')
    rows = run.rollouts.drop(columns='looked')
    less = dataclasses.replace(run, rollouts=rows)
    self.assertIsNotNone(agents.turn_limit(less))

  def test_the_tool_that_leaks_is_named(self):
    (leak,) = examine.examine(_run('leak_renamed')).findings
    self.assertIn("'archive'", leak.text)

  def test_cannot_tell_what_is_not_logged(self):
    rows = _run('sound').rollouts[
        ['step', 'group', 'reward', 'outcome', 'n_turns']
    ]
    run = form.make(pathlib.Path('x'), 'table', rows, pd.DataFrame(), {})
    why = {u.check: u.why for u in examine.examine(run).unknown}
    self.assertEqual(why['echo_trap'], 'repeated is not logged')
    self.assertIn('tool calls', why['history_leak'])
    self.assertIn('max_turns', why['turn_limit'])

  def test_metrics_alone(self):
    steps = pd.DataFrame(
        {
            'step': range(20),
            'n_calls': 3.0,
            'calls_failed': [0.02] * 10 + [0.4] * 10,
        }
    )
    run = form.make(pathlib.Path('x'), 'wandb', pd.DataFrame(), steps, {})
    (found,) = examine.examine(run).findings
    self.assertEqual((found.check, found.since), ('malformed_calls', 10))

  def test_plain_completions_are_not_asked(self):
    run = made.run(made.rollouts())
    self.assertFalse(run.has_turns)
    self.assertNotIn('echo_trap', [c.__name__ for c in checks.of(run)])


if __name__ == '__main__':
  absltest.main()
