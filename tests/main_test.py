"""The command line: the arguments of each mode, and its exit status."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized
import jax

from configs import math as math_config
from evojax import config as config_lib
from evojax import domains
from evojax import main
from evojax.evolve import loop
from evojax.models import policy
from evojax.modes import aa
from evojax.modes import arm
from evojax.modes import check
from evojax.modes import evaluate as evaluate_mode
from evojax.modes import inspection
from evojax.modes import plan
from evojax.modes import plan_table
from evojax.modes import serve
from evojax.modes import sweep
from evojax.modes import train
from evojax.modes import warmstart as warmstart_mode
from evojax.report import page
from evojax.rollout import fleet
from evojax.runtime import output
from evojax.runtime import peers
from evojax.runtime import preemption
from evojax.runtime import saved_config
from evojax.runtime import storage
from evojax.runtime import workdir as workdir_lib
from evojax.sandbox import box
from evojax.sandbox import probe
from tests import tiny
from tests.runtime import accelerators_test

SMOKE = '--config=configs/math.py:smoke'


class MainTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enterContext(flagsaver.flagsaver())
    # --config=configs/... is relative, as for users.
    self.addCleanup(os.chdir, os.getcwd())
    os.chdir(tiny.ROOT)
    cache = 'jax_compilation_cache_dir'
    self.addCleanup(jax.config.update, cache, jax.config.values[cache])

  def command(self, *arguments):
    """Return the exit status of `python -m evojax.main ARGUMENTS`."""
    argv = [main.__file__, *arguments]
    with absltest.mock.patch.object(sys, 'argv', argv):
      return main.main(main.parse_flags(argv))


class ModeTest(MainTestCase):

  def test_evolve_is_the_default(self):
    with absltest.mock.patch.object(loop, 'run', return_value={}) as run:
      code = self.command(SMOKE, '--config.grpo.group_size=4')
    self.assertIsNone(code)
    (config, workdir), kwargs = run.call_args
    self.assertEqual(config.grpo.group_size, 4)
    self.assertEqual(config.steps, math_config.get_config('smoke').steps)
    self.assertTrue(config.is_locked)
    self.assertEqual(workdir, 'runs/math-smoke')
    self.assertEqual(
        kwargs,
        {
            'compare': [],
            'fork_from': '',
            'fork_version': '',
            'executor': 'inprocess',
            'workers': 0,
            'arm_resources': [],
            'arm_hosts': '',
        },
    )

  @parameterized.parameters(
      ('--config.grpo.group_size=4', '--workdir=/x', SMOKE),
      ('--workdir=/x', '--config', SMOKE.partition('=')[2]),
  )
  def test_fields_may_stand_before_the_config(self, *flags):
    with absltest.mock.patch.object(loop, 'run', return_value={}) as run:
      self.command(*flags, '--config.grpo.prompts=4')
    (config, workdir), _ = run.call_args
    self.assertEqual(config.grpo.prompts, 4)
    self.assertEqual(workdir, '/x')

  def test_a_weak_sandbox_is_the_users_word(self):
    with (
        absltest.mock.patch.object(loop, 'run', return_value={}),
        absltest.mock.patch.object(probe, 'tier') as tier,
    ):
      self.command(SMOKE)
      tier.assert_not_called()
      self.command(SMOKE, '--allow_weak_sandbox')
    tier.assert_called_once_with(allow_weak=True)

  def test_evolve_hands_on_what_to_compare_and_to_fork(self):
    with absltest.mock.patch.object(loop, 'run', return_value={}) as run:
      self.command(
          SMOKE, '--compare=/a,/b', '--fork_from=/y', '--fork_version=v2'
      )
    self.assertEqual(
        run.call_args.kwargs,
        {
            'compare': ['/a', '/b'],
            'fork_from': '/y',
            'fork_version': 'v2',
            'executor': 'inprocess',
            'workers': 0,
            'arm_resources': [],
            'arm_hosts': '',
        },
    )

  def test_evolve_hands_on_where_arms_are_trained(self):
    with absltest.mock.patch.object(loop, 'run', return_value={}) as run:
      resources = '--arm_resources=CPU=2,TPU=4'
      self.command(SMOKE, '--executor=ray', '--workers=2', resources)
    self.assertEqual(run.call_args.kwargs['executor'], 'ray')
    self.assertEqual(run.call_args.kwargs['workers'], 2)
    self.assertEqual(run.call_args.kwargs['arm_resources'], ['CPU=2', 'TPU=4'])

  def test_aa_gets_a_workdir_of_its_own_and_places_arms(self):
    with absltest.mock.patch.object(aa, 'run', return_value={}) as run:
      self.command(SMOKE, '--mode=aa', '--executor=local', '--workers=2')
    self.assertEqual(run.call_args.args[1], 'runs/math-smoke-aa')
    placed = {'executor': 'local', 'workers': 2}
    none = {'arm_resources': [], 'arm_hosts': ''}
    self.assertEqual(run.call_args.kwargs, placed | none)

  def test_sweep_gets_what_every_point_needs(self):
    with absltest.mock.patch.object(sweep, 'run', return_value=0) as run:
      self.command(
          *('--mode=sweep', SMOKE, '--sweep=x/mine.py', '--config.steps=4'),
          *('--executor=slurm', '--dry_run', '--compilation_cache='),
      )
    self.assertEqual(run.call_args.args[1], 'runs/mine')
    kwargs = run.call_args.kwargs
    expected = sweep.CommandLine(
        SMOKE.partition('=')[2], {'steps': 4}, ['--compilation_cache=']
    )
    self.assertEqual(kwargs['given'], expected)
    self.assertEqual(kwargs['executor'], 'slurm')
    self.assertTrue(kwargs['dry_run'])

  def test_arm_needs_a_job_and_no_config(self):
    with (
        absltest.mock.patch.object(arm, 'run') as run,
        absltest.mock.patch.object(preemption, 'follow') as follow,
    ):
      self.command('--mode=arm', '--job=/x/job.json', '--parent=7')
    run.assert_called_once_with('/x/job.json')
    follow.assert_called_once_with(7)

  @parameterized.parameters(
      ('train', '--executor=local', 'for --mode=evolve or aa or sweep'),
      ('train', '--workers=6', 'for --mode=evolve or aa or sweep or plan'),
      # It would train for hours where somebody wants to see a command.
      ('evolve', '--dry_run', '--dry_run=True is for --mode=sweep'),
      ('aa', '--compare=/a', 'is for --mode=evolve'),
      ('train', '--fork_version=v2', 'is for --mode=evolve'),
      ('train', '--process=1', 'needs --distributed'),
      ('runs', '--collective_seconds=9', 'is for --mode=aa or arm or check'),
      ('sweep', '--workers=2', '--workers=2 needs --executor=local or ray, or'),
      ('sweep', '--workers=2', 'or slurm for a sweep'),
      ('sweep', '--arm_hosts=2', '--arm_hosts=2 needs --executor=ray'),
  )
  def test_a_flag_that_the_mode_does_not_read(self, mode, flag, said):
    stderr = self.enterContext(absltest.mock.patch('sys.stderr'))
    self.assertEqual(self.command(SMOKE, f'--mode={mode}', flag), 2)
    words = ''.join(c.args[0] for c in stderr.write.call_args_list).split()
    self.assertIn(said, ' '.join(words))

  def test_report(self):
    with absltest.mock.patch.object(
        page, 'build', side_effect=lambda path, **_: path / 'report.html'
    ) as build:
      self.command(SMOKE, '--mode=report', '--workdir=/x')
      self.command('--mode=report', '--workdir=/y')
    called = [call.args[0] for call in build.call_args_list]
    self.assertEqual(called, [pathlib.Path('/x'), pathlib.Path('/y')])

  def test_report_of_no_run(self):
    stderr = self.enterContext(absltest.mock.patch('sys.stderr'))
    self.assertEqual(self.command('--mode=report'), 2)
    self.assertIn('--config', str(stderr.write.call_args_list))

  def test_check_hands_its_harnesses_and_its_exit_code(self):
    with absltest.mock.patch.object(check, 'run', return_value=1) as run:
      code = self.command(SMOKE, '--mode=check', '--harnesses=/h,/i')
    self.assertEqual(code, 1)
    self.assertEqual(run.call_args.args[1], ['/h', '/i'])

  def test_train_in_a_workdir_forked_from_another(self):
    with absltest.mock.patch.object(train, 'run') as run:
      self.command(SMOKE, '--workdir', '/x', '--fork_from=/y', '--mode=train')
    self.assertEqual(run.call_args.args[1], '/x')
    self.assertEqual(run.call_args.kwargs, {'fork_from': '/y'})

  @parameterized.parameters(
      ('eval', evaluate_mode, 'run', 'runs/math-smoke-eval'),
      ('warmstart', warmstart_mode, 'run', 'runs/math-smoke'),
  )
  def test_modes_with_a_workdir(self, mode, module, function, workdir):
    with absltest.mock.patch.object(module, function) as run:
      self.command(SMOKE, f'--mode={mode}')
    (config, found), kwargs = run.call_args
    self.assertEqual((config.name, found), ('math-smoke', workdir))
    self.assertEqual(kwargs, {})

  def test_serve_gets_port_and_host(self):
    with absltest.mock.patch.object(serve, 'run') as run:
      self.command(SMOKE, '--mode=serve', '--port=7', '--host=::1')
    self.assertEqual(
        run.call_args.kwargs,
        {'port': 7, 'host': '::1', 'workdir': None}
        | {'hosts': [], 'weights_root': [], 'insecure': False},
    )

  def test_plan_is_shown(self):
    with (
        absltest.mock.patch.object(plan, 'plan', return_value='p') as make,
        absltest.mock.patch.object(plan_table, 'show') as show,
    ):
      self.command(SMOKE, '--mode=plan', '--config.steps=9', '--workers=6')
    self.assertEqual(make.call_args.args[0].steps, 9)
    self.assertEqual(make.call_args.kwargs, {'mesh_auto': False})
    show.assert_called_once_with('p', workers=6)

  def test_a_mesh_is_found_by_plan_alone(self):
    with (
        absltest.mock.patch.object(plan, 'plan') as make,
        absltest.mock.patch.object(plan_table, 'show'),
    ):
      self.command('--config.mesh.auto', SMOKE, '--mode=plan')
    self.assertEqual(make.call_args.kwargs, {'mesh_auto': True})
    self.enterContext(flagsaver.flagsaver())
    with absltest.mock.patch.object(output, 'say') as say:
      code = self.command(SMOKE, '--mode=train', '--config.mesh.auto=True')
    self.assertEqual(code, 2)
    self.assertIn('let --mode=plan find one', say.call_args.args[0])

  def test_inspect_hands_its_flags_and_its_exit_code(self):
    decoder = absltest.mock.sentinel.decoder
    with (
        absltest.mock.patch.object(inspection, 'run', return_value=3) as run,
        absltest.mock.patch.object(
            policy, 'token_decoder', return_value=decoder
        ) as token_decoder,
    ):
      code = self.command(
          SMOKE,
          '--mode=inspect',
          '--runs=a,b',
          '--problem=7',
          '--split=train',
          '--flips',
          '--tokens',
          '--limit=2',
      )
    self.assertEqual(code, 3)
    token_decoder.assert_called_once_with(domains.policy_path('package:math'))
    run.assert_called_once_with(
        ['runs/math-smoke', 'a', 'b'],
        problem='7',
        split='train',
        flips=True,
        tokens=True,
        limit=2,
        decode=decoder,
    )

  def test_a_gpu_that_jax_cannot_use_ends_a_run_before_it_begins(self):
    jax.devices()  # Those of this process are open: the CPU.
    workdir = self.enterContext(tempfile.TemporaryDirectory()) + '/run'
    for mode in 'train', 'evolve', 'eval', 'warmstart':
      with (
          accelerators_test.machine(GPU=1),
          absltest.mock.patch.object(output, 'say') as say,
      ):
        code = self.command(SMOKE, f'--mode={mode}', f'--workdir={workdir}')
      self.assertEqual(code, 2)
      self.assertStartsWith(
          say.call_args.args[0], 'error: this machine has 1 GPU, and jax finds'
      )
      self.assertFalse(os.path.exists(workdir), mode)

  def test_inspect_downloads_no_weights(self):
    url = 'gs://bucket/models/tiny'
    with (
        absltest.mock.patch.object(inspection, 'run', return_value=0),
        absltest.mock.patch.object(
            storage, 'cached', return_value=pathlib.Path('none')
        ) as cached,
    ):
      self.command(SMOKE, '--mode=inspect', f'--config.model.path={url}')
    cached.assert_called_once_with(url, policy.WITHOUT_WEIGHTS)

  @parameterized.parameters(
      ((), os.path.expanduser('~/.cache/evojax/xla')),
      (('--compilation_cache=/c',), '/c'),
  )
  def test_compilation_cache(self, arguments, folder):
    with absltest.mock.patch.object(loop, 'run', return_value={}):
      self.command(SMOKE, *arguments)
    self.assertEqual(jax.config.jax_compilation_cache_dir, folder)

  def test_no_compilation_cache(self):
    jax.config.update('jax_compilation_cache_dir', None)
    with absltest.mock.patch.object(loop, 'run', return_value={}):
      self.command(SMOKE, '--compilation_cache=')
    self.assertIsNone(jax.config.jax_compilation_cache_dir)

  def test_distributed(self):
    with (
        absltest.mock.patch.object(loop, 'run', return_value={}) as run,
        absltest.mock.patch.object(peers, 'join') as join,
    ):
      join.side_effect = lambda *_, **__: run.assert_not_called()
      self.command(
          SMOKE,
          '--distributed',
          '--coordinator=host:1',
          '--processes=4',
          '--process=2',
      )
    join.assert_called_once_with('host:1', 4, 2)
    self.assertEqual(peers.limit(), 3600)
    run.assert_called_once()

  def test_every_mode_has_a_module_and_no_other(self):
    self.assertEqual(
        set(main.MODES), set(main.flags.FLAGS['mode'].parser.enum_values)
    )
    for module, _ in main.MODES.values():
      self.assertIsNotNone(importlib.util.find_spec(f'evojax.{module}'))

  def test_a_result_is_no_exit_code(self):
    with absltest.mock.patch.object(evaluate_mode, 'run', return_value={}):
      self.assertIsNone(self.command(SMOKE, '--mode=eval'))


class PlanTest(MainTestCase):

  def test_is_printed_and_nothing_written(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    policy_path = tiny.make_policy(folder / 'policy')
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
      code = self.command(
          f'--config=tests/tiny.py:{policy_path}',
          f'--workdir={folder / "run"}',
          '--compilation_cache=',
          '--mode=plan',
          '--config.steps=9',
      )
    self.assertIsNone(code)
    self.assertStartsWith(out.getvalue(), 'plan of tiny: 9 steps of ')
    self.assertIn('temporaries as compiled', out.getvalue())
    programs = r'(?m)^programs compiled, at most \d+: .*, decode 1$'
    self.assertRegex(out.getvalue(), programs)
    self.assertFalse((folder / 'run').exists())


class ErrorTest(MainTestCase):

  @parameterized.parameters(
      ValueError('steps=3: too few'),
      OSError(28, 'No space left on device'),
      FloatingPointError('loss=nan'),
      fleet.FleetError('none of the 2 servers could be used'),
      box.InfraError('no zygote'),
      probe.WeakSandboxError('T2 LIMITS RESOURCES ONLY'),
  )
  def test_of_the_user_is_one_line(self, error):
    for debug in (False, True):
      stderr = self.enterContext(absltest.mock.patch('sys.stderr'))
      with absltest.mock.patch.object(loop, 'run', side_effect=error):
        if debug:
          with self.assertRaises(type(error)):
            self.command(SMOKE, '--debug')
          continue
        self.assertEqual(self.command(SMOKE), 2)
      written = ''.join(call.args[0] for call in stderr.write.call_args_list)
      self.assertEqual(written, f'error: {error}\n')

  def test_of_ours_shows_its_traceback(self):
    with absltest.mock.patch.object(loop, 'run', side_effect=TypeError('ours')):
      with self.assertRaisesRegex(TypeError, 'ours'):
        self.command(SMOKE)

  def test_port_that_is_none(self):
    stderr = self.enterContext(absltest.mock.patch('sys.stderr'))
    with absltest.mock.patch.object(serve, 'run') as run:
      with self.assertRaisesRegex(SystemExit, '2'):
        self.command(SMOKE, '--mode=serve', '--port=65536')
    run.assert_not_called()
    self.assertIn('[0, 65535]', str(stderr.write.call_args_list))

  def test_nothing_at_all(self):
    stderr = self.enterContext(absltest.mock.patch('sys.stderr'))
    self.assertEqual(self.command(), 2)
    self.assertStartsWith(
        stderr.write.call_args_list[0].args[0],
        'error: --config is missing: e.g. --config=configs/math.py, or ',
    )

  def test_in_the_users_own_code_names_its_line(self):
    def reward(*_, **__):
      raise ValueError('boom')

    stderr = self.enterContext(absltest.mock.patch('sys.stderr'))
    with absltest.mock.patch.object(loop, 'run', reward):
      self.assertEqual(self.command(SMOKE), 2)
    printed = stderr.write.call_args_list[0].args[0]
    line = reward.__code__.co_firstlineno + 1
    place = f'{pathlib.Path(__file__).name}:{line}:ValueError:boom'
    self.assertIn(place, ''.join(printed.split()))

  @parameterized.parameters(
      ('eval', '--workdir: {} holds no run whose config could be taken'),
      ('report', 'there is no directory {}; pass the --workdir of a run'),
      ('diagnose', 'there is no file or directory {}; name the directory'),
  )
  def test_a_workdir_that_is_no_run(self, mode, said):
    stderr = self.enterContext(absltest.mock.patch('sys.stderr'))
    workdir = self.create_tempdir().full_path + '/none'
    self.assertEqual(self.command(f'--mode={mode}', f'--workdir={workdir}'), 2)
    printed = stderr.write.call_args_list[0].args[0]
    self.assertIn(
        ''.join(said.format(workdir).split()), ''.join(printed.split())
    )

  def test_a_workdir_below_the_users_home(self):
    # No shell replaces the ~ of --workdir=~/x.
    home = self.enterContext(tempfile.TemporaryDirectory())
    with absltest.mock.patch.dict(os.environ, HOME=home):
      (pathlib.Path(home) / 'metrics.jsonl').write_text('{"step": 1}\n')
      self.command('--mode=report', '--workdir=~')
    self.assertTrue(pathlib.Path(home, 'report.html').exists())

  @parameterized.parameters('report', 'diagnose')
  def test_a_mode_without_its_workdir(self, mode):
    stderr = self.enterContext(absltest.mock.patch('sys.stderr'))
    self.assertEqual(self.command(f'--mode={mode}'), 2)
    printed = stderr.write.call_args_list[0].args[0]
    self.assertIn(f'error: --mode={mode} needs a run: its --', printed)

  def test_of_the_command_line_with_debug(self):
    with self.assertRaisesRegex(ValueError, 'config.stepz is not a field'):
      self.command(SMOKE, '--debug', '--config.stepz=3')

  def test_in_a_config_file_names_its_line(self):
    with tempfile.NamedTemporaryFile('w', suffix='.py') as file:
      file.write(
          'from configs import math\n'
          'def get_config():\n'
          '  return math.get_config().grp.prompts\n'
      )
      file.flush()
      name = pathlib.Path(file.name).name
      for path in (file.name, os.path.relpath(file.name)):
        with self.assertRaisesRegex(ValueError, f'{name}:3: AttributeError'):
          self.command(f'--config={path}', '--debug')

  def test_in_a_config_file_with_a_misspelled_field(self):
    with tempfile.NamedTemporaryFile('w', suffix='.py') as file:
      file.write(
          'from configs import math\n'
          'def get_config():\n'
          '  c = math.get_config().unlock()\n'
          '  c.grpo.group_sise = 4\n'
          '  return c.lock()\n'
      )
      file.flush()
      with absltest.mock.patch.object(loop, 'run', return_value={}) as run:
        with self.assertRaisesRegex(ValueError, 'did you mean .*group_size'):
          self.command(f'--config={file.name}', '--debug')
    run.assert_not_called()

  def test_preemption_passes(self):
    with absltest.mock.patch.object(
        loop, 'run', side_effect=preemption.Preempted()
    ):
      with self.assertRaises(SystemExit) as caught:
        self.command(SMOKE)
    self.assertEqual(caught.exception.code, preemption.AGAIN)


class FlagTest(MainTestCase):

  @parameterized.parameters(
      (('--config', 'configs/math.py:smoke'),),
      (('-config=configs/math.py:smoke',),),
      (('--workdir=--config=', SMOKE),),
  )
  def test_ways_to_write_a_config(self, arguments):
    with absltest.mock.patch.object(loop, 'run', return_value={}) as run:
      self.command(*arguments)
    self.assertEqual(run.call_args.args[0].name, 'math-smoke')

  def test_switches_of_a_config(self):
    with absltest.mock.patch.object(loop, 'run', return_value={}) as run:
      self.command(SMOKE, '--noconfig.eval.sealed', '--config.log.tensorboard')
    config = run.call_args.args[0]
    self.assertFalse(config.eval.sealed)
    self.assertTrue(config.log.tensorboard)

  def test_a_group_as_a_dict(self):
    with absltest.mock.patch.object(loop, 'run', return_value={}) as run:
      self.command(SMOKE, "--config.reward.weights={'overlong': 0.5}")
    weights = run.call_args.args[0].reward.weights
    self.assertEqual(weights.to_dict(), {'overlong': 0.5})

  def test_every_field_of_a_group_moves_with_its_reference(self):
    with tempfile.NamedTemporaryFile('w', suffix='.py') as file:
      file.write(
          'from configs import math\n'
          'def get_config():\n'
          '  c = math.get_config().unlock()\n'
          "  c.eval.problems = c.get_ref('steps')\n"
          '  return c.lock()\n'
      )
      file.flush()
      with absltest.mock.patch.object(loop, 'run', return_value={}) as run:
        self.command(f'--config={file.name}', '--config.steps=11')
    self.assertEqual(run.call_args.args[0].eval.problems, 11)

  def test_the_config_of_a_run_is_taken_from_its_workdir(self):
    run = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / 'run'
    config = config_lib.with_fields(
        math_config.get_config('reference'), {'reward.weights': {'brief': 0.5}}
    )
    workdir_lib.open_workdir(run, config, mode='train').close()
    flags = '--mode=eval', f'--workdir={run}'
    with absltest.mock.patch.object(evaluate_mode, 'run') as evaluate:
      self.command(*flags)
      self.command(*flags, '--config.eval.problems=7')
    same, changed = (call.args[0] for call in evaluate.call_args_list)
    self.assertEqual(config_lib.sha256(same), config_lib.sha256(config))
    self.assertEqual(changed.eval.problems, 7)
    with changed.unlocked():
      changed.eval.problems = config.eval.problems
    self.assertEqual(config_lib.sha256(changed), config_lib.sha256(config))

  def test_a_launch_script_has_a_config_for_new_runs(self):
    run = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), 'run')

    def taken(*flags):
      argv = ['main.py', '--default_config=a.py', *flags]
      return main._with_saved_config(argv)[1:]

    at, seed = f'--workdir={run}', '--config.seed=3'
    self.assertEqual(taken(at, seed), ['--config=a.py', at, seed])
    self.assertEqual(taken(at, '--config=b.py'), [at, '--config=b.py'])
    self.assertEqual(taken('--config', 'b.py'), ['--config', 'b.py'])
    self.assertEqual(taken(at, '--mode=report'), [at, '--mode=report'])
    workdir_lib.open_workdir(
        run, math_config.get_config(), mode='evolve'
    ).close()
    own = saved_config.argument(str(run))
    self.assertEqual(taken(at, seed), [f'--config={own}', at, seed])
    # In a bucket, too.
    read = lambda path: (run / pathlib.Path(path).name).read_bytes()
    with absltest.mock.patch.object(saved_config.storage, 'read', read):
      found = taken('--workdir=gs://bucket/run')
    self.assertEndsWith(found[0], 'saved_config.py:gs://bucket/run')

  def test_a_folder_of_evidence_has_the_config_of_its_run(self):
    run = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), 'run')
    config = math_config.get_config('reference')
    workdir_lib.open_workdir(run, config, mode='evolve').close()
    for folder in ('arms/v0', 'rounds/003/r003-t001-0', 'sealed/base'):
      given = '--default_config=a.py', f'--workdir={run}/{folder}'
      taken = main._with_saved_config(['x', '--mode=inspect', *given])
      self.assertEqual(
          taken[1], f'--config={saved_config.argument(str(run))}', folder
      )
      # Any other mode would write there.
      taken = main._with_saved_config(['x', '--mode=train', *given])
      self.assertEqual(taken[1], '--config=a.py')

  def test_a_run_without_newer_fields_keeps_what_it_did(self):
    run = self.enterContext(tempfile.TemporaryDirectory())
    config = config_lib.to_mapping(math_config.get_config())
    del config['evolve']['settled'], config['plan'], config['grpo']['veto']
    saved = pathlib.Path(run, 'config.json')
    saved.write_text(json.dumps({'config': config, 'mode': 'evolve'}))
    with absltest.mock.patch.object(loop, 'run', return_value={}) as evolve:
      self.command(f'--workdir={run}')
    taken = evolve.call_args.args[0]
    self.assertEqual(taken.evolve.settled, 1.0)
    self.assertEqual(taken.grpo.veto, config_lib.base().grpo.veto)

  def test_a_damaged_config_of_a_run(self):
    run = self.enterContext(tempfile.TemporaryDirectory())
    stderr = self.enterContext(absltest.mock.patch('sys.stderr'))
    for text in '{', '[]', '{"config": 3}', '{"mode": "train"}':
      pathlib.Path(run, 'config.json').write_text(text)
      with self.assertRaisesRegex(SystemExit, '2'):
        self.command(f'--workdir={run}')
      told = ''.join(call.args[0] for call in stderr.write.call_args_list)
      self.assertStartsWith(told, f'error: {run}/config.json is not a config')
      stderr.reset_mock()
    # Modes that need no config do not read it.
    built = pathlib.Path(run, 'index.html')
    with absltest.mock.patch.object(page, 'build', return_value=built) as build:
      self.command(f'--workdir={run}', '--mode=report')
    build.assert_called_once()

  def test_help(self):
    done = subprocess.run(
        [sys.executable, '-m', 'evojax.main', '--help'],
        cwd=tiny.ROOT,
        env=tiny.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertIn('python -m evojax.main --config=', done.stdout)
    for name in ('--mode', '--workdir', '--fork_from', '--[no]debug'):
      self.assertIn(name, done.stdout)
    self.assertEmpty(done.stderr)


if __name__ == '__main__':
  absltest.main()
