"""--mode=check says what would be refused, and why."""

import contextlib
import io
import json
import pathlib
import tempfile
import types

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections

from configs import math as math_config
from evojax import domains
from evojax import records
from evojax.domains import base
from evojax.domains import sources
from evojax.harness import library
from evojax.harness import spec
from evojax.modes import check
from evojax.runtime import output

SEED = spec.read(domains.load('math').__path__[0] + '/seed_harness')


def letters(completions, **kwargs):
  """A reward of the user's own."""
  del kwargs
  return [float(len(completion)) for completion in completions]


class Leaky(base.Domain):
  """A domain of the user's own, with the same problems in two splits."""

  name = 'leaky'

  def __init__(self, given):
    ask = lambda i: ({'role': 'user', 'content': f'{i}?'},)
    self.given = {
        split: [sources.make_problem(ask(i), str(i), 'f') for i in numbers]
        for split, numbers in given.items()
    }

  def source(self, split, seed):
    return sources.FiniteSource(self.given[split], split, seed)

  def grade(self, problem, completion):
    right = completion.text == problem.answer
    return records.Grade(right, float(right), 'ok', {})

  def reward_parts(self, e):
    return {'outcome': e.outcome.astype('float32')}


class CheckTest(parameterized.TestCase):

  def check(self, *harnesses, change=None, workdir=None):
    """(exit code, what was printed)."""
    config = math_config.get_config()
    with config.unlocked():
      config.domain.kwargs.families = ('gcd:0', 'leg_counting:0')
      if change:
        change(config)
    root = self.enterContext(tempfile.TemporaryDirectory())
    paths = [
        h if isinstance(h, str) else str(spec.write(h, root)) for h in harnesses
    ]
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        absltest.mock.patch.object(output, 'width', lambda: 1000),
    ):
      code = check.run(config, paths, workdir)
    return code, printed.getvalue()

  def test_all_is_well(self):
    code, printed = self.check(SEED)
    self.assertEqual(code, 0, printed)
    self.assertRegex(printed, 'config math-default: ok')
    # One answer per problem stands in tags and is right.
    self.assertRegex(printed, 'domain math: ok, 4 of 32 synthetic')
    self.assertRegex(printed, f'harness .*: ok, sha256 {SEED.sha256}')
    self.assertNotIn('refused', printed)
    self.assertNotIn('warning', printed)

  def test_reward_of_the_domain(self):
    code, printed = self.check()
    self.assertEqual(code, 0, printed)
    self.assertIn('reward of the domain: ok', printed)
    self.assertNotIn('no signal', printed)

  def test_unusual_value(self):
    def change(c):
      c.rollout.temperature = 3.0

    code, printed = self.check(SEED, change=change)
    self.assertEqual(code, 0, printed)
    self.assertIn(
        'warning: rollout.temperature=3 (0.5 to 1.3 is usual)', printed
    )

  def test_config(self):
    def change(c):
      c.grpo.refill_rounds = 1
      c.optim.warmup_steps = 999

    code, printed = self.check(change=change)
    self.assertEqual(code, 1)
    self.assertIn('config math-default: refused', printed)
    self.assertIn('grpo.refill_rounds=1 replaces dropped', printed)
    self.assertIn('optim.warmup_steps=999 exceeds steps', printed)
    self.assertIn('domain math: ok', printed)

  def test_says_what_the_fields_mean_that_a_config_sets(self):
    _, printed = self.check(change=lambda c: setattr(c.grpo, 'kl_coef', 0.01))
    self.assertIn('  steps=120 (default 100): GRPO steps, each a', printed)
    self.assertIn('  grpo.kl_coef=0.01 (default 0.0): Weight of the', printed)
    self.assertNotIn('grpo.epochs', printed)  # It has its default.

  @parameterized.parameters('rulez', 'no_such_package.proposer')
  def test_proposer(self, name):
    code, printed = self.check(
        change=lambda c: setattr(c.evolve, 'proposer', name)
    )
    self.assertEqual(code, 1)
    self.assertRegex(
        printed, f"proposer {name}: refused\n  evolve.proposer='{name}' .*rules"
    )

  @parameterized.parameters(
      (lambda c: setattr(c.data, 'max_prompt_tokens', 9), r'has \d+ tokens'),
      (
          lambda c: setattr(c.evolve, 'skills', ('/nowhere',)),
          "has '/nowhere', which is not a directory",
      ),
  )
  def test_what_the_run_would_refuse(self, change, message):
    code, printed = self.check(change=change)
    self.assertEqual(code, 1, printed)
    self.assertRegex(printed, f'run of --mode=evolve: refused\n  .*{message}')

  @parameterized.parameters(
      (3, 0, "split 'dev' has 3 problems, 8 were asked for"),
      (8, 90, r'\(family .*\) has \d\d\d tokens, more than .*=\d\d\.'),
  )
  def test_data_that_a_later_trial_would_refuse(self, dev, length, message):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    files = {'train': 40, 'dev': dev, 'sealed': 8}
    for split, count in files.items():
      rows = [{'question': f'{split} {i}', 'answer': i} for i in range(count)]
      if split == 'train':  # The last of all to be asked.
        rows[-1]['question'] += ' 1 +' * length
      text = '\n'.join(map(json.dumps, rows))
      (folder / f'{split}.jsonl').write_text(text)

    def change(c):
      c.domain.kwargs = ml_collections.ConfigDict(
          {
              'jsonl': {name: f'{folder}/{name}.jsonl' for name in files},
              'answer_format': 'last_number',
          }
      )
      c.evolve.problems = c.grpo.prompts = 8
      c.eval.problems = 2
      c.grpo.micro_groups = 2
      c.data.max_prompt_tokens = 60

    code, printed = self.check(change=change)
    self.assertEqual(code, 1, printed)
    self.assertRegex(printed, f'run of --mode=evolve: refused\n  .*{message}')

  def test_workdir_of_another_mode(self):
    root = self.enterContext(tempfile.TemporaryDirectory())
    pathlib.Path(root, 'metrics.jsonl').write_text('')
    code, printed = self.check(workdir=root)
    self.assertEqual(code, 1)
    self.assertRegex(printed, f'workdir {root}: refused\n  .*--mode=train')

  def test_no_proposer_is_needed_without_trials(self):
    def change(c):
      c.evolve.rounds = 0
      c.evolve.proposer = 'rulez'

    code, printed = self.check(change=change)
    self.assertEqual(code, 0, printed)

  def test_domain(self):
    def change(c):
      c.domain.kwargs.families = ('no_such_family',)

    code, printed = self.check(change=change)
    self.assertEqual(code, 1)
    self.assertRegex(printed, 'domain math: refused\n  .*no_such_family')

  def own_grader(self, name, **options):
    """Changes a config to problems of GSM8K's shape with this grader."""
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    rows = [
        {'question': f'Of {i}?', 'answer': f'So.\n#### {i}'} for i in range(60)
    ]
    path = root / 'rows.jsonl'
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))

    def change(c):
      c.unlock()
      c.domain.kwargs = {
          'jsonl': {'train': str(path)},
          'grader': f'tests.domains.own_graders.{name}',
          'grader_options': {'workers': 1} | options,
      }
      c.evolve.rounds, c.eval.problems = 0, 2  # There are few.

    return change

  def test_grader(self):
    code, printed = self.check(change=self.own_grader('gsm8k'))
    self.assertEqual(code, 0, printed)
    self.assertRegex(
        printed,
        r"grader .*gsm8k: ok, '#### \d+' scores 1, an empty completion 0\n",
    )
    self.assertNotIn('warning', printed)

  def test_grader_that_finds_no_reference_right(self):
    options = {'kwargs': {'score': 0.5}}
    _, printed = self.check(change=self.own_grader('gsm8k', **options))
    self.assertRegex(
        printed,
        'warning: no form of the reference answer reaches the threshold 1; the'
        " best, '#### .*', scores 0.5",
    )

  def test_grader_that_finds_nothing_right(self):
    _, printed = self.check(change=self.own_grader('always'))
    self.assertIn('warning: an empty completion scores 1 and', printed)

  def test_grader_that_is_not_there(self):
    code, printed = self.check(change=self.own_grader('gsm9k'))
    self.assertEqual(code, 1)
    self.assertRegex(printed, 'domain math: refused\n .*no function gsm9k\n')

  def test_weight_without_a_part(self):
    def change(c):
      c.reward.weights.nice = 1.0

    code, printed = self.check(change=change)
    self.assertEqual(code, 1)
    self.assertRegex(printed, r"reward .*: refused\n  .*names \['nice'\]")

  def test_reward_without_signal(self):
    def change(c):  # None of the attempts is near the limit of tokens.
      c.reward.weights = ml_collections.ConfigDict({'overlong': 1.0})

    code, printed = self.check(change=change)
    self.assertEqual(code, 0, printed)
    self.assertRegex(
        printed, 'reward .*: ok\n  warning: no signal: .* get the reward 0, so'
    )

  def check_part(self, function):
    """Checks a config with this function as part of the reward."""
    name = function.__name__

    def change(c):
      c.reward.parts = f'{__name__}.{name}'
      c.reward.weights[name] = 0.1

    with absltest.mock.patch.dict(
        'sys.modules', {__name__: pathlib}, clear=False
    ), absltest.mock.patch.object(pathlib, name, function, create=True):
      return self.check(change=change)

  def test_reward_of_the_users_own_is_warned_about(self):
    code, printed = self.check_part(letters)
    self.assertEqual(code, 0, printed)
    self.assertIn('letters: ok', printed)
    self.assertIn('warning: ', printed)
    self.assertIn("the reward part 'letters'", printed)

  def test_an_error_in_the_users_own_code_has_its_line(self):
    def number(completions, **columns):
      return [float('x') for _ in completions]

    code, printed = self.check_part(number)
    self.assertEqual(code, 1)
    line = number.__code__.co_firstlineno + 1
    name = pathlib.Path(__file__).name
    self.assertIn(f'{name}:{line}: ValueError: could', printed)

  @parameterized.parameters('make', 'source', 'grade')
  def test_what_the_users_own_domain_raises_has_its_line(self, where):
    def broken(*_):
      raise KeyError('x')

    domain = Leaky({split: range(9) for split in ('train', 'dev', 'sealed')})
    if where == 'make':
      make = lambda: broken()
    else:
      make = lambda: domain
      setattr(domain, where, broken)
    module = types.ModuleType('raising')
    module.make = make

    def change(c):
      c.domain.name, c.domain.kwargs = 'raising', {}

    with absltest.mock.patch.dict('sys.modules', raising=module):
      code, printed = self.check(change=change)
    self.assertEqual(code, 1)
    line = broken.__code__.co_firstlineno + 1
    name = pathlib.Path(__file__).name
    self.assertIn('domain raising: refused', printed)
    self.assertIn(f"{name}:{line}: KeyError: 'x'", printed)

  @parameterized.parameters((range(30),), (range(40, 60),))
  def test_splits_that_share_problems(self, dev):
    given = {'train': range(40), 'dev': dev, 'sealed': range(90, 99)}
    module = types.ModuleType('leaky')
    module.make = lambda: Leaky(given)

    def change(c):
      c.domain.name, c.domain.kwargs = 'leaky', {}

    with absltest.mock.patch.dict('sys.modules', leaky=module):
      _, printed = self.check(change=change)
    self.assertIn('domain leaky: ok', printed)
    said = "is in 'train' and in 'dev', so that scores"
    self.assertEqual(printed.count(said), int(dev[0] < 40))
    self.assertNotIn("'sealed', so that", printed)

  def test_broken_harness(self):
    broken = SEED.with_overlay({'optim.learning_rate': 1.0})
    broken = broken.with_file('keep.py', 'def keep(e, s):\n  return 1\n')
    crashing = SEED.with_file('keep.py', 'def keep(e, s):\n  return 1 / 0\n')
    code, printed = self.check(broken, crashing, 'no/such/folder')
    self.assertEqual(code, 1)
    self.assertIn('overlay: optim.learning_rate=1.0: must lie in', printed)
    self.assertIn('keep.py: crash: line 2: ZeroDivisionError', printed)
    self.assertIn('harness no/such/folder: refused\n  no/such/folder', printed)

  def test_code_of_ones_own_passes_the_gate_or_is_refused(self):
    text = library.source('keep/outcome_variance.py')
    code, printed = self.check(
        SEED.with_file('keep.py', text + '# Mine.\n'),
        SEED.with_file('keep.py', text + 'NAMES = open("x")\n'),
    )
    self.assertEqual(code, 1, printed)
    self.assertEqual(printed.count('harness') - printed.count('harness/'), 2)
    self.assertIn('  keep.py line 16: no open: a function sees', printed)

  def test_functions_with_which_nothing_is_learned(self):
    start = 'import numpy as np\n\n\n'
    code, printed = self.check(
        SEED.with_file(
            'reward.py',
            f'{start}def parts(e):\n'
            "  return {'outcome': np.ones(e.valid.shape, np.float32)}\n",
        ),
        SEED.with_file(
            'keep.py',
            f'{start}def keep(e, state):\n'
            '  kept = e.outcome & ~e.outcome\n'
            '  return kept & e.valid, state\n',
        ),
    )
    self.assertEqual(code, 0, printed)
    self.assertEqual(printed.count('warning: '), 2, printed)
    self.assertRegex(printed, 'no signal: right, wrong .* the reward 1, so')
    self.assertIn('keep.py keeps nothing of groups', printed)


if __name__ == '__main__':
  absltest.main()
