"""Several evolving runs in one table."""

import contextlib
import io
import json
import pathlib
import shutil
import tempfile

from absl.testing import absltest
import numpy as np
import pandas as pd
from rich import console as console_lib

from evojax.eval import seeds as seeds_lib
from evojax.ledger import records
from evojax.report import seeds
from tests.ledger import samples

_SOLVED = (('a', 2), ('b', 3))


class SeedsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

  def _run(self, name, solved, trials=(), final=True):
    """Write a run whose policies solve the first of 8 problems.

    Args:
      name: Name of the workdir.
      solved: Policy -> number of problems.
      trials: (expected, backtested, effect, low, high, status) of each.
      final: Whether the run ended.
    """
    path = self.root / name
    path.mkdir()
    found = [
        samples.record(records.Open),
        samples.record(records.Train, version='v0'),
    ]
    for number, (expected, backtested, *effect, status) in enumerate(trials):
      value, low, high = effect
      found += [
          records.Hypothesize(
              trial=number, version='v0', proposer='rules', expected=expected
          ),
          samples.record(records.Backtest, trial=number, predicted=backtested),
          samples.record(
              records.Verify,
              trial=number,
              status=status,
              effect=value,
              low=low,
              high=high,
              version='v1' if status == 'keep' else '',
          ),
      ]
      if status == 'keep':
        found.append(samples.record(records.Promote, version='v1', parent='v0'))
    for policy, count in solved.items():
      folder = path / 'sealed' / policy / 'evidence' / 'sealed'
      folder.mkdir(parents=True)
      group = np.repeat(np.arange(8), 2)
      written = dict(group=group, outcome=group < count, graded=True)
      pd.DataFrame(written).to_parquet(folder / 'step_000000.parquet')
    if final:
      estimate = lambda value: samples.record(records.Estimate, value=value)
      tokens = records.Tokens(training=100, total=900 + 100 * len(trials))
      found.append(
          samples.record(
              records.Final,
              scores={name: estimate(n / 8) for name, n in solved.items()}
              | {'random': None},
              compute={'evolved': tokens},
          )
      )
    samples.write(path, *found, device_seconds=10.0)
    return path

  def test_hand_worked(self):
    runs = [
        self._run(
            'a',
            dict(base=2, evolved=6, seed=5),
            [
                # Clear, and predicted by both.
                ((-0.01, 0.05), (0.01, 0.02), 0.03, 0.01, 0.05, 'keep'),
                # Not clear: not counted.
                ((-0.01, 0.05), (0.01, 0.02), 0.01, -0.01, 0.03, 'discard'),
            ],
        ),
        self._run(
            'b',
            dict(base=2, evolved=4),
            # Clear, but the hypothesis was wrong.
            [((-0.01, 0.05), (-0.3, 0.1), -0.2, -0.3, -0.1, 'discard')],
        ),
    ]
    summary = seeds.summarise(runs)
    self.assertEqual(
        summary['runs'],
        [
            dict(
                run='a',
                version='v1',
                solved=6 / 8,
                trials=2,
                kept=1,
                device_seconds=100.0,
            ),
            dict(
                run='b',
                version='v0',
                solved=4 / 8,
                trials=1,
                kept=0,
                device_seconds=60.0,
            ),
        ],
    )
    policies = summary['policies']
    self.assertEqual(list(policies), ['base', 'evolved', 'seed'])
    self.assertEqual(policies['seed']['seeds'], 1)
    self.assertAlmostEqual(policies['evolved']['score']['value'], 5 / 8)
    # Each run is compared with its own base: 4 and 2 of 8 problems.
    self.assertAlmostEqual(policies['base']['evolved_over']['value'], 3 / 8)
    self.assertAlmostEqual(policies['evolved']['gain']['value'], 3 / 8)
    self.assertAlmostEqual(policies['seed']['gain']['value'], 3 / 8)
    self.assertIsNone(policies['base']['gain'])
    self.assertEqual(summary['absent'], ['random'])
    # From the one run that has it.
    self.assertAlmostEqual(policies['seed']['evolved_over']['value'], 1 / 8)
    self.assertIsNone(policies['evolved']['evolved_over'])
    self.assertEqual(policies['evolved']['tokens'], [100.0, 1050.0])
    self.assertIsNone(policies['base']['tokens'])
    self.assertEqual(
        summary['signs'],
        {
            'hypotheses': dict(decided=2, right=1, base=1),
            'backtests': dict(decided=2, right=2, base=1),
        },
    )
    self.assertEqual(json.loads(json.dumps(summary)), summary)
    out = io.StringIO()
    seeds.print_summary(summary, console_lib.Console(file=out, width=80))
    for text in (
        'evolved',
        '62.5 %',
        '+37.5',
        '1,050',
        '1 of 2 runs kept a change',
        'compared with the controls random: --compare=DIR',
    ):
      self.assertIn(text, ' '.join(out.getvalue().split()))

  def test_refusals(self):
    done = self._run('a', dict(base=1, evolved=2))
    with self.assertRaisesRegex(ValueError, 'needs 2'):
      seeds.summarise([done])
    with self.assertRaisesRegex(ValueError, 'c has no sealed scores yet'):
      seeds.summarise([done, self._run('c', {}, final=False)])
    with self.assertRaisesRegex(ValueError, 'holds no ledger.jsonl'):
      seeds.summarise([done, self.root])

  def test_nothing_kept(self):
    runs = [self._run(name, dict(base=1, evolved=n)) for name, n in _SOLVED]
    out = io.StringIO()
    summary = seeds.summarise(runs)
    seeds.print_summary(summary, console_lib.Console(file=out, width=80))
    self.assertIn('raced (nothing kept)', out.getvalue())
    self.assertNotIn('evolved  ', out.getvalue())

  def test_a_run_is_no_second_seed_of_itself(self):
    run = self._run('a', dict(base=1, evolved=2))
    copy = shutil.copytree(run, self.root / 'copy')
    with self.assertRaisesRegex(ValueError, 'a and .*copy are copies of one'):
      seeds.summarise([run, self._run('b', dict(base=1, evolved=3)), copy])
    with self.assertRaisesRegex(ValueError, 'copies of one'):
      seeds.summarise([run, f'{run}/'])

  def test_command(self):
    err = self.enter_context(contextlib.redirect_stderr(io.StringIO()))
    out = self.enter_context(contextlib.redirect_stdout(io.StringIO()))
    self.assertEqual(seeds_lib.main(seeds, []), 2)
    self.assertIn(
        'usage: python -m evojax.report.seeds WORKDIR WORKDIR', err.getvalue()
    )
    self.assertEqual(seeds_lib.main(seeds, ['--help']), 0)
    self.assertIn('[--references=DIR,DIR] [--scores=0.5,0.7]', out.getvalue())
    self.assertEqual(seeds_lib.main(seeds, ['/absent', '/there']), 2)
    self.assertNotIn('Traceback', err.getvalue())
    copies = [str(self._run('one', dict(base=1, evolved=2)))] * 2
    self.assertEqual(seeds_lib.main(seeds, copies), 2)
    last = err.getvalue().splitlines()[-1]  # Wrapped between words.
    self.assertEqual(last[-len('config.seed differs') :], 'config.seed differs')
    self.assertLessEqual(len(last), 80)
    runs = [str(self._run(n, dict(base=1, evolved=s))) for n, s in _SOLVED]
    self.assertEqual(seeds_lib.main(seeds, [*runs, '--scores=0.7,0.5']), 0)
    self.assertIn('base policy', out.getvalue())
    self.assertRegex(out.getvalue(), r'tokens until +50 % +70 %\n')
    for option, error in (
        ('--scores=0.5,x', "float: 'x'; give fractions"),
        ('--scores=70', 'for 70 % give 0.7'),
        ('--score=0.5', '--references=A,B, --scores=A,B'),
        ('--scores', 'is no option'),
    ):
      self.assertEqual(seeds_lib.main(seeds, [*runs, option]), 2)
      said = ' '.join(err.getvalue().split())
      self.assertIn(error, said[said.rindex('error:') :])


if __name__ == '__main__':
  absltest.main()
