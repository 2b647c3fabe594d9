"""The verdict on a trial whose arms are trained; devices are scripted."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import ml_collections
import numpy as np
import pandas as pd

from evojax import records as step_records
from evojax.eval import perturb
from evojax.evolve import opening
from evojax.evolve import scoring
from evojax.evolve.steps import trial as trial_lib
from evojax.evolve.steps import verify
from evojax.harness import delta as delta_lib
from evojax.ledger import records
from evojax.runtime import decisions
from evojax.runtime import metrics
from evojax.runtime import progress
from evojax.training import setup as setup_lib
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


class _Scorer(scoring.Scorer):
  """One whose `_evaluate` writes the scores of a script."""

  def _evaluate(self, wanted):
    # The other processes, whose devices are needed, do not decide.
    assert not decisions._DECIDING.get()
    self.engine.calls.append(wanted)
    solved = self.engine.script[wanted.folder.name]
    _write(wanted.folder, solved, wanted.samples)


def _run(path, domain, samples, script):
  """The parts of a run that a verdict needs."""
  setup = mock.Mock(spec=setup_lib.Setup)
  setup.domain = domain
  engine = mock.Mock(spec=step_records.RolloutEngine, script=script, calls=[])
  evolve = {'updates': 30, 'problems': PROBLEMS, 'samples': samples}
  return mock.Mock(
      spec=opening.Run,
      path=path,
      setup=setup,
      config=ml_collections.ConfigDict({'seed': 1, 'evolve': evolve}),
      scorer=_Scorer(
          setup=setup,
          mesh=mock.Mock(spec=jax.sharding.Mesh),
          engine=engine,
          phases=metrics.Phases(),
          progress=progress.Progress([], shown=False),
          stop_if_asked=lambda: None,
          may_open_sealed=lambda: False,
      ),
      calls=engine.calls,
  )


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
    run = _run(self.path, domain or _Domain(), samples, script)
    arm = dict(
        seed=0,
        harness='',
        start='',
        end='',
        status='done',
        why='',
        updates=30,
        outcome=(),
        sampled_tokens=0,
    )
    trial = records.Trial(
        trial=2,
        start='',
        dev_seed=trial_lib.dev_seed(1, 2),
        alpha=0.05,
        mde=None,
        children=2,
        refused='',
        arms=tuple(
            records.TrialArm(
                **arm,
                folder=f'arms/{name}',
                role=name.partition('-')[0],
                scores=f'trials/002/{name}',
            )
            for name in solved
        ),
    )
    return run, verify.judge(run, trial, list(alerts))

  def test_keeps_what_helps_on_both(self):
    run, row = self._judge()
    self.assertEqual(row.status, 'keep')
    # Controls 4.5 of 12, children 10, and 8 on the perturbed ones.
    self.assertAlmostEqual(row.effect, 5.5 / 12, places=12)
    self.assertAlmostEqual(row.perturbed_effect, 3.5 / 12, places=12)
    self.assertLen(run.calls, 6)
    names = {call.checkpoint for call in run.calls}
    self.assertIn(self.path / 'arms/child-1/checkpoints/step_000030', names)
    for call in run.calls:
      self.assertIsInstance(call.domain, perturb.Perturbed)
      self.assertEqual(call.samples, 4)
      self.assertEqual(call.problems, PROBLEMS)
      self.assertEqual((call.split, call.step), ('dev', 30))
      self.assertEqual(call.seed, trial_lib.dev_seed(1, 2))

  def test_discards_what_only_knew_the_surface(self):
    _, row = self._judge(perturbed=4)
    self.assertEqual(row.status, 'discard')
    self.assertAlmostEqual(row.perturbed_effect, -0.5 / 12, places=12)
    self.assertIn('disagrees', row.reasons[0])

  def test_is_not_paid_for_where_the_test_fails(self):
    run, row = self._judge(child=4)
    self.assertEqual(row.status, 'discard')
    self.assertIsNone(row.perturbed_effect)
    self.assertEmpty(run.calls)

  def test_an_alert_does_not_hide_it(self):
    _, row = self._judge(alerts=['collapse'])
    self.assertEqual(row.status, 'discard')
    self.assertIsNotNone(row.perturbed_effect)

  def test_domains_that_cannot(self):
    class Never(_Domain):

      def perturb(self, problem):
        return None

    for number, domain in enumerate((fakes.Domain(), Never())):
      self.path = self.path / str(number)
      run, row = self._judge(domain=domain)
      self.assertEqual(row.status, 'keep')
      self.assertIsNone(row.perturbed_effect)
      self.assertEmpty(run.calls)

  def test_one_sample_at_least(self):
    run, _ = self._judge(samples=1)
    self.assertEqual({call.samples for call in run.calls}, {1})

  def test_what_was_scored_before_a_kill_is_not_scored_again(self):
    _write(self.path / 'trials/002/child-1-perturbed', 12, 4)
    run, row = self._judge()
    self.assertLen(run.calls, 5)
    # (8 + 12) / 2 - 4.5 of 12.
    self.assertAlmostEqual(row.perturbed_effect, 5.5 / 12, places=12)


class BusyTest(parameterized.TestCase):

  @parameterized.parameters(
      ('keep.py: busy: it needs more CPU time', 'machine_busy'),
      ('it fails on v1: busy', 'machine_busy'),
      ('keep.py: hang: no answer within 0.5 s', 'disqualified'),
  )
  def test_load_is_no_verdict_on_a_change(self, reason, status):
    run = mock.Mock(spec=opening.Run, recorder=mock.Mock())
    run.recorder.find.side_effect = lambda step, trial: (
        records.Admit(trial=trial, reasons=(reason,))
        if step is records.Admit
        else None
    )
    version, delta = (
        mock.Mock(spec=kind) for kind in (records.Version, delta_lib.Delta)
    )
    design = mock.Mock(spec=records.Design, trial=3)
    verdict = verify.verify(run, version, design, delta, 'v1')
    self.assertEqual((verdict.status, verdict.reasons), (status, (reason,)))


if __name__ == '__main__':
  absltest.main()
