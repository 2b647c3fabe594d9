"""The page of a training run, at any time of the run."""

import json
import pathlib
import re
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.report import page
from evojax.runtime import workdir as workdir_lib
from tests.report import curves_test
from tests.report import synthetic

_SIDE = {
    'standard_error': 0.02,
    'low': 0.3,
    'high': 0.36,
    'pass_at_k': {'1': 0.33, '8': 0.9},
    'n_tokens': 20.0,
    'truncated': 0.01,
}
_FAMILY = dict(family='jars', problems=256, before=0.33, after=0.6, gain=0.27)
SUMMARY = {
    'steps': 30,
    'gain': {
        'sealed': {
            'problems': 256,
            'samples': 8,
            'before': _SIDE | {'step': 0, 'value': 0.33},
            'after': _SIDE
            | {'step': 30, 'value': 0.6, 'low': 0.57, 'high': 0.63},
            'gain': {'value': 0.27, 'low': 0.24, 'high': 0.3},
            'families': [_FAMILY],
        }
    },
}


def _write(workdir, *, steps=30, text='', summary=None) -> pathlib.Path:
  """Write a training run of 30 steps that has made `steps`."""
  rng = np.random.default_rng(0)
  rows = [
      {
          'step': step,
          'reward': 0.3 + step / 100,
          'outcome': 0.3 + step / 100,
          'entropy': 1 / step,
          'sampled_tokens': 1000,
          'seconds/rollout': 1.0,
          'seconds/update': 3.0,
      }
      for step in range(1, steps + 1)
  ]
  curves_test.write(workdir, [{'step': 0, 'dev/avg_at_k': 0.33}, *rows])
  config = {'name': f'mine{text}', 'steps': 30, 'grpo': {'prompts': 12}}
  start = {'start': '2026-11-21T10:00:00+00:00', 'devices': 1, 'device': 'cpu'}
  start |= {'jax': '0.10.2', 'command': f'python -m evojax.main {text}'}
  for name, value in (
      ('config.json', {'hash': 'x', 'config': config}),
      ('manifest.json', [start, start]),
      ('summary.json', summary),
  ):
    if value is not None:
      (workdir / name).write_text(json.dumps(value))
  synthetic.write_evidence(workdir, 'train', rng=rng, share=0.4, text=text)
  return workdir


class TrainingTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    self.workdir = root / 'run'

  def _build(self, **options) -> str:
    return page.build(self.workdir, **options).read_text()

  def test_finished(self):
    _write(self.workdir, summary=SUMMARY)
    text = self._build()
    for wanted in (
        '>finished</span>',
        'step 30 of 30',
        '<dt>tokens per step</dt><dd>1 k</dd>',
        '256 sealed problems: from 33.0 % to 60.0 % solved',
        '+27.0 [+24.0, +30.0] points',
        'pass@8',
        '>entropy</span>',
        'sampling <b class="num">25.0 %</b>',
        '>Step 30</h3>',  # The one step with rollouts.
        'mode: steps',  # Tags name their kind.
        'One of ok, no_answer.',
        'Was the reward gamed?',
        'grpo.prompts',
        '0.10.2',
        'The newest of 2 starts',
    ):
      self.assertIn(wanted, text)
    for why in ('✓ right', '✗ wrong', 'highest reward but wrong'):
      self.assertIn(why, text)
    self.assertIn('data-state="finished"', text)
    self.assertNotIn('reloads while', text)

  @parameterized.parameters(('running', True), ('stopped', False))
  def test_unfinished(self, kind, held):
    # The summary is from an earlier end, before config.steps was raised.
    _write(self.workdir, steps=12, summary=SUMMARY | {'steps': 10})
    if held:
      self.enter_context(workdir_lib.lock_folder(self.workdir))
    text = self._build()
    self.assertIn(f'data-state="{kind}"', text)
    self.assertIn('step 12 of 30', text)
    self.assertEqual('reloads while' in text, held)
    # The timestamp with which the page compares its clock.
    written = int(re.search(r'data-written="(\d+)"', text)[1])
    moment = re.search(r'<time datetime="([^"]+)"', text)[1]
    self.assertRegex(moment, r'^20\d\d-\d\d-\d\dT.*\+00:00$')
    self.assertGreater(written, 1.7e9)

  def test_files_may_be_missing_torn_or_of_another_kind(self):
    _write(self.workdir, summary=SUMMARY)
    for name in ('summary.json', 'config.json', 'manifest.json'):
      for content in (b'', b'{"steps": 3', b'[]', b'"x"', b'null'):
        with self.subTest(name, content=content):
          saved = (self.workdir / name).read_bytes()
          (self.workdir / name).write_bytes(content)
          self.assertIn('>entropy</span>', self._build())
          (self.workdir / name).write_bytes(saved)
    evidence = next((self.workdir / 'evidence').rglob('*.parquet'))
    evidence.write_bytes(evidence.read_bytes()[:1000])
    self.assertIn('cannot be read', self._build())
    (self.workdir / 'metrics.jsonl').write_bytes(b'')
    self.assertIn('No step has ended', self._build())

  def test_a_run_of_no_steps_is_finished(self):
    self.workdir.mkdir()
    config = {'hash': 'x', 'config': {'name': 'mine', 'steps': 0}}
    (self.workdir / 'config.json').write_text(json.dumps(config))
    (self.workdir / 'summary.json').write_text('{"steps": 0}')
    curves_test.write(self.workdir, [{'step': 0, 'dev/avg_at_k': 0.33}])
    text = self._build(running=False)
    self.assertIn('The run has no steps.', text)
    self.assertNotIn(' yet', text.partition('<h1')[2].partition('<script')[0])

  def test_neither_a_run_that_evolves_nor_a_training(self):
    self.workdir.mkdir()
    with self.assertRaisesRegex(ValueError, 'no metrics.jsonl'):
      self._build()
    self.assertEmpty(list(self.workdir.iterdir()))

  def test_hostile_text_stays_text(self):
    hostile = synthetic.HOSTILE + '\u2066' + 'x' * 1_000_000
    _write(self.workdir, text=hostile)
    text = self._build()
    self.assertEqual(text.count('<script'), 1)
    self.assertNotIn('<img', text)
    for raw in ('\x1b', '\u202e', '\u2066'):
      self.assertNotIn(raw, text)
    self.assertIn('more characters', text)

  def test_a_long_page_stays_small(self):
    _write(self.workdir, text='y' * 1_000_000)
    config = {'name': 'mine', 'steps': 30}
    saved = json.dumps({'hash': 'x', 'config': config})
    (self.workdir / 'config.json').write_text(saved)
    (self.workdir / 'manifest.json').unlink()
    self.assertLess(len(self._build()), 500_000)


if __name__ == '__main__':
  absltest.main()
