"""Controls are trained for as many tokens as the run that evolved."""

import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from benchmarks import controls
from benchmarks import runs
from evojax.training import arm
from evojax.training import loop
from tests import tiny


class TrainTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    self.policy = tiny.make_policy(root / 'policy')
    self.workdir = root / 'control'
    self.steps = []
    # The same training as by a command, without a process for each start.
    self.enter_context(mock.patch.object(runs, 'start', self.start))

  def start(self, config, workdir, *flags):
    fields = dict(
        flag.removeprefix('--config.').replace('.', '__').split('=')
        for flag in flags
    )
    fields = {name: json.loads(text.lower()) for name, text in fields.items()}
    self.steps.append(fields['steps'])
    # It refills groups, so that an update samples more than one of `config`.
    given = tiny.make_config(
        self.policy,
        grpo__keep='reward_variance',
        grpo__refill_rounds=2,
        **fields,
    )
    return loop.run(given, str(workdir))

  def train(self, total, guess):
    controls.train('any', self.workdir, total, guess, '--config.seed=3')
    return arm.sampled_tokens(self.workdir)

  def test_tokens_decide_how_long_a_control_trains(self):
    found = self.train(total=1800, guess=8)
    first, steps = self.steps
    self.assertEqual(first, 2)
    self.assertNotEqual(steps, 8)
    self.assertLess(abs(found - 1800), found / steps)


if __name__ == '__main__':
  absltest.main()
