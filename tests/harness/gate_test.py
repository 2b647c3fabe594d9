"""The gate: every layer stops what it is for, and honest functions pass."""

from absl.testing import absltest
from absl.testing import parameterized

from configs import math as math_config
from evojax import domains
from evojax.episodes import synthetic
from evojax.harness import gate
from evojax.harness import language
from tests.harness import gate_attacks
from tests.harness import honest
from tests.harness import recorded
from tests.sandbox import pure_attacks

CONFIG = math_config.get_config()
BASE, _ = synthetic.make_view(
    domains.make('math', **CONFIG.domain.kwargs.to_dict()), CONFIG
)
RECORDED = recorded.view(prompts=6, group_size=4)


def reasons(path, source, without=(), view=RECORDED):
  return gate.reasons(
      path,
      source,
      BASE,
      view,
      columns=BASE.columns,
      shapes=[(12, 8)],
      without=without,
  )


def named(items):
  return [('_' + item.name.replace(' ', '_'), item) for item in items]


class AttackTest(parameterized.TestCase):

  _fine: set[tuple[str, frozenset[str]]] = set()

  @parameterized.named_parameters(named(gate_attacks.ATTACKS))
  def test(self, attack):
    found = reasons(attack.path, attack.source)
    self.assertNotEmpty(found)
    for reason in found:
      self.assertNotIn('\n', reason)
      self.assertStartsWith(reason, attack.path)
    every = set(attack.layers)
    # Without its layers it gets through: nothing else stops it.
    self.assertEqual(reasons(attack.path, attack.source, every), [])
    self.control(attack.path, every)
    for layer in attack.layers if len(every) > 1 else ():
      alone = every - {layer}
      self.assertNotEmpty(reasons(attack.path, attack.source, alone), layer)
      self.control(attack.path, alone)

  def control(self, path, without):
    """An honest function passes in the same configuration."""
    kind = path.partition('/')[0]
    key = (kind, frozenset(without))
    if key not in self._fine:
      function = next(
          h for h in honest.FUNCTIONS if h.path.partition('/')[0] == kind
      )
      self.assertEqual(reasons(function.path, function.source, without), [])
      self._fine.add(key)

  def test_there_are_enough(self):
    self.assertGreaterEqual(len(gate_attacks.ATTACKS), 60)
    layers = {layer for a in gate_attacks.ATTACKS for layer in a.layers}
    self.assertEqual(layers, set(gate.LAYERS))
    sources = [a.source for a in gate_attacks.ATTACKS]
    self.assertLen(set(sources), len(sources))

  @parameterized.named_parameters(named(pure_attacks.ATTACKS))
  def test_what_the_box_stops_is_not_in_the_language(self, attack):
    self.assertNotEmpty(
        language.reasons('diagnostics/x.py', attack.source, BASE.columns)
    )


class HonestTest(parameterized.TestCase):

  @parameterized.named_parameters(named(honest.FUNCTIONS))
  def test_passes(self, function):
    self.assertEqual(reasons(function.path, function.source), [])

  def test_there_are_enough(self):
    self.assertGreaterEqual(len(honest.FUNCTIONS), 40)


class FormTest(parameterized.TestCase):
  """A function of the wrong form is told the right one, once."""

  @parameterized.parameters(
      ('keep.py', 'def keep(e):\n  return e.valid\n', r'keep\(e, state\)'),
      ('keep.py', 'def filter_(e, s):\n  return e.valid, s\n', 'keep'),
      ('weight.py', 'def weight(e, state):\n  return e.valid\n', 'weight'),
      ('diagnostics/x.py', 'def measure():\n  return {}\n', r'measure\(e\)'),
      ('backtests/x.py', 'def predict(e):\n  return {}\n', r'before, after\)'),
      ('reward.py', 'def reward(e):\n  return e.outcome\n', r'parts\(e\)'),
  )
  def test_signature(self, path, source, form):
    (reason,) = reasons(path, source)
    self.assertRegex(reason, f'^{path}: .*{form}.*returns .*A harness')

  @parameterized.parameters(
      ('keep.py', 'def keep(e, state):\n  return e.outcome.any(1), state\n',
       r'\(4,\), not \(4, 8\) = \[P, G\]$'),
      ('weight.py', 'def weight(e):\n  return e.outcome * 1.0\n',
       r'\(4, 8\), not \(4, 8, 1\) = \[P, G, turns\]$'),
  )  # fmt: skip
  def test_shape(self, path, source, text):
    (reason,) = reasons(path, source)
    self.assertRegex(reason, text)

  def test_more_arguments_may_have_defaults(self):
    source = (
        'def keep(e, state, least=1):\n'
        '  mixed = e.outcome.sum(1, keepdims=True) >= least\n'
        '  return mixed & e.valid, state\n'
    )
    for reason in reasons('keep.py', source):
      self.assertNotIn('must define', reason)


if __name__ == '__main__':
  absltest.main()
