"""Everything that is shipped, or made of it, passes the gate itself."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from configs import math as math_config
import evojax
from evojax import domains
from evojax.domains import judged
from evojax.domains.math import grade
from evojax.episodes import synthetic
from evojax.harness import gate
from evojax.harness import library
from evojax.harness import parts as parts_lib
from evojax.harness import spec
from tests.harness import recorded

_DOMAINS = pathlib.Path(evojax.__file__).parent / 'domains'
SEEDS = sorted(
    path.relative_to(_DOMAINS).as_posix()
    for path in _DOMAINS.glob('*/seed_*')
    if path.is_dir()
)


def domain_of(name):
  """The domain whose evidence a shipped function is made for."""
  if name == recorded.OF_JUDGES:
    return 'judged'
  return 'swe' if name in recorded.OF_AGENTS else 'math'


def evidence(domain):
  """(made up, recorded) of a domain, or of math with a judge."""
  if domain == 'judged':
    columns = (*grade.COLUMNS, judged.COLUMN)
    real = recorded.view(prompts=6, group_size=4, columns=columns)
    return real, real
  config = math_config.get_config()
  kwargs = config.domain.kwargs.to_dict() if domain == 'math' else {}
  base, _ = synthetic.make_view(domains.make(domain, **kwargs), config)
  real = recorded.view(prompts=6, group_size=4) if domain == 'math' else base
  return base, real


class ShippedTest(parameterized.TestCase):

  def passes(self, domain, path, source):
    base, real = evidence(domain)
    self.assertEqual(
        gate.reasons(path, source, base, real, columns=base.columns), []
    )

  @parameterized.parameters(*SEEDS)
  def test_seed_harnesses(self, folder):
    domain = folder.partition('/')[0]
    base, _ = evidence(domain)
    for path, source in spec.read(_DOMAINS / folder).files.items():
      with self.subTest(path):
        self.assertTrue(library.is_shipped(path, source))
        # Weights of zero may be constant on what is made up: nothing recorded.
        self.assertEqual(
            gate.reasons(path, source, base, columns=base.columns), []
        )

  @parameterized.parameters(*library.names())
  def test_library(self, name):
    source = library.source(name)
    folder = name.partition('/')[0]
    path = name if folder == 'backtests' else f'{folder}.py'
    self.assertTrue(library.is_shipped(path, source))
    self.passes(domain_of(name), path, source)

  @parameterized.parameters(
      *(n for n in library.names() if n.startswith('reward/'))
  )
  def test_parts_added_to_a_reward(self, name):
    """Proposers make it of the library; it is another text."""
    text = parts_lib.add(library.source('seed/reward.py'), library.source(name))
    self.assertFalse(library.is_shipped('reward.py', text))
    self.passes(domain_of(name), 'reward.py', text)

  def test_a_changed_text_is_not_shipped(self):
    text = library.source('keep/outcome_variance.py')
    self.assertTrue(library.is_shipped('keep.py', text))
    self.assertFalse(library.is_shipped('keep.py', text + '#\n'))

  @parameterized.parameters('weight.py', 'reward.py', 'diagnostics/keep.py')
  def test_what_is_shipped_as_a_filter_is_nothing_else(self, path):
    text = library.source('keep/outcome_variance.py')
    self.assertFalse(library.is_shipped(path, text))


if __name__ == '__main__':
  absltest.main()
