"""Tests of evojax.training.setup: what is built once and what lies over it."""

import dataclasses
import pathlib
import tempfile

from absl.testing import absltest
import jax
import ml_collections

from evojax import config as config_lib
from evojax import domains
from evojax.episodes import collect
from evojax.harness import spec
from evojax.models import decoder
from evojax.models import hf
from evojax.models import hf_config
from evojax.models import policy as policy_lib
from evojax.modes import serve
from evojax.training import reward_parts
from evojax.training import setup as setup_lib
from tests import tiny


class UnderTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.root = pathlib.Path(root)
    cls.config = tiny.make_config(tiny.make_policy(cls.root / 'policy'))
    cls.setup = setup_lib.prepare(cls.config)

  def arm(self, overlay, **changes):
    """The run's config with a harness and other values."""
    harness = spec.Harness(overlay=overlay, files={})
    path = spec.write(harness, self.root / 'harness')
    changes['harness.path'] = str(path)
    return config_lib.with_fields(self.config, changes), harness

  def test_an_arm_does_not_check_the_problems_of_its_run_again(self):
    refused = absltest.mock.Mock(side_effect=ValueError('too long'))
    with absltest.mock.patch.object(setup_lib, 'check_problems', refused):
      arm = setup_lib.prepare(self.config, rendered=True)
      with self.assertRaisesRegex(ValueError, 'too long'):
        setup_lib.prepare(self.config)
    self.assertEqual(arm.probe_rows.keys(), self.setup.probe_rows.keys())

  def test_a_harness_lies_over_the_setup_of_the_run(self):
    config, harness = self.arm({'optim.learning_rate': 0.003}, seed=7)
    opened = absltest.mock.Mock(side_effect=AssertionError('opened again'))
    with (
        absltest.mock.patch.object(domains, 'make', opened),
        absltest.mock.patch.object(policy_lib, 'open_policy', opened),
        absltest.mock.patch.object(type(self.setup.domain), 'grade', opened),
    ):
      arm = self.setup.under(config)
    self.assertEqual(arm.config.optim.learning_rate, 0.003)
    self.assertEqual(arm.config.seed, 7)
    self.assertIs(arm.policy, self.setup.policy)
    self.assertIs(arm.domain, self.setup.domain)
    self.assertEqual(arm.version, harness.sha256)
    self.assertEqual(self.setup.version, 'seed')
    # It is what another process makes of the same config.
    self.assertEqual(
        arm.config.to_json(), setup_lib.prepare(config).config.to_json()
    )

  def test_the_reward_of_a_harness_is_tried(self):
    config, _ = self.arm({})
    with config.unlocked():
      config.reward.weights.unheard_of = 1.0
    with self.assertRaisesRegex(reward_parts.RewardError, 'unheard_of'):
      self.setup.under(config)

  def test_another_domain_section_is_opened(self):
    config, _ = self.arm({})
    with config.unlocked():
      config.domain.kwargs.families = ('chain_sum:0',)
    other = self.setup.under(config)
    self.assertIsNot(other.domain, self.setup.domain)
    self.assertIsNot(other.synthetic, self.setup.synthetic)
    self.assertIs(other.policy, self.setup.policy)

  def test_an_arm_with_another_domain_may_be_shorter_than_its_warm_up(self):
    shorter = {'optim.warmup_steps': 9, 'steps': 2}
    config, _ = self.arm({}, **shorter)
    self.assertEqual(self.setup.under(config).config.steps, 2)
    with config.unlocked():
      config.domain.kwargs.families = ('chain_sum:0',)
    self.assertEqual(self.setup.under(config).config.steps, 2)
    with self.assertRaisesRegex(ValueError, 'warmup_steps=9 exceeds steps=2'):
      setup_lib.prepare(config)

  def test_a_tokenizer_of_a_larger_vocabulary_is_refused(self):
    whole = self.setup.policy.path
    cfg = dataclasses.replace(hf_config.load(whole), vocab_size=50)
    params = decoder.init(cfg, jax.random.key(0))
    hf.save(self.root / 'small', cfg, params, tokenizer_dir=whole)
    with self.assertRaisesRegex(ValueError, 'small has 50 rows: its tokenizer'):
      setup_lib.prepare(tiny.make_config(self.root / 'small'))


class TemplateTest(absltest.TestCase):

  def test_options_and_date_reach_training_and_serving(self):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    path = tiny.make_policy(folder)
    (path / 'chat_template.jinja').write_text(
        '{{ greeting }} {{ strftime_now("%Y") }} {{ messages[-1].content }}'
    )
    config = tiny.make_config(
        path,
        model__chat_template_kwargs=ml_collections.ConfigDict(
            {'greeting': 'hello'}
        ),
        model__chat_template_date='2021-05-06',
        serve__context_tokens=64,
    )
    setup = setup_lib.prepare(config)
    decode = setup.policy.tokenizer.decode
    problems = setup.domain.source('train', 0).take(0, 1)
    (prompt,) = collect.render(setup.policy.tokenizer, problems, 32)
    self.assertStartsWith(decode(prompt), 'hello 2021 ')
    with absltest.mock.patch.object(serve, 'serve') as served:
      serve.run(config, 0)
    served.call_args.args[2].close()  # The socket.
    rendered = served.call_args.args[0].host.tokenizer.render(
        [{'role': 'user', 'content': '1'}], options={'greeting': 'bye'}
    )
    self.assertEqual(decode(rendered), 'bye 2021 1')


if __name__ == '__main__':
  absltest.main()
