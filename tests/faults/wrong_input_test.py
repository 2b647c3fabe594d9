"""Wrong input: one clear error, before a device is touched, nothing lost."""

import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import jax
import pytest

import evojax
from evojax.evidence import store
from evojax.models import policy as policy_lib
from evojax.report import page
from evojax.runtime import checkpoint
from evojax.runtime import workdir as workdir_lib
from evojax.training import trainer as trainer_lib
from evojax.training import update as update_lib
from tests import compiled
from tests import tiny


def copy_policy(source, target, *, without=()):
  shutil.copytree(source, target, ignore=shutil.ignore_patterns(*without))
  return target


def edit_json(file, **changes):
  value = json.loads(file.read_text()) | changes
  file.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))


def damage(policy):
  """Directories that are broken, by what is wrong with them."""
  root = policy.parent
  made = {
      name: copy_policy(policy, root / name)
      for name in ('truncated', 'no_json', 'gpt2', 'other_shape', 'bad_token')
  }
  weights = made['truncated'] / 'model.safetensors'
  os.truncate(weights, weights.stat().st_size // 2)
  (made['no_json'] / 'config.json').write_text('{"model_type": "qwen3",')
  edit_json(made['gpt2'] / 'config.json', model_type='gpt2')
  edit_json(made['other_shape'] / 'config.json', hidden_size=32)
  (made['bad_token'] / 'tokenizer.json').write_text('{}')
  for name, missing in (
      ('no_weights', 'model.safetensors'),
      ('no_tokenizer', 'tokenizer*'),
  ):
    made[name] = copy_policy(policy, root / name, without=(missing,))
  template = made['no_template'] = copy_policy(policy, root / 'no_template')
  edit_json(template / 'tokenizer_config.json', chat_template=None)
  (root / 'empty').mkdir()
  (root / 'no_function.py').write_text('steps = 3\n')


EVOLVING = ['--config.evolve.rounds=1']
WARMSTART = [
    '--config.warmstart.steps=2',
    '--config.warmstart.warmup_steps=1',
]
# Name: arguments of a command, patterns of its error. {root} holds what
# `damage` makes.
REFUSED = {
    # Flags.
    'no config': ([], r'^error: --config is missing: .*configs/math\.py'),
    'no config file': (
        ['--config=configs/nope.py'],
        r"--config=configs/nope\.py: there is no file 'configs/nope\.py'",
    ),
    'file without get_config': (
        ['--config={root}/no_function.py'],
        r'no_function\.py has no function get_config',
    ),
    'unknown variant': (
        ['--config=configs/math.py:nope'],
        r"^error: configs/math\.py:nope: choose one of \('default', 'smoke',",
    ),
    'unknown field': (
        ['{tiny}', '--config.grpo.nope=1'],
        r'^error: config\.grpo\.nope is not a field; config\.grpo has .*gro',
    ),
    'misspelt field': (
        ['{tiny}', '--config.grpo.grup_size=4'],
        r'config\.grpo\.grup_size .*did you mean config\.grpo\.group_size\?',
    ),
    'wrong type': (
        ['{tiny}', '--config.steps=abc'],
        r"--config\.steps=abc: .*'abc'; it takes a value like 4$",
    ),
    'part of a number': (
        ['{tiny}', '--config.steps=1.5'],
        r'--config\.steps=1\.5: .*; it takes a value like 4$',
    ),
    'value for a group': (
        ['{tiny}', '--config.grpo=3'],
        r"--config\.grpo=3: .*'3' .* not a dict",
    ),
    'field without a config': (['--config.steps=3'], '--config is missing'),
    'field without a value': (
        ['{tiny}', '--config.steps'],
        r'Missing value for flag --config\.steps',
    ),
    'unknown mode': (
        ['{tiny}', '--mode=teach'],
        r'--mode=teach: .*<evolve\|aa\|train\|eval\|',
    ),
    'unknown flag': (['{tiny}', '--stepz=3'], "Unknown .*flag 'stepz'"),
    'argument without a flag': (
        ['{tiny}', 'steps=3'],
        r"unknown arguments \['steps=3'\]: flags begin with --",
    ),
    # Config.
    'group of one': (
        ['{tiny}', '--config.grpo.group_size=1'],
        r'config\.grpo\.group_size=1: .*set --config\.grpo\.group_size=8',
    ),
    'prompts that do not divide': (
        ['{tiny}', '--config.grpo.prompts=3', '--config.grpo.micro_groups=2'],
        r'config\.grpo\.prompts=3 .*micro_groups=2: make it a multiple of 2',
    ),
    'batch that does not divide by the mesh': (
        ['{tiny}', '--config.mesh.fsdp=3'],
        r'config\.grpo\.micro_groups=1 .* mesh\.fsdp = 3: make .* multiple',
    ),
    'filtered sampler': (
        ['{tiny}', '--config.rollout.top_p=0.9'],
        r'config\.rollout\.top_p=0\.9, .*train with top_p=1',
    ),
    'not a number': (
        ['{tiny}', '--config.optim.learning_rate=nan'],
        r'config\.optim\.learning_rate=nan: must be a finite number',
    ),
    'wandb that is not installed': (
        ['{tiny}', '--config.log.wandb=offline'],
        r"log\.wandb='offline' needs .*pip install wandb",
    ),
    # Model.
    'no model': (
        ['{tiny}', '--config.model.path={root}/nowhere'],
        r'{root}/nowhere has no config\.json.*config\.model\.path',
    ),
    'no model path': (
        ['--config=configs/math.py:qwen3_0p6b'],
        r'config\.model\.path is not set: pass --config\.model\.path=DIR',
    ),
    'unknown shipped model': (
        ['{tiny}', '--config.model.path=package:chess'],
        r"config\.model\.path='package:chess': .*'package:math'",
    ),
    'empty model directory': (
        ['{tiny}', '--config.model.path={root}/empty'],
        r'{root}/empty has no config\.json',
    ),
    'model config that is no JSON': (
        ['{tiny}', '--config.model.path={root}/no_json'],
        r'{root}/no_json/config\.json cannot be read as JSON',
    ),
    'model of another kind': (
        ['{tiny}', '--config.model.path={root}/gpt2'],
        r"model_type='gpt2' .*Use a dense text model of .* qwen2",
    ),
    'weights of another shape': (
        ['{tiny}', '--config.model.path={root}/other_shape'],
        r'{root}/other_shape do not fit .*\(448, 16\), expected \(448, 32\)',
    ),
    'truncated weights': (
        ['{tiny}', '--config.model.path={root}/truncated'],
        r'{root}/truncated/model\.safetensors is .*incomplete.*again',
    ),
    'no weights': (
        ['{tiny}', '--config.model.path={root}/no_weights'],
        r'{root}/no_weights has neither model\.safetensors nor',
    ),
    'no tokenizer': (
        ['{tiny}', '--config.model.path={root}/no_tokenizer'],
        r'{root}/no_tokenizer has no tokenizer\.json.*Copy',
    ),
    'broken tokenizer': (
        ['{tiny}', '--config.model.path={root}/bad_token'],
        r'tokenizer in {root}/bad_token cannot be read',
    ),
    'no chat template': (
        ['{tiny}', '--config.model.path={root}/no_template'],
        r'{root}/no_template has no chat template.*chat_template\.jinja',
    ),
    'prompt over the limit': (
        ['{tiny}', '--config.data.max_prompt_tokens=5'],
        r'has \d+ tokens, more than data\.max_prompt_tokens=5.* set'
        r' --config\.data\.max_prompt_tokens=\d',
    ),
    'sequence beyond the positions': (
        ['{tiny}', '--config.rollout.max_tokens=60'],
        r'rollout\.max_tokens = 92 exceeds the 64 positions of .*lower',
    ),
    'heads that do not divide by the mesh': (
        ['{tiny}', '--config.mesh.tensor=2'],
        r'config\.mesh\.tensor=2 does not divide the 1 key/value heads',
    ),
    'width that does not divide by the mesh': (
        [
            '{tiny}',
            '--config.mesh.fsdp=3',
            '--config.grpo.prompts=3',
            '--config.grpo.micro_groups=3',
            '--config.rollout.decode_slots=9',
            '--config.rollout.prefill_rows=3',
        ],
        r'config\.mesh\.fsdp=3 does not divide the 16 hidden features',
    ),
    # Reward.
    'unknown part': (
        ['{tiny}', "--config.reward.weights={{'nope': 1.0}}"],
        r"config\.reward\.weights names \['nope'\]; .*'coarse'",
    ),
    'no such module of a reward': (
        ['{tiny}', '--config.reward.parts=nowhere.parts'],
        r"config\.reward\.parts='nowhere\.parts' cannot be imported.*PYTHONP",
    ),
    'no such function of a reward': (
        ['{tiny}', '--config.reward.parts=tests.faults.wrong_rewards.nope'],
        r"config\.reward\.parts='tests\..*has no function nope",
    ),
    **{
        f'reward: {name}': (
            [
                '{tiny}',
                "--config.reward.weights={{'sure': 1.0}}",
                f'--config.reward.parts=tests.faults.wrong_rewards.{name}',
            ],
            pattern,
        )
        for name, pattern in {
            'flat': r"part 'sure' has shape \(2,\); it must be .* \(1, 2\)",
            'not_a_number': r"part 'sure' is nan at \[p, g\] = \[0, 0\]",
            'closed': r"'completion' is closed to rewards; a reward may read",
            'none': r'the reward returned NoneType, not a dict',
        }.items()
    },
    # Domain.
    'unknown domain': (
        ['{tiny}', '--config.domain.name=chess'],
        r"domain\.name='chess' is neither one of \['coding', 'math', 'openenv',"
        r" 'swe', 'verifiers'\]",
    ),
    'unknown argument of a domain': (
        ['{tiny}', "--config.domain.kwargs={{'level': 3}}"],
        r"domain\.kwargs of 'math': .*'level'.*it takes: families",
    ),
    'unknown family': (
        ['{tiny}', "--config.domain.kwargs.families=('chess',)"],
        r'chess.*chain_sum',
    ),
    'unknown family of a slice': (
        ['{tiny}', "--config.data.families=('chess',)"],
        r"config\.data\.families=\('chess',\): 'chess' is not .*chain_sum",
    ),
    **{
        f'argument of a domain: {value}': (
            ['{tiny}', f'--config.domain.kwargs={{{{{value}}}}}'],
            pattern,
        )
        for value, pattern in {
            "'system_prompt': 3": r'kwargs\.system_prompt=3 must be text',
            "'families': 3": r'domain\.kwargs\.families=3 must be names',
            "'families': ('gcd', 1)": r"families=\('gcd', 1\) must be names",
            "'families': 'gcd', 'weights': 'a'": r"weights='a' must be one",
            "'jsonl': 'x.jsonl'": r"kwargs\.jsonl='x\.jsonl' must be a table",
            "'jsonl': {{'train': 3}}": r'kwargs\.jsonl\.train=3 must be text',
        }.items()
    },
    **{
        f'argument of coding: {value}': (
            [
                '{tiny}',
                '--config.domain.name=coding',
                f'--config.domain.kwargs={{{{{value}}}}}',
            ],
            pattern,
        )
        for value, pattern in {
            "'slots': '2'": r"domain\.kwargs\.slots='2' must be a number of",
            "'slots': 1.5": r'domain\.kwargs\.slots=1\.5 must be a number of',
            "'system_prompt': 3": r'kwargs\.system_prompt=3 must be text',
            "'partial': 'no'": r"kwargs\.partial='no' must be True or False",
        }.items()
    },
    # Workdir.
    'workdir is a file': (
        ['{tiny}', '--workdir={root}/no_function.py'],
        r'no_function\.py is a file; pass a directory as --workdir',
    ),
    'workdir below a file': (
        ['{tiny}', '--workdir={root}/no_function.py/run'],
        r'workdir .*cannot be created: .*--workdir',
    ),
    'place where nobody writes': (
        ['{tiny}', '--workdir=/proc/run'],
        r'workdir /proc/run cannot be created: .*--workdir',
    ),
    'workdir in a bucket': (
        ['{tiny}', '--workdir=gs://bucket/run'],
        r'gs://bucket/run needs gcsfs, which is an extra: pip install -r \S+',
    ),
    'workdir in a bucket, of a mode that needs a disk': (
        ['{tiny}', '--workdir=gs://bucket/run', '--mode=warmstart'],
        r'gs://bucket/run is no directory .*--mode=warmstart; in a store work'
        r' --mode=evolve, .*mount',
    ),
    'workdir in a bucket, and scores on several hosts': (
        [
            *('{tiny}', '--workdir=gs://bucket/run', '--distributed'),
            '--mode=eval',
        ],
        r'gs://bucket/run is no directory .*--mode=eval --distributed;'
        r' .*several processes work together in --mode=evolve, train\.',
    ),
    'policy in a store that nobody knows': (
        ['{tiny}', '--config.model.path=nonsense://bucket/model'],
        r"nonsense://bucket/model: the scheme 'nonsense' is unknown",
    ),
    'workdir in use': (
        ['{tiny}', '--workdir={root}/locked'],
        r'workdir {root}/locked is in use by pid {pid} on .*--workdir',
    ),
    'config of another run': (
        [
            '{tiny}',
            '--workdir={root}/other',
            '--config.optim.learning_rate=0.5',
        ],
        r'workdir {root}/other holds a run with another config:\n'
        r'  optim\.learning_rate: 0\.01 -> 0\.5\n(.*\n)*  \S+ -m '
        r'evojax\.main .* --workdir={root}/other-fork'
        r' --fork_from={root}/other$',
    ),
    **{
        f'{mode} where {made_by} was': (
            ['{tiny}', f'--workdir={{root}}/{name}', f'--mode={mode}', *more],
            rf'^error: workdir {{root}}/{name} holds a run of --mode={made_by}:'
            rf' continue it with --mode={made_by}.*, or give --mode={mode} a'
            rf' directory of its own, such as --workdir={{root}}/{name}-{mode}',
        )
        for name, made_by, mode, more in (
            ('of_evolve', 'evolve', 'train', []),
            ('older', 'evolve', 'train', []),
            ('other', 'train', 'evolve', EVOLVING),
            ('of_eval', 'eval', 'train', []),
            ('of_warmstart', 'warmstart', 'train', []),
            ('of_eval', 'eval', 'evolve', EVOLVING),
            ('other', 'train', 'warmstart', WARMSTART),
            ('of_eval', 'eval', 'warmstart', WARMSTART),
        )
    },
    'a warm start of few updates': (
        ['{tiny}', '--mode=warmstart', WARMSTART[0]],
        r'config\.warmstart\.warmup_steps=70 leaves none of steps=2 ',
    ),
    'no rounds where an evolving run is': (
        ['{tiny}', '--workdir={root}/of_evolve', '--config.evolve.rounds=0'],
        r'with --mode=evolve and config\.evolve\.rounds > 0, or',
    ),
    'run that has lost its config': (
        ['{tiny}', '--workdir={root}/lost', '--mode=train'],
        r'lost holds a run of --mode=train, whose config\.json is missing',
    ),
    **{
        f'{mode} of a run that has not ended': (
            ['{tiny}', '--workdir={root}/other', f'--mode={mode}'],
            r'--workdir={root}/other .* has not ended, so there is no {root}'
            r"/other/policy: let it end, or .*config\.model\.path='{root}/poli",
        )
        for mode in ('eval', 'serve')
    },
    'serve what is no run': (
        ['{tiny}', '--workdir={root}/empty', '--mode=serve'],
        r'--workdir={root}/empty holds no run that trained a policy; leave',
    ),
    # Other runs.
    'fork of nothing': (
        ['{tiny}', '--mode=train', '--fork_from={root}/empty'],
        r'--fork_from={root}/empty holds no checkpoint; name the workdir',
    ),
    'evolving fork of nothing': (
        ['{tiny}', '--fork_from={root}/empty', *EVOLVING],
        r'--fork_from={root}/empty is not the workdir of a run that evolves',
    ),
    'comparison with nothing': (
        ['{tiny}', '--compare={root}/empty', *EVOLVING],
        r'--compare={root}/empty: there is no {root}/empty/policy; name',
    ),
    'skills that are not there': (
        ['{tiny}', "--config.evolve.skills=('{root}/skills',)", *EVOLVING],
        r"config\.evolve\.skills has '{root}/skills', which is not a directory",
    ),
    # Config files.
    **{
        f'config file: {name}': ([f'--config={{root}}/{name}.py'], pattern)
        for name, pattern in {
            'broken': r'broken\.py:2: SyntaxError: .* never closed$',
            'raises': r'raises\.py:2: ZeroDivisionError: division by zero$',
            'value': r"value\.py:2: ValueError: invalid literal .*'x'$",
        }.items()
    },
}


def tree(root):
  """Relative path -> bytes of every file, locks too; None for a folder."""
  return {
      str(p.relative_to(root)): p.read_bytes() if p.is_file() else None
      for p in sorted(root.rglob('*'))
  }


class RefusedTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
    policy = tiny.make_policy(root / 'policy')
    damage(policy)
    config = tiny.get_config(policy)
    locked = workdir_lib.open_workdir(root / 'locked', config, mode='train')
    cls.addClassCleanup(locked.close)
    for mode in ('train', 'evolve', 'warmstart', 'eval'):
      workdir_lib.open_workdir(root / f'of_{mode}', config, mode=mode).close()
    os.rename(root / 'of_train', root / 'other')
    # Files from before evojax wrote down the mode, and one that a bug left.
    for name, file in (('older', 'ledger.jsonl'), ('lost', 'metrics.jsonl')):
      shutil.copytree(root / 'other', root / name)
      edit_json(root / name / 'config.json', mode=None)
      (root / name / file).write_text('{"step": 0}\n')
    (root / 'lost/config.json').unlink()
    (root / 'other/.lock').write_text('pid 1 on a host that is gone')
    (root / 'broken.py').write_text('def get_config():\n  return (\n')
    (root / 'raises.py').write_text('def get_config():\n  return 1 / 0\n')
    (root / 'value.py').write_text("N = 1\nM = int('x')\n")
    cls.names = {
        'root': root,
        'tiny': f'--config=tests/tiny.py:{policy}',
        'pid': os.getpid(),
    }
    commands = []
    for arguments, _ in REFUSED.values():
      arguments = [a.format(**cls.names) for a in arguments]
      if not any('workdir' in a for a in arguments):
        arguments.insert(0, f'--workdir={root}/fresh')
      commands.append(arguments)
    before = tree(root)
    worker = subprocess.run(
        [sys.executable, '-m', 'tests.faults.command_worker'],
        input=json.dumps(commands),
        cwd=tiny.ROOT,
        env=tiny.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert worker.returncode == 0, worker.stderr
    cls.changed = before.items() ^ tree(root).items()
    cls.results = dict(zip(REFUSED, json.loads(worker.stdout)))

  @parameterized.parameters(*REFUSED)
  def test_one_clear_error(self, name):
    result = self.results[name]
    self.assertEqual(result['code'], 2, result)
    self.assertEqual(result['out'], '')
    error = result['err'].rstrip('\n')
    self.assertStartsWith(error, 'error: ')
    self.assertEqual(error.count('error: '), 1)
    self.assertNotIn('Traceback', error)
    names = {k: re.escape(str(v)) for k, v in self.names.items()}
    pattern = REFUSED[name][1]
    for key, value in names.items():
      pattern = pattern.replace('{' + key + '}', value)
    self.assertRegex(error, pattern)
    self.assertFalse(result['device'], 'a device was touched')

  def test_nothing_changed_on_disk(self):
    # Not even a workdir was made.
    self.assertEmpty(self.changed)


class NothingLostTest(parameterized.TestCase):
  """Errors that show on a device only, or in the middle of a run."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.shared = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.policy = tiny.make_policy(cls.shared / 'policy')
    cls.config = tiny.make_config(cls.policy, checkpoint__every=1)
    evojax.run(cls.config, str(cls.shared / 'run'))

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder, 'run')

  def copy(self):
    """A finished run of two steps, with checkpoints of both."""
    return pathlib.Path(shutil.copytree(self.shared / 'run', self.path))

  def weights(self, workdir):
    return (workdir / 'policy/model.safetensors').read_bytes()

  def make_config(self, **overrides):
    return tiny.make_config(self.policy, checkpoint__every=1, **overrides)

  def test_devices_that_no_mesh_splits(self):
    three = jax.devices() * 3
    with (
        absltest.mock.patch.object(jax, 'devices', return_value=three),
        self.assertRaisesRegex(
            ValueError, '3 devices, over which no mesh .* start it on 1 or 2'
        ),
    ):
      evojax.run(self.make_config(), str(self.path))
    self.assertFalse(self.path.exists())

  def test_newest_checkpoint_is_torn(self):
    workdir = self.copy()
    torn = workdir / 'checkpoints/step_000002/meta.json'
    os.truncate(torn, torn.stat().st_size // 2)
    shutil.rmtree(workdir / 'policy')
    with self.assertLogs('absl', 'WARNING') as logs:
      evojax.run(self.config, str(workdir))
    self.assertIn('step_000002 is damaged', ' '.join(logs.output))
    self.assertEqual(self.weights(workdir), self.weights(self.shared / 'run'))

  def test_every_checkpoint_is_torn(self):
    workdir = self.copy()
    for step in (1, 2):
      (workdir / f'checkpoints/step_{step:06}/SHA256SUMS').unlink()
    before = tree(workdir)
    with self.assertRaisesRegex(
        checkpoint.CheckpointError,
        r'no checkpoint .* is intact(.*\n)*.*from a copy',
    ):
      evojax.run(self.config, str(workdir))
    self.assertEqual(tree(workdir), before)

  def test_fork_of_what_holds_no_checkpoint(self):
    with self.assertRaisesRegex(
        ValueError, r'--fork_from=/nowhere holds no checkpoint; .*leave'
    ):
      evojax.run(self.config, str(self.path / 'a'), fork_from='/nowhere')
    self.assertFalse(self.path.exists())

  def test_loss_that_is_not_finite(self):
    # A KL times 1e30 is finite; the squares of its gradient are not.
    # The fork continues after step 2, with checkpoints to lose.
    config = self.make_config(steps=4, grpo__kl_coef=1e30)
    source = tree(self.shared / 'run')
    with self.assertRaisesRegex(
        update_lib.NonFiniteError,
        r'step 3: loss=.*, grad_norm=\w+ is not finite\. .*learning_rate',
    ):
      evojax.run(config, str(self.path), fork_from=str(self.shared / 'run'))
    self.assertEqual(tree(self.shared / 'run'), source)
    self.assertEqual(os.listdir(self.path / 'checkpoints'), ['step_000002'])
    text = page.build(self.path).read_text()
    self.assertRegex(text, r'an error\. NonFiniteError: step 3: .* workdir')
    # The evidence of the failed step is kept for inspection.
    rows = store.read(self.path, 'train')
    self.assertEqual(set(rows['step']), {2})
    self.assertTrue(rows['sampler_trainer_logprob_gap'].isna().all())

  @parameterized.named_parameters(
      ('evidence', store, 'write_step'),
      ('checkpoint', trainer_lib.Trainer, 'save'),
      ('export', policy_lib, 'export'),
  )
  # Orbax leaves writes behind when it fails; see runtime.orbax_noise.
  @pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
  def test_full_disk(self, owner, name):
    original = getattr(owner, name)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    calls = []

    def fill(*args, **kwargs):
      calls.append(args)
      if len(calls) == (1 if name == 'export' else 2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
      return original(*args, **kwargs)

    try:
      with absltest.mock.patch.object(owner, name, fill):
        with self.assertRaises((OSError, ValueError)) as caught:
          evojax.run(self.config, str(self.path))
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    message = str(caught.exception)
    self.assertIn(str(self.path), message)
    self.assertRegex(message, 'same command again')
    self.assertFalse((self.path / 'policy').exists())
    # With room again, it continues to the same end.
    evojax.run(self.config, str(self.path))
    self.assertEqual(self.weights(self.path), self.weights(self.shared / 'run'))
    self.assertEqual(
        store.list_steps(self.path, 'train'),
        store.list_steps(self.shared / 'run', 'train'),
    )

  @pytest.mark.slow
  def test_full_disk_is_one_error_of_a_command(self):
    done = subprocess.run(
        [
            sys.executable,
            '-m',
            'evojax.main',
            f'--config=tests/tiny.py:{self.policy}',
            '--config.reward.parts=tests.faults.fatal_reward.parts',
            f'--compilation_cache={compiled.CACHE}',
            f'--workdir={self.path}',
        ],
        cwd=tiny.ROOT,
        env=tiny.environment(FATAL='disk@2'),
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 2, done.stderr)
    # Step 2 is written beside the training and may be done before it is full.
    failed = re.match(
        r'error: checkpoint (\S+/step_00000[24]) could not be written',
        ' '.join(done.stderr.split()),
    )
    self.assertIsNotNone(failed, done.stderr)
    self.assertEndsWith(
        ' '.join(done.stderr.split()),
        'same command again: it resumes from the last checkpoint',
    )
    self.assertNotIn('Traceback', done.stderr)
    self.assertFalse(pathlib.Path(failed[1]).exists())
    self.assertEqual(store.list_steps(self.path, 'train')[:2], [0, 1])

  @pytest.mark.slow
  def test_the_fork_command_of_the_refusal_works(self):
    workdir = self.copy()
    command = (
        'python -m evojax.main'
        f' --config=tests/tiny.py:{self.policy} --config.steps=3'
        # All that differs from `self.config`, ...
        ' --config.seed=0 --config.eval.every=0 --config.grpo.keep=all'
        ' --config.grpo.refill_rounds=0 --config.optim.warmup_steps=0'
        " --config.reward.weights=\"{'sure': 2.0, 'brief': 0.5}\""
        ' --config.grpo.clip_high=0.4'  # ... and what is not allowed to.
        f' --compilation_cache={compiled.CACHE} --workdir={workdir}'
    )
    path = f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}'
    bash = lambda text: subprocess.run(
        ['bash', '-c', text],
        cwd=tiny.ROOT,
        env=tiny.environment(PATH=path),
        capture_output=True,
        text=True,
        check=False,
    )
    before = tree(workdir)
    refused = bash(command)
    self.assertEqual(refused.returncode, 2, refused.stderr)
    self.assertIn('\n  grpo.clip_high: 0.2 -> 0.4\nTo', refused.stderr)
    fork = refused.stderr[refused.stderr.rindex('\n  python -m') :]
    forked = bash(fork)
    self.assertEqual(forked.returncode, 0, forked.stderr)
    self.assertIn('continuing from step 2\nstep 3/3', forked.stdout)
    self.assertEqual(tree(workdir), before)
    self.assertEqual(store.list_steps(f'{workdir}-fork', 'train'), [2])


if __name__ == '__main__':
  absltest.main()
