"""Training on episodes whose tools and tests run in the real box."""

import pathlib
import tempfile

from absl.testing import absltest
import numpy as np

from evojax.domains.swe import evidence
from evojax.domains.swe import tools
from evojax.domains.swe import workspaces
from evojax.evidence import store
from evojax.training import loop as training_loop
from tests import tiny
from tests.domains.swe import scripted
from tests.sandbox import attacks


class TrainTest(absltest.TestCase):

  def test_two_steps(self):
    if missing := attacks.missing('T0'):
      self.skipTest(missing)
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    policy = tiny.make_policy(root / 'policy', max_positions=1024)
    config = scripted.make_config(policy)
    training_loop.run(config, str(root / 'run'))
    self.assertEqual(workspaces.shared('episodes', 2).lent, 0)
    workspaces.shared('episodes', 2).close()
    rows = store.read(root / 'run', 'train')
    self.assertTrue(rows['graded'].all())
    self.assertGreater(rows['n_turns'].max(), 3)
    # The fix is in the history: only copying it, as a repair, is right.
    edits = rows['first_edit_turn'] >= 0
    self.assertFalse((rows['outcome'] & ~edits).any())
    np.testing.assert_array_equal(
        rows['outcome'], (rows['f2p_passed'] == 1) & (rows['p2p_passed'] == 1)
    )
    submit = tools.ACTIONS['submit']
    last = np.array([actions[-1] for actions in rows['actions']])
    np.testing.assert_array_equal(rows['submitted'], last == submit)
    stops = set(rows['stop_reason'])
    self.assertIn(evidence.STOP_REASON['submitted'], stops)
    kinds = set(rows['read_history'])
    self.assertLessEqual(kinds, {True, False})
    for split in ('dev', 'sealed'):
      self.assertTrue(store.read(root / 'run', split)['graded'].all())


if __name__ == '__main__':
  absltest.main()
