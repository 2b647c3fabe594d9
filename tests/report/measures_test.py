"""Every measure and statistic that comes with evojax is explained."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax import domains
from evojax.diagnosis import rules
from evojax.domains.coding import grade as coding_grade
from evojax.domains.swe import evidence as swe_evidence
from evojax.evolve import backtest
from evojax.harness import run
from evojax.harness import spec
from evojax.report import measures
from tests.harness import recorded

_COLUMNS = {'coding': coding_grade.COLUMNS, 'swe': swe_evidence.COLUMNS}


class MeasuresTest(parameterized.TestCase):

  @parameterized.product(
      domain=('math', 'coding', 'swe'), name=('seed_harness', 'seed_blind')
  )
  def test_measures_of_seed_harnesses(self, domain, name):
    harness = spec.read(f'{domains.load(domain).__path__[0]}/{name}')
    given = {'columns': _COLUMNS[domain]} if domain in _COLUMNS else {}
    view = recorded.view(**given)
    functions = run.Functions(harness)
    found = {
        measure
        for diagnostic in functions.diagnostics
        for measure in functions.measure(diagnostic, view)
    }
    self.assertNotEmpty(found)
    self.assertEqual([n for n in found if not measures.meaning(n)], [])

  def test_rules(self):
    self.assertEqual([n for n in rules.NAMES if not measures.meaning(n)], [])

  def test_statistics_of_backtests(self):
    one = np.ones((1, 2))
    rewarded = backtest.Rewarded(
        rewards=one,
        advantages=one,
        kept=one[0, :1] > 0,
        parts={},
        weights={},
        outcome=one > 0,
        graded=one > 0,
        n_tokens=one,
    )
    for name in backtest.compare(rewarded, rewarded):
      if not name.endswith('_before'):
        self.assertNotEmpty(measures.statistic(name), name)

  def test_families_of_names(self):
    self.assertEqual(
        measures.meaning('outcome_level_2'),
        'solved share of problems of difficulty 2',
    )
    self.assertEqual(
        measures.meaning('share_direct'), 'completions of the mode direct'
    )
    self.assertEqual(measures.meaning('of_my_own'), '')


if __name__ == '__main__':
  absltest.main()
