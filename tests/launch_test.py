"""The launch scripts: which environment they install, and when."""

import contextlib
import errno
import importlib.util
import io
import os
import pathlib
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from unittest import mock
import venv

from absl.testing import absltest
from absl.testing import parameterized

from evojax.runtime import devices

ROOT = pathlib.Path(__file__).resolve().parent.parent
_SPEC = importlib.util.spec_from_file_location(
    'environment', ROOT / 'launch' / 'environment.py'
)
environment = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(environment)


def script(path: pathlib.Path, text: str) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(f'#!/bin/bash\n{text}\n')
  path.chmod(path.stat().st_mode | stat.S_IXUSR)


_JOBSET = (
    '--name=math',
    '--image=registry/evojax:1',
    '--accelerator=tpu-v5p-slice',
    '--topology=2x2x1',
    '--workdir=gs://bucket/math',
)


class TestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # A space in every path, as in real checkouts.
    self.folder = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory(prefix='a folder '))
    )
    self.shared = self.folder / 'environments'
    clean = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith('EVOJAX_')
        and k != 'JAX_PLATFORMS'
        and 'MEM_FRACTION' not in k
    }
    self.enter_context(mock.patch.dict(os.environ, clean, clear=True))
    self.set(EVOJAX_ENVIRONMENTS=str(self.shared))

  def set(self, **variables):
    self.enter_context(mock.patch.dict(os.environ, variables))


class AcceleratorTest(TestCase):

  def detect(self, *, devices=(), driver='', status=0):
    pci = self.folder / 'pci'
    for i, (vendor, device) in enumerate(devices):
      (pci / str(i)).mkdir(parents=True)
      (pci / str(i) / 'vendor').write_text(f'{vendor}\n')
      (pci / str(i) / 'device').write_text(f'{device}\n')
    script(self.folder / 'nvidia-smi', f'echo "{driver}"; exit {status}')
    self.set(PATH=f'{self.folder}:/usr/bin:/bin')
    return environment.detect_accelerator(pci)

  @parameterized.parameters(
      ('580.65.06', 'cuda13'),
      ('580.65.06\n580.65.06', 'cuda13'),
      ('575.57.08', 'cuda12'),
      ('No devices were found', 'cpu'),
      ('', 'cpu'),
  )
  def test_driver(self, driver, expected):
    self.assertEqual(self.detect(driver=driver), expected)

  def test_driver_that_does_not_answer(self):
    self.assertEqual(self.detect(driver='580.65.06', status=9), 'cpu')

  @parameterized.parameters(
      ('0x1ae0', '0x0063', 'tpu'),  # v5e.
      ('0x1ae0', '0x0042', 'cpu'),  # The network card of any Google VM.
      ('0x8086', '0x0063', 'cpu'),  # Same number, but another vendor.
  )
  def test_pci(self, vendor, device, expected):
    found = self.detect(
        devices=[('0x8086', '0x1237'), (vendor, device)], status=1
    )
    self.assertEqual(found, expected)

  def test_jax_platforms_cpu_wins(self):
    self.set(JAX_PLATFORMS='cpu')
    self.assertEqual(self.detect(driver='580.65.06'), 'cpu')

  def test_variable_wins(self):
    self.set(JAX_PLATFORMS='cpu', EVOJAX_ACCELERATOR='cuda12')
    self.assertEqual(self.detect(driver='580.65.06'), 'cuda12')

  def test_unknown_variable(self):
    self.set(EVOJAX_ACCELERATOR='gpu')
    with self.assertRaisesRegex(ValueError, r'EVOJAX_ACCELERATOR=gpu.*cuda13'):
      self.detect()

  def test_every_accelerator_has_its_pins(self):
    for name in environment.ACCELERATORS:
      self.set(EVOJAX_ACCELERATOR=name)
      files = environment.requirement_files(['accelerator'])
      self.assertLen(files, 1 if name == 'cpu' else 2)


class EnsureTest(TestCase):

  def setUp(self):
    super().setUp()
    self.set(EVOJAX_ACCELERATOR='cpu')
    self.install = self.enter_context(
        mock.patch.object(environment, '_install')
    )

  def ensure(self):
    python = environment.ensure('', ['accelerator'])
    subprocess.run([python, '-c', ''], check=True)
    return python.parent.parent

  def test_made_once(self):
    path = self.ensure()
    self.assertEqual(self.ensure(), path)
    self.install.assert_called_once()

  def test_interrupted_is_made_anew(self):
    self.install.side_effect = KeyboardInterrupt
    with self.assertRaises(KeyboardInterrupt):
      self.ensure()
    [leftover] = self.shared.glob('*/bin')
    (leftover / 'half-written').touch()
    self.install.side_effect = None
    self.ensure()
    self.assertEqual(self.install.call_count, 2)
    self.assertFalse((leftover / 'half-written').exists())

  def test_changed_pins_are_installed(self):
    os.environ.pop('EVOJAX_ENVIRONMENTS')
    root = self.folder / 'checkout'
    (root / 'requirements').mkdir(parents=True)
    pins = root / 'requirements' / 'base.txt'
    pins.write_text('jax==1')
    with mock.patch.object(environment, 'ROOT', root):
      path = self.ensure()
      self.assertEqual(path, root / '.venv')
      (path / 'lib' / 'stale').touch()
      pins.write_text('jax==2')
      self.assertEqual(self.ensure(), path)
    self.assertEqual(self.install.call_count, 2)
    self.assertFalse((path / 'lib' / 'stale').exists())

  def test_broken_python_is_replaced(self):
    path = self.ensure()
    (path / 'bin' / 'python').unlink()
    self.ensure()
    self.assertEqual(self.install.call_count, 2)

  def _own_environment(self) -> pathlib.Path:
    files = environment.requirement_files([])
    path = environment.environment_path('', environment.pins_hash(files))
    path.mkdir()
    (path / 'mine').touch()
    return path

  def test_users_environment_is_kept(self):
    path = self._own_environment()
    venv.EnvBuilder().create(path)
    self.assertEqual(self.ensure(), path)
    self.assertTrue((path / 'mine').exists())
    self.install.assert_called_once()

  def test_users_folder_is_not_removed(self):
    path = self._own_environment()
    with self.assertRaisesRegex(ValueError, 'was not made by evojax'):
      self.ensure()
    self.assertTrue((path / 'mine').exists())

  def test_two_processes_install_once(self):
    code = (
        'import sys, time;'
        f'sys.path.insert(0, {str(ROOT / "launch")!r});'
        'import environment as e;'
        'e._install = lambda *_: (print("installs"), time.sleep(0.5));'
        'e.ensure("", [])'
    )
    processes = [
        subprocess.Popen(
            [sys.executable, '-c', code],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(3)
    ]
    outputs = [process.communicate()[0] for process in processes]
    self.assertEqual([p.returncode for p in processes], [0, 0, 0])
    self.assertEqual(''.join(outputs), 'installs\n')

  def test_without_ensurepip(self):
    with mock.patch.object(importlib.util, 'find_spec', return_value=None):
      with self.assertRaisesRegex(ValueError, 'apt install python3-venv'):
        self.ensure()
    self.install.assert_not_called()

  def test_a_checkout_that_cannot_be_written(self):
    os.environ.pop('EVOJAX_ENVIRONMENTS')
    printed = io.StringIO()
    for error in (errno.EROFS, errno.EACCES):
      with (
          mock.patch.object(
              pathlib.Path, 'open', side_effect=OSError(error, 'no', 'a.lock')
          ),
          contextlib.redirect_stderr(printed),
      ):
        self.assertEqual(environment.main(['mine', 'accelerator']), 1)
    self.assertEqual(printed.getvalue().count('EVOJAX_ENVIRONMENTS=DIR'), 2)

  def test_unknown_set(self):
    with self.assertRaisesRegex(ValueError, 'nonsense.txt'):
      environment.ensure('', ['nonsense'])


class ScriptTest(TestCase):
  """The scripts themselves, with a Python that prints its arguments."""

  def setUp(self):
    super().setUp()
    self.set(EVOJAX_ACCELERATOR='cpu', PYTHON=sys.executable)

  def complete_environment(self, name, *sets):
    files = environment.requirement_files(list(sets))
    pins = environment.pins_hash(files)
    path = environment.environment_path(name, pins)
    script(
        path / 'bin' / 'python',
        '[[ "$1" = -c ]] && exit\n'
        'printf "<%s>" "$@"; echo " in $PWD, platforms ${JAX_PLATFORMS:-any}"\n'
        f'env | grep MEM_FRACTION > "{self.folder}/memory" || :',
    )
    (path / environment.STAMP).write_text(pins)

  def run_script(self, name, *flags):
    return subprocess.run(
        ['bash', ROOT / name, *flags],
        cwd=self.folder,
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )

  def test_local(self):
    self.complete_environment('', 'accelerator')
    run = self.run_script('launch/local.sh', '--config=a b', '--mode=plan')
    self.assertEqual(run.stderr, '')
    self.assertEqual(
        run.stdout,
        '<-m><evojax.main><--default_config=configs/math.py><--config=a b>'
        # It would not use the CPU beside a GPU unasked.
        f'<--mode=plan> in {ROOT}, platforms cpu\n',
    )
    for accelerator, platforms in (('cuda12', 'any'), ('tpu', 'any')):
      self.set(EVOJAX_ACCELERATOR=accelerator)
      self.complete_environment('', 'accelerator')
      run = self.run_script('launch/local.sh', '--config=a')
      self.assertIn(f'platforms {platforms}\n', run.stdout)
    self.set(EVOJAX_ACCELERATOR='cpu', JAX_PLATFORMS='cuda')
    self.complete_environment('', 'accelerator')
    run = self.run_script('launch/local.sh', '--config=a')
    self.assertIn('platforms cuda\n', run.stdout)

  @parameterized.parameters(
      ({}, f'{devices._GPU_SHARE}'),
      # jax refuses the older name beside the newer one.
      ({'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.4'}, '0.4'),
      ({'XLA_CLIENT_MEM_FRACTION': '0.3'}, '0.3'),
  )
  def test_the_memory_of_a_gpu_is_what_a_plan_counts_on(self, given, share):
    self.set(**given)
    self.complete_environment('', 'accelerator')
    self.assertEqual(self.run_script('launch/local.sh').returncode, 0)
    found = (self.folder / 'memory').read_text()
    self.assertEqual(found, f'XLA_CLIENT_MEM_FRACTION={share}\n')

  def test_tpu_pod(self):
    self.complete_environment('', 'accelerator')  # Of a CPU: a wrong one.
    self.set(EVOJAX_ACCELERATOR='tpu')
    self.complete_environment('', 'accelerator')
    run = self.run_script('launch/tpu_pod.sh', '--workdir=/mnt/x')
    self.assertRegex(
        run.stdout,
        '^<-m><evojax.main><--default_config=configs/math.py><--parent=[0-9]+>'
        f'<--distributed><--workdir=/mnt/x> in {ROOT}, platforms tpu,cpu\n$',
    )

  def gpu_node(self, *flags):
    script(self.folder / 'bin' / 'nvidia-smi', 'exit 0')
    script(self.folder / 'bin' / 'scontrol', 'echo first; echo second')
    self.set(
        EVOJAX_ACCELERATOR='cuda13',
        PATH=f'{self.folder / "bin"}:{os.environ["PATH"]}',
    )
    self.complete_environment('', 'accelerator')
    run = self.run_script('launch/gpu_node.sh', '--mode=eval', *flags)
    return re.sub('<--parent=[0-9]+>', '', run.stdout)

  def test_gpu_node_alone(self):
    self.assertStartsWith(
        self.gpu_node(),
        '<-m><evojax.main><--default_config=configs/math.py><--mode=eval>',
    )

  def test_gpu_nodes_by_hand(self):
    self.set(COORDINATOR='host:1', NODES='2', NODE='0')
    self.assertIn(
        '<--distributed><--coordinator=host:1><--processes=2><--process=0>'
        '<--mode=eval>',
        self.gpu_node(),
    )

  def test_gpu_nodes_by_slurm(self):
    self.set(
        SLURM_NTASKS='2',
        SLURM_PROCID='1',
        SLURM_JOB_ID='40007',
        SLURM_JOB_NODELIST='ignored',
    )
    self.assertIn(  # 20000 + 40007 % 20000
        '<--distributed><--coordinator=first:20007><--processes=2>'
        '<--process=1><--mode=eval>',
        self.gpu_node(),
    )

  @parameterized.parameters('gpu_node', 'tpu_pod', 'ray_job', 'jobset')
  def test_a_dry_run_makes_and_starts_nothing(self, name):
    # No GPU, no environment, no cluster: it may be made anywhere.
    self.set(PATH='/usr/bin:/bin', EVOJAX_ACCELERATOR='')
    flags = _JOBSET if name == 'jobset' else ()
    run = self.run_script(
        f'launch/{name}.sh', *flags, '--dry_run', '--config=a b.py', '--mode=aa'
    )
    self.assertEqual((run.returncode, run.stderr), (0, ''))
    self.assertNotIn('--dry_run', run.stdout)
    for word in ('evojax.main', '--mode=aa'):
      self.assertIn(word, run.stdout)
    self.assertFalse(self.shared.exists() and list(self.shared.iterdir()))

  def test_a_dry_run_can_be_pasted(self):
    self.set(EVOJAX_ACCELERATOR='tpu')
    self.complete_environment('', 'accelerator')
    run = self.run_script('launch/tpu_pod.sh', '--dry_run', "--config=a 'b'")
    pasted = subprocess.run(
        ['bash', '-c', run.stdout], text=True, capture_output=True, check=True
    )
    self.assertIn("<--config=a 'b'>", pasted.stdout)
    # It would end at once: the script that printed it has ended.
    self.assertNotIn('--parent', pasted.stdout)
    self.assertIn('platforms tpu,cpu', pasted.stdout)

  def test_gpu_node_without_gpu(self):
    script(self.folder / 'bin' / 'nvidia-smi', 'exit 9')
    self.set(PATH=f'{self.folder / "bin"}:{os.environ["PATH"]}')
    run = self.run_script('launch/gpu_node.sh')
    self.assertEqual(run.returncode, 1)
    self.assertIn('nvidia-smi finds no GPU', run.stderr)

  def test_a_python_that_was_asked_for_is_not_replaced(self):
    self.complete_environment('', 'accelerator')
    script(self.folder / 'python3.10', 'echo Python 3.10.99; exit 1')
    for python, said in (
        (str(self.folder / 'python3.10'), 'Python 3.10.99'),
        ('no-such-python', 'not found'),
    ):
      self.set(PYTHON=python)
      run = self.run_script('launch/local.sh')
      self.assertEqual((run.returncode, run.stdout), (1, ''))
      self.assertIn(f'error: PYTHON={python} is no Python >= 3.11:', run.stderr)
      self.assertIn(said, run.stderr)

  def test_a_message_can_name_the_script_as_it_was_typed(self):
    self.complete_environment('', 'accelerator')
    [python] = self.shared.glob('*/bin/python')
    script(python, '[[ "$1" = -c ]] && exit\necho "$EVOJAX_LAUNCHER"')
    run = self.run_script('launch/local.sh')
    self.assertEqual(run.stdout, f'bash {ROOT}/launch/local.sh\n')

  def test_no_python(self):
    for name in ('bash', 'dirname'):
      (self.folder / name).symlink_to(shutil.which(name))
    script(self.folder / 'python3', 'exit 1')  # Too old.
    self.set(PATH=str(self.folder), PYTHON='')
    run = self.run_script('launch/local.sh')
    self.assertEqual(run.returncode, 1)
    self.assertEqual(run.stdout, '')
    self.assertIn('no Python >= 3.11', run.stderr)
    self.assertIn('PYTHON=', run.stderr)


class RestartTest(TestCase):
  """What a script does when its command ends, with a fake Python."""

  def setUp(self):
    super().setUp()
    self.set(
        EVOJAX_ACCELERATOR='tpu',
        PYTHON=sys.executable,
        EVOJAX_RESTART_SECONDS='0',
        EVOJAX_RESTARTS='2',
    )
    self.count = self.folder / 'starts'

  def start(self, text):
    """Starts tpu_pod.sh, whose command is a script in bash."""
    files = environment.requirement_files(['accelerator'])
    pins = environment.pins_hash(files)
    path = environment.environment_path('', pins)
    script(
        path / 'bin' / 'python',
        f'[[ "$1" = -c ]] && exit\necho >> "{self.count}"\n{text}',
    )
    (path / environment.STAMP).write_text(pins)
    process = subprocess.Popen(
        ['bash', ROOT / 'launch/tpu_pod.sh'],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    self.addCleanup(process.kill)
    return process

  def starts(self):
    return self.count.read_text().count('\n') if self.count.exists() else 0

  @parameterized.parameters(
      (0, 1),
      (2, 1),  # The user's to mend.
      (143, 1),  # The machine goes away, or somebody stopped it.
      (75, 3),  # Start again: twice, as often as is allowed.
      (137, 3),  # Short of memory, on this machine or another.
  )
  def test_what_is_started_again(self, status, starts):
    process = self.start(f'exit {status}')
    printed, _ = process.communicate()
    self.assertEqual((process.returncode, self.starts()), (status, starts))
    self.assertEqual('error: ' in printed, starts == 3)

  def test_it_ends_where_the_second_start_works(self):
    lines = f'[[ $(wc -l < "{self.count}") = 1 ]] && exit 75'
    process = self.start(f'{lines}\necho done')
    printed, _ = process.communicate()
    self.assertEqual((process.returncode, self.starts()), (0, 2))
    self.assertIn('starting again, 1 times left', printed)
    self.assertEndsWith(printed, 'done\n')

  def test_sigterm_reaches_the_command_which_saves(self):
    saved = self.folder / 'saved'
    process = self.start(
        f'trap \'sleep 0.3; touch "{saved}"; exit 143\' TERM\n'
        'echo ready; while :; do sleep 0.1; done'
    )
    self.assertEqual(process.stdout.readline(), 'ready\n')
    process.terminate()
    process.communicate()
    self.assertEqual((process.returncode, self.starts()), (143, 1))
    self.assertTrue(saved.exists())

  def test_the_status_of_a_command_that_ends_at_once(self):
    # As evojax does before its first step: the command has ended before the
    # script looks at it again.
    command = (
        'import os, signal\n'
        'signal.signal(signal.SIGTERM, lambda *_: os._exit(75))\n'
        'print("ready", flush=True)\n'
        'while True: signal.pause()'
    )
    text = (
        f'source {ROOT}/launch/environment.sh\n'
        'kill() { builtin kill "$@" && sleep 0.5; }\n'
        f'run {sys.executable} -c {shlex.quote(command)}'
    )
    process = subprocess.Popen(
        ['bash', '-c', text], stdout=subprocess.PIPE, text=True
    )
    self.addCleanup(process.kill)
    self.assertEqual(process.stdout.readline(), 'ready\n')
    process.terminate()
    process.communicate(timeout=30)
    self.assertEqual(process.returncode, 75)

  def test_a_stop_while_it_waits_to_start_again(self):
    self.set(EVOJAX_RESTART_SECONDS='60')
    process = self.start('exit 75')
    self.assertIn('starting again', process.stdout.readline())
    process.terminate()
    process.communicate(timeout=30)
    self.assertEqual(self.starts(), 1)

  def test_the_command_knows_whose_end_is_its_own(self):
    # `--parent` ends it where the script is killed.
    process = self.start('echo "$@"; ps -o ppid= -p $$')
    printed, _ = process.communicate()
    words, parent = printed.splitlines()
    self.assertIn(f'--parent={parent.strip()} ', words)
    self.assertEqual(process.pid, int(parent))


class SglangJaxTest(absltest.TestCase):
  """The server of launch/sglang_jax.py, with a minimal front end."""

  def setUp(self):
    super().setUp()

    class Scheduler:
      node_rank = 0

      def __init__(self):
        self._request_dispatcher = mock.Mock(_mapping=[])

      def handle_generate_request(self, request):
        del request

    class TokenizerManager:

      def __init__(self):
        self.rid_to_state = {}
        self.send_to_scheduler = None
        self._result_dispatcher = mock.Mock(_mapping=[])

      def _handle_batch_output(self, output):
        for i, rid in enumerate(output.rids):
          state = self.rid_to_state.get(rid)
          if state is None:
            continue
          if output.finished_reasons[i]:
            del self.rid_to_state[rid]
          count = output.completion_tokens[i]
          meta = {'id': rid, 'completion_tokens': count}
          state.out_list.append({'meta_info': meta})

      def _handle_abort_req(self, aborted):
        meta = {'id': aborted.rid, 'completion_tokens': 0}
        self.rid_to_state[aborted.rid].out_list.append({'meta_info': meta})

    managers = mock.MagicMock()
    managers.io_struct.BaseReq = object
    managers.scheduler.Scheduler = Scheduler
    managers.tokenizer_manager.TokenizerManager = TokenizerManager
    places = {
        'sgl_jax': mock.MagicMock(),
        'sgl_jax.srt': mock.MagicMock(),
        'sgl_jax.srt.entrypoints': mock.MagicMock(),
        'sgl_jax.srt.managers': managers,
        'sgl_jax.srt.server_args': mock.MagicMock(),
        'sgl_jax.srt.utils': mock.MagicMock(),
    }
    spec = importlib.util.spec_from_file_location(
        'sglang_jax', ROOT / 'launch' / 'sglang_jax.py'
    )
    self.module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, places):
      spec.loader.exec_module(self.module)

  def test_no_request_leaves_anything_behind(self):
    scheduler = self.module.Scheduler()
    front = self.module.TokenizerManager()
    states = {}
    # 'gone' reached the scheduler after its client had left.
    for rid in ('one', 'sample', 'waiting', 'gone'):
      scheduler.handle_generate_request(mock.Mock(rid=rid))
      if rid != 'gone':
        states[rid] = front.rid_to_state[rid] = mock.Mock(out_list=[])
    output = lambda **counts: mock.Mock(
        rids=list(counts),
        finished_reasons=[
            {'type': 'length'} if n > 2 else None for n in counts.values()
        ],
        completion_tokens=list(counts.values()),
    )
    meta = lambda rid: states[rid].out_list[-1]['meta_info']
    front._handle_batch_output(output(one=2, sample=3))
    span = lambda end: [dict(version='default', start=0, end=end)]
    self.assertEqual(meta('one')['weight_versions'], span(2))
    self.assertEqual(meta('sample')['weight_versions'], span(3))
    self.assertEqual(meta('sample')['weight_version'], 'default')
    front._handle_batch_output(output(one=4, gone=5))
    self.assertEqual(meta('one')['weight_versions'], span(4))
    front._handle_abort_req(mock.Mock(rid='waiting'))
    self.assertEqual(meta('waiting')['weight_versions'], [])
    self.assertEmpty(self.module._spans)
    self.assertEmpty(front.rid_to_state)


if __name__ == '__main__':
  absltest.main()
