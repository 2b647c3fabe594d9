"""Tests for the command: its output, its files, and hostile texts."""

import contextlib
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from evojax.diagnosis import __main__ as command
from tests.diagnosis import made

_DATA = pathlib.Path(__file__).parent / 'data'
_HOSTILE = '</pre><script>alert(1)</script>\x1b[2J\x1b]0;owned\x07\u202e'


class RunTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

  def run_command(self, *arguments):
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
      code = command.main([*map(str, arguments), f'--out={self.path}'])
    return code, out.getvalue(), error.getvalue()

  def test_trl(self):
    code, out, _ = self.run_command(_DATA / 'trl', '--set', 'temperature=1.6')
    self.assertEqual(code, 0)
    self.assertIn('1 warning   rollouts are sampled at temperature 1.6', out)
    self.assertIn('change    temperature 1.6 -> 1', out)
    self.assertIn('cannot tell: ', out)
    made_ = json.loads((self.path / 'diagnosis.json').read_text())
    self.assertEqual(made_['verdict'], 'findings')
    self.assertEqual(made_['findings'][0]['check'], 'temperature')
    page = (self.path / 'diagnosis.html').read_text()
    self.assertIn('rollouts are sampled at temperature 1.6', page)
    self.assertNotIn('http://', page)

  def test_a_page_names_a_reason_once(self):
    _, out, _ = self.run_command(_DATA / 'trl')
    page = (self.path / 'diagnosis.html').read_text()
    text = ' '.join(re.sub('<[^>]+>', ' ', page).split())
    self.assertEqual(text.count('kl is not logged: beta &gt; 0'), 1)
    self.assertIn('kl explosion, kl negative, kl at start', text)
    self.assertIn('(kl is not logged: beta > 0)', ' '.join(out.split()))
    self.assertIn('Thin lines are the values, bold ones their running', text)

  def test_a_curve_of_zeros_has_an_axis_that_can_be_read(self):
    log = self.path / 'log.jsonl'
    rows = made.rollouts(steps=30, start=-20.0)
    rows.to_json(log, orient='records', lines=True)
    _, out, _ = self.run_command(log)
    self.assertIn('the solved share stays at 0%', out)
    page = (self.path / 'diagnosis.html').read_text()
    chart = page[page.index('aria-label="solved by step"') :]
    ticks = re.findall('>([^<]+)</text>', chart[: chart.index('</figure>')])
    self.assertEqual(ticks[:3], ['0', '0.2', '0.4'])

  def test_the_steps_of_a_short_run(self):
    """An evaluation before the first step is no step of its own."""
    log = self.path / 'log.jsonl'
    steps = [
        {'step': 0, 'eval_outcome': 0.3},
        *({'step': 1 + i, 'reward': 0.1 * i} for i in range(7)),
    ]
    log.write_text('\n'.join(map(json.dumps, steps)))
    _, out, _ = self.run_command(log)
    said = '7 steps are too few to judge a trend (8 needed)'
    self.assertStartsWith(out, said)
    self.assertIn('(7 steps, 8 needed)', ' '.join(out.split()))
    made_ = json.loads((self.path / 'diagnosis.json').read_text())
    self.assertEqual(made_['steps'], 7)

  def hostile(self):
    rows = made.rollouts(steps=12)
    rows['outcome'] = rows['format_ok'] = 1.0
    rows['completion'] = _HOSTILE
    rows['prompt'] += _HOSTILE
    # One text that is right for all problems, a finding that quotes rollouts.
    folder = self.path / ('bold' + '\x1b[1m')
    folder.mkdir()
    rows.to_json(folder / 'log.jsonl', orient='records', lines=True)
    return folder

  def test_texts_are_shown_and_not_obeyed(self):
    code, out, _ = self.run_command(self.hostile())
    self.assertEqual(code, 1)
    self.assertIn('critical', out)
    self.assertNotIn('\x1b', out)
    page = (self.path / 'diagnosis.html').read_text()
    self.assertIn('&lt;script&gt;alert(1)', page)
    self.assertNotIn('<script>alert', page)
    for control in '\x1b\x07\u202e':
      self.assertNotIn(control, page)
    json.loads((self.path / 'diagnosis.json').read_text())

  @parameterized.parameters((0.0, 0), (20.0, 1))
  def test_mode_of_evojax(self, decay, code):
    workdir = self.path / 'run'
    frozen = _DATA.parents[1] / 'frozen' / 'tree_2026_11_22_math'
    shutil.copytree(frozen, workdir)
    saved = json.loads((workdir / 'config.json').read_text())
    saved['config']['optim']['weight_decay'] = decay
    (workdir / 'config.json').write_text(json.dumps(saved))
    run = subprocess.run(
        [
            sys.executable,
            '-m',
            'evojax.main',
            '--mode=diagnose',
            f'--workdir={workdir}',
        ],
        cwd=_DATA.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(run.returncode, code, run.stdout + run.stderr)
    wanted = 'optim.weight_decay is 20' if code else 'too few to judge'
    self.assertIn(wanted, run.stdout)
    self.assertTrue((workdir / 'diagnosis.html').is_file())

  def test_a_reader_that_has_read_enough(self):
    command = [sys.executable, '-m', 'evojax.diagnosis', _DATA / 'trl']
    with subprocess.Popen(
        [*map(str, command), f'--out={self.path}'],
        cwd=_DATA.parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
      run.stdout.close()
      self.assertEqual(run.stderr.read(), '')
    self.assertEqual(run.returncode, 141)

  def test_wrong_arguments_are_one_line(self):
    for arguments, said in (
        ([self.path / 'lost'], 'there is no'),
        ([_DATA / 'trl', '--set', 'heat=1'], 'the settings are'),
        ([_DATA / 'trl', '--set', 'temperature=hot'], 'not a number'),
        ([_DATA / 'trl', '--set', 'temperature=-1'], 'at least 0'),
        ([_DATA / 'trl', '--set', 'kl_coef=nan'], 'finite number'),
        ([_DATA / 'trl', '--columns', 'outcome=lost'], 'names lost'),
    ):
      code, _, error = self.run_command(*arguments)
      self.assertEqual(code, 2)
      self.assertIn(said, ' '.join(error.split()))


if __name__ == '__main__':
  absltest.main()
