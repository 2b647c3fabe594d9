"""What a harness may set, within which bounds, and as part of which factor."""

from absl.testing import absltest
from absl.testing import parameterized

from configs import math as math_config
from evojax import config as config_lib
from evojax.harness import surface as surface_lib

RECIPE = surface_lib.recipe()


class SurfaceTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.config = math_config.get_config()

  def test_every_path_is_a_field_of_the_config(self):
    for field in RECIPE.fields:
      if field.path.endswith('.*'):
        continue
      with self.subTest(field.path):
        config_lib.check_field(self.config, field.path)
        self.assertEqual(
            RECIPE.value(self.config, {}, field.path),
            config_lib.flatten(self.config)[field.path],
        )

  def test_choices_are_those_of_the_config(self):
    for field in RECIPE.fields:
      if field.kind == 'choice':
        self.assertEqual(field.choices, config_lib.CHOICES[field.path])

  def test_bounds_lie_within_those_of_the_config(self):
    for field in RECIPE.fields:
      if field.kind in ('float', 'int') and field.path in config_lib.RANGES:
        low, high = config_lib.RANGES[field.path]
        with self.subTest(field.path):
          self.assertLessEqual(
              low, field.low if field.off is None else field.off
          )
          self.assertLessEqual(field.high, high)

  def test_where_values_end(self):
    limit = RECIPE.field('rollout.token_limit')
    values = config_lib.flatten(self.config)
    self.assertEqual(limit.highest(values), 64)
    self.assertEqual(RECIPE.field('grpo.clip_low').highest(values), 0.5)

  def test_nothing_of_the_sampler_filter_seed_or_evaluation(self):
    """A harness that could turn these would turn its own score."""
    for path in (
        'seed',
        'eval.samples',
        'eval.temperature',
        'rollout.top_p',
        'rollout.max_tokens',
        'domain.name',
        'model.path',
        'steps',
        'reward.parts',
        'reward.weights',
        'reward.weights.A',
    ):
      with self.assertRaisesRegex(
          surface_lib.SurfaceError, 'not on the surface'
      ):
        RECIPE.field(path)

  @parameterized.parameters(
      ('grpo.clip_low', 'clip'),
      ('grpo.clip_high', 'clip'),
      ('grpo.keep', 'filter'),
      ('grpo.refill_rounds', 'filter'),
      ('grpo.dual_clip', 'grpo.dual_clip'),
      ('optim.learning_rate', 'optim.learning_rate'),
      ('reward.weights.overlong', 'reward:overlong'),
  )
  def test_factor(self, path, factor):
    self.assertEqual(RECIPE.factor(path), factor)

  @parameterized.parameters(
      ({'optim.learning_rate': 3e-3},),
      ({'optim.learning_rate': 1e-6, 'optim.warmup_steps': 5.0},),
      ({'grpo.dual_clip': 0},),  # Off, outside the bounds.
      ({'grpo.dual_clip': 3},),
      ({'grpo.kl_coef': 0.0},),
      ({'data.families': ()},),
      ({'data.families': ['gcd', 'chain_sum:1-3', 'products:0']},),
      ({'reward.weights.outcome': 1, 'reward.weights.length': -0.25},),
  )
  def test_takes(self, overlay):
    RECIPE.check(overlay)

  @parameterized.parameters(
      ({'optim.learning_rate': 4e-3}, r'must lie in \[1e-06, 0.003\]'),
      ({'optim.learning_rate': '1e-4'}, 'must be a number of type float'),
      ({'optim.learning_rate': True}, 'must be a number'),
      ({'optim.learning_rate': float('nan')}, 'must lie in'),
      ({'optim.warmup_steps': 2.5}, 'must be a number of type int'),
      ({'grpo.dual_clip': 1.5}, r'must lie in \[2, 10\] or be 0 \(off\)'),
      ({'grpo.aggregation': 'mean'}, 'choose one of'),
      ({'data.families': 'gcd'}, 'must be a list of names'),
      ({'data.families': ['gcd', 'gcd']}, 'names a family twice'),
      ({'data.families': ['gcd; rm']}, 'must be a list of names'),
      ({'reward.weights.outcome': 2.5}, r'must lie in \[-2, 2\]'),
      ({'reward.weights.outcome': 0.0}, 'every weight is 0'),
  )
  def test_refuses(self, overlay, message):
    with self.assertRaisesRegex(surface_lib.SurfaceError, message):
      RECIPE.check(overlay)

  def test_all_that_is_wrong_at_once(self):
    with self.assertRaises(surface_lib.SurfaceError) as caught:
      RECIPE.check({'optim.learning_rate': 1.0, 'seed': 3, 'grpo.ratio': 'x'})
    self.assertLen(str(caught.exception).splitlines(), 3)

  def test_apply(self):
    before = config_lib.to_json(self.config)
    new = RECIPE.apply(
        self.config,
        {
            'optim.learning_rate': 3e-4,
            'optim.warmup_steps': 5.0,
            'grpo.dual_clip': 3,
            'data.families': ['gcd:0'],
            'reward.weights.overlong': 1,
        },
    )
    self.assertEqual(new.optim.learning_rate, 3e-4)
    self.assertEqual(new.optim.warmup_steps, 5)
    self.assertIsInstance(new.optim.warmup_steps, int)
    self.assertEqual(new.grpo.dual_clip, 3.0)
    self.assertEqual(new.data.families, ('gcd:0',))
    # All weights, not beside those of the config.
    self.assertEqual(new.reward.weights.to_dict(), {'overlong': 1.0})
    self.assertTrue(new.is_locked)
    self.assertEqual(config_lib.to_json(self.config), before)
    config_lib.validate(new)

  def test_apply_nothing(self):
    self.assertEqual(
        config_lib.sha256(RECIPE.apply(self.config, {})),
        config_lib.sha256(self.config),
    )

  def test_value(self):
    weight = surface_lib.WEIGHTS
    overlay = {weight + 'format': 0.5}
    value = lambda o, path: RECIPE.value(self.config, o, path)
    self.assertEqual(value({}, weight + 'outcome'), 1.0)
    self.assertEqual(value({}, weight + 'format'), 0.0)
    self.assertEqual(value(overlay, weight + 'format'), 0.5)
    self.assertEqual(value(overlay, weight + 'outcome'), 0.0)
    self.assertEqual(value({'grpo.clip_low': 0.1}, 'grpo.clip_low'), 0.1)


if __name__ == '__main__':
  absltest.main()
