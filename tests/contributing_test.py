"""Follows the instructions of CONTRIBUTING.md and checks that they work.

A walk changes a copy of the package as the text describes, and then runs the
command or test that the text names.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

from absl.testing import absltest
from absl.testing import parameterized
import pandas as pd

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = (ROOT / 'CONTRIBUTING.md').read_text()
SECTIONS = dict(re.findall(r'^## (.+?)\n(.*?)(?=^## |\Z)', TEXT, re.M | re.S))
MAX_LINES = 10

_DOMAIN = """
import numpy as np
from evojax import records
from evojax.domains import base
from evojax.domains import sources
from evojax.domains import splits


class Doubles(base.Domain):
  name = 'doubles'

  def source(self, split, seed):
    everything = [
        sources.make_problem(
            [{'role': 'user', 'content': f'Double {n}.'}], str(2 * n), 'doubles'
        )
        for n in range(6000)
    ]
    mine = [p for p in everything if splits.split_of(p.problem_id) == split]
    return sources.FiniteSource(mine, split, seed)

  def grade(self, problem, episode):
    right = episode.text.strip() == problem.answer
    return records.Grade(right, float(right), 'ok', {})

  def reward_parts(self, e):
    return {'outcome': e.outcome.astype(np.float32)}


make = Doubles
"""
_CONFIG = """
from configs import common
from evojax import config as config_lib

VARIANTS = common.VARIANTS


def get_config(variant='default'):
  common.check('doubles', variant)
  c = config_lib.base()
  c.name = f'doubles-{variant}'
  c.domain.name = 'doubles'
  c.model.path = 'package:math'
  return c.lock()
"""
_ENVIRONMENT = """
import re

from evojax import records
from evojax.domains import base
from evojax.domains import environments
from evojax.domains import sources
from evojax.domains import splits
from evojax.evidence import schema


class Guess:
  '''Says whether the number is higher or lower.'''

  def __init__(self, number):
    self.number, self.guesses = number, []

  def reply(self, turn):
    found = re.findall('[0-9]{1,4}', turn.text)
    self.guesses.append(int(found[-1]) if found else 0)
    if self.guesses[-1] == self.number:
      return environments.Reply()
    hint = 'higher' if self.guesses[-1] < self.number else 'lower'
    return environments.Reply(({'role': 'user', 'content': hint},))

  def close(self):
    return self.guesses


class Doubles(base.Domain):
  name = 'doubles'
  limits = environments.Limits(turns=3)
  columns = (
      schema.with_codes('grade_status', {'ok': 0, records.INFRA_ERROR: 1}),
  )

  def source(self, split, seed):
    everything = [
        sources.make_problem(
            [{'role': 'user', 'content': f'Guess {n}.'}], str(n), 'doubles'
        )
        for n in range(2000)
    ]
    mine = [p for p in everything if splits.split_of(p.problem_id) == split]
    return sources.FiniteSource(mine, split, seed)

  def environment(self, problem):
    return Guess(int(problem.answer))

  def grade(self, problem, episode):
    guesses = episode.state or []
    right = int(problem.answer) in guesses
    return records.Grade(right, float(right), 'ok', {})

  def reward_parts(self, e):
    return {'outcome': e.outcome.astype('float32')}


make = Doubles
"""
_GUESS = 'evojax.domains.doubles'
_DIAGNOSTIC = '''
"""Spread of the lengths of completions."""

LAYER = 'behaviour'
UNIT = 'tokens'
WARN = {'length_spread': ('>', 50.0)}
CRITICAL = {}
CALLS_FOR = ('length',)


def measure(e):
  """Return the standard deviation of n_tokens over valid completions."""
  if not e.valid.any():
    return {}
  return {'length_spread': float(e.n_tokens[e.valid].std())}
'''
_CHECK = '''
def few_steps(run: form.Run) -> findings.Finding | None:
  """The run has fewer than ten steps."""
  if run.n_steps >= 10:
    return None
  return findings.Finding(
      check='few_steps', severity='note', text=f'only {run.n_steps} steps'
  )
'''
_READER = '''
"""Reads a reward per line."""

import pandas as pd

from evojax.diagnosis import form


def fits(path):
  return path.suffix == '.doubles'


def read(path, columns, settings):
  """Read a file."""
  del columns
  rewards = [float(line) for line in path.read_text().split()]
  steps = pd.DataFrame({'step': range(len(rewards)), 'reward': rewards})
  return form.make(path, 'doubles', pd.DataFrame(), steps, settings)
'''
_ENTRY = """
    'a_little_warmer': Entry(
        triggers=('constant_reward',),
        change=changes.set_value('rollout.temperature', 1.1),
        expected=(-0.03, 0.05),
        hypothesis='A warmer policy makes groups differ.',
        source='An example of 2026',
    ),
}
"""
_PROPOSER = '''
from evojax.evolve import propose as propose_lib


def propose(context):
  """Propose a clip bound, once."""
  after = context.parent.with_overlay({'grpo.clip_high': 0.3})
  try:
    return propose_lib.make(
        context, after, hypothesis='Clip higher.', expected=(-0.02, 0.05),
        source='DAPO',
    )
  except propose_lib.ProposalError:
    return None
'''
_ESTIMATOR = '''

def positive(rewards, valid):
  """Keep only advantages above the mean of the group."""
  return group_mean(rewards, valid).clip(0)


'''


class WalkTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    for name in ('evojax', 'configs', 'tests'):
      shutil.copytree(
          ROOT / name,
          self.root / name,
          ignore=shutil.ignore_patterns('__pycache__'),
      )
    for name in ('setup.py', 'pyproject.toml'):
      shutil.copy(ROOT / name, self.root / name)

  def write(self, walk: str, path: str, text: str) -> None:
    """Write a new file at the path that the text gives."""
    place = pathlib.PurePath(path)
    named = [str(place), f'{place.parent}/']
    for name in ('doubles', 'spread', 'clip_once'):
      named += [text.replace(name, 'NAME') for text in named]
    self.assertTrue(any(text in SECTIONS[walk] for text in named), path)
    file = self.root / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(textwrap.dedent(text).lstrip())

  def edit(self, walk: str, path: str, old: str, new: str) -> None:
    """Replace a piece of a file that the text names."""
    self.assertIn(path, SECTIONS[walk].replace('\\', ''))
    file = self.root / path
    self.assertEqual(file.read_text().count(old), 1, f'{path}: {old}')
    file.write_text(file.read_text().replace(old, new))

  def run_python(self, *arguments: str) -> str:
    run = subprocess.run(
        [sys.executable, *arguments],
        cwd=self.root,
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(run.returncode, 0, run.stdout[-3000:] + run.stderr[-3000:])
    return run.stdout

  def pytest(self, walk: str, *arguments: str) -> None:
    """Run a test that the text names."""
    self.assertIn(arguments[0], SECTIONS[walk])
    printed = self.run_python(
        '-m', 'pytest', '-q', '-p', 'no:cacheprovider', *arguments
    )
    self.assertRegex(printed, r'\d+ passed')

  @parameterized.parameters(*SECTIONS)
  def test_is_short(self, walk):
    lines = [line for line in SECTIONS[walk].splitlines() if line.strip()]
    self.assertLessEqual(len(lines), MAX_LINES)

  def test_links_exist(self):
    for path in re.findall(r'\]\(([^):]+)\)', TEXT):
      self.assertTrue((ROOT / path).is_file(), path)

  def test_domain(self):
    walk = 'A domain'
    self.write(walk, 'evojax/domains/doubles/__init__.py', _DOMAIN)
    self.edit(
        walk,
        'evojax/domains/__init__.py',
        'DOMAINS = {\n',
        "DOMAINS = {\n    'doubles': 'evojax.domains.doubles',\n",
    )
    self.write(walk, 'configs/doubles.py', _CONFIG)
    command = re.search('`python (-m evojax.main .+?)`', SECTIONS[walk])[1]
    printed = self.run_python(*command.replace('NAME', 'doubles').split())
    self.assertIn('domain doubles: ok', printed)
    self.assertIn('reward of the domain: ok', printed)

  def test_environment(self):
    walk = 'An environment of your own'
    domain = self.root / 'evojax/domains/doubles.py'
    domain.write_text(_ENVIRONMENT.lstrip())
    config = _CONFIG.replace("name = 'doubles'", f"name = '{_GUESS}'")
    (self.root / 'configs/doubles.py').write_text(
        config.replace(
            '  return c',
            '  c.rollout.turn_tokens = 8\n'
            '  common.apply(c, variant)\n'
            '  return c',
        ).lstrip()
    )
    text = ' '.join(SECTIONS[walk].split())
    command = re.search('`python (-m evojax.main .+?)`', text)[1]
    self.run_python(
        *command.replace('NAME', 'doubles').split(),
        f'--workdir={self.root}/run',
        '--config.rollout.decode_slots=16',
    )
    (file,) = (self.root / 'run/evidence/train').glob('*.parquet')
    rows = pd.read_parquet(file)
    self.assertGreater(rows.n_turns.max(), 1)
    told = {text for texts in rows.observations for text in texts}
    self.assertIn('higher', told)

  def test_diagnostic(self):
    walk = 'A diagnostic'
    self.write(
        walk, 'evojax/harness/library/diagnostics/spread.py', _DIAGNOSTIC
    )
    for domain in ('math', 'coding'):
      path = f'evojax/domains/{domain}/seed_harness/library.json'
      self.assertIn(path, SECTIONS[walk])
      named = json.loads((self.root / path).read_text())
      named['diagnostics/spread.py'] = 'diagnostics/spread.py'
      (self.root / path).write_text(json.dumps(named))
    self.pytest(walk, 'tests/harness/seed_test.py', '-k', 'admitted or share')

  def test_check_of_a_diagnosis(self):
    walk = 'A check of `evojax-diagnose`'
    path = 'evojax/diagnosis/checks/data.py'
    self.edit(walk, path, 'CHECKS = (', f'{_CHECK}\n\nCHECKS = (few_steps, ')
    self.edit(
        walk,
        'tests/diagnosis/faults_made.py',
        'FAULTS = {\n',
        'FAULTS = {\n'
        "    'few': (lambda: made.run(made.rollouts(steps=9)),"
        " ('few_steps',)),\n",
    )
    test = 'tests/diagnosis/examine_test.py'
    self.pytest(walk, test, '-k', 'every_check or named0')

  def test_log_format_of_a_diagnosis(self):
    walk = 'A log format for `evojax-diagnose`'
    self.write(walk, 'evojax/diagnosis/readers/doubles.py', _READER)
    self.edit(
        walk,
        'evojax/diagnosis/readers/__init__.py',
        'FORMATS = {\n',
        "FORMATS = {\n    'doubles': 'doubles',\n",
    )
    (self.root / 'log.doubles').write_text('0.5\n0.75\n')
    printed = self.run_python('-m', 'evojax.diagnosis', 'log.doubles')
    self.assertIn('2 steps are too few', printed)

  def test_intervention(self):
    walk = 'An intervention'
    path = 'evojax/evolve/propose/library.py'
    source = (self.root / path).read_text()
    end = source.index('\n}\n', source.index('ENTRIES = {')) + 1
    self.assertIn(path, SECTIONS[walk])
    (self.root / path).write_text(
        source[:end] + _ENTRY.lstrip('\n') + source[end + 2 :]
    )
    self.pytest(walk, 'tests/evolve/propose_test.py', '-k', 'a_little_warmer')

  def test_proposer(self):
    walk = 'A proposer'
    self.write(walk, 'evojax/evolve/propose/clip_once.py', _PROPOSER)
    self.edit(
        walk,
        'evojax/evolve/propose/__init__.py',
        'PROPOSERS = {\n',
        "PROPOSERS = {\n    'clip_once': 'evojax.evolve.propose.clip_once',\n",
    )
    printed = self.run_python(
        '-c',
        'from evojax.evolve import propose\n'
        'from tests.evolve import propose_test\n'
        "proposal = propose.load('clip_once')(propose_test.context())\n"
        'print(proposal.proposer, proposal.delta.factor)',
    )
    self.assertEqual(printed, 'clip_once clip\n')

  def test_estimator(self):
    walk = 'An advantage estimator'
    path = 'evojax/rl/advantages.py'
    self.edit(
        walk,
        path,
        '\nADVANTAGES = {\n',
        f"{_ESTIMATOR}ADVANTAGES = {{\n    'positive': positive,\n",
    )
    self.edit(
        walk,
        'evojax/config.py',
        "'leave_one_out')",
        "'leave_one_out', 'positive')",
    )
    self.edit(
        walk,
        'tests/rl/advantages_test.py',
        'EXPECTED = {\n',
        'EXPECTED = {\n'
        "    'positive': [[0, 0, 0, 3], [0, 0, 0.5, 0.5], [0] * 4, [0] * 4],\n",
    )
    self.pytest(walk, 'tests/rl/advantages_test.py')
    printed = self.run_python(
        '-m',
        'evojax.main',
        '--config=configs/math.py',
        '--config.grpo.advantage=positive',
        '--mode=check',
    )
    self.assertIn('config math-default: ok', printed)

  def test_server_route(self):
    walk = 'A server route'
    path = 'evojax/rollout/server/app.py'
    self.edit(
        walk,
        path,
        "        ('GET', '/health', self._health),\n",
        "        ('GET', '/health', self._health),\n"
        "        ('GET', '/ping', self._ping),\n",
    )
    self.edit(
        walk,
        path,
        '  async def _health(self, _',
        '  async def _ping(self, _):\n'
        "    return _json({'pong': True})\n\n"
        '  async def _health(self, _',
    )
    printed = self.run_python(
        '-c',
        'from fastapi import testclient\n'
        'from evojax.rollout.server import app\n'
        'from tests.rollout.server import fakes\n'
        'made = app.App(fakes.make_tokenizer(), fakes.make_settings())\n'
        "client = testclient.TestClient(made.asgi, 'http://localhost')\n"
        "print(client.get('/ping').json())",
    )
    self.assertEqual(printed, "{'pong': True}\n")


if __name__ == '__main__':
  absltest.main()
