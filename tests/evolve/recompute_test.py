import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd

from evojax.evolve import promote
from evojax.ledger import chain as chain_lib
from tests.evolve import recompute

RATE = 0.2
# Effects of the children of each trial; the second one is stopped by an alert,
# the third one crashed.
EFFECTS = (0.0, 0.6, None, 0.6, 0.05, 0.6)
# On perturbed problems, of the trials that were asked them.
PERTURBED = {1: 0.5, 3: 0.5, 5: -0.4}


class RecomputeTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.workdir = pathlib.Path(
        self.enterContext(tempfile.TemporaryDirectory())
    )

  def _score(self, rng, arm, hard):
    outcomes = rng.random((len(hard), 4)) < hard[:, None]
    folder = self.workdir / arm / 'evidence' / 'dev'
    folder.mkdir(parents=True)
    group, sample = np.indices(outcomes.shape).reshape(2, -1)
    pd.DataFrame(
        {
            'group': group,
            'sample': sample,
            'problem_id': [f'{g:04x}' for g in group],
            'outcome': outcomes.ravel(),
            'graded': np.ones(outcomes.size, bool),
        }
    ).to_parquet(folder / 'step_000030.parquet')
    return outcomes.mean(axis=1)

  def _run(self):
    """Payloads of a run that decided as the package does."""
    rng = np.random.default_rng(0)
    wealth = promote.Wealth(RATE, len(EFFECTS))
    config = {'evolve': {'false_discovery_rate': RATE, 'trials': len(EFFECTS)}}
    ledger = chain_lib.Ledger(self.workdir / 'ledger.jsonl')
    ledger.append('open', {'config': config}, {})
    for trial, gain in enumerate(EFFECTS):
      hard = rng.random(20) * 0.4
      arms = {'control': [], 'child': []}
      perturbed = {'control': [], 'child': []}
      listed = []
      for role, count in (('control', 4), ('child', 2)):
        for index in range(count):
          arm = f'trials/{trial:03d}/{role}-{index}'
          crashed = role == 'child' and gain is None
          listed.append(
              {
                  'scores': arm,
                  'role': role,
                  'status': 'crash' if crashed else 'done',
              }
          )
          if not crashed:
            better = gain if role == 'child' else 0.0
            arms[role].append(self._score(rng, arm, hard + better))
          if trial in PERTURBED:
            better = PERTURBED[trial] if role == 'child' else 0.0
            folder = f'{arm}-perturbed'
            scores = self._score(rng, folder, hard + 0.2 + better)
            perturbed[role].append(scores)
      ledger.append('trial', {'trial': trial, 'arms': listed}, {})
      if gain is None:
        row = {'status': 'crash', 'p': None}
      else:
        control, child = np.stack(arms['control']), np.stack(arms['child'])
        effect = promote.estimate(control, child)
        alerts = ['collapse'] if trial == 1 else []
        other = None
        if trial in PERTURBED:
          other = promote.estimate(*map(np.stack, perturbed.values()))
        verdict = promote.decide(
            effect, wealth.alpha, critical_alerts=alerts, perturbed=other
        )
        row = dict(
            status=verdict.status,
            effect=effect.value,
            standard_error=effect.standard_error,
            df=effect.df,
            low=effect.low,
            high=effect.high,
            p=effect.p_one_sided,
            alpha=wealth.alpha,
            sigma_seed=effect.sigma_seed,
            control=float(control.mean()),
            child=float(child.mean()),
            perturbed_effect=other.value if other else None,
            alerts=alerts,
        )
        wealth = wealth.after(verdict.status == 'keep')
      ledger.append('verify', {'trial': trial, **row}, {})
    return [row['payload'] for row in ledger.rows]

  def _write(self, payloads):
    lines = [json.dumps({'payload': payload}) for payload in payloads]
    (self.workdir / 'ledger.jsonl').write_text('\n'.join(lines) + '\n')

  def test_agrees_and_exits_with_0(self):
    payloads = self._run()
    status = [row['status'] for row in payloads if row['step'] == 'verify']
    self.assertEqual(
        status, ['discard', 'discard', 'crash', 'keep', 'discard', 'discard']
    )
    done = subprocess.run(
        [sys.executable, recompute.__file__, self.workdir],
        capture_output=True,
        text=True,
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    self.assertIn('5 verdicts recomputed, 0 differences', done.stdout)

  @parameterized.parameters(
      ('effect', 1e-8),
      ('standard_error', 1e-8),
      ('p', 1e-8),
      ('alpha', 1e-8),
      ('low', -1e-8),
      ('perturbed_effect', 1e-8),
  )
  def test_finds_a_number_that_differs(self, name, by):
    payloads = self._run()
    payloads[-1][name] += by
    self._write(payloads)
    (difference,) = recompute.compare(self.workdir)
    self.assertStartsWith(difference, f'trial 5: {name} is ')

  def test_finds_a_verdict_that_differs(self):
    payloads = self._run()
    payloads[2]['status'] = 'keep'  # The verdict on trial 0.
    self._write(payloads)
    (difference,) = recompute.compare(self.workdir)
    self.assertIn('trial 0: keep in the ledger, discard from', difference)

  def test_finds_a_perturbed_effect_that_was_left_out(self):
    payloads = self._run()
    payloads[-1].update(perturbed_effect=None, status='keep')
    self._write(payloads)
    left_out, verdict = recompute.compare(self.workdir)
    self.assertStartsWith(left_out, 'trial 5: perturbed_effect is None in')
    self.assertIn('trial 5: keep in the ledger, discard from', verdict)

  def test_finds_perturbed_evidence_that_is_not_there(self):
    self._run()
    for folder in self.workdir.glob('trials/003/*-perturbed'):
      shutil.rmtree(folder)
    (difference,) = recompute.compare(self.workdir)
    self.assertStartsWith(difference, 'trial 3: perturbed_effect is 0.')
    self.assertIn('None from the evidence', difference)

  def test_finds_evidence_that_differs(self):
    self._run()
    file = self.workdir / 'trials/003/child-1/evidence/dev/step_000030.parquet'
    frame = pd.read_parquet(file)
    frame.loc[0, 'outcome'] ^= True
    frame.to_parquet(file)
    differences = recompute.compare(self.workdir)
    self.assertStartsWith(differences[0], 'trial 3: effect is ')


if __name__ == '__main__':
  absltest.main()
