"""Two harnesses differ in exactly one factor, or the error names them all."""

from absl.testing import absltest
from absl.testing import parameterized

from evojax.harness import delta
from evojax.harness import spec
from evojax.harness import surface

REWARD = """
def _used(e):
  return e.n_tokens / e.max_tokens

def parts(e):
  return {'outcome': e.outcome * 1.0, 'length': _used(e), 'brief': -_used(e)}
"""
PARENT = spec.Harness(
    {'reward.weights.outcome': 1.0, 'optim.learning_rate': 1e-4},
    {
        'reward.py': REWARD,
        'diagnostics/score.py': 'LAYER = "score"\n',
    },
)
CURRENT = {
    'grpo.clip_low': 0.2,
    'grpo.clip_high': 0.2,
    'optim.learning_rate': 5e-5,
    'grpo.keep': 'all',
    'grpo.refill_rounds': 0,
    'reward.weights.length': 7.0,  # Ignored for a harness with its own weights.
    'seed': 3,
}


class DiffTest(parameterized.TestCase):

  def diff(self, after, before=PARENT):
    return delta.diff(before, after, surface.recipe(), CURRENT)

  @parameterized.named_parameters(
      (
          'a value',
          {'optim.learning_rate': 3e-4},
          'optim.learning_rate',
          'optimizer',
          (('optim.learning_rate', 1e-4, 3e-4),),
      ),
      (
          'back to the config',
          {'optim.learning_rate': None},
          'optim.learning_rate',
          'optimizer',
          (('optim.learning_rate', 1e-4, 5e-5),),
      ),
      (
          'half of a group',
          {'grpo.clip_high': 0.28},
          'clip',
          'clip',
          (('grpo.clip_high', 0.2, 0.28),),
      ),
      (
          'a group',
          {'grpo.keep': 'reward_variance', 'grpo.refill_rounds': 1},
          'filter',
          'filter',
          (
              ('grpo.keep', 'all', 'reward_variance'),
              ('grpo.refill_rounds', 0, 1),
          ),
      ),
      (
          'a slice',
          {'data.families': ['gcd:0']},
          'data.families',
          'data',
          (('data.families', None, ('gcd:0',)),),
      ),
  )
  def test_recipe(self, overlay, factor, intervention_class, changes):
    found = self.diff(PARENT.with_overlay(overlay))
    self.assertEqual(found.factor, factor)
    self.assertEqual(
        (found.kind, found.intervention_class), ('recipe', intervention_class)
    )
    self.assertEqual(found.changes, changes)
    self.assertTrue(found.trains)
    self.assertEqual(found.before, PARENT.sha256)

  def test_weight_and_code_of_a_part_are_one_factor(self):
    code = REWARD.replace('e.outcome * 1.0', 'e.outcome * 1.5')
    after = PARENT.with_overlay({'reward.weights.outcome': 0.5})
    found = self.diff(after.with_file('reward.py', code))
    self.assertEqual(found.factor, 'reward:outcome')
    self.assertEqual(
        (found.kind, found.intervention_class), ('harness', 'reward')
    )
    self.assertEqual(found.changes[0], ('reward.weights.outcome', 1.0, 0.5))
    path, before, what = found.changes[1]
    self.assertEqual((path, what), ('reward.py:outcome', 'source changed'))
    self.assertLen(before, 12)

  @parameterized.parameters(
      ('keep.py', 'keep', 'filter', True),
      ('weight.py', 'weight', 'credit', True),
      ('diagnostics/new.py', 'diagnostic:new', 'measurement', False),
      ('backtests/new.py', 'backtest:new', 'measurement', False),
  )
  def test_functions(self, file, factor, intervention_class, trains):
    one, two = (PARENT.with_file(file, f'X = {i}\n') for i in (1, 2))
    for before, after, what in (
        (PARENT, one, 'source added'),
        (one, two, 'source changed'),
        (two, PARENT, 'source removed'),
    ):
      found = self.diff(after, before)
      self.assertEqual(found.factor, factor)
      self.assertEqual(
          (found.kind, found.intervention_class),
          ('harness', intervention_class),
      )
      self.assertEqual(found.trains, trains)
      self.assertEqual(found.changes[0][2], what)

  def refuse(self, after, *factors, message=''):
    with self.assertRaisesRegex(delta.DeltaError, message) as caught:
      self.diff(after)
    self.assertEqual(caught.exception.factors, factors)

  def test_two_values(self):
    self.refuse(
        PARENT.with_overlay(
            {'optim.learning_rate': 3e-4, 'reward.weights.length': 0.5}
        ),
        'optim.learning_rate',
        'reward:length',
        message=(
            r'two factors: optim.learning_rate \(0.0001 -> 0.0003\) and'
            r' reward:length \(0 -> 0.5\); propose them one after the other'
        ),
    )

  def test_two_groups(self):
    self.refuse(
        PARENT.with_overlay({'grpo.clip_low': 0.1, 'grpo.refill_rounds': 1}),
        'clip',
        'filter',
        message=(
            r'clip \(clip_low 0.2 -> 0.1\) and filter \(refill_rounds 0 -> 1'
        ),
    )

  def test_a_helper_of_two_parts(self):
    self.refuse(
        PARENT.with_file('reward.py', REWARD.replace('/ e.max', '* 2 / e.max')),
        'reward:brief',
        'reward:length',
        message=r'two factors: reward:brief \(source changed\) and reward:len',
    )

  def test_a_value_and_a_file(self):
    self.refuse(
        PARENT.with_overlay({'grpo.clip_low': 0.1}).with_file(
            'keep.py', 'K = 1'
        ),
        'clip',
        'keep',
    )

  def test_three(self):
    self.refuse(
        PARENT.with_file('reward.py', None),
        *(f'reward:{part}' for part in ('brief', 'length', 'outcome')),
        message='three factors',
    )

  def test_same(self):
    self.refuse(PARENT, message='no factor: the two harnesses are the same')

  @parameterized.named_parameters(
      ('comment', {'reward.py': REWARD + '# Done.\n'}, {}),
      (
          'docstring',
          {'diagnostics/score.py': '"""D."""\nLAYER = "score"\n'},
          {},
      ),
      ('said twice', {}, {'grpo.clip_low': 0.2}),
      ('int for float', {}, {'reward.weights.outcome': 1}),
      ('no weight', {}, {'reward.weights.length': 0}),
  )
  def test_nothing_that_counts(self, files, overlay):
    after = PARENT.with_overlay(overlay)
    for name, text in files.items():
      after = after.with_file(name, text)
    same = after.sha256 == PARENT.sha256
    self.refuse(
        after,
        message='are the same' if same else 'only comments, formatting',
    )

  def test_what_cannot_be_compared(self):
    self.refuse(
        PARENT.with_file('reward.py', 'def parts(e):\n  return e\n'),
        message='reward.py line 2: `parts` ends in one `return',
    )
    self.refuse(
        PARENT.with_file('diagnostics/score.py', f'X = 0x{"f" * 5000}\n'),
        message='diagnostics/score.py line 1: a number is larger than',
    )
    with self.assertRaisesRegex(surface.SurfaceError, 'seed is not on the'):
      self.diff(PARENT.with_overlay({'seed': 4}))

  def test_identity(self):
    """A change is the same on another parent, but not with another value."""
    change = {'grpo.clip_high': 0.28}
    other = PARENT.with_overlay({'optim.learning_rate': 2e-4})
    first = self.diff(PARENT.with_overlay(change)).sha256
    self.assertEqual(self.diff(other.with_overlay(change), other).sha256, first)
    another = PARENT.with_overlay({'grpo.clip_high': 0.3})
    self.assertNotEqual(self.diff(another).sha256, first)
    two, two_as_float, three = (
        self.diff(PARENT.with_overlay({'grpo.refill_rounds': n})).sha256
        for n in (2, 2.0, 3)
    )
    self.assertEqual(two, two_as_float)
    self.assertNotEqual(two, three)
    keep = lambda text: self.diff(PARENT.with_file('keep.py', text)).sha256
    self.assertEqual(keep('K = 1'), keep('K = 1  # One.'))
    self.assertNotEqual(keep('K = 1'), keep('K = 2'))


if __name__ == '__main__':
  absltest.main()
