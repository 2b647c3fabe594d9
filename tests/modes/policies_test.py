"""--mode=eval and --mode=serve with the workdir of a run."""

import json
import os
import pathlib
import tempfile

from absl.testing import absltest

from evojax.modes import evaluate
from evojax.modes import policies
from evojax.modes import serve
from evojax.runtime import output
from evojax.runtime import workdir as workdir_lib
from tests import tiny


class PoliciesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    base = tiny.make_policy(self.root / 'base')
    self.config = tiny.make_config(base, serve__context_tokens=64)
    self.workdir = self.root / 'run'
    workdir_lib.open_workdir(self.workdir, self.config, mode='train').close()
    self.trained = tiny.make_policy(self.workdir / 'policy', seed=1)

  def test_none_where_there_is_no_run(self):
    self.assertIsNone(policies.of_run(self.config, str(self.root)))
    self.assertIsNone(policies.of_run(self.config, '/nowhere'))

  def test_eval_scores_the_policy_of_the_run_beside_it(self):
    before = sorted(self.workdir.rglob('*'))
    summary = evaluate.run(self.config, str(self.workdir))
    self.assertEqual(summary['policy'], str(self.trained))
    self.assertEqual(sorted(self.workdir.rglob('*')), before)
    saved = self.root / 'run-policy-eval' / 'eval.json'
    self.assertEqual(json.loads(saved.read_text()), summary)
    # The same run under another name.
    self.addCleanup(os.chdir, os.getcwd())
    os.chdir(self.workdir)
    again = evaluate.run(self.config, '.')
    self.assertEqual(again['policy'], summary['policy'])
    self.assertEqual(sorted(self.workdir.rglob('*')), before)
    # The base policy's has a directory of its own.
    evaluate.run(self.config, str(self.root / 'run-eval'))

  def test_a_run_that_went_on_has_an_older_policy(self):
    summary = self.workdir / 'summary.json'
    summary.write_text(json.dumps({'steps': self.config.steps}))
    self.assertIsNotNone(policies.of_run(self.config, str(self.workdir)))
    summary.write_text(json.dumps({'steps': self.config.steps - 1}))
    with self.assertRaisesRegex(ValueError, 'went on after its end, and .*old'):
      policies.of_run(self.config, str(self.workdir))

  def test_another_config_than_the_run_s_is_said(self):
    said = self.enterContext(absltest.mock.patch.object(output, 'say'))
    policies.of_run(self.config, str(self.workdir))
    said.assert_not_called()
    config = self.config.copy_and_resolve_references()
    with config.unlocked():
      config.rollout.max_tokens += 1
      config.optim.learning_rate = 0.5  # Changes no answer of the policy.
    policies.of_run(config, str(self.workdir))
    ((line,), _), = said.call_args_list
    before = self.config.rollout.max_tokens
    self.assertStartsWith(
        line, f'note: the run had rollout.max_tokens={before}; leave --config'
    )

  def test_serve_names_the_policy_after_its_run(self):
    with absltest.mock.patch.object(serve, 'serve') as start:
      serve.run(self.config, 0, workdir=str(self.workdir))
      serve.run(self.config, 0)
    (run, *_), (base, *_) = (call.args for call in start.call_args_list)
    found = [
        (app.host.settings.model_name, app.host.settings.model_path)
        for app in (run, base)
    ]
    self.assertEqual(
        found,
        [
            ('run', os.fspath(self.trained)),
            ('base', os.fspath(self.root / 'base')),
        ],
    )


if __name__ == '__main__':
  absltest.main()
