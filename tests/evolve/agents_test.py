"""Tests for the interventions for agents: proposed, admitted, undone."""

import dataclasses
import functools
import itertools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from configs import swe as swe_config
from evojax import config as config_lib
from evojax import domains
from evojax.diagnosis import rules as rules_lib
from evojax.domains.swe import evidence
from evojax.domains.swe import make
from evojax.evidence import schema
from evojax.evolve import propose as propose_lib
from evojax.evolve import repairs
from evojax.evolve.propose import agents
from evojax.evolve.propose import directions
from evojax.evolve.propose import library
from evojax.evolve.propose import rules
from evojax.harness import admit
from evojax.harness import spec
from evojax.harness import surface
from evojax.ledger import records
from tests.evolve import propose_test
from tests.harness import recorded

CONFIG = swe_config.get_config()
SURFACE = surface.recipe(make().surface_fields)
LEVELS = make(families=CONFIG.domain.kwargs.families).levels
# From the least solved family to the most solved one.
SOLVED = {family: i / 16 for i, family in enumerate(sorted(dict(LEVELS)))}
SEED = spec.read(domains.folder('swe') / 'seed_harness')


@functools.cache
def _values(parent):
  return config_lib.flatten(SURFACE.apply(CONFIG, parent.overlay))


def make_context(alerts=(), *, parent=SEED, config=(), **changes):
  """Return a context of the swe domain."""
  return dataclasses.replace(
      propose_test.context(alerts, **changes),
      parent=parent,
      config=_values(parent) | {'grpo.epochs': 2} | dict(config),
      domain='swe',
      surface=SURFACE,
      levels=LEVELS,
      solved=SOLVED,
  )


@functools.cache
def _evidence():
  """Return random evidence in the domain's columns."""
  lists = [[4, 3, 3, 4, 7, -1], [3, 4, 6, 1, 4, 7]] * 32
  return recorded.view(
      prompts=8,
      group_size=8,
      columns=evidence.COLUMNS,
      lists={
          'actions': lists,
          'arguments': [[0] * 6] * 64,
          'action_ok': [[True] * 6] * 64,
      },
      n_turns=list(itertools.islice(itertools.cycle(range(1, 7)), 64)),
  )


class _Synthetic:

  def columns(self, config):
    del config
    return frozenset(c.name for c in schema.declare(evidence.COLUMNS, ()))

  def evidence(self, config):
    del config
    return _evidence()


_SYNTHETIC = _Synthetic()


class AgentsTest(parameterized.TestCase):

  @parameterized.parameters(*agents.ENTRIES)
  def test_entry_makes_one_change_that_is_admitted(self, name):
    entry = agents.ENTRIES[name]
    config = {'domain.kwargs.scrubbed': False} if 'scrub' in name else {}
    context = make_context(entry.triggers, config=config)
    after = entry.apply(context)
    delta, _ = propose_lib.consider(context, after)
    self.assertEqual(delta.factor, entry.change.factor(SURFACE))
    run = swe_config.get_config()
    run.domain.kwargs.scrubbed = 'scrub' not in name
    self.assertEqual(admit.admit(SEED, after, run, SURFACE, _SYNTHETIC), [])
    # Once it is applied, it can be reversed and removed.
    config = _values(after)
    paths = set(config) & set(after.overlay) - set(SEED.overlay)
    again = make_context(parent=after)
    undone = [
        other.overlay.get(path)
        for idea in directions.entries(again)
        if (other := idea.apply(again)) is not None
        for path in paths
        if other.overlay.get(path) != after.overlay[path]
    ]
    if entry.change.path.startswith(surface.WEIGHTS):
      weight = after.overlay[entry.change.path]
      self.assertContainsSubset({0.0, -weight}, undone)
    else:
      self.assertNotEmpty(undone)

  @parameterized.parameters('searched_first', 'tested_edit')
  def test_a_blind_run_is_not_told_of_hidden_columns(self, part):
    blind = {'evolve.seed_harness': 'seed_blind'}
    self.assertTrue(agents.can_pay(make_context(), part))
    self.assertFalse(agents.can_pay(make_context(config=blind), part))
    self.assertFalse(agents.can_pay(propose_test.context(), part))
    columns = schema.declare(evidence.COLUMNS, (), blind=True)
    shown = {c.name for c in columns if 'reward' in c.readers}
    hidden = {'searched_before_edit', 'tested_after_edit', 'first_edit_turn'}
    self.assertTrue(hidden.isdisjoint(shown))
    self.assertIn('f2p_passed', shown)

  def test_each_part_is_paid_or_fined_from_the_start(self):
    """Also what hidden columns are needed for, but not in a blind run."""
    weights = {}
    for entry in agents.entries(make_context()):
      after = entry.apply(make_context())
      for path in set(after.overlay if after else ()) - set(SEED.overlay):
        weights.setdefault(path, []).append(after.overlay[path])
    weights = {
        path.removeprefix(surface.WEIGHTS): sorted(values)
        for path, values in weights.items()
        if path.startswith(surface.WEIGHTS)
    }
    parts = ('searched_first', 'tested_edit', 'fail_to_pass', 'edit_streak')
    self.assertEqual(set(weights), {*parts, 'few_turns'})
    for part, (fined, paid) in weights.items():
      self.assertEqual(fined, -paid, part)
      self.assertGreater(paid, 0, part)
    blind = make_context(config={'evolve.seed_harness': 'seed_blind'})
    factors = {
        e.change.factor(SURFACE)
        for e in agents.entries(blind)
        if e.apply(blind) is not None
    }
    hidden = {'reward:searched_first', 'reward:tested_edit'}
    self.assertTrue(hidden.isdisjoint(factors))

  @parameterized.parameters(
      ('easier_problems', 'too_hard'),
      ('harder_problems', 'too_easy'),
      ('middle_families', 'weak_signal'),
  )
  def test_a_curriculum_by_families(self, name, alert):
    """Each issue names its function, so that families have one level."""
    context = make_context([alert])
    entry = library.ENTRIES[name]
    self.assertIn(alert, entry.triggers)
    after = entry.apply(context)
    chosen = [n.partition(':')[0] for n in after.overlay['data.families']]
    rates = np.array([SOLVED[family] for family in chosen])
    left = np.array([r for f, r in SOLVED.items() if f not in chosen])
    if name == 'middle_families':
      self.assertLessEqual(abs(rates - 0.5).max(), abs(left - 0.5).min())
    elif name == 'easier_problems':
      self.assertGreater(rates.min(), left.max())
    else:
      self.assertLess(rates.max(), left.min())
    # The domain can train on it.
    source = make(families=after.overlay['data.families']).source('train', 0)
    families = {p.family for p in source.take(0, len(source))}
    self.assertEqual(families, set(chosen))
    # And back: all problems, and what was left out, are proposed next.
    again = make_context(parent=after)
    back = [
        other.overlay.get('data.families')
        for idea in directions.entries(again)
        if (other := idea.apply(again)) is not None
    ]
    self.assertIn((), back)
    self.assertIn(
        set(left), [{SOLVED[n[:-2]] for n in b} for b in back if b]
    )

  def test_replies_count_where_the_limit_is_that_of_an_episode(self):
    one, other = (
        library.ENTRIES[name]
        for name in ('overlong_penalty', 'overlong_episode_penalty')
    )
    self.assertIsNone(one.apply(make_context()))
    after = other.apply(make_context())
    self.assertEqual(after.overlay['reward.weights.overlong_episode'], 0.5)
    self.assertIsNotNone(one.apply(propose_test.context()))
    self.assertIsNone(other.apply(propose_test.context()))

  def test_other_domains_have_none(self):
    self.assertEmpty(list(agents.entries(propose_test.context())))

  def test_every_trigger_is_measured(self):
    sources = ''.join(
        text for name, text in SEED.files.items() if 'diagnostics/' in name
    )
    for entry in agents.ENTRIES.values():
      for name in entry.triggers:
        known = name in rules_lib.RULES or f"'{name}'" in sources
        known |= name in propose_test.ALERTS
        self.assertTrue(known, name)

  def test_names_are_those_of_nothing_else(self):
    self.assertTrue(set(agents.ENTRIES).isdisjoint(library.ENTRIES))

  @parameterized.parameters(
      ('tests_its_edit', 'tested_edit'),
      ('edits', 'fail_to_pass'),
      ('edits', 'few_turns'),
      ('failed_edits', 'searched_first'),
      ('failed_edits', 'edit_streak'),
      ('repeated_calls', 'edit_streak'),
      ('turns_used', 'few_turns'),
      ('laziness', 'tested_edit'),
  )
  def test_an_alert_calls_for_it(self, alert, part):
    made = [rules.propose(make_context([alert], seed=n)) for n in range(30)]
    self.assertIn(f'reward:{part}', {p.delta.factor for p in made})

  @parameterized.parameters(
      ({'setting': 'max_turns', 'times': 2.0}, 'domain.kwargs.max_turns', 12),
      ({'setting': 'history', 'value': True}, 'domain.kwargs.scrubbed', True),
      (
          {'setting': 'tools', 'value': 'read'},
          'domain.kwargs.tools',
          CONFIG.domain.kwargs.tools,
      ),
      (
          {'setting': 'weight', 'part': 'fail_to_pass', 'value': 0.3},
          'reward.weights.fail_to_pass',
          0.3,
      ),
  )
  def test_a_finding_calls_for_it(self, remedy, path, value):
    finding = records.Finding(
        check='x',
        severity='critical',
        text='x',
        remedies=(records.Remedy(**remedy),),
    )
    tools = tuple(n for n in CONFIG.domain.kwargs.tools if n != 'read')
    config = {
        'domain.kwargs.scrubbed': path != 'domain.kwargs.scrubbed',
        'domain.kwargs.tools': tools,
    }
    context = make_context(findings=(finding,), config=config)
    made = rules.propose(context)
    self.assertEqual((made.trigger, made.after.overlay[path]), ('x', value))
    changed = made.delta.changes
    self.assertEqual(repairs.severity([finding], changed), 'critical')
    # It is only for agents; a run on math cannot use it.
    other = propose_test.context(['slow_learning'], findings=(finding,))
    self.assertNotEqual(rules.propose(other).trigger, 'x')


if __name__ == '__main__':
  absltest.main()
