"""The verdict on a trial whose arms are trained; devices are scripted."""

import json
import pathlib
import tempfile
import types as python_types

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections
import numpy as np
import pandas as pd

from evojax.eval import perturb
from evojax.evolve import session as session_lib
from evojax.evolve import trial
from evojax.ledger import chain
from tests.eval import fakes

PROBLEMS = 12


class _Domain(fakes.Domain):

  def perturb(self, problem):
    return fakes.make_problem(f'new {problem.question}')


def _write(folder, solved, samples):
  """Evidence of an arm that solves the first `solved` problems."""
  group, _ = np.indices((PROBLEMS, samples)).reshape(2, -1)
  path = folder / 'evidence' / 'dev' / 'step_000030.parquet'
  path.parent.mkdir(parents=True)
  rows = {'group': group, 'outcome': group < solved, 'graded': True}
  pd.DataFrame(rows).to_parquet(path)


class _Session(session_lib.Session):
  """Process 0 of one; `evaluate` writes the scores of a script."""

  def __init__(self, path, domain, samples, script):  # There is no ledger.
    self.path = path
    self.setup = python_types.SimpleNamespace(domain=domain)
    self.config = ml_collections.ConfigDict(
        {
            'seed': 1,
            'evolve': {
                'updates': 30,
                'problems': PROBLEMS,
                'samples': samples,
            },
        }
    )
    self.script = script
    self.deciding = False
    self.calls = []

  def decide(self, choose):
    self.deciding = True
    value = json.loads(chain.canonical_json(choose()))
    self.deciding = False
    return value

  def stop_if_asked(self):
    pass

  def evaluate(self, checkpoint, *, folder, samples, **options):
    # The other processes, whose devices are needed, do not decide.
    assert not self.deciding
    self.calls.append(dict(options, checkpoint=checkpoint, samples=samples))
    _write(folder, self.script[folder.name], samples)


class JudgeTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def _judge(self, *, child=10, perturbed=8, domain=None, samples=8, alerts=()):
    """Controls solve 4 and 5 of 12, as do they on perturbed problems."""
    solved = {f'control-{i}': 4 + i % 2 for i in range(4)}
    script = {f'{name}-perturbed': n for name, n in solved.items()}
    for i in range(2):
      solved[f'child-{i}'] = child
      script[f'child-{i}-perturbed'] = perturbed
    for name, n in solved.items():
      _write(self.path / 'trials/002' / name, n, samples)
    session = _Session(self.path, domain or _Domain(), samples, script)
    row = dict(
        trial=2,
        alpha=0.05,
        dev_seed=trial.dev_seed(session, 2),
        arms=[
            dict(
                arm=f'trials/002/{name}',
                trained=f'arms/{name}',
                role=name.partition('-')[0],
            )
            for name in solved
        ],
    )
    return session, trial.judge(session, row, new_alerts=list(alerts))

  def test_keeps_what_helps_on_both(self):
    session, row = self._judge()
    self.assertEqual(row['status'], 'keep')
    # Controls 4.5 of 12, children 10, and 8 on the perturbed ones.
    self.assertAlmostEqual(row['effect'], 5.5 / 12, places=12)
    self.assertAlmostEqual(row['perturbed_effect'], 3.5 / 12, places=12)
    self.assertLen(session.calls, 6)
    names = {call['checkpoint'] for call in session.calls}
    self.assertIn(self.path / 'arms/child-1/checkpoints/step_000030', names)
    for call in session.calls:
      self.assertIsInstance(call['domain'], perturb.Perturbed)
      self.assertEqual(call['samples'], 4)
      self.assertEqual(call['problems'], PROBLEMS)
      self.assertEqual((call['split'], call['step']), ('dev', 30))
      self.assertEqual(call['seed'], trial.dev_seed(session, 2))

  def test_discards_what_only_knew_the_surface(self):
    _, row = self._judge(perturbed=4)
    self.assertEqual(row['status'], 'discard')
    self.assertAlmostEqual(row['perturbed_effect'], -0.5 / 12, places=12)
    self.assertIn('disagrees', row['reasons'][0])

  def test_is_not_paid_for_where_the_test_fails(self):
    session, row = self._judge(child=4)
    self.assertEqual(row['status'], 'discard')
    self.assertIsNone(row['perturbed_effect'])
    self.assertEmpty(session.calls)

  def test_an_alert_does_not_hide_it(self):
    _, row = self._judge(alerts=['collapse'])
    self.assertEqual(row['status'], 'discard')
    self.assertIsNotNone(row['perturbed_effect'])

  def test_domains_that_cannot(self):
    class Never(_Domain):

      def perturb(self, problem):
        return None

    for number, domain in enumerate((fakes.Domain(), Never())):
      self.path = self.path / str(number)
      session, row = self._judge(domain=domain)
      self.assertEqual(row['status'], 'keep')
      self.assertIsNone(row['perturbed_effect'])
      self.assertEmpty(session.calls)

  def test_one_sample_at_least(self):
    session, _ = self._judge(samples=1)
    self.assertEqual({call['samples'] for call in session.calls}, {1})

  def test_what_was_scored_before_a_kill_is_not_scored_again(self):
    _write(self.path / 'trials/002/child-1-perturbed', 12, 4)
    session, row = self._judge()
    self.assertLen(session.calls, 5)
    # (8 + 12) / 2 - 4.5 of 12.
    self.assertAlmostEqual(row['perturbed_effect'], 5.5 / 12, places=12)


if __name__ == '__main__':
  absltest.main()
