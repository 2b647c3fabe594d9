"""Sealed scores of a run that evolved, tested without policies."""

import pathlib
from unittest import mock

from absl.testing import absltest
import ml_collections
import numpy as np

from evojax.evolve import opening
from evojax.evolve.steps import final
from evojax.ledger import records
from tests.eval import fakes
from tests.ledger import samples


class _Audited(fakes.Domain):
  audit = fakes.Domain()  # A stricter grader.


class FinalTest(absltest.TestCase):

  def test_sealed_problems_are_graded_by_the_stricter_judge(self):
    domain, asked = _Audited(), []
    run = mock.Mock(
        spec=opening.Run,
        config=ml_collections.ConfigDict({'eval': dict(problems=2, samples=1)}),
        path=pathlib.Path('w'),
        compared=(),
        progress=mock.Mock(),
        scorer=mock.Mock(),
        harnesses=mock.Mock(),
        recorder=mock.Mock(),
    )
    run.harnesses.judge = {'h': domain.audit}.get
    seal = samples.record(records.Seal, seed=3)
    run.recorder.find = lambda kind: seal if kind is records.Seal else None

    def scores(wanted):
      asked.append(wanted)
      return np.array([0.0, 1.0])

    run.scorer.scores = scores
    head = samples.record(
        records.Version, version='v1', checkpoint='c', harness='h'
    )
    with mock.patch.object(final, '_compute', return_value={}):
      found = final.score(run, head, None)
    self.assertLen(asked, 2)  # The base policy and the evolved one.
    self.assertEqual({w.split for w in asked}, {'sealed'})
    for wanted in asked:
      self.assertIs(wanted.domain, domain.audit)
    self.assertEqual(found.scores['evolved'].value, 0.5)


if __name__ == '__main__':
  absltest.main()
