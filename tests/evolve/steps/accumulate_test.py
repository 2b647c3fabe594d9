"""What the run learns from a verdict."""

import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.evolve import opening
from evojax.evolve import skills as skills_lib
from evojax.evolve.steps import accumulate
from evojax.harness import delta as delta_lib
from evojax.ledger import records
from tests.ledger import samples


class LearnTest(parameterized.TestCase):

  @parameterized.parameters(
      ('keep', 0.03, 'a_check', 'abc'),
      ('discard', 0.03, 'a_check', ''),
      ('keep', None, 'a_check', ''),
      # The repair of a fault that was kept because it does no harm.
      ('keep', -0.01, 'a_check', ''),
      ('keep', 0.03, '', ''),
      ('keep', 0.03, 'inbox/mine.json', ''),
  )
  def test_skills_of_gains(self, status, effect, trigger, expected):
    skill = mock.Mock(sha256='abc')
    opened = samples.record(records.Open, config=dict(name='run'))
    run = mock.Mock(
        spec=opening.Run,
        harnesses=mock.Mock(),
        setup=mock.Mock(),
        config=mock.Mock(),
        recorder=mock.Mock(find=lambda kind: opened),
        path=pathlib.Path(),
    )
    run.config.domain.name = 'math'
    with (
        mock.patch.object(skills_lib, 'learned', return_value=skill),
        mock.patch.object(skills_lib, 'write'),
    ):
      found = accumulate._learn(
          run,
          samples.record(records.Version),
          mock.Mock(spec=delta_lib.Delta, after='a'),
          samples.record(records.Hypothesize, trigger=trigger),
          samples.record(
              records.Verify, status=status, effect=effect, low=-0.1, high=0.1
          ),
      )
    self.assertEqual(found, expected)

  def test_a_renamed_run_takes_back_what_it_learned(self):
    # `name` may change when a run is resumed; its evidence keeps the first one.
    opened = samples.record(records.Open, config=dict(name='first'))
    learned = samples.record(records.Accumulate, skill='abc')
    rows = {records.Open: opened, records.Accumulate: learned}
    run = mock.Mock(
        spec=opening.Run,
        recorder=mock.Mock(find=lambda kind, **_: rows[kind]),
        config=mock.Mock(),
        path=pathlib.Path('run'),
    )
    run.config.name = 'second'
    asked = []
    with mock.patch.object(
        skills_lib, 'withdraw', lambda *given: asked.append(given)
    ):
      accumulate.unlearn(run, 3)
    folder = pathlib.Path('run') / 'skills'
    self.assertEqual(asked, [(folder, 'abc', 'first', 3)])


if __name__ == '__main__':
  absltest.main()
