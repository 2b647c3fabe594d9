"""The gate's conditions for a changed harness, before training is paid for."""

from absl.testing import absltest
from absl.testing import parameterized

from configs import math as math_config
from evojax import domains
from evojax.episodes import synthetic
from evojax.harness import admit
from evojax.harness import gate
from evojax.harness import library
from evojax.harness import parts as parts_lib
from evojax.harness import spec
from evojax.harness import surface
from tests.harness import recorded

SEED = spec.read(domains.load('math').__path__[0] + '/seed_harness')
CONFIG = math_config.get_config()
SURFACE = surface.recipe()
MADE_UP = synthetic.Evidence(
    domains.make('math', **CONFIG.domain.kwargs.to_dict())
)


class AdmitTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # Otherwise sources that other tests had admitted would not be tested again.
    self.enter_context(absltest.mock.patch.object(admit, '_passed', set()))

  def reasons(self, after, before=SEED, made=MADE_UP):
    view = recorded.view(prompts=4, group_size=4)
    return admit.admit(before, after, CONFIG, SURFACE, made, view)

  def refused(self, after, *patterns, **kwargs):
    reasons = self.reasons(after, **kwargs)
    self.assertLen(reasons, len(patterns), reasons)
    for reason, pattern in zip(reasons, patterns):
      self.assertRegex(reason, pattern)
      self.assertNotIn('\n', reason)

  @parameterized.parameters(
      ({'optim.learning_rate': 3e-4},),
      ({'grpo.clip_low': 0.2, 'grpo.clip_high': 0.28},),
      ({'grpo.keep': 'reward_variance', 'grpo.refill_rounds': 1},),
      ({'reward.weights.overlong': 0.5},),
      ({'data.families': ['gcd:0']},),
  )
  def test_values(self, overlay):
    self.assertEqual(self.reasons(SEED.with_overlay(overlay)), [])

  @parameterized.parameters(
      *(
          n
          for n in library.names()
          if n not in (*recorded.OF_AGENTS, recorded.OF_JUDGES)
      )
  )
  def test_shipped_functions(self, name):
    folder, file = name.split('/')
    text = library.source(name)
    if folder == 'reward':
      part = file.removesuffix('.py')
      text = parts_lib.add(SEED.files['reward.py'], text)
      after = SEED.with_overlay({f'reward.weights.{part}': 0.5})
      after = after.with_file('reward.py', text)
    elif folder == 'backtests':
      after = SEED.with_file(name, text)
    else:
      after = SEED.with_file(f'{folder}.py', text)
    self.assertEqual(self.reasons(after), [])

  def test_all_reasons_at_once(self):
    after = SEED.with_overlay(
        {'optim.learning_rate': 1.0, 'grpo.clip_low': 0.1}
    )
    self.refused(
        after.with_file('keep.py', 'def keep(e, s):\n  return open(e), s\n'),
        'delta: three factors: clip .*, keep .* and optim.learning_rate',
        'keep.py line 2: no open: a function sees',
        r'overlay: optim.learning_rate=1.0: must lie in \[1e-06, 0.003\]',
    )

  def test_what_cannot_be_read_is_said_once(self):
    after = SEED.with_overlay({'grpo.clip_low': 0.1})
    after = after.with_file('keep.py', 'def keep(e, s:\n')
    after = after.with_file('weight.py', 'X = [' + '1,' * 4000 + ']\n')
    with absltest.mock.patch.object(gate, 'reasons') as asked:
      self.refused(
          after,
          "keep.py line 1: '\\(' was never closed",
          'weight.py line 1: .* syntax nodes, more than 4000',
      )
    asked.assert_not_called()

  def test_nothing_changed(self):
    self.refused(SEED, 'delta: no factor: the two harnesses are the same')

  @parameterized.named_parameters(
      ('leaves the surface', {'eval.samples': 1}, 'not on the surface', 2),
      ('conflict', {'grpo.refill_rounds': 1}, "keep='all' drops none", 1),
      ('no such part', {'reward.weights.nice': 1.0}, 'has the parts', 1),
  )
  def test_values_refused(self, overlay, pattern, count):
    self.refused(SEED.with_overlay(overlay), *[pattern] * count)

  def test_part_without_weight(self):
    text = parts_lib.add(
        SEED.files['reward.py'], library.source('reward/partial.py')
    )
    self.refused(
        SEED.with_file('reward.py', text),
        'reward:partial has no weight before and after.*reward.weights.partial',
    )

  def test_a_comment_makes_a_file_foreign(self):
    """The text counts, since it is what runs, not just its meaning."""
    text = library.source('keep/outcome_variance.py')
    for source, tried in ((text, 0), (text + '# Mine.\n', 1)):
      with absltest.mock.patch.object(
          gate, 'reasons', return_value=[]
      ) as asked:
        admit.check(SEED.with_file('keep.py', source), CONFIG, SURFACE, MADE_UP)
      self.assertEqual(asked.call_count, tried)

  def test_a_shipped_function_of_another_domain(self):
    text = library.source('diagnostics/format.py')
    columns = MADE_UP.columns(CONFIG) - {'format_ok'}
    made = absltest.mock.Mock(columns=lambda _: columns)
    self.assertRegex(
        '; '.join(
            admit.check(
                SEED.with_file('diagnostics/format.py', text),
                CONFIG,
                SURFACE,
                made,
            )
        ),
        'diagnostics/format.py line .*: .format_ok is neither a column',
    )

  def test_a_passed_function_is_not_tried_again(self):
    text = library.source('keep/outcome_variance.py') + '# Again.\n'
    harness = SEED.with_file('keep.py', text)
    with absltest.mock.patch.object(
        gate, 'reasons', return_value=['no']
    ) as tried:
      self.assertEqual(admit.check(harness, CONFIG, SURFACE, MADE_UP), ['no'])
      self.assertEqual(admit.check(harness, CONFIG, SURFACE, MADE_UP), ['no'])
      tried.return_value = []
      self.assertEmpty(admit.check(harness, CONFIG, SURFACE, MADE_UP))
      self.assertEqual(tried.call_count, 3)
      self.assertEmpty(admit.check(harness, CONFIG, SURFACE, MADE_UP))
      self.assertEqual(tried.call_count, 3)
      # On evidence of the run, a proposal is admitted.
      admit.admit(SEED, harness, CONFIG, SURFACE, MADE_UP, recorded.view())
      self.assertEqual(tried.call_count, 4)

  def test_a_new_function_is_admitted(self):
    source = (
        'import numpy as np\n'
        'def keep(e, state):\n'
        '  long = (e.n_tokens * e.valid).max(1) > 0.5 * e.max_tokens\n'
        '  return np.repeat(~long[:, None], e.valid.shape[1], 1), state\n'
    )
    self.assertEmpty(self.reasons(SEED.with_file('keep.py', source)))

  def test_the_files_of_the_parent_may_stay(self):
    before = SEED.with_file(
        'diagnostics/mine.py',
        "LAYER = 'score'\nUNIT = 'x'\n" 'def measure(e):\n  return {}\n',
    )
    after = before.with_overlay({'optim.learning_rate': 3e-4})
    self.assertEqual(self.reasons(after, before=before), [])

  @parameterized.named_parameters(
      (
          'crash',
          'def keep(e, s):\n  return 1 / 0\n',
          'keep.py: crash: line 2: ZeroDivisionError',
      ),
      ('shape', 'def keep(e, s):\n  return e.valid[0], s\n', 'wrong_shape'),
      ('secret', 'def keep(e, s):\n  return e.seed > 1, s\n', "has no 'seed'"),
      (
          'chance',
          'import numpy as np\n'
          'def keep(e, s):\n  return np.random.rand(4, 4) < 0.5, s\n',
          'keep.py line 3: np.random makes the answer differ',
      ),
      (
          'second call',
          "def init():\n  return {'n': 0}\n"
          "def keep(e, s):\n  return e.valid, {'n': 1 / (1 - s['n'])}\n",
          'non_finite: n is inf',
      ),
      ('syntax', 'def keep(e, s:\n', "keep.py line 1: '\\(' was never closed"),
  )
  def test_functions_are_tried(self, source, pattern):
    reasons = self.reasons(SEED.with_file('keep.py', source))
    self.assertRegex('\n'.join(reasons), pattern)

  def test_without_evidence_nothing_runs(self):
    source = 'def keep(e, s):\n  return 1 / 0\n'
    after = SEED.with_file('keep.py', source)
    self.assertEqual(self.reasons(after, made=None), [])

  def test_thresholds_of_a_diagnostic(self):
    source = "LAYER = 'score'\ndef measure(e):\n  return {}\n"
    self.refused(
        SEED.with_file('diagnostics/new.py', source),
        'diagnostics/new.py: returned no number on any evidence',
        'diagnostics/new.py: wrong_type: UNIT=None is not text',
    )

  @parameterized.parameters(
      ("('reward', 'exploration')",),
      ("('rewards',)", r"CALLS_FOR names \['rewards'\]; .* are clip, credit"),
      ("('measurement',)", r"CALLS_FOR names \['measurement'\]"),
      ("('domain_class',)", r"CALLS_FOR names \['domain_class'\]"),
      ("'reward'", "CALLS_FOR='reward' is not a tuple of texts"),
  )
  def test_classes_that_a_diagnostic_calls_for(self, value, *patterns):
    source = (
        f"LAYER = 'score'\nUNIT = ''\nCALLS_FOR = {value}\n"
        "def measure(e):\n  return {'x': 1.0}\n"
    )
    self.refused(SEED.with_file('diagnostics/new.py', source), *patterns)

  def test_a_diagnostic_calls_for_a_class_of_the_domain(self):
    field = surface.Field(
        intervention_class='domain_class',
        path='domain.kwargs.tools',
        kind='choice',
        choices=('all', 'none'),
    )
    source = (
        "LAYER = 'score'\nUNIT = ''\nCALLS_FOR = ('domain_class',)\n"
        "def measure(e):\n  return {'x': 1.0}\n"
    )
    reasons = admit.admit(
        SEED,
        SEED.with_file('diagnostics/new.py', source),
        CONFIG,
        surface.recipe([field]),
        None,
    )
    self.assertEqual(reasons, [])


if __name__ == '__main__':
  absltest.main()
