"""The tool works with only its own few packages installed."""

import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from absl.testing import absltest

import setup

ROOT = pathlib.Path(__file__).resolve().parents[2]
_RUN = ROOT / 'tests' / 'frozen' / 'tree_2026_11_22_math'
# Makes imports fail that the light installation lacks.
_MAIN = """
import sys

class Refuse:
  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] in {refused!r}:
      raise ModuleNotFoundError('no ' + name, name=name)

sys.meta_path.insert(0, Refuse())
from evojax.diagnosis import __main__
sys.exit(__main__.main(sys.argv[1:]))
"""


def _name(requirement: str) -> str:
  return re.sub(r'[-_.]+', '-', re.match(r'[\w.-]+', requirement)[0]).lower()


def _light() -> set[str]:
  """Return the distributions that the base requirements install."""
  found, left = set(), [_name(r) for r in setup.INSTALL_REQUIRES]
  while left:
    name = left.pop()
    if name in found:
      continue
    found.add(name)
    try:
      needs = importlib.metadata.requires(name) or ()
    except importlib.metadata.PackageNotFoundError:
      continue
    left += [_name(r) for r in needs if 'extra ==' not in r]
  return found


class LightTest(absltest.TestCase):

  def test_runs_without_what_only_a_training_needs(self):
    light = _light()
    self.assertIn('pandas', light)
    owners = importlib.metadata.packages_distributions()
    refused = {
        module
        for module, names in owners.items()
        if light.isdisjoint(map(_name, names)) and module != 'evojax'
    }
    self.assertContainsSubset(
        {'jax', 'flax', 'torch', 'transformers', 'orbax'}, refused
    )
    with tempfile.TemporaryDirectory() as folder:
      run = subprocess.run(
          [
              sys.executable,
              '-c',
              _MAIN.format(refused=refused),
              str(_RUN),
              f'--out={folder}',
          ],
          cwd=ROOT,
          capture_output=True,
          text=True,
          check=False,
      )
      self.assertEqual(run.returncode, 0, run.stderr)
      made = json.loads(pathlib.Path(folder, 'diagnosis.json').read_text())
      page = pathlib.Path(folder, 'diagnosis.html').read_text()
    self.assertEqual(made['format'], 'evojax')
    self.assertIn('too few to judge', run.stdout)
    self.assertIn('too few to judge', page)


if __name__ == '__main__':
  absltest.main()
