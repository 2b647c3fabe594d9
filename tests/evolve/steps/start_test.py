"""Version 0: the report on its first steps."""

import pathlib
from unittest import mock

from absl.testing import absltest

from evojax.evolve import arms
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import recorded
from evojax.evolve import recorder
from evojax.evolve.steps import start
from evojax.ledger import records
from evojax.training import first_steps


class TrainTest(absltest.TestCase):

  def said(self, line, primary=True):
    known = dict(fork=None, primary=primary, path=pathlib.Path('run'))
    known |= dict(config=mock.MagicMock(), seed=mock.MagicMock())
    run = mock.Mock(spec=opening.Run, **known)
    with (
        mock.patch.multiple(arms, job=mock.DEFAULT, changes=mock.DEFAULT),
        mock.patch.object(
            arms,
            'train_one',
            return_value=mock.Mock(spec=records.Arm, updates=3),
        ),
        mock.patch.object(
            recorder, 'made_from', return_value=mock.Mock(spec=records.Train)
        ),
        mock.patch.object(first_steps, 'warning', return_value=line) as asked,
        mock.patch.object(recorded, 'findings', return_value=()),
        mock.patch.object(pairs, 'is_wasted', return_value=False),
    ):
      start.train(run)
    for call in asked.call_args_list:
      self.assertEqual(call.args, (pathlib.Path('run/arms/v0'),))
    return [call.args[0] for call in run.say.call_args_list]

  def test_no_signal_is_said_once(self):
    self.assertEqual(self.said('no signal'), ['no signal'])
    self.assertEqual(self.said(''), [])
    self.assertEqual(self.said('no signal', primary=False), [])


if __name__ == '__main__':
  absltest.main()
