"""Tests for the proposers: rules, random, human."""

import collections
import dataclasses
import functools
import itertools
import json
import math
import os
import pathlib
import signal
import tempfile
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from configs import math as math_config
from evojax import config as config_lib
from evojax import domains
from evojax.diagnosis import rules as diagnosis_rules
from evojax.domains import math as math_domain
from evojax.evolve import diagnose
from evojax.evolve import opening
from evojax.evolve import propose as propose_lib
from evojax.evolve import repairs
from evojax.evolve import skills as skills_lib
from evojax.evolve.propose import agents
from evojax.evolve.propose import changes
from evojax.evolve.propose import directions
from evojax.evolve.propose import human
from evojax.evolve.propose import library
from evojax.evolve.propose import random_changes
from evojax.evolve.propose import remedies
from evojax.evolve.propose import rules
from evojax.evolve.propose import slices
from evojax.evolve.steps import hypothesize
from evojax.harness import admit
from evojax.harness import delta as delta_lib
from evojax.harness import library as shipped
from evojax.harness import run
from evojax.harness import spec
from evojax.harness import surface
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.runtime import config_checks
from evojax.runtime import preemption
from tests.evolve import own_proposer
from tests.ledger import samples

MATH = spec.read(pathlib.Path(math_domain.__file__).parent / 'seed_harness')
SWE = spec.read(domains.folder('swe') / 'seed_harness')
# Without diagnostics, which are not run here, since thousands are made.
SEED = spec.Harness(MATH.overlay, {'reward.py': MATH.files['reward.py']})
CONFIG = math_config.get_config()
SURFACE = surface.recipe()
LEVELS = math_domain.make(**CONFIG.domain.kwargs.to_dict()).levels
# From the least solved family to the most solved one.
SOLVED = {
    family: (i + 0.5) / len(dict(LEVELS))
    for i, family in enumerate(sorted(dict(LEVELS)))
}


def alert(name, level='warn'):
  return records.Measure(name, 'score', '', 1.0, ('>', 0.5), None, level)


@functools.cache
def values(parent):
  """Return flat config values under a harness."""
  return config_lib.flatten(SURFACE.apply(CONFIG, parent.overlay))


def context(alerts=(), history=(), *, parent=SEED, seed=0, **changes):
  config = values(parent) | changes.pop('config', {})
  return propose_lib.Context(
      parent=parent,
      config=config,
      measures=[alert(name) for name in alerts],
      findings=changes.pop('findings', ()),
      history=list(history),
      skills=changes.pop('skills', ()),
      rng=np.random.default_rng(seed),
      domain='math',
      **({'surface': SURFACE, 'levels': LEVELS, 'solved': SOLVED} | changes),
  )


def trial(proposal, status='discard', effect=0.0, error=0.01, parent=None):
  """Return the ledger's trial for a proposal that was tried."""
  measured = effect is not None
  delta = proposal.delta
  return history_lib.Trial(
      index=0,
      number=0,
      seconds={},
      hypothesize=records.Hypothesize(
          trial=0, version='v0', expected=proposal.expected
      ),
      design=records.Design(
          trial=0,
          harness=delta.after,
          delta=records.Delta(
              sha256=delta.sha256,
              factor=delta.factor,
              kind=delta.kind,
              intervention_class=delta.intervention_class,
              before=parent or delta.before,
              changes=delta.changes,
              text='',
          ),
      ),
      verify=records.Verify(
          trial=0,
          version='',
          status=status,
          reasons=(),
          effect=effect,
          low=effect - 2 * error if measured else None,
          high=effect + 2 * error if measured else None,
      ),
  )


def propose_change(overlay, parent=SEED):
  """Return a proposal of one change, as any proposer could make it."""
  after = parent.with_overlay(overlay)
  return propose_lib.Proposal(
      hypothesis='h',
      after=after,
      delta=delta_lib.diff(
          parent, after, SURFACE, context(parent=parent).config
      ),
      expected=(0.0, 0.1),
      criterion='c',
      rollback='r',
      source='s',
      trigger='slow_learning',
  )


def search(alerts, trials, seed=0, keep=lambda n, proposal: False, **kwargs):
  """Return the proposals of a run of `trials` trials, and its history."""
  parent, history, proposals = SEED, [], []
  for n in range(trials):
    made = rules.propose(
        context(alerts, history, parent=parent, seed=1000 * seed + n, **kwargs)
    )
    if made is None:
      break
    kept = keep(n, made)
    proposals.append(made)
    history.append(
        trial(
            made,
            'keep' if kept else 'discard',
            0.05 if kept else -0.01,
            parent=parent.sha256,
        )
    )
    parent = made.after if kept else parent
  return proposals, history


def counts(alerts, history=(), seeds=120, **kwargs):
  """Return how often each class is proposed, over seeds."""
  made = [
      rules.propose(context(alerts, history, seed=seed, **kwargs))
      for seed in range(seeds)
  ]
  return collections.Counter(p.delta.intervention_class for p in made)


REPETITION = """
LAYER = 'behaviour'
UNIT = 'fraction'
WARN = {'repeated_ngrams': ('>', 0.3)}
CALLS_FOR = ('exploration',)


def measure(e):
  return {'repeated_ngrams': 0.4}
"""
FACTORS = {e.change.factor(SURFACE) for e in library.ENTRIES.values()}
PARTS = ('outcome', 'format', 'overlong', 'length')
ALERTS = sorted({t for e in library.ENTRIES.values() for t in e.triggers})


class LibraryTest(parameterized.TestCase):

  @parameterized.named_parameters(
      (name, name, e) for name, e in library.ENTRIES.items()
  )
  def test_entry_makes_the_change_that_it_names(self, name, entry):
    """Applied where it fits: one factor, on the surface, within bounds."""
    needed = {
        'no_kl_penalty': {'grpo.kl_coef': 0.01},
        'no_entropy_bonus': {'grpo.entropy_coef': 0.01},
        'outcome_variance_filter': {'reward.weights.overlong': 0.5},
        'full_limit': {'rollout.token_limit': 32},
        'learning_rate_far_up': {'optim.learning_rate': 1e-6},
    }
    parent = SEED.with_overlay(needed.get(name, {}))
    config = {
        'grpo.epochs': 2,
        'domain.kwargs.partial': True,
        'domain.judge.url': 'http://localhost:1/v1',
        'domain.kwargs.max_turns': 4 if 'episode' in name else 1,
    }
    ctx = context(entry.triggers, parent=parent, config=config)
    after = entry.apply(ctx)
    self.assertIsNotNone(after)
    delta, note = propose_lib.consider(ctx, after)
    self.assertEqual(delta.factor, entry.change.factor(SURFACE))
    self.assertEqual(note, '')
    low, high = entry.expected
    self.assertLess(low, high)
    self.assertGreater(low + high, 0, 'why propose what is expected to harm?')
    self.assertLessEqual(max(-low, high), 0.15)
    self.assertRegex(entry.source, r'arXiv:\d{4}\.\d{5}|\d{4}')
    # On the resulting harness, it has no effect or is a further step.
    config = values(after)
    again = entry.apply(dataclasses.replace(ctx, parent=after, config=config))
    if again is not None:
      self.assertNotEqual(again.sha256, after.sha256)
      SURFACE.check(again.overlay)

  def test_names_and_classes(self):
    # A duplicate name in the source would hide the first entry.
    source = pathlib.Path(library.__file__).read_text()
    self.assertLen(library.ENTRIES, source.count(': Entry('))

  def test_rules_of_the_diagnosis_have_an_answer(self):
    answered = {t for e in agents.ENTRIES.values() for t in e.triggers}
    for name in diagnosis_rules.RULES:
      self.assertIn(name, answered.union(ALERTS))

  def test_every_trigger_is_measured(self):
    """Each is measured by a rule, or by a diagnostic of the seed harness."""
    sources = ''.join(
        text
        for harness in (MATH, SWE)
        for name, text in harness.files.items()
        if 'diagnostics/' in name
    )
    for name in ALERTS:
      known = name in diagnosis_rules.RULES or f"'{name}'" in sources
      self.assertTrue(known, name)

  def test_ratio_changes_need_off_policy_updates(self):
    """With one update per rollout the ratio is 1, so clip bounds do nothing."""
    for entry in library.ENTRIES.values():
      factor = entry.change.factor(SURFACE)
      if factor in ('clip', 'grpo.dual_clip', 'grpo.ratio'):
        self.assertIsNone(entry.apply(context()))

  def test_partial_credit_needs_a_domain_that_gives_it(self):
    entry = library.ENTRIES['partial_credit']
    self.assertIsNone(entry.apply(context()))
    for given in (True, False):
      ctx = context(config={'domain.kwargs.partial': given})
      self.assertEqual(entry.apply(ctx) is not None, given)

  def test_bounds_stop_a_scale(self):
    high = SURFACE.field('optim.learning_rate').high
    change = changes.scale('optim.learning_rate', 3.0).apply
    near = SEED.with_overlay({'optim.learning_rate': high / 2})
    after = change(context(parent=near))
    self.assertEqual(after.overlay['optim.learning_rate'], high)
    self.assertIsNone(change(context(parent=after)))

  def test_halves_of_levels(self):
    spans = {'a': 4, 'b': 3, 'c': 1, 'd': 2}
    levels = [(family, n) for family in spans for n in range(spans[family])]
    ctx = context(levels=levels)
    harder, easier = (
        slices.half_of_levels(hard).apply(ctx).overlay['data.families']
        for hard in (True, False)
    )
    self.assertEqual(harder, ('a:2-3', 'b:2', 'c:0', 'd:1'))
    self.assertEqual(easier, ('a:0-1', 'b:0-1', 'c:0', 'd:0'))
    # The names of a config do not matter, nor do gaps between levels.
    ctx = context(levels=[('a', 0), ('a', 2), ('a', 3), ('a', 5)])
    self.assertEqual(
        slices.half_of_levels(True).apply(ctx).overlay['data.families'],
        ('a:3', 'a:5'),
    )
    for given in ({'levels': ()}, {'levels': [('gcd', 0)], 'solved': {}}):
      self.assertIsNone(slices.half_of_levels(True).apply(context(**given)))

  def test_a_curriculum_by_solve_rate(self):
    """Families of one level each are ordered by what was solved of them."""
    solved = {'a': 0.9, 'b': 0.0, 'c': 0.45, 'd': 0.6, 'e': 0.2}
    levels = [(family, 0) for family in solved]
    ctx = context(levels=levels, solved=solved)
    names = lambda change: change.apply(ctx).overlay['data.families']
    self.assertEqual(names(slices.half_of_levels(True)), ('b:0', 'e:0'))
    self.assertEqual(names(slices.half_of_levels(False)), ('a:0', 'd:0'))
    self.assertEqual(names(slices.middle_families()), ('c:0', 'd:0', 'e:0'))
    # The families left out can be trained instead, and the slice halved.
    easy = SEED.with_overlay({'data.families': ('a:0', 'd:0')})
    ctx = context(levels=levels, solved=solved, parent=easy)
    self.assertEqual(names(slices.other_families()), ('b:0', 'c:0', 'e:0'))
    self.assertEqual(names(slices.half_of_levels(True)), ('d:0',))
    self.assertEqual(
        [value for _, value in slices.neighbours(ctx)],
        [('a:0',), ('d:0',), ('a:0', 'b:0', 'd:0'), ('a:0', 'c:0', 'd:0')],
    )
    # Without rates, the order of the config stands in for them.
    ctx = context(levels=levels, solved={})
    found = [value for _, value in slices.neighbours(ctx)]
    self.assertEqual([len(names) for names in found], [4, 4])
    self.assertIsNone(slices.middle_families().apply(ctx))


class BeliefTest(absltest.TestCase):

  def _trial(self, effect, status='discard', **changes):
    """Return a trial of the learning rate, its delta with these changes."""
    made = propose_change({'optim.learning_rate': 3e-4})
    found = trial(made, status, effect)
    delta = dataclasses.replace(found.delta, **changes)
    design = dataclasses.replace(found.design, delta=delta)
    return dataclasses.replace(found, design=design)

  def test_prior(self):
    belief = rules.believe((-0.02, 0.12), 'optimizer', 'f', [])
    self.assertAlmostEqual(belief.mean, 0.05)
    self.assertAlmostEqual(belief.deviation, 0.07 / 1.6449)
    self.assertEqual(belief.interval(), (-0.02, 0.12))

  def test_hand_worked_posterior(self):
    # Prior N(.05, .0425555^2 = .00181097). Observed -.03, SE .02/1.96 * 1
    # (interval +-.02) = .010204, same factor: noise = .010204^2 + .03^2 =
    # .00100412. Gain = .00181097 / .00281509 = .643308.
    # Mean .05 - .643308 * .08 = -.0014646; variance .00181097 * .356692.
    belief = rules.believe(
        (-0.02, 0.12),
        'optimizer',
        'optim.learning_rate',
        [self._trial(-0.03)],
    )
    self.assertAlmostEqual(belief.mean, -0.0014646, places=6)
    self.assertAlmostEqual(
        belief.deviation, (0.00181097 * 0.356692) ** 0.5, places=6
    )

  def test_the_standard_error_counts_and_not_the_wide_interval(self):
    # After two pairs, an error of 1 point has an interval of +-12.7.
    wide = self._trial(-0.03)
    verify = dataclasses.replace(
        wide.verify, standard_error=0.01, low=-0.157, high=0.097
    )
    found = rules.believe(
        (-0.02, 0.12),
        'optimizer',
        'optim.learning_rate',
        [dataclasses.replace(wide, verify=verify)],
    )
    # As above, with a noise of .01^2 + .03^2 = .001: gain .00181097/.00281097.
    self.assertAlmostEqual(found.mean, 0.05 - 0.0644248 * 0.8, places=4)

  def test_order_does_not_matter(self):
    history = [self._trial(x) for x in (-0.03, 0.05, 0.01)]
    one = rules.believe((-0.02, 0.12), 'optimizer', 'x', history)
    two = rules.believe((-0.02, 0.12), 'optimizer', 'x', history[::-1])
    self.assertAlmostEqual(one.mean, two.mean)
    self.assertAlmostEqual(one.deviation, two.deviation)

  def test_another_factor_tells_less_and_another_class_nothing(self):
    args = ((-0.02, 0.12), 'optimizer', 'optim.learning_rate')
    prior = rules.believe(*args, [])
    same = rules.believe(*args, [self._trial(-0.1)])
    near = rules.believe(
        *args, [self._trial(-0.1, factor='optim.warmup_steps')]
    )
    far = rules.believe(*args, [self._trial(-0.1, intervention_class='reward')])
    self.assertLess(same.mean, near.mean)
    self.assertLess(near.mean, prior.mean)
    self.assertEqual(far, prior)

  def test_a_crash_is_no_effect_of_zero(self):
    crash = self._trial(None, status='crash')
    args = ((-0.02, 0.12), 'optimizer', 'optim.learning_rate')
    self.assertEqual(rules.believe(*args, [crash]), rules.believe(*args, []))


class RulesTest(parameterized.TestCase):

  def test_only_what_an_alert_calls_for(self):
    for name in ALERTS:
      for seed in range(6):
        made = rules.propose(context([name], seed=seed))
        if made is None or not made.trigger:
          continue  # Nothing that it calls for applies to the seed.
        self.assertEqual(made.trigger, name)
        known = itertools.chain(
            library.ENTRIES.values(), directions.entries(context())
        )
        entries = [
            e
            for e in known
            if e.change.factor(SURFACE) == made.delta.factor
            and name in e.triggers
        ]
        self.assertNotEmpty(entries)

  def test_the_worst_alert_is_the_trigger(self):
    ctx = context(['truncated', 'slow_learning'])
    critical = alert('truncated', 'critical')
    ctx = dataclasses.replace(ctx, measures=[alert('slow_learning'), critical])
    for seed in range(50):
      made = rules.propose(
          dataclasses.replace(ctx, rng=np.random.default_rng(seed))
      )
      if made.delta.factor == 'grpo.aggregation':
        self.assertEqual(made.trigger, 'truncated')
        return
    self.fail('aggregation was never proposed')

  def test_failed_and_quiet_measures_call_for_nothing(self):
    quiet = [alert('truncated', 'ok'), alert('format_failures', 'failed')]
    ctx = dataclasses.replace(context(), measures=quiet)
    self.assertEqual(rules.propose(ctx).trigger, '')

  def test_a_parent_that_has_no_place(self):
    """The remaining proposals are made; for shipped parts and files."""
    text = MATH.files['reward.py'].replace(
        '\n\ndef parts', '\n\nA = 1.0; B = 2.0\n\n\ndef parts'
    )
    text = text.replace('return {', "return {'mine': A * B * e.outcome, ")
    parent = SEED.with_file('reward.py', text)
    for i in range(spec.MAX_FILES - 1):
      parent = parent.with_file(f'backtests/b{i}.py', '')
    for ctx in (context(ALERTS, parent=parent), context(parent=parent)):
      made = rules.propose(ctx)
      self.assertEqual(set(made.after.files), set(parent.files))
      self.assertIsNotNone(random_changes.propose(ctx))
    for entry in library.ENTRIES.values():
      entry.apply(context(parent=parent))

  def test_a_found_diagnostic_calls_for_a_class(self):
    """The alert's name is in no intervention; its own file declares it."""
    parent = SEED.with_file('diagnostics/repetition.py', REPETITION)
    meta = run.Functions(parent).meta('repetition')
    measures = diagnose.graded(meta, {'repeated_ngrams': 0.4})
    self.assertEqual([m.calls_for for m in measures], [('exploration',)])
    proposed = set()
    for seed in range(30):
      ctx = context(['slow_learning'], parent=parent, seed=seed)
      # First the found alert alone, then as the worst of two.
      made = rules.propose(dataclasses.replace(ctx, measures=measures))
      self.assertEqual(made.delta.intervention_class, 'exploration')
      self.assertEqual(made.trigger, 'repeated_ngrams')
      critical = [dataclasses.replace(m, level='critical') for m in measures]
      both = dataclasses.replace(ctx, measures=[*ctx.measures, *critical])
      proposed.add(rules.propose(both).trigger)
    self.assertEqual(proposed, {'repeated_ngrams', 'slow_learning'})
    quiet = [dataclasses.replace(m, level='ok') for m in measures]
    made = rules.propose(dataclasses.replace(ctx, measures=quiet))
    self.assertEqual(made.trigger, '')

  def test_every_class_that_trains_has_an_intervention(self):
    answered = {delta_lib.class_of(f, SURFACE) for f in FACTORS}
    self.assertEqual(
        delta_lib.intervention_classes(SURFACE) - answered,
        # Nothing in the library decays weights; the class has kl_coef as well.
        set(),
    )

  def test_same_context_same_proposal(self):
    for seed in range(5):
      one = rules.propose(context(['slow_learning'], seed=seed))
      two = rules.propose(context(['slow_learning'], seed=seed))
      self.assertEqual(one, two)

  def test_complete_proposal(self):
    made = rules.propose(context(['slow_learning']))
    self.assertEqual(made.delta.before, SEED.sha256)
    self.assertEqual(made.delta.after, made.after.sha256)
    self.assertLess(*made.expected)
    for text in (made.hypothesis, made.criterion, made.rollback, made.source):
      self.assertGreater(len(text), 10)

  @parameterized.parameters(
      (('slow_learning',),),
      (('slow_learning', 'format_bottleneck'),),
      (('slow_learning', 'dead_group_ratio', 'weak_signal'),),
      (('slow_learning', 'mean_logprob', 'exploration_collapse'),),
      (('slow_learning', 'truncated', 'length_gaming'),),
  )
  def test_four_trials_of_three_classes_whatever_comes_out(self, alerts):
    outcomes = {
        'all fail': lambda n, made: False,
        'all hold': lambda n, made: True,
        'the optimizer holds': lambda n, made: made.delta.intervention_class
        == 'optimizer',
        'the first holds': lambda n, made: n == 0,
    }
    for name, keep in outcomes.items():
      for seed in range(6):
        proposals, _ = search(alerts, 4, seed=seed, keep=keep)
        with self.subTest(name, seed=seed):
          self.assertLen(proposals, 4)
          self.assertTrue(all(p.trigger in alerts for p in proposals))
          classes = {p.delta.intervention_class for p in proposals}
          self.assertGreaterEqual(len(classes), 3)

  def test_never_the_same_delta_twice_on_one_parent(self):
    for seed in range(2):
      proposals, _ = search(['slow_learning', 'too_hard'], 25, seed=seed)
      deltas = [p.delta.sha256 for p in proposals]
      self.assertLen(set(deltas), len(deltas))
      self.assertGreater(len(deltas), 8)
      self.assertTrue(all(p.note == '' for p in proposals))

  def test_again_on_another_parent_only_with_a_note(self):
    rate = propose_change({'optim.learning_rate': 3e-4})
    parent = SEED.with_overlay({'grpo.aggregation': 'token'})
    history = [trial(rate, effect=-0.004)]
    for seed in range(200):
      made = rules.propose(
          context(['slow_learning'], history, parent=parent, seed=seed)
      )
      if made.delta.sha256 == rate.delta.sha256:
        self.assertIn(SEED.sha256[:12], made.note)
        self.assertIn('discard, -0.4 points', made.note)
        return
    self.fail('never tried again')

  def test_never_back_to_an_ancestor(self):
    """A kept change is not undone, in one step or over several."""
    one = propose_change({'optim.learning_rate': 2e-4})
    two = propose_change({'optim.learning_rate': 4e-4}, one.after)
    history = [trial(one, 'keep', 0.05), trial(two, 'keep', 0.05)]
    ctx = context((), history, parent=two.after)
    for value in (1e-4, 2e-4, 1.001e-4):
      after = two.after.with_overlay({'optim.learning_rate': value})
      with self.assertRaisesRegex(propose_lib.ProposalError, 'lead back'):
        propose_lib.consider(ctx, after)
    propose_lib.consider(
        ctx, two.after.with_overlay({'optim.learning_rate': 3e-4})
    )
    # After another kept change, the old value gives a new harness.
    token = propose_change({'grpo.aggregation': 'token'}, two.after)
    history.append(trial(token, 'keep', 0.05))
    ctx = context((), history, parent=token.after)
    propose_lib.consider(
        ctx, token.after.with_overlay({'optim.learning_rate': 2e-4})
    )

  def test_a_class_that_failed_is_less_likely(self):
    alerts = ['slow_learning', 'format_failures']
    rate = propose_change({'optim.learning_rate': 3e-4})
    before = counts(alerts)['optimizer']
    # The class is tried at its next value. The exploration share does not
    # exclude it: one of two trials may repeat a class.
    after = counts(alerts, [trial(rate, effect=-0.05)])['optimizer']
    self.assertLess(after, 0.5 * before)

  def test_a_class_that_crashed_is_less_likely(self):
    """Also for other changes of the class: its only trial did not run."""
    alerts = ['slow_learning', 'format_failures']
    crash = trial(propose_change({'optim.warmup_steps': 5}), 'crash', None)
    before = counts(alerts)['optimizer']
    self.assertLess(counts(alerts, [crash])['optimizer'], 0.75 * before)

  def test_a_class_that_held_is_pushed_further(self):
    alerts = ['slow_learning', 'format_failures']
    rate = propose_change({'optim.learning_rate': 3e-4})
    held = [trial(rate, 'keep', 0.12)]
    found = counts(alerts, held, parent=rate.after)
    self.assertGreater(found['optimizer'], found['loss'])
    for seed in range(50):
      made = rules.propose(context(alerts, held, parent=rate.after, seed=seed))
      if made.delta.factor == 'optim.learning_rate':
        self.assertEqual(made.after.overlay['optim.learning_rate'], 9e-4)
        return
    self.fail('the rate was not pushed')

  def test_what_lost_lowers_the_expectation(self):
    entry = library.ENTRIES['learning_rate_down']
    history = [trial(propose_change({'optim.warmup_steps': 5}), effect=-0.06)]
    for seed in range(300):
      made = rules.propose(context(['outcome_falling'], history, seed=seed))
      if made.delta.factor == 'optim.learning_rate':
        self.assertLess(sum(made.expected), sum(entry.expected))
        return
    self.fail('the rate was not lowered')

  def test_vetoes_are_honoured(self):
    rate = propose_change({'optim.learning_rate': 3e-4})
    for veto in ('optim.learning_rate', rate.delta.sha256):
      for seed in range(40):
        made = rules.propose(
            context(['slow_learning'], seed=seed, vetoes=frozenset([veto]))
        )
        self.assertNotEqual(made.delta.sha256, rate.delta.sha256)

  def test_nothing_left(self):
    every = set(SURFACE.factors()) | {'keep', 'weight'}
    every |= FACTORS | {f'reward:{part}' for part in PARTS}
    ctx = context(['slow_learning'], vetoes=frozenset(every))
    self.assertIsNone(rules.propose(ctx))

  def test_a_surface_that_is_partitioned(self):
    """Only one field may be changed; changes of others are refused."""
    only = SURFACE.field('grpo.aggregation')

    class Part(surface.Surface):

      def check(self, overlay):
        strange = set(overlay) - {only.path, 'reward.weights.outcome'}
        if strange:
          raise surface.SurfaceError(f'{strange} is not ours')

    for seed in range(10):
      made = rules.propose(
          context(
              ['slow_learning'],
              seed=seed,
              surface=Part(SURFACE.fields),
              # A file, which is not a field, and other possible changes.
              vetoes=frozenset({'keep', 'reward:outcome'}),
          )
      )
      self.assertEqual(made.delta.factor, only.path)


_KEEP = shipped.source('keep/middle_difficulty.py')


class FindingsTest(parameterized.TestCase):

  def _finding(self, *remedies, check='a_check', severity='warning'):
    return records.Finding(
        check=check,
        severity=severity,
        text='it is broken',
        remedies=tuple(records.Remedy(**fields) for fields in remedies),
    )

  def _proposed(self, *found, history=(), **changed):
    return rules.propose(
        context(['slow_learning'], history, findings=found, **changed)
    )

  @parameterized.parameters(
      (dict(setting='temperature', value=1.0), {'rollout.temperature': 3.0},
       'rollout.temperature', 1.0),
      (dict(setting='learning_rate', times=1 / 3), {},
       'optim.learning_rate', 3.33e-5),
      (dict(setting='max_tokens', times=2.0), {'rollout.token_limit': 10},
       'rollout.token_limit', 0),
      (dict(setting='data'), {'data.families': ('gcd:0',)},
       'data.families', ()),
      (dict(setting='weight', part='outcome', value=2.0), {},
       'reward.weights.outcome', 2.0),
      (dict(setting='optim.weight_decay', value=0.0),
       {'optim.weight_decay': 100.0}, 'optim.weight_decay', 0.0),
  )  # fmt: skip
  def test_a_remedy(self, remedy, config, path, value):
    found = self._finding(remedy)
    made = self._proposed(found, config=config)
    self.assertEqual(made.trigger, 'a_check')
    self.assertEqual(made.after.overlay[path], value)
    self.assertEqual(self._severity(found, made.delta.changes), 'warning')

  def _severity(self, found, changes):
    """The severity of the finding that a change of values repairs."""
    delta = samples.record(records.Delta, changes=changes)
    made = history_lib.Trial(
        index=0,
        number=0,
        seconds={},
        diagnose=samples.record(records.Diagnose, findings=(found,)),
        design=samples.record(records.Design, delta=delta),
    )
    later = samples.record(records.Diagnose, round=2, findings=(found,))
    none = samples.record(records.Diagnose, round=0, findings=())
    raced = samples.record(records.Race, round=1)
    after = dataclasses.replace(
        made, diagnose=none, later=(later,), races=(raced,)
    )
    worst = repairs.severity_of(made)
    # The same if it is found only while the change is raced.
    self.assertEqual(repairs.severity_of(after), worst)
    self.assertEqual(repairs.severity_of(after, before=2), '')
    self.assertEqual(repairs.severity_of(after, before=3), worst)
    due = [repairs.is_due(after, number) for number in (1, 2, 3)]
    self.assertEqual(due, [False, worst == 'critical', False])
    # If it waited until then, it is due in its first round.
    waited = dataclasses.replace(after, races=())
    self.assertEqual(repairs.is_due(waited, 3), worst == 'critical')
    return worst

  @parameterized.parameters(
      (('reward.weights.length', -2.0, 0.0), 'critical'),
      (('reward.weights.length', -2.0, -1.0), ''),
      (('reward.weights.format', 0.5, 0.0), ''),
      (('optim.learning_rate', 1e-4, 5e-5), 'critical'),
      (('optim.learning_rate', 1e-4, 2e-4), ''),
      # Next to nothing loses nothing, and repairs nothing.
      (('optim.learning_rate', 1e-4, 9.5e-5), ''),
      (('optim.learning_rate', 1e-4, 7e-5), ''),
      (('optim.learning_rate', 1.2e-6, 1e-6), 'critical'),  # At its bound.
      (('optim.learning_rate', 1.02e-6, 1e-6), ''),
      (('reward.py', 'ab12', 'changed'), ''),
  )
  def test_what_is_changed_counts_and_not_what_is_said(self, change, expected):
    found = self._finding(
        dict(setting='weight', part='length', value=0.0),
        dict(setting='learning_rate', times=1 / 3),
        dict(setting='reward_code'),
        severity='critical',
    )
    self.assertEqual(self._severity(found, (change,)), expected)

  def test_functions_go_back_to_the_domains_own(self):
    right = 'e.outcome.astype(np.float32)'
    wrong = MATH.files['reward.py'].replace(right, f'-{right}')
    parent = spec.Harness(MATH.overlay, {'reward.py': wrong, 'keep.py': _KEEP})
    made = self._proposed(
        self._finding({'setting': 'reward_code'}), parent=parent
    )
    self.assertEqual(made.after.files['reward.py'], MATH.files['reward.py'])
    made = self._proposed(
        self._finding({'setting': 'filter_code'}), parent=parent
    )
    self.assertEqual(set(made.after.files), {'reward.py'})
    # The weight of a part that it lacks is removed with it.
    other = "{'progress': e.outcome.astype(np.float32), 'outcome':"
    wrong = MATH.files['reward.py'].replace("{\n      'outcome':", other)
    self.assertIn('progress', wrong)
    overlay = {**MATH.overlay, 'reward.weights.progress': 1.0}
    made = self._proposed(
        self._finding({'setting': 'reward_code'}),
        parent=spec.Harness(overlay, {'reward.py': wrong}),
    )
    self.assertEqual(made.trigger, 'a_check')
    self.assertEqual(made.after.overlay, MATH.overlay)
    # The domain's own reward code is not a remedy.
    made = self._proposed(self._finding({'setting': 'reward_code'}))
    self.assertNotEqual(made.trigger, 'a_check')

  def test_the_next_where_one_was_tried(self):
    first, second = (
        self._finding(dict(setting='learning_rate', times=t), check=name)
        for name, t in (('first', 0.5), ('second', 0.25))
    )
    made = self._proposed(first, second)
    self.assertEqual(made.trigger, 'first')
    made = self._proposed(first, second, history=[trial(made)])
    self.assertEqual(made.trigger, 'second')

  def test_again_as_the_repair_of_a_critical_fault(self):
    remedy = dict(setting='learning_rate', times=0.5)
    first = self._finding(remedy)
    made = self._proposed(first)
    tried = lambda severity, effect=-0.004: dataclasses.replace(
        trial(made, effect=effect),
        diagnose=samples.record(
            records.Diagnose,
            findings=(self._finding(remedy, severity=severity),),
        ),
        design=samples.record(
            records.Design,
            delta=samples.record(
                records.Delta,
                changes=made.delta.changes,
                sha256=made.delta.sha256,
                before=made.delta.before,
            ),
        ),
    )
    critical = self._finding(remedy, severity='critical')
    again = self._proposed(critical, history=[tried('warning')])
    self.assertEqual(again.delta.sha256, made.delta.sha256)
    self.assertIn('now it repairs a critical fault', again.note)
    # It is tried once as a warning's remedy, and once as a critical one's.
    for finding, severity in ((first, 'warning'), (critical, 'critical')):
      other = self._proposed(finding, history=[tried(severity)])
      self.assertNotEqual(other.delta.sha256, made.delta.sha256)
    # If it gained, but did not exclude a loss, it has a second trial, no third.
    gained = tried('critical', effect=0.035)
    again = self._proposed(critical, history=[gained])
    self.assertEqual(again.delta.sha256, made.delta.sha256)
    self.assertIn('+3.5 points); the fault that it repairs is', again.note)
    for finding, history in ((critical, [gained] * 2), (first, [gained])):
      other = self._proposed(finding, history=history)
      self.assertNotEqual(other.delta.sha256, made.delta.sha256)

  @parameterized.parameters(
      ('it is broken', 'It is broken.'),
      ('optim.weight_decay is 100', 'optim.weight_decay is 100.'),
      ('55% are cut', '55% are cut.'),
  )
  def test_a_hypothesis_is_a_sentence(self, text, wanted):
    found = self._finding(dict(setting='learning_rate', times=0.5))
    made = self._proposed(dataclasses.replace(found, text=text))
    self.assertEqual(made.hypothesis, wanted)

  def test_nothing_beside_the_remedy_of_what_is_critical(self):
    found = self._finding(
        dict(setting='learning_rate', times=0.5), severity='critical'
    )
    tried = trial(self._proposed(found))
    hypothesis = dataclasses.replace(tried.hypothesize, trigger='a_check')
    racing = dataclasses.replace(tried, hypothesize=hypothesis, verify=None)
    self.assertIsNone(self._proposed(found, history=[racing]))
    self.assertIsNotNone(self._proposed(found, history=[tried]))
    # Also if it entered because of something else.
    hypothesis = dataclasses.replace(hypothesis, trigger='a_warning')
    racing = dataclasses.replace(racing, hypothesize=hypothesis)
    self.assertIsNone(self._proposed(found, history=[racing]))

  def test_what_no_harness_may_change(self):
    found = self._finding(
        dict(setting='optim.eps', value=1e-8), dict(setting='keep.py')
    )
    self.assertNotEqual(self._proposed(found).trigger, 'a_check')
    (outside,) = remedies.outside(SURFACE, found)
    self.assertEqual(repairs.path_of(outside), 'optim.eps')

  def test_what_is_beyond_repair(self):
    inside = self._finding(dict(setting='learning_rate'), severity='critical')
    grader = self._finding(dict(setting='grader'), severity='critical')
    either = self._finding(
        dict(setting='optim.eps', value=1e-8),
        dict(setting='keep.py'),
        severity='critical',
    )
    unknown = self._finding(severity='critical')
    minor = self._finding(dict(setting='grader'), severity='warning')
    for found, wanted in (
        ([], False),
        ([grader], True),
        ([grader, unknown, minor], True),
        ([minor], False),
        ([unknown], False),
        ([either], False),
        ([grader, inside], False),
    ):
      self.assertIs(remedies.is_beyond_repair(SURFACE, found), wanted, found)
    diagnosis = mock.Mock(spec=records.Diagnose, findings=[grader])
    for ends in (True, False):
      config = math_config.get_config()
      config.evolve.end_at_fault = ends
      evolving = mock.Mock(
          spec=opening.Run, config=config, setup=mock.Mock(surface=SURFACE)
      )
      self.assertIs(hypothesize.ends_run(evolving, diagnosis), ends)


class WorthTryingTest(parameterized.TestCase):

  def test_rules_propose_only_what_is_worth_its_test(self):
    alerts = ['slow_learning', 'exploration_collapse']
    wanted = rules.propose(context(alerts)).delta.factor
    asked = []

    def only_one(delta, expected):
      asked.append((delta.factor, expected))
      return delta.factor == wanted

    for seed in range(5):
      found = rules.propose(
          context(alerts, seed=seed, is_worth_trying=only_one)
      )
      self.assertEqual(found.delta.factor, wanted)
      # It is asked with the effect that the proposal then states.
      self.assertIn((wanted, found.expected), asked)
    self.assertGreater(len(dict(asked)), 3)
    nothing = context(alerts, is_worth_trying=lambda *_: False)
    self.assertIsNone(rules.propose(nothing))

  def _hypothesize(self, proposer, *, worth, only=()):
    """Return the row of a proposer's answer, if tests are worth it or not."""
    patch = lambda *args: self.enterContext(mock.patch.object(*args))
    patch(hypothesize.skills_lib, 'read_all', lambda *_: [])
    patch(hypothesize.recorded, 'solved_by_family', lambda *_: SOLVED)
    patch(hypothesize.human, 'vetoes', lambda *_: frozenset())
    patch(hypothesize.human, 'propose', lambda *_: None)
    patch(hypothesize.arms, 'seed_of', lambda *_: 0)
    patch(hypothesize.prospects, 'is_worth_trying', worth)
    patch(hypothesize.prospects, 'least_chance', lambda *_: 0.84)
    patch(propose_lib, 'load', lambda _: proposer)
    evolving = mock.MagicMock(spec=opening.Run)
    evolving.configure_mock(
        config=CONFIG,
        path=pathlib.Path('run'),
        setup=mock.MagicMock(surface=SURFACE),
        harnesses=mock.MagicMock(),
        recorder=mock.MagicMock(),
    )
    evolving.harnesses.load.return_value = SEED
    evolving.harnesses.values.return_value = values(SEED)
    evolving.setup.domain.levels = LEVELS
    evolving.recorder.history.trials = []
    diagnosis = samples.record(
        records.Diagnose, trial=4, round=2, measures=(), findings=()
    )
    version = samples.record(records.Version, folder='', harness='aa')
    return hypothesize.hypothesize(evolving, diagnosis, version, only, 'waits')

  def test_a_change_that_is_not_worth_its_test_is_not_taken(self):
    found = lambda context: dataclasses.replace(
        rules.propose(
            dataclasses.replace(context, is_worth_trying=lambda *_: True)
        ),
        proposer='own',
    )
    asked = []

    def worth(run_, number, findings, delta, expected):
      asked.append((number, delta.factor))
      return bool(yes)

    yes = True
    row = self._hypothesize(found, worth=worth)
    self.assertEqual((row.proposer, row.note), ('own', ''))
    yes = False
    row = self._hypothesize(found, worth=worth)
    self.assertEqual(row.proposer, '')
    self.assertIn('none of 1 change is expected to prove a gain', row.note)
    self.assertIn('well above 0.84', row.note)
    self.assertEqual({number for number, _ in asked}, {2})

  def test_while_only_repairs_are_taken_nothing_is_weighed(self):
    def worth(*_):
      raise AssertionError('the round has no entry for it')

    row = self._hypothesize(rules.propose, worth=worth, only=('critical',))
    self.assertEqual((row.proposer, row.note), ('', 'waits'))


class StopTest(absltest.TestCase):

  def test_a_signal_ends_a_slow_proposer(self):
    def slow(context):
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(30)

    patch = lambda *args: self.enterContext(mock.patch.object(*args))
    for module, name in (
        (propose_lib, 'Context'),
        (hypothesize.skills_lib, 'read_all'),
        (hypothesize.recorded, 'solved_by_family'),
        (hypothesize.human, 'vetoes'),
    ):
      patch(module, name)
    patch(hypothesize.arms, 'seed_of', lambda *_: 0)
    patch(hypothesize.human, 'propose', lambda *_: None)
    patch(hypothesize.search, 'propose', lambda *_: None)
    patch(propose_lib, 'load', lambda _: slow)
    began = time.monotonic()
    evolving = mock.MagicMock(spec=opening.Run)
    evolving.configure_mock(
        config=math_config.get_config(),
        path=pathlib.Path('run'),
        setup=mock.MagicMock(surface=SURFACE),
        **dict.fromkeys(('harnesses', 'recorder'), mock.MagicMock()),
    )
    diagnosis = mock.MagicMock(
        spec=records.Diagnose, findings=[], measures=[], trial=0
    )
    version = mock.MagicMock(spec=records.Version, folder='', harness='')
    with preemption.stop_flag() as asked:
      with self.assertRaises(preemption.Interrupted):
        hypothesize.hypothesize(evolving, diagnosis, version, (), '')
      self.assertEqual(asked, [signal.SIGTERM])
    self.assertLess(time.monotonic() - began, 10)


class MutationTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # Other entries would propose values of the same fields.
    self.enterContext(
        mock.patch.object(directions, 'entries', lambda context: [])
    )

  def _values(self, history, path, parent=SEED, seeds=30, alerts=()):
    """Return the proposed values of a path, with everything else vetoed."""
    alerts = alerts or ('slow_learning', 'exploration_collapse')
    others = FACTORS - {path}
    found = set()
    for seed in range(seeds):
      made = rules.propose(
          context(
              alerts,
              history,
              parent=parent,
              seed=seed,
              vetoes=frozenset(others),
          )
      )
      if made and made.trigger:
        found.add(made.after.overlay[path])
    return found

  def test_half_the_step_where_it_lost(self):
    # 1e-4 -> 3e-4 lost: the logarithmic middle is sqrt(3) e-4.
    rate = propose_change({'optim.learning_rate': 3e-4})
    self.assertEqual(
        self._values([trial(rate, effect=-0.01)], 'optim.learning_rate'),
        {1.73e-4},
    )

  def test_twice_the_step_where_it_gained_too_little(self):
    rate = propose_change({'optim.learning_rate': 2e-4})
    found = self._values([trial(rate, effect=0.01)], 'optim.learning_rate')
    self.assertIn(4e-4, found)  # Twice the logarithmic step.
    self.assertNotIn(2e-4, found)

  def test_the_other_way_where_two_steps_lost(self):
    big = propose_change({'optim.learning_rate': 3e-4})
    small = propose_change({'optim.learning_rate': 1.73e-4})
    history = [trial(big, effect=-0.01), trial(small, effect=-0.01)]
    self.assertEqual(self._values(history, 'optim.learning_rate'), {5.78e-5})

  def test_nothing_is_learned_from_what_was_refused(self):
    rate = propose_change({'optim.learning_rate': 3e-4})
    refused = trial(rate, 'disqualified', None)
    self.assertEqual(self._values([refused], 'optim.learning_rate'), set())

  def test_nothing_is_learned_from_what_waits_or_races(self):
    big = trial(propose_change({'optim.learning_rate': 3e-4}), effect=-0.01)
    small = trial(propose_change({'optim.learning_rate': 1.73e-4}))
    waiting = dataclasses.replace(small, verify=None)
    found = lambda *history: self._values(history, 'optim.learning_rate')
    self.assertEqual(found(waiting), {3e-4})  # The library's, and no half step.
    self.assertEqual(found(big, waiting), set())
    # One step has lost, and half of it waits: the direction stays.
    self.assertEqual(found(waiting, big), set())

  def test_a_class_that_waits_has_not_failed(self):
    made = propose_change({'optim.learning_rate': 3e-4})
    waiting = dataclasses.replace(trial(made), verify=None)
    crashed = trial(made, 'crash', None)
    idea = next(iter(library.ENTRIES.values()))
    member = rules._Candidate(made.delta, made.after, '', idea)
    drawn = lambda history: [
        rules._sample_class(
            context(history=history, seed=seed), 'optimizer', [member]
        )
        for seed in range(40)
    ]
    lost = lambda history: sum(map(math.isinf, drawn(history)))
    self.assertEqual((lost([]), lost([waiting])), (0, 0))
    self.assertGreater(lost([crashed]), 5)

  def test_linear_steps(self):
    hot = propose_change({'rollout.temperature': 1.2})
    self.assertEqual(
        self._values([trial(hot, effect=-0.01)], 'rollout.temperature'), {1.1}
    )

  def test_no_further_than_where_the_value_ends(self):
    # 0 (off) -> 40 lost: half the step is 20; twice the step would be 80, and
    # 64 is the shape.
    limit = propose_change({'rollout.token_limit': 40})
    values = lambda effect: self._values(
        [trial(limit, effect=effect)],
        'rollout.token_limit',
        alerts=('truncated',),  # Its own entry has nothing to undo here.
    )
    self.assertEqual(values(-0.01), {20})
    self.assertEqual(values(0.01), {64})

  def test_no_further_than_off(self):
    parent = SEED.with_overlay({'rollout.token_limit': 40})
    lifted = propose_change({'rollout.token_limit': 0}, parent=parent)
    found = self._values(
        [trial(lifted, 'keep', 0.05)],
        'rollout.token_limit',
        parent=lifted.after,
        alerts=('truncated',),
    )
    self.assertEqual(found, set())

  def test_within_bounds(self):
    """A kept step that would leave the surface ends at its bound."""
    high = SURFACE.field('rollout.temperature').high
    hot = propose_change({'rollout.temperature': 1.4})
    found = self._values(
        [trial(hot, 'keep', 0.05)], 'rollout.temperature', parent=hot.after
    )
    self.assertContainsSubset({high}, found)
    self.assertLessEqual(max(found), high)

  def test_no_mutation_without_an_alert_for_its_factor(self):
    hot = propose_change({'rollout.temperature': 1.2})
    history = [trial(hot, effect=0.03)]  # Promising: twice the step is next.
    factors = {
        rules.propose(
            context(['slow_learning'], history, seed=seed)
        ).delta.factor
        for seed in range(60)
    }
    self.assertNotIn('rollout.temperature', factors)

  def test_every_proposal_of_long_runs_is_on_the_surface(self):
    for seed in range(2):
      coin = np.random.default_rng(seed)
      proposals, _ = search(
          ALERTS,
          30,
          seed=seed,
          keep=lambda n, made, coin=coin: coin.random() < 0.5,
      )
      self.assertGreater(len(proposals), 15)
      for made in proposals:
        SURFACE.check(made.after.overlay)


class SkillTest(absltest.TestCase):

  def _skill(self, overlay, trigger, low=0.02, domain='math'):
    made = propose_change(overlay)
    evidence = skills_lib.Evidence(
        'first', 3, domain, SEED.sha256, low + 0.01, low, low + 0.02
    )
    return skills_lib.learned(
        made.delta,
        made.after,
        context().config,
        SURFACE,
        trigger=trigger,
        hypothesis='It held.',
        evidence=evidence,
    )

  def test_first_and_cited(self):
    skill = self._skill({'rollout.temperature': 0.8}, 'truncated')
    for seed in range(20):
      made = rules.propose(
          context(['slow_learning', 'truncated'], seed=seed, skills=(skill,))
      )
      self.assertEqual(made.skill, skill.sha256)
      self.assertEqual(made.trigger, 'truncated')
      self.assertEqual(made.after.overlay['rollout.temperature'], 0.8)
      self.assertEqual(made.expected, skill.expected)
      self.assertIn('first, trial 3', made.source)

  def test_only_where_its_trigger_fires_in_its_domain(self):
    quiet = self._skill({'rollout.temperature': 0.8}, 'too_easy')
    foreign = self._skill({'rollout.temperature': 0.9}, 'truncated', domain='x')
    made = rules.propose(context(['truncated'], skills=(quiet, foreign)))
    self.assertEqual(made.skill, '')

  def test_once_in_a_run(self):
    """A skill's success elsewhere counts once; then this run decides."""
    skill = self._skill({'optim.learning_rate': 3e-4}, 'slow_learning')
    first = rules.propose(context(['slow_learning'], skills=(skill,)))
    self.assertEqual(first.skill, skill.sha256)
    for status, effect in (('keep', 0.05), ('discard', -0.01), ('crash', None)):
      parent = first.after if status == 'keep' else SEED
      made = rules.propose(
          context(
              ['slow_learning'],
              [trial(first, status, effect)],
              parent=parent,
              skills=(skill,),
          )
      )
      self.assertEqual(made.skill, '')

  def test_vetoed_skill(self):
    skill = self._skill({'optim.learning_rate': 3e-4}, 'slow_learning')
    made = rules.propose(
        context(
            ['slow_learning'],
            skills=(skill,),
            vetoes=frozenset(['optim.learning_rate']),
        )
    )
    self.assertNotEqual(made.delta.factor, 'optim.learning_rate')

  def test_second_run_reaches_the_harness_in_fewer_trials(self):
    goal = SEED.with_overlay(
        {
            'optim.learning_rate': 3e-4,
            'grpo.keep': 'reward_variance',
            'grpo.refill_rounds': 1,
        }
    )
    good = ('optim.learning_rate', 'filter')
    library_of_first = (
        self._skill({'optim.learning_rate': 3e-4}, 'slow_learning', 0.03),
        self._skill(
            {'grpo.keep': 'reward_variance', 'grpo.refill_rounds': 1},
            'slow_learning',
        ),
    )
    needed = {}
    for name, skills in (('first', ()), ('second', library_of_first)):
      needed[name] = []
      for seed in range(20):
        parent, history = SEED, []
        while parent != goal and len(history) < 30:
          made = rules.propose(
              context(
                  ['slow_learning', 'format_failures'],
                  history,
                  parent=parent,
                  seed=100 * seed + len(history),
                  skills=skills,
              )
          )
          kept = made.delta.factor in good and all(
              goal.overlay.get(p) == v for p, _, v in made.delta.changes
          )
          history.append(
              trial(
                  made,
                  'keep' if kept else 'discard',
                  0.05 if kept else -0.01,
                  parent=parent.sha256,
              )
          )
          parent = made.after if kept else parent
        needed[name].append(len(history))
    self.assertEqual(needed['second'], [2] * 20)
    self.assertGreater(np.mean(needed['first']), 2.5)


class RandomTest(absltest.TestCase):

  def test_every_factor_within_bounds(self):
    factors = collections.Counter()
    for seed in range(400):
      made = random_changes.propose(context(seed=seed))
      SURFACE.check(made.after.overlay)
      config_checks.validate(SURFACE.apply(CONFIG, made.after.overlay))
      factors[made.delta.factor] += 1
    wanted = set(SURFACE.factors())
    wanted |= {f'reward:{p}' for p in ('outcome', 'format', 'overlong')}
    self.assertContainsSubset(wanted, factors)
    # Uniform over factors: 400 / 17 = 24 each, with deviations of about 5.
    self.assertLess(max(factors.values()), 50)

  def test_rates_are_uniform_in_the_logarithm(self):
    """The median of log-uniform on [1e-6, 3e-3] is 5.5e-5, not 1.5e-3."""
    rates = []
    for seed in range(800):
      made = random_changes.propose(context(seed=seed))
      if made.delta.factor == 'optim.learning_rate':
        rates.append(made.after.overlay['optim.learning_rate'])
    self.assertBetween(float(np.median(rates)), 1.5e-5, 2e-4)

  def test_ignores_alerts_and_repeats_nothing(self):
    one = random_changes.propose(context(seed=3))
    self.assertEqual(
        one,
        dataclasses.replace(random_changes.propose(context(ALERTS, seed=3))),
    )
    self.assertEqual(one.trigger, '')
    again = random_changes.propose(context(seed=3, history=[trial(one)]))
    self.assertNotEqual(again.delta.sha256, one.delta.sha256)

  def test_vetoes_are_honoured(self):
    vetoes = frozenset(SURFACE.factors())
    for seed in range(20):
      made = random_changes.propose(context(seed=seed, vetoes=vetoes))
      self.assertStartsWith(made.delta.factor, 'reward:')

  def test_no_families(self):
    for seed in range(60):
      ctx = context(seed=seed)
      config = dict(ctx.config)
      del config['domain.kwargs.families']
      made = random_changes.propose(dataclasses.replace(ctx, config=config))
      self.assertNotEqual(made.delta.factor, 'data.families')


class HumanTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    root = self.enter_context(tempfile.TemporaryDirectory())
    self.inbox = pathlib.Path(root) / 'inbox'
    self.inbox.mkdir()

  def _put(self, name, fields):
    text = fields if isinstance(fields, str) else json.dumps(fields)
    (self.inbox / name).write_text(text)

  def _rate(self, value=3e-4, **fields):
    return {
        'delta': {'overlay': {'optim.learning_rate': value}},
        'hypothesis': 'Too slow.',
        'expected': [0.0, 0.05],
    } | fields

  def test_empty(self):
    self.assertIsNone(human.propose(context(), self.inbox))
    self.assertIsNone(human.propose(context(), self.inbox / 'not_there'))
    self.assertEqual(human.vetoes(self.inbox / 'not_there'), frozenset())

  def test_in_name_order_and_moved_only_when_taken(self):
    self._put('2.json', self._rate(2e-4))
    self._put('1.json', self._rate(3e-4))
    for _ in range(2):  # If killed before the row, it is still there.
      made = human.propose(context(), self.inbox)
      self.assertEqual(made.after.overlay['optim.learning_rate'], 3e-4)
    self.assertEqual(
        (made.proposer, made.trigger, made.expected),
        ('human', 'inbox/1.json', (0.0, 0.05)),
    )
    human.taken(self.inbox, made.trigger)
    human.taken(self.inbox, made.trigger)  # A kill after the move.
    self.assertTrue((self.inbox / 'done' / '1.json').exists())
    made = human.propose(context(), self.inbox)
    self.assertEqual(made.trigger, 'inbox/2.json')
    human.taken(self.inbox, 'slow_learning')  # Belongs to another proposer.
    self.assertTrue((self.inbox / '2.json').exists())

  def test_a_name_used_again_overwrites_nothing(self):
    for value in (2e-4, 3e-4):
      self._put('a.json', self._rate(value))
      human.taken(self.inbox, 'inbox/a.json')
    done = sorted(p.name for p in (self.inbox / 'done').iterdir())
    self.assertEqual(done, ['a-1.json', 'a.json'])

  def test_an_inbox_that_cannot_be_changed_ends_no_run(self):
    (self.inbox / 'done').write_text('')  # In the place of the folder.
    (self.inbox / 'b.json.reason.txt').mkdir()
    self._put('a.json', self._rate())
    self._put('b.json', {'delta': 5})
    made = human.propose(context(), self.inbox)
    self.assertEqual(made.trigger, 'inbox/a.json')
    human.taken(self.inbox, made.trigger)
    self.assertTrue((self.inbox / 'a.json').exists())
    (self.inbox / 'a.json').unlink()
    self.assertIsNone(human.propose(context(), self.inbox))
    self.assertTrue((self.inbox / 'b.json').exists())

  def test_taken_stays_in_the_inbox(self):
    outside = self.inbox.parent / 'ledger.json'
    outside.write_text('{}')
    human.taken(self.inbox, 'inbox/../ledger.json')
    self.assertTrue(outside.exists())

  def test_shipped_file(self):
    name = 'library/keep/outcome_variance.py'
    self._put(
        'keep.json',
        self._rate(delta={'file': 'keep.py', 'source_of': name}),
    )
    made = human.propose(context(), self.inbox)
    self.assertEqual(made.delta.factor, 'keep')
    self.assertEqual(
        made.after.files['keep.py'], shipped.source('keep/outcome_variance.py')
    )

  def test_a_file_of_ones_own(self):
    text = 'def keep(e, state):\n  return e.valid & ~e.truncated, state\n'
    self._put('mine.py', text)
    self._put(
        'mine.json',
        self._rate(delta={'file': 'keep.py', 'source_file': 'mine.py'}),
    )
    made = human.propose(context(), self.inbox)
    self.assertEqual(made.delta.factor, 'keep')
    self.assertEqual(made.after.files['keep.py'], text)

  @parameterized.parameters(
      ('no.py', 'No such file'),
      ('../mine.py', 'is not the name of a .py file'),
      ('link.py', 'is a link'),
      ('broken.py', 'keep.py line 1'),
      ('binary.py', 'cannot be read'),
      ('large.py', 'larger than'),
      ('pipe.py', 'no file'),
  )
  def test_a_bad_file_of_ones_own(self, name, reason):
    self._put('broken.py', 'def keep(')
    (self.inbox / 'link.py').symlink_to('/etc/passwd')
    (self.inbox / 'binary.py').write_bytes(b'\xff')
    self._put('large.py', '#' * 100_000)
    os.mkfifo(self.inbox / 'pipe.py')
    delta = {'file': 'keep.py', 'source_file': name}
    self._refused(self._rate(delta=delta), reason)

  def test_a_reward_of_ones_own_without_the_parts_of_the_parent(self):
    text = (
        'def parts(e):\n'
        '  return {"mine": e.valid * (e.n_tokens < 9)}\n'
    )
    self._put('mine.py', text)
    delta = {'file': 'reward.py', 'source_file': 'mine.py'}
    copied = f'harness/{context().parent.sha256}/reward.py'
    self._refused(self._rate(delta=delta), f'begin with a copy of {copied}')

  @parameterized.parameters(
      ('grpo.kl_coeff', "write 'grpo.kl_coef'"),
      ('grpo.kl', "write 'grpo.kl_coef'"),
      ('grpo.clip_high', "write 'clip'"),
      ('grpo.clip', "write 'clip'"),
      ('nonsense', " or 'optim.learning_rate'"),
  )
  def test_veto_of_nothing(self, veto, remedy):
    self._put('a.json', {'veto': veto})
    for good in ('clip', 'keep', 'reward:overlong', '0' * 64):
      self._put(f'{good}.json', {'veto': good})
    (line,) = human.review(self.inbox, context().surface)
    self.assertStartsWith(line, f"inbox/a.json cannot be used: veto='{veto}'")
    self.assertIn(remedy, line)

  def test_veto(self):
    sha = propose_change({'optim.learning_rate': 3e-4}).delta.sha256
    self._put('a.json', {'veto': 'grpo.kl_coef'})
    self._put('b.json', {'veto': sha})
    vetoes = human.vetoes(self.inbox)
    self.assertEqual(vetoes, {'grpo.kl_coef', sha})
    # A veto is not a proposal, stays in force, and also binds the user.
    self.assertIsNone(human.propose(context(vetoes=vetoes), self.inbox))
    self.assertEqual(human.vetoes(self.inbox), vetoes)
    human.taken(self.inbox, 'inbox/a.json')
    self.assertEqual(human.vetoes(self.inbox), vetoes)
    self._put('c.json', self._rate())
    self.assertIsNone(human.propose(context(vetoes=vetoes), self.inbox))
    self.assertIn('vetoed', (self.inbox / 'c.json.reason.txt').read_text())

  @parameterized.named_parameters(
      ('torn', '{"delta": {', 'JSON'),
      ('list', '[]', 'not an object'),
      ('deep', '[' * 60_000, 'JSON'),
      ('large', ' ' * 100_000, 'is larger than 65536 bytes'),
      ('no_hypothesis', {'delta': {}, 'expected': [0, 0.1]}, 'hypothesis'),
      ('unknown_field', {'hypotheses': 'x'}, 'hypotheses'),
      ('veto_and_more', {'veto': 'clip', 'delta': {}}, 'nothing else'),
      ('twice', '{"veto": "clip", "veto": "keep"}', "['veto'] occur twice"),
      (
          'twice_within',
          '{"delta": {"overlay": {"optim.learning_rate": 2e-4,'
          ' "optim.learning_rate": 3e-4}}}',
          "['optim.learning_rate'] occur twice",
      ),
  )
  def test_bad_file(self, fields, reason):
    self._refused(fields, reason)

  @parameterized.named_parameters(
      ('out_of_bounds', {'overlay': {'optim.learning_rate': 1.0}}, '0.003'),
      ('off_surface', {'overlay': {'eval.split': 'sealed'}}, 'surface'),
      ('not_a_number', {'overlay': {'optim.learning_rate': {}}}, 'not a num'),
      (
          'two_factors',
          {'overlay': {'optim.learning_rate': 3e-4, 'grpo.kl_coef': 0.01}},
          'two factors',
      ),
      ('nothing', {'overlay': {'optim.learning_rate': 1e-4}}, 'no factor'),
      (
          'rounding',
          {'overlay': {'optim.learning_rate': 1e-4 + 1e-19}},
          'changes a number by less than 1 %',
      ),
      ('empty', {}, 'delta is'),
      ('own_code', {'file': 'keep.py', 'source': 'import os'}, 'delta is'),
      (
          'escape',
          {'file': 'keep.py', 'source_of': 'library/keep/../../spec.py'},
          'not shipped',
      ),
      (
          'strange_target',
          {
              'file': '../keep.py',
              'source_of': 'library/keep/outcome_variance.py',
          },
          'not a file of a harness',
      ),
  )
  def test_bad_delta(self, delta, reason):
    self._refused(self._rate(delta=delta), reason)

  @parameterized.parameters(
      ([0.1, 0.0],), ([0.0],), (5,), ([0, 5],), (None,), ([True, 1],)
  )
  def test_bad_expectation(self, expected):
    self._refused(self._rate(expected=expected), 'expected')

  def test_the_mark_of_an_editor_is_no_content(self):
    self._put('a.json', '\ufeff' + json.dumps(self._rate()))
    self.assertIsNotNone(human.propose(context(), self.inbox))

  def test_a_file_that_is_taken_out_meanwhile(self):
    self._put('1.json', self._rate())
    self._put('2.json', self._rate(2e-4))
    read = human._read

    def taken_out(path):
      path.unlink(missing_ok=path.name == '1.json')
      return read(path)

    with mock.patch.object(human, '_read', side_effect=taken_out):
      self.assertIsNone(human.propose(context(), self.inbox))
    self.assertEmpty(list(self.inbox.iterdir()))

  def test_a_name_refused_again_overwrites_nothing(self):
    for text in '[1]', '[2', '[3':
      self._put('a.json', text)
      self.assertIsNone(human.propose(context(), self.inbox))
    texts = {p.name: p.read_text() for p in self.inbox.iterdir()}
    self.assertEqual(texts['a.json.refused'], '[1]')
    self.assertEqual(texts['a-1.json.refused'], '[2')
    self.assertEqual(texts['a-2.json.refused'], '[3')
    self.assertIn('not an object', texts['a.json.reason.txt'])
    self.assertIn('is not JSON', texts['a-1.json.reason.txt'])
    self.assertLen(texts, 6)

  def _refused(self, fields, reason):
    """The file is renamed with the reason beside it; the next one is used."""
    self._put('1.json', fields)
    self._put('2.json', self._rate())
    with mock.patch.object(human.output, 'say') as say:
      made = human.propose(context(), self.inbox)
    self.assertStartsWith(
        say.call_args_list[0].args[0], 'inbox/1.json is refused'
    )
    self.assertEqual(made.trigger, 'inbox/2.json')
    self.assertFalse((self.inbox / '1.json').exists())
    self.assertTrue((self.inbox / '1.json.refused').exists())
    told = (self.inbox / '1.json.reason.txt').read_text()
    self.assertIn(reason, told)
    self.assertEqual('JSON' in told, 'JSON' in reason)

  # A number that is nearly the same is the same change.
  @parameterized.parameters(3e-4, 3.01e-4, 2.99e-4)
  def test_twice_on_one_parent_is_refused(self, value):
    history = [trial(propose_change({'optim.learning_rate': 3e-4}))]
    self._put('1.json', self._rate(value))
    self.assertIsNone(human.propose(context((), history), self.inbox))
    reason = (self.inbox / '1.json.reason.txt').read_text()
    self.assertIn('tried on this parent', reason)

  def test_another_order_is_no_other_change(self):
    names = ['gcd:0', 'products:0']
    history = [trial(propose_change({'data.families': names}))]
    families = {'overlay': {'data.families': names[::-1]}}
    self._put('1.json', self._rate(delta=families))
    self.assertIsNone(human.propose(context((), history), self.inbox))
    reason = (self.inbox / '1.json.reason.txt').read_text()
    self.assertIn('tried on this parent', reason)
    parent = SEED.with_overlay({'data.families': names})
    self._put('2.json', self._rate(delta=families))
    self.assertIsNone(human.propose(context(parent=parent), self.inbox))
    reason = (self.inbox / '2.json.reason.txt').read_text()
    self.assertIn('or only an order; no race', reason)

  def test_another_number_is_another_change(self):
    history = [trial(propose_change({'optim.learning_rate': 3e-4}))]
    self._put('1.json', self._rate(3.1e-4))
    self.assertIsNotNone(human.propose(context((), history), self.inbox))


class LoadTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('rules', rules, 'rules'), ('random', random_changes, 'random')
  )
  def test_by_name(self, module, name):
    ctx = lambda: context(['slow_learning'], seed=3)
    made = propose_lib.load(name)(ctx())
    self.assertEqual(made.proposer, name)
    direct = module.propose(ctx())
    self.assertEqual(made, dataclasses.replace(direct, proposer=name))

  def test_every_name_loads(self):
    for name in propose_lib.PROPOSERS:
      self.assertTrue(callable(propose_lib.load(name)))

  def test_a_module_of_the_users_own_passes_the_gate(self):
    name, history, rates = 'tests.evolve.own_proposer', [], []
    propose = propose_lib.load(name)
    while (made := propose(context(history=history))) is not None:
      self.assertEqual(made.proposer, name)
      reasons = admit.admit(SEED, made.after, CONFIG, SURFACE, None)
      self.assertEqual(reasons, [])
      rates.append(made.after.overlay['optim.learning_rate'])
      history.append(trial(made, 'discard', -0.01))
    self.assertEqual(tuple(rates), own_proposer.RATES)

  @parameterized.parameters(
      (
          'nonsense',
          "evolve.proposer='nonsense' is neither one of .*rules.* nor",
      ),
      ('my/proposer.py', 'nor a dotted path such as my_package.my_proposer'),
      ('tests.no_such_module', 'nor a module that can be imported'),
      ('json', r'module json has no propose\(context\) that returns'),
  )
  def test_no_proposer(self, name, message):
    with self.assertRaisesRegex(ValueError, message):
      propose_lib.load(name)

  def test_what_it_may_not_propose(self):
    outside = spec.Harness({'seed': 3}, SEED.files)
    off = propose_change({'optim.learning_rate': 3e-4})
    for answer, message in (
        ({'overlay': {}}, 'propose returned a dict; it returns what'),
        (
            dataclasses.replace(off, after=outside),
            'may not be made: seed is not',
        ),
        (dataclasses.replace(off, after=SEED), 'no factor'),
        (
            dataclasses.replace(off, trigger='inbox/a.json'),
            "trigger='inbox/a.json', which means a file in",
        ),
    ):
      with absltest.mock.patch.object(
          own_proposer, 'propose', lambda _, answer=answer: answer
      ):
        propose = propose_lib.load('tests.evolve.own_proposer')
        with self.assertRaisesRegex(ValueError, message):
          propose(context())

  def test_the_change_counts_and_not_what_is_said_of_it(self):
    made = propose_change({'optim.learning_rate': 3e-4})
    said = propose_change({'grpo.kl_coef': 0.01}).delta
    with absltest.mock.patch.object(
        own_proposer, 'propose', lambda _: dataclasses.replace(made, delta=said)
    ):
      propose = propose_lib.load('tests.evolve.own_proposer')
      self.assertEqual(propose(context()).delta, made.delta)

  @parameterized.parameters(
      ('hypothesis', None, 'hypothesis=None of a proposal is not text'),
      ('trigger', 5, 'trigger=5 of a proposal is not text'),
      ('expected', None, 'expected=None of a proposal is not .low, high.'),
      ('expected', (0.0,), r'expected=.0.0,. of a proposal is not .low'),
      ('expected', ('0', '1'), r"expected=.'0', '1'. of a proposal is not"),
  )
  def test_a_field_of_another_type(self, field, value, message):
    made = propose_change({'optim.learning_rate': 3e-4})
    # Only in tests, the constructor checks types before.
    object.__setattr__(made, field, value)
    with self.assertRaisesRegex(ValueError, message):
      made.__post_init__()

  @parameterized.parameters(((0.05, 0.0),), ((-2.0, 0.0),), ((0.0, np.nan),))
  def test_an_expectation_is_an_interval(self, expected):
    with self.assertRaisesRegex(ValueError, 'expected=.* is not .low, high.'):
      dataclasses.replace(
          propose_change({'optim.learning_rate': 3e-4}), expected=expected
      )


if __name__ == '__main__':
  absltest.main()
