"""Runs the examples of the README and of docs/ as they are shown.

A fenced block after `<!-- test: NAME -->` is run by bash; one after
`<!-- test: NAME FILE -->` is written to FILE. NAME's blocks run in order, in
an empty directory with the package and the configs.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import pandas as pd
import pytest

from configs import math as math_config
from evojax import domains
from evojax.diagnosis import checks
from evojax.domains.swe import catalogue
import evojax.main
from tests import compiled
from tests.contract import servers

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / 'README.md').read_text()
# Path below the root -> text.
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md')))
}
_BLOCK = re.compile(
    r'^<!-- test: (\w+) ?(\S*) -->\n```(\w+)\n(.*?)^```$', re.M | re.S
)
BLOCKS = _BLOCK.findall('\n'.join(PAGES.values()))
NAMES = tuple(dict.fromkeys(name for name, *_ in BLOCKS))
MAX_LINES = 40  # A user's own extension is short.


class ReadmeTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    # The examples share only compiled programs.
    home = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.at_home = compiled.as_home(home)

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory())
    )
    for name in ('evojax', 'configs'):
      (self.folder / name).symlink_to(ROOT / name)
    self.environment = {
        **os.environ,
        **self.at_home,
        'JAX_PLATFORMS': 'cpu',
        'MODEL': str(domains.policy_path('package:math')),
        'PATH': f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}',
    }

  def run_blocks(self, wanted: str) -> str:
    """Run the blocks of a name; return their output."""
    printed = ''
    for name, file, _, text in BLOCKS:
      if name == wanted and file:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
      elif name == wanted:
        run = subprocess.run(
            ['bash', '-euo', 'pipefail', '-c', text],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(run.returncode, 0, f'{text}\n{run.stderr[-4000:]}')
        printed += run.stdout
    return printed

  def evidence(self, workdir: str) -> pd.DataFrame:
    return pd.concat(
        pd.read_parquet(file)
        for file in self.folder.glob(f'runs/{workdir}/evidence/train/*.parquet')
    )

  def test_every_marker_has_its_block(self):
    markers = re.findall('<!-- test:', '\n'.join(PAGES.values()))
    self.assertLen(markers, len(BLOCKS))
    self.assertSameElements(NAMES, [n[5:] for n in dir(self) if n[5:] in NAMES])

  @parameterized.parameters('model', 'data', 'domain', 'reward')
  def test_is_short(self, name):
    lines = sum(text.count('\n') for block, *_, text in BLOCKS if block == name)
    self.assertBetween(lines, 1, MAX_LINES)

  @parameterized.parameters(*PAGES)
  def test_links_and_paths_exist(self, page):
    text = PAGES[page]
    for link in re.findall(r'\]\(([^):]+)\)', text):
      with self.subTest(link):
        path, _, anchor = link.partition('#')
        here = ROOT / page
        target = here.parent / path if path else here
        self.assertTrue(target.is_file())
        if anchor:
          title = anchor.replace('-', ' ')
          self.assertRegex(target.read_text(), rf'(?im)^##+ {title}$')
    for path in re.findall(r'bash ((?:launch/)?\w+\.sh)', text):
      with self.subTest(path):
        self.assertTrue((ROOT / path).is_file())

  def test_names_every_mode_and_variant(self):
    modes = evojax.main.flags.FLAGS['mode'].parser.enum_values
    for name in (*math_config.VARIANTS, *modes):
      with self.subTest(name):
        self.assertIn(f'| `{name}` |', README)

  def test_counts_the_checks(self):
    self.assertIn(f'{len(checks.ALL)} checks detect', README)

  def test_counts_the_bugs(self):
    bugs = catalogue.load()
    shown = sum(bug.demonstrated for bug in bugs)
    self.assertIn(f'| swe | {len(bugs):,} bugs', README)
    self.assertIn(f'; {shown:,} of them only serve as demonstrations', README)

  @pytest.mark.slow
  def test_client(self):
    self.run_blocks('client')
    file = self.folder / 'ask.py'
    with servers.evojax() as server:
      text = file.read_text().replace("'none'", repr(servers.KEY))
      file.write_text(text.replace('http://localhost:30000', server.url))
      answer = subprocess.run(
          ['python', 'ask.py'],
          cwd=self.folder,
          env=self.environment,
          capture_output=True,
          text=True,
          check=False,
      )
    self.assertEqual(answer.returncode, 0, answer.stderr)
    self.assertNotEmpty(answer.stdout.strip())

  @pytest.mark.slow
  def test_python(self):
    self.run_blocks('python')
    subprocess.run(
        ['python', 'run.py'], cwd=self.folder, env=self.environment, check=True
    )
    self.assertTrue((self.folder / 'runs/from_python/summary.json').is_file())
    rows = self.evidence('from_python/arms/v0')
    self.assertEqual(rows['group'].nunique(), 4)

  def assert_learns(self, rows: pd.DataFrame, least: float):
    """Assert that twelve steps solve more at their end than at the start."""
    solved = rows.groupby('step')['outcome'].mean()
    first, last = solved[:2].mean(), solved[-3:].mean()
    print(f'solved rises from {first:.0%} to {last:.0%}')
    self.assertGreater(last - first, least)

  @pytest.mark.slow
  def test_model(self):
    printed = self.run_blocks('model')
    self.assertStartsWith(printed, 'devices: ')
    self.assertNotIn('no signal', printed)
    self.assert_learns(self.evidence('model'), 0.05)

  @pytest.mark.slow
  def test_data(self):
    self.run_blocks('data')
    rows = self.evidence('data')
    self.assertEqual(set(rows['family']), {'sums'})
    self.assert_learns(rows, 0.15)

  @pytest.mark.slow
  def test_grader(self):
    printed = self.run_blocks('grader')
    self.assertRegex(printed, r"grader my_score.compute_score: ok, '.*' scores")
    rows = self.evidence('grader')
    self.assertEqual(set(rows['family']), {'sums'})
    # At least one wrong and one right number.
    found = set(map('{:.1f}'.format, rows['partial']))
    self.assertContainsSubset({'0.1', '1.0'}, found)
    self.assertLessEqual(found, {'0.0', '0.1', '1.0'})
    self.assertTrue((rows['outcome'] == (rows['partial'] == 1)).all())

  @pytest.mark.slow
  def test_domain(self):
    self.run_blocks('domain')
    rows = self.evidence('domain')
    self.assertEqual(set(rows['family']), {'differences'})
    self.assertTrue(rows['prompt'].str.fullmatch(r'.*: \d\d - \d\d =').all())
    self.assert_learns(rows, 0.15)

  @pytest.mark.slow
  def test_reward(self):
    self.run_blocks('reward')
    rows = self.evidence('reward')
    expected = rows['part_outcome'] + 0.2 * rows['part_brief']
    self.assertLess((rows['reward'] - expected).abs().max(), 1e-6)
    self.assertGreater(rows['part_brief'].sum(), 0)

  @pytest.mark.slow
  def test_harness(self):
    brief = next(text for _, file, _, text in BLOCKS if file == 'brief.py')
    (self.folder / 'brief.py').write_text(brief)
    printed = self.run_blocks('harness')
    self.assertIn('harness mine: ok', printed)
    rows = self.evidence('harness')
    # The output of keep.py for the first steps.
    rate = rows.groupby(['step', 'group'])['outcome'].transform('mean')
    self.assertTrue((rows['kept'] == (rate > 0) & (rate < 1)).all())
    expected = rows['part_outcome'] + 0.2 * rows['part_brief']
    self.assertLess((rows['reward'] - expected).abs().max(), 1e-6)


if __name__ == '__main__':
  absltest.main()
