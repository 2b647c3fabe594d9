"""Runs of earlier versions can be read; tests/frozen/freeze.py makes them."""

import json
import pathlib
import re
import shutil
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from evojax.ledger import history
from evojax.ledger import records
from evojax.ledger import rows as rows_lib
from evojax.report import page

FROZEN = pathlib.Path(__file__).parent.parent / 'frozen'
ALL = sorted(path.parent.name for path in FROZEN.glob('*/ledger.jsonl'))
# Numbers in summary.json and the ledger at the time of freezing.
CASES = (
    dict(
        name='tree_2026_11_21_math',
        versions=['v0', 'v1'],
        trials=[('discard', 0.0546875), ('keep', 0.078125)],
        seconds='54',
        tokens=18922,
        sealed=('20.3 %', '45.3 %'),
    ),
    dict(
        name='tree_2026_11_21_coding',
        versions=['v0'],
        trials=[
            ('discard', 0.046875),
            ('discard', 0.015625),
            ('discard', 0.0078125),
        ],
        seconds='83',
        tokens=42329,
        sealed=('39.1 %', '43.8 %'),
    ),
    dict(
        name='tree_2026_11_21_math_records',
        versions=['v0', 'v1'],
        trials=[('keep', 0.0546875), ('discard', -0.015625)],
        seconds='85',
        tokens=24828,
        sealed=('25.0 %', '32.8 %'),
    ),
    dict(
        name='tree_2026_11_22_math',
        versions=['v0', 'v1', 'v2', 'v3'],
        trials=[('keep', 0.0625)],
        seconds='363',
        tokens=29617,
        sealed=('31.2 %', '53.1 %'),
    ),
)


class FrozenTest(parameterized.TestCase):

  @parameterized.parameters(*ALL)
  def test_the_whole_ledger_is_true_and_every_row_a_record(self, name):
    lines = (FROZEN / name / 'ledger.jsonl').read_bytes().splitlines()
    run = history.read(FROZEN / name)
    self.assertLen(run.rows, len(lines))
    self.assertEqual(run.dropped, 0)
    self.assertIn(run.ended, ('trials', 'rounds'))

  @parameterized.parameters(*ALL)
  def test_arms_are_those_of_the_ledger(self, name):
    run = history.read(FROZEN / name)
    listed = [arm for trial in run.trials for arm in trial.arms]
    listed += run.all(records.Retrain)
    self.assertNotEmpty(listed)
    for arm in listed:
      values = (FROZEN / name / arm.folder / 'arm.json').read_text()
      stored = rows_lib.from_json(records.Arm, json.loads(values))
      self.assertEqual((stored.end, stored.outcome), (arm.end, arm.outcome))

  @parameterized.parameters(*ALL)
  def test_tokens_of_the_policy_are_those_of_the_sealed_scores(self, name):
    run = history.read(FROZEN / name)
    compute = run.find(records.Final).compute
    # Earlier versions called a retrained policy 'evolved'.
    counted = compute.get('continued', compute['evolved'])
    self.assertEqual(run.tokens_by_use['policy'], counted.training)
    self.assertEqual(sum(run.tokens_by_use.values()), counted.total)

  def test_every_directory_is_a_case(self):
    self.assertEqual(ALL, sorted(case['name'] for case in CASES))

  @parameterized.parameters(*CASES)
  def test_page(self, name, versions, trials, seconds, tokens, sealed):
    run = history.read(FROZEN / name)
    self.assertEqual([v.version for v in run.versions], versions)
    self.assertEqual([(t.status, t.effect) for t in run.trials], trials)
    self.assertEqual(run.trained_tokens, tokens)
    with tempfile.TemporaryDirectory() as folder:
      workdir = pathlib.Path(folder, name)
      shutil.copytree(FROZEN / name, workdir)
      text = page.build(workdir).read_text()
    verdict = re.search('<p class="verdict">.*?</p>', text)[0]
    for share in sealed:
      self.assertIn(share, verdict)
    kept = sum(status == 'keep' for status, _ in trials)
    self.assertIn(f'{kept} of {len(trials)} change', verdict)
    if not kept:
      wanted = rf'Nothing was kept: (of|the) {len(trials)} changes\b'
      self.assertRegex(verdict, wanted)
    self.assertIn(f'({seconds} device-seconds)', text)
    self.assertLen(
        re.findall('<details class="version"', text), 1 + len(trials)
    )
    # Rollouts, flips and the differences of harnesses come from other files.
    for wanted in (
        'largest |advantage|',
        'Same problems, other outcome: ',
        'class="overlay"',
    ):
      self.assertIn(wanted, text)
    self.assertNotIn('is not in the workdir', text)

  def test_page_of_a_race(self):
    name = 'tree_2026_11_22_math'
    with tempfile.TemporaryDirectory() as folder:
      workdir = pathlib.Path(folder, name)
      shutil.copytree(FROZEN / name, workdir)
      text = page.build(workdir).read_text()
    # 16,128 of 35,616 tokens: those of v0 and of the arms in the versions.
    for wanted in (
        '<dt>tokens sampled</dt><dd>35.6 k</dd>',
        '<dt>in the policy</dt><dd>45.3 %</dd>',
        'After 2 rounds beside the former harness: stays kept',
        'class="line shadow bold"',
        'v3: 3 arms of the incumbent',
    ):
      self.assertIn(wanted, text)


if __name__ == '__main__':
  absltest.main()
