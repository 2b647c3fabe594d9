"""A real OpenEnv server through its client; skipped without the library."""

import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd
import pytest

import evojax
from evojax import domains
from evojax import records
from evojax.domains import environments
from tests import tiny
from tests.domains.verifiers import run

pytest.importorskip('openenv', reason='the extra openenv')


def _episode(*texts, **fields):
  """Return an episode with one token in each turn."""
  none = np.zeros(len(texts))
  turns = tuple(records.Turn(1, text=text) for text in texts)
  fields = {'finish_reason': 'stop', 'turns': turns} | fields
  return records.Episode(none, none, policy_version=0, text=texts[-1], **fields)


def _call(name, **arguments):
  call = json.dumps({'name': name, 'arguments': arguments})
  return f'<tool_call>{call}</tool_call>'


class OpenEnvTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    with socket.socket() as taken:
      taken.bind(('127.0.0.1', 0))
      port = taken.getsockname()[1]
    cls.url = f'http://127.0.0.1:{port}'
    server = subprocess.Popen(
        [sys.executable, '-m', 'tests.domains.openenv_server', str(port)],
        cwd=tiny.ROOT,
        env=tiny.environment(),
    )
    cls.addClassCleanup(server.wait)
    cls.addClassCleanup(server.kill)
    for _ in range(600):  # Its imports take several seconds.
      try:
        socket.create_connection(('127.0.0.1', port)).close()
        break
      except OSError:
        assert server.poll() is None
        time.sleep(0.1)

  def make(self, **kwargs):
    options = dict(url=self.url, seeds=40, sessions=4, range=(0.0, 3.0))
    return domains.make('openenv', **(options | kwargs))

  def test_seeds_are_problems(self):
    domain = self.make(action='text', prompt='Say. {text}')
    found = {
        split: {p.question for p in source.take(0, len(source))}
        for split in ('train', 'dev', 'sealed')
        for source in [domain.source(split, 0)]
    }
    want = {f'Say. Count {seed}.' for seed in range(40)}
    self.assertEqual(set().union(*found.values()), want)
    self.assertEqual(sum(map(len, found.values())), 40)
    self.assertEqual((domain.limits.turns, domain.limits.open), (10, 4))

  def test_turns_are_steps_and_rewards_add_up(self):
    domain = self.make(action='text', threshold=1.5)
    (problem,) = domain.source('train', 0).take(0, 1)
    session = domain.environment(problem)
    replies = [session.reply(_episode(text)) for text in ('1', 'ab', '1b')]
    told = [[m['content'] for m in r.messages] for r in replies]
    self.assertEqual(told, [['1.0'], ['0.0'], []])
    state = json.loads(json.dumps(session.close()))
    for episode in (
        _episode('1', 'ab', '1b', state=state),
        _episode('1', 'ab', '1b'),  # Played again.
    ):
      grade = domain.grade(problem, episode)
      self.assertEqual((grade.outcome, grade.partial), (True, 0.5))
      self.assertEqual(grade.columns['reward_sum'], 1.5)

  def test_an_action_as_a_call(self):
    domain = self.make(url=f'{self.url}/')
    (problem,) = domain.source('train', 0).take(0, 1)
    ((name, schema),) = (
        (t['function']['name'], t['function']['parameters'])
        for t in problem.tools
    )
    self.assertEqual((name, list(schema['properties'])), ('step', ['text']))
    session = domain.environment(problem)
    for text, message in (
        ('hm', 'no call'),
        ('<tool_call>', 'not closed'),
        (_call('stop'), "the only tool is 'step'"),
        (_call('step', text=5), 'refuses these arguments'),
    ):
      reply = session.reply(_episode(text))
      self.assertRegex(reply.messages[0]['content'], message)
      self.assertEqual((reply.action, reply.ok), (0, False))
    self.assertEqual(
        session.reply(_episode(_call('step', text='12'))),
        environments.Reply(({'role': 'tool', 'content': '1.0'},), 1, 0),
    )
    self.assertEqual(session.close(), {'sum': 1.0})

  def test_a_failure_is_no_grade(self):
    domain = self.make(action='text')
    (problem,) = domain.source('train', 0).take(0, 1)
    grade = domain.grade(problem, _episode('raise'))
    self.assertEqual((grade.status, grade.outcome), ('infra_error', False))
    self.assertIn('the world has ended', grade.columns['grader_note'])
    # An episode whose reply was late has no state, and is not played again.
    late = _episode('1', finish_reason='seconds')
    self.assertEqual(domain.grade(problem, late).status, 'infra_error')
    with self.assertRaisesRegex(ValueError, 'reward 1; rewards lie in .*range'):
      self.make(action='text', range=(0.0, 0.5)).grade(problem, _episode('1'))

  @parameterized.parameters(
      (dict(prompt='{texts}'), r"'\{texts\}' cannot be filled in.*'text'"),
      (dict(seeds=0), 'seeds=0 must be'),
      (dict(max_turns=True), 'max_turns=True must be an integer'),
      (dict(url='http://127.0.0.1:1'), 'no server of OpenEnv'),
  )
  def test_refuses(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      self.make(**kwargs)

  def test_trains(self):
    folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    config = run.make_config(
        run.make_policy(folder),
        'counting',
        domain__name='openenv',
        domain__kwargs={
            'url': self.url,
            'action': 'text',
            'sessions': 8,
            'range': (0, 3),
        },
        reward__weights={'sum': 1.0},
        steps=2,
    )
    evojax.run(config, str(folder / 'run'))
    files = (folder / 'run/evidence/train').glob('*.parquet')
    rows = pd.concat(map(pd.read_parquet, files))
    self.assertTrue(rows.graded.all())
    self.assertEqual(set(rows.n_turns), {3})
    np.testing.assert_allclose(rows.part_sum, rows.reward_sum / 3, atol=1e-6)


if __name__ == '__main__':
  absltest.main()
