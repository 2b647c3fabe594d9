"""Executes the notebooks, cell by cell, as a fresh runtime would."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from tests import compiled

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTEBOOKS = tuple(sorted(p.name for p in (ROOT / 'colab').glob('*.ipynb')))
MAX_CODE_LINES = 80  # Notebooks call the package instead of extending it.


def cells(name: str) -> list[str]:
  """Return the sources of the code cells."""
  notebook = json.loads((ROOT / 'colab' / name).read_text())
  return [
      ''.join(cell['source'])
      for cell in notebook['cells']
      if cell['cell_type'] == 'code'
  ]


class ColabTest(parameterized.TestCase):

  @parameterized.parameters(*((name,) for name in NOTEBOOKS))
  def test_is_thin_and_holds_the_outputs_of_one_run(self, name):
    notebook = json.loads((ROOT / 'colab' / name).read_text())
    code = [c for c in notebook['cells'] if c['cell_type'] == 'code']
    # Run from top to bottom in one go, and to its end.
    self.assertEqual(
        [c['execution_count'] for c in code], [*range(1, len(code) + 1)]
    )
    kinds = {out['output_type'] for c in code for out in c['outputs']}
    self.assertNotEmpty(kinds)
    self.assertNotIn('error', kinds)
    self.assertTrue(code[-1]['outputs'])
    self.assertLess(sum(c.count('\n') for c in cells(name)), MAX_CODE_LINES)

  def test_the_first_cell_says_what_to_fill_in(self):
    for value, said in (
        ("''", 'ValueError: REPOSITORY is empty, and there is no checkout'),
        ("'/nowhere'", "ValueError: REPOSITORY='/nowhere': .*/nowhere"),
    ):
      cell = cells('quickstart.ipynb')[0]
      program = cell.replace("REPOSITORY = ''", f'REPOSITORY = {value}')
      run = subprocess.run(
          [sys.executable, '-c', program],
          cwd=self.enter_context(tempfile.TemporaryDirectory()),
          capture_output=True,
          text=True,
          check=False,
      )
      self.assertRegex(run.stderr.splitlines()[-1], said)

  @pytest.mark.slow
  @parameterized.parameters(*((name,) for name in NOTEBOOKS))
  def test_runs(self, name):
    folder, home = (
        self.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)
    )
    # As after a clone, the checkout is beside the notebook's outputs.
    pathlib.Path(folder, 'evojax').symlink_to(ROOT)
    program = '\n'.join(cells(name))
    run = subprocess.run(
        [sys.executable, '-c', program],
        cwd=folder,
        capture_output=True,
        env=os.environ | compiled.as_home(home) | {'JAX_PLATFORMS': 'cpu'},
        text=True,
        check=False,
    )
    self.assertEqual(run.returncode, 0, run.stderr[-4000:])
    self.assertIn('devices: ', run.stdout)
    self.assertTrue(
        pathlib.Path(folder, 'runs', 'quickstart', 'summary.json').is_file()
    )


if __name__ == '__main__':
  absltest.main()
