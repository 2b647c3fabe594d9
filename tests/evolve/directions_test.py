"""Every field of the surface can be changed in both directions."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.domains import math as math_domain
from evojax.domains.math import grade
from evojax.evidence import schema
from evojax.evolve import propose as propose_lib
from evojax.evolve.propose import changes
from evojax.evolve.propose import directions
from evojax.evolve.propose import library
from evojax.harness import admit
from evojax.harness import delta as delta_lib
from evojax.harness import library as shipped
from evojax.harness import parts as parts_lib
from evojax.harness import run
from evojax.harness import surface as surface_lib
from tests.evolve import agents_test
from tests.evolve import propose_test
from tests.harness import recorded


def agents_context(**changes):
  """Return a context of the swe domain."""
  return agents_test.make_context(**changes)


def tools_context(config=(), **changes):
  """Return a context of math with a tool."""
  domain = math_domain.make(families='small', max_turns=2, tools=('python',))
  kwargs = {'domain.kwargs.tools': ('python',)}
  return propose_test.context(
      surface=surface_lib.recipe(domain.surface_fields),
      config={'grpo.epochs': 2} | kwargs | dict(config),
      **changes,
  )


def plain_context(config=(), **changes):
  """Return a context of math."""
  config = {'grpo.epochs': 2} | dict(config)
  return propose_test.context(config=config, **changes)


class _Synthetic:
  """Random evidence, on which the gate tries functions."""

  def columns(self, config):
    del config
    return frozenset(c.name for c in schema.declare(grade.COLUMNS, ()))

  def evidence(self, config):
    del config
    return recorded.view(prompts=8, group_size=8)


SYNTHETIC = _Synthetic()
CONTEXTS = {
    'math': plain_context,
    'math with python': tools_context,
    'swe': agents_context,
}


def found(**overlay):
  """Return (path, value) -> entry, for all changes of the seed harness."""
  overlay = {k.replace('__', '.'): v for k, v in overlay.items()}
  parent = propose_test.SEED.with_overlay(overlay)
  # Clips have an effect only if a batch has several updates.
  return made_in(propose_test.context(parent=parent, config={'grpo.epochs': 2}))


def made_in(context):
  """Return (path, value) -> entry, for all changes in a context."""
  made = {}
  for entry in directions.entries(context):
    after = entry.apply(context)
    if after is None:
      continue
    delta, _ = propose_lib.consider(context, after)
    assert isinstance(delta, delta_lib.Delta)
    for path, _, value in delta.changes:
      made[path, value] = entry
  return made


class DirectionsTest(parameterized.TestCase):

  @parameterized.parameters(*CONTEXTS)
  def test_every_number_goes_up_down_and_off(self, domain):
    of = lambda made, path: [v for other, v in made if other == path]
    context = CONTEXTS[domain]()
    first = made_in(context)
    for field in context.surface.fields:
      if field.kind not in ('float', 'int') or field.path.endswith('*'):
        continue
      old, values = context.config[field.path], of(first, field.path)
      if old == field.off:
        # Once it is turned on, it can be changed as others can.
        (old,) = values
        on = CONTEXTS[domain](config={field.path: old})
        values = of(made_in(on), field.path)
      if field.off is not None:
        self.assertIn(field.off, values, field.path)
        values.remove(field.off)
      if old < field.highest(context.config):
        self.assertTrue(any(v > old for v in values), field.path)
      if old > field.low:
        self.assertTrue(any(v < old for v in values), field.path)

  @parameterized.parameters(*CONTEXTS)
  def test_no_field_is_without_an_intervention(self, domain):
    """The config's fields, the domain's own and the parts of the reward."""
    context = CONTEXTS[domain]()
    changed = {path for path, _ in made_in(context)}
    for field in context.surface.fields:
      if not field.path.endswith('*'):
        self.assertIn(field.path, changed)
    parts = parts_lib.hashes(context.parent.files['reward.py'])
    for part in set(parts) - {'outcome'}:
      self.assertIn(f'reward.weights.{part}', changed)

  @parameterized.parameters(*CONTEXTS)
  def test_every_choice_can_be_made_and_unmade(self, domain):
    for field in CONTEXTS[domain]().surface.fields:
      if field.kind != 'choice':
        continue
      for old in field.choices:
        made = made_in(CONTEXTS[domain](config={field.path: old}))
        values = {value for path, value in made if path == field.path}
        self.assertEqual(values, set(field.choices) - {old}, field.path)

  @parameterized.parameters('math with python', 'swe')
  def test_every_tool_can_be_added_and_left_out(self, domain):
    path = 'domain.kwargs.tools'
    (field,) = (
        f for f in CONTEXTS[domain]().surface.fields if f.path == path
    )
    for name in field.choices:
      without = tuple(n for n in field.choices if n != name)
      made = made_in(CONTEXTS[domain](config={path: field.choices}))
      if len(field.choices) > field.low:
        self.assertIn((path, without), made)
      made = made_in(CONTEXTS[domain](config={path: without}))
      self.assertIn((path, field.choices), made)
      # A tool that is missing may be the fault.
      low, high = made[path, field.choices].expected
      self.assertGreater(low + high, 0)
    # An agent keeps at least one of its tools, and a list names none twice.
    one = made_in(CONTEXTS[domain](config={path: field.choices[:1]}))
    values = [value for other, value in one if other == path]
    self.assertEqual(() in values, field.low < 1)
    self.assertLen(set(values), len(values))

  @parameterized.parameters(*CONTEXTS)
  def test_families_come_and_go(self, domain):
    context = CONTEXTS[domain]()
    path, families = 'data.families', dict.fromkeys(dict(context.levels))
    fewer = [value for other, value in made_in(context) if other == path]
    self.assertNotEmpty(fewer)
    self.assertLessEqual(len(fewer), 2)
    for names in fewer:
      self.assertLen({n.partition(':')[0] for n in names}, len(families) - 1)
    first = list(families)[0]
    parent = context.parent.with_overlay({path: (f'{first}:0',)})
    made = made_in(CONTEXTS[domain](parent=parent))
    values = [value for other, value in made if other == path]
    # All of them, all others, and those that have one more: never everything
    # that could be named.
    self.assertIn((), values)
    self.assertTrue(any(not v or first not in str(v) for v in values))
    self.assertTrue(any(first in str(v) and len(v) > 1 for v in values))
    self.assertLessEqual(len(values), 4)

  def test_every_part_of_a_reward_goes_both_ways_and_out(self):
    for part in propose_test.PARTS[1:]:
      path = f'reward.weights.{part}'
      for old in (0.5, -0.5):
        made = found(**{path.replace('.', '__'): old})
        values = {value for name, value in made if name == path}
        self.assertEqual(values, {0.0, -old, old / 2, 2 * old}, path)

  def test_problems_get_harder_easier_and_all(self):
    # Levels are known only if a config names them.
    changed = [
        library.ENTRIES[name].apply(propose_test.context())
        for name in ('easier_problems', 'harder_problems')
    ]
    easier, harder = (h.overlay['data.families'] for h in changed)
    self.assertNotEqual(easier, harder)
    back = found(data__families=easier)
    self.assertIn(('data.families', ()), back)

  def test_nothing_is_more_than_one_factor(self):
    """No entry repairs a pair of faults just by its name."""
    context = propose_test.context()
    for entry in (*library.ENTRIES.values(), *directions.entries(context)):
      after = entry.apply(context)
      if after is not None:
        # It refuses changes of more than one factor.
        delta, _ = propose_lib.consider(context, after)
        self.assertNotEmpty(delta.factor)

  # One wrong value, and one that would repair it.
  @parameterized.parameters(
      ({'reward__weights__brevity': 1.0}, 'reward.weights.brevity', 0.0),
      ({'reward__weights__format': 2.0}, 'reward.weights.format', 0.0),
      ({'reward__weights__format': 2.0}, 'reward.weights.format', 1.0),
      ({'reward__weights__overlong': -0.5}, 'reward.weights.overlong', 0.5),
      ({'reward__weights__outcome': -1.0}, 'reward.weights.outcome', 1.0),
      ({'optim__max_grad_norm': 0.01}, 'optim.max_grad_norm', 1.0),
      ({'optim__weight_decay': 0.3}, 'optim.weight_decay', 0.0),
      ({'optim__warmup_steps': 3}, 'optim.warmup_steps', 0),
      ({'rollout__temperature': 1.5}, 'rollout.temperature', 1.0),
      ({'rollout__token_limit': 24}, 'rollout.token_limit', 0),
      ({'grpo__kl_coef': 0.1}, 'grpo.kl_coef', 0.0),
      ({'grpo__clip_high': 0.05}, 'grpo.clip_high', 0.2),
      ({'grpo__aggregation': 'token'}, 'grpo.aggregation', 'sequence'),
      ({'grpo__keep': 'outcome_variance'}, 'grpo.keep', 'all'),
      ({'data__families': ('gcd:0',)}, 'data.families', ()),
  )
  def test_a_wrong_value_can_be_put_right(self, overlay, path, value):
    self.assertIn((path, value), found(**overlay))

  def test_the_outcome_stays_what_is_wanted(self):
    made = found()
    self.assertNotIn(('reward.weights.outcome', 0.0), made)
    self.assertNotIn(('reward.weights.outcome', -1.0), made)

  def test_functions_can_be_taken_out(self):
    parent = propose_test.SEED.with_file(
        'keep.py',
        'def init():\n  return 0\n\n\ndef keep(e, s):\n  return e.valid, s\n',
    )
    context = propose_test.context(parent=parent)
    after = [e.apply(context) for e in directions.entries(context)]
    self.assertIn(propose_test.SEED.sha256, [a.sha256 for a in after if a])

  @parameterized.parameters(
      'keep/middle_difficulty',
      'keep/outcome_variance',
      'keep/ema_outcome_spread',
      'weight/finished_only',
      'weight/hard_groups',
  )
  def test_functions_can_be_inverted(self, source):
    kind = source.partition('/')[0]
    name = f'{kind}.py'
    text = shipped.source(f'{source}.py')
    parent = propose_test.SEED.with_file(name, text)
    context = propose_test.context(parent=parent)
    files = [
        after.files[name]
        for entry in directions.entries(context)
        if (after := entry.apply(context)) and name in after.files
    ]
    (inverted,) = {f for f in files if f != text}
    after = parent.with_file(name, inverted)
    delta, _ = propose_lib.consider(context, after)
    self.assertEqual(delta.factor, kind)
    # The gate admits it, and it does the opposite.
    reasons = admit.admit(
        parent, after, propose_test.CONFIG, propose_test.SURFACE, SYNTHETIC
    )
    self.assertEqual(reasons, [])
    view = SYNTHETIC.evidence(None)
    calls = [run.Functions(h) for h in (parent, after)]
    if kind == 'keep':
      kept, dropped = (c.keep(view, c.init())[0] for c in calls)
      np.testing.assert_array_equal(dropped, ~kept)
      self.assertNotEqual(kept.sum(), 0)
    else:
      straight, mirrored = (c.weight(view) for c in calls)
      np.testing.assert_allclose(mirrored, 2 - straight, rtol=1e-6)
    # Inverted again, it is what it was.
    again = changes.inverted_file(name).apply(
        propose_test.context(parent=after)
    )
    self.assertEqual(again.sha256, parent.sha256)

  def test_most_do_little_and_what_was_changed_is_suspect(self):
    made = found(rollout__temperature=1.5)
    low, high = made['rollout.temperature', 1.0].expected
    other = made['optim.learning_rate', 3e-4].expected
    self.assertGreater(low + high, sum(other))


if __name__ == '__main__':
  absltest.main()
