"""Every field of the surface can be changed in both directions."""

from absl.testing import absltest
from absl.testing import parameterized

from evojax.evolve import propose as propose_lib
from evojax.evolve.propose import directions
from evojax.evolve.propose import library
from evojax.harness import delta as delta_lib
from tests.evolve import propose_test


def found(**overlay):
  """Return (path, value) -> entry, for all changes of the seed harness."""
  overlay = {k.replace('__', '.'): v for k, v in overlay.items()}
  parent = propose_test.SEED.with_overlay(overlay)
  # Clips have an effect only if a batch has several updates.
  context = propose_test.context(parent=parent, config={'grpo.epochs': 2})
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

  def test_every_number_goes_up_and_down(self):
    made = found()
    context = propose_test.context(config={'grpo.epochs': 2})
    for field in context.surface.fields:
      if field.kind not in ('float', 'int') or field.path.endswith('*'):
        continue
      old = context.config[field.path]
      values = [value for path, value in made if path == field.path]
      if old == field.off:
        self.assertNotEmpty(values, field.path)
        continue
      highest = field.highest(context.config)
      if old < highest:
        self.assertTrue(any(v > old for v in values), field.path)
      if old > field.low:
        self.assertTrue(any(v < old for v in values), field.path)

  def test_every_choice_can_be_made_and_unmade(self):
    context = propose_test.context()
    for field in context.surface.fields:
      if field.kind != 'choice':
        continue
      for old in field.choices:
        made = found(**{field.path.replace('.', '__'): old})
        values = {value for path, value in made if path == field.path}
        self.assertEqual(values, set(field.choices) - {old}, field.path)

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

  def test_most_do_little_and_what_was_changed_is_suspect(self):
    made = found(rollout__temperature=1.5)
    low, high = made['rollout.temperature', 1.0].expected
    other = made['optim.learning_rate', 3e-4].expected
    self.assertGreater(low + high, sum(other))


if __name__ == '__main__':
  absltest.main()
