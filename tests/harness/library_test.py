"""Shipped functions with hand-worked values, and their stated sources."""

import ast

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.domains.swe import evidence
from evojax.domains.swe import tools
from evojax.harness import library
from evojax.harness import run
from evojax.harness import spec
from tests.harness import recorded


def functions(name):
  """Return the functions of a harness with one shipped file."""
  folder, file = name.split('/')
  path = name if folder == 'backtests' else f'{folder}.py'
  return run.Functions(spec.Harness({}, {path: library.source(name)}))


class LibraryTest(parameterized.TestCase):

  def test_names(self):
    names = library.names()
    self.assertIn('keep/outcome_variance.py', names)
    self.assertEmpty([n for n in names if '__' in n])
    with self.assertRaisesRegex(ValueError, "no 'keep/x.py'; it has backtests"):
      library.source('keep/x.py')

  @parameterized.parameters(*library.names())
  def test_has_a_docstring(self, name):
    doc = ast.get_docstring(ast.parse(library.source(name)))
    self.assertGreater(len(doc or ''), 40)

  def test_outcome_variance(self):
    f = functions('keep/outcome_variance.py')
    kept, _ = f.keep(
        recorded.view(
            prompts=4,
            outcome=[[1, 1, 1], [0, 0, 0], [1, 0, 0], [1, 1, 0]],
            # Only an invalid completion makes the last group mixed.
            valid=[[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 0]],
        ),
        f.init(),
    )
    np.testing.assert_array_equal(kept, np.repeat([[0], [0], [1], [0]], 3, 1))

  def test_middle_difficulty(self):
    f = functions('keep/middle_difficulty.py')
    outcome = np.zeros((4, 20), bool)
    for group, solved in enumerate((1, 2, 18, 19)):  # 5, 10, 90, 95 %
      outcome[group, :solved] = True
    view = recorded.view(prompts=4, group_size=20, outcome=outcome)
    kept, _ = f.keep(view, f.init())
    np.testing.assert_array_equal(kept[:, 0], [False, True, True, False])

  def test_ema_outcome_spread(self):
    f = functions('keep/ema_outcome_spread.py')
    outcome = np.zeros((2, 100), bool)
    outcome[0, :50] = True  # Spread 0.5.
    outcome[1, :2] = True  # sqrt(0.02 * 0.98) = 0.14.
    view = recorded.view(prompts=2, group_size=100, outcome=outcome)
    kept, state = f.keep(view, f.init())
    # Usual: (0.5 + 0.14) / 2 = 0.32; 0.14 < 0.16.
    np.testing.assert_array_equal(kept[:, 0], [True, False])
    np.testing.assert_allclose(state['mean'], 0.1 * (0.5 + 0.14) / 2, rtol=1e-5)
    # After steps with little spread, the same group is usual.
    low = recorded.view(prompts=2, group_size=100, outcome=outcome[[1, 1]])
    for _ in range(3):
      _, state = f.keep(low, state)
    np.testing.assert_array_equal(f.keep(view, state)[0][:, 0], [True, True])

  def test_hard_groups(self):
    weight = functions('weight/hard_groups.py').weight(
        recorded.view(
            prompts=3,
            group_size=2,
            outcome=[[0, 0], [1, 0], [1, 1]],
            n_turns=[[1, 2], [1, 1], [1, 1]],
        )
    )
    self.assertEqual(weight.shape, (3, 2, 2))
    np.testing.assert_array_equal(weight[:, 0, 0], [1.5, 1.0, 0.5])

  def test_finished_only(self):
    weight = functions('weight/finished_only.py').weight(
        recorded.view(truncated=[[1, 0, 0], [0, 1, 0]])
    )
    np.testing.assert_array_equal(weight[..., 0], [[0, 1, 1], [1, 0, 1]])

  def test_brevity(self):
    parts = functions('reward/brevity.py').parts(
        recorded.view(
            prompts=3,
            n_tokens=[[10, 30, 20], [5, 5, 5], [10, 20, 99]],
            outcome=[[1, 1, 0], [1, 0, 1], [0, 1, 1]],
            valid=[[1, 1, 1], [1, 1, 1], [1, 1, 0]],
        )
    )
    # 0.5 - (n - shortest) / (longest - shortest); <= 0 where not solved.
    np.testing.assert_allclose(
        parts['brevity'], [[0.5, -0.5, 0], [0, 0, 0], [0, -0.5, 0]]
    )

  def test_parts_for_agents(self):
    read, edit = (tools.ACTIONS[name] for name in ('read', 'edit'))
    view = recorded.view(
        prompts=1,
        group_size=4,
        columns=evidence.COLUMNS,
        lists={
            'actions': [
                [edit, edit, edit, read],
                [read, edit],
                [read, edit, read, edit],
                [read],
            ],
            'arguments': [[0] * 4, [0] * 2, [0] * 4, [0]],
            'action_ok': [[True] * 4, [True] * 2, [True] * 4, [True]],
        },
        n_turns=[4, 2, 4, 1],
        first_edit_turn=[0, 1, 1, -1],
        searched_before_edit=[0, 1, 1, 0],
        tested_after_edit=[1, 0, 0, 1],
        f2p_passed=[1, 0.5, 0.5, 0],
        p2p_passed=[0.9, 1, 1, 1],
        valid=[[1, 1, 1, 1]],
    )
    for name, expected in {
        'edit_streak': [-0.5, 0, 0, 0],
        'searched_first': [0, 1, 1, 0],
        # Without an edit, tests earn nothing.
        'tested_edit': [1, 0, 0, 0],
        # The first edit broke tests that had passed.
        'fail_to_pass': [0, 0.5, 0.5, 0],
        # 0.5 - (turns - 1) / 3.
        'few_turns': [-0.5, 1 / 6, -0.5, 0.5],
    }.items():
      parts = functions(f'reward/{name}.py').parts(view)
      np.testing.assert_allclose(parts[name], [expected], atol=1e-6)

  def test_overlong_episode(self):
    view = recorded.view(
        prompts=1,
        group_size=4,
        max_tokens=80,
        n_tokens=[20, 20, 20, 80],
        lists={'observation_tokens': [[30, 10], [40, 10], [60], []]},
        valid=[[1, 1, 1, 1]],
    )
    # 60 and 70 of 80 tokens, then all of them: (0.75 - 70 / 80) / 0.25.
    parts = functions('reward/overlong_episode.py').parts(view)
    np.testing.assert_allclose(
        parts['overlong_episode'], [[0, -0.5, -1, -1]], atol=1e-6
    )

  def test_rare_success(self):
    parts = functions('reward/rare_success.py').parts(
        recorded.view(group_size=4, outcome=[[1, 0, 0, 0], [1, 1, 1, 1]])
    )
    np.testing.assert_allclose(
        parts['rare_success'], [[0.75, 0, 0, 0], [0, 0, 0, 0]]
    )

  def test_alive_groups(self):
    outcome = [[1, 0], [0, 0], [1, 1], [1, 0]]
    same = dict(prompts=4, group_size=2, outcome=outcome, kept=[[1, 1]] * 4)
    before = recorded.view(advantage=[[1, -1], [0, 0], [0, 0], [0, 0]], **same)
    after = recorded.view(advantage=[[1, -1], [1, -1], [2, -2], [0, 0]], **same)
    self.assertEqual(
        functions('backtests/alive_groups.py').predict(
            'alive_groups', before, after
        ),
        {
            'alive_by_outcome': 0.25,
            'alive_by_outcome_change': 0.0,
            'alive_by_shaping': 0.5,
            'alive_by_shaping_change': 0.5,
        },
    )

  def test_sign_agreement(self):
    same = dict(
        prompts=3,
        group_size=2,
        outcome=[[1, 0], [0, 0], [1, 0]],
        kept=[[1, 1], [1, 1], [0, 0]],
    )
    dead = recorded.view(advantage=[[0, 0], [0, 0], [9, 9]], **same)
    live = recorded.view(advantage=[[3, 1], [2, -2], [9, 9]], **same)
    found = functions('backtests/sign_agreement.py').predict(
        'sign_agreement', dead, live
    )
    # Mixed and kept: |3| agrees, |1| does not; 4 of 3+1+2+2 lie in the mixed.
    self.assertEqual(found, {'sign_agreement': 0.75, 'phantom_share': 0.5})

  def test_length_pull(self):
    same = dict(n_tokens=[[1, 2, 3], [11, 12, 13]], kept=[[1] * 3] * 2)
    longer = recorded.view(advantage=[[-1, 0, 1], [-1, 0, 1]], **same)
    shorter = recorded.view(advantage=[[1, 0, -1], [1, 0, -1]], **same)
    found = functions('backtests/length_pull.py').predict(
        'length_pull', longer, shorter
    )
    self.assertAlmostEqual(found['length_pull'], -1.0, places=6)
    self.assertAlmostEqual(found['length_pull_change'], -2.0, places=6)

  def test_constant_parts(self):
    view = recorded.view(
        parts=('flat', 'live'),
        part_flat=[[1, 1, 1], [0, 0, 0]],
        part_live=[[1, 0, 1], [0.5, 0.5, 0.5]],
    )
    self.assertEqual(
        functions('backtests/constant_parts.py').predict(
            'constant_parts', view, view
        ),
        {'varies_flat': 0.0, 'varies_live': 0.5},
    )


if __name__ == '__main__':
  absltest.main()
