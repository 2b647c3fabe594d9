"""Functions in the style of researchers pass the gate, or get a remedy."""

import pathlib
import re
import types

from absl.testing import absltest
from absl.testing import parameterized

from tests.harness import gate_test

_TEXT = pathlib.Path(__file__).with_name('researchers.txt').read_text()
# Name -> pattern of its refusal.
REFUSALS = {
    'argsort ranks': r'change places .*count how many are smaller: \(x',
    'unmasked z-score': r'not valid change .*: x.mean\(.*where=e.valid',
    # It counts groups without a valid completion.
    'a deque as a window': r'not valid change .*where=e.valid\), and groups',
    # An honest habit that is refused all the same.
    'old ways of formatting': r'e\[name\] reads a column whose name is comput',
    'noise from a fixed seed': 'fixed seed pays by position; compute it from',
}


def functions():
  """Yield every function, with its name, path, source and refusal."""
  for block in _TEXT.split('\n=== ')[1:]:
    head, _, source = block.partition('\n')
    path, _, name = head.partition(': ')
    name = name.removeprefix('refused: ')
    yield types.SimpleNamespace(
        name=name, path=path, source=source, refusal=REFUSALS.get(name)
    )


class ResearchersTest(parameterized.TestCase):

  @parameterized.named_parameters(
      *((f'_{re.sub(r"[^a-zA-Z0-9]+", "_", f.name)}', f) for f in functions())
  )
  def test(self, function):
    found = gate_test.reasons(function.path, function.source)
    if function.refusal is None:
      self.assertEqual(found, [])
    else:
      self.assertRegex('\n'.join(found), function.refusal)

  def test_there_are_enough(self):
    found = list(functions())
    self.assertGreaterEqual(len(found), 45)
    self.assertGreaterEqual(sum(f.refusal is None for f in found), 47)
    self.assertContainsSubset(REFUSALS, [f.name for f in found])


if __name__ == '__main__':
  absltest.main()
