"""Evidence of synthetic completions, of every kind and for any run."""

from absl.testing import absltest
import numpy as np

from configs import math as math_config
from evojax import domains
from evojax.domains import base
from evojax.episodes import synthetic

KWARGS = math_config.get_config().domain.kwargs.to_dict()


class EvidenceTest(absltest.TestCase):

  def test_right_and_wrong_answers_of_every_problem(self):
    config = math_config.get_config()
    view, solved = synthetic.make_view(domains.make('math', **KWARGS), config)
    self.assertEqual(view.valid.shape, (4, len(base.ATTEMPTS)))
    self.assertTrue(view.valid.all())
    self.assertEqual(solved, view.outcome.sum())
    # If the config's format is a tag, the answer is marked once.
    self.assertEqual(view.outcome.sum(1).tolist(), [1] * 4)

  def test_a_runs_seed_changes_nothing_but_its_column(self):
    views = []
    for seed in (0, 1):
      config = math_config.get_config()
      config.seed = seed
      views.append(
          synthetic.make_view(domains.make('math', **KWARGS), config)[0]
      )
    one, other = views
    self.assertEqual(one.columns, other.columns)
    for name in set(one.columns) - {'seed', 'grade_seconds'}:
      np.testing.assert_array_equal(
          getattr(one, name), getattr(other, name), name
      )

  def test_attempts_must_be_as_many_for_each_problem(self):
    domain = domains.make('math', **KWARGS)
    counts = iter((2, 3, 2, 2))
    attempts = lambda problem: ('no',) * next(counts)
    object.__setattr__(domain, 'attempts', attempts)  # The domain is frozen.
    with self.assertRaisesRegex(
        ValueError, "'math': 2 attempts for one problem and 3 for another"
    ):
      synthetic.make_view(domain, math_config.get_config())


if __name__ == '__main__':
  absltest.main()
