"""Tokens by use, costs of scores and regret, worked out by hand."""

import io
import json
import pathlib
import tempfile

from absl.testing import absltest
import pandas as pd
from rich import console as console_lib

from evojax.ledger import history
from evojax.ledger import milestones
from evojax.ledger import records
from evojax.report import costs
from tests.ledger import samples

NAMES = 'policy', 'other arms', 'horizon', 'replays', 'dev', 'perturbed'


def arm(name, role, tokens, score=0.0):
  return samples.record(
      records.RacedArm,
      folder=f'arms/{name}',
      role=role,
      outcome=(score - 0.1, score + 0.1),
      sampled_tokens=tokens,
      updates=2,
      dev=f'rounds/{name}',
  )


def promote(number, name):
  source = samples.record(records.Source, folder=f'arms/{name}', weight=1.0)
  return samples.record(
      records.Promote, version=f'v{number + 1}', round=number, sources=(source,)
  )


class CostsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

  def _config(self, path, **fields):
    """Write the config of a run that samples at temperature 1."""
    fields = {'temperature': 1.0} | fields
    written = {'config': {'rollout': fields, 'seed': path.name}}
    (path / 'config.json').write_text(json.dumps(written))

  def _run(self, name, *, dev=10, shadow=100):
    """Write a run; return its workdir and history.

    v0 solves 0.4 after 100 tokens, v1 0.5 after another 550 and its scores, v2
    0.7 after 200 more and the shadow's. Every row takes 10 device-seconds.

    Args:
      name: Name of the workdir.
      dev: Tokens of each of 6 dev completions.
      shadow: Tokens of the shadow; 0 for none.
    """
    path = self.root / name
    for folder, tokens in (
        ('i0', [dev, 2 * dev]),
        ('c0', [3 * dev]),
        ('i0-perturbed', [25, 15]),
    ):
      written = path / 'rounds' / folder / 'evidence' / 'dev'
      written.mkdir(parents=True)
      pd.DataFrame({'n_tokens': tokens}).to_parquet(
          written / 'step_000000.parquet'
      )
    race = lambda number, *arms: samples.record(
        records.Race, round=number, arms=arms
    )
    first = race(
        0, arm('i0', 'incumbent', 200, 0.5), arm('c0', 'candidate', 150, 0.9)
    )
    late = [arm('i1', 'incumbent', 200, 0.7)]
    late += [arm('s1', 'shadow', shadow, 0.8)] if shadow else []
    total = 700 + 6 * dev + 40 + shadow
    compute = {'evolved': records.Tokens(training=500, total=total)}
    samples.write(
        path,
        samples.record(
            records.Train,
            version='v0',
            folder='arms/v0',
            checkpoint='arms/v0/checkpoints/step_000002',
            outcome=(0.2, 0.4),
            sampled_tokens=100,
        ),
        samples.record(records.Backtest, sampled_tokens=50),
        first,
        first,  # After a kill; its arms and scores count once.
        promote(0, 'i0'),
        race(1, *late),
        promote(1, 'i1'),
        samples.record(records.Final, compute=compute),
        device_seconds=10.0,
    )
    self._config(path)
    return path, history.read(path)

  def _training(self, name, outcomes, **fields):
    """Write a training of 200 tokens and 2 s for each step."""
    path = self.root / name
    path.mkdir()
    rows = [
        dict(step=i, outcome=x, sampled_tokens=200, step_seconds=2.0)
        for i, x in enumerate(outcomes, 1)
    ]
    rows.append({'step': len(outcomes), 'dev/avg_at_k': 0.1})
    text = '\n'.join(map(json.dumps, rows))
    (path / 'metrics.jsonl').write_text(text)
    (path / 'manifest.json').write_text('[{"devices": 1}, {"devices": 4}]')
    self._config(path, **fields)
    return path

  def test_tokens_by_use(self):
    path, run = self._run('a')
    found = costs.uses(run, costs.tokens_of_scores(run, path))
    self.assertEqual(
        found, dict(zip(NAMES, (500, 150, 100, 50, 60, 40), strict=True))
    )

  def test_bounds(self):
    uses = lambda *tokens: dict(zip(NAMES, tokens, strict=True))
    for tokens, beyond in (
        # 50 % without horizon controls, 35 % with them.
        (uses(50, 35, 0, 0, 15, 0), []),
        (uses(49, 36, 0, 0, 15, 0), ['policy']),
        (uses(35, 40, 10, 0, 10, 5), []),
        (uses(34, 41, 10, 0, 10, 5), ['policy']),
        # Scores of dev and perturbed problems, 15 % together.
        (uses(60, 24, 0, 0, 10, 6), ['dev', 'perturbed']),
        (uses(60, 24, 0, 0, 16, 0), ['dev']),
    ):
      self.assertEqual(costs.beyond(tokens), beyond, tokens)

  def test_curve_of_a_training(self):
    # Means of two steps up to the last; the first of five is left over.
    path = self._training('t', (0.9, 0.3, 0.5, 0.6, 0.8))
    found = [
        (p.version, round(p.score, 9), p.tokens, p.device_seconds)
        for p in costs.of_training(path, 2)
    ]
    self.assertEqual(
        found, [('step 3', 0.4, 600, 24.0), ('step 5', 0.7, 1000, 40.0)]
    )
    self.assertEmpty(costs.of_training(path, 6))

  def test_two_runs(self):
    (a, run_a), (b, run_b) = self._run('a'), self._run('b', dev=60, shadow=0)
    reference = self._training('r', (0.9, 0.3, 0.5, 0.6, 0.8, 0.6))
    summary = costs.summarise(
        [a, b], [run_a, run_b], [reference], (0.4, 0.6, 0.8)
    )
    one, two = summary['runs']
    # b: 700 + 360 + 40, of which 500 train the policy and 400 score.
    self.assertEqual((one['tokens'], two['tokens']), (900, 1100))
    self.assertEqual(one['beyond'], [])
    self.assertEqual(two['beyond'], ['policy', 'dev', 'perturbed'])
    # a: v0 after 100 tokens and one row; v2 after 900 and seven.
    self.assertEqual(one['reached'], [[100, 10.0], [900, 70.0], None])
    self.assertEqual(two['reached'], [[100, 10.0], [1100, 70.0], None])
    # r solves 0.6, 0.55 and 0.7 in two steps each, 400 tokens apart.
    self.assertEqual(
        summary['references'],
        [{'run': 'r', 'reached': [[400, 16.0], [400, 16.0], None]}],
    )
    # a has 0.4, 0.5 and 0.7 after 100, 600 and 900 tokens. Both are linear
    # between 400 (0.6 against 0.46), 600 (0.575, 0.5), 800 (0.55, 0.6333) and
    # 900 (0.5875, 0.7): 0.14, 0.075, -0.0833 and -0.1125 ahead. The mean is
    # (200 x 0.1075 + 200 x -0.00417 + 100 x -0.0979) / 500 = 0.02175.
    self.assertAlmostEqual(one['regret']['end'], -0.1125)
    self.assertAlmostEqual(one['regret']['mean'], 0.02175)
    self.assertEqual(one['regret']['references'], 1)
    over = summary['over']
    # Student's t with one degree of freedom: 12.7062.
    self.assertAlmostEqual(over['tokens']['value'], 1000)
    self.assertAlmostEqual(over['tokens']['high'], 2270.62, places=2)
    self.assertAlmostEqual(over['shares']['horizon']['value'], 1 / 18)
    self.assertAlmostEqual(over['reached'][1][0]['value'], 1000)
    self.assertIsNone(over['reached'][2])
    self.assertEqual(json.loads(json.dumps(summary)), summary)
    out = io.StringIO()
    costs.print_summary(summary, console_lib.Console(file=out, width=80))
    for line in (
        r'a +900 +55\.6 % +16\.7 % +11\.1 % +5\.6 % +6\.7 % +4\.4 %',
        r'b +1\.1 k +45\.5 %! +13\.6 % +0\.0 % +4\.5 % +32\.7 %! +3\.6 %!',
        r'1 of 2 runs keep the bounds',
        r'tokens until +40 % +60 % +80 %',
        r'a +100 +900 +never',
        r'mean +100 +1 k +0 of 2',
        r'a +−11\.2 +\+2\.2 +1',
    ):
      self.assertRegex(out.getvalue(), line)
    self.assertLessEqual(max(map(len, out.getvalue().splitlines())), 80)

  def test_a_reference_that_ends_early_does_not_count(self):
    path, run = self._run('a')
    long = self._training('long', (0.9, 0.9, 0.9, 0.9, 0.9))
    short = self._training('short', (0.1, 0.1, 0.1, 0.1))  # 800 < 0.98 x 900.
    curves = [costs.of_training(r, 2) for r in (long, short)]
    found = costs.regret(milestones.curve(run, {0: 100}), curves)
    self.assertAlmostEqual(found['end'], 0.2)
    self.assertEqual(found['references'], 1)
    self.assertIsNone(
        costs.regret(milestones.curve(run, {0: 100}), curves[1:])
    )
    with self.assertRaisesRegex(ValueError, 'tiny has no curve.*2 updates'):
      tiny = self._training('tiny', (0.1,))
      costs.summarise([path], [run], [tiny])

  def test_references_of_one_name_all_count(self):
    path, run = self._run('a')
    for folder in ('x', 'y'):
      (self.root / folder).mkdir()
    high = self._training('x/seed-0', (0.9,) * 5)
    low = self._training('y/seed-0', (0.5,) * 5)
    summary = costs.summarise([path] * 2, [run] * 2, [high, low, high])
    self.assertEqual([r['run'] for r in summary['references']], ['seed-0'] * 2)
    self.assertEqual(summary['runs'][0]['regret']['references'], 2)
    self.assertAlmostEqual(summary['runs'][0]['regret']['end'], 0.0)

  def test_rollouts_at_another_temperature_do_not_compare(self):
    path, run = self._run('a')
    other = self._training('r', (0.9,) * 6, temperature=0.7)
    with self.assertRaisesRegex(
        ValueError, 'r: rollout.temperature is 0.7, and 1.0 in .*a: rollouts'
    ):
      costs.summarise([path], [run], [other])
    # A run that evolved may be a reference; this one is the run itself.
    summary = costs.summarise([path] * 2, [run] * 2, [path])
    self.assertEqual(summary['runs'][0]['regret']['mean'], 0.0)


if __name__ == '__main__':
  absltest.main()
