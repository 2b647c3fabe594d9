"""The package and `recompute` agree on made-up rounds, and only if both count
the same arms, pairs and levels."""

import json
import pathlib
import shutil
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections
import numpy as np
import pandas as pd

from evojax.eval import race as race_lib
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import standings
from evojax.ledger import chain
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.ledger import rows as rows_lib
from tests.evolve import recompute
from tests.ledger import samples

PAIRS, UPDATES, GROUPS = 4, 4, 12
# Gain of a candidate; trials 3 and 4 enter in the second round.
GAINS = {0: 0.3, 1: 0.02, 2: -0.2, 3: 0.04, 4: 0.0}
FIELDS = ((0, 1, 2), (1, 3, 4), (1,))
EVOLVE = {
    'pairs': PAIRS,
    'rounds': 4,
    'tokens': 0,
    'patience': 3,
    'entries': 5,
    'false_discovery_rate': 0.2,
}
CONFIG = {'evolve': EVOLVE, 'grpo': {'prompts': GROUPS}}


class RecomputeTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.workdir = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.rng = np.random.default_rng(1)
    run = mock.Mock(
        spec=opening.Run,
        recorder=mock.Mock(),
        path=cls.workdir,
        config=ml_collections.ConfigDict(CONFIG),
    )
    opened = samples.record(records.Open, config=CONFIG)
    # Trial 3 repairs a critical fault: it need only exclude a loss. It waited
    # for a round, and bets all in its first one.
    remedy = records.Remedy(setting='weight', part='length', value=0.0)
    finding = samples.record(
        records.Finding, severity='critical', remedies=(remedy,)
    )
    delta = samples.record(
        records.Delta, changes=(('reward.weights.length', -2.0, 0.0),)
    )
    rows = [
        opened,
        samples.record(records.Diagnose, trial=3, findings=(finding,)),
        samples.record(records.Design, trial=3, delta=delta),
    ]
    run.recorder.find.return_value = opened
    for number, field in enumerate(FIELDS):
      run.recorder.history = samples.run(*rows)
      arms = [cls._arm(number, None, i) for i in range(PAIRS)]
      for trial in field:
        # The third candidate is behind at half-time; the fifth collapses.
        count = {2: 2, 4: 2}.get(trial, PAIRS)
        arms += [cls._arm(number, trial, i) for i in range(count)]
      if 4 in field:
        arms[-1] = cls._arm(number, 4, 1, status='collapse')
      known = {t.number: t for t in run.recorder.history.trials}
      trials = [
          known.get(n) or history_lib.Trial(index=n, number=n, seconds={})
          for n in field
      ]
      if number == 1:
        arms += [cls._arm(number, 0, i, role='shadow') for i in range(PAIRS)]
      race = samples.record(
          records.Race,
          round=number,
          scored_by='rollouts',
          arms=tuple(arms),
          standings=standings.after_race(run, number, trials, arms, 'rollouts'),
      )
      rows.append(race)
      if number == 0:  # Its shadow confirms it, so levels rise.
        rows += samples.trial(0, 'v0', 'v1', 0.3)
        keep = dict(trial=0, round=1, look=1, decision='keep')
        rows.append(samples.record(records.Shadow, **keep))
      if number == 1:
        ahead, errors = pairs.differences(
            run, number, arms, 'rollouts', 'shadow', 0
        )
        look = dict(trial=0, round=1, look=2, decision='keep')
        look['differences'] = tuple(-d for d in ahead)
        look['errors'] = tuple(errors)
        rows.append(samples.record(records.Shadow, **look))
    cls.races = [row for row in rows if isinstance(row, records.Race)]
    ledger = chain.Ledger(cls.workdir / 'ledger.jsonl')
    for row in rows:
      rows_lib.append(ledger, row, records.Measured())

  @classmethod
  def _arm(cls, number, trial, pair, status='done', role=None):
    """Return an arm with evidence; each pair has its own problems."""
    role = role or ('candidate' if trial is not None else 'incumbent')
    folder = f'arms/r{number:03d}-{role}{trial}-{pair}'
    gain = 0 if trial is None else GAINS[trial]
    refills = 3 if trial == 1 else 0
    for step in range(UPDATES // 2 if status == 'collapse' else UPDATES):
      hard = np.random.default_rng([number, pair, step]).random(GROUPS)
      share = np.clip(0.4 * hard + 0.2 + gain, 0, 1) * (status == 'done')
      share = np.append(share, [0.0] * refills)
      outcomes = cls.rng.random((len(share), 8)) < share[:, None]
      group, _ = np.indices(outcomes.shape).reshape(2, -1)
      # A grader fails for one group in one of two arms.
      graded = (group > 0) | (pair > 0) | (trial is not None)
      path = cls.workdir / folder / f'evidence/train/step_{step:06d}.parquet'
      path.parent.mkdir(parents=True, exist_ok=True)
      pd.DataFrame(
          {
              'group': group,
              'problem_id': [f'{pair}-{step}-{g}' for g in group],
              'outcome': outcomes.ravel(),
              'graded': graded,
          }
      ).to_parquet(path)
    return samples.record(
        records.RacedArm,
        folder=folder,
        role=role,
        trial=trial,
        pair=pair,
        status=status,
        updates=UPDATES,
    )

  def test_all_numbers_agree(self):
    self.assertEqual(recompute.compare(self.workdir), [])
    counts = [len(s.differences) for r in self.races for s in r.standings]
    self.assertEqual(counts, [4, 4, 2, 4, 4, 2, 4])
    first = self.races[0].standings[0]
    self.assertGreaterEqual(first.e_value, first.threshold)

  @parameterized.product(
      margin=(0.0, 0.02), count=(2, 3, 4), last=(True, False)
  )
  def test_evidence_is_counted_alike(self, margin, count, last):
    rng = np.random.default_rng(count)
    level, found = 0.2, []
    for _ in range(200):
      d = rng.normal(0.02, 0.02, count).tolist()
      errors = rng.uniform(0, 0.02, count).tolist()
      ordered = sorted(d, reverse=True)
      theirs = [
          race_lib.after_round(
              race_lib.Standing(index=1, margin=margin),
              each,
              errors,
              spread=0.01,
              alpha=level,
              last=last,
          ).e_value
          for each in (d, ordered)
      ]
      mine = [
          recompute.e_value(each, errors, 0.01, 1.0, level, last, margin)
          for each in (d, ordered)
      ]
      np.testing.assert_allclose(theirs, mine, rtol=1e-9)
      found.append(not np.allclose(theirs[0], theirs[1]))
    # The order of the pairs counts only for the repair of a critical fault.
    self.assertEqual(any(found), margin > 0)

  @parameterized.parameters(
      'differences', 'errors', 'e_value', 'threshold', 'low', 'pairs', 'index'
  )
  def test_a_number_that_was_altered(self, name):
    copy = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), 'run')
    shutil.copytree(self.workdir, copy)
    lines = (copy / 'ledger.jsonl').read_text().splitlines()
    last = json.loads(lines[-1])
    standing = last['payload']['standings'][-1]
    value = standing[name]
    if isinstance(value, list):
      standing[name] = [value[0] + 1e-6, *value[1:]]
    else:
      standing[name] = value + 1e-6
    lines[-1] = json.dumps(last)
    (copy / 'ledger.jsonl').write_text('\n'.join(lines))
    (found,) = recompute.compare(copy)
    self.assertStartsWith(found, f'round 2, trial 1: {name} is')


if __name__ == '__main__':
  absltest.main()
