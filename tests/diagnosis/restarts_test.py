"""Tests for logs of runs that were set back to a checkpoint."""

import json
import os
import pathlib
import shutil
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd

from evojax.diagnosis import form
from evojax.diagnosis import readers
from tests.diagnosis import made

_DATA = pathlib.Path(__file__).parent / 'data'


def _metrics(steps, reward: float) -> list[dict]:
  return [{'step': s, 'reward': reward, 'entropy': 0.5} for s in steps]


class RestartsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory()), 'run'
    )
    self.path.mkdir()

  def _write(self, lines: list[dict], name: str = 'log.jsonl') -> None:
    text = ''.join(f'{json.dumps(line)}\n' for line in lines)
    (self.path / name).parent.mkdir(exist_ok=True, parents=True)
    (self.path / name).write_text(text)

  @parameterized.parameters('table', 'verl', 'wandb', 'prime-rl')
  def test_metrics_of_an_abandoned_branch(self, format_):
    lines = _metrics(range(60), 0.1)
    # An evaluation comes before the first metrics of the new branch.
    lines += [{'step': 40, 'eval/reward': 0.7}, *_metrics(range(40, 52), 0.9)]
    if format_ == 'verl':
      self._write([{'step': n.pop('step'), 'data': n} for n in lines])
      row = {'input': 'a', 'output': 'b', 'score': 1}
      self._write([row], '3.jsonl')
    elif format_ == 'wandb':
      made_ = [{'_step': i, **line} for i, line in enumerate(lines)]
      pd.DataFrame(made_).to_csv(self.path / 'export.csv', index=False)
    elif format_ == 'prime-rl':
      self._write(lines, 'metrics.jsonl')
      episode = {'traces': [{'nodes': []}]}
      name = 'rollouts/step_3/train/all/traces.jsonl'
      self._write([episode], name)
    else:
      self._write(lines)
    run = readers.read(self.path)
    self.assertEqual(run.format, format_)
    self.assertEqual(run.steps['step'].tolist(), [*range(52)])
    self.assertEqual(run.steps['reward'].tolist(), [0.1] * 40 + [0.9] * 12)
    self.assertIn('repeated steps 40 to 59: their first metr', str(run.notes))
    if format_ == 'table':
      evaluated = run.steps['evaluation_eval/reward'].dropna()
      self.assertEqual(evaluated.to_dict(), {40: 0.7})

  def test_metrics_in_another_order_are_no_restart(self):
    # An evaluation that ends late, and threads that log in another order.
    lines = _metrics([0, 1, 2, 4, 3, 5, 6, 7, 8, 9], 0.5)
    # The last line sums up the best step.
    lines += [{'step': 2, 'eval/reward': 0.7}, *_metrics([5], 0.5)]
    self._write(lines)
    run = readers.read(self.path)
    self.assertLen(run.steps, 10)
    self.assertNotIn('restarted', str(run.notes))
    # Two files of a run, the second one with fewer steps.
    self._write(_metrics(range(4), 0.5), 'more.jsonl')
    self.assertLen(readers.read(self.path).steps, 10)

  def test_groups_that_are_numbered_anew(self):
    rows = made.rollouts(steps=12)
    rows['group'] = [f'{s}-{g}' for s, g in zip(rows['step'], rows['group'])]
    again = rows[rows['step'] >= 6].assign(group=lambda r: r['group'] + 'b')
    again['completion'] = 'new'
    both = pd.concat([rows[rows['step'] < 9], again])
    both.to_json(self.path / 'log.jsonl', orient='records', lines=True)
    run = readers.read(self.path)
    self.assertLen(run.rollouts, len(rows))
    self.assertEqual((run.rollouts['completion'] == 'new').sum(), len(again))
    self.assertIn('repeated steps 6 to 8', str(run.notes))

  def test_completions_of_ms_swift(self):
    shutil.copy(_DATA / 'trl' / 'trainer_state.json', self.path)
    lines = []
    for seed, steps in ((0, range(1, 10)), (1, range(6, 9))):
      rows = made.rollouts(seed, steps=12)
      lines += [
          {
              'step': [str(step)] * 64,
              'messages': rows['prompt'][rows['step'] == step].tolist(),
              'completion': [f'of {seed}'] * 64,
          }
          for step in steps
      ]
    self._write(lines, 'completions.jsonl')
    run = readers.read(self.path)
    self.assertEqual(run.rollouts['step'].unique().tolist(), [*range(1, 9)])
    new = run.rollouts.loc[run.rollouts['completion'] == 'of 1', 'step']
    self.assertEqual(new.unique().tolist(), [6, 7, 8])
    self.assertIn('repeated steps 6 to 9', str(run.notes))

  @parameterized.product(
      format_=('trl', 'verl'),
      case=('restart', 'equal', 'by name', 'at random', 'mended', 'in order'),
  )
  def test_files_that_are_left_from_an_earlier_branch(self, format_, case):
    shutil.rmtree(self.path)
    shutil.copytree(_DATA / format_, self.path)
    if format_ == 'trl':
      files = sorted((self.path / 'completions').iterdir())
    else:
      files = sorted(
          self.path.rglob('[0-9]*.jsonl'), key=lambda file: int(file.stem)
      )
    order = np.arange(12.0)
    if case == 'restart':  # After step 9, from step 4 to step 7.
      order[4:7] += 20
    elif case == 'equal':
      order[:] = 0
    elif case == 'by name':
      names = sorted(file.name for file in files)
      order = np.array([names.index(file.name) for file in files])
    elif case == 'at random':
      order = np.random.default_rng(0).permutation(12)
    elif case == 'mended':
      order[5] += 20
    for file, place in zip(files, order, strict=True):
      os.utime(file, (10**9 + 60 * place,) * 2)
    run = readers.read(self.path)
    wanted = 7 if case == 'restart' else 12
    self.assertLen(run.rollouts, 64 * wanted)
    said = 'files of steps 8 to 12 are older than' in str(run.notes)
    self.assertEqual(said, case == 'restart')

  def test_several_runs_of_verl(self):
    for name in ('a', 'b', 'val'):
      shutil.copytree(_DATA / 'verl', self.path / name)
    with self.assertRaisesRegex(
        form.FormatError, 'holds 2 runs, .* step 1: .*/a, .*/b; name one'
    ):
      readers.read(self.path)
    shutil.rmtree(self.path / 'b')
    self.assertLen(readers.read(self.path).rollouts, 12 * 64)

  @parameterized.product(name=('run', 'run_id', 'run_name'), rollouts=(0, 1))
  def test_several_runs_in_a_table(self, name, rollouts):
    if rollouts:
      rows = made.rollouts(steps=8)
    else:
      rows = pd.DataFrame(_metrics(range(8), 0.5))
    table = pd.concat([rows.assign(**{name: n}) for n in ('x', 'y')])
    path = self.path / 'log.parquet'
    table.to_parquet(path)
    with self.assertRaisesRegex(
        form.FormatError, f"2 runs: its column '{name}' has the values x, y. W"
    ):
      readers.read(path)
    # A run that is continued under another name.
    table.loc[table['step'] < 4, name] = 'x'
    table.loc[table['step'] >= 4, name] = 'y'
    table.to_parquet(path)
    self.assertEqual(readers.read(path).n_steps, 8)


if __name__ == '__main__':
  absltest.main()
