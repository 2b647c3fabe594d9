"""The environment that a harness gives, as the evaluator sees it."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from configs import swe as swe_config
from evojax import config as config_lib
from evojax.evolve import harnesses as harnesses_lib
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.training import settings
from evojax.training import setup as setup_lib


class JudgeTest(absltest.TestCase):

  def test_repaired_turns_and_tools_count_and_what_leaks_does_not(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    config = config_lib.with_fields(
        swe_config.get_config('smoke'),
        {
            'domain.kwargs.max_turns': 2,
            'domain.kwargs.tools': ('ls', 'grep', 'edit', 'test', 'submit'),
        },
    )
    domain = settings.make_domain(config)
    setup = mock.Mock(
        spec=setup_lib.Setup,
        config=config,
        domain=domain,
        surface=surface_lib.recipe(domain.surface_fields),
    )
    harnesses = harnesses_lib.Harnesses(root, setup)

    def judge(**values):
      overlay = {f'domain.kwargs.{k}': v for k, v in values.items()}
      harness = spec.Harness(overlay, {})
      spec.write(harness, root)
      found = harnesses.judge(harness.sha256)
      self.assertIs(found, harnesses.judge(harness.sha256))
      return found

    self.assertIs(judge(), domain)
    repaired = judge(
        max_turns=6, tools=('ls', 'grep', 'read', 'edit', 'test', 'submit')
    )
    self.assertEqual(repaired.limits.turns, 6)
    self.assertIn('read', repaired.settings.tools)
    self.assertTrue(judge(max_turns=7).settings.scrubbed)
    leaks = spec.Harness({'domain.kwargs.scrubbed': False}, {})
    spec.write(leaks, root)
    self.assertTrue(harnesses.judge(leaks.sha256).settings.scrubbed)


if __name__ == '__main__':
  absltest.main()
