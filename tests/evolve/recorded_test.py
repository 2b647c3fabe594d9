"""Tests for what a run reads from its recorded arms."""

import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.diagnosis import examine
from evojax.diagnosis import findings
from evojax.diagnosis.readers import workdir
from evojax.evolve import opening
from evojax.evolve import recorded


class FindingsTest(parameterized.TestCase):

  @parameterized.parameters(('seed_harness', 1), ('seed_blind', 0))
  def test_a_blind_run_is_told_nothing(self, seed, count):
    finding = findings.Finding(
        check='history_leak', severity='critical', text='x', change='y'
    )
    diagnosis = findings.Diagnosis((finding,), (), (), 'findings', 'x')
    run = mock.Mock(spec=opening.Run, path=pathlib.Path('run'))
    run.config.evolve.seed_harness = seed
    run.harnesses = mock.Mock()
    with (
        mock.patch.object(workdir, 'read_arms'),
        mock.patch.object(examine, 'examine', return_value=diagnosis),
    ):
      found = recorded.findings(run, ['arms/v0'], 'hash')
    self.assertEqual([f.check for f in found], ['history_leak'] * count)


if __name__ == '__main__':
  absltest.main()
