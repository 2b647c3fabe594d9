"""Bounds and conflicts of config fields, and the hash."""

import hashlib
import importlib
import json
import math
import pathlib
import re
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections

from configs import math as math_config
from evojax import config as config_lib
from evojax.domains.math import demonstrations
from evojax.runtime import config_checks

ROOT = pathlib.Path(__file__).resolve().parents[1]
VARIANTS = [
    (path.stem, variant)
    for path in sorted((ROOT / 'configs').glob('*.py'))
    if path.stem not in ('common', '__init__')
    for variant in importlib.import_module(f'configs.{path.stem}').VARIANTS
]

BOUNDED = [
    field
    for field in config_lib.FIELDS
    if not (math.isinf(field.low) and math.isinf(field.high))
]


def make(**overrides):
  """Return the default config with overrides; grpo__epochs is grpo.epochs."""
  config = math_config.get_config().unlock()
  for name, value in overrides.items():
    *groups, leaf = name.split('__')
    holder = config
    for group in groups:
      holder = holder[group]
    # A user's own config may do this, which skips the check of the type.
    with holder.ignore_type():
      holder[leaf] = value
  return config.lock()


class WithFieldsTest(absltest.TestCase):

  def test_a_locked_copy(self):
    config = make(seed=3)
    new = config_lib.with_fields(
        config, {'grpo.group_size': 6, 'reward.weights': {'outcome': 0.5}}
    )
    old, now = map(config_lib.flatten, (config, new))
    changed = now.items() - old.items()
    self.assertEqual(
        dict(changed), {'grpo.group_size': 6, 'reward.weights.outcome': 0.5}
    )
    self.assertEqual((config.seed, config.grpo.group_size), (3, 8))
    for part in (new, new.grpo, new.reward.weights):
      self.assertTrue(part.is_locked)

  def test_only_fields(self):
    with self.assertRaisesRegex(config_lib.ConfigError, 'group_sise.*mean'):
      config_lib.with_fields(make(), {'grpo.group_sise': 6})


class NamesTest(absltest.TestCase):

  def test_unknown_and_missing_fields(self):
    config = config_lib.base()
    config.grpo.group_sise = 4
    config.domain.kwarg = {'jsonl': {'train': 'mine.jsonl'}}
    config.domain.kwargs = None
    config.optim = {'learning_rate': 1.0}
    with self.assertRaises(config_lib.ConfigError) as caught:
      config_checks.check_names(config)
    said = str(caught.exception)
    for text in (
        'grpo.group_sise is not a field; did you mean config.grpo.group_size?',
        'domain.kwarg.jsonl.train is not a field; did you mean config.domain',
        'domain.kwargs=None must be a table',
        'optim.warmup_steps is missing: start from',
    ):
      self.assertIn(f'\n  config.{text}', said)
    self.assertNotIn('optim.learning_rate', said)
    with self.assertRaisesRegex(config_lib.ConfigError, 'group_sise'):
      config_checks.validate(config)

  def test_a_value_that_is_no_json(self):
    config = config_lib.base()
    config.domain.kwargs = {'grader': print}
    with self.assertRaisesRegex(
        config_lib.ConfigError, r'kwargs\.grader=<.*> is not .* its dotted path'
    ):
      config_checks.check_names(config)


class ValidateTest(parameterized.TestCase):

  def assert_refused(
      self, config, *patterns, check=config_checks.validate
  ):
    with self.assertRaises(config_lib.ConfigError) as caught:
      check(config)
    lines = str(caught.exception).splitlines()
    self.assertEqual(lines[0], 'the config does not describe a run:')
    self.assertLen(lines, 1 + len(patterns))
    for line, pattern in zip(lines[1:], patterns):
      self.assertRegex(line, rf'^  config\.{pattern}')

  @parameterized.parameters(*VARIANTS)
  def test_every_variant_is_a_run(self, module, variant):
    module = importlib.import_module(f'configs.{module}')
    config = module.get_config(variant)
    if config.model.path is None:
      self.assert_refused(config, r'model\.path is not set: pass --config\.')
      config.model.path = '/weights'
    config_checks.validate(config)
    self.assertEqual(config_checks.unusual(config), [])

  @parameterized.parameters(*[f for f in config_lib.FIELDS if f.choices])
  def test_choices(self, declared):
    field = declared.path.replace('.', '__')
    more = {
        'rollout__kind': {'rollout__urls': ('http://host:1',)},
        'grpo__tis_mode': {'grpo__tis_cap': 3.0},
        'rollout__weights_transport': {
            'rollout__kind': 'sglang',
            'rollout__urls': ('http://host:1',),
        },
    }
    for choice in declared.choices:
      others = {} if choice == declared.default else more.get(field, {})
      config_checks.validate(make(**{field: choice}, **others))
    self.assert_refused(
        make(**{field: 'nonsense'}),
        rf"{re.escape(declared.path)}='nonsense': choose one of \(.*'{choice}'",
    )

  @parameterized.parameters(*BOUNDED)
  def test_ranges(self, declared):
    field = declared.path.replace('.', '__')
    for bound, beyond in ((declared.low, -1), (declared.high, 1)):
      if math.isinf(bound):
        continue
      step = beyond if isinstance(bound, int) else beyond * abs(bound or 1) / 8
      named = rf'{re.escape(declared.path)}={re.escape(repr(bound + step))}: \w'
      self.assert_refused(make(**{field: bound + step}), named)

  @parameterized.parameters(
      ('grpo__group_size', 2),  # The smallest group with an advantage.
      ('grpo__clip_low', 1.0),
      ('rollout__max_tokens', 1),
      ('eval__problems', 2),
      ('optim__learning_rate', 0.0),
      ('steps', 0),
      ('seed', 2**32 - 1),
      ('model__param_dtype', 'bfloat16'),  # At the default learning rate.
  )
  def test_bounds_are_allowed(self, field, value):
    config_checks.validate(make(**{field: value}))

  @parameterized.parameters(
      *[
          (field, value)
          for field in (
              'grpo__kl_coef',
              'optim__learning_rate',
              'model__lora_alpha',
              'reward__weights__outcome',  # Has no range.
          )
          for value in (math.nan, math.inf, -math.inf)
      ]
  )
  def test_not_finite(self, field, value):
    name = re.escape(field.replace('__', '.'))
    self.assert_refused(
        make(**{field: value}), f'{name}={value}: must be a finite number'
    )

  @parameterized.named_parameters(
      ('group of one', dict(grpo__group_size=1), r'grpo\.group_size=1: .*=8$'),
      (
          'prompts that do not divide',
          dict(grpo__prompts=10, grpo__minibatches=2, grpo__micro_groups=3),
          r'grpo\.prompts=10 .*minibatches=2 x micro_groups=3: .* of 6$',
      ),
      ('top_p', dict(rollout__top_p=0.9), r'rollout\.top_p=0\.9.*train with'),
      ('top_k', dict(rollout__top_k=5), r'rollout\..*top_k=5.*train with'),
      ('min_p', dict(rollout__min_p=0.1), r'rollout\..*min_p=0\.1.*train with'),
      (
          'dual clip inside the clip',
          dict(grpo__dual_clip=1.2, grpo__clip_high=0.2),
          r'grpo\.dual_clip=1\.2 must exceed 1 \+ clip_high = 1\.2, or be 0',
      ),
      (
          'bounds of weights that cross',
          dict(grpo__tis_cap=0.5, grpo__tis_floor=0.5),
          r'grpo\.tis_floor=0\.5 must be less than grpo\.tis_cap=0\.5: lower',
      ),
      (
          'a mode without weights',
          dict(grpo__tis_mode='sequence_mask'),
          r"grpo\.tis_mode='sequence_mask' changes nothing while"
          r' grpo\.tis_cap=0\.0: set --config\.grpo\.tis_cap=3$',
      ),
      (
          'bounds without rejection',
          dict(grpo__reject_high=1.1),
          r"grpo\.reject_high=1\.1 changes nothing while grpo\.reject='none':"
          r' set --config\.grpo\.reject=sequence$',
      ),
      (
          'updates below the precision',
          dict(model__param_dtype='bfloat16', optim__learning_rate=1e-6),
          r'model\.param_dtype=.*learning_rate=1e-06 away: .*=float32',
      ),
      (
          'scale of no adapters',
          dict(model__lora_alpha=32.0),
          r'model\.lora_alpha=32\.0 changes nothing while model\.lora_rank=0:'
          r' set --config\.model\.lora_rank=8$',
      ),
      (
          'arms without a comparison',
          dict(
              evolve__rounds=1,
              evolve__updates=2,
              grpo__prompts=1,
              grpo__micro_groups=1,
              grpo__minibatches=1,
          ),
          r'evolve\.updates=2 with grpo\.prompts=1: .*, 1 here',
      ),
      (
          'refill without a filter',
          dict(grpo__refill_rounds=1, grpo__keep='all'),
          r'grpo\.refill_rounds=1 .*set grpo\.keep=reward_variance',
      ),
      (
          'no reward',
          dict(reward__weights=ml_collections.ConfigDict()),
          r'reward\.weights={}: every reward would be 0; .*outcome=1\.0',
      ),
      (
          'weights of 0',
          dict(reward__weights__outcome=0.0),
          r"reward\.weights={'outcome': 0\.0}: every reward would be 0",
      ),
      (
          'weight that is no number',
          dict(reward__weights=ml_collections.ConfigDict({'x': 'high'})),
          r"reward\.weights\.x='high': must be a number",
      ),
      ('empty stop', dict(rollout__stop=('a', '')), r"rollout\.stop=\('a', ''"),
      (
          'micro-batch over the mesh',
          dict(mesh__fsdp=4, grpo__group_size=5, grpo__micro_groups=2),
          r'grpo\.micro_groups=2 of .*=5 .*mesh\.fsdp = 4: .* multiple',
      ),
      (
          'slots over the mesh',
          dict(mesh__data=2, rollout__decode_slots=9, rollout__prefill_rows=3),
          r'rollout\.decode_slots=9 ',
          r'rollout\.prefill_rows=3 ',
      ),
      (
          'no JSON',
          dict(
              domain__kwargs=ml_collections.ConfigDict({'a': ({1, 2},)}),
              model__chat_template_kwargs=ml_collections.ConfigDict({'b': {3}}),
          ),
          r'domain\.kwargs\.a=.* is not a JSON value: use texts .*numbers',
          r'model\.chat_template_kwargs\.b=\{3\} is not a JSON value',
      ),
      (
          'date',
          dict(model__chat_template_date='26 Jul'),
          r"model\.chat_template_date='26 Jul' is no date",
      ),
      (
          'limit above the shape',
          dict(rollout__max_tokens=32, rollout__token_limit=33),
          r'rollout\.token_limit=33 is more than rollout\.max_tokens=32',
      ),
      (
          'rows of several slices',
          dict(mesh__slice=2, grpo__layout='packed'),
          r"grpo\.layout='packed' with mesh\.slice=2: .*grpo\.layout=shared$",
      ),
      ('mesh of 0', dict(mesh__tensor=0), r'mesh\.tensor=0: sizes are >= 1'),
      (
          'mesh that takes the rest twice',
          dict(mesh__data=-1, mesh__fsdp=-1),
          r"mesh=\{'data': -1, .*only one",
      ),
      (
          'warm-up beyond the end',
          dict(steps=9, optim__warmup_steps=10),
          r'optim\.warmup_steps=10 exceeds steps=9',
      ),
      (
          'a final harness that trains for no step',
          dict(steps=0, evolve__retrain=True),
          r'evolve\.retrain=True with steps=0: .*; raise it$',
      ),
      (
          'two at once',
          dict(grpo__group_size=1, grpo__keep='some'),
          r'grpo\.group_size=1',
          r"grpo\.keep='some'",
      ),
  )
  def test_refuses(self, overrides, *patterns):
    self.assert_refused(make(**overrides), *patterns)

  @parameterized.parameters(
      (dict(steps=70), r'warmup_steps=70 leaves none of steps=70 .*: lower'),
      (dict(num_heads=3, num_kv_heads=2), r'num_heads=3 is no .*_heads=2, '),
      (dict(head_dim=7), r'head_dim=7 is odd, .*: make it even'),
      (dict(rows=0, log_every=0), r'log_every=0: must', r'rows=0: must'),
  )
  def test_refuses_a_warm_start(self, overrides, *patterns):
    config = make(**{f'warmstart__{n}': v for n, v in overrides.items()})
    self.assert_refused(
        config,
        *(rf'warmstart\.{pattern}' for pattern in patterns),
        check=config_checks.validate_warmstart,
    )

  @parameterized.parameters(*VARIANTS)
  def test_every_variant_with_a_warm_start_can_be_made(self, module, variant):
    config = importlib.import_module(f'configs.{module}').get_config(variant)
    if config.warmstart.steps:
      config_checks.validate_warmstart(config)

  def test_touches_no_device_and_needs_no_jax(self):
    script = (
        'import sys\nfrom configs import math\n'
        'from evojax.runtime import config_checks\n'
        'config_checks.validate(math.get_config())\n'
        "assert not any(m.split('.')[0] == 'jax' for m in sys.modules)"
    )
    subprocess.run(
        [sys.executable, '-c', script],
        check=True,
        cwd=ROOT,
        env={'PYTHONPATH': ':'.join(map(str, filter(None, sys.path)))},
    )


class DeclarationTest(parameterized.TestCase):

  def test_no_field_is_declared_twice(self):
    paths = [field.path for field in config_lib.FIELDS]
    self.assertEqual(sorted(paths), sorted(set(paths)))

  def test_documentation_and_default(self):
    for field in config_lib.FIELDS:
      with self.subTest(field.path):
        self.assertRegex(field.doc, r"^[\w'(].{5,}[.]$")
        if not isinstance(field.default, type):
          self.assertEqual(field.problem(field.default), '')

  @parameterized.parameters(*VARIANTS)
  def test_every_field_of_every_variant_is_declared(self, module, variant):
    """Except for groups whose names the user chooses: arguments, weights."""
    config = importlib.import_module(f'configs.{module}').get_config(variant)
    declared = {field.path for field in config_lib.FIELDS}
    paths = {
        path
        for path in config_lib.flatten(config)
        if not path.startswith(('domain.kwargs.', 'reward.weights.'))
    }
    open_ = {f.path for f in config_lib.FIELDS if isinstance(f.default, dict)}
    self.assertEqual(paths, declared - open_)

  def test_base_is_made_afresh(self):
    config_lib.base().reward.weights.outcome = 3.0
    self.assertEqual(config_lib.base().reward.weights.outcome, 1.0)

  @parameterized.parameters('rules', 'human', 'my_package.my_proposer')
  def test_proposers_by_name_or_dotted_path(self, name):
    config_checks.validate(make(evolve__proposer=name))

  @parameterized.parameters('', 'my-proposer', 'a..b', 'pack/age.py')
  def test_no_name_and_no_path(self, name):
    with self.assertRaisesRegex(
        config_lib.ConfigError,
        rf'config\.evolve\.proposer={re.escape(repr(name))} is neither .* my_',
    ):
      config_checks.validate(make(evolve__proposer=name))


class FieldTest(parameterized.TestCase):

  @parameterized.parameters(
      'steps',
      'grpo.group_size',
      'grpo',
      'domain.kwargs.families',
      'reward.weights',
      'model.path',
  )
  def test_known(self, name):
    config_lib.check_field(math_config.get_config('qwen3_0p6b'), name)

  def test_empty_group_is_known(self):
    config_lib.check_field(config_lib.base(), 'domain.kwargs')

  @parameterized.parameters(
      ('grpo.grup_size', r'did you mean config\.grpo\.group_size\?$'),
      ('group_size', r'did you mean config\.grpo\.group_size\?$'),
      ('gpro.group_size', r'did you mean config\.grpo or config\.grpo\.g'),
      ('grpo.learning_rate', r'did you mean config\.optim\.learning_rate or'),
      ('optim.lr', r'config\.optim has b1, b2, eps, learning_rate, '),
      ('nothing.like.it', r'config has checkpoint, data, domain, '),
      (
          'reward.weights.brief',
          r'the names in config\.reward\.weights are yours: set all, --config'
          r'\.reward\.weights="{\'outcome\': 1\.0, \'brief\': \'\.\.\.\'}"$',
      ),
      ('steps.more', r'config\.steps is a value, not a group$'),
  )
  def test_unknown(self, name, pattern):
    with self.assertRaisesRegex(
        config_lib.ConfigError, f'config.{name} is not a field; {pattern}'
    ):
      config_lib.check_field(math_config.get_config(), name)


class OverrideTest(absltest.TestCase):

  def test_every_type_of_field_can_be_set_from_the_command_line(self):
    # In a new process, since flags are global.
    flags = {
        'name': ('mine', 'mine'),
        'steps': ('7', 7),
        'optim.learning_rate': ('3e-5', 3e-5),
        'grpo.clip_high': ('1', 1.0),  # An int for a float.
        'eval.sealed': ('false', False),
        'model.path': ('/weights', '/weights'),  # A placeholder.
        'rollout.stop': ("('a', 'b c')", ['a', 'b c']),
        'domain.kwargs.families': ("('small',)", ['small']),
        'reward.weights.outcome': ('2', 2.0),
        'model.chat_template_kwargs': ("{'think': False}", {'think': False}),
    }
    config = math_config.get_config('qwen3_0p6b')
    fields = config_lib.flatten(config)
    types = {type(v) for v in fields.values()}
    known = flags.keys() & fields.keys()  # An empty group has no fields.
    self.assertEqual(types, {type(fields[name]) for name in known})
    script = (
        'from absl import flags\nimport sys\nfrom evojax import config, main\n'
        'main.parse_flags(sys.argv)\n'
        "print(config.to_json(flags.FLAGS['config'].value))"
    )
    arguments = [f'--config.{name}={text}' for name, (text, _) in flags.items()]
    run = subprocess.run(
        [
            sys.executable,
            '-c',
            script,
            '--config=configs/math.py:qwen3_0p6b',
            *arguments,
        ],
        check=True,
        cwd=ROOT,
        env={'PYTHONPATH': ':'.join(map(str, filter(None, sys.path)))},
        stdout=subprocess.PIPE,
        text=True,
    )
    found = json.loads(run.stdout)
    expected = json.loads(config_lib.to_json(config))
    for name, (_, value) in flags.items():
      *groups, leaf = name.split('.')
      holder = expected
      for group in groups:
        holder = holder[group]
      holder[leaf] = value
    self.assertEqual(found, expected)


class FormTest(absltest.TestCase):

  def test_flatten(self):
    config = ml_collections.ConfigDict({'a': {'b': 1, 'c': {'d': (1, 2)}}})
    self.assertEqual(config_lib.flatten(config), {'a.b': 1, 'a.c.d': (1, 2)})

  def test_json_and_hash_by_hand(self):
    config = ml_collections.ConfigDict({'b': {'d': (1, 'x')}, 'a': 0.5})
    text = '{"a":0.5,"b":{"d":[1,"x"]}}'
    self.assertEqual(config_lib.to_json(config), text)
    self.assertEqual(
        config_lib.sha256(config), hashlib.sha256(text.encode()).hexdigest()
    )

  def test_hash_is_of_the_values_alone(self):
    one = ml_collections.ConfigDict({'a': 1, 'b': {'c': (2,)}})
    other = ml_collections.ConfigDict()  # Other order, a reference, locked.
    other.b = ml_collections.ConfigDict({'c': (2,)})
    other.a = 1
    self.assertEqual(config_lib.sha256(one), config_lib.sha256(other.lock()))
    one.b.c = (3,)
    self.assertNotEqual(config_lib.sha256(one), config_lib.sha256(other))

  def test_every_field_is_in_the_hash(self):
    config = make()
    before = config_lib.sha256(config)
    hashes = {before}
    for name, value in config_lib.flatten(config).items():
      *groups, leaf = name.split('.')
      changed = make()
      holder = changed
      for group in groups:
        holder = holder[group]
      with holder.unlocked(), holder.ignore_type():
        holder[leaf] = f'not {value}'
      hashes.add(config_lib.sha256(changed))
    self.assertLen(hashes, 1 + len(config_lib.flatten(config)))
    self.assertEqual(config_lib.sha256(config), before)


class MathTest(absltest.TestCase):

  def test_families_are_those_the_base_policy_was_taught(self):
    # The values are written twice, since neither side may import the other.
    self.assertEqual(math_config.FAMILIES, demonstrations.FAMILIES)


if __name__ == '__main__':
  absltest.main()
