"""The gate: every layer stops its attacks, and honest functions pass."""

from absl.testing import absltest
from absl.testing import parameterized

from configs import math as math_config
from evojax import domains
from evojax.episodes import synthetic
from evojax.harness import calls
from evojax.harness import gate
from evojax.harness import language
from evojax.harness import run
from tests.harness import gate_attacks
from tests.harness import honest
from tests.harness import recorded
from tests.harness import training_attacks
from tests.sandbox import pure_attacks

CONFIG = math_config.get_config()
BASE, _ = synthetic.make_view(
    domains.make('math', **CONFIG.domain.kwargs.to_dict()), CONFIG
)
RECORDED = recorded.view(prompts=6, group_size=4)
STEP = recorded.view(prompts=24, group_size=16)


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
    # Without its layers it passes: nothing else stops it.
    self.assertEqual(reasons(attack.path, attack.source, every), [])
    self.control(attack.path, every)
    for layer in attack.layers if len(every) > 1 else ():
      alone = every - {layer}
      self.assertNotEmpty(reasons(attack.path, attack.source, alone), layer)
      self.control(attack.path, alone)

  def control(self, path, without):
    """Check that an honest function passes in the same configuration."""
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


def in_training(path, source):
  """Return reasons for steps of 24 x 16 completions and runs of 180 steps."""
  return gate.reasons(
      path,
      source,
      BASE,
      STEP,
      columns=BASE.columns,
      shapes=[(24, 16), (12, 8)],
      steps=180,
  )


def reward(expression, before=''):
  return f"{before}def parts(e):\n  return {{'x': {expression}}}\n"


class TrainingTest(parameterized.TestCase):
  """A function that passes behaves in training as it did at the gate."""

  @parameterized.named_parameters(
      (
          'a part that is 0 at the group size',
          'reward.py',
          reward('e.outcome * (e.valid.sum(1, keepdims=True) % 8 > 0)'),
          'part x tells no two completions apart: .* on random columns of'
          ' 24 x 16 completions, where it is 0 to 0, .*use no sizes',
      ),
      (
          'a filter that is empty at the group size',
          'keep.py',
          'def keep(e, s):\n'
          '  return e.valid & (e.valid.sum(1, keepdims=True) % 8 > 0), s\n',
          'keeps no completion on random columns of 24 x 16 completions',
      ),
      (
          'a declared part that turns round',
          'reward.py',
          reward(
              'e.outcome * (1.0 - 2.0 * (e.valid.sum() < 60))',
              "ACROSS_GROUPS = ('x',)\n",
          ),
          'part x is ordered differently .*is -1.00.*by shares and ranks',
      ),
      (
          'a silent diagnostic',
          'diagnostics/x.py',
          'def measure(e):\n'
          '  n = int(e.valid.sum())\n'
          "  return {'x': (e.outcome & e.valid).sum() / n} if 0 < n < 60"
          ' else {}\n',
          'returns x on some completions, but not on .*use no sizes',
      ),
      (
          'a filter that ends after 17 calls',
          'keep.py',
          "def init():\n  return {'n': 0.0}\n"
          'def keep(e, s):\n'
          "  return e.valid & (s['n'] < 17), {'n': s['n'] + 1}\n",
          'keeps no completion at call 18 of 180 in a row.*100 % of them at'
          ' call 1 .*counter',
      ),
      (
          'a loop without end',
          'reward.py',
          'def _x(e):\n'
          '  n = 0\n'
          '  if (e.mean_logprob < -40).any():\n'
          '    for i in range(10**9):\n'
          '      n = n + i\n'
          '  return e.outcome * 1.0\n' + reward('_x(e)'),
          'hang: no answer within 0.5 s; it ends on synthetic evidence alone,'
          ' .*a log-prob of 0.*range',
      ),
      (
          'not a number where it is certain',
          'reward.py',
          'import numpy as np\n'
          + reward('np.where(e.mean_logprob > -1e-9, np.nan, e.outcome)'),
          'non_finite: x is nan .*rare values: .*log-probs of 0',
      ),
      (
          'a fault late in a run, of a state that it changes in place',
          'keep.py',
          'import numpy as np\n'
          "def init():\n  return {'n': np.zeros(())}\n"
          'def keep(e, state):\n'
          "  state['n'] = np.minimum(state['n'] + 1, 99)\n"
          '  mixed = e.outcome.any(1) & ~e.outcome.all(1)\n'
          "  if state['n'] > 20:\n"
          '    return mixed, state\n'
          '  return np.repeat(mixed[:, None], e.valid.shape[1], 1), state\n',
          r'wrong_shape: keep has shape \(\d+,\)',
      ),
  )  # fmt: skip
  def test_refused(self, path, source, text):
    found = in_training(path, source)
    self.assertRegex(found[0], f'^{path}: .*{text}')

  def test_one_reason_for_all_numbers_that_are_none(self):
    source = 'import numpy as np\n' + reward(
        'np.where(e.truncated, np.nan, e.outcome)'
    )
    self.assertLen(in_training('reward.py', source), 1)

  @parameterized.product(attacks=('SIZES', 'TIMES', 'RARE'), part=(0, 1, 2, 3))
  def test_attacks(self, attacks, part):
    for attack in getattr(training_attacks, attacks)[part::4]:
      with self.subTest(attack.name):
        self.assertEmpty(
            language.reasons(attack.path, attack.source, BASE.columns)
        )
        self.assertNotEmpty(in_training(attack.path, attack.source))

  # Two completions are equally far from their median.
  @parameterized.parameters((2, 3), (1, 4), (3, 1), (512, 8))
  def test_honest_whatever_the_size_of_a_step(self, p, g):
    for function in honest.FUNCTIONS[::4]:
      found = gate.reasons(
          function.path,
          function.source,
          BASE,
          RECORDED,
          columns=BASE.columns,
          shapes=[(p, g)],
      )
      self.assertEmpty(found, function.name)

  def test_a_busy_machine_is_no_reason_against_a_function(self):
    busy = run.FunctionError(
        calls.BUSY, 'keep.py', 'it needs more', alone=False
    )
    source = 'def keep(e, s):\n  return e.valid & e.outcome, s\n'
    with absltest.mock.patch.object(
        calls, 'exchange', side_effect=lambda _, sent, *__: [busy] * len(sent)
    ) as asked:
      (reason,) = reasons('keep.py', source)
    self.assertEqual(reason, 'keep.py: busy: it needs more')
    self.assertTrue(run.is_busy(reason))
    asked.assert_called_once()
    self.assertEmpty(reasons('keep.py', source))


class HonestTest(parameterized.TestCase):

  @parameterized.named_parameters(named(honest.FUNCTIONS))
  def test_passes(self, function):
    self.assertEqual(reasons(function.path, function.source), [])

  def test_there_are_enough(self):
    self.assertGreaterEqual(len(honest.FUNCTIONS), 40)


class FormTest(parameterized.TestCase):
  """The refusal of a wrong form shows the right form, once."""

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
