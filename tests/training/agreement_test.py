"""Tests of evojax.training.agreement: the same problems, code and files."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import types
from unittest import mock

from absl.testing import absltest
import ml_collections
import numpy as np
import pytest

from evojax import config as config_lib
from evojax.domains import sources
from evojax.modes import check
from evojax.modes import evaluate
from evojax.modes import evolve
from evojax.runtime import workdir as workdir_lib
from evojax.training import agreement
from evojax.training import setup as setup_lib
from tests import pairs
from tests import tiny


def write(path, *answers):
  """Write a data set with a question for each answer."""
  lines = [
      json.dumps({'question': f'{path.stem} {n} + 0 =', 'answer': answer})
      for n, answer in enumerate(answers)
  ]
  path.write_text('\n'.join(lines))


class AgreementTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.policy = tiny.make_policy(self.root / 'policy')
    for split, count in (('train', 6), ('dev', 4), ('sealed', 5)):
      write(self.root / f'{split}.jsonl', *range(count))
    self.config = tiny.make_config(
        self.policy,
        domain__kwargs=ml_collections.ConfigDict({
            'jsonl': {
                split: str(self.root / f'{split}.jsonl')
                for split in ('train', 'dev', 'sealed')
            },
            'system_prompt': 'In <a> </a>.',
        }),
    )

  def test_problems_are_those_of_data_sets(self):
    generated = setup_lib.prepare(tiny.make_config(self.policy))
    self.assertEqual(agreement.problems(generated), {})
    for sealed, counts in (
        (True, {'train': 6, 'dev': 4, 'sealed': 5}),
        # Then nothing is scored on sealed problems.
        (False, {'train': 6, 'dev': 4}),
    ):
      config = config_lib.with_fields(self.config, {'eval.sealed': sealed})
      found = agreement.problems(setup_lib.prepare(config))
      self.assertEqual({s: v['count'] for s, v in found.items()}, counts)

  def test_a_run_keeps_its_problems(self):
    workdir = self.root / 'run'
    evolve.run(self.config, str(workdir))
    before = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
    train = self.root / 'train.jsonl'
    for answers, line in (
        (range(7), 'train: 6 -> 7 problems\n'),
        (
            (*range(5), 7),
            'train: 6 -> 6 problems; some of them, their answers or their order'
            ' differ\n',
        ),
    ):
      write(train, *answers)
      with self.assertRaisesRegex(
          workdir_lib.WorkdirError,
          f'began with different problems:\n  {line}',
      ):
        evolve.run(self.config, str(workdir))
      # A check says beforehand that the run would be refused.
      with contextlib.redirect_stdout(io.StringIO()) as out:
        self.assertEqual(check.run(self.config, (), str(workdir)), 1)
      # Lines break where the path of the workdir lets them.
      said = ' '.join(out.getvalue().split())
      self.assertIn('run of --mode=train: refused', said)
      self.assertIn('began with different problems:', said)
      after = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
      self.assertEqual(after, before)
    write(train, *range(6))
    evolve.run(self.config, str(workdir))

  def test_an_evaluation_keeps_the_problems_of_its_split(self):
    workdir = self.root / 'scores'
    evaluate.run(self.config, str(workdir))
    write(self.root / 'train.jsonl', *range(7))
    evaluate.run(self.config, str(workdir))
    before = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
    write(self.root / 'dev.jsonl', *range(5))
    # It has no checkpoint from which to fork.
    with self.assertRaisesRegex(
        workdir_lib.WorkdirError, 'dev: 4 -> 5 [^:]*another --workdir$'
    ):
      evaluate.run(self.config, str(workdir))
    after = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
    self.assertEqual(after, before)

  def test_answers_of_any_type(self):
    setup = setup_lib.prepare(self.config)

    def of(*answers):
      # As without the checks of types that tests have.
      found = [
          types.SimpleNamespace(problem_id=f'{n:016x}', answer=answer)
          for n, answer in enumerate(answers)
      ]
      source = lambda _, *args: sources.FiniteSource(found, *args)
      with mock.patch.object(type(setup.domain), 'source', source):
        return agreement.problems(setup)

    # The text of an object differs between two starts.
    self.assertEqual(of(b'x', object()), of(b'x', object()))
    self.assertEqual(of(np.int64(3)), of(3))
    self.assertNotEqual(of(np.float32(3)), of(np.float32(4)))

  def test_a_difference_is_named(self):
    setup = setup_lib.prepare(self.config)
    own = agreement.facts(setup)
    # Two machines may keep their files in different places.
    self.assertNotIn('config.model.path', own)
    self.assertIn('config.optim.learning_rate', own)
    self.assertIn('config.domain.kwargs.system_prompt', own)
    (self.policy / 'chat_template.jinja').write_text('{{ messages }}')
    other = agreement.facts(setup)
    changed = [name for name in own if own[name] != other[name]]
    self.assertEqual(changed, ['the policy'])


@pytest.mark.slow
class ProcessesTest(absltest.TestCase):

  def test_processes_that_disagree_do_not_begin(self):
    """With other data and another learning rate."""
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    policy = tiny.make_policy(root / 'policy')
    kwargs = []
    for process in (0, 1):
      file = root / f'{process}.jsonl'
      write(file, *range(150 + process))
      kwargs.append({'jsonl': {'train': str(file)}})
    command = [
        *(sys.executable, '-m', 'evojax.main', '--mode=train'),
        *(f'--config=tests/tiny.py:{policy}', f'--workdir={root / "run"}'),
        *('--compilation_cache=', '--distributed', '--processes=2'),
        f'--coordinator=localhost:{pairs.free_port()}',
    ]
    started = [
        subprocess.Popen(
            [
                *command,
                f'--process={process}',
                f'--config.domain.kwargs={kwargs[process]}',
                f'--config.optim.learning_rate=0.0{process + 1}',
            ],
            cwd=tiny.ROOT,
            env=tiny.environment(
                XLA_FLAGS='--xla_force_host_platform_device_count=1'
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in (0, 1)
    ]
    for each in started:
      self.addCleanup(each.kill)
    said = [each.communicate(timeout=200)[0] for each in started]
    self.assertEqual([each.returncode for each in started], [2, 2], said)
    # The slower one may be ended by the other, whose output says why.
    self.assertRegex(
        ' '.join(''.join(said).split()),  # Lines are wrapped.
        r'error: process 0 on \S+ and process 1 on \S+ do not run the same:'
        r' config.optim.learning_rate: 0.01 in process 0, 0.02 in process 1'
        r' the data of train: \d+ problems, \w{12} in process 0, '
        r'\d+ problems, \w{12} in process 1 the data of dev: ',
    )
    self.assertFalse((root / 'run').exists())


if __name__ == '__main__':
  absltest.main()
