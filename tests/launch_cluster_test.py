"""The launch scripts of clusters, under fake kubectl, ray, srun, scontrol."""

import importlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from evojax.runtime import preemption
from tests import launch_test

ROOT = launch_test.ROOT
yaml = pytest.importorskip('yaml')
SCHEMA = json.loads((ROOT / 'tests/launch_jobset_schema.json').read_text())
FLAGS = (
    '--name=math',
    '--image=registry/evojax:1',
    '--accelerator=tpu-v5p-slice',
    '--topology=2x2x4',
    '--workdir=gs://bucket/math',
)


class ClusterTest(launch_test.TestCase):

  def setUp(self):
    super().setUp()
    self.fakes = self.folder / 'bin'
    self.set(
        PATH=f'{self.fakes}:{os.environ["PATH"]}',
        PYTHON=sys.executable,
        EVOJAX_RESTART_SECONDS='0',
    )

  def start(self, name, *flags):
    process = subprocess.Popen(
        ['bash', ROOT / 'launch' / name, *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A background job ignores SIGINT, and its children cannot trap it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    self.addCleanup(self.end, process.pid)
    return process

  def end(self, group):
    """Ends what a failed test left."""
    try:
      os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
      pass

  def run_script(self, name, *flags):
    process = self.start(name, *flags)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err

  def make_python(self, text, name='', *sets):
    """Makes the environment of a run, whose Python is a script in bash."""
    files = launch_test.environment.requirement_files(['accelerator', *sets])
    pins = launch_test.environment.pins_hash(files)
    path = launch_test.environment.environment_path(name, pins)
    launch_test.script(
        path / 'bin' / 'python', f'[[ "$1" = -c ]] && exit\n{text}'
    )
    (path / launch_test.environment.STAMP).write_text(pins)


class JobsetTest(ClusterTest):

  def applied(self, *flags):
    """The JobSet that kubectl gets."""
    got = self.folder / 'got.yaml'
    launch_test.script(
        self.fakes / 'kubectl', f'[[ "$*" = "apply -f -" ]] && cat > "{got}"'
    )
    status, _, err = self.run_script('jobset.sh', *FLAGS, *flags)
    self.assertEqual((status, err), (0, ''))
    return yaml.safe_load(got.read_text())

  def job(self, jobset):
    (replicated,) = jobset['spec']['replicatedJobs']
    return replicated['replicas'], replicated['template']['spec']

  @parameterized.parameters(
      ((),),
      (('--slices=2', '--volume=runs:/mnt', '--spot', '--restarts=3'),),
  )
  def test_it_is_a_jobset(self, flags):
    jsonschema = pytest.importorskip('jsonschema')
    check = jsonschema.Draft202012Validator(SCHEMA)
    found = self.applied(*flags, '--config=configs/math.py')
    check.validate(found)
    # The schema refuses what JobSet has not.
    found['spec']['failurePolicy']['maxRestart'] = 1
    self.assertFalse(check.is_valid(found))

  def test_hosts_slices_and_flags(self):
    flags = "--config=a 'b'.py", '--config.name="x" # $HOME'
    slices, job = self.job(self.applied('--slices=2', *flags))
    # 2 x 2 x 4 chips are four hosts of four.
    self.assertEqual(slices, 2)
    self.assertEqual((job['parallelism'], job['completions']), (4, 4))
    pod = job['template']['spec']
    self.assertEqual(
        pod['nodeSelector'],
        {
            'cloud.google.com/gke-tpu-accelerator': 'tpu-v5p-slice',
            'cloud.google.com/gke-tpu-topology': '2x2x4',
        },
    )
    (container,) = pod['containers']
    self.assertEqual(container['resources'], {'limits': {'google.com/tpu': 4}})
    self.assertEqual(
        container['command'],
        [
            *('bash', 'launch/tpu_pod.sh', FLAGS[-1], *flags),
            '--config.mesh.slice=2',
        ],
    )

  def test_a_mesh_that_is_given_stays(self):
    for flags in (('--config.mesh.slice=4',), ('--config.mesh.slice', '4')):
      _, job = self.job(self.applied('--slices=2', *flags))
      (container,) = job['template']['spec']['containers']
      self.assertEqual(container['command'][3:], list(flags))

  def test_what_is_started_again_and_how_often(self):
    jobset = self.applied('--restarts=3')
    policy = jobset['spec']['failurePolicy']
    self.assertEqual(policy['maxRestarts'], 3)
    (rule,) = policy['rules']
    # A job that its pod failure policy fails is never restarted; the end of any
    # other pod ends its job, and then all jobs, which start again.
    self.assertEqual(rule['action'], 'FailJobSet')
    self.assertEqual(rule['onJobFailureReasons'], ['PodFailurePolicy'])
    _, job = self.job(jobset)
    (rule,) = job['podFailurePolicy']['rules']
    self.assertEqual(rule['action'], 'FailJob')
    # An exception and a wrong command; other statuses are those of a loss.
    self.assertEqual(rule['onExitCodes']['values'], [1, 2])
    self.assertNotIn(preemption.AGAIN, rule['onExitCodes']['values'])
    self.assertEqual(job['backoffLimit'], 0)
    (container,) = job['template']['spec']['containers']
    self.assertEqual(rule['onExitCodes']['containerName'], container['name'])
    self.assertIn({'name': 'EVOJAX_RESTARTS', 'value': '0'}, container['env'])

  @parameterized.parameters(
      ('--name=Math', 'wanted at most 40'),
      ('--topology=2by2', 'wanted chips along each axis'),
      ('--topology=2x3', 'not whole hosts'),
      ('--slices=0', 'wanted a number above 0'),
      ('--restarts=some', 'wanted a number'),
      ('--volume=mnt', 'wanted CLAIM:PATH'),
      ("--image=a'b", 'name one that holds the checkout'),
      (
          '--workdir=/mnt/math',
          '=/mnt/math is on the disk of a pod, .* --volume=CLAIM:PATH'
          ' and name a --workdir below PATH, or one in a bucket',
      ),
  )
  def test_refused(self, flag, said):
    status, out, err = self.run_script('jobset.sh', *FLAGS, flag, '--dry_run')
    self.assertEqual((status, out), (2, ''))
    self.assertRegex(err, f'^error: {flag.partition("=")[0]}.*{said}')

  @parameterized.parameters(
      (('--workdir=runs/math',), '/evojax/runs/math'),
      ((), '/evojax/runs'),
      (('--workdir', '/mnt/math'), '/mnt/math'),
      (('--workdir=/mnt/math', '--volume=runs:/mn'), '/mnt/math'),
      (('--workdir=/mnt/math', '--volume=runs:/mnt'), None),
      (('--workdir=/mnt', '--volume=runs:/mnt/'), None),
      (('--volume=runs:/evojax/runs',), None),
      (('--workdir', 's3://bucket/math'), None),
      # JobSet starts another pod in place of a lost one, also of a single one.
      (('--topology=2x2',), '/evojax/runs'),
      (('--topology=2x2', '--workdir=gs://bucket/math'), None),
      (('--topology=2x2', '--slices=2'), '/evojax/runs'),
  )
  def test_the_workdir_outlives_the_pods(self, flags, refused):
    status, out, err = self.run_script(
        'jobset.sh', *FLAGS[:-1], *flags, '--dry_run'
    )
    if refused is None:
      self.assertEqual((status, err), (0, ''))
      self.assertIn('kind: JobSet', out)
    else:
      self.assertEqual((status, out), (2, ''))
      self.assertStartsWith(err, f'error: --workdir={refused} is on the disk')
      self.assertEqual(err.count('\n'), 1)

  def test_without_kubectl(self):
    for name in ('bash', 'dirname', 'cat'):
      (self.folder / name).symlink_to(shutil.which(name))
    self.set(PATH=str(self.folder))
    status, out, err = self.run_script('jobset.sh', *FLAGS)
    self.assertEqual((status, out), (2, ''))
    self.assertStartsWith(err, 'error: there is no `kubectl` here; --dry_run')

  def test_a_dry_run_is_the_yaml(self):
    _, out, _ = self.run_script('jobset.sh', *FLAGS, '--dry_run')
    self.assertEqual(yaml.safe_load(out), self.applied())


class DocumentedTest(parameterized.TestCase):

  @parameterized.parameters('launch/jobset.sh', 'docs/tpu_slices.md')
  def test_the_mesh_of_the_config_is_that_of_the_slices(self, name):
    text = (ROOT / name).read_text()
    (command,) = re.findall(
        r'bash launch/jobset\.sh.*?--workdir=\S+', text, re.DOTALL
    )
    given = dict(re.findall(r'--([a-z_]+)=(\S+)', command))
    module, _, variant = given['config'].partition(':')
    config = importlib.import_module(
        module.removesuffix('.py').replace('/', '.')
    ).get_config(variant)
    slices = int(given['slices'])
    chips = math.prod(map(int, given['topology'].split('x')))
    sizes = config.mesh.to_dict() | {'slice': slices}
    self.assertEqual(math.prod(sizes.values()), slices * chips)


class RayTest(ClusterTest):
  """`ray job submit` runs what it is given, as a cluster would."""

  def setUp(self):
    super().setUp()
    self.set(EVOJAX_ACCELERATOR='cpu')
    self.pid = self.folder / 'job'
    launch_test.script(
        self.fakes / 'ray',
        'case "$1 $2" in\n'
        # The job is not a child of the client, and outlives it.
        f'"job submit") echo "$*" > "{self.pid}s"\n'
        '  while [[ $1 != -- ]]; do shift; done; shift\n'
        f'  setsid "$@" & echo $! > "{self.pid}"; wait $! ;;\n'
        # As Ray does, it kills the group after some seconds.
        f'"job stop") job=$(cat "{self.pid}"); kill $job\n'
        f'  left=$(sed -n \'s/.*STOP_WAIT_TIME_S": "\\([0-9]*\\)".*/\\1/p\' '
        f'"{self.pid}s")\n'
        '  for ((tenths = 10 * ${left:-3}; tenths > 0; tenths--)); do\n'
        '    kill -0 $job 2>/dev/null || exit 0; sleep 0.1\n'
        '  done; kill -9 -$job ;;\n'
        'esac',
    )

  def test_the_driver_and_its_flags(self):
    self.make_python('printf "<%s>" "$@"', 'ray', 'ray')
    status, out, _ = self.run_script('ray_job.sh', '--workers=2', '--mode=aa')
    self.assertEqual(status, 0)
    self.assertRegex(
        out,
        '<-m><evojax.main><--default_config=configs/math.py><--parent=[0-9]+>'
        '<--executor=ray><--workers=2><--mode=aa>',
    )

  def test_the_status_of_the_run_is_that_of_the_script(self):
    self.make_python('exit 2', 'ray', 'ray')
    self.assertEqual(self.run_script('ray_job.sh')[0], 2)

  def test_it_starts_again(self):
    count = self.folder / 'count'
    self.make_python(
        f'echo >> "{count}"; [[ $(wc -l < "{count}") = 2 ]] || exit 75',
        'ray',
        'ray',
    )
    self.assertEqual(self.run_script('ray_job.sh')[0], 0)
    self.assertLen(count.read_text(), 2)

  def test_a_driver_that_dies_starts_again(self):
    count = self.folder / 'count'
    # As the kernel ends it where memory is short.
    self.make_python(
        f'echo >> "{count}"; [[ $(wc -l < "{count}") = 2 ]] || kill -9 $$',
        'ray',
        'ray',
    )
    status, _, err = self.run_script('ray_job.sh')
    self.assertEqual(status, 0, err)
    self.assertLen(count.read_text(), 2)

  def test_a_driver_that_keeps_dying_ends_with_its_status(self):
    count = self.folder / 'count'
    self.make_python(f'echo >> "{count}"; kill -9 $$', 'ray', 'ray')
    self.set(EVOJAX_RESTARTS='2')
    status, _, err = self.run_script('ray_job.sh')
    self.assertEqual(status, 137, err)
    self.assertLen(count.read_text(), 3)

  @parameterized.parameters(*preemption.STATUSES.items())
  def test_a_signal_here_ends_the_job_there(self, number, expected):
    saved = self.folder / 'saved'
    self.make_python(
        f'trap \'sleep 4; touch "{saved}"; exit 143\' TERM\n'
        'echo ready; while :; do sleep 0.1; done',
        'ray',
        'ray',
    )
    process = self.start('ray_job.sh')
    self.assertEqual(process.stdout.readline(), 'ready\n')
    job = int(self.pid.read_text())
    process.send_signal(number)
    process.communicate(timeout=60)
    self.assertEqual(process.returncode, expected)
    deadline = time.monotonic() + 60
    while pathlib.Path(f'/proc/{job}').exists():
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.1)
    self.assertTrue(saved.exists())

  def test_without_ray(self):
    self.set(PATH='/usr/bin:/bin')
    status, _, err = self.run_script('ray_job.sh')
    self.assertEqual(status, 2)
    self.assertIn('pip install', err)


class SlurmTest(ClusterTest):
  """A fake srun runs a task for each of two nodes.

  As srun does, it ends the others with SIGTERM if one fails, but only with
  --kill-on-bad-exit=1, and returns the highest status of all tasks.
  """

  def setUp(self):
    super().setUp()
    self.set(EVOJAX_ACCELERATOR='cuda13')
    launch_test.script(self.fakes / 'nvidia-smi', 'exit 0')
    launch_test.script(self.fakes / 'scontrol', 'echo first; echo second')
    launch_test.script(
        self.fakes / 'srun',
        'kill=\n'
        'while [[ $1 == --* ]]; do\n'
        '  [[ $1 == --kill-on-bad-exit=1 ]] && kill=1; shift\n'
        'done\n'
        'export SLURM_NTASKS=2 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=x\n'
        # Every task leads a group, whose processes all get the signal.
        'set -m; SLURM_PROCID=0 "$@" & SLURM_PROCID=1 "$@" & set +m\n'
        'highest=0; tasks=$(jobs -p)\n'
        'for _ in $tasks; do\n'
        '  status=0; wait -n || status=$?\n'
        '  (( status > highest )) && highest=$status\n'
        '  [[ $status != 0 && $kill ]] || continue\n'
        '  for task in $tasks; do kill -- -$task 2>/dev/null; done\n'
        'done\n'
        'exit $highest',
    )

  def run_tasks(self, *flags):
    run = subprocess.Popen(
        [
            *('srun', '--ntasks-per-node=1', *flags),
            *('bash', ROOT / 'launch/gpu_node.sh', '--mode=train'),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    self.addCleanup(self.end, run.pid)
    return run

  def test_all_end_when_one_dies(self):
    pids = self.folder / 'pids'
    # Node 1 dies of an error of the user's, which is not repeated, once node 0
    # is there; node 0 would go on for ever.
    self.make_python(
        f'echo $$ >> "{pids}"\n'
        f'until [[ $(wc -l < "{pids}") = 2 ]]; do sleep 0.05; done\n'
        '[[ $SLURM_PROCID = 1 ]] && exit 1\n'
        'while :; do sleep 0.1; done'
    )
    run = self.run_tasks('--kill-on-bad-exit=1')
    run.communicate(timeout=60)
    self.assertEqual(run.returncode, 143)  # The highest: SIGTERM, of node 0.
    for pid in pids.read_text().split():
      self.assertFalse(pathlib.Path(f'/proc/{pid}').exists())

  def test_two_nodes_start_again_together(self):
    starts = self.folder / 'starts'
    # The process of node 1 dies of a signal; that of node 0 says: start again.
    self.make_python(
        f'echo "$SLURM_PROCID $@" >> "{starts}"\n'
        f'[[ $(grep -c "^$SLURM_PROCID" "{starts}") = 2 ]] && exit 0\n'
        '[[ $SLURM_PROCID = 1 ]] && kill -9 $$\nexit 75'
    )
    run = self.run_tasks('--kill-on-bad-exit=1')
    _, said = run.communicate(timeout=60)
    self.assertEqual(run.returncode, 0, said)
    lines = sorted(starts.read_text().splitlines())
    self.assertLen(lines, 4)
    for line in lines:
      self.assertIn('--coordinator=first:20007 --processes=2', line)
      self.assertIn(f'--process={line[0]} --mode=train', line)


if __name__ == '__main__':
  absltest.main()
