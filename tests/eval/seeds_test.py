import io
import json
import pathlib
import shutil
import tempfile

from absl.testing import absltest
from rich import console as console_lib

from evojax.eval import sealed
from evojax.eval import seeds
from tests.eval import fakes


class SeedsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

  def _run(self, name, right, seed, samples=4):
    """Write a run whose trained policy gets the first `right` samples right."""
    workdir = self.root / name
    workdir.mkdir()

    def script(weights, problem, sample):
      hard = int(problem.split()[-1]) % 3 == 0
      share = right if weights == 'trained' else 1
      return 'steps 4' if sample < share and not hard else 'steps 3'

    engine = fakes.Engine(script)
    sealed.score(
        fakes.make_scorer(engine),
        install_base=lambda: engine.update_weights('base', 0),
        install_trained=lambda: engine.update_weights('trained', 9),
        workdir=workdir,
        seed=seed,
        problems=12,
        samples=samples,
        step=9,
    )
    return workdir

  def test_hand_worked(self):
    runs = [self._run(f'run{i}', i, i) for i in (2, 3, 4)]
    summary = seeds.summarise(runs)
    self.assertFalse(summary['same_problems'])
    self.assertEqual(
        [run['run'] for run in summary['runs']],
        [
            'run2',
            'run3',
            'run4',
        ],
    )  # pyformat: disable
    # 8 of 12 problems, 1 of 4 samples; then 2, 3, 4 of 4.
    self.assertAlmostEqual(summary['before']['value'], 8 / 12 / 4, places=12)
    self.assertAlmostEqual(summary['after']['value'], 8 / 12 * 3 / 4, places=12)
    self.assertAlmostEqual(summary['gain']['value'], 8 / 12 / 2, places=12)
    # Gains 1/6, 2/6, 3/6: variance 1/36, / 3.
    self.assertAlmostEqual(
        summary['gain']['standard_error'], (1 / 36 / 3) ** 0.5, places=12
    )
    self.assertEqual(json.loads(json.dumps(summary)), summary)

  def test_shared_problems_are_recognised(self):
    runs = [self._run(f'run{i}', i, seed=5) for i in (2, 3, 4)]
    self.assertTrue(seeds.summarise(runs)['same_problems'])

  def test_printed(self):
    runs = [self._run(f'run{i}', i, i) for i in (2, 4)]
    out = io.StringIO()
    seeds.print_summary(
        seeds.summarise(runs), console_lib.Console(file=out, width=80)
    )
    text = out.getvalue()
    for expected in ('run4', 'other problems', '+50.0', 'gain +33.3 points'):
      self.assertIn(expected, text)

  def test_a_run_is_no_second_seed_of_itself(self):
    runs = [self._run(f'run{i}', i, i) for i in (2, 4)]
    copy = shutil.copytree(runs[0], self.root / 'copy')
    with self.assertRaisesRegex(ValueError, 'run2 and .*copy are copies'):
      seeds.summarise([*runs, copy])
    # Another evaluation of the same config is not another seed.
    for run in runs:
      (run / 'config.json').write_text('{"config": {"seed": 0}}')
    with self.assertRaisesRegex(ValueError, 'the same config and seed'):
      seeds.summarise(runs)

  def test_run_that_did_not_end(self):
    (self.root / 'open').mkdir()
    with self.assertRaisesRegex(ValueError, 'open has no sealed.json'):
      seeds.summarise([self._run('run', 2, 0), self.root / 'open'])

  def test_sizes_that_differ(self):
    runs = [self._run('a', 2, 0), self._run('b', 2, 1, samples=2)]
    with self.assertRaisesRegex(ValueError, r'\(12, 2\), \(12, 4\)'):
      seeds.summarise(runs)

  def test_one_run(self):
    with self.assertRaisesRegex(ValueError, '1 workdirs'):
      seeds.summarise(['x'])


if __name__ == '__main__':
  absltest.main()
