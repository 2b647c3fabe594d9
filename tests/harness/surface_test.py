"""A harness sets values of the surface, within bounds, by factors."""

import math
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from configs import math as math_config
from evojax import config as config_lib
from evojax.evolve import propose as propose_lib
from evojax.evolve.propose import random_changes
from evojax.harness import admit
from evojax.harness import delta as delta_lib
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.runtime import config_checks
from evojax.training import setup as setup_lib
from tests import tiny

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

  def test_fields_by_hand(self):
    """Kind, class, bounds, off value, scale and group, written by hand."""
    found = {
        f.path: (f.kind, f.intervention_class, f.low, f.high, f.off, f.scale)
        for f in RECIPE.fields
    }
    any_number = (-math.inf, math.inf, None, 'linear')
    self.assertEqual(
        found,
        {
            'optim.learning_rate': (
                *('float', 'optimizer'),
                *(1e-6, 3e-3, None, 'log'),
            ),
            'optim.warmup_steps': ('int', 'optimizer', 0, 100, None, 'linear'),
            'optim.max_grad_norm': ('float', 'optimizer', 0.01, 10, 0, 'log'),
            'optim.weight_decay': (
                *('float', 'regularisation'),
                *(1e-4, 0.3, 0, 'log'),
            ),
            'grpo.clip_low': ('float', 'clip', 0.05, 0.5, None, 'linear'),
            'grpo.clip_high': ('float', 'clip', 0.05, 1.0, None, 'linear'),
            'grpo.dual_clip': ('float', 'clip', 2.0, 10.0, 0.0, 'linear'),
            'grpo.aggregation': ('choice', 'loss', *any_number),
            'grpo.advantage': ('choice', 'loss', *any_number),
            'grpo.ratio': ('choice', 'loss', *any_number),
            'grpo.kl_coef': ('float', 'regularisation', 1e-4, 0.1, 0, 'log'),
            'grpo.entropy_coef': (
                *('float', 'regularisation'),
                *(1e-4, 0.05, 0, 'log'),
            ),
            'grpo.keep': ('choice', 'filter', *any_number),
            'grpo.refill_rounds': ('int', 'filter', 0, 4, None, 'linear'),
            'rollout.temperature': (
                *('float', 'exploration'),
                *(0.5, 1.5, None, 'linear'),
            ),
            'rollout.token_limit': ('int', 'length', 1, 2**20, 0, 'log'),
            'data.families': ('names', 'data', *any_number),
            'reward.weights.*': ('float', 'reward', -2.0, 2.0, None, 'linear'),
        },
    )
    compiled = {f.path for f in RECIPE.fields if f.compiles}
    self.assertEqual(
        compiled,
        {
            'grpo.aggregation',
            'grpo.ratio',
            'grpo.kl_coef',
            'grpo.entropy_coef',
        },
    )

  def test_bounds_lie_within_those_of_the_config(self):
    for field in RECIPE.fields:
      if field.kind in ('float', 'int'):
        declared = config_lib.declaration(field.path)
        with self.subTest(field.path):
          lowest = field.low if field.off is None else field.off
          self.assertLessEqual(declared.low, lowest)
          self.assertLessEqual(field.high, declared.high)

  def test_where_values_end(self):
    limit = RECIPE.field('rollout.token_limit')
    values = config_lib.flatten(self.config)
    self.assertEqual(limit.highest(values), 64)
    self.assertEqual(RECIPE.field('grpo.clip_low').highest(values), 0.5)

  def test_nothing_of_the_sampler_filter_seed_or_evaluation(self):
    """A harness that could change these could raise its own score."""
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
      ({'grpo.dual_clip': 0},),  # Off, although outside of the bounds.
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
      ({'data.families': ['gcd', 'gcd']}, 'has a name twice'),
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
    # All weights come from the harness, none from the config.
    self.assertEqual(new.reward.weights.to_dict(), {'overlong': 1.0})
    self.assertTrue(new.is_locked)
    self.assertEqual(config_lib.to_json(self.config), before)
    config_checks.validate(new)

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


class DomainTest(parameterized.TestCase):
  """A domain adds its own fields to the surface of its runs."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.config = tiny.make_config(tiny.make_policy(cls.root / 'policy'))
    with cls.config.unlocked():
      cls.config.domain.name = 'tests.harness.own_domain'
      cls.config.domain.kwargs.tools = ('python',)
      cls.config.domain.kwargs.scrubbed = True
    cls.setup = setup_lib.prepare(cls.config)
    cls.surface = cls.setup.surface
    cls.parent = spec.Harness({'reward.weights.outcome': 1.0}, {})

  def propose(self, path):
    """Return a random proposal for one field, with all others vetoed."""
    context = propose_lib.Context(
        parent=self.parent,
        config=config_lib.flatten(self.config),
        measures=(),
        findings=(),
        history=(),
        skills=(),
        rng=np.random.default_rng(0),
        domain='own',
        surface=self.surface,
        vetoes=frozenset(self.surface.factors(['outcome'])) - {path},
    )
    return random_changes.propose(context)

  @parameterized.parameters(
      ('domain.kwargs.tools', 'tools'), ('domain.kwargs.scrubbed', 'leaks')
  )
  def test_from_the_proposal_to_the_domain(self, path, intervention_class):
    proposal = self.propose(path)
    # The delta names it as one factor of its own class,
    delta = proposal.delta
    self.assertEqual(delta.factor, path)
    self.assertEqual(delta.intervention_class, intervention_class)
    # the gate admits it,
    self.assertEqual(
        admit.admit(
            self.parent,
            proposal.after,
            self.config,
            self.surface,
            self.setup.synthetic,
        ),
        [],
    )
    # and the domain of the arm is made with it; that of the run stays.
    folder = spec.write(proposal.after, self.root / 'harness')
    arm = config_lib.with_fields(self.config, {'harness.path': str(folder)})
    name, new = path.rpartition('.')[2], proposal.after.overlay[path]
    self.assertEqual(getattr(self.setup.under(arm).domain, name), new)
    self.assertNotEqual(getattr(self.setup.domain, name), new)

  def test_two_of_its_fields_are_two_factors(self):
    after = self.parent.with_overlay(
        {'domain.kwargs.tools': (), 'domain.kwargs.scrubbed': False}
    )
    with self.assertRaisesRegex(delta_lib.DeltaError, 'two factors'):
      delta_lib.diff(
          self.parent, after, self.surface, config_lib.flatten(self.config)
      )

  @parameterized.parameters(
      ({'domain.kwargs.tools': ['shell']}, r"choose among \('python', 'search"),
      ({'domain.kwargs.tools': ['python', 'python']}, 'twice'),
      ({'domain.kwargs.scrubbed': 'no'}, r'choose one of \(False, True\)'),
      ({'domain.kwargs.families': ['gcd:0']}, 'is not on the surface'),
  )
  def test_refuses(self, overlay, message):
    with self.assertRaisesRegex(surface_lib.SurfaceError, message):
      self.surface.check(overlay)

  def test_other_runs_do_not_know_its_fields(self):
    with self.assertRaisesRegex(surface_lib.SurfaceError, 'not on the surface'):
      RECIPE.check({'domain.kwargs.tools': ()})

  def test_a_domain_may_not_widen_what_is_not_its_own(self):
    wide = surface_lib.Field(
        intervention_class='x', path='eval.samples', kind='int', low=1, high=64
    )
    with self.assertRaisesRegex(
        surface_lib.SurfaceError, 'eval.samples is a s'
    ):
      surface_lib.recipe([wide])


if __name__ == '__main__':
  absltest.main()
