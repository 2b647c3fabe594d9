"""Packages that untrusted code can import, and its view of /dev."""

import importlib.metadata
import os
import pathlib
import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.runtime import workdir
from evojax.sandbox import box
from evojax.sandbox import image
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import repository
from tests.sandbox import attacks

_HELD = [t for t in ('T0', 'T1', 'T2') if t == 'T2' or not attacks.missing(t)]
_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
_WIDE = limits_lib.Limits(wall_seconds=30.0, cpu_seconds=10.0)


class ImageTest(absltest.TestCase):

  def test_it_holds_what_its_packages_need(self):
    for name in image.PACKAGES:
      for needed in importlib.metadata.requires(name) or ():
        needed, _, condition = needed.partition(';')
        if not condition:
          self.assertIn(re.match(r'[\w-]+', needed)[0], image.PACKAGES, name)

  def test_versions_are_pinned(self):
    pins = (_ROOT / 'requirements' / 'base.txt').read_text().split('\n')
    for name in image.PACKAGES:
      self.assertIn(f'{name}=={importlib.metadata.version(name)}', pins)

  def test_the_manifest_of_a_run_records_it(self):
    self.assertLessEqual(set(image.PACKAGES), set(workdir._PACKAGES))

  def test_a_missing_package_is_named(self):
    image.paths.cache_clear()
    self.addCleanup(image.paths.cache_clear)
    with mock.patch.object(image, 'PACKAGES', ('numpy', 'no-such-package')):
      with self.assertRaisesRegex(RuntimeError, 'no-such-package is part'):
        image.paths()


class ProgramTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.boxes = {t: box.Box(tier=t, limits=_WIDE, attempts=1) for t in _HELD}
    for one in cls.boxes.values():
      cls.addClassCleanup(one.close)

  @parameterized.named_parameters(
      ('numpy', 'import numpy as np\nx = np.array([3, 4])\n'
       'print(np.linalg.norm(x), np.random.default_rng(0).integers(1))',
       b'5.0 0\n'),
      ('numpy_by_another_name', "np = __import__('num' + 'py')\n"
       'print(np.arange(3).tolist())', b'[0, 1, 2]\n'),
      ('what_numpy_loads_later', 'import numpy.testing, numpy.ctypeslib\n'
       'import numpy as np\nnp.testing.assert_equal(1, 1)\nprint(1)', b'1\n'),
      ('numpy_reads_stdin', 'import numpy as np\n'
       "print(np.loadtxt('/dev/stdin', dtype=int).sum())", b'10\n'),
      ('numpy_uses_one_thread', 'import numpy as np, threading\n'
       'x = np.ones((300, 300))\nprint(int((x @ x).sum()))', b'27000000\n'),
      ('pytest', 'import pytest, _pytest.python\nprint(pytest.approx(1) == 1)',
       b'True\n'),
      ('the library after a reset', 'import importlib\n'
       'importlib.invalidate_caches()\nimport queue, sched\nprint(1)', b'1\n'),
      ('plain', "import sys\nprint('num' + 'py' in sys.modules)",
       b'False\n'),
      ('stdin', "print(open('/dev/stdin').read())", b'1 2\n3 4\n\n'),
      ('stdin_as_bytes', "print(open('/dev/stdin', 'rb').read())",
       b"b'1 2\\n3 4\\n'\n"),
      ('stdin_in_a_with', "with open('/dev/stdin') as f:\n"
       '  print(sum(map(int, f.read().split())))', b'10\n'),
      ('stdin_replaced', "import sys\nsys.stdin = open('/dev/stdin')\n"
       'print(input(), input())', b'1 2 3 4\n'),
      ('stdin_goes_on', "first = input()\nprint(open('/dev/stdin').read())",
       b'\n'),
      ('stdin_by_path', 'import pathlib\n'
       "print(pathlib.Path('/dev/stdin').read_text().count('\\n'))", b'2\n'),
      ('stdin_by_descriptor', 'import os\n'
       "print(os.read(os.open('/dev/stdin', os.O_RDONLY), 3))", b"b'1 2'\n"),
      ('stdin_by_fileinput', 'import fileinput\n'
       "print(list(fileinput.input('/dev/stdin')))",
       b"['1 2\\n', '3 4\\n']\n"),
      ('stdin_exists', "import os\nprint(os.path.exists('/dev/stdin'))",
       b'True\n'),
      ('asyncio', 'import asyncio\nasync def f():\n'
       '  await asyncio.sleep(0.01)\n  return await asyncio.to_thread(input)\n'
       'print(asyncio.run(f()))\nprint(asyncio.run(f()))', b'1 2\n3 4\n'),
      ('asyncio_queue', 'import asyncio\nasync def work(q, out):\n'
       '  while True:\n    out.append(await q.get())\n    q.task_done()\n'
       'async def main():\n  q, out = asyncio.Queue(), []\n'
       '  task = asyncio.create_task(work(q, out))\n'
       '  for i in range(3): q.put_nowait(i)\n  await q.join()\n'
       '  task.cancel()\n  async with asyncio.timeout(5):\n'
       '    await asyncio.gather(*(asyncio.sleep(0.01) for _ in range(9)))\n'
       '  print(out)\nasyncio.run(main())', b'[0, 1, 2]\n'),
  )  # fmt: skip
  def test_works(self, source, stdout):
    for tier, one in self.boxes.items():
      with self.subTest(tier):
        result = one.run(source, b'1 2\n3 4\n')
        self.assertEqual((result.status, result.stdout), ('ok', stdout), result)

  @parameterized.parameters('jax', 'evojax', 'absl', 'scipy', 'sympy')
  def test_nothing_else_can_be_imported(self, name):
    for tier, one in self.boxes.items():
      with self.subTest(tier):
        result = one.run(f'import {name}')
        self.assertEqual(result.status, 'error')
        self.assertEqual(
            result.message, f"ModuleNotFoundError: No module named '{name}'"
        )

  def test_names_of_other_packages_are_not_shown(self):
    site = os.path.dirname(next(p for p in image.paths() if 'numpy' in p))
    folders = [site, os.path.dirname(os.__file__) + '/site-packages',
               '/usr/lib/python3/dist-packages',
               '/lib/python3/dist-packages']  # fmt: skip
    for tier, one in self.boxes.items():
      if tier == 'T2':
        continue
      for folder in filter(os.path.isdir, folders):
        with self.subTest(tier, folder=folder):
          source = (
              f'import os\ntry: print(*os.listdir({folder!r}))\n'
              'except OSError: print()'
          )
          shown = one.run(source).stdout.decode().split()
          ours = {os.path.basename(path) for path in image.paths()}
          self.assertLessEqual(set(shown), ours)

  @parameterized.parameters(
      "open('/dev/mem', 'rb')",
      "open('/dev/tty')",
      "open('/proc/self/environ')",
      "open('/dev/stdin', 'w').write('x' * 9999)",
      'socket.socket(socket.AF_UNIX)',
      'socket.socket()',
      'socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]'
      ".sendto(b'', '/run/log')",
      "socket.socketpair()[0].sendmsg([b''])",
      'os.eventfd(0)',
  )
  def test_nothing_else_opens(self, expression):
    for tier, one in self.boxes.items():
      if tier == 'T2':
        continue
      with self.subTest(tier):
        result = one.run(f'import os, socket\n{expression}')
        self.assertEqual(result.status, 'error', result)
        self.assertRegex(
            result.message, 'PermissionError|FileNotFound|Bad file descriptor'
        )

  def test_memory_is_counted_without_numpy(self):
    source = 'import numpy as np\nprint(int(np.ones({}).sum()))'
    for tier, one in self.boxes.items():
      with self.subTest(tier):
        fits = one.run(source.format(60_000_000))  # 480 MB of 512 MiB.
        self.assertEqual(fits.stdout, b'60000000\n', fits)
        result = one.run(source.format(80_000_000))
        self.assertEqual(result.status, 'memory_limit')


class RepositoryTest(parameterized.TestCase):

  @parameterized.parameters(*(t for t in _HELD if t != 'T2'))
  def test_tests_of_a_repository_run(self, tier):
    test = b'import numpy as np\ndef test():\n  assert np.ones(2).sum() == 2\n'
    with repository.Workspace(tier=tier, allow_weak=True) as workspace:
      workspace.write({'a_test.py': test})
      command = [repository.PYTHON, '-m', 'pytest', '-q', 'a_test.py']
      result = workspace.run(command)
      self.assertIn(b'1 passed', result.stdout, result)
      result = workspace.run([repository.PYTHON, '-c', 'import jax'])
      self.assertEqual(
          result.message, "ModuleNotFoundError: No module named 'jax'"
      )


if __name__ == '__main__':
  absltest.main()
