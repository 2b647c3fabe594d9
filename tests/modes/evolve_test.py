"""Arguments that a run with trials and one without get."""

from absl.testing import absltest
from absl.testing import parameterized

from evojax.evolve import loop
from evojax.modes import evolve
from evojax.modes import train
from tests import tiny


class RunTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    patch = absltest.mock.patch.object
    self.evolves = self.enterContext(patch(loop, 'run', return_value={}))
    self.trains = self.enterContext(patch(train, 'run', return_value={}))

  def test_a_run_with_trials_evolves(self):
    config = tiny.evolving()
    evolve.run(config, '/x', fork_from='/y', executor='local', workers=2)
    self.evolves.assert_called_once_with(
        config, '/x', fork_from='/y', executor='local', workers=2
    )
    self.trains.assert_not_called()

  def test_a_run_without_trials_trains(self):
    config = tiny.evolving(evolve__rounds=0)
    unset = dict(compare=[], fork_version='', executor='inprocess', workers=0)
    evolve.run(config, '/x', '/y', **unset)
    self.trains.assert_called_once_with(config, '/x', fork_from='/y')
    self.evolves.assert_not_called()

  @parameterized.parameters(
      dict(compare=['/z']),
      dict(fork_version='v1'),
      dict(executor='local'),
      dict(workers=2),
  )
  def test_what_training_cannot_use_is_refused(self, **option):
    (name,) = option
    with self.assertRaisesRegex(ValueError, f'--{name}=.*evolve.rounds=0'):
      evolve.run(tiny.evolving(evolve__rounds=0), '/x', **option)
    self.trains.assert_not_called()


if __name__ == '__main__':
  absltest.main()
